"""Quantized safetensors: which stored tensors are scales, and how each layer says it is stored.

A layer `x` of a ComfyUI file is `x.weight` with `x.weight_scale` beside it and its description in `x.comfy_quant`, or
in the header's `_quantization_metadata`; older fp8 files have `x.scale_weight` and a key `scaled_fp8`; raw fp8 neither.
source: checkpoint-formats §2.4, §2.5.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace

from h3core.weights.formats.table import FLOATS
from h3core.weights.model_files import ModelError, shown
from h3core.weights.safetensors import NAMES_SHOWN, Tensor, read_bytes

_BESIDE = re.compile(r"(.*\.)(comfy_quant|weight_scale|scale_weight|input_scale|scale_input)$")
_FLOATS = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}  # dtype -> ComfyUI's word
_ROTATIONS = (64, 256)
_DESCRIPTION = 4096  # bytes; the published ones have about 60


def resolve(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of a part without what describes others, and the scale tensor of each that has one.

    tensors: names as the part has them, prefix cut off. A rotated tensor's dtype becomes that of its rotation.
    raises: ModelError for a kind of quantization that this build cannot run, or a scale of another length.
    """
    layers = _described(metadata)
    plain: dict[str, Tensor] = {}
    scales: dict[str, Tensor] = {}
    for name, each in tensors.items():
        if _BESIDE.match(name) or name == "scaled_fp8":
            continue
        layer = name.removesuffix(".weight")
        described = layer != name and (f"{layer}.comfy_quant" in tensors or layer in layers)
        if not described and each.dtype != "I8" and each.dtype not in _FLOATS:
            plain[name] = each
            continue
        about = _read(tensors[f"{layer}.comfy_quant"]) if f"{layer}.comfy_quant" in tensors else layers.get(layer, {})
        plain[name] = _stored(each, about)
        scale = tensors.get(f"{layer}.weight_scale") or tensors.get(f"{layer}.scale_weight")
        if scale is not None:
            scales[name] = _fitting(scale, each)
        elif each.dtype == "I8":
            raise ModelError(f"{_where(each)} has no weight_scale; the file is incomplete, download it again.")
    return plain, scales


def _where(each: Tensor) -> str:
    return f"{shown(each.path)}: {each.name[:NAMES_SHOWN]!r}"


def _stored(each: Tensor, about: Mapping) -> Tensor:
    """With the dtype word of its format, by what its layer says about itself."""
    inner = about.get("params")
    about = {**about, **inner} if isinstance(inner, dict) else about
    word = about.get("format") or _FLOATS.get(each.dtype)
    if word is None:
        raise ModelError(
            f"{_where(each)} does not say how its bytes are meant; use a file with comfy_quant, or a GGUF file."
        )
    if word == _FLOATS.get(each.dtype):
        return each
    if word != "int8_tensorwise" or each.dtype != "I8":
        raise ModelError(
            f"{_where(each)} is stored as {str(word)[:NAMES_SHOWN]}, which this version cannot run; "
            "use an int8_convrot, fp8_scaled or GGUF file of the same part."
        )
    if not about.get("convrot"):
        return each
    size = about.get("convrot_groupsize", 256)
    if size not in _ROTATIONS or not each.shape or each.shape[-1] % size:
        raise ModelError(
            f"{_where(each)} is rotated in groups of {str(size)[:NAMES_SHOWN]}, which this version cannot run; "
            "use another int8_convrot file or a GGUF file."
        )
    return replace(each, dtype=f"I8_ROT{size}")


def _fitting(scale: Tensor, each: Tensor) -> Tensor:
    if scale.dtype not in FLOATS or math.prod(scale.shape) not in (1, each.shape[0] if each.shape else 1):
        raise ModelError(
            f"{_where(scale)} is {scale.dtype} {list(scale.shape)}, no scale for {list(each.shape)}; "
            "download this file again."
        )
    return scale


def _read(tensor: Tensor) -> dict:
    """The JSON text in a tensor of bytes."""
    if tensor.size_bytes > _DESCRIPTION:
        raise ModelError(f"{_where(tensor)} is no description; download this file again.")
    try:
        about = json.loads(read_bytes(tensor).decode())
    except (ValueError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        about = None
    if not isinstance(about, dict):
        raise ModelError(f"{_where(tensor)} is no description; download this file again.")
    return about


def _described(metadata: Mapping[str, str]) -> dict[str, dict]:
    """Layers that the header describes, under their names without another program's prefix."""
    try:
        layers = json.loads(metadata.get("_quantization_metadata", "{}")).get("layers", {})
    except (ValueError, AttributeError, RecursionError):
        return {}
    if not isinstance(layers, dict):
        return {}
    return {
        re.sub(r"^(model\.)?diffusion_model\.|^model\.", "", name): about
        for name, about in layers.items()
        if isinstance(about, dict)
    }
