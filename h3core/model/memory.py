"""What each phase of the model needs in memory, declared once: the plan sums these buffers, the arena allocates them.

Pure Python, so that a plan costs nothing and needs no extension. Row-chunked activations hold CHUNK_ROWS rows at most;
only the residual stream and the packed keys and values grow with the film.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from h3core.model.config import TextConfig, TransformerConfig, VisionConfig
from h3core.model.precision import attention_kind, kind
from h3core.model.tiling import Tiles, decode_plan, encode_plan
from h3core.model.vae_config import AudioVaeConfig, VideoVaeConfig

# Large enough that unpacking a weight is lost in the product, small enough that a feed-forward's width times this fits;
# a multiple of the kernels' blocks of 12 rows.
CHUNK_ROWS = 1512


@dataclass(frozen=True)
class Buffer:
    """One array of a phase: shape, and dtype by numpy's name."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def size_bytes(buffers: Mapping[str, Buffer]) -> int:
    """Bytes of all buffers of one phase together."""
    return sum(buffer.size_bytes for buffer in buffers.values())


def chunks(rows: int, first: int = 0) -> Iterator[tuple[int, int]]:
    """(start, end) of each chunk of rows first ... rows."""
    for start in range(first, rows, CHUNK_ROWS):
        yield start, min(start + CHUNK_ROWS, rows)


# ---- twins of the kernels' own sizes, kept here so that a plan needs no extension (tests compare them) ----

_ROWS, _LINE, _GROUP = 12, 64, 256  # rows of a packed block, bytes of a cache line, values that share an int8 scale
_PANEL = 32  # keys of an attention panel, and the step of a value's width


def rows_size_bytes(m: int, k: int, of_kind: str) -> int:
    """Bytes of packed rows (m, k) of one kind; kernels.rows.Rows.size_bytes."""
    if of_kind == "f32":
        block = 4 * _ROWS * k
    elif of_kind == "bf16":
        block = 4 * _ROWS * _up(k, 2)
    else:
        block = 4 * _ROWS * _up(k, 4) + 8 * _ROWS * _up(k, _GROUP)
    return _up(m, _ROWS) * _up(block, _LINE) * _LINE + _LINE


def attention_size_bytes(rows: int, kv_heads: int, head_dim: int, of_kind: str) -> int:
    """Bytes of one layer's packed keys and values; kernels.attention.Attention.size_bytes."""
    item = 4 if of_kind == "f32" else 2
    padded = _up(rows, _PANEL) * _PANEL
    return kv_heads * padded * (head_dim + _up(head_dim, _PANEL) * _PANEL) * item


