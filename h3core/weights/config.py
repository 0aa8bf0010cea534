"""Configs: whatever a release calls its fields -> the diffusers fields, checked against the tensors.

A field that a config leaves out is derived from the tensors where they show it, else it is the release's.
source: spec §9.1, §11.1, §12.1, §6.3, §17.1, §17.3, §17.4.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from h3core.weights.model_files import ModelError, Weight

Config = dict[str, Any]

TRANSFORMER: Config = {
    "num_attention_heads": 56, "attention_head_dim": 128, "hidden_size": 5376, "num_layers": 50,
    "num_refiner_layers": 2,
    "ffn_dim": 14336, "in_channels": 24, "audio_in_channels": 32, "patch_size": [1, 2, 2], "text_dim": 5120,
    "freq_dim": 256,
    "time_embed_hidden_dim": 5376, "time_embed_dim": 2688, "rope_freq_dim": 16, "rope_theta": 10000.0, "norm_eps": 1e-5,
    "qk_norm_eps": 1e-5, "final_norm_eps": 1e-5,
}  # fmt: skip
# diffusers field: field of the original transformer/config.json
TRANSFORMER_ORIGINAL = {
    "num_refiner_layers": "token_refiner_num_layers", "ffn_dim": "ffn_hidden_size", "in_channels": "latents_dim",
    "audio_in_channels": "audio_latents_dim", "freq_dim": "timestep_input_dim",
    "time_embed_hidden_dim": "time_embed_hidden_size",
    "rope_freq_dim": "rope_inv_freq_len",
}  # fmt: skip

VIDEO_VAE: Config = {
    "in_channels": 3, "out_channels": 3, "latent_channels": 24, "block_out_channels": [128, 256, 256, 512, 512, 1024],
    "layers_per_block": 2, "spatial_downsample_factors": [2, 2, 2, 2, 1, 1],
    "temporal_downsample_factors": [1, 2, 2, 1, 1, 1],
    "norm_num_groups": 32, "norm_eps": 1e-6, "spatial_padding_mode": "reflect", "decoder_num_layers": 36,
    "decoder_num_attention_heads": 32, "decoder_attention_head_dim": 64, "decoder_num_register_tokens": 4,
    "decoder_ffn_mult": 4,
    "decoder_rope_theta": 100.0, "decoder_rope_dim_ratio": 0.75, "decoder_norm_eps": 1e-5, "clip_length": 17,
    "token_drop": 3,
    "latents_mean": [
        0.8580903, -0.9606591, 1.0661640, -0.5090325, -0.2727582, -1.3675414, -0.2553255, -0.2690755, -0.5376841,
        -0.0464097,
        0.6657370, 0.1969013, -0.5460608, -0.4035342, -0.2368302, 0.2592845, -0.3013394, 0.2113420, -1.1206849,
        0.3581933,
        -0.0422514, 0.2604830, 0.2286409, 0.7056032,
    ],
    "latents_std": [
        1.2223774, 1.2767264, 1.6831775, 1.7549455, 1.5636216, 2.1941435, 0.9653138, 1.0569886, 0.8419489,
        0.7729953, 1.8955938,
        0.9468418, 0.7996809, 0.4498890, 0.7197400, 0.6936293, 2.9610951, 2.7694199, 3.0496185, 2.1088054,
        3.2762263, 3.1627357,
        2.2816813, 2.6127844,
    ],
}  # fmt: skip

AUDIO_VAE: Config = {
    "encoder_dim": 64, "encoder_rates": [2, 4, 4, 5, 5], "latent_dim": 2048, "latent_channels": 32,
    "num_attention_heads": 8,
    "decoder_dim": 1024, "decoder_rates": [5, 5, 2, 2, 2, 2, 2], "decoder_kernel_sizes": [9, 9, 4, 4, 4, 4, 4],
    "resblock_kernel_sizes": [3, 7, 11], "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
    "sampling_rate": 32000,
    "latents_mean": [
        -0.0202117, 0.3876466, -0.0439828, -0.2859151, 0.0817969, -0.3578264, 0.0406238, -0.0155253, -0.2233625,
        0.1821007,
        0.2941779, -0.0790117, -0.0568151, -0.3699028, -0.3161632, 0.5905951, -0.0521396, 0.0136732, -0.0369165,
        0.0973266,
        -0.3394662, -0.3068568, -0.2450460, -0.0346985, 0.0286803, -0.2121778, -0.1678263, 0.3221288, -0.1223056,
        0.4356605,
        -0.0502599, 0.3979258,
    ],
    "latents_std": [
        1.6895524, 2.7626373, 1.7945344, 1.6801682, 1.6390227, 2.7788298, 1.7659090, 1.6199758, 2.6336526,
        1.8539357, 2.5056498,
        1.8110192, 1.9579658, 1.6685498, 1.4922469, 3.2986702, 1.9491804, 1.8720003, 1.8334080, 1.6488070,
        1.6176958, 1.9131449,
        1.5695245, 1.6943660, 1.8318421, 1.5540637, 1.9344930, 1.5991982, 1.7180460, 1.6307219, 1.8661226, 1.5613768,
    ],
}  # fmt: skip

# Qwen3-VL-32B. Text fields lie flat, the tower's under "vision_config" ({} when the file has no tower).
TEXT_ENCODER: Config = {
    "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64, "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128, "rms_norm_eps": 1e-6, "vocab_size": 151936, "rope_theta": 5_000_000.0,
    "mrope_section": [24, 20, 20],
}  # fmt: skip
VISION: Config = {
    "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "num_position_embeddings": 2304,
    "patch_size": 16,
    "temporal_patch_size": 2, "spatial_merge_size": 2, "in_channels": 3, "out_hidden_size": 5120,
    "deepstack_visual_indexes": [8, 16, 24], "rope_theta": 10000.0,
}  # fmt: skip

DEFAULTS = {"transformer": TRANSFORMER, "text_encoder": TEXT_ENCODER, "video_vae": VIDEO_VAE, "audio_vae": AUDIO_VAE}
_MOST = 1 << 20  # no field of any part comes near; bounds what a damaged config can ask for
_OF_THREE = ("patch_size", "mrope_section")  # time, height, width
_LAYERS = ("num_layers", "num_refiner_layers", "num_hidden_layers", "decoder_num_layers", "depth")


def canonical_config(kind: str, raw: Mapping[str, Any], where: str) -> Config:
    """The canonical fields that a config gives; those it leaves out are not filled in yet (`complete`).

    raw: the JSON of the part's config file(s), original or diffusers field names.   where: the file, for messages.
    raises: ModelError naming the field.
    """
    if kind == "text_encoder":
        return _text_encoder(raw, where)
    fields = dict(raw)
    if kind == "transformer":
        fields |= {
            ours: raw[theirs] for ours, theirs in TRANSFORMER_ORIGINAL.items() if theirs in raw and ours not in raw
        }
    if kind == "video_vae":
        fields |= _original_video_vae(raw, where)
    if kind == "audio_vae":
        fields |= _original_audio_vae(raw, where)
    return _checked(DEFAULTS[kind], fields, where)


def _checked(like: Config, fields: Mapping[str, Any], where: str) -> Config:
    """The known fields, each of the same kind of value as the release's."""
    return {
        name: _value(where, name, fields[name], default)
        for name, default in like.items()
        if fields.get(name) is not None
    }


