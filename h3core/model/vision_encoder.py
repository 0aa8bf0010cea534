"""The conditioner's vision tower: pictures and video frames to rows that stand in for pad tokens, and deepstack rows.

Attention stays inside one frame. Patches are ordered so that each 2 x 2 neighbourhood, which is merged into one row at
the end, is four consecutive rows. source: transformers 5.24.0, Qwen3VLVisionModel and its image processor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from h3core.kernels.attention import Attention
from h3core.kernels.norms import layer_norm
from h3core.kernels.quant_matrix import QuantMatrix
from h3core.kernels.rows import Rows
from h3core.kernels.table import Kernels
from h3core.model.config import VisionConfig
from h3core.model.memory import chunks
from h3core.model.precision import attention_kind, kind
from h3core.model.rotary import Tables, inverse_frequencies, tables

Block = Mapping[str, Any]
Grid = tuple[int, int, int]  # (frames, rows, columns) of patches; rows and columns are even
NORM_EPS = 1e-6
ROTARY_THETA = 10000.0


def patches(frames: np.ndarray, config: VisionConfig) -> tuple[np.ndarray, Grid]:
    """Patch vectors of a picture or of sampled video frames, whose sides are multiples of 32.

    frames: uint8 (H, W, 3), shown for both halves of a temporal patch; or (F, H, W, 3), an odd count repeats the last.
    Result: float32 (n, 3 x 2 x 16 x 16), and the grid.
    """
    pair, side, merge = config.temporal_patch_size, config.patch_size, config.spatial_merge_size
    if frames.ndim == 3:
        frames = np.repeat(frames[None], pair, 0)
    frames = np.concatenate([frames, np.repeat(frames[-1:], -len(frames) % pair, 0)])
    values = (frames.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    t, h, w = len(frames) // pair, frames.shape[1] // side, frames.shape[2] // side
    split = values.reshape(t, pair, h // merge, merge, side, w // merge, merge, side, frames.shape[3])
    # (time, block row, block column, row, column, colour, frame of the pair, pixel row, pixel column)
    ordered = split.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    return np.ascontiguousarray(ordered).reshape(t * h * w, config.patch_values), (t, h, w)


def block_order(values: np.ndarray, merge: int) -> np.ndarray:
    """(h, w, ...) in patch order: each merge x merge neighbourhood together. Result: (h w, ...)."""
    h, w, *rest = values.shape
    split = values.reshape(h // merge, merge, w // merge, merge, *rest)
    return np.ascontiguousarray(np.moveaxis(split, 1, 2)).reshape(h * w, *rest)


def vision_tables(config: VisionConfig, grids: Sequence[Grid]) -> Tables:
    """Rotary tables of all patches: half the angles from the row, half from the column. float32 (n, head_dim / 2)."""
    frequencies = inverse_frequencies(ROTARY_THETA, config.head_dim // 2)
    angles = []
    for t, h, w in grids:
        place = np.stack(np.meshgrid(np.arange(h), np.arange(w), indexing="ij"), -1).astype(np.float32)
        of_frame = (block_order(place, config.spatial_merge_size)[:, :, None] * frequencies).reshape(h * w, -1)
        angles.append(np.tile(of_frame, (t, 1)))
    return tables(np.concatenate(angles))


def positions_of_frame(config: VisionConfig, table: np.ndarray, h: int, w: int) -> np.ndarray:
    """Learned positions of one frame of h x w patches, sampled bilinearly with aligned corners.

    table: float32 (side^2, d).   Result: float32 (h w, d).
    """
    side = round(config.num_position_embeddings**0.5)
    square = table.reshape(side, side, -1)
    (top, bottom, down), (left, right, across) = _between(h, side), _between(w, side)
    down, across = down[:, None, None], across[None, :, None]
    upper = square[top][:, left] * (1 - across) + square[top][:, right] * across
    lower = square[bottom][:, left] * (1 - across) + square[bottom][:, right] * across
    return block_order(upper * (1 - down) + lower * down, config.spatial_merge_size)


def _between(count: int, side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each of `count` places along one axis: table place before, table place after, float32 share of the latter."""
    place = np.linspace(0, side - 1, count, dtype=np.float32)
    before = place.astype(np.int64)
    return before, np.minimum(before + 1, side - 1), place - before.astype(np.float32)


