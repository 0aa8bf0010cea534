"""The guards: noise is told from a picture, a dark film from a blank one, numbers from what is none."""

import numpy as np
import pytest

from h3core.engine.checks import Brightness, RunError, neighbour_correlation, require_finite, require_picture


def smooth(shape: tuple[int, ...]) -> np.ndarray:
    """A latent with slow waves in every direction."""
    axes = np.meshgrid(*(np.arange(size) for size in shape[1:]), indexing="ij")
    waves = [np.sin(0.3 * axes[0] + 0.5 * axes[1] + 0.4 * axes[2] + channel) for channel in range(shape[0])]
    return np.stack(waves).astype(np.float32)


@pytest.mark.parametrize("shape", [(24, 7, 2, 2), (24, 7, 4, 6), (24, 37, 28, 16)])
@pytest.mark.parametrize("seed", range(5))
def test_white_noise_is_stopped(shape, seed):
    noise = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    with pytest.raises(RunError, match="pure noise") as raised:
        require_picture(noise)
    assert raised.value.kind == "noise"


def test_a_noisy_picture_passes():
    shape = (24, 12, 8, 8)
    noise = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    require_picture(smooth(shape) + 0.5 * noise)
    assert neighbour_correlation(smooth(shape))[0] > 0.5


def test_a_latent_without_variation_is_no_noise():
    require_picture(np.ones((24, 7, 4, 4), np.float32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_named(bad):
    values = np.zeros((4, 5), np.float32)
    require_finite("decoder", "in step 3", values, np.full(3, 1e-42, np.float32))  # denormals are numbers
    values[2, 3] = bad
    with pytest.raises(RunError, match=r"decoder gave .* in step 3"):
        require_finite("decoder", "in step 3", values)


def test_dark_passes_and_flat_does_not():
    flat, dark = Brightness(), Brightness()
    flat.see(np.broadcast_to(np.array((124, 116, 104), np.uint8), (5, 8, 8, 3)))
    with pytest.raises(RunError, match="one flat surface"):
        flat.require_something()
    frames = np.zeros((5, 8, 8, 3), np.uint8)
    dark.see(frames)
    frames[3, 4, 4] = 6  # one dim star
    dark.see(frames)
    dark.require_something()
