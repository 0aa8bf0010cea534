"""What lies at a path: which files are which part of the model. Headers and configs are read, no weights.

Three ways a model lies on disk: the diffusers tree, MiniMax's own tree (FL2VA/, Ref2VA/), and a folder of loose files
that were made for other programs; those are told apart by their tensors' names.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from h3core.weights import config as configs
from h3core.weights.fit import require_fit, require_tensors
from h3core.weights.gguf import text_config
from h3core.weights.headers import is_gguf, read_files, read_header, read_part
from h3core.weights.model_files import Manifest, ModelError, ModelFiles, Part, shown
from h3core.weights.names import QKV_LAYOUTS, canonical, prefix_of, strip_prefix
from h3core.weights.safetensors import (
    PICKLES,
    SHARD,
    Tensor,
    read_json,
    read_values,
    refuse_pickle,
)
from h3core.weights.scales import resolve
from h3core.weights.shapes import SHAPES

KINDS = ("transformer", "text_encoder", "video_vae", "audio_vae")
PARTITIONS = ("fl2va", "ref2va")
WORDS = {kind: kind.replace("_", " ").replace("vae", "VAE") for kind in KINDS}
DIFFUSERS_FOLDERS = {
    "transformer": "transformer",
    "text_encoder": "text_encoder",
    "video_vae": "vae",
    "audio_vae": "audio_vae",
}
# A published file for each part, for the sentence that says what to put there. source: checkpoint-formats §2.2
PUBLISHED = {
    "transformer": "minimax_h3_fl2va_bf16.safetensors",
    "text_encoder": "qwen3vl_32b_minimax_h3_bf16.safetensors",
    "video_vae": "minimax_h3_video_vae_fp16.safetensors",
    "audio_vae": "minimax_h3_audio_vae_fp32.safetensors",
}
_MOST_FILES = 1000  # of a folder of loose parts; someone's whole disk is not searched


@dataclass(frozen=True)
class Source:
    """Where one part lies."""

    kind: str
    folder: Path  # read as shards or one file, unless files are given
    files: tuple[Path, ...] = ()
    configs: tuple[Path, ...] = ()  # later ones win
    qkv_layout: str | None = None  # when the place says it: MiniMax's own tree is interleaved


@dataclass(frozen=True)
class Located:
    """A model found but not opened yet. A part that was not found is not in `sources`; `missing` says what to do."""

    folder: Path
    sources: dict[str, Source]
    missing: dict[str, str]  # kind -> sentence
    tokenizer: Path | None
    index: dict[str, Any] = field(default_factory=dict)
    index_name: str = "model_index.json"
    shifts: tuple[float, float] = (12.0, 3.0)
    processor: Path | None = None


def open_model(path: str | os.PathLike[str], partition: str = "fl2va", qkv_layout: str | None = None) -> ModelFiles:
    """Open a model: a diffusers or original tree, a folder of loose parts, or one of its files.

    partition: "fl2va" (text, keyframes) or "ref2va" (references), where a tree holds both.
    qkv_layout: "interleaved" or "stacked" overrides how a transformer's fused q, k, v rows are read.
    raises: ModelError: one sentence that says what is missing or wrong, and what to do.
    """
    if partition not in PARTITIONS:
        raise ModelError(f"partition is {partition!r}; it must be 'fl2va' or 'ref2va'.")
    if qkv_layout not in (None, *QKV_LAYOUTS):
        raise ModelError(f"qkv_layout is {qkv_layout!r}; it must be 'interleaved' or 'stacked'.")
    located = locate(path, partition)
    for sentence in located.missing.values():
        raise ModelError(sentence)
    parts = {kind: open_part(located.sources[kind], qkv_layout) for kind in KINDS}
    return together(located, parts, partition)


def locate(path: str | os.PathLike[str], partition: str = "fl2va") -> Located:
    """Find the parts. raises: ModelError when there is no model at all, or it cannot be told which file is meant."""
    place = Path(os.path.abspath(os.path.expanduser(path)))
    try:
        there = place.exists()
    except OSError as error:  # a name that no file system takes
        raise ModelError(
            f"{shown(place)[:60]!r} cannot be looked for ({error.strerror}); give another path."
        ) from error
    if not there:
        raise ModelError(f"{place} does not exist; give the folder that holds the model.")
    if place.is_file():
        refuse_pickle(place)
        if place.suffix.lower() not in (".safetensors", ".gguf"):
            raise ModelError(f"{shown(place)} is no weight file; give the folder that holds the model.")
    for folder in (place, place.parent, place.parent.parent):  # a part of a tree, or its file, stands for the tree
        if folder != place and not (folder / "model_index.json").exists():
            continue
        found = _tree(folder, partition)
        if found:
            return _with_file(found, place) if is_gguf(place) else found
    return _loose(place, partition)


def _with_file(tree: Located, file: Path) -> Located:
    """A GGUF file that lies in or beside a tree takes the place of the tree's own part.   raises: ModelError."""
    kinds = _kinds_of((file,))
    if not kinds:
        raise ModelError(f"{file.name} {_what_else((file,))}; give a file or folder of MiniMax-H3.")
    sources, missing = dict(tree.sources), dict(tree.missing)
    for kind in kinds:
        own = file.with_suffix(".json")
        given = (own,) if own.exists() else tree.sources[kind].configs if kind in tree.sources else ()
        sources[kind] = Source(kind, file.parent, (file,), given)
        missing.pop(kind, None)
    return replace(tree, sources=sources, missing=missing)


