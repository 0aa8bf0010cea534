/* Stored weights -> panels in AVX-512. Weights stored as bfloat16 are transposed two at a time, before they are widened. */
#if defined(__x86_64__)
#include "../expand.h"

#include "avx512.h"

/* ---- lanes ---- */

H3_AVX512 static void transpose(uint32_t *out, int64_t out_stride, const uint32_t *in, int64_t in_stride, int64_t count) {
    __m512i v[16];
    H3_UNROLL for (int i = 0; i < 16; i++) v[i] = _mm512_loadu_si512(in + i * in_stride);
    h3_transpose16_avx512(v);
    if (count == 16) {
        H3_UNROLL for (int i = 0; i < 16; i++) _mm512_storeu_si512(out + i * out_stride, v[i]);
        return;
    }
    H3_UNROLL for (int i = 0; i < 16; i++) if (i < count) _mm512_storeu_si512(out + i * out_stride, v[i]);
}

/* All butterflies among R vectors, `step` floats apart, in registers: one pass over memory does log2(R) levels. */
static inline __attribute__((always_inline)) H3_AVX512 void butterflies(float *t, int64_t step, const int R) {
    __m512 v[16];
    H3_UNROLL for (int i = 0; i < R; i++) v[i] = _mm512_loadu_ps(t + i * step);
    H3_UNROLL for (int half = 1; half < R; half *= 2) {
        H3_UNROLL for (int i = 0; i < R; i++) if (!(i & half)) {
            __m512 a = v[i], b = v[i | half];
            v[i] = _mm512_add_ps(a, b);
            v[i | half] = _mm512_sub_ps(a, b);
        }
    }
    H3_UNROLL for (int i = 0; i < R; i++) _mm512_storeu_ps(t + i * step, v[i]);
}

H3_AVX512 static void rotate(float *t, int64_t count, int64_t block) {
    if (block < 16) {
        h3_rotate_body(t, count, block);
        return;
    }
    for (int64_t i = 0; i < count; i += 16)
        butterflies(t + i * H3_LANES, H3_LANES, 16);
    if (block == 16)
        return;
    for (int64_t start = 0; start < count; start += block)
        for (int64_t i = start; i < start + 16; i++) {
            float *first = t + i * H3_LANES;
            if (block == 256)
                butterflies(first, 16 * H3_LANES, 16);
            else if (block == 128)
                butterflies(first, 16 * H3_LANES, 8);
            else if (block == 64)
                butterflies(first, 16 * H3_LANES, 4);
            else
                butterflies(first, 16 * H3_LANES, 2);
        }
}

H3_AVX512 static void quantize(uint32_t *words, int64_t stride, int64_t lanes, uint32_t flip, float *scale, int32_t *sum,
                               const float *t, int64_t count) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff), flips = _mm512_set1_epi32((int32_t)flip);
    const __mmask16 mask = (__mmask16)((1u << lanes) - 1);
    __m512i most[4], total = _mm512_setzero_si512();
    H3_UNROLL for (int j = 0; j < 4; j++) most[j] = _mm512_setzero_si512();
    for (int64_t i = 0; i < count; i += 4)
        H3_UNROLL for (int j = 0; j < 4; j++) most[j] =
            _mm512_max_epi32(most[j], _mm512_and_si512(magnitude, _mm512_loadu_si512(t + (i + j) * H3_LANES)));
    __m512 largest = _mm512_castsi512_ps(
        _mm512_max_epi32(_mm512_max_epi32(most[0], most[1]), _mm512_max_epi32(most[2], most[3])));
    __mmask16 some = _mm512_cmp_ps_mask(largest, _mm512_set1_ps(1e-30f), _CMP_NLT_UQ); /* a NaN counts */
    __m512 inverse = _mm512_maskz_div_ps(some, _mm512_set1_ps(127.0f), largest);
    if (scale)
        _mm512_mask_storeu_ps(scale, mask, _mm512_maskz_div_ps(some, largest, _mm512_set1_ps(127.0f)));
    for (int64_t i = 0; i < count; i += 4) {
        __m512i q[4];
        H3_UNROLL for (int j = 0; j < 4; j++) q[j] =
            _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(t + (i + j) * H3_LANES), inverse));
        if (sum)
            total = _mm512_add_epi32(total, _mm512_add_epi32(_mm512_add_epi32(q[0], q[1]), _mm512_add_epi32(q[2], q[3])));
        __m512i even = _mm512_mask_blend_epi16(0xaaaaaaaau, q[0], _mm512_slli_epi32(q[2], 16));
        __m512i odd = _mm512_mask_blend_epi16(0xaaaaaaaau, q[1], _mm512_slli_epi32(q[3], 16));
        __m512i bytes = _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaaull, even, _mm512_slli_epi32(odd, 8));
        _mm512_mask_storeu_epi32(words + i / 4 * stride, mask, _mm512_xor_si512(bytes, flips));
    }
    if (sum)
        _mm512_mask_storeu_epi32(sum, mask, total);
}

const h3_lanes h3_lanes_avx512 = {transpose, rotate, quantize};

/* ---- decoders ---- */

H3_AVX512 static void decode_f16(float *values, const void *row, int64_t first, int64_t count) {
    const uint16_t *from = (const uint16_t *)row + first;
    for (int64_t i = 0; i < count; i += 16) {
        __mmask16 mask = count - i < 16 ? (__mmask16)((1u << (count - i)) - 1) : (__mmask16)0xffff;
        _mm512_mask_storeu_ps(values + i, mask, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from + i)));
    }
}

