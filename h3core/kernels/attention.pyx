"""One attention layer: packed keys and values, and the tiled softmax over them."""

from libc.stdint cimport int64_t

from h3core.kernels.csrc cimport H3_ATTENTION_MAX_DIM, H3_BF16, H3_F32, h3_attention, h3_attention_prepare, h3_status
from h3core.kernels.status cimport check
from h3core.kernels.table cimport Kernels

_BYTES = {"f32": 4, "bf16": 2}


cdef int64_t _up(int64_t n) noexcept:
    return (n + 31) // 32 * 32


cdef int _fill(h3_attention_prepare *how, int64_t m, int64_t head_dim, const float[::1] norm, float eps,
               const float[:, ::1] cos, const float[:, ::1] sin) except -1:
    """Checks a norm and rotary tables against m rows and points `how` at them."""
    how.norm, how.eps, how.cosine, how.sine, how.rotary = NULL, eps, NULL, NULL, 0
    if norm is not None:
        if norm.shape[0] != head_dim:
            raise ValueError(f"norm ({norm.shape[0]},) for heads of {head_dim}")
        how.norm = &norm[0]
    if (cos is None) != (sin is None):
        raise ValueError("cos and sin come together")
    if cos is not None:
        if cos.shape[0] != m or sin.shape[0] != m or sin.shape[1] != cos.shape[1] or 2 * cos.shape[1] > head_dim:
            raise ValueError(f"cos ({cos.shape[0]}, {cos.shape[1]}), sin ({sin.shape[0]}, {sin.shape[1]}) for {m} rows, "
                             f"heads of {head_dim}")
        if m and cos.shape[1]:
            how.cosine, how.sine, how.rotary = &cos[0, 0], &sin[0, 0], 2 * cos.shape[1]
    return 0


