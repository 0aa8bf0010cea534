/* Slots of attention, convolution, norms and activations against portable C. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "verify.h"

/* Odd on purpose: a head that ends inside a panel, rows and limits that end inside a block, channels past 16. */
enum { HEAD = 40, KEYS = 96, USED = 11, CHANNELS = 37, TAPS = 3, COLUMNS = 27, TIMES = 19 };

typedef struct {
    float x[64 * 256], a[256], b[256], c[256], y[2][64 * 256];
    double sums[2][2 * CHANNELS];
    float q[2][H3_ATTENTION_ROWS * H3_ATTENTION_MAX_DIM], scores[2][H3_ATTENTION_ROWS * H3_ATTENTION_KEYS];
    float p[2][H3_ATTENTION_ROWS * H3_ATTENTION_KEYS], out[2][H3_ATTENTION_ROWS * H3_ATTENTION_MAX_DIM];
    float k[KEYS * HEAD], v[2 * H3_ATTENTION_PANEL * KEYS], kept[2][H3_ATTENTION_ROWS * HEAD];
    h3_softmax state[2];
} work;

static void check_packing(h3_table *table, const h3_table *c, h3_verify_report *report, work *w) {
    h3_attention_prepare how = {w->a, 1e-6f, w->b, w->c, 24};
    if (table->attention_prepare != c->attention_prepare) {
        table->attention_prepare(w->y[0], w->x, HEAD, &how, 3);
        c->attention_prepare(w->y[1], w->x, HEAD, &how, 3);
        if (memcmp(w->y[0], w->y[1], HEAD * sizeof(float)) != 0) {
            h3_verify_name(report, "head norm and rotary", "", "");
            table->attention_prepare = c->attention_prepare;
        }
    }
    for (int kind = 0; kind < H3_ATTENTION_KINDS; kind++) {
        memset(w->y, 0xff, sizeof w->y);
        table->attention_pack_k(w->y[0], w->x, 5, USED, HEAD, (h3_kind)kind);
        c->attention_pack_k(w->y[1], w->x, 5, USED, HEAD, (h3_kind)kind);
        if (memcmp(w->y[0], w->y[1], sizeof w->y[0]) != 0) {
            h3_verify_name(report, "keys", "", "");
            table->attention_pack_k = c->attention_pack_k;
        }
    }
    table->attention_pair((uint32_t *)w->y[0], w->x, w->x + 256, HEAD);
    c->attention_pair((uint32_t *)w->y[1], w->x, w->x + 256, HEAD);
    if (memcmp(w->y[0], w->y[1], HEAD * sizeof(float)) != 0) {
        h3_verify_name(report, "values", "", "");
        table->attention_pair = c->attention_pair;
    }
}

/* Two blocks of keys, the second with limits, as the walk in attention.c goes. */
static void check_attention(h3_table *table, const h3_table *c, h3_verify_report *report, work *w, h3_kind kind) {
    static const char *const KINDS[] = {"f32", "bf16"};
    int64_t bytes = kind == H3_F32 ? 4 : 2, panel = H3_ATTENTION_PANEL * bytes;
    if (table->attention[kind].scores == c->attention[kind].scores) return;
    memset(w->v, 0, sizeof w->v);
    for (int64_t j = 0; j < KEYS; j += 16)
        c->attention_pack_k((char *)w->k + j / H3_ATTENTION_PANEL * HEAD * panel, w->x + j * 64, j % H3_ATTENTION_PANEL,
                            16, HEAD, kind);
    for (int64_t j = 0; j < KEYS; j += 2)
        for (int64_t column = 0; column < HEAD; column += H3_ATTENTION_PANEL) {
            int64_t n = HEAD - column < H3_ATTENTION_PANEL ? HEAD - column : H3_ATTENTION_PANEL;
            char *to = (char *)w->v + column * KEYS * bytes + j * panel;
            if (kind == H3_BF16) {
                c->attention_pair((uint32_t *)to, w->x + j * 70 + column, w->x + j * 70 + 64 + column, n);
            } else {
                memcpy(to, w->x + j * 70 + column, (size_t)n * 4);
                memcpy(to + panel, w->x + j * 70 + 64 + column, (size_t)n * 4);
            }
        }
    for (int which = 0; which < 2; which++) {
        const h3_attention_steps *steps = which ? &c->attention[kind] : &table->attention[kind];
        h3_softmax *state = &w->state[which];
        memset(state, 0, sizeof *state);
        memset(w->out[which], 0, sizeof w->out[which]);
        for (int r = 0; r < H3_ATTENTION_ROWS; r++) state->largest[r] = -INFINITY;
        steps->query(w->q[which], w->x, 77, USED, HEAD);
        for (int block = 0; block < 2; block++) {
            int32_t limit[H3_ATTENTION_ROWS];
            for (int r = 0; r < H3_ATTENTION_ROWS; r++) limit[r] = block ? 7 * r : KEYS;
            steps->scores(w->scores[which], w->q[which], w->k, KEYS, HEAD);
            steps->weights(w->p[which], state, w->scores[which], limit, KEYS, 0.25f);
            steps->values(w->out[which], w->p[which], w->v, KEYS * panel, KEYS, HEAD, state->decay);
        }
        for (int r = 0; r < H3_ATTENTION_ROWS; r++) {
            float total = 0.0f;
            for (int lane = 0; lane < H3_ATTENTION_SUM_LANES; lane++) total += state->sum[r][lane];
            for (int d = 0; d < HEAD; d++)
                w->kept[which][r * HEAD + d] = w->out[which][r * H3_ATTENTION_MAX_DIM + d] / total;
        }
    }
    /* bf16: where the order of additions differs, a weight is now and then rounded the other way */
    if (!h3_verify_close(w->kept[0], w->kept[1], H3_ATTENTION_ROWS * HEAD, kind == H3_F32 ? 4e-6 : 1e-3)) {
        h3_verify_name(report, "attention", KINDS[kind], "");
        table->attention[kind] = c->attention[kind];
    }
}

