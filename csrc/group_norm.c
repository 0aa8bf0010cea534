/* Group norm per frame, and the row norms. Sums are taken in fixed chunks and in double, so threads do not matter. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "group_norm.h"
#include "pool.h"
#include "table.h"

enum { CHUNK = 1024 }; /* positions of an item */

typedef struct {
    const h3_table *table;
    const h3_group_norm_job *job;
    float *y;
    const float *x;
    double *sums; /* [frame][chunk][group][sum, sum of squares] */
    int64_t chunks;
} group_work;

static const float *chunk_of(const group_work *work, int64_t item, int64_t *count) {
    int64_t positions = work->job->positions, start = item % work->chunks * CHUNK;
    *count = positions - start < CHUNK ? positions - start : CHUNK;
    return work->x + (item / work->chunks * positions + start) * work->job->channels;
}

static void sum_item(void *context, int64_t item, void *scratch) {
    const group_work *work = context;
    int64_t count, C = work->job->channels, groups = work->job->groups, size = C / groups;
    const float *x = chunk_of(work, item, &count);
    double *sum = scratch, *square = sum + C, *to = work->sums + item * groups * 2;
    memset(sum, 0, (size_t)(2 * C) * sizeof *sum);
    work->table->moments(sum, square, x, count, C);
    for (int64_t g = 0; g < groups; g++) {
        to[2 * g] = to[2 * g + 1] = 0.0;
        for (int64_t c = g * size; c < (g + 1) * size; c++) {
            to[2 * g] += sum[c];
            to[2 * g + 1] += square[c];
        }
    }
}

static void apply_item(void *context, int64_t item, void *scratch) {
    const group_work *work = context;
    const h3_group_norm_job *job = work->job;
    int64_t count, C = job->channels, size = C / job->groups;
    const float *x = chunk_of(work, item, &count);
    const double *sums = work->sums + item / work->chunks * work->chunks * job->groups * 2;
    float *mean = scratch, *scale = mean + C;
    for (int64_t g = 0; g < job->groups; g++) {
        double total = 0.0, square = 0.0, n = (double)(job->positions * size);
        for (int64_t chunk = 0; chunk < work->chunks; chunk++) {
            total += sums[(chunk * job->groups + g) * 2];
            square += sums[(chunk * job->groups + g) * 2 + 1];
        }
        double middle = total / n, variance = square / n - middle * middle;
        double inverse = 1.0 / sqrt((variance > 0.0 ? variance : 0.0) + job->eps);
        for (int64_t c = g * size; c < (g + 1) * size; c++) {
            mean[c] = (float)middle;
            scale[c] = (float)(inverse * job->weight[c]);
        }
    }
    (job->silu ? work->table->affine_silu : work->table->affine)(work->y + (x - work->x), x, count, C, mean, scale,
                                                                 job->bias);
}

static h3_status group_norm(const h3_table *table, h3_pool *pool, float *y, const float *x,
                            const h3_group_norm_job *job) {
    group_work work = {table, job, y, x, NULL, (job->positions + CHUNK - 1) / CHUNK};
    int64_t items = job->frames * work.chunks;
    if (job->groups < 1 || job->channels < 1 || job->channels % job->groups) return H3_BAD_SHAPE;
    if (items == 0) return H3_OK;
    work.sums = malloc((size_t)(items * job->groups * 2) * sizeof *work.sums);
    if (!work.sums) return H3_NO_MEMORY;
    h3_status status = h3_pool_run(pool, sum_item, &work, items, 2 * job->channels * (int64_t)sizeof(double));
    if (status == H3_OK)
        status = h3_pool_run(pool, apply_item, &work, items, 2 * job->channels * (int64_t)sizeof(float));
    free(work.sums);
    return status;
}

/* ---- rows ---- */

enum { LANES = 16, ROW_VALUES = 1 << 14 };

typedef struct {
    float *y;
    const float *x, *weight, *bias;
    int64_t m, k, step;
    float eps;
    int layer;
} row_work;

static float sum_of(const float *x, int64_t k, float middle, int squared) {
    float lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= k; i += LANES)
        for (int j = 0; j < LANES; j++) {
            float v = x[i + j] - middle;
            lanes[j] += squared ? v * v : v;
        }
    for (; i < k; i++) {
        float v = x[i] - middle;
        lanes[i % LANES] += squared ? v * v : v;
    }
    for (int width = LANES / 2; width; width /= 2)
        for (int j = 0; j < width; j++) lanes[j] += lanes[j + width];
    return lanes[0];
}

static void row_item(void *context, int64_t item, void *scratch) {
    const row_work *work = context;
    int64_t k = work->k, last = (item + 1) * work->step < work->m ? (item + 1) * work->step : work->m;
    (void)scratch;
    for (int64_t row = item * work->step; row < last; row++) {
        const float *x = work->x + row * k;
        float *y = work->y + row * k, middle = work->layer ? sum_of(x, k, 0.0f, 0) / (float)k : 0.0f;
        float inverse = 1.0f / sqrtf(sum_of(x, k, middle, 1) / (float)k + work->eps);
        for (int64_t i = 0; i < k; i++) {
            float v = (x[i] - middle) * inverse;
            v = work->weight ? v * work->weight[i] : v;
            y[i] = work->bias ? v + work->bias[i] : v;
        }
    }
}

static h3_status row_norm(h3_pool *pool, float *y, const float *x, int64_t m, int64_t k, const float *weight,
                          const float *bias, float eps, int layer) {
    if (k < 1) return H3_BAD_SHAPE;
    row_work work = {y, x, weight, bias, m, k, ROW_VALUES / k + 1, eps, layer};
    return m ? h3_pool_run(pool, row_item, &work, (m + work.step - 1) / work.step, 0) : H3_OK;
}

void h3_fill_group_norm_c(h3_table *table) {
    table->group_norm = group_norm;
    table->row_norm = row_norm;
}
