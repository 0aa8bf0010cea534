/* Stored weight formats and compute kinds: their numbers, sizes and row order. Knows no arithmetic. */
#ifndef H3_QUANT_H
#define H3_QUANT_H

#include <stdint.h>

/* How a weight lies in the file. A new format: a number here, a row in h3_formats (expand.c), a decoder. */
typedef enum { H3_FORMAT_F32 = 0, H3_FORMAT_F16 = 1, H3_FORMAT_BF16 = 2, H3_FORMATS = 3 } h3_format;

/* What the product is computed in. */
typedef enum { H3_F32 = 0, H3_BF16 = 1, H3_INT8 = 2, H3_KINDS = 3 } h3_kind;

/* One stored row is k / block_values blocks of block_bytes bytes, back to back. */
typedef struct {
    const char *name;
    int64_t block_values;
    int64_t block_bytes;
} h3_format_info;

extern const h3_format_info h3_formats[H3_FORMATS];

/* Logical row r of a matrix is stored row offset + (r / block) * stride + r % block. */
typedef struct {
    int64_t offset;
    int64_t block;
    int64_t stride;
} h3_order;

static inline int64_t h3_order_row(const h3_order *order, int64_t r) {
    return order->offset + (r / order->block) * order->stride + r % order->block;
}

#endif
