"""What lies at a path: trees, loose parts and single files open; everything else gives one sentence."""

import json
import os
import shutil

import numpy as np
import pytest

from h3core.engine import plan
from h3core.weights.check import check
from h3core.weights.identify import open_model, read_manifest
from h3core.weights.model_files import Manifest, ModelError
from tests.golden_files import TINY, TINY_ORIGINAL
from tests.weights.files import (
    copy_tiny,
    native_transformer,
    native_video_vae,
    original_tree,
    stored,
    tiny,
    values,
    write,
)
from tests.weights.test_safetensors import one_sentence, shard

FOLDERS = {"transformer": "transformer", "text_encoder": "text_encoder", "video_vae": "vae", "audio_vae": "audio_vae"}


def same_weights(model, name):
    """Every part of a model has the tiny checkpoint's values."""
    for part in model.parts:
        want = tiny(FOLDERS[part.kind])
        if part.kind == "text_encoder":
            want = {
                name.removeprefix("model.language_model.").removeprefix("model."): each for name, each in want.items()
            }
            del want["norm.weight"], want["lm_head.weight"]
        assert part.weights.keys() == want.keys()
        for key, each in want.items():
            assert np.array_equal(values(part.weights[key]), each), f"{name} {part.kind} {key}"


def test_the_tiny_tree():
    model = open_model(TINY)
    assert model.name == "tiny-h3" and model.shifts == (12.0, 3.0) and model.manifest == Manifest()
    assert model.tokenizer == TINY / "tokenizer" and model.processor == TINY / "processor"
    assert [part.kind for part in model.parts] == list(FOLDERS)
    same_weights(model, "diffusers tree")


def test_the_second_transformer():
    model = open_model(TINY, partition="ref2va")
    assert model.transformer.config["num_layers"] == 2 and model.manifest.partition == "ref2va"
    assert model.manifest.tasks == ("ref2va",)


@pytest.mark.parametrize("below", ("", "FL2VA", "FL2VA/transformer", "FL2VA/video_vae"))
def test_an_original_tree(tmp_path, below):
    original_tree(tmp_path / "release")
    model = open_model(tmp_path / "release" / below)
    assert model.name == "FL2VA" and model.shifts == (12.0, 3.0) and model.manifest.tasks == ("t2va", "fl2va")
    if not below:
        same_weights(model, "original tree")


def test_a_sharded_tree(tmp_path):
    folder = copy_tiny(tmp_path / "tiny")
    shard(folder, 4)
    same_weights(open_model(folder), "sharded tree")


def test_a_part_or_a_file_of_a_tree_stands_for_the_tree(tmp_path):
    for path in (TINY / "vae", TINY / "vae/diffusion_pytorch_model.safetensors"):
        assert open_model(path).path == TINY
    os.symlink(TINY, tmp_path / "link")
    assert open_model(tmp_path / "link").text_encoder.size_bytes == open_model(TINY).text_encoder.size_bytes


def test_a_part_knows_its_size_and_groups():
    part = open_model(TINY).transformer
    block = part.group("transformer_blocks.0.", exclude=("adaln_proj.",))
    assert "attn.to_q.weight" in block and not any(name.startswith("adaln") for name in block)
    assert len(part.group("transformer_blocks.0.")) == len(block) + 2
    assert part.size_bytes == sum(
        len(each[2]) for each in stored(next((TINY / "transformer").glob("*.safetensors"))).values()
    )


