"""GGUF headers: good ones read as the gguf package reads them; broken ones give one sentence and cost nothing."""

import json
import shutil
import struct
import tracemalloc

import numpy as np
import pytest

from h3core.engine.residency import Residency, memory_bytes
from h3core.kernels.quant_matrix import QuantMatrix
from h3core.kernels.table import Kernels
from h3core.weights.check import check
from h3core.weights.formats.table import FORMATS
from h3core.weights.gguf import read_header, text_config
from h3core.weights.identify import open_model
from h3core.weights.model_files import ModelError, Weight
from tests.golden_files import TINY
from tests.weights.files import copy_tiny, native_transformer, stored, tiny, values
from tests.weights.gguf_files import (
    NUMBERS,
    float_gguf,
    header,
    info,
    key,
    random_blocks,
    text,
    write_gguf,
)
from tests.weights.test_identify import loose_parts, same_weights
from tests.weights.test_safetensors import one_sentence


def test_a_good_file_is_read_as_the_gguf_package_reads_it(tmp_path):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "good.gguf"
    writer = gguf.GGUFWriter(path, "minimax_h3")
    writer.add_string("general.name", "tiny")
    writer.add_uint32("a.number", 7)
    writer.add_float32("a.float", 0.5)
    writer.add_bool("a.flag", True)
    writer.add_array("a.list", [1, 2, 3])
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc"] * 500)
    random = np.random.default_rng(0)
    made = {"f32": random.standard_normal((3, 5), np.float32), "f16": np.ones((2, 3, 4), np.float16)}
    for name, each in made.items():
        writer.add_tensor(name, each)
    for name in ("q8_0", "q5_1", "q4_0", "bf16"):
        kind = gguf.GGMLQuantizationType[name.upper()]
        raw = gguf.quants.quantize(random.standard_normal((4, 64), np.float32), kind)
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    got, want = read_header(path), gguf.GGUFReader(path)
    assert got.unused_bytes == 0 and got.size_bytes == path.stat().st_size
    assert [*got.tensors] == [each.name for each in want.tensors]
    for each in want.tensors:
        ours = got.tensors[each.name]
        assert (ours.dtype, ours.offset, ours.size_bytes) == (each.tensor_type.name, each.data_offset, each.n_bytes)
        assert list(ours.shape) == each.shape.tolist()[::-1]
    assert got.metadata["general.architecture"] == "minimax_h3" and got.metadata["a.number"] == "7"
    assert json.loads(got.metadata["a.list"]) == [1, 2, 3] and "tokenizer.ggml.tokens" not in got.metadata


@pytest.mark.parametrize("alignment", (1, 8, 32, 4096))
def test_any_alignment(tmp_path, alignment):
    raw = {name: random_blocks(name, (3, 256), 1.0) for name in ("q4_k", "q6_k", "q5_0")}
    path = write_gguf(tmp_path / "a.gguf", {name: (name, (3, 256), each) for name, each in raw.items()}, (), alignment)
    found = read_header(path)
    assert found.unused_bytes == 0
    for name, each in raw.items():
        tensor = found.tensors[name]
        assert path.read_bytes()[tensor.offset : tensor.offset + tensor.size_bytes] == each.tobytes()


def test_flattened_tensors_get_their_shape_back(tmp_path):
    tensors = {name: ("q4_k", (144, 256), random_blocks("q4_k", (144, 256), 1.0)) for name in ("x", "y")}
    keys = [key("comfy.gguf.orig_shape.x", [64, 576], "i32"), key("comfy.gguf.orig_shape.y", [32, 2, 576], "i64")]
    found = read_header(write_gguf(tmp_path / "flat.gguf", tensors, keys)).tensors
    assert found["x"].shape == (64, 576) and found["y"].shape == (32, 2, 576)
    assert found["x"].size_bytes == 144 * 144


def damaged(tensors: bytes = b"", count: int = 0, keys: bytes = b"", key_count: int = 0, data: int = 256) -> bytes:
    start = header(tensors, count, keys, key_count)
    return start + bytes(-len(start) % 32) + bytes(data)


