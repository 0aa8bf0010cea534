"""The transformer against the reference's vectors, step by step, on the tiny checkpoint in precision exact."""

import json

import numpy as np
import pytest

from h3core.model import memory
from h3core.model import transformer as dit
from h3core.model.layout import Layout, Segment
from h3core.model.rotary import inverse_frequencies, transformer_tables
from h3core.model.schedule import Pairs, distinct_pairs
from tests.golden_files import TINY, compare, golden
from tests.model.tiny import Recorder, allocate, as_weight, kernels, load_blocks, load_fixed

FOLDER = TINY / "transformer"
CONFIG = json.loads((FOLDER / "config.json").read_text())


@pytest.fixture(scope="module")
def network():
    return dit.Transformer(CONFIG, kernels(), "exact")


@pytest.fixture(scope="module")
def weights():
    return {
        "fixed": load_fixed(FOLDER),
        "refiner": load_blocks(FOLDER, "token_refiner.refiner_blocks."),
        "blocks": load_blocks(FOLDER, "transformer_blocks."),
        "adaln": load_blocks(FOLDER, "transformer_blocks.", "adaln_proj."),
    }


def test_time_features_and_embedding(network, weights):
    want = golden("dit_time")
    compare("sinusoid", dit.time_features(want["timestep"], 32), want["sinusoid"])
    compare("sinusoid_released_256", dit.time_features(want["timestep"], 256), want["sinusoid_released_256"])
    scratch = allocate(memory.modulation_buffers(CONFIG, 8))
    compare("temb", network.embed_times(want["timestep"], weights["fixed"], scratch), want["temb"])


def test_modulation_of_every_time_and_modality(network, weights):
    want = golden("dit_time")
    pairs = Pairs(np.repeat(want["timestep"], 3), np.tile(np.arange(3, dtype=np.int32), 8))
    table = make_table(network, weights, pairs)
    for row, name in enumerate(("shift_msa", "scale_msa", "gate_msa", "shift_mlp", "scale_mlp", "gate_mlp")):
        compare(name, table[row], want[f"block0.{name}"])


@pytest.mark.parametrize("count", [4, 16])
def test_rotary_tables(count):
    want = golden("dit_rope")
    config = dit.TransformerConfig(rope_freq_dim=count)
    compare("inv_freq", inverse_frequencies(10000.0, 2 * count), want[f"freq{count}.inv_freq"], 1e-7)
    for name, table in zip(("cos", "sin"), transformer_tables(config, want["position_ids"]), strict=True):
        compare(name, np.tile(table, 2), want[f"freq{count}.{name}"])


def test_rotary_application():
    from h3core.kernels.attention import Attention

    want = golden("dit_rope")
    cos, sin = transformer_tables(dit.TransformerConfig(rope_freq_dim=4), want["position_ids"])
    x = want["apply.input"]
    rows, heads, width = x.shape
    storage = np.zeros(memory.attention_size_bytes(rows, heads, width, "f32"), np.uint8)
    q = x.reshape(rows, heads * width).copy()
    Attention(storage, rows, heads, heads, width, "f32", kernels()).prepare_q(q, None, 0.0, cos, sin)
    compare("apply.output", q.reshape(x.shape), want["apply.output"])


def test_refiner(network, weights):
    want = golden("dit_refiner")
    text = want["encoder_hidden_states"]
    scratch = allocate(memory.refiner_buffers(CONFIG, len(text), "exact"))
    seen = Recorder(weights["refiner"], scratch["text"])
    got = network.refine(text, weights["fixed"], seen, scratch)
    compare("context_embedder", seen.states[0], want["context_embedder"])
    for number in range(2):
        name = f"token_refiner.refiner_blocks.{number}"
        compare(name, seen.states[number + 1], want[name])
    compare("token_refiner", got, want["token_refiner"])


