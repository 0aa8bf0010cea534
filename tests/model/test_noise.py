"""Noise against torch's CPU generator."""

import numpy as np
import pytest

from h3core.model.noise import MAX_SEED, NormalGenerator
from tests.golden_files import compare, golden

SEQUENCES = ([16], [37], [100, 33], [5, 20, 3])


@pytest.mark.parametrize("seed", [0, 42, 1234567890123])
@pytest.mark.parametrize("sequence", range(len(SEQUENCES)))
def test_draws(seed, sequence):
    generator = NormalGenerator(seed)
    for draw, size in enumerate(SEQUENCES[sequence]):
        want = golden("rng")[f"seed{seed}.seq{sequence}.draw{draw}"]
        got = generator.draw((size,))
        compare("draw", got, want, 1e-6)
        assert np.abs(got - want).max() <= 2 * np.spacing(np.abs(want).max())


def test_shape_is_only_a_view_of_the_draw():
    assert np.array_equal(NormalGenerator(3).draw((2, 3, 11)).reshape(-1), NormalGenerator(3).draw((66,)))


def test_only_the_low_32_bits_of_a_seed_count():
    assert np.array_equal(NormalGenerator(7).draw((20,)), NormalGenerator(7 + 2**32).draw((20,)))
    assert NormalGenerator(MAX_SEED).draw((0,)).shape == (0,)


@pytest.mark.parametrize("seed", [-1, MAX_SEED + 1, 10**23])
def test_seeds_outside_the_range_are_refused(seed):
    with pytest.raises(ValueError, match="seed"):
        NormalGenerator(seed)


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**63 + 11])
def test_live_against_torch(seed):
    torch = pytest.importorskip("torch", reason="torch, the reference, is not installed")
    ours, theirs = NormalGenerator(seed), torch.Generator().manual_seed(seed)
    for size in (100003, 7, 16, 1, 1, 31, 48):
        want = torch.randn(size, generator=theirs).numpy()
        assert np.abs(ours.draw((size,)) - want).max() <= 2e-6