def loose_parts(folder, layout="stacked"):
    """The tiny checkpoint as files made for other programs, all in one folder."""
    source = {name: stored(next((TINY / part).glob("*.safetensors"))) for name, part in FOLDERS.items()}
    dit = native_transformer(source["transformer"], 3, layout, "model.diffusion_model.")
    write(folder / "minimax_h3_fl2va_bf16.safetensors", dit, {"qkv_layout": layout})
    text = {name.replace("model.language_model.", "model."): each for name, each in source["text_encoder"].items()}
    text = {name.replace("model.visual.", "visual."): each for name, each in text.items()}
    write(folder / "qwen3vl_32b_minimax_h3_bf16.safetensors", text)
    vae = native_video_vae(source["video_vae"], 2)
    write(folder / "minimax_h3_video_vae_fp16.safetensors", vae)
    write(folder / "minimax_h3_audio_vae_fp32.safetensors", source["audio_vae"])
    # sizes that no tensor shows differ from the release's, so the tiny files bring their configs
    for name, part in (("fl2va_bf16", "transformer"), ("video_vae_fp16", "vae"), ("audio_vae_fp32", "audio_vae")):
        shutil.copy(TINY / part / "config.json", folder / f"minimax_h3_{name}.json")
    shutil.copy(TINY / "text_encoder/config.json", folder / "qwen3vl_32b_minimax_h3_bf16.json")
    shutil.copytree(TINY / "tokenizer", folder / "tokenizer")
    return folder


def test_a_folder_of_loose_parts(tmp_path):
    folder = loose_parts(tmp_path / "models")
    write(folder / "loras/turbo.safetensors", {"blocks.0.attn.qkv_proj.lora_A.weight": ("F32", [1], bytes(4))})
    write(folder / "other.safetensors", {"something": ("F32", [1], bytes(4))})
    (folder / "half.safetensors").write_bytes(b"\x10\0\0")  # a broken file that nobody needs is nobody's trouble
    model = open_model(folder)
    same_weights(model, "loose parts")
    assert model.tokenizer == folder / "tokenizer" and model.processor is None
    assert open_model(folder / "minimax_h3_audio_vae_fp32.safetensors").path == folder


def test_loose_parts_in_folders_of_their_own(tmp_path):
    folder = loose_parts(tmp_path / "models")
    for part, name in (
        ("diffusion_models", "minimax_h3_fl2va_bf16"),
        ("text_encoders", "qwen3vl_32b_minimax_h3_bf16"),
        ("vae/video", "minimax_h3_video_vae_fp16"),
        ("vae/audio", "minimax_h3_audio_vae_fp32"),
    ):
        (folder / part).mkdir(parents=True)
        (folder / f"{name}.safetensors").rename(folder / part / f"{name}.safetensors")
        (folder / f"{name}.json").rename(folder / part / "config.json")
    same_weights(open_model(folder), "loose parts in folders")


def test_statistics_inside_a_vae_file(tmp_path):
    folder = loose_parts(tmp_path / "models")
    path = folder / "minimax_h3_video_vae_fp16.safetensors"
    config = json.loads(path.with_suffix(".json").read_text())
    mean, std = config.pop("latents_mean"), config.pop("latents_std")
    path.with_suffix(".json").write_text(json.dumps(config))
    statistics = {
        "latents_mean": ("F32", [24], np.array(mean, "<f4").tobytes()),
        "latents_std": ("F32", [24], np.array(std, "<f4").tobytes()),
    }
    write(path, stored(path) | statistics)
    got = open_model(folder).video_vae.config
    assert np.allclose(got["latents_mean"], mean, rtol=1e-7) and np.allclose(got["latents_std"], std, rtol=1e-7)


def test_the_row_order_comes_from_an_override_a_config_or_a_question(tmp_path):
    folder = loose_parts(tmp_path / "models", "interleaved")
    path = folder / "minimax_h3_fl2va_bf16.safetensors"
    same_weights(open_model(folder), "row order from metadata")
    write(path, stored(path))
    with pytest.raises(ModelError, match="does not say in which order") as caught:
        open_model(folder)
    one_sentence(caught.value, "minimax_h3_fl2va_bf16.json beside it")
    same_weights(open_model(folder, qkv_layout="interleaved"), "row order from an override")
    config = path.with_suffix(".json")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"qkv_layout": "interleaved"}))
    same_weights(open_model(folder), "row order from a config")
    identities = {open_model(folder, qkv_layout=layout).transformer.identity for layout in ("interleaved", "stacked")}
    assert len(identities) == 2


