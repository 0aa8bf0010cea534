"""Weight files of either kind, safetensors or GGUF: told apart by their names' endings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from h3core.weights import gguf, safetensors
from h3core.weights.safetensors import Header, Tensor

Found = tuple[dict[str, Tensor], dict[str, str], tuple[Path, ...]]


def read_header(path: Path) -> Header:
    """raises: ModelError."""
    return gguf.read_header(path) if is_gguf(path) else safetensors.read_header(path)


def is_gguf(path: Path) -> bool:
    return path.suffix.lower() == ".gguf"


def read_files(paths: Sequence[Path]) -> Found:
    """Tensors, metadata and paths of files that together hold one part. raises: ModelError, also for a name twice."""
    return safetensors.read_files(paths, read_header)


def read_part(folder: Path) -> Found:
    """The same of a folder: safetensors files as safetensors.read_part, else the one GGUF file in it."""
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.safetensors.index.json")):
        found = sorted(path for path in folder.glob("*.gguf") if not path.name.startswith("."))
        if len(found) == 1:
            return read_files(found)
    return safetensors.read_part(folder)
