"""The denoising step, bit for bit in float32, and against the reference's trajectory."""

import numpy as np
import pytest

from h3core.kernels.sampler import Sampler
from tests.golden_files import compare, golden
from tests.kernels.isas import ISAS, make, nan, normal

F = np.float32


def step(x, v, t, sigma, following):
    clean = x + (F(1) - F(t)) * v
    ratio = F(following) / F(sigma)
    return (ratio * x + (F(1) - ratio) * clean if following else clean), clean


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("m, n", [(1, 1), (3, 7), (300, 257)])
def test_step_order(isa, m, n):
    x, v = normal(m, n), normal(m, n, seed=1)
    for t, sigma, following in ((F(0), F(1), F(0.97)), (F(0.71), F(0.29), F(0.11)), (F(0.9), F(0.1), F(0))):
        want, clean = step(x, v, t, sigma, following)
        for threads in (1, 3):
            got, estimate = x.copy(), nan(m, n)
            Sampler(make(isa, threads)).step(got, v, t, sigma, following, estimate)
            assert np.array_equal(got, want) and np.array_equal(estimate, clean)
        got = x.copy()
        Sampler(make(isa)).step(got, v, t, sigma, following)
        assert np.array_equal(got, want)


@pytest.mark.parametrize("shift", [3, 12])
def test_golden_trajectory(shift):
    vectors, sampler = golden("scheduler"), Sampler(make(None))
    states, velocities = (vectors[f"trajectory.shift{shift}.n9.{name}"] for name in ("states", "velocities"))
    sigmas, times = (vectors[f"shift{shift}.n9.{name}"] for name in ("sigmas", "timesteps"))
    x = states[:1].copy()
    for i, velocity in enumerate(velocities):
        sampler.step(x, velocity[None], times[i], sigmas[i], sigmas[i + 1])
        compare(f"state {i + 1}", x[0], states[i + 1], 0)


def test_golden_noised():
    vectors, sampler = golden("scheduler"), Sampler(make(None))
    for t in (0, 0.25, 0.999, 1):
        out = nan(2, 40)
        sampler.noised(vectors["scale_noise.clean"], vectors["scale_noise.noise"], t, out)
        compare(f"noised {t}", out, vectors[f"scale_noise.t{t}"], 0)


def test_guide():
    conditional, unconditional = normal(5, 30), normal(5, 30, seed=1)
    got = conditional.copy()
    Sampler(make(None)).guide(got, unconditional, 4.5)
    assert np.array_equal(got, unconditional + F(4.5) * (conditional - unconditional))


def test_refusals():
    sampler, x = Sampler(make(None)), normal(2, 3)
    for call in (
        lambda: sampler.step(x, normal(3, 2), 0, 1, 0.5),
        lambda: sampler.step(x, x, 0, 0.5, 0.5),
        lambda: sampler.step(x, x, 0, 0.5, -0.5),
        lambda: sampler.step(x, x, 0, 1, 0.5, nan(3, 3)),
        lambda: sampler.guide(x, normal(2, 4), 2),
        lambda: sampler.noised(x, x, 0.5, nan(2, 4)),
    ):
        with pytest.raises(ValueError):
            call()
