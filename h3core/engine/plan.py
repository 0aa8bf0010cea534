"""What a run will cost, before anything is loaded: rows, work, memory by phase, disk, time, and whether it fits.

The plan is the allocation: each phase's buffers are declared by h3core.model.memory and this sums what the arena will
allocate. Pure Python over headers and configs; no extension, no weights. Also home of `Settings`, the engine's request.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from h3core.model import memory
from h3core.model.config import TextConfig, TransformerConfig
from h3core.model.layout import (
    AUDIO,
    CANVAS_MULTIPLE,
    SPACE_RATIO,
    TEXT,
    VIDEO,
    audio_latents,
    latent_frames,
    row_count,
    snap_frames,
)
from h3core.model.memory import Buffer
from h3core.model.precision import PRECISIONS, kind
from h3core.model.schedule import Pairs, Schedule, distinct_pairs, schedule
from h3core.model.tiling import decode_plan
from h3core.model.tokenizer import Tokenizer
from h3core.model.vae_config import AudioVaeConfig, VideoVaeConfig
from h3core.weights.formats.table import FORMATS
from h3core.weights.model_files import ModelFiles, Weight

RESIDENCIES = ("auto", "resident", "streamed")
END_OF_TEXT = "<|endoftext|>"  # what the pass without the prompt is conditioned on
MAX_SEED = 2**64 - 1
MIN_FRAMES = 22  # five frames have too few latents to be decoded
PROCESS_BYTES = 80 << 20  # the interpreter, numpy and the extensions before any weight; measured
ENCODER_BYTES, ENCODER_PIXEL_BYTES = 44 << 20, 235  # ffmpeg with 4 threads, and per pixel of the canvas; measured
SAFE_SHARE = 0.92  # of the memory that is free now: other programs go on living
WARM_SHARE = 0.6  # weights are kept for the next run only if that leaves the machine usable
SLOTS = 2  # block slots when streaming

# Guesses, used until a run on this machine has measured its own: FLOP per second and thread.
GUESSED_FLOP_S = {"f32": 25e9, "bf16": 80e9, "int8": 150e9}
PHASES = ("text", "adaln", "denoise", "audio", "video", "mux")
PARTS_OF_PHASES = {
    "text": "text",
    "adaln": "dit.refiner",
    "denoise": "dit.block",
    "audio": "audio",
    "video": "video_decoder",
}


class SettingsError(ValueError):
    """A request that the engine cannot run: one sentence that names the field."""


@dataclass(frozen=True)
class Settings:
    """What one run is to make. `steps` are model evaluations. None: the model's own value, or every physical core.

    start_step, start_latents: begin at that step from noised given latents instead of from noise. The file holds
    float32 "video" (24, T, h, w) and "audio" (2, 32, A), normalised.
    noise_guard: stop when the estimate is white noise.   recipe: the film carries its settings, and so does a file
    beside it.
    """

    prompt: str
    width: int
    height: int
    frames: int
    steps: int
    seed: int
    negative_prompt: str = ""
    precision: str = "bf16"
    guidance: float = 1.0
    residency: str = "auto"
    threads: int | None = None
    shift_video: float | None = None
    shift_audio: float | None = None
    start_step: int = 0
    start_latents: str | None = None
    noise_guard: bool = True
    recipe: bool = True

    def __post_init__(self) -> None:
        for wrong, sentence in self._faults():
            if wrong:
                raise SettingsError(sentence)

    def _faults(self) -> Iterator[tuple[bool, str]]:
        yield not self.prompt.strip(), "The prompt is empty: write what the film should show."
        size = f"{self.width}x{self.height}"
        yield (
            min(self.width, self.height) < CANVAS_MULTIPLE,
            f"A film of {size} is too small: a side has at least 32 pixels.",
        )
        odd = self.width % CANVAS_MULTIPLE or self.height % CANVAS_MULTIPLE
        yield bool(odd), f"A film of {size} is not possible: both sides must be multiples of {CANVAS_MULTIPLE}."
        yield self.frames < 1, f"{self.frames} frames are too few."
        yield self.steps < 1, f"{self.steps} steps are too few: at least one evaluation is needed."
        yield not 0 <= self.seed <= MAX_SEED, f"The seed {self.seed} is not between 0 and {MAX_SEED}."
        yield self.precision not in PRECISIONS, f"The precision {self.precision!r} is none of {', '.join(PRECISIONS)}."
        yield (
            self.residency not in RESIDENCIES,
            f"The residency {self.residency!r} is none of {', '.join(RESIDENCIES)}.",
        )
        yield not self.guidance >= 1, f"A guidance of {self.guidance} is too low: 1 is off."
        yield self.threads is not None and self.threads < 1, f"{self.threads} threads are too few."
        yield (
            not 0 <= self.start_step < self.steps,
            f"The first step {self.start_step} is not among the {self.steps} steps.",
        )
        yield (
            self.start_step > 0 and not self.start_latents,
            "A run that begins in the middle needs latents to begin from.",
        )

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Settings:
        """From the JSON of a message; the seed may be text, None takes the default.

        raises: SettingsError naming the field that is missing, unknown or of the wrong kind.
        """
        known = {each.name: each for each in fields(cls)}
        unknown = sorted(values.keys() - known.keys())
        if unknown:
            raise SettingsError(f"The engine knows no setting {unknown[0]!r}.")
        given = {name: value for name, value in values.items() if value is not None}
        for name in ("width", "height", "frames", "steps", "seed", "threads", "start_step"):
            if name in given:
                given[name] = _whole(name, given[name])
        for name in ("guidance", "shift_video", "shift_audio"):
            if name in given:
                given[name] = _number(name, given[name])
        missing = [name for name in ("prompt", "width", "height", "frames", "steps", "seed") if name not in given]
        if missing:
            raise SettingsError(f"The setting {missing[0]!r} is missing.")
        return cls(**given)

    def to_json(self) -> dict[str, Any]:
        """Values for a message or a recipe; the seed is text, since JavaScript keeps 53 bits only."""
        return asdict(self) | {"seed": str(self.seed)}

    def snapped(self) -> Settings:
        """With the frame count the model can make."""
        return replace(self, frames=max(MIN_FRAMES, snap_frames(self.frames)))


def _whole(name: str, value: Any) -> int:
    try:
        if isinstance(value, bool) or (int(value) != value and not isinstance(value, str)):
            raise ValueError
        return int(value)
    except (TypeError, ValueError):
        raise SettingsError(f"The setting {name!r} is {str(value)[:40]!r}, not a whole number.") from None


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise SettingsError(f"The setting {name!r} is {str(value)[:40]!r}, not a number.")
    return number


def home() -> Path:
    """The user folder: H3_HOME, else ~/.h3."""
    return Path(os.environ.get("H3_HOME") or Path.home() / ".h3").absolute()


@functools.lru_cache(maxsize=4)
def tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a model, read once a process. raises: SettingsError when its files are damaged."""
    try:
        return Tokenizer(folder)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise SettingsError(
            f"The tokenizer in {folder} cannot be read ({error}); put the model's own tokenizer folder there."
        ) from error


