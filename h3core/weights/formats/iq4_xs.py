"""IQ4_XS: the levels of IQ4_NL; of 256 values each 32 have a six-bit scale.

source: ggml-common.h, gguf/quants.py
"""

import numpy as np

from h3core.weights.formats.blocks import bits, fields, float16, grouped
from h3core.weights.formats.iq4_nl import LEVELS
from h3core.weights.formats.storage import Storage


def decode(raw: np.ndarray) -> np.ndarray:
    d, high, low, q = fields(raw, 2, 2, 4, 128)
    above = np.ascontiguousarray(high).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = bits(low, 1, (0, 4), 15) | above.astype(np.uint8) << np.uint8(4)
    by = float16(d) * (grouped(scales, 8) - np.float32(32))
    return (by * grouped(LEVELS[bits(q, 16, (0, 4), 15)], 8)).reshape(-1)


IQ4_XS = Storage("iq4_xs", 256, 136, decode)
