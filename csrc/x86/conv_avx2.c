/* The convolution tile in AVX2: pieces of 6 x 16 sums, inputs read through 6 pointers. */
#if defined(__x86_64__)
#include "../conv.h"
#include "../table.h"

#include "avx2.h"

enum { ROWS = H3_CONV_ROWS, COLUMNS = H3_CONV_COLUMNS, PIECE = 6 };

/* Spelled out: given the intrinsic, gcc 12 hoists the broadcasts and spills. */
#define MULTIPLY(sum, w, a) __asm__("vfmadd231ps %1, %2, %0" : "+x"(sum) : "x"(a), "x"(w))

H3_AVX2_INLINE void piece_sums(float *tile, const h3_conv_piece *piece, int64_t row, int64_t column) {
    __m256 sum[PIECE][2];
    H3_UNROLL for (int r = 0; r < PIECE; r++) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
    for (int64_t tap = 0; tap < piece->taps; tap++) {
        const float *const *rows = piece->rows + tap * ROWS + row;
        const float *panel = piece->panel + tap * piece->pitch * COLUMNS + column, *x[PIECE];
        H3_UNROLL for (int r = 0; r < PIECE; r++) x[r] = rows[r] + piece->first;
        for (int64_t i = 0; i < piece->channels; i++, panel += COLUMNS) {
            __m256 w0 = _mm256_loadu_ps(panel), w1 = _mm256_loadu_ps(panel + 8);
            H3_UNROLL for (int r = 0; r < PIECE; r++) {
                __m256 a = _mm256_broadcast_ss(x[r] + i);
                MULTIPLY(sum[r][0], w0, a);
                MULTIPLY(sum[r][1], w1, a);
            }
        }
    }
    H3_UNROLL for (int r = 0; r < PIECE; r++) {
        float *to = tile + (row + r) * COLUMNS + column;
        _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), sum[r][0]));
        _mm256_storeu_ps(to + 8, _mm256_add_ps(_mm256_loadu_ps(to + 8), sum[r][1]));
    }
}

static H3_AVX2 void conv_tile(float *tile, const h3_conv_piece *piece) {
    for (int64_t column = 0; column < piece->columns; column += 16)
        for (int64_t row = 0; row < ROWS; row += PIECE) piece_sums(tile, piece, row, column);
}

void h3_fill_conv_avx2(h3_table *table) { table->conv_tile = conv_tile; }
#endif