def unconditional(settings: Settings) -> str:
    """What the second pass of guidance is conditioned on."""
    return settings.negative_prompt if settings.negative_prompt.strip() else END_OF_TEXT


def guided(settings: Settings, model: ModelFiles) -> bool:
    """Whether each step is computed twice. The released model has guidance built in, so there it never is."""
    return settings.guidance != 1 and not model.manifest.guidance_distilled


def texts(settings: Settings, model: ModelFiles) -> list[list[int]]:
    """Token ids of the prompt, and of the text of the second pass if there is one.

    raises: SettingsError when the prompt has no tokens.
    """
    encode = tokenizer(model.tokenizer).encode
    both = [settings.prompt, unconditional(settings)] if guided(settings, model) else [settings.prompt]
    ids = [encode(text) for text in both]
    if not all(ids):
        raise SettingsError("The prompt has no words the model knows.")
    return ids


def latent_shape(settings: Settings) -> tuple[int, int, int]:
    """(T, h, w) of a film's video latent; settings snapped."""
    return latent_frames(settings.frames), settings.height // SPACE_RATIO, settings.width // SPACE_RATIO


def schedules(settings: Settings, model: ModelFiles) -> tuple[Schedule, Schedule]:
    """Noise levels of video and sound, of one length.

    raises: SettingsError for a shift that is no shift.
    """
    shifts = (settings.shift_video or model.shifts[0], settings.shift_audio or model.shifts[1])
    try:
        video, audio = (schedule(settings.steps + 1, shift) for shift in shifts)
    except ValueError as error:
        raise SettingsError(f"{error}.") from error
    if not video.evaluations == audio.evaluations == settings.steps:
        raise SettingsError(
            f"{settings.steps} steps are too many for a shift of {max(shifts):g}: some would not differ."
        )
    return video, audio


