/* Attention steps in AVX-512: 12 x 32 sums in 24 registers, for both products. */
#if defined(__x86_64__)
#include "../attention.h"
#include "../table.h"

#include "avx512.h"

enum { ROWS = H3_ATTENTION_ROWS, PANEL = H3_ATTENTION_PANEL, KEYS = H3_ATTENTION_KEYS, DIM = H3_ATTENTION_MAX_DIM };

/* What a masked key scores: far below all others, and finite, so that no infinity meets another. */
#define MASKED -3e38f

/*
 * q: [head_dim][12] floats, or [head_dim / 2][12] pairs for vdpbf16ps. p: [12][KEYS] floats, or [12][KEYS / 2] pairs.
 * So a step of either product broadcasts 12 words at constant distances from one address.
 */
#define PRODUCTS(multiply, at)                                                                                         \
    for (int64_t i = 0; i < steps; i++) {                                                                              \
        __m512i w0 = _mm512_loadu_si512(w + i * PANEL), w1 = _mm512_loadu_si512(w + i * PANEL + 16);                   \
        H3_UNROLL for (int r = 0; r < ROWS; r++) {                                                                     \
            __m512i a = _mm512_set1_epi32(x[at]);                                                                      \
            sum[r][0] = multiply(sum[r][0], w0, a);                                                                    \
            sum[r][1] = multiply(sum[r][1], w1, a);                                                                    \
        }                                                                                                              \
    }

/* A pair of bf16 without the instruction for it: each member is the high half of a float. Odd first, as there. */
#define WIDENED(at)                                                                                                    \
    for (int64_t i = 0; i < steps; i += 2) {                                                                           \
        for (int64_t odd = 1; odd >= 0; odd--) {                                                                       \
            __m512i w0 = _mm512_loadu_si512(w + i / 2 * PANEL), w1 = _mm512_loadu_si512(w + i / 2 * PANEL + 16);       \
            w0 = odd ? _mm512_and_si512(w0, high) : _mm512_slli_epi32(w0, 16);                                         \
            w1 = odd ? _mm512_and_si512(w1, high) : _mm512_slli_epi32(w1, 16);                                         \
            H3_UNROLL for (int r = 0; r < ROWS; r++) {                                                                 \
                __m512i a = _mm512_set1_epi32(x[at]);                                                                  \
                sum[r][0] = MULTIPLY_F32(sum[r][0], w0, a);                                                            \
                sum[r][1] = MULTIPLY_F32(sum[r][1], w1, a);                                                            \
            }                                                                                                          \
        }                                                                                                              \
    }

#define MULTIPLY_F32(sum, w, a) _mm512_fmadd_ps(_mm512_castsi512_ps(w), _mm512_castsi512_ps(a), sum)
#define MULTIPLY_BF16(sum, w, a) _mm512_dpbf16_ps(sum, (__m512bh)(w), (__m512bh)(a))

