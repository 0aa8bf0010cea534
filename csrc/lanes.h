/*
 * 16 lanes side by side: 16 columns of a weight panel, or 12 rows of activations and 4 lanes of zeros. A group is up
 * to 256 values of K. From plain rows, a group becomes packed float, bfloat16 or rotated int8 values. Knows no weight
 * format and no norm. These are the portable bodies; an instruction set compiles them for itself or writes better ones.
 */
#ifndef H3_LANES_H
#define H3_LANES_H

#include "scalar.h"
#include "table.h"

#define H3_LANES 16

/* out[i][j] = in[j][i], i < count <= 16, j < 16; strides in 32-bit words. */
typedef void (*h3_transpose_fn)(uint32_t *out, int64_t out_stride, const uint32_t *in, int64_t in_stride, int64_t count);

/* In-place Walsh-Hadamard transform along k of t[count][16], in blocks of `block` values. */
typedef void (*h3_rotate_fn)(float *t, int64_t count, int64_t block);

/*
 * Quantizes t[count][16], count a multiple of 4, per lane: words[count / 4][stride] of 4 int8 each, XORed with `flip`;
 * scale[lane] = largest / 127, sum[lane] of the int8 (either may be NULL). Only `lanes` lanes are written.
 */
typedef void (*h3_quantize_fn)(uint32_t *words, int64_t stride, int64_t lanes, uint32_t flip, float *scale, int32_t *sum,
                               const float *t, int64_t count);

typedef struct {
    h3_transpose_fn transpose;
    h3_rotate_fn rotate;
    h3_quantize_fn quantize;
} h3_lanes;

H3_INLINE void h3_transpose_body(uint32_t *out, int64_t out_stride, const uint32_t *in, int64_t in_stride, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < H3_LANES; j++)
            out[i * out_stride + j] = in[j * in_stride + i];
}

H3_INLINE void h3_rotate_body(float *t, int64_t count, int64_t block) {
    for (int64_t half = 1; half < block; half *= 2)
        for (int64_t start = 0; start < count; start += 2 * half)
            for (int64_t i = start; i < start + half; i++)
                for (int64_t lane = 0; lane < H3_LANES; lane++) {
                    float a = t[i * H3_LANES + lane], b = t[(i + half) * H3_LANES + lane];
                    t[i * H3_LANES + lane] = a + b;
                    t[(i + half) * H3_LANES + lane] = a - b;
                }
}

H3_INLINE void h3_quantize_body(uint32_t *words, int64_t stride, int64_t lanes, uint32_t flip, float *scale, int32_t *sum,
                                const float *t, int64_t count) {
    int32_t largest[H3_LANES] = {0}, total[H3_LANES] = {0};
    float inverse[H3_LANES];
    uint32_t word[H3_LANES];
    /* As integers the magnitudes order the same way, and a NaN is the largest: it must reach the scale. */
    for (int64_t i = 0; i < count; i++)
        for (int64_t lane = 0; lane < H3_LANES; lane++) {
            int32_t magnitude = (int32_t)(h3_bits(t[i * H3_LANES + lane]) & 0x7fffffffu);
            largest[lane] = magnitude > largest[lane] ? magnitude : largest[lane];
        }
    for (int64_t lane = 0; lane < H3_LANES; lane++) {
        float most = h3_float((uint32_t)largest[lane]);
        int none = most < 1e-30f; /* 127 / most could be infinite */
        inverse[lane] = none ? 0.0f : 127.0f / most;
        if (scale && lane < lanes)
            scale[lane] = none ? 0.0f : most / 127.0f;
    }
    for (int64_t i = 0; i < count; i += 4) {
        const float *values = t + i * H3_LANES;
        for (int64_t lane = 0; lane < H3_LANES; lane++) {
            int32_t a = h3_round(values[lane] * inverse[lane]);
            int32_t b = h3_round(values[H3_LANES + lane] * inverse[lane]);
            int32_t c = h3_round(values[2 * H3_LANES + lane] * inverse[lane]);
            int32_t d = h3_round(values[3 * H3_LANES + lane] * inverse[lane]);
            total[lane] += a + b + c + d;
            word[lane] = ((uint32_t)a & 255u) | ((uint32_t)b & 255u) << 8 | ((uint32_t)c & 255u) << 16 | (uint32_t)d << 24;
        }
        for (int64_t lane = 0; lane < lanes; lane++)
            words[i / 4 * stride + lane] = word[lane] ^ flip;
    }
    if (sum)
        for (int64_t lane = 0; lane < lanes; lane++)
            sum[lane] = total[lane];
}

