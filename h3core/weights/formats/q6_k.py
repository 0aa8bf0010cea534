"""Q6_K: six bits around 32; of 256 values each 16 have a signed eight-bit scale.

source: ggml-common.h, gguf/quants.py
"""

import numpy as np

from h3core.weights.formats.blocks import bits, fields, float16, grouped
from h3core.weights.formats.storage import Storage


def decode(raw: np.ndarray) -> np.ndarray:
    q, high, scales, d = fields(raw, 128, 64, 16, 2)
    numbers = bits(q, 64, (0, 4), 15) | bits(high, 32, (0, 2, 4, 6), 3) << np.uint8(4)
    by = float16(d) * grouped(scales.view(np.int8), 16)
    return (by * (grouped(numbers, 16) - np.float32(32))).reshape(-1)


Q6_K = Storage("q6_k", 256, 210, decode)