#define SCORES(name, attributes, pairs, products)                                                                      \
    static attributes void name(float *scores, const void *q, const void *k, int64_t keys, int64_t head_dim) {         \
        const __m512i high = _mm512_set1_epi32((int)0xffff0000u);                                                      \
        const int32_t *x = q, *w = k;                                                                                  \
        int64_t steps = head_dim / (pairs);                                                                            \
        (void)high;                                                                                                    \
        for (int64_t j = 0; j < keys; j += PANEL) {                                                                    \
            __m512 sum[ROWS][2];                                                                                       \
            H3_UNROLL for (int r = 0; r < ROWS; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();                      \
            products;                                                                                                  \
            H3_UNROLL for (int r = 0; r < ROWS; r++) {                                                                 \
                _mm512_storeu_ps(scores + r * KEYS + j, sum[r][0]);                                                    \
                _mm512_storeu_ps(scores + r * KEYS + j + 16, sum[r][1]);                                               \
            }                                                                                                          \
        }                                                                                                              \
    }

#define VALUES(name, attributes, pairs, products)                                                                      \
    static attributes void name(float *out, const void *p, const void *v, int64_t panel_stride, int64_t keys,          \
                                int64_t head_dim, const float *decay) {                                                \
        const __m512i high = _mm512_set1_epi32((int)0xffff0000u);                                                      \
        const int32_t *x = p;                                                                                          \
        int64_t steps = keys / (pairs);                                                                                \
        (void)high;                                                                                                    \
        for (int64_t column = 0; column < head_dim; column += PANEL, v = (const char *)v + panel_stride) {             \
            const int32_t *w = v;                                                                                      \
            __m512 sum[ROWS][2];                                                                                       \
            H3_UNROLL for (int r = 0; r < ROWS; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();                      \
            products;                                                                                                  \
            H3_UNROLL for (int r = 0; r < ROWS; r++) {                                                                 \
                float *to = out + r * DIM + column;                                                                    \
                __m512 fade = _mm512_set1_ps(decay[r]);                                                                \
                __m512 old0 = _mm512_mul_ps(_mm512_loadu_ps(to), fade);                                                \
                __m512 old1 = _mm512_mul_ps(_mm512_loadu_ps(to + 16), fade);                                           \
                _mm512_storeu_ps(to, _mm512_add_ps(old0, sum[r][0]));                                                  \
                _mm512_storeu_ps(to + 16, _mm512_add_ps(old1, sum[r][1]));                                             \
            }                                                                                                          \
        }                                                                                                              \
    }

/* One panel of scores at a time; w moves on by itself. */
#define NEXT_PANEL w += steps * PANEL

SCORES(scores_f32, H3_AVX512, 1, PRODUCTS(MULTIPLY_F32, i *ROWS + r) NEXT_PANEL)
SCORES(scores_bf16, H3_AVX512_BF16, 2, PRODUCTS(MULTIPLY_BF16, i *ROWS + r) NEXT_PANEL)
SCORES(scores_widened, H3_AVX512, 1, WIDENED((i + odd) * ROWS + r) w += steps / 2 * PANEL)
VALUES(values_f32, H3_AVX512, 1, PRODUCTS(MULTIPLY_F32, r *KEYS + i))
VALUES(values_bf16, H3_AVX512_BF16, 2, PRODUCTS(MULTIPLY_BF16, r *(KEYS / 2) + i))
VALUES(values_widened, H3_AVX512, 1, WIDENED(r *KEYS + i + odd))

/* ---- query tiles ---- */

/* Rows of q in 16 rows of 256 values, as the transposes want them; missing rows are zero. */
#define QUERY(name, attributes, transposed)                                                                            \
    static attributes void name(void *q, const float *x, int64_t stride, int64_t rows, int64_t head_dim) {             \
        float plain[H3_LANES * DIM];                                                                                   \
        for (int64_t r = 0; r < H3_LANES; r++)                                                                         \
            for (int64_t d = 0; d < head_dim; d += 8)                                                                  \
                _mm256_storeu_ps(plain + r * DIM + d,                                                                  \
                                 r < rows ? _mm256_loadu_ps(x + r * stride + d) : _mm256_setzero_ps());                \
        transposed;                                                                                                    \
    }

QUERY(query_f32, H3_AVX512, h3_group_f32(q, ROWS, ROWS, plain, head_dim, &h3_lanes_avx512))
QUERY(query_bf16, H3_AVX512, h3_group_bf16(q, ROWS, ROWS, plain, head_dim, &h3_lanes_avx512))
QUERY(query_widened, H3_AVX512, {
    for (int64_t i = 0; i < ROWS * DIM; i++) plain[i] = h3_from_bf16(h3_to_bf16(plain[i]));
    h3_group_f32(q, ROWS, ROWS, plain, head_dim, &h3_lanes_avx512);
})

/* ---- weights ---- */

/* 2^x, x <= 0; the scaling by 2^n is exact, so this is the portable polynomial's value */
#define EXP2_4(x, y)                                                                                                   \
    {                                                                                                                  \
        static const float c[] = {H3_EXP2_4};                                                                          \
        EXP2(x, y, 4)                                                                                                  \
    }
#define EXP2_6(x, y)                                                                                                   \
    {                                                                                                                  \
        static const float c[] = {H3_EXP2_6};                                                                          \
        EXP2(x, y, 6)                                                                                                  \
    }
#define EXP2(x, y, degree)                                                                                             \
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), f = _mm512_sub_ps(x, n);        \
    y = _mm512_set1_ps(c[degree]);                                                                                     \
    H3_UNROLL for (int i = (degree)-1; i >= 0; i--) y = _mm512_add_ps(_mm512_mul_ps(y, f), _mm512_set1_ps(c[i]));      \
    y = _mm512_scalef_ps(y, n);

#define STORE_F32(j, a, b)                                                                                             \
    _mm512_storeu_ps((float *)p + r * KEYS + (j), a);                                                                  \
    _mm512_storeu_ps((float *)p + r * KEYS + (j) + 16, b)
#define STORE_BF16(j, a, b) _mm512_storeu_si512((uint16_t *)p + r * KEYS + (j), (__m512i)_mm512_cvtne2ps_pbh(b, a))
#define STORE_WIDENED(j, a, b) STORE_F32(j, round_bf16(a), round_bf16(b))

/* The nearest bf16 as a float, ties to even. Weights are never NaN or infinite. */
H3_AVX512_INLINE __m512 round_bf16(__m512 value) {
    __m512i bits = _mm512_castps_si512(value);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    return _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32((int)0xffff0000u)));
}

