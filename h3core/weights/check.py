"""Everything that can be said about a model before anything heavy: what it is, what is wrong, what to do about it.

`open_model` stops at the first trouble; this goes on and reports them all.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from h3core.weights.headers import read_header
from h3core.weights.identify import KINDS, WORDS, Located, locate, open_part, together
from h3core.weights.identity import file_sha256
from h3core.weights.model_files import ModelError, Part, shown
from h3core.weights.safetensors import NAMES_SHOWN, read_json
from h3core.weights.shapes import SHAPES, folded

# The release's own tokens; they stand in tokenizer_config.json alone.   source: spec §6.1
H3_TOKENS = (
    "<d>", "</d>", "<|cutoff|>", "<|lyrics_start|>", "<|lyrics_end|>", "<|caption_start|>", "<|caption_end|>",
)  # fmt: skip
_HARMLESS = re.compile(r"zero_k_bias$")  # stored by the release, read by nobody


@dataclass(frozen=True)
class Finding:
    """One thing about a model. level: "error" (cannot run), "warning" (look at it) or "note" (what was found)."""

    level: str
    part: str  # of which part, for people; "" when of the whole
    sentence: str


def check(
    path: str | os.PathLike[str],
    partition: str = "fl2va",
    qkv_layout: str | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> list[Finding]:
    """Look at a model, or at one loose file of it. Never raises for what is wrong with the files.

    on_progress(file name, bytes done, bytes in all): while a file with a `.sha256` beside it is read whole.
    """
    try:
        located = locate(path, partition)
    except ModelError as error:
        return [Finding("error", "", str(error))]
    place = Path(os.path.abspath(os.path.expanduser(path)))
    alone = place.is_file() and not located.index  # one loose file: nothing is said about parts that are not it
    findings, parts = [], {}
    for kind in KINDS:
        source = located.sources.get(kind)
        if alone and (source is None or place not in source.files):
            continue
        if source is None:
            findings.append(Finding("error", WORDS[kind], located.missing[kind]))
            continue
        try:
            parts[kind] = open_part(source, qkv_layout)
        except ModelError as error:
            findings.append(Finding("error", WORDS[kind], str(error)))
            continue
        findings += _about(parts[kind])
        findings += _digests(parts[kind], on_progress)
    if not alone:
        findings += _tokenizer(located)
        if len(parts) == len(KINDS):
            try:
                together(located, parts, partition)
            except ModelError as error:
                findings.append(Finding("error", "", str(error)))
    return findings


def _about(part: Part) -> list[Finding]:
    """What the part is, tensors that nobody reads, bytes that no tensor covers."""
    word, formats = WORDS[part.kind], sorted({each.format for each in part.weights.values()})
    size = f"{part.size_bytes / 1e9:.2f} GB" if part.size_bytes >= 1e7 else f"{part.size_bytes / 1e6:.2f} MB"
    count = "1 file" if len(part.files) == 1 else f"{len(part.files)} files"
    tensors = f"{len(part.weights)} tensors, {', '.join(formats)}, {size} in {count}"
    findings = [Finding("note", word, f"{shown(part.files[0])}: {word}, {_blocks(part)}, {tensors}.")]
    known = set(SHAPES[part.kind](part.config))
    spare = [name for name in part.weights if name not in known and not _HARMLESS.search(name)]
    spare = [name for name in spare if f"{name}_v" not in known or folded(f"{name}_v") != name]
    if spare:
        more = f" and {len(spare) - 1} more" if len(spare) > 1 else ""
        findings.append(
            Finding("warning", word, f"{shown(part.files[0])} has {spare[0][:NAMES_SHOWN]}{more}, which nothing reads.")
        )
    for path in part.files:
        unused = read_header(path).unused_bytes
        if unused:
            findings.append(
                Finding(
                    "warning",
                    word,
                    f"{shown(path)} has {unused} bytes that belong to no tensor; compare its published size.",
                )
            )
    return findings


def _blocks(part: Part) -> str:
    """How many blocks, in the part's own word."""
    if part.kind == "audio_vae":
        return f"{len(part.config['decoder_rates'])} stages"
    if part.kind == "text_encoder":
        return f"{part.config['num_hidden_layers']} layers"
    return f"{part.config['num_layers' if part.kind == 'transformer' else 'decoder_num_layers']} blocks"


def _digests(part: Part, on_progress: Callable[[str, int, int], None] | None) -> list[Finding]:
    """Files that have a `name.sha256` beside them, against it."""
    findings = []
    for path in part.files:
        beside = path.with_name(f"{path.name}.sha256")
        if not beside.is_file():
            continue
        word = WORDS[part.kind]
        try:
            stated = re.match(r"\s*\\?([0-9a-fA-F]{64})\b", beside.read_text(encoding="utf-8", errors="replace")[:1000])
            if not stated:
                findings.append(Finding("warning", word, f"{shown(beside)} holds no SHA-256; download it again."))
                continue
            report = functools.partial(on_progress, shown(path)) if on_progress else None
            got = file_sha256(path, report)
        except OSError as error:
            findings.append(Finding("error", word, f"{shown(path)} cannot be read ({error.strerror}); check the disk."))
            continue
        if got == stated[1].lower():
            findings.append(Finding("note", word, f"{shown(path)} has the SHA-256 that {beside.name} states."))
        else:
            findings.append(
                Finding(
                    "error",
                    word,
                    f"{shown(path)} has SHA-256 {got[:16]}..., {beside.name} states {stated[1][:16].lower()}...; "
                    "download this file again.",
                )
            )
    return findings


def _tokenizer(located: Located) -> list[Finding]:
    """The tokenizer belongs to this model: it knows the tokens that MiniMax added."""
    folder = located.tokenizer
    if folder is None or not all((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        sentence = (
            f"{located.folder.name} has no whole tokenizer; put the folder tokenizer of MiniMaxAI/MiniMax-H3 into it."
        )
        return [Finding("error", "tokenizer", sentence)]
    path = folder / "tokenizer_config.json"
    try:
        config = read_json(path)
    except ModelError as error:
        return [Finding("error", "tokenizer", str(error))]
    listed: set[str] = set()
    for field in ("additional_special_tokens", "extra_special_tokens"):
        values = config.get(field)
        values = values.values() if isinstance(values, dict) else values if isinstance(values, list) else ()
        listed |= {str(each.get("content") if isinstance(each, dict) else each) for each in values}
    lost = [token for token in H3_TOKENS if token not in listed]
    if lost:
        sentence = (
            f"{shown(path)} lacks {lost[0]}, which MiniMax-H3's prompts use; use MiniMax-H3's own tokenizer folder."
        )
        return [Finding("error", "tokenizer", sentence)]
    return [Finding("note", "tokenizer", f"{shown(path)}: MiniMax-H3's tokens are there.")]
