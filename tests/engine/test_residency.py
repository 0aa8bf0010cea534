"""Blocks of weights: resident and streamed ones are equal; every trouble surfaces where blocks are asked for."""

import gc
import os
import threading
import time

import numpy as np
import pytest

from h3core.engine import residency as module
from h3core.engine.residency import Blocks, Cancelled, Residency, is_matrix, memory_bytes
from h3core.kernels.quant_matrix import QuantMatrix
from h3core.kernels.table import Kernels
from h3core.weights.identify import open_model
from h3core.weights.model_files import ModelError, size_bytes
from tests.golden_files import TINY, TINY_ORIGINAL, compare
from tests.weights.files import ITEM, copy_tiny, original_tree, stored, tiny, values, write


@pytest.fixture(scope="module")
def kernels():
    return Kernels("c", 1)


@pytest.fixture
def residency(kernels):
    return Residency(kernels)


def readers():
    return [thread for thread in threading.enumerate() if thread.name == "h3-reader"]


def dense(each):
    return each.dequantize() if isinstance(each, QuantMatrix) else each


def groups_of(part, prefix="transformer_blocks.", count=3):
    return [part.group(f"{prefix}{i}.") for i in range(count)]


def contents(blocks):
    """Every value of every block, copied: a streamed block is gone when the next one comes."""
    return [{name: np.array(dense(each)) for name, each in block.items()} for block in blocks]


def same(got, want):
    assert len(got) == len(want)
    for ours, theirs in zip(got, want, strict=True):
        assert ours.keys() == theirs.keys()
        for name, each in theirs.items():
            assert np.array_equal(ours[name], each), name


@pytest.mark.parametrize("kind", ("transformer", "text_encoder", "video_vae", "audio_vae"))
def test_loaded_parts_equal_the_golden_tensors(residency, kind):
    part = {each.kind: each for each in open_model(TINY).parts}[kind]
    names = tiny({"video_vae": "vae"}.get(kind, kind))
    if kind == "text_encoder":
        names = {
            name.removeprefix("model.language_model.").removeprefix("model."): each for name, each in names.items()
        }
    block = residency.load(part.weights)
    assert list(block) == list(part.weights)
    for name, each in block.items():
        compare(f"loaded {kind} {name}", dense(each), names[name], 0)
    assert residency.bytes_read == part.size_bytes


def test_what_becomes_a_matrix(residency):
    model = open_model(TINY)
    weights = model.text_encoder.weights | model.video_vae.weights
    block = residency.load(weights)
    for name, each in block.items():
        linear = len(weights[name].shape) == 2 and name not in ("embed_tokens.weight", "visual.pos_embed.weight")
        assert isinstance(each, QuantMatrix) == linear == is_matrix(name, weights[name]), name
        if not linear:
            assert each.dtype == np.float32 and each.flags.c_contiguous and each.shape == weights[name].shape
    assert block["visual.patch_embed.proj.weight"].shape == (24, 3, 2, 16, 16)
    assert block["decoder.register_tokens"].shape == (1, 4, 32)


@pytest.mark.parametrize("mode", ("resident", "streamed"))
def test_row_orders_of_an_original_tree(tmp_path, kernels, mode):
    original_tree(tmp_path)
    ours, theirs = open_model(tmp_path), open_model(TINY)
    for kind, prefix, count in (
        ("transformer", "transformer_blocks.", 3),
        ("video_vae", "decoder.transformer_blocks.", 2),
    ):
        got = Residency(kernels).blocks(groups_of(getattr(ours, kind), prefix, count), mode)
        want = Residency(kernels).blocks(groups_of(getattr(theirs, kind), prefix, count), "resident")
        same(
            [{k: b[k] for k in sorted(b)} for b in contents(got)],
            [{k: b[k] for k in sorted(b)} for b in contents(want)],
        )


def test_a_shared_tensor_is_read_and_held_once(kernels):
    from h3core.weights.names import canonical
    from h3core.weights.safetensors import read_header

    tensors = read_header(TINY_ORIGINAL / "FL2VA/transformer/model.safetensors").tensors
    weights = canonical("transformer", tensors, None, "interleaved")
    residency = Residency(kernels)
    residency.load(weights)
    assert residency.bytes_read == size_bytes(weights) == sum(each.size_bytes for each in tensors.values()) - 16


