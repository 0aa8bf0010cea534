"""Whole runs against the reference: every step, latents, pixels, sound; and the same bytes whatever the threads,
residency or death.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from h3core.engine import media, pipeline, plan
from h3core.engine.cache import Cache
from h3core.engine.checkpoint import save_arrays
from h3core.engine.checks import RunError
from h3core.engine.pipeline import Engine, Generation, Run
from h3core.engine.residency import Cancelled
from h3core.kernels.table import Kernels
from h3core.model import memory
from h3core.model.audio_vae import AudioVae
from h3core.model.layout import audio_to_rows, patchify, rows_to_audio, unpatchify
from h3core.model.video_vae import VideoVae, to_pixels
from h3core.weights.identify import open_model
from tests.golden_files import TINY, WHOLE_RUN, compare, compare_uint8, golden, golden_json

PROMPTS = {name: each["text"] for name, each in golden_json("text")["prompts"].items()}


@pytest.fixture(scope="module")
def model():
    return open_model(TINY)


@pytest.fixture(scope="module")
def kernels():
    return Kernels(threads=2)


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("H3_HOME", str(tmp_path / "home"))


def settings(**changes) -> plan.Settings:
    """The golden runs' weights are random, so their estimates are noise and the guard is off."""
    values = {"prompt": PROMPTS["english"], "width": 32, "height": 32, "frames": 22, "steps": 3, "seed": 7}
    return plan.Settings(**{**values, "precision": "exact", "noise_guard": False, **changes})


def run(tmp_path, wanted: plan.Settings, name="film", **more) -> Run:
    return Run(name, wanted, tmp_path / f"run-{name}", tmp_path / "out" / f"{name}.mp4", **more)


def silent(*_, **__):
    pass


def record(told: list):
    """Keeps what a run tells."""
    return lambda kind, **values: told.append((kind, values))


def generation(tmp_path, model, kernels, wanted, **more) -> Generation:
    """A run that has passed its checks and is ready to be taken apart."""
    made = Generation(Engine(kernels), run(tmp_path, wanted, **more), model, silent, lambda: False)
    made.prepare()
    return made


def decoded(made: Generation, video: np.ndarray) -> np.ndarray:
    """Float pixels in ImageNet space, (F, H, W, 3)."""
    vae = VideoVae(made.model.video_vae.config, made.kernels, "exact")
    fixed = made.residency.load(plan.video_fixed(made.model))
    scratch = pipeline.Arena(made.plan.phase("video").buffers).arrays
    blocks = made.blocks("video", plan.video_groups(made.model), lambda: None)
    return np.concatenate([each.copy() for each in vae.decode_values(vae.denormalise(video), fixed, blocks, scratch)])


def test_t2va_22_frames_step_by_step(tmp_path, model, kernels):
    want = golden("run_t2va_22f")
    wanted = settings(prompt=PROMPTS["dialogue"], width=96, height=64, steps=8)
    made = generation(tmp_path, model, kernels, wanted, noise=(want["input.latents"], want["input.audio_latents"]))
    compare("prompt ids", np.array(made.ids[0], np.int32), want["prompt_ids"], 0)
    states = made.embeddings()
    compare("prompt embeddings", states[0], want["prompt_embeds"])
    (one,) = passes = made.passes(states)
    compare("positions", one.layout.positions, want["position_ids"], 0)
    compare("tags", one.layout.tags, want["token_tags"], 0)
    for name in ("text", "video", "audio"):
        compare(f"{name} indices", getattr(one.layout, f"{name}_indices"), want[f"{name}_indices"], 0)
    compare("video times", made.schedules[0].times, want["timesteps"], 0)
    compare("audio times", made.schedules[1].times, want["audio_timesteps"], 0)
    state = made.first_state()
    count = 0
    for step in made.steps(passes, made.modulation(), state):
        index = step.number - 1
        compare(f"step {index} video velocity", step.video_velocity, want["steps.video_velocity"][index], WHOLE_RUN)
        compare(f"step {index} audio velocity", step.audio_velocity, want["steps.audio_velocity"][index], WHOLE_RUN)
        if step.number < 8:  # the golden rows are those before each step
            compare(f"step {index} video rows", step.video_rows, want["steps.video_rows"][index + 1], WHOLE_RUN)
            compare(f"step {index} audio rows", step.audio_rows, want["steps.audio_rows"][index + 1], WHOLE_RUN)
        count += 1
    assert count == 8
    video, audio = unpatchify(step.video_rows, *made.latent), rows_to_audio(step.audio_rows)
    compare("final latents", video, want["final_latents"], WHOLE_RUN)
    compare("final audio latents", audio, want["final_audio_latents"], WHOLE_RUN)
    compare("sound", made.sound(audio), want["audio"], WHOLE_RUN)
    values = decoded(made, video)
    pixels = to_pixels(values)
    compare_uint8(
        "pixels", np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)[::2]), want["video_uint8_fchw_every2nd_frame"]
    )
    made.__exit__()


