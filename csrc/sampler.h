/* The denoising step and its relatives, elementwise in float32. */
#ifndef H3_SAMPLER_H
#define H3_SAMPLER_H

#include <stdint.h>

#include "pool.h"
#include "status.h"

/* x0 = x + (1 - t) v; x = r x + (1 - r) x0 with r = sigma_next / sigma. estimate: x0, OUT, or NULL. */
typedef h3_status (*h3_step_fn)(h3_pool *pool, float *x, const float *velocity, float *estimate, int64_t n, float t,
                                float sigma, float sigma_next);
/* velocity = unconditional + scale * (velocity - unconditional) */
typedef h3_status (*h3_guide_fn)(h3_pool *pool, float *velocity, const float *unconditional, int64_t n, float scale);
/* out = t * clean + (1 - t) * noise */
typedef h3_status (*h3_noised_fn)(h3_pool *pool, float *out, const float *clean, const float *noise, int64_t n,
                                  float t);

#endif
