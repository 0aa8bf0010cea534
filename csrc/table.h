/*
 * THE table: one function-pointer type per operation, filled once for this processor. A slot is one piece of work of
 * one thread; a driver cuts a whole operation into pieces and gives them to the pool. Drivers are the same for every
 * instruction set; they stand in the table so that only one extension module links this library.
 *
 * Sizes are int64_t, outputs come first, inputs are const. Row and weight pointers may have any byte alignment.
 */
#ifndef H3_TABLE_H
#define H3_TABLE_H

#include <stdint.h>

#include "attention.h"
#include "audio.h"
#include "conv.h"
#include "cpu.h"
#include "group_norm.h"
#include "pool.h"
#include "quant.h"
#include "sampler.h"
#include "status.h"

/* ---- shapes that packed data and kernels share; every instruction set uses the same layouts ---- */

#define H3_ROWS 12     /* rows of a packed block, and of a tile */
#define H3_COLUMNS 32  /* output columns of a panel, and of a tile */
#define H3_GROUP 256   /* values of K that share one int8 scale; the largest rotated block */
#define H3_LINE 64     /* packed blocks and panels start on a cache line */

/*
 * Packed rows: blocks of 12 rows, [ceil(m / 12)] of h3_block_bytes each, first one 64-byte aligned.
 *   f32    [k][12] float
 *   bf16   [ceil(k / 2)][12][2] bfloat16
 *   int8   [ceil(k / 4)][12][4] int8, then [groups][12] float scale, then [groups][12] int32 sum of the group's int8
 * Panels of weights: 32 output columns.
 *   f32    [k][32] float
 *   bf16   [ceil(k / 2)][32][2] bfloat16
 *   int8   [ceil(k / 4)][32][4] uint8 = value + 128, then [groups][32] float scale
 * What pads k and what pads rows or columns is zero (128 in an int8 panel). groups = ceil(k / 256).
 */
typedef struct {
    h3_kind kind;
    int64_t m, k;
    void *data;
} h3_rows;

static inline int64_t h3_groups(int64_t k) { return (k + H3_GROUP - 1) / H3_GROUP; }
static inline int64_t h3_lines(int64_t bytes) { return (bytes + H3_LINE - 1) / H3_LINE * H3_LINE; }

static inline int64_t h3_block_bytes(h3_kind kind, int64_t k) {
    if (kind == H3_F32)
        return h3_lines(4 * H3_ROWS * k);
    if (kind == H3_BF16)
        return h3_lines(4 * H3_ROWS * ((k + 1) / 2));
    return h3_lines(4 * H3_ROWS * ((k + 3) / 4) + 8 * H3_ROWS * h3_groups(k));
}

static inline int64_t h3_panel_bytes(h3_kind kind, int64_t k) {
    if (kind == H3_F32)
        return 4 * H3_COLUMNS * k;
    if (kind == H3_BF16)
        return 4 * H3_COLUMNS * ((k + 1) / 2);
    return 4 * H3_COLUMNS * ((k + 3) / 4) + 4 * H3_COLUMNS * h3_groups(k);
}

/* Length of the rotated (Hadamard) blocks along K for int8: the largest power of two that divides k, at most 256. */
static inline int64_t h3_rotation(int64_t k) {
    int64_t block = k & -k;
    return block < H3_GROUP ? block : H3_GROUP;
}

/* ---- jobs ---- */

/* What pack does to x (m, k) before it converts: norm, then * (1 + scale[index[row]]) + shift[index[row]]. */
typedef enum { H3_NORM_NONE = 0, H3_NORM_RMS = 1, H3_NORM_LAYER = 2 } h3_norm;

typedef struct {
    const float *x;       /* (m, k) */
    h3_norm norm;
    float eps;
    const float *weight;  /* (k) or NULL */
    const float *bias;    /* (k) or NULL */
    const float *shift;   /* (g, k) or NULL */
    const float *scale;   /* (g, k) or NULL */
    const int32_t *index; /* (m) or NULL: row 0 */
} h3_pack_job;