def _value(where: str, name: str, value: Any, like: Any) -> Any:
    wrong = f"{where}: {name} is {json.dumps(value)[:60]}; it must be "
    if isinstance(like, list):
        if not isinstance(value, (list, tuple)) or not 1 <= len(value) <= 256:
            raise ModelError(wrong + "a list.")
        if name in _OF_THREE and len(value) != 3:
            raise ModelError(wrong + "a list of three.")
        items = [_value(where, name, item, like[0]) for item in value]
        return [float(item) for item in items] if isinstance(like[0], float) else items
    if isinstance(like, str):
        if value != like:  # one value in the release, and the only one the engine knows
            raise ModelError(wrong + f"{like!r}, the only kind this version runs.")
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ModelError(wrong + "a number.")
    if isinstance(like, float):
        if not -1e9 < value < 1e9:
            raise ModelError(wrong + "a finite number.")
        return float(value)
    lowest = 0 if name in _LAYERS or name == "deepstack_visual_indexes" else 1
    most = 1 << 40 if name == "vocab_size" else _MOST
    if value != int(value) or not lowest <= value <= most:
        raise ModelError(wrong + f"a whole number of at least {lowest}.")
    return int(value)


def _original_video_vae(raw: Mapping[str, Any], where: str) -> Config:
    """source: spec §17.3. raw: source/config.json and the outer config.json together."""
    fields: Config = {}
    plain = {
        "out_channels": "out_ch", "layers_per_block": "num_res_blocks", "spatial_downsample_factors": "space_down",
        "temporal_downsample_factors": "time_down", "spatial_padding_mode": "padding_mode",
        "clip_length": "vae_clip_length",
        "token_drop": "vae_token_drop",
    }  # fmt: skip
    fields |= {ours: raw[theirs] for ours, theirs in plain.items() if theirs in raw and ours not in raw}
    if "latent_channels" not in raw:
        fields["latent_channels"] = raw.get("z_channels", raw.get("embed_dim"))
    if "ch" in raw and "ch_mult" in raw:
        if not isinstance(raw["ch_mult"], list) or not all(type(each) is int for each in [raw["ch"], *raw["ch_mult"]]):
            raise ModelError(f"{where}: ch and ch_mult must be a whole number and a list of them.")
        fields["block_out_channels"] = [raw["ch"] * factor for factor in raw["ch_mult"]]
    vit = raw.get("vit_decoder_kwargs") or {}
    if not isinstance(vit, dict):
        raise ModelError(f"{where}: vit_decoder_kwargs must be a table.")
    decoder = {
        "decoder_num_layers": "num_layers", "decoder_num_attention_heads": "heads",
        "decoder_attention_head_dim": "dim_head",
        "decoder_rope_theta": "rope_theta", "decoder_rope_dim_ratio": "rope_dim_ratio",
    }  # fmt: skip
    return fields | {ours: vit[theirs] for ours, theirs in decoder.items() if theirs in vit}


