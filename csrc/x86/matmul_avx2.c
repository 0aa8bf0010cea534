/* Tiles, dot products and epilogues in AVX2: pieces of 6 x 16 sums in 12 of the 16 registers. */
#if defined(__x86_64__)
#include "../matmul.h"

#include "avx2.h"

enum { PIECE = 6 }; /* rows */

/*
 * Spelled out, one instruction per line of C: given the intrinsics, gcc 12 hoists the broadcasts and spills.
 * MULTIPLY_INT8: 4 columns x 4 of K as 16-bit values; pairs of products are exact in 32 bits.
 */
#define MULTIPLY_F32(sum, w, a) __asm__("vfmadd231ps %1, %2, %0" : "+x"(sum) : "x"(a), "x"(w))
#define MULTIPLY_INT8(sum, w, a)                                                                                       \
    do {                                                                                                               \
        __m256i product;                                                                                               \
        __asm__("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(a), "x"(w));              \
    } while (0)

/* Rows in pieces of 6, a last one of 4 or 2 where fewer are used. */
#define EACH_PIECE(used, call)                                                                                         \
    for (int64_t row = 0; row < (used); row += PIECE) {                                                                \
        if ((used)-row > 4)                                                                                            \
            call(6);                                                                                                   \
        else if ((used)-row > 2)                                                                                       \
            call(4);                                                                                                   \
        else                                                                                                           \
            call(2);                                                                                                   \
    }

H3_AVX2_INLINE void store_piece(float *tile, __m256 sum[PIECE][2], int later, const int R) {
    H3_UNROLL for (int r = 0; r < R; r++) {
        float *to = tile + r * H3_COLUMNS;
        if (later) {
            sum[r][0] = _mm256_add_ps(_mm256_loadu_ps(to), sum[r][0]);
            sum[r][1] = _mm256_add_ps(_mm256_loadu_ps(to + 8), sum[r][1]);
        }
        _mm256_storeu_ps(to, sum[r][0]);
        _mm256_storeu_ps(to + 8, sum[r][1]);
    }
}

H3_AVX2_INLINE void piece_f32(float *tile, const float *x, const float *w, int64_t count, int later, const int R) {
    __m256 sum[PIECE][2];
    H3_UNROLL for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
    for (int64_t i = 0; i < count; i++, x += H3_ROWS, w += H3_COLUMNS) {
        __m256 w0 = _mm256_loadu_ps(w), w1 = _mm256_loadu_ps(w + 8);
        H3_UNROLL for (int r = 0; r < R; r++) {
            __m256 a = _mm256_broadcast_ss(x + r);
            MULTIPLY_F32(sum[r][0], w0, a);
            MULTIPLY_F32(sum[r][1], w1, a);
        }
    }
    store_piece(tile, sum, later, R);
}

H3_AVX2 static void tile_f32(float *tile, const void *block, const void *panel, int64_t k, int64_t used) {
    for (int64_t start = 0; start < k; start += H3_CHAIN) {
        int64_t count = k - start < H3_CHAIN ? k - start : H3_CHAIN;
        const float *x = (const float *)block + start * H3_ROWS, *w = (const float *)panel + start * H3_COLUMNS;
        for (int64_t c = 0; c < H3_COLUMNS; c += 16) {
#define CALL(rows) piece_f32(tile + row * H3_COLUMNS + c, x + row, w + c, count, start > 0, rows)
            EACH_PIECE(used, CALL)
#undef CALL
        }
    }
}

/* Two shifts, not a mask: 12 sums, 2 weights and a row leave no register for the mask. */
H3_AVX2_INLINE __m256 high_half(const uint32_t *pairs) {
    __m256i low = _mm256_srli_epi32(_mm256_loadu_si256((const __m256i *)pairs), 16);
    __asm__("" : "+x"(low)); /* else the compiler makes a mask of the two shifts again */
    return _mm256_castsi256_ps(_mm256_slli_epi32(low, 16));
}

/* x: [pairs][2][12] floats. w: pairs of bfloat16, widened here, exactly. */
H3_AVX2_INLINE void piece_bf16(float *tile, const float *x, const uint32_t *w, int64_t pairs, int later, const int R) {
    __m256 sum[PIECE][2];
    H3_UNROLL for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
    for (int64_t i = 0; i < pairs; i++, x += 2 * H3_ROWS, w += H3_COLUMNS) {
        __m256 w0 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)w), 16));
        __m256 w1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)(w + 8)), 16));
        H3_UNROLL for (int r = 0; r < R; r++) {
            __m256 a = _mm256_broadcast_ss(x + r);
            MULTIPLY_F32(sum[r][0], w0, a);
            MULTIPLY_F32(sum[r][1], w1, a);
        }
        w0 = high_half(w);
        w1 = high_half(w + 8);
        H3_UNROLL for (int r = 0; r < R; r++) {
            __m256 a = _mm256_broadcast_ss(x + H3_ROWS + r);
            MULTIPLY_F32(sum[r][0], w0, a);
            MULTIPLY_F32(sum[r][1], w1, a);
        }
    }
    store_piece(tile, sum, later, R);
}