static void check_convolution(h3_table *table, const h3_table *c, h3_verify_report *report, work *w) {
    const float *rows[TAPS * H3_CONV_ROWS];
    if (table->conv_tile == c->conv_tile) return;
    for (int i = 0; i < TAPS * H3_CONV_ROWS; i++) rows[i] = w->x + 41 * i;
    h3_conv_piece piece = {rows, w->x + 64, TAPS, 3, CHANNELS - 3, CHANNELS, COLUMNS};
    int differs = 0;
    for (int narrow = 0; narrow < 2; narrow++) {
        piece.columns = narrow ? 9 : COLUMNS;
        for (int which = 0; which < 2; which++) {
            memcpy(w->y[which], w->x, H3_CONV_ROWS * H3_CONV_COLUMNS * sizeof(float));
            (which ? c : table)->conv_tile(w->y[which], &piece);
        }
        for (int r = 0; r < H3_CONV_ROWS; r++)
            differs |=
                !h3_verify_close(w->y[0] + r * H3_CONV_COLUMNS, w->y[1] + r * H3_CONV_COLUMNS, piece.columns, 2e-6);
    }
    if (differs) {
        h3_verify_name(report, "convolution", "", "");
        table->conv_tile = c->conv_tile;
    }
}

static int same(const work *w, int64_t count) { return memcmp(w->y[0], w->y[1], (size_t)count * sizeof(float)) == 0; }

static void check_elementwise(h3_table *table, const h3_table *c, h3_verify_report *report, work *w) {
    enum { VALUES = TIMES * CHANNELS };
    h3_antialiased filters = {TIMES, CHANNELS, w->a, w->b, w->c, w->c + 12};
    const h3_table *tables[2] = {table, c};
    memset(w->sums, 0, sizeof w->sums);
    for (int which = 0; which < 2; which++)
        tables[which]->moments(w->sums[which], w->sums[which] + CHANNELS, w->x, TIMES, CHANNELS);
    if (memcmp(w->sums[0], w->sums[1], sizeof w->sums[0]) != 0) {
        h3_verify_name(report, "moments", "", "");
        table->moments = c->moments;
    }
    for (int which = 0; which < 2; which++) tables[which]->affine(w->y[which], w->x, TIMES, CHANNELS, w->a, w->b, w->c);
    if (!same(w, VALUES)) {
        h3_verify_name(report, "group norm", "", "");
        table->affine = c->affine;
    }
    for (int which = 0; which < 2; which++)
        tables[which]->affine_silu(w->y[which], w->x, TIMES, CHANNELS, w->a, w->b, w->c);
    if (!same(w, VALUES)) {
        h3_verify_name(report, "group norm", "silu", "");
        table->affine_silu = c->affine_silu;
    }
    for (int which = 0; which < 2; which++) tables[which]->snake(w->y[which], w->x, TIMES, CHANNELS, w->a, w->b);
    if (!same(w, VALUES)) {
        h3_verify_name(report, "snake", "", "");
        table->snake = c->snake;
    }
    for (int which = 0; which < 2; which++)
        for (int64_t channel = 0; channel < CHANNELS; channel += 16)
            tables[which]->antialiased(w->y[which], w->x, 0, TIMES, &filters, channel);
    if (!same(w, VALUES)) {
        h3_verify_name(report, "anti-aliased snake", "", "");
        table->antialiased = c->antialiased;
    }
}

h3_status h3_verify_layers(h3_table *table, const h3_table *c, h3_verify_report *report) {
    work *w = malloc(sizeof *w);
    if (!w) return H3_NO_MEMORY;
    h3_verify_fill(w->x, 64 * 256, 11);
    h3_verify_fill(w->a, 256, 12);
    h3_verify_fill(w->b, 256, 13);
    h3_verify_fill(w->c, 256, 14);
    check_packing(table, c, report, w);
    for (int kind = 0; kind < H3_ATTENTION_KINDS; kind++) check_attention(table, c, report, w, (h3_kind)kind);
    check_convolution(table, c, report, w);
    check_elementwise(table, c, report, w);
    free(w);
    return H3_OK;
}
