"""Eight-bit floats with five bits of exponent: the upper half of a float16."""

import numpy as np

from h3core.weights.formats.storage import Storage

E5M2 = Storage("e5m2", 1, 1, lambda raw: (raw.astype("<u2") << 8).view("<f2").astype(np.float32))
