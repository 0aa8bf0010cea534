/* The portable copies of the bodies in elementwise.h. */
#include "elementwise.h"
#include "table.h"

extern const h3_lanes h3_lanes_c;

static void prepare_c(float *out, const float *x, int64_t head_dim, const h3_attention_prepare *how, int64_t row) {
    h3_body_prepare(out, x, head_dim, how, row);
}

static void pack_k_c(void *panel, const float *rows, int64_t lane, int64_t lanes, int64_t head_dim, h3_kind kind) {
    h3_body_pack_k(panel, rows, lane, lanes, head_dim, kind, &h3_lanes_c);
}

static void pair_c(uint32_t *pairs, const float *even, const float *odd, int64_t n) {
    h3_body_pair(pairs, even, odd, n);
}

static void moments_c(double *sum, double *square, const float *x, int64_t count, int64_t channels) {
    h3_body_moments(sum, square, x, count, channels);
}

static void affine_c(float *y, const float *x, int64_t count, int64_t channels, const float *mean, const float *scale,
                     const float *shift) {
    h3_body_affine(y, x, count, channels, mean, scale, shift, 0);
}

static void affine_silu_c(float *y, const float *x, int64_t count, int64_t channels, const float *mean,
                          const float *scale, const float *shift) {
    h3_body_affine(y, x, count, channels, mean, scale, shift, 1);
}

static void snake_c(float *y, const float *x, int64_t count, int64_t channels, const float *alpha,
                    const float *inverse) {
    h3_body_snake(y, x, count, channels, alpha, inverse);
}

static void antialiased_c(float *y, const float *x, int64_t start, int64_t count, const h3_antialiased *job,
                          int64_t channel) {
    h3_body_antialiased(y, x, start, count, job, channel);
}

void h3_fill_elementwise_c(h3_table *table) {
    table->attention_prepare = prepare_c;
    table->attention_pack_k = pack_k_c;
    table->attention_pair = pair_c;
    table->moments = moments_c;
    table->affine = affine_c;
    table->affine_silu = affine_silu_c;
    table->snake = snake_c;
    table->antialiased = antialiased_c;
}
