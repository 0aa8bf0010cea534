/*
 * Every operation of every instruction set this processor has, against portable C, on random input of odd sizes.
 * No Python, so it runs under qemu-user (tests/neon.sh) and under the sanitizers (tests/sanitize.sh).
 *
 *   check_isa            one line per set; exit code 1 when something differs
 */
#define _POSIX_C_SOURCE 200112L /* posix_memalign */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "table.h"
#include "verify.h"

static uint64_t state = 1;
static int failures, comparisons;
static h3_pool *pool;

static uint32_t word(void) { /* splitmix64 */
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 16);
}

static int64_t between(int64_t low, int64_t high) { return low + word() % (uint32_t)(high - low + 1); }

static void *take(int64_t bytes) { /* exactly so long, so that the sanitizer sees a read past the end */
    void *memory = malloc((size_t)(bytes ? bytes : 1));
    if (!memory) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    return memory;
}

/* about normal: the sum of four uniform values, variance 1 */
static float *normal(int64_t n) {
    float *x = take(n * 4);
    for (int64_t i = 0; i < n; i++) {
        float sum = 0.0f;
        for (int j = 0; j < 4; j++) sum += (float)(word() & 0xffffff) / 16777216.0f - 0.5f;
        x[i] = sum * 1.7320508f;
    }
    return x;
}

static float *nans(int64_t n) {
    float *x = take(n * 4);
    memset(x, 0xff, (size_t)(n * 4));
    return x;
}

static void check(h3_status status) {
    if (status != H3_OK) {
        fprintf(stderr, "status %d\n", (int)status);
        exit(2);
    }
}

/* Relative L2 distance of got from want; 0 asks for equal values. Frees both. */
static void compare(const char *isa, const char *what, float *got, float *want, int64_t n, double tolerance) {
    double difference = 0.0, size = 0.0;
    int bad = 0;
    for (int64_t i = 0; i < n; i++) {
        bad |= !isfinite(got[i]) || !isfinite(want[i]);
        difference += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        size += (double)want[i] * want[i];
    }
    double error = sqrt(difference / (size > 0.0 ? size : 1.0));
    comparisons++;
    if (bad || !(error <= tolerance)) {
        failures++;
        printf("%s: %s: relative L2 %.2e, allowed %.0e%s\n", isa, what, error, tolerance, bad ? ", not finite" : "");
    }
    free(got);
    free(want);
}

static const double TOLERANCE[H3_KINDS] = {2e-6, 1e-5, 0.0};
static const char *KIND[H3_KINDS] = {"f32", "bf16", "int8"};

/* ---- matrix products: pack, expand, tile, dot, finish ---- */

/* Any bytes, but no float16 scale (in the first or last four bytes of a block) that is infinite. */
static void *stored_blocks(const h3_format_info *info, int64_t n, int64_t k) {
    int64_t size = info->block_bytes, count = n * k / info->block_values * size;
    uint8_t *bytes = take(count);
    for (int64_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)(word() & (i % size < 4 || i % size >= size - 4 ? 0xbfu : 0xffu));
    return bytes;
}

static void *stored_weight(h3_format format, int64_t n, int64_t k) {
    const h3_format_info *info = &h3_formats[format];
    if (info->block_values > 1 || info->block_bytes == 1) return stored_blocks(info, n, k);
    float *values = normal(n * k);
    uint16_t *halves = take(n * k * 2);
    if (format == H3_FORMAT_F32) {
        free(halves);
        return values;
    }
    for (int64_t i = 0; i < n * k; i++)
        halves[i] = format == H3_FORMAT_BF16 ? (uint16_t)(word() % 2 << 15 | (0x3f00 + word() % 0x100))
                                             : (uint16_t)(word() % 2 << 15 | (0x3800 + word() % 0x400));
    free(values);
    return halves;
}

