"""Eight-bit floats with four bits of exponent, the "fn" kind: no infinity, 0x7f is the only NaN.

source: Micikevicius et al. 2022, FP8 Formats for Deep Learning, §3
"""

import numpy as np

from h3core.weights.formats.storage import Storage


def every_value() -> np.ndarray:
    """What each of the 256 bytes means, float32."""
    byte = np.arange(256)
    exponent, mantissa = byte >> 3 & 15, (byte & 7).astype(np.float64)
    value = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    value[byte & 0x7F == 0x7F] = np.nan
    return np.where(byte < 128, value, -value).astype(np.float32)


VALUES = every_value()
E4M3 = Storage("e4m3", 1, 1, lambda raw: VALUES[raw])
