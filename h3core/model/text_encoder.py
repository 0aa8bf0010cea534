"""The conditioner's language part: Qwen3-VL's decoder layers up to the tapped one, over all tokens at once.

What the transformer receives is the residual stream after `tap` layers, without a final norm; layers beyond are never
read. source: transformers 5.24.0, Qwen3VLTextModel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from h3core.kernels.table import Kernels
from h3core.model.config import TextConfig
from h3core.model.precision import attention_kind, kind
from h3core.model.rotary import text_tables
from h3core.model.sublayers import Adjustment, AttentionWeights, FeedForwardWeights, Shape, Sublayers

Block = Mapping[str, Any]


class TextEncoder:
    """`tap` decoder layers; MiniMax-H3 uses 50."""

    def __init__(self, config: Mapping[str, Any] | TextConfig, tap: int, kernels: Kernels, precision: str):
        """raises: ValueError when the encoder has fewer layers than `tap`."""
        self.config = config = TextConfig.of(config)
        if not 0 < tap <= config.num_hidden_layers:
            raise ValueError(f"the text encoder has {config.num_hidden_layers} layers, {tap} are needed")
        self.tap = tap
        self.kernels = kernels
        self._kinds = kind(precision, "text"), attention_kind(precision, "text")
        self.shape = Shape(
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            config.intermediate_size,
        )

    def encode(
        self,
        embeddings: np.ndarray,
        layers: Iterable[Block],
        scratch: Mapping[str, np.ndarray],
        positions: np.ndarray | None = None,
        deepstack: tuple[np.ndarray, list[np.ndarray]] | None = None,
    ) -> np.ndarray:
        """States of all tokens after the tapped layer.

        embeddings: float32 (m, d), one row a token; pictures' rows already in place.
        layers: at least `tap`, keys such as "self_attn.q_proj.weight"; more are not asked for.
        positions: int (3, m); None: text alone, the row number on every axis.
        deepstack: rows int (n,), and for the first layers float32 (n, d) to add there afterwards.
        scratch: memory.text_buffers.   Result: float32 (m, d), scratch["residual"].
        raises: ValueError when `layers` ends too early.
        """
        x, config = scratch["residual"], self.config
        x[...] = embeddings
        if positions is None:
            positions = np.broadcast_to(np.arange(len(x)), (3, len(x)))
        rotary = text_tables(config, positions)
        stack = Sublayers(self.shape, len(x), self._kinds, self.kernels, scratch)
        layers = iter(layers)
        for number in range(self.tap):
            layer = next(layers, None)
            if layer is None:
                raise ValueError(f"the text encoder ends after {number} layers, {self.tap} are needed")
            into_attention = Adjustment(layer["input_layernorm.weight"], config.rms_norm_eps)
            stack.attend(x, self._attention(layer), into_attention, rotary, causal=True)
            into_feed_forward = Adjustment(layer["post_attention_layernorm.weight"], config.rms_norm_eps)
            stack.feed_forward(x, _feed_forward(layer), into_feed_forward)
            if deepstack is not None and number < len(deepstack[1]):
                x[deepstack[0]] += deepstack[1][number]
        return x

    def _attention(self, layer: Block) -> AttentionWeights:
        return AttentionWeights(
            q=layer["self_attn.q_proj.weight"],
            k=layer["self_attn.k_proj.weight"],
            v=layer["self_attn.v_proj.weight"],
            out=layer["self_attn.o_proj.weight"],
            q_norm=layer["self_attn.q_norm.weight"],
            k_norm=layer["self_attn.k_norm.weight"],
            eps=self.config.rms_norm_eps,
        )


def _feed_forward(layer: Block) -> FeedForwardWeights:
    return FeedForwardWeights(
        value=layer["mlp.up_proj.weight"], gate=layer["mlp.gate_proj.weight"], out=layer["mlp.down_proj.weight"]
    )


def multimodal_positions(kinds: np.ndarray, grids: Sequence[tuple[int, int]]) -> np.ndarray:
    """Positions of a presentation with pictures: a text row advances all axes, a picture counts rows and columns.

    kinds: int (m,), 0 for text (start and end tokens too), else one number per kind of pad token.
    grids: (rows, columns) after merging, one for each run of pad tokens in turn.
    Result: int64 (3, m).   raises: ValueError when runs and grids disagree.   source: Qwen3VLModel.get_rope_index.
    """
    bounds = [0, *(np.flatnonzero(np.diff(kinds)) + 1), len(kinds)]
    remaining, cursor, parts = list(grids), 0, []
    for start, end in itertools.pairwise(bounds):
        if kinds[start] == 0:
            parts.append(np.tile(np.arange(cursor, cursor + end - start), (3, 1)))
            cursor += end - start
            continue
        if not remaining or remaining[0][0] * remaining[0][1] != end - start:
            raise ValueError(f"{end - start} picture rows do not match the picture's grid")
        rows, columns = remaining.pop(0)
        down, across = (axis.reshape(-1) for axis in np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"))
        parts.append(cursor + np.stack([np.zeros_like(down), down, across]))
        cursor += max(rows, columns)
    if remaining:
        raise ValueError(f"{len(remaining)} pictures have no rows in the text")
    return np.concatenate(parts, 1)
