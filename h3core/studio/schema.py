"""What a person can ask for: every field once, with its kind, range, unit, default per model and help.

Flags, widgets, JSON and messages derive from FIELDS. `parse` turns raw values (a page, a command line, a file) into
a Request, or raises RequestError with one plain sentence per fault: the field, and the nearest legal values.
Knows no file, no engine and no page.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

FPS = 24  # spec §5
FRAME_PERIOD, FRAME_REST = 17, 5  # the video VAE makes 17n + 5 frames
MIN_FRAMES = 22  # n = 1; five frames (n = 0) have too few latents to be decoded
MAX_FRAMES = 362  # the longest length the release was trained on, 15 s; the reference stops one step earlier
CANVAS_STEP = 32  # VAE 16 times patch 2
MAX_PIXELS = 1032192  # canvas_max_pixels of the release
MAX_ASPECT = 4
MAX_STEPS = 1000
MAX_SEED = 2**64 - 1
MAX_TAKES = 100
RANDOM_SEED_LIMIT = 2**53  # seeds we draw survive every JSON reader, JavaScript's included
MAX_PROMPT = 32768  # characters; far above what the encoder was trained on, far below what fills memory
MICRO, H3 = "h3-micro", "MiniMax-H3"

RELEASE = "published by MiniMax"
UNMEASURED = "unmeasured"


class RequestError(ValueError):
    """The request cannot run. str() is one sentence per fault, one a line; `faults` maps field name to sentence."""

    def __init__(self, faults: Mapping[str, str]):
        super().__init__("\n".join(faults.values()))
        self.faults = dict(faults)


class _Fault(ValueError):
    """One sentence about one field."""


@dataclass(frozen=True)
class Default:
    value: Any
    source: str


@dataclass(frozen=True)
class Field:
    """One thing that can be asked for.

    kind: "text" | "size" | "count" | "seed" | "number" | "choice" | "path".   defaults: by model name.
    """

    name: str
    kind: str
    help: str
    defaults: Mapping[str, Default] = field(default_factory=dict)
    minimum: float = -math.inf
    maximum: float = math.inf
    unit: str = ""
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def default(self, model: str) -> Any:
        """The value used when nothing is given; models without a row of their own follow the release."""
        found = self.defaults.get(model) or self.defaults.get(H3)
        return found.value if found else None


def _both(value: Any, source: str) -> dict[str, Default]:
    return {MICRO: Default(value, source), H3: Default(value, source)}


FIELDS: dict[str, Field] = {
    f.name: f
    for f in (
        Field("prompt", "text", "What the film shows and sounds like."),
        Field("negative_prompt", "text", "What the film should not show; only with guidance.", _both("", "empty: off")),
        Field(
            "size",
            "size",
            "Width x height in pixels, multiples of 32.",
            {MICRO: Default("128x128", "the canvas it was trained on"), H3: Default("1344x768", RELEASE)},
            CANVAS_STEP,
            MAX_PIXELS,
            "pixels",
        ),
        Field(
            "frames",
            "count",
            "Length in frames at 24 a second; raised to the next 17n + 5.",
            {MICRO: Default(39, "the length its films were checked at"), H3: Default(124, RELEASE)},
            1,
            MAX_FRAMES,
            "frames",
        ),
        Field(
            "steps",
            "count",
            "Model evaluations. More is slower and usually better.",
            {MICRO: Default(20, "the steps its films were checked at"), H3: Default(49, "50 grid points, " + RELEASE)},
            1,
            MAX_STEPS,
            "steps",
        ),
        Field("seed", "seed", "The same seed gives the same film. Empty or -1 draws one.", {}, 0, MAX_SEED),
        Field(
            "takes",
            "count",
            "How many films to make of the request: each draws a seed, or counts up from the one given.",
            _both(1, "one request, one film"),
            1,
            MAX_TAKES,
        ),
        Field(
            "precision",
            "choice",
            "Arithmetic of the large matrices: exact is slowest, int8 fastest.",
            _both("bf16", "what the release is stored in"),
            choices=("exact", "bf16", "int8"),
        ),
        Field(
            "guidance",
            "number",
            "How strongly the film follows the prompt; each step is computed twice.",
            {MICRO: Default(None, UNMEASURED + ": off"), H3: Default(None, "built into the model")},
            1,
            20,
        ),
        Field(
            "residency",
            "choice",
            "Keep the weights in memory, stream them from disk, or decide by what is free.",
            _both("auto", "the plan decides"),
            choices=("auto", "resident", "streamed"),
        ),
        Field("threads", "count", "Worker threads; empty uses every physical core.", {}, 1, os.cpu_count() or 1),
        Field(
            "recipe",
            "choice",
            "Whether the film, and a file beside it, says how it was made.",
            _both("yes", "so that it can be made again"),
            choices=("yes", "no"),
        ),
        Field(
            "model", "path", "A model folder, a weight file, or a folder of loose parts; empty uses the built-in model."
        ),
        Field("output", "path", "Where the film goes, an .mp4 file; one that is there is kept and the new one numbered. Empty: the films folder."),
    )
}


@dataclass(frozen=True)
class ModelFacts:
    """What the schema needs to know of a model. path: absolute; name: as the defaults' table has it."""

    name: str = MICRO
    path: str = ""
    guidance_distilled: bool = True


