"""Training the tokenizer: byte-level BPE in Qwen2's style, with the seven H3 tokens where the release keeps them.

tokenizer.json knows the base vocabulary and 26 added tokens; the seven exist only in tokenizer_config.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

VOCABULARY = 1600
SPECIALS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
ADDED = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip
H3 = ("<d>", "</d>", "<|cutoff|>", "<|lyrics_start|>", "<|lyrics_end|>", "<|caption_start|>", "<|caption_end|>")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
OTHER_WORDS = (
    "<Picture 1>: <Picture 2>: <Audio 1>: <Video 1>: <0.2 seconds><1.2 seconds> 0 1 2 3 4 5 6 7 8 9",
    "[Shot 1] [Shot 2] At 00:00.917, the camera cuts. [Shot 3] At 00:01.625, cut to black.",
    "She says: [English] It's raining, isn't it? They're here and we'll go. I'd say you've won.",
    "integrated_multimodal_description: overall_soundscape: non_diegetic_music: None.",
)


def train(sentences: Iterable[str], path: Path) -> None:
    """Learn the merges from sentences and write the tokenizer's folder."""
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    level = dict(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False), pre_tokenizers.ByteLevel(**level)]
    )
    tok.post_processor = processors.ByteLevel(**level)
    tok.decoder = decoders.ByteLevel(**level)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tok.train_from_iterator(
        [*sentences, *OTHER_WORDS],
        trainers.BpeTrainer(vocab_size=VOCABULARY, min_frequency=2, initial_alphabet=alphabet, show_progress=False),
    )
    base = json.loads(tok.to_str())["model"]
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIALS])
    tok.add_tokens([AddedToken(t, special=False, normalized=False) for t in ADDED])
    path.mkdir(parents=True, exist_ok=True)
    full = json.loads(tok.to_str())
    (path / "tokenizer.json").write_text(json.dumps(full, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    (path / "vocab.json").write_text(json.dumps(base["vocab"], ensure_ascii=False) + "\n", encoding="utf-8")
    (path / "merges.txt").write_text("".join(" ".join(m) + "\n" for m in base["merges"]), encoding="utf-8")
    first = len(base["vocab"])
    known = {
        str(first + i): dict(
            content=t, lstrip=False, normalized=False, rstrip=False, single_word=False, special=i < len(SPECIALS)
        )
        for i, t in enumerate(SPECIALS + ADDED)
    }
    config = {
        "add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": known,
        "additional_special_tokens": [*SPECIALS[1:], *H3], "bos_token": None, "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>", "errors": "replace", "model_max_length": 262144, "pad_token": "<|endoftext|>",
        "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None,
    }  # fmt: skip
    (path / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


class MicroTokenizer:
    """The trained tokenizer with all 33 added tokens, as far as training needs it: text to ids."""

    def __init__(self, path: Path) -> None:
        self.tok = Tokenizer.from_file(str(path / "tokenizer.json"))
        self.tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in H3])
        self.unconditional = self.id("<|endoftext|>")

    def id(self, token: str) -> int:
        return self.tok.token_to_id(token)

    def __len__(self) -> int:
        return self.tok.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        return self.tok.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        return self.tok.decode(ids, skip_special_tokens=False)