def _original_audio_vae(raw: Mapping[str, Any], where: str) -> Config:
    """source: spec §17.4. raw: metadata.json and config.json together."""
    outer = raw.get("metadata")
    kwargs = outer.get("kwargs") if isinstance(outer, dict) else None
    if not isinstance(kwargs, dict):
        return {}
    same = ("encoder_dim", "encoder_rates", "latent_dim", "decoder_dim", "decoder_rates")
    fields: Config = {name: kwargs[name] for name in same if name in kwargs}
    fields["latent_channels"] = kwargs.get("vae_latent_channels")
    fields["sampling_rate"] = kwargs.get("sample_rate")
    rates = fields.get("decoder_rates")
    if isinstance(rates, list) and all(type(rate) is int for rate in rates):
        fields["decoder_kernel_sizes"] = [2 * rate - rate % 2 for rate in rates]
    return fields


def _text_encoder(raw: Mapping[str, Any], where: str) -> Config:
    """Both spellings of the rope fields; a text config alone (no `text_config`) too."""
    text = raw.get("text_config", raw)
    vision = raw.get("vision_config") or {}
    if not isinstance(text, dict) or not isinstance(vision, dict):
        raise ModelError(f"{where}: text_config and vision_config must be tables.")
    fields = dict(text)
    for rope in (text.get("rope_scaling"), text.get("rope_parameters")):
        if isinstance(rope, dict):
            fields |= {name: rope[name] for name in ("rope_theta", "mrope_section") if name in rope}
    config = _checked(TEXT_ENCODER, fields, where)
    if vision:
        fields = dict(vision)
        rope = vision.get("rope_parameters")
        if isinstance(rope, dict) and "rope_theta" in rope:
            fields["rope_theta"] = rope["rope_theta"]
        config["vision_config"] = _checked(VISION, fields, f"{where}: vision_config")
    return config


def complete(kind: str, given: Config, weights: Mapping[str, Weight], where: str) -> Config:
    """A whole config: what the tensors show, then what the config gives, then the release's values.

    Block counts come from the names alone, so a file with fewer blocks than its config says is read as it is.
    raises: ModelError where the config and the tensors disagree, or a block is missing from the middle.
    """
    shown = _DERIVED[kind](weights, given, where)
    if "adaln_grid" in shown:  # a pruned file's config may be the full one's
        given = {name: value for name, value in given.items() if name != "time_embed_dim"}
    for name, value in shown.items():
        if name not in _LAYERS and name in given and given[name] != value:
            raise ModelError(
                f"{where} says {name} {given[name]} but the tensors have {value}; "
                "use the config that came with the weights."
            )
    config: Config = DEFAULTS[kind] | given | shown
    if kind == "text_encoder":
        config["vision_config"] = _vision(given.get("vision_config", {}), weights, where)
    for name in ("latents_mean", "latents_std"):
        if name in config and len(config[name]) != config["latent_channels"]:
            raise ModelError(
                f"{where}: {name} has {len(config[name])} numbers for {config['latent_channels']} latent channels; "
                "use the config that came with the weights."
            )
    if "latents_std" in config and min(config["latents_std"]) <= 0:
        raise ModelError(f"{where}: latents_std must be above 0; use the config that came with the weights.")
    return config


def blocks(weights: Iterable[str], prefix: str, where: str) -> int:
    """How many blocks `prefix`0, `prefix`1, ... the names have.

    raises: ModelError when one is missing from the middle.
    """
    pattern = re.compile(re.escape(prefix) + r"(\d{1,9})\.")
    numbers = {int(match[1]) for name in weights if (match := pattern.match(name))}
    for number in range(len(numbers)):
        if number not in numbers:
            raise ModelError(f"{where} lacks {prefix}{number}; the file is incomplete, download it again.")
    return len(numbers)


def _axis(weights: Mapping[str, Weight], name: str, axis: int) -> int | None:
    each = weights.get(name)
    return each.shape[axis] if each and len(each.shape) > axis else None


