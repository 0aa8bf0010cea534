/* Decoders of GGUF's block formats, portable. */
#include "blocks.h"

H3_BLOCK_DECODERS()

void h3_fill_blocks_c(h3_table *table) {
    static const h3_decode_fn decoders[] = H3_BLOCK_DECODER_LIST;
    h3_fill_blocks(table, decoders);
}
