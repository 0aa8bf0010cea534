"""Whole runs from GGUF files in every block format, against the same over the gguf package's dequantized weights."""

import json
import os

import numpy as np
import pytest

from h3core.engine import plan
from h3core.engine.pipeline import Engine, Generation, Run
from h3core.kernels.table import Kernels
from h3core.weights import config as configs
from h3core.weights.formats.table import FORMATS, GGUF
from h3core.weights.identify import open_model
from h3core.weights.shapes import SHAPES
from tests.golden_files import TINY, compare, relative_l2
from tests.weights.files import native_transformer, write
from tests.weights.gguf_files import random_blocks, write_gguf
from tests.weights.test_gguf import llama_name

gguf = pytest.importorskip("gguf")

BLOCKS = sorted({name for name in GGUF.values() if FORMATS[name].block > 1})
SAME = 1e-5  # relative L2 of a whole run in float32

DIT = {
    "num_attention_heads": 4, "attention_head_dim": 64, "hidden_size": 256, "num_layers": 2, "num_refiner_layers": 1,
    "ffn_dim": 256, "text_dim": 256, "freq_dim": 256, "time_embed_hidden_dim": 256, "time_embed_dim": 256,
    "rope_freq_dim": 8,
}  # fmt: skip
TEXT = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 448, "mrope_section": [12, 10, 10],
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("H3_HOME", str(tmp_path / "home"))


def random_part(kind: str, config: dict, format: str, others: dict[str, str]) -> dict:
    """{canonical name: (format, shape, bytes)}. others: end of a name -> another format, so that formats mix."""
    made = {}
    for number, (name, shape) in enumerate(SHAPES[kind](configs.DEFAULTS[kind] | config).items()):
        wanted = next((each for end, each in others.items() if name.endswith(end)), format)
        matrix = len(shape) == 2 and not name.startswith(("proj_in", "audio_proj", "proj_out"))
        if wanted != "f32" and matrix and shape[1] % FORMATS[wanted].block == 0:
            made[name] = wanted, shape, random_blocks(wanted, shape, shape[1] ** -0.5, number).tobytes()
            continue
        size = shape[-1] ** -0.5 if len(shape) == 2 else 0.1
        values = size * np.random.default_rng(number).standard_normal(shape) + ("norm" in name and len(shape) == 1)
        made[name] = "f32", shape, values.astype(np.float32).tobytes()
    return made


def dequantized(tensors: dict, prefix: str = "") -> dict:
    """The same for a safetensors file, by the gguf package."""
    made = {}
    for name, (format, shape, data) in tensors.items():
        raw = np.frombuffer(data, np.uint8)
        if format != "f32":
            raw = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[format.upper()])
        made[prefix + name] = "F32", list(shape), raw.tobytes()
    return made


def frame(folder):
    """A tree without transformer and text encoder weights."""
    for name in ("vae", "audio_vae", "tokenizer", "processor", "scheduler", "audio_scheduler"):
        folder.mkdir(exist_ok=True)
        os.symlink(TINY / name, folder / name)
    index = json.loads((TINY / "model_index.json").read_text())
    index["_minimax_h3"] = {"tap": 2, "partition": "fl2va"}
    (folder / "model_index.json").write_text(json.dumps(index))
    for name, config in (("transformer", DIT), ("text_encoder", {"text_config": TEXT})):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    return folder


def both(tmp_path, format: str, others: dict[str, str], changes: dict | None = None):
    """The model from GGUF files, and the same from float32 safetensors files. changes: of the transformer's config."""
    dit = random_part("transformer", DIT | (changes or {}), format, others)
    text = random_part("text_encoder", TEXT, format, others)
    packed, plain = frame(tmp_path / "packed"), frame(tmp_path / "plain")
    native = native_transformer(dit, DIT["num_attention_heads"], "stacked", "model.diffusion_model.")
    native = {name: (kind.lower(), shape, data) for name, (kind, shape, data) in native.items()}
    write_gguf(packed / "transformer" / f"h3-{format}.gguf", native)
    llama = {llama_name(f"model.{name}"): each for name, each in text.items()}
    write_gguf(packed / "text_encoder" / f"te-{format}.gguf", llama)
    write(plain / "transformer/model.safetensors", dequantized(dit))
    write(plain / "text_encoder/model.safetensors", dequantized(text, "model.language_model."))
    return open_model(packed), open_model(plain)


