/* What happens to a finished tile, and the steps all tiles share: bodies that every instruction set compiles for itself. */
#ifndef H3_MATMUL_H
#define H3_MATMUL_H

#include "scalar.h"
#include "table.h"

/* Sums of this many products are added up: shorter chains round less than one chain over all of K. A multiple of 4. */
#define H3_CHAIN 512

H3_INLINE void h3_store_body(const h3_epilogue *out, const float *tile, int64_t row, int64_t rows, int64_t column,
                             int64_t columns) {
    for (int64_t r = 0; r < rows; r++, tile += H3_COLUMNS) {
        float *y = out->y + (row + r) * out->n + column;
        if (out->bias)
            for (int64_t c = 0; c < columns; c++)
                y[c] = tile[c] + out->bias[column + c];
        else
            for (int64_t c = 0; c < columns; c++)
                y[c] = tile[c];
    }
}

H3_INLINE void h3_add_body(const h3_epilogue *out, const float *tile, int64_t row, int64_t rows, int64_t column,
                           int64_t columns) {
    for (int64_t r = 0; r < rows; r++, tile += H3_COLUMNS) {
        float *y = out->y + (row + r) * out->n + column;
        float sum[H3_COLUMNS];
        for (int64_t c = 0; c < columns; c++)
            sum[c] = out->bias ? tile[c] + out->bias[column + c] : tile[c];
        if (out->gate) {
            const float *gate = out->gate + (out->index ? out->index[row + r] : 0) * out->n + column;
            for (int64_t c = 0; c < columns; c++)
                y[c] += gate[c] * sum[c];
        } else
            for (int64_t c = 0; c < columns; c++)
                y[c] += sum[c];
    }
}

H3_INLINE void h3_swiglu_body(const h3_epilogue *out, const float *tile, int64_t row, int64_t rows, int64_t column,
                              int64_t columns) {
    enum { HALF = H3_COLUMNS / 2 };
    float bias[HALF] = {0}, gate_bias[HALF] = {0}, product[HALF];
    for (int64_t c = 0; c < columns; c++) {
        bias[c] = out->bias ? out->bias[column + c] : 0.0f;
        gate_bias[c] = out->gate_bias ? out->gate_bias[column + c] : 0.0f;
    }
    for (int64_t r = 0; r < rows; r++, tile += H3_COLUMNS) {
        for (int64_t c = 0; c < HALF; c++) /* the columns that pad a panel are zeros: no harm */
            product[c] = (tile[c] + bias[c]) * h3_silu(tile[HALF + c] + gate_bias[c]);
        memcpy(out->y + (row + r) * out->n + column, product, (size_t)columns * 4);
    }
}

#endif
