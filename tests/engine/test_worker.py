"""The worker as the studio sees it: a process, lines in, lines out."""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.golden_files import TINY

HOME = TINY.parents[2]
FOX = {
    "prompt": '🐱 红狐狸 "quotes" ’ é\nA red fox',
    "width": 64,
    "height": 32,
    "frames": 22,
    "steps": 3,
    "seed": "1798406481619217041",
    "precision": "exact",
    "noise_guard": False,
}
PATIENCE_S = 120


class Client:
    """A worker with its pipes; messages are kept in order."""

    def __init__(self, folder: Path, **environment: str):
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "h3core.engine.worker"],
            cwd=HOME,
            env={**os.environ, "H3_HOME": str(folder / "home"), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.errors = b""
        self.lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.seen: list[dict] = []
        self.readers = [threading.Thread(target=self._keep_lines), threading.Thread(target=self._keep_errors)]
        for reader in self.readers:
            reader.start()

    def _keep_lines(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(b"")

    def _keep_errors(self):
        self.errors = self.process.stderr.read()

    def send(self, **message) -> None:
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def run(self, name: str, **changes) -> None:
        values = {**FOX, **changes}
        model = values.pop("model", str(TINY))
        output = values.pop("output", str(self.folder / "out" / f"{name}.mp4"))
        self.send(type="run", run=name, settings=values, model=model, folder=str(self.folder / name), output=output)

    def until(self, *types: str, run: str | None = None) -> dict:
        """The next message of one of these types (of that run)."""
        while True:
            line = self.lines.get(timeout=PATIENCE_S)
            if not line:
                raise AssertionError(f"the worker ended after {self.seen[-3:]}")
            message = json.loads(line.decode("ascii"))
            self.seen.append(message)
            if message["type"] in types and (run is None or message.get("run") == run):
                return message

    def close(self) -> int:
        if not self.process.stdin.closed:
            self.process.stdin.close()
        code = self.process.wait(PATIENCE_S)
        for reader in self.readers:
            reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return code


@pytest.fixture
def client(tmp_path):
    started = Client(tmp_path, LC_ALL="C", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    yield started
    if started.process.poll() is None:
        started.process.kill()
    started.close()


def test_a_film_with_any_prompt_under_an_ascii_locale(client):
    hello = client.until("hello")
    assert {"version", "cpu", "isa", "threads", "pid"} <= hello.keys() and hello["replaced"] == []
    client.run("one")
    finished = client.until("finished", "failed")
    assert finished["type"] == "finished", finished
    for name in ("output", "poster", "sidecar"):
        assert os.path.isabs(finished[name]) and os.path.getsize(finished[name])
    assert finished["seed"] == 1798406481619217041 and finished["frames"] == 22
    assert finished["peak_bytes"] > 50e6
    recipe = json.loads(Path(finished["sidecar"]).read_text(encoding="utf-8"))
    assert recipe["settings"]["prompt"] == FOX["prompt"] and recipe["settings"]["seed"] == FOX["seed"]
    times = [message["t"] for message in client.seen]
    assert times == sorted(times)
    assert all(message["run"] == "one" for message in client.seen[1:])
    pictures = [message["path"] for message in client.seen if message["type"] == "preview"]
    assert len(pictures) == 3 and all(os.path.isabs(path) for path in pictures)
    assert client.close() == 0


def test_warm_weights_and_caches_from_run_to_run(client):
    client.run("one")
    first = client.until("finished", "failed", run="one")
    client.run("two", seed=8)
    second = client.until("finished", "failed", run="two")
    assert (first["type"], second["type"]) == ("finished", "finished")
    assert "text" in first["seconds"] and "text" not in second["seconds"]
    assert Path(first["output"]).read_bytes() != Path(second["output"]).read_bytes()
    client.send(type="unload")
    assert client.until("memory")["rss_bytes"] > 0
    client.run("three")
    third = client.until("finished", "failed", run="three")
    assert Path(third["output"]).read_bytes() == Path(first["output"]).read_bytes()


@pytest.mark.parametrize("phase", ["text", "denoise", "video"])
def test_cancel_while_it_computes(client, phase):
    client.run("one", frames=124, width=256, height=256, steps=1 if phase == "video" else 30)
    while client.until("phase", run="one")["phase"] != phase:
        pass
    asked = time.monotonic()
    for _ in range(3):  # safe to repeat
        client.send(type="cancel", run="one")
    assert client.until("cancelled", "failed", "finished")["type"] == "cancelled"
    assert time.monotonic() - asked < 30  # a bound on hanging, not a measure
    assert not list((client.folder / "out").glob("*"))
    client.send(type="cancel", run="one")
    client.run("two")
    assert client.until("finished", "failed")["type"] == "finished"


def test_a_waiting_run_is_cancelled_before_it_starts(client):
    client.run("one")
    client.run("two")
    client.send(type="cancel", run="two")
    assert client.until("finished", run="one")
    assert client.until("phase", "cancelled", run="two")["type"] == "cancelled"


IMPOSSIBLE = [
    ({"prompt": " "}, "input", "prompt is empty"),
    ({"width": 500}, "input", "multiples of 32"),
    ({"seed": str(10**23)}, "input", "between 0 and"),
    ({"magic": 1}, "input", "no setting 'magic'"),
    ({"model": "/nowhere"}, "input", "/nowhere does not exist"),
    ({"output": "/proc/no/film.mp4"}, "media", "cannot be saved"),
    ({"output": "/tmp/" + "x" * 300 + ".mp4"}, "media", "cannot be saved"),
    ({"noise_guard": True, "frames": 39, "width": 256}, "noise", "pure noise"),
]


def test_what_cannot_be_done_is_one_sentence_and_the_worker_lives(client):
    for number, (change, kind, words) in enumerate(IMPOSSIBLE):
        client.run(f"bad-{number}", **change)
        failed = client.until("failed", "finished")
        assert failed["type"] == "failed" and failed["kind"] == kind and words in failed["message"], failed
        assert "\n" not in failed["message"] and "Traceback" not in failed["message"]
    client.run("good")
    assert client.until("failed", "finished", run="good")["type"] == "finished"


def test_lines_that_are_no_messages(client):
    client.until("hello")
    for line in (b"{", b"[]", b'{"type":"dance"}', b"\xff\xfe", b'{"type":"cancel"}', b"12"):
        client.process.stdin.write(line + b"\n")
        client.process.stdin.flush()
        assert client.until("failed")["kind"] == "protocol"
    client.run("one")
    assert client.until("failed", "finished")["type"] == "finished"


def test_missing_fields_of_a_run(client):
    client.send(type="run", run="one", settings=FOX)
    assert client.until("failed")["run"] == "one"
    client.send(type="quit")
    assert client.process.wait(PATIENCE_S) == 0


def test_it_ends_when_stdin_closes_even_while_it_computes(client):
    client.run("one", frames=124, width=256, height=256, steps=200)
    while client.until("phase")["phase"] != "denoise":
        pass
    client.until("step")
    assert client.close() == 0
    assert (client.folder / "one" / "state.safetensors").exists()
    assert not list((client.folder / "out").glob("*"))


def test_an_impossible_instruction_set_is_a_sentence(tmp_path):
    client = Client(tmp_path, H3_ISA="sse9")
    failed = client.until("failed", "hello")
    assert failed["type"] == "failed" and failed["kind"] == "start" and "sse9" in failed["message"]
    assert client.close() == 1


def test_stray_prints_do_not_reach_the_messages(tmp_path):
    code = (
        "import os, sys, threading; from h3core.engine import worker; out = worker.take_stdout(); "
        "print('stray'); os.write(1, b'from C\\n'); os.system('echo from a child'); "
        "worker.Messages(out).send('hello', None, text='雪')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=HOME, capture_output=True, check=True)
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["text"] == "雪" and line.isascii()
    assert b"stray" in done.stderr and b"from C" in done.stderr and b"child" in done.stderr


def test_memory_that_runs_out_is_said_and_survived():
    from h3core.engine import worker

    assert worker.describe(MemoryError("60 GB of memory could not be had")) == ("memory", worker.OUT_OF_MEMORY)
    assert worker.describe(OSError(28, "No space left on device", "/x"))[0] == "disk"
    kind, sentence = worker.describe(KeyError("weight"))
    assert kind == "internal" and "KeyError" in sentence


def test_above_the_watermark_caches_go_first_then_a_sentence(tmp_path, monkeypatch):
    from h3core.engine import worker

    dropped = []
    engine = type("Engine", (), {"residency": type("Residency", (), {"drop": lambda self: dropped.append(1)})()})()
    watch = type("Watch", (), {"pressed": True, "relieved": False})()
    monkeypatch.setenv("H3_MEMORY_LIMIT", "1000")
    worker.Worker._relieve(None, engine, watch)
    assert dropped == [1] and watch.relieved and not watch.pressed
    with pytest.raises(MemoryError):
        worker.Worker._relieve(None, engine, watch)
    monkeypatch.setenv("H3_MEMORY_LIMIT", str(1 << 50))
    worker.Worker._relieve(None, engine, watch)  # what was let go was enough
    monkeypatch.delenv("H3_MEMORY_LIMIT")
    assert worker.pressure() is False


def test_a_run_above_its_limit_is_told_so(tmp_path):
    client = Client(tmp_path, H3_MEMORY_LIMIT="1000000")
    client.run("one", frames=124, width=256, height=256, steps=200)
    failed = client.until("failed", "finished")
    assert failed["kind"] == "memory" and "smaller size" in failed["message"]
    assert client.close() == 0
