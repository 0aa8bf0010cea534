"""One evaluation of a mid-size transformer, random weights: this program against diffusers, interleaved in one process.

    python -m tests.bench.transformer [--head-dim 96 128] [--repeats 7] [--threads 2] [--engines h3-bf16 diffusers-bf16]

Prints seconds (best and median), ratios, how far each result is from diffusers in float32, and the peak memory of each
engine measured in a process of its own. diffusers embeds text and time anew at every evaluation; here they are counted
in "all", while "step" is what an evaluation costs in a run, where both are made once.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from h3core.model import memory, rotary
from h3core.model.layout import AUDIO, TEXT, VIDEO, Layout, Segment
from h3core.model.schedule import distinct_pairs
from h3core.weights.shapes import transformer_shapes

TEXT_ROWS, AUDIO_ROWS, FRAMES, DOWN, ACROSS = 64, 56, 5, 16, 16  # 1400 rows
ENGINES = ("h3-bf16", "h3-exact", "h3-int8", "diffusers-bf16", "diffusers-f32")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
RIVAL = {"h3-bf16": "diffusers-bf16", "h3-int8": "diffusers-bf16", "h3-exact": "diffusers-f32"}


def config(head_dim: int) -> dict:
    """The release's proportions at a quarter of its width."""
    return {
        "num_attention_heads": 14,
        "attention_head_dim": head_dim,
        "hidden_size": 1344,
        "num_layers": 6,
        "num_refiner_layers": 2,
        "ffn_dim": 3584,
        "in_channels": 24,
        "audio_in_channels": 32,
        "patch_size": [1, 2, 2],
        "text_dim": 1280,
        "freq_dim": 256,
        "time_embed_hidden_dim": 1344,
        "time_embed_dim": 672,
        "rope_freq_dim": 16,
    }


def random_weights(head_dim: int) -> dict[str, tuple[tuple[int, ...], np.ndarray]]:
    """name -> (shape, bfloat16 words), of a size that keeps activations near one."""
    random, weights = np.random.default_rng(0), {}
    for name, shape in transformer_shapes(config(head_dim)).items():
        values = random.standard_normal(shape, np.float32)
        values *= np.float32(shape[1] ** -0.5 if len(shape) == 2 else 0.1)
        values += np.float32(1 if "norm" in name and len(shape) == 1 and "bias" not in name else 0)
        if name.endswith(".bias") and "norm_out" not in name and "adaln" not in name:
            values *= np.float32(0.1)
        weights[name] = shape, (values.view(np.uint32) >> 16).astype(np.uint16)
    return weights


