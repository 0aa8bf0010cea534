"""A run: from a sentence to a film. The model card in code; each phase is one call.

text -> refiner and modulation table -> denoise -> sound -> frames -> film. Phases hold their weights in turn; every
array comes from the arena that the plan declared. After each step the state is on disk, so a killed run goes on and
ends in the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from h3core.engine import checks, media, plan, preview
from h3core.engine.arena import Arena
from h3core.engine.cache import Cache
from h3core.engine.checkpoint import Checkpoint, State, load_arrays, write_whole
from h3core.engine.checks import RunError
from h3core.engine.plan import Plan, Settings, Speeds, make_plan
from h3core.engine.residency import Blocks, Cancelled, Residency
from h3core.kernels.sampler import Sampler
from h3core.kernels.table import Kernels
from h3core.model import memory
from h3core.model.audio_vae import AudioVae, fold_weight_norm
from h3core.model.layout import Layout, audio_to_rows, patchify, rows_to_audio, t2va, unpatchify
from h3core.model.noise import NormalGenerator
from h3core.model.rotary import Tables
from h3core.model.schedule import times_of_rows
from h3core.model.text_encoder import TextEncoder
from h3core.model.transformer import Modulation, Transformer
from h3core.model.video_vae import VideoVae, to_pixels
from h3core.version import VERSION
from h3core.weights.model_files import ModelFiles

RECIPE_VERSION = 1  # raise when an older reader would misread it
STATE_VERSION = 1  # raise when an older state would not end in the same bytes
TELL_EVERY_S = 0.2  # progress within a phase
GUARD_AFTER = 2  # evaluations
PREVIEWS_KEPT = 2  # a page may still be loading the one before

Tell = Callable[..., None]


@dataclass(frozen=True)
class Run:
    """One film to make. folder: where its state and previews live.   output: the film, absolute.

    noise: given instead of drawn: video (24, T, h, w) and audio (2, 32, A) float32.
    memory_bytes: None asks the system.
    """

    name: str
    settings: Settings
    folder: Path
    output: Path
    noise: tuple[np.ndarray, np.ndarray] | None = None
    memory_bytes: int | None = None


class Engine:
    """What stays between runs: kernels, weights that the plan chose to keep, caches on disk."""

    def __init__(self, kernels: Kernels, cache: Cache | None = None, speeds: Speeds | None = None):
        self.kernels = kernels
        self.residency = Residency(kernels)
        self.cache = cache or Cache()
        self.speeds = speeds
        self.model: Path | None = None

    def generate(self, run: Run, model: ModelFiles, tell: Tell, cancelled: Callable[[], bool]) -> dict[str, Any]:
        """Makes the film. tell(type, **values): phase, step, preview.   returns what the `finished` message says.

        raises: RunError, MediaError, SettingsError, ModelError, Cancelled, Interrupted, MemoryError, OSError.
        """
        if self.model != model.path:
            self.residency.drop()
            self.model = model.path
        self.residency.cancelled = cancelled
        with Generation(self, run, model, tell, cancelled) as generation:
            return generation.make()


@dataclass(frozen=True, eq=False)
class Pass:
    """One of the one or two forward passes of a step: its text rows, refined, and where every row is."""

    text: np.ndarray
    layout: Layout
    rotary: Tables


@dataclass(frozen=True, eq=False)
class Step:
    """One evaluation and the step it led to. All float32 rows; the arrays are reused by the next step.

    number: 1 for the first.   video_rows, audio_rows: after the step.
    estimate_video, estimate_audio: what the model believes the clean rows to be.
    """

    number: int
    video_velocity: np.ndarray
    audio_velocity: np.ndarray
    video_rows: np.ndarray
    audio_rows: np.ndarray
    estimate_video: np.ndarray
    estimate_audio: np.ndarray


class Generation:
    """One run on its way. A context manager: leaving it stops the readers that are ahead of a cancelled run."""

    def __init__(self, engine: Engine, run: Run, model: ModelFiles, tell: Tell, cancelled: Callable[[], bool]):
        self.engine, self.run, self.model, self.tell, self.cancelled = engine, run, model, tell, cancelled
        self.kernels, self.residency, self.cache = engine.kernels, engine.residency, engine.cache
        self.speeds = engine.speeds or Speeds()
        self.settings = run.settings.snapped()
        self.latent = plan.latent_shape(self.settings)
        self.ids = plan.texts(self.settings, model)
        self.schedules = plan.schedules(self.settings, model)
        self.transformer = Transformer(model.transformer.config, self.kernels, self.settings.precision)
        self.sampler = Sampler(self.kernels)
        self.checkpoint = Checkpoint(run.folder, self.key())
        self.seconds: dict[str, float] = {}  # of the whole run by phase, workers before this one included
        self.spent: dict[str, float] = {}  # by this worker
        self.shares: dict[str, float] = {"audio": 1.0, "video": 1.0, "mux": 1.0}  # how much of each phase it did
        self.pictures: list[Path] = []
        self.fit: np.ndarray | None = None
        self.plan: Plan
        self.open = ExitStack()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.open.close()

    def make(self) -> dict[str, Any]:
        """The whole run."""
        with self.phase("load", 1):
            self.prepare()
        state = self.checkpoint.load() or self.first_state()
        self.seconds.update({name: s for name, s in state.seconds.items() if name != "load"})
        if state.step < self.settings.steps:
            passes = self.passes(self.embeddings())
            table = self.modulation()
            with self.phase("denoise", 0):
                state = self.denoise(passes, table, state)
        video = unpatchify(state.video_rows, *self.latent)
        sound = self.sound(rows_to_audio(state.audio_rows))
        with self.phase("video", 0):
            poster = self.film(video, sound)
        self.note_speeds()
        return self.publish(poster)

    # Before any work

    def prepare(self) -> None:
        """The plan, and the proof that the film can be written.

        raises: RunError when it does not fit, MediaError when the target cannot be written.
        """
        free = self.run.memory_bytes or free_memory_bytes()
        self.plan = make_plan(self.settings, self.model, free, self.speeds)
        if not self.plan.fits:
            raise RunError("memory", self.plan.sentence)
        for name in ("text", "denoise", "video"):
            if name not in self.plan.warm:
                self.residency.drop(name)
        self.run.folder.mkdir(parents=True, exist_ok=True)
        wav = self.run.folder / "test.wav"
        media.prove_target(self.run.output, self.size(), 2 * plan.film_bytes(self.settings), wav)
        fit = self.cache.get("colours", self.vae_key())
        self.fit = fit["fit"] if fit else None

    def size(self) -> tuple[int, int]:
        return self.settings.width, self.settings.height

    def vae_key(self) -> dict[str, Any]:
        return {"vae": self.model.video_vae.identity}

    def key(self) -> str:
        """Digest of everything the rows of a state depend on; threads and residency are not among them."""
        own, run = self.settings, self.run
        given = [hashlib.sha256(np.ascontiguousarray(each).tobytes()).hexdigest() for each in run.noise or ()]
        if own.start_latents:
            given.append(hashlib.sha256(Path(own.start_latents).read_bytes()).hexdigest())
        values = {
            "version": [VERSION, STATE_VERSION],
            "ids": self.ids,
            "size": [own.width, own.height, own.frames],
            "numbers": [own.steps, own.seed, own.guidance, own.start_step, own.precision],
            "sigmas": [each.sigmas.tolist() for each in self.schedules],
            "given": given,
            "model": [self.model.transformer.identity, self.model.text_encoder.identity, self.model.manifest.tap],
            "isa": [self.kernels.isa, *self.kernels.features],
        }
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    # Text

    def embeddings(self) -> list[np.ndarray]:
        """The conditioner's states of each text, (n, text_dim) float32; from the cache if they were made before."""
        keys = [self.arithmetic() | {"encoder": self.model.text_encoder.identity, "ids": ids} for ids in self.ids]
        found = [self.cache.get("prompts", key) for key in keys]
        states = {index: each["states"] for index, each in enumerate(found) if each}
        missing = [index for index in range(len(keys)) if index not in states]
        if missing:
            with self.phase("text", len(missing) * self.model.manifest.tap) as progress:
                for index in missing:
                    states[index] = self.encode(self.ids[index], progress)
                    checks.require_finite("text encoder", "for this prompt", states[index])
                    self.cache.put("prompts", keys[index], {"states": states[index]})
            self.shares["text"] = len(missing) / len(keys)
        return [states[index] for index in range(len(keys))]

    def encode(self, ids: list[int], progress: Callable[[], None]) -> np.ndarray:
        part, tap = self.model.text_encoder, self.model.manifest.tap
        encoder = TextEncoder(part.config, tap, self.kernels, self.settings.precision)
        rows = self.residency.lookup(part.weights["embed_tokens.weight"], np.array(ids))
        scratch = Arena(memory.text_buffers(part.config, len(ids), self.settings.precision)).arrays
        layers = self.blocks("text", plan.text_groups(self.model), progress)
        return encoder.encode(rows, layers, scratch).copy()

    def arithmetic(self) -> dict[str, Any]:
        """What the last bits of a cached result depend on."""
        own = self.kernels
        return {"precision": self.settings.precision, "isa": [own.isa, *own.features], "tap": self.model.manifest.tap}

    def passes(self, states: list[np.ndarray]) -> list[Pass]:
        """The refiner depends on the text alone, so it runs once; layout and rotary tables too."""
        own, groups = self.settings, plan.refiner_groups(self.model)
        passes = []
        with self.phase("adaln", len(states) * len(groups)) as progress:
            fixed = self.residency.load(plan.refiner_fixed(self.model))
            blocks = self.blocks("adaln", groups, progress)
            for text in states:
                buffers = memory.refiner_buffers(self.transformer.config, len(text), own.precision)
                refined = self.transformer.refine(text, fixed, blocks, Arena(buffers).arrays).copy()
                checks.require_finite("text refiner", "for this prompt", refined)
                layout = t2va(len(text), own.frames, own.height, own.width)
                passes.append(Pass(refined, layout, self.transformer.rotary(layout)))
        return passes

    def modulation(self) -> np.ndarray:
        """The modulation table of the whole schedule, float32 (6 blocks + 2, pairs, d), made once a schedule."""
        pairs = plan.pairs(*self.schedules)
        key = {
            "transformer": self.model.transformer.identity,
            "times": pairs.times.tolist(),
            "tags": pairs.tags.tolist(),
        }
        key |= {"isa": self.arithmetic()["isa"]}
        found = self.cache.get("adaln", key)
        if found:
            return found["table"]
        groups = plan.adaln_groups(self.model)
        with self.phase("adaln", len(groups)) as progress:
            config = self.transformer.config
            buffers = memory.modulation_buffers(config, np.unique(pairs.times).size)
            table = Arena({"table": memory.modulation_table(config, len(pairs))})["table"]
            fixed = self.residency.load(plan.refiner_fixed(self.model))
            adaln = self.blocks("adaln", groups, progress)
            self.transformer.modulation(pairs, fixed, adaln, Arena(buffers).arrays, table)
            checks.require_finite("time modulation", "for this schedule", table)
            self.cache.put("adaln", key, {"table": table})
        self.shares["adaln"] = 1.0
        return table

    # Denoising

    def first_state(self) -> State:
        """Noise in the reference's draw order, video then sound; or given latents, noised to the first step."""
        own, (T, h, w) = self.settings, self.latent
        config = self.transformer.config
        if self.run.noise:
            video, audio = (np.ascontiguousarray(each, np.float32) for each in self.run.noise)
            video_rows, audio_rows = patchify(video), audio_to_rows(audio)
        else:
            generator = NormalGenerator(own.seed)
            video_rows = patchify(generator.draw((config.in_channels, T, h, w)))
            audio_rows = generator.draw((2 * plan.audio_latents(own.frames), config.audio_in_channels))
        if own.start_step:
            clean_video, clean_audio = self.start_latents()
            for rows, clean, schedule in zip(
                (video_rows, audio_rows),
                (patchify(clean_video), audio_to_rows(clean_audio)),
                self.schedules,
                strict=True,
            ):
                noise = rows.copy()
                self.sampler.noised(clean, noise, float(schedule.times[own.start_step]), rows)
        return State(own.start_step, video_rows, audio_rows)

    def start_latents(self) -> tuple[np.ndarray, np.ndarray]:
        """The given film as normalised latents."""
        loaded = load_arrays(Path(self.settings.start_latents or ""))
        arrays = loaded[0] if loaded else {}
        config, sound = self.transformer.config, plan.audio_latents(self.settings.frames)
        shapes = {"video": (config.in_channels, *self.latent), "audio": (2, config.audio_in_channels, sound)}
        if {name: each.shape for name, each in arrays.items()} != shapes:
            raise RunError("input", f"{self.settings.start_latents} does not hold latents of this size and length.")
        return arrays["video"], arrays["audio"]

    def denoise(self, passes: list[Pass], table: np.ndarray, state: State) -> State:
        """All steps that are left; after each the state is on disk. Tells step, preview."""
        steps, started = self.settings.steps, time.monotonic()
        before, first = self.seconds.get("denoise", 0.0), state.step
        for step in self.steps(passes, table, state):
            now = time.monotonic()
            spent = {**self.seconds, "denoise": before + now - started}
            state = State(step.number, step.video_rows, step.audio_rows, spent)
            self.checkpoint.save(state)
            each_s = (now - started) / (step.number - first)
            rest_s = sum(self.plan.phase(name).expected_s for name in ("audio", "video", "mux"))
            left_s = each_s * (steps - step.number) + rest_s
            self.tell("step", step=step.number, steps=steps, step_s=round(each_s, 4), left_s=round(left_s, 2))
            self.show(step)
        self.shares["denoise"] = (steps - first) / (steps - self.settings.start_step)
        return state

    def steps(self, passes: list[Pass], table: np.ndarray, state: State) -> Iterator[Step]:
        """One Step per evaluation, from `state` on. raises: RunError naming the step when a value is not a number."""
        model, (video_schedule, audio_schedule) = self.model, self.schedules
        scratch = Arena(self.plan.phase("denoise").buffers).arrays
        fixed = self.residency.load(plan.transformer_fixed(model))
        video_rows, audio_rows = state.video_rows.copy(), state.audio_rows.copy()
        estimates = np.empty_like(video_rows), np.empty_like(audio_rows)
        pairs = plan.pairs(*self.schedules)
        total = self.settings.steps * len(passes) * self.transformer.config.num_layers
        progress = self.counter("denoise", total, state.step * len(passes) * self.transformer.config.num_layers)
        blocks = self.blocks("denoise", plan.transformer_groups(model), progress)
        for index in range(state.step, self.settings.steps):
            t_video, t_audio = video_schedule.times[index], audio_schedule.times[index]
            velocities = []
            for number, each in enumerate(passes):
                times = times_of_rows(each.layout, t_video, t_audio)
                modulation = Modulation(table, pairs.index(times, each.layout.tags))
                own = _scratch_of(scratch, each.layout.rows)
                rows = (video_rows, audio_rows, each.text)
                found = self.transformer.forward(rows, each.layout, each.rotary, modulation, fixed, blocks, own)
                if number + 1 < len(passes):
                    for name, values in zip(("video_velocity", "audio_velocity"), found, strict=True):
                        scratch[f"kept_{name}"][...] = values
                    found = scratch["kept_video_velocity"], scratch["kept_audio_velocity"]
                velocities.append(found)
            if len(velocities) > 1:
                for conditional, unconditional in zip(*velocities, strict=True):
                    self.sampler.guide(conditional, unconditional, self.settings.guidance)
            video_velocity, audio_velocity = velocities[0]
            where = f"in step {index + 1} of {self.settings.steps}"
            checks.require_finite("video part of the transformer", where, video_velocity)
            checks.require_finite("sound part of the transformer", where, audio_velocity)
            for rows, velocity, schedule, estimate in (
                (video_rows, video_velocity, video_schedule, estimates[0]),
                (audio_rows, audio_velocity, audio_schedule, estimates[1]),
            ):
                t, sigma, following = (
                    float(each) for each in (schedule.times[index], *schedule.sigmas[index : index + 2])
                )
                self.sampler.step(rows, velocity, t, sigma, following, estimate)
            checks.require_finite("sampler", where, video_rows, audio_rows)
            step = Step(index + 1, video_velocity, audio_velocity, video_rows, audio_rows, *estimates)
            if step.number == self.settings.start_step + GUARD_AFTER and self.settings.noise_guard:
                checks.require_picture(unpatchify(step.estimate_video, *self.latent))
            yield step

    def show(self, step: Step) -> None:
        """A small picture of the estimate, in the run's folder."""
        path = self.run.folder / f"preview-{step.number:04d}.png"
        media.write_png(path, preview.picture(unpatchify(step.estimate_video, *self.latent), self.fit), "preview")
        self.pictures.append(path)
        while len(self.pictures) > PREVIEWS_KEPT:
            self.pictures.pop(0).unlink(missing_ok=True)
        self.tell("preview", path=str(path), step=step.number)

    # Sound and frames

    def sound(self, latent: np.ndarray) -> np.ndarray:
        """(2, samples) float32 in [-1, 1]. latent: (2, 32, A) normalised."""
        vae = AudioVae(self.model.audio_vae.config, self.kernels)
        with self.phase("audio", 1):
            weights = fold_weight_norm(self.residency.load(plan.audio_decoder(self.model)))
            scratch = Arena(memory.audio_decode_buffers(vae.config, latent.shape[2])).arrays
            sound = vae.decode(vae.denormalise(latent), Watched(weights, self.cancelled), scratch)
            checks.require_finite("audio decoder", "while making the sound", sound)
        return sound

    def film(self, latent: np.ndarray, sound: np.ndarray) -> np.ndarray:
        """Frames are decoded a clip at a time and streamed to the encoder; returns the poster, (H, W, 3) uint8.

        latent: (24, T, h, w) normalised.   sound: (2, samples).
        """
        vae = VideoVae(self.model.video_vae.config, self.kernels, self.settings.precision)
        units, layers = self.plan.batch, vae.config.decoder_num_layers
        groups = plan.video_groups(self.model)
        fixed = self.residency.load(plan.video_fixed(self.model))
        scratch = Arena(self.plan.phase("video").buffers).arrays
        clips = plan.decode_plan(vae.config, *self.latent)
        blocks = self.blocks("video", groups, self.counter("video", clips.passes(units) * layers))
        seen, fit, poster, done = checks.Brightness(), preview.ColourFit(latent), None, 0
        wav, rate = self.run.folder / "sound.wav", vae_rate(self.model)
        comment = json.dumps(self.recipe()) if self.settings.recipe else ""  # ASCII: escapes survive every reader
        target = self.run.output, self.size(), self.settings.frames, sound, rate, wav, self.cancelled, comment
        with media.FilmWriter(*target) as film:
            for values in vae.decode_values(vae.denormalise(latent), fixed, blocks, scratch):
                checks.require_finite("video decoder", f"in the frames from {done + 1} on", values)
                pixels = to_pixels(values)
                seen.see(pixels)
                fit.see(pixels)
                middle = self.settings.frames // 2 - done
                if 0 <= middle < len(pixels):
                    poster = pixels[middle].copy()
                film.write(pixels)
                done += len(pixels)
            seen.require_something()
            with self.phase("mux", 1):
                film.finish()
        if self.fit is None:
            self.cache.put("colours", self.vae_key(), {"fit": fit.result()})
        assert poster is not None
        return poster

    def publish(self, poster: np.ndarray) -> dict[str, Any]:
        """Poster and recipe beside the film; what there is to say about the run."""
        picture, recipe = media.companions(self.run.output.absolute())
        media.write_png(picture, poster, "poster")
        own = self.settings
        seconds = {name: round(spent, 3) for name, spent in self.seconds.items()}
        if own.recipe:
            text = json.dumps(self.recipe(), ensure_ascii=False, indent=1).encode("utf-8", "backslashreplace")
            write_whole(recipe, lambda file: file.write(text), "recipe")
        else:
            recipe.unlink(missing_ok=True)  # of a film that had this name before
        for path in self.pictures:
            path.unlink(missing_ok=True)
        return {
            "output": str(self.run.output.absolute()),
            "poster": str(picture),
            "sidecar": str(recipe) if own.recipe else None,
            "seed": own.seed,
            "frames": own.frames,
            "width": own.width,
            "height": own.height,
            "duration_s": own.frames / media.FPS,
            "seconds": seconds,
            "total_s": round(sum(seconds.values()), 3),
            "planned_peak_bytes": self.plan.peak_bytes,
        }

    def recipe(self) -> dict[str, Any]:
        """All that this film's bytes depend on: no date, no path, and nothing that only decides how long it takes."""
        own, model = self.settings, self.model
        settings = own.to_json()
        usual = {each.name: each.default for each in fields(Settings)}
        for name in ("threads", "residency", "recipe", "start_latents"):
            del settings[name]
        for name in ("start_step", "shift_video", "shift_audio", "noise_guard"):
            if settings[name] == usual[name]:
                del settings[name]
        if own.start_latents:
            given = Path(own.start_latents)
            digest = hashlib.sha256(given.read_bytes()).hexdigest()
            settings["start_latents"] = {"name": given.name, "sha256": digest}
        return {
            "recipe": RECIPE_VERSION,
            "program": "h3-studio",
            "version": VERSION,
            "settings": settings,
            "duration_s": own.frames / media.FPS,
            "model": model.name,
            "weights": {part.kind: part.identity for part in model.parts},
            "arithmetic": {"precision": own.precision, "isa": self.kernels.isa, "features": [*self.kernels.features]},
            "guidance_used": own.guidance if len(self.ids) > 1 else 1.0,
        }

    # Progress

    @contextmanager
    def phase(self, name: str, total: int) -> Iterator[Callable[[], None]]:
        """Tells that a phase begins and times it. Yields what to call after each of `total` pieces of work."""
        if self.cancelled():
            raise Cancelled
        started = time.monotonic()
        inside = sum(self.spent.values())
        yield self.counter(name, total) if total else _count_nothing
        spent = time.monotonic() - started - (sum(self.spent.values()) - inside)  # without the phases inside this one
        for seconds in (self.spent, self.seconds):
            seconds[name] = seconds.get(name, 0.0) + spent

    def note_speeds(self) -> None:
        """What this run did itself teaches the next plan; what came from a cache or an earlier worker does not."""
        for name, share in self.shares.items():
            flop = self.plan.phase(name).flop * share
            self.speeds.note(self.model, self.settings.precision, self.kernels.threads, name, flop, self.spent[name])
        self.speeds.save()

    def counter(self, name: str, total: int, done: int = 0) -> Callable[[], None]:
        """Counts pieces of work and tells them, not more often than people can see."""
        state = {"done": done, "told": time.monotonic()}
        self.tell("phase", phase=name, done=done, total=total)

        def count() -> None:
            state["done"] += 1
            now = time.monotonic()
            if state["done"] == total or now - state["told"] >= TELL_EVERY_S:
                state["told"] = now
                self.tell("phase", phase=name, done=state["done"], total=total)

        return count

    def blocks(self, phase: str, groups: Sequence[Mapping[str, Any]], progress: Callable[[], None]) -> Counted:
        """Blocks of a phase as the plan wants them held: for the next run too, for this phase, or passing through."""
        mode = self.plan.residency.get(phase, "streamed")
        keep = phase if phase in self.plan.warm else None
        counted = Counted(self.residency.blocks(groups, mode, keep), self.cancelled, progress)
        self.open.callback(counted.close)
        return counted