@pytest.mark.parametrize("case", ["t2va", "fl2va", "equal_t"])
@pytest.mark.parametrize("chunk_rows", [memory.CHUNK_ROWS, 36])
def test_forward(network, weights, case, chunk_rows, monkeypatch):
    monkeypatch.setattr(memory, "CHUNK_ROWS", chunk_rows)
    want = golden(f"dit_forward_{case}")
    seen, (video, audio) = forward(network, weights, want, "exact")
    if case == "t2va":
        compare("transformer_blocks.0.input", seen.states[0], want["transformer_blocks.0.input"])
    for number in range(3):
        name, first = f"transformer_blocks.{number}", 0 if number < 2 else len(want["input.text_indices"])
        compare(name, seen.states[number + 1][first:], want[name][first:])
    compare("output.video", video, want["output.video"])
    compare("output.audio", audio, want["output.audio"])


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 1.2e-2), ("int8", 4e-2)])
def test_lower_precision_stays_near(weights, precision, tolerance):
    want = golden("dit_forward_fl2va")
    _, (video, audio) = forward(dit.Transformer(CONFIG, kernels(), precision), weights, want, precision)
    compare("output.video", video, want["output.video"], tolerance)
    compare("output.audio", audio, want["output.audio"], tolerance)


@pytest.mark.parametrize(("grid", "rank", "tolerance"), [(1025, 24, 1e-5), (1025, 8, 1e-4), (129, 8, 1e-3)])
def test_a_pruned_transformer_has_nearly_the_full_ones_modulation(network, weights, grid, rank, tolerance):
    """Pruned as it is done for the published files: the curve's own basis, W' = W B^T, b' = b + W mean."""
    times = np.linspace(0, 1, grid)
    scratch = allocate(memory.modulation_buffers(CONFIG, grid))
    curve = network.embed_times(times, weights["fixed"], scratch).astype(np.float64)
    curve /= 1 + np.exp(-curve)
    mean = curve.mean(0)
    left, size, basis = np.linalg.svd(curve - mean, full_matrices=False)

    def pruned(block, name):
        w = block[f"{name}.weight"].dequantize().astype(np.float64)
        own = {f"{name}.weight": as_weight(f"{name}.weight", (w @ basis[:rank].T).astype(np.float32))}
        return own | {f"{name}.bias": (block[f"{name}.bias"] + w @ mean).astype(np.float32)}

    fixed = pruned(weights["fixed"], "norm_out.linear")
    fixed["adaln_t_table"] = (left[:, :rank] * size[:rank]).astype(np.float32)
    own = {"fixed": fixed, "adaln": [pruned(block, "linear") for block in weights["adaln"]]}
    small = dit.Transformer(CONFIG | {"time_embed_dim": rank, "adaln_grid": grid}, kernels(), "exact")
    pairs = distinct_pairs([(np.array([0.0, 0.123, 0.5, 0.999, 1.0], np.float32), np.array([0, 1, 2, 1, 2]))])
    want = make_table(network, weights, pairs)
    compare("pruned modulation", make_table(small, own, pairs), want, tolerance)


def test_a_curve_between_its_rows_and_beyond_its_ends():
    table = np.array([[0, 10], [2, 20], [8, 0]], np.float32)
    got = dit.curve_at(np.array([-1, 0, 0.25, 0.5, 0.875, 1, 2]), table)
    assert got.dtype == np.float32
    assert got.tolist() == [[0, 10], [0, 10], [1, 15], [2, 20], [6.5, 5], [8, 0], [8, 0]]
    assert dit.curve_at(np.array([0.3]), table[:1]).tolist() == [[0, 10]]


def make_table(network, weights, pairs):
    table = np.full(memory.modulation_table(network.config, len(pairs)).shape, np.nan, np.float32)
    scratch = allocate(memory.modulation_buffers(network.config, len(np.unique(pairs.times))))
    network.modulation(pairs, weights["fixed"], weights["adaln"], scratch, table)
    assert np.isfinite(table).all()
    return table


def forward(network, weights, inputs, precision):
    """One pass over a golden file's inputs: (recorder, velocities)."""
    tags = inputs["input.token_tags"]
    text, video, audio = (inputs[f"input.{kind}_indices"] for kind in ("text", "video", "audio"))
    layout = Layout(
        (Segment("text", 0, len(text), True),), inputs["input.position_ids"], tags, text, video, audio, 0, 0
    )
    times = inputs["input.timestep"][inputs["input.timestep_indices"]]
    pairs = distinct_pairs([(times, tags)])
    modulation = dit.Modulation(make_table(network, weights, pairs), pairs.index(times, tags))
    states = inputs["input.encoder_hidden_states"]
    scratch = allocate(memory.refiner_buffers(network.config, len(states), precision))
    refined = network.refine(states, weights["fixed"], weights["refiner"], scratch)
    scratch = allocate(memory.transformer_buffers(network.config, layout.rows, len(video), len(audio), precision))
    seen = Recorder(weights["blocks"], scratch["residual"])
    rows = inputs["input.hidden_states"], inputs["input.audio_hidden_states"], refined
    rotary = network.rotary(layout)
    return seen, network.forward(rows, layout, rotary, modulation, weights["fixed"], seen, scratch)


