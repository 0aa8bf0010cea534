"""The command as a person runs it: bad inputs are one sentence, code 2, no file; a run, events, Ctrl-C, the queue."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from h3core import cli
from h3core.studio.studio import Studio
from tests.golden_files import TINY
from tests.studio.test_executor import STAND_IN

ROOT = Path(__file__).parent.parent
MODEL = ["--model", str(TINY)]
QUICK = [*MODEL, "--size", "64x64", "--frames", "22", "--steps", "3"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user folder of its own, a working folder without anything, and the stand-in for the engine."""
    monkeypatch.setenv("H3_HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(Studio.__init__, "__kwdefaults__", {**Studio.__init__.__kwdefaults__, "worker": STAND_IN})
    return tmp_path / "home"


def h3(*arguments: str, env: dict | None = None, **options) -> subprocess.Popen:
    """The command as a process, with the stand-in for the engine."""
    code = (
        "import sys; from h3core import cli; from h3core.studio.studio import Studio; "
        f"Studio.__init__.__kwdefaults__['worker'] = {STAND_IN!r}; sys.exit(cli.main())"
    )
    given = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"} | (env or {})
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=given, **options
    )


BAD = {
    "empty prompt": ["", *MODEL],
    "no prompt": [*MODEL],
    "spaces": ["  \n ", *MODEL],
    "size": ["x", *MODEL, "--size", "500x500"],
    "huge size": ["x", *MODEL, "--size", "99999x99999"],
    "no size": ["x", *MODEL, "--size", "large"],
    "0 frames": ["x", *MODEL, "--frames", "0"],
    "1e9 frames": ["x", *MODEL, "--frames", "1000000000"],
    "1e9 as text": ["x", *MODEL, "--frames", "1e9"],
    "0 steps": ["x", *MODEL, "--steps", "0"],
    "huge seed": ["x", *MODEL, "--seed", "1" + 23 * "0"],
    "1e3 seed": ["x", *MODEL, "--seed", "1e3"],
    "0x10 seed": ["x", *MODEL, "--seed", "0x10"],
    "precision": ["x", *MODEL, "--precision", "fp4"],
    "residency": ["x", *MODEL, "--residency", "somewhere"],
    "0 threads": ["x", *MODEL, "--threads", "0"],
    "missing model": ["x", "--model", "/does/not/exist"],
    "output is no film": ["x", *MODEL, "-o", "film.txt"],
    "output folder": ["x", *MODEL, "-o", "nowhere/film.mp4"],
    "unknown flag": ["x", *MODEL, "--colour", "red"],
}


@pytest.mark.parametrize("arguments", BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_sentence(home, capsys, arguments):
    output = [] if "-o" in arguments else ["-o", "film.mp4"]
    try:
        code = cli.main(["generate", *arguments, *output])
    except SystemExit as stop:  # argparse leaves this way
        code = stop.code
    said = capsys.readouterr()
    assert code == cli.BAD_INPUT and said.out == ""
    assert len(said.err.splitlines()) == 1 and said.err.rstrip().endswith(".") and "Traceback" not in said.err
    assert list(Path.cwd().iterdir()) == [] and not (home / "films").exists()


def _model(folder: Path) -> Path:
    return Path(shutil.copytree(TINY, folder / "model"))


def _cut(folder: Path, name: str, keep) -> Path:
    model = _model(folder)
    file = model / name
    file.write_bytes(file.read_bytes()[: keep(file.stat().st_size)])
    return model


DIT, VAE = "transformer/diffusion_pytorch_model.safetensors", "vae/diffusion_pytorch_model.safetensors"
BROKEN = {
    "cut off by 10 bytes": lambda folder: _cut(folder, DIT, lambda size: size - 10),
    "6 bytes long": lambda folder: _cut(folder, DIT, lambda size: 6),
    "empty file": lambda folder: _cut(folder, VAE, lambda size: 0),
    "empty folder": lambda folder: folder,
    "not a model file": lambda folder: _cut(folder, "model_index.json", lambda size: size) / "model_index.json",
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_model_is_one_sentence(home, tmp_path, capsys, broken):
    (tmp_path / "models").mkdir()
    code = cli.main(["generate", "x", "-o", "film.mp4", "--model", str(broken(tmp_path / "models"))])
    said = capsys.readouterr()
    assert code == cli.BAD_INPUT and len(said.err.splitlines()) == 1 and said.err.startswith("model: ")
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("name", [DIT, VAE, "tokenizer/tokenizer.json"])
def test_a_missing_file_is_one_sentence(home, tmp_path, capsys, name):
    model = _model(tmp_path)
    (model / name).unlink()
    assert cli.main(["generate", "x", "-o", "film.mp4", "--model", str(model)]) == cli.BAD_INPUT
    said = capsys.readouterr()
    assert len(said.err.splitlines()) == 1 and list(Path.cwd().iterdir()) == []


def test_generate_says_where_the_film_is(home, capsys):
    assert cli.main(["generate", "a red ball", *QUICK, "-o", "ball.mp4", "--seed", " 7 ", "--frames", "20"]) == cli.OK
    said = capsys.readouterr()
    assert said.out.strip() == str(Path("ball.mp4").absolute()) and Path("ball.mp4").stat().st_size > 0
    assert "frames: 20 was raised to 22" in said.err and "Step 3 of 3" in said.err and "seed 7" in said.err


def test_a_prompt_without_quotes_is_explained(home, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["generate", "a", "red", "ball", *QUICK])
    assert left.value.code == 2
    assert 'put it in quotes, "a red ball"' in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["generate", "a", "--red"])
    assert "unrecognized arguments: --red" in capsys.readouterr().err


def test_no_time_is_0_s():
    assert [cli._duration(seconds) for seconds in (0, 0.4, 1, 61)] == ["under 1 s", "under 1 s", "1 s", "1 min 01 s"]
    assert [cli._about(seconds) for seconds in (0.2, 3)] == ["under 1 s", "about 3 s"]


def test_events_are_json_with_times(home, capsys):
    assert cli.main(["generate", "红狐狸 🐱", *QUICK, "--events", "--seed", "18446744073709551615"]) == cli.OK
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events[0]["type"] == "queued" and events[-1]["type"] == "finished"
    assert all(event["at"] > 0 for event in events) and [
        event["step"] for event in events if event["type"] == "step"
    ] == [1, 2, 3]


def test_failure_of_a_run(home, capsys):
    assert cli.main(["generate", "fail", *QUICK, "-o", "film.mp4"]) == cli.FAILED
    assert "The stand-in failed as asked." in capsys.readouterr().err and list(Path.cwd().iterdir()) == []


def test_a_console_that_knows_ascii_only(home):
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}
    prompt = '🐱 红狐狸 "quotes" ’ é'
    for extra, code in (([], cli.OK), (["--size", "猫"], cli.BAD_INPUT)):
        process = h3("generate", prompt, *QUICK, *extra, env=env)
        _, err = process.communicate(timeout=60)
        assert process.returncode == code and b"Traceback" not in err, err
    with Studio(home) as studio:
        assert studio.jobs()[0].request["prompt"] == prompt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_cancels(home, number):
    process = h3("generate", "slow", *QUICK, "--steps", "100", "-o", "film.mp4")
    with Studio(home) as studio:
        end = time.monotonic() + 60
        while not any(job.progress.get("step") for job in studio.jobs()):
            assert time.monotonic() < end
            time.sleep(0.05)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert process.returncode == cli.CANCELLED and b"Cancelled." in err
        assert studio.jobs()[0].state == "cancelled" and list(Path.cwd().iterdir()) == []