class Watched(dict):
    """A block whose every lookup asks whether the run is still wanted: within a block there may be minutes of tiles."""

    def __init__(self, block: Mapping[str, Any], cancelled: Callable[[], bool]):
        super().__init__(block)
        self.cancelled = cancelled

    def __getitem__(self, name: str) -> Any:
        if self.cancelled():
            raise Cancelled
        return super().__getitem__(name)


class Counted:
    """Blocks on their way to the arithmetic, watched and counted; may be iterated again and again."""

    def __init__(self, blocks: Blocks, cancelled: Callable[[], bool], progress: Callable[[], None]):
        self.blocks, self.cancelled, self.progress = blocks, cancelled, progress
        self.running: Generator[Mapping[str, Any]] | None = None

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        self.running = running = _pass(self.blocks)
        try:
            for block in running:
                yield Watched(block, self.cancelled)
                self.progress()
        finally:
            running.close()  # a reader who stops early leaves no thread behind

    def close(self) -> None:
        """Stops the reader at once, not when the last traceback lets go of it."""
        if self.running is not None:
            self.running.close()


def _pass(blocks: Blocks) -> Generator[Mapping[str, Any]]:
    """One pass over the blocks, as a generator that can be closed."""
    yield from blocks


def _count_nothing() -> None:
    """Where a phase counts its work itself."""


def _scratch_of(scratch: Mapping[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
    """The denoiser's buffers for a pass with fewer rows than the longest."""
    return {**scratch, "residual": scratch["residual"][:rows]}


def vae_rate(model: ModelFiles) -> int:
    """Samples per second of the model's sound."""
    return int(model.audio_vae.config["sampling_rate"])


def free_memory_bytes() -> int:
    """What this process may still take: free memory and what it holds beyond itself, which the plan counts anew."""
    held = max(0, psutil.Process().memory_info().rss - plan.PROCESS_BYTES)
    return psutil.virtual_memory().available + held