def inputs(head_dim: int) -> dict[str, np.ndarray]:
    """One request: rows, positions and two times."""
    random = np.random.default_rng(1)
    video_rows = FRAMES * DOWN * ACROSS
    rows = TEXT_ROWS + AUDIO_ROWS + video_rows
    positions = np.zeros((rows, 3))
    positions[:TEXT_ROWS, 0] = np.arange(TEXT_ROWS)
    positions[TEXT_ROWS : TEXT_ROWS + AUDIO_ROWS, 0] = TEXT_ROWS + np.tile(np.arange(AUDIO_ROWS // 2), 2)
    place = np.meshgrid(np.arange(FRAMES) * 5.0, np.arange(DOWN) * 2.0, np.arange(ACROSS) * 2.0, indexing="ij")
    positions[-video_rows:] = np.stack(place, -1).reshape(-1, 3)
    tags = np.repeat(np.array([TEXT, AUDIO, VIDEO], np.int32), [TEXT_ROWS, AUDIO_ROWS, video_rows])
    return {
        "video": random.standard_normal((video_rows, 96), np.float32),
        "audio": random.standard_normal((AUDIO_ROWS, 32), np.float32),
        "text": random.standard_normal((TEXT_ROWS, config(head_dim)["text_dim"]), np.float32),
        "positions": positions,
        "tags": tags,
        "times": np.where(tags == AUDIO, np.float32(0.4), np.float32(0.2)),
    }


class Ours:
    """This program's transformer, as the engine drives it."""

    def __init__(self, name: str, head_dim: int, weights: dict, given: dict, threads: int):
        from h3core.kernels.quant_matrix import QuantMatrix
        from h3core.kernels.table import Kernels
        from h3core.model.transformer import Modulation, Transformer

        self.modulated = Modulation
        self.kernels, self.given, precision = Kernels(threads=threads), given, name.removeprefix("h3-")
        self.config = config(head_dim)
        self.network = Transformer(self.config, self.kernels, precision)

        def ready(shape, words):
            if len(shape) == 2:
                return QuantMatrix(words.reshape(-1).view(np.uint8), "bf16", *shape, self.kernels)
            return (words.astype(np.uint32) << 16).view(np.float32)

        blocks = {name: ready(*weight) for name, weight in weights.items()}

        def group(prefix):
            return {name.removeprefix(prefix): value for name, value in blocks.items() if name.startswith(prefix)}

        self.blocks = [group(f"transformer_blocks.{i}.") for i in range(self.config["num_layers"])]
        self.adaln = [group(f"transformer_blocks.{i}.adaln_proj.") for i in range(self.config["num_layers"])]
        self.refiner = [group(f"token_refiner.refiner_blocks.{i}.") for i in range(self.config["num_refiner_layers"])]
        self.fixed = {name: value for name, value in blocks.items() if "blocks." not in name}
        tags = given["tags"]
        indices = [np.flatnonzero(tags == tag).astype(np.int32) for tag in (TEXT, VIDEO, AUDIO)]
        segments = (Segment("text", 0, TEXT_ROWS, True),)
        self.layout = Layout(segments, given["positions"], tags, *indices, 0, 0)
        self.rotary = rotary.transformer_tables(self.network.config, given["positions"])
        self.pairs = distinct_pairs([(given["times"], tags)])
        self.table = np.empty(memory.modulation_table(self.config, len(self.pairs)).shape, np.float32)
        self.scratch = [
            {name: np.empty(buffer.shape, buffer.dtype) for name, buffer in buffers.items()}
            for buffers in (
                memory.refiner_buffers(self.config, TEXT_ROWS, precision),
                memory.modulation_buffers(self.config, len(np.unique(given["times"]))),
                memory.transformer_buffers(self.config, len(tags), len(given["video"]), len(given["audio"]), precision),
            )
        ]

    def once(self) -> None:
        """What a run makes once."""
        refiner, times, _ = self.scratch
        self.network.modulation(self.pairs, self.fixed, self.adaln, times, self.table)
        self.text = self.network.refine(self.given["text"], self.fixed, self.refiner, refiner)

    def step(self) -> tuple[np.ndarray, np.ndarray]:
        """One evaluation."""
        modulation = self.modulated(self.table, self.pairs.index(self.given["times"], self.given["tags"]))
        rows = self.given["video"], self.given["audio"], self.text
        return self.network.forward(
            rows, self.layout, self.rotary, modulation, self.fixed, self.blocks, self.scratch[2]
        )


class Diffusers:
    """The reference's transformer."""

    def __init__(self, name: str, head_dim: int, weights: dict, given: dict, threads: int):
        import torch
        from diffusers import MiniMaxH3Transformer3DModel

        torch.set_num_threads(threads)
        self.torch, self.given = torch, given
        dtype = torch.float32 if name.endswith("f32") else torch.bfloat16
        with torch.device("meta"):
            model = MiniMaxH3Transformer3DModel(**config(head_dim))
        model = model.to(dtype).to_empty(device="cpu").eval()
        model.rope.inv_freq = type(model.rope)(16, 10000.0).inv_freq  # a buffer that no file holds
        own = dict(model.named_parameters())
        for name in list(weights):
            shape, words = weights.pop(name)  # not both copies at once, or the peak would be this file's fault
            own.pop(name).data.copy_(torch.from_numpy(words.reshape(shape).view(np.int16)).view(torch.bfloat16))
        assert not own, sorted(own)
        for part in ("proj_in", "audio_proj_in", "time_embedder", "proj_out", "audio_proj_out"):
            getattr(model, part).float()  # as the release keeps them
        self.model, self.dtype = model, dtype

    def once(self) -> None:
        """Nothing: it makes everything anew."""

    def step(self) -> tuple[np.ndarray, np.ndarray]:
        torch, given = self.torch, self.given
        tags = torch.from_numpy(given["tags"]).long()
        times, index = np.unique(given["times"], return_inverse=True)
        where = [torch.nonzero(tags == tag)[:, 0] for tag in (VIDEO, AUDIO, TEXT)]
        with torch.inference_mode():
            video, audio = self.model(
                torch.from_numpy(given["video"])[None].to(self.dtype),
                torch.from_numpy(given["audio"])[None].to(self.dtype),
                torch.from_numpy(given["text"])[None].to(self.dtype),
                torch.from_numpy(times),
                torch.from_numpy(index.reshape(-1)),
                tags,
                torch.from_numpy(given["positions"]),
                *where,
                return_dict=False,
            )
        return video[0].float().numpy(), audio[0].float().numpy()


def build(name: str, head_dim: int, threads: int, weights: dict | None = None):
    kind = Ours if name.startswith("h3-") else Diffusers
    own = random_weights(head_dim) if weights is None else dict(weights)
    return kind(name, head_dim, own, inputs(head_dim), threads)


def peak_memory(name: str, head_dim: int, threads: int) -> float:
    """Most MiB that a process which builds the engine and evaluates twice ever held."""
    command = [sys.executable, "-m", "tests.bench.transformer", "--measure", name, "--head-dim", str(head_dim)]
    run = subprocess.run([*command, "--threads", str(threads)], check=True, capture_output=True, text=True)
    return float(run.stdout.splitlines()[-1])


def measure(name: str, head_dim: int, threads: int) -> None:
    engine = build(name, head_dim, threads)
    engine.once()
    engine.step()
    engine.step()
    # not getrusage's maximum, which a process inherits from the one that started it
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(int(status["VmHWM"].split()[0]) / 1024)


def compare(head_dim: int, names: list[str], repeats: int, threads: int, clock: Callable[[], float]) -> None:
    weights = random_weights(head_dim)
    engines = {name: build(name, head_dim, threads, weights) for name in names}
    seconds = {name: {"all": [], "step": []} for name in names}
    results = {}
    for repeat in range(repeats + 1):  # the first is a warm-up
        for name, engine in engines.items():
            start = clock()
            engine.once()
            middle = clock()
            results[name] = [np.array(part) for part in engine.step()]
            end = clock()
            if repeat:
                seconds[name]["all"].append(end - start)
                seconds[name]["step"].append(end - middle)
    reference = np.concatenate([part.ravel() for part in results.get("diffusers-f32", results[names[0]])])
    print(f"\nhead dim {head_dim}, 1400 rows, {threads} threads, {repeats} rounds interleaved")
    print(f"{'engine':16}{'all best':>9}{'median':>8}{'step':>8}{'all x':>7}{'step x':>7}{'error':>9}{'peak MiB':>10}")
    for name in names:
        every, step = np.array(seconds[name]["all"]), np.array(seconds[name]["step"])
        rival = seconds.get(RIVAL.get(name, name))
        ratios = [np.median(np.array(rival["all"]) / own) if rival else float("nan") for own in (every, step)]
        found = np.concatenate([part.ravel() for part in results[name]])
        error = np.linalg.norm(found - reference) / np.linalg.norm(reference)
        peak = peak_memory(name, head_dim, threads)
        print(
            f"{name:16}{every.min():9.2f}{np.median(every):8.2f}{np.median(step):8.2f}"
            f"{ratios[0]:7.2f}{ratios[1]:7.2f}{error:9.1e}{peak:10.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--head-dim", type=int, nargs="+", default=[96, 128])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu, with one thread: on a busy machine")
    parser.add_argument("--measure", choices=ENGINES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure, options.head_dim[0], options.threads)
        return
    for head_dim in options.head_dim:
        compare(head_dim, options.engines, options.repeats, options.threads, CLOCKS[options.clock])


if __name__ == "__main__":
    main()