cdef class Attention:
    """Keys and values of one layer over all rows, packed inside someone else's buffer.

    storage: uint8, at least size_bytes(...) long, any alignment (64 bytes is fastest).
    rows: keys in all. heads: query heads, a multiple of kv_heads; query head h reads kv head h // (heads // kv_heads).
    head_dim: a multiple of 8 up to 256. kind: "f32" | "bf16": what q, k, v and the softmax weights are rounded to.
    raises: ValueError when the sizes disagree.
    """

    cdef h3_attention layer
    cdef unsigned char[::1] storage
    cdef Kernels kernels
    cdef readonly str kind

    def __cinit__(self, unsigned char[::1] storage not None, int64_t rows, int64_t heads, int64_t kv_heads,
                  int64_t head_dim, str kind not None, Kernels kernels not None):
        if kind not in _BYTES:
            raise ValueError(f"attention kind {kind!r}: one of {', '.join(_BYTES)}")
        if rows < 1 or kv_heads < 1 or heads < 1 or heads % kv_heads:
            raise ValueError(f"attention of {rows} rows, {heads} heads, {kv_heads} key/value heads")
        if head_dim < 8 or head_dim > H3_ATTENTION_MAX_DIM or head_dim % 8:
            raise ValueError(f"head_dim {head_dim}: a multiple of 8 up to {H3_ATTENTION_MAX_DIM}")
        needed = self.size_bytes(rows, kv_heads, head_dim, kind)
        if storage.shape[0] < needed:
            raise ValueError(f"attention needs {needed} bytes, got {storage.shape[0]}")
        self.storage, self.kernels, self.kind = storage, kernels, kind
        self.layer.rows, self.layer.heads, self.layer.kv_heads, self.layer.head_dim = rows, heads, kv_heads, head_dim
        self.layer.kind = H3_F32 if kind == "f32" else H3_BF16
        self.layer.k = &storage[0]
        self.layer.v = &storage[kv_heads * _up(rows) * head_dim * <int64_t>_BYTES[kind]]

    @staticmethod
    def size_bytes(int64_t rows, int64_t kv_heads, int64_t head_dim, str kind not None):
        """Bytes of storage: rows and the values' columns are padded to 32."""
        return kv_heads * _up(rows) * (head_dim + _up(head_dim)) * <int64_t>_BYTES[kind]

    @property
    def rows(self):
        return self.layer.rows

    @property
    def heads(self):
        return self.layer.heads

    @property
    def kv_heads(self):
        return self.layer.kv_heads

    @property
    def head_dim(self):
        return self.layer.head_dim

    def put_k(self, const float[:, ::1] k not None, int64_t row0=0, const float[::1] norm=None, float eps=0.0,
              const float[:, ::1] cos=None, const float[:, ::1] sin=None):
        """Packs keys row0 .. row0 + m: root-mean-square norm per head, then half-split rotary, then rounding.

        k: (m, kv_heads * head_dim) float32.   norm: (head_dim,) or None: no norm.
        cos, sin: (m, R / 2) or None: no rotary; channels from R on pass.   raises: ValueError.
        """
        cdef h3_attention_prepare how
        cdef h3_status status
        cdef int64_t m = k.shape[0]
        self._check_put(k, row0)
        _fill(&how, m, self.layer.head_dim, norm, eps, cos, sin)
        if m == 0:
            return
        with nogil:
            status = self.kernels.table.attention_put_k(&self.kernels.table, self.kernels.pool, &self.layer, &k[0, 0], row0,
                                                        m, &how)
        check(status, "put_k")

    def put_v(self, const float[:, ::1] v not None, int64_t row0=0):
        """Packs values row0 .. row0 + m. v: (m, kv_heads * head_dim) float32. raises: ValueError."""
        cdef h3_status status
        cdef int64_t m = v.shape[0]
        self._check_put(v, row0)
        if m == 0:
            return
        with nogil:
            status = self.kernels.table.attention_put_v(&self.kernels.table, self.kernels.pool, &self.layer, &v[0, 0], row0,
                                                        m)
        check(status, "put_v")

    cdef int _check_put(self, const float[:, ::1] x, int64_t row0) except -1:
        if x.shape[1] != self.layer.kv_heads * self.layer.head_dim or row0 < 0 or row0 + x.shape[0] > self.layer.rows:
            raise ValueError(f"({x.shape[0]}, {x.shape[1]}) at row {row0} of {self.layer.rows} rows, {self.layer.kv_heads} "
                             f"key/value heads of {self.layer.head_dim}")
        return 0

    def prepare_q(self, float[:, ::1] q not None, const float[::1] norm=None, float eps=0.0,
                  const float[:, ::1] cos=None, const float[:, ::1] sin=None):
        """Norm and rotary as in put_k, in place. q: (m, heads * head_dim) float32, IN and OUT. raises: ValueError."""
        cdef h3_attention_prepare how
        cdef h3_status status
        cdef int64_t m = q.shape[0]
        if q.shape[1] != self.layer.heads * self.layer.head_dim:
            raise ValueError(f"q ({m}, {q.shape[1]}) for {self.layer.heads} heads of {self.layer.head_dim}")
        _fill(&how, m, self.layer.head_dim, norm, eps, cos, sin)
        if m == 0 or (how.norm == NULL and how.cosine == NULL):
            return
        with nogil:
            status = self.kernels.table.attention_prepare_q(&self.kernels.table, self.kernels.pool, &self.layer, &q[0, 0], m,
                                                            &how)
        check(status, "prepare_q")

    def run(self, const float[:, ::1] q not None, float[:, ::1] out not None, int64_t row0=0, bint causal=False):
        """out = softmax(q . k^T / sqrt(head_dim)) . v over all rows put.

        q: (m, heads * head_dim) float32, prepared.   out: the same shape, OUT; shares no memory with q.
        causal: query i sees keys 0 .. row0 + i only.   raises: ValueError.
        """
        cdef h3_status status
        cdef int64_t m = q.shape[0], width = self.layer.heads * self.layer.head_dim
        if q.shape[1] != width or out.shape[0] != m or out.shape[1] != width:
            raise ValueError(f"q ({m}, {q.shape[1]}), out ({out.shape[0]}, {out.shape[1]}) for {self.layer.heads} heads of "
                             f"{self.layer.head_dim}")
        if row0 < 0 or (causal and row0 + m > self.layer.rows):
            raise ValueError(f"queries {row0} .. {row0 + m} of {self.layer.rows} rows")
        if m == 0:
            return
        with nogil:
            status = self.kernels.table.attention_run(&self.kernels.table, self.kernels.pool, &self.layer, &out[0, 0],
                                                      &q[0, 0], m, row0, causal)
        check(status, "attention")
