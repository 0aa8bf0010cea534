"""Q4_0: four bits around 8, one scale per 32 values.

source: ggml-common.h, gguf/quants.py
"""

import numpy as np

from h3core.weights.formats.blocks import bits, fields, float16, grouped
from h3core.weights.formats.storage import Storage


def decode(raw: np.ndarray) -> np.ndarray:
    d, q = fields(raw, 2, 16)
    return (float16(d) * (grouped(bits(q, 16, (0, 4), 15), 1) - np.float32(8))).reshape(-1)


Q4_0 = Storage("q4_0", 32, 18, decode)
