/* What the AVX2 files share. */
#ifndef H3_AVX2_H
#define H3_AVX2_H

#include <immintrin.h>

#include "../lanes.h"

/* Each function says what it may use, so no build flag leaks into shared helpers. */
#define H3_AVX2 __attribute__((target("avx2,fma,f16c")))
#define H3_AVX2_INLINE static inline __attribute__((always_inline, target("avx2,fma,f16c")))

/* Arrays of vectors become registers only when every index is a constant. */
#if defined(__clang__)
#define H3_UNROLL _Pragma("unroll")
#else
#define H3_UNROLL _Pragma("GCC unroll 16")
#endif

extern const h3_lanes h3_lanes_avx2;

#endif
