/* What the NEON files share. */
#ifndef H3_NEON_H
#define H3_NEON_H

#include <arm_neon.h>

#include "../lanes.h"

#define H3_NEON_INLINE static inline __attribute__((always_inline))

/* Extensions beyond plain NEON are asked for per function; clang before 16 knows no such attribute. */
#if defined(__clang__) && __clang_major__ < 16
#if defined(__ARM_FEATURE_DOTPROD)
#define H3_HAVE_DOTPROD 1
#define H3_DOTPROD
#endif
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define H3_HAVE_ARM_BF16 1
#define H3_ARM_BF16
#endif
#else
#define H3_HAVE_DOTPROD 1
#define H3_HAVE_ARM_BF16 1
#define H3_DOTPROD __attribute__((target("arch=armv8.2-a+dotprod")))
#define H3_ARM_BF16 __attribute__((target("arch=armv8.2-a+bf16")))
#endif

/* Arrays of vectors become registers only when every index is a constant. */
#if defined(__clang__)
#define H3_UNROLL _Pragma("unroll")
#else
#define H3_UNROLL _Pragma("GCC unroll 16")
#endif

/* do(lane) for the four lanes; intrinsics want the lane as a constant. */
#define H3_LANES4(do)                                                                                                  \
    do (0) do(1) do(2) do(3)

extern const h3_lanes h3_lanes_c; /* portable bodies are NEON already where the compiler may vectorize */

#endif
