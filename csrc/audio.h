/* Activations of the audio codec, channel-last float32. */
#ifndef H3_AUDIO_H
#define H3_AUDIO_H

#include <stdint.h>

#include "pool.h"
#include "status.h"

struct h3_table;

enum { H3_AUDIO_TIMES = 64, H3_AUDIO_TAPS = 12 };

typedef struct {
    int64_t times, channels;
    const float *alpha, *inverse; /* (channels): e^alpha, 1 / (e^beta + 1e-9) */
    const float *up, *down;       /* (12): the filter times two for the way up, the filter for the way down */
} h3_antialiased;

/* slots */
typedef void (*h3_snake_fn)(float *y, const float *x, int64_t count, int64_t channels, const float *alpha,
                            const float *inverse);
typedef void (*h3_antialiased_fn)(float *y, const float *x, int64_t start, int64_t count, const h3_antialiased *job,
                                  int64_t channel);

/* drivers: x, y (times, channels) */
typedef h3_status (*h3_snake_all_fn)(const struct h3_table *table, h3_pool *pool, float *y, const float *x,
                                     int64_t times, int64_t channels, const float *alpha, const float *inverse);
typedef h3_status (*h3_antialiased_all_fn)(const struct h3_table *table, h3_pool *pool, float *y, const float *x,
                                           const h3_antialiased *job);

#endif
