"""Convolutions against sums written out in float64, for every instruction set."""

import numpy as np
import pytest

from h3core.kernels.convolution import Convolution, TransposedConvolution
from tests.kernels.isas import ISAS, make, nan, normal, relative

NONE = ((0, 0), (0, 0), (0, 0))
# x (T, H, W, in), out, kernel, stride, dilation, pad, reflect
CASES = [
    ((1, 1, 1, 1), 1, (1, 1, 1), (1, 1, 1), (1, 1, 1), NONE, False),
    ((5, 7, 9, 3), 37, (3, 3, 3), (1, 1, 1), (1, 1, 1), ((2, 0), (1, 1), (1, 1)), True),
    ((7, 6, 8, 20), 33, (3, 3, 3), (2, 2, 2), (1, 1, 1), ((2, 0), (0, 1), (0, 1)), True),
    ((4, 5, 3, 24), 48, (1, 1, 1), (1, 1, 1), (1, 1, 1), NONE, False),
    ((3, 4, 5, 300), 16, (2, 3, 1), (1, 2, 1), (1, 1, 1), ((1, 1), (2, 1), (0, 0)), False),
    ((211, 1, 1, 17), 8, (7, 1, 1), (1, 1, 1), (5, 1, 1), ((15, 15), (0, 0), (0, 0)), False),
    ((3000, 1, 1, 4), 65, (10, 1, 1), (5, 1, 1), (1, 1, 1), ((3, 3), (0, 0), (0, 0)), False),
    ((2, 70, 60, 5), 40, (1, 3, 3), (1, 1, 1), (1, 2, 2), ((0, 0), (2, 2), (2, 2)), True),
]


def exact(x, weight, bias, stride, dilation, pad, reflect):
    x = np.pad(x.astype(np.float64), (pad[0], (0, 0), (0, 0), (0, 0)))
    x = np.pad(x, ((0, 0), *pad[1:], (0, 0)), mode="reflect" if reflect else "constant")
    sizes = [(x.shape[a] - (weight.shape[a + 2] - 1) * dilation[a] - 1) // stride[a] + 1 for a in range(3)]
    y = np.zeros((*sizes, weight.shape[0])) + (0 if bias is None else bias)
    for tap in np.ndindex(*weight.shape[2:]):
        cut = tuple(
            slice(tap[a] * dilation[a], tap[a] * dilation[a] + (sizes[a] - 1) * stride[a] + 1, stride[a])
            for a in range(3)
        )
        y += x[cut] @ weight[(slice(None), slice(None), *tap)].astype(np.float64).T
    return y


def run(kernels, case, bias=True):
    shape, out, kernel, stride, dilation, pad, reflect = case
    x, weight = normal(*shape), normal(out, shape[3], *kernel, seed=1)
    bias = normal(out, seed=2) if bias else None
    convolution = Convolution(weight, bias, kernels, stride, dilation)
    y = nan(*convolution.output_shape(*shape[:3], pad), out)
    convolution.run(x, y, pad, reflect)
    return y, exact(x, weight, bias, stride, dilation, pad, reflect)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", CASES)
def test_convolution(isa, case):
    got, want = run(make(isa), case)
    assert got.shape == want.shape
    assert relative(got, want) <= 1e-6
    assert relative(got, run(make("c"), case)[0]) <= 2e-6


@pytest.mark.parametrize("isa", ISAS)
def test_one_dimension_no_bias_and_threads(isa):
    x, weight = normal(57, 1, 1, 12), normal(20, 12, 3, seed=1)
    results = []
    for threads in (1, 3):
        y = nan(57, 1, 1, 20)
        Convolution(weight, None, make(isa, threads)).run(x, y, ((1, 1), (0, 0), (0, 0)))
        results.append(y)
    assert np.array_equal(*results)
    want = exact(x, weight[..., None, None], None, (1, 1, 1), (1, 1, 1), ((1, 1), (0, 0), (0, 0)), False)
    assert relative(results[0], want) <= 1e-6


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("stride, k, padding", [(5, 9, 2), (2, 4, 1), (1, 3, 1), (3, 2, 0), (4, 11, 5), (2, 7, 6)])
def test_transposed(isa, stride, k, padding):
    x, weight, bias = normal(29, 13), normal(13, 35, k, seed=1), normal(35, seed=2)
    full = np.zeros(((29 - 1) * stride + k, 35))
    for t in range(29):
        for j in range(k):
            full[t * stride + j] += x[t].astype(np.float64) @ weight[:, :, j]
    want = full[padding : len(full) - padding] + bias
    convolution = TransposedConvolution(weight, bias, make(isa), stride, padding)
    assert convolution.output_length(29) == len(want)
    got = nan(*want.shape)
    convolution.run(x, got)
    assert relative(got, want) <= 1e-6


def test_refusals():
    kernels = make(None)
    convolution = Convolution(normal(4, 3, 1, 3, 3), normal(4), kernels)
    x = normal(1, 2, 5, 3)
    for call in (
        lambda: Convolution(normal(4, 3), None, kernels),
        lambda: Convolution(normal(4, 3, 1), normal(5), kernels),
        lambda: convolution.run(x, nan(1, 2, 5, 4)),
        lambda: convolution.run(x, nan(1, 4, 3, 4), ((0, 0), (2, 2), (0, 0)), True),
        lambda: convolution.run(normal(1, 2, 5, 2), nan(1, 2, 5, 4), ((0, 0), (1, 1), (1, 1))),
        lambda: TransposedConvolution(normal(3, 4, 5), None, kernels, 2, 1).run(normal(6, 3), nan(12, 4)),
    ):
        with pytest.raises(ValueError):
            call()
