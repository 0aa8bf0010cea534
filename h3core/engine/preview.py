"""A small picture of the film while it is still latents: cheap, rough, every step.

Until the video VAE has decoded once on this machine, the three strongest principal components stand for red, green and
blue. The first decode leaves a linear fit from latents to colours behind, which is then used for every model with that
VAE.
"""

from __future__ import annotations

import numpy as np

from h3core.model.layout import FRAMES_PER_LATENT, SPACE_RATIO

LONGEST_SIDE = 256  # pixels
DIMMEST, BRIGHTEST = 2.0, 98.0  # percentiles that become black and white while colours are not known


def picture(latent: np.ndarray, fit: np.ndarray | None) -> np.ndarray:
    """The middle frame of a film, (H, W, 3) uint8.

    latent: (C, T, h, w) normalised.   fit: (C + 1, 3) from `ColourFit`, or None.
    """
    frame = latent[:, latent.shape[1] // 2].astype(np.float64)
    channels, height, width = frame.shape
    values = frame.reshape(channels, -1).T
    colours = np.concatenate([values, np.ones((len(values), 1))], 1) @ fit if fit is not None else _components(values)
    pixels = np.rint(np.clip(colours, 0, 1) * 255).astype(np.uint8).reshape(height, width, 3)
    return _enlarge(pixels, max(1, LONGEST_SIDE // max(height, width)))


def _components(values: np.ndarray) -> np.ndarray:
    """(n, C) -> (n, 3) in 0 ... 1. Signs are fixed, so that colours jump no more than they must from step to step."""
    centred = values - values.mean(0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    strongest = vectors[:, ::-1][:, :3]
    strongest = strongest * np.sign(strongest[np.abs(strongest).argmax(0), range(strongest.shape[1])])
    shades = centred @ strongest
    low, high = np.percentile(shades, (DIMMEST, BRIGHTEST))
    return (shades - low) / max(high - low, 1e-9)


def _enlarge(pixels: np.ndarray, times: int) -> np.ndarray:
    """Bilinear, edges held: a mosaic would look like damage."""
    for axis in (0, 1):
        size = pixels.shape[axis]
        place = np.clip((np.arange(size * times) + 0.5) / times - 0.5, 0, size - 1)
        low = np.minimum(place.astype(int), max(size - 2, 0))
        share = (place - low).reshape([-1 if each == axis else 1 for each in range(3)])
        above = np.take(pixels, np.minimum(low + 1, size - 1), axis)
        pixels = np.take(pixels, low, axis) * (1 - share) + above * share
    return np.rint(pixels).astype(np.uint8)


class ColourFit:
    """Learns the linear map while a film is decoded: sums over (latent, mean colour) pairs, nothing is kept."""

    def __init__(self, latent: np.ndarray):
        """latent: (C, T, h, w) normalised, the one that is being decoded."""
        self.latent, self.frame = latent, 0
        size = len(latent) + 1
        self.products, self.colours = np.zeros((size, size)), np.zeros((size, 3))
        counts = np.resize(FRAMES_PER_LATENT, latent.shape[1])
        self.latent_of_frame = np.repeat(np.arange(latent.shape[1]), counts)

    def see(self, pixels: np.ndarray) -> None:
        """The next frames in order. pixels: (n, H, W, 3) uint8."""
        for each in pixels:
            number = self.latent_of_frame[min(self.frame, len(self.latent_of_frame) - 1)]
            values = self.latent[:, number].reshape(len(self.latent), -1).T.astype(np.float64)
            rows = np.concatenate([values, np.ones((len(values), 1))], 1)
            height, width, _ = each.shape
            blocks = each.reshape(height // SPACE_RATIO, SPACE_RATIO, width // SPACE_RATIO, SPACE_RATIO, 3)
            colours = blocks.mean((1, 3), dtype=np.float64).reshape(-1, 3) / 255
            self.products += rows.T @ rows
            self.colours += rows.T @ colours
            self.frame += 1

    def result(self) -> np.ndarray:
        """(C + 1, 3) float32; a little ridge, since a short film does not span all channels."""
        ridge = 1e-3 * self.products[-1, -1] * np.eye(len(self.products))
        ridge[-1, -1] = 0
        return np.linalg.solve(self.products + ridge, self.colours).astype(np.float32)
