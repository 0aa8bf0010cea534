/* Convolution: finding the inputs of each tile, and the portable tile. */
#include <string.h>

#include "conv.h"
#include "pool.h"
#include "table.h"

enum {
    ROWS = H3_CONV_ROWS,
    COLUMNS = H3_CONV_COLUMNS,
    TILES = 8,  /* tiles that share a piece of a panel while it is in the first cache */
    PIECE = 256 /* products in a row before the sum joins the total: 14 000 in one running sum would cost a digit */
};

typedef struct {
    const h3_table *table;
    const h3_conv *conv;
    const h3_conv_job *job;
    int64_t positions, taps, panels, panels_per_item;
} conv_work;

/* Index into an axis of `size`, or -1: outside. Reflection does not repeat the border. */
static int64_t inside(int64_t at, int64_t size, int reflect) {
    if (at >= 0 && at < size) return at;
    if (!reflect) return -1;
    return at < 0 ? -at : 2 * (size - 1) - at;
}

/* The input row of every tap of `count` output positions from `start`, [tile][tap][12]. */
static void find_rows(const conv_work *work, const float **rows, int64_t start, int64_t count) {
    const h3_conv *conv = work->conv;
    const h3_conv_job *job = work->job;
    int64_t H = job->x_size[1], W = job->x_size[2];
    for (int64_t i = 0; i < (count + ROWS - 1) / ROWS * ROWS; i++) {
        int64_t p = start + (i < count ? i : 0); /* a tile's unused rows read what is there */
        int64_t w = p % job->y_size[2], h = p / job->y_size[2] % job->y_size[1],
                t = p / job->y_size[2] / job->y_size[1];
        const float **to = rows + i / ROWS * work->taps * ROWS + i % ROWS;
        int64_t at_t = t * conv->stride[0] - job->pad[0];
        for (int64_t kt = 0; kt < conv->kernel[0]; kt++, at_t += conv->dilation[0]) {
            int64_t at_h = h * conv->stride[1] - job->pad[1], t_in = inside(at_t, job->x_size[0], 0);
            for (int64_t kh = 0; kh < conv->kernel[1]; kh++, at_h += conv->dilation[1]) {
                int64_t at_w = w * conv->stride[2] - job->pad[2], h_in = inside(at_h, H, job->reflect);
                for (int64_t kw = 0; kw < conv->kernel[2]; kw++, at_w += conv->dilation[2], to += ROWS) {
                    int64_t w_in = inside(at_w, W, job->reflect);
                    *to = t_in < 0 || h_in < 0 || w_in < 0 ? conv->zeros
                                                           : job->x + ((t_in * H + h_in) * W + w_in) * conv->in;
                }
            }
        }
    }
}

static void convolve_panel(const conv_work *work, float *tiles, const float *const *rows, int64_t start, int64_t count,
                           int64_t panel) {
    const h3_conv *conv = work->conv;
    int64_t n = (count + ROWS - 1) / ROWS, column = panel * COLUMNS;
    int64_t columns = conv->out - column < COLUMNS ? conv->out - column : COLUMNS;
    int64_t channels = conv->in < PIECE ? conv->in : PIECE, taps = conv->in < PIECE ? PIECE / conv->in : 1;
    const float *weights = conv->panels + panel * work->taps * conv->in * COLUMNS;
    memset(tiles, 0, (size_t)n * ROWS * COLUMNS * sizeof *tiles);
    for (int64_t tap = 0; tap < work->taps; tap += taps)
        for (int64_t first = 0; first < conv->in; first += channels) {
            h3_conv_piece piece = {.panel = weights + (tap * conv->in + first) * COLUMNS,
                                   .taps = work->taps - tap < taps ? work->taps - tap : taps,
                                   .first = first,
                                   .channels = conv->in - first < channels ? conv->in - first : channels,
                                   .pitch = conv->in,
                                   .columns = columns};
            for (int64_t i = 0; i < n; i++) {
                piece.rows = rows + (i * work->taps + tap) * ROWS;
                work->table->conv_tile(tiles + i * ROWS * COLUMNS, &piece);
            }
        }
    for (int64_t r = 0; r < count; r++) {
        float *y = work->job->y + (start + r) * work->job->y_stride + column;
        for (int64_t c = 0; c < columns; c++)
            y[c] = tiles[r * COLUMNS + c] + (conv->bias ? conv->bias[column + c] : 0.0f);
    }
}