#define WEIGHTS(name, attributes, exp2, store)                                                                         \
    static attributes void name(void *p, h3_softmax *state, float *scores, const int32_t *limit, int64_t keys,         \
                                float scale) {                                                                         \
        __m512 factor = _mm512_set1_ps(scale);                                                                         \
        for (int r = 0; r < ROWS; r++) {                                                                               \
            float *row = scores + r * KEYS;                                                                            \
            for (int64_t j = limit[r] / 16 * 16; j < keys; j += 16) {                                                  \
                int64_t known = limit[r] > j ? limit[r] - j : 0;                                                       \
                __mmask16 hidden = (__mmask16)(0xffffu << known);                                                      \
                _mm512_mask_storeu_ps(row + j, hidden, _mm512_set1_ps(MASKED));                                        \
            }                                                                                                          \
            __m512 best0 = _mm512_loadu_ps(row), best1 = _mm512_loadu_ps(row + 16);                                    \
            for (int64_t j = PANEL; j < keys; j += PANEL) {                                                            \
                best0 = _mm512_max_ps(best0, _mm512_loadu_ps(row + j));                                                \
                best1 = _mm512_max_ps(best1, _mm512_loadu_ps(row + j + 16));                                           \
            }                                                                                                          \
            float found = _mm512_reduce_max_ps(_mm512_max_ps(best0, best1)), before = state->largest[r];               \
            float largest = found > before ? found : before;                                                           \
            __m512 past = _mm512_set1_ps(before < MASKED ? MASKED : (before - largest) * scale), fade;                 \
            exp2(past, fade) __m512 top = _mm512_set1_ps(largest);                                                     \
            state->largest[r] = largest;                                                                               \
            state->decay[r] = _mm512_cvtss_f32(fade);                                                                  \
            __m512 sum = _mm512_mul_ps(_mm512_loadu_ps(state->sum[r]), fade);                                          \
            for (int64_t j = 0; j < keys; j += PANEL) {                                                                \
                __m512 x0 = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(row + j), top), factor), y0;                   \
                __m512 x1 = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(row + j + 16), top), factor), y1;              \
                exp2(x0, y0) exp2(x1, y1) sum = _mm512_add_ps(_mm512_add_ps(sum, y0), y1);                             \
                store(j, y0, y1);                                                                                      \
            }                                                                                                          \
            _mm512_storeu_ps(state->sum[r], sum);                                                                      \
        }                                                                                                              \
    }

WEIGHTS(weights_f32, H3_AVX512, EXP2_6, STORE_F32)
WEIGHTS(weights_bf16, H3_AVX512_BF16, EXP2_4, STORE_BF16)
WEIGHTS(weights_widened, H3_AVX512, EXP2_4, STORE_WIDENED)

void h3_fill_attention_avx512(h3_table *table, unsigned cpu) {
    table->attention[0] = (h3_attention_steps){query_f32, scores_f32, weights_f32, values_f32};
    table->attention[1] = cpu & H3_CPU_AVX512_BF16
                              ? (h3_attention_steps){query_bf16, scores_bf16, weights_bf16, values_bf16}
                              : (h3_attention_steps){query_widened, scores_widened, weights_widened, values_widened};
}
#endif
