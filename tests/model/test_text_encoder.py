"""The conditioner's text part against the reference's hidden states, in precision exact."""

import json

import numpy as np
import pytest

from h3core.model import memory
from h3core.model.config import TextConfig
from h3core.model.rotary import text_tables
from h3core.model.text_encoder import TextEncoder
from tests.golden_files import TINY, compare, golden
from tests.model.tiny import Recorder, allocate, kernels, load, load_blocks

FOLDER = TINY / "text_encoder"
CONFIG = json.loads((FOLDER / "config.json").read_text())
PREFIX = "model.language_model."
PROMPTS = ("english", "chinese", "emoji", "dialogue", "mixed", "single")


@pytest.fixture(scope="module")
def layers():
    return load_blocks(FOLDER, PREFIX + "layers.")


@pytest.fixture(scope="module")
def embedding():
    return load(FOLDER, {PREFIX + "embed_tokens.weight": "embed_tokens.weight"})["embed_tokens.weight"]


def encode(prompt, layers, embedding, precision="exact"):
    ids = golden("text")[f"{prompt}.ids"]
    scratch = allocate(memory.text_buffers(CONFIG, len(ids), precision))
    seen = Recorder(layers, scratch["residual"])
    return seen, TextEncoder(CONFIG, 50, kernels(), precision).encode(embedding[ids], seen, scratch)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_states(prompt, layers, embedding):
    seen, states = encode(prompt, layers, embedding)
    compare("hidden_states.50", states, golden("text")[f"{prompt}.hidden_states.50"])
    for number in (0, 1, 2, 25):
        name = f"{prompt}.hidden_states.{number}"
        if name in golden("text"):
            compare(name, seen.states[number], golden("text")[name])


def test_layers_beyond_the_tap_are_never_asked_for(layers, embedding):
    seen, _ = encode("single", layers, embedding)
    assert len(layers) == 51 and len(seen.states) == 50


def test_chunked_rows_give_the_same_states(layers, embedding, monkeypatch):
    monkeypatch.setattr(memory, "CHUNK_ROWS", 12)
    _, states = encode("mixed", layers, embedding)
    compare("hidden_states.50", states, golden("text")["mixed.hidden_states.50"])


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 4.1e-2), ("int8", 2e-1)])
def test_lower_precision_stays_near(precision, tolerance, layers, embedding):
    _, states = encode("english", layers, embedding, precision)
    compare("hidden_states.50", states, golden("text")["english.hidden_states.50"], tolerance)


def test_rotary_tables():
    want = golden("text")
    rows = len(want["rope.cos"])
    tables = text_tables(TextConfig.of(CONFIG), np.tile(np.arange(rows), (3, 1)))
    for name, table in zip(("cos", "sin"), tables, strict=True):
        compare(name, np.tile(table, 2), want[f"rope.{name}"])


def test_older_configs_write_the_rotary_fields_elsewhere():
    text = dict(CONFIG["text_config"])
    rotary = text.pop("rope_parameters")
    text |= {"rope_theta": rotary["rope_theta"], "rope_scaling": {"mrope_section": rotary["mrope_section"]}}
    assert TextConfig.of({"text_config": text}) == TextConfig.of(CONFIG)


def test_an_encoder_without_the_tapped_layer_is_refused(layers, embedding):
    with pytest.raises(ValueError, match="51 layers"):
        TextEncoder(CONFIG, 52, kernels(), "exact")
    with pytest.raises(ValueError, match="layers"):
        encode("single", layers[:3], embedding)
