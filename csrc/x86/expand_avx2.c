/* Stored weights -> panels in AVX2. */
#if defined(__x86_64__)
#include "../expand.h"

#include "avx2.h"

/* ---- lanes ---- */

/* 8 x 8 words: out[i][j] = in[j][i], i < count. */
H3_AVX2_INLINE void transpose8(uint32_t *out, int64_t out_stride, const uint32_t *in, int64_t in_stride, int64_t count) {
    __m256 v[8], t[8];
    H3_UNROLL for (int i = 0; i < 8; i++) v[i] = _mm256_loadu_ps((const float *)in + i * in_stride);
    H3_UNROLL for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    H3_UNROLL for (int i = 0; i < 8; i += 4) { /* v[i + j]: column j of each 128-bit lane, rows i .. i + 3 */
        v[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        v[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        v[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        v[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    H3_UNROLL for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x31);
    }
    H3_UNROLL for (int i = 0; i < 8; i++) if (i < count) _mm256_storeu_ps((float *)out + i * out_stride, t[i]);
}

H3_AVX2 static void transpose(uint32_t *out, int64_t out_stride, const uint32_t *in, int64_t in_stride, int64_t count) {
    for (int64_t i = 0; i < count; i += 8)
        for (int64_t j = 0; j < H3_LANES; j += 8)
            transpose8(out + i * out_stride + j, out_stride, in + j * in_stride + i, in_stride, count - i);
}

/* All butterflies among R vectors, `step` floats apart, in registers: one pass over memory does log2(R) levels. */
H3_AVX2_INLINE void butterflies(float *t, int64_t step, const int R) {
    __m256 v[8];
    H3_UNROLL for (int i = 0; i < R; i++) v[i] = _mm256_loadu_ps(t + i * step);
    H3_UNROLL for (int half = 1; half < R; half *= 2) {
        H3_UNROLL for (int i = 0; i < R; i++) if (!(i & half)) {
            __m256 a = v[i], b = v[i | half];
            v[i] = _mm256_add_ps(a, b);
            v[i | half] = _mm256_sub_ps(a, b);
        }
    }
    H3_UNROLL for (int i = 0; i < R; i++) _mm256_storeu_ps(t + i * step, v[i]);
}

H3_AVX2 static void rotate(float *t, int64_t count, int64_t block) {
    for (int64_t half = 1; half < block;) { /* levels done so far: log2(half) */
        int64_t radix = block / half < 8 ? block / half : 8;
        for (int64_t start = 0; start < count; start += half * radix)
            for (int64_t i = start; i < start + half; i++)
                for (int64_t lane = 0; lane < H3_LANES; lane += 8) {
                    float *first = t + i * H3_LANES + lane;
                    if (radix == 8)
                        butterflies(first, half * H3_LANES, 8);
                    else if (radix == 4)
                        butterflies(first, half * H3_LANES, 4);
                    else
                        butterflies(first, half * H3_LANES, 2);
                }
        half *= radix;
    }
}

H3_AVX2 static void quantize(uint32_t *words, int64_t stride, int64_t lanes, uint32_t flip, float *scale, int32_t *sum,
                             const float *t, int64_t count) {
    h3_quantize_body(words, stride, lanes, flip, scale, sum, t, count);
}

const h3_lanes h3_lanes_avx2 = {transpose, rotate, quantize};

/* ---- decoders ---- */

H3_AVX2 static void decode_f16(float *values, const void *row, int64_t first, int64_t count) {
    const char *from = (const char *)row + 2 * first;
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(values + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + 2 * i))));
    for (; i < count; i++)
        values[i] = h3_from_f16(h3_load_u16(from + 2 * i));
}

H3_AVX2 static void decode_bf16(float *values, const void *row, int64_t first, int64_t count) {
    const char *from = (const char *)row + 2 * first;
    for (int64_t i = 0; i < count; i++)
        values[i] = h3_from_bf16(h3_load_u16(from + 2 * i));
}

/* ---- any format, through the decoder ---- */

H3_AVX2 static void expand_f32(void *panel, const void *const *rows, int64_t k, h3_decode_fn decode) {
    h3_expand_f32_body(panel, rows, k, decode, &h3_lanes_avx2);
}

H3_AVX2 static void expand_bf16(void *panel, const void *const *rows, int64_t k, h3_decode_fn decode) {
    h3_expand_bf16_body(panel, rows, k, decode, &h3_lanes_avx2);
}

H3_AVX2 static void expand_int8(void *panel, const void *const *rows, int64_t k, h3_decode_fn decode) {
    h3_expand_int8_body(panel, rows, k, decode, &h3_lanes_avx2);
}

/* Stored bfloat16 stays as it is: pairs are transposed like words. */
H3_AVX2 static void expand_bf16_to_bf16(void *panel, const void *const *rows, int64_t k, h3_decode_fn decode) {
    uint32_t pairs[H3_LANES * H3_LANES] __attribute__((aligned(64)));
    (void)decode;
    for (int64_t lane = 0; lane < H3_COLUMNS; lane += H3_LANES)
        for (int64_t first = 0; first < k; first += 32) {
            int64_t some = k - first < 32 ? k - first : 32;
            for (int64_t i = 0; i < H3_LANES; i++) {
                const void *row = rows[lane + i];
                if (!row || some < 32)
                    memset(pairs + i * H3_LANES, 0, 64);
                if (row)
                    memcpy(pairs + i * H3_LANES, (const char *)row + 2 * first, (size_t)(2 * some));
            }
            transpose((uint32_t *)panel + first / 2 * H3_COLUMNS + lane, H3_COLUMNS, pairs, H3_LANES, (some + 1) / 2);
        }
}

void h3_fill_expand_avx2(h3_table *table) {
    table->decode[H3_FORMAT_F16] = decode_f16;
    table->decode[H3_FORMAT_BF16] = decode_bf16;
    for (int format = 0; format < H3_FORMATS; format++) {
        table->expand[format][H3_F32] = expand_f32;
        table->expand[format][H3_BF16] = expand_bf16;
        table->expand[format][H3_INT8] = expand_int8;
    }
    table->expand[H3_FORMAT_BF16][H3_BF16] = expand_bf16_to_bf16;
}
#endif
