/*
 * One value at a time: bits, 16-bit floats, exp. Everything here is inlined into loops over 16 lanes, which the
 * compiler turns into whatever vectors the surrounding function may use; no fused multiply-add anywhere, so every
 * instruction set gets the same bits.
 */
#ifndef H3_SCALAR_H
#define H3_SCALAR_H

#include <stdint.h>
#include <string.h>

/* Also inlined into functions with a target attribute, which must not call back into baseline code. */
#define H3_INLINE static inline __attribute__((always_inline))

H3_INLINE uint32_t h3_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

H3_INLINE float h3_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Stored data may start at any byte. */
H3_INLINE uint16_t h3_load_u16(const void *from) {
    uint16_t value;
    memcpy(&value, from, 2);
    return value;
}

H3_INLINE uint32_t h3_load_u32(const void *from) {
    uint32_t value;
    memcpy(&value, from, 4);
    return value;
}

H3_INLINE float h3_from_bf16(uint16_t half) { return h3_float((uint32_t)half << 16); }

/* Round to nearest even; a NaN stays a NaN. */
H3_INLINE uint16_t h3_to_bf16(float value) {
    uint32_t bits = h3_bits(value);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    uint32_t nan = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/* Scaling by 2^112 moves the exponent from bias 15 to bias 127, subnormals included; infinity and NaN need their exponent. */
H3_INLINE float h3_from_f16(uint16_t half) {
    float scaled = h3_float((uint32_t)(half & 0x7fffu) << 13) * h3_float(0x77800000u);
    uint32_t special = (half & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
    return h3_float(h3_bits(scaled) | special | (uint32_t)(half & 0x8000u) << 16);
}

/* 1.5 * 2^23: adding it leaves the nearest integer (ties to even) in the low bits of the float, for |value| < 2^22. */
#define H3_ROUNDER 12582912.0f

H3_INLINE int32_t h3_round(float value) { return (int32_t)(h3_bits(value + H3_ROUNDER) - 0x4b400000u); }

/*
 * e^x, relative error about 1e-7. x = n ln 2 + r, |r| <= ln 2 / 2; ln 2 in two parts so that n * first part is exact;
 * the series of e^r to r^7 (next term 5e-9). Below -87 the result is 1.6e-38, not a subnormal; above 88 it is 1.7e38.
 */
H3_INLINE float h3_exp(float x) {
    float clamped = x > 88.0f ? 88.0f : x < -87.0f ? -87.0f : x; /* a NaN passes through */
    float shifted = clamped * 1.44269504f + H3_ROUNDER;
    float n = shifted - H3_ROUNDER;
    float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.98412698e-4f;
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    return p * h3_float((h3_bits(shifted) << 23) + 0x3f800000u); /* the low bits of shifted are n */
}

H3_INLINE float h3_silu(float x) { return x / (1.0f + h3_exp(-x)); }

#endif
