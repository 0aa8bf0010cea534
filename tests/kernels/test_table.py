"""The table: levels, names, refusals, elementwise functions, the check of every slot, threads that end."""

import gc
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from h3core.kernels.table import Kernels

ISAS = ["c", "avx2", "avx512", "neon"]


def make(isa: str | None, threads: int = 2) -> Kernels:
    try:
        return Kernels(isa, threads)
    except ValueError as error:
        pytest.skip(str(error))


def test_best_level_is_the_default_and_the_environment_forces_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("H3_ISA", raising=False)
    best = Kernels()
    assert best.isa in ISAS and best.threads >= 1 and best.name
    monkeypatch.setenv("H3_ISA", "c")
    assert (Kernels().isa, Kernels().features, Kernels().name) == ("c", (), "portable C")
    assert Kernels(best.isa).isa == best.isa  # an argument goes before the environment


@pytest.mark.parametrize("word", ["mmx", "AVX2", " "])
def test_unknown_level_is_a_sentence(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("H3_ISA", word)
    with pytest.raises(ValueError, match="this processor has c"):
        Kernels()


def test_level_of_another_processor_is_a_sentence() -> None:
    foreign = "avx2" if Kernels(None, 1).isa == "neon" else "neon"
    with pytest.raises(ValueError, match="cannot run"):
        Kernels(foreign)


@pytest.mark.parametrize("threads", [0, -1, 5000])
def test_thread_count_is_checked(threads: int) -> None:
    with pytest.raises(ValueError, match="threads"):
        Kernels("c", threads)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_default_threads_follow_the_affinity() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});" \
           "from h3core.kernels.table import Kernels; print(Kernels('c').threads)"  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"1\n"


@pytest.mark.parametrize("isa", ISAS)
def test_every_slot_passes_its_check(isa: str) -> None:
    assert make(isa).verify() == []


@pytest.mark.parametrize("isa", ISAS)
def test_elementwise_functions(isa: str) -> None:
    kernels = make(isa)
    for shape in [(1,), (7, 33), (3, 5, 2001), (70001,)]:
        x = np.random.default_rng(1).standard_normal(shape, np.float32) * 8
        d = x.astype(np.float64)
        inner = math.sqrt(2 / math.pi) * (d + 0.044715 * d**3)
        erf = np.array([math.erf(value) for value in (d / math.sqrt(2)).reshape(-1)]).reshape(shape)
        for apply, want in (
            (kernels.silu, d / (1 + np.exp(-d))),
            (kernels.gelu_tanh, 0.5 * d * (1 + np.tanh(inner))),
            (kernels.gelu, 0.5 * d * (1 + erf)),
        ):
            got = x.copy()
            apply(got)
            assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want)
            assert np.abs(got - want).max() <= 1e-5
    special = np.array([0, -0.0, 200, -200, np.inf, np.nan], np.float32)
    kernels.silu(special)
    assert special[:3].tolist() == [0, 0, 200] and abs(special[3]) < 1e-30
    assert special[4] == np.inf and np.isnan(special[5])
    kernels.silu(np.zeros((0, 3), np.float32))
    for wrong in (np.zeros(3), np.zeros((4, 4), np.float32).T[1:], [1.0]):
        with pytest.raises(ValueError):
            kernels.silu(wrong)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads through /proc")
def test_dropping_the_last_reference_joins_the_threads() -> None:
    def tasks() -> int:
        return len(os.listdir("/proc/self/task"))

    gc.collect()  # threads of kernels that earlier tests left behind
    before = tasks()
    kernels = Kernels("c", 6)
    assert tasks() == before + 5
    kernels.silu(np.zeros(1 << 20, np.float32))
    del kernels
    gc.collect()
    assert tasks() == before


def test_two_python_threads_share_one_pool() -> None:
    kernels, wrong = make(None, 3), []
    x = np.random.default_rng(2).standard_normal(200_000, np.float32)
    want = x.copy()
    kernels.silu(want)

    def work() -> None:
        for _ in range(30):
            got = x.copy()
            kernels.silu(got)
            if got.tobytes() != want.tobytes():
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