def latents(tmp_path, name, model, kernels, precision="exact"):
    """Prompt states, video rows and audio rows after two evaluations."""
    settings = plan.Settings(prompt="a small boat", width=32, height=32, frames=22, steps=2, seed=3,
                             precision=precision, noise_guard=False)  # fmt: skip
    run = Run(name, settings, tmp_path / f"run-{name}", tmp_path / f"{name}.mp4")
    made = Generation(Engine(kernels), run, model, lambda *_, **__: None, lambda: False)
    made.prepare()
    states = made.embeddings()
    state = made.denoise(made.passes(states), made.modulation(), made.first_state())
    made.__exit__()
    return states[0], state.video_rows, state.audio_rows


@pytest.mark.parametrize("format", BLOCKS)
def test_a_run_equals_the_run_over_dequantized_weights(tmp_path, format):
    packed, plain = both(tmp_path, format, {})
    used = {each.format for part in packed.parts[:2] for each in part.weights.values()}
    assert used == {format, "f32"} and {each.format for each in plain.transformer.weights.values()} == {"f32"}
    kernels = Kernels(threads=2)
    got, want = latents(tmp_path, "packed", packed, kernels), latents(tmp_path, "plain", plain, kernels)
    for name, ours, theirs in zip(("prompt", "video", "audio"), got, want, strict=True):
        compare(f"{format} {name}", ours, theirs, SAME)


def test_formats_mix_within_a_layer(tmp_path):
    others = {
        "v_proj.weight": "q6_k",
        "down_proj.weight": "q6_k",
        "gate_proj.weight": "q5_k",
        "to_out.0.weight": "q8_0",
    }
    others |= {"embed_tokens.weight": "q4_0", "adaln_proj.linear.weight": "q5_0", "to_out.0.weight": "q8_0"}
    packed, plain = both(tmp_path, "q4_k", others)
    assert {each.format for each in packed.text_encoder.weights.values()} == {"q4_k", "q6_k", "q5_k", "q4_0", "f32"}
    kernels = Kernels(threads=2)
    got, want = latents(tmp_path, "packed", packed, kernels), latents(tmp_path, "plain", plain, kernels)
    for name, ours, theirs in zip(("prompt", "video", "audio"), got, want, strict=True):
        compare(f"mixed {name}", ours, theirs, SAME)


def test_a_pruned_transformer(tmp_path):
    changes = {"time_embed_dim": 8, "adaln_grid": 33}  # the config that lies beside it is the full model's
    packed, plain = both(tmp_path, "q4_k", {}, changes)
    assert packed.transformer.config | changes == packed.transformer.config
    assert packed.transformer.weights["transformer_blocks.0.adaln_proj.linear.weight"].shape == (18 * 256, 8)
    kernels = Kernels(threads=2)
    got, want = latents(tmp_path, "packed", packed, kernels), latents(tmp_path, "plain", plain, kernels)
    for name, ours, theirs in zip(("prompt", "video", "audio"), got, want, strict=True):
        compare(f"pruned {name}", ours, theirs, SAME)


@pytest.mark.parametrize(("precision", "most"), (("bf16", 0.03), ("int8", 0.1)))
def test_faster_precisions_come_close(tmp_path, precision, most):
    packed, plain = both(tmp_path, "q8_0", {})
    kernels = Kernels(threads=2)
    got = latents(tmp_path, "fast", packed, kernels, precision)
    for ours, theirs in zip(got, latents(tmp_path, "plain", plain, kernels), strict=True):
        assert 0 < relative_l2(ours, theirs) < most
