/* Asks the processor, and the system where the processor cannot be asked. */
#include "cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#if defined(__x86_64__)
/* Not __builtin_cpu_supports: some compilers' runtime libraries leave its table empty, and it then denies everything. */
enum { XMM_YMM = 0x6, ZMM = 0xe6 }; /* register state that the system saves and restores */

static int bit(unsigned word, int number) { return word >> number & 1; }

static unsigned saved_state(void) {
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CPUID leaves 1 and 7 */
unsigned h3_cpu_detect(void) {
    unsigned a, b, c, d, found = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !bit(c, 27)) /* OSXSAVE: xgetbv exists */
        return 0;
    int fma = bit(c, 12), avx = bit(c, 28), f16c = bit(c, 29);
    unsigned saved = saved_state();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    if (avx && fma && f16c && bit(b, 5) && (saved & XMM_YMM) == XMM_YMM)
        found |= H3_CPU_AVX2;
    /* f, dq, bw, vl */
    if ((found & H3_CPU_AVX2) && bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31) && (saved & ZMM) == ZMM) {
        found |= H3_CPU_AVX512;
        if (bit(c, 11))
            found |= H3_CPU_AVX512_VNNI;
        if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && bit(a, 5)) /* leaf 7, 0 says in a how many more there are */
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
