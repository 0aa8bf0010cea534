/* Attention steps in AVX2: pieces of 6 x 16 sums in 12 of the 16 registers. */
#if defined(__x86_64__)
#include "../attention.h"
#include "../table.h"

#include "avx2.h"

enum {
    ROWS = H3_ATTENTION_ROWS,
    PANEL = H3_ATTENTION_PANEL,
    KEYS = H3_ATTENTION_KEYS,
    DIM = H3_ATTENTION_MAX_DIM,
    PIECE = 6
};

/* Far below every score, and finite, so that no infinity meets another. */
#define MASKED -3e38f

/* q: [head_dim][12] floats. p: [12][KEYS] floats. For bf16 they hold rounded values, and k and v are widened exactly.
 */

/* Spelled out: given the intrinsic, gcc 12 hoists the broadcasts and spills. */
#define MULTIPLY(sum, w, a) __asm__("vfmadd231ps %1, %2, %0" : "+x"(sum) : "x"(a), "x"(w))

#define STEP(at)                                                                                                       \
    H3_UNROLL for (int r = 0; r < PIECE; r++) {                                                                        \
        __m256 a = _mm256_broadcast_ss(at);                                                                            \
        MULTIPLY(sum[r][0], w0, a);                                                                                    \
        MULTIPLY(sum[r][1], w1, a);                                                                                    \
    }

H3_AVX2_INLINE __m256i load(const void *from) { return _mm256_loadu_si256((const __m256i *)from); }

/* sums of 6 rows and 16 columns. x: `step` floats between steps, `row` floats between rows. */
H3_AVX2_INLINE void piece_f32(__m256 sum[PIECE][2], const float *x, const void *panel, int64_t steps,
                              const int64_t step, const int64_t row) {
    const float *w = panel;
    H3_UNROLL for (int r = 0; r < PIECE; r++) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
    for (int64_t i = 0; i < steps; i++, x += step, w += PANEL) {
        __m256 w0 = _mm256_loadu_ps(w), w1 = _mm256_loadu_ps(w + 8);
        STEP(x + r * row)
    }
}

/* Odd member of a pair first: the order of the AVX-512 instruction, so the bits agree. */
H3_AVX2_INLINE void piece_bf16(__m256 sum[PIECE][2], const float *x, const void *panel, int64_t steps,
                               const int64_t step, const int64_t row) {
    const __m256i high = _mm256_set1_epi32((int32_t)0xffff0000u);
    const uint32_t *w = panel;
    H3_UNROLL for (int r = 0; r < PIECE; r++) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
    for (int64_t i = 0; i < steps; i += 2, x += 2 * step, w += PANEL) {
        __m256 w0 = _mm256_castsi256_ps(_mm256_and_si256(high, load(w)));
        __m256 w1 = _mm256_castsi256_ps(_mm256_and_si256(high, load(w + 8)));
        STEP(x + step + r * row)
        w0 = _mm256_castsi256_ps(_mm256_slli_epi32(load(w), 16));
        w1 = _mm256_castsi256_ps(_mm256_slli_epi32(load(w + 8), 16));
        STEP(x + r * row)
    }
}

#define STEPS(kind, word_bytes)                                                                                        \
    static H3_AVX2 void scores_##kind(float *scores, const void *q, const void *k, int64_t keys, int64_t head_dim) {   \
        for (int64_t j = 0; j < keys; j += PANEL, k = (const char *)k + head_dim * PANEL * (word_bytes) / 2)           \
            for (int64_t row = 0; row < ROWS; row += PIECE)                                                            \
                for (int64_t c = 0; c < PANEL; c += 16) {                                                              \
                    __m256 sum[PIECE][2];                                                                              \
                    piece_##kind(sum, (const float *)q + row, (const float *)k + c, head_dim, ROWS, 1);                \
                    H3_UNROLL for (int r = 0; r < PIECE; r++) {                                                        \
                        _mm256_storeu_ps(scores + (row + r) * KEYS + j + c, sum[r][0]);                                \
                        _mm256_storeu_ps(scores + (row + r) * KEYS + j + c + 8, sum[r][1]);                            \
                    }                                                                                                  \
                }                                                                                                      \
    }                                                                                                                  \
                                                                                                                       \
    static H3_AVX2 void values_##kind(float *out, const void *p, const void *v, int64_t panel_stride, int64_t keys,    \
                                      int64_t head_dim, const float *decay) {                                          \
        for (int64_t column = 0; column < head_dim; column += PANEL, v = (const char *)v + panel_stride)               \
            for (int64_t c = 0; c < PANEL && column + c < head_dim; c += 16)                                           \
                for (int64_t row = 0; row < ROWS; row += PIECE) {                                                      \
                    __m256 sum[PIECE][2];                                                                              \
                    piece_##kind(sum, (const float *)p + row * KEYS, (const float *)v + c, keys, 1, KEYS);             \
                    H3_UNROLL for (int r = 0; r < PIECE; r++) {                                                        \
                        float *to = out + (row + r) * DIM + column + c;                                                \
                        __m256 fade = _mm256_set1_ps(decay[row + r]);                                                  \
                        __m256 old0 = _mm256_mul_ps(_mm256_loadu_ps(to), fade);                                        \
                        __m256 old1 = _mm256_mul_ps(_mm256_loadu_ps(to + 8), fade);                                    \
                        _mm256_storeu_ps(to, _mm256_add_ps(old0, sum[r][0]));                                          \
                        _mm256_storeu_ps(to + 8, _mm256_add_ps(old1, sum[r][1]));                                      \
                    }                                                                                                  \
                }                                                                                                      \
    }

