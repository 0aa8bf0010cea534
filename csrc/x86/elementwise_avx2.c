/* The bodies of elementwise.h, compiled for AVX2. */
#if defined(__x86_64__)
#include "../elementwise.h"
#include "../table.h"

#include "avx2.h"

static H3_AVX2 void prepare(float *out, const float *x, int64_t head_dim, const h3_attention_prepare *how,
                            int64_t row) {
    h3_body_prepare(out, x, head_dim, how, row);
}

static H3_AVX2 void pack_k(void *panel, const float *rows, int64_t lane, int64_t lanes, int64_t head_dim,
                           h3_kind kind) {
    h3_body_pack_k(panel, rows, lane, lanes, head_dim, kind, &h3_lanes_avx2);
}

static H3_AVX2 void pair(uint32_t *pairs, const float *even, const float *odd, int64_t n) {
    h3_body_pair(pairs, even, odd, n);
}

static H3_AVX2 void moments(double *sum, double *square, const float *x, int64_t count, int64_t channels) {
    h3_body_moments(sum, square, x, count, channels);
}

static H3_AVX2 void affine(float *y, const float *x, int64_t count, int64_t channels, const float *mean,
                           const float *scale, const float *shift) {
    h3_body_affine(y, x, count, channels, mean, scale, shift, 0);
}

static H3_AVX2 void affine_silu(float *y, const float *x, int64_t count, int64_t channels, const float *mean,
                                const float *scale, const float *shift) {
    h3_body_affine(y, x, count, channels, mean, scale, shift, 1);
}

static H3_AVX2 void snake(float *y, const float *x, int64_t count, int64_t channels, const float *alpha,
                          const float *inverse) {
    h3_body_snake(y, x, count, channels, alpha, inverse);
}

static H3_AVX2 void antialiased(float *y, const float *x, int64_t start, int64_t count, const h3_antialiased *job,
                                int64_t channel) {
    h3_body_antialiased(y, x, start, count, job, channel);
}

void h3_fill_elementwise_avx2(h3_table *table) {
    table->attention_prepare = prepare;
    table->attention_pack_k = pack_k;
    table->attention_pair = pair;
    table->moments = moments;
    table->affine = affine;
    table->affine_silu = affine_silu;
    table->snake = snake;
    table->antialiased = antialiased;
}
#endif
