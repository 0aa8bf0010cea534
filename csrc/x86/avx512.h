/* What the AVX-512 files share. */
#ifndef H3_AVX512_H
#define H3_AVX512_H

#include <immintrin.h>

#include "../lanes.h"

/* Each function says what it may use, so no build flag leaks into shared helpers. */
#if defined(__clang__)
#define H3_AVX512_BASE "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"
#else
#define H3_AVX512_BASE "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"
#endif
#define H3_AVX512 __attribute__((target(H3_AVX512_BASE)))
#define H3_AVX512_VNNI __attribute__((target(H3_AVX512_BASE ",avx512vnni")))
#define H3_AVX512_BF16 __attribute__((target(H3_AVX512_BASE ",avx512bf16")))
#define H3_AVX512_INLINE static inline __attribute__((always_inline, target(H3_AVX512_BASE)))

/* Arrays of vectors become registers only when every index is a constant. */
#if defined(__clang__)
#define H3_UNROLL _Pragma("unroll")
#else
#define H3_UNROLL _Pragma("GCC unroll 16")
#endif

/* 16 x 16 words in registers: v[i] word j <-> v[j] word i. */
H3_AVX512_INLINE void h3_transpose16_avx512(__m512i v[16]) {
    __m512i t[16];
    H3_UNROLL for (int i = 0; i < 16; i += 2) { /* pairs of rows: words */
        t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    H3_UNROLL for (int i = 0; i < 16; i += 4) { /* fours: double words; now v[i + j] holds column j of each lane */
        v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    H3_UNROLL for (int j = 0; j < 4; j++) { /* 4 x 4 lanes of 128 bits */
        __m512i a = _mm512_shuffle_i32x4(v[j], v[4 + j], 0x88), b = _mm512_shuffle_i32x4(v[j], v[4 + j], 0xdd);
        __m512i c = _mm512_shuffle_i32x4(v[8 + j], v[12 + j], 0x88), d = _mm512_shuffle_i32x4(v[8 + j], v[12 + j], 0xdd);
        t[j] = _mm512_shuffle_i32x4(a, c, 0x88);
        t[8 + j] = _mm512_shuffle_i32x4(a, c, 0xdd);
        t[4 + j] = _mm512_shuffle_i32x4(b, d, 0x88);
        t[12 + j] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
    H3_UNROLL for (int i = 0; i < 16; i++) v[i] = t[i];
}

extern const h3_lanes h3_lanes_avx512;

#endif