def test_t2va_124_frames_from_a_seed(tmp_path, model, kernels):
    want = golden("run_t2va_124f_seed7")
    made = generation(tmp_path, model, kernels, settings(frames=124))
    state = made.first_state()
    compare("video noise", state.video_rows, want["initial_video_rows"], 2e-7)
    compare("audio noise", state.audio_rows, want["initial_audio_rows"], 2e-7)
    states = made.embeddings()
    compare("prompt embeddings", states[0], want["prompt_embeds"])
    state = made.denoise(made.passes(states), made.modulation(), state)
    video, audio = unpatchify(state.video_rows, *made.latent), rows_to_audio(state.audio_rows)
    compare("final latents", video, want["final_latents"], WHOLE_RUN)
    compare("final audio latents", audio, want["final_audio_latents"], WHOLE_RUN)
    compare("sound", made.sound(audio), want["audio"], WHOLE_RUN)
    pixels = to_pixels(decoded(made, video)).transpose(0, 3, 1, 2)[::3]
    compare_uint8("pixels", np.ascontiguousarray(pixels), want["video_uint8_fchw_every3rd_frame"])


def test_partial_run_from_step_5(tmp_path, model, kernels):
    want = golden("run_partial_from_step5")
    vae, voice = VideoVae(model.video_vae.config, kernels, "exact"), AudioVae(model.audio_vae.config, kernels)
    start = tmp_path / "start.safetensors"
    save_arrays(start, {"video": want["latents_normalised"], "audio": want["audio_latents_normalised"]}, {})
    wanted = settings(steps=8, start_step=5, start_latents=str(start))
    made = generation(tmp_path, model, kernels, wanted, noise=(want["noise"], want["audio_noise"]))
    # where the given latents come from: frames and sound, encoded
    residency = made.residency
    frames = np.ascontiguousarray(want["pixels_uint8_cfhw"].transpose(1, 2, 3, 0))
    encoder = residency.load(
        {n: w for n, w in model.video_vae.weights.items() if n.startswith(("encoder.", "quant_conv."))}
    )
    scratch = pipeline.Arena(memory.video_encode_buffers(vae.config, *frames.shape[:3])).arrays
    mean = vae.posterior_mean(vae.encode(frames, encoder, scratch))
    compare("encoded frames", vae.normalise(mean), want["latents_normalised"], WHOLE_RUN)
    sound = np.ascontiguousarray(want["waveform"][:, 0])
    weights = pipeline.fold_weight_norm(
        residency.load(
            {n: w for n, w in model.audio_vae.weights.items() if not n.startswith(("decoder.", "dec_in_proj."))}
        )
    )
    scratch = pipeline.Arena(memory.audio_encode_buffers(voice.config, sound.shape[1])).arrays
    heard = voice.encode(sound, weights, scratch)[0]
    compare("encoded sound", voice.normalise(heard), want["audio_latents_normalised"], WHOLE_RUN)
    # the run
    state = made.first_state()
    compare("first video rows", state.video_rows, want["step_start.video_rows"], 1e-6)
    compare("first audio rows", state.audio_rows, want["step_start.audio_rows"], 1e-6)
    states = made.embeddings()
    compare("prompt embeddings", states[0], want["prompt_embeds"])
    state = made.denoise(made.passes(states), made.modulation(), state)
    compare("final video rows", state.video_rows, want["final.video_rows"], WHOLE_RUN)
    compare("final audio rows", state.audio_rows, want["final.audio_rows"], WHOLE_RUN)
    assert np.array_equal(patchify(unpatchify(state.video_rows, *made.latent)), state.video_rows)
    assert np.array_equal(audio_to_rows(rows_to_audio(state.audio_rows)), state.audio_rows)


