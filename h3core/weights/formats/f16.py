"""IEEE float16, exact in float32."""

import numpy as np

from h3core.weights.formats.storage import Storage

F16 = Storage("f16", 1, 2, lambda raw: raw.view("<f2").astype(np.float32))
