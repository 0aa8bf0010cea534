/* Tiles, dot products and epilogues in AVX-512: 12 x 32 sums in 24 registers. */
#if defined(__x86_64__)
#include "../matmul.h"

#include "avx512.h"

/*
 * One instruction each, spelled out: given the intrinsics, gcc 12 copies and spills the accumulators (vpdpbusd and
 * vdpbf16ps overwrite their first operand).
 */
#define MULTIPLY_F32(sum, w, a) __asm__("vfmadd231ps %1, %2, %0" : "+v"(sum) : "v"(a), "v"(w))
#define MULTIPLY_BF16(sum, w, a) __asm__("vdpbf16ps %1, %2, %0" : "+v"(sum) : "v"(a), "v"(w))
#define MULTIPLY_INT8(sum, w, a) __asm__("vpdpbusd %1, %2, %0" : "+v"(sum) : "v"(a), "v"(w)) /* w unsigned, a signed */

/*
 * Packed rows come from L3 or further: asked for this many bytes ahead, where the hardware's own guesses end at a page.
 * 5376 x 1400 rows on Zen 4: 193 -> 227 GFLOP/s a core in bfloat16 (peak 234); 1, 4 and 8 KiB ahead do as well.
 */
#define AHEAD(x) _mm_prefetch((const char *)(x) + 2048, _MM_HINT_T0)

/* One chain of products: sums of R rows; R is a constant where this is inlined. */
#define TILE_BODY(name, attributes, multiply)                                                                          \
    static inline __attribute__((always_inline)) attributes void name(float *tile, const int32_t *x, const int32_t *w, \
                                                                      int64_t steps, int64_t chain, const int R) {     \
        for (int64_t start = 0; start < steps; start += chain) {                                                       \
            int64_t end = steps - start < chain ? steps : start + chain;                                               \
            __m512 sum[12][2];                                                                                         \
            H3_UNROLL for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();                         \
            for (int64_t i = start; i < end; i++) {                                                                    \
                __m512i w0 = _mm512_loadu_si512(w + i * H3_COLUMNS), w1 = _mm512_loadu_si512(w + i * H3_COLUMNS + 16); \
                AHEAD(x + i * H3_ROWS);                                                                                \
                H3_UNROLL for (int r = 0; r < R; r++) {                                                                \
                    __m512i a = _mm512_set1_epi32(x[i * H3_ROWS + r]);                                                 \
                    multiply(sum[r][0], w0, a);                                                                        \
                    multiply(sum[r][1], w1, a);                                                                        \
                }                                                                                                      \
            }                                                                                                          \
            H3_UNROLL for (int r = 0; r < R; r++) {                                                                    \
                float *to = tile + r * H3_COLUMNS;                                                                     \
                if (start) {                                                                                           \
                    sum[r][0] = _mm512_add_ps(_mm512_loadu_ps(to), sum[r][0]);                                         \
                    sum[r][1] = _mm512_add_ps(_mm512_loadu_ps(to + 16), sum[r][1]);                                    \
                }                                                                                                      \
                _mm512_storeu_ps(to, sum[r][0]);                                                                       \
                _mm512_storeu_ps(to + 16, sum[r][1]);                                                                  \
            }                                                                                                          \
        }                                                                                                              \
    }

TILE_BODY(tile_f32_rows, H3_AVX512, MULTIPLY_F32)
TILE_BODY(tile_bf16_rows, H3_AVX512_BF16, MULTIPLY_BF16)

/* Few rows leave registers idle, but no product is computed for rows that are not there. */
#define SWITCH_ROWS(used, call)                                                                                        \
    do {                                                                                                               \
        if ((used) > 8)                                                                                                \
            call(12);                                                                                                  \
        else if ((used) > 6)                                                                                           \
            call(8);                                                                                                   \
        else if ((used) > 4)                                                                                           \
            call(6);                                                                                                   \
        else if ((used) > 2)                                                                                           \
            call(4);                                                                                                   \
        else                                                                                                           \
            call(2);                                                                                                   \
    } while (0)

H3_AVX512 static void tile_f32(float *tile, const void *block, const void *panel, int64_t k, int64_t used) {
#define CALL(rows) tile_f32_rows(tile, block, panel, k, H3_CHAIN, rows)
    SWITCH_ROWS(used, CALL);
#undef CALL
}

H3_AVX512_BF16 static void tile_bf16(float *tile, const void *block, const void *panel, int64_t k, int64_t used) {
#define CALL(rows) tile_bf16_rows(tile, block, panel, (k + 1) / 2, H3_CHAIN / 2, rows)
    SWITCH_ROWS(used, CALL);
#undef CALL
}