def pairs(video: Schedule, audio: Schedule) -> Pairs:
    """Every (time, modality) that a film from text meets: text follows the video's time."""
    tags = np.repeat(np.array([VIDEO, TEXT, AUDIO], np.int32), video.evaluations)
    return distinct_pairs([(np.concatenate((video.times, video.times, audio.times)), tags)])


@dataclass(frozen=True)
class Phase:
    """One phase of a run. buffers: what the arena will allocate.   weights: bytes of its weights held at once.

    kept: bytes that other phases left behind on purpose.   flop: floating-point operations.
    """

    name: str
    buffers: Mapping[str, Buffer]
    weights: int
    kept: int
    flop: float
    expected_s: float

    @property
    def peak_bytes(self) -> int:
        return PROCESS_BYTES + memory.size_bytes(self.buffers) + self.weights + self.kept


@dataclass(frozen=True)
class Plan:
    """A run in figures.

    settings: with everything resolved.   rows: of the packed sequence.   residency: phase -> "resident" | "streamed".
    warm: phases whose weights stay for the next run.   batch: VAE units decoded together.
    measured: whether the time rests on runs of this machine rather than on a guess.
    sentence: what to tell; when it does not fit, the single change that makes it fit.
    """

    settings: Settings
    text_rows: tuple[int, ...]
    rows: int
    phases: tuple[Phase, ...]
    residency: Mapping[str, str]
    warm: frozenset[str]
    batch: int
    memory_bytes: int
    disk_bytes: int
    measured: bool
    fits: bool
    sentence: str
    threads: int = field(default=1)

    @property
    def peak_bytes(self) -> int:
        """The largest phase."""
        return max(phase.peak_bytes for phase in self.phases)

    @property
    def flop(self) -> float:
        return sum(phase.flop for phase in self.phases)

    @property
    def expected_s(self) -> float:
        return sum(phase.expected_s for phase in self.phases)

    def phase(self, name: str) -> Phase:
        return next(phase for phase in self.phases if phase.name == name)

    def to_json(self) -> dict[str, Any]:
        """Figures for a page or a message."""
        return {
            "width": self.settings.width,
            "height": self.settings.height,
            "frames": self.settings.frames,
            "rows": self.rows,
            "text_rows": list(self.text_rows),
            "flop": self.flop,
            "peak_bytes": self.peak_bytes,
            "memory_bytes": self.memory_bytes,
            "disk_bytes": self.disk_bytes,
            "expected_s": self.expected_s,
            "measured": self.measured,
            "fits": self.fits,
            "sentence": self.sentence,
            "residency": dict(self.residency),
            "phases": [
                {"name": each.name, "peak_bytes": each.peak_bytes, "flop": each.flop, "expected_s": each.expected_s}
                for each in self.phases
            ],
        }


def make_plan(settings: Settings, model: ModelFiles, memory_bytes: int, speeds: Speeds | None = None) -> Plan:
    """The plan of a run on a machine with so many bytes free.

    raises: SettingsError when the run is not possible whatever the memory.
    """
    settings = settings.snapped()
    speeds = speeds or Speeds()
    planner = _Planner(settings, model, memory_bytes, speeds)
    plan = planner.plan()
    return plan if plan.fits else replace(plan, sentence=_what_fits(plan, planner))


