/*
 * Blocks of GGUF files, and bytes of ComfyUI files -> float values: the bodies that every instruction set compiles for
 * itself, one per format. Products and differences are rounded in the order of gguf/quants.py, so all of them give its
 * bits.
 */
#ifndef H3_BLOCKS_H
#define H3_BLOCKS_H

#include "scalar.h"
#include "table.h"

H3_INLINE float h3_load_f16(const uint8_t *from) { return h3_from_f16(h3_load_u16(from)); }

/* ---- 32 values: the low halves of 16 bytes, then the high ones ---- */

H3_INLINE void h3_q8_0_body(float *y, const void *stored) {
    const h3_q8_0 *block = stored;
    float d = h3_load_f16(block->d);
    for (int i = 0; i < 32; i++) y[i] = (float)(int8_t)block->q[i] * d;
}

H3_INLINE void h3_q4_0_body(float *y, const void *stored) {
    const h3_q4_0 *block = stored;
    float d = h3_load_f16(block->d);
    for (int i = 0; i < 16; i++) y[i] = d * (float)((block->q[i] & 15) - 8);
    for (int i = 0; i < 16; i++) y[16 + i] = d * (float)((block->q[i] >> 4) - 8);
}

H3_INLINE void h3_q4_1_body(float *y, const void *stored) {
    const h3_q4_1 *block = stored;
    float d = h3_load_f16(block->d), m = h3_load_f16(block->m);
    for (int i = 0; i < 16; i++) y[i] = d * (float)(block->q[i] & 15) + m;
    for (int i = 0; i < 16; i++) y[16 + i] = d * (float)(block->q[i] >> 4) + m;
}

H3_INLINE void h3_q5_0_body(float *y, const void *stored) {
    const h3_q5_0 *block = stored;
    float d = h3_load_f16(block->d);
    uint32_t high = h3_load_u32(block->high);
    for (uint32_t i = 0; i < 16; i++) y[i] = d * (float)((int)((block->q[i] & 15u) | (high >> i & 1u) << 4) - 16);
    for (uint32_t i = 0; i < 16; i++)
        y[16 + i] = d * (float)((int)(((uint32_t)block->q[i] >> 4) | (high >> (16 + i) & 1u) << 4) - 16);
}

H3_INLINE void h3_q5_1_body(float *y, const void *stored) {
    const h3_q5_1 *block = stored;
    float d = h3_load_f16(block->d), m = h3_load_f16(block->m);
    uint32_t high = h3_load_u32(block->high);
    for (uint32_t i = 0; i < 16; i++) y[i] = d * (float)(int)((block->q[i] & 15u) | (high >> i & 1u) << 4) + m;
    for (uint32_t i = 0; i < 16; i++)
        y[16 + i] = d * (float)(int)(((uint32_t)block->q[i] >> 4) | (high >> (16 + i) & 1u) << 4) + m;
}

/* ---- 256 values ---- */

H3_INLINE void h3_q2_k_body(float *y, const void *stored) {
    const h3_q2_k *block = stored;
    float d = h3_load_f16(block->d), dmin = h3_load_f16(block->dmin);
    for (int group = 0; group < 16; group++) { /* byte 32 * half + i has value i of four groups of 32, two bits each */
        const uint8_t *q = block->q + group / 8 * 32 + group % 2 * 16;
        int shift = group % 8 / 2 * 2;
        float scale = d * (float)(block->scales[group] & 15), least = dmin * (float)(block->scales[group] >> 4);
        for (int i = 0; i < 16; i++) y[group * 16 + i] = scale * (float)(q[i] >> shift & 3) - least;
    }
}

H3_INLINE void h3_q3_k_body(float *y, const void *stored) {
    const h3_q3_k *block = stored;
    float d = h3_load_f16(block->d);
    for (int group = 0; group < 16; group++) {
        const uint8_t *q = block->q + group / 8 * 32 + group % 2 * 16, *high = block->high + group % 2 * 16;
        int shift = group % 8 / 2 * 2, bit = group / 2;
        int low = block->scales[group % 8] >> group / 8 * 4 & 15;
        int scale = low | (block->scales[8 + group % 4] >> group / 4 * 2 & 3) << 4;
        float by = d * (float)(scale - 32);
        for (int i = 0; i < 16; i++) /* a high bit that is missing takes 4 off */
            y[group * 16 + i] = by * (float)((q[i] >> shift & 3) + (high[i] >> bit & 1) * 4 - 4);
    }
}

