"""What lies at a path: the model's parts, found and opened. Headers and configs are read, no tensor is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from h3core.weights import config as configs
from h3core.weights.check import check_part, check_together
from h3core.weights.model_files import Manifest, ModelError, ModelFiles, Part, shown
from h3core.weights.names import canonical, strip_prefix
from h3core.weights.safetensors import Tensor, read_json, read_part

PARTITIONS = ("fl2va", "ref2va")
_WORDS = {
    "transformer": "transformer",
    "text_encoder": "text encoder",
    "video_vae": "video VAE",
    "audio_vae": "audio VAE",
}


def open_model(path: str | os.PathLike[str], partition: str = "fl2va", qkv_layout: str | None = None) -> ModelFiles:
    """Open a model: a diffusers or original tree, a folder of loose parts, or one of its files.

    partition: "fl2va" (text, keyframes) or "ref2va" (references), where a tree holds both.
    qkv_layout: "interleaved" or "stacked" overrides how a transformer's fused qkv rows are read.
    raises: ModelError: one sentence that says what is missing or wrong, and what to do.
    """
    folder = Path(os.path.abspath(os.path.expanduser(path)))
    if not folder.exists():
        raise ModelError(f"{folder} does not exist; give the folder that holds the model.")
    if (folder / "transformer").is_dir() and (folder / "vae").is_dir():
        return _open_diffusers(folder, partition, qkv_layout)
    raise ModelError(
        f"{folder} holds no model; give a folder with transformer, text_encoder, vae, audio_vae and tokenizer."
    )


def _open_diffusers(folder: Path, partition: str, qkv_layout: str | None) -> ModelFiles:
    index = _index(folder)
    names = {
        "transformer": "transformer" if partition == "fl2va" else "transformer_ref",
        "text_encoder": "text_encoder",
        "video_vae": "vae",
        "audio_vae": "audio_vae",
    }
    parts = {}
    for kind, name in names.items():
        if not (folder / name).is_dir():
            raise _missing(folder, kind, f"the folder {name}")
        parts[kind] = _open_part(kind, folder / name, [folder / name / "config.json"], qkv_layout)
    shifts = tuple(
        _shift(folder / name / "scheduler_config.json", release)
        for name, release in (("scheduler", 12.0), ("audio_scheduler", 3.0))
    )
    return _together(folder, parts, index, partition, shifts, folder / "tokenizer", folder / "processor")


def _index(folder: Path) -> dict[str, Any]:
    path = folder / "model_index.json"
    return read_json(path) if path.exists() else {}


def _missing(folder: Path, kind: str, what: str) -> ModelError:
    return ModelError(f"{folder.name} has no {_WORDS[kind]}; put {what} into it.")


def _open_part(kind: str, folder: Path, config_files: list[Path], qkv_layout: str | None) -> Part:
    raw: dict[str, Any] = {}
    for path in config_files:
        raw |= read_json(path)
    tensors, _, files = read_part(folder)
    return build_part(kind, raw, tensors, files, qkv_layout, shown(config_files[0]))


def build_part(
    kind: str,
    raw: dict[str, Any],
    tensors: dict[str, Tensor],
    files: tuple[Path, ...],
    qkv_layout: str | None,
    where: str,
) -> Part:
    """A part from its config and tensors, names and fields canonical, every needed tensor there in the right shape."""
    given = configs.canonical_config(kind, raw, where)
    head_dim = {**configs.DEFAULTS[kind], **given}.get("decoder_attention_head_dim")
    weights = canonical(kind, strip_prefix(kind, tensors), head_dim, qkv_layout)
    part = Part(kind, configs.complete(kind, given, weights, where), weights, files)
    check_part(part)
    return part


def _shift(path: Path, release: float) -> float:
    if not path.exists():
        return release
    value = read_json(path).get("shift", release)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e4:
        raise ModelError(f"{shown(path)}: shift is {str(value)[:60]!r}; it must be a number above 0.")
    return float(value)


def _together(
    folder: Path,
    parts: dict[str, Part],
    index: dict[str, Any],
    partition: str,
    shifts: tuple[float, ...],
    tokenizer: Path,
    processor: Path | None,
) -> ModelFiles:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if not (
            tokenizer / name
        ).is_file():  # without the second the seven H3 tokens are missing, and nothing would say so
            raise ModelError(
                f"{folder.name} has no {tokenizer.name}/{name}; put MiniMax-H3's own tokenizer folder there."
            )
    if processor and not processor.is_dir():
        processor = None
    files = ModelFiles(
        path=folder,
        name=folder.name,
        tokenizer=tokenizer,
        shifts=(shifts[0], shifts[1]),
        manifest=read_manifest(index, partition, f"{folder.name}/model_index.json"),
        processor=processor,
        **parts,
    )
    check_together(files)
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
