/* Decoders of GGUF's block formats: the portable bodies, compiled for AVX-512. */
#if defined(__x86_64__)
#include "../blocks.h"

#include "avx512.h"

H3_BLOCK_DECODERS(H3_AVX512)

void h3_fill_blocks_avx512(h3_table *table) {
    static const h3_decode_fn decoders[] = H3_BLOCK_DECODER_LIST;
    h3_fill_blocks(table, decoders);
}
#endif