def _tree(folder: Path, partition: str) -> Located | None:
    name = "FL2VA" if partition == "fl2va" else "Ref2VA"
    if (folder / "transformer").is_dir():
        original = any((folder / each).is_dir() for each in ("video_vae", "visual_vae"))
        return _original(folder, partition) if original else _diffusers(folder, partition)
    if (folder / name / "transformer").is_dir():
        return _original(folder / name, partition)
    return None


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / "model_index.json"
    return read_json(path) if path.exists() else {}


def _diffusers(folder: Path, partition: str) -> Located:
    names = DIFFUSERS_FOLDERS | ({"transformer": "transformer_ref"} if partition == "ref2va" else {})
    sources, missing = {}, {}
    for kind, name in names.items():
        if (folder / name).is_dir():
            sources[kind] = Source(kind, folder / name, configs=(folder / name / "config.json",))
        else:
            missing[kind] = f"{folder.name} has no {WORDS[kind]}; put the folder {name} into it."
    index = _read_index(folder)
    if partition == "ref2va" and isinstance(index.get("_minimax_h3"), dict):  # one index for both transformers
        index["_minimax_h3"] = index["_minimax_h3"] | {"partition": None, "tasks": None}
    release = _shift_scales(index, f"{folder.name}/model_index.json")
    shifts = (
        _shift(folder / "scheduler" / "scheduler_config.json", release[0]),
        _shift(folder / "audio_scheduler" / "scheduler_config.json", release[1]),
    )
    tokenizer, processor = folder / "tokenizer", folder / "processor"
    return Located(folder, sources, missing, tokenizer, index, f"{folder.name}/model_index.json", shifts, processor)


def _original(folder: Path, partition: str) -> Located:
    """MiniMax's own layout.   source: spec §2, §17.2-17.4"""
    index = _read_index(folder)
    block = index.get("_minimax_h3")
    if isinstance(block, dict) and block.get("partition", partition) != partition:
        # the two transformers have the same names and shapes: nothing but this field tells them apart
        raise ModelError(f"{folder.name} is the {block['partition']} model by its model_index.json, not {partition}.")
    vae = folder / "video_vae" if (folder / "video_vae").is_dir() else folder / "visual_vae"
    source = vae / "source" if (vae / "source").is_dir() else vae
    audio = folder / "audio_vae"
    places = {
        "transformer": Source(
            "transformer", folder / "transformer", (), (folder / "transformer" / "config.json",), "interleaved"
        ),
        "text_encoder": Source("text_encoder", folder / "text_encoder", (), (folder / "text_encoder" / "config.json",)),
        "video_vae": Source("video_vae", source, (), (vae / "config.json", source / "config.json")),
        "audio_vae": Source("audio_vae", audio, (), (audio / "metadata.json", audio / "config.json")),
    }
    sources = {kind: each for kind, each in places.items() if each.folder.is_dir()}
    missing = {
        kind: f"{folder.name} has no {WORDS[kind]}; put the folder {each.folder.name} into it."
        for kind, each in places.items()
        if kind not in sources
    }
    name = f"{folder.name}/model_index.json"
    shifts = _shift_scales(index, name)
    return Located(folder, sources, missing, folder / "tokenizer", index, name, shifts, folder / "processor")


