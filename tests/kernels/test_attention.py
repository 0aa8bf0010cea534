"""Attention: every instruction set against float64 and against portable C; masks, groups, odd sizes, threads."""

import numpy as np
import pytest

from h3core.kernels.attention import Attention
from h3core.model.memory import attention_size_bytes
from tests.kernels.isas import ISAS, make, nan, normal, relative

KINDS = ["f32", "bf16"]
AGAINST_C = {"f32": 2e-6, "bf16": 1e-5}
AGAINST_EXACT = {"f32": 2e-6, "bf16": 8e-3}  # bf16: the rounding of q, k, v and the weights
# rows, heads, kv_heads, head_dim; one row, panel and block borders, one past them, widths that are no whole panel
SHAPES = [(1, 1, 1, 8), (5, 3, 3, 16), (31, 2, 1, 24), (32, 4, 2, 32), (33, 2, 2, 64), (77, 6, 2, 40), (256, 1, 1, 96),
          (257, 2, 2, 128), (300, 4, 1, 72), (530, 1, 1, 256)]  # fmt: skip


def layer(kernels, kind, rows, heads, kv_heads, head_dim):
    """An Attention over storage full of NaN, at an odd address."""
    storage = np.full(Attention.size_bytes(rows, kv_heads, head_dim, kind) + 1, 0xFF, np.uint8)[1:]
    return Attention(storage, rows, heads, kv_heads, head_dim, kind, kernels)


def run(kernels, kind, rows, heads, kv_heads, head_dim, causal=False, row0=0, count=None, sharp=1.0):
    """(out, what float64 gives); keys and values put in two parts that cut a panel and a pair."""
    q = sharp * normal(rows if count is None else count, heads * head_dim, seed=1)
    k, v = (normal(rows, kv_heads * head_dim, seed=seed) for seed in (2, 3))
    own = layer(kernels, kind, rows, heads, kv_heads, head_dim)
    cut = rows * 2 // 3 | 1
    for start, end in ((0, min(cut, rows)), (min(cut, rows), rows)):
        own.put_k(k[start:end], start)
        own.put_v(v[start:end], start)
    out = nan(*q.shape)
    own.run(q, out, row0, causal)
    return out, exact(q, k, v, heads, kv_heads, row0, causal)


def exact(q, k, v, heads, kv_heads, row0=0, causal=False):
    q, k, v = (x.reshape(len(x), n, -1).astype(np.float64) for x, n in ((q, heads), (k, kv_heads), (v, kv_heads)))
    k, v = (np.repeat(x, heads // kv_heads, axis=1) for x in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[2])
    if causal:
        scores = np.where(np.arange(len(k)) <= row0 + np.arange(len(q))[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hij,jhd->ihd", weights / weights.sum(-1, keepdims=True), v).reshape(len(q), -1)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_against_float64_and_c(isa, kind, shape):
    kernels, c = make(isa), make("c")
    for causal in (False, True):
        got, want = run(kernels, kind, *shape, causal)
        assert relative(got, want) <= AGAINST_EXACT[kind]
        assert relative(got, run(c, kind, *shape, causal)[0]) <= AGAINST_C[kind]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_causal_chunk_of_queries(isa, kind):
    kernels = make(isa)
    for row0, count in ((0, 1), (250, 30), (299, 1), (100, 25)):
        got, want = run(kernels, kind, 300, 4, 2, 32, True, row0, count)
        assert relative(got, want) <= AGAINST_EXACT[kind]


@pytest.mark.parametrize("isa", ISAS)
def test_bf16_is_the_same_bits_as_c(isa):
    """On x86 only: there the products of the bf16 instruction are exact and it adds in a known order."""
    kernels = make(isa)
    if isa == "neon":
        pytest.skip("bfdot rounds otherwise")
    for shape in SHAPES:
        assert np.array_equal(run(kernels, "bf16", *shape)[0], run(make("c"), "bf16", *shape)[0])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_large_scores_stay_finite(isa, kind):
    """Scores of several hundred: the running maximum carries them, and one key takes all the weight."""
    got, want = run(make(isa), kind, 290, 2, 2, 64, sharp=300.0)
    assert relative(got, want) <= (1e-4 if kind == "f32" else 0.1)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_threads_do_not_matter(isa, kind):
    one, many = make(isa, 1), make(isa, 5)
    assert np.array_equal(run(one, kind, 203, 3, 3, 48)[0], run(many, kind, 203, 3, 3, 48)[0])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("head_dim, rotary", [(8, 0), (24, 8), (32, 32), (128, 96), (256, 2)])
def test_norm_and_rotary(isa, head_dim, rotary):
    kernels, m, heads, kv_heads = make(isa), 37, 4, 2
    q, k, v = (
        normal(m, heads * head_dim),
        normal(m, kv_heads * head_dim, seed=1),
        normal(m, kv_heads * head_dim, seed=2),
    )
    norm, angles = normal(head_dim, seed=3), normal(m, rotary // 2, seed=4)
    cos, sin = np.cos(angles), np.sin(angles)

    def rotated(x, heads):
        x = x.reshape(m, heads, head_dim).astype(np.float64)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * norm
        a, b, rest = np.split(x, [rotary // 2, rotary], axis=-1)
        c, s = cos[:, None].astype(np.float64), sin[:, None].astype(np.float64)
        return np.concatenate([a * c - b * s, b * c + a * s, rest], -1).reshape(m, -1)

    own = layer(kernels, "f32", m, heads, kv_heads, head_dim)
    tables = {"cos": cos, "sin": sin} if rotary else {}
    own.put_k(k[:20], 0, norm, 1e-5, **{name: table[:20] for name, table in tables.items()})
    own.put_k(k[20:], 20, norm, 1e-5, **{name: table[20:] for name, table in tables.items()})
    own.put_v(v)
    prepared, out = q.copy(), nan(*q.shape)
    own.prepare_q(prepared, norm, 1e-5, **tables)
    own.run(prepared, out)
    assert relative(prepared, rotated(q, heads)) <= 1e-6
    assert relative(out, exact(rotated(q, heads), rotated(k, kv_heads), v, heads, kv_heads)) <= 2e-6


def test_storage_size_is_what_the_plan_says():
    for rows, kv_heads, head_dim in ((1, 1, 8), (33, 2, 72), (1400, 56, 128)):
        for kind in KINDS:
            assert Attention.size_bytes(rows, kv_heads, head_dim, kind) == attention_size_bytes(
                rows, kv_heads, head_dim, kind
            )


def test_refusals():
    kernels = make(None)
    own = layer(kernels, "f32", 10, 4, 2, 16)
    x, kv = normal(10, 64), normal(10, 32)
    for call in (
        lambda: layer(kernels, "f32", 10, 3, 2, 16),
        lambda: layer(kernels, "f32", 10, 2, 2, 12),
        lambda: Attention(np.zeros(8, np.uint8), 10, 2, 2, 16, "f32", kernels),
        lambda: own.put_k(kv, 1),
        lambda: own.put_v(x),
        lambda: own.put_k(kv, norm=normal(8)),
        lambda: own.put_k(kv, cos=normal(10, 9), sin=normal(10, 9)),
        lambda: own.put_k(kv, cos=normal(10, 4)),
        lambda: own.run(x, nan(10, 32)),
        lambda: own.run(x, nan(10, 64), 1, True),
    ):
        with pytest.raises(ValueError):
            call()
