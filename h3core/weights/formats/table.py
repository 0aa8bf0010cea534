"""The storage formats this build can run, by the kernels' name and by the safetensors dtype."""

from h3core.weights.formats.bf16 import BF16
from h3core.weights.formats.f16 import F16
from h3core.weights.formats.f32 import F32
from h3core.weights.formats.storage import Storage

FORMATS: dict[str, Storage] = {each.name: each for each in (F32, F16, BF16)}

# dtype word in a safetensors header -> our format
SAFETENSORS: dict[str, str] = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
