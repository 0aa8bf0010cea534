"""The video VAE against the reference's vectors: decode, encode, tiles, clips, pixels."""

import json
from functools import cache

import numpy as np
import pytest

from h3core.kernels.table import Kernels
from h3core.model import memory, tiling
from h3core.model.vae_config import VideoVaeConfig
from h3core.model.video_vae import VideoVae, from_pixels, pad_short, to_pixels
from tests.golden_files import TINY, compare, compare_uint8, golden, relative_l2
from tests.model.tiny import allocate
from tests.model.vae_weights import as_block, load_tiny, numbered, only

CONFIG = json.loads((TINY / "vae" / "config.json").read_text())
BLOCKS = "decoder.transformer_blocks."
TILED = {**CONFIG, "tile_size": 48, "tile_overlap": 16}


class Decoder:
    """The tiny decoder, loaded once for one Kernels."""

    def __init__(self, kernels: Kernels, stored: str = "f32"):
        weights = load_tiny("vae")
        self.kernels = kernels
        fixed = only(weights, "decoder.", "post_quant_conv.", but=BLOCKS)
        self.fixed = as_block(fixed, kernels, stored)
        layers = numbered(weights, BLOCKS, CONFIG["decoder_num_layers"])
        self.blocks = [as_block(block, kernels, stored) for block in layers]

    def values(
        self, latents: np.ndarray, config: dict = CONFIG, precision: str = "exact", batch: int = 99
    ) -> np.ndarray:
        """The decoder's answer in ImageNet-normalised values, (3, F, H, W)."""
        vae = VideoVae(config, self.kernels, precision)
        arrays = allocate(memory.video_decode_buffers(config, latents.shape[1:], batch, precision))
        clips = vae.decode_values(latents, self.fixed, self.blocks, arrays)
        return np.concatenate([clip.copy() for clip in clips]).transpose(3, 0, 1, 2)

    def frames(self, latents: np.ndarray, config: dict = CONFIG, batch: int = 99) -> np.ndarray:
        """uint8 (F, H, W, 3)."""
        vae = VideoVae(config, self.kernels)
        arrays = allocate(memory.video_decode_buffers(config, latents.shape[1:], batch, "exact"))
        return np.concatenate(list(vae.decode(latents, self.fixed, self.blocks, arrays)))


@cache
def decoder(threads: int = 2, stored: str = "f32") -> Decoder:
    return Decoder(Kernels(threads=threads), stored)


def encode(frames: np.ndarray, config: dict = CONFIG, kernels: Kernels | None = None) -> np.ndarray:
    """Moments (48, T, h, w) of frames (3, F, H, W) uint8."""
    frames = np.ascontiguousarray(frames.transpose(1, 2, 3, 0))
    vae = VideoVae(config, kernels or decoder().kernels)
    arrays = allocate(memory.video_encode_buffers(config, *frames.shape[:3]))
    return vae.encode(frames, only(load_tiny("vae"), "encoder.", "quant_conv."), arrays)


@pytest.mark.parametrize("latents", [3, 4, 5, 6, 7, 8, 9, 12, 13])
def test_decode(latents):
    vectors = golden("vae_decode")
    got = decoder().values(vectors[f"latents{latents}.input"])
    assert got.shape[1] == tiling.decoded_frames(latents, VideoVaeConfig())
    if f"latents{latents}.output" in vectors:
        compare(f"decode of {latents} latents", got, vectors[f"latents{latents}.output"])
    else:
        want = vectors[f"latents{latents}.output_every4th_pixel"]
        compare(f"decode of {latents} latents", got[..., ::4, ::4], want)


def test_decode_inner_steps():
    vectors = golden("vae_decode_inner")
    vae = VideoVae(CONFIG, decoder().kernels)
    plan = tiling.decode_plan(vae.config, *vectors["input"].shape[1:])
    arrays = allocate(memory.video_decode_buffers(CONFIG, vectors["input"].shape[1:], 1, "exact"))
    x = arrays["residual"]
    cos, sin = vae.rotary(plan, arrays)
    for name, table in (("rope.cos", cos), ("rope.sin", sin)):
        compare(name, np.tile(table, (1, 2)), vectors[name])
    vae.embed(vectors["input"], decoder().fixed, x, arrays)
    compare("tokens", x[:42], vectors["decoder.proj_in"])
    for number, block in enumerate(decoder().blocks):
        before = x.copy()
        vae.attend(x, block, (cos, sin), arrays)
        if number == 0:
            compare("attention", (x - before) / block["scale1"], vectors["decoder.transformer_blocks.0.attn"])
        before = x.copy()
        vae.feed_forward(x, block, arrays)
        if number == 0:
            compare("feed-forward", (x - before) / block["scale2"], vectors["decoder.transformer_blocks.0.ff"])
        compare(f"block {number}", x, vectors[f"decoder.transformer_blocks.{number}"])
    vae.unfold(x, decoder().fixed, plan, arrays)
    clip = vectors["clip_every4th_pixel"].transpose(1, 2, 3, 0)
    compare("body", arrays["tile"][:17, ::4, ::4], clip[3:20])
    compare("tail", arrays["tile"][17:, ::4, ::4], clip[23:])


def test_decode_in_tiles():
    vectors = golden("vae_tiled")
    tiled = decoder().values(vectors["decode.input"], TILED)
    compare("tiled decode", tiled[..., ::2, ::2], vectors["decode.tiled_every2nd_pixel"])
    whole = decoder().values(vectors["decode.input"])
    compare("untiled decode", whole[..., ::2, ::2], vectors["decode.untiled_every2nd_pixel"])


