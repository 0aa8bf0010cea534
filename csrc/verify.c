/* Slots of the matrix product against portable C, and what all such checks share. */
#include "verify.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void h3_verify_name(h3_verify_report *report, const char *operation, const char *first, const char *second) {
    if (report->count < H3_VERIFY_NAMES)
        snprintf(report->names[report->count++], H3_VERIFY_NAME, "%s%s%s%s%s", operation, *first ? " " : "", first,
                 *second ? " to " : "", second);
}

void h3_verify_fill(float *values, int64_t count, uint32_t seed) {
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u; /* source: Numerical Recipes, a 32-bit linear congruential generator */
        values[i] = (float)(int32_t)seed * (1.0f / 1073741824.0f);
    }
}

int h3_verify_close(const float *got, const float *want, int64_t count, double tolerance) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        double d = (double)got[i] - (double)want[i];
        difference += d * d;
        size += (double)want[i] * (double)want[i];
    }
    return difference <= tolerance * tolerance * size; /* false for a NaN */
}

h3_status h3_verify(h3_table *table, h3_verify_report *report) {
    h3_table c;
    h3_table_init(&c, 0);
    report->count = 0;
    h3_status status = h3_verify_matmul(table, &c, report);
    return status == H3_OK ? h3_verify_layers(table, &c, report) : status;
}

/* ---- the matrix product ---- */

static const char *const KINDS[H3_KINDS] = {"f32", "bf16", "int8"};

/* Tails everywhere: 341 is a group and 85 values, not even, and rotates nothing; 320 rotates blocks of 64. */
enum { LONGEST = 341, CHECKED_ROWS = 11, CHECKED_COLUMNS = 29 };
static const int64_t LENGTHS[] = {LONGEST, 320};

typedef struct {
    float x[H3_ROWS * LONGEST], weight[LONGEST], shift[2 * LONGEST], y[2][H3_ROWS * H3_COLUMNS], start[H3_ROWS * H3_COLUMNS];
    float gate[2 * H3_COLUMNS], bias[H3_COLUMNS], values[2][LONGEST];
    char stored[H3_COLUMNS * LONGEST * 4 + 1];
    _Alignas(64) char block[2][4 * H3_ROWS * LONGEST + 1024], panel[2][4 * H3_COLUMNS * LONGEST + 1024];
    _Alignas(64) char scratch[H3_PACK_SCRATCH];
    int32_t index[H3_ROWS];
} work;

/*
 * Finite values in a format, at an odd address, as a file may have. Floats cut to their upper half are bfloat16; as
 * float16 any exponent but the highest is finite; a block's float16 scales lie in its first or last four bytes.
 */
static void fill_stored(work *w, int format) {
    float values[H3_COLUMNS];
    int64_t size = h3_formats[format].block_bytes, length = h3_formats[format].block_values;
    int64_t count = (int64_t)H3_COLUMNS * LONGEST / length;
    if (length > 1 || size == 1) { /* in bytes any exponent but the highest is finite too */
        uint32_t seed = (uint32_t)format;
        for (int64_t i = 0; i < count * size; i++) {
            int64_t place = i % size;
            seed = seed * 1664525u + 1013904223u;
            w->stored[1 + i] = (char)(seed >> 24 & (place < 4 || place >= size - 4 ? 0xbfu : 0xffu));
        }
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        h3_verify_fill(values, 1, (uint32_t)(i * 977 + format));
        uint32_t bits;
        memcpy(&bits, values, 4);
        if (format == H3_FORMAT_F16)
            bits = (bits & 0x8000u) | 0x3000u | (bits >> 3 & 0xfffu);
        else if (size == 2)
            bits >>= 16;
        memcpy(w->stored + 1 + i * size, &bits, (size_t)size);
    }
}

static void check_stored(h3_table *table, const h3_table *c, h3_verify_report *report, work *w) {
    const void *rows[H3_COLUMNS] = {0};
    for (int format = 0; format < H3_FORMATS; format++) {
        const h3_format_info *info = &h3_formats[format];
        int64_t k = LONGEST / info->block_values * info->block_values;
        fill_stored(w, format);
        for (int64_t i = 0; i < CHECKED_COLUMNS; i++)
            rows[i] = w->stored + 1 + i * (k / info->block_values * info->block_bytes);
        if (table->decode[format] != c->decode[format]) {
            table->decode[format](w->values[0], rows[1], 0, k);
            c->decode[format](w->values[1], rows[1], 0, k);
            if (memcmp(w->values[0], w->values[1], (size_t)k * 4) != 0) {
                h3_verify_name(report, "decode", info->name, "");
                table->decode[format] = c->decode[format];
            }
        }
        for (int kind = 0; kind < H3_KINDS; kind++) {
            int differs = 0;
            if (table->expand[format][kind] == c->expand[format][kind])
                continue;
            for (int i = 0; i < 2; i++) {
                int64_t length = i ? LENGTHS[i] / info->block_values * info->block_values : k;
                memset(w->panel, 0xff, sizeof w->panel);
                table->expand[format][kind](w->panel[0], rows, length, table->decode[format]);
                c->expand[format][kind](w->panel[1], rows, length, c->decode[format]);
                differs |= memcmp(w->panel[0], w->panel[1], sizeof w->panel[0]) != 0;
            }
            if (differs) {
                h3_verify_name(report, "expand", info->name, KINDS[kind]);
                table->expand[format][kind] = c->expand[format][kind];
            }
        }
        for (int kind = 0; kind < H3_KINDS; kind++) {
            float got[H3_DOT_ROWS * CHECKED_COLUMNS], want[H3_DOT_ROWS * CHECKED_COLUMNS];
            if (!table->dot[format][kind])
                continue;
            for (int64_t column = 0; column < CHECKED_COLUMNS; column++) {
                table->dot[format][kind](got + column * H3_DOT_ROWS, rows[column], w->x, H3_DOT_ROWS, k);
                c->decode[format](w->values[0], rows[column], 0, k);
                for (int r = 0; r < H3_DOT_ROWS; r++) {
                    double sum = 0;
                    for (int64_t i = 0; i < k; i++)
                        sum += (double)w->x[r * k + i] * (double)w->values[0][i];
                    want[column * H3_DOT_ROWS + r] = (float)sum;
                }
            }
            if (!h3_verify_close(got, want, H3_DOT_ROWS * CHECKED_COLUMNS, 2e-6)) {
                h3_verify_name(report, "dot", info->name, KINDS[kind]);
                table->dot[format][kind] = 0;
            }
        }
    }
}

