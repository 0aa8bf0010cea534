/* The convolution tile in AVX-512: 12 x 32 sums in 24 registers, inputs read through 12 pointers. */
#if defined(__x86_64__)
#include "../conv.h"
#include "../table.h"

#include "avx512.h"

enum { ROWS = H3_CONV_ROWS, COLUMNS = H3_CONV_COLUMNS };

/* vectors: 2, or 1 where only 16 columns are wanted; a constant where this is inlined */
H3_AVX512_INLINE void tile_body(float *tile, const h3_conv_piece *piece, const int vectors) {
    __m512 sum[ROWS][2];
    H3_UNROLL for (int r = 0; r < ROWS; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (int64_t tap = 0; tap < piece->taps; tap++) {
        const float *const *rows = piece->rows + tap * ROWS;
        const float *panel = piece->panel + tap * piece->pitch * COLUMNS;
        const float *x[ROWS];
        H3_UNROLL for (int r = 0; r < ROWS; r++) x[r] = rows[r] + piece->first;
        for (int64_t i = 0; i < piece->channels; i++, panel += COLUMNS) {
            __m512 w0 = _mm512_loadu_ps(panel), w1 = vectors > 1 ? _mm512_loadu_ps(panel + 16) : w0;
            H3_UNROLL for (int r = 0; r < ROWS; r++) {
                __m512 a = _mm512_set1_ps(x[r][i]);
                sum[r][0] = _mm512_fmadd_ps(w0, a, sum[r][0]);
                if (vectors > 1) sum[r][1] = _mm512_fmadd_ps(w1, a, sum[r][1]);
            }
        }
    }
    H3_UNROLL for (int r = 0; r < ROWS; r++) {
        float *to = tile + r * COLUMNS;
        _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), sum[r][0]));
        if (vectors > 1) _mm512_storeu_ps(to + 16, _mm512_add_ps(_mm512_loadu_ps(to + 16), sum[r][1]));
    }
}

static H3_AVX512 void conv_tile(float *tile, const h3_conv_piece *piece) {
    if (piece->columns > 16)
        tile_body(tile, piece, 2);
    else
        tile_body(tile, piece, 1);
}

void h3_fill_conv_avx512(h3_table *table) { table->conv_tile = conv_tile; }
#endif