ONE = info("x", [4, 4], 0, 0)
F32, Q4_K = NUMBERS["f32"], NUMBERS["q4_k"]
BROKEN = {
    "empty": (b"", "is empty"),
    "three bytes": (b"GGU", "only 3 bytes"),
    "only the magic": (b"GGUF" + bytes(8), "only 12 bytes"),
    "safetensors": (b"\x10\0\0\0\0\0\0\0" + b"{}" + b" " * 40, "not a GGUF file"),
    "version 1": (header(ONE, 1, version=1) + bytes(200), "version 1"),
    "version 4": (header(ONE, 1, version=4) + bytes(200), "version 4"),
    "version 0": (header(ONE, 1, version=0) + bytes(200), "version 0"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 1, 0) + bytes(200), "big-endian"),
    "2^63 tensors": (damaged(ONE, 1 << 63), "impossible number"),
    "a million tensors": (damaged(ONE, 1_000_000), "impossible number"),
    "2^64 - 1 keys": (damaged(ONE, 1, b"", (1 << 64) - 1), "impossible number"),
    "a key too many": (header(b"", 0, key("a", 1) + key("long", 2)[:-4], 2), "inside its header"),
    "a name of 2^63 bytes": (damaged(struct.pack("<Q", 1 << 63) + bytes(60), 1), "inside its header"),
    "a name of 5000 bytes": (damaged(text("x" * 5000) + bytes(60), 1), "damaged tensor name"),
    "a key of 2^63 bytes": (damaged(b"", 0, struct.pack("<Q", 1 << 63) + bytes(60), 1), "inside its header"),
    "a value of 2^63 bytes": (
        damaged(b"", 0, text("a") + struct.pack("<IQ", 8, 1 << 63) + bytes(60), 1), "inside its header"
    ),
    "a list of 2^63 numbers": (
        damaged(b"", 0, text("a") + struct.pack("<IIQ", 9, 4, 1 << 63) + bytes(60), 1), "inside its header"
    ),
    "a list of 2^61 numbers, 2^64 bytes": (
        damaged(b"", 0, text("a") + struct.pack("<IIQ", 9, 10, 1 << 61) + bytes(60), 1), "inside its header"
    ),
    "a list of 2^60 texts": (
        damaged(b"", 0, text("a") + struct.pack("<IIQ", 9, 8, 1 << 60) + bytes(60), 1), "damaged list"
    ),
    "a list of lists": (damaged(b"", 0, text("a") + struct.pack("<IIQ", 9, 9, 1) + bytes(60), 1), "damaged list"),
    "a value of no type": (damaged(b"", 0, text("a") + struct.pack("<I", 13) + bytes(60), 1), "unknown type 13"),
    "a key twice": (damaged(b"", 0, key("a", 1) + key("a", 2), 2), "'a' twice"),
    "alignment 0": (damaged(ONE, 1, key("general.alignment", 0), 1), "alignment 0"),
    "alignment 24": (damaged(ONE, 1, key("general.alignment", 24), 1), "alignment 24"),
    "alignment 2^31": (damaged(ONE, 1, key("general.alignment", 1 << 31), 1), "alignment 2147483648"),
    "alignment -32": (damaged(ONE, 1, key("general.alignment", -32, "i32"), 1), "alignment -32"),
    "alignment word": (damaged(ONE, 1, key("general.alignment", "wide"), 1), "alignment wide"),
    "a hundred dimensions": (damaged(info("x", [1] * 100, F32, 0), 1), "100 dimensions"),
    "2^31 dimensions": (damaged(text("x") + struct.pack("<I", 1 << 31) + bytes(60), 1), "2147483648 dimensions"),
    "a side of 2^63": (damaged(info("x", [1 << 63], F32, 0), 1), "impossible shape"),
    "sides whose product wraps to 16": (damaged(info("x", [1 << 32, 1 << 32, 16], F32, 0), 1), "impossible shape"),
    "2^62 bytes": (damaged(info("x", [1 << 60], F32, 0), 1), "far outside"),
    "an offset of 2^63": (damaged(info("x", [4], F32, 1 << 63), 1), "impossible shape or place"),
    "an offset past the end": (damaged(info("x", [4], F32, 1 << 20), 1), "bytes early"),
    "an unknown type": (damaged(info("x", [32], 99, 0), 1), "unknown type 99"),
    "IQ1_S": (damaged(info("x", [256], 19, 0), 1), "IQ1_S"),
    "the retired Q4_2": (damaged(info("x", [256], 4, 0), 1), "unknown type 4"),
    "half a block": (damaged(info("x", [2, 128], Q4_K, 0), 1), "packs 256 together"),
    "a block without dimensions": (damaged(info("x", [], Q4_K, 0), 1), "packs 256 together"),
    "a name twice": (damaged(ONE + info("x", [4], 0, 64), 2), "'x' twice"),
    "tensors that overlap": (damaged(ONE + info("y", [4], 0, 32), 2), "overlaps"),
    "64 values in a shape of 63": (
        damaged(info("x", [4, 4], F32, 0), 1, key("comfy.gguf.orig_shape.x", [3, 21], "i32"), 1), "its key says"
    ),
    "a shape of words": (damaged(ONE, 1, key("comfy.gguf.orig_shape.x", "wide"), 1), "its key says"),
    "a negative shape": (
        damaged(ONE, 1, key("comfy.gguf.orig_shape.x", [-4, -4], "i32"), 1), "its key says"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_gives_one_sentence(tmp_path, name):
    content, words = BROKEN[name]
    path = tmp_path / "model" / "broken.gguf"
    path.parent.mkdir()
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(ModelError) as caught:
        read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    one_sentence(caught.value, "model/broken.gguf", words)
    assert peak < 1 << 20, f"took {peak} bytes"


def test_a_file_cut_at_any_byte(tmp_path):
    tensors = {"a": ("q4_k", (2, 256), random_blocks("q4_k", (2, 256), 1.0)), "b": ("f32", (3,), bytes(12))}
    keys = [key("general.name", "x"), key("n", [1, 2], "i64"), key("comfy.gguf.orig_shape.a", [4, 128], "i32")]
    whole = write_gguf(tmp_path / "whole.gguf", tensors, keys).read_bytes()
    for length in range(len(whole)):
        path = tmp_path / "cut.gguf"
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError) as caught:
            read_header(path)
        one_sentence(caught.value, "cut.gguf")


