"""Activations packed for the matrix product: made once, shared by every matrix that reads them."""

from libc.stdint cimport int32_t, int64_t, uintptr_t

from h3core.kernels.csrc cimport (
    H3_BF16, H3_F32, H3_INT8, H3_LINE, H3_NORM_LAYER, H3_NORM_NONE, H3_NORM_RMS, H3_ROWS, h3_block_bytes, h3_kind,
    h3_pack_job, h3_status,
)
from h3core.kernels.status cimport check, check_index
from h3core.kernels.table cimport Kernels

_KINDS = {"f32": H3_F32, "bf16": H3_BF16, "int8": H3_INT8}
_NORMS = {None: H3_NORM_NONE, "rms": H3_NORM_RMS, "layer": H3_NORM_LAYER}


cdef h3_kind kind_number(kind) except *:
    if kind not in _KINDS:
        raise ValueError(f"kind {kind!r}: choose from {', '.join(_KINDS)}")
    return _KINDS[kind]


cdef class Rows:
    """Packed rows of k values inside someone else's buffer; what it holds is the last pack().

    storage: uint8 buffer of size_bytes(most rows, k, kind), written by pack().
    kind: "f32" | "bf16" | "int8" (rotated in blocks along k, a scale per row and 256 values).
    raises: ValueError when storage is too small for any number of rows, none included.
    """

    def __cinit__(self, unsigned char[::1] storage not None, int64_t k, kind, Kernels kernels not None):
        cdef int64_t skip
        self.rows.kind = kind_number(kind)
        if k < 1 or storage.shape[0] < H3_LINE:
            raise ValueError(f"rows of {k} values as {kind}: storage has {storage.shape[0]} bytes")
        self.storage, self.kernels, self.kind = storage, kernels, kind
        # packed blocks start on a cache line; size_bytes has room for the shift
        skip = (H3_LINE - <int64_t>(<uintptr_t>&storage[0] % H3_LINE)) % H3_LINE
        self.rows.data, self.rows.k, self.rows.m = &storage[0] + skip, k, 0
        self.capacity_bytes = storage.shape[0] - skip

    @staticmethod
    def size_bytes(int64_t m, int64_t k, kind) -> int:
        """Bytes of storage that m rows of k values need, wherever the storage starts."""
        return (m + H3_ROWS - 1) // H3_ROWS * h3_block_bytes(kind_number(kind), k) + H3_LINE

    @property
    def m(self) -> int:
        return self.rows.m

    @property
    def k(self) -> int:
        return self.rows.k

    def pack(self, const float[:, ::1] x not None, norm=None, const float[::1] weight=None, const float[::1] bias=None,
             float eps=0.0, const float[:, ::1] shift=None, const float[:, ::1] scale=None, const int[::1] index=None):
        """Replaces the content: norm(x) * weight + bias, then * (1 + scale[index[row]]) + shift[index[row]].

        x: (m, k) float32.   norm: None | "rms" | "layer", over k, with eps.   weight, bias: (k,) float32 or None.
        shift, scale: (g, k) float32 or None.   index: (m,) int32 into 0 .. g-1; None: every row takes row 0.
        raises: ValueError when shapes disagree, an index is out of range, or m rows do not fit the storage.
        """
        cdef h3_pack_job job
        cdef h3_status status
        cdef int64_t k = self.rows.k, m = x.shape[0], groups = -1
        if norm not in _NORMS:
            raise ValueError(f"norm {norm!r}: choose from None, 'rms', 'layer'")
        if x.shape[1] != k:
            raise ValueError(f"x {m, x.shape[1]}: these rows have {k} values")
        if (m + H3_ROWS - 1) // H3_ROWS * h3_block_bytes(self.rows.kind, k) > self.capacity_bytes:
            raise ValueError(f"{m} rows of {k} values as {self.kind} do not fit {self.storage.shape[0]} bytes")
        for name, vector in (("weight", weight), ("bias", bias)):
            if vector is not None and vector.shape[0] != k:
                raise ValueError(f"{name} ({vector.shape[0]},): expected ({k},)")
        for name, table in (("shift", shift), ("scale", scale)):
            if table is not None:
                if table.shape[1] != k or table.shape[0] < 1:
                    raise ValueError(f"{name} {table.shape[0], table.shape[1]}: expected (g, {k})")
                groups = table.shape[0] if groups < 0 else min(groups, table.shape[0])
        if index is not None:
            check_index(index, m, groups)
        self.rows.m = m
        if m == 0:
            return
        job.x, job.norm, job.eps = &x[0, 0], _NORMS[norm], eps
        job.weight = &weight[0] if weight is not None else NULL
        job.bias = &bias[0] if bias is not None else NULL
        job.shift = &shift[0, 0] if shift is not None else NULL
        job.scale = &scale[0, 0] if scale is not None else NULL
        job.index = <const int32_t *>&index[0] if index is not None else NULL
        with nogil:
            status = self.kernels.table.pack_rows(&self.kernels.table, self.kernels.pool, &self.rows, &job)
        check(status, "pack")