def _known(fields: dict[str, int | None]) -> Config:
    return {name: value for name, value in fields.items() if value}


def _transformer_shown(weights: Mapping[str, Weight], given: Config, where: str) -> Config:
    head_dim = _axis(weights, "transformer_blocks.0.attn.norm_q.weight", 0)
    inner = _axis(weights, "transformer_blocks.0.attn.to_q.weight", 0)
    row = _axis(weights, "proj_in.weight", 1)
    curve = "adaln_t_table" in weights  # pruned: a table over time instead of a network; its grid and rank vary
    patch = 1
    for side in (TRANSFORMER | given)["patch_size"]:
        patch *= side
    return _known(
        {
            "hidden_size": _axis(weights, "proj_in.weight", 0),
            "attention_head_dim": head_dim,
            "num_attention_heads": inner // head_dim if inner and head_dim else None,
            "ffn_dim": _axis(weights, "transformer_blocks.0.ff.net.2.weight", 1),
            "in_channels": row // patch if row else None,
            "audio_in_channels": _axis(weights, "audio_proj_in.weight", 1),
            "text_dim": _axis(weights, "context_embedder.weight", 1),
            "freq_dim": _axis(weights, "time_embedder.linear_1.weight", 1),
            "time_embed_hidden_dim": _axis(weights, "time_embedder.linear_1.weight", 0),
            "time_embed_dim": _axis(weights, "adaln_t_table" if curve else "time_embedder.linear_2.weight", int(curve)),
            "adaln_grid": _axis(weights, "adaln_t_table", 0),
        }
    ) | {
        "num_layers": blocks(weights, "transformer_blocks.", where),
        "num_refiner_layers": blocks(weights, "token_refiner.refiner_blocks.", where),
    }


def _video_vae_shown(weights: Mapping[str, Weight], given: Config, where: str) -> Config:
    dim = _axis(weights, "decoder.proj_in.weight", 0)
    head_dim = (VIDEO_VAE | given)["decoder_attention_head_dim"]
    inner = _axis(weights, "decoder.transformer_blocks.0.ff.net.2.weight", 1)
    return _known(
        {
            "latent_channels": _axis(weights, "decoder.proj_in.weight", 1),
            "decoder_num_attention_heads": dim // head_dim if dim else None,
            "decoder_num_register_tokens": _axis(weights, "decoder.register_tokens", 1),
            "decoder_ffn_mult": inner // dim if inner and dim else None,
        }
    ) | {"decoder_num_layers": blocks(weights, "decoder.transformer_blocks.", where)}


def _audio_vae_shown(weights: Mapping[str, Weight], given: Config, where: str) -> Config:
    return _known(
        {
            "latent_channels": _axis(weights, "mean_proj.weight", 0),
            "latent_dim": _axis(weights, "dec_in_proj.weight", 0),
            "decoder_dim": _axis(weights, "decoder.conv_pre.bias", 0),
            "encoder_dim": _axis(weights, "encoder.block.0.bias", 0),
        }
    )


def _text_encoder_shown(weights: Mapping[str, Weight], given: Config, where: str) -> Config:
    head_dim = _axis(weights, "layers.0.self_attn.q_norm.weight", 0)
    q, k = (_axis(weights, f"layers.0.self_attn.{each}_proj.weight", 0) for each in "qk")
    return _known(
        {
            "hidden_size": _axis(weights, "embed_tokens.weight", 1),
            "vocab_size": _axis(weights, "embed_tokens.weight", 0),
            "intermediate_size": _axis(weights, "layers.0.mlp.gate_proj.weight", 0),
            "head_dim": head_dim,
            "num_attention_heads": q // head_dim if q and head_dim else None,
            "num_key_value_heads": k // head_dim if k and head_dim else None,
        }
    ) | {"num_hidden_layers": blocks(weights, "layers.", where)}


def _vision(given: Config, weights: Mapping[str, Weight], where: str) -> Config:
    depth = blocks(weights, "visual.blocks.", where)
    if not depth:
        return {}
    shown = _known(
        {
            "hidden_size": _axis(weights, "visual.blocks.0.norm1.weight", 0),
            "intermediate_size": _axis(weights, "visual.blocks.0.mlp.linear_fc1.weight", 0),
            "num_position_embeddings": _axis(weights, "visual.pos_embed.weight", 0),
            "out_hidden_size": _axis(weights, "visual.merger.linear_fc2.weight", 0),
        }
    ) | {"depth": depth}
    return VISION | given | shown


_DERIVED = {
    "transformer": _transformer_shown,
    "text_encoder": _text_encoder_shown,
    "video_vae": _video_vae_shown,
    "audio_vae": _audio_vae_shown,
}