@pytest.mark.parametrize("precision", ["exact", "bf16", "int8"])
def test_same_film_whatever_threads_residency_and_caches(tmp_path, model, precision):
    films = {}
    for name, threads, residency in (("a", 1, "resident"), ("b", 2, "streamed"), ("c", 2, "auto")):
        wanted = settings(precision=precision, residency=residency, width=64)
        engine = Engine(Kernels(threads=threads), Cache(tmp_path / f"cache-{name}"))
        result = engine.generate(run(tmp_path, wanted, name), model, silent, lambda: False)
        films[name] = Path(result["output"]).read_bytes()
        if name == "c":  # again, warm and from the caches
            result = engine.generate(run(tmp_path, wanted, "d"), model, silent, lambda: False)
            films["d"] = Path(result["output"]).read_bytes()
            assert "text" not in result["seconds"]
    assert len(set(films.values())) == 1


@pytest.mark.parametrize("isa", ["avx2", "c"])
def test_whole_runs_agree_over_instruction_sets(tmp_path, model, kernels, isa):
    try:
        other = Kernels(isa, threads=2)
    except ValueError as error:
        pytest.skip(str(error))
    rows = []
    for name, each in (("best", kernels), (isa, other)):
        folder = tmp_path / name
        made = Generation(Engine(each, Cache(folder / "cache")), run(folder, settings()), model, silent, lambda: False)
        with made:
            made.prepare()
            state = made.denoise(made.passes(made.embeddings()), made.modulation(), made.first_state())
        rows.append(np.concatenate([state.video_rows.ravel(), state.audio_rows.ravel()]))
    assert np.linalg.norm(rows[1] - rows[0]) <= 1e-3 * np.linalg.norm(rows[0])


def test_precisions_are_near_each_other(tmp_path, model, kernels):
    latents = {}
    for precision in ("exact", "bf16", "int8"):
        made = generation(tmp_path, model, kernels, settings(precision=precision))
        state = made.denoise(made.passes(made.embeddings()), made.modulation(), made.first_state())
        latents[precision] = state.video_rows
    size = np.linalg.norm(latents["exact"])
    assert np.linalg.norm(latents["bf16"] - latents["exact"]) / size < 2e-2
    assert np.linalg.norm(latents["int8"] - latents["exact"]) / size < 5e-2


def test_what_finished_says_is_true(tmp_path, model, kernels):
    told = []
    job = run(tmp_path, settings(steps=4, frames=39, width=64))
    result = Engine(kernels).generate(job, model, record(told), lambda: False)
    assert (result["frames"], result["width"], result["height"], result["seed"]) == (39, 64, 32, 7)
    found = media.probe(Path(result["output"]))
    assert (found.frames, found.width, found.height) == (39, 64, 32)
    assert sorted(os.listdir(tmp_path / "out")) == ["film.json", "film.mp4", "film.png"]
    assert os.listdir(job.folder) == ["state.safetensors"]  # latents are kept, "save again" needs no rendering
    recipe = json.loads(Path(result["sidecar"]).read_text(encoding="utf-8"))
    assert plan.Settings.read(recipe["settings"]) == job.settings
    assert [values["step"] for kind, values in told if kind == "step"] == [1, 2, 3, 4]
    phases = [values["phase"] for kind, values in told if kind == "phase"]
    assert list(dict.fromkeys(phases)) == ["load", "text", "adaln", "denoise", "audio", "video", "mux"]
    for kind, values in told:
        if kind == "phase":
            assert 0 <= values["done"] <= values["total"]
    assert {"load", "text", "adaln", "denoise", "audio", "video", "mux"} == result["seconds"].keys()


