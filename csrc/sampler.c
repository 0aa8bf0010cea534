/*
 * The denoising step. Two roundings per line and this order of operations are the reference's: a different last bit
 * here grows over 49 evaluations. Memory-bound, so portable C is all there is.
 */
#include <stddef.h>

#include "pool.h"
#include "sampler.h"
#include "table.h"

enum { CHUNK = 1 << 15 }; /* values of an item: 128 KiB, some microseconds */

typedef struct {
    float *x, *estimate;
    const float *a, *b;
    int64_t n;
    float first, second, third;
} sampler_job;

static int64_t chunk(const sampler_job *job, int64_t item, int64_t *end) {
    *end = (item + 1) * CHUNK < job->n ? (item + 1) * CHUNK : job->n;
    return item * CHUNK;
}

static h3_status run(h3_pool *pool, h3_item_fn fn, sampler_job *job) {
    return job->n > 0 ? h3_pool_run(pool, fn, job, (job->n + CHUNK - 1) / CHUNK, 0) : H3_OK;
}

static void step_item(void *context, int64_t item, void *scratch) {
    const sampler_job *job = context;
    int64_t end, i = chunk(job, item, &end);
    (void)scratch;
    for (; i < end; i++) {
        float x = job->x[i], clean = x + job->first * job->a[i];
        float kept = job->second * x, drawn = job->third * clean;
        if (job->estimate) job->estimate[i] = clean;
        job->x[i] = kept + drawn;
    }
}

static void last_step_item(void *context, int64_t item, void *scratch) {
    const sampler_job *job = context;
    int64_t end, i = chunk(job, item, &end);
    (void)scratch;
    for (; i < end; i++) {
        float clean = job->x[i] + job->first * job->a[i];
        if (job->estimate) job->estimate[i] = clean;
        job->x[i] = clean;
    }
}

static void guide_item(void *context, int64_t item, void *scratch) {
    const sampler_job *job = context;
    int64_t end, i = chunk(job, item, &end);
    (void)scratch;
    for (; i < end; i++) job->x[i] = job->a[i] + job->first * (job->x[i] - job->a[i]);
}

static void noised_item(void *context, int64_t item, void *scratch) {
    const sampler_job *job = context;
    int64_t end, i = chunk(job, item, &end);
    (void)scratch;
    for (; i < end; i++) {
        float kept = job->first * job->a[i], drawn = job->second * job->b[i];
        job->x[i] = kept + drawn;
    }
}

static h3_status step(h3_pool *pool, float *x, const float *velocity, float *estimate, int64_t n, float t, float sigma,
                      float sigma_next) {
    float ratio = sigma_next / sigma;
    sampler_job job = {x, estimate, velocity, NULL, n, 1.0f - t, ratio, 1.0f - ratio};
    return run(pool, sigma_next == 0.0f ? last_step_item : step_item, &job);
}

static h3_status guide(h3_pool *pool, float *velocity, const float *unconditional, int64_t n, float scale) {
    sampler_job job = {velocity, NULL, unconditional, NULL, n, scale, 0.0f, 0.0f};
    return run(pool, guide_item, &job);
}

static h3_status noised(h3_pool *pool, float *out, const float *clean, const float *noise, int64_t n, float t) {
    sampler_job job = {out, NULL, clean, noise, n, t, 1.0f - t, 0.0f};
    return run(pool, noised_item, &job);
}

void h3_fill_sampler_c(h3_table *table) {
    table->step = step;
    table->guide = guide;
    table->noised = noised;
}
