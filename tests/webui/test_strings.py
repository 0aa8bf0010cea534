"""Texts are data: each language has the same ones, with the same places to fill."""

import re

from webui.strings import TEXT


def test_every_text_exists_in_every_language():
    for language, texts in TEXT.items():
        assert texts.keys() == TEXT["en"].keys(), language
        for name, text in texts.items():
            assert sorted(re.findall(r"{\w+}", text)) == sorted(re.findall(r"{\w+}", TEXT["en"][name])), name
