"""How fast the video VAE decodes: a decoder with random weights, 39 frames at 128x128 unless told otherwise.

python -m tests.bench.video_decode [--frames 39] [--size 128x128] [--dim 256] [--blocks 4] [--threads N] [--batch N]
"""

import argparse
import time

import numpy as np

from h3core.kernels.table import Kernels
from h3core.model import memory, tiling
from h3core.model.layout import latent_frames
from h3core.model.vae_config import VideoVaeConfig
from h3core.model.video_vae import VideoVae
from tests.model.tiny import allocate
from tests.model.vae_weights import as_block

HEAD_DIM = 64


def random_weights(config: VideoVaeConfig) -> tuple[dict, list[dict]]:
    """Fixed weights and blocks, scaled so that values neither vanish nor grow."""
    generator = np.random.default_rng(0)
    dim, inner = config.dim, config.dim * config.decoder_ffn_mult

    def linear(name: str, n: int, k: int) -> dict:
        weight = generator.standard_normal((n, k), np.float32) / np.float32(k**0.5)
        return {f"{name}.weight": weight, f"{name}.bias": np.zeros(n, np.float32)}

    def block() -> dict:
        vectors = {name: np.ones(dim, np.float32) for name in ("norm1.weight", "norm2.weight", "scale1", "scale2")}
        for name in ("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"):
            vectors |= linear(name, dim, dim)
        return vectors | linear("ff.net.0.proj", 2 * inner, dim) | linear("ff.net.2", dim, inner)

    channels = config.latent_channels
    post = linear("post_quant_conv", channels, channels)
    post["post_quant_conv.weight"] = post["post_quant_conv.weight"].reshape(channels, channels, 1, 1, 1)
    fixed = post | linear("decoder.proj_in", dim, channels) | linear("decoder.proj_out", config.patch, dim)
    fixed["decoder.register_tokens"] = np.zeros((1, config.decoder_num_register_tokens, dim), np.float32)
    fixed |= {"decoder.norm_out.weight": np.ones(dim, np.float32), "decoder.norm_out.bias": np.zeros(dim, np.float32)}
    return fixed, [block() for _ in range(config.decoder_num_layers)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--frames", type=int, default=39)
    options.add_argument("--size", default="128x128")
    options.add_argument("--dim", type=int, default=256)
    options.add_argument("--blocks", type=int, default=4)
    options.add_argument("--threads", type=int)
    options.add_argument("--batch", type=int, default=1000)
    options.add_argument("--times", type=int, default=3)
    given = options.parse_args()
    width, height = map(int, given.size.split("x"))
    config = VideoVaeConfig(decoder_num_layers=given.blocks, decoder_num_attention_heads=given.dim // HEAD_DIM)
    shape = latent_frames(given.frames), height // config.space, width // config.space
    plan = tiling.decode_plan(config, *shape)
    weights, layers = random_weights(config)
    latents = np.random.default_rng(1).standard_normal((config.latent_channels, *shape), np.float32)
    kernels = Kernels(threads=given.threads)
    fixed = as_block(weights, kernels)
    print(
        f"{kernels.name}, {kernels.threads} threads: {plan.frames} frames {given.size}, "
        f"{plan.units} units of {plan.rows} rows"
    )
    for precision, stored in (("exact", "f32"), ("bf16", "bf16")):
        blocks = [as_block(block, kernels, stored) for block in layers]
        buffers = memory.video_decode_buffers(config, shape, given.batch, precision)
        arrays, vae, best = allocate(buffers), VideoVae(config, kernels, precision), float("inf")
        for _ in range(given.times):
            start = time.perf_counter()
            frames = sum(len(clip) for clip in vae.decode(latents, fixed, blocks, arrays))
            best = min(best, time.perf_counter() - start)
        size = memory.size_bytes(buffers) / 1e6
        print(f"{precision}: {best:.3f} s, {frames / best:.0f} frames/s, scratch {size:.0f} MB")


if __name__ == "__main__":
    main()