static void check_kind(h3_table *table, const h3_table *c, h3_verify_report *report, work *w, int kind) {
    static const double TOLERANCE[H3_KINDS] = {2e-6, 1e-5, 0};
    const void *rows[H3_COLUMNS] = {0};
    h3_pack_job job = {w->x, H3_NORM_RMS, 1e-6f, w->weight, 0, w->shift, w->shift, w->index};
    int pack_differs = 0, tile_differs = 0;
    fill_stored(w, H3_FORMAT_F32);
    for (int i = 0; i < 2; i++) {
        int64_t k = LENGTHS[i];
        for (int64_t column = 0; column < CHECKED_COLUMNS; column++)
            rows[column] = w->stored + 1 + column * k * 4;
        job.norm = i ? H3_NORM_LAYER : H3_NORM_RMS;
        memset(w->block, 0xff, sizeof w->block);
        memset(w->y, 0xff, sizeof w->y);
        table->pack[kind](w->block[0], &job, 0, CHECKED_ROWS, k, w->scratch);
        c->pack[kind](w->block[1], &job, 0, CHECKED_ROWS, k, w->scratch);
        c->expand[H3_FORMAT_F32][kind](w->panel[0], rows, k, c->decode[H3_FORMAT_F32]);
        pack_differs |= memcmp(w->block[0], w->block[1], sizeof w->block[0]) != 0;
        table->tile[kind](w->y[0], w->block[1], w->panel[0], k, CHECKED_ROWS);
        c->tile[kind](w->y[1], w->block[1], w->panel[0], k, CHECKED_ROWS);
        tile_differs |= !h3_verify_close(w->y[0], w->y[1], CHECKED_ROWS * H3_COLUMNS, TOLERANCE[kind]);
    }
    if (pack_differs && table->pack[kind] != c->pack[kind]) {
        h3_verify_name(report, "pack", KINDS[kind], "");
        table->pack[kind] = c->pack[kind];
    }
    if (tile_differs && table->tile[kind] != c->tile[kind]) {
        h3_verify_name(report, "product", KINDS[kind], "");
        table->tile[kind] = c->tile[kind];
    }
}

static void check_finish(h3_table *table, const h3_table *c, h3_verify_report *report, work *w) {
    static const char *const NAMES[] = {"store", "add", "swiglu"};
    for (int finish = 0; finish < 3; finish++) {
        int64_t columns = finish == H3_SWIGLU ? 13 : CHECKED_COLUMNS;
        if (table->finish[finish] == c->finish[finish])
            continue;
        for (int which = 0; which < 2; which++) {
            h3_epilogue out = {(h3_finish)finish, w->y[which], columns, w->bias, w->bias, w->gate, w->index};
            memcpy(w->y[which], w->start, sizeof w->start);
            (which ? c : table)->finish[finish](&out, w->x, 0, CHECKED_ROWS, 0, columns);
        }
        if (!h3_verify_close(w->y[0], w->y[1], H3_ROWS * H3_COLUMNS, 1e-6)) {
            h3_verify_name(report, "epilogue", NAMES[finish], "");
            table->finish[finish] = c->finish[finish];
        }
    }
}

static void check_maps(h3_table *table, const h3_table *c, h3_verify_report *report, work *w) {
    static const char *const NAMES[H3_MAPS] = {"silu", "gelu", "gelu_tanh"};
    for (int map = 0; map < H3_MAPS; map++) {
        if (table->map[map] == c->map[map])
            continue;
        memcpy(w->values[0], w->x, sizeof w->values[0]);
        memcpy(w->values[1], w->x, sizeof w->values[1]);
        table->map[map](w->values[0], LONGEST);
        c->map[map](w->values[1], LONGEST);
        if (!h3_verify_close(w->values[0], w->values[1], LONGEST, 1e-6)) {
            h3_verify_name(report, NAMES[map], "", "");
            table->map[map] = c->map[map];
        }
    }
}

h3_status h3_verify_matmul(h3_table *table, const h3_table *c, h3_verify_report *report) {
    work *w = aligned_alloc(64, sizeof *w);
    if (!w)
        return H3_NO_MEMORY;
    h3_verify_fill(w->x, H3_ROWS * LONGEST, 1);
    h3_verify_fill(w->weight, LONGEST, 2);
    h3_verify_fill(w->shift, 2 * LONGEST, 3);
    h3_verify_fill(w->start, H3_ROWS * H3_COLUMNS, 4);
    h3_verify_fill(w->gate, 2 * H3_COLUMNS, 5);
    h3_verify_fill(w->bias, H3_COLUMNS, 6);
    for (int32_t r = 0; r < H3_ROWS; r++)
        w->index[r] = r % 2;
    check_stored(table, c, report, w);
    for (int kind = 0; kind < H3_KINDS; kind++)
        check_kind(table, c, report, w, kind);
    check_finish(table, c, report, w);
    check_maps(table, c, report, w);
    free(w);
    return H3_OK;
}