/* A weight in its stored format. stored: the whole tensor; this matrix is its logical rows first .. first + n - 1. */
typedef struct {
    h3_format format;
    int64_t n, k;
    const void *stored;
    int64_t first;
    h3_order order;
    const float *scale; /* of each stored row, or NULL: 1 */
} h3_matrix;

static inline const void *h3_stored_row(const h3_matrix *w, int64_t row) {
    const h3_format_info *format = &h3_formats[w->format];
    int64_t row_bytes = w->k / format->block_values * format->block_bytes;
    return (const char *)w->stored + h3_order_row(&w->order, w->first + row) * row_bytes;
}

static inline float h3_row_scale(const h3_matrix *w, int64_t row) {
    return w->scale ? w->scale[h3_order_row(&w->order, w->first + row)] : 1.0f;
}

typedef enum { H3_STORE = 0, H3_ADD = 1, H3_SWIGLU = 2 } h3_finish;

/* What happens to a finished sum. Columns are of y: for H3_SWIGLU a panel holds 16 value and 16 gate columns. */
typedef struct {
    h3_finish finish;
    float *y;               /* (m, n) */
    int64_t n;
    const float *bias;      /* (n) or NULL */
    const float *gate_bias; /* (n) or NULL, H3_SWIGLU */
    const float *gate;      /* (g, n) or NULL, H3_ADD: y += gate[index[row]] * (sum + bias) */
    const int32_t *index;   /* (m) or NULL: row 0 */
} h3_epilogue;

/* ---- slots ---- */

struct h3_table;

/* values[0 .. count) of one stored row, from its value `first`, a multiple of 256. */
typedef void (*h3_decode_fn)(float *values, const void *row, int64_t first, int64_t count);

/* 32 stored rows -> a panel. rows[c] == NULL: a column of zeros. */
typedef void (*h3_expand_fn)(void *panel, const void *const *rows, int64_t k, h3_decode_fn decode);

/* tile (12, 32) float = block of packed rows . panel. Rows from `used` on (1 .. 12) may hold anything afterwards. */
typedef void (*h3_tile_fn)(float *tile, const void *block, const void *panel, int64_t k, int64_t used);

/* sums[r] = x[r] . stored row, r < m <= H3_DOT_ROWS; x (m, k) plain float. For few rows, where a panel is not worth it. */
#define H3_DOT_ROWS 4
typedef void (*h3_dot_fn)(float *sums, const void *row, const float *x, int64_t m, int64_t k);

/* The epilogue for one tile: rows row .. row + rows - 1, columns column .. column + columns - 1 of y. */
typedef void (*h3_finish_fn)(const h3_epilogue *out, const float *tile, int64_t row, int64_t rows, int64_t column,
                             int64_t columns);

/* One packed block: rows row .. row + count - 1 of x, count <= 12. scratch: H3_PACK_SCRATCH bytes, 64-byte aligned. */
#define H3_PACK_SCRATCH (2 * 16 * H3_GROUP * 4)
typedef void (*h3_pack_fn)(void *block, const h3_pack_job *job, int64_t row, int64_t count, int64_t k, void *scratch);

/* x[0 .. count) in place. */
typedef void (*h3_map_fn)(float *x, int64_t count);
typedef enum { H3_SILU = 0, H3_GELU = 1, H3_GELU_TANH = 2, H3_MAPS = 3 } h3_map;

/* ---- drivers ---- */

/* y = epilogue(x . w^T). gate: the second matrix of H3_SWIGLU, else NULL. */
typedef h3_status (*h3_linear_fn)(const struct h3_table *table, h3_pool *pool, const h3_epilogue *out, const h3_rows *x,
                                  const h3_matrix *w, const h3_matrix *gate);