@pytest.mark.parametrize(
    ("name", "words"),
    (
        (
            "minimax_h3_fl2va_bf16.safetensors",
            ("models has no transformer", "put minimax_h3_fl2va_bf16.safetensors beside"),
        ),
        ("qwen3vl_32b_minimax_h3_bf16.safetensors", ("models has no text encoder", "qwen3vl_32b_minimax_h3_bf16")),
        ("minimax_h3_video_vae_fp16.safetensors", ("models has no video VAE", "minimax_h3_video_vae_fp16")),
        ("minimax_h3_audio_vae_fp32.safetensors", ("models has no audio VAE", "minimax_h3_audio_vae_fp32")),
        ("tokenizer", ("models has no tokenizer", "put the folder tokenizer")),
        ("tokenizer/tokenizer_config.json", ("tokenizer_config.json is missing",)),
    ),
)
def test_a_missing_loose_part(tmp_path, name, words):
    folder = loose_parts(tmp_path / "models")
    shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    with pytest.raises(ModelError) as caught:
        open_model(folder)
    one_sentence(caught.value, *words)


@pytest.mark.parametrize("name", ("transformer", "text_encoder", "vae", "audio_vae", "tokenizer"))
def test_a_missing_folder_of_a_tree(tmp_path, name):
    folder = copy_tiny(tmp_path / "tiny")
    shutil.rmtree(folder / name)
    with pytest.raises(ModelError) as caught:
        open_model(folder)
    one_sentence(caught.value, "tiny", name)


def test_a_file_of_another_kind_in_place_of_a_part(tmp_path):
    folder = loose_parts(tmp_path / "models")
    path = folder / "minimax_h3_fl2va_bf16.safetensors"
    for content, words in (
        (b"GGUF" + bytes(64), ("models has no transformer", "is a GGUF file")),
        (b"PK\x03\x04" + bytes(64), ("models has no transformer", "is a pickle")),
    ):
        path.write_bytes(content)
        with pytest.raises(ModelError) as caught:
            open_model(folder)
        one_sentence(caught.value, *words)
    path.rename(folder / "dit.pt")
    with pytest.raises(ModelError, match=r"dit\.pt is a pickle"):
        open_model(folder)


def test_a_part_in_the_wrong_slot(tmp_path):
    folder = copy_tiny(tmp_path / "tiny")
    for path in (folder / "vae", folder / "audio_vae"):
        (path / "diffusion_pytorch_model.safetensors").unlink()
    shutil.copy(folder / "text_encoder/model.safetensors", folder / "vae/model.safetensors")
    with pytest.raises(ModelError) as caught:
        open_model(folder)
    one_sentence(caught.value, "vae/model.safetensors is a text encoder, not a video VAE")
    write(folder / "vae/model.safetensors", {"a": ("F32", [1], bytes(4))})
    with pytest.raises(ModelError, match="is no video VAE of this model"):
        open_model(folder)


def test_two_candidates_are_asked_about(tmp_path):
    folder = loose_parts(tmp_path / "models")
    source = folder / "minimax_h3_fl2va_bf16"
    for suffix in (".safetensors", ".json"):
        shutil.copy(source.with_suffix(suffix), folder / f"minimax_h3_fl2va_mine{suffix}")
    with pytest.raises(ModelError) as caught:
        open_model(folder)
    one_sentence(caught.value, "are both a transformer", "minimax_h3_fl2va_mine.safetensors")
    assert (
        open_model(folder / "minimax_h3_fl2va_mine.safetensors").transformer.files[0].name.endswith("mine.safetensors")
    )


