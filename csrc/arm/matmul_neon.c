/* Tiles in NEON: 12 x 8 sums in 24 of 32 registers; a row's value is a lane of a vector of rows. */
#if defined(__aarch64__)
#include "../matmul.h"

#include "neon.h"

enum { COLUMNS = 8 }; /* of a piece */

/* sum[row][half] += w[half] * (lane of x); R rows, a multiple of 4, constant where this is inlined. */
#define ROW(lane)                                                                                                      \
    sum[r + lane][0] = MULTIPLY(sum[r + lane][0], w0, x, lane);                                                        \
    sum[r + lane][1] = MULTIPLY(sum[r + lane][1], w1, x, lane);

#define EACH_ROWS(used, call)                                                                                          \
    if ((used) > 8)                                                                                                    \
        call(12);                                                                                                      \
    else if ((used) > 4)                                                                                               \
        call(8);                                                                                                       \
    else                                                                                                               \
        call(4);

H3_NEON_INLINE void store_piece(float *tile, float32x4_t sum[H3_ROWS][2], int later, const int R) {
    H3_UNROLL for (int r = 0; r < R; r++) H3_UNROLL for (int half = 0; half < 2; half++) {
        float *to = tile + r * H3_COLUMNS + 4 * half;
        vst1q_f32(to, later ? vaddq_f32(vld1q_f32(to), sum[r][half]) : sum[r][half]);
    }
}

/* ---- f32 ---- */

#define MULTIPLY(s, w, x, lane) vfmaq_laneq_f32(s, w, x, lane)
H3_NEON_INLINE void piece_f32(float *tile, const float *rows, const float *w, int64_t count, int later, const int R) {
    float32x4_t sum[H3_ROWS][2];
    H3_UNROLL for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = vdupq_n_f32(0.0f);
    for (int64_t i = 0; i < count; i++, rows += H3_ROWS, w += H3_COLUMNS) {
        float32x4_t w0 = vld1q_f32(w), w1 = vld1q_f32(w + 4);
        H3_UNROLL for (int r = 0; r < R; r += 4) {
            float32x4_t x = vld1q_f32(rows + r);
            H3_LANES4(ROW)
        }
    }
    store_piece(tile, sum, later, R);
}

static void tile_f32(float *tile, const void *block, const void *panel, int64_t k, int64_t used) {
    for (int64_t start = 0; start < k; start += H3_CHAIN) {
        int64_t count = k - start < H3_CHAIN ? k - start : H3_CHAIN;
        const float *x = (const float *)block + start * H3_ROWS, *w = (const float *)panel + start * H3_COLUMNS;
        for (int64_t c = 0; c < H3_COLUMNS; c += COLUMNS) {
#define CALL(rows) piece_f32(tile + c, x, w + c, count, start > 0, rows)
            EACH_ROWS(used, CALL)
#undef CALL
        }
    }
}

/* ---- bf16 without the instruction: each member of a pair is the high half of a float ---- */

H3_NEON_INLINE float32x4_t low(uint32x4_t pairs) { return vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16)); }
H3_NEON_INLINE float32x4_t high(uint32x4_t pairs) {
    return vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000u)));
}

H3_NEON_INLINE void piece_widened(float *tile, const uint32_t *rows, const uint32_t *w, int64_t pairs, int later,
                                  const int R) {
    float32x4_t sum[H3_ROWS][2];
    H3_UNROLL for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = vdupq_n_f32(0.0f);
    for (int64_t i = 0; i < pairs; i++, rows += H3_ROWS, w += H3_COLUMNS) {
        float32x4_t w0 = low(vld1q_u32(w)), w1 = low(vld1q_u32(w + 4));
        H3_UNROLL for (int r = 0; r < R; r += 4) {
            float32x4_t x = low(vld1q_u32(rows + r));
            H3_LANES4(ROW)
        }
        w0 = high(vld1q_u32(w)), w1 = high(vld1q_u32(w + 4));
        H3_UNROLL for (int r = 0; r < R; r += 4) {
            float32x4_t x = high(vld1q_u32(rows + r));
            H3_LANES4(ROW)
        }
    }
    store_piece(tile, sum, later, R);
}
#undef MULTIPLY