H3_AVX2 static void tile_bf16(float *tile, const void *block, const void *panel, int64_t k, int64_t used) {
    float x[H3_CHAIN * H3_ROWS] __attribute__((aligned(64))); /* this chain's rows, widened once for all columns: 24 KiB */
    int64_t pairs = (k + 1) / 2;
    for (int64_t start = 0; start < pairs; start += H3_CHAIN / 2) {
        int64_t count = pairs - start < H3_CHAIN / 2 ? pairs - start : H3_CHAIN / 2;
        const uint32_t *from = (const uint32_t *)block + start * H3_ROWS, *w = (const uint32_t *)panel + start * H3_COLUMNS;
        for (int64_t i = 0; i < count; i++)
            for (int r = 0; r < H3_ROWS; r++) {
                x[2 * i * H3_ROWS + r] = h3_float(from[i * H3_ROWS + r] << 16);
                x[(2 * i + 1) * H3_ROWS + r] = h3_float(from[i * H3_ROWS + r] & 0xffff0000u);
            }
        for (int64_t c = 0; c < H3_COLUMNS; c += 16) {
#define CALL(rows) piece_bf16(tile + row * H3_COLUMNS + c, x + row, w + c, count, start > 0, rows)
            EACH_PIECE(used, CALL)
#undef CALL
        }
    }
}

/* 8 columns: two sums (first and second half of each 4 of K) per column, so the bytes need no shuffle, only widening. */
H3_AVX2_INLINE void piece_int8(float *tile, const int16_t *x, const uint32_t *w, int64_t words, const float *row_scale,
                               const int32_t *row_sum, const float *column_scale, int later, const int R) {
    __m256i sum[PIECE][2];
    H3_UNROLL for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
    for (int64_t i = 0; i < words; i++, x += 4 * H3_ROWS, w += H3_COLUMNS) {
        __m256i w0 = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)w));
        __m256i w1 = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(w + 4)));
        H3_UNROLL for (int r = 0; r < R; r++) {
            __m256i a = _mm256_castpd_si256(_mm256_broadcast_sd((const double *)(const void *)(x + 4 * r)));
            MULTIPLY_INT8(sum[r][0], w0, a);
            MULTIPLY_INT8(sum[r][1], w1, a);
        }
    }
    __m256 scale = _mm256_loadu_ps(column_scale);
    H3_UNROLL for (int r = 0; r < R; r++) { /* as C: two products and a sum, each rounded */
        float *to = tile + r * H3_COLUMNS;
        __m256i both = _mm256_permute4x64_epi64(_mm256_hadd_epi32(sum[r][0], sum[r][1]), 0xd8);
        __m256 total = _mm256_cvtepi32_ps(_mm256_sub_epi32(both, _mm256_set1_epi32(128 * row_sum[r])));
        total = _mm256_mul_ps(total, _mm256_mul_ps(_mm256_set1_ps(row_scale[r]), scale));
        _mm256_storeu_ps(to, _mm256_add_ps(later ? _mm256_loadu_ps(to) : _mm256_setzero_ps(), total));
    }
}

H3_AVX2 static void tile_int8(float *tile, const void *block, const void *panel, int64_t k, int64_t used) {
    int16_t x[H3_GROUP * H3_ROWS] __attribute__((aligned(64))); /* this group's rows, widened once for all columns: 6 KiB */
    int64_t words = (k + 3) / 4, groups = h3_groups(k);
    const int8_t *from = block;
    const uint32_t *w = panel;
    const float *row_scale = (const float *)(from + words * H3_ROWS * 4), *column_scale = (const float *)(w + words * H3_COLUMNS);
    const int32_t *row_sum = (const int32_t *)(row_scale + groups * H3_ROWS);
    for (int64_t group = 0; group < groups; group++) {
        int64_t count = words < H3_GROUP / 4 ? words : H3_GROUP / 4;
        for (int64_t i = 0; i < count * H3_ROWS * 4; i++)
            x[i] = from[i];
        for (int64_t c = 0; c < H3_COLUMNS; c += 8) {
#define CALL(rows)                                                                                                     \
    piece_int8(tile + row * H3_COLUMNS + c, x + 4 * row, w + c, count, row_scale + row, row_sum + row, column_scale + c,   \
               group > 0, rows)
            EACH_PIECE(used, CALL)
#undef CALL
        }
        words -= count;
        from += count * H3_ROWS * 4;
        w += count * H3_COLUMNS;
        row_scale += H3_ROWS;
        row_sum += H3_ROWS;
        column_scale += H3_COLUMNS;
    }
}

