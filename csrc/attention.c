/* Flash-style attention: packing, the walk over key blocks, and the portable steps. No S x S buffer anywhere. */
#include <math.h>
#include <string.h>

#include "attention.h"
#include "pool.h"
#include "scalar.h"
#include "table.h"

enum { ROWS = H3_ATTENTION_ROWS, PANEL = H3_ATTENTION_PANEL, KEYS = H3_ATTENTION_KEYS, DIM = H3_ATTENTION_MAX_DIM };

static int64_t up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
static int64_t element_bytes(h3_kind kind) { return kind == H3_F32 ? 4 : 2; }

static int fits(const h3_attention *layer, int64_t row0, int64_t count) {
    return layer->head_dim >= 8 && layer->head_dim <= DIM && layer->head_dim % 8 == 0 && layer->kv_heads >= 1 &&
           layer->heads % layer->kv_heads == 0 && row0 >= 0 && count >= 0 && row0 + count <= layer->rows;
}

/* Memory asked for early: a head's piece of a row is too short for the hardware to see a pattern. */
static void fetch(const float *x, int64_t count) {
    for (int64_t i = 0; i < count; i += 64 / (int64_t)sizeof *x) __builtin_prefetch(x + i);
}

/* ---- putting keys and values: one item is one panel of 32 rows, so no two threads share a pair ---- */

typedef struct {
    const h3_table *table;
    const h3_attention *layer;
    const float *x;
    int64_t row0, count;
    const h3_attention_prepare *how;
} put_job;

/* Rows of panel `item` that this call brings: [*first, *last). */
static int64_t panel_rows(const put_job *job, int64_t item, int64_t *first, int64_t *last) {
    int64_t panel = job->row0 / PANEL + item, end = job->row0 + job->count;
    *first = panel * PANEL > job->row0 ? panel * PANEL : job->row0;
    *last = (panel + 1) * PANEL < end ? (panel + 1) * PANEL : end;
    return panel;
}

static int64_t panels(int64_t row0, int64_t count) { return (row0 + count - 1) / PANEL - row0 / PANEL + 1; }

/* Rows after the last one are read with the panel they lie in: their scores are masked, but p = 0 times a stray NaN is
 * a NaN. So whoever brings the last row clears what follows it. */
static int64_t cleared_until(const h3_attention *layer, int64_t last) {
    return last == layer->rows ? up(layer->rows, PANEL) : last;
}

enum { LANES = 16 }; /* rows that are transposed together */

static void put_k_item(void *context, int64_t item, void *scratch) {
    const put_job *job = context;
    const h3_attention *layer = job->layer;
    int64_t first, last, panel = panel_rows(job, item, &first, &last);
    int64_t D = layer->head_dim, width = layer->kv_heads * D, padded = up(layer->rows, PANEL);
    float *rows = scratch;
    memset(rows, 0, LANES * DIM * sizeof *rows);
    for (int64_t h = 0; h < layer->kv_heads; h++) {
        char *to = (char *)layer->k + (h * padded + panel * PANEL) * D * element_bytes(layer->kind);
        for (int64_t row = first; row < cleared_until(layer, last); row += LANES) {
            int64_t end = cleared_until(layer, last), lanes = end - row < LANES ? end - row : LANES;
            for (int64_t lane = 0; lane < lanes; lane++) {
                int64_t i = row + lane - job->row0;
                if (row + lane < last) {
                    fetch(job->x + i * width + (h + 1) * D, D); /* the next head's */
                    job->table->attention_prepare(rows + lane * DIM, job->x + i * width + h * D, D, job->how, i);
                } else
                    memset(rows + lane * DIM, 0, (size_t)D * sizeof *rows);
            }
            job->table->attention_pack_k(to, rows, row % PANEL, lanes, D, layer->kind);
        }
    }
}

/* One row of one head into its value panels; for bf16 with the row after it, where that is known too. */
static void put_v_row(const put_job *job, int64_t h, int64_t row, const float *values, const float *next) {
    const h3_attention *layer = job->layer;
    int64_t D = layer->head_dim, padded = up(layer->rows, PANEL);
    for (int64_t c = 0; c < D; c += PANEL) {
        int64_t n = D - c < PANEL ? D - c : PANEL, base = (h * up(D, PANEL) + c) * padded;
        if (layer->kind == H3_F32) {
            float *to = (float *)layer->v + base + row * PANEL;
            memcpy(to, values + c, (size_t)n * sizeof *to);
            memset(to + n, 0, (size_t)(PANEL - n) * sizeof *to);
        } else if (next) {
            uint32_t *to = (uint32_t *)layer->v + (base + row * PANEL) / 2;
            job->table->attention_pair(to, values + c, next + c, n);
            memset(to + n, 0, (size_t)(PANEL - n) * sizeof *to);
        } else {
            uint16_t *to = (uint16_t *)layer->v + base + row / 2 * 2 * PANEL + row % 2;
            for (int64_t j = 0; j < PANEL; j++) to[2 * j] = j < n ? h3_to_bf16(values[c + j]) : 0;
        }
    }
}

