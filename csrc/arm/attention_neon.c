/* Attention steps in NEON: 12 x 8 sums for the scores, 4 x 16 for the values. */
#if defined(__aarch64__)
#include "../attention.h"

#include "neon.h"

enum { ROWS = H3_ATTENTION_ROWS, PANEL = H3_ATTENTION_PANEL, KEYS = H3_ATTENTION_KEYS, DIM = H3_ATTENTION_MAX_DIM };

/* Far below every score, and finite, so that no infinity meets another. */
#define MASKED -3e38f

/*
 * q: [head_dim][12] floats, or [head_dim / 2][12] pairs for bfdot. p: [12][KEYS] floats, or [12][KEYS / 2] pairs.
 * Without bfdot, bf16 rows hold rounded floats, and k and v are widened exactly.
 */

/* ---- scores: a vector holds a value of four query rows ---- */

#define ROW(lane)                                                                                                      \
    sum[r + lane][0] = MULTIPLY(sum[r + lane][0], w0, x, lane);                                                        \
    sum[r + lane][1] = MULTIPLY(sum[r + lane][1], w1, x, lane);
#define EACH_ROW(type, load, at)                                                                                       \
    H3_UNROLL for (int r = 0; r < ROWS; r += 4) {                                                                      \
        type x = load(at);                                                                                             \
        H3_LANES4(ROW)                                                                                                 \
    }

/* steps: of `words` words of 4 bytes per key. the rest: one step, from q and w. */
#define SCORES(name, attributes, words, element, ...)                                                                  \
    static attributes void name(float *scores, const void *q, const void *k, int64_t keys, int64_t head_dim) {         \
        const element *panel = k;                                                                                      \
        for (int64_t j = 0; j < keys; j += PANEL, panel += (words)*PANEL)                                              \
            for (int64_t c = 0; c < PANEL; c += 8) {                                                                   \
                const element *w = panel + c;                                                                          \
                float32x4_t sum[ROWS][2];                                                                              \
                H3_UNROLL for (int r = 0; r < ROWS; r++) sum[r][0] = sum[r][1] = vdupq_n_f32(0.0f);                    \
                for (int64_t i = 0; i < (words); i++, w += PANEL) {                                                    \
                    __VA_ARGS__                                                                                        \
                }                                                                                                      \
                H3_UNROLL for (int r = 0; r < ROWS; r++) {                                                             \
                    vst1q_f32(scores + r * KEYS + j + c, sum[r][0]);                                                   \
                    vst1q_f32(scores + r * KEYS + j + c + 4, sum[r][1]);                                               \
                }                                                                                                      \
            }                                                                                                          \
    }

H3_NEON_INLINE float32x4_t low(const uint32_t *pairs) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vld1q_u32(pairs), 16));
}
H3_NEON_INLINE float32x4_t high(const uint32_t *pairs) {
    return vreinterpretq_f32_u32(vandq_u32(vld1q_u32(pairs), vdupq_n_u32(0xffff0000u)));
}

#define MULTIPLY(s, w, x, lane) vfmaq_laneq_f32(s, w, x, lane)
SCORES(scores_f32, , head_dim, float, {
    float32x4_t w0 = vld1q_f32(w), w1 = vld1q_f32(w + 4);
    EACH_ROW(float32x4_t, vld1q_f32, (const float *)q + i * ROWS + r)
})
SCORES(scores_widened, , head_dim / 2, uint32_t, {
    float32x4_t w0 = high(w), w1 = high(w + 4);
    EACH_ROW(float32x4_t, vld1q_f32, (const float *)q + (2 * i + 1) * ROWS + r)
    w0 = low(w), w1 = low(w + 4);
    EACH_ROW(float32x4_t, vld1q_f32, (const float *)q + 2 * i * ROWS + r)
})
#undef MULTIPLY

/* ---- values: a vector holds four weights of one query row ---- */

#define JOIN(r, c, total)                                                                                              \
    {                                                                                                                  \
        float *to = out + (row + r) * DIM + column + 4 * c;                                                            \
        vst1q_f32(to, vaddq_f32(vmulq_f32(vld1q_f32(to), vdupq_n_f32(decay[row + r])), total));                        \
    }

/* words: of 4 bytes per query row, pitch apart; body: four of them, from x[4] and w */
#define VALUES(name, attributes, words, pitch, element, vector, load, body)                                            \
    static attributes void name(float *out, const void *p, const void *v, int64_t panel_stride, int64_t keys,          \
                                int64_t head_dim, const float *decay) {                                                \
        for (int64_t panel = 0; panel < head_dim; panel += PANEL, v = (const char *)v + panel_stride)                  \
            for (int64_t column = panel; column < panel + PANEL && column < head_dim; column += 16)                    \
                for (int64_t row = 0; row < ROWS; row += 4) {                                                          \
                    const element *w = (const element *)v + column - panel;                                            \
                    const element *weights = (const element *)p + row * (pitch);                                       \
                    float32x4_t sum[4][4];                                                                             \
                    H3_UNROLL for (int r = 0; r < 4; r++) H3_UNROLL for (int c = 0; c < 4; c++) sum[r][c] =            \
                        vdupq_n_f32(0.0f);                                                                             \
                    for (int64_t i = 0; i < (words); i += 4, w += 4 * PANEL) {                                         \
                        vector x[4];                                                                                   \
                        H3_UNROLL for (int r = 0; r < 4; r++) x[r] = load(weights + r * (pitch) + i);                  \
                        body                                                                                           \
                    }                                                                                                  \
                    H3_UNROLL for (int r = 0; r < 4; r++) H3_UNROLL for (int c = 0; c < 4; c++) JOIN(r, c, sum[r][c])  \
                }                                                                                                      \
    }