def test_the_partition_of_a_loose_transformer_is_its_name(tmp_path):
    folder = loose_parts(tmp_path / "models")
    for suffix in (".safetensors", ".json"):
        (folder / f"minimax_h3_fl2va_bf16{suffix}").rename(folder / f"minimax_h3_ref2va_bf16{suffix}")
    with pytest.raises(ModelError) as caught:
        open_model(folder)
    one_sentence(caught.value, "is the ref2va transformer by its name")
    assert open_model(folder, partition="ref2va").manifest.partition == "ref2va"


def test_the_partition_of_an_original_tree_is_in_its_index(tmp_path):
    root = original_tree(tmp_path) / "FL2VA"
    with pytest.raises(ModelError, match=r"is the fl2va model by its model_index\.json, not ref2va"):
        open_model(root, partition="ref2va")


@pytest.mark.parametrize(("grid", "rank"), ((1025, 8), (1001, 64)))
def test_a_pruned_transformer(tmp_path, grid, rank):
    """A table over time in place of the time network; the full model's config may lie beside it."""
    folder = loose_parts(tmp_path / "models")
    path = folder / "minimax_h3_fl2va_bf16.safetensors"
    tensors = {name: each for name, each in stored(path).items() if ".time_embedder." not in name}
    for name, (_, shape, _) in tensors.items():
        if name.endswith("adaln_proj.linear.weight"):
            tensors[name] = "F16", [shape[0], rank], bytes(2 * shape[0] * rank)
    tensors["model.diffusion_model.adaln_t_table"] = "F32", [grid, rank], bytes(4 * grid * rank)
    write(path, tensors, {"qkv_layout": "stacked"})
    part = open_model(folder).transformer
    assert part.config["time_embed_dim"] == rank and part.config["adaln_grid"] == grid
    assert part.weights["adaln_t_table"].shape == (grid, rank)
    assert "adaln_t_table" in plan.refiner_fixed(open_model(folder))
    assert not [each for each in check(folder) if each.level != "note"]


def test_loras_are_named(tmp_path):
    folder = loose_parts(tmp_path / "models")
    lora = write(folder / "lora.safetensors", {"blocks.0.attn.qkv_proj.lora_A.weight": ("F32", [1], bytes(4))})
    with pytest.raises(ModelError, match="is a LoRA"):
        open_model(lora)


def test_places_that_hold_no_model(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "weights.ckpt").write_bytes(b"\x80\x02.")
    (tmp_path / "empty").mkdir()
    for path, words in (
        (tmp_path / "nowhere", "does not exist"),
        (tmp_path / ("x" * 300), "cannot be looked for"),
        (tmp_path / "empty", "holds no part of MiniMax-H3"),
        (tmp_path / "notes.txt", "is no weight file"),
        (tmp_path / "weights.ckpt", "is a pickle"),
        (tmp_path, "is a pickle"),
        (TINY_ORIGINAL, "FL2VA has no text encoder; put the folder text_encoder into it."),
    ):
        with pytest.raises(ModelError) as caught:
            open_model(path)
        one_sentence(caught.value, words)
    for wrong in ({"partition": "t2v"}, {"qkv_layout": "rows"}):
        with pytest.raises(ModelError) as caught:
            open_model(TINY, **wrong)
        one_sentence(caught.value)


def test_a_folder_of_thousands_of_files_is_not_searched(tmp_path):
    for i in range(1100):
        (tmp_path / f"{i}.txt").touch()
    with pytest.raises(ModelError, match="more than 1000 files"):
        open_model(tmp_path)


def test_parts_that_do_not_fit_each_other(tmp_path):
    folder = copy_tiny(tmp_path / "tiny")
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps(index | {"_minimax_h3": {"tap": 52}}))
    with pytest.raises(ModelError) as caught:
        open_model(folder)
    one_sentence(caught.value, "has 51 layers", "after layer 52")


