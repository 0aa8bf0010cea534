"""Every spelling of a config becomes the same fields; tensors win where they speak, and contradictions are said."""

import copy
import json
import random

import pytest

from h3core.weights import config as configs
from h3core.weights.identify import Source, build_part, open_part
from h3core.weights.model_files import ModelError
from h3core.weights.safetensors import read_part
from tests.golden_files import TINY
from tests.weights.files import copy_tiny, original_tree
from tests.weights.test_safetensors import one_sentence


def opened(folder, kind="transformer", name=None):
    name = name or {"video_vae": "vae"}.get(kind, kind)
    return open_part(Source(kind, folder / name, configs=(folder / name / "config.json",)))


def test_released_defaults_are_the_specs():
    assert configs.TRANSFORMER["hidden_size"] == 5376 and configs.TRANSFORMER["num_attention_heads"] * 128 == 7168
    assert len(configs.VIDEO_VAE["latents_mean"]) == len(configs.VIDEO_VAE["latents_std"]) == 24
    assert len(configs.AUDIO_VAE["latents_mean"]) == len(configs.AUDIO_VAE["latents_std"]) == 32
    assert configs.AUDIO_VAE["decoder_kernel_sizes"] == [
        2 * rate - rate % 2 for rate in configs.AUDIO_VAE["decoder_rates"]
    ]


@pytest.mark.parametrize("kind", ("transformer", "video_vae", "audio_vae"))
def test_a_diffusers_config_comes_through(kind):
    part = opened(TINY, kind)
    want = json.loads((TINY / {"video_vae": "vae"}.get(kind, kind) / "config.json").read_text())
    assert part.config == {name: value for name, value in want.items() if not name.startswith("_")}


def test_the_text_config_lies_flat_with_the_tower_beside_it():
    config = opened(TINY, "text_encoder").config
    assert config["hidden_size"] == 48 and config["num_key_value_heads"] == 2 and config["num_hidden_layers"] == 51
    assert config["rope_theta"] == 5e6 and config["mrope_section"] == [4, 2, 2]
    assert config["vision_config"]["depth"] == 3 and config["vision_config"]["deepstack_visual_indexes"] == [0, 1]


def test_both_spellings_of_the_rope_fields():
    raw = json.loads((TINY / "text_encoder/config.json").read_text())
    newer = configs.canonical_config("text_encoder", raw, "config.json")
    older = copy.deepcopy(raw)
    rope = older["text_config"].pop("rope_parameters")
    older["text_config"]["rope_theta"] = rope["rope_theta"]
    older["text_config"]["rope_scaling"] = {"mrope_section": rope["mrope_section"], "rope_type": "default"}
    assert configs.canonical_config("text_encoder", older, "config.json") == newer


def test_fields_left_out_come_from_the_tensors_or_the_release(tmp_path):
    folder = copy_tiny(tmp_path / "tiny")
    (folder / "transformer/config.json").write_text('{"rope_freq_dim": 4}')  # nothing in the tensors shows this one
    assert opened(folder).config == opened(TINY).config


def test_block_counts_come_from_the_names(tmp_path):
    folder = copy_tiny(tmp_path / "tiny")
    path = folder / "transformer/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_layers": 50, "num_refiner_layers": 7}))
    assert opened(folder).config["num_layers"] == 3 and opened(folder).config["num_refiner_layers"] == 2


def test_an_original_tree_has_the_same_configs(tmp_path):
    root = original_tree(tmp_path) / "FL2VA"
    places = {
        "transformer": Source(
            "transformer", root / "transformer", (), (root / "transformer/config.json",), "interleaved"
        ),
        "video_vae": Source(
            "video_vae",
            root / "video_vae/source",
            (),
            (root / "video_vae/config.json", root / "video_vae/source/config.json"),
        ),
        "audio_vae": Source(
            "audio_vae", root / "audio_vae", (), (root / "audio_vae/metadata.json", root / "audio_vae/config.json")
        ),
    }
    for kind, source in places.items():
        assert open_part(source).config == opened(TINY, kind).config


WRONG = (
    ("transformer", "hidden_size", 65, "hidden_size 65 but the tensors have 64"),
    ("transformer", "hidden_size", "64", 'hidden_size is "64"; it must be a number'),
    ("transformer", "hidden_size", -1, "whole number of at least 1"),
    ("transformer", "hidden_size", 64.5, "whole number"),
    ("transformer", "hidden_size", True, "a number"),
    ("transformer", "hidden_size", 1 << 60, "whole number"),
    ("transformer", "patch_size", [1, 2], "a list of three"),
    ("transformer", "patch_size", 2, "a list"),
    ("transformer", "norm_eps", float("nan"), "finite"),
    ("transformer", "rope_theta", float("inf"), "finite"),
    ("transformer", "attention_head_dim", 16, "attention_head_dim 16 but the tensors have 32"),
    ("video_vae", "latents_mean", [0.0] * 23, "23 numbers for 24"),
    ("video_vae", "latents_std", [0.0] * 24, "above 0"),
    ("video_vae", "latents_std", ["a"] * 24, "a number"),
    ("video_vae", "decoder_attention_head_dim", 8, "config"),
    ("video_vae", "decoder_attention_head_dim", 1024, "config"),
    ("video_vae", "spatial_padding_mode", "zeros", "the only kind"),
    ("video_vae", "block_out_channels", [8, 8], "lists of different lengths"),
    ("video_vae", "block_out_channels", [8, 8, 8, 12, 12, 17], "shape"),
    ("audio_vae", "decoder_rates", [5, 2, 2], "lists of different lengths"),
    ("audio_vae", "encoder_rates", [2, 4, 6], "shape"),
    ("audio_vae", "latent_channels", 16, "latent_channels 16 but the tensors have 32"),
    ("audio_vae", "num_attention_heads", 0, "at least 1"),
)


@pytest.mark.parametrize(("kind", "name", "value", "words"), WRONG)
def test_a_wrong_field_gives_one_sentence(tmp_path, kind, name, value, words):
    folder = copy_tiny(tmp_path / "tiny")
    path = folder / {"video_vae": "vae"}.get(kind, kind) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(ModelError) as caught:
        opened(folder, kind)
    one_sentence(caught.value, words)


def test_random_damage_to_a_config_never_gets_through_as_another_error():
    random_ = random.Random(5)
    strange = (None, True, -1, 0, 1.5, 1e30, 1 << 70, "x", [], [[]], {}, [None], {"a": 1}, [1] * 5000, [-3, 2])
    for kind in ("transformer", "text_encoder", "video_vae", "audio_vae"):
        folder = TINY / {"video_vae": "vae"}.get(kind, kind)
        tensors, _, files = read_part(folder)
        good = json.loads((folder / "config.json").read_text())
        for _ in range(60):
            damaged = copy.deepcopy(good)
            tables = [damaged, damaged.get("text_config"), damaged.get("vision_config")]
            inner = random_.choice([each for each in tables if each])
            inner[random_.choice(list(inner))] = random_.choice(strange)
            try:
                build_part(kind, damaged, tensors, files, None, f"{folder.name}/config.json")
            except ModelError as error:
                one_sentence(error)
