"""The kill table: a run is killed at every fault point and at random instants; all films must have the same bytes.

    python -m tests.bench.kills [--worker 20] [--server 10] [--no-points]

Uses the real studio and engine with the tiny model. Prints a line for each kill; exit code 1 if any film differs.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from h3core import fault

HOME = Path(__file__).parents[2]
SERVER = [sys.executable, "-m", "tests.studio.server_that_dies"]


def start(home: Path, **environment: str) -> subprocess.Popen:
    """A studio on its way."""
    home.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "H3_HOME": str(home), **environment}
    return subprocess.Popen([*SERVER, str(home)], cwd=HOME, env=env, stdout=subprocess.PIPE, text=True)


def finish(server: subprocess.Popen, home: Path) -> tuple[str, int]:
    """(digest of the film, how many studios were needed): starts another one as often as one is killed."""
    count = 1
    while True:
        said = (server.communicate(timeout=300)[0] or "").strip()
        if server.returncode == 0:
            break
        count += 1
        assert count < 100, "it never ends"
        server = start(home)
    path = Path(said)
    return (hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else said), count


def at_points(folder: Path, points: Iterable[str]) -> tuple[str, int, set[str]]:
    """(digest, studios, points that killed): one film, each point kills once, whoever reaches it first."""
    marks = folder / "marks"
    marks.mkdir(parents=True)
    count, env = 1, {"H3_FAULT": ",".join(points), "H3_FAULT_MARKS": str(marks)}
    server = start(folder / "home", **env)
    while server.wait(300):
        count += 1
        assert count < 100, "it never ends"
        server = start(folder / "home", **env)
    assert server.stdout
    path = Path(server.stdout.read().strip())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else str(path)
    return digest, count, set(os.listdir(marks))


def at_random(folder: Path, who: str, after_s: float) -> tuple[str, int]:
    """(digest, studios) of a film whose worker or server is killed after a time."""
    server = start(folder)
    time.sleep(after_s)
    try:
        process = psutil.Process(server.pid)
        victims = [child for child in process.children() if "worker" in " ".join(child.cmdline())]
        for victim in [process] if who == "server" else victims:
            os.kill(victim.pid, signal.SIGKILL)
    except psutil.Error:
        pass  # it had ended by then
    return finish(server, folder)


def left_behind(folder: Path) -> list[str]:
    """Files under the user folder that should not be there any more."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.name.startswith(".")] + [
        str(path.relative_to(folder)) for path in folder.glob("runs/*")
    ]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker", type=int, default=20)
    parser.add_argument("--server", type=int, default=10)
    parser.add_argument("--no-points", action="store_true")
    options = parser.parse_args()
    folder, chance, bad = Path(tempfile.mkdtemp(prefix="h3-kills-")), random.Random(4), 0
    begun = time.monotonic()
    want, _ = finish(start(folder / "quiet"), folder / "quiet")
    whole_s = time.monotonic() - begun
    print(f"undisturbed     {want}  {whole_s:.1f} s", flush=True)
    cases = [("worker", None)] * options.worker + [("server", None)] * options.server
    if not options.no_points:
        cases = [("worker", name) for name in fault.WORKER] + [("server", name) for name in fault.SERVER] + cases
    for number, (who, name) in enumerate(cases):
        home = folder / str(number)
        if name:
            # only a run that was cut short before comes to "again"
            digest, servers, hit = at_points(home, (name, "state.synced") if name.startswith("again") else (name,))
            what, home = f"{name:16} {'reached' if name in hit else 'NOT REACHED'}", home / "home"
        else:
            after_s = chance.uniform(0.3, whole_s)
            digest, servers = at_random(home, who, after_s)
            what = f"after {after_s:5.2f} s"
        left = left_behind(home)
        verdict = "same bytes" if digest == want and not left else f"DIFFERENT {digest} {left}"
        bad += verdict != "same bytes"
        print(f"{who:7} {what:32} studios {servers}  {verdict}", flush=True)
        shutil.rmtree(home, ignore_errors=True)
    print(f"{len(cases)} kills, {bad} bad")
    shutil.rmtree(folder, ignore_errors=True)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