static void check_linear(const char *isa, const h3_table *own, const h3_table *c) {
    for (int round = 0; round < 10 * H3_FORMATS; round++) {
        h3_kind kind = (h3_kind)(round % H3_KINDS);
        h3_format format = (h3_format)(round / 3 % H3_FORMATS), mixed = (h3_format)(word() % H3_FORMATS);
        h3_finish finish = (h3_finish)(round / 9 % 3);
        int64_t m = between(1, 40), n = between(1, 70), k = between(1, 12) * (round % 2 ? 37 : 64), groups = 3;
        if (h3_formats[format].block_values > 1)
            k = (k + 255) / 256 * 256 + (h3_formats[format].block_values < 256) * 64;
        if (k % h3_formats[mixed].block_values) mixed = format;
        char what[96];
        snprintf(what, sizeof what, "linear %s, format %d, finish %d, m %d n %d k %d", KIND[kind], (int)format,
                 (int)finish, (int)m, (int)n, (int)k);
        float *x = normal(m * k), *bias = normal(n), *gate = normal(groups * n), *shift = normal(groups * k);
        float *scale = normal(groups * k), *weight = normal(k);
        int32_t *index = take(m * 4);
        for (int64_t i = 0; i < m; i++) index[i] = (int32_t)(word() % groups);
        void *w = stored_weight(format, n, k), *other = stored_weight(mixed, n, k), *rows_memory;
        h3_order order = {n - 1, 1, -1};
        h3_matrix matrix = {format, n, k, w, 0, order, 0}, second = {mixed, n, k, other, 0, {0, n, n}, 0};
        float *row_scale = normal(n);
        if (round % 3 == 1)
            matrix.scale = second.scale = row_scale;
        float *before = normal(m * n), *y[2];
        for (int which = 0; which < 2; which++) {
            const h3_table *table = which ? c : own;
            int64_t bytes = (m + H3_ROWS - 1) / H3_ROWS * h3_block_bytes(kind, k);
            if (posix_memalign(&rows_memory, H3_LINE, (size_t)bytes)) exit(2);
            memset(rows_memory, 0xff, (size_t)bytes);
            h3_rows rows = {kind, m, k, rows_memory};
            h3_pack_job job = {
                x,     (h3_norm)(round % 3),     1e-6f, round % 4 ? weight : NULL, round % 5 ? weight : NULL,
                shift, round % 2 ? scale : NULL, index};
            if (!job.scale) job.shift = NULL;
            check(table->pack_rows(table, pool, &rows, &job));
            y[which] = finish == H3_ADD ? take(m * n * 4) : nans(m * n);
            if (finish == H3_ADD) memcpy(y[which], before, (size_t)(m * n * 4));
            h3_epilogue out = {finish, y[which], n, bias, bias, round % 2 ? gate : NULL, round % 4 ? index : NULL};
            check(table->linear(table, pool, &out, &rows, &matrix, finish == H3_SWIGLU ? &second : NULL));
            free(rows_memory);
        }
        compare(isa, what, y[0], y[1], m * n, TOLERANCE[kind]);
        if (kind == H3_F32) {
            float *plain = nans(n * k), *want = nans(n * k);
            check(own->dequantize(own, pool, plain, &matrix));
            check(c->dequantize(c, pool, want, &matrix));
            compare(isa, "dequantize", plain, want, n * k, 0.0);
        }
        free(x), free(bias), free(gate), free(shift), free(scale), free(weight), free(index), free(w), free(other);
        free(row_scale);
        free(before);
    }
}

static void check_maps(const char *isa, const h3_table *own, const h3_table *c) {
    for (int map = 0; map < H3_MAPS; map++) {
        int64_t n = between(1, 5000);
        float *x = normal(n), *y = take(n * 4);
        for (int64_t i = 0; i < n; i++) x[i] *= 10.0f;
        memcpy(y, x, (size_t)n * 4);
        check(own->map_all(own, pool, x, n, (h3_map)map));
        check(c->map_all(c, pool, y, n, (h3_map)map));
        compare(isa, "map", x, y, n, 2e-6);
    }
}

/* ---- attention ---- */

