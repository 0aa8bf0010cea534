/*
 * y = x . w^T, portable, and the driver that cuts any product into panels.
 *
 * A thread takes a panel of 32 output columns, expands its weights once into its scratch (which stays in L2), and runs
 * all rows over it, 12 at a time. No blocking over K: a panel is read from L2, packed rows stream from L3, and both
 * rates are far below what the multiplications take. source: measured prototype, 88 to 93 % of peak.
 */
#include <stdlib.h>

#include "matmul.h"

/* ---- tiles: 12 rows x 32 columns, in pieces of 4 x 8 that fit 16 registers of 4 floats ---- */

enum { PIECE_ROWS = 4, PIECE_COLUMNS = 8 };

static void tile_f32(float *tile, const void *block, const void *panel, int64_t k, int64_t used) {
    memset(tile, 0, H3_ROWS * H3_COLUMNS * sizeof *tile);
    for (int64_t start = 0; start < k; start += H3_CHAIN) {
        int64_t end = k - start < H3_CHAIN ? k : start + H3_CHAIN;
        for (int64_t r0 = 0; r0 < used; r0 += PIECE_ROWS)
            for (int64_t c0 = 0; c0 < H3_COLUMNS; c0 += PIECE_COLUMNS) {
                float sum[PIECE_ROWS][PIECE_COLUMNS] = {{0}};
                for (int64_t i = start; i < end; i++) {
                    const float *x = (const float *)block + i * H3_ROWS + r0;
                    const float *w = (const float *)panel + i * H3_COLUMNS + c0;
                    for (int r = 0; r < PIECE_ROWS; r++)
                        for (int c = 0; c < PIECE_COLUMNS; c++)
                            sum[r][c] += x[r] * w[c];
                }
                for (int r = 0; r < PIECE_ROWS; r++)
                    for (int c = 0; c < PIECE_COLUMNS; c++)
                        tile[(r0 + r) * H3_COLUMNS + c0 + c] += sum[r][c];
            }
    }
}

static void tile_bf16(float *tile, const void *block, const void *panel, int64_t k, int64_t used) {
    int64_t pairs = (k + 1) / 2;
    memset(tile, 0, H3_ROWS * H3_COLUMNS * sizeof *tile);
    for (int64_t start = 0; start < pairs; start += H3_CHAIN / 2) {
        int64_t end = pairs - start < H3_CHAIN / 2 ? pairs : start + H3_CHAIN / 2;
        for (int64_t r0 = 0; r0 < used; r0 += PIECE_ROWS)
            for (int64_t c0 = 0; c0 < H3_COLUMNS; c0 += PIECE_COLUMNS) {
                float sum[PIECE_ROWS][PIECE_COLUMNS] = {{0}};
                for (int64_t i = start; i < end; i++) {
                    const uint32_t *x = (const uint32_t *)block + i * H3_ROWS + r0;
                    const uint32_t *w = (const uint32_t *)panel + i * H3_COLUMNS + c0;
                    for (int r = 0; r < PIECE_ROWS; r++)
                        for (int c = 0; c < PIECE_COLUMNS; c++) {
                            sum[r][c] += h3_float(x[r] << 16) * h3_float(w[c] << 16);
                            sum[r][c] += h3_float(x[r] & 0xffff0000u) * h3_float(w[c] & 0xffff0000u);
                        }
                }
                for (int r = 0; r < PIECE_ROWS; r++)
                    for (int c = 0; c < PIECE_COLUMNS; c++)
                        tile[(r0 + r) * H3_COLUMNS + c0 + c] += sum[r][c];
            }
    }
}

static void tile_int8(float *tile, const void *block, const void *panel, int64_t k, int64_t used) {
    int64_t words = (k + 3) / 4, groups = h3_groups(k);
    const float *row_scale = (const float *)((const uint32_t *)block + words * H3_ROWS);
    const int32_t *row_sum = (const int32_t *)(row_scale + groups * H3_ROWS);
    const float *column_scale = (const float *)((const uint32_t *)panel + words * H3_COLUMNS);
    memset(tile, 0, H3_ROWS * H3_COLUMNS * sizeof *tile);
    for (int64_t group = 0; group < groups; group++) {
        int64_t start = group * (H3_GROUP / 4), end = words - start < H3_GROUP / 4 ? words : start + H3_GROUP / 4;
        for (int64_t r = 0; r < used; r++) {
            int32_t sum[H3_COLUMNS];
            for (int c = 0; c < H3_COLUMNS; c++)
                sum[c] = -128 * row_sum[group * H3_ROWS + r]; /* the panel holds value + 128 */
            for (int64_t i = start; i < end; i++) {
                const int8_t *x = (const int8_t *)block + (i * H3_ROWS + r) * 4;
                const uint8_t *w = (const uint8_t *)panel + i * H3_COLUMNS * 4;
                for (int c = 0; c < H3_COLUMNS; c++)
                    sum[c] += x[0] * w[4 * c] + x[1] * w[4 * c + 1] + x[2] * w[4 * c + 2] + x[3] * w[4 * c + 3];
            }
            for (int c = 0; c < H3_COLUMNS; c++)
                tile[r * H3_COLUMNS + c] +=
                    (float)sum[c] * (row_scale[group * H3_ROWS + r] * column_scale[group * H3_COLUMNS + c]);
        }
    }
}

