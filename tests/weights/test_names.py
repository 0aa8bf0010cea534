"""Native names and row orders become exactly the diffusers tensors."""

import numpy as np
import pytest

from h3core.weights.model_files import ModelError, RowOrder
from h3core.weights.names import canonical, halves_swapped, prefix_of, qkv_rows, strip_prefix
from h3core.weights.safetensors import read_files, read_header
from tests.golden_files import TINY, TINY_ORIGINAL, compare
from tests.weights.files import native_transformer, stored, tiny, values, write

DIT = TINY / "transformer/diffusion_pytorch_model.safetensors"


def test_row_orders_by_hand():
    assert RowOrder(2, 2, 6).index(4).tolist() == [2, 3, 8, 9]
    assert qkv_rows(2, 3, 1, "interleaved").index(6).tolist() == [3, 4, 5, 12, 13, 14]
    assert qkv_rows(2, 3, 1, "stacked").index(6).tolist() == [6, 7, 8, 9, 10, 11]
    assert halves_swapped(6).index(6).tolist() == [3, 4, 5, 0, 1, 2]


def test_the_original_transformer_is_the_diffusers_one():
    tensors, _, _ = read_files([TINY_ORIGINAL / "FL2VA/transformer/model.safetensors"])
    weights, want = (
        canonical("transformer", strip_prefix("transformer", tensors), None, "interleaved"),
        tiny("transformer"),
    )
    assert weights.keys() == want.keys()
    for name, each in want.items():
        compare(f"original transformer {name}", values(weights[name]), each, 0)


def test_the_original_video_vae_is_the_diffusers_one():
    tensors, _, _ = read_files([TINY_ORIGINAL / "FL2VA/video_vae/source/model_part.safetensors"])
    weights, want = canonical("video_vae", strip_prefix("video_vae", tensors), 16), tiny("vae")
    assert len(weights) == 35 and "decoder.mask_token" not in weights
    for name, weight in weights.items():
        compare(f"original video VAE {name}", values(weight), want[name], 0)


@pytest.mark.parametrize("layout", ("interleaved", "stacked"))
@pytest.mark.parametrize("prefix", ("", "model.diffusion_model.", "diffusion_model."))
def test_both_row_orders_under_every_prefix(tmp_path, layout, prefix):
    path = write(tmp_path / "dit.safetensors", native_transformer(stored(DIT), 3, layout, prefix))
    tensors = read_header(path).tensors
    assert prefix_of("transformer", tensors) == prefix
    weights, want = canonical("transformer", strip_prefix("transformer", tensors), None, layout), tiny("transformer")
    assert weights.keys() == want.keys()
    for name, each in want.items():
        assert np.array_equal(values(weights[name]), each), name


def test_q_k_v_share_one_stored_tensor(tmp_path):
    path = write(tmp_path / "dit.safetensors", native_transformer(stored(DIT), 3, "stacked"))
    weights = canonical("transformer", read_header(path).tensors, None, "stacked")
    q, k, v = (weights[f"transformer_blocks.0.attn.to_{each}.weight"] for each in "qkv")
    assert (q.offset, q.size_bytes) == (k.offset, k.size_bytes) == (v.offset, v.size_bytes)
    assert q.shape == (96, 64) and q.size_bytes == 3 * 96 * 64 * 2


def test_an_unknown_row_order_is_asked_not_guessed(tmp_path):
    path = write(tmp_path / "dit.safetensors", native_transformer(stored(DIT), 3, "stacked"))
    with pytest.raises(ModelError, match=r'does not say in which order.*"stacked".*dit\.json beside it\.'):
        canonical("transformer", read_header(path).tensors)


def test_formats_this_build_cannot_run_are_named(tmp_path):
    for dtype in ("U8", "BOOL"):
        path = write(tmp_path / "q.safetensors", {"blocks.0.attn.out_proj.weight": (dtype, [2, 2], bytes(4))})
        with pytest.raises(
            ModelError, match=f"q.safetensors stores 'blocks.0.attn.out_proj.weight' as {dtype}.*use a bf16"
        ):
            canonical("transformer", read_header(path).tensors)


def test_names_that_meet_are_refused(tmp_path):
    tensor = ("F32", [4], bytes(16))
    path = write(tmp_path / "a.safetensors", {"video_patch_proj.bias": tensor, "proj_in.bias": tensor})
    with pytest.raises(ModelError, match="under two names"):
        canonical("transformer", read_header(path).tensors)
    mark = ("F32", [1, 1], bytes(4))
    both = {"dec_in_proj.weight": mark, "audio_vae.dec_in_proj.weight": mark}
    assert list(strip_prefix("audio_vae", read_header(write(tmp_path / "b.safetensors", both)).tensors)) == list(both)


def test_odd_fused_tensors_are_refused(tmp_path):
    for name, shape in (
        ("blocks.0.attn.qkv_proj.weight", [7, 1]),
        ("blocks.0.mlp.fc1.weight", [3, 1]),
        ("blocks.0.mlp.fc1.weight", []),
    ):
        size = 4 * int(np.prod(shape))
        path = write(tmp_path / "a.safetensors", {name: ("F32", shape, bytes(size))})
        with pytest.raises(ModelError, match=r"a\.safetensors: "):
            canonical("transformer", read_header(path).tensors, 2, "stacked")


@pytest.mark.parametrize(
    "prefix", ("model.language_model.", "model.", "", "text_encoders.qwen3vl_32b.transformer.model.")
)
def test_text_encoder_prefixes(tmp_path, prefix):
    tower = "text_encoders.qwen3vl_32b.transformer.visual." if prefix.startswith("text") else "visual."
    made = {}
    for name, each in stored(TINY / "text_encoder/model.safetensors").items():
        name = name.replace("model.language_model.", prefix)
        made[tower + name.removeprefix("model.visual.") if name.startswith("model.visual.") else name] = each
    tensors = read_header(write(tmp_path / "te.safetensors", made)).tensors
    weights = canonical("text_encoder", strip_prefix("text_encoder", tensors))
    assert "layers.50.mlp.up_proj.weight" in weights and "visual.pos_embed.weight" in weights
    assert "norm.weight" not in weights and not any("lm_head" in name for name in weights)
    assert len(weights) == 619


@pytest.mark.parametrize("spelling", ("legacy", "parametrizations"))
def test_audio_vae_weight_norm_spellings(tmp_path, spelling):
    made = {}
    for name, each in stored(TINY / "audio_vae/diffusion_pytorch_model.safetensors").items():
        if spelling == "parametrizations":
            name = name.replace(".weight_g", ".parametrizations.weight.original0")
            name = name.replace(".weight_v", ".parametrizations.weight.original1")
        made[name] = each
    weights = canonical("audio_vae", read_header(write(tmp_path / "a.safetensors", made)).tensors)
    assert weights.keys() == tiny("audio_vae").keys()
