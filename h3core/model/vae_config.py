"""Sizes of the two VAEs: the fields of their checkpoint configs, the released values, and what follows from them.

Pure numbers, so that a run can be planned without the extensions. source: spec sections 11.1, 12.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod
from typing import Any


def _known_fields(cls: type, config: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the fields `cls` has: the rest of a config is book-keeping, what it lacks takes the default."""
    known = {field.name: config[field.name] for field in fields(cls) if config.get(field.name) is not None}
    return {name: _frozen(value) for name, value in known.items()}


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class VideoVaeConfig:
    """Fields of the checkpoint's config with the released values as defaults; tile sizes in pixels, not in the file."""

    in_channels: int = 3
    out_channels: int = 3
    latent_channels: int = 24
    block_out_channels: tuple[int, ...] = (128, 256, 256, 512, 512, 1024)
    layers_per_block: int = 2
    spatial_downsample_factors: tuple[int, ...] = (2, 2, 2, 2, 1, 1)
    temporal_downsample_factors: tuple[int, ...] = (1, 2, 2, 1, 1, 1)
    norm_num_groups: int = 32
    norm_eps: float = 1e-6
    decoder_num_layers: int = 36
    decoder_num_attention_heads: int = 32
    decoder_attention_head_dim: int = 64
    decoder_num_register_tokens: int = 4
    decoder_ffn_mult: int = 4
    decoder_rope_theta: float = 100.0
    decoder_rope_dim_ratio: float = 0.75
    decoder_norm_eps: float = 1e-5
    clip_length: int = 17
    token_drop: int = 3
    latents_mean: tuple[float, ...] = (0.0,) * 24
    latents_std: tuple[float, ...] = (1.0,) * 24
    tile_size: int = 256
    tile_overlap: int = 64

    @classmethod
    def of(cls, config: Mapping[str, Any] | VideoVaeConfig) -> VideoVaeConfig:
        """From the config mapping of a checkpoint."""
        return cls(**_known_fields(cls, config)) if isinstance(config, Mapping) else config

    @property
    def space(self) -> int:
        """Pixels per latent along height and width (16)."""
        return prod(self.spatial_downsample_factors)

    @property
    def time(self) -> int:
        """Frames per latent (4)."""
        return prod(self.temporal_downsample_factors)

    @property
    def chunk(self) -> int:
        """Latents per encoded clip (5)."""
        return -(-self.clip_length // self.time)

    @property
    def lead(self) -> int:
        """Frames at the start of a decoded clip that cover no pixel frame (3)."""
        return -self.clip_length % self.time

    @property
    def window(self) -> int:
        """Latents the decoder sees at once: a chunk and what it shares with the next one (7)."""
        return self.chunk + -self.token_drop % self.chunk

    @property
    def tail(self) -> int:
        """Frames after the body of a decoded clip, faded into the next body (5)."""
        return (self.window - self.chunk) * self.time - self.lead

    @property
    def dim(self) -> int:
        """Width of the decoder's tokens (2048)."""
        return self.decoder_num_attention_heads * self.decoder_attention_head_dim

    @property
    def extra_tokens(self) -> int:
        """Register tokens and the all-zero token after the latent ones (5)."""
        return self.decoder_num_register_tokens + 1

    @property
    def patch(self) -> int:
        """Values the decoder answers per token: channels x frames x rows x columns (3072)."""
        return self.out_channels * self.time * self.space**2


@dataclass(frozen=True)
class AudioVaeConfig:
    """Fields of the checkpoint's config with the released values as defaults."""

    encoder_dim: int = 64
    encoder_rates: tuple[int, ...] = (2, 4, 4, 5, 5)
    latent_dim: int = 2048
    latent_channels: int = 32
    num_attention_heads: int = 8
    decoder_dim: int = 1024
    decoder_rates: tuple[int, ...] = (5, 5, 2, 2, 2, 2, 2)
    decoder_kernel_sizes: tuple[int, ...] = (9, 9, 4, 4, 4, 4, 4)
    resblock_kernel_sizes: tuple[int, ...] = (3, 7, 11)
    resblock_dilation_sizes: tuple[tuple[int, ...], ...] = ((1, 3, 5),) * 3
    sampling_rate: int = 32000
    latents_mean: tuple[float, ...] = (0.0,) * 32
    latents_std: tuple[float, ...] = (1.0,) * 32

    @classmethod
    def of(cls, config: Mapping[str, Any] | AudioVaeConfig) -> AudioVaeConfig:
        """From the config mapping of a checkpoint."""
        return cls(**_known_fields(cls, config)) if isinstance(config, Mapping) else config

    @property
    def hop(self) -> int:
        """Samples per latent (800)."""
        return prod(self.decoder_rates)

    @property
    def encoder_hop(self) -> int:
        """Samples per latent on the way in (800)."""
        return prod(self.encoder_rates)