def test_any_one_byte_changed_gives_a_header_or_a_sentence(tmp_path):
    tensors = {"a": ("q8_0", (2, 32), bytes(68)), "b": ("f32", (3,), bytes(12))}
    whole = write_gguf(tmp_path / "whole.gguf", tensors, [key("general.name", "x"), key("n", [1, 2])]).read_bytes()
    path = tmp_path / "changed.gguf"
    for place in range(len(whole) - 80):
        for value in (0, 1, 0x7F, 0xFF):
            path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            try:
                for each in read_header(path).tensors.values():
                    assert each.offset + each.size_bytes <= len(whole)
            except ModelError as error:
                one_sentence(error, "changed.gguf")


def test_what_a_text_encoder_says_about_itself():
    keys = {"qwen3vl.attention.layer_norm_rms_epsilon": "9.999999974752427e-07", "qwen3vl.rope.freq_base": "5000000.0"}
    keys |= {"qwen3vl.rope.dimension_sections": "[24, 20, 20, 0]", "general.architecture": "qwen3vl"}
    assert text_config(keys) == {"rms_norm_eps": 1e-6, "rope_theta": 5e6, "mrope_section": [24, 20, 20]}


# A model of GGUF files


def gguf_transformer(path, layout="stacked", prefix="", keys=()):
    """The tiny transformer, in the native names."""
    tensors = native_transformer(stored(next((TINY / "transformer").glob("*.safetensors"))), 3, layout, prefix)
    write_gguf(path, float_gguf(tensors), keys)
    shutil.copy(TINY / "transformer/config.json", path.with_suffix(".json"))
    return path


def text_tensors():
    source = stored(next((TINY / "text_encoder").glob("*.safetensors")))
    return {name.replace("model.language_model.", "model.").replace("model.visual.", "visual."): each
            for name, each in source.items()}  # fmt: skip