static void finish_store(const h3_epilogue *out, const float *tile, int64_t row, int64_t rows, int64_t column, int64_t columns) {
    h3_store_body(out, tile, row, rows, column, columns);
}

static void finish_add(const h3_epilogue *out, const float *tile, int64_t row, int64_t rows, int64_t column, int64_t columns) {
    h3_add_body(out, tile, row, rows, column, columns);
}

static void finish_swiglu(const h3_epilogue *out, const float *tile, int64_t row, int64_t rows, int64_t column,
                          int64_t columns) {
    h3_swiglu_body(out, tile, row, rows, column, columns);
}

/* ---- driver ---- */

typedef struct {
    const h3_table *table;
    const h3_epilogue *out;
    const h3_rows *x;
    const h3_matrix *w, *gate;
    int64_t columns;     /* of y in a panel: 32, or 16 beside their 16 gates */
    int64_t panels;
    int64_t blocks;      /* packed blocks of 12 rows */
    int64_t block_bytes;
    int64_t chunks;      /* pieces that the blocks are cut into */
    float *plain;        /* x as (m, k) floats, for the dot path only */
} linear_context;

/* The 32 stored rows of a panel; NULL beyond the matrix. Returns how many columns of y it has. */
static int64_t panel_rows(const linear_context *job, int64_t panel, const void *rows[H3_COLUMNS]) {
    int64_t column = panel * job->columns, left = job->w->n - column;
    int64_t columns = left < job->columns ? left : job->columns;
    for (int64_t c = 0; c < H3_COLUMNS; c++)
        rows[c] = 0;
    for (int64_t c = 0; c < columns; c++) {
        rows[c] = h3_stored_row(job->w, column + c);
        if (job->gate)
            rows[job->columns + c] = h3_stored_row(job->gate, column + c);
    }
    return columns;
}

/* What the sums of a panel's columns are multiplied with. Returns 0 when all of it is 1. */
static int panel_scales(const linear_context *job, int64_t panel, int64_t columns, float scales[H3_COLUMNS]) {
    int64_t column = panel * job->columns;
    for (int64_t c = 0; c < H3_COLUMNS; c++)
        scales[c] = 1.0f;
    for (int64_t c = 0; c < columns; c++) {
        scales[c] = h3_row_scale(job->w, column + c);
        if (job->gate)
            scales[job->columns + c] = h3_row_scale(job->gate, column + c);
    }
    return job->w->scale || (job->gate && job->gate->scale);
}

static void scale_tile(float *tile, int64_t rows, const float scales[H3_COLUMNS]) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < H3_COLUMNS; c++)
            tile[r * H3_COLUMNS + c] *= scales[c];
}

/* A panel whose values and gates lie in different formats: each expanded alone, then side by side. */
static void expand_both(const linear_context *job, void *panel, const void *const rows[H3_COLUMNS]) {
    const h3_table *table = job->table;
    h3_kind kind = job->x->kind;
    int64_t bytes = h3_panel_bytes(kind, job->x->k);
    char *gates = (char *)panel + bytes;
    const void *half[H3_COLUMNS] = {0};
    memcpy(half, rows, (size_t)job->columns * sizeof *half);
    table->expand[job->w->format][kind](panel, half, job->x->k, table->decode[job->w->format]);
    memset(half, 0, sizeof half);
    memcpy(half + job->columns, rows + job->columns, (size_t)job->columns * sizeof *half);
    table->expand[job->gate->format][kind](gates, half, job->x->k, table->decode[job->gate->format]);
    for (int64_t line = 0; line < bytes; line += H3_COLUMNS * 4) /* whatever the kind, a line is 32 columns of 4 bytes */
        memcpy((char *)panel + line + job->columns * 4, gates + line + job->columns * 4,
               (size_t)(H3_COLUMNS - job->columns) * 4);
}

/* Lines of y that a tile will end in: fetched while it is computed, since otherwise every store waits for memory. */
static void fetch_y(const h3_epilogue *out, int64_t row, int64_t rows, int64_t column, int64_t columns) {
    enum { LINE = 64 / sizeof(float) };
    for (int64_t r = row; r < row + rows; r++)
        for (int64_t c = 0; c < columns; c += LINE)
            __builtin_prefetch(out->y + r * out->n + column + c, 1);
}

