/*
 * Bodies that a compiler vectorizes by itself: loops over 16 lanes of local arrays, in one order whatever the
 * instruction set. Each set compiles them once (elementwise.c, x86/elementwise_*.c); without contraction all give the
 * same bits. An Arm compiler makes NEON of the portable ones.
 */
#ifndef H3_ELEMENTWISE_H
#define H3_ELEMENTWISE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "attention.h"
#include "audio.h"
#include "lanes.h"

enum { H3_WIDE = 16 }; /* values side by side */

/* sin(x)^2, absolute error about 1e-7 up to |x| = 8000: the nearest multiple of pi is taken off in three parts. */
H3_INLINE float h3_body_sin2(float x) {
    float n = x * 0.318309886f + H3_ROUNDER;
    n -= H3_ROUNDER;
    float r = ((x - n * 3.140625f) - n * 9.67502594e-4f) - n * 1.50995799e-7f;
    float s = r * r; /* sin r / r as a polynomial of r^2, |r| <= pi / 2, relative error 5e-9 */
    float y = (((2.60190336e-06f * s - 0.000198074194f) * s + 0.0083330255f) * s - 0.166666567f) * s + 1.0f;
    y *= r;
    return y * y;
}

H3_INLINE void h3_body_prepare(float *out, const float *x, int64_t head_dim, const h3_attention_prepare *how,
                               int64_t row) {
    float v[H3_ATTENTION_MAX_DIM], sum[8] = {0};
    memcpy(v, x, (size_t)head_dim * sizeof *v);
    if (how->norm) {
        for (int64_t d = 0; d < head_dim; d += 8)
            for (int j = 0; j < 8; j++) sum[j] += v[d + j] * v[d + j];
        float total = ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
        float inverse = 1.0f / sqrtf(total / (float)head_dim + how->eps);
        for (int64_t d = 0; d < head_dim; d++) v[d] = v[d] * inverse * how->norm[d];
    }
    int64_t half = how->cosine ? how->rotary / 2 : 0;
    const float *cosine = how->cosine + row * half, *sine = how->sine + row * half;
    for (int64_t i = 0; i < half; i++) {
        float a = v[i], b = v[i + half];
        out[i] = a * cosine[i] - b * sine[i];
        out[i + half] = b * cosine[i] + a * sine[i];
    }
    memcpy(out + 2 * half, v + 2 * half, (size_t)(head_dim - 2 * half) * sizeof *v);
}

H3_INLINE void h3_body_pack_k(void *panel, const float *rows, int64_t lane, int64_t lanes, int64_t head_dim,
                              h3_kind kind, const h3_lanes *isa) {
    if (kind == H3_F32)
        h3_group_f32((float *)panel + lane, H3_ATTENTION_PANEL, lanes, rows, head_dim, isa);
    else
        h3_group_bf16((uint32_t *)panel + lane, H3_ATTENTION_PANEL, lanes, rows, head_dim, isa);
}

H3_INLINE void h3_body_pair(uint32_t *pairs, const float *even, const float *odd, int64_t n) {
    for (int64_t i = 0; i < n; i++) pairs[i] = (uint32_t)h3_to_bf16(even[i]) | (uint32_t)h3_to_bf16(odd[i]) << 16;
}

/* y = (x - mean) * scale + shift over `count` positions of c channels; with silu where asked. y may be x. */
H3_INLINE void h3_body_affine(float *y, const float *x, int64_t count, int64_t c, const float *mean, const float *scale,
                              const float *shift, int silu) {
    for (int64_t p = 0; p < count; p++, x += c, y += c) {
        int64_t i = 0;
        for (; i + H3_WIDE <= c; i += H3_WIDE) {
            float v[H3_WIDE];
            for (int j = 0; j < H3_WIDE; j++) { /* one loop: gcc 12 does not vectorize a second one over v */
                float value = (x[i + j] - mean[i + j]) * scale[i + j] + shift[i + j];
                v[j] = silu ? h3_silu(value) : value;
            }
            memcpy(y + i, v, sizeof v);
        }
        for (; i < c; i++) {
            float v = (x[i] - mean[i]) * scale[i] + shift[i];
            y[i] = silu ? h3_silu(v) : v;
        }
    }
}

/* Sums and sums of squares per channel, in double: [c] and [c], added to. */
H3_INLINE void h3_body_moments(double *sum, double *square, const float *x, int64_t count, int64_t c) {
    for (int64_t p = 0; p < count; p++, x += c)
        for (int64_t i = 0; i < c; i++) {
            double v = x[i];
            sum[i] += v;
            square[i] += v * v;
        }
}

