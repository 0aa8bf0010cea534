/* Snake and the anti-aliased snake: cutting the work. The arithmetic is in elementwise.h. */
#include "audio.h"
#include "pool.h"
#include "table.h"

enum { SNAKE_VALUES = 1 << 14 };

typedef struct {
    const h3_table *table;
    float *y;
    const float *x;
    int64_t times, channels, step;
    const float *alpha, *inverse;
} snake_job;

static void snake_item(void *context, int64_t item, void *scratch) {
    const snake_job *job = context;
    int64_t start = item * job->step, count = job->times - start < job->step ? job->times - start : job->step;
    (void)scratch;
    job->table->snake(job->y + start * job->channels, job->x + start * job->channels, count, job->channels, job->alpha,
                      job->inverse);
}

static h3_status snake_all(const h3_table *table, h3_pool *pool, float *y, const float *x, int64_t times,
                           int64_t channels, const float *alpha, const float *inverse) {
    if (channels < 1) return H3_BAD_SHAPE;
    snake_job job = {table, y, x, times, channels, SNAKE_VALUES / channels + 1, alpha, inverse};
    return times ? h3_pool_run(pool, snake_item, &job, (times + job.step - 1) / job.step, 0) : H3_OK;
}

typedef struct {
    const h3_table *table;
    float *y;
    const float *x;
    const h3_antialiased *how;
} antialiased_job;

static void antialiased_item(void *context, int64_t item, void *scratch) {
    const antialiased_job *job = context;
    int64_t T = job->how->times, start = item * H3_AUDIO_TIMES;
    int64_t count = T - start < H3_AUDIO_TIMES ? T - start : H3_AUDIO_TIMES;
    (void)scratch;
    for (int64_t channel = 0; channel < job->how->channels; channel += 16)
        job->table->antialiased(job->y, job->x, start, count, job->how, channel);
}

static h3_status antialiased_all(const h3_table *table, h3_pool *pool, float *y, const float *x,
                                 const h3_antialiased *how) {
    antialiased_job job = {table, y, x, how};
    if (how->channels < 1) return H3_BAD_SHAPE;
    return how->times ? h3_pool_run(pool, antialiased_item, &job, (how->times + H3_AUDIO_TIMES - 1) / H3_AUDIO_TIMES, 0)
                      : H3_OK;
}

void h3_fill_audio_c(h3_table *table) {
    table->snake_all = snake_all;
    table->antialiased_all = antialiased_all;
}
