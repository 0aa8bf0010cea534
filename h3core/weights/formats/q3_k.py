"""Q3_K: three bits around 4; of 256 values each 16 have a six-bit scale.

source: ggml-common.h, gguf/quants.py
"""

import numpy as np

from h3core.weights.formats.blocks import bits, fields, float16, grouped
from h3core.weights.formats.storage import Storage


def decode(raw: np.ndarray) -> np.ndarray:
    high, q, scales, d = fields(raw, 32, 64, 12, 2)
    scale = bits(scales[:, :8], 8, (0, 4), 15) | bits(scales[:, 8:], 4, (0, 2, 4, 6), 3) << np.uint8(4)
    numbers = bits(q, 32, (0, 2, 4, 6), 3) | bits(high, 32, tuple(range(8)), 1) << np.uint8(2)
    by = float16(d) * (grouped(scale, 16) - np.float32(32))
    return (by * (grouped(numbers, 16) - np.float32(4))).reshape(-1)


Q3_K = Storage("q3_k", 256, 110, decode)
