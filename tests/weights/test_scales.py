"""Quantized safetensors: what a layer says about itself, wherever it may say it; everything else is refused."""

import json
import shutil

import numpy as np
import pytest

from h3core.engine.residency import Residency, memory_bytes
from h3core.kernels.quant_matrix import QuantMatrix
from h3core.kernels.table import Kernels
from h3core.weights.check import check
from h3core.weights.identify import open_model
from h3core.weights.model_files import ModelError
from tests.golden_files import TINY
from tests.weights.files import native_transformer, stored, write
from tests.weights.test_formats import hadamard
from tests.weights.test_identify import loose_parts
from tests.weights.test_safetensors import one_sentence

NAME = "minimax_h3_fl2va_int8_convrot.safetensors"
LAYER = "blocks.0.attn.qkv_proj"


def folder_with(tmp_path, change, metadata=None, prefix=""):
    """The tiny checkpoint as loose parts; `change` rewrites the transformer's tensors."""
    folder = loose_parts(tmp_path / "models")
    (folder / "minimax_h3_fl2va_bf16.safetensors").unlink()
    (folder / "minimax_h3_fl2va_bf16.json").unlink()
    tensors = native_transformer(stored(next((TINY / "transformer").glob("*.safetensors"))), 3, "stacked")
    change(tensors)
    tensors = {prefix + name: each for name, each in tensors.items()}
    write(folder / NAME, tensors, {"qkv_layout": "stacked", **(metadata or {})})
    shutil.copy(TINY / "transformer/config.json", (folder / NAME).with_suffix(".json"))
    return folder


def described(about: dict) -> tuple:
    raw = json.dumps(about).encode()
    return "U8", [len(raw)], raw


def int8(about: dict | None, scale: np.ndarray | None, beside: str = "weight_scale"):
    """A change that stores one layer as signed bytes, (288, 64), row r filled with r % 100."""

    def change(tensors):
        values = np.repeat(np.arange(288) % 100, 64).astype(np.int8)
        tensors[f"{LAYER}.weight"] = "I8", [288, 64], values.tobytes()
        if about is not None:
            tensors[f"{LAYER}.comfy_quant"] = described(about)
        if scale is not None:
            tensors[f"{LAYER}.{beside}"] = "F32", list(scale.shape), scale.astype(np.float32).tobytes()

    return change


def loaded(folder):
    part = open_model(folder).transformer
    group = part.group("transformer_blocks.0.attn.")
    block = Residency(Kernels("c", 1)).load(group)
    return np.concatenate([block[f"to_{each}.weight"].dequantize() for each in "qkv"]), group


PLAIN = np.repeat(np.arange(288) % 100, 64).reshape(288, 64).astype(np.float32)
SCALES = np.linspace(0.5, 2, 288, dtype=np.float32).reshape(288, 1)


@pytest.mark.parametrize("prefix", ("", "model.diffusion_model."))
@pytest.mark.parametrize("scale", (SCALES, np.array(0.25), np.array([0.25])))
def test_int8_rows(tmp_path, scale, prefix):
    folder = folder_with(tmp_path, int8({"format": "int8_tensorwise"}, scale), prefix=prefix)
    got, group = loaded(folder)
    assert np.array_equal(got, PLAIN * scale.astype(np.float32))
    assert {each.format for each in group.values() if each.scale} == {"i8"}
    assert not [each for each in check(folder) if each.level != "note"]


@pytest.mark.parametrize("about", (
    {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 64},
    {"format": "int8_tensorwise", "params": {"convrot": True, "convrot_groupsize": 64}},
))  # fmt: skip
def test_rotated_rows(tmp_path, about):
    got, group = loaded(folder_with(tmp_path, int8(about, SCALES)))
    want = (PLAIN.astype(np.float64) @ hadamard(64)).astype(np.float32) * SCALES
    assert np.array_equal(got, want)
    assert {each.format for each in group.values() if each.scale} == {"i8_rot64"}


