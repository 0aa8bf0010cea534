"""The audio VAE against the reference's vectors: decode, encode, folded weights."""

import json

import numpy as np
import pytest

from h3core.kernels.table import Kernels
from h3core.model import memory
from h3core.model.audio_vae import AudioVae, fold_weight_norm
from tests.golden_files import TINY, compare, golden
from tests.model.tiny import allocate
from tests.model.vae_weights import as_block, load_tiny, only

CONFIG = json.loads((TINY / "audio_vae" / "config.json").read_text())
DECODER = ("dec_in_proj.", "decoder.")
KERNELS = Kernels(threads=2)


def decode(latents: np.ndarray, kernels: Kernels = KERNELS) -> np.ndarray:
    weights = fold_weight_norm(as_block(only(load_tiny("audio_vae"), *DECODER), kernels))
    arrays = allocate(memory.audio_decode_buffers(CONFIG, latents.shape[2]))
    return AudioVae(CONFIG, kernels).decode(latents, weights, arrays)


def encode(waveform: np.ndarray, kernels: Kernels = KERNELS) -> tuple[np.ndarray, np.ndarray]:
    weights = fold_weight_norm(as_block(only(load_tiny("audio_vae"), "", but=DECODER), kernels))
    arrays = allocate(memory.audio_encode_buffers(CONFIG, waveform.shape[1]))
    return AudioVae(CONFIG, kernels).encode(waveform, weights, arrays)


@pytest.mark.parametrize("name", ["latents1", "latents7", "latents37", "clamped"])
def test_decode(name):
    vectors = golden("audio_vae")
    got = decode(vectors[f"decode.{name}.input"])
    compare(f"decode of {name}", got, vectors[f"decode.{name}.waveform"][:, 0])
    assert np.abs(got).max() <= 1


@pytest.mark.parametrize("name", ["hop_multiple", "ragged", "one_latent", "short"])
def test_encode(name):
    vectors = golden("audio_vae")
    mean, log_std = encode(vectors[f"encode.{name}.waveform"][:, 0])
    compare(f"mean of {name}", mean, vectors[f"encode.{name}.mean"])
    compare(f"log_std of {name}", log_std, vectors[f"encode.{name}.log_std"])


def test_a_run_in_sound():
    vectors = golden("run_t2va_22f")
    vae = AudioVae(CONFIG, KERNELS)
    compare("sound of a run", decode(vae.denormalise(vectors["final_audio_latents"])), vectors["audio"])


def test_repair_latents_are_the_posterior_mean():
    vectors = golden("run_partial_from_step5")
    vae = AudioVae(CONFIG, KERNELS)
    waveform = vectors["waveform"][:, 0]
    latents = vae.normalise(encode(waveform)[0])
    compare("sound latents to repair", latents, vectors["audio_latents_normalised"])
    compare("there and back", vae.normalise(vae.denormalise(latents)), latents, 1e-6)


def test_channels_know_nothing_of_each_other():
    latents = golden("audio_vae")["decode.latents7.input"]
    both = decode(latents)
    for channel in range(2):
        assert np.array_equal(decode(latents[channel : channel + 1])[0], both[channel])


def test_threads_change_nothing():
    vectors = golden("audio_vae")
    one = Kernels(threads=1)
    latents, waveform = vectors["decode.latents37.input"], vectors["encode.ragged.waveform"][:, 0]
    assert np.array_equal(decode(latents, one), decode(latents))
    assert np.array_equal(encode(waveform, one)[0], encode(waveform)[0])


def test_every_spelling_of_weight_norm_folds_to_the_same():
    v = np.random.default_rng(4).standard_normal((3, 2, 5)).astype(np.float32)
    g = np.array([2.0, 3.0, 0.5], np.float32).reshape(3, 1, 1)
    plain = v * g / np.sqrt((v.astype(np.float64) ** 2).sum(axis=(1, 2), keepdims=True))
    other = {"bias": np.zeros(3, np.float32)}
    pairs = (
        {"a.weight_g": g, "a.weight_v": v},
        {"a.parametrizations.weight.original0": g, "a.parametrizations.weight.original1": v},
        {"a.weight": plain.astype(np.float32)},
    )
    for pair in pairs:
        folded = fold_weight_norm({**pair, **other})
        assert sorted(folded) == ["a.weight", "bias"]
        assert folded["a.weight"].dtype == np.float32
        np.testing.assert_allclose(folded["a.weight"], plain, rtol=1e-6)
