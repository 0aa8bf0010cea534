/* Fills the table. The one place that says which instruction set replaces what. */
#include "table.h"

void h3_table_init(h3_table *table, unsigned cpu) {
    *table = (h3_table){0};
    table->pool_run = h3_pool_run;
    h3_fill_expand_c(table);
    h3_fill_blocks_c(table);
    h3_fill_matmul_c(table);
    h3_fill_norm_c(table);
    h3_fill_attention_c(table);
    h3_fill_conv_c(table);
    h3_fill_group_norm_c(table);
    h3_fill_elementwise_c(table);
    h3_fill_audio_c(table);
    h3_fill_sampler_c(table);
#if defined(__x86_64__)
    if (cpu & H3_CPU_AVX2) {
        h3_fill_attention_avx2(table);
        h3_fill_conv_avx2(table);
        h3_fill_elementwise_avx2(table);
        h3_fill_expand_avx2(table);
        h3_fill_blocks_avx2(table);
        h3_fill_matmul_avx2(table);
        h3_fill_norm_avx2(table);
    }
    if (cpu & H3_CPU_AVX512) {
        h3_fill_expand_avx512(table);
        h3_fill_blocks_avx512(table);
        h3_fill_matmul_avx512(table, cpu);
        h3_fill_norm_avx512(table);
        h3_fill_attention_avx512(table, cpu);
        h3_fill_conv_avx512(table);
        h3_fill_elementwise_avx512(table);
    }
#elif defined(__aarch64__)
    if (cpu & H3_CPU_NEON) {
        h3_fill_matmul_neon(table, cpu);
        h3_fill_attention_neon(table, cpu);
        h3_fill_conv_neon(table);
    }
#endif
    (void)cpu;
}
