"""What a model on disk is, once it has been opened: its parts, their tensors, where the bytes lie."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from h3core.weights.identity import part_identity


class ModelError(ValueError):
    """A model that cannot be used as it lies there: one sentence that names the file or field and what to change."""


@dataclass(frozen=True)
class RowOrder:
    """Where the rows of a tensor lie in a stored one: row r is stored row `offset + (r // block) * stride + r % block`.

    Resolved while a weight is expanded or copied, never by rewriting a file. A negative stride swaps two halves.
    """

    offset: int
    block: int
    stride: int

    def index(self, n: int) -> np.ndarray:
        """Stored row of each of the first n rows, int64 (n,)."""
        row = np.arange(n, dtype=np.int64)
        return self.offset + row // self.block * self.stride + row % self.block


@dataclass(frozen=True)
class Weight:
    """One tensor by its canonical (diffusers) name. Offset and size are those of the WHOLE stored tensor."""

    name: str
    format: str  # a key of formats.table.FORMATS
    shape: tuple[int, ...]  # of this tensor, rows first; with an order the stored one may have more rows
    path: Path
    offset: int  # bytes from the start of the file, any alignment
    size_bytes: int
    order: RowOrder | None = None
    scale: Weight | None = None  # what the stored rows are multiplied with: one number, or one a stored row


@dataclass(frozen=True)
class Part:
    """One network of the model: "transformer", "text_encoder", "video_vae" or "audio_vae"."""

    kind: str
    config: dict  # canonical fields, see config.py
    weights: dict[str, Weight]
    files: tuple[Path, ...] = ()

    def group(self, prefix: str, exclude: tuple[str, ...] = ()) -> dict[str, Weight]:
        """The weights under a name prefix, without it. Names that then begin with one of `exclude` are left out."""
        inside = {name[len(prefix) :]: each for name, each in self.weights.items() if name.startswith(prefix)}
        return {name: each for name, each in inside.items() if not name.startswith(exclude)} if exclude else inside

    @property
    def size_bytes(self) -> int:
        """Stored bytes of all weights, each stored tensor counted once."""
        return size_bytes(self.weights)

    @functools.cached_property
    def identity(self) -> str:
        """Hex digest, the same when files are moved or renamed; made when first asked, it reads up to 64 MiB a file."""
        layout = sorted((each.name, each.order) for each in self.weights.values() if each.order)
        return part_identity(self.files, repr((self.kind, sorted(self.config.items()), layout)))


def size_bytes(weights: Mapping[str, Weight]) -> int:
    """Stored bytes of these weights, each stored tensor counted once (q, k, v may share one)."""
    return sum({(each.path, each.offset): each.size_bytes for each in weights.values()}.values())


@dataclass(frozen=True)
class Manifest:
    """What the `_minimax_h3` block of a model_index.json says; what it leaves out is as in the release.

    source: spec §6.3 (tap), checkpoint-formats §6 (frames, canvas), model card (distilled: no second pass).
    """

    tap: int = 50  # text layers that run; the residual stream after them is the conditioning
    guidance_distilled: bool = True
    trained_frames: tuple[int, ...] = (124, 362)  # shortest, (others,) longest
    trained_canvases: tuple[tuple[int, int], ...] = ((1344, 768), (768, 1344), (768, 768))  # width, height
    partition: str = "fl2va"
    tasks: tuple[str, ...] = ("t2va", "fl2va")


@dataclass(frozen=True)
class ModelFiles:
    """A whole model, opened: only headers and configs have been read."""

    path: Path
    name: str
    transformer: Part
    text_encoder: Part
    video_vae: Part
    audio_vae: Part
    tokenizer: Path  # folder with tokenizer.json and tokenizer_config.json
    shifts: tuple[float, float] = (12.0, 3.0)  # video, audio
    manifest: Manifest = field(default_factory=Manifest)
    processor: Path | None = None  # folder with preprocessor_config.json; only images need it

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.transformer, self.text_encoder, self.video_vae, self.audio_vae)


def shown(path: Path) -> str:
    """A file as messages name it: the folder it lies in and its name."""
    return f"{path.parent.name}/{path.name}" if path.parent.name else path.name
