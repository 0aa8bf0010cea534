"""A strict reader of safetensors headers: nothing is trusted, no tensor is read. Sharded folders too.

source: the format's page, https://huggingface.co/docs/safetensors; 8 bytes header length, JSON, data.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from h3core.weights.formats.table import FLOATS, FORMATS
from h3core.weights.model_files import ModelError, shown

MAX_HEADER = 100_000_000  # the limit of the reference reader; a 1058-tensor text encoder needs 130 kB
MAX_DIMENSIONS = 8
MAX_JSON = 64 << 20  # index and config files
NAMES_SHOWN = 60  # characters of a tensor name that a message repeats

# Bits per value of every dtype a header may name; formats/table.py lists those that the engine can run.
BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32,
    "U16": 16,
    "U8": 8, "BOOL": 8, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F8_E8M0": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """One entry of a header. Offset counts from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class Header:
    path: Path
    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    size_bytes: int  # of the whole file
    unused_bytes: int  # of the file that no tensor covers


class _Repeated(ValueError):
    pass


def _no_repeats(pairs: list[tuple[str, object]]) -> dict:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise _Repeated(next(name for name in names if names.count(name) > 1))
    return found


def read_json(path: Path) -> dict:
    """A JSON object from a config or index file.

    raises: ModelError when it is missing, too large, no JSON or no object.
    """
    try:
        size = os.stat(path).st_size
        if size > MAX_JSON:
            raise ModelError(f"{shown(path)} has {size} bytes, too many for a config; put the model's own file there.")
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{shown(path)} cannot be read ({error.strerror}); download it again.") from error
    except (ValueError, RecursionError) as error:
        raise (
            error
            if isinstance(error, ModelError)
            else ModelError(f"{shown(path)} is not valid JSON; download it again.")
        ) from error
    if not isinstance(found, dict):
        raise ModelError(f"{shown(path)} does not hold a JSON object; download it again.")
    return found


def _not_safetensors(start: bytes) -> str | None:
    """What a file that is no safetensors file looks like, as the middle of a sentence."""
    if start.startswith(b"GGUF"):
        return "is a GGUF file; give it a name that ends in .gguf"
    if start.startswith(b"version https://git-lfs"):
        return "is only a pointer to the real file (Git LFS); download the file itself"
    if start.lstrip()[:5].lower() in (b"<!doc", b"<html"):
        return "is a web page, not weights; download it again from the file's own link"
    if start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04")):
        return "is a pickle, which can run code when it is opened; use the .safetensors file"
    return None


def read_header(path: Path) -> Header:
    """Read and check one file's header.

    raises: ModelError in one sentence; never reads past the header, never allocates more than the header's size.
    """
    name = shown(path)
    again = "download this file again"
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for ever
            raise ModelError(f"{name} is not a file; put the weights themselves there.")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(64)
            if not start:
                raise ModelError(f"{name} is empty; {again}.")
            other = _not_safetensors(start)
            if other:
                raise ModelError(f"{name} {other}.")
            if size < 10:
                raise ModelError(f"{name} has only {size} bytes, too few for a header; {again}.")
            length = int.from_bytes(start[:8], "little")
            if length > MAX_HEADER or length < 2:
                raise ModelError(f"{name} is not a safetensors file (header length {length}); {again}.")
            if 8 + length > size:
                raise ModelError(
                    f"{name} ends inside its header (has {size} bytes, needs more than {8 + length}); {again}."
                )
            file.seek(8)
            text = file.read(length)
    except OSError as error:
        raise ModelError(f"{name} cannot be read ({error.strerror}); check that it is there and readable.") from error
    try:
        entries = json.loads(text.decode("utf-8"), object_pairs_hook=_no_repeats)
    except _Repeated as error:
        raise ModelError(f"{name} lists {str(error)[:NAMES_SHOWN]!r} twice; {again}.") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{name} has a damaged header (not JSON); {again}.") from error
    if not isinstance(entries, dict):
        raise ModelError(f"{name} has a damaged header (no table of tensors); {again}.")

    metadata = entries.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ModelError(f"{name} has damaged metadata (not a table of strings); {again}.")
    tensors = {key: _tensor(path, key, entry, 8 + length, size) for key, entry in entries.items()}
    unused = check_spans(path, tensors, 8 + length, size)
    return Header(path, tensors, metadata, size, unused)


