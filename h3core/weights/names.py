"""Tensor names: whatever a file calls them -> the diffusers names, with the row order where rows lie elsewhere.

source: spec §17.1 (transformer), §17.3 (video VAE), §17.4 (audio VAE), checkpoint-formats §1.4, §2.1, §2.2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from h3core.weights.formats.table import DTYPES
from h3core.weights.model_files import ModelError, RowOrder, Weight, shown
from h3core.weights.safetensors import NAMES_SHOWN, Tensor

QKV_LAYOUTS = ("interleaved", "stacked")

# What other programs put before the names of a part; the first that fits is cut off.
PREFIXES = {
    "transformer": ("model.diffusion_model.", "diffusion_model.", "transformer."),
    "text_encoder": (
        "text_encoders.qwen3vl_32b.transformer.model.",
        "model.language_model.",
        "language_model.model.",
        "language_model.",
        "model.",
    ),
    "video_vae": ("first_stage_model.", "video_vae.", "vae."),
    "audio_vae": ("audio_vae.",),
}
# One tensor whose name, after the prefix, every file of a part has; either spelling.
MARKS = {
    "transformer": ("blocks.0.attn.qkv_proj.weight", "transformer_blocks.0.attn.to_q.weight"),
    "text_encoder": ("layers.0.self_attn.q_proj.weight", "blk.0.attn_q_norm.weight"),
    "video_vae": ("decoder.transformer_blocks.0.attn.to_qkv.weight", "decoder.transformer_blocks.0.attn.to_q.weight"),
    "audio_vae": ("dec_in_proj.weight",),
}


def prefix_of(kind: str, names: Iterable[str]) -> str | None:
    """The prefix before this part's names, "" for none; None when the names are not this part's."""
    names = names if isinstance(names, (set, dict)) else set(names)
    for prefix in ("", *PREFIXES[kind]):
        if any(prefix + mark in names for mark in MARKS[kind]):
            return prefix
    return None


_TRANSFORMER = (
    (re.compile(r"^blocks\."), "transformer_blocks."),
    (re.compile(r"^token_refiner\.blocks\."), "token_refiner.refiner_blocks."),
    (re.compile(r"^time_embedder\.proj_in\."), "time_embedder.linear_1."),
    (re.compile(r"^time_embedder\.proj_out\."), "time_embedder.linear_2."),
    (re.compile(r"^video_patch_proj\."), "proj_in."),
    (re.compile(r"^audio_patch_proj\."), "audio_proj_in."),
    (re.compile(r"^condition_proj\."), "context_embedder."),
    (re.compile(r"^final_layer\.norm\."), "norm_out.norm."),
    (re.compile(r"^final_layer\.adaln_proj\.linear\."), "norm_out.linear."),
    (re.compile(r"^final_layer\.video_out\."), "proj_out."),
    (re.compile(r"^final_layer\.audio_out\."), "audio_proj_out."),
    (re.compile(r"\.attn\.q_norm\."), ".attn.norm_q."),
    (re.compile(r"\.attn\.k_norm\."), ".attn.norm_k."),
    (re.compile(r"\.attn\.out_proj\."), ".attn.to_out.0."),
    (re.compile(r"\.mlp\.fc2\."), ".ff.net.2."),
)
_VIDEO_VAE = (
    (re.compile(r"^encoder\.down\.(\d+)\.block\."), r"encoder.down_blocks.\1.resnets."),
    (re.compile(r"^encoder\.down\.(\d+)\.downsample\."), r"encoder.down_blocks.\1.downsamplers.0."),
    (re.compile(r"\.nin_shortcut\."), ".conv_shortcut."),
    (re.compile(r"^decoder\.x_embedder\."), "decoder.proj_in."),
    (re.compile(r"\.attn\.to_out\.(?=weight$|bias$)"), ".attn.to_out.0."),
    (re.compile(r"\.ff\.w2\."), ".ff.net.2."),
)
_AUDIO_VAE = (  # newer torch spells weight norm this way; the release has weight_g, weight_v
    (re.compile(r"\.parametrizations\.weight\.original0$"), ".weight_g"),
    (re.compile(r"\.parametrizations\.weight\.original1$"), ".weight_v"),
)
_TEXT_ENCODER = (  # llama.cpp's names; it leaves q and k rows of Qwen3 as they are.   source: gguf/constants.py
    (re.compile(r"^token_embd\."), "embed_tokens."),
    (re.compile(r"^blk\.(\d+)\.attn_norm\."), r"layers.\1.input_layernorm."),
    (re.compile(r"^blk\.(\d+)\.attn_output\."), r"layers.\1.self_attn.o_proj."),
    (re.compile(r"^blk\.(\d+)\.attn_([qk]_norm)\."), r"layers.\1.self_attn.\2."),
    (re.compile(r"^blk\.(\d+)\.attn_([qkv])\."), r"layers.\1.self_attn.\2_proj."),
    (re.compile(r"^blk\.(\d+)\.ffn_norm\."), r"layers.\1.post_attention_layernorm."),
    (re.compile(r"^blk\.(\d+)\.ffn_(gate|up|down)\."), r"layers.\1.mlp.\2_proj."),
)
_TOWER = re.compile(
    r"^(?:text_encoders\.qwen3vl_32b\.transformer\.)?(?:model\.)?(visual\.)"
)  # lies beside the language model
_RENAMES = {
    "transformer": _TRANSFORMER,
    "video_vae": _VIDEO_VAE,
    "audio_vae": _AUDIO_VAE,
    "text_encoder": _TEXT_ENCODER,
}

# Tensors of a release that nothing reads: recomputed, zero, or after the layer that is tapped (spec §3, §6.3, §17.3).
_DROPPED = {
    "transformer": re.compile(r"^rope\.inv_freq$"),
    "video_vae": re.compile(r"^(decoder\.mask_token|latents_mean|latents_std)$"),
    "audio_vae": re.compile(r"^(latents_mean|latents_std)$"),
    "text_encoder": re.compile(r"^((output_)?norm\.weight|output\.weight|(.*\.)?lm_head\.weight)$"),
}
_FUSED = re.compile(r"(.*\.attn\.)(qkv_proj|to_qkv)\.(weight|bias)$")
_GATE_FIRST = re.compile(r"(.*\.)(mlp\.fc1|ff\.w1)\.(weight|bias)$")


def strip_prefix(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The part's tensors without the prefix of the program that wrote the file; what lies outside it is left out.

    raises: ModelError when two names become one.
    """
    prefix = prefix_of(kind, tensors) or ""
    stripped: dict[str, Tensor] = {}
    for name, each in tensors.items():
        if name.startswith(prefix):
            short = name[len(prefix) :]
        elif kind == "text_encoder" and (tower := _TOWER.match(name)):
            short = name[tower.start(1) :]
        else:
            continue
        if short in stripped:
            raise ModelError(
                f"{shown(each.path)} has {short[:NAMES_SHOWN]!r} with and without a prefix; keep one of the two."
            )
        stripped[short] = each
    return stripped