LLAMA = {
    "embed_tokens.": "token_embd.", "input_layernorm.": "attn_norm.", "post_attention_layernorm.": "ffn_norm.",
    "self_attn.o_proj.": "attn_output.", "self_attn.q_norm.": "attn_q_norm.", "self_attn.k_norm.": "attn_k_norm.",
    "self_attn.q_proj.": "attn_q.", "self_attn.k_proj.": "attn_k.", "self_attn.v_proj.": "attn_v.",
    "mlp.gate_proj.": "ffn_gate.", "mlp.up_proj.": "ffn_up.", "mlp.down_proj.": "ffn_down.",
    "model.layers.": "blk.", "model.norm.": "output_norm.", "lm_head.": "output.", "model.": "",
}  # fmt: skip


def llama_name(name: str) -> str:
    for theirs, ours in LLAMA.items():
        name = name.replace(theirs, ours)
    return name


def gguf_folder(folder):
    """The tiny checkpoint: transformer and encoder as GGUF, the VAEs as they lie in loose folders."""
    loose_parts(folder)
    for name in ("minimax_h3_fl2va_bf16", "qwen3vl_32b_minimax_h3_bf16"):
        (folder / f"{name}.safetensors").unlink()
        (folder / f"{name}.json").unlink()
    gguf_transformer(folder / "minimax_h3_fl2va-Q4_K.gguf")
    return folder


def encoder(folder, tensors, keys=()):
    path = write_gguf(folder / "qwen3vl_32b_minimax_h3-Q4_K_M.gguf", float_gguf(tensors), keys)
    shutil.copy(TINY / "text_encoder/config.json", path.with_suffix(".json"))
    return path


@pytest.mark.parametrize("prefix", ("", "model.diffusion_model."))
def test_a_folder_of_gguf_files(tmp_path, prefix):
    folder = gguf_folder(tmp_path / "models")
    gguf_transformer(folder / "minimax_h3_fl2va-Q4_K.gguf", prefix=prefix, keys=[key("general.architecture", "wan")])
    path = encoder(folder, {n: t for n, t in text_tensors().items() if "visual.patch_embed.proj.weight" not in n} | {
        name: (dtype, [shape[0] * shape[1], *shape[2:]], data)  # four dimensions are all there are
        for name, (dtype, shape, data) in text_tensors().items() if name == "visual.patch_embed.proj.weight"
    })  # fmt: skip
    model = open_model(folder)
    want = tiny("transformer")
    assert model.transformer.weights.keys() == want.keys()
    for name, each in want.items():
        assert np.array_equal(values(model.transformer.weights[name]), each), name
    assert model.text_encoder.config["vision_config"]["depth"] == 3
    assert open_model(path).path == folder
    notes = check(folder)
    assert not [each for each in notes if each.level != "note"], notes
    block = Residency(Kernels("c", 1)).load(model.text_encoder.group("visual.patch_embed."))
    assert block["proj.weight"].shape == (24, 3, 2, 16, 16)


def test_all_weights_of_gguf_files(tmp_path):
    folder = gguf_folder(tmp_path / "models")
    tensors = text_tensors()
    dtype, shape, data = tensors["visual.patch_embed.proj.weight"]
    tensors["visual.patch_embed.proj.weight"] = (dtype, [shape[0], shape[1] * shape[2], *shape[3:]], data)
    encoder(folder, tensors)
    same_weights(open_model(folder), "GGUF files")


def test_a_text_encoder_in_llama_names(tmp_path):
    folder = gguf_folder(tmp_path / "models")
    tensors = {llama_name(name): each for name, each in text_tensors().items() if not name.startswith("visual.")}
    assert {"token_embd.weight", "blk.50.attn_k_norm.weight", "output_norm.weight", "output.weight"} <= tensors.keys()
    encoder(folder, tensors, [key("general.architecture", "qwen3vl")])
    part, want = open_model(folder).text_encoder, tiny("text_encoder")
    assert part.config["vision_config"] == {} and part.config["num_hidden_layers"] == 51
    assert len(part.weights) == 11 * 51 + 1
    for name, each in part.weights.items():
        assert np.array_equal(values(each), want[f"model.language_model.{name}"]), name


