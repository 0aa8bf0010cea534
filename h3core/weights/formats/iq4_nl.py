"""IQ4_NL: four bits that choose a level from a table, one scale per 32 values.

source: ggml-common.h, gguf/quants.py
"""

import numpy as np

from h3core.weights.formats.blocks import bits, fields, float16, grouped
from h3core.weights.formats.storage import Storage

# source: kvalues_iq4nl in ggml-common.h
LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


def decode(raw: np.ndarray) -> np.ndarray:
    d, q = fields(raw, 2, 16)
    return (float16(d) * grouped(LEVELS[bits(q, 16, (0, 4), 15)], 1)).reshape(-1)


IQ4_NL = Storage("iq4_nl", 32, 18, decode)