/* rows[16][256] -> out[count][stride] float, `lanes` lanes written. */
H3_INLINE void h3_group_f32(float *out, int64_t stride, int64_t lanes, const float *rows, int64_t count, const h3_lanes *isa) {
    uint32_t t[H3_LANES * H3_LANES];
    for (int64_t i = 0; i < count; i += H3_LANES) {
        int64_t some = count - i < H3_LANES ? count - i : H3_LANES;
        if (lanes == H3_LANES) {
            isa->transpose((uint32_t *)out + i * stride, stride, (const uint32_t *)rows + i, H3_GROUP, some);
            continue;
        }
        isa->transpose(t, H3_LANES, (const uint32_t *)rows + i, H3_GROUP, some);
        for (int64_t j = 0; j < some; j++)
            memcpy(out + (i + j) * stride, t + j * H3_LANES, (size_t)lanes * 4);
    }
}

/* rows[16][256] -> out[count / 2][stride] pairs of bfloat16; count is rounded up, rows hold a zero there. */
H3_INLINE void h3_group_bf16(uint32_t *out, int64_t stride, int64_t lanes, const float *rows, int64_t count,
                             const h3_lanes *isa) {
    uint32_t pairs[H3_LANES * H3_LANES], t[H3_LANES * H3_LANES];
    int64_t words = (count + 1) / 2;
    for (int64_t i = 0; i < words; i += H3_LANES) {
        int64_t some = words - i < H3_LANES ? words - i : H3_LANES;
        for (int64_t lane = 0; lane < H3_LANES; lane++) {
            const float *values = rows + lane * H3_GROUP + 2 * i; /* in bounds: a row has 256 values */
            for (int64_t j = 0; j < H3_LANES; j++)
                pairs[lane * H3_LANES + j] =
                    (uint32_t)h3_to_bf16(values[2 * j]) | (uint32_t)h3_to_bf16(values[2 * j + 1]) << 16;
        }
        if (lanes == H3_LANES) {
            isa->transpose(out + i * stride, stride, pairs, H3_LANES, some);
            continue;
        }
        isa->transpose(t, H3_LANES, pairs, H3_LANES, some);
        for (int64_t j = 0; j < some; j++)
            memcpy(out + (i + j) * stride, t + j * H3_LANES, (size_t)lanes * 4);
    }
}

/* rows[16][256] -> int8 words (see h3_quantize_fn), rotated in blocks of `block`; t: [256][16] scratch. */
H3_INLINE void h3_group_int8(uint32_t *words, int64_t stride, int64_t lanes, uint32_t flip, float *scale, int32_t *sum,
                             const float *rows, int64_t count, int64_t block, float *t, const h3_lanes *isa) {
    int64_t padded = (count + 3) / 4 * 4; /* rows hold zeros there */
    for (int64_t i = 0; i < padded; i += H3_LANES)
        isa->transpose((uint32_t *)t + i * H3_LANES, H3_LANES, (const uint32_t *)rows + i, H3_GROUP,
                       padded - i < H3_LANES ? padded - i : H3_LANES);
    isa->rotate(t, count, block);
    isa->quantize(words, stride, lanes, flip, scale, sum, t, padded);
}

#endif
