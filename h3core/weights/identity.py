"""Which file is this: a digest for caches and recipes, without reading all of a 60 GB file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

MIB = 1 << 20
SAMPLES = 64  # one MiB each, evenly spread; a file of at most that size is read whole

_known: dict[tuple[str, int, int, int], str] = {}  # one process asks again and again for the same files


def file_identity(path: Path) -> str:
    """SHA-256 over the size, the header and 64 sampled MiB of the file, hex.

    raises: OSError.
    """
    status = os.stat(path)
    key = (os.fspath(path), status.st_size, status.st_mtime_ns, status.st_ino)
    if key not in _known:
        digest = hashlib.sha256(status.st_size.to_bytes(8, "little"))
        with open(path, "rb", buffering=0) as file:
            if status.st_size <= SAMPLES * MIB:
                while chunk := file.read(MIB):
                    digest.update(chunk)
            else:
                # The header: a safetensors file begins with its length. 16 MiB of it tell any two files apart.
                length = 8 + int.from_bytes(file.read(8), "little")
                file.seek(0)
                digest.update(file.read(min(max(length, MIB), 16 * MIB)))
                for i in range(SAMPLES):
                    file.seek((status.st_size - MIB) * i // (SAMPLES - 1))
                    digest.update(file.read(MIB))
        _known[key] = digest.hexdigest()
    return _known[key]


def part_identity(files: Sequence[Path], reading: str) -> str:
    """Digest of a part: its files in any order and under any names, and how they are read (config, row orders)."""
    digest = hashlib.sha256(reading.encode())
    for each in sorted(file_identity(path) for path in files):
        digest.update(bytes.fromhex(each))
    return digest.hexdigest()


def file_sha256(path: Path, on_progress: Callable[[int, int], None] | None = None) -> str:
    """SHA-256 of every byte, hex. on_progress(done, total) in bytes, after each 8 MiB.

    raises: OSError.
    """
    total, done, digest = os.stat(path).st_size, 0, hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(8 * MIB):
            digest.update(chunk)
            done += len(chunk)
            if on_progress:
                on_progress(done, total)
    return digest.hexdigest()