static void check_attention(const char *isa, const h3_table *own, const h3_table *c) {
    for (int round = 0; round < 40; round++) {
        h3_kind kind = (h3_kind)(round % 2);
        int64_t rows = between(1, 600), kv = between(1, 2), heads = kv * between(1, 3), D = 8 * between(1, 32);
        int64_t count = between(1, rows < 60 ? rows : 60), row0 = between(0, rows - count), half = between(0, D / 2);
        int causal = round / 2 % 2;
        int64_t item = kind == H3_F32 ? 4 : 2, padded = (rows + 31) / 32 * 32, wide = (D + 31) / 32 * 32;
        float *q = normal(count * heads * D), *k = normal(rows * kv * D), *v = normal(rows * kv * D), *norm = normal(D);
        float *cosine = normal(rows * half), *sine = normal(rows * half), *out[2];
        char what[96];
        snprintf(what, sizeof what, "attention %s, %d of %d rows, %d/%d heads of %d%s", KIND[kind], (int)count,
                 (int)rows, (int)heads, (int)kv, (int)D, causal ? ", causal" : "");
        for (int which = 0; which < 2; which++) {
            const h3_table *table = which ? c : own;
            h3_attention layer = {
                nans(kv * padded * D * item / 4), nans(kv * padded * wide * item / 4), rows, heads, kv, D, kind};
            h3_attention_prepare how = {round % 3 ? norm : NULL, 1e-6f, half ? cosine : NULL, half ? sine : NULL,
                                        2 * half};
            int64_t cut = between(0, rows);
            check(table->attention_put_k(table, pool, &layer, k, 0, cut, &how));
            how.cosine = half ? cosine + cut * half : NULL, how.sine = half ? sine + cut * half : NULL;
            check(table->attention_put_k(table, pool, &layer, k + cut * kv * D, cut, rows - cut, &how));
            check(table->attention_put_v(table, pool, &layer, v, 0, cut));
            check(table->attention_put_v(table, pool, &layer, v + cut * kv * D, cut, rows - cut));
            float *prepared = take(count * heads * D * 4);
            memcpy(prepared, q, (size_t)(count * heads * D * 4));
            how.cosine = half ? cosine : NULL, how.sine = half ? sine : NULL;
            check(table->attention_prepare_q(table, pool, &layer, prepared, count, &how));
            out[which] = nans(count * heads * D);
            check(table->attention_run(table, pool, &layer, out[which], prepared, count, row0, causal));
            free(prepared), free(layer.k), free(layer.v);
        }
        /* a score that differs in its last bit rounds a weight the other way now and then */
        compare(isa, what, out[0], out[1], count * heads * D,
                kind == H3_F32        ? 4e-6
                : strcmp(isa, "neon") ? 1e-5
                                      : 3e-4);
        free(q), free(k), free(v), free(norm), free(cosine), free(sine);
    }
}

/* ---- convolution ---- */

static void check_convolution(const char *isa, const h3_table *own, const h3_table *c) {
    for (int round = 0; round < 30; round++) {
        int64_t in = round % 5 ? between(1, 40) : between(250, 600), taps = 1;
        h3_conv conv = {.in = in, .out = between(1, 80)};
        h3_conv_job job = {.reflect = round % 2, .y_stride = conv.out + round % 3};
        for (int axis = 0; axis < 3; axis++) {
            conv.kernel[axis] = between(1, 3), conv.stride[axis] = between(1, 2), conv.dilation[axis] = between(1, 2);
            job.x_size[axis] = between(6, 9), job.pad[axis] = between(0, 3);
            int64_t span = (conv.kernel[axis] - 1) * conv.dilation[axis];
            job.y_size[axis] = (job.x_size[axis] + job.pad[axis] - span - 1) / conv.stride[axis] + 1;
            taps *= conv.kernel[axis];
        }
        int64_t positions = job.y_size[0] * job.y_size[1] * job.y_size[2];
        int64_t values = (positions - 1) * job.y_stride + conv.out;
        float *x = normal(job.x_size[0] * job.x_size[1] * job.x_size[2] * in), *weight = normal(conv.out * in * taps);
        float *bias = normal(conv.out), *zeros = take(in * 4), *y[2];
        memset(zeros, 0, (size_t)in * 4);
        h3_conv_weight source = {weight, in * taps, taps, 0, 1};
        conv.bias = round % 3 ? bias : NULL, conv.zeros = zeros, job.x = x;
        for (int which = 0; which < 2; which++) {
            const h3_table *table = which ? c : own;
            float *panels = nans((conv.out + 31) / 32 * taps * in * 32);
            check(table->conv_pack(table, pool, panels, &conv, &source));
            conv.panels = panels;
            y[which] = normal(values);
            if (which) /* what lies between the positions stays as it was */
                for (int64_t p = 0; p + 1 < positions; p++)
                    memcpy(y[1] + p * job.y_stride + conv.out, y[0] + p * job.y_stride + conv.out,
                           (size_t)(job.y_stride - conv.out) * 4);
            job.y = y[which];
            check(table->convolve(table, pool, &conv, &job));
            free(panels);
        }
        compare(isa, "convolution", y[0], y[1], values, 2e-6);
        free(x), free(weight), free(bias), free(zeros);
    }
}