def test_generate_joins_a_running_studio(home, capsys):
    with Studio(home, worker=STAND_IN, whole_queue=True) as page:
        page.warm()
        process = h3("generate", "joined", *QUICK, "-o", "film.mp4")
        assert process.wait(60) == cli.OK
        assert page.jobs()[0].state == "done" and Path("film.mp4").exists()
        slow = page.add({"prompt": "slow", "model": str(TINY), "size": "64x64", "steps": 100})
        assert cli.main(["cancel", str(slow)]) == cli.OK
        assert page.wait(slow).state == "cancelled"
    assert cli.main(["jobs"]) == cli.OK and "joined" in capsys.readouterr().out
    assert cli.main(["cancel", "99"]) == cli.BAD_INPUT


def test_plan_models_check(home, capsys):
    assert cli.main(["plan", *QUICK]) == cli.OK and "memory" in capsys.readouterr().out
    assert cli.main(["plan", *QUICK, "--json"]) == cli.OK and json.loads(capsys.readouterr().out)["frames"] == 22
    assert cli.main(["models"]) == cli.OK
    assert cli.main(["check", str(TINY)]) == cli.OK and "can be used" in capsys.readouterr().out
    assert cli.main(["check", "/does/not/exist"]) == cli.BAD_INPUT


def test_too_big_for_this_computer(home, capsys, monkeypatch):
    monkeypatch.setattr("h3core.studio.hardware.memory_bytes", lambda: 400_000_000)
    assert cli.main(["generate", "x", *MODEL, "-o", "film.mp4"]) == cli.BAD_INPUT
    assert "it fits" in capsys.readouterr().err and list(Path.cwd().iterdir()) == []


def test_resume_pause_delete_takes(home, capsys):
    with Studio(home, worker=STAND_IN) as studio:
        job = studio.add(prompt="slow", model=str(TINY), size="64x64", frames=22, steps=6)
        while not studio.job(job).progress.get("step"):
            time.sleep(0.02)
    assert cli.main(["pause"]) == cli.OK and cli.main(["jobs"]) == cli.OK
    said = capsys.readouterr().out
    assert "interrupted" in said and "The queue is paused." in said
    assert cli.main(["resume"]) == cli.OK and "done" in capsys.readouterr().out
    assert cli.main(["resume"]) == cli.OK and "Nothing was interrupted." in capsys.readouterr().out
    assert cli.main(["resume", str(job)]) == cli.BAD_INPUT and "nothing to retry" in capsys.readouterr().err
    assert cli.main(["generate", "full", *QUICK]) == cli.FAILED and "retry" in capsys.readouterr().err
    assert cli.main(["resume", "2", "-o", "elsewhere.mp4"]) == cli.OK and Path("elsewhere.mp4").exists()
    assert cli.main(["delete", "2", "--films"]) == cli.OK and not Path("elsewhere.mp4").exists()
    assert cli.main(["delete", "2"]) == cli.BAD_INPUT and capsys.readouterr().err
    assert cli.main(["generate", "x", *QUICK, "--takes", "2", "--seed", "5", "-o", "film.mp4"]) == cli.OK
    assert Path("film_1.mp4").exists() and Path("film_2.mp4").exists()
    assert cli.main(["generate", "x", *QUICK, "--start", "noon"]) == cli.BAD_INPUT
