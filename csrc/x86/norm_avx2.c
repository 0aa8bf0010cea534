/* Packing of rows and elementwise functions: the portable bodies, compiled for AVX2. */
#if defined(__x86_64__)
#include "../norm.h"

#include "avx2.h"

H3_AVX2 static void pack_f32(void *block, const h3_pack_job *job, int64_t row, int64_t count, int64_t k, void *scratch) {
    h3_pack_body(block, job, row, count, k, scratch, H3_F32, &h3_lanes_avx2);
}

H3_AVX2 static void pack_bf16(void *block, const h3_pack_job *job, int64_t row, int64_t count, int64_t k, void *scratch) {
    h3_pack_body(block, job, row, count, k, scratch, H3_BF16, &h3_lanes_avx2);
}

H3_AVX2 static void pack_int8(void *block, const h3_pack_job *job, int64_t row, int64_t count, int64_t k, void *scratch) {
    h3_pack_body(block, job, row, count, k, scratch, H3_INT8, &h3_lanes_avx2);
}

H3_AVX2 static void map_silu(float *x, int64_t count) { h3_silu_body(x, count); }

H3_AVX2 static void map_gelu_tanh(float *x, int64_t count) { h3_gelu_tanh_body(x, count); }

void h3_fill_norm_avx2(h3_table *table) {
    table->pack[H3_F32] = pack_f32;
    table->pack[H3_BF16] = pack_bf16;
    table->pack[H3_INT8] = pack_int8;
    table->map[H3_SILU] = map_silu;
    table->map[H3_GELU_TANH] = map_gelu_tanh;
}
#endif