def test_a_transformer_config_that_is_nearly_empty(tmp_path):
    folder = copy_tiny(tmp_path / "tiny")
    (folder / "transformer" / "config.json").write_text('{"rope_freq_dim": 16}')
    with pytest.raises(ModelError) as caught:
        open_model(folder)
    one_sentence(caught.value, "rotary channels")


def test_a_manifest():
    given = {
        "tap": 3,
        "guidance_distilled": False,
        "trained_frames": [39, 22],
        "trained_canvases": [[128, 96]],
        "tasks": ["t2va"],
    }
    got = read_manifest({"_minimax_h3": given}, "fl2va", "model_index.json")
    assert got == Manifest(3, False, (22, 39), ((128, 96),), "fl2va", ("t2va",))
    assert read_manifest({}, "fl2va", "") == Manifest()
    assert read_manifest({"_minimax_h3": {"tap": None}}, "ref2va", "").tasks == ("ref2va",)


@pytest.mark.parametrize(
    "block",
    (
        {"tap": 0}, {"tap": "50"}, {"tap": True}, {"guidance_distilled": 1}, {"trained_frames": []},
        {"trained_frames": 124}, {"trained_canvases": [[1]]}, {"trained_canvases": [128, 96]}, {"partition": "x"},
        {"tasks": "t2va"}, [1],
    ),
)  # fmt: skip
def test_a_wrong_manifest(block):
    with pytest.raises(ModelError) as caught:
        read_manifest({"_minimax_h3": block}, "fl2va", "m/model_index.json")
    one_sentence(caught.value, "m/model_index.json", "_minimax_h3")


def test_a_wrong_shift(tmp_path):
    folder = copy_tiny(tmp_path / "tiny")
    (folder / "scheduler/scheduler_config.json").write_text('{"shift": 6}')
    assert open_model(folder).shifts == (6.0, 3.0)
    for wrong in ('"6"', "0", "-1", "1e9", "NaN", "true"):
        (folder / "scheduler/scheduler_config.json").write_text(f'{{"shift": {wrong}}}')
        with pytest.raises(ModelError) as caught:
            open_model(folder)
        one_sentence(caught.value, "scheduler/scheduler_config.json: shift")


def test_a_damaged_part_is_named(tmp_path):
    folder = copy_tiny(tmp_path / "tiny")
    path = folder / "audio_vae/diffusion_pytorch_model.safetensors"
    tensors = stored(path)
    for name in ("decoder.conv_post.weight_v", "mean_proj.bias", "encoder.block.0.weight_g"):
        write(path, {other: each for other, each in tensors.items() if other != name})
        with pytest.raises(ModelError) as caught:
            open_model(folder)
        one_sentence(caught.value, f"has no {name}", "audio_vae/")
    write(path, tensors | {"mean_proj.bias": ("F32", [31], bytes(124))})
    with pytest.raises(ModelError) as caught:
        open_model(folder)
    one_sentence(caught.value, "mean_proj.bias has shape [31], its config needs [32]")


def test_a_missing_middle_block_is_named(tmp_path):
    folder = copy_tiny(tmp_path / "tiny")
    path = folder / "transformer/diffusion_pytorch_model.safetensors"
    write(path, {name: each for name, each in stored(path).items() if not name.startswith("transformer_blocks.1.")})
    with pytest.raises(ModelError, match=r"lacks transformer_blocks\.1; the file is incomplete"):
        open_model(folder)


def test_an_audio_vae_with_weight_norm_folded(tmp_path):
    folder = copy_tiny(tmp_path / "tiny")
    path = folder / "audio_vae/diffusion_pytorch_model.safetensors"
    made = {
        name.replace("weight_v", "weight"): each for name, each in stored(path).items() if not name.endswith("weight_g")
    }
    write(path, made)
    weights = open_model(folder).audio_vae.weights
    assert "decoder.conv_pre.weight" in weights and "decoder.conv_pre.weight_v" not in weights