static inline __attribute__((always_inline)) H3_AVX512_VNNI void tile_int8_rows(float *tile, const void *block,
                                                                                const void *panel, int64_t k, const int R) {
    int64_t words = (k + 3) / 4, groups = h3_groups(k);
    const int32_t *x = block, *w = panel;
    const float *row_scale = (const float *)(x + words * H3_ROWS);
    const int32_t *row_sum = (const int32_t *)(row_scale + groups * H3_ROWS);
    const float *column_scale = (const float *)(w + words * H3_COLUMNS);
    for (int64_t group = 0; group < groups; group++) {
        int64_t count = words < H3_GROUP / 4 ? words : H3_GROUP / 4;
        __m512i sum[12][2];
        H3_UNROLL for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = _mm512_set1_epi32(row_sum[r] * -128);
        for (int64_t i = 0; i < count; i++) {
            __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + 16);
            AHEAD(x);
            H3_UNROLL for (int r = 0; r < R; r++) {
                __m512i a = _mm512_set1_epi32(x[r]);
                MULTIPLY_INT8(sum[r][0], w0, a);
                MULTIPLY_INT8(sum[r][1], w1, a);
            }
            w += H3_COLUMNS;
            x += H3_ROWS;
        }
        __m512 s0 = _mm512_loadu_ps(column_scale), s1 = _mm512_loadu_ps(column_scale + 16);
        H3_UNROLL for (int r = 0; r < R; r++) { /* as C: two products and a sum, each rounded */
            float *to = tile + r * H3_COLUMNS;
            __m512 s = _mm512_set1_ps(row_scale[r]);
            __m512 a = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[r][0]), _mm512_mul_ps(s, s0));
            __m512 b = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[r][1]), _mm512_mul_ps(s, s1));
            _mm512_storeu_ps(to, _mm512_add_ps(group ? _mm512_loadu_ps(to) : _mm512_setzero_ps(), a));
            _mm512_storeu_ps(to + 16, _mm512_add_ps(group ? _mm512_loadu_ps(to + 16) : _mm512_setzero_ps(), b));
        }
        words -= count;
        row_scale += H3_ROWS;
        row_sum += H3_ROWS;
        column_scale += H3_COLUMNS;
    }
}

H3_AVX512_VNNI static void tile_int8(float *tile, const void *block, const void *panel, int64_t k, int64_t used) {
#define CALL(rows) tile_int8_rows(tile, block, panel, k, rows)
    SWITCH_ROWS(used, CALL);
#undef CALL
}

/* ---- dot products: memory-bound, so one row at a time with 4 sums in flight ---- */

#define LOAD_F32(from, i) _mm512_loadu_ps((const float *)(from) + (i))
#define LOAD_BF16(from, i)                                                                                             \
    _mm512_castsi512_ps(_mm512_slli_epi32(                                                                             \
        _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)((const uint16_t *)(from) + (i)))), 16))
#define LOAD_F16(from, i) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)((const uint16_t *)(from) + (i))))
#define TAIL_F32(value) (value)
#define TAIL_BF16(value) h3_from_bf16(value)
#define TAIL_F16(value) h3_from_f16(value)

#define DOT(name, type, load, tail)                                                                                    \
    H3_AVX512 static void name(float *sums, const void *row, const float *x, int64_t m, int64_t k) {                   \
        for (int64_t r = 0; r < m; r++, x += k) { /* the row is in L1 after the first */                               \
            __m512 sum[4];                                                                                             \
            int64_t i = 0;                                                                                             \
            H3_UNROLL for (int j = 0; j < 4; j++) sum[j] = _mm512_setzero_ps();                                        \
            for (; i + 64 <= k; i += 64)                                                                               \
                H3_UNROLL for (int j = 0; j < 4; j++) sum[j] =                                                         \
                    _mm512_fmadd_ps(load(row, i + 16 * j), _mm512_loadu_ps(x + i + 16 * j), sum[j]);                   \
            for (; i + 16 <= k; i += 16)                                                                               \
                sum[0] = _mm512_fmadd_ps(load(row, i), _mm512_loadu_ps(x + i), sum[0]);                                \
            float rest = 0.0f;                                                                                         \
            for (; i < k; i++) {                                                                                       \
                type value;                                                                                            \
                memcpy(&value, (const type *)row + i, sizeof value);                                                   \
                rest += tail(value) * x[i];                                                                            \
            }                                                                                                          \
            sums[r] =                                                                                                  \
                _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3]))) +    \
                rest;                                                                                                  \
        }                                                                                                              \
    }

DOT(dot_f32, float, LOAD_F32, TAIL_F32)
DOT(dot_bf16, uint16_t, LOAD_BF16, TAIL_BF16)
DOT(dot_f16, uint16_t, LOAD_F16, TAIL_F16)

/* ---- epilogues ---- */

H3_AVX512 static void finish_store(const h3_epilogue *out, const float *tile, int64_t row, int64_t rows, int64_t column,
                                   int64_t columns) {
    if (columns == H3_COLUMNS)
        h3_store_body(out, tile, row, rows, column, H3_COLUMNS);
    else
        h3_store_body(out, tile, row, rows, column, columns);
}

H3_AVX512 static void finish_add(const h3_epilogue *out, const float *tile, int64_t row, int64_t rows, int64_t column,
                                 int64_t columns) {
    if (columns == H3_COLUMNS)
        h3_add_body(out, tile, row, rows, column, H3_COLUMNS);
    else
        h3_add_body(out, tile, row, rows, column, columns);
}

H3_AVX512 static void finish_swiglu(const h3_epilogue *out, const float *tile, int64_t row, int64_t rows, int64_t column,
                                    int64_t columns) {
    if (columns == H3_COLUMNS / 2)
        h3_swiglu_body(out, tile, row, rows, column, H3_COLUMNS / 2);
    else
        h3_swiglu_body(out, tile, row, rows, column, columns);
}

void h3_fill_matmul_avx512(h3_table *table, unsigned cpu) {
    table->tile[H3_F32] = tile_f32;
    if (cpu & H3_CPU_AVX512_BF16)
        table->tile[H3_BF16] = tile_bf16;
    if (cpu & H3_CPU_AVX512_VNNI)
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
