/* Asks the processor, and the system where the processor cannot be asked. */
#include "cpu.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#if defined(__x86_64__)
unsigned h3_cpu_detect(void) {
    unsigned found = 0;
    __builtin_cpu_init();   /* the builtins also ask whether the system saves the wide registers */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        found |= H3_CPU_AVX2;   /* every processor with both has f16c */
    if ((found & H3_CPU_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        found |= H3_CPU_AVX512;
        if (__builtin_cpu_supports("avx512vnni"))
            found |= H3_CPU_AVX512_VNNI;
        if (__builtin_cpu_supports("avx512bf16"))
            found |= H3_CPU_AVX512_BF16;
    }
    return found;
}
#elif defined(__aarch64__) && defined(__linux__)
unsigned h3_cpu_detect(void) {
    /* bit numbers from the kernel's asm/hwcap.h, spelled out because old headers lack the newer ones */
    unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
    unsigned found = H3_CPU_NEON;
    if (first & (1ul << 20))
        found |= H3_CPU_DOTPROD;
    if (second & (1ul << 13))
        found |= H3_CPU_I8MM;
    if (second & (1ul << 14))
        found |= H3_CPU_ARM_BF16;
    return found;
}
#elif defined(__aarch64__) && defined(__APPLE__)
static int has(const char *name) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, 0, 0) == 0 && value;
}

unsigned h3_cpu_detect(void) {
    unsigned found = H3_CPU_NEON;
    if (has("hw.optional.arm.FEAT_DotProd"))
        found |= H3_CPU_DOTPROD;
    if (has("hw.optional.arm.FEAT_I8MM"))
        found |= H3_CPU_I8MM;
    if (has("hw.optional.arm.FEAT_BF16"))
        found |= H3_CPU_ARM_BF16;
    return found;
}
#else
unsigned h3_cpu_detect(void) { return 0; }
#endif