def _tensor(path: Path, key: str, entry: object, data: int, size: int) -> Tensor:
    where = f"{shown(path)}: tensor {key[:NAMES_SHOWN]!r}"
    again = "download this file again"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise ModelError(f"{where} has no dtype, shape and data_offsets; {again}.")
    dtype, shape, span = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise ModelError(f"{where} has the unknown dtype {str(dtype)[:NAMES_SHOWN]!r}; use a bf16, f16 or f32 file.")
    if not _whole_numbers(shape) or not _whole_numbers(span) or len(span) != 2:
        raise ModelError(f"{where} has a damaged shape or span; {again}.")
    if len(shape) > MAX_DIMENSIONS:
        raise ModelError(f"{where} has {len(shape)} dimensions, more than any part of this model; {again}.")
    begin, end = span
    bits = BITS[dtype]
    for axis in shape:
        bits *= axis
    if bits % 8 or end < begin or end - begin != bits // 8:
        if bits >= 1 << 80:  # do not print a number of thousands of digits
            raise ModelError(f"{where} has an impossible shape; {again}.")
        raise ModelError(
            f"{where} is stored in {end - begin} bytes, its shape {list(shape)} {dtype} needs {bits / 8:g}; {again}."
        )
    if data + end > size:
        short = data + end - size
        if short >= 1 << 62:
            raise ModelError(f"{where} lies far outside the file; {again}.")
    return Tensor(key, dtype, tuple(shape), path, data + begin, end - begin)


def _whole_numbers(values: object) -> bool:
    return (
        isinstance(values, list)
        and len(values) <= 1000
        and all(type(value) is int and 0 <= value < 1 << 63 for value in values)
    )


def check_spans(path: Path, tensors: dict[str, Tensor], data: int, size: int, alignment: int = 1) -> int:
    """Every span inside the file and no byte used twice. Returns how many bytes no tensor covers.

    data: where the data begins.   alignment: gaps shorter than this are padding.   raises: ModelError.
    """
    position = data
    unused = 0
    for each in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.size_bytes)):
        if each.offset < position and each.size_bytes:
            raise ModelError(
                f"{shown(path)}: tensor {each.name[:NAMES_SHOWN]!r} overlaps another; download this file again."
            )
        unused += each.offset - position if each.offset - position >= alignment else 0
        position = max(position, each.offset + each.size_bytes)
    if position > size:
        if position - size >= 1 << 50:
            raise ModelError(f"{shown(path)} places a tensor far outside itself; download this file again.")
        raise ModelError(
            f"{shown(path)} ends {position - size} bytes early (has {size}, needs {position}); "
            "download this file again."
        )
    return unused + (size - position if size - position >= alignment else 0)


SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.(safetensors|gguf)")
PICKLES = (".pt", ".pth", ".ckpt", ".bin", ".pickle", ".pkl")


def refuse_pickle(path: Path) -> None:
    """raises: ModelError for a file whose kind can run code when it is opened."""
    if path.suffix.lower() in PICKLES:
        raise ModelError(
            f"{shown(path)} is a pickle, which can run code when it is opened; use the .safetensors file instead."
        )


