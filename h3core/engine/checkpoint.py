"""A run in flight, on disk: files that are whole or absent, and the sampler's state after every step.

A state is everything the next step needs, so a run that was killed goes on and ends in the same bytes. The file is one
safetensors file whose metadata holds the key of the run it belongs to and a digest of its arrays; whatever does not
match is treated as not there. Knows no model and no kernel.
"""

import hashlib
import json
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from h3core import fault

_NAMES = {"float32": "F32", "float64": "F64", "int32": "I32", "int64": "I64", "uint8": "U8"}
_DTYPES = {name: np.dtype(dtype) for dtype, name in _NAMES.items()}


def sync_folder(folder: Path) -> None:
    """Makes a rename inside the folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def publish(temporary: Path, path: Path, what: str) -> None:
    """A finished temporary file takes its final name, durably: fsync, rename, fsync of the folder.

    what: the kind of file, as the fault points call it.
    """
    with open(temporary, "rb+") as file:
        os.fsync(file.fileno())
    fault.point(f"{what}.synced")
    os.replace(temporary, path)
    fault.point(f"{what}.renamed")
    sync_folder(path.parent)
    fault.point(f"{what}.durable")


def write_whole(path: Path, write: Callable[[BinaryIO], object], what: str) -> None:
    """`write` fills a temporary file beside `path`, which then replaces it; on any error nothing is left behind.

    what: the kind of file, as the fault points call it.
    """
    temporary = path.with_name(f".{path.name}.part")
    try:
        with open(temporary, "wb") as file:
            fault.point(f"{what}.begun")
            write(file)
        fault.point(f"{what}.written")
        publish(temporary, path, what)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray], notes: Mapping[str, str], what: str = "arrays") -> None:
    """Arrays and notes as one safetensors file, whole or absent.

    arrays: name -> float32, float64, int32, int64 or uint8, any shape.   notes: text kept beside them.
    """
    entries: dict[str, object] = {}
    digest, offset, parts = hashlib.sha256(), 0, []
    for name, array in sorted(arrays.items()):
        part = np.ascontiguousarray(array)
        entries[name] = {
            "dtype": _NAMES[part.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + part.nbytes],
        }
        flat = part.reshape(-1).view(np.uint8).data
        digest.update(flat)
        parts.append(flat)
        offset += part.nbytes
    entries["__metadata__"] = {**notes, "sha256": digest.hexdigest()}
    header = json.dumps(entries, sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)

    def write(file: BinaryIO) -> None:
        file.write(struct.pack("<Q", len(header)))
        file.write(header)
        for flat in parts:
            file.write(flat)

    write_whole(path, write, what)


def load_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]] | None:
    """What `save_arrays` wrote, or None when there is no such file or its bytes are not the ones that were written."""
    try:
        with open(path, "rb") as file:
            data = bytearray(os.fstat(file.fileno()).st_size)
            if file.readinto(data) != len(data):
                return None
        size = struct.unpack_from("<Q", data)[0]
        entries = json.loads(bytes(data[8 : 8 + size]))
        notes = entries.pop("__metadata__")
        body = memoryview(data)[8 + size :]
        if hashlib.sha256(body).hexdigest() != notes.pop("sha256"):
            return None
        arrays = {}
        for name, entry in entries.items():
            start, end = entry["data_offsets"]
            arrays[name] = np.frombuffer(body[start:end], _DTYPES[entry["dtype"]]).reshape(entry["shape"])
        return arrays, notes
    except (OSError, ValueError, KeyError, struct.error):
        return None


@dataclass
class State:
    """The sampler between two steps.

    step: evaluations done.   video_rows (V, 96), audio_rows (2A, 32): float32, targets only, before step `step`.
    seconds: time spent so far by phase, so that a resumed run reports all of it.
    """

    step: int
    video_rows: np.ndarray
    audio_rows: np.ndarray
    seconds: dict[str, float] = field(default_factory=dict)


class Checkpoint:
    """The state file of a run folder. `key` names all that the state depends on; another key's state is not used."""

    def __init__(self, folder: Path, key: str):
        self.folder, self.key = folder, key
        self.path = folder / "state.safetensors"

    def save(self, state: State) -> None:
        """On disk when it returns. raises: OSError."""
        notes = {"key": self.key, "step": str(state.step), "seconds": json.dumps(state.seconds)}
        save_arrays(self.path, {"video_rows": state.video_rows, "audio_rows": state.audio_rows}, notes, "state")

    def load(self) -> State | None:
        """The last saved state of this very run, or None."""
        loaded = load_arrays(self.path)
        if loaded is None or loaded[1].get("key") != self.key:
            return None
        arrays, notes = loaded
        return State(
            int(notes["step"]),
            arrays["video_rows"].copy(),
            arrays["audio_rows"].copy(),
            json.loads(notes["seconds"]),
        )

    def remove(self) -> None:
        """Forgets the run."""
        self.path.unlink(missing_ok=True)