/* Scale and minimum of group 0 .. 7 among the twelve bytes of Q4_K and Q5_K: six bits each. */
H3_INLINE void h3_scale_and_minimum(int *scale, int *least, const uint8_t *scales, int group) {
    if (group < 4) {
        *scale = scales[group] & 63;
        *least = scales[4 + group] & 63;
    } else {
        *scale = (scales[4 + group] & 15) | (scales[group - 4] >> 6) << 4;
        *least = scales[4 + group] >> 4 | (scales[group] >> 6) << 4;
    }
}

H3_INLINE void h3_q4_k_body(float *y, const void *stored) {
    const h3_q4_k *block = stored;
    float d = h3_load_f16(block->d), dmin = h3_load_f16(block->dmin);
    for (int pair = 0; pair < 4; pair++) { /* 32 bytes hold a group in their low halves, the next in their high ones */
        const uint8_t *q = block->q + pair * 32;
        int scale, least;
        h3_scale_and_minimum(&scale, &least, block->scales, 2 * pair);
        float by = d * (float)scale, minus = dmin * (float)least;
        for (int i = 0; i < 32; i++) y[pair * 64 + i] = by * (float)(q[i] & 15) - minus;
        h3_scale_and_minimum(&scale, &least, block->scales, 2 * pair + 1);
        by = d * (float)scale, minus = dmin * (float)least;
        for (int i = 0; i < 32; i++) y[pair * 64 + 32 + i] = by * (float)(q[i] >> 4) - minus;
    }
}

H3_INLINE void h3_q5_k_body(float *y, const void *stored) {
    const h3_q5_k *block = stored;
    float d = h3_load_f16(block->d), dmin = h3_load_f16(block->dmin);
    for (int pair = 0; pair < 4; pair++) {
        const uint8_t *q = block->q + pair * 32;
        int scale, least;
        h3_scale_and_minimum(&scale, &least, block->scales, 2 * pair);
        float by = d * (float)scale, minus = dmin * (float)least;
        for (int i = 0; i < 32; i++)
            y[pair * 64 + i] = by * (float)((q[i] & 15) | (block->high[i] >> 2 * pair & 1) << 4) - minus;
        h3_scale_and_minimum(&scale, &least, block->scales, 2 * pair + 1);
        by = d * (float)scale, minus = dmin * (float)least;
        for (int i = 0; i < 32; i++)
            y[pair * 64 + 32 + i] = by * (float)(q[i] >> 4 | (block->high[i] >> (2 * pair + 1) & 1) << 4) - minus;
    }
}

H3_INLINE void h3_q6_k_body(float *y, const void *stored) {
    const h3_q6_k *block = stored;
    float d = h3_load_f16(block->d);
    for (int group = 0; group < 16;
         group++) { /* of a half's 128 values, 64 bytes hold the low four bits, 32 the high two */
        const uint8_t *q = block->q + group / 8 * 64 + group % 4 * 16,
                      *high = block->high + group / 8 * 32 + group % 2 * 16;
        int half = group % 8 / 4 * 4, shift = group % 8 / 2 * 2;
        float by = d * (float)(int8_t)block->scales[group];
        for (int i = 0; i < 16; i++)
            y[group * 16 + i] = by * (float)(((q[i] >> half & 15) | (high[i] >> shift & 3) << 4) - 32);
    }
}

/* ---- levels from a table ---- */

