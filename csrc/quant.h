/* Stored weight formats and compute kinds: their numbers, sizes and row order. Knows no arithmetic. */
#ifndef H3_QUANT_H
#define H3_QUANT_H

#include <stdint.h>

/* How a weight lies in the file. A new format: a number here, a row in h3_formats (expand.c), a decoder. */
typedef enum {
    H3_FORMAT_F32,
    H3_FORMAT_F16,
    H3_FORMAT_BF16,
    H3_FORMAT_Q8_0,
    H3_FORMAT_Q4_0,
    H3_FORMAT_Q4_1,
    H3_FORMAT_Q5_0,
    H3_FORMAT_Q5_1,
    H3_FORMAT_Q2_K,
    H3_FORMAT_Q3_K,
    H3_FORMAT_Q4_K,
    H3_FORMAT_Q5_K,
    H3_FORMAT_Q6_K,
    H3_FORMAT_IQ4_NL,
    H3_FORMAT_IQ4_XS,
    H3_FORMAT_NVFP4,
    H3_FORMAT_I8,
    H3_FORMAT_I8_ROT64,
    H3_FORMAT_I8_ROT256,
    H3_FORMAT_E4M3,
    H3_FORMAT_E5M2,
    H3_FORMATS
} h3_format;

/* What the product is computed in. */
typedef enum { H3_F32 = 0, H3_BF16 = 1, H3_INT8 = 2, H3_KINDS = 3 } h3_kind;

/* One stored row is k / block_values blocks of block_bytes bytes, back to back. */
typedef struct {
    const char *name;
    int64_t block_values;
    int64_t block_bytes;
} h3_format_info;

extern const h3_format_info h3_formats[H3_FORMATS];

/*
 * Blocks of GGUF files. Everything is bytes, low byte first, so a block may start anywhere: d, m and dmin are float16,
 * q the lowest four or two bits of each value, high the bits above. source: ggml-common.h, and gguf/quants.py
 */
/* clang-format off */
typedef struct { uint8_t d[2], q[32]; } h3_q8_0;                               /* 32 values, signed bytes */
typedef struct { uint8_t d[2], q[16]; } h3_q4_0;                               /* 32: low halves first, then high ones */
typedef struct { uint8_t d[2], m[2], q[16]; } h3_q4_1;
typedef struct { uint8_t d[2], high[4], q[16]; } h3_q5_0;
typedef struct { uint8_t d[2], m[2], high[4], q[16]; } h3_q5_1;
typedef struct { uint8_t scales[16], q[64], d[2], dmin[2]; } h3_q2_k;          /* 256, scale and minimum per 16 */
typedef struct { uint8_t high[32], q[64], scales[12], d[2]; } h3_q3_k;         /* 256, 6-bit scale per 16 */
typedef struct { uint8_t d[2], dmin[2], scales[12], q[128]; } h3_q4_k;         /* 256, 6-bit scale and minimum per 32 */
typedef struct { uint8_t d[2], dmin[2], scales[12], high[32], q[128]; } h3_q5_k;
typedef struct { uint8_t q[128], high[64], scales[16], d[2]; } h3_q6_k;        /* 256, signed 8-bit scale per 16 */
typedef struct { uint8_t d[2], q[16]; } h3_iq4_nl;                             /* 32, levels from a table */
typedef struct { uint8_t d[2], scales_high[2], scales[4], q[128]; } h3_iq4_xs; /* 256, 6-bit scale per 32 */
typedef struct { uint8_t scales[4], q[32]; } h3_nvfp4;                         /* 64 e2m1 values, e4m3 scale per 16 */
/* clang-format on */

/* Of ComfyUI files: signed bytes of rows that were rotated along K; their scales lie elsewhere, one per row. */
typedef struct {
    uint8_t q[64];
} h3_i8_rot64;
typedef struct {
    uint8_t q[256];
} h3_i8_rot256;

_Static_assert(sizeof(h3_q8_0) == 34, "q8_0");
_Static_assert(sizeof(h3_q4_0) == 18, "q4_0");
_Static_assert(sizeof(h3_q4_1) == 20, "q4_1");
_Static_assert(sizeof(h3_q5_0) == 22, "q5_0");
_Static_assert(sizeof(h3_q5_1) == 24, "q5_1");
_Static_assert(sizeof(h3_q2_k) == 84, "q2_k");
_Static_assert(sizeof(h3_q3_k) == 110, "q3_k");
_Static_assert(sizeof(h3_q4_k) == 144, "q4_k");
_Static_assert(sizeof(h3_q5_k) == 176, "q5_k");
_Static_assert(sizeof(h3_q6_k) == 210, "q6_k");
_Static_assert(sizeof(h3_iq4_nl) == 18, "iq4_nl");
_Static_assert(sizeof(h3_iq4_xs) == 136, "iq4_xs");
_Static_assert(sizeof(h3_nvfp4) == 36, "nvfp4");

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