static void put_v_item(void *context, int64_t item, void *scratch) {
    static const float zeros[DIM];
    const put_job *job = context;
    const h3_attention *layer = job->layer;
    int64_t first, last, D = layer->head_dim, width = layer->kv_heads * D;
    panel_rows(job, item, &first, &last);
    int64_t end = cleared_until(layer, last);
    (void)scratch;
    for (int64_t h = 0; h < layer->kv_heads; h++)
        for (int64_t row = first; row < end; row++) {
            const float *values = row < last ? job->x + (row - job->row0) * width + h * D : zeros;
            if (row < last) fetch(values + D, D); /* the next head's */
            if (layer->kind == H3_BF16 && row % 2 == 0 && row + 1 < end) {
                put_v_row(job, h, row, values, row + 1 < last ? values + width : zeros);
                row++;
            } else
                put_v_row(job, h, row, values, NULL);
        }
}

static h3_status put_k(const h3_table *table, h3_pool *pool, const h3_attention *layer, const float *k, int64_t row0,
                       int64_t count, const h3_attention_prepare *how) {
    put_job job = {table, layer, k, row0, count, how};
    if (!fits(layer, row0, count) || how->rotary > layer->head_dim) return H3_BAD_SHAPE;
    return count ? h3_pool_run(pool, put_k_item, &job, panels(row0, count), LANES * DIM * sizeof(float)) : H3_OK;
}

static h3_status put_v(const h3_table *table, h3_pool *pool, const h3_attention *layer, const float *v, int64_t row0,
                       int64_t count) {
    put_job job = {table, layer, v, row0, count, NULL};
    if (!fits(layer, row0, count)) return H3_BAD_SHAPE;
    return count ? h3_pool_run(pool, put_v_item, &job, panels(row0, count), 0) : H3_OK;
}

/* ---- queries ---- */

typedef struct {
    const h3_table *table;
    int64_t heads, head_dim;
    float *q;
    const h3_attention_prepare *how;
} prepare_job;

static void prepare_q_item(void *context, int64_t item, void *scratch) {
    const prepare_job *job = context;
    float *row = job->q + item * job->heads * job->head_dim;
    (void)scratch;
    for (int64_t h = 0; h < job->heads; h++)
        job->table->attention_prepare(row + h * job->head_dim, row + h * job->head_dim, job->head_dim, job->how, item);
}

static h3_status prepare_q(const h3_table *table, h3_pool *pool, const h3_attention *layer, float *q, int64_t count,
                           const h3_attention_prepare *how) {
    prepare_job job = {table, layer->heads, layer->head_dim, q, how};
    if (!fits(layer, 0, 0) || how->rotary > layer->head_dim) return H3_BAD_SHAPE;
    return count ? h3_pool_run(pool, prepare_q_item, &job, count, 0) : H3_OK;
}

/* ---- the walk: one item is 12 query rows of one head ---- */

typedef struct {
    h3_attention_steps steps;
    const h3_attention *layer;
    float *out;
    const float *q;
    int64_t count, row0, tiles;
    int causal;
} run_job;

typedef struct {
    float q[ROWS * DIM];
    float scores[ROWS * KEYS];
    float p[ROWS * KEYS];
    float out[ROWS * DIM];
    h3_softmax state;
} tile_scratch;

/* Halves, then quarters: a fixed order of additions. */
static float sum_lanes(const float *lanes) {
    float part[H3_ATTENTION_SUM_LANES];
    memcpy(part, lanes, sizeof part);
    for (int width = H3_ATTENTION_SUM_LANES / 2; width; width /= 2)
        for (int j = 0; j < width; j++) part[j] += part[j + width];
    return part[0];
}

