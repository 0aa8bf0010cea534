"""Q8_0: signed bytes, one scale per 32 values.

source: ggml-common.h, gguf/quants.py
"""

import numpy as np

from h3core.weights.formats.blocks import fields, float16, grouped
from h3core.weights.formats.storage import Storage


def decode(raw: np.ndarray) -> np.ndarray:
    d, q = fields(raw, 2, 32)
    return (grouped(q.view(np.int8), 1) * float16(d)).reshape(-1)


Q8_0 = Storage("q8_0", 32, 34, decode)