#define TILE_BF16(name, attributes, piece)                                                                             \
    static attributes void name(float *tile, const void *block, const void *panel, int64_t k, int64_t used) {          \
        int64_t pairs = (k + 1) / 2;                                                                                   \
        for (int64_t start = 0; start < pairs; start += H3_CHAIN / 2) {                                                \
            int64_t count = pairs - start < H3_CHAIN / 2 ? pairs - start : H3_CHAIN / 2;                               \
            const uint32_t *x = (const uint32_t *)block + start * H3_ROWS;                                             \
            const uint32_t *w = (const uint32_t *)panel + start * H3_COLUMNS;                                          \
            for (int64_t c = 0; c < H3_COLUMNS; c += COLUMNS) {                                                        \
                EACH_ROWS(used, piece)                                                                                 \
            }                                                                                                          \
        }                                                                                                              \
    }

#define CALL(rows) piece_widened(tile + c, x, w + c, count, start > 0, rows)
TILE_BF16(tile_widened, , CALL)
#undef CALL

/* ---- bf16 with bfdot ---- */

#if defined(H3_HAVE_ARM_BF16)
#define MULTIPLY(s, w, x, lane) vbfdotq_laneq_f32(s, w, x, lane)
static inline __attribute__((always_inline)) H3_ARM_BF16 void
piece_bf16(float *tile, const uint32_t *rows, const uint32_t *w, int64_t pairs, int later, const int R) {
    float32x4_t sum[H3_ROWS][2];
    H3_UNROLL for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = vdupq_n_f32(0.0f);
    for (int64_t i = 0; i < pairs; i++, rows += H3_ROWS, w += H3_COLUMNS) {
        bfloat16x8_t w0 = vreinterpretq_bf16_u32(vld1q_u32(w)), w1 = vreinterpretq_bf16_u32(vld1q_u32(w + 4));
        H3_UNROLL for (int r = 0; r < R; r += 4) {
            bfloat16x8_t x = vreinterpretq_bf16_u32(vld1q_u32(rows + r));
            H3_LANES4(ROW)
        }
    }
    store_piece(tile, sum, later, R);
}
#undef MULTIPLY
#define CALL(rows) piece_bf16(tile + c, x, w + c, count, start > 0, rows)
TILE_BF16(tile_bf16, H3_ARM_BF16, CALL)
#undef CALL
#endif

/* ---- int8: the panel's bytes are value + 128; flipping the top bit gives the value itself, so no correction ---- */

H3_NEON_INLINE void scale_piece(float *tile, int32x4_t sum, float row_scale, const float *column_scale, int later) {
    /* as C: two products and a sum, each rounded */
    float32x4_t scale = vmulq_f32(vdupq_n_f32(row_scale), vld1q_f32(column_scale));
    float32x4_t total = vmulq_f32(vcvtq_f32_s32(sum), scale);
    vst1q_f32(tile, vaddq_f32(later ? vld1q_f32(tile) : vdupq_n_f32(0.0f), total));
}

#define TILE_INT8(name, attributes, piece)                                                                             \
    static attributes void name(float *tile, const void *block, const void *panel, int64_t k, int64_t used) {          \
        int64_t words = (k + 3) / 4, groups = h3_groups(k);                                                            \
        const int8_t *x = block;                                                                                       \
        const uint8_t *w = panel;                                                                                      \
        const float *row_scale = (const float *)(const void *)(x + words * H3_ROWS * 4);                               \
        const float *column_scale = (const float *)(const void *)(w + words * H3_COLUMNS * 4);                         \
        for (int64_t group = 0; group < groups; group++) {                                                             \
            int64_t count = words < H3_GROUP / 4 ? words : H3_GROUP / 4;                                               \
            for (int64_t c = 0; c < H3_COLUMNS; c += COLUMNS) {                                                        \
                EACH_ROWS(used, piece)                                                                                 \
            }                                                                                                          \
            words -= count;                                                                                            \
            x += count * H3_ROWS * 4;                                                                                  \
            w += count * H3_COLUMNS * 4;                                                                               \
            row_scale += H3_ROWS;                                                                                      \
            column_scale += H3_COLUMNS;                                                                                \
        }                                                                                                              \
    }