static void convolve_item(void *context, int64_t item, void *scratch) {
    const conv_work *work = context;
    int64_t groups = (work->panels + work->panels_per_item - 1) / work->panels_per_item;
    int64_t start = item / groups * TILES * ROWS, first = item % groups * work->panels_per_item;
    int64_t count = work->positions - start < TILES * ROWS ? work->positions - start : TILES * ROWS;
    float *tiles = scratch;
    const float **rows = (const float **)(tiles + TILES * ROWS * COLUMNS);
    find_rows(work, rows, start, count);
    for (int64_t panel = first; panel < work->panels && panel < first + work->panels_per_item; panel++)
        convolve_panel(work, tiles, (const float *const *)rows, start, count, panel);
}

static int64_t taps_of(const h3_conv *conv) { return conv->kernel[0] * conv->kernel[1] * conv->kernel[2]; }

static h3_status convolve(const h3_table *table, h3_pool *pool, const h3_conv *conv, const h3_conv_job *job) {
    conv_work work = {table,
                      conv,
                      job,
                      job->y_size[0] * job->y_size[1] * job->y_size[2],
                      taps_of(conv),
                      (conv->out + COLUMNS - 1) / COLUMNS,
                      1};
    int64_t blocks = (work.positions + TILES * ROWS - 1) / (TILES * ROWS);
    for (int axis = 1; axis < 3; axis++) {
        int64_t last = (job->y_size[axis] - 1) * conv->stride[axis] + (conv->kernel[axis] - 1) * conv->dilation[axis];
        if (job->reflect &&
            (job->pad[axis] >= job->x_size[axis] || last - job->pad[axis] > 2 * (job->x_size[axis] - 1)))
            return H3_BAD_SHAPE; /* a reflection of a reflection */
    }
    if (conv->in < 1 || conv->out < 1 || work.positions < 1) return H3_BAD_SHAPE;
    if (blocks >= 64) /* enough items without cutting the columns too, so find the rows once */
        work.panels_per_item = work.panels;
    return h3_pool_run(pool, convolve_item, &work,
                       blocks * ((work.panels + work.panels_per_item - 1) / work.panels_per_item),
                       TILES * ROWS * (COLUMNS * (int64_t)sizeof(float) + work.taps * (int64_t)sizeof(float *)));
}

/* ---- weights -> panels, once ---- */

typedef struct {
    float *panels;
    const h3_conv *shape;
    const h3_conv_weight *weight;
} pack_work;

static void pack_item(void *context, int64_t panel, void *scratch) {
    const pack_work *work = context;
    const h3_conv_weight *from = work->weight;
    int64_t taps = taps_of(work->shape), in = work->shape->in, column = panel * COLUMNS;
    float *to = work->panels + panel * taps * in * COLUMNS;
    (void)scratch;
    for (int64_t j = 0; j < COLUMNS; j++)
        for (int64_t c = 0; c < in; c++)
            for (int64_t tap = 0; tap < taps; tap++)
                to[(tap * in + c) * COLUMNS + j] =
                    column + j < work->shape->out ? from->weight[(column + j) * from->out_stride + c * from->in_stride +
                                                                 from->first + tap * from->step]
                                                  : 0.0f;
}

static h3_status conv_pack(const h3_table *table, h3_pool *pool, float *panels, const h3_conv *shape,
                           const h3_conv_weight *weight) {
    pack_work work = {panels, shape, weight};
    (void)table;
    return h3_pool_run(pool, pack_item, &work, (shape->out + COLUMNS - 1) / COLUMNS, 0);
}

/* ---- the portable tile ---- */

static void conv_tile_c(float *tile, const h3_conv_piece *piece) {
    for (int r = 0; r < ROWS; r++) {
        float sum[COLUMNS] = {0};
        for (int64_t tap = 0; tap < piece->taps; tap++) {
            const float *x = piece->rows[tap * ROWS + r] + piece->first;
            const float *panel = piece->panel + tap * piece->pitch * COLUMNS;
            for (int64_t i = 0; i < piece->channels; i++)
                for (int c = 0; c < COLUMNS; c++) sum[c] += x[i] * panel[i * COLUMNS + c];
        }
        for (int c = 0; c < COLUMNS; c++) tile[r * COLUMNS + c] += sum[c];
    }
}

void h3_fill_conv_c(h3_table *table) {
    table->conv_tile = conv_tile_c;
    table->conv_pack = conv_pack;
    table->convolve = convolve;
}
