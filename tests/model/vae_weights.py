"""Weights of the tiny VAEs as the engine would hand them over, without the engine: for the tests of the two VAEs."""

import numpy as np
from safetensors.numpy import load_file

from h3core.kernels.quant_matrix import QuantMatrix
from tests.golden_files import TINY


def load_tiny(part: str) -> dict[str, np.ndarray]:
    """All tensors of tiny-h3's "vae" or "audio_vae"."""
    return load_file(TINY / part / "diffusion_pytorch_model.safetensors")


def only(weights: dict, *prefixes: str, but: str | tuple[str, ...] = "nothing") -> dict:
    """Those whose name starts with one of the prefixes and not with `but`."""
    return {name: weights[name] for name in weights if name.startswith(prefixes) and not name.startswith(but)}


def numbered(weights: dict, prefix: str, count: int) -> list[dict]:
    """Block after block, with the names within one."""
    blocks = [f"{prefix}{number}." for number in range(count)]
    return [{name.removeprefix(block): weights[name] for name in only(weights, block)} for block in blocks]


def as_block(weights: dict[str, np.ndarray], kernels, stored: str = "f32") -> dict:
    """Linear layers become matrices stored as f32 or bf16, everything else stays an array."""
    return {
        name: as_matrix(value, kernels, stored) if value.ndim == 2 and name.endswith(".weight") else value
        for name, value in weights.items()
    }


def as_matrix(weight: np.ndarray, kernels, stored: str) -> QuantMatrix:
    data = np.ascontiguousarray(weight)
    if stored == "bf16":  # the upper half of the float32, rounded to nearest even
        bits = data.view(np.uint32)
        data = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return QuantMatrix(data.reshape(-1).view(np.uint8), stored, *weight.shape, kernels)