#define FLOATS(lane)                                                                                                   \
    H3_UNROLL for (int c = 0; c < 4; c++) {                                                                            \
        float32x4_t four = vld1q_f32(w + lane * PANEL + 4 * c);                                                        \
        H3_UNROLL for (int r = 0; r < 4; r++) sum[r][c] = vfmaq_laneq_f32(sum[r][c], four, x[r], lane);                \
    }
VALUES(values_f32, , keys, KEYS, float, float32x4_t, vld1q_f32, {H3_LANES4(FLOATS)})

/* Four rounded weights are two pairs of keys; odd first. */
#define WIDENED(pair)                                                                                                  \
    H3_UNROLL for (int c = 0; c < 4; c++) {                                                                            \
        float32x4_t odd = high(w + pair * PANEL + 4 * c), even = low(w + pair * PANEL + 4 * c);                        \
        H3_UNROLL for (int r = 0; r < 4; r++) {                                                                        \
            sum[r][c] = vfmaq_laneq_f32(sum[r][c], odd, x[r], 2 * pair + 1);                                           \
            sum[r][c] = vfmaq_laneq_f32(sum[r][c], even, x[r], 2 * pair);                                              \
        }                                                                                                              \
    }
static void values_widened(float *out, const void *p, const void *v, int64_t panel_stride, int64_t keys,
                           int64_t head_dim, const float *decay) {
    for (int64_t panel = 0; panel < head_dim; panel += PANEL, v = (const char *)v + panel_stride)
        for (int64_t column = panel; column < panel + PANEL && column < head_dim; column += 16)
            for (int64_t row = 0; row < ROWS; row += 4) {
                const uint32_t *w = (const uint32_t *)v + column - panel;
                const float *weights = (const float *)p + row * KEYS;
                float32x4_t sum[4][4];
                H3_UNROLL for (int r = 0; r < 4; r++) H3_UNROLL for (int c = 0; c < 4; c++) sum[r][c] =
                    vdupq_n_f32(0.0f);
                for (int64_t i = 0; i < keys; i += 4, w += 2 * PANEL) {
                    float32x4_t x[4];
                    H3_UNROLL for (int r = 0; r < 4; r++) x[r] = vld1q_f32(weights + r * KEYS + i);
                    WIDENED(0)
                    WIDENED(1)
                }
                H3_UNROLL for (int r = 0; r < 4; r++) H3_UNROLL for (int c = 0; c < 4; c++) JOIN(r, c, sum[r][c])
            }
}

#if defined(H3_HAVE_ARM_BF16)
#define BF16(from) vreinterpretq_bf16_u32(vld1q_u32(from))
#define MULTIPLY(s, w, x, lane) vbfdotq_laneq_f32(s, w, x, lane)
SCORES(scores_bf16, H3_ARM_BF16, head_dim / 2, uint32_t, {
    bfloat16x8_t w0 = BF16(w), w1 = BF16(w + 4);
    EACH_ROW(bfloat16x8_t, BF16, (const uint32_t *)q + i * ROWS + r)
})
#undef MULTIPLY
#define PAIRS(lane)                                                                                                    \
    H3_UNROLL for (int c = 0; c < 4; c++) {                                                                            \
        bfloat16x8_t four = BF16(w + lane * PANEL + 4 * c);                                                            \
        H3_UNROLL for (int r = 0; r < 4; r++) sum[r][c] = vbfdotq_laneq_f32(sum[r][c], four, x[r], lane);              \
    }
VALUES(values_bf16, H3_ARM_BF16, keys / 2, KEYS / 2, uint32_t, bfloat16x8_t, BF16, {H3_LANES4(PAIRS)})
#endif

/* ---- query tiles ---- */

/* Rows of q in 16 rows of 256 values, as the transposes want them; missing rows are zero. */
#define QUERY(name, value, group)                                                                                      \
    static void name(void *q, const float *x, int64_t stride, int64_t rows, int64_t head_dim) {                        \
        float plain[H3_LANES * DIM] = {0};                                                                             \
        for (int64_t r = 0; r < rows; r++)                                                                             \
            for (int64_t d = 0; d < head_dim; d++) plain[r * DIM + d] = value;                                         \
        group(q, ROWS, ROWS, plain, head_dim, &h3_lanes_c);                                                            \
    }

