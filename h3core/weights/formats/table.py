"""The storage formats this build can run: by the kernels' name, by the safetensors dtype, by GGUF's type number."""

from h3core.weights.formats.bf16 import BF16
from h3core.weights.formats.e4m3 import E4M3
from h3core.weights.formats.e5m2 import E5M2
from h3core.weights.formats.f16 import F16
from h3core.weights.formats.f32 import F32
from h3core.weights.formats.i8 import I8
from h3core.weights.formats.i8_rotated import I8_ROT64, I8_ROT256
from h3core.weights.formats.iq4_nl import IQ4_NL
from h3core.weights.formats.iq4_xs import IQ4_XS
from h3core.weights.formats.nvfp4 import NVFP4
from h3core.weights.formats.q2_k import Q2_K
from h3core.weights.formats.q3_k import Q3_K
from h3core.weights.formats.q4_0 import Q4_0
from h3core.weights.formats.q4_1 import Q4_1
from h3core.weights.formats.q4_k import Q4_K
from h3core.weights.formats.q5_0 import Q5_0
from h3core.weights.formats.q5_1 import Q5_1
from h3core.weights.formats.q5_k import Q5_K
from h3core.weights.formats.q6_k import Q6_K
from h3core.weights.formats.q8_0 import Q8_0
from h3core.weights.formats.storage import Storage

FORMATS: dict[str, Storage] = {
    each.name: each
    for each in (
        F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, NVFP4, I8, I8_ROT64,
        I8_ROT256, E4M3, E5M2,
    )
}  # fmt: skip

# dtype word in a safetensors header -> our format; a rotation is not said there but beside the tensor
FLOATS: dict[str, str] = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
SAFETENSORS: dict[str, str] = FLOATS | {
    "I8": "i8", "I8_ROT64": "i8_rot64", "I8_ROT256": "i8_rot256", "F8_E4M3": "e4m3", "F8_E5M2": "e5m2",
}  # fmt: skip

# ggml type number in a GGUF header -> our format.   source: enum ggml_type in ggml.h
GGUF: dict[int, str] = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 10: "q2_k", 11: "q3_k", 12: "q4_k",
    13: "q5_k", 14: "q6_k", 20: "iq4_nl", 23: "iq4_xs", 30: "bf16", 40: "nvfp4",
}  # fmt: skip

# dtype word of a header that has been read -> our format; GGUF's words are ours in capitals
DTYPES: dict[str, str] = SAFETENSORS | {name.upper(): name for name in GGUF.values()}