def _loose(place: Path, partition: str) -> Located:
    """A folder of files made for other programs, or one of those files: what it is, its tensors' names tell."""
    folder = place if place.is_dir() else place.parent
    candidates: dict[str, list[tuple[Path, ...]]] = {kind: [] for kind in KINDS}
    refused: list[str] = []
    for files in _file_sets(folder):
        try:
            kinds = _kinds_of(files)
        except ModelError as error:
            if place in files:
                raise
            refused.append(str(error))
            continue
        for kind in kinds:
            candidates[kind].append(files)
        if place in files and not kinds:
            raise ModelError(f"{place.name} {_what_else(files)}; give a file or folder of MiniMax-H3.")
    if not any(candidates.values()):
        because = f" ({refused[0].rstrip('.')})" if refused else ""
        raise ModelError(f"{folder} holds no part of MiniMax-H3{because}; give the folder that holds the model.")

    sources, missing = {}, {}
    for kind, found in candidates.items():
        chosen = _choose(kind, found, place, partition)
        if chosen:
            sources[kind] = Source(kind, chosen[0].parent, chosen, _configs_beside(kind, chosen, candidates))
        else:
            because = f" ({refused[0].rstrip('.')})" if refused else ""
            missing[kind] = (
                f"{folder.name} has no {WORDS[kind]}{because}; put {PUBLISHED[kind]} beside the other parts."
            )
    tokenizers = [each.parent for each in _walk(folder) if each.name == "tokenizer.json"]
    processors = [each.parent for each in _walk(folder) if each.name == "preprocessor_config.json"]
    return Located(folder, sources, missing, min(tokenizers, default=None), processor=min(processors, default=None))


def _walk(folder: Path) -> list[Path]:
    """Files of the folder and two levels below, by name; hidden ones left out."""
    found: list[Path] = []
    for base, folders, names in os.walk(folder, followlinks=False):
        depth = len(Path(base).relative_to(folder).parts)
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < 2 else []
        found += [Path(base) / name for name in sorted(names) if not name.startswith(".")]
        if len(found) > _MOST_FILES:
            raise ModelError(f"{folder} holds more than {_MOST_FILES} files; give the folder of one model.")
    return found


def _file_sets(folder: Path) -> list[tuple[Path, ...]]:
    """Weight files, shards of one set together."""
    sets: dict[object, list[Path]] = {}
    for path in _walk(folder):
        if path.suffix.lower() in (".safetensors", ".gguf", *PICKLES):
            shard = SHARD.fullmatch(path.name)
            sets.setdefault((path.parent, shard[1], shard[3], shard[4]) if shard else path, []).append(path)
    return [tuple(paths) for paths in sets.values()]


def _kinds_of(files: tuple[Path, ...]) -> list[str]:
    """Which parts a set of files holds; usually one."""
    for path in files:
        refuse_pickle(path)
    shard = SHARD.fullmatch(files[0].name)
    if shard and len(files) != int(shard[3]):
        there = {path.name for path in files}
        wanted = (f"{shard[1]}-{number:05d}-of-{shard[3]}.{shard[4]}" for number in range(1, int(shard[3]) + 1))
        lost = next((name for name in wanted if name not in there), files[0].name)
        raise ModelError(f"{files[0].parent.name}/{lost} is missing; download it into this folder.")
    names = {name for path in files for name in read_header(path).tensors}
    return [kind for kind in KINDS if prefix_of(kind, names) is not None]


def _what_else(files: tuple[Path, ...]) -> str:
    names = list(read_files(files)[0])
    if any(re.search(r"\.lora_(A|B|up|down)\b", name) for name in names):
        return "is a LoRA, which changes a model but is none"
    if any(name.endswith("in_blocks.0.in_layers.0.weight") for name in names):
        return "is a latent upscaler, not a part of the model"
    return "holds no part of this model"


