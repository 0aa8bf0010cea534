"""Every extern of csrc, once. Slots and drivers are called through h3_table, so only table.pyx links the library."""

from libc.stdint cimport int32_t, int64_t

cdef extern from "status.h" nogil:
    ctypedef enum h3_status:
        H3_OK, H3_NO_MEMORY, H3_BAD_SHAPE, H3_NO_KERNEL, H3_NO_THREAD

cdef extern from "quant.h" nogil:
    ctypedef enum h3_format:
        H3_FORMAT_F32, H3_FORMAT_F16, H3_FORMAT_BF16, H3_FORMATS
    ctypedef enum h3_kind:
        H3_F32, H3_BF16, H3_INT8, H3_KINDS
    ctypedef struct h3_format_info:
        const char *name
        int64_t block_values, block_bytes
    ctypedef struct h3_order:
        int64_t offset, block, stride
    const h3_format_info *h3_formats          # links: table.pyx only

cdef extern from "cpu.h" nogil:
    enum:
        H3_CPU_AVX2, H3_CPU_AVX512, H3_CPU_AVX512_VNNI, H3_CPU_AVX512_BF16
        H3_CPU_NEON, H3_CPU_DOTPROD, H3_CPU_I8MM, H3_CPU_ARM_BF16
    unsigned h3_cpu_detect()                  # links: table.pyx only

cdef extern from "pool.h" nogil:
    ctypedef struct h3_pool
    ctypedef void (*h3_item_fn)(void *context, int64_t item, void *scratch)
    ctypedef h3_status (*h3_pool_run_fn)(h3_pool *pool, h3_item_fn fn, void *context, int64_t items, int64_t scratch_bytes)
    int h3_pool_cores()                       # links: table.pyx only
    h3_pool *h3_pool_create(int threads)      # links: table.pyx only
    void h3_pool_destroy(h3_pool *pool)       # links: table.pyx only

cdef extern from "table.h" nogil:
    enum:
        H3_ROWS, H3_COLUMNS, H3_GROUP, H3_LINE
    ctypedef struct h3_rows:
        h3_kind kind
        int64_t m, k
        void *data
    int64_t h3_block_bytes(h3_kind kind, int64_t k)      # static inline: links nowhere
    ctypedef enum h3_norm:
        H3_NORM_NONE, H3_NORM_RMS, H3_NORM_LAYER
    ctypedef struct h3_pack_job:
        const float *x
        h3_norm norm
        float eps
        const float *weight
        const float *bias
        const float *shift
        const float *scale
        const int32_t *index
    ctypedef struct h3_matrix:
        h3_format format
        int64_t n, k
        const void *stored
        int64_t first
        h3_order order
    ctypedef enum h3_finish:
        H3_STORE, H3_ADD, H3_SWIGLU
    ctypedef struct h3_epilogue:
        h3_finish finish
        float *y
        int64_t n
        const float *bias
        const float *gate_bias
        const float *gate
        const int32_t *index
    ctypedef enum h3_map:
        H3_SILU, H3_GELU, H3_GELU_TANH
    ctypedef struct h3_table
    ctypedef h3_status (*h3_linear_fn)(const h3_table *table, h3_pool *pool, const h3_epilogue *out, const h3_rows *x,
                                       const h3_matrix *w, const h3_matrix *gate)
    ctypedef h3_status (*h3_pack_rows_fn)(const h3_table *table, h3_pool *pool, h3_rows *rows, const h3_pack_job *job)
    ctypedef h3_status (*h3_dequantize_fn)(const h3_table *table, h3_pool *pool, float *y, const h3_matrix *w)
    ctypedef h3_status (*h3_map_all_fn)(const h3_table *table, h3_pool *pool, float *x, int64_t count, h3_map map)
    ctypedef struct h3_table:
        h3_pool_run_fn pool_run
        h3_linear_fn linear
        h3_pack_rows_fn pack_rows
        h3_dequantize_fn dequantize
        h3_map_all_fn map_all
    void h3_table_init(h3_table *table, unsigned cpu)    # links: table.pyx only
