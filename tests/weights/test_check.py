"""`check` reports everything at once and never raises."""

import hashlib
import json
import shutil

import pytest

from h3core.weights.check import check
from tests.golden_files import TINY, TINY_ORIGINAL
from tests.weights.files import copy_tiny, original_tree, stored, write
from tests.weights.test_identify import loose_parts
from tests.weights.test_safetensors import BROKEN, write_raw


def sentences(findings, level):
    return [each.sentence for each in findings if each.level == level]


@pytest.mark.parametrize("layout", ("diffusers", "original", "loose"))
def test_a_good_model_has_only_notes(tmp_path, layout):
    path = TINY
    if layout == "original":
        path = original_tree(tmp_path)
    if layout == "loose":
        path = loose_parts(tmp_path)
    findings = check(path)
    assert {each.level for each in findings} == {"note"}, findings
    assert [each.part for each in findings] == ["transformer", "text encoder", "video VAE", "audio VAE", "tokenizer"]
    assert "3 blocks" in findings[0].sentence and "bf16, f32, 0.72 MB in 1 file" in findings[0].sentence


def test_every_trouble_is_reported_at_once(tmp_path):
    folder = copy_tiny(tmp_path / "tiny")
    shutil.rmtree(folder / "text_encoder")
    path = folder / "transformer/diffusion_pytorch_model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    (folder / "vae/config.json").write_text("{")
    audio = folder / "audio_vae/diffusion_pytorch_model.safetensors"
    write(audio, stored(audio) | {"left.over": ("F32", [1], bytes(4)), "left.over2": ("F32", [1], bytes(4))})
    audio.write_bytes(audio.read_bytes() + bytes(3))
    tokenizer = folder / "tokenizer/tokenizer_config.json"
    config = json.loads(tokenizer.read_text())
    config["additional_special_tokens"] = config["extra_special_tokens"] = ["<d>"]
    tokenizer.write_text(json.dumps(config))
    findings = check(folder)
    errors = sentences(findings, "error")
    assert len(errors) == 4
    assert "ends 10 bytes early" in errors[0] and "has no text encoder" in errors[1] and "not valid JSON" in errors[2]
    assert "lacks </d>" in errors[3]
    warnings = sentences(findings, "warning")
    assert (
        "left.over and 1 more, which nothing reads" in warnings[0] and "3 bytes that belong to no tensor" in warnings[1]
    )


def test_a_digest_beside_a_file(tmp_path):
    folder, seen = copy_tiny(tmp_path / "tiny"), []
    path = folder / "vae/diffusion_pytorch_model.safetensors"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    beside = path.with_name(f"{path.name}.sha256")
    beside.write_text(f"{digest}  {path.name}\n")
    findings = check(folder, on_progress=lambda name, done, total: seen.append((name, done == total)))
    assert not sentences(findings, "error") and any("has the SHA-256" in each for each in sentences(findings, "note"))
    assert seen == [("vae/diffusion_pytorch_model.safetensors", True)]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert "download this file again" in sentences(check(folder), "error")[0]
    beside.write_text("none")
    assert "holds no SHA-256" in sentences(check(folder), "warning")[0]


def test_one_loose_file_is_checked_alone(tmp_path):
    folder = loose_parts(tmp_path / "models")
    path = folder / "minimax_h3_audio_vae_fp32.safetensors"
    for other in folder.glob("minimax_h3_[fv]*"):
        other.unlink()
    findings = check(path)
    assert [each.level for each in findings] == ["note"] and findings[0].part == "audio VAE"


def test_places_without_a_model(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere", TINY / "model_index.json"):
        findings = check(path)
        assert [each.level for each in findings] == ["error"] and findings[0].sentence.endswith(".")
    findings = check(TINY_ORIGINAL)
    assert len(sentences(findings, "error")) == 4  # two parts, half a video VAE without its config, the tokenizer


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_never_raise(tmp_path, name):
    folder = copy_tiny(tmp_path / "tiny")
    content, _ = BROKEN[name]
    path = folder / "vae/diffusion_pytorch_model.safetensors"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        write_raw(path, content, bytes(16))
    errors = sentences(check(folder), "error")
    assert len(errors) == 1 and errors[0].startswith("vae/diffusion_pytorch_model.safetensors")
