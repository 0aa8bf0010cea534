"""Every raw value a person may type, and what becomes of it."""

import json

import pytest

from h3core.studio import schema
from h3core.studio.schema import ModelFacts, Request, RequestError, parse

MODEL = ModelFacts(name=schema.MICRO, path="/models/micro")


def read(**values) -> Request:
    return parse({"prompt": "a red ball", **values}, MODEL)


def fault(**values) -> str:
    with pytest.raises(RequestError) as caught:
        read(**values)
    (sentence,) = caught.value.faults.values()
    assert "\n" not in sentence and sentence.endswith(".")
    return sentence


def test_defaults_of_each_model_have_a_source():
    for field in schema.FIELDS.values():
        assert field.help.endswith(".")
        for default in field.defaults.values():
            assert default.source
    micro, large = read(), parse({"prompt": "x"}, ModelFacts(name=schema.H3, path="/h3"))
    assert (micro.size, micro.frames, micro.steps, micro.seed, micro.model) == (
        "128x128",
        39,
        20,
        None,
        "/models/micro",
    )
    assert (large.size, large.frames, large.steps) == ("1344x768", 124, 49)
    assert parse({"prompt": "x"}, ModelFacts(name="somebody's", path="/m")).size == "1344x768"


@pytest.mark.parametrize("prompt", ["", " ", "\n\t ", None])
def test_empty_prompt(prompt):
    assert "prompt" in fault(prompt=prompt) and "write what" in fault(prompt=prompt)


def test_plan_needs_no_prompt():
    assert parse({"prompt": ""}, MODEL, prompt_required=False).prompt == ""


@pytest.mark.parametrize("prompt", ["a\0b", "half \ud83d of a cat", "x" * 40000, 7])
def test_impossible_prompt(prompt):
    assert fault(prompt=prompt).startswith("prompt: ")


@pytest.mark.parametrize(
    "prompt",
    [
        "two\nlines",
        "# not a comment",
        "!bang",
        "{brace}",
        "[Shot 1] x",
        "<Picture 1>: x",
        " spaced ",
        '🐱 红狐狸 "q" ’ é',
        "a" * 10000,
    ],
)
def test_prompt_stays_as_typed(prompt):
    assert read(prompt=prompt).prompt == prompt


def test_line_ends_are_normalised():
    assert read(prompt="a\r\nb\rc\n\nd").prompt == "a\nb\nc\n\nd"


@pytest.mark.parametrize(
    ("size", "names"),
    [
        ("500x500", "480x480 and 512x512"),
        ("1056x592", "1056x576 and 1056x608"),
        ("1376x768", "1344x768"),
        ("0x0", "32x32"),
        ("-64x64", "32x64"),
        ("31x31", "32x32"),
        ("64x512", "nearest"),
        ("999999999999x32", "nearest"),
    ],
)
def test_impossible_size_names_the_nearest(size, names):
    sentence = fault(size=size)
    assert sentence.startswith("size: ") and names in sentence


@pytest.mark.parametrize("width", [1, 31, 33, 500, 4096, 10**9])
@pytest.mark.parametrize("height", [1, 100, 768, 2000])
def test_nearest_sizes_are_legal(width, height):
    assert all(schema.size_is_legal(*size) for size in schema.nearest_sizes(width, height))


@pytest.mark.parametrize(
    "size", ["square", "128", "128x", "x128", "12.5x64", "1e2x64", "١٢٨x١٢٨", 128, "9" * 50 + "x64"]
)
def test_what_is_no_size(size):
    assert "not a size" in fault(size=size)


@pytest.mark.parametrize("size", ["128x64", " 128 X 64\n", "128×64", "128*64"])
def test_ways_to_write_a_size(size):
    assert (read(size=size).width, read(size=size).height) == (128, 64)


@pytest.mark.parametrize(
    ("asked", "made"),
    [(1, 22), (5, 22), (22, 22), (23, 39), (39, 39), (" 40 ", 56), (39.0, 39), (362, 362), (346, 362)],
)
def test_frames_are_raised_and_said(asked, made):
    request = read(frames=asked)
    assert request.frames == made and made % 17 == 5
    assert bool(request.notes) == (str(asked).strip() not in (str(made), f"{made}.0"))


@pytest.mark.parametrize(
    "frames", [0, -1, 363, 10**9, "1e9", "0x10", "4.5", 4.5, "nan", float("inf"), "9" * 5000, True]
)
def test_impossible_frames(frames):
    assert fault(frames=frames).startswith("frames: ")


def test_frames_messages_name_the_limits():
    assert "22" in fault(frames=0) and "362" in fault(frames=10**9)


@pytest.mark.parametrize("steps", [0, -3, 1001, "many", "1e3"])
def test_impossible_steps(steps):
    assert fault(steps=steps).startswith("steps: ")


@pytest.mark.parametrize(
    ("seed", "value"),
    [
        ("1798406481619217041", 1798406481619217041),
        (2**64 - 1, 2**64 - 1),
        (" 42 ", 42),
        ("42\n", 42),
        ("007", 7),
        (0, 0),
        ("", None),
        ("  ", None),
        (-1, None),
        ("-1", None),
        (None, None),
    ],
)
def test_seed_to_the_last_digit(seed, value):
    request = read(seed=seed)
    assert request.seed == value
    assert Request.from_json(json.loads(json.dumps(request.to_json()))) == request


@pytest.mark.parametrize("seed", ["1e3", "0x10", "4.0", 4.0, "٤٢", "4 2", "1_000", "abc", True])
def test_what_is_no_seed(seed):
    assert "not a whole number" in fault(seed=seed)


@pytest.mark.parametrize("seed", [10**23, -5, 2**64, "9" * 3000])
def test_seed_out_of_range(seed):
    assert "18446744073709551615" in fault(seed=seed) and len(fault(seed=seed)) < 200


def test_choices_paths_and_numbers():
    assert "exact, bf16 or int8" in fault(precision="fp4")
    assert ".mp4" in fault(output="film.avi")
    assert fault(threads=0).startswith("threads: ")
    assert read(precision=" INT8 ").precision == "int8"
    assert read(output="film.mp4").output.startswith("/")
    assert "not UTF-8" in fault(output="\udcff.mp4") and "not UTF-8" in fault(model="/m/\udcff")
    assert fault(guidance=10**400).startswith("guidance: ")


def test_unknown_field_is_named():
    assert "there is no such field" in fault(colour="red")


def test_one_sentence_for_each_fault():
    with pytest.raises(RequestError) as caught:
        parse({"prompt": "", "size": "500x500", "steps": 0}, MODEL)
    assert set(caught.value.faults) == {"prompt", "size", "steps"} and len(str(caught.value).splitlines()) == 3


def test_guidance_only_where_the_model_has_it():
    request = read(guidance=3)
    assert request.guidance is None and "built in" in request.notes[0]
    free = ModelFacts(name=schema.MICRO, path="/m", guidance_distilled=False)
    assert parse({"prompt": "x", "guidance": "3.5", "negative_prompt": "blue"}, free).guidance == 3.5
    assert parse({"prompt": "x", "negative_prompt": "blue"}, free).notes[0].startswith("negative_prompt: ")
    with pytest.raises(RequestError):
        parse({"prompt": "x", "guidance": "nan"}, free)