class _Planner:
    """Sums what a run's phases need. Sizes first, then who stays in memory."""

    def __init__(self, settings: Settings, model: ModelFiles, memory_bytes: int, speeds: Speeds):
        self.settings, self.model, self.memory_bytes, self.speeds = settings, model, memory_bytes, speeds
        self.limit = int(memory_bytes * SAFE_SHARE)
        self.text_rows = tuple(len(ids) for ids in texts(settings, model))
        self.dit = TransformerConfig.of(model.transformer.config)
        self.text = TextConfig.of(model.text_encoder.config)
        self.vae = VideoVaeConfig.of(model.video_vae.config)
        self.audio = AudioVaeConfig.of(model.audio_vae.config)
        self.latents = latent_frames(settings.frames)
        self.sound = audio_latents(settings.frames)
        side = CANVAS_MULTIPLE
        self.video_rows = self.latents * (settings.height // side) * (settings.width // side)
        self.rows = max(row_count(n, settings.frames, settings.height, settings.width) for n in self.text_rows)
        self.passes = len(self.text_rows)
        self.latent = latent_shape(settings)
        self.decode = decode_plan(self.vae, *self.latent)
        self.pairs = pairs(*schedules(settings, model))
        # bytes of each block that can be streamed, largest first
        streams = {"text": text_groups(model), "denoise": transformer_groups(model), "video": video_groups(model)}
        self.groups = {name: sorted(map(loaded_bytes, blocks), reverse=True) for name, blocks in streams.items()}

    def plan(self) -> Plan:
        settings = self.settings
        residency, warm, batch = self.memory_policy()
        phases = tuple(self.phase(name, residency, warm, batch) for name in PHASES)
        threads = settings.threads or physical_cores()
        rates = {phase.name: self.rate(phase.name, threads) for phase in phases}
        phases = tuple(replace(phase, expected_s=phase.flop / rates[phase.name][0]) for phase in phases)
        peak = max(phase.peak_bytes for phase in phases)
        measured = all(rates[name][1] for name in ("denoise", "video"))
        plan = Plan(
            settings=settings,
            text_rows=self.text_rows,
            rows=self.rows,
            phases=phases,
            residency=residency,
            warm=warm,
            batch=batch,
            memory_bytes=self.memory_bytes,
            disk_bytes=self.disk_bytes(),
            measured=measured,
            fits=peak <= self.limit,
            sentence="",
            threads=threads,
        )
        about = "" if measured else " (a guess until the first run on this machine)"
        said = f"About {spoken_s(plan.expected_s)}{about}, {spoken_bytes(peak)} of memory at the most."
        return replace(plan, sentence=said)

    # Who stays in memory

    def memory_policy(self) -> tuple[dict[str, str], frozenset[str], int]:
        """(residency by phase, warm parts, VAE batch): the fastest choice that fits, else the smallest there is."""
        asked = self.settings.residency
        residency = {name: "streamed" if asked == "auto" else asked for name in self.groups}
        if asked == "auto":  # the steps read the transformer again and again; text layers and VAE blocks pass once
            resident = {**residency, "denoise": "resident"}
            if self.phase("denoise", resident, frozenset(), 1).peak_bytes <= self.limit:
                residency = resident
        warm: set[str] = set()
        for name in ("denoise", "video", "text"):  # a new seed needs the first two, a new prompt all three
            trial = residency if asked == "streamed" else {**residency, name: "resident"}
            peak = max(self.phase(each, trial, frozenset(warm | {name}), 1).peak_bytes for each in PHASES)
            if trial[name] == "resident" and peak <= self.memory_bytes * WARM_SHARE:
                residency, warm = trial, warm | {name}
        kept = frozenset(warm)
        batch = self.decode.units
        while batch > 1 and self.phase("video", residency, kept, batch).peak_bytes > self.limit:
            batch = (batch + 1) // 2
        return residency, kept, batch

    def phase(self, name: str, residency: Mapping[str, str], warm: frozenset[str], batch: int) -> Phase:
        weights = self.fixed_bytes(name)
        if name in self.groups:
            weights += sum(self.groups[name][: None if residency[name] == "resident" else SLOTS])
        kept = sum(sum(self.groups[other]) for other in warm if other != name) + self.left_behind(name)
        buffers = getattr(self, f"{name}_buffers")(batch) if name == "video" else getattr(self, f"{name}_buffers")()
        return Phase(name, buffers, weights, kept, getattr(self, f"{name}_flop")(), 0.0)

    def left_behind(self, name: str) -> int:
        """What lies beside a phase: latents always, table and text while denoising, the encoder while decoding."""
        latents = 3 * 4 * (self.video_rows * self.dit.row_width + 2 * self.sound * self.dit.audio_in_channels)
        if name == "denoise":
            latents += sum(self.text_rows) * self.dit.hidden_size * 4 + self.table().size_bytes
        if name in ("video", "mux"):  # the encoder is a process of its own, but of the same memory
            latents += 2 * self.sound * self.audio.hop * 4
            latents += ENCODER_BYTES + ENCODER_PIXEL_BYTES * self.settings.width * self.settings.height
        return latents

    def fixed_bytes(self, name: str) -> int:
        """Weights outside the blocks. Arrays become float32 whatever they are stored in."""
        model = self.model
        if name == "text":
            return sum(self.text_rows) * self.text.hidden_size * 4  # rows of the embedding alone
        if name == "adaln":
            refiner = [loaded_bytes(group) for group in refiner_groups(model)]
            adaln = [loaded_bytes(group) for group in adaln_groups(model)]
            return loaded_bytes(refiner_fixed(model)) + max(sum(sorted(refiner)[-SLOTS:]), sum(sorted(adaln)[-SLOTS:]))
        if name == "denoise":
            return loaded_bytes(transformer_fixed(model))
        if name == "audio":
            return 2 * loaded_bytes(audio_decoder(model))  # folded, and packed for the convolutions
        return loaded_bytes(video_fixed(model)) if name == "video" else 0

    def table(self) -> Buffer:
        return memory.modulation_table(self.dit, len(self.pairs))

    def text_buffers(self) -> dict[str, Buffer]:
        return memory.text_buffers(self.text, max(self.text_rows), self.settings.precision)

    def adaln_buffers(self) -> dict[str, Buffer]:
        refiner = memory.refiner_buffers(self.dit, max(self.text_rows), self.settings.precision)
        times = np.unique(self.pairs.times).size
        modulation = memory.modulation_buffers(self.dit, times) | {"table": self.table()}
        return max(refiner, modulation, key=memory.size_bytes)

    def denoise_buffers(self) -> dict[str, Buffer]:
        sizes = (self.rows, self.video_rows, 2 * self.sound)
        own = memory.transformer_buffers(self.dit, *sizes, self.settings.precision)
        if self.passes > 1:  # the first pass's velocities wait for the second's
            own |= {f"kept_{name}": own[name] for name in ("video_velocity", "audio_velocity")}
        return own

    def audio_buffers(self) -> dict[str, Buffer]:
        return memory.audio_decode_buffers(self.audio, self.sound)

    def video_buffers(self, batch: int) -> dict[str, Buffer]:
        return memory.video_decode_buffers(self.vae, self.latent, batch, self.settings.precision)

    def mux_buffers(self) -> dict[str, Buffer]:
        return {}

    # Work

    def text_flop(self) -> float:
        own, tap = self.text, self.model.manifest.tap
        inner, keys = own.num_attention_heads * own.head_dim, own.num_key_value_heads * own.head_dim
        layer = own.hidden_size * (2 * inner + 2 * keys + 3 * own.intermediate_size)
        return tap * sum(2.0 * n * layer + 2.0 * n * n * inner for n in self.text_rows)

    def adaln_flop(self) -> float:
        own = self.dit
        refiner = sum(2.0 * n * self._block() + 4.0 * n * n * own.inner_width for n in self.text_rows)
        return (
            own.num_refiner_layers * refiner
            + 2.0 * len(self.pairs) * own.num_layers * own.time_embed_dim * 6 * own.hidden_size
        )

    def _block(self) -> float:
        own = self.dit
        return own.hidden_size * (4.0 * own.inner_width + 3.0 * own.ffn_dim)

    def denoise_flop(self) -> float:
        own, settings = self.dit, self.settings
        sizes = [row_count(n, settings.frames, settings.height, settings.width) for n in self.text_rows]
        one = sum(2.0 * s * self._block() + 4.0 * s * s * own.inner_width for s in sizes)
        return (settings.steps - settings.start_step) * own.num_layers * one

    def audio_flop(self) -> float:
        own, length, width = self.audio, float(2 * self.sound), own_width(self.audio)
        total = 2.0 * length * (own.latent_channels * own.latent_dim + 7 * own.latent_dim * width)
        for rate, kernel in zip(own.decoder_rates, own.decoder_kernel_sizes, strict=True):
            total += 2.0 * length * kernel * width * width / 2
            length, width = length * rate, width / 2
            taps = sum(
                2.0 * k * len(d) for k, d in zip(own.resblock_kernel_sizes, own.resblock_dilation_sizes, strict=True)
            )
            total += 2.0 * length * width * width * taps
        return total

    def video_flop(self) -> float:
        own, rows = self.vae, float(self.decode.rows)
        block = own.dim * own.dim * (4.0 + 3.0 * own.decoder_ffn_mult)
        unit = own.decoder_num_layers * (2 * rows * block + 4 * rows * rows * own.dim)
        return self.decode.units * (unit + 2 * rows * own.dim * own.patch)

    def mux_flop(self) -> float:
        """Encoding is counted in pixels; a rate of its own makes seconds of them."""
        return float(self.settings.frames * self.settings.width * self.settings.height)

    def rate(self, name: str, threads: int) -> tuple[float, bool]:
        """(FLOP per second, whether it was measured)."""
        measured = self.speeds.get(self.model, self.settings.precision, threads, name)
        if measured:
            return measured, True
        if name == "mux":
            return 5e6, False
        return GUESSED_FLOP_S[kind(self.settings.precision, PARTS_OF_PHASES[name])] * threads, False

    def disk_bytes(self) -> int:
        """The film twice (it is whole before it replaces another), the state, the table in the cache."""
        state = 2 * 4 * (self.video_rows * self.dit.row_width + 2 * self.sound * self.dit.audio_in_channels)
        return 2 * film_bytes(self.settings) + state + self.table().size_bytes


def film_bytes(settings: Settings) -> int:
    """What a film needs at most, as good as always: a quarter byte a pixel, and its sound."""
    return settings.width * settings.height * settings.frames // 4 + 32_000 * settings.frames // 24 + (64 << 10)


def own_width(config: AudioVaeConfig) -> float:
    """Width of the audio decoder before its first stage."""
    return float(config.decoder_dim)


def _what_fits(plan: Plan, planner: _Planner) -> str:
    """The first single change that makes the run fit, in the order in which people mind them least."""
    need = f"This needs {spoken_bytes(plan.peak_bytes)} of memory and {spoken_bytes(plan.memory_bytes)} are free"
    settings = plan.settings

    def fits(**change: Any) -> bool:
        return _Planner(replace(settings, **change), planner.model, planner.memory_bytes, planner.speeds).plan().fits

    if settings.residency == "resident" and fits(residency="streamed"):
        return f"{need}: it fits with residency streamed."
    frames = _largest(range(MIN_FRAMES, settings.frames, 17), lambda count: fits(frames=count))
    if frames:
        return f"{need}: it fits with {frames} frames."
    sizes = list(_smaller(settings.width, settings.height))
    size = _largest(range(len(sizes)), lambda index: fits(width=sizes[index][0], height=sizes[index][1]))
    if size is not None:
        return f"{need}: it fits at {sizes[size][0]}x{sizes[size][1]}."
    least = min(_Planner(replace(settings, residency="streamed", frames=MIN_FRAMES, width=32, height=32), planner.model,
                         planner.memory_bytes, planner.speeds).plan().peak_bytes, plan.peak_bytes)  # fmt: skip
    return f"{need}: even its smallest film needs {spoken_bytes(least)}; close other programs or take a smaller model."


def _largest(candidates: range, fits: Callable[[int], bool]) -> int | None:
    """The last candidate that fits, where every smaller one fits too."""
    low, high = -1, len(candidates)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(candidates[middle]):
            low = middle
        else:
            high = middle
    return candidates[low] if low >= 0 else None


def _smaller(width: int, height: int) -> Iterator[tuple[int, int]]:
    """Canvases of about this shape, from the smallest up to the one before it."""
    longer = max(width, height)
    for side in range(CANVAS_MULTIPLE, longer, CANVAS_MULTIPLE):
        yield _scaled(width, side / longer), _scaled(height, side / longer)


def _scaled(side: int, share: float) -> int:
    return max(CANVAS_MULTIPLE, round(side * share / CANVAS_MULTIPLE) * CANVAS_MULTIPLE)


# Which weights each phase reads


def text_groups(model: ModelFiles) -> list[dict[str, Weight]]:
    """The text layers that run."""
    return [model.text_encoder.group(f"layers.{n}.") for n in range(model.manifest.tap)]


def refiner_fixed(model: ModelFiles) -> dict[str, Weight]:
    """What the refiner and the modulation table read outside their blocks."""
    prefixes = (
        "context_embedder.",
        "token_refiner.final_norm.",
        "time_embedder.",
        "adaln_t_table",
        "norm_out.linear.",
    )
    return {name: each for name, each in model.transformer.weights.items() if name.startswith(prefixes)}


def refiner_groups(model: ModelFiles) -> list[dict[str, Weight]]:
    layers = TransformerConfig.of(model.transformer.config).num_refiner_layers
    return [model.transformer.group(f"token_refiner.refiner_blocks.{n}.") for n in range(layers)]


def adaln_groups(model: ModelFiles) -> list[dict[str, Weight]]:
    """The AdaLN projections: 40 % of the transformer, needed only for the table."""
    layers = TransformerConfig.of(model.transformer.config).num_layers
    return [model.transformer.group(f"transformer_blocks.{n}.adaln_proj.") for n in range(layers)]


def transformer_fixed(model: ModelFiles) -> dict[str, Weight]:
    """Projections in and out and the final norm."""
    prefixes = ("proj_in.", "audio_proj_in.", "norm_out.norm.", "proj_out.", "audio_proj_out.")
    return {name: each for name, each in model.transformer.weights.items() if name.startswith(prefixes)}


def transformer_groups(model: ModelFiles) -> list[dict[str, Weight]]:
    layers = TransformerConfig.of(model.transformer.config).num_layers
    return [model.transformer.group(f"transformer_blocks.{n}.", ("adaln_proj.",)) for n in range(layers)]


def video_fixed(model: ModelFiles) -> dict[str, Weight]:
    prefixes = (
        "post_quant_conv.",
        "decoder.proj_in.",
        "decoder.register_tokens",
        "decoder.norm_out.",
        "decoder.proj_out.",
    )
    return {name: each for name, each in model.video_vae.weights.items() if name.startswith(prefixes)}


def video_groups(model: ModelFiles) -> list[dict[str, Weight]]:
    layers = VideoVaeConfig.of(model.video_vae.config).decoder_num_layers
    return [model.video_vae.group(f"decoder.transformer_blocks.{n}.") for n in range(layers)]


def audio_decoder(model: ModelFiles) -> dict[str, Weight]:
    return {
        name: each for name, each in model.audio_vae.weights.items() if name.startswith(("dec_in_proj.", "decoder."))
    }


def loaded_bytes(weights: Mapping[str, Weight]) -> int:
    """Memory of loaded weights: matrices stay as stored (q, k, v may share bytes), all else becomes float32."""
    packed = {(each.path, each.offset): each.size_bytes for name, each in weights.items() if _is_matrix(name, each)}
    return sum(packed.values()) + sum(
        4 * math.prod(each.shape) for name, each in weights.items() if not _is_matrix(name, each)
    )


def _is_matrix(name: str, weight: Weight) -> bool:
    """As residency's matrices that stay packed; a table of embeddings is only looked up."""
    whole = len(weight.shape) == 2 and weight.shape[1] % FORMATS[weight.format].block == 0
    return whole and name.endswith("weight")


class Speeds:
    """FLOP per second that runs on this machine reached, by model, precision, threads and phase: a file in H3_HOME."""

    def __init__(self, path: Path | None = None):
        self.path = path or home() / "speed.json"
        try:
            self.rates: dict[str, float] = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self.rates = {}

    @staticmethod
    def _key(model: ModelFiles, precision: str, threads: int, phase: str) -> str:
        return f"{model.name}:{model.transformer.size_bytes}/{precision}/{threads}/{phase}"

    def get(self, model: ModelFiles, precision: str, threads: int, phase: str) -> float | None:
        rate = self.rates.get(self._key(model, precision, threads, phase))
        return rate if isinstance(rate, (int, float)) and rate > 0 else None

    def note(self, model: ModelFiles, precision: str, threads: int, phase: str, flop: float, seconds: float) -> None:
        """A phase took so long: the newest run counts half."""
        if flop <= 0 or seconds <= 0:
            return
        key, rate = self._key(model, precision, threads, phase), flop / seconds
        before = self.get(model, precision, threads, phase)
        self.rates[key] = (before + rate) / 2 if before else rate

    def save(self) -> None:
        """Kept for the next plan; a disk that refuses only costs a better guess."""
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(self.rates, indent=1, sort_keys=True), encoding="utf-8")
            os.replace(temporary, self.path)
        except OSError:
            temporary.unlink(missing_ok=True)


def physical_cores() -> int:
    """Cores this process may use, hyper-threads counted once where the system says so."""
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # macOS
        return os.cpu_count() or 1
    cores = set()
    for cpu in allowed:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            cores.add(tuple((topology / name).read_text() for name in ("physical_package_id", "core_id")))
        except OSError:
            return len(allowed)
    return max(1, len(cores))


def spoken_bytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def spoken_s(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} minutes"
    return f"{seconds / 3600:.1f} hours"
