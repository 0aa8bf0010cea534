"""Sizes of the networks, from the config fields of the files. A missing field takes the released value's default.

Pure Python: the plan reads these before any extension or weight is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from h3core.model.layout import PATCH


@dataclass(frozen=True)
class TransformerConfig:
    """The transformer. source: spec of the release, diffusers MiniMaxH3Transformer3DModel."""

    num_attention_heads: int = 56
    attention_head_dim: int = 128
    hidden_size: int = 5376
    num_layers: int = 50
    num_refiner_layers: int = 2
    ffn_dim: int = 14336
    in_channels: int = 24
    audio_in_channels: int = 32
    text_dim: int = 5120
    freq_dim: int = 256
    time_embed_hidden_dim: int = 5376
    time_embed_dim: int = 2688
    rope_freq_dim: int = 16
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    qk_norm_eps: float = 1e-5
    final_norm_eps: float = 1e-5

    @classmethod
    def of(cls, config: Mapping[str, Any] | TransformerConfig) -> TransformerConfig:
        """raises: ValueError when the rotary channels do not fit a head, or patches are not 1 x 2 x 2."""
        if isinstance(config, TransformerConfig):
            return config
        known = {field.name for field in fields(cls)}
        own = cls(**{name: value for name, value in config.items() if name in known})
        if tuple(config.get("patch_size", (1, PATCH, PATCH))) != (1, PATCH, PATCH):
            raise ValueError(f"patches of {config['patch_size']}: this program knows 1 x 2 x 2")
        if 6 * own.rope_freq_dim > own.attention_head_dim:
            raise ValueError(f"{6 * own.rope_freq_dim} rotary channels do not fit a head of {own.attention_head_dim}")
        return own

    @property
    def inner_width(self) -> int:
        """Width of q, k and v; differs from hidden_size in the release."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def row_width(self) -> int:
        """Values in a video row: one 2 x 2 patch of every latent channel."""
        return self.in_channels * PATCH * PATCH


@dataclass(frozen=True)
class TextConfig:
    """The language part of the conditioner. source: transformers Qwen3VLTextConfig."""

    hidden_size: int = 5120
    intermediate_size: int = 25600
    num_hidden_layers: int = 64
    num_attention_heads: int = 64
    num_key_value_heads: int = 8
    head_dim: int = 128
    vocab_size: int = 151936
    rms_norm_eps: float = 1e-6
    rope_theta: float = 5_000_000.0
    mrope_section: tuple[int, int, int] = (24, 20, 20)

    @classmethod
    def of(cls, config: Mapping[str, Any] | TextConfig) -> TextConfig:
        """config: a Qwen3-VL config or its `text_config`; rotary fields in the newer or the older place."""
        if isinstance(config, TextConfig):
            return config
        text = config.get("text_config", config)
        rotary = {**(text.get("rope_scaling") or {}), **(text.get("rope_parameters") or {})}
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in {**rotary, **text}.items() if name in known}
        if "mrope_section" in values:
            values["mrope_section"] = tuple(values["mrope_section"])
        return cls(**values)


@dataclass(frozen=True)
class VisionConfig:
    """The vision tower of the conditioner. source: transformers Qwen3VLVisionConfig."""

    depth: int = 27
    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_heads: int = 16
    in_channels: int = 3
    patch_size: int = 16
    temporal_patch_size: int = 2
    spatial_merge_size: int = 2
    out_hidden_size: int = 5120
    num_position_embeddings: int = 2304
    deepstack_visual_indexes: tuple[int, ...] = (8, 16, 24)

    @classmethod
    def of(cls, config: Mapping[str, Any] | VisionConfig) -> VisionConfig:
        """config: a Qwen3-VL config or its `vision_config`."""
        if isinstance(config, VisionConfig):
            return config
        vision = config.get("vision_config", config)
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in vision.items() if name in known}
        if "deepstack_visual_indexes" in values:
            values["deepstack_visual_indexes"] = tuple(values["deepstack_visual_indexes"])
        return cls(**values)

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def head_width(self) -> int:
        """Width of a head in the attention kernel, which takes multiples of eight; equals head_dim in the release."""
        return -(-self.head_dim // 8) * 8

    @property
    def patch_values(self) -> int:
        """Values in one patch: channels x frames x rows x columns."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2