@pytest.mark.parametrize("guidance, negative", [(3.0, ""), (3.0, "rain"), (1.0, "")])
def test_guidance_is_a_second_pass_where_the_model_is_not_distilled(tmp_path, model, kernels, guidance, negative):
    from dataclasses import replace

    raw = replace(model, manifest=replace(model.manifest, guidance_distilled=False))
    wanted = settings(guidance=guidance, negative_prompt=negative)
    made = generation(tmp_path, raw, kernels, wanted)
    passes = made.passes(made.embeddings())
    assert len(passes) == (2 if guidance != 1 else 1)
    guided = next(iter(made.steps(passes, made.modulation(), made.first_state())))
    video = guided.video_velocity.copy()
    if len(passes) == 1:
        return
    singles = []
    for each in passes:
        step = next(iter(made.steps([each], made.modulation(), made.first_state())))
        singles.append(step.video_velocity.copy())
    compare("guided velocity", video, singles[1] + np.float32(guidance) * (singles[0] - singles[1]), 1e-6)
    distilled = generation(tmp_path, model, kernels, wanted)
    assert len(distilled.ids) == 1


def test_noise_guard_stops_a_run_whose_estimate_is_noise(tmp_path, model, kernels):
    told = []
    job = run(tmp_path, settings(steps=8, noise_guard=True, width=96, height=64))
    with pytest.raises(RunError, match="pure noise after two steps") as raised:
        Engine(kernels).generate(job, model, lambda kind, **values: told.append(kind), lambda: False)
    assert raised.value.kind == "noise" and told.count("step") == 1
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["text", "step", "audio", "video"])
def test_values_that_are_no_numbers_stop_the_run_and_are_named(tmp_path, model, kernels, monkeypatch, where, bad):
    if where == "text":
        encode = pipeline.TextEncoder.encode
        monkeypatch.setattr(pipeline.TextEncoder, "encode", lambda *a, **k: encode(*a, **k) * np.float32(bad))
        words = "text encoder gave values"
    elif where == "step":
        forward, calls = pipeline.Transformer.forward, []

        def spoiled(*given):
            calls.append(1)
            velocities = forward(*given)
            if len(calls) == 3:
                velocities[0][5, 5] = bad
            return velocities

        monkeypatch.setattr(pipeline.Transformer, "forward", spoiled)
        words = "video part of the transformer gave .* in step 3 of 4"
    elif where == "audio":
        decode = pipeline.AudioVae.decode
        monkeypatch.setattr(pipeline.AudioVae, "decode", lambda *a: decode(*a) + np.float32(bad))
        words = "audio decoder gave values"
    else:
        values = pipeline.VideoVae.decode_values
        monkeypatch.setattr(
            pipeline.VideoVae, "decode_values", lambda *a: (each + np.float32(bad) for each in values(*a))
        )
        words = "video decoder gave values"
    job = run(tmp_path, settings(steps=4))
    with pytest.raises(RunError, match=words):
        Engine(kernels).generate(job, model, silent, lambda: False)
    assert os.listdir(tmp_path / "out") == []
    monkeypatch.undo()
    kept = pipeline.Checkpoint(job.folder, "")
    if where != "text":
        assert kept.path.exists()  # the last good latents
        result = Engine(kernels).generate(job, model, silent, lambda: False)
        assert result["frames"] == 22


