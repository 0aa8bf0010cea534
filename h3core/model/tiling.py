"""How the video VAE cuts a film: tiles in space, clips in time, and how many frames come out.

Pure integers, so the plan of a run counts with the same functions the VAE runs on. Nothing here touches an array.
source: spec sections 11.1, 11.3, 11.5; diffusers AutoencoderKLMiniMaxH3.
"""

from __future__ import annotations

from dataclasses import dataclass

from h3core.model.vae_config import VideoVaeConfig


@dataclass(frozen=True)
class TileAxis:
    """Tiles along one axis: equal `length`, `starts` of each, `overlaps` between neighbours (one fewer)."""

    starts: tuple[int, ...]
    length: int
    overlaps: tuple[int, ...]

    def scaled(self, divisor: int) -> TileAxis:
        """The same tiles in latents, for tiles planned in pixels."""
        return TileAxis(
            tuple(start // divisor for start in self.starts),
            self.length // divisor,
            tuple(overlap // divisor for overlap in self.overlaps),
        )


def tile_axis(length: int, tile: int = 256, overlap: int = 64, step: int = 16) -> TileAxis:
    """The fewest tiles that cover `length` pixels with at least `overlap` shared; the excess goes round in `step`s."""
    if length <= tile:
        return TileAxis((0,), length, ())
    count = -(-length // tile)
    while tile * count - overlap * (count - 1) < length:
        count += 1
    overlaps = [overlap] * (count - 1)
    excess = tile * count - overlap * (count - 1) - length
    for turn in range(excess // step):
        overlaps[turn % (count - 1)] += step
    starts = [0]
    for shared in overlaps:
        starts.append(starts[-1] + tile - shared)
    return TileAxis(tuple(starts), tile, tuple(overlaps))


def encoded_latents(frames: int, config: VideoVaeConfig) -> int:
    """Latents of `frames` pixel frames: 1 for one frame, else 5 per clip of 17 begun, less 3."""
    if frames == 1:
        return 1
    return config.chunk * -(-frames // config.clip_length) - config.token_drop


def decoded_frames(latents: int, config: VideoVaeConfig) -> int:
    """Pixel frames of T latents: 17 per 5 latents, and 0, 1, 5, 9, 13 for those left over."""
    clips, rest = divmod(latents, config.chunk)
    return config.clip_length * clips + (1 + config.time * (rest - 1) if rest else 0)


@dataclass(frozen=True)
class Tiles:
    """The tiles of one canvas, in pixels and in latents."""

    down: TileAxis
    across: TileAxis
    latent_down: TileAxis
    latent_across: TileAxis

    def __len__(self) -> int:
        return len(self.down.starts) * len(self.across.starts)


def tiles(config: VideoVaeConfig, height: int, width: int) -> Tiles:
    """The tiles of a canvas of height x width pixels.

    raises: ValueError when a side is no multiple of 16, or below 32 (reflect padding needs two pixels at every level).
    """
    if height % config.space or width % config.space or min(height, width) < 2 * config.space:
        least = 2 * config.space
        raise ValueError(f"canvas {width}x{height}: both sides must be multiples of {config.space}, at least {least}")
    down = tile_axis(height, config.tile_size, config.tile_overlap, config.space)
    across = tile_axis(width, config.tile_size, config.tile_overlap, config.space)
    return Tiles(down, across, down.scaled(config.space), across.scaled(config.space))


@dataclass(frozen=True)
class DecodePlan:
    """A decode cut into units of work, one per (clip, tile row, tile column), all with the same number of rows."""

    latents: int  # T, without padding
    pad: int  # repeats of the last latent
    clips: int
    frames: int  # pixel frames that come out
    tiles: Tiles
    rows: int  # decoder tokens of one unit, the appended ones included

    @property
    def units(self) -> int:
        """Units of the whole film: the largest batch that is of use."""
        return self.clips * len(self.tiles)

    def passes(self, batch: int) -> int:
        """How often the decoder's blocks are read when `batch` units are held at a time."""
        return -(-self.units // batch)


def decode_plan(config: VideoVaeConfig, t: int, h: int, w: int) -> DecodePlan:
    """Plan the decode of latents (C, t, h, w).

    raises: ValueError for fewer latents than one clip can be padded from (t < 3), or a canvas `tiles` refuses.
    """
    pad = -(t + config.token_drop) % config.chunk
    clips = (t + config.token_drop + pad) // config.chunk - 1
    if clips < 1:
        raise ValueError(f"{t} latent frames cannot be decoded alone: at least {config.token_drop} are needed")
    cut = tiles(config, h * config.space, w * config.space)
    rows = config.window * cut.latent_down.length * cut.latent_across.length + config.extra_tokens
    return DecodePlan(t, pad, clips, decoded_frames(t, config), cut, rows)


@dataclass(frozen=True)
class EncodePlan:
    """An encode cut into clips that know nothing of each other, each cut into tiles."""

    clips: int
    clip_frames: int  # 17, or 1 for a single frame
    clip_latents: int
    latents: int  # T that comes out
    tiles: Tiles


def encode_plan(config: VideoVaeConfig, frames: int, height: int, width: int) -> EncodePlan:
    """Plan the encode of frames (frames, height, width).

    raises: ValueError for no frames, or a canvas `tiles` refuses.
    """
    if frames < 1:
        raise ValueError("no frames to encode")
    cut = tiles(config, height, width)
    if frames == 1:
        return EncodePlan(1, 1, 1, 1, cut)
    clips = -(-frames // config.clip_length)
    return EncodePlan(clips, config.clip_length, config.chunk, encoded_latents(frames, config), cut)
