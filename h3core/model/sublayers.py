"""The two sublayers every stack here is made of, attention and gated feed-forward, each added to a residual stream.

Rows go through in chunks. Attention makes two passes: keys and values of all rows first, packed; then each chunk's
queries. So the widest arrays never hold more than one chunk. Knows no names of tensors: the stacks look those up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from h3core.kernels.attention import Attention
from h3core.kernels.quant_matrix import QuantMatrix
from h3core.kernels.rows import Rows
from h3core.kernels.table import Kernels
from h3core.model.memory import chunks
from h3core.model.rotary import Tables


@dataclass(frozen=True)
class Shape:
    """Sizes of a stack's layers."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_inner(self) -> int:
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, eq=False)
class Adjustment:
    """What happens to the residual rows on their way in and to the sublayer's result on its way back.

    norm: float32 (d,), weight of the RMS norm.   shift, scale, gate: float32 (g, d), or None.
    index: int32 (S,), which of the g each row takes.
    """

    norm: np.ndarray
    eps: float
    shift: np.ndarray | None = None
    scale: np.ndarray | None = None
    gate: np.ndarray | None = None
    index: np.ndarray | None = None

    def pack(self, rows: Rows, x: np.ndarray, start: int, end: int) -> None:
        """rows = norm(x) (1 + scale) + shift, of x's rows start ... end."""
        index = None if self.index is None else self.index[start:end]
        rows.pack(
            x[start:end], norm="rms", weight=self.norm, eps=self.eps, shift=self.shift, scale=self.scale, index=index
        )

    def add(self, matrix: QuantMatrix, rows: Rows, x: np.ndarray, start: int, end: int) -> None:
        """x += gate (rows . matrix^T), on x's rows start ... end."""
        index = None if self.index is None else self.index[start:end]
        matrix.add(rows, x[start:end], gate=self.gate, index=index)


@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """Projections, and the weights float32 (head_dim,) of the norm over each head of q and k."""

    q: QuantMatrix
    k: QuantMatrix
    v: QuantMatrix
    out: QuantMatrix
    q_norm: np.ndarray
    k_norm: np.ndarray
    eps: float


@dataclass(frozen=True, eq=False)
class FeedForwardWeights:
    """y = out(value(x) silu(gate(x)))."""

    value: QuantMatrix
    gate: QuantMatrix
    out: QuantMatrix


class Sublayers:
    """Attention and feed-forward over one residual stream; the scratch is shared by all layers of a stack."""

    def __init__(
        self,
        shape: Shape,
        rows: int,
        kinds: tuple[str, str],
        kernels: Kernels,
        scratch: Mapping[str, np.ndarray],
    ):
        """rows: of the residual stream.   kinds: of the products, of the attention.   scratch: "rows", "attention",
        "work" as memory.py declares them.
        """
        self.shape = shape
        self.kernels = kernels
        product, attention = kinds
        self.work = scratch["work"]
        self._rows = rows
        # One storage serves all three widths: each is packed only after the one before has been read.
        self._hidden = Rows(scratch["rows"], shape.hidden, product, kernels)
        self._heads = Rows(scratch["rows"], shape.inner, product, kernels)
        self._inner = Rows(scratch["rows"], shape.ffn, product, kernels)
        self._attention = Attention(
            scratch["attention"], rows, shape.heads, shape.kv_heads, shape.head_dim, attention, kernels
        )

    def attend(
        self,
        x: np.ndarray,
        weights: AttentionWeights,
        adjust: Adjustment,
        rotary: Tables | None = None,
        first: int = 0,
        *,
        causal: bool = False,
    ) -> None:
        """x += gate attention(adjusted x), in place on the rows from `first` on; keys and values come from all rows.

        x: float32 (S, d).   rotary: None leaves q and k unturned.   causal: a row sees itself and what is before it.
        """
        packed = None
        for start, end in chunks(self._rows):
            adjust.pack(self._hidden, x, start, end)
            packed = start, end
            k, _ = self._wide(end - start, self.shape.kv_inner)
            weights.k.matmul(self._hidden, k)
            self._attention.put_k(k, start, weights.k_norm, weights.eps, *_turn(rotary, start, end))
            weights.v.matmul(self._hidden, k)
            self._attention.put_v(k, start)
        for start, end in chunks(self._rows, first):
            if packed != (start, end):
                adjust.pack(self._hidden, x, start, end)
                packed = None
            q, heads = self._wide(end - start, self.shape.inner)
            weights.q.matmul(self._hidden, q)
            self._attention.prepare_q(q, weights.q_norm, weights.eps, *_turn(rotary, start, end))
            self._attention.run(q, heads, start, causal)
            self._heads.pack(heads)
            adjust.add(weights.out, self._heads, x, start, end)

    def feed_forward(self, x: np.ndarray, weights: FeedForwardWeights, adjust: Adjustment, first: int = 0) -> None:
        """x += gate out(value(adjusted x) silu(gate(adjusted x))), in place on the rows from `first` on."""
        for start, end in chunks(self._rows, first):
            adjust.pack(self._hidden, x, start, end)
            inner = self.work[: (end - start) * self.shape.ffn].reshape(end - start, self.shape.ffn)
            weights.value.swiglu(self._hidden, weights.gate, inner)
            self._inner.pack(inner)
            adjust.add(weights.out, self._inner, x, start, end)

    def _wide(self, m: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Two (m, width) arrays of the scratch."""
        both = self.work[: 2 * m * width].reshape(2, m, width)
        return both[0], both[1]


def _turn(rotary: Tables | None, start: int, end: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    return (None, None) if rotary is None else (rotary[0][start:end], rotary[1][start:end])
