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
    ctypedef struct h3_table

cdef extern from "attention.h" nogil:
    enum:
        H3_ATTENTION_MAX_DIM
    ctypedef struct h3_attention:
        void *k
        void *v
        int64_t rows, heads, kv_heads, head_dim
        h3_kind kind
    ctypedef struct h3_attention_prepare:
        const float *norm
        float eps
        const float *cosine
        const float *sine
        int64_t rotary
    ctypedef h3_status (*h3_attention_put_k_fn)(const h3_table *, h3_pool *, const h3_attention *, const float *k,
                                                int64_t row0, int64_t count, const h3_attention_prepare *)
    ctypedef h3_status (*h3_attention_put_v_fn)(const h3_table *, h3_pool *, const h3_attention *, const float *v,
                                                int64_t row0, int64_t count)
    ctypedef h3_status (*h3_attention_prepare_q_fn)(const h3_table *, h3_pool *, const h3_attention *, float *q,
                                                    int64_t count, const h3_attention_prepare *)
    ctypedef h3_status (*h3_attention_run_fn)(const h3_table *, h3_pool *, const h3_attention *, float *out,
                                              const float *q, int64_t count, int64_t row0, int causal)

cdef extern from "conv.h" nogil:
    enum:
        H3_CONV_COLUMNS
    ctypedef struct h3_conv:
        int64_t c_in "in"
        int64_t out
        int64_t kernel[3]
        int64_t stride[3]
        int64_t dilation[3]
        const float *panels
        const float *bias
        const float *zeros
    ctypedef struct h3_conv_job:
        const float *x
        float *y
        int64_t x_size[3]
        int64_t y_size[3]
        int64_t pad[3]
        int64_t y_stride
        int reflect
    ctypedef struct h3_conv_weight:
        const float *weight
        int64_t out_stride, in_stride, first, step
    ctypedef h3_status (*h3_conv_pack_fn)(const h3_table *, h3_pool *, float *panels, const h3_conv *,
                                          const h3_conv_weight *)
    ctypedef h3_status (*h3_convolve_fn)(const h3_table *, h3_pool *, const h3_conv *, const h3_conv_job *)

cdef extern from "group_norm.h" nogil:
    ctypedef struct h3_group_norm_job:
        int64_t frames, positions, channels, groups
        const float *weight
        const float *bias
        float eps
        int silu
    ctypedef h3_status (*h3_group_norm_fn)(const h3_table *, h3_pool *, float *y, const float *x,
                                           const h3_group_norm_job *)
    ctypedef h3_status (*h3_row_norm_fn)(h3_pool *, float *y, const float *x, int64_t m, int64_t k, const float *weight,
                                         const float *bias, float eps, int layer)

cdef extern from "audio.h" nogil:
    ctypedef struct h3_antialiased:
        int64_t times, channels
        const float *alpha
        const float *inverse
        const float *up
        const float *down
    ctypedef h3_status (*h3_snake_all_fn)(const h3_table *, h3_pool *, float *y, const float *x, int64_t times,
                                          int64_t channels, const float *alpha, const float *inverse)
    ctypedef h3_status (*h3_antialiased_all_fn)(const h3_table *, h3_pool *, float *y, const float *x,
                                                const h3_antialiased *)

cdef extern from "sampler.h" nogil:
    ctypedef h3_status (*h3_step_fn)(h3_pool *, float *x, const float *velocity, float *estimate, int64_t n, float t,
                                     float sigma, float sigma_next)
    ctypedef h3_status (*h3_guide_fn)(h3_pool *, float *velocity, const float *unconditional, int64_t n, float scale)
    ctypedef h3_status (*h3_noised_fn)(h3_pool *, float *out, const float *clean, const float *noise, int64_t n,
                                       float t)

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
        const float *scale
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
        h3_attention_put_k_fn attention_put_k
        h3_attention_put_v_fn attention_put_v
        h3_attention_prepare_q_fn attention_prepare_q
        h3_attention_run_fn attention_run
        h3_conv_pack_fn conv_pack
        h3_convolve_fn convolve
        h3_group_norm_fn group_norm
        h3_row_norm_fn row_norm
        h3_snake_all_fn snake_all
        h3_antialiased_all_fn antialiased_all
        h3_step_fn step
        h3_guide_fn guide
        h3_noised_fn noised
    void h3_table_init(h3_table *table, unsigned cpu)    # links: table.pyx only

cdef extern from "verify.h" nogil:
    ctypedef struct h3_verify_report:
        int count
        char names[64][40]
    h3_status h3_verify(h3_table *table, h3_verify_report *report)    # links: table.pyx only