def read_part(folder: Path) -> tuple[dict[str, Tensor], dict[str, str], tuple[Path, ...]]:
    """Tensors, metadata and files of a folder that holds one part: one file, shards with an index, or shards alone.

    raises: ModelError, also for a missing shard and for a folder that holds only pickles.
    """
    found = sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith("."))
    standard = [path for path in found if path.name in ("diffusion_pytorch_model.safetensors", "model.safetensors")]
    indexes = sorted(folder.glob("*.safetensors.index.json"))
    if standard:
        return read_files(standard[:1])
    if indexes:
        return _read_index(indexes[0])
    shards = {path: match for path in found if (match := SHARD.fullmatch(path.name))}
    if shards:
        match = next(iter(shards.values()))
        total = int(match[3])
        if total > 10_000 or not all(each[1] == match[1] and each[3] == match[3] for each in shards.values()):
            raise ModelError(f"{folder.name} holds shards of different models; keep those of one.")
        wanted = [folder / f"{match[1]}-{number:05d}-of-{match[3]}.safetensors" for number in range(1, total + 1)]
        for path in wanted:
            if not path.exists():
                raise ModelError(f"{shown(path)} is missing; download it into this folder.")
        return read_files(wanted)
    if len(found) == 1:
        return read_files(found)
    if found:
        names = ", ".join(path.name for path in found[:3])
        raise ModelError(f"{folder.name} holds {len(found)} weight files ({names}); keep the one to use.")
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        refuse_pickle(path)
    raise ModelError(f"{folder.name} holds no .safetensors file; download the weights into {folder}.")


def read_files(
    paths: Sequence[Path], read: Callable[[Path], Header] = read_header
) -> tuple[dict[str, Tensor], dict[str, str], tuple[Path, ...]]:
    """Tensors, metadata and paths of files that together hold one part. raises: ModelError, also for a name twice."""
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] = {}
    for path in paths:
        refuse_pickle(path)
        header = read(path)
        for name, each in header.tensors.items():
            if name in tensors:
                raise ModelError(
                    f"{shown(path)}: tensor {name[:NAMES_SHOWN]!r} is also in {tensors[name].path.name}; keep one."
                )
            tensors[name] = each
        metadata.update(header.metadata)
    return tensors, metadata, tuple(paths)


def _read_index(path: Path) -> tuple[dict[str, Tensor], dict[str, str], tuple[Path, ...]]:
    where = read_json(path).get("weight_map")
    if not isinstance(where, dict) or not where or not all(isinstance(file, str) for file in where.values()):
        raise ModelError(f"{shown(path)} has no weight_map from tensor names to files; download it again.")
    files: dict[str, Header] = {}
    for file in sorted(set(where.values())):
        if not file or Path(file).name != file or "\\" in file or "\0" in file:
            raise ModelError(
                f"{shown(path)} names {file[:NAMES_SHOWN]!r}, which is not a file of this folder; download it again."
            )
        if not (path.parent / file).exists():
            raise ModelError(
                f"{path.parent.name}/{file} is missing, {path.name} names it; download it into this folder."
            )
        refuse_pickle(path.parent / file)
        files[file] = read_header(path.parent / file)
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] = {}
    for name, file in where.items():
        if name not in files[file].tensors:
            raise ModelError(
                f"{path.parent.name}/{file} lacks {name[:NAMES_SHOWN]!r}, which {path.name} puts there; "
                "download both again."
            )
        tensors[name] = files[file].tensors[name]
    for header in files.values():
        metadata.update(header.metadata)
    return tensors, metadata, tuple(header.path for header in files.values())


def read_values(tensor: Tensor) -> list[float]:
    """The numbers of a small tensor, as latent statistics are.

    raises: ModelError for a large one, or a storage format that this build cannot read.
    """
    if tensor.dtype not in FLOATS or tensor.size_bytes > 1 << 16:
        raise ModelError(
            f"{shown(tensor.path)}: {tensor.name[:NAMES_SHOWN]!r} is no short list of numbers; download it again."
        )
    raw = np.frombuffer(read_bytes(tensor), np.uint8)
    return [float(value) for value in FORMATS[FLOATS[tensor.dtype]].decode(raw)]


def read_bytes(tensor: Tensor) -> bytes:
    """A small tensor as it is stored. raises: ModelError."""
    try:
        with open(tensor.path, "rb") as file:
            file.seek(tensor.offset)
            return file.read(tensor.size_bytes)
    except OSError as error:
        raise ModelError(
            f"{shown(tensor.path)} cannot be read ({error.strerror}); check the disk it lies on."
        ) from error