QUERY(query_f32, x[r * stride + d], h3_group_f32)
QUERY(query_widened, h3_from_bf16(h3_to_bf16(x[r * stride + d])), h3_group_f32)
QUERY(query_bf16, x[r * stride + d], h3_group_bf16)

/* ---- weights ---- */

/* 2^x, x <= 0, in the portable order; below -127 zero. */
#define EXP2(name, degree)                                                                                             \
    H3_NEON_INLINE float32x4_t name(float32x4_t x) {                                                                   \
        static const float c[] = {H3_EXP2_##degree};                                                                   \
        float32x4_t least = vmaxq_f32(x, vdupq_n_f32(H3_EXP2_MIN)), n = vrndnq_f32(least), f = vsubq_f32(least, n);    \
        float32x4_t y = vdupq_n_f32(c[degree]);                                                                        \
        H3_UNROLL for (int i = (degree)-1; i >= 0; i--) y = vaddq_f32(vmulq_f32(y, f), vdupq_n_f32(c[i]));             \
        int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);                              \
        return vmulq_f32(y, vreinterpretq_f32_s32(power));                                                             \
    }
EXP2(exp2_4, 4)
EXP2(exp2_6, 6)

/* The nearest bf16 in the high half, ties to even. Weights are never NaN or infinite. */
H3_NEON_INLINE uint32x4_t round_bf16(float32x4_t value) {
    uint32x4_t bits = vreinterpretq_u32_f32(value), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    return vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
}

#define STORE_F32(y) H3_UNROLL for (int i = 0; i < 4; i++) vst1q_f32((float *)p + r * KEYS + j + 4 * i, y[i]);
#define STORE_WIDENED(y)                                                                                               \
    H3_UNROLL for (int i = 0; i < 4; i++)                                                                              \
        vst1q_u32((uint32_t *)p + r * KEYS + j + 4 * i, vandq_u32(round_bf16(y[i]), vdupq_n_u32(0xffff0000u)));
#define STORE_BF16(y)                                                                                                  \
    H3_UNROLL for (int i = 0; i < 4; i += 2)                                                                           \
        vst1q_u16((uint16_t *)p + r * KEYS + j + 4 * i,                                                                \
                  vuzp2q_u16(vreinterpretq_u16_u32(round_bf16(y[i])), vreinterpretq_u16_u32(round_bf16(y[i + 1]))));

#define WEIGHTS(name, exp2, store)                                                                                     \
    static void name(void *p, h3_softmax *state, float *scores, const int32_t *limit, int64_t keys, float scale) {     \
        for (int64_t r = 0; r < ROWS; r++) {                                                                           \
            float *row = scores + r * KEYS, before = state->largest[r];                                                \
            for (int64_t j = limit[r]; j < keys; j++) row[j] = MASKED;                                                 \
            float32x4_t best = vld1q_f32(row), sum[4], y[4];                                                           \
            for (int64_t j = 4; j < keys; j += 4) best = vmaxq_f32(best, vld1q_f32(row + j));                          \
            float found = vmaxvq_f32(best), largest = found > before ? found : before;                                 \
            float32x4_t fade = exp2(vdupq_n_f32((before - largest) * scale)), top = vdupq_n_f32(largest);              \
            state->largest[r] = largest;                                                                               \
            state->decay[r] = vgetq_lane_f32(fade, 0);                                                                 \
            H3_UNROLL for (int i = 0; i < 4; i++) sum[i] = vmulq_f32(vld1q_f32(state->sum[r] + 4 * i), fade);          \
            for (int64_t j = 0; j < keys; j += 16) {                                                                   \
                H3_UNROLL for (int i = 0; i < 4; i++) {                                                                \
                    float32x4_t x = vsubq_f32(vld1q_f32(row + j + 4 * i), top);                                        \
                    y[i] = exp2(vmulq_f32(x, vdupq_n_f32(scale)));                                                     \
                    sum[i] = vaddq_f32(sum[i], y[i]);                                                                  \
                }                                                                                                      \
                store(y)                                                                                               \
            }                                                                                                          \
            H3_UNROLL for (int i = 0; i < 4; i++) vst1q_f32(state->sum[r] + 4 * i, sum[i]);                            \
        }                                                                                                              \
    }

WEIGHTS(weights_f32, exp2_6, STORE_F32)
WEIGHTS(weights_widened, exp2_4, STORE_WIDENED)
WEIGHTS(weights_bf16, exp2_4, STORE_BF16)

void h3_fill_attention_neon(h3_table *table, unsigned cpu) {
    table->attention[0] = (h3_attention_steps){query_f32, scores_f32, weights_f32, values_f32};
    table->attention[1] = (h3_attention_steps){query_widened, scores_widened, weights_widened, values_widened};
#if defined(H3_HAVE_ARM_BF16)
    if (cpu & H3_CPU_ARM_BF16)
        table->attention[1] = (h3_attention_steps){query_bf16, scores_bf16, weights_bf16, values_bf16};
#endif
    (void)query_bf16, (void)weights_bf16, (void)cpu;
}
#endif
