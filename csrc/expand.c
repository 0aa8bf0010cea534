/* Stored weights -> panels and plain rows, portable. The format table; one decoder per format. */
#include "expand.h"

const h3_format_info h3_formats[H3_FORMATS] = {
    [H3_FORMAT_F32] = {"f32", 1, 4},
    [H3_FORMAT_F16] = {"f16", 1, 2},
    [H3_FORMAT_BF16] = {"bf16", 1, 2},
    [H3_FORMAT_Q8_0] = {"q8_0", 32, sizeof(h3_q8_0)},
    [H3_FORMAT_Q4_0] = {"q4_0", 32, sizeof(h3_q4_0)},
    [H3_FORMAT_Q4_1] = {"q4_1", 32, sizeof(h3_q4_1)},
    [H3_FORMAT_Q5_0] = {"q5_0", 32, sizeof(h3_q5_0)},
    [H3_FORMAT_Q5_1] = {"q5_1", 32, sizeof(h3_q5_1)},
    [H3_FORMAT_Q2_K] = {"q2_k", 256, sizeof(h3_q2_k)},
    [H3_FORMAT_Q3_K] = {"q3_k", 256, sizeof(h3_q3_k)},
    [H3_FORMAT_Q4_K] = {"q4_k", 256, sizeof(h3_q4_k)},
    [H3_FORMAT_Q5_K] = {"q5_k", 256, sizeof(h3_q5_k)},
    [H3_FORMAT_Q6_K] = {"q6_k", 256, sizeof(h3_q6_k)},
    [H3_FORMAT_IQ4_NL] = {"iq4_nl", 32, sizeof(h3_iq4_nl)},
    [H3_FORMAT_IQ4_XS] = {"iq4_xs", 256, sizeof(h3_iq4_xs)},
    [H3_FORMAT_NVFP4] = {"nvfp4", 64, sizeof(h3_nvfp4)},
    [H3_FORMAT_I8] = {"i8", 1, 1},
    [H3_FORMAT_I8_ROT64] = {"i8_rot64", 64, sizeof(h3_i8_rot64)},
    [H3_FORMAT_I8_ROT256] = {"i8_rot256", 256, sizeof(h3_i8_rot256)},
    [H3_FORMAT_E4M3] = {"e4m3", 1, 1},
    [H3_FORMAT_E5M2] = {"e5m2", 1, 1},
};

static void decode_f32(float *values, const void *row, int64_t first, int64_t count) {
    memcpy(values, (const char *)row + first * 4, (size_t)count * 4);
}

static void decode_f16(float *values, const void *row, int64_t first, int64_t count) {
    const char *from = (const char *)row + first * 2;
    for (int64_t i = 0; i < count; i++)
        values[i] = h3_from_f16(h3_load_u16(from + 2 * i));
}

static void decode_bf16(float *values, const void *row, int64_t first, int64_t count) {
    const char *from = (const char *)row + first * 2;
    for (int64_t i = 0; i < count; i++)
        values[i] = h3_from_bf16(h3_load_u16(from + 2 * i));
}

static void transpose_c(uint32_t *out, int64_t out_stride, const uint32_t *in, int64_t in_stride, int64_t count) {
    h3_transpose_body(out, out_stride, in, in_stride, count);
}

static void rotate_c(float *t, int64_t count, int64_t block) { h3_rotate_body(t, count, block); }

static void quantize_c(uint32_t *words, int64_t stride, int64_t lanes, uint32_t flip, float *scale, int32_t *sum, const float *t,
                       int64_t count) {
    h3_quantize_body(words, stride, lanes, flip, scale, sum, t, count);
}

const h3_lanes h3_lanes_c = {transpose_c, rotate_c, quantize_c};

static void expand_f32(void *panel, const void *const *rows, int64_t k, h3_decode_fn decode) {
    h3_expand_f32_body(panel, rows, k, decode, &h3_lanes_c);
}

static void expand_bf16(void *panel, const void *const *rows, int64_t k, h3_decode_fn decode) {
    h3_expand_bf16_body(panel, rows, k, decode, &h3_lanes_c);
}

static void expand_int8(void *panel, const void *const *rows, int64_t k, h3_decode_fn decode) {
    h3_expand_int8_body(panel, rows, k, decode, &h3_lanes_c);
}

/* ---- driver: plain float rows, for tests and small tensors ---- */

typedef struct {
    const h3_table *table;
    float *y;
    const h3_matrix *w;
} dequantize_context;

static void dequantize_row(void *context, int64_t row, void *scratch) {
    const dequantize_context *job = context;
    const h3_matrix *w = job->w;
    (void)scratch;
    float *y = job->y + row * w->k, scale = h3_row_scale(w, row);
    job->table->decode[w->format](y, h3_stored_row(w, row), 0, w->k);
    if (w->scale)
        for (int64_t i = 0; i < w->k; i++)
            y[i] *= scale;
}

static h3_status dequantize(const h3_table *table, h3_pool *pool, float *y, const h3_matrix *w) {
    dequantize_context job = {table, y, w};
    return h3_pool_run(pool, dequantize_row, &job, w->n, 0);
}

void h3_fill_expand_c(h3_table *table) {
    table->decode[H3_FORMAT_F32] = decode_f32;
    table->decode[H3_FORMAT_F16] = decode_f16;
    table->decode[H3_FORMAT_BF16] = decode_bf16;
    for (int format = 0; format < H3_FORMATS; format++) {
        table->expand[format][H3_F32] = expand_f32;
        table->expand[format][H3_BF16] = expand_bf16;
        table->expand[format][H3_INT8] = expand_int8;
    }
    table->dequantize = dequantize;
}