/* y = x + sin(alpha x)^2 * inverse over `count` positions of c channels. y may be x. */
H3_INLINE void h3_body_snake(float *y, const float *x, int64_t count, int64_t c, const float *alpha,
                             const float *inverse) {
    for (int64_t p = 0; p < count; p++, x += c, y += c) {
        int64_t i = 0;
        for (; i + H3_WIDE <= c; i += H3_WIDE) {
            float v[H3_WIDE];
            for (int j = 0; j < H3_WIDE; j++) v[j] = x[i + j] + h3_body_sin2(alpha[i + j] * x[i + j]) * inverse[i + j];
            memcpy(y + i, v, sizeof v);
        }
        for (; i < c; i++) y[i] = x[i] + h3_body_sin2(alpha[i] * x[i]) * inverse[i];
    }
}

/*
 * The anti-aliased activation for 16 channels (fewer at the end) and the times start .. start + count - 1, count <= 64.
 * Twice the rate: u[2a] = sum of up[1 + 2q] x[a + 2 - q], u[2a + 1] = sum of up[2q] x[a + 3 - q], q = 0 .. 5, with the
 * ends of x repeated; s = u + sin(alpha u)^2 * inverse; y[a] = sum of down[j] s[2a + j - 5], j = 0 .. 11, with the ends
 * of s repeated.
 */
H3_INLINE void h3_body_antialiased(float *y, const float *x, int64_t start, int64_t count, const h3_antialiased *job,
                                   int64_t channel) {
    float in[H3_AUDIO_TIMES + 12][H3_WIDE], s[2 * H3_AUDIO_TIMES + 12][H3_WIDE];
    float alpha[H3_WIDE] = {0}, inverse[H3_WIDE] = {0};
    int64_t T = job->times, C = job->channels;
    int64_t lanes = C - channel < H3_WIDE ? C - channel : H3_WIDE;
    /* s from 2 start - 5 to 2 (start + count) + 4 needs x from start - 6 to start + count + 5 */
    for (int64_t i = 0; i < count + 12; i++) {
        int64_t t = start - 6 + i;
        const float *from = x + (t < 0 ? 0 : t < T ? t : T - 1) * C + channel;
        if (lanes == H3_WIDE)
            memcpy(in[i], from, sizeof in[i]);
        else
            for (int64_t j = 0; j < H3_WIDE; j++) in[i][j] = j < lanes ? from[j] : 0.0f;
    }
    memcpy(alpha, job->alpha + channel, (size_t)lanes * sizeof *alpha);
    memcpy(inverse, job->inverse + channel, (size_t)lanes * sizeof *inverse);
    const float *up = job->up, *down = job->down;
    for (int64_t a = start - 3; a < start + count + 3; a++) { /* s[i] is at time 2 (start - 3) + i of twice the rate */
        float(*v)[H3_WIDE] = in + (a - start + 6), (*to)[H3_WIDE] = s + 2 * (a - start + 3);
        for (int j = 0; j < H3_WIDE; j++) {
            float even = up[1] * v[2][j] + up[3] * v[1][j] + up[5] * v[0][j] + up[7] * v[-1][j] + up[9] * v[-2][j] +
                         up[11] * v[-3][j];
            float odd = up[0] * v[3][j] + up[2] * v[2][j] + up[4] * v[1][j] + up[6] * v[0][j] + up[8] * v[-1][j] +
                        up[10] * v[-2][j];
            to[0][j] = even + h3_body_sin2(alpha[j] * even) * inverse[j];
            to[1][j] = odd + h3_body_sin2(alpha[j] * odd) * inverse[j];
        }
    }
    /* what lies before time 0 or after 2 T - 1 repeats the end value, not the end of x */
    int64_t before = -2 * (start - 3), after = 2 * T - 2 * (start - 3);
    for (int64_t i = 0; i < before && i < 2 * count + 12; i++) memcpy(s[i], s[before], sizeof s[i]);
    for (int64_t i = after; i < 2 * count + 12; i++) memcpy(s[i], s[after - 1], sizeof s[i]);
    for (int64_t i = 0; i < count; i++) { /* s[2a - 5] is at 2 (start + i) - 5 - 2 (start - 3) = 2 i + 1 */
        float(*v)[H3_WIDE] = s + 2 * i + 1, sum[H3_WIDE];
        for (int j = 0; j < H3_WIDE; j++) {
            float total = 0.0f;
            for (int k = 0; k < 12; k++) total += down[k] * v[k][j];
            sum[j] = total;
        }
        if (lanes == H3_WIDE)
            memcpy(y + (start + i) * C + channel, sum, sizeof sum);
        else
            memcpy(y + (start + i) * C + channel, sum, (size_t)lanes * sizeof *sum);
    }
}

#endif
