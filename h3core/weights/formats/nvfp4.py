"""NVFP4: e2m1 values with an unsigned e4m3 scale per 16, in GGUF's blocks of 64.

source: ggml-common.h, gguf/quants.py
"""

import numpy as np

from h3core.weights.formats.blocks import bits, fields, grouped
from h3core.weights.formats.storage import Storage

# e2m1, doubled to whole numbers; the scales are halved for it. source: kvalues_mxfp4 in ggml-common.h
LEVELS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def half_scales() -> np.ndarray:
    """Half of what each of the 256 scale bytes means: bias 7, the sign is not looked at, 0x7f is 0."""
    byte = np.arange(256)
    exponent, mantissa = byte >> 3 & 15, (byte & 7).astype(np.float64)
    value = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    value[0x7F] = 0
    return (value / 2).astype(np.float32)


SCALES = half_scales()


def decode(raw: np.ndarray) -> np.ndarray:
    scales, q = fields(raw, 4, 32)
    return (SCALES[scales][..., None] * grouped(LEVELS[bits(q, 8, (0, 4), 15)], 4)).reshape(-1)


NVFP4 = Storage("nvfp4", 64, 36, decode)
