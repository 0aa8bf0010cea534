"""Q5_K: five bits; of 256 values each 32 have a six-bit scale and minimum, packed as in Q4_K.

source: ggml-common.h, gguf/quants.py
"""

import numpy as np

from h3core.weights.formats.blocks import bits, fields, float16, grouped
from h3core.weights.formats.q4_k import scales_and_minima
from h3core.weights.formats.storage import Storage


def decode(raw: np.ndarray) -> np.ndarray:
    d, dmin, packed, high, q = fields(raw, 2, 2, 12, 32, 128)
    scales, minima = scales_and_minima(packed)
    by, minus = float16(d) * grouped(scales, 8), float16(dmin) * grouped(minima, 8)
    numbers = bits(q, 32, (0, 4), 15) | bits(high, 32, tuple(range(8)), 1) << np.uint8(4)
    return (by * grouped(numbers, 8) - minus).reshape(-1)


Q5_K = Storage("q5_k", 256, 176, decode)
