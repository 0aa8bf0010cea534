"""Q2_K: two bits; of 256 values each 16 have a four-bit scale and minimum.

source: ggml-common.h, gguf/quants.py
"""

import numpy as np

from h3core.weights.formats.blocks import bits, fields, float16, grouped
from h3core.weights.formats.storage import Storage


def decode(raw: np.ndarray) -> np.ndarray:
    scales, q, d, dmin = fields(raw, 16, 64, 2, 2)
    scale, least = float16(d) * grouped(scales & 15, 16), float16(dmin) * grouped(scales >> 4, 16)
    return (scale * grouped(bits(q, 32, (0, 2, 4, 6), 3), 16) - least).reshape(-1)


Q2_K = Storage("q2_k", 256, 84, decode)