#define CALL_INT8(piece, rows) piece(tile + c, x, w + 4 * c, count, row_scale, column_scale + c, group > 0, rows)

/* Without the dot product: bytes multiply to 16 bits, pairs add up to 32; 4 columns take two sums. */
H3_NEON_INLINE void piece_int8(float *tile, const int8_t *rows, const uint8_t *w, int64_t words, const float *row_scale,
                               const float *column_scale, int later, const int R) {
    for (int half = 0; half < 2; half++)
        for (int r = 0; r < R; r += 4) {
            int32x4_t sum[4][2];
            H3_UNROLL for (int j = 0; j < 4; j++) sum[j][0] = sum[j][1] = vdupq_n_s32(0);
            for (int64_t i = 0; i < words; i++) {
                int8x16_t weights =
                    vreinterpretq_s8_u8(veorq_u8(vld1q_u8(w + (i * H3_COLUMNS + 4 * half) * 4), vdupq_n_u8(0x80)));
                int32x4_t x = vreinterpretq_s32_s8(vld1q_s8(rows + (i * H3_ROWS + r) * 4));
#define PRODUCT(lane)                                                                                                  \
    {                                                                                                                  \
        int8x16_t four = vreinterpretq_s8_s32(vdupq_laneq_s32(x, lane));                                               \
        sum[lane][0] = vpadalq_s16(sum[lane][0], vmull_s8(vget_low_s8(weights), vget_low_s8(four)));                   \
        sum[lane][1] = vpadalq_s16(sum[lane][1], vmull_high_s8(weights, four));                                        \
    }
                H3_LANES4(PRODUCT)
#undef PRODUCT
            }
            H3_UNROLL for (int j = 0; j < 4; j++)
                scale_piece(tile + (r + j) * H3_COLUMNS + 4 * half, vpaddq_s32(sum[j][0], sum[j][1]), row_scale[r + j],
                            column_scale + 4 * half, later);
        }
}

#define CALL(rows) CALL_INT8(piece_int8, rows)
TILE_INT8(tile_int8, , CALL)
#undef CALL

#if defined(H3_HAVE_DOTPROD)
#define MULTIPLY(s, w, x, lane) vdotq_laneq_s32(s, w, x, lane)
static inline __attribute__((always_inline)) H3_DOTPROD void
piece_dot(float *tile, const int8_t *rows, const uint8_t *w, int64_t words, const float *row_scale,
          const float *column_scale, int later, const int R) {
    const uint8x16_t flip = vdupq_n_u8(0x80);
    int32x4_t sum[H3_ROWS][2];
    H3_UNROLL for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = vdupq_n_s32(0);
    for (int64_t i = 0; i < words; i++, rows += 4 * H3_ROWS, w += 4 * H3_COLUMNS) {
        int8x16_t w0 = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(w), flip));
        int8x16_t w1 = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(w + 16), flip));
        H3_UNROLL for (int r = 0; r < R; r += 4) {
            int8x16_t x = vld1q_s8(rows + 4 * r);
            H3_LANES4(ROW)
        }
    }
    H3_UNROLL for (int r = 0; r < R; r++) H3_UNROLL for (int half = 0; half < 2; half++)
        scale_piece(tile + r * H3_COLUMNS + 4 * half, sum[r][half], row_scale[r], column_scale + 4 * half, later);
}
#undef MULTIPLY

#define CALL(rows) CALL_INT8(piece_dot, rows)
TILE_INT8(tile_dot, H3_DOTPROD, CALL)
#undef CALL
#endif

void h3_fill_matmul_neon(h3_table *table, unsigned cpu) {
    table->tile[H3_F32] = tile_f32;
    table->tile[H3_BF16] = tile_widened;
    table->tile[H3_INT8] = tile_int8;
#if defined(H3_HAVE_ARM_BF16)
    if (cpu & H3_CPU_ARM_BF16) table->tile[H3_BF16] = tile_bf16;
#endif
#if defined(H3_HAVE_DOTPROD)
    if (cpu & H3_CPU_DOTPROD) table->tile[H3_INT8] = tile_dot;
#endif
    (void)cpu;
}
#endif
