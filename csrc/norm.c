/* Packing of rows and elementwise functions, portable, and their drivers. */
#include "norm.h"

extern const h3_lanes h3_lanes_c;

static void pack_f32(void *block, const h3_pack_job *job, int64_t row, int64_t count, int64_t k, void *scratch) {
    h3_pack_body(block, job, row, count, k, scratch, H3_F32, &h3_lanes_c);
}

static void pack_bf16(void *block, const h3_pack_job *job, int64_t row, int64_t count, int64_t k, void *scratch) {
    h3_pack_body(block, job, row, count, k, scratch, H3_BF16, &h3_lanes_c);
}

static void pack_int8(void *block, const h3_pack_job *job, int64_t row, int64_t count, int64_t k, void *scratch) {
    h3_pack_body(block, job, row, count, k, scratch, H3_INT8, &h3_lanes_c);
}

static void map_silu(float *x, int64_t count) { h3_silu_body(x, count); }

/* Exact form; the library's erf, since no model runs it over more than a few million values. */
static void map_gelu(float *x, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        x[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
}

static void map_gelu_tanh(float *x, int64_t count) { h3_gelu_tanh_body(x, count); }

/* ---- drivers ---- */

typedef struct {
    const h3_table *table;
    h3_rows *rows;
    const h3_pack_job *pack;
} pack_context;

static void pack_item(void *context, int64_t block, void *scratch) {
    const pack_context *job = context;
    const h3_rows *rows = job->rows;
    int64_t row = block * H3_ROWS, left = rows->m - row;
    job->table->pack[rows->kind]((char *)rows->data + block * h3_block_bytes(rows->kind, rows->k), job->pack, row,
                                 left < H3_ROWS ? left : H3_ROWS, rows->k, scratch);
}

static h3_status pack_rows(const h3_table *table, h3_pool *pool, h3_rows *rows, const h3_pack_job *pack) {
    pack_context job = {table, rows, pack};
    return h3_pool_run(pool, pack_item, &job, (rows->m + H3_ROWS - 1) / H3_ROWS, H3_PACK_SCRATCH);
}

enum { MAP_PIECE = 1 << 14 }; /* values: 64 KiB, a few microseconds */

typedef struct {
    h3_map_fn map;
    float *x;
    int64_t count;
} map_context;

static void map_item(void *context, int64_t item, void *scratch) {
    const map_context *job = context;
    int64_t first = item * MAP_PIECE, left = job->count - first;
    (void)scratch;
    job->map(job->x + first, left < MAP_PIECE ? left : MAP_PIECE);
}

static h3_status map_all(const h3_table *table, h3_pool *pool, float *x, int64_t count, h3_map map) {
    map_context job = {table->map[map], x, count};
    return h3_pool_run(pool, map_item, &job, (count + MAP_PIECE - 1) / MAP_PIECE, 0);
}

void h3_fill_norm_c(h3_table *table) {
    table->pack[H3_F32] = pack_f32;
    table->pack[H3_BF16] = pack_bf16;
    table->pack[H3_INT8] = pack_int8;
    table->map[H3_SILU] = map_silu;
    table->map[H3_GELU] = map_gelu;
    table->map[H3_GELU_TANH] = map_gelu_tanh;
    table->pack_rows = pack_rows;
    table->map_all = map_all;
}