static void run_item(void *context, int64_t item, void *scratch) {
    const run_job *job = context;
    const h3_attention *layer = job->layer;
    tile_scratch *tile = scratch;
    int64_t D = layer->head_dim, width = layer->heads * D, padded = up(layer->rows, PANEL);
    int64_t head = item / job->tiles, start = item % job->tiles * ROWS;
    int64_t rows = job->count - start < ROWS ? job->count - start : ROWS;
    int64_t kv_head = head / (layer->heads / layer->kv_heads), bytes = element_bytes(layer->kind);
    const char *k = (const char *)layer->k + kv_head * padded * D * bytes;
    const char *v = (const char *)layer->v + kv_head * padded * up(D, PANEL) * bytes;
    int64_t panel_stride = padded * PANEL * bytes;
    float scale = (float)(1.4426950408889634 / sqrt((double)D)); /* log2(e): the weights are powers of two */
    int64_t seen = job->causal ? job->row0 + start + rows : layer->rows;

    job->steps.query(tile->q, job->q + start * width + head * D, width, rows, D);
    memset(tile->out, 0, sizeof tile->out);
    memset(&tile->state, 0, sizeof tile->state);
    for (int r = 0; r < ROWS; r++) tile->state.largest[r] = -INFINITY;
    for (int64_t key = 0; key < seen; key += KEYS) {
        int64_t keys = layer->rows - key < KEYS ? layer->rows - key : KEYS;
        int32_t limit[ROWS];
        for (int64_t r = 0; r < ROWS; r++) {
            int64_t visible = job->causal ? job->row0 + start + (r < rows ? r : rows - 1) + 1 - key : keys;
            limit[r] = (int32_t)(visible < 0 ? 0 : visible < keys ? visible : keys);
        }
        if (job->causal && seen - key < keys) keys = seen - key;
        keys = up(keys, PANEL);
        job->steps.scores(tile->scores, tile->q, k + key * D * bytes, keys, D);
        job->steps.weights(tile->p, &tile->state, tile->scores, limit, keys, scale);
        job->steps.values(tile->out, tile->p, v + key * PANEL * bytes, panel_stride, keys, D, tile->state.decay);
    }
    for (int64_t r = 0; r < rows; r++) {
        float *to = job->out + (start + r) * width + head * D, total = 1.0f / sum_lanes(tile->state.sum[r]);
        for (int64_t d = 0; d < D; d++) to[d] = tile->out[r * DIM + d] * total;
    }
}

static h3_status run(const h3_table *table, h3_pool *pool, const h3_attention *layer, float *out, const float *q,
                     int64_t count, int64_t row0, int causal) {
    run_job job = {
        table->attention[layer->kind == H3_BF16], layer, out, q, count, row0, (count + ROWS - 1) / ROWS, causal};
    if (!fits(layer, row0, causal ? count : 0) || (layer->kind != H3_F32 && layer->kind != H3_BF16))
        return H3_BAD_SHAPE;
    return count ? h3_pool_run(pool, run_item, &job, job.tiles * layer->heads, sizeof(tile_scratch)) : H3_OK;
}

/* ---- portable steps. q and p: plain rows of floats; for bf16 they hold rounded values ---- */

static void query_f32_c(void *q, const float *x, int64_t stride, int64_t rows, int64_t head_dim) {
    float *to = q;
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t d = 0; d < head_dim; d++) to[r * DIM + d] = r < rows ? x[r * stride + d] : 0.0f;
}

static void query_bf16_c(void *q, const float *x, int64_t stride, int64_t rows, int64_t head_dim) {
    float *to = q;
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t d = 0; d < head_dim; d++)
            to[r * DIM + d] = r < rows ? h3_from_bf16(h3_to_bf16(x[r * stride + d])) : 0.0f;
}

static void scores_f32_c(float *scores, const void *q, const void *k, int64_t keys, int64_t head_dim) {
    const float *rows = q, *panel = k;
    for (int64_t j = 0; j < keys; j += PANEL, panel += head_dim * PANEL)
        for (int r = 0; r < ROWS; r++) {
            float sum[PANEL] = {0};
            for (int64_t d = 0; d < head_dim; d++)
                for (int c = 0; c < PANEL; c++) sum[c] += rows[r * DIM + d] * panel[d * PANEL + c];
            memcpy(scores + r * KEYS + j, sum, sizeof sum);
        }
}

/* Odd member of a pair first: the order of vdpbf16ps, whose products are exact, so the bits agree. */
static void scores_bf16_c(float *scores, const void *q, const void *k, int64_t keys, int64_t head_dim) {
    const float *rows = q;
    const uint16_t *panel = k;
    for (int64_t j = 0; j < keys; j += PANEL, panel += head_dim * PANEL)
        for (int r = 0; r < ROWS; r++) {
            float sum[PANEL] = {0};
            for (int64_t d = 0; d < head_dim; d += 2)
                for (int c = 0; c < PANEL; c++) {
                    const uint16_t *pair = panel + d * PANEL + 2 * c;
                    sum[c] += rows[r * DIM + d + 1] * h3_from_bf16(pair[1]);
                    sum[c] += rows[r * DIM + d] * h3_from_bf16(pair[0]);
                }
            memcpy(scores + r * KEYS + j, sum, sizeof sum);
        }
}

