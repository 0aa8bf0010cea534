"""Norms and audio activations against float64; all instruction sets give the same bits."""

import numpy as np
import pytest

from h3core.kernels.norms import antialiased_snake, group_norm, group_norm_silu, layer_norm, rms_norm, snake
from tests.golden_files import TINY, compare, golden
from tests.kernels.isas import ISAS, make, nan, normal, relative


def group_exact(x, groups, weight, bias, eps):
    t, h, w, c = x.shape
    v = x.astype(np.float64).reshape(t, h * w, groups, c // groups)
    mean, variance = v.mean((1, 3), keepdims=True), v.var((1, 3), keepdims=True)
    return ((v - mean) / np.sqrt(variance + eps)).reshape(x.shape) * weight + bias


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "shape, groups", [((1, 1, 1, 4), 2), ((3, 5, 7, 8), 4), ((2, 40, 41, 48), 16), ((2, 33, 64, 20), 1)]
)
def test_group_norm(isa, shape, groups):
    kernels = make(isa)
    x, weight, bias = 3 * normal(*shape) + 5, normal(shape[3], seed=1), normal(shape[3], seed=2)
    want = group_exact(x, groups, weight, bias, 1e-6)
    y, z = nan(*shape), nan(*shape)
    group_norm(kernels, x, y, groups, weight, bias, 1e-6)
    group_norm_silu(kernels, x, z, groups, weight, bias, 1e-6)
    if np.prod(shape[1:]) > groups:
        assert relative(y, want) <= 2e-6
        assert relative(z, want / (1 + np.exp(-want))) <= 2e-6
    in_place, c = x.copy(), nan(*shape)
    group_norm_silu(make(isa, 1), in_place, in_place, groups, weight, bias, 1e-6)
    group_norm_silu(make("c"), x, c, groups, weight, bias, 1e-6)
    assert np.array_equal(in_place, z) and np.array_equal(c, z)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("m, k", [(1, 1), (7, 5), (33, 64), (5, 1000), (300, 48)])
def test_row_norms(isa, m, k):
    kernels = make(isa)
    x, weight, bias = 2 * normal(m, k) + 1, normal(k, seed=1), normal(k, seed=2)
    v = x.astype(np.float64)
    y = nan(m, k)
    rms_norm(kernels, x, y, weight, 1e-6)
    assert relative(y, v / np.sqrt((v**2).mean(1, keepdims=True) + 1e-6) * weight) <= 1e-6
    rms_norm(kernels, x, y, None, 1e-6)
    assert relative(y, v / np.sqrt((v**2).mean(1, keepdims=True) + 1e-6)) <= 1e-6
    y = nan(m, k)
    layer_norm(kernels, x, y, weight, bias, 1e-5)
    middle = v - v.mean(1, keepdims=True)
    assert relative(y, middle / np.sqrt((middle**2).mean(1, keepdims=True) + 1e-5) * weight + bias) <= 2e-6
    layer_norm(kernels, x, x, None, None, 1e-5)
    assert relative(x, middle / np.sqrt((middle**2).mean(1, keepdims=True) + 1e-5)) <= 2e-6 or k == 1


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("times, channels", [(1, 1), (50, 3), (333, 16), (100, 70)])
def test_snake(isa, times, channels):
    x, alpha = 20 * normal(times, channels), np.abs(normal(channels, seed=1)) * 10
    want = x + np.sin(alpha.astype(np.float64) * x) ** 2 / (alpha + 1e-9)
    y, c = nan(times, channels), nan(times, channels)
    snake(make(isa), x, y, alpha)
    snake(make("c"), x, c, alpha)
    # the float32 product alpha * x alone is off by up to 1e-5 at these arguments of several hundred
    rounded = x + np.sin((alpha * x).astype(np.float64)) ** 2 / (alpha + 1e-9)
    assert relative(y, want) <= 1e-6 and np.abs((y - rounded) * alpha).max() <= 2e-7 * (1 + np.abs(alpha * x).max())
    assert np.array_equal(y, c)


def test_sine_is_good_to_the_last_digits():
    """x small beside the sine: alpha 1, x up to 500, the error of sin^2 alone."""
    x = np.linspace(-500, 500, 100001, dtype=np.float32)[:, None]
    y = nan(*x.shape)
    snake(make(None), x, y, np.ones(1, np.float32))
    error = np.abs(y - (x + np.sin(x.astype(np.float64)) ** 2)) - np.spacing(np.abs(y)) / 2  # less the sum's rounding
    assert error.max() <= 3e-7


def antialiased_exact(x, alpha, beta, up, down):
    x = np.pad(x.astype(np.float64), ((5, 5), (0, 0)), mode="edge")
    stuffed = np.zeros((2 * len(x) - 1, x.shape[1]))
    stuffed[::2] = x
    wide = np.stack([np.convolve(column, 2 * up.astype(np.float64)) for column in stuffed.T], 1)
    wide = wide[15:-15]
    wide = wide + np.sin(np.exp(alpha.astype(np.float64)) * wide) ** 2 / (np.exp(beta.astype(np.float64)) + 1e-9)
    wide = np.pad(wide, ((5, 6), (0, 0)), mode="edge")
    return np.stack([np.convolve(column, down[::-1].astype(np.float64), "valid")[::2] for column in wide.T], 1)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("times, channels", [(1, 1), (2, 5), (5, 16), (63, 17), (64, 8), (65, 33), (200, 3)])
def test_antialiased_snake(isa, times, channels):
    x, alpha, beta = 3 * normal(times, channels), normal(channels, seed=1), normal(channels, seed=2)
    up, down = normal(12, seed=3), normal(12, seed=4)  # lopsided on purpose: a flipped filter must show
    results = []
    for kernels in (make(isa), make(isa, 1), make("c")):
        y = nan(times, channels)
        antialiased_snake(kernels, x, y, alpha, beta, up, down)
        results.append(y)
    assert relative(results[0], antialiased_exact(x, alpha, beta, up, down)) <= 3e-6
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2])


def test_golden_activation():
    """The first activation of the first block, fed by the golden upsampling."""
    from safetensors.numpy import load_file

    vectors = golden("audio_vae")
    weights = load_file(TINY / "audio_vae" / "diffusion_pytorch_model.safetensors")
    own = {name.rsplit(".", 1)[1]: value for name, value in weights.items() if "resblocks.0.activations.0.act." in name}
    up, down = vectors["filter.up2_kernel12"], vectors["filter.down2_kernel12"]
    prefix = "decode.latents7.decoder."
    for item in range(2):
        x = np.ascontiguousarray(vectors[prefix + "ups.0.0"][item].T)
        y = nan(*x.shape)
        antialiased_snake(make(None), x, y, own["alpha"], own["beta"], up, down)
        compare("resblocks.0.activations.0", y.T, vectors[prefix + "resblocks.0.activations.0"][item])


def test_refusals():
    kernels, x = make(None), normal(3, 4)
    for call in (
        lambda: rms_norm(kernels, x, nan(3, 5), None, 1e-6),
        lambda: rms_norm(kernels, x, nan(3, 4), normal(3), 1e-6),
        lambda: snake(kernels, x, nan(3, 4), normal(5)),
        lambda: antialiased_snake(kernels, x, nan(3, 4), normal(4), normal(4), normal(11), normal(12)),
        lambda: group_norm(kernels, x[None, None], nan(1, 1, 3, 4), 3, normal(4), normal(4), 1e-6),
    ):
        with pytest.raises(ValueError):
            call()