H3_AVX512 static void decode_bf16(float *values, const void *row, int64_t first, int64_t count) {
    const uint16_t *from = (const uint16_t *)row + first;
    for (int64_t i = 0; i < count; i += 16) {
        __mmask16 mask = count - i < 16 ? (__mmask16)((1u << (count - i)) - 1) : (__mmask16)0xffff;
        __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from + i));
        _mm512_mask_storeu_epi32(values + i, mask, _mm512_slli_epi32(wide, 16));
    }
}

/* ---- any format, through the decoder ---- */

H3_AVX512 static void expand_f32(void *panel, const void *const *rows, int64_t k, h3_decode_fn decode) {
    h3_expand_f32_body(panel, rows, k, decode, &h3_lanes_avx512);
}

H3_AVX512 static void expand_bf16(void *panel, const void *const *rows, int64_t k, h3_decode_fn decode) {
    h3_expand_bf16_body(panel, rows, k, decode, &h3_lanes_avx512);
}

H3_AVX512 static void expand_int8(void *panel, const void *const *rows, int64_t k, h3_decode_fn decode) {
    h3_expand_int8_body(panel, rows, k, decode, &h3_lanes_avx512);
}

/* ---- stored bfloat16 ---- */

/* Words first / 2 .. of 16 stored rows, transposed: v[i] holds values first + 2 i and + 1 of each row; zeros from k on. */
H3_AVX512_INLINE void load_pairs(__m512i v[16], const void *const *rows, int64_t first, int64_t k) {
    int64_t left = k - first;
    __mmask32 mask = left < 32 ? (1u << left) - 1 : 0xffffffffu;
    H3_UNROLL for (int i = 0; i < 16; i++) v[i] =
        _mm512_maskz_loadu_epi16(rows[i] ? mask : 0, (const uint16_t *)rows[i] + first);
    h3_transpose16_avx512(v);
}

H3_AVX512 static void expand_bf16_to_bf16(void *panel, const void *const *rows, int64_t k, h3_decode_fn decode) {
    (void)decode;
    for (int64_t lane = 0; lane < H3_COLUMNS; lane += H3_LANES)
        for (int64_t first = 0; first < k; first += 32) {
            uint32_t *to = (uint32_t *)panel + first / 2 * H3_COLUMNS + lane;
            int64_t some = (k - first + 1) / 2;
            __m512i v[16];
            load_pairs(v, rows + lane, first, k);
            H3_UNROLL for (int i = 0; i < 16; i++) if (i < some) _mm512_storeu_si512(to + i * H3_COLUMNS, v[i]);
        }
}

H3_AVX512_INLINE __m512 low_half(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
H3_AVX512_INLINE __m512 high_half(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int32_t)0xffff0000u)));
}

H3_AVX512 static void expand_bf16_to_f32(void *panel, const void *const *rows, int64_t k, h3_decode_fn decode) {
    (void)decode;
    for (int64_t lane = 0; lane < H3_COLUMNS; lane += H3_LANES)
        for (int64_t first = 0; first < k; first += 32) {
            float *to = (float *)panel + first * H3_COLUMNS + lane;
            int64_t some = k - first;
            __m512i v[16];
            load_pairs(v, rows + lane, first, k);
            H3_UNROLL for (int i = 0; i < 16; i++) {
                if (2 * i < some)
                    _mm512_storeu_ps(to + 2 * i * H3_COLUMNS, low_half(v[i]));
                if (2 * i + 1 < some)
                    _mm512_storeu_ps(to + (2 * i + 1) * H3_COLUMNS, high_half(v[i]));
            }
        }
}

H3_AVX512 static void expand_bf16_to_int8(void *panel, const void *const *rows, int64_t k, h3_decode_fn decode) {
    float t[H3_GROUP * H3_LANES] __attribute__((aligned(64)));
    int64_t block = h3_rotation(k);
    __m512 unrotate = _mm512_set1_ps(1.0f / (float)block); /* as in the body: rotated twice, and a power of two */
    float *scale = (float *)((uint32_t *)panel + (k + 3) / 4 * H3_COLUMNS);
    (void)decode;
    for (int64_t first = 0; first < k; first += H3_GROUP, scale += H3_COLUMNS) {
        int64_t count = k - first < H3_GROUP ? k - first : H3_GROUP;
        for (int64_t lane = 0; lane < H3_COLUMNS; lane += H3_LANES) {
            for (int64_t i = 0; i < count; i += 32) {
                __m512i v[16];
                load_pairs(v, rows + lane, first + i, k);
                H3_UNROLL for (int j = 0; j < 16; j++) {
                    _mm512_store_ps(t + (i + 2 * j) * H3_LANES, low_half(v[j]));
                    _mm512_store_ps(t + (i + 2 * j + 1) * H3_LANES, high_half(v[j]));
                }
            }
            rotate(t, count, block);
            quantize((uint32_t *)panel + first / 4 * H3_COLUMNS + lane, H3_COLUMNS, H3_LANES, H3_FLIP, scale + lane, 0, t,
                     (count + 3) / 4 * 4);
            _mm512_storeu_ps(scale + lane, _mm512_mul_ps(_mm512_loadu_ps(scale + lane), unrotate));
        }
    }
}

void h3_fill_expand_avx512(h3_table *table) {
    table->decode[H3_FORMAT_F16] = decode_f16;
    table->decode[H3_FORMAT_BF16] = decode_bf16;
    for (int format = 0; format < H3_FORMATS; format++) {
        table->expand[format][H3_F32] = expand_f32;
        table->expand[format][H3_BF16] = expand_bf16;
        table->expand[format][H3_INT8] = expand_int8;
    }
    table->expand[H3_FORMAT_BF16][H3_F32] = expand_bf16_to_f32;
    table->expand[H3_FORMAT_BF16][H3_BF16] = expand_bf16_to_bf16;
    table->expand[H3_FORMAT_BF16][H3_INT8] = expand_bf16_to_int8;
}
#endif
