"""The vision tower, its positions and its place in the conditioner, against the reference's vectors."""

import json

import numpy as np
import pytest

from h3core.model import memory
from h3core.model import vision_encoder as vision
from h3core.model.config import VisionConfig
from h3core.model.text_encoder import TextEncoder, multimodal_positions
from tests.golden_files import TINY, compare, golden, golden_json
from tests.model.tiny import Recorder, allocate, kernels, load, load_blocks, tensors

FOLDER = TINY / "text_encoder"
CONFIG = json.loads((FOLDER / "config.json").read_text())
OWN = VisionConfig.of(CONFIG)
IDS = golden_json("text")["special_ids"]
PREFIX = "model.visual."
CASES = ("keyframes", "references")


@pytest.fixture(scope="module")
def fixed():
    names = {name: name.removeprefix(PREFIX) for name in tensors(FOLDER) if name.startswith(PREFIX)}
    return load(FOLDER, {stored: name for stored, name in names.items() if not name.startswith("blocks.")})


@pytest.fixture(scope="module")
def blocks():
    return load_blocks(FOLDER, PREFIX + "blocks.")


def pictures(case):
    """Pixels of each picture or clip of a case, pictures before clips as the tower is asked for them."""
    want = golden("vision")
    if case == "keyframes":
        return [[want["keyframes.image0_uint8_hwc"], want["keyframes.image1_uint8_hwc"]]]
    return [[want["references.image_uint8_hwc"]], [want["references.sampled_frames_uint8_fhwc"]]]


def tower(images, fixed, blocks, precision="exact"):
    """(patch values, grids, recorder, merged, deep) of one call."""
    made = [vision.patches(pixels, OWN) for pixels in images]
    values, grids = np.concatenate([values for values, _ in made]), [grid for _, grid in made]
    scratch = allocate(memory.vision_buffers(CONFIG, grids, precision))
    seen = Recorder(blocks, scratch["residual"])
    merged, deep = vision.VisionEncoder(CONFIG, kernels(), precision).encode(values, grids, fixed, seen, scratch)
    return values, grids, seen, merged, deep


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("chunk_rows", [memory.CHUNK_ROWS, 12])
def test_tower(case, fixed, blocks, chunk_rows, monkeypatch):
    monkeypatch.setattr(memory, "CHUNK_ROWS", chunk_rows)
    want, names = golden("vision"), ("pixel_values", "pixel_values_videos")
    call = f"{case}.visual." if case == "keyframes" else f"{case}.visual.first_call."
    for images, name, grid_name in zip(pictures(case), names, ("image_grid_thw", "video_grid_thw"), strict=False):
        values, grids, seen, merged, deep = tower(images, fixed, blocks)
        compare(name, values[:, ::16], want[f"{case}.{name}_every16th_column"])
        compare(grid_name, np.array(grids), want[f"{case}.{grid_name}"], 0)
        if name == "pixel_values":
            compare("blocks.0", seen.states[1], want[f"{call}blocks.0"])
            compare("blocks.2", seen.states[3], want[f"{call}blocks.2"])
            compare("merger", merged, want[f"{call}merger"])
            for place in range(2):
                compare("deepstack", deep[place], want[f"{call}deepstack_merger_list.{place}"])
            for table, of in zip(vision.vision_tables(OWN, grids), ("cos", "sin"), strict=True):
                compare(of, np.tile(table, 2), want[f"{case}.visual.rope_{of}"])


@pytest.mark.parametrize("case", CASES)
def test_states_of_the_conditioner(case, fixed, blocks):
    want, merge = golden("vision"), OWN.spatial_merge_size
    ids = want[f"{case}.ids"]
    kinds = np.where(ids == IDS["<|image_pad|>"], 1, np.where(ids == IDS["<|video_pad|>"], 2, 0))
    parts = [tower(images, fixed, blocks) for images in pictures(case)]
    grids = [(h // merge, w // merge) for _, each, *_ in parts for t, h, w in each for _ in range(t)]
    positions = multimodal_positions(kinds, grids)
    compare("mrope_position_ids", positions, want[f"{case}.mrope_position_ids"], 0)

    name = "model.language_model.embed_tokens.weight"
    embeddings = load(FOLDER, {name: "embed_tokens.weight"})["embed_tokens.weight"][ids]
    rows = np.flatnonzero(kinds)
    embeddings[rows] = np.concatenate([merged for *_, merged, _ in parts])
    deep = list(np.concatenate([deep for *_, deep in parts], 1))
    layers = load_blocks(FOLDER, "model.language_model.layers.")
    scratch = allocate(memory.text_buffers(CONFIG, len(ids), "exact"))
    seen = Recorder(layers, scratch["residual"])
    states = TextEncoder(CONFIG, 50, kernels(), "exact").encode(embeddings, seen, scratch, positions, (rows, deep))
    compare("hidden_states.0", seen.states[0], want[f"{case}.hidden_states.0"])
    compare("layer1_input", seen.states[1], want[f"{case}.layer1_input_after_deepstack"])
    compare("hidden_states.3", seen.states[3], want[f"{case}.hidden_states.3"])
    compare("hidden_states.50", states, want[f"{case}.hidden_states.50"])


def test_positions_refuse_pictures_that_do_not_fit():
    with pytest.raises(ValueError, match="grid"):
        multimodal_positions(np.array([0, 1, 1, 1, 0]), [(2, 2)])
    with pytest.raises(ValueError, match="no rows"):
        multimodal_positions(np.array([0, 0]), [(2, 2)])
