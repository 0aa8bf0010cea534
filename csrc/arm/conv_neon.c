/* The convolution tile in NEON: pieces of 6 x 8 sums, four channels at a time. */
#if defined(__aarch64__)
#include "../conv.h"

#include "neon.h"

enum { ROWS = H3_CONV_ROWS, COLUMNS = H3_CONV_COLUMNS, PIECE = 6 };

H3_NEON_INLINE void piece_sums(float *tile, const h3_conv_piece *piece, int64_t row, int64_t column) {
    float32x4_t sum[PIECE][2];
    H3_UNROLL for (int r = 0; r < PIECE; r++) sum[r][0] = sum[r][1] = vdupq_n_f32(0.0f);
    for (int64_t tap = 0; tap < piece->taps; tap++) {
        const float *const *rows = piece->rows + tap * ROWS + row;
        const float *panel = piece->panel + tap * piece->pitch * COLUMNS + column, *x[PIECE];
        int64_t i = 0;
        H3_UNROLL for (int r = 0; r < PIECE; r++) x[r] = rows[r] + piece->first;
        for (; i + 4 <= piece->channels; i += 4, panel += 4 * COLUMNS) {
            float32x4_t w[4][2];
            H3_UNROLL for (int j = 0; j < 4; j++) {
                w[j][0] = vld1q_f32(panel + j * COLUMNS);
                w[j][1] = vld1q_f32(panel + j * COLUMNS + 4);
            }
            H3_UNROLL for (int r = 0; r < PIECE; r++) {
                float32x4_t four = vld1q_f32(x[r] + i);
#define PRODUCT(lane)                                                                                                  \
    sum[r][0] = vfmaq_laneq_f32(sum[r][0], w[lane][0], four, lane);                                                    \
    sum[r][1] = vfmaq_laneq_f32(sum[r][1], w[lane][1], four, lane);
                H3_LANES4(PRODUCT)
#undef PRODUCT
            }
        }
        for (; i < piece->channels; i++, panel += COLUMNS) {
            float32x4_t w0 = vld1q_f32(panel), w1 = vld1q_f32(panel + 4);
            H3_UNROLL for (int r = 0; r < PIECE; r++) {
                sum[r][0] = vfmaq_n_f32(sum[r][0], w0, x[r][i]);
                sum[r][1] = vfmaq_n_f32(sum[r][1], w1, x[r][i]);
            }
        }
    }
    H3_UNROLL for (int r = 0; r < PIECE; r++) {
        float *to = tile + (row + r) * COLUMNS + column;
        vst1q_f32(to, vaddq_f32(vld1q_f32(to), sum[r][0]));
        vst1q_f32(to + 4, vaddq_f32(vld1q_f32(to + 4), sum[r][1]));
    }
}

static void conv_tile(float *tile, const h3_conv_piece *piece) {
    for (int64_t column = 0; column < piece->columns; column += 8)
        for (int64_t row = 0; row < ROWS; row += PIECE) piece_sums(tile, piece, row, column);
}

void h3_fill_conv_neon(h3_table *table) { table->conv_tile = conv_tile; }
#endif