/* source: kvalues_iq4nl in ggml-common.h */
static const int8_t H3_IQ4_LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
/* e2m1, doubled to whole numbers; the block's scale is halved for it. source: kvalues_mxfp4 in ggml-common.h */
static const int8_t H3_E2M1_LEVELS[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

H3_INLINE void h3_iq4_nl_body(float *y, const void *stored) {
    const h3_iq4_nl *block = stored;
    float d = h3_load_f16(block->d);
    for (int i = 0; i < 16; i++) y[i] = d * (float)H3_IQ4_LEVELS[block->q[i] & 15];
    for (int i = 0; i < 16; i++) y[16 + i] = d * (float)H3_IQ4_LEVELS[block->q[i] >> 4];
}

H3_INLINE void h3_iq4_xs_body(float *y, const void *stored) {
    const h3_iq4_xs *block = stored;
    float d = h3_load_f16(block->d);
    for (int group = 0; group < 8; group++) {
        const uint8_t *q = block->q + group * 16;
        int low = block->scales[group / 2] >> group % 2 * 4 & 15;
        int scale = low | (h3_load_u16(block->scales_high) >> 2 * group & 3) << 4;
        float by = d * (float)(scale - 32);
        for (int i = 0; i < 16; i++) y[group * 32 + i] = by * (float)H3_IQ4_LEVELS[q[i] & 15];
        for (int i = 0; i < 16; i++) y[group * 32 + 16 + i] = by * (float)H3_IQ4_LEVELS[q[i] >> 4];
    }
}

/* Half of an unsigned e4m3 scale (bias 7; the sign bit is not looked at, 0x7f means 0). */
H3_INLINE float h3_half_e4m3(uint8_t bits) {
    int exponent = bits >> 3 & 15, mantissa = bits & 7;
    float value = exponent ? (1.0f + (float)mantissa / 8.0f) * h3_float((uint32_t)(exponent - 7 + 127) << 23)
                           : (float)mantissa * 0.001953125f; /* 2^-9 */
    return bits == 0x7f ? 0.0f : value * 0.5f;
}

H3_INLINE void h3_nvfp4_body(float *y, const void *stored) {
    const h3_nvfp4 *block = stored;
    for (int group = 0; group < 4; group++) {
        const uint8_t *q = block->q + group * 8;
        float d = h3_half_e4m3(block->scales[group]);
        for (int i = 0; i < 8; i++) y[group * 16 + i] = d * (float)H3_E2M1_LEVELS[q[i] & 15];
        for (int i = 0; i < 8; i++) y[group * 16 + 8 + i] = d * (float)H3_E2M1_LEVELS[q[i] >> 4];
    }
}

/* ---- signed bytes, rotated ---- */

/*
 * y = y . H in blocks of `size`, H the Kronecker power of H4 = (1 1 1 -1; 1 1 -1 1; 1 -1 1 1; -1 1 1 1), over
 * sqrt(size): its own inverse. From whole numbers every sum is exact. source: comfy-kitchen, "ConvRot"
 */
typedef float h3_floats16 __attribute__((vector_size(64)));
typedef int32_t h3_places16 __attribute__((vector_size(64)));

/* out[i] = v[place i]. The compiler turns it into what the instruction set has. */
#if defined(__clang__)
#define H3_SHUFFLE(v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
#define H3_SHUFFLE(v, ...) __builtin_shuffle(v, (h3_places16){__VA_ARGS__})
#endif

H3_INLINE void h3_unrotate(float *y, int size) {
    for (int i = 0; i < size; i += 16) { /* among 16 neighbours: first fours, then every fourth */
        h3_floats16 v, sum;
        memcpy(&v, y + i, sizeof v);
        sum = v + H3_SHUFFLE(v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
        sum = sum + H3_SHUFFLE(sum, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
        v = sum - 2.0f * H3_SHUFFLE(v, 3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12);
        sum = v + H3_SHUFFLE(v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
        sum = sum + H3_SHUFFLE(sum, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
        v = sum - 2.0f * H3_SHUFFLE(v, 12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
        memcpy(y + i, &v, sizeof v);
    }
    for (int step = 16; step < size; step *= 4)
        for (int start = 0; start < size; start += 4 * step)
            for (int i = start; i < start + step; i++) {
                float a = y[i], b = y[i + step], c = y[i + 2 * step], d = y[i + 3 * step], sum = a + b + (c + d);
                y[i] = sum - 2.0f * d;
                y[i + step] = sum - 2.0f * c;
                y[i + 2 * step] = sum - 2.0f * b;
                y[i + 3 * step] = sum - 2.0f * a;
            }
}

H3_INLINE void h3_i8_rot64_body(float *y, const void *stored) {
    const h3_i8_rot64 *block = stored;
    for (int i = 0; i < 64; i++) y[i] = (float)(int8_t)block->q[i] * 0.125f;
    h3_unrotate(y, 64);
}

H3_INLINE void h3_i8_rot256_body(float *y, const void *stored) {
    const h3_i8_rot256 *block = stored;
    for (int i = 0; i < 256; i++) y[i] = (float)(int8_t)block->q[i] * 0.0625f;
    h3_unrotate(y, 256);
}

/* ---- one byte a value ---- */

H3_INLINE float h3_from_i8(uint8_t bits) { return (float)(int8_t)bits; }
H3_INLINE float h3_from_e5m2(uint8_t bits) { return h3_from_f16((uint16_t)(bits << 8)); }

/* Scaling by 2^120 moves the exponent from bias 7 to bias 127; the largest magnitude is a NaN, there is no infinity. */
H3_INLINE float h3_from_e4m3(uint8_t bits) {
    float scaled = h3_float((uint32_t)(bits & 0x7fu) << 20) * h3_float(0x7b800000u);
    uint32_t nan = (bits & 0x7fu) == 0x7fu ? 0x7fc00000u : 0u;
    return h3_float(h3_bits(scaled) | nan | (uint32_t)(bits & 0x80u) << 24);
}

#define H3_BYTE_DECODER(TARGET, NAME)                                                                                  \
    TARGET static void decode_##NAME(float *values, const void *row, int64_t first, int64_t count) {                   \
        const uint8_t *from = (const uint8_t *)row + first;                                                            \
        for (int64_t i = 0; i < count; i++) values[i] = h3_from_##NAME(from[i]);                                       \
    }

/* ---- a decoder of whole rows from a block's body ---- */

/* h3_decode_fn: whole blocks straight into values; of a block that is not wanted whole, the beginning. */
#define H3_BLOCK_DECODER(TARGET, NAME, VALUES)                                                                         \
    TARGET static void decode_##NAME(float *values, const void *row, int64_t first, int64_t count) {                   \
        const h3_##NAME *block = (const h3_##NAME *)row + first / (VALUES);                                            \
        for (; count >= (VALUES); count -= (VALUES), values += (VALUES), block++) h3_##NAME##_body(values, block);     \
        if (count > 0) {                                                                                               \
            float last[VALUES];                                                                                        \
            h3_##NAME##_body(last, block);                                                                             \
            memcpy(values, last, (size_t)count * 4);                                                                   \
        }                                                                                                              \
    }

#define H3_BLOCK_DECODERS(TARGET)                                                                                      \
    H3_BLOCK_DECODER(TARGET, q8_0, 32)                                                                                 \
    H3_BLOCK_DECODER(TARGET, q4_0, 32)                                                                                 \
    H3_BLOCK_DECODER(TARGET, q4_1, 32)                                                                                 \
    H3_BLOCK_DECODER(TARGET, q5_0, 32)                                                                                 \
    H3_BLOCK_DECODER(TARGET, q5_1, 32)                                                                                 \
    H3_BLOCK_DECODER(TARGET, q2_k, 256)                                                                                \
    H3_BLOCK_DECODER(TARGET, q3_k, 256)                                                                                \
    H3_BLOCK_DECODER(TARGET, q4_k, 256)                                                                                \
    H3_BLOCK_DECODER(TARGET, q5_k, 256)                                                                                \
    H3_BLOCK_DECODER(TARGET, q6_k, 256)                                                                                \
    H3_BLOCK_DECODER(TARGET, iq4_nl, 32)                                                                               \
    H3_BLOCK_DECODER(TARGET, iq4_xs, 256)                                                                              \
    H3_BLOCK_DECODER(TARGET, nvfp4, 64)                                                                                \
    H3_BLOCK_DECODER(TARGET, i8_rot64, 64)                                                                             \
    H3_BLOCK_DECODER(TARGET, i8_rot256, 256)                                                                           \
    H3_BYTE_DECODER(TARGET, i8)                                                                                        \
    H3_BYTE_DECODER(TARGET, e4m3)                                                                                      \
    H3_BYTE_DECODER(TARGET, e5m2)

H3_INLINE void h3_fill_blocks(h3_table *table, const h3_decode_fn *decoders) {
    for (int format = H3_FORMAT_Q8_0; format < H3_FORMATS; format++)
        table->decode[format] = decoders[format - H3_FORMAT_Q8_0];
}

/* In the order of h3_format. */
#define H3_BLOCK_DECODER_LIST                                                                                          \
    {                                                                                                                  \
        decode_q8_0, decode_q4_0, decode_q4_1, decode_q5_0, decode_q5_1, decode_q2_k, decode_q3_k, decode_q4_k,        \
            decode_q5_k, decode_q6_k, decode_iq4_nl, decode_iq4_xs, decode_nvfp4, decode_i8, decode_i8_rot64,          \
            decode_i8_rot256, decode_e4m3, decode_e5m2                                                                 \
    }

#endif
