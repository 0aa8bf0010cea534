"""The diffusion transformer over packed rows: text refiner, modulation table, one forward pass.

A block is a mapping from names within it (`attn.to_q.weight`) to matrices in stored format, or float32 arrays for all
that is not a linear layer's weight. Blocks come from an iterable: who streams, counts or stops them is not known here.
source: diffusers 0.42.1, MiniMaxH3Transformer3DModel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from h3core.kernels.norms import rms_norm
from h3core.kernels.rows import Rows
from h3core.kernels.table import Kernels
from h3core.model.config import TransformerConfig
from h3core.model.layout import Layout
from h3core.model.memory import chunks
from h3core.model.precision import attention_kind, kind
from h3core.model.rotary import Tables, tables, transformer_tables
from h3core.model.schedule import Pairs
from h3core.model.sublayers import Adjustment, AttentionWeights, FeedForwardWeights, Shape, Sublayers

Block = Mapping[str, Any]
Scratch = Mapping[str, np.ndarray]
MODALITIES = 3
SHIFTS_SCALES_GATES = 6  # shift, scale, gate of attention, then of feed-forward


@dataclass(frozen=True, eq=False)
class Modulation:
    """What the noise level does to every block.

    table: float32 (6 blocks + 2, P, d): six rows a block, then final shift and scale, for each of P (time, tag) pairs.
    index: int32 (S,), the pair of each row in this evaluation.
    """

    table: np.ndarray
    index: np.ndarray

    def block(self, number: int) -> np.ndarray:
        return self.table[SHIFTS_SCALES_GATES * number : SHIFTS_SCALES_GATES * (number + 1)]

    def attention(self, number: int, norm: np.ndarray, eps: float) -> Adjustment:
        shift, scale, gate = self.block(number)[:3]
        return Adjustment(norm, eps, shift, scale, gate, self.index)

    def feed_forward(self, number: int, norm: np.ndarray, eps: float) -> Adjustment:
        shift, scale, gate = self.block(number)[3:]
        return Adjustment(norm, eps, shift, scale, gate, self.index)


class Transformer:
    """MiniMax-H3's transformer. `fixed` holds all that is in no block: projections, embedders, final norms."""

    def __init__(self, config: Mapping[str, Any] | TransformerConfig, kernels: Kernels, precision: str):
        self.config = config = TransformerConfig.of(config)
        self.kernels = kernels
        self._island = kind(precision, "dit.island")
        self._block_kinds = kind(precision, "dit.block"), attention_kind(precision, "dit.block")
        self._refiner_kinds = kind(precision, "dit.refiner"), attention_kind(precision, "dit.refiner")
        heads = config.num_attention_heads
        self.shape = Shape(config.hidden_size, heads, heads, config.attention_head_dim, config.ffn_dim)

    def rotary(self, layout: Layout) -> Tables:
        """Rotary tables of a layout, made once a run."""
        return transformer_tables(self.config, layout.positions)

    def refine(self, text: np.ndarray, fixed: Block, refiner_blocks: Iterable[Block], scratch: Scratch) -> np.ndarray:
        """Text rows as the blocks take them: they depend on the prompt alone, so this runs once a request.

        text: float32 (n, text_dim), the conditioner's states.   scratch: memory.refiner_buffers.
        Result: float32 (n, d), scratch["text"].
        """
        config, y = self.config, scratch["text"]
        packed = Rows(scratch["rows"], config.text_dim, self._refiner_kinds[0], self.kernels)
        for start, end in chunks(len(text)):
            packed.pack(text[start:end])
            fixed["context_embedder.weight"].matmul(packed, y[start:end], fixed["context_embedder.bias"])
        stack = Sublayers(self.shape, len(text), self._refiner_kinds, self.kernels, scratch)
        for block in refiner_blocks:
            stack.attend(y, self._attention(block), Adjustment(block["norm1.weight"], config.norm_eps))
            stack.feed_forward(y, self._feed_forward(block), Adjustment(block["norm2.weight"], config.norm_eps))
        rms_norm(self.kernels, y, y, fixed["token_refiner.final_norm.weight"], config.norm_eps)
        return y

    def modulation(
        self, pairs: Pairs, fixed: Block, adaln: Iterable[Block], scratch: Scratch, table: np.ndarray
    ) -> np.ndarray:
        """The table of a whole run, from the AdaLN projections, which nothing else reads.

        adaln: per block, "linear.weight" (18 d, e) and "linear.bias".   scratch: memory.modulation_buffers.
        table: float32 (6 blocks + 2, P, d), OUT; may be a file in memory.   Result: table.
        """
        d = self.config.hidden_size
        times, time_of_pair = np.unique(pairs.times, return_inverse=True)
        if "adaln_t_table" in fixed:
            embedding = scratch["embedding"]
            embedding[...] = curve_at(times, fixed["adaln_t_table"])
        else:
            embedding = self.embed_times(times, fixed, scratch)
            self.kernels.silu(embedding)
        by_tag = [np.flatnonzero(pairs.tags == tag) for tag in range(MODALITIES)]
        packed = Rows(scratch["rows"], self.config.time_embed_dim, self._island, self.kernels)
        for number, block in enumerate(adaln):
            six = table[SHIFTS_SCALES_GATES * number : SHIFTS_SCALES_GATES * (number + 1)]
            for tag, columns in enumerate(by_tag):
                if columns.size == 0:
                    continue
                packed.pack(embedding[time_of_pair[columns]])
                of_tag = scratch["work"][: columns.size]  # (times of this tag, 6 d)
                first = tag * SHIFTS_SCALES_GATES * d
                bias = block["linear.bias"][first : first + SHIFTS_SCALES_GATES * d]
                block["linear.weight"].rows(first, SHIFTS_SCALES_GATES * d).matmul(packed, of_tag, bias)
                six[:, columns] = of_tag.reshape(columns.size, SHIFTS_SCALES_GATES, d).transpose(1, 0, 2)
        packed.pack(embedding)
        for row, part in ((-2, 0), (-1, d)):  # final shift, then scale: by time alone
            final = scratch["work"].reshape(-1)[: times.size * d].reshape(times.size, d)
            weight, bias = fixed["norm_out.linear.weight"], fixed["norm_out.linear.bias"]
            weight.rows(part, d).matmul(packed, final, bias[part : part + d])
            table[row] = final[time_of_pair]
        return table

    def embed_times(self, times: np.ndarray, fixed: Block, scratch: Scratch) -> np.ndarray:
        """Time embedding: float32 (k,) -> (k, e), scratch["embedding"]."""
        hidden, embedding = scratch["hidden"], scratch["embedding"]
        packed = Rows(scratch["rows"], self.config.freq_dim, self._island, self.kernels)
        packed.pack(time_features(times, self.config.freq_dim))
        fixed["time_embedder.linear_1.weight"].matmul(packed, hidden, fixed["time_embedder.linear_1.bias"])
        self.kernels.silu(hidden)
        packed = Rows(scratch["rows"], self.config.time_embed_hidden_dim, self._island, self.kernels)
        packed.pack(hidden)
        fixed["time_embedder.linear_2.weight"].matmul(packed, embedding, fixed["time_embedder.linear_2.bias"])
        return embedding

    def forward(
        self,
        rows: tuple[np.ndarray, np.ndarray, np.ndarray],
        layout: Layout,
        rotary: Tables,
        modulation: Modulation,
        fixed: Block,
        blocks: Iterable[Block],
        scratch: Scratch,
    ) -> tuple[np.ndarray, np.ndarray]:
        """One evaluation: velocities, towards the data, of the video and audio rows.

        rows: video float32 (n, 96), audio float32 (n, 32), text float32 (n, d) as `refine` made it; conditions first.
        scratch: memory.transformer_buffers.   Result: float32 (n, 96) and (n, 32) in the scratch.
        """
        video, audio, text = rows
        eps, x = self.config.norm_eps, scratch["residual"]
        x[layout.text_indices] = text
        self._project_in("proj_in", video, layout.video_indices, fixed, scratch)
        self._project_in("audio_proj_in", audio, layout.audio_indices, fixed, scratch)
        stack = Sublayers(self.shape, layout.rows, self._block_kinds, self.kernels, scratch)
        for number, block in enumerate(blocks):
            # text rows come first and reach no output: in the last block only their keys and values count
            first = layout.text_rows if number == self.config.num_layers - 1 else 0
            into_attention = modulation.attention(number, block["norm1.weight"], eps)
            stack.attend(x, self._attention(block), into_attention, rotary, first)
            into_feed_forward = modulation.feed_forward(number, block["norm2.weight"], eps)
            stack.feed_forward(x, self._feed_forward(block), into_feed_forward, first)
        self._project_out("proj_out", scratch["video_velocity"], layout.video_indices, modulation, fixed, scratch)
        self._project_out("audio_proj_out", scratch["audio_velocity"], layout.audio_indices, modulation, fixed, scratch)
        return scratch["video_velocity"], scratch["audio_velocity"]

    def _project_in(self, name: str, values: np.ndarray, where: np.ndarray, fixed: Block, scratch: Scratch) -> None:
        """residual[where] = linear(values)."""
        packed = Rows(scratch["rows"], values.shape[1], self._island, self.kernels)
        for start, end in chunks(len(values)):
            packed.pack(values[start:end])
            y = self._narrow(scratch, end - start)
            fixed[f"{name}.weight"].matmul(packed, y, fixed[f"{name}.bias"])
            scratch["residual"][where[start:end]] = y

    def _project_out(
        self, name: str, y: np.ndarray, where: np.ndarray, modulation: Modulation, fixed: Block, scratch: Scratch
    ) -> None:
        """y = linear(norm(residual[where]) (1 + scale) + shift)."""
        shift, scale = modulation.table[-2:]
        packed = Rows(scratch["rows"], self.config.hidden_size, self._island, self.kernels)
        for start, end in chunks(len(y)):
            x = self._narrow(scratch, end - start)
            np.take(scratch["residual"], where[start:end], axis=0, out=x)
            index = modulation.index[where[start:end]]
            norm, eps = fixed["norm_out.norm.weight"], self.config.final_norm_eps
            packed.pack(x, norm="rms", weight=norm, eps=eps, shift=shift, scale=scale, index=index)
            fixed[f"{name}.weight"].matmul(packed, y[start:end], fixed[f"{name}.bias"])

    def _narrow(self, scratch: Scratch, m: int) -> np.ndarray:
        return scratch["work"][: m * self.config.hidden_size].reshape(m, self.config.hidden_size)

    def _attention(self, block: Block) -> AttentionWeights:
        return AttentionWeights(
            q=block["attn.to_q.weight"],
            k=block["attn.to_k.weight"],
            v=block["attn.to_v.weight"],
            out=block["attn.to_out.0.weight"],
            q_norm=block["attn.norm_q.weight"],
            k_norm=block["attn.norm_k.weight"],
            eps=self.config.qk_norm_eps,
        )

    def _feed_forward(self, block: Block) -> FeedForwardWeights:
        both, f = block["ff.net.0.proj.weight"], self.config.ffn_dim
        return FeedForwardWeights(value=both.rows(0, f), gate=both.rows(f, f), out=block["ff.net.2.weight"])


def curve_at(times: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Time embedding of a pruned transformer: float32 (k,) -> (k, rank), between two rows of its table (grid, rank).

    The table has the activation in it, in the coordinates of its own basis.   source: checkpoint-formats §2.3
    """
    last = len(table) - 1
    place = np.clip(times.astype(np.float32), 0, 1) * np.float32(last)
    row = np.minimum(place.astype(np.int64), max(last - 1, 0))
    part = (place - row.astype(np.float32))[:, None]
    below, above = table[row], table[np.minimum(row + 1, last)]
    return below + (above - below) * part


def time_features(times: np.ndarray, width: int) -> np.ndarray:
    """Sinusoid of unscaled times, cosines first: float32 (k,) -> (k, width).

    source: diffusers get_timestep_embedding, flip_sin_to_cos, downscale_freq_shift 0.
    """
    half = width // 2
    exponents = np.float32(-np.log(10000.0)) * np.arange(half, dtype=np.float32) / np.float32(half)
    frequencies = np.exp(exponents.astype(np.float64)).astype(np.float32)
    return np.concatenate(tables(times.astype(np.float32)[:, None] * frequencies), 1)
