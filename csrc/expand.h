/* Stored weights -> panels: the bodies that every instruction set compiles for itself. */
#ifndef H3_EXPAND_H
#define H3_EXPAND_H

#include "lanes.h"

#define H3_FLIP 0x80808080u /* int8 -> uint8: value + 128 in each byte */

/* 16 stored rows from value `first` -> rows[16][256], zeros after `count` and for absent rows. */
H3_INLINE void h3_decode_group(float *rows, const void *const *stored, int64_t first, int64_t count, h3_decode_fn decode) {
    for (int64_t lane = 0; lane < H3_LANES; lane++) {
        int64_t known = stored[lane] ? count : 0;
        if (known)
            decode(rows + lane * H3_GROUP, stored[lane], first, known);
        if (known < H3_GROUP)
            memset(rows + lane * H3_GROUP + known, 0, (size_t)(H3_GROUP - known) * 4);
    }
}

H3_INLINE void h3_expand_f32_body(void *panel, const void *const *rows, int64_t k, h3_decode_fn decode, const h3_lanes *isa) {
    float group[H3_LANES * H3_GROUP] __attribute__((aligned(64)));
    for (int64_t first = 0; first < k; first += H3_GROUP) {
        int64_t count = k - first < H3_GROUP ? k - first : H3_GROUP;
        for (int64_t lane = 0; lane < H3_COLUMNS; lane += H3_LANES) {
            h3_decode_group(group, rows + lane, first, count, decode);
            h3_group_f32((float *)panel + first * H3_COLUMNS + lane, H3_COLUMNS, H3_LANES, group, count, isa);
        }
    }
}

H3_INLINE void h3_expand_bf16_body(void *panel, const void *const *rows, int64_t k, h3_decode_fn decode, const h3_lanes *isa) {
    float group[H3_LANES * H3_GROUP] __attribute__((aligned(64)));
    for (int64_t first = 0; first < k; first += H3_GROUP) {
        int64_t count = k - first < H3_GROUP ? k - first : H3_GROUP;
        for (int64_t lane = 0; lane < H3_COLUMNS; lane += H3_LANES) {
            h3_decode_group(group, rows + lane, first, count, decode);
            h3_group_bf16((uint32_t *)panel + first / 2 * H3_COLUMNS + lane, H3_COLUMNS, H3_LANES, group, count, isa);
        }
    }
}

H3_INLINE void h3_expand_int8_body(void *panel, const void *const *rows, int64_t k, h3_decode_fn decode, const h3_lanes *isa) {
    float group[H3_LANES * H3_GROUP] __attribute__((aligned(64)));
    float t[H3_GROUP * H3_LANES] __attribute__((aligned(64)));
    int64_t block = h3_rotation(k);
    float unrotate = 1.0f / (float)block; /* rotating both sides multiplies each product sum by the block length */
    float *scale = (float *)((uint32_t *)panel + (k + 3) / 4 * H3_COLUMNS);
    for (int64_t first = 0; first < k; first += H3_GROUP, scale += H3_COLUMNS) {
        int64_t count = k - first < H3_GROUP ? k - first : H3_GROUP;
        for (int64_t lane = 0; lane < H3_COLUMNS; lane += H3_LANES) {
            h3_decode_group(group, rows + lane, first, count, decode);
            h3_group_int8((uint32_t *)panel + first / 4 * H3_COLUMNS + lane, H3_COLUMNS, H3_LANES, H3_FLIP, scale + lane, 0,
                          group, count, block, t, isa);
            for (int64_t i = lane; i < lane + H3_LANES; i++)
                scale[i] *= unrotate;
        }
    }
}

#endif