/* ---- norms, activations, sampler ---- */

static void check_elementwise(const char *isa, const h3_table *own, const h3_table *c) {
    for (int round = 0; round < 12; round++) {
        int64_t times = between(1, 200), channels = between(1, 9) * (round % 2 ? 8 : 5), groups = round % 2 ? 4 : 5;
        int64_t frames = between(1, 3), n = frames * times * channels;
        float *x = normal(n), *a = normal(channels), *b = normal(channels), *up = normal(12), *down = normal(12);
        h3_group_norm_job norm = {frames, times, channels, groups, a, b, 1e-6f, round % 2};
        h3_antialiased filters = {frames * times, channels, a, b, up, down};
        const h3_table *tables[2] = {own, c};
        float *y[2][5];
        for (int which = 0; which < 2; which++) {
            const h3_table *table = tables[which];
            for (int i = 0; i < 5; i++) y[which][i] = nans(n);
            check(table->group_norm(table, pool, y[which][0], x, &norm));
            check(table->row_norm(pool, y[which][1], x, frames * times, channels, a, b, 1e-6f, round % 2));
            check(table->snake_all(table, pool, y[which][2], x, frames * times, channels, a, b));
            check(table->antialiased_all(table, pool, y[which][3], x, &filters));
            memcpy(y[which][4], x, (size_t)n * 4);
            check(table->step(pool, y[which][4], y[which][2], NULL, n, 0.25f, 0.75f, 0.5f));
        }
        static const char *NAME[] = {"group norm", "row norm", "snake", "anti-aliased snake", "step"};
        for (int i = 0; i < 5; i++) compare(isa, NAME[i], y[0][i], y[1][i], n, 0.0);
        free(x), free(a), free(b), free(up), free(down);
    }
}

int main(void) {
    static const struct {
        const char *name;
        unsigned mask, needed;
    } LEVELS[] = {
        {"c", 0, 0},
        {"avx2", H3_CPU_AVX2, H3_CPU_AVX2},
        {"avx512", H3_CPU_AVX2 | H3_CPU_AVX512, H3_CPU_AVX512},
        {"avx512 vnni bf16", H3_CPU_AVX2 | H3_CPU_AVX512 | H3_CPU_AVX512_VNNI | H3_CPU_AVX512_BF16, H3_CPU_AVX512_VNNI},
        {"neon", H3_CPU_NEON, H3_CPU_NEON},
        {"neon", H3_CPU_NEON | H3_CPU_DOTPROD, H3_CPU_DOTPROD},
        {"neon", H3_CPU_NEON | H3_CPU_DOTPROD | H3_CPU_I8MM | H3_CPU_ARM_BF16, H3_CPU_I8MM},
    };
    unsigned cpu = h3_cpu_detect();
    static h3_table c, own;
    int before = 0;
    pool = h3_pool_create(3);
    if (!pool) return 2;
    h3_table_init(&c, 0);
    for (size_t i = 0; i < sizeof LEVELS / sizeof *LEVELS; i++) {
        if ((cpu & LEVELS[i].needed) != LEVELS[i].needed) continue;
        h3_table_init(&own, cpu & LEVELS[i].mask);
        state = 20261130 + i;
        comparisons = 0;
        h3_verify_report report;
        check(h3_verify(&own, &report)); /* what a worker does at its start: here it must find nothing to replace */
        for (int name = 0; name < report.count; name++) {
            failures++;
            printf("%s: verify replaced %s\n", LEVELS[i].name, report.names[name]);
        }
        h3_table_init(&own, cpu & LEVELS[i].mask);
        check_linear(LEVELS[i].name, &own, &c);
        check_maps(LEVELS[i].name, &own, &c);
        check_attention(LEVELS[i].name, &own, &c);
        check_convolution(LEVELS[i].name, &own, &c);
        check_elementwise(LEVELS[i].name, &own, &c);
        printf("%-16s features %03x: %d comparisons, %d differ\n", LEVELS[i].name, cpu & LEVELS[i].mask, comparisons,
               failures - before);
        before = failures;
    }
    h3_pool_destroy(pool);
    return failures != 0;
}