def test_a_film_of_one_flat_colour_is_not_kept(tmp_path, model, kernels, monkeypatch):
    values = pipeline.VideoVae.decode_values
    monkeypatch.setattr(pipeline.VideoVae, "decode_values", lambda *a: (each * 0 for each in values(*a)))
    with pytest.raises(RunError, match="one flat surface"):
        Engine(kernels).generate(run(tmp_path, settings()), model, silent, lambda: False)
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize("phase", ["load", "text", "adaln", "denoise", "audio", "video", "mux"])
def test_cancel_in_every_phase(tmp_path, model, kernels, phase):
    """Nothing under any name in the target folder, the encoder gone, and the engine ready for the next run."""
    job, seen, told = run(tmp_path, settings(steps=4)), [], []

    def tell(kind, **values):
        told.append(kind)
        if kind == "phase":
            seen.append(values["phase"])

    engine = Engine(kernels)
    with pytest.raises((Cancelled, media.Interrupted)):
        engine.generate(job, model, tell, lambda: bool(seen) and seen[-1] == phase)
    assert seen[-1] == phase
    assert not (tmp_path / "out").exists() or os.listdir(tmp_path / "out") == []
    assert engine.generate(job, model, silent, lambda: False)["frames"] == 22


KILLED_RUN = """
import os, signal, sys
from pathlib import Path
from h3core.engine import pipeline, plan
from h3core.kernels.table import Kernels
from h3core.weights.identify import open_model

def tell(kind, **values):
    what = values.get("phase", kind) + "-" + str(values.get("step", values.get("done", "")))
    if what == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)

settings = plan.Settings.read({settings!r})
folder = Path(sys.argv[1])
run = pipeline.Run("film", settings, folder / "run-film", folder / "out" / "film.mp4")
result = pipeline.Engine(Kernels(threads=int(sys.argv[2]))).generate(run, open_model({model!r}), tell, lambda: False)
"""


def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path, model, kernels):
    wanted = settings(steps=4, precision="bf16")
    result = Engine(kernels).generate(run(tmp_path, wanted, "whole"), model, silent, lambda: False)
    want = Path(result["output"]).read_bytes()
    code = KILLED_RUN.format(settings=wanted.to_json(), model=str(TINY))
    for instant in ("text-0", "step-1", "step-3", "step-4", "audio-0", "video-0", "mux-0"):
        folder = tmp_path / instant
        (folder / "out").mkdir(parents=True)
        killed = [sys.executable, "-c", code, str(folder), "2", instant]
        environment = {**os.environ, "H3_HOME": str(folder / "home")}
        assert subprocess.run(killed, cwd=TINY.parents[2], env=environment, check=False).returncode == -9
        assert not (folder / "out" / "film.mp4").exists()
        told = []
        again = Run("film", wanted, folder / "run-film", folder / "out" / "film.mp4")
        Engine(Kernels(threads=1)).generate(again, model, record(told), lambda: False)
        assert (folder / "out" / "film.mp4").read_bytes() == want
        if instant.startswith("step"):
            steps = [values["step"] for kind, values in told if kind == "step"]
            assert steps == list(range(int(instant[-1]) + 1, 5))
        assert sorted(os.listdir(folder / "out")) == ["film.json", "film.mp4", "film.png"]


def test_the_film_says_how_it_was_made_unless_asked_not_to(tmp_path, model, kernels):
    from h3core.studio import recipe as reader

    job = run(tmp_path, settings(prompt='a "b"\n= ; # \\ 🐱 红狐狸', seed=2**64 - 1, threads=1))
    result = Engine(kernels).generate(job, model, silent, lambda: False)
    beside = reader.read(result["sidecar"])
    assert reader.read(result["output"]) == beside
    assert beside["settings"]["prompt"] == job.settings.prompt and beside["settings"]["seed"] == str(2**64 - 1)
    assert beside["weights"] == {part.kind: part.identity for part in model.parts}
    assert {"version", "arithmetic", "model"} <= beside.keys() and str(tmp_path) not in json.dumps(beside)
    silent_run = run(tmp_path, settings(recipe=False))
    result = Engine(kernels).generate(silent_run, model, silent, lambda: False)
    assert result["sidecar"] is None and sorted(os.listdir(tmp_path / "out")) == ["film.mp4", "film.png"]
    with pytest.raises(reader.RecipeError):
        reader.read(result["output"])
