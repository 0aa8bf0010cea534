"""Text to token ids: Qwen2's byte-level BPE and the tokens MiniMax added to it.

Seven of those tokens (`<d>`, `</d>`, `<|cutoff|>`, `<|lyrics_start|>` ...) exist only in tokenizer_config.json; a
loader that reads tokenizer.json alone splits them into pieces, and the model then never hears the dialogue.
"""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

# The literal pattern of Qwen2's tokenizer.json: contractions; letters; single digits; punctuation; line ends; spaces.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Tokenizer:
    """The conditioner's tokenizer: no template, no token before or after the text."""

    def __init__(self, folder: Path):
        """folder: holds tokenizer.json, or vocab.json and merges.txt; and tokenizer_config.json if there is one.

        raises: ValueError when neither is there or a file cannot be read.
        """
        folder = Path(folder)
        self._tokens = _read(folder)
        config = folder / "tokenizer_config.json"
        if config.is_file():
            self._add(_load(config))

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, taken verbatim; an empty text has none."""
        return self._tokens.encode(text, add_special_tokens=False).ids

    def id(self, token: str) -> int:
        """The id of a token known by name, such as `<|image_pad|>`.

        raises: KeyError when the vocabulary has no such token.
        """
        number = self._tokens.token_to_id(token)
        if number is None:
            raise KeyError(f"the tokenizer has no token {token}")
        return number

    def _add(self, config: dict) -> None:
        """Tokens that only the config lists, in list order: they get the next free ids."""
        by_id = sorted((config.get("added_tokens_decoder") or {}).items(), key=lambda item: int(item[0]))
        listed = [token for _, token in by_id]
        for name in ("additional_special_tokens", "extra_special_tokens"):
            extra = config.get(name) or []
            listed += list(extra.values()) if isinstance(extra, dict) else extra
        for token in listed:
            content = token if isinstance(token, str) else token["content"]
            if self._tokens.token_to_id(content) is None:
                self._tokens.add_special_tokens([AddedToken(content, normalized=False, special=True)])


def _read(folder: Path) -> tokenizers.Tokenizer:
    complete, vocabulary, merges = folder / "tokenizer.json", folder / "vocab.json", folder / "merges.txt"
    if complete.is_file():
        try:
            return tokenizers.Tokenizer.from_file(str(complete))
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"{complete} is not a tokenizer: {error}") from error
    if not (vocabulary.is_file() and merges.is_file()):
        raise ValueError(f"{folder} holds no tokenizer.json, nor vocab.json and merges.txt")
    lines = merges.read_text(encoding="utf-8").splitlines()
    pairs = [
        (first, second) for first, second in (line.split(" ") for line in lines if line and line[:8] != "#version")
    ]
    tokens = tokenizers.Tokenizer(models.BPE(vocab=_load(vocabulary), merges=pairs))
    tokens.normalizer = normalizers.NFC()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokens.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_SPLIT), "isolated"), byte_level])
    return tokens


def _load(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