def _up(value: int, step: int) -> int:
    """How many steps cover a value."""
    return -(-value // step)


def _packed(m: int, *widths: tuple[int, str]) -> Buffer:
    """One buffer that serves packed rows of several (width, kind) in turn."""
    return Buffer((max(rows_size_bytes(m, width, of_kind) for width, of_kind in widths),), "uint8")


def modulation_buffers(config: TransformerConfig | Mapping[str, Any], times: int) -> dict[str, Buffer]:
    """Scratch of Transformer.modulation for so many distinct times; its result is `modulation_table`."""
    own = TransformerConfig.of(config)
    island = kind("exact", "dit.island")
    widths = (own.freq_dim, own.time_embed_hidden_dim, own.time_embed_dim)
    return {
        "rows": _packed(times, *((width, island) for width in widths)),
        "hidden": Buffer((times, own.time_embed_hidden_dim)),
        "embedding": Buffer((times, own.time_embed_dim)),
        "work": Buffer((times, 6 * own.hidden_size)),
    }


def modulation_table(config: TransformerConfig | Mapping[str, Any], pairs: int) -> Buffer:
    """The modulation of a run: six rows a block, two at the end, for every (time, modality) pair."""
    own = TransformerConfig.of(config)
    return Buffer((6 * own.num_layers + 2, pairs, own.hidden_size))


def refiner_buffers(config: TransformerConfig | Mapping[str, Any], text_rows: int, precision: str) -> dict[str, Buffer]:
    """Scratch of Transformer.refine; "text" holds its result."""
    own = TransformerConfig.of(config)
    of_kind = kind(precision, "dit.refiner")
    chunk = min(text_rows, CHUNK_ROWS)
    attention = attention_size_bytes(
        text_rows, own.num_attention_heads, own.attention_head_dim, attention_kind(precision, "dit.refiner")
    )
    widths = (own.text_dim, own.hidden_size, own.inner_width, own.ffn_dim)
    return {
        "text": Buffer((text_rows, own.hidden_size)),
        "rows": _packed(chunk, *((width, of_kind) for width in widths)),
        "attention": Buffer((attention,), "uint8"),
        "work": Buffer((chunk * max(2 * own.inner_width, own.ffn_dim),)),
    }


def transformer_buffers(
    config: TransformerConfig | Mapping[str, Any], rows: int, video_rows: int, audio_rows: int, precision: str
) -> dict[str, Buffer]:
    """Scratch of Transformer.forward over `rows` packed rows; the velocities are its result."""
    own = TransformerConfig.of(config)
    block, island = kind(precision, "dit.block"), kind(precision, "dit.island")
    chunk = min(rows, CHUNK_ROWS)
    attention = attention_size_bytes(
        rows, own.num_attention_heads, own.attention_head_dim, attention_kind(precision, "dit.block")
    )
    widths = [(width, block) for width in (own.hidden_size, own.inner_width, own.ffn_dim)]
    widths += [(width, island) for width in (own.row_width, own.audio_in_channels, own.hidden_size)]
    return {
        "residual": Buffer((rows, own.hidden_size)),
        "rows": _packed(chunk, *widths),
        "attention": Buffer((attention,), "uint8"),
        "work": Buffer((chunk * max(2 * own.inner_width, own.ffn_dim, own.hidden_size),)),
        "video_velocity": Buffer((video_rows, own.row_width)),
        "audio_velocity": Buffer((audio_rows, own.audio_in_channels)),
    }


def text_buffers(config: TextConfig | Mapping[str, Any], rows: int, precision: str) -> dict[str, Buffer]:
    """Scratch of TextEncoder.encode over `rows` tokens; "residual" holds its result."""
    own = TextConfig.of(config)
    of_kind = kind(precision, "text")
    chunk = min(rows, CHUNK_ROWS)
    inner = own.num_attention_heads * own.head_dim
    attention = attention_size_bytes(rows, own.num_key_value_heads, own.head_dim, attention_kind(precision, "text"))
    return {
        "residual": Buffer((rows, own.hidden_size)),
        "rows": _packed(chunk, *((width, of_kind) for width in (own.hidden_size, inner, own.intermediate_size))),
        "attention": Buffer((attention,), "uint8"),
        "work": Buffer((chunk * max(2 * inner, own.intermediate_size),)),
    }


def vision_buffers(
    config: VisionConfig | Mapping[str, Any], grids: Sequence[tuple[int, int, int]], precision: str
) -> dict[str, Buffer]:
    """Scratch of VisionEncoder.encode over all these grids of patches; "merged" and "deep" hold its result."""
    own = VisionConfig.of(config)
    of_kind = kind(precision, "vision")
    rows, frame_rows = sum(t * h * w for t, h, w in grids), max(h * w for _, h, w in grids)
    chunk, four = min(rows, CHUNK_ROWS), own.spatial_merge_size**2
    widths = (own.patch_values, own.hidden_size, own.intermediate_size, four * own.hidden_size)
    merged, heads = rows // four, own.num_heads * own.head_width
    attention = attention_size_bytes(frame_rows, own.num_heads, own.head_width, attention_kind(precision, "vision"))
    return {
        "residual": Buffer((rows, own.hidden_size)),
        "rows": _packed(chunk, *((width, of_kind) for width in widths)),
        "attention": Buffer((attention,), "uint8"),
        "work": Buffer((chunk * max(2 * heads, own.intermediate_size, four * own.hidden_size),)),
        "merged": Buffer((merged, own.out_hidden_size)),
        "deep": Buffer((len(own.deepstack_visual_indexes), merged, own.out_hidden_size)),
    }


def video_decode_buffers(
    config: Mapping[str, Any] | VideoVaeConfig, latent: tuple[int, int, int], batch: int, precision: str
) -> dict[str, Buffer]:
    """Scratch of VideoVae.decode for latents of (T, h, w), holding `batch` (clip, tile) units at a time.

    A unit at the released size has 1797 rows: 14.7 MB of residual stream. tiling.decode_plan says how many units there
    are; fewer held means the blocks are read DecodePlan.passes(batch) times.
    raises: ValueError as tiling.decode_plan.
    """
    own = VideoVaeConfig.of(config)
    plan = decode_plan(own, *latent)
    units = max(1, min(batch, plan.units))
    block, attention = kind(precision, "video_decoder"), attention_kind(precision, "video_decoder")
    chunk = min(units * plan.rows, CHUNK_ROWS)
    frame_rows = plan.tiles.latent_down.length * plan.tiles.latent_across.length
    pixel_rows = max(1, min(own.window, CHUNK_ROWS // frame_rows)) * frame_rows  # whole latent frames
    inner = own.dim * own.decoder_ffn_mult
    angles = int(own.decoder_attention_head_dim * own.decoder_rope_dim_ratio) // 2
    heads = own.decoder_num_attention_heads
    widest = max(rows_size_bytes(plan.rows, own.dim, block), rows_size_bytes(chunk, own.dim, block))
    islands = max(rows_size_bytes(plan.rows, own.latent_channels, "f32"), rows_size_bytes(pixel_rows, own.dim, "f32"))
    frames = own.clip_length + own.tail
    down, across = plan.tiles.down, plan.tiles.across
    height, width = down.starts[-1] + down.length, across.starts[-1] + across.length
    return {
        "residual": Buffer((units * plan.rows, own.dim)),
        "q": Buffer((plan.rows, own.dim)),
        "kv": Buffer((plan.rows, own.dim)),
        "rows": Buffer((widest,), "uint8"),
        "attention": Buffer(
            (attention_size_bytes(plan.rows, heads, own.decoder_attention_head_dim, attention),), "uint8"
        ),
        "hidden": Buffer((chunk, inner)),
        "hidden_rows": Buffer((rows_size_bytes(chunk, inner, block),), "uint8"),
        "island_rows": Buffer((islands,), "uint8"),
        "patches": Buffer((pixel_rows, own.patch)),
        "cos": Buffer((plan.rows, angles)),
        "sin": Buffer((plan.rows, angles)),
        "tile": Buffer((frames, down.length, across.length, own.out_channels)),
        "canvas": Buffer((frames, height, width, own.out_channels)),
        "tail": Buffer((own.tail, height, width, own.out_channels)),
        **_mosaic_buffers(plan.tiles, frames, own.out_channels, 1),
    }


def video_encode_buffers(
    config: Mapping[str, Any] | VideoVaeConfig, frames: int, height: int, width: int
) -> dict[str, Buffer]:
    """Scratch of VideoVae.encode for frames of height x width pixels.

    The encoder's widest level has every pixel of a tile: 17 x 256 x 256 x 128 float32 is 570 MB at the released size,
    and three such arrays are all it holds, 1.7 GB; a single frame needs a 17th of that. Its weights are held twice: as
    loaded, and packed for the convolutions.
    raises: ValueError as tiling.encode_plan.
    """
    own = VideoVaeConfig.of(config)
    plan = encode_plan(own, frames, height, width)
    down, across = plan.tiles.down, plan.tiles.across
    size = [plan.clip_frames, down.length, across.length]
    widest = channels = 0
    levels = zip(own.block_out_channels, own.temporal_downsample_factors, own.spatial_downsample_factors, strict=True)
    for channels_out, time, space in levels:
        channels, before = channels_out, channels or channels_out
        widest = max(widest, math.prod(size) * max(channels, before))
        size = [-(-size[0] // time), size[1] // space, size[2] // space]
    moments = 2 * own.latent_channels
    widest = max(widest, math.prod(size) * max(channels, moments))
    return {
        "a": Buffer((widest,)),
        "b": Buffer((widest,)),
        "c": Buffer((widest,)),
        "pixels": Buffer((plan.clip_frames, down.length, across.length, own.in_channels)),
        "canvas": Buffer((plan.clip_latents, height // own.space, width // own.space, moments)),
        **_mosaic_buffers(plan.tiles, plan.clip_latents, moments, own.space),
    }


def _mosaic_buffers(tiles: Tiles, frames: int, channels: int, divisor: int) -> dict[str, Buffer]:
    """The raw edges a VideoVae mosaic keeps: of the row of tiles above, and of the tile to the left."""
    down, across = tiles.down.scaled(divisor), tiles.across.scaled(divisor)
    return {
        "above": Buffer((len(across.starts), frames, max(down.overlaps, default=0), across.length, channels)),
        "left": Buffer((frames, down.length, max(across.overlaps, default=0), channels)),
    }


def audio_decode_buffers(config: Mapping[str, Any] | AudioVaeConfig, latents: int) -> dict[str, Buffer]:
    """Scratch of AudioVae.decode: five arrays of the widest stage, of one channel. Five seconds need 27 MB in all."""
    own = AudioVaeConfig.of(config)
    length, channels = latents, own.decoder_dim
    widest = length * max(own.latent_dim, channels)
    for rate in own.decoder_rates:
        length, channels = length * rate, channels // 2
        widest = max(widest, length * channels)
    return {name: Buffer((widest,)) for name in ("x", "up", "h", "act", "hidden")}


def audio_encode_buffers(config: Mapping[str, Any] | AudioVaeConfig, samples: int) -> dict[str, Buffer]:
    """Scratch of AudioVae.encode: three arrays of the widest stage, 42 MB each for five seconds, and the attention."""
    own = AudioVaeConfig.of(config)
    latents = -(-samples // own.encoder_hop)
    length, channels = latents * own.encoder_hop, own.encoder_dim
    widest = max(length * channels, latents * own.latent_dim)
    for rate in own.encoder_rates:
        length, channels = length // rate, channels * 2
        widest = max(widest, length * channels)
    heads = own.num_attention_heads
    attention = attention_size_bytes(latents, heads, own.latent_dim // heads, "f32")
    widths = (own.latent_dim, 2 * own.latent_channels, own.latent_channels)
    return {
        **{name: Buffer((widest,)) for name in ("x", "act", "hidden")},
        "rows": _packed(latents, *((width, "f32") for width in widths)),
        "attention": Buffer((attention,), "uint8"),
    }
