"""Whole runs from ComfyUI's quantized safetensors, against the same runs over their dequantized weights."""

import json

import numpy as np
import pytest

from h3core.kernels.table import Kernels
from h3core.weights.identify import open_model
from tests.engine.test_gguf_runs import DIT, SAME, TEXT, frame, latents, own_home, random_part  # noqa: F401
from tests.golden_files import compare, relative_l2
from tests.weights.files import native_transformer, write
from tests.weights.test_formats import hadamard

QUANTIZED = ("qkv_proj.weight", "out_proj.weight", "fc1.weight", "fc2.weight", "adaln_proj.linear.weight",
             "_proj.weight", "embed_tokens.weight")  # fmt: skip


def floats(tensor: tuple) -> np.ndarray:
    return np.frombuffer(tensor[2], np.float32).reshape(tensor[1])


def as_f32(values: np.ndarray) -> tuple:
    return "F32", list(values.shape), np.ascontiguousarray(values, np.float32).tobytes()


def int8(name: str, w: np.ndarray, group: int) -> tuple[dict, np.ndarray]:
    """Stored tensors of one layer, and the values that they mean. group: of the rotation, 0 for none."""
    h = np.kron(np.eye(w.shape[1] // group), hadamard(group)) if group else np.eye(w.shape[1])
    turned = w.astype(np.float64) @ h
    scale = (np.abs(turned).max(axis=1, keepdims=True) / 127).astype(np.float32)
    q = np.rint(turned / scale).astype(np.int8)
    about = {"format": "int8_tensorwise"} | ({"convrot": True, "convrot_groupsize": group} if group else {})
    raw = json.dumps(about).encode()
    stored = {f"{name}.weight": ("I8", list(w.shape), q.tobytes()), f"{name}.weight_scale": as_f32(scale)}
    return stored | {f"{name}.comfy_quant": ("U8", [len(raw)], raw)}, q.astype(np.float64) @ h * scale


def fp8(name: str, w: np.ndarray, kind: str) -> tuple[dict, np.ndarray]:
    dtype = getattr(pytest.importorskip("ml_dtypes"), kind)
    scale = np.float32(np.abs(w).max() / 400)
    q = (w / scale).astype(dtype)
    raw = json.dumps({"format": kind}).encode()
    word = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}[kind]
    stored = {f"{name}.weight": (word, list(w.shape), q.tobytes()), f"{name}.weight_scale": as_f32(scale)}
    return stored | {f"{name}.comfy_quant": ("U8", [len(raw)], raw)}, q.astype(np.float64) * scale


def both(tmp_path, quantize, changes: dict | None = None):
    """The model from quantized files, and the same from float32 files."""
    dit = random_part("transformer", DIT | (changes or {}), "f32", {})
    dit = native_transformer(
        {name: (kind.upper(), *rest) for name, (kind, *rest) in dit.items()}, DIT["num_attention_heads"], "stacked"
    )
    text = random_part("text_encoder", TEXT, "f32", {})
    text = {f"model.{name}": ("F32", list(shape), data) for name, (_, shape, data) in text.items()}
    packed, plain = frame(tmp_path / "packed"), frame(tmp_path / "plain")
    for folder, tensors in (("transformer", dit), ("text_encoder", text)):
        ours, theirs = dict(tensors), dict(tensors)
        for name, tensor in tensors.items():
            if name.endswith(QUANTIZED) and len(tensor[1]) == 2 and tensor[1][1] % 256 == 0 and "patch" not in name:
                stored, values = quantize(name.removesuffix(".weight"), floats(tensor))
                del ours[name]
                ours |= stored
                theirs[name] = as_f32(values)
        assert ours != theirs
        write(packed / folder / "model.safetensors", ours, {"qkv_layout": "stacked"})
        write(plain / folder / "model.safetensors", theirs, {"qkv_layout": "stacked"})
    return open_model(packed), open_model(plain)


KINDS = {
    "int8": lambda name, w: int8(name, w, 0),
    "int8_convrot 256": lambda name, w: int8(name, w, 256),
    "int8_convrot 64": lambda name, w: int8(name, w, 64),
    "e4m3": lambda name, w: fp8(name, w, "float8_e4m3fn"),
    "e5m2": lambda name, w: fp8(name, w, "float8_e5m2"),
    "mixed": lambda name, w: int8(name, w, 256) if "1" in name else fp8(name, w, "float8_e4m3fn"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_equals_the_run_over_dequantized_weights(tmp_path, kind):
    packed, plain = both(tmp_path, KINDS[kind])
    kernels = Kernels(threads=2)
    got, want = latents(tmp_path, "packed", packed, kernels), latents(tmp_path, "plain", plain, kernels)
    for name, ours, theirs in zip(("prompt", "video", "audio"), got, want, strict=True):
        compare(f"{kind} {name}", ours, theirs, SAME)


def test_the_recommended_file_is_pruned_and_rotated(tmp_path):
    packed, plain = both(tmp_path, KINDS["int8_convrot 256"], {"time_embed_dim": 8, "adaln_grid": 33})
    assert packed.transformer.config["adaln_grid"] == 33
    kernels = Kernels(threads=2)
    got, want = latents(tmp_path, "packed", packed, kernels), latents(tmp_path, "plain", plain, kernels)
    for name, ours, theirs in zip(("prompt", "video", "audio"), got, want, strict=True):
        compare(f"pruned int8 {name}", ours, theirs, SAME)
    for ours, theirs in zip(latents(tmp_path, "int8", packed, kernels, "int8"), want, strict=True):
        assert 0 < relative_l2(ours, theirs) < 0.1