static inline float exp2_c(float x, const float *c, int degree) {
    x = x < H3_EXP2_MIN ? H3_EXP2_MIN : x;
    float shifted = x + H3_ROUNDER, y = c[degree];
    x -= shifted - H3_ROUNDER;
    for (int i = degree - 1; i >= 0; i--) y = y * x + c[i];
    return y * h3_float((h3_bits(shifted) << 23) + 0x3f800000u); /* the integer sits in the low bits */
}

static void weights_c(void *p, h3_softmax *state, float *scores, const int32_t *limit, int64_t keys, float scale,
                      const float *coefficients, int degree, int rounded) {
    for (int r = 0; r < ROWS; r++) {
        float *row = scores + r * KEYS, *to = (float *)p + r * KEYS, largest = state->largest[r];
        for (int64_t j = limit[r]; j < keys; j++) row[j] = -INFINITY;
        for (int64_t j = 0; j < keys; j++) largest = row[j] > largest ? row[j] : largest;
        float decay = exp2_c((state->largest[r] - largest) * scale, coefficients, degree);
        state->largest[r] = largest;
        state->decay[r] = decay;
        for (int j = 0; j < H3_ATTENTION_SUM_LANES; j++) state->sum[r][j] *= decay;
        for (int64_t j = 0; j < keys; j++) {
            float weight = exp2_c((row[j] - largest) * scale, coefficients, degree);
            state->sum[r][j % H3_ATTENTION_SUM_LANES] += weight;
            to[j] = rounded ? h3_from_bf16(h3_to_bf16(weight)) : weight;
        }
    }
}

static void weights_f32_c(void *p, h3_softmax *state, float *scores, const int32_t *limit, int64_t keys, float scale) {
    static const float coefficients[] = {H3_EXP2_6};
    weights_c(p, state, scores, limit, keys, scale, coefficients, 6, 0);
}

static void weights_bf16_c(void *p, h3_softmax *state, float *scores, const int32_t *limit, int64_t keys, float scale) {
    static const float coefficients[] = {H3_EXP2_4};
    weights_c(p, state, scores, limit, keys, scale, coefficients, 4, 1);
}

/* A block's sum starts at zero and joins the total at its end: over 38 000 keys one running sum would lose two digits.
 */
static void join(float *out, const float *sum, float decay) {
    for (int c = 0; c < PANEL; c++) out[c] = out[c] * decay + sum[c];
}

static void values_f32_c(float *out, const void *p, const void *v, int64_t panel_stride, int64_t keys, int64_t head_dim,
                         const float *decay) {
    for (int64_t column = 0; column < head_dim; column += PANEL, v = (const char *)v + panel_stride)
        for (int r = 0; r < ROWS; r++) {
            const float *weights = (const float *)p + r * KEYS, *panel = v;
            float sum[PANEL] = {0};
            for (int64_t j = 0; j < keys; j++)
                for (int c = 0; c < PANEL; c++) sum[c] += weights[j] * panel[j * PANEL + c];
            join(out + r * DIM + column, sum, decay[r]);
        }
}

static void values_bf16_c(float *out, const void *p, const void *v, int64_t panel_stride, int64_t keys,
                          int64_t head_dim, const float *decay) {
    for (int64_t column = 0; column < head_dim; column += PANEL, v = (const char *)v + panel_stride)
        for (int r = 0; r < ROWS; r++) {
            const float *weights = (const float *)p + r * KEYS;
            const uint16_t *panel = v;
            float sum[PANEL] = {0};
            for (int64_t j = 0; j < keys; j += 2)
                for (int c = 0; c < PANEL; c++) {
                    const uint16_t *pair = panel + j * PANEL + 2 * c;
                    sum[c] += weights[j + 1] * h3_from_bf16(pair[1]);
                    sum[c] += weights[j] * h3_from_bf16(pair[0]);
                }
            join(out + r * DIM + column, sum, decay[r]);
        }
}

void h3_fill_attention_c(h3_table *table) {
    table->attention[0] = (h3_attention_steps){query_f32_c, scores_f32_c, weights_f32_c, values_f32_c};
    table->attention[1] = (h3_attention_steps){query_bf16_c, scores_bf16_c, weights_bf16_c, values_bf16_c};
    table->attention_put_k = put_k;
    table->attention_put_v = put_v;
    table->attention_prepare_q = prepare_q;
    table->attention_run = run;
}
