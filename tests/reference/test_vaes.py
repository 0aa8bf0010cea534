"""Both VAEs live against diffusers: random small models, several sizes, lengths, tilings and rates."""

import numpy as np
import pytest

from h3core.kernels.table import Kernels
from h3core.model import memory
from h3core.model.audio_vae import AudioVae, fold_weight_norm
from h3core.model.video_vae import VideoVae
from tests.golden_files import compare
from tests.model.tiny import allocate
from tests.model.vae_weights import as_block, numbered, only

pytestmark = pytest.mark.reference
torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
fill = pytest.importorskip("tests.reference.reference").fill

BLOCKS = "decoder.transformer_blocks."
AUDIO_DECODER = ("dec_in_proj.", "decoder.")
KERNELS = Kernels(threads=2)
VIDEO = {
    "narrow": {"block_out_channels": (6, 6, 9, 9, 12, 15), "norm_num_groups": 3, "layers_per_block": 1},
    "deep": {
        "block_out_channels": (4, 8, 8, 16, 16, 20),
        "norm_num_groups": 2,
        "layers_per_block": 2,
        "decoder_num_register_tokens": 3,
        "decoder_ffn_mult": 3,
        "decoder_rope_dim_ratio": 0.5,
        "decoder_attention_head_dim": 24,
    },
}
AUDIO = {
    "released rates": {
        "encoder_rates": (2, 4, 4, 5, 5),
        "decoder_rates": (5, 5, 2, 2, 2, 2, 2),
        "decoder_kernel_sizes": (9, 9, 4, 4, 4, 4, 4),
        "decoder_dim": 256,
        "encoder_dim": 3,
        "num_attention_heads": 4,
        "latent_dim": 256,
    },
    "other rates": {
        "encoder_rates": (3, 4),
        "decoder_rates": (4, 3),
        "decoder_kernel_sizes": (8, 5),
        "decoder_dim": 20,
        "encoder_dim": 5,
        "resblock_kernel_sizes": (3, 5),
        "resblock_dilation_sizes": ((1, 2), (1, 4)),
    },
}


def video_model(name: str, tile: int | None):
    """(the reference's model, our config, its weights)."""
    base = {"decoder_num_layers": 2, "decoder_num_attention_heads": 3, "decoder_attention_head_dim": 16}
    with torch.no_grad():
        model = diffusers.AutoencoderKLMiniMaxH3(**{**base, **VIDEO[name]}).eval()
        fill(model, torch.Generator().manual_seed(len(name)))
    tiles = {}
    if tile:
        model.enable_tiling(tile, tile, 16, 16)
        tiles = {"tile_size": tile, "tile_overlap": 16}
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    return model, {**model.config, **tiles}, weights


@pytest.mark.parametrize(
    "name, tile, shape",
    [
        ("narrow", 48, (7, 4, 9)),
        ("narrow", None, (3, 16, 18)),
        ("narrow", None, (8, 3, 2)),
        ("deep", 64, (12, 7, 4)),
        ("deep", 32, (3, 3, 5)),
    ],
)
def test_video_decode(name, tile, shape):
    model, config, weights = video_model(name, tile)
    latents = np.random.default_rng(1).standard_normal((24, *shape), np.float32)
    with torch.no_grad():
        want = model.decode(torch.from_numpy(latents)[None]).sample[0].numpy()
    fixed = as_block(only(weights, "decoder.", "post_quant_conv.", but=BLOCKS), KERNELS)
    blocks = [as_block(block, KERNELS) for block in numbered(weights, BLOCKS, 2)]
    arrays = allocate(memory.video_decode_buffers(config, shape, 5, "exact"))
    clips = VideoVae(config, KERNELS).decode_values(latents, fixed, blocks, arrays)
    got = np.concatenate([clip.copy() for clip in clips])
    compare("live video decode", got.transpose(3, 0, 1, 2), want)


@pytest.mark.parametrize(
    "name, tile, shape",
    [
        ("narrow", 48, (5, 64, 144)),
        ("narrow", None, (1, 256, 288)),
        ("narrow", None, (1, 48, 32)),
        ("deep", 64, (5, 112, 64)),
        ("deep", 32, (18, 48, 64)),
    ],
)
def test_video_encode(name, tile, shape):
    model, config, weights = video_model(name, tile)
    frames = np.random.default_rng(2).integers(0, 256, (*shape, 3), np.uint8)
    pixels = torch.from_numpy(frames).float() / 255
    pixels = (pixels - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    with torch.no_grad():
        want = model.encode(pixels.permute(3, 0, 1, 2)[None]).latent_dist.parameters[0].numpy()
    arrays = allocate(memory.video_encode_buffers(config, *shape))
    got = VideoVae(config, KERNELS).encode(frames, only(weights, "encoder.", "quant_conv."), arrays)
    compare("live video encode", got, want)


def audio_model(name: str):
    """(the reference's model, its weights)."""
    base = {"latent_dim": 64, "latent_channels": 32, "num_attention_heads": 2, "sampling_rate": 1600}
    with torch.no_grad():
        model = diffusers.AutoencoderKLMiniMaxH3Audio(**{**base, **AUDIO[name]}).eval()
        fill(model, torch.Generator().manual_seed(len(name)))
    return model, {name: value.numpy() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("name", AUDIO)
@pytest.mark.parametrize("length", [1, 2, 65])
def test_audio_decode(name, length):
    model, weights = audio_model(name)
    latents = np.random.default_rng(3).standard_normal((2, 32, length), np.float32)
    with torch.no_grad():
        want = model.decode(torch.from_numpy(latents)).sample.numpy()
    block = fold_weight_norm(as_block(only(weights, *AUDIO_DECODER), KERNELS))
    arrays = allocate(memory.audio_decode_buffers(model.config, length))
    got = AudioVae(model.config, KERNELS).decode(latents, block, arrays)
    compare("live audio decode", got, want.reshape(got.shape))


@pytest.mark.parametrize("name", AUDIO)
@pytest.mark.parametrize("samples", [1, 799, 2401])
def test_audio_encode(name, samples):
    model, weights = audio_model(name)
    waveform = np.random.default_rng(4).uniform(-1, 1, (2, samples)).astype(np.float32)
    with torch.no_grad():
        want = model.encode(torch.from_numpy(waveform)[:, None]).latent_dist
    block = fold_weight_norm(as_block(only(weights, "", but=AUDIO_DECODER), KERNELS))
    arrays = allocate(memory.audio_encode_buffers(model.config, samples))
    mean, log_std = AudioVae(model.config, KERNELS).encode(waveform, block, arrays)
    compare("live audio mean", mean, want.mean.numpy())
    compare("live audio log_std", log_std, want.logs.numpy() if hasattr(want, "logs") else np.log(want.std.numpy()))
