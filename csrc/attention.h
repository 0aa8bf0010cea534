/* Flash-style attention: how keys and values are packed, and the four steps that an instruction set supplies. */
#ifndef H3_ATTENTION_H
#define H3_ATTENTION_H

#include <stdint.h>

#include "pool.h"
#include "quant.h"
#include "status.h"

struct h3_table;

enum {
    H3_ATTENTION_ROWS = 12,  /* query rows of a tile: 12 x 32 accumulators fill 24 of 32 vector registers */
    H3_ATTENTION_PANEL = 32, /* keys of a key panel, columns of a value panel */
    H3_ATTENTION_KEYS = 256, /* keys between two looks at the running maximum */
    H3_ATTENTION_MAX_DIM = 256,
    H3_ATTENTION_SUM_LANES = 16, /* partial sums of a row, the same for every instruction set: same bits */
    H3_ATTENTION_KINDS = 2       /* H3_F32 and H3_BF16 */
};

/*
 * Keys and values of one layer, packed per key/value head; P = rows rounded up to 32, W = head_dim rounded up to 32.
 *   f32   k [P/32][head_dim][32]        v [W/32][P][32]
 *   bf16  k [P/32][head_dim/2][32][2]   v [W/32][P/2][32][2]   (pairs along the summed axis)
 * Keys past `rows` and columns past head_dim are zero.
 */
typedef struct {
    void *k, *v;
    int64_t rows, heads, kv_heads, head_dim;
    h3_kind kind;
} h3_attention;

/* Root-mean-square norm of each head, then half-split rotary; either may be absent. */
typedef struct {
    const float *norm; /* head_dim weights, or NULL: no norm */
    float eps;
    const float *cosine, *sine; /* [row][rotary / 2], or NULL: no rotary */
    int64_t rotary;             /* rotated channels; the others pass */
} h3_attention_prepare;

/* Softmax state of a query tile. */
typedef struct {
    float largest[H3_ATTENTION_ROWS]; /* score, before the scale */
    float decay[H3_ATTENTION_ROWS];   /* what the last look at the maximum does to older sums */
    float sum[H3_ATTENTION_ROWS][H3_ATTENTION_SUM_LANES];
} h3_softmax;

/* One head of one row: out = rotary(norm(x)). out may be x. */
typedef void (*h3_attention_prepare_fn)(float *out, const float *x, int64_t head_dim, const h3_attention_prepare *how,
                                        int64_t row);

/* rows[lanes <= 16][256] -> keys `lane` .. of a key panel, lane + lanes <= 32. rows has room for 16 rows. */
typedef void (*h3_attention_pack_k_fn)(void *panel, const float *rows, int64_t lane, int64_t lanes, int64_t head_dim,
                                       h3_kind kind);
/* Two rows of values -> n pairs of bfloat16. */
typedef void (*h3_attention_pair_fn)(uint32_t *pairs, const float *even, const float *odd, int64_t n);

/*
 * The four steps are replaced together: how q and p lie in memory is a matter between them. All work on whole tiles of
 * 12 rows; keys is a multiple of 32, at most H3_ATTENTION_KEYS.
 *   query    rows of q (stride floats apart) -> the packed tile; missing rows are zero
 *   scores   scores[12][H3_ATTENTION_KEYS] = q . k for `keys` keys from the panel k
 *   weights  p = exp2((score - largest) * scale); key j of row r counts when j < limit[r]; updates the state
 *   values   out[12][H3_ATTENTION_MAX_DIM] = out * decay + p . v; v: the first value panel, at the block's first key;
 *            panel_stride: bytes to the next value panel
 */
typedef struct {
    void (*query)(void *q, const float *x, int64_t stride, int64_t rows, int64_t head_dim);
    void (*scores)(float *scores, const void *q, const void *k, int64_t keys, int64_t head_dim);
    void (*weights)(void *p, h3_softmax *state, float *scores, const int32_t *limit, int64_t keys, float scale);
    void (*values)(float *out, const void *p, const void *v, int64_t panel_stride, int64_t keys, int64_t head_dim,
                   const float *decay);
} h3_attention_steps;

/* k, v: (count, kv_heads * head_dim), rows row0 .. row0 + count of the layer. prepare_q: in place on q (count, heads *
 * head_dim). run: out and q (count, heads * head_dim); causal: query i sees keys 0 .. row0 + i only. */
typedef h3_status (*h3_attention_put_k_fn)(const struct h3_table *, h3_pool *, const h3_attention *, const float *k,
                                           int64_t row0, int64_t count, const h3_attention_prepare *);
typedef h3_status (*h3_attention_put_v_fn)(const struct h3_table *, h3_pool *, const h3_attention *, const float *v,
                                           int64_t row0, int64_t count);
typedef h3_status (*h3_attention_prepare_q_fn)(const struct h3_table *, h3_pool *, const h3_attention *, float *q,
                                               int64_t count, const h3_attention_prepare *);
typedef h3_status (*h3_attention_run_fn)(const struct h3_table *, h3_pool *, const h3_attention *, float *out,
                                         const float *q, int64_t count, int64_t row0, int causal);

/* exp2 of x <= 0 by a polynomial: 3e-6 relative for bf16 weights, 1e-7 for f32 ones. Below -127 the result is 0. */
#define H3_EXP2_MIN -127.0f
/* least-squares with reweighting towards the largest relative error, |x| <= 1/2 */
#define H3_EXP2_4 0.999999285f, 0.693121791f, 0.240247443f, 0.0559178591f, 0.00957010221f
#define H3_EXP2_6 1.0f, 0.693147182f, 0.240226462f, 0.0555032864f, 0.00961848907f, 0.00133999309f, 0.000153458124f

#endif