def _choose(kind: str, found: list[tuple[Path, ...]], place: Path, partition: str) -> tuple[Path, ...] | None:
    """The one set of files that is meant.

    raises: ModelError when several could be; for a transformer its name may tell the partition, nothing in it does.
    """
    given = [files for files in found if place in files]
    if given:
        return given[0]
    if kind == "transformer":
        other = "ref2va" if partition == "fl2va" else "fl2va"
        fitting = [files for files in found if other not in files[0].name.lower()]
        if found and not fitting:
            raise ModelError(
                f"{shown(found[0][0])} is the {other} transformer by its name; put the {partition} one beside it."
            )
        found = [files for files in fitting if partition in files[0].name.lower()] or fitting
    if len(found) > 1:
        names = " and ".join(shown(files[0]) for files in found[:2])
        raise ModelError(f"{names} are both a {WORDS[kind]}; give the path of the one to use, or move the other away.")
    return found[0] if found else None


def _configs_beside(
    kind: str, files: tuple[Path, ...], candidates: dict[str, list[tuple[Path, ...]]]
) -> tuple[Path, ...]:
    """Configs that belong to a loose file: of its own name, or the folder's when no other part lies there."""
    own = files[0].with_suffix(".json")
    if own.exists():
        return (own,)
    folder = files[0].parent
    neighbours = {other for sets in candidates.values() for other in sets if other[0].parent == folder}
    if neighbours != {files}:
        return ()
    wanted = [folder / "metadata.json", folder / "config.json"] if kind == "audio_vae" else [folder / "config.json"]
    if kind == "video_vae" and folder.name == "source":
        wanted.insert(0, folder.parent / "config.json")
    return tuple(path for path in wanted if path.exists())


def open_part(source: Source, qkv_layout: str | None = None) -> Part:
    """A part with its names and fields canonical, every needed tensor there in the right shape.

    raises: ModelError.
    """
    raw: dict[str, Any] = {}
    for path in source.configs:
        if path.name != "metadata.json" or path.exists():
            raw |= read_json(path)
    tensors, metadata, files = read_files(source.files) if source.files else read_part(source.folder)
    if prefix_of(source.kind, tensors) is None:
        raise _wrong_slot(source, tensors, files)
    where = shown(source.configs[-1]) if source.configs else shown(files[0])
    written_as = None
    if all(map(is_gguf, files)):
        written_as = "stacked"  # in every GGUF file.   source: checkpoint-formats §3.2
        if source.kind == "text_encoder":
            raw = text_config(metadata) | raw
    layouts = (qkv_layout, raw.get("qkv_layout"), metadata.get("qkv_layout"), written_as, source.qkv_layout)
    layout = next((each for each in layouts if each in QKV_LAYOUTS), None)
    return build_part(source.kind, raw, tensors, files, layout, where, metadata)


def build_part(
    kind: str,
    raw: dict[str, Any],
    tensors: dict[str, Tensor],
    files: tuple[Path, ...],
    qkv_layout: str | None,
    where: str,
    metadata: dict[str, str] | None = None,
) -> Part:
    """The same from a config and tensors that have been read.   where: the config's file, for messages."""
    own, scales = resolve(strip_prefix(kind, tensors), metadata or {})
    for name in ("latents_mean", "latents_std"):  # ComfyUI's VAE files carry them as tensors
        if name in own and name not in raw and "vae" in kind:
            raw = raw | {name: read_values(own[name])}
    given = configs.canonical_config(kind, raw, where)
    head_dim = {**configs.DEFAULTS[kind], **given}.get("decoder_attention_head_dim")
    weights = canonical(kind, own, head_dim, qkv_layout, scales)
    part = Part(kind, configs.complete(kind, given, weights, where), weights, files)
    _unfold(part)
    require_tensors(part)
    return part


def _unfold(part: Part) -> None:
    """GGUF has four dimensions at most; the vision tower's convolution has five, folded in the same order of values."""
    name = "visual.patch_embed.proj.weight"
    if part.kind != "text_encoder" or name not in part.weights:
        return
    want, each = SHAPES[part.kind](part.config).get(name), part.weights[name]
    if want and each.shape != want and math.prod(each.shape) == math.prod(want):
        part.weights[name] = replace(each, shape=want)


