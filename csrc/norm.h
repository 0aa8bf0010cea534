/*
 * Rows of activations -> packed rows: norm and modulation while the values pass through the cache anyway. Bodies that
 * every instruction set compiles for itself; sums run over 16 lanes in a fixed order, so all of them get the same bits.
 */
#ifndef H3_NORM_H
#define H3_NORM_H

#include <math.h>

#include "lanes.h"

/* The 16 lanes of a sum, folded in halves. */
H3_INLINE float h3_fold(float *lanes) {
    for (int half = H3_LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++)
            lanes[lane] += lanes[lane + half];
    return lanes[0];
}

H3_INLINE float h3_sum(const float *x, int64_t k) {
    float lanes[H3_LANES] = {0};
    int64_t whole = k / H3_LANES * H3_LANES;
    for (int64_t i = 0; i < whole; i += H3_LANES)
        for (int lane = 0; lane < H3_LANES; lane++)
            lanes[lane] += x[i + lane];
    for (int64_t i = whole; i < k; i++)
        lanes[i - whole] += x[i];
    return h3_fold(lanes);
}

/* Sum of (x - mean)^2. */
H3_INLINE float h3_sum_squares(const float *x, int64_t k, float mean) {
    float lanes[H3_LANES] = {0};
    int64_t whole = k / H3_LANES * H3_LANES;
    for (int64_t i = 0; i < whole; i += H3_LANES)
        for (int lane = 0; lane < H3_LANES; lane++)
            lanes[lane] += (x[i + lane] - mean) * (x[i + lane] - mean);
    for (int64_t i = whole; i < k; i++)
        lanes[i - whole] += (x[i] - mean) * (x[i] - mean);
    return h3_fold(lanes);
}

/* A row's norm is (x - mean) * factor. */
typedef struct {
    float mean, factor;
} h3_moments;

H3_INLINE h3_moments h3_row_moments(const float *x, int64_t k, h3_norm norm, float eps) {
    h3_moments moments = {0.0f, 1.0f};
    if (norm == H3_NORM_LAYER)
        moments.mean = h3_sum(x, k) / (float)k;
    if (norm != H3_NORM_NONE)
        moments.factor = 1.0f / sqrtf(h3_sum_squares(x, k, moments.mean) / (float)k + eps);
    return moments;
}

/* values[0 .. count) of row `row`, from value `first`: norm, weight, bias, then modulation. */
H3_INLINE void h3_normed(float *values, const h3_pack_job *job, h3_moments moments, int64_t row, int64_t first, int64_t count,
                         int64_t k) {
    const float *x = job->x + row * k + first;
    int64_t entry = job->index ? job->index[row] : 0;
    for (int64_t i = 0; i < count; i += 64 / (int64_t)sizeof *x) /* the row's next group: too short a piece to be guessed */
        __builtin_prefetch(x + count + i);
    if (job->norm == H3_NORM_NONE)
        memcpy(values, x, (size_t)count * 4);
    else
        for (int64_t i = 0; i < count; i++)
            values[i] = (x[i] - moments.mean) * moments.factor;
    if (job->weight)
        for (int64_t i = 0; i < count; i++)
            values[i] *= job->weight[first + i];
    if (job->bias)
        for (int64_t i = 0; i < count; i++)
            values[i] += job->bias[first + i];
    if (job->scale) {
        const float *scale = job->scale + entry * k + first;
        for (int64_t i = 0; i < count; i++)
            values[i] *= 1.0f + scale[i];
    }
    if (job->shift) {
        const float *shift = job->shift + entry * k + first;
        for (int64_t i = 0; i < count; i++)
            values[i] += shift[i];
    }
}

/* One packed block of `kind`, a constant where this is inlined. */
H3_INLINE void h3_pack_body(void *block, const h3_pack_job *job, int64_t row, int64_t count, int64_t k, void *scratch,
                            h3_kind kind, const h3_lanes *isa) {
    float *rows = scratch, *t = rows + H3_LANES * H3_GROUP;
    h3_moments moments[H3_ROWS];
    int64_t words = (k + 3) / 4, groups = h3_groups(k);
    float *scale = (float *)((uint32_t *)block + words * H3_ROWS);
    int32_t *sum = (int32_t *)(scale + groups * H3_ROWS);
    for (int64_t r = 0; r < count; r++)
        moments[r] = h3_row_moments(job->x + (row + r) * k, k, job->norm, job->eps);
    for (int64_t first = 0; first < k; first += H3_GROUP, scale += H3_ROWS, sum += H3_ROWS) {
        int64_t some = k - first < H3_GROUP ? k - first : H3_GROUP;
        if (some < H3_GROUP || count < H3_LANES)
            memset(some < H3_GROUP ? rows : rows + count * H3_GROUP, 0,
                   (size_t)(some < H3_GROUP ? H3_LANES : H3_LANES - count) * H3_GROUP * 4);
        for (int64_t r = 0; r < count; r++)
            h3_normed(rows + r * H3_GROUP, job, moments[r], row + r, first, some, k);
        if (kind == H3_F32)
            h3_group_f32((float *)block + first * H3_ROWS, H3_ROWS, H3_ROWS, rows, some, isa);
        else if (kind == H3_BF16)
            h3_group_bf16((uint32_t *)block + first / 2 * H3_ROWS, H3_ROWS, H3_ROWS, rows, some, isa);
        else
            h3_group_int8((uint32_t *)block + first / 4 * H3_ROWS, H3_ROWS, H3_ROWS, 0, scale, sum, rows, some,
                          h3_rotation(k), t, isa);
    }
}

H3_INLINE void h3_silu_body(float *x, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        x[i] = h3_silu(x[i]);
}

/* source: Gaussian error linear units, tanh form: x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 x^3)). */
H3_INLINE void h3_gelu_tanh_body(float *x, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        x[i] = x[i] / (1.0f + h3_exp(-1.59576912f * (x[i] + 0.044715f * x[i] * x[i] * x[i])));
}

#endif
