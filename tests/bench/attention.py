"""Attention, bidirectional: GFLOP/s of each instruction set, and torch's beside them when torch is there.

Interleaved, so that a busy machine slows all alike; trust the ratios. FLOP = 4 * rows^2 * heads * head_dim.
Run: python -m tests.bench.attention [--rows 1400,2900] [--cpu]
"""

import argparse
import time

import numpy as np

from h3core.kernels.attention import Attention
from h3core.kernels.table import Kernels

HEADS, HEAD_DIM, ROUNDS = 56, 128, 5


def levels() -> list[Kernels]:
    """The fast instruction sets of this processor, each with all its cores."""
    found = []
    for isa in ("avx2", "avx512", "neon"):
        try:
            found.append(Kernels(isa))
        except ValueError:
            continue
    return found


def own(kernels: Kernels, kind: str, q: np.ndarray, k: np.ndarray, v: np.ndarray):
    """A call that runs one layer, keys and values packed anew as in a real step."""
    storage = np.zeros(Attention.size_bytes(len(k), HEADS, HEAD_DIM, kind), np.uint8)
    layer = Attention(storage, len(k), HEADS, HEADS, HEAD_DIM, kind, kernels)
    out = np.empty_like(q)

    def run():
        layer.put_k(k)
        layer.put_v(v)
        layer.run(q, out)

    return run


def rivals(rows: int, threads: int) -> dict:
    """torch's scaled_dot_product_attention in float32 and bfloat16, or nothing."""
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(threads)
    calls = {}
    for name, dtype in (("torch f32", torch.float32), ("torch bf16", torch.bfloat16)):
        q, k, v = (torch.randn(1, HEADS, rows, HEAD_DIM).to(dtype) for _ in range(3))
        calls[name] = lambda q=q, k=k, v=v: torch.nn.functional.scaled_dot_product_attention(q, k, v)
    return calls


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="1400")
    parser.add_argument("--cpu", action="store_true", help="count CPU seconds over threads: for a machine that is busy")
    args = parser.parse_args()
    threads = Kernels().threads

    def clock() -> float:
        return time.process_time() / threads if args.cpu else time.perf_counter()

    for rows in (int(word) for word in args.rows.split(",")):
        random = np.random.default_rng(0)
        q, k, v = (random.standard_normal((rows, HEADS * HEAD_DIM), np.float32) for _ in range(3))
        calls = {
            f"{kernels.name} {kind}": own(kernels, kind, q, k, v) for kernels in levels() for kind in ("f32", "bf16")
        } | rivals(rows, threads)
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(ROUNDS + 1):  # the first is a warm-up
            for name, call in calls.items():
                start = clock()
                call()
                seconds[name].append(clock() - start)
        for name, measured in seconds.items():
            rate = 4e-9 * rows * rows * HEADS * HEAD_DIM / np.array(measured[1:])
            print(
                f"{rows} rows, {HEADS} x {HEAD_DIM}: {name:24} "
                f"median {np.median(rate):4.0f}, best {rate.max():4.0f} GFLOP/s"
            )


if __name__ == "__main__":
    main()
