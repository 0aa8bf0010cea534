"""What a result must pass before it is called one: numbers that are numbers, an estimate that is a picture, a film that
shows something.

Knows arrays and words for people, no model.
"""

from __future__ import annotations

import numpy as np

# White noise has neighbour correlation 0 give or take 1/sqrt(pairs). A picture's estimate is smooth from the first
# evaluations on, because it is the mean over all that the noise could still become.
WHITE_BELOW = 0.05
DEVIATIONS = 4.0  # and never call chance a picture: in a small film this many standard deviations are the wider bound


class RunError(RuntimeError):
    """A run that must stop: one sentence for people.

    kind: "input", "memory", "numbers", "noise" or "blank", for programs.
    """

    def __init__(self, kind: str, sentence: str):
        super().__init__(sentence)
        self.kind = kind


def require_finite(part: str, step: str, *arrays: np.ndarray) -> None:
    """raises: RunError naming the part and the step when any value is NaN or infinite."""
    for array in arrays:
        if not np.isfinite(array).all():
            raise RunError(
                "numbers",
                f"The {part} gave values that are not numbers {step}; nothing was written. "
                "Check the weight file, or try precision exact.",
            )


def neighbour_correlation(latent: np.ndarray) -> tuple[float, int]:
    """(mean correlation of neighbours along time, height and width, number of pairs).

    latent: (C, T, h, w) float32. Each channel is taken relative to its mean over the film: a frame's own mean would make
    the few values of a very small frame look opposed to each other.
    """
    centred = latent.astype(np.float64)
    centred -= centred.mean(axis=(1, 2, 3), keepdims=True)
    variance = float(np.square(centred).mean())
    if variance == 0:
        return 1.0, 0
    products, pairs = 0.0, 0
    for axis in (1, 2, 3):
        before = np.take(centred, range(latent.shape[axis] - 1), axis)
        after = np.take(centred, range(1, latent.shape[axis]), axis)
        products += float((before * after).sum())
        pairs += before.size
    return products / (variance * pairs) if pairs else 1.0, pairs


def require_picture(estimate: np.ndarray) -> None:
    """The noise guard. estimate: (C, T, h, w), what the model believes the film to be after a few evaluations.

    raises: RunError when it cannot be told from white noise, which is what weights read in a wrong order give.
    """
    correlation, pairs = neighbour_correlation(estimate)
    if pairs and correlation < max(WHITE_BELOW, DEVIATIONS / pairs**0.5):
        raise RunError(
            "noise",
            f"The picture is still pure noise after two steps (neighbours correlate by {correlation:.2f}): the weights "
            "do not fit the model or are read in the wrong order. Check that the transformer file is complete and "
            "meant for this model.",
        )


class Brightness:
    """Sees every frame of a film go by and says in the end whether it shows anything."""

    def __init__(self) -> None:
        self.low, self.high = np.full(3, 255), np.zeros(3, int)

    def see(self, pixels: np.ndarray) -> None:
        """pixels: (..., 3) uint8."""
        colours = pixels.reshape(-1, 3)
        self.low, self.high = np.minimum(self.low, colours.min(0)), np.maximum(self.high, colours.max(0))

    def require_something(self) -> None:
        """raises: RunError for one colour from beginning to end; a dark scene passes."""
        if (self.high - self.low).max() <= 1:
            raise RunError(
                "blank", "The film came out as one flat surface and was not kept; try another seed or precision exact."
            )
