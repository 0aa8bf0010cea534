"""Previews: small, whole, and in the film's colours once those are known."""

import numpy as np
import pytest

from h3core.engine.preview import ColourFit, picture


@pytest.mark.parametrize("size", [(2, 2), (4, 6), (48, 84), (2, 42)])
def test_any_size_gives_a_small_picture(size):
    latent = np.random.default_rng(1).standard_normal((24, 7, *size)).astype(np.float32)
    pixels = picture(latent, None)
    assert pixels.dtype == np.uint8 and max(pixels.shape[:2]) <= 256
    assert pixels.shape[0] * size[1] == pixels.shape[1] * size[0]
    assert pixels.max() > 200 and pixels.min() < 60


def test_a_latent_without_variation_is_a_picture_too():
    assert picture(np.zeros((24, 7, 4, 4), np.float32), None).shape == (256, 256, 3)


def test_the_fit_finds_a_linear_map():
    rng = np.random.default_rng(2)
    latent = rng.standard_normal((24, 7, 4, 6)).astype(np.float32)
    matrix = rng.standard_normal((24, 3)) * 0.03
    colours = np.einsum("cthw,ck->thwk", latent, matrix) + 0.5
    fit = ColourFit(latent)
    for number, count in enumerate((1, 4, 4, 4, 4, 1, 4)):
        frame = np.rint(np.clip(colours[number], 0, 1) * 255).astype(np.uint8).repeat(16, 0).repeat(16, 1)
        fit.see(np.stack([frame] * count))
    learned = fit.result()
    assert np.abs(learned[:24] - matrix).max() < 5e-3 and np.abs(learned[24] - 0.5).max() < 5e-3
    middle = picture(latent, learned)
    wanted = np.clip(colours[3], 0, 1) * 255
    step = 256 // 6
    assert np.abs(middle[step // 2 :: step, step // 2 :: step].astype(float) - wanted).mean() < 8
