"""Q4_1: four bits, scale and minimum per 32 values.

source: ggml-common.h, gguf/quants.py
"""

import numpy as np

from h3core.weights.formats.blocks import bits, fields, float16, grouped
from h3core.weights.formats.storage import Storage


def decode(raw: np.ndarray) -> np.ndarray:
    d, m, q = fields(raw, 2, 2, 16)
    return (float16(d) * grouped(bits(q, 16, (0, 4), 15), 1) + float16(m)).reshape(-1)


Q4_1 = Storage("q4_1", 32, 20, decode)