/* ---- dot products: memory-bound, so one row at a time with 4 sums in flight ---- */

#define LOAD_F32(from, i) _mm256_loadu_ps((const float *)(from) + (i))
#define LOAD_BF16(from, i)                                                                                             \
    _mm256_castsi256_ps(_mm256_slli_epi32(                                                                             \
        _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)((const uint16_t *)(from) + (i)))), 16))
#define LOAD_F16(from, i) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)(from) + (i))))
#define TAIL_F32(value) (value)
#define TAIL_BF16(value) h3_from_bf16(value)
#define TAIL_F16(value) h3_from_f16(value)

#define DOT(name, type, load, tail)                                                                                    \
    H3_AVX2 static void name(float *sums, const void *row, const float *x, int64_t m, int64_t k) {                     \
        for (int64_t r = 0; r < m; r++, x += k) { /* the row is in L1 after the first */                               \
            __m256 sum[4];                                                                                             \
            float lanes[8], rest = 0.0f;                                                                               \
            int64_t i = 0;                                                                                             \
            H3_UNROLL for (int j = 0; j < 4; j++) sum[j] = _mm256_setzero_ps();                                        \
            for (; i + 32 <= k; i += 32)                                                                               \
                H3_UNROLL for (int j = 0; j < 4; j++) sum[j] =                                                         \
                    _mm256_fmadd_ps(load(row, i + 8 * j), _mm256_loadu_ps(x + i + 8 * j), sum[j]);                     \
            for (; i < k; i++) {                                                                                       \
                type value;                                                                                            \
                memcpy(&value, (const type *)row + i, sizeof value);                                                   \
                rest += tail(value) * x[i];                                                                            \
            }                                                                                                          \
            _mm256_storeu_ps(lanes, _mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3])));      \
            for (int lane = 0; lane < 4; lane++)                                                                       \
                lanes[lane] += lanes[lane + 4];                                                                        \
            sums[r] = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]) + rest;                                            \
        }                                                                                                              \
    }

DOT(dot_f32, float, LOAD_F32, TAIL_F32)
DOT(dot_bf16, uint16_t, LOAD_BF16, TAIL_BF16)
DOT(dot_f16, uint16_t, LOAD_F16, TAIL_F16)

/* ---- epilogues ---- */

H3_AVX2 static void finish_store(const h3_epilogue *out, const float *tile, int64_t row, int64_t rows, int64_t column,
                                 int64_t columns) {
    if (columns == H3_COLUMNS)
        h3_store_body(out, tile, row, rows, column, H3_COLUMNS);
    else
        h3_store_body(out, tile, row, rows, column, columns);
}

H3_AVX2 static void finish_add(const h3_epilogue *out, const float *tile, int64_t row, int64_t rows, int64_t column,
                               int64_t columns) {
    if (columns == H3_COLUMNS)
        h3_add_body(out, tile, row, rows, column, H3_COLUMNS);
    else
        h3_add_body(out, tile, row, rows, column, columns);
}

H3_AVX2 static void finish_swiglu(const h3_epilogue *out, const float *tile, int64_t row, int64_t rows, int64_t column,
                                  int64_t columns) {
    h3_swiglu_body(out, tile, row, rows, column, columns);
}

void h3_fill_matmul_avx2(h3_table *table) {
    table->tile[H3_F32] = tile_f32;
    table->tile[H3_BF16] = tile_bf16;
    table->tile[H3_INT8] = tile_int8;
    table->dot[H3_FORMAT_F32][H3_F32] = dot_f32;
    table->dot[H3_FORMAT_F16][H3_F32] = dot_f16;
    table->dot[H3_FORMAT_BF16][H3_F32] = dot_bf16;
    table->dot[H3_FORMAT_BF16][H3_BF16] = dot_bf16;
    table->finish[H3_STORE] = finish_store;
    table->finish[H3_ADD] = finish_add;
    table->finish[H3_SWIGLU] = finish_swiglu;
}
#endif
