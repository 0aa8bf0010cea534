"""Token ids against the reference's, and the tokens that only tokenizer_config.json knows."""

import json
import shutil

import numpy as np
import pytest

from h3core.model.tokenizer import Tokenizer
from tests.golden_files import TINY, compare, golden, golden_json

FOLDER = TINY / "tokenizer"
PROMPTS = golden_json("text")["prompts"]


@pytest.mark.parametrize("name", PROMPTS)
def test_ids(name):
    ids = Tokenizer(FOLDER).encode(PROMPTS[name]["text"])
    assert ids == PROMPTS[name]["ids"]
    compare("ids", np.array(ids), golden("text")[f"{name}.ids"], 0)


def test_the_seven_tokens_follow_the_last_id():
    tokens = Tokenizer(FOLDER)
    names = ["<d>", "</d>", "<|cutoff|>", "<|lyrics_start|>", "<|lyrics_end|>", "<|caption_start|>", "<|caption_end|>"]
    assert [tokens.id(name) for name in names] == list(range(391, 398))


def test_no_text_has_no_tokens():
    assert Tokenizer(FOLDER).encode("") == []


def test_vocabulary_and_merges_alone_give_the_same_ids(tmp_path):
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        shutil.copy(FOLDER / name, tmp_path)
    tokens = Tokenizer(tmp_path)
    for prompt in PROMPTS.values():
        assert tokens.encode(prompt["text"]) == prompt["ids"]


@pytest.mark.parametrize("as_dict", [False, True])
def test_newer_files_call_the_list_extra(tmp_path, as_dict):
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    extra = config.pop("additional_special_tokens")
    config["extra_special_tokens"] = {f"token_{i}": name for i, name in enumerate(extra)} if as_dict else extra
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer(tmp_path).encode(PROMPTS["dialogue"]["text"]) == PROMPTS["dialogue"]["ids"]


@pytest.mark.parametrize(("name", "content"), [(None, ""), ("tokenizer.json", "{"), ("tokenizer_config.json", "{")])
def test_broken_folders_are_refused(tmp_path, name, content):
    if name == "tokenizer_config.json":
        shutil.copy(FOLDER / "tokenizer.json", tmp_path)
    if name:
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match="token"):
        Tokenizer(tmp_path)


def test_unknown_names_are_refused():
    with pytest.raises(KeyError, match="no_such"):
        Tokenizer(FOLDER).id("<|no_such|>")
