"""Rotary tables: angles of rows, and their cosines and sines. Half-split form: channel i turns with channel i + R/2.

Everything is float32 as in the reference, with cosine and sine rounded from float64: numpy's float32 ones differ from
CPU to CPU, a film must not.
"""

from __future__ import annotations

import numpy as np

from h3core.model.config import TextConfig, TransformerConfig

Tables = tuple[np.ndarray, np.ndarray]  # cosine, sine: float32 (S, R/2), R rotated channels


def inverse_frequencies(theta: float, channels: int) -> np.ndarray:
    """theta^(-2j / channels) for j < channels / 2, float32, rounded where torch rounds."""
    exponents = np.arange(0, channels, 2, dtype=np.float32) / np.float32(channels)
    powers = np.power(np.float64(np.float32(theta)), exponents.astype(np.float64)).astype(np.float32)
    return np.float32(1) / powers


def tables(angles: np.ndarray) -> Tables:
    """Cosine and sine of float32 angles."""
    wide = angles.astype(np.float64, order="C")
    return np.cos(wide).astype(np.float32), np.sin(wide).astype(np.float32)


def transformer_tables(config: TransformerConfig, positions: np.ndarray) -> Tables:
    """Tables of packed rows: time, height and width share the frequencies.

    positions: float64 (S, 3).   Result: float32 (S, 3 rope_freq_dim).
    """
    frequencies = inverse_frequencies(config.rope_theta, 2 * config.rope_freq_dim)
    # positions become float32 before the product, never less: bfloat16 cannot tell t = 257 from 256
    angles = positions.astype(np.float32)[:, :, None] * frequencies
    return tables(angles.reshape(len(positions), -1))


def text_tables(config: TextConfig, positions: np.ndarray) -> Tables:
    """Tables of the conditioner's rows; each frequency reads one of three axes, interleaved (T H W T H W ... T T).

    positions: int (3, m); all three are the row number when there is no picture.   Result: float32 (m, head_dim / 2).
    """
    frequencies = inverse_frequencies(config.rope_theta, config.head_dim)
    axis = np.zeros(frequencies.size, np.int64)
    for number, section in enumerate(config.mrope_section[1:], start=1):
        axis[number : 3 * section : 3] = number
    return tables(positions.astype(np.float32)[axis].T * frequencies)