def test_streamed_equals_resident_over_many_steps(kernels):
    groups = groups_of(open_model(TINY).text_encoder, "layers.", 51)
    resident, streamed = Residency(kernels), Residency(kernels)
    kept, passing = resident.blocks(groups, "resident"), streamed.blocks(groups, "streamed")
    want = contents(kept)
    for _ in range(3):
        same(contents(passing), want)
        same(contents(kept), want)
    total = sum(size_bytes(group) for group in groups)
    assert resident.bytes_read == total and streamed.bytes_read == 3 * total
    assert len(kept) == len(passing) == 51 and not readers()


def test_streamed_blocks_share_two_slots(residency):
    blocks = residency.blocks(groups_of(open_model(TINY).text_encoder, "layers.", 51), "streamed")
    norms = [block["self_attn.q_proj.weight"] for block in blocks]
    assert len(norms) == 51 and len(blocks._slots) == 2
    largest = max(memory_bytes(group) for group in blocks.groups)
    assert all(slot.size <= largest for slot in blocks._slots)


@pytest.mark.parametrize("format_", ("F32", "F16", "BF16"))
@pytest.mark.parametrize("data_at", (0, 5))
def test_formats_and_odd_alignment(tmp_path, residency, format_, data_at):
    random = np.random.default_rng(1)
    made = {}
    for i in range(3):
        for name, shape in (("a.weight", (5, 7)), ("norm.weight", (7,)), ("conv.weight", (2, 3, 1, 1, 1))):
            raw = random.standard_normal(shape).astype("<f4")
            raw = {"F32": raw, "F16": raw.astype("<f2"), "BF16": (raw.view("<u4") >> 16).astype("<u2")}[format_]
            made[f"b.{i}.{name}"] = (format_, list(shape), raw.tobytes())
        made[f"b.{i}.odd"] = ("U8", [1], b"x")  # pushes what follows off its alignment
    path = write(tmp_path / "odd.safetensors", made, data_at=data_at)
    from h3core.weights.model_files import Weight
    from h3core.weights.safetensors import read_header

    tensors = {name: each for name, each in read_header(path).tensors.items() if each.dtype != "U8"}
    assert any(each.offset % ITEM[format_] for each in tensors.values()) or data_at == 0
    groups = [
        {
            name[4:]: Weight(name, format_.lower(), each.shape, path, each.offset, each.size_bytes)
            for name, each in tensors.items()
            if name.startswith(f"b.{i}.")
        }
        for i in range(3)
    ]
    want = [{name: values(each) for name, each in group.items()} for group in groups]
    for mode in ("resident", "streamed"):
        same(contents(residency.blocks(groups, mode)), want)


def test_kept_blocks_outlive_their_iterable_until_dropped(kernels):
    residency, groups = Residency(kernels), groups_of(open_model(TINY).transformer)
    contents(residency.blocks(groups, "resident", "dit"))
    read = residency.bytes_read
    contents(residency.blocks(groups, "resident", "dit"))
    assert residency.bytes_read == read
    contents(residency.blocks(groups[:2], "resident", "dit"))  # other groups under the name: read anew
    assert residency.bytes_read > read
    residency.drop("dit")
    residency.drop("dit")
    read = residency.bytes_read
    contents(residency.blocks(groups, "resident", "dit"))
    assert residency.bytes_read == read + sum(size_bytes(group) for group in groups)
    residency.drop()
    assert not residency._kept


def test_lookup_reads_only_the_rows_asked_for(kernels):
    residency = Residency(kernels)
    weight, want = open_model(TINY).text_encoder.weights["embed_tokens.weight"], tiny("text_encoder")
    table = want["model.language_model.embed_tokens.weight"]
    rows = np.array([447, 3, 3, 0])
    compare("embedding rows", residency.lookup(weight, rows), table[rows], 0)
    assert residency.bytes_read == 3 * 48 * 2
    assert residency.lookup(weight, np.zeros(0, np.int64)).shape == (0, 48)
    for wrong in (-1, 448):
        with pytest.raises(IndexError, match=f"row {wrong} of a table of 448"):
            residency.lookup(weight, np.array([0, wrong]))


@pytest.mark.parametrize("mode", ("resident", "streamed"))
def test_cancel_between_blocks(kernels, mode):
    stop = threading.Event()
    residency = Residency(kernels, stop.is_set)
    blocks, seen = residency.blocks(groups_of(open_model(TINY).text_encoder, "layers.", 51), mode), 0
    with pytest.raises(Cancelled):
        for _ in blocks:
            seen += 1
            if seen == 5:
                stop.set()
    assert seen == 5 and not readers()
    with pytest.raises(Cancelled):
        residency.load(open_model(TINY).transformer.weights)
    stop.clear()
    assert len(contents(blocks)) == 51  # the next run starts where nothing is broken