def test_the_files_own_keys_are_its_config(tmp_path):
    folder = gguf_folder(tmp_path / "models")
    keys = [key("qwen3vl.rope.freq_base", 12345.0, "f32"), key("qwen3vl.rope.dimension_sections", [4, 2, 2, 0], "i32")]
    tensors = {llama_name(name): each for name, each in text_tensors().items() if not name.startswith("visual.")}
    encoder(folder, tensors, keys).with_suffix(".json").unlink()
    config = open_model(folder).text_encoder.config
    assert config["rope_theta"] == 12345.0 and config["mrope_section"] == [4, 2, 2] and config["head_dim"] == 16


def test_a_gguf_file_takes_the_place_of_a_trees_part(tmp_path):
    folder = copy_tiny(tmp_path / "tiny")
    beside = gguf_transformer(folder / "quantized.gguf")
    model = open_model(beside)
    assert model.path == folder and model.transformer.files == (beside,) and model.transformer.config["num_layers"] == 3
    assert open_model(folder).transformer.files != (beside,)
    (folder / "lora.gguf").write_bytes(
        write_gguf(tmp_path / "x.gguf", {"a.lora_A.x": ("f32", (1,), bytes(4))}).read_bytes()
    )
    with pytest.raises(ModelError, match="is a LoRA"):
        open_model(folder / "lora.gguf")
    for path in (folder / "transformer").glob("*.safetensors"):
        path.unlink()
    beside.with_suffix(".json").unlink()
    inside = beside.rename(folder / "transformer" / "model-Q4_K.gguf")
    assert open_model(folder).transformer.files == (inside,)


def test_gguf_files_beside_the_folders_of_a_tree(tmp_path):
    """What a person downloads: two GGUF files, and the small parts from the diffusers tree, with no index."""
    folder = copy_tiny(tmp_path / "models")
    for name in ("transformer", "text_encoder", "scheduler", "audio_scheduler"):
        shutil.rmtree(folder / name)
    for path in folder.glob("*.json"):
        path.unlink()
    gguf_transformer(folder / "minimax_h3_fl2va-Q8_0.gguf")
    encoder(folder, {llama_name(name): each for name, each in text_tensors().items() if not name.startswith("visual.")})
    model = open_model(folder)
    assert model.video_vae.files[0].parent == folder / "vae" and model.tokenizer == folder / "tokenizer"
    assert model.processor == folder / "processor" and model.shifts == (12.0, 3.0)
    assert not [each for each in check(folder) if each.level != "note"]


def test_splits_belong_together(tmp_path):
    folder = gguf_folder(tmp_path / "models")
    tensors = float_gguf({llama_name(n): t for n, t in text_tensors().items() if not n.startswith("visual.")})
    items = list(tensors.items())
    half = len(items) // 2
    for number, each in enumerate((items[:half], items[half:]), 1):
        write_gguf(folder / f"te/qwen-{number:05d}-of-00002.gguf", dict(each))
    shutil.copy(TINY / "text_encoder/config.json", folder / "te/config.json")
    assert len(open_model(folder).text_encoder.files) == 2
    (folder / "te/qwen-00002-of-00002.gguf").unlink()
    with pytest.raises(ModelError) as caught:
        open_model(folder)
    one_sentence(caught.value, "te/qwen-00002-of-00002.gguf is missing")


# Weights that stay packed, and those that cannot


@pytest.mark.parametrize("name", ("q4_k", "q8_0", "nvfp4"))
def test_flattened_matrices_and_tables(tmp_path, name):
    raw, kernels = random_blocks(name, (63, 256), 1.0), Kernels("c", 1)
    want = FORMATS[name].decode(raw).reshape(56, 288)  # no multiple of 64 or 256
    path = tmp_path / "flat"
    path.write_bytes(bytes(3) + raw.tobytes())
    weight = Weight("x.weight", name, (56, 288), path, 3, raw.size)
    block = Residency(kernels).load({"x.weight": weight})
    assert isinstance(block["x.weight"], QuantMatrix)
    assert np.array_equal(block["x.weight"].dequantize(), want)
    packed = 288 % FORMATS[name].block == 0
    assert memory_bytes({"x.weight": weight}) == (raw.size if packed else want.nbytes)
    rows = np.array([55, 0, 7, 7])
    assert np.array_equal(Residency(kernels).lookup(weight, rows), want[rows])
