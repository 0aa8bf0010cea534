"""Q5_1: five bits, scale and minimum per 32 values.

source: ggml-common.h, gguf/quants.py
"""

import numpy as np

from h3core.weights.formats.blocks import bits, fields, float16, grouped
from h3core.weights.formats.storage import Storage


def decode(raw: np.ndarray) -> np.ndarray:
    d, m, high, q = fields(raw, 2, 2, 4, 16)
    numbers = bits(q, 16, (0, 4), 15) | np.unpackbits(high, axis=1, bitorder="little") << np.uint8(4)
    return (float16(d) * grouped(numbers, 1) + float16(m)).reshape(-1)


Q5_1 = Storage("q5_1", 32, 24, decode)