@pytest.mark.parametrize("mode", ("resident", "streamed"))
def test_leaving_early_stops_the_reader(residency, mode):
    blocks = residency.blocks(groups_of(open_model(TINY).text_encoder, "layers.", 51), mode)
    for _ in blocks:
        break
    gc.collect()
    assert not readers()
    assert len(contents(blocks)) == 51


@pytest.mark.parametrize("mode", ("resident", "streamed"))
def test_a_file_that_changes_under_the_reader_is_one_sentence(tmp_path, residency, mode):
    folder = copy_tiny(tmp_path / "tiny")
    path = folder / "text_encoder/model.safetensors"
    groups = groups_of(open_model(folder).text_encoder, "layers.", 51)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ModelError, match=r"text_encoder/model\.safetensors became shorter.*download this file again\."):
        contents(residency.blocks(groups, mode))
    path.unlink()
    with pytest.raises(ModelError, match=r"text_encoder/model\.safetensors cannot be opened"):
        contents(residency.blocks(groups, mode))
    assert not readers()


@pytest.mark.parametrize(
    "error", (OSError(5, "Input/output error"), MemoryError("no memory"), SystemExit(), KeyboardInterrupt())
)
def test_a_reader_that_dies_does_not_leave_the_run_waiting(monkeypatch, residency, error):
    reads = [0]

    def read(self, into, offset):
        reads[0] += 1
        if reads[0] > 30:
            raise error

    monkeypatch.setattr(module._File, "read", read)
    blocks = residency.blocks(groups_of(open_model(TINY).text_encoder, "layers.", 51), "streamed")
    with pytest.raises(ModelError if isinstance(error, OSError) else type(error)) as caught:
        for _ in blocks:
            pass
    if isinstance(error, OSError):
        assert "cannot be read (Input/output error); check the disk" in str(caught.value)
    assert not readers()


def test_cancel_while_waiting_for_a_slow_disk(monkeypatch, kernels):
    stop, slow = threading.Event(), threading.Event()
    monkeypatch.setattr(module._File, "read", lambda self, into, offset: slow.wait(20))
    residency = Residency(kernels, stop.is_set)
    timer = threading.Timer(0.2, lambda: (stop.set(), time.sleep(0.3), slow.set()))
    timer.start()
    with pytest.raises(Cancelled):
        next(iter(residency.blocks(groups_of(open_model(TINY).transformer), "streamed")))
    timer.join()
    assert residency.waited_s == 0.0 and not readers()


def test_one_pass_at_a_time(residency):
    blocks = residency.blocks(groups_of(open_model(TINY).transformer), "streamed")
    first = iter(blocks)
    next(first)
    with pytest.raises(RuntimeError, match="iterated already"):
        next(iter(blocks))
    first.close()
    assert len(contents(blocks)) == 3


def test_no_blocks_at_all(residency):
    for mode in ("resident", "streamed"):
        assert list(residency.blocks([], mode)) == []
    with pytest.raises(ValueError, match="neither"):
        residency.blocks([], "mapped")


def test_a_streamed_model_leaves_the_page_cache_alone(monkeypatch, residency, tmp_path):
    if not hasattr(os, "posix_fadvise"):
        pytest.skip("this system has no posix_fadvise")
    advised = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: advised.append(arguments[3]))
    groups = groups_of(open_model(TINY).transformer)
    contents(residency.blocks(groups, "streamed"))
    assert os.POSIX_FADV_DONTNEED not in advised and os.POSIX_FADV_SEQUENTIAL in advised
    monkeypatch.setattr(module, "CACHED_BELOW", 1000)
    contents(residency.blocks(groups, "streamed"))
    assert os.POSIX_FADV_DONTNEED in advised


def test_memory_bytes_is_what_a_block_takes(residency):
    weights = open_model(TINY).transformer.group("transformer_blocks.0.")
    packed = sum(weights[name].size_bytes for name in weights if is_matrix(name, weights[name]))
    unpacked = sum(4 * int(np.prod(weights[name].shape)) for name in weights if not is_matrix(name, weights[name]))
    assert packed + unpacked <= memory_bytes(weights) <= packed + unpacked + 64 * len(weights)


def test_blocks_is_an_iterable_with_a_length(residency):
    assert isinstance(residency.blocks(groups_of(open_model(TINY).transformer), "resident"), Blocks)
    assert all(
        len(stored(TINY / "transformer/diffusion_pytorch_model.safetensors")[name][1]) for name in ("proj_in.bias",)
    )
