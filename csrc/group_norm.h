/* Norms that stand alone (a norm before a matrix product is part of packing its rows: norm.c). */
#ifndef H3_GROUP_NORM_H
#define H3_GROUP_NORM_H

#include <stdint.h>

#include "pool.h"
#include "status.h"

struct h3_table;

typedef struct {
    int64_t frames, positions, channels,
        groups;                 /* x, y: (frames, positions, channels); statistics per frame and group */
    const float *weight, *bias; /* (channels) */
    float eps;
    int silu;
} h3_group_norm_job;

/* slots */
typedef void (*h3_moments_fn)(double *sum, double *square, const float *x, int64_t count, int64_t channels);
typedef void (*h3_affine_fn)(float *y, const float *x, int64_t count, int64_t channels, const float *mean,
                             const float *scale, const float *shift);

/* drivers; y may be x */
typedef h3_status (*h3_group_norm_fn)(const struct h3_table *table, h3_pool *pool, float *y, const float *x,
                                      const h3_group_norm_job *job);
/* x, y (m, k). layer: subtract the mean first. weight, bias: (k) or NULL. */
typedef h3_status (*h3_row_norm_fn)(h3_pool *pool, float *y, const float *x, int64_t m, int64_t k, const float *weight,
                                    const float *bias, float eps, int layer);

#endif