def qkv_rows(heads: int, head_dim: int, which: int, layout: str) -> RowOrder:
    """Row order of q (which 0), k (1) or v (2) inside a fused tensor of 3 * heads * head_dim rows.

    "interleaved": head 0's q, k, v rows, then head 1's ... ; "stacked": all q, all k, all v.   source: spec §17.2
    """
    if layout == "interleaved":
        return RowOrder(which * head_dim, head_dim, 3 * head_dim)
    inner = heads * head_dim
    return RowOrder(which * inner, inner, inner)


def halves_swapped(rows: int) -> RowOrder:
    """Row order that reads [gate; value] as the diffusers [value; gate]."""
    return RowOrder(rows // 2, rows // 2, -(rows // 2))


def canonical(
    kind: str,
    tensors: Mapping[str, Tensor],
    head_dim: int | None = None,
    qkv_layout: str | None = None,
    scales: Mapping[str, Tensor] | None = None,
) -> dict[str, Weight]:
    """The weights of a part by their diffusers names.

    tensors: prefix cut off (`strip_prefix`).   head_dim: of the fused attention; the transformer's own q norm wins.
    qkv_layout: row order of a fused qkv; the video VAE's is interleaved in every file, so it is not asked there.
    scales: name of a tensor -> the tensor of its scales (`scales.resolve`).
    raises: ModelError for a format this build cannot run, a name that appears twice, a fused tensor of an odd height.
    """
    if kind == "video_vae":
        qkv_layout = "interleaved"
    weights: dict[str, Weight] = {}
    for name, each in tensors.items():
        if _DROPPED[kind].match(name):
            continue
        scale = _scale((scales or {}).get(name))
        for weight in _translate(kind, name, each, tensors, head_dim, qkv_layout):
            if scale:
                weight = replace(weight, scale=scale)
            if weight.name in weights:
                raise ModelError(
                    f"{shown(each.path)} holds {weight.name[:NAMES_SHOWN]!r} under two names; keep one of the two."
                )
            weights[weight.name] = weight
    return weights


def _scale(each: Tensor | None) -> Weight | None:
    if each is None:
        return None
    return Weight(each.name, DTYPES[each.dtype], (math.prod(each.shape),), each.path, each.offset, each.size_bytes)


def _translate(
    kind: str, name: str, each: Tensor, tensors: Mapping[str, Tensor], head_dim: int | None, qkv_layout: str | None
) -> list[Weight]:
    """The one, three or no weights that a stored tensor becomes."""
    if each.dtype not in DTYPES:
        raise ModelError(
            f"{shown(each.path)} stores {name[:NAMES_SHOWN]!r} as {each.dtype}, which this version cannot run; "
            "use a bf16, f16 or f32 file of the same part."
        )

    def weight(new: str, shape: tuple[int, ...], order: RowOrder | None = None) -> Weight:
        return Weight(new, DTYPES[each.dtype], shape, each.path, each.offset, each.size_bytes, order)

    if kind in ("transformer", "video_vae"):
        fused = _FUSED.match(name)
        if fused:
            before = _rename(kind, fused[1])
            dim = _head_dim(tensors, fused[1], head_dim)
            rows = each.shape[0] if each.shape else 0
            if not dim or not rows or rows % (3 * dim):
                raise ModelError(f"{shown(each.path)}: {name[:NAMES_SHOWN]!r} has {rows} rows, not 3 x heads of {dim}.")
            if qkv_layout not in QKV_LAYOUTS:
                raise ModelError(
                    f"{shown(each.path)} does not say in which order its fused q, k, v rows lie; write "
                    f'{{"qkv_layout": "stacked"}} (ComfyUI\'s files) or "interleaved" (MiniMax\'s own) '
                    f"into {each.path.stem}.json beside it."
                )
            shape = (rows // 3, *each.shape[1:])
            return [
                weight(f"{before}{to}.{fused[3]}", shape, qkv_rows(rows // 3 // dim, dim, which, qkv_layout))
                for which, to in enumerate(("to_q", "to_k", "to_v"))
            ]
        gate_first = _GATE_FIRST.match(name)
        if gate_first:
            if not each.shape or each.shape[0] % 2:
                raise ModelError(
                    f"{shown(each.path)}: {name[:NAMES_SHOWN]!r} has no two halves to swap; download it again."
                )
            new = f"{_rename(kind, gate_first[1])}ff.net.0.proj.{gate_first[3]}"
            return [weight(new, each.shape, halves_swapped(each.shape[0]))] if each.shape[0] else []
    return [weight(_rename(kind, name), each.shape)]


def _head_dim(tensors: Mapping[str, Tensor], before: str, head_dim: int | None) -> int | None:
    norm = tensors.get(f"{before}q_norm.weight")
    return norm.shape[0] if norm and norm.shape else head_dim


def _rename(kind: str, name: str) -> str:
    for pattern, new in _RENAMES[kind]:
        name = pattern.sub(new, name)
    return name