@pytest.mark.parametrize("batch", [1, 2, 3, 7])
def test_batch_changes_nothing(batch):
    latents = np.random.default_rng(1).standard_normal((24, 12, 4, 6), np.float32)
    passes = 0

    class Counted(list):
        def __iter__(self):
            nonlocal passes
            passes += 1
            return super().__iter__()

    tiny = Decoder(decoder().kernels)
    want = tiny.values(latents, TILED)
    tiny.blocks = Counted(tiny.blocks)
    assert np.array_equal(tiny.values(latents, TILED, batch=batch), want)
    plan = tiling.decode_plan(VideoVaeConfig.of(TILED), 12, 4, 6)
    assert plan.units == 2 * 2 * 3
    assert passes == plan.passes(batch)


def test_threads_change_nothing():
    latents = np.random.default_rng(2).standard_normal((24, 7, 4, 4), np.float32)
    for precision in ("exact", "bf16"):
        one, two = (decoder(threads).values(latents, TILED, precision) for threads in (1, 2))
        assert np.array_equal(one, two)


@pytest.mark.parametrize("stored", ["f32", "bf16"])
def test_bf16_is_near(stored):
    """As near as the reference's own bf16 mode, 6e-3."""
    vectors = golden("vae_decode")
    got = decoder(2, stored).values(vectors["latents7.input"], precision="bf16")
    assert 1e-5 < relative_l2(got, vectors["latents7.output"]) < 1e-2


def test_stopping_reaches_the_caller():
    class Stop(Exception):
        pass

    def blocks():
        yield decoder().blocks[0]
        raise Stop

    latents = np.zeros((24, 7, 2, 2), np.float32)
    arrays = allocate(memory.video_decode_buffers(CONFIG, latents.shape[1:], 1, "exact"))
    with pytest.raises(Stop):
        next(VideoVae(CONFIG, decoder().kernels).decode(latents, decoder().fixed, blocks(), arrays))


def test_a_still_is_a_padded_clip():
    latents = golden("vae_decode")["latents3.input"]
    for count, frames in ((1, 1), (2, 5)):
        short = latents[:, :count]
        arrays = allocate(memory.video_decode_buffers(CONFIG, (7, 2, 2), 1, "exact"))
        still = VideoVae(CONFIG, decoder().kernels).decode_still(short, decoder().fixed, decoder().blocks, arrays)
        assert np.array_equal(still, decoder().frames(pad_short(short))[:frames])
    with pytest.raises(ValueError, match="cannot be decoded alone"):
        decoder().values(latents[:, :2])


def test_pixels_there_and_back():
    grey = np.arange(256, dtype=np.uint8)
    frames = np.stack([grey, grey[::-1], np.roll(grey, 100)], -1).reshape(1, 16, 16, 3)
    assert np.array_equal(to_pixels(from_pixels(frames)), frames)
    outside = np.array([[-9.0, 0.0, 9.0]], np.float32)
    assert to_pixels(outside).tolist() == [[0, round(0.456 * 255), 255]]


def test_a_decoded_run_in_pixels():
    vectors = golden("run_t2va_22f")
    vae = VideoVae(CONFIG, decoder().kernels)
    got = decoder().frames(vae.denormalise(vectors["final_latents"]))
    compare_uint8("film of a run", got.transpose(0, 3, 1, 2)[::2], vectors["video_uint8_fchw_every2nd_frame"])


@pytest.mark.parametrize("name", ["image", "clip5", "clip22", "clip30_padded", "clip39"])
def test_encode(name):
    vectors = golden("vae_encode")
    moments = encode(vectors[f"{name}.pixels_uint8_cfhw"])
    compare(f"encode of {name}", moments, vectors[f"{name}.moments"])
    vae = VideoVae(CONFIG, decoder().kernels)
    got, want = vae.condition_latents(moments), vectors[f"{name}.condition_latents"]
    compare(f"condition of {name}", got, want, 1e-4)
    got, want = (vae.denormalise(latents).astype(np.float16) for latents in (got, want))
    apart = np.abs(got.astype(np.float32) - want)
    # a value on the edge between two float16 may fall either way: to its neighbour, and rarely
    assert (apart <= np.spacing(np.abs(want)) + 1e-5).all()
    assert np.count_nonzero(apart > 1e-5) <= max(2, got.size // 50)


def test_encode_in_tiles():
    vectors = golden("vae_tiled")
    frames = vectors["encode.pixels_uint8_cfhw"]
    compare("tiled encode", encode(frames, TILED), vectors["encode.tiled_moments"])
    compare("untiled encode", encode(frames), vectors["encode.untiled_moments"])


def test_repair_latents_are_the_posterior_mean():
    vectors = golden("run_partial_from_step5")
    vae = VideoVae(CONFIG, decoder().kernels)
    latents = vae.normalise(vae.posterior_mean(encode(vectors["pixels_uint8_cfhw"])))
    compare("latents to repair", latents, vectors["latents_normalised"])
    compare("there and back", vae.normalise(vae.denormalise(latents)), latents, 1e-6)


def test_threads_change_no_latent():
    frames = np.random.default_rng(3).integers(0, 256, (3, 5, 64, 48), np.uint8)
    one, two = (encode(frames, TILED, Kernels(threads=threads)) for threads in (1, 2))
    assert np.array_equal(one, two)


def test_a_canvas_of_odd_sides_is_refused():
    for side in (40, 16):
        with pytest.raises(ValueError, match="multiples of 16"):
            encode(np.zeros((3, 1, side, 64), np.uint8))
