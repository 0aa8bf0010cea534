/* What this processor can do. Only h3_table_init asks; no hot loop does. */
#ifndef H3_CPU_H
#define H3_CPU_H

enum {
    H3_CPU_AVX2 = 1u << 0,        /* avx2 + fma + f16c */
    H3_CPU_AVX512 = 1u << 1,      /* avx512 f, bw, dq, vl, all of AVX2 */
    H3_CPU_AVX512_VNNI = 1u << 2,
    H3_CPU_AVX512_BF16 = 1u << 3,
    H3_CPU_NEON = 1u << 8,
    H3_CPU_DOTPROD = 1u << 9,
    H3_CPU_I8MM = 1u << 10,
    H3_CPU_ARM_BF16 = 1u << 11
};

/* The features of the processor this runs on, those the operating system saves and restores included. */
unsigned h3_cpu_detect(void);

#endif