def _wrong_slot(source: Source, tensors: dict[str, Tensor], files: tuple[Path, ...]) -> ModelError:
    there = [kind for kind in KINDS if prefix_of(kind, tensors) is not None]
    if there:
        return ModelError(
            f"{shown(files[0])} is a {WORDS[there[0]]}, not a {WORDS[source.kind]}; move it where that part belongs."
        )
    return ModelError(f"{shown(files[0])} is no {WORDS[source.kind]} of this model; download the right file.")


def _shift(path: Path, release: float) -> float:
    return _positive(read_json(path).get("shift", release), f"{shown(path)}: shift") if path.exists() else release


def _shift_scales(index: dict[str, Any], where: str) -> tuple[float, float]:
    """Video and audio shift from `_minimax_h3`, else the release's 12 and 3."""
    block = index.get("_minimax_h3")
    scales = block.get("sigma_shift_scales") if isinstance(block, dict) else None
    if not isinstance(scales, dict):
        return 12.0, 3.0
    video, audio = (
        _positive(scales.get(name, release), f"{where}: sigma_shift_scales.{name}")
        for name, release in (("video", 12.0), ("audio", 3.0))
    )
    return video, audio


def _positive(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e4:
        raise ModelError(f"{what} is {str(value)[:60]!r}; it must be a number above 0.")
    return float(value)


def together(located: Located, parts: dict[str, Part], partition: str) -> ModelFiles:
    """The opened parts as one model. raises: ModelError when they do not fit, or the tokenizer is missing."""
    folder, tokenizer = located.folder, located.tokenizer
    put = f"put the folder tokenizer of MiniMaxAI/MiniMax-H3 into {folder.name}"
    if tokenizer is None:
        raise ModelError(f"{folder.name} has no tokenizer; {put}.")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if not (
            tokenizer / name
        ).is_file():  # without the second the seven H3 tokens are missing, and nothing would say
            raise ModelError(f"{shown(tokenizer / name)} is missing; {put}.")
    manifest = read_manifest(located.index, partition, located.index_name)
    processor = located.processor if located.processor and located.processor.is_dir() else None
    files = ModelFiles(
        folder, folder.name, **parts, tokenizer=tokenizer, shifts=located.shifts, manifest=manifest, processor=processor
    )
    require_fit(files)
    return files


def read_manifest(index: dict[str, Any], partition: str, where: str) -> Manifest:
    """The `_minimax_h3` block; what it leaves out is the release's.

    raises: ModelError naming the field.
    """
    block = index.get("_minimax_h3") or {}
    if not isinstance(block, dict):
        raise ModelError(f"{where}: _minimax_h3 must be a table.")
    release = Manifest(partition=partition, tasks=("t2va", "fl2va") if partition == "fl2va" else ("ref2va",))

    def field(
        name: str, what: str, right: Callable[[Any], bool], make: Callable[[Any], Any] = lambda value: value
    ) -> Any:
        value = block.get(name)
        if value is None:
            return getattr(release, name)
        if not right(value):
            raise ModelError(f"{where}: _minimax_h3.{name} is {str(value)[:60]!r}; it must be {what}.")
        return make(value)

    return Manifest(
        tap=field("tap", "a whole number of at least 1", _whole),
        guidance_distilled=field("guidance_distilled", "true or false", lambda value: isinstance(value, bool)),
        trained_frames=field(
            "trained_frames",
            "a list of frame counts",
            lambda value: bool(value) and _list_of(_whole)(value),
            lambda value: tuple(sorted(value)),
        ),
        trained_canvases=field(
            "trained_canvases",
            "a list of [width, height]",
            lambda value: bool(value) and _list_of(_list_of(_whole))(value) and all(len(each) == 2 for each in value),
            lambda value: tuple((width, height) for width, height in value),
        ),
        partition=field("partition", "'fl2va' or 'ref2va'", lambda value: value in PARTITIONS),
        tasks=field("tasks", "a list of words", _list_of(lambda value: isinstance(value, str)), tuple),
    )


def _whole(value: Any) -> bool:
    return type(value) is int and 1 <= value <= 1 << 20


def _list_of(right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(right, value))
