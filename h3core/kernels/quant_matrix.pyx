"""Weights in their stored format, and the products with packed rows."""

from libc.stdint cimport int32_t, int64_t

import numpy as np

from h3core.kernels.csrc cimport (
    H3_ADD, H3_FORMATS, H3_STORE, H3_SWIGLU, h3_epilogue, h3_finish, h3_format, h3_matrix, h3_status,
)
from h3core.kernels.rows cimport Rows
from h3core.kernels.status cimport check, check_index
from h3core.kernels.table cimport Kernels
from h3core.kernels.table import FORMATS


cdef class QuantMatrix:
    """An (n, k) weight in its stored format, inside someone else's buffer: usually a block slot or a mapped file.

    data: uint8 buffer of the whole stored tensor, any byte alignment.   format: "f32" | "f16" | "bf16" | "q8_0" | "q4_k" ...
    order: (offset, block, stride): logical row r is stored row offset + (r // block) * stride + r % block; the stride may
        be negative. None: rows as stored.
    scale: float32, one for each stored row, which its values are multiplied with; None: 1.
    raises: ValueError when the format is unknown, k does not fill its blocks, or a row lies outside the data.
    """

    def __cinit__(self, const unsigned char[::1] data not None, format, int64_t n, int64_t k, Kernels kernels not None,
                  order=None, const float[::1] scale=None):
        cdef int64_t offset = 0, block = n, stride = 0, last
        if format not in FORMATS:
            raise ValueError(f"format {format!r}: choose from {', '.join(FORMATS)}")
        number, block_values, block_bytes = FORMATS[format]
        if n < 1 or k < 1 or k % block_values:
            raise ValueError(f"{format} weight ({n}, {k}): rows are whole blocks of {block_values} values")
        row_bytes = k // block_values * block_bytes
        stored, rest = divmod(data.shape[0], row_bytes)
        if rest:
            raise ValueError(f"{format} weight ({n}, {k}): {data.shape[0]} bytes are not whole rows of {row_bytes}")
        if order is not None:
            offset, block, stride = order
            if block < 1:
                raise ValueError(f"row order {tuple(order)}: the block must be at least 1")
        elif stored != n:
            raise ValueError(f"{format} weight ({n}, {k}): got {data.shape[0]} bytes, expected {n * row_bytes}")
        last = (n - 1) // block
        for start, length in ((offset, min(block, n)), (offset + last * stride, n - last * block)):
            if start < 0 or start + length > stored:       # the first and the last block bound all others
                raise ValueError(f"{format} weight ({n}, {k}): row order {tuple(order)} leaves the {stored} stored rows")
        if last > 1:
            start = offset + (last - 1) * stride           # the last whole block, longer than the last one may be
            if start < 0 or start + block > stored:
                raise ValueError(f"{format} weight ({n}, {k}): row order {tuple(order)} leaves the {stored} stored rows")
        if scale is not None and scale.shape[0] != stored:
            raise ValueError(f"{format} weight ({n}, {k}): {scale.shape[0]} scales for {stored} stored rows")
        self.data, self.format, self.kernels, self.scale = data, format, kernels, scale
        self.matrix.scale = &scale[0] if scale is not None else NULL
        self.matrix.format, self.matrix.n, self.matrix.k = <h3_format><int>number, n, k
        self.matrix.stored, self.matrix.first = &data[0], 0
        self.matrix.order.offset, self.matrix.order.block, self.matrix.order.stride = offset, block, stride

    @property
    def n(self) -> int:
        return self.matrix.n

    @property
    def k(self) -> int:
        return self.matrix.k

    def rows(self, int64_t start, int64_t n) -> QuantMatrix:
        """Logical rows start .. start + n - 1, without a copy.

        raises: ValueError when they are not all rows of this matrix.
        """
        cdef QuantMatrix view
        if start < 0 or n < 1 or start + n > self.matrix.n:
            raise ValueError(f"rows {start} to {start + n} of {self.matrix.n}")
        view = QuantMatrix.__new__(QuantMatrix, self.data, self.format, self.matrix.n, self.matrix.k, self.kernels,
                                   (self.matrix.order.offset, self.matrix.order.block, self.matrix.order.stride),
                                   self.scale)
        view.matrix.first, view.matrix.n = self.matrix.first + start, n
        return view

    def matmul(self, Rows x not None, float[:, ::1] y not None, const float[::1] bias=None):
        """Linear layer: y = x . w^T (+ bias).

        x: packed rows, (m, k).   y: (m, n) float32, OUT; shares no memory with x.   bias: (n,) float32 or None.
        raises: ValueError when the shapes disagree.
        """
        self._linear(H3_STORE, x, None, y, bias, None, None, None)

    def add(self, Rows x not None, float[:, ::1] y not None, const float[::1] bias=None, const float[:, ::1] gate=None,
            const int[::1] index=None):
        """Gated residual: y += gate[index[row]] * (x . w^T + bias).

        x: packed rows, (m, k).   y: (m, n) float32, IN and OUT.   bias: (n,) float32 or None.
        gate: (g, n) float32 or None (1).   index: (m,) int32 into 0 .. g-1; None: every row takes row 0.
        raises: ValueError when the shapes disagree or an index is out of range.
        """
        self._linear(H3_ADD, x, None, y, bias, None, gate, index)

    def swiglu(self, Rows x not None, QuantMatrix gate not None, float[:, ::1] y not None, const float[::1] bias=None,
               const float[::1] gate_bias=None):
        """Gated feed-forward: y = (x . w^T + bias) * silu(x . gate^T + gate_bias); this matrix has the value rows.

        x: packed rows, (m, k).   gate: (n, k), any format.   y: (m, n) float32, OUT.   bias, gate_bias: (n,) or None.
        raises: ValueError when the shapes disagree.
        """
        self._linear(H3_SWIGLU, x, gate, y, bias, gate_bias, None, None)

    cdef _linear(self, h3_finish finish, Rows x, QuantMatrix gate, float[:, ::1] y, const float[::1] bias,
                 const float[::1] gate_bias, const float[:, ::1] scale, const int[::1] index):
        cdef h3_epilogue out
        cdef h3_status status
        cdef const h3_matrix *second = NULL
        cdef int64_t n = self.matrix.n
        if x.rows.k != self.matrix.k or y.shape[0] != x.rows.m or y.shape[1] != n:
            raise ValueError(f"x {x.rows.m, x.rows.k}, w {n, self.matrix.k}, y {y.shape[0], y.shape[1]}")
        if gate is not None:
            if gate.matrix.n != n or gate.matrix.k != self.matrix.k:
                raise ValueError(f"w {n, self.matrix.k}, gate {gate.matrix.n, gate.matrix.k}")
            second = &gate.matrix
        for name, vector in (("bias", bias), ("gate_bias", gate_bias)):
            if vector is not None and vector.shape[0] != n:
                raise ValueError(f"{name} ({vector.shape[0]},): expected ({n},)")
        if scale is not None and (scale.shape[1] != n or scale.shape[0] < 1):
            raise ValueError(f"gate {scale.shape[0], scale.shape[1]}: expected (g, {n})")
        if index is not None:
            check_index(index, x.rows.m, scale.shape[0] if scale is not None else -1)
        if x.rows.m == 0:
            return                                  # &y[0, 0] does not exist
        out.finish, out.y, out.n = finish, &y[0, 0], n
        out.bias = &bias[0] if bias is not None else NULL
        out.gate_bias = &gate_bias[0] if gate_bias is not None else NULL
        out.gate = &scale[0, 0] if scale is not None else NULL
        out.index = <const int32_t *>&index[0] if index is not None else NULL
        with nogil:
            status = self.kernels.table.linear(&self.kernels.table, self.kernels.pool, &out, &x.rows, &self.matrix, second)
        check(status, "matrix product")

    def dequantize(self):
        """All rows as (n, k) float32: for tests and small tensors."""
        cdef h3_status status
        y = np.empty((self.matrix.n, self.matrix.k), np.float32)
        cdef float[:, ::1] view = y
        with nogil:
            status = self.kernels.table.dequantize(&self.kernels.table, self.kernels.pool, &view[0, 0], &self.matrix)
        check(status, "dequantize")
        return y