STEPS(f32, 8)
STEPS(bf16, 4)

/* Rows of q in 16 rows of 256 values, as the transposes want them; missing rows are zero. */
#define QUERY(name, value)                                                                                             \
    static H3_AVX2 void name(void *q, const float *x, int64_t stride, int64_t rows, int64_t head_dim) {                \
        float plain[H3_LANES * DIM];                                                                                   \
        for (int64_t r = 0; r < H3_LANES; r++)                                                                         \
            for (int64_t d = 0; d < head_dim; d++) plain[r * DIM + d] = r < rows ? value : 0.0f;                       \
        h3_group_f32(q, ROWS, ROWS, plain, head_dim, &h3_lanes_avx2);                                                  \
    }

QUERY(query_f32, x[r * stride + d])
QUERY(query_bf16, h3_from_bf16(h3_to_bf16(x[r * stride + d])))

/* 2^x, x <= 0, in the portable order; below -127 zero. */
#define EXP2(x, y, degree)                                                                                             \
    {                                                                                                                  \
        static const float c[] = {H3_EXP2_##degree};                                                                   \
        __m256 least = _mm256_max_ps(x, _mm256_set1_ps(H3_EXP2_MIN));                                                  \
        __m256 n = _mm256_round_ps(least, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), f = _mm256_sub_ps(least, n); \
        y = _mm256_set1_ps(c[degree]);                                                                                 \
        H3_UNROLL for (int i = (degree)-1; i >= 0; i--) y = _mm256_add_ps(_mm256_mul_ps(y, f), _mm256_set1_ps(c[i]));  \
        __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);        \
        y = _mm256_mul_ps(y, _mm256_castsi256_ps(power));                                                              \
    }

/* The nearest bf16 as a float, ties to even. Weights are never NaN or infinite. */
H3_AVX2_INLINE __m256 round_bf16(__m256 value) {
    __m256i bits = _mm256_castps_si256(value);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    bits = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    return _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32((int32_t)0xffff0000u)));
}

H3_AVX2_INLINE float largest_of(__m256 x) {
    __m128 best = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    best = _mm_max_ps(best, _mm_movehl_ps(best, best));
    return _mm_cvtss_f32(_mm_max_ss(best, _mm_movehdup_ps(best)));
}

#define WEIGHTS(name, degree, rounded)                                                                                 \
    static H3_AVX2 void name(void *p, h3_softmax *state, float *scores, const int32_t *limit, int64_t keys,            \
                             float scale) {                                                                            \
        __m256 factor = _mm256_set1_ps(scale);                                                                         \
        for (int64_t r = 0; r < ROWS; r++) {                                                                           \
            float *row = scores + r * KEYS, *to = (float *)p + r * KEYS;                                               \
            for (int64_t j = limit[r]; j < keys; j++) row[j] = MASKED;                                                 \
            __m256 best0 = _mm256_loadu_ps(row), best1 = _mm256_loadu_ps(row + 8);                                     \
            for (int64_t j = 16; j < keys; j += 16) {                                                                  \
                best0 = _mm256_max_ps(best0, _mm256_loadu_ps(row + j));                                                \
                best1 = _mm256_max_ps(best1, _mm256_loadu_ps(row + j + 8));                                            \
            }                                                                                                          \
            float found = largest_of(_mm256_max_ps(best0, best1)), before = state->largest[r];                         \
            float largest = found > before ? found : before;                                                           \
            __m256 past = _mm256_set1_ps((before - largest) * scale), fade, top = _mm256_set1_ps(largest);             \
            EXP2(past, fade, degree)                                                                                   \
            state->largest[r] = largest;                                                                               \
            state->decay[r] = _mm256_cvtss_f32(fade);                                                                  \
            __m256 sum0 = _mm256_mul_ps(_mm256_loadu_ps(state->sum[r]), fade);                                         \
            __m256 sum1 = _mm256_mul_ps(_mm256_loadu_ps(state->sum[r] + 8), fade);                                     \
            for (int64_t j = 0; j < keys; j += 16) {                                                                   \
                __m256 x0 = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(row + j), top), factor), y0;                   \
                __m256 x1 = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(row + j + 8), top), factor), y1;               \
                EXP2(x0, y0, degree)                                                                                   \
                EXP2(x1, y1, degree)                                                                                   \
                sum0 = _mm256_add_ps(sum0, y0);                                                                        \
                sum1 = _mm256_add_ps(sum1, y1);                                                                        \
                _mm256_storeu_ps(to + j, rounded(y0));                                                                 \
                _mm256_storeu_ps(to + j + 8, rounded(y1));                                                             \
            }                                                                                                          \
            _mm256_storeu_ps(state->sum[r], sum0);                                                                     \
            _mm256_storeu_ps(state->sum[r] + 8, sum1);                                                                 \
        }                                                                                                              \
    }

WEIGHTS(weights_f32, 6, )
WEIGHTS(weights_bf16, 4, round_bf16)

void h3_fill_attention_avx2(h3_table *table) {
    table->attention[0] = (h3_attention_steps){query_f32, scores_f32, weights_f32, values_f32};
    table->attention[1] = (h3_attention_steps){query_bf16, scores_bf16, weights_bf16, values_bf16};
}
#endif
