"""Headers: good ones in every alignment, broken ones in one sentence each and without a large allocation."""

import json
import os
import random
import tracemalloc

import pytest

from h3core.weights.model_files import ModelError
from h3core.weights.safetensors import read_header, read_json, read_part, read_values
from tests.golden_files import TINY
from tests.weights.files import as_float32, copy_tiny, stored, write, write_raw

F32_4 = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
GOOD = {"a": ("F32", [2, 3], bytes(range(24))), "b": ("BF16", [5], bytes(range(10)))}


def test_a_good_file(tmp_path):
    header = read_header(write(tmp_path / "good.safetensors", GOOD, {"format": "pt"}))
    assert header.metadata == {"format": "pt"} and header.unused_bytes == 0
    assert header.tensors["a"].shape == (2, 3) and header.tensors["a"].dtype == "F32"
    data = header.path.read_bytes()
    for name, (_, _, want) in GOOD.items():
        each = header.tensors[name]
        assert data[each.offset : each.offset + each.size_bytes] == want


@pytest.mark.parametrize("data_at", range(8))
def test_data_may_start_anywhere(tmp_path, data_at):
    header = read_header(write(tmp_path / "odd.safetensors", GOOD, data_at=data_at))
    assert header.tensors["a"].offset % 8 == data_at


def test_every_golden_header_opens():
    for path in TINY.rglob("*.safetensors"):
        assert set(read_header(path).tensors) == set(stored(path))


def test_values_of_a_small_tensor(tmp_path):
    path = write(
        tmp_path / "a.safetensors", {"m": ("F16", [2], b"\x00\x3c\x00\xc0"), "big": ("F32", [1 << 15], bytes(1 << 17))}
    )
    tensors = read_header(path).tensors
    assert read_values(tensors["m"]) == [1.0, -2.0]
    with pytest.raises(ModelError, match="no short list"):
        read_values(tensors["big"])


def header_of(**entry):
    return {"t": F32_4 | entry}


# name -> (what to write, words the sentence must have)
BROKEN = {
    "empty": (b"", "is empty"),
    "six bytes": (b"\x10\0\0\0\0\0", "only 6 bytes"),
    "length alone": ((100).to_bytes(8, "little"), "only 8 bytes"),
    "length 2^63": ((1 << 63).to_bytes(8, "little") + b"{}", "header length"),
    "length all ones": (b"\xff" * 64, "header length"),
    "length zero": (bytes(16), "header length"),
    "cut in the header": ((5000).to_bytes(8, "little") + b'{"t": {"dtype"', "inside its header"),
    "not JSON": (b"this is not", None),
    "JSON list": ([1, 2], "no table of tensors"),
    "JSON number": (b"17          ", "no table of tensors"),
    "invalid UTF-8": (b'{"\xff\xfe": 1}', "not JSON"),
    "deep nesting": (b'{"t":' + b"[" * 20_000 + b"]" * 20_000 + b"}", "damaged header"),
    "number of many digits": (b'{"t":{"dtype":"F32","shape":[' + b"9" * 6000 + b'],"data_offsets":[0,4]}}', "damaged"),
    "entry no table": ({"t": 3}, "no dtype"),
    "entry without span": ({"t": {"dtype": "F32", "shape": [4]}}, "no dtype, shape and data_offsets"),
    "unknown dtype": (header_of(dtype="Q99"), "unknown dtype 'Q99'"),
    "dtype a number": (header_of(dtype=7), "unknown dtype"),
    "shape negative": (header_of(shape=[-4]), "damaged shape"),
    "shape of text": (header_of(shape=["4"]), "damaged shape"),
    "shape of floats": (header_of(shape=[4.0]), "damaged shape"),
    "shape of truth": (header_of(shape=[True]), "damaged shape"),
    "shape no list": (header_of(shape=4), "damaged shape"),
    "shape null": (header_of(shape=None), "damaged shape"),
    "hundred dimensions": (header_of(shape=[1] * 100), "100 dimensions"),
    "twenty thousand dimensions": (header_of(shape=[1] * 20_000), "damaged shape"),
    "axes of 2^62": (header_of(shape=[1 << 62] * 8), "impossible shape"),
    "shape 2^62 alone": (header_of(shape=[1 << 62]), "stored in 16 bytes"),
    "too many bytes": (header_of(shape=[3]), "stored in 16 bytes"),
    "too few bytes": (header_of(shape=[5]), "stored in 16 bytes"),
    "span reversed": (header_of(data_offsets=[16, 0]), "stored in"),
    "span negative": (header_of(data_offsets=[-16, 0]), "damaged"),
    "span of three": (header_of(data_offsets=[0, 8, 16]), "damaged"),
    "span past the end": (header_of(data_offsets=[16, 32]), "ends 16 bytes early"),
    "span at 2^62": (header_of(data_offsets=[1 << 62, (1 << 62) + 16]), "lies far outside"),
    "half a byte": (header_of(dtype="F4", shape=[3], data_offsets=[0, 1]), "stored in 1 bytes"),
    "overlap": ({"t": F32_4, "u": F32_4 | {"data_offsets": [8, 24]}}, "overlaps"),
    "same place twice": ({"t": F32_4, "u": F32_4}, "overlaps"),
    "a name twice": (b'{"t":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"t":{}}', "twice"),
    "a field twice": (b'{"t":{"dtype":"F32","dtype":"F16","shape":[4],"data_offsets":[0,16]}}', "twice"),
    "metadata a list": ({"__metadata__": [1]}, "metadata"),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, "metadata"),
    "GGUF": (b"GGUF\x03\0\0\0" + bytes(64), "is a GGUF file"),
    "web page": (b"<!DOCTYPE html><html>404</html>" + bytes(64), "web page"),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "pointer"),
    "zip pickle": (b"PK\x03\x04" + bytes(64), "pickle"),
    "old pickle": (b"\x80\x02}q\x00." + bytes(64), "pickle"),
}  # fmt: skip
AS_THEY_ARE = ("empty", "six bytes", "length", "cut in", "GGUF", "web page", "LFS", "zip", "old pickle")


