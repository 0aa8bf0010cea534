"""GFLOP/s of the matrix product by shape and kind, from bfloat16 weights, packing of the rows included.

Engines take turns round by round, so other load on the machine hits all of them; the table shows best (median).
Run: python -m tests.bench.matmul [--shapes fc1,qkv] [--rows 1024] [--isa avx512] [--threads 2] [--rounds 5]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from h3core.kernels.quant_matrix import QuantMatrix
from h3core.kernels.rows import Rows
from h3core.kernels.table import Kernels

SHAPES = {  # (k, n) of the release's linear layers, and of a small transformer
    "qkv": (5376, 21504), "attn_out": (7168, 5376), "fc1": (5376, 28672), "fc2": (14336, 5376),
    "small_qkv": (1344, 4032), "small_fc2": (3584, 1344),
}  # fmt: skip


def ours(kernels: Kernels, kind: str, x: np.ndarray, data: np.ndarray, n: int) -> Callable[[], None]:
    m, k = x.shape
    rows = Rows(np.zeros(Rows.size_bytes(m, k, kind), np.uint8), k, kind, kernels)
    matrix, y = QuantMatrix(data, "bf16", n, k, kernels), np.empty((m, n), np.float32)

    def call() -> None:
        rows.pack(x)
        matrix.matmul(rows, y)

    return call


def others(x: np.ndarray, w: np.ndarray, threads: int) -> dict[str, Callable[[], object]]:
    engines: dict[str, Callable[[], object]] = {"numpy f32": lambda: x @ w.T}
    try:
        import torch
    except ImportError:
        return engines
    torch.set_num_threads(threads)
    tx, tw = torch.from_numpy(x), torch.from_numpy(w)
    bx, bw = tx.bfloat16(), tw.bfloat16()
    engines["torch f32"] = lambda: torch.nn.functional.linear(tx, tw)
    engines["torch bf16"] = lambda: torch.nn.functional.linear(bx, bw)
    return engines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", default="attn_out,fc1,fc2,small_qkv")
    parser.add_argument("--rows", default="1,16,256,1024")
    parser.add_argument("--kinds", default="f32,bf16,int8")
    parser.add_argument("--isa", default=None)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alone", action="store_true", help="without numpy and torch")
    parser.add_argument("--cpu", action="store_true", help="count CPU seconds over threads: for a machine that is busy")
    args = parser.parse_args()
    kernels = Kernels(args.isa, args.threads)
    print(f"{kernels.name}, {kernels.threads} threads; GFLOP/s best (median)")
    random = np.random.default_rng(0)
    clock = (lambda: time.process_time() / kernels.threads) if args.cpu else time.perf_counter
    for shape in args.shapes.split(","):
        k, n = SHAPES[shape]
        w = random.standard_normal((n, k), np.float32)
        data = (w.reshape(-1).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        for m in map(int, args.rows.split(",")):
            x = random.standard_normal((m, k), np.float32)
            engines: dict[str, Callable[[], object]] = {
                f"ours {kind}": ours(kernels, kind, x, data, n) for kind in args.kinds.split(",")
            }
            if not args.alone:
                engines |= others(x, w, kernels.threads)
            times: dict[str, list[float]] = {name: [] for name in engines}
            for round in range(args.rounds + 1):
                for name, call in engines.items():
                    start = clock()
                    call()
                    if round:  # the first one warms up
                        times[name].append(clock() - start)
            flop = 2e-9 * m * n * k
            cells = [f"{name} {flop / min(t):.0f} ({flop / statistics.median(t):.0f})" for name, t in times.items()]
            print(f"{shape} {k}->{n} M={m}: " + ", ".join(cells), flush=True)


if __name__ == "__main__":
    main()