@pytest.mark.parametrize("before", ("", "model.diffusion_model.", "diffusion_model."))
def test_the_header_may_describe_the_layers(tmp_path, before):
    layers = {f"{before}{LAYER}": {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 64}}
    metadata = {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": layers})}
    _, group = loaded(folder_with(tmp_path, int8(None, SCALES), metadata))
    assert group["to_q.weight"].format == "i8_rot64" and group["to_q.weight"].scale.shape == (288,)


@pytest.mark.parametrize("kind", ("float8_e4m3fn", "float8_e5m2"))
@pytest.mark.parametrize("how", ("raw", "weight_scale", "scale_weight"))
def test_eight_bit_floats(tmp_path, kind, how):
    dtype = getattr(pytest.importorskip("ml_dtypes"), kind)
    values = np.random.default_rng(0).standard_normal((288, 64)).astype(dtype)

    def change(tensors):
        word = "F8_E4M3" if kind.endswith("fn") else "F8_E5M2"
        tensors[f"{LAYER}.weight"] = word, [288, 64], values.tobytes()
        if how == "weight_scale":
            tensors[f"{LAYER}.comfy_quant"] = described({"format": kind})
            tensors[f"{LAYER}.input_scale"] = "F32", [], np.float32(3).tobytes()
        if how == "scale_weight":
            tensors["scaled_fp8"] = word, [0], b""
        if how != "raw":
            tensors[f"{LAYER}.{how}"] = "F32", [], np.float32(0.125).tobytes()

    got, _ = loaded(folder_with(tmp_path, change))
    assert np.array_equal(got, values.astype(np.float32) * np.float32(1 if how == "raw" else 0.125))


def test_what_is_no_matrix_is_scaled_too(tmp_path):
    """Convolutions, and rows of a table that is looked up."""
    folder = folder_with(
        tmp_path, int8({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 64}, SCALES)
    )
    weight = open_model(folder).transformer.weights["transformer_blocks.0.attn.to_k.weight"]
    residency, want = Residency(Kernels("c", 1)), (PLAIN @ hadamard(64).astype(np.float32)) * SCALES
    rows = np.array([3, 0, 95, 3])
    assert np.allclose(residency.lookup(weight, rows), want[96 + rows], rtol=1e-6)
    block = residency.load({"pos_embed.weight": weight, "x.weight": weight})
    assert isinstance(block["x.weight"], QuantMatrix)
    assert np.array_equal(block["pos_embed.weight"], block["x.weight"].dequantize())
    assert memory_bytes({"x.weight": weight}) == 288 * 64 + 4 * 96


ROTATED = {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 64}
REFUSED = {
    "says nothing": (int8(None, SCALES), "does not say how its bytes are meant"),
    "no scale": (int8({"format": "int8_tensorwise"}, None), "has no weight_scale"),
    "another format": (int8({"format": "convrot_w4a4"}, SCALES), "stored as convrot_w4a4"),
    "a format of another dtype": (int8({"format": "float8_e4m3fn"}, SCALES), "stored as float8_e4m3fn"),
    "a group of 16": (
        int8({"format": "int8_tensorwise", "convrot": 1, "convrot_groupsize": 16}, SCALES),
        "groups of 16",
    ),
    "a group of words": (int8(ROTATED | {"convrot_groupsize": "x"}, SCALES), "of x"),
    "a group that K lacks": (int8({"format": "int8_tensorwise", "convrot": True}, SCALES), "groups of 256"),
    "too few scales": (int8({"format": "int8_tensorwise"}, SCALES[:96]), "no scale for [288, 64]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_run_is_said(tmp_path, name):
    change, words = REFUSED[name]
    with pytest.raises(ModelError) as caught:
        open_model(folder_with(tmp_path, change))
    one_sentence(caught.value, NAME, words)


@pytest.mark.parametrize("raw", (b"", b"[]", b"\xff", b"{", b" " * 5000, b"[" * 4000))
def test_a_damaged_description(tmp_path, raw):
    def change(tensors):
        int8(None, SCALES)(tensors)
        tensors[f"{LAYER}.comfy_quant"] = "U8", [len(raw)], raw

    with pytest.raises(ModelError) as caught:
        open_model(folder_with(tmp_path, change))
    one_sentence(caught.value, NAME, "is no description")
