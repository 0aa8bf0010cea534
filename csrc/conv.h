/* Convolution, channel-last, float32, without an im2col buffer: a tile reads its inputs through row pointers. */
#ifndef H3_CONV_H
#define H3_CONV_H

#include <stdint.h>

#include "pool.h"
#include "status.h"

struct h3_table;

enum { H3_CONV_ROWS = 12, H3_CONV_COLUMNS = 32 };

/* taps = kernel[0] * kernel[1] * kernel[2]; the axes are time, height, width. */
typedef struct {
    int64_t in, out; /* channels */
    int64_t kernel[3], stride[3], dilation[3];
    const float *panels; /* [ceil(out / 32)][taps][in][32]: h3_conv_pack makes them */
    const float *bias;   /* (out) or NULL */
    const float *zeros;  /* (in): what lies outside */
} h3_conv;

/* Output position p of an axis reads input p * stride + tap * dilation - pad. Time outside is zero; space too, or
 * reflected. */
typedef struct {
    const float *x; /* x_size[0] .. [2], in */
    float *y;       /* y_size[0] .. [2] positions, y_stride floats apart */
    int64_t x_size[3], y_size[3], pad[3];
    int64_t y_stride; /* out, or more where the positions of several phases interleave */
    int reflect;
} h3_conv_job;

/*
 * tile[12][32] += sum over taps and channels of rows[tap][r][first + channel] * panel[tap * pitch + channel][column].
 * columns: 1 .. 32; columns from there on may hold anything.
 */
typedef struct {
    const float *const *rows; /* [taps][12] */
    const float *panel;       /* already at `first` */
    int64_t taps, first, channels, pitch, columns;
} h3_conv_piece;

typedef void (*h3_conv_tile_fn)(float *tile, const h3_conv_piece *piece);

/* How a stored weight becomes panels: element (o, c, tap) lies at o * out_stride + c * in_stride + first + tap * step.
 */
typedef struct {
    const float *weight;
    int64_t out_stride, in_stride, first, step;
} h3_conv_weight;

typedef h3_status (*h3_conv_pack_fn)(const struct h3_table *table, h3_pool *pool, float *panels, const h3_conv *shape,
                                     const h3_conv_weight *weight);
typedef h3_status (*h3_convolve_fn)(const struct h3_table *table, h3_pool *pool, const h3_conv *conv,
                                    const h3_conv_job *job);

#endif
