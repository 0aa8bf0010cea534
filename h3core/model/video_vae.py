"""The video VAE: latents to frames with a vision transformer, frames to latents with causal convolutions.

Latents are (24, T, h, w) float32, frames (F, 16h, 16w, 3) uint8 RGB; in between pixels are float32, channel last, and
ImageNet-normalised. Both directions work on 256-pixel tiles and on 17-frame clips (tiling.py). Decoding is block-outer:
as many (clip, tile) units as the scratch holds go through one block before the next one is asked for, so that weights
far larger than memory are read once. Knows no file, no thread, no progress: blocks come from an iterable, which may
raise to stop.
source: spec section 11; diffusers AutoencoderKLMiniMaxH3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import prod
from typing import Any

import numpy as np

from h3core.kernels.attention import Attention
from h3core.kernels.convolution import Convolution
from h3core.kernels.norms import group_norm_silu
from h3core.kernels.quant_matrix import QuantMatrix
from h3core.kernels.rows import Rows
from h3core.kernels.table import Kernels
from h3core.model.memory import chunks
from h3core.model.noise import NormalGenerator
from h3core.model.precision import attention_kind, kind
from h3core.model.tiling import DecodePlan, TileAxis, decode_plan, decoded_frames, encode_plan
from h3core.model.vae_config import VideoVaeConfig

PIXEL_MEAN = np.array((0.485, 0.456, 0.406), np.float32)  # ImageNet, as the release normalises
PIXEL_STD = np.array((0.229, 0.224, 0.225), np.float32)
CONDITION_SEED = 42  # every condition's posterior is drawn from a fresh generator with this seed
SHORT_LATENTS = 7  # what a still or a 5-frame clip is padded to before it can be decoded

Block = Mapping[str, Any]  # loaded weights by name: matrices for linear layers, float32 arrays for the rest
Arrays = Mapping[str, np.ndarray]


def from_pixels(frames: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """uint8 RGB (..., 3) to ImageNet-normalised float32, into `out` if given."""
    out = np.divide(frames, np.float32(255), out=out, dtype=np.float32)
    out -= PIXEL_MEAN
    out /= PIXEL_STD
    return out


def to_pixels(values: np.ndarray) -> np.ndarray:
    """ImageNet-normalised float32 (..., 3) to uint8 RGB: denormalised, clamped, round(255 x)."""
    values = values * PIXEL_STD
    values += PIXEL_MEAN
    np.clip(values, 0, 1, out=values)
    values *= np.float32(255)
    return np.rint(values, out=values).astype(np.uint8)


def pad_short(latents: np.ndarray) -> np.ndarray:
    """One or two latent frames, which no clip can hold, to the seven of one clip by repeating the last."""
    return latents[:, np.minimum(np.arange(SHORT_LATENTS), latents.shape[1] - 1)]


class Mosaic:
    """Tiles laid out on a canvas, each faded first from the raw tile above it, then from the raw tile to its left."""

    def __init__(self, down: TileAxis, across: TileAxis, canvas: np.ndarray, above: np.ndarray, left: np.ndarray):
        """canvas (n, H, W, c); above (columns, n, widest overlap, tile width, c) and left (n, tile height, widest
        overlap, c) keep the raw edges the next tiles fade from. All float32."""
        self.down, self.across, self.canvas, self.above, self.left = down, across, canvas, above, left

    def put(self, row: int, column: int, tile: np.ndarray) -> None:
        """Tile (n, height, width, c); row by row from the top, each row from the left."""
        height, width = self.down.length, self.across.length
        below = self.down.overlaps[row] if row < len(self.down.overlaps) else 0
        right = self.across.overlaps[column] if column < len(self.across.overlaps) else 0
        y, x = self.down.starts[row], self.across.starts[column]
        kept = self.canvas[:, y : y + height - below, x : x + width - right]  # what overlaps later tiles is theirs
        np.copyto(kept, tile[:, : height - below, : width - right])
        if row:
            fade(kept, self.above[column][:, : self.down.overlaps[row - 1]], axis=1)
        if column:
            fade(kept, self.left[:, :, : self.across.overlaps[column - 1]], axis=2)
        if below:
            np.copyto(self.above[column][:, :below], tile[:, height - below :])
        if right:
            np.copyto(self.left[:, :, :right], tile[:, :, width - right :])


def fade(new: np.ndarray, old: np.ndarray, axis: int) -> None:
    """new (IN OUT) starts as `old` and becomes itself over the length of `old`, along `axis`; `old` may be longer."""
    length = old.shape[axis]
    shared = tuple(slice(min(a, b)) for a, b in zip(new.shape, old.shape, strict=True))
    new, old = new[shared], old[shared]
    shape = [1] * new.ndim
    shape[axis] = new.shape[axis]
    weight = (np.arange(new.shape[axis]) / length).reshape(shape)
    ours, theirs = weight.astype(np.float32), (1 - weight).astype(np.float32)
    for k in range(len(new)):  # a frame at a time: what is added needs room of its own
        at = k if axis == 0 else 0
        new[k] *= ours[at]
        new[k] += old[k] * theirs[at]


class VideoVae:
    """Both directions of the video VAE over one `Kernels`."""

    def __init__(self, config: Mapping[str, Any] | VideoVaeConfig, kernels: Kernels, precision: str = "exact"):
        """config: the checkpoint's fields; `tile_size` and `tile_overlap` (pixels, multiples of 16) may be added."""
        self.config = VideoVaeConfig.of(config)
        self.kernels = kernels
        self.kind = kind(precision, "video_decoder")
        self.attention_kind = attention_kind(precision, "video_decoder")
        self.mean = np.array(self.config.latents_mean, np.float32).reshape(-1, 1, 1, 1)
        self.std = np.array(self.config.latents_std, np.float32).reshape(-1, 1, 1, 1)

    def normalise(self, latents: np.ndarray) -> np.ndarray:
        """VAE latents (24, T, h, w) to what the transformer works on."""
        return (latents - self.mean) / self.std

    def denormalise(self, latents: np.ndarray) -> np.ndarray:
        """The transformer's latents (24, T, h, w) to the VAE's."""
        return latents * self.std + self.mean

    # Decoding

    def decode(
        self, latents: np.ndarray, fixed: Block, blocks: Iterable[Block], scratch: Arrays
    ) -> Iterator[np.ndarray]:
        """Frames in order, a clip at a time: uint8 (n, H, W, 3).

        latents: (24, T, h, w) float32 in VAE space, T >= 3 (decode_still for less).
        fixed: post_quant_conv and everything of the decoder but its blocks, by full name.  blocks: the decoder's blocks
        in order, by the names within one (`norm1.weight`, `attn.to_q.weight`, ...); iterated DecodePlan.passes(batch)
        times.  scratch: arrays of memory.video_decode_buffers, which fix the batch.
        raises: ValueError for T < 3.
        """
        for values in self.decode_values(latents, fixed, blocks, scratch):
            frames = np.empty(values.shape, np.uint8)
            for frame, value in zip(frames, values, strict=True):  # one at a time: a clip in float32 may be 200 MB
                np.copyto(frame, to_pixels(value))
            yield frames

    def decode_still(self, latents: np.ndarray, fixed: Block, blocks: Iterable[Block], scratch: Arrays) -> np.ndarray:
        """One latent frame to one frame, two to five: uint8 (1 or 5, H, W, 3); scratch for seven latents."""
        frames = decoded_frames(latents.shape[1], self.config)
        return next(self.decode(pad_short(latents), fixed, blocks, scratch))[:frames]

    def decode_values(
        self, latents: np.ndarray, fixed: Block, blocks: Iterable[Block], scratch: Arrays
    ) -> Iterator[np.ndarray]:
        """As decode, in ImageNet-normalised float32; the arrays are views that the next clip overwrites."""
        plan = decode_plan(self.config, *latents.shape[1:])
        times = np.minimum(np.arange(plan.latents + plan.pad), plan.latents - 1)
        film = _Film(self.config, plan, scratch)
        down, across = plan.tiles.latent_down, plan.tiles.latent_across
        units = list(product(range(plan.clips), range(len(down.starts)), range(len(across.starts))))
        batch = scratch["residual"].shape[0] // plan.rows
        rotary = self.rotary(plan, scratch)
        for first in range(0, plan.units, batch):
            held = units[first : first + batch]
            residual = scratch["residual"][: len(held) * plan.rows]
            tokens = residual.reshape(len(held), plan.rows, self.config.dim)
            for (clip, row, column), x in zip(held, tokens, strict=True):
                seen = times[clip * self.config.chunk :][: self.config.window]
                top, left = down.starts[row], across.starts[column]
                window = latents[:, seen, top : top + down.length, left : left + across.length]
                self.embed(window, fixed, x, scratch)
            for block in blocks:
                for x in tokens:
                    self.attend(x, block, rotary, scratch)
                self.feed_forward(residual, block, scratch)
            for (clip, row, column), x in zip(held, tokens, strict=True):
                self.unfold(x, fixed, plan, scratch)
                film.mosaic.put(row, column, scratch["tile"])
                if (row + 1) * (column + 1) == len(plan.tiles):
                    yield film.clip(clip)

    def rotary(self, plan: DecodePlan, scratch: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """cos, sin (rows, R/2) float32 of one unit: coordinates -1..1 within the tile; appended rows are not turned."""
        rotated = int(self.config.decoder_attention_head_dim * self.config.decoder_rope_dim_ratio)
        frequency = self.config.decoder_rope_theta ** (-6 * np.arange(rotated // 6) / rotated)
        sizes = (self.config.window, plan.tiles.latent_down.length, plan.tiles.latent_across.length)
        axes = np.meshgrid(*(2 * (np.arange(size) + 0.5) / size - 1 for size in sizes), indexing="ij")
        angles = 2 * np.pi * np.stack(axes, -1).reshape(-1, 3, 1) * frequency  # (rows, 3, R/6), float64
        angles = np.concatenate([angles.reshape(len(angles), -1), np.zeros((self.config.extra_tokens, rotated // 2))])
        scratch["cos"][:], scratch["sin"][:] = np.cos(angles), np.sin(angles)
        return scratch["cos"], scratch["sin"]

    def embed(self, window: np.ndarray, fixed: Block, x: np.ndarray, scratch: Arrays) -> None:
        """Latents (24, 7, h, w) to tokens x (rows, dim) OUT: time, height, width, then registers and one zero token."""
        channels = self.config.latent_channels
        tokens = np.ascontiguousarray(window.reshape(channels, -1).T, np.float32)
        quantised = np.empty_like(tokens)
        post = np.ascontiguousarray(fixed["post_quant_conv.weight"], np.float32).reshape(channels, channels)
        matrix = QuantMatrix(post.reshape(-1).view(np.uint8), "f32", channels, channels, self.kernels)
        matrix.matmul(self.rows(scratch["island_rows"], tokens, "f32"), quantised, bias=fixed["post_quant_conv.bias"])
        packed = self.rows(scratch["island_rows"], quantised, "f32")
        fixed["decoder.proj_in.weight"].matmul(packed, x[: len(tokens)], bias=fixed["decoder.proj_in.bias"])
        x[len(tokens) : -1] = fixed["decoder.register_tokens"].reshape(-1, self.config.dim)
        x[-1] = 0

    def attend(self, x: np.ndarray, block: Block, rotary: tuple[np.ndarray, np.ndarray], scratch: Arrays) -> None:
        """x (rows, dim) IN OUT, one unit: x += attention(RMS(x)) * scale1. q and k norms have no weight."""
        config = self.config
        heads, head_dim = config.decoder_num_attention_heads, config.decoder_attention_head_dim
        eps, (cos, sin) = config.decoder_norm_eps, rotary
        q, kv = scratch["q"], scratch["kv"]
        ones = np.ones(head_dim, np.float32)
        attention = Attention(scratch["attention"], len(x), heads, heads, head_dim, self.attention_kind, self.kernels)
        packed = self.rows(scratch["rows"], x, self.kind, norm="rms", weight=block["norm1.weight"], eps=eps)
        block["attn.to_k.weight"].matmul(packed, kv, bias=block["attn.to_k.bias"])
        attention.put_k(kv, 0, norm=ones, eps=eps, cos=cos, sin=sin)
        block["attn.to_v.weight"].matmul(packed, kv, bias=block["attn.to_v.bias"])
        attention.put_v(kv, 0)
        block["attn.to_q.weight"].matmul(packed, q, bias=block["attn.to_q.bias"])
        attention.prepare_q(q, norm=ones, eps=eps, cos=cos, sin=sin)
        mixed = kv  # keys and values are packed by now, so their buffer takes the result
        attention.run(q, mixed)
        packed = self.rows(scratch["rows"], mixed, self.kind)
        gate = block["scale1"].reshape(1, -1)
        block["attn.to_out.0.weight"].add(packed, x, bias=block["attn.to_out.0.bias"], gate=gate)

    def feed_forward(self, x: np.ndarray, block: Block, scratch: Arrays) -> None:
        """x (m, dim) IN OUT, any number of units, in chunks of rows: x += SwiGLU(RMS(x)) * scale2."""
        inner = self.config.dim * self.config.decoder_ffn_mult
        weight, bias = block["ff.net.0.proj.weight"], block["ff.net.0.proj.bias"]
        value, gate = weight.rows(0, inner), weight.rows(inner, inner)
        scale = block["scale2"].reshape(1, -1)
        for start, end in chunks(len(x)):
            chunk, hidden = x[start:end], scratch["hidden"][: end - start]
            norm = {"norm": "rms", "weight": block["norm2.weight"], "eps": self.config.decoder_norm_eps}
            packed = self.rows(scratch["rows"], chunk, self.kind, **norm)
            value.swiglu(packed, gate, hidden, bias=bias[:inner], gate_bias=bias[inner:])
            packed = self.rows(scratch["hidden_rows"], hidden, self.kind)
            block["ff.net.2.weight"].add(packed, chunk, bias=block["ff.net.2.bias"], gate=scale)

    def unfold(self, x: np.ndarray, fixed: Block, plan: DecodePlan, scratch: Arrays) -> None:
        """Tokens x (rows, dim) of one unit to scratch["tile"] (body and tail frames, height, width, 3)."""
        config, tile, patches = self.config, scratch["tile"], scratch["patches"]
        h, w = plan.tiles.latent_down.length, plan.tiles.latent_across.length
        weight, bias = fixed["decoder.norm_out.weight"], fixed["decoder.norm_out.bias"]
        norm = {"norm": "layer", "weight": weight, "bias": bias, "eps": config.decoder_norm_eps}
        last_body = config.lead + config.clip_length
        first_tail = config.window * config.time - config.tail
        together = len(patches) // (h * w)  # latent frames the scratch holds
        for first in range(0, config.window, together):
            tokens = x[first * h * w : min(first + together, config.window) * h * w]
            packed = self.rows(scratch["island_rows"], tokens, "f32", **norm)
            out = patches[: len(tokens)]
            fixed["decoder.proj_out.weight"].matmul(packed, out, bias=fixed["decoder.proj_out.bias"])
            pixels = out.reshape(-1, h, w, config.out_channels, config.time, config.space, config.space)
            pixels = pixels.transpose(0, 4, 1, 5, 2, 6, 3)  # (latent frame, time, h, 16, w, 16, 3)
            for latent, j in np.ndindex(pixels.shape[:2]):
                frame = (first + latent) * config.time + j
                if config.lead <= frame < last_body:
                    np.copyto(tile[frame - config.lead].reshape(pixels.shape[2:]), pixels[latent, j])
                elif frame >= first_tail:
                    np.copyto(
                        tile[frame - first_tail + config.clip_length].reshape(pixels.shape[2:]), pixels[latent, j]
                    )

    def rows(self, storage: np.ndarray, x: np.ndarray, kind: str, **norm) -> Rows:
        """x (m, k) packed into a scratch buffer that is large enough."""
        packed = Rows(storage, x.shape[1], kind, self.kernels)
        packed.pack(x, **norm)
        return packed

    # Encoding: float32 whatever the precision of the run

    def encode(self, frames: np.ndarray, weights: Block, scratch: Arrays) -> np.ndarray:
        """Moments (48, T, h, w) float32, mean then log-variance, of frames (F, H, W, 3) uint8.

        H and W are multiples of 16, at least 32.  weights: encoder and quant_conv, by full name.  scratch: arrays
        of memory.video_encode_buffers.  One frame gives one latent; else the last frame is repeated up to whole clips.
        """
        config = self.config
        plan = encode_plan(config, *frames.shape[:3])
        down, across = plan.tiles.down, plan.tiles.across
        encoder = _Encoder(config, weights, self.kernels, scratch)
        canvas = scratch["canvas"]
        mosaic = Mosaic(plan.tiles.latent_down, plan.tiles.latent_across, canvas, scratch["above"], scratch["left"])
        moments = np.empty((2 * config.latent_channels, plan.latents, *canvas.shape[1:3]), np.float32)
        for clip in range(plan.clips):
            times = np.minimum(np.arange(plan.clip_frames) + clip * plan.clip_frames, len(frames) - 1)
            for row, column in product(range(len(down.starts)), range(len(across.starts))):
                y, x = down.starts[row], across.starts[column]
                tile = frames[times, y : y + down.length, x : x + across.length]
                from_pixels(tile, out=scratch["pixels"])
                mosaic.put(row, column, encoder.run(scratch["pixels"]))
            out = moments[:, clip * config.chunk : (clip + 1) * config.chunk]
            np.copyto(out, canvas.transpose(3, 0, 1, 2)[:, : out.shape[1]])  # the last clip loses 3 latents
        return moments

    def posterior_mean(self, moments: np.ndarray) -> np.ndarray:
        """Latents (24, T, h, w) in VAE space: the mean half of the moments."""
        return moments[: self.config.latent_channels]

    def condition_latents(self, moments: np.ndarray) -> np.ndarray:
        """Normalised latents of a keyframe or reference: posterior drawn with seed 42, rounded to float16 and back."""
        mean, log_variance = np.split(moments, 2)
        deviation = np.exp(np.float32(0.5) * np.clip(log_variance, -30, 20))
        noise = NormalGenerator(CONDITION_SEED).draw(mean.shape)
        drawn = mean + deviation * noise
        return self.normalise(drawn.astype(np.float16).astype(np.float32))


class _Film:
    """Decoded clips on their way out: the canvas tiles are laid on, and the tail that fades into the next clip."""

    def __init__(self, config: VideoVaeConfig, plan: DecodePlan, scratch: Arrays):
        self.config, self.plan = config, plan
        self.canvas, self.tail = scratch["canvas"], scratch["tail"]
        self.mosaic = Mosaic(plan.tiles.down, plan.tiles.across, self.canvas, scratch["above"], scratch["left"])

    def clip(self, number: int) -> np.ndarray:
        """The finished frames of a clip whose tiles are all laid: a view of the canvas."""
        length = self.config.clip_length
        if number:
            fade(self.canvas[:length], self.tail, axis=0)
        if number == self.plan.clips - 1:
            return self.canvas[: self.plan.frames - number * length]  # body and tail are neighbours on the canvas
        np.copyto(self.tail, self.canvas[length:])
        return self.canvas[:length]


class _Encoder:
    """The encoder's convolutions, ready to run on one tile of one clip; x moves between three scratch buffers."""

    def __init__(self, config: VideoVaeConfig, weights: Block, kernels: Kernels, scratch: Arrays):
        self.config, self.weights, self.kernels = config, weights, kernels
        self.buffers = [scratch["a"], scratch["b"], scratch["c"]]  # x is in the first
        factors = zip(config.temporal_downsample_factors, config.spatial_downsample_factors, strict=True)
        self.strides = [(time, space, space) for time, space in factors]
        self.convolutions = {}
        for name, weight in weights.items():
            if name.endswith(".weight") and weight.ndim == 5:
                layer = name.removesuffix(".weight")
                stride = self.strides[int(layer.split(".")[2])] if ".downsamplers." in layer else (1, 1, 1)
                self.convolutions[layer] = Convolution(weight, weights[f"{layer}.bias"], kernels, stride=stride)

    def run(self, pixels: np.ndarray) -> np.ndarray:
        """Pixels (t, H, W, 3) to moments (t', H/16, W/16, 48), a view of a scratch buffer."""
        x = self.convolve("encoder.conv_in", pixels, 0)
        for level, stride in enumerate(self.strides):
            name = f"encoder.down_blocks.{level}"
            for j in range(self.config.layers_per_block):
                x = self.residual(f"{name}.resnets.{j}", x)
            if max(stride) > 1:
                border = (0, stride[1] - 1)  # right and bottom only
                x = self.convolve(f"{name}.downsamplers.0.conv", x, 1, border)
                self.swap(0, 1)
        x = self.activate("encoder.norm_out", x, 1)
        x = self.convolve("encoder.conv_out", x, 2)
        return self.convolve("quant_conv", x, 0)

    def residual(self, name: str, x: np.ndarray) -> np.ndarray:
        """x (or its 1x1x1 convolution, where widths differ) + conv2(silu(norm2(conv1(silu(norm1(x))))))."""
        y = self.activate(f"{name}.norm1", x, 1)
        y = self.convolve(f"{name}.conv1", y, 2)
        y = self.activate(f"{name}.norm2", y, 1)
        y = self.convolve(f"{name}.conv2", y, 2)
        if f"{name}.conv_shortcut" in self.convolutions:
            x = self.convolve(f"{name}.conv_shortcut", x, 1)
            self.swap(0, 1)
        x += y
        return x

    def activate(self, name: str, x: np.ndarray, slot: int) -> np.ndarray:
        """silu(GroupNorm(x)), statistics per frame."""
        y = self.view(slot, x.shape)
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        group_norm_silu(self.kernels, x, y, self.config.norm_num_groups, weight, bias, self.config.norm_eps)
        return y

    def convolve(self, name: str, x: np.ndarray, slot: int, border: tuple[int, int] = (1, 1)) -> np.ndarray:
        """Causal convolution: zero frames in front, mirrored pixels at the borders."""
        layer = self.convolutions[name]
        wide = self.weights[f"{name}.weight"].shape[2] > 1
        pad = ((2, 0), border, border) if wide else ((0, 0), (0, 0), (0, 0))
        y = self.view(slot, (*layer.output_shape(*x.shape[:3], pad), self.weights[f"{name}.bias"].shape[0]))
        layer.run(x, y, pad, reflect=True)
        return y

    def view(self, slot: int, shape: tuple[int, ...]) -> np.ndarray:
        return self.buffers[slot][: prod(shape)].reshape(shape)

    def swap(self, a: int, b: int) -> None:
        self.buffers[a], self.buffers[b] = self.buffers[b], self.buffers[a]