class VisionEncoder:
    """`fixed` holds all that is in no block: patch_embed, pos_embed, merger, deepstack_merger_list."""

    def __init__(self, config: Mapping[str, Any] | VisionConfig, kernels: Kernels, precision: str):
        self.config = VisionConfig.of(config)
        self.kernels = kernels
        self._kind, self._attention_kind = kind(precision, "vision"), attention_kind(precision, "vision")

    def encode(
        self,
        values: np.ndarray,
        grids: Sequence[Grid],
        fixed: Block,
        blocks: Iterable[Block],
        scratch: Mapping[str, np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows for the pad tokens of all grids in turn, and what to add to them after the first language layers.

        values: float32 (n, 1536), as `patches` makes them, grid after grid.   scratch: memory.vision_buffers.
        Result: float32 (n / 4, out) and (deepstack, n / 4, out), scratch["merged"] and scratch["deep"].
        """
        x, deep = scratch["residual"], scratch["deep"]
        self._embed(values, x, fixed, scratch)
        for (first, rows), positions in zip(_frames(grids), _positions(self.config, fixed, grids), strict=True):
            x[first : first + rows] += positions
        rotary = vision_tables(self.config, grids)
        for number, block in enumerate(blocks):
            self._attend(x, block, grids, rotary, scratch)
            self._feed_forward(x, block, scratch)
            if number in self.config.deepstack_visual_indexes:
                place = self.config.deepstack_visual_indexes.index(number)
                self._merge(x, deep[place], f"deepstack_merger_list.{place}.", fixed, scratch)
        self._merge(x, scratch["merged"], "merger.", fixed, scratch)
        return scratch["merged"], deep

    def _embed(self, values: np.ndarray, x: np.ndarray, fixed: Block, scratch: Mapping[str, np.ndarray]) -> None:
        """x = patch embedding of the values: a convolution whose kernel is its stride is one product."""
        kernel = np.ascontiguousarray(fixed["patch_embed.proj.weight"], np.float32)
        n, k = self.config.hidden_size, self.config.patch_values
        matrix = QuantMatrix(kernel.reshape(-1).view(np.uint8), "f32", n, k, self.kernels)
        packed = self._rows(k, scratch)
        for start, end in chunks(len(x)):
            packed.pack(values[start:end])
            matrix.matmul(packed, x[start:end], fixed["patch_embed.proj.bias"])

    def _attend(
        self, x: np.ndarray, block: Block, grids: Sequence[Grid], rotary: Tables, scratch: Mapping[str, np.ndarray]
    ) -> None:
        """x += proj(attention(LN1(x))), frame by frame."""
        config, d = self.config, self.config.hidden_size
        packed = self._rows(d, scratch)
        qkv, bias = block["attn.qkv.weight"], block["attn.qkv.bias"]
        (q_w, k_w, v_w), (q_b, k_b, v_b) = (qkv.rows(i * d, d) for i in range(3)), np.split(bias, 3)
        heads, width, storage = config.num_heads, config.head_width, scratch["attention"]
        for first, rows in _frames(grids):
            frame, cos, sin = (array[first : first + rows] for array in (x, *rotary))
            attention = Attention(storage, rows, heads, heads, width, self._attention_kind, self.kernels)
            for start, end in chunks(rows):
                y = _flat(scratch, 0, end - start, d)
                self._norm(packed, frame[start:end], block, "norm1")
                k_w.matmul(packed, y, k_b)
                attention.put_k(self._widen(y), start, None, 0.0, cos[start:end], sin[start:end])
                v_w.matmul(packed, y, v_b)
                attention.put_v(self._widen(y), start)
            for start, end in chunks(rows):
                y = _flat(scratch, 0, end - start, d)
                self._norm(packed, frame[start:end], block, "norm1")
                q_w.matmul(packed, y, q_b)
                q, out = self._widen(y), _flat(scratch, 1, end - start, heads * width)
                if width != config.head_dim:
                    q *= np.float32((width / config.head_dim) ** 0.5)  # attention divides by the wider head's root
                attention.prepare_q(q, None, 0.0, cos[start:end], sin[start:end])
                attention.run(q, out, start)
                packed.pack(self._narrow(out))
                block["attn.proj.weight"].add(packed, frame[start:end], block["attn.proj.bias"])

    def _widen(self, y: np.ndarray) -> np.ndarray:
        """(m, d) as attention takes it: heads padded with zeros where their width is not a multiple of eight."""
        head_dim, width = self.config.head_dim, self.config.head_width
        if width == head_dim:
            return y
        heads = y.reshape(len(y), -1, head_dim)
        return np.ascontiguousarray(np.pad(heads, ((0, 0), (0, 0), (0, width - head_dim)))).reshape(len(y), -1)

    def _narrow(self, y: np.ndarray) -> np.ndarray:
        """The inverse of _widen."""
        head_dim, width = self.config.head_dim, self.config.head_width
        if width == head_dim:
            return y
        return np.ascontiguousarray(y.reshape(len(y), -1, width)[:, :, :head_dim]).reshape(len(y), -1)

    def _feed_forward(self, x: np.ndarray, block: Block, scratch: Mapping[str, np.ndarray]) -> None:
        """x += fc2(gelu_tanh(fc1(LN2(x))))."""
        packed = self._rows(self.config.hidden_size, scratch)
        inner = self._rows(self.config.intermediate_size, scratch)
        for start, end in chunks(len(x)):
            y = _flat(scratch, 0, end - start, self.config.intermediate_size)
            self._norm(packed, x[start:end], block, "norm2")
            block["mlp.linear_fc1.weight"].matmul(packed, y, block["mlp.linear_fc1.bias"])
            self.kernels.gelu_tanh(y)
            inner.pack(y)
            block["mlp.linear_fc2.weight"].add(inner, x[start:end], block["mlp.linear_fc2.bias"])

    def _merge(
        self, x: np.ndarray, out: np.ndarray, name: str, fixed: Block, scratch: Mapping[str, np.ndarray]
    ) -> None:
        """out = fc2(gelu(fc1(four rows joined))). `merger` norms each row before joining, deepstack the four."""
        four = self.config.spatial_merge_size**2
        width = four * self.config.hidden_size
        norm = {"weight": fixed[f"{name}norm.weight"], "bias": fixed[f"{name}norm.bias"], "eps": NORM_EPS}
        packed = self._rows(width, scratch)
        for start, end in chunks(len(out)):
            joined = x[four * start : four * end].reshape(end - start, width)
            if norm["weight"].shape == (width,):
                packed.pack(joined, norm="layer", **norm)
            else:
                packed.pack(self._normed(x[four * start : four * end], norm, scratch).reshape(end - start, width))
            y = _flat(scratch, 0, end - start, width)
            fixed[f"{name}linear_fc1.weight"].matmul(packed, y, fixed[f"{name}linear_fc1.bias"])
            self.kernels.gelu(y)
            packed.pack(y)
            fixed[f"{name}linear_fc2.weight"].matmul(packed, out[start:end], fixed[f"{name}linear_fc2.bias"])

    def _normed(self, x: np.ndarray, norm: Mapping[str, Any], scratch: Mapping[str, np.ndarray]) -> np.ndarray:
        y = _flat(scratch, 0, len(x), x.shape[1])
        layer_norm(self.kernels, x, y, norm["weight"], norm["bias"], norm["eps"])
        return y

    def _norm(self, packed: Rows, x: np.ndarray, block: Block, name: str) -> None:
        packed.pack(x, norm="layer", weight=block[f"{name}.weight"], bias=block[f"{name}.bias"], eps=NORM_EPS)

    def _rows(self, width: int, scratch: Mapping[str, np.ndarray]) -> Rows:
        return Rows(scratch["rows"], width, self._kind, self.kernels)


def _positions(config: VisionConfig, fixed: Block, grids: Sequence[Grid]) -> Iterator[np.ndarray]:
    """Learned positions of every frame of every grid; all frames of a grid have the same."""
    for t, h, w in grids:
        yield from [positions_of_frame(config, fixed["pos_embed.weight"], h, w)] * t


def _frames(grids: Sequence[Grid]) -> Iterator[tuple[int, int]]:
    """(first row, rows) of every frame of every grid."""
    first = 0
    for t, h, w in grids:
        for _ in range(t):
            yield first, h * w
            first += h * w


def _flat(scratch: Mapping[str, np.ndarray], place: int, m: int, width: int) -> np.ndarray:
    """The place-th (m, width) array of the scratch."""
    return scratch["work"][place * m * width : (place + 1) * m * width].reshape(m, width)