typedef h3_status (*h3_pack_rows_fn)(const struct h3_table *table, h3_pool *pool, h3_rows *rows, const h3_pack_job *job);
typedef h3_status (*h3_dequantize_fn)(const struct h3_table *table, h3_pool *pool, float *y, const h3_matrix *w);
typedef h3_status (*h3_map_all_fn)(const struct h3_table *table, h3_pool *pool, float *x, int64_t count, h3_map map);

typedef struct h3_table {
    /* slots: an instruction set may replace these */
    h3_decode_fn decode[H3_FORMATS];
    h3_expand_fn expand[H3_FORMATS][H3_KINDS];
    h3_tile_fn tile[H3_KINDS];
    h3_dot_fn dot[H3_FORMATS][H3_KINDS]; /* NULL: use the tile */
    h3_finish_fn finish[3];
    h3_pack_fn pack[H3_KINDS];
    h3_map_fn map[H3_MAPS];
    h3_attention_prepare_fn attention_prepare;
    h3_attention_pack_k_fn attention_pack_k;
    h3_attention_pair_fn attention_pair;
    h3_attention_steps attention[H3_ATTENTION_KINDS];
    h3_conv_tile_fn conv_tile;
    h3_moments_fn moments;
    h3_affine_fn affine, affine_silu;
    h3_snake_fn snake;
    h3_antialiased_fn antialiased;

    /* drivers */
    h3_pool_run_fn pool_run;
    h3_linear_fn linear;
    h3_pack_rows_fn pack_rows;
    h3_dequantize_fn dequantize;
    h3_map_all_fn map_all;
    h3_attention_put_k_fn attention_put_k;
    h3_attention_put_v_fn attention_put_v;
    h3_attention_prepare_q_fn attention_prepare_q;
    h3_attention_run_fn attention_run;
    h3_conv_pack_fn conv_pack;
    h3_convolve_fn convolve;
    h3_group_norm_fn group_norm;
    h3_row_norm_fn row_norm;
    h3_snake_all_fn snake_all;
    h3_antialiased_all_fn antialiased_all;
    h3_step_fn step;
    h3_guide_fn guide;
    h3_noised_fn noised;
} h3_table;

/* Portable C fills every slot and driver; then each instruction set in `cpu` replaces the slots it has. */
void h3_table_init(h3_table *table, unsigned cpu);

/* Each file of csrc that has slots or drivers has one of these; table.c calls them all. */
void h3_fill_expand_c(h3_table *table);
void h3_fill_blocks_c(h3_table *table);
void h3_fill_matmul_c(h3_table *table);
void h3_fill_norm_c(h3_table *table);
void h3_fill_attention_c(h3_table *table);
void h3_fill_conv_c(h3_table *table);
void h3_fill_group_norm_c(h3_table *table);
void h3_fill_elementwise_c(h3_table *table);
void h3_fill_audio_c(h3_table *table);
void h3_fill_sampler_c(h3_table *table);

#if defined(__x86_64__)
void h3_fill_attention_avx2(h3_table *table);
void h3_fill_conv_avx2(h3_table *table);
void h3_fill_elementwise_avx2(h3_table *table);
void h3_fill_expand_avx2(h3_table *table);
void h3_fill_blocks_avx2(h3_table *table);
void h3_fill_matmul_avx2(h3_table *table);
void h3_fill_norm_avx2(h3_table *table);
void h3_fill_expand_avx512(h3_table *table);
void h3_fill_blocks_avx512(h3_table *table);
void h3_fill_matmul_avx512(h3_table *table, unsigned cpu);
void h3_fill_norm_avx512(h3_table *table);
void h3_fill_attention_avx512(h3_table *table, unsigned cpu);
void h3_fill_conv_avx512(h3_table *table);
void h3_fill_elementwise_avx512(h3_table *table);
#endif

#if defined(__aarch64__)
void h3_fill_matmul_neon(h3_table *table, unsigned cpu);
void h3_fill_attention_neon(h3_table *table, unsigned cpu);
void h3_fill_conv_neon(h3_table *table);
#endif

#endif
