"""bfloat16: the upper half of a float32."""

import numpy as np

from h3core.weights.formats.storage import Storage

BF16 = Storage("bf16", 1, 2, lambda raw: (raw.view("<u2").astype(np.uint32) << 16).view(np.float32))