static void linear_item(void *context, int64_t item, void *scratch) {
    const linear_context *job = context;
    const h3_rows *x = job->x;
    const void *rows[H3_COLUMNS];
    int64_t panel = item / job->chunks, chunk = item % job->chunks;
    int64_t first = job->blocks * chunk / job->chunks, end = job->blocks * (chunk + 1) / job->chunks;
    int64_t columns = panel_rows(job, panel, rows);
    float *tile = scratch, scales[H3_COLUMNS];
    int scaled = panel_scales(job, panel, columns, scales);
    void *weights = tile + H3_ROWS * H3_COLUMNS;
    h3_tile_fn multiply = job->table->tile[x->kind];
    h3_finish_fn finish = job->table->finish[job->out->finish];
    if (job->gate && job->gate->format != job->w->format)
        expand_both(job, weights, rows);
    else
        job->table->expand[job->w->format][x->kind](weights, rows, x->k, job->table->decode[job->w->format]);
    for (int64_t block = first; block < end; block++) {
        int64_t left = x->m - block * H3_ROWS, used = left < H3_ROWS ? left : H3_ROWS;
        fetch_y(job->out, block * H3_ROWS, used, panel * job->columns, columns);
        multiply(tile, (const char *)x->data + block * job->block_bytes, weights, x->k, used);
        if (scaled)
            scale_tile(tile, used, scales);
        finish(job->out, tile, block * H3_ROWS, used, panel * job->columns, columns);
    }
}

static void dot_item(void *context, int64_t panel, void *scratch) {
    const linear_context *job = context;
    const h3_rows *x = job->x;
    const void *rows[H3_COLUMNS];
    float *tile = scratch, sums[H3_DOT_ROWS], scales[H3_COLUMNS];
    int64_t columns = panel_rows(job, panel, rows);
    h3_dot_fn dot = job->table->dot[job->w->format][x->kind];
    h3_dot_fn gate_dot = job->gate ? job->table->dot[job->gate->format][x->kind] : dot;
    for (int64_t c = 0; c < H3_COLUMNS; c++) {
        if (rows[c])
            (c < job->columns ? dot : gate_dot)(sums, rows[c], job->plain, x->m, x->k);
        for (int64_t r = 0; r < x->m; r++)
            tile[r * H3_COLUMNS + c] = rows[c] ? sums[r] : 0.0f;
    }
    if (panel_scales(job, panel, columns, scales))
        scale_tile(tile, x->m, scales);
    job->table->finish[job->out->finish](job->out, tile, 0, x->m, panel * job->columns, columns);
}

/* The first block's rows, one after the other. */
static void unpack_rows(float *plain, const h3_rows *x) {
    for (int64_t r = 0; r < x->m; r++)
        for (int64_t i = 0; i < x->k; i++)
            plain[r * x->k + i] = x->kind == H3_F32
                                      ? ((const float *)x->data)[i * H3_ROWS + r]
                                      : h3_from_bf16(((const uint16_t *)x->data)[(i / 2 * H3_ROWS + r) * 2 + i % 2]);
}

/* Few panels and many rows: panels are shared, each piece expands its own copy; 16 blocks pay for that many times over. */
static int64_t row_chunks(int64_t panels, int64_t blocks, int threads) {
    enum { PIECES_PER_THREAD = 4, FEWEST_BLOCKS = 16 };
    int64_t chunks = 1;
    if (threads > 1)
        while (panels * chunks < PIECES_PER_THREAD * threads && blocks / (chunks + 1) >= FEWEST_BLOCKS)
            chunks++;
    return chunks;
}

static h3_status linear(const h3_table *table, h3_pool *pool, const h3_epilogue *out, const h3_rows *x, const h3_matrix *w,
                        const h3_matrix *gate) {
    if (x->m < 1 || w->n < 1 || x->k != w->k)
        return x->m == 0 && x->k == w->k ? H3_OK : H3_BAD_SHAPE;
    if ((out->finish == H3_SWIGLU) != (gate != 0) || (gate && (gate->n != w->n || gate->k != w->k)))
        return H3_BAD_SHAPE;
    linear_context job = {table, out, x, w, gate, 0, 0, 0, 0, 0, 0};
    job.columns = gate ? H3_COLUMNS / 2 : H3_COLUMNS;
    job.panels = (w->n + job.columns - 1) / job.columns;
    job.blocks = (x->m + H3_ROWS - 1) / H3_ROWS;
    job.block_bytes = h3_block_bytes(x->kind, x->k);
    int64_t tile_bytes = H3_ROWS * H3_COLUMNS * 4;
    int mixed = gate && gate->format != w->format;
    if (x->m <= H3_DOT_ROWS && table->dot[w->format][x->kind] && table->dot[gate ? gate->format : w->format][x->kind]) {
        job.plain = malloc((size_t)(x->m * x->k) * 4);
        if (!job.plain)
            return H3_NO_MEMORY;
        unpack_rows(job.plain, x);
        h3_status status = h3_pool_run(pool, dot_item, &job, job.panels, tile_bytes);
        free(job.plain);
        return status;
    }
    job.chunks = row_chunks(job.panels, job.blocks, h3_pool_threads(pool));
    return h3_pool_run(pool, linear_item, &job, job.panels * job.chunks, tile_bytes + (1 + mixed) * h3_panel_bytes(x->kind, x->k));
}

void h3_fill_matmul_c(h3_table *table) {
    table->tile[H3_F32] = tile_f32;
    table->tile[H3_BF16] = tile_bf16;
    table->tile[H3_INT8] = tile_int8;
    table->finish[H3_STORE] = finish_store;
    table->finish[H3_ADD] = finish_add;
    table->finish[H3_SWIGLU] = finish_swiglu;
    table->linear = linear;
}
