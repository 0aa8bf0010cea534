"""Signed bytes; what a row is multiplied with lies in a tensor of its own."""

import numpy as np

from h3core.weights.formats.storage import Storage

I8 = Storage("i8", 1, 1, lambda raw: raw.view(np.int8).astype(np.float32))
