"""IEEE float32."""

import numpy as np

from h3core.weights.formats.storage import Storage

F32 = Storage("f32", 1, 4, lambda raw: raw.view("<f4").astype(np.float32, copy=False))