@dataclass(frozen=True)
class Request:
    """A request that can run. seed None: drawn when the run starts.   threads None: every physical core.

    notes: what was adjusted, a sentence each.
    """

    prompt: str
    width: int
    height: int
    frames: int
    steps: int
    seed: int | None
    precision: str
    residency: str
    threads: int | None
    guidance: float | None
    negative_prompt: str
    model: str
    output: str | None
    recipe: str = "yes"
    takes: int = 1
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Values for JSON; the seed is text, since JavaScript keeps 53 bits only."""
        return asdict(self) | {"seed": None if self.seed is None else str(self.seed), "notes": list(self.notes)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Request:
        seed = values["seed"]
        return Request(**{**values, "seed": None if seed is None else int(seed), "notes": tuple(values["notes"])})

    def values(self) -> dict[str, Any]:
        """The raw values that `parse` makes this request of."""
        return {name: getattr(self, name) for name in FIELDS}

    @property
    def size(self) -> str:
        return f"{self.width}x{self.height}"


def parse(values: Mapping[str, Any], model: ModelFacts, *, prompt_required: bool = True) -> Request:
    """A Request from raw values; what is missing or None takes the model's default.

    prompt_required: False lets a plan be made before anything was typed.
    raises: RequestError with a sentence for each fault.
    """
    faults: dict[str, str] = {}
    notes: list[str] = []
    read: dict[str, Any] = {}
    for name in values.keys() - FIELDS.keys():
        faults[name] = f"{name}: there is no such field; the fields are {', '.join(FIELDS)}."
    for f in FIELDS.values():
        value = values.get(f.name)
        if value is None or (f.name != "prompt" and isinstance(value, str) and not value.strip()):
            value = f.default(model.name)
        try:
            read[f.name] = _READERS[f.kind](f, value, notes)
        except _Fault as fault:
            faults[f.name] = f"{f.name}: {fault}"
    if prompt_required and "prompt" not in faults and not read["prompt"].strip():
        faults["prompt"] = "prompt: is empty; write what the film should show."
    if faults:
        raise RequestError(faults)
    _check_guidance(read, model, notes)
    width, height = read.pop("size")
    read["model"] = read["model"] or model.path
    if read["takes"] > 1 and read["seed"] is not None:
        last = (read["seed"] + read["takes"] - 1) % (MAX_SEED + 1)
        notes.append(f"seed: the {read['takes']} takes use {read['seed']} to {last}.")
    return Request(**read, width=width, height=height, notes=tuple(notes))


def snap_frames(frames: int) -> int:
    """The next length the model can make: 17n + 5, at least 22. source: spec §5.1"""
    return max(MIN_FRAMES, -(-(frames - FRAME_REST) // FRAME_PERIOD) * FRAME_PERIOD + FRAME_REST)


def seconds(frames: int) -> str:
    return f"{frames / FPS:.1f} s"


def size_is_legal(width: int, height: int) -> bool:
    return (
        min(width, height) >= CANVAS_STEP
        and width % CANVAS_STEP == height % CANVAS_STEP == 0
        and max(width, height) <= MAX_ASPECT * min(width, height)
        and width * height <= MAX_PIXELS
    )


def nearest_sizes(width: int, height: int) -> list[tuple[int, int]]:
    """One or two legal canvases near this one: both sides down and both up where those are legal, else the closest."""
    down = (width // CANVAS_STEP * CANVAS_STEP, height // CANVAS_STEP * CANVAS_STEP)
    up = (-(-width // CANVAS_STEP) * CANVAS_STEP, -(-height // CANVAS_STEP) * CANVAS_STEP)
    around = [size for size in dict.fromkeys((down, up)) if size_is_legal(*size)]
    if len(around) == 2:
        return around
    longest = math.isqrt(MAX_PIXELS * MAX_ASPECT)
    sides = range(CANVAS_STEP, longest + 1, CANVAS_STEP)
    # log distance: half and double are equally far; huge numbers are cut first so that they become floats
    w, h = (math.log(min(max(side, 1), 10**9)) for side in (width, height))
    legal = ((a, b) for a in sides for b in sides if size_is_legal(a, b))
    return [min(legal, key=lambda s: (math.log(s[0]) - w) ** 2 + (math.log(s[1]) - h) ** 2)]


def shown(value: Any) -> str:
    """A value as a message can quote it: short, on one line, printable."""
    text = "".join(c if c.isprintable() else "?" for c in str(value))
    return text if len(text) <= 40 else text[:37] + "..."


def _read_text(f: Field, value: Any, notes: list[str]) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _Fault(f"is not text but {shown(value)!r}.")
    # line ends are the one thing normalised; otherwise the text reaches the encoder as typed
    text = value.replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text:
        raise _Fault("contains a NUL character; remove it.")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise _Fault("contains half a character, which is no valid text; type it again.")
    if len(text) > MAX_PROMPT:
        raise _Fault(f"has {len(text)} characters; at most {MAX_PROMPT} are possible.")
    return text


def _read_size(f: Field, value: Any, notes: list[str]) -> tuple[int, int]:
    match = (
        re.fullmatch(r"\s*([+-]?[0-9]{1,12})\s*[xX×*]\s*([+-]?[0-9]{1,12})\s*", value)
        if isinstance(value, str)
        else None
    )
    if not match:
        raise _Fault(f"{shown(value)!r} is not a size; write width x height, like 128x128 or 1344x768.")
    width, height = int(match[1]), int(match[2])
    if size_is_legal(width, height):
        return width, height
    if min(width, height) < CANVAS_STEP:
        why = f"a side has at least {CANVAS_STEP} pixels"
    elif width % CANVAS_STEP or height % CANVAS_STEP:
        why = f"both sides must be multiples of {CANVAS_STEP}"
    elif max(width, height) > MAX_ASPECT * min(width, height):
        why = f"one side can be at most {MAX_ASPECT} times the other"
    else:
        why = f"{width * height} pixels are more than the {MAX_PIXELS} the model can make"
    near = " and ".join(f"{w}x{h}" for w, h in nearest_sizes(width, height))
    raise _Fault(f"{width}x{height} is not possible, {why}; nearest: {near}.")


def _whole(f: Field, value: Any) -> int:
    """A whole number written in plain ASCII digits; spaces around it are fine, 1e3, 0x10 and 4.0 are not."""
    if isinstance(value, float) and value.is_integer() and abs(value) < RANDOM_SEED_LIMIT and f.kind != "seed":
        return int(value)  # a slider sends 39.0
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-(10**30), min(value, 10**30))  # far outside every range, and short enough to be quoted
    text = value.strip() if isinstance(value, str) else ""
    if not re.fullmatch(r"[+-]?[0-9]{1,4000}", text):
        raise _Fault(f"{shown(value)!r} is not a whole number; use one from {f.minimum:.0f} to {_limit(f)}.")
    return int(text)


def _limit(f: Field) -> str:
    return str(f.maximum) if isinstance(f.maximum, int) else f"{f.maximum:g}"


def _read_count(f: Field, value: Any, notes: list[str]) -> int | None:
    if value is None:
        return None
    number = _whole(f, value)
    longest = f" ({seconds(MAX_FRAMES)})" if f.name == "frames" else ""
    if number < f.minimum:
        least = f"{MIN_FRAMES} ({seconds(MIN_FRAMES)})" if f.name == "frames" else f"{f.minimum:.0f}"
        raise _Fault(f"{shown(number)} is too few; the least is {least}.")
    if number > f.maximum:
        raise _Fault(f"{shown(number)} is too many; the most is {_limit(f)}{longest}.")
    if f.name == "frames" and snap_frames(number) != number:
        snapped = snap_frames(number)
        notes.append(
            f"frames: {number} was raised to {snapped} ({seconds(snapped)}), the next length the model can make."
        )
        return snapped
    return number


def _read_seed(f: Field, value: Any, notes: list[str]) -> int | None:
    if value is None or value == -1 or (isinstance(value, str) and value.strip() in ("", "-1")):
        return None
    number = _whole(f, value)
    if not 0 <= number <= MAX_SEED:
        raise _Fault(f"{shown(number)} is out of range; use 0 to {MAX_SEED}, or nothing for a random one.")
    return number


def _read_number(f: Field, value: Any, notes: list[str]) -> float | None:
    if value is None:
        return None
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not f.minimum <= number <= f.maximum:
        raise _Fault(f"{shown(value)!r} is not possible; use a number from {f.minimum:g} to {f.maximum:g}.")
    return number


def _read_choice(f: Field, value: Any, notes: list[str]) -> str:
    text = value.strip().lower() if isinstance(value, str) else value
    if text not in f.choices:
        raise _Fault(f"{shown(value)!r} is not known; choose {', '.join(f.choices[:-1])} or {f.choices[-1]}.")
    return text


def _read_path(f: Field, value: Any, notes: list[str]) -> str | None:
    if value is None:
        return None
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or "\0" in text:
        raise _Fault(f"{shown(value)!r} is not a path.")
    if any("\ud800" <= c <= "\udfff" for c in text):  # the store and every message are UTF-8
        raise _Fault(f"{shown(value)!r} has letters that are not UTF-8; rename it or choose another.")
    path = os.path.abspath(os.path.expanduser(text))  # absolute, since the worker may run elsewhere
    if f.name == "output" and not path.lower().endswith(".mp4"):
        raise _Fault(f"{shown(os.path.basename(path))!r} does not end in .mp4; films are MP4 files.")
    return path


_READERS = {
    "text": _read_text,
    "size": _read_size,
    "count": _read_count,
    "seed": _read_seed,
    "number": _read_number,
    "choice": _read_choice,
    "path": _read_path,
}


def _check_guidance(read: dict[str, Any], model: ModelFacts, notes: list[str]) -> None:
    """Guidance where the model has it; elsewhere the value is not used, and one line says so."""
    if model.guidance_distilled:
        asked = [name for name in ("guidance", "negative_prompt") if read[name]]
        if asked:
            notes.append(f"{asked[0]}: {model.name} has guidance built in, so this value is not used.")
        read["guidance"], read["negative_prompt"] = None, ""
    elif read["negative_prompt"].strip() and not read["guidance"]:
        notes.append("negative_prompt: it works only together with guidance, so it is not used.")
        read["negative_prompt"] = ""