SHAPES = {  # heads, head dim, hidden, ffn, blocks, rotary frequencies, distinct times, text rows, frames, height, width
    "wide heads": (2, 128, 72, 40, 2, 16, 2, 1, 22, 32, 64),
    "odd sizes": (5, 16, 54, 37, 1, 2, 1, 9, 5, 64, 32),
    "four times": (3, 40, 96, 64, 3, 5, 4, 13, 39, 32, 32),
}


@pytest.mark.reference
@pytest.mark.parametrize("name", SHAPES)
def test_live_against_diffusers(name, monkeypatch):
    torch = pytest.importorskip("torch", reason="torch, the reference, is not installed")
    from diffusers import MiniMaxH3Transformer3DModel

    from h3core.model import layout as packing

    heads, head_dim, hidden, ffn, blocks, frequencies, count, text_rows, frames, height, width = SHAPES[name]
    config = {
        "num_attention_heads": heads,
        "attention_head_dim": head_dim,
        "hidden_size": hidden,
        "ffn_dim": ffn,
        "num_layers": blocks,
        "num_refiner_layers": 1,
        "text_dim": 24,
        "freq_dim": 16,
        "time_embed_hidden_dim": 20,
        "time_embed_dim": 12,
        "rope_freq_dim": frequencies,
    }
    torch.manual_seed(len(name))
    model = MiniMaxH3Transformer3DModel(**config).eval()
    layout = packing.fl2va(text_rows, frames, height, width, ("first",))
    random = np.random.default_rng(count)
    times = np.sort(random.random(count, np.float32))[random.integers(0, count, layout.rows)]
    distinct, index = np.unique(times, return_inverse=True)
    video = random.standard_normal((len(layout.video_indices), 96), np.float32)
    audio = random.standard_normal((len(layout.audio_indices), 32), np.float32)
    text = random.standard_normal((text_rows, 24), np.float32)
    where = [torch.from_numpy(getattr(layout, f"{kind}_indices")).long() for kind in ("video", "audio", "text")]
    with torch.inference_mode():
        want = model(
            *(torch.from_numpy(rows)[None] for rows in (video, audio, text)),
            torch.from_numpy(distinct),
            torch.from_numpy(index.reshape(-1)),
            torch.from_numpy(layout.tags).long(),
            torch.from_numpy(layout.positions),
            *where,
            return_dict=False,
        )
    monkeypatch.setattr(memory, "CHUNK_ROWS", 24)
    weights = split({name: as_weight(name, value.numpy()) for name, value in model.state_dict().items()})
    inputs = {
        "input.hidden_states": video,
        "input.audio_hidden_states": audio,
        "input.encoder_hidden_states": text,
        "input.timestep": distinct,
        "input.timestep_indices": index.reshape(-1),
        "input.token_tags": layout.tags,
        "input.position_ids": layout.positions,
    } | {f"input.{kind}_indices": getattr(layout, f"{kind}_indices") for kind in ("text", "video", "audio")}
    _, got = forward(dit.Transformer(config, kernels(), "exact"), weights, inputs, "exact")
    for kind, mine, theirs in zip(("video", "audio"), got, want, strict=True):
        compare(kind, mine, theirs[0].numpy())


def split(weights):
    """Weights by name into fixed ones and the three stacks of blocks."""
    stacks = {
        "refiner": ("token_refiner.refiner_blocks.", ""),
        "blocks": ("transformer_blocks.", ""),
        "adaln": ("transformer_blocks.", "adaln_proj."),
    }
    found = {"fixed": {name: value for name, value in weights.items() if "blocks." not in name}}
    for stack, (prefix, within) in stacks.items():
        found[stack] = []
        while own := {
            name.removeprefix(place): value
            for place in [f"{prefix}{len(found[stack])}.{within}"]
            for name, value in weights.items()
            if name.startswith(place)
        }:
            found[stack].append(own)
    return found