def one_sentence(error: BaseException, *words: str) -> None:
    """What every refusal looks like."""
    text = str(error)
    assert text.endswith(".") and text.count(". ") == 0 and "\n" not in text and len(text) < 400, text
    assert "Error" not in text and "None" not in text, text
    for word in words:
        assert word in text, text


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_gives_one_sentence(tmp_path, name):
    content, words = BROKEN[name]
    path = tmp_path / "model" / "broken.safetensors"
    path.parent.mkdir()
    if isinstance(content, bytes) and name.startswith(AS_THEY_ARE):
        path.write_bytes(content)
    else:
        write_raw(path, content, bytes(16))
    tracemalloc.start()
    with pytest.raises(ModelError) as caught:
        read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    one_sentence(caught.value, "model/broken.safetensors", *([words] if words else []))
    assert peak < 64 << 20


def test_a_file_cut_anywhere(tmp_path):
    whole = (TINY / "transformer/diffusion_pytorch_model.safetensors").read_bytes()
    path = tmp_path / "transformer" / "diffusion_pytorch_model.safetensors"
    path.parent.mkdir()
    for cut in (1, 10, 1000, len(whole) // 2, len(whole) - 8, len(whole) - 9, len(whole) - 1):
        path.write_bytes(whole[:-cut])
        with pytest.raises(ModelError) as caught:
            read_header(path)
        one_sentence(caught.value, "transformer/diffusion_pytorch_model.safetensors", "download this file again")
    path.write_bytes(whole[:-10])
    with pytest.raises(ModelError, match=r"ends 10 bytes early \(has 731782, needs 731792\); download this file again"):
        read_header(path)


def test_a_missing_file_a_folder_and_a_pipe(tmp_path):
    with pytest.raises(ModelError, match="cannot be read"):
        read_header(tmp_path / "no.safetensors")
    with pytest.raises(ModelError, match="is not a file"):
        read_header(tmp_path)
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(ModelError, match="is not a file"):
        read_header(tmp_path / "pipe.safetensors")


def test_trailing_bytes_are_counted(tmp_path):
    path = write(tmp_path / "long.safetensors", GOOD)
    path.write_bytes(path.read_bytes() + bytes(100))
    assert read_header(path).unused_bytes == 100


def test_random_damage_never_gets_through_as_another_error(tmp_path):
    whole = bytearray((TINY / "transformer/diffusion_pytorch_model.safetensors").read_bytes())
    head = 8 + int.from_bytes(whole[:8], "little")
    path, random_ = tmp_path / "damaged.safetensors", random.Random(3)
    refused = 0
    for _ in range(250):
        damaged = bytearray(whole[: head + 4096])
        for _ in range(random_.choice((1, 1, 2, 8))):
            damaged[random_.randrange(8 if random_.random() < 0.05 else head)] = random_.choice(
                b'\0\xff"{}[],:0199eE-tn '
            )
        path.write_bytes(damaged)
        os.truncate(path, len(whole))
        try:
            read_header(path)
        except ModelError as error:
            refused += 1
            one_sentence(error)
    assert refused > 120


def shard(folder, number=2):
    """The transformer of a copied tree as shards with an index; the names of the shards."""
    path = folder / "transformer/diffusion_pytorch_model.safetensors"
    tensors, names = stored(path), []
    path.unlink()
    weight_map = {}
    for i in range(number):
        names.append(f"diffusion_pytorch_model-{i + 1:05d}-of-{number:05d}.safetensors")
        own = {name: each for j, (name, each) in enumerate(tensors.items()) if j % number == i}
        write(path.with_name(names[-1]), own)
        weight_map |= dict.fromkeys(own, names[-1])
    path.with_name("diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return names


def test_shards_equal_the_whole(tmp_path):
    folder = copy_tiny(tmp_path / "tiny")
    want = stored(folder / "transformer/diffusion_pytorch_model.safetensors")
    names = shard(folder, 3)
    for with_index in (True, False):
        if not with_index:
            (folder / "transformer/diffusion_pytorch_model.safetensors.index.json").unlink()
        tensors, _, files = read_part(folder / "transformer")
        assert [path.name for path in files] == names and set(tensors) == set(want)
        for name, (dtype, shape, data) in want.items():
            each = tensors[name]
            with open(each.path, "rb") as file:
                file.seek(each.offset)
                got = file.read(each.size_bytes)
            assert (each.dtype, list(each.shape), got) == (dtype, shape, data)
            assert (as_float32(dtype, got) == as_float32(dtype, data)).all()


@pytest.mark.parametrize("with_index", (True, False))
def test_a_missing_shard_is_named(tmp_path, with_index):
    folder = copy_tiny(tmp_path / "tiny")
    names = shard(folder)
    (folder / "transformer" / names[1]).unlink()
    if not with_index:
        (folder / "transformer/diffusion_pytorch_model.safetensors.index.json").unlink()
    with pytest.raises(ModelError) as caught:
        read_part(folder / "transformer")
    one_sentence(caught.value, f"transformer/{names[1]}", "is missing", "download it into this folder")


@pytest.mark.parametrize(
    ("index", "words"),
    (
        ("[]", "JSON object"),
        ("{", "not valid JSON"),
        ("{}", "no weight_map"),
        ('{"weight_map": []}', "no weight_map"),
        ('{"weight_map": {"a": 3}}', "no weight_map"),
        ('{"weight_map": {"a": "../../etc/passwd"}}', "not a file of this folder"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "gone.safetensors is missing"),
        ('{"weight_map": {"zzz": "only.safetensors"}}', "lacks 'zzz'"),
        ('{"weight_map": {"a": "old.bin"}}', "is a pickle"),
    ),
)
def test_a_broken_index_gives_one_sentence(tmp_path, index, words):
    folder = tmp_path / "vae"
    write(folder / "only.safetensors", GOOD)
    (folder / "old.bin").write_bytes(b"\x80\x02.")
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError) as caught:
        read_part(folder)
    one_sentence(caught.value, words)


def test_folders_that_cannot_be_read_as_one_part(tmp_path):
    with pytest.raises(ModelError, match=r"holds no \.safetensors file"):
        read_part(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    with pytest.raises(ModelError, match="is a pickle"):
        read_part(tmp_path)
    for name in ("a", "b"):
        write(tmp_path / f"{name}.safetensors", GOOD)
    with pytest.raises(ModelError, match="holds 2 weight files"):
        read_part(tmp_path)


def test_json_files(tmp_path):
    path = tmp_path / "config.json"
    for text in ("", "[]", "nul", "{" * 100_000, '"x"'):
        path.write_text(text)
        with pytest.raises(ModelError) as caught:
            read_json(path)
        one_sentence(caught.value, "config.json")
    with pytest.raises(ModelError, match="cannot be read"):
        read_json(tmp_path / "none.json")
