"""Stands in for the engine in tests of the queue: same messages, no model. Words in the prompt say how it behaves.

crash: is killed at step 2 · once: only the first time · fail: fails at step 2 · full: no room for the film, the first
time · stuck: never answers a cancel · slow: a pause after each step ·
nofilm: says it finished but wrote nothing. The film is a test picture with a tone, made once by the bundled ffmpeg.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import imageio_ffmpeg

started = time.monotonic()
cancelled: set[str] = set()
tasks: list[dict] = []
arrived = threading.Condition()


def say(message_type: str, run: str | None = None, **values) -> None:
    message = {"type": message_type, "t": time.monotonic() - started, **({"run": run} if run else {}), **values}
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def listen() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "cancel":
            cancelled.add(message["run"])
        elif message["type"] == "quit":
            break
        else:
            with arrived:
                tasks.append(message)
                arrived.notify()
    os._exit(0)


def film(settings: dict, output: Path) -> None:
    seconds = settings["frames"] / 24
    picture_source = f"testsrc=size={settings['width']}x{settings['height']}:rate=24:duration={seconds}"
    sources = f"-y -v error -f lavfi -i {picture_source} -f lavfi -i sine=440:duration={seconds}"
    coding = "-c:v libx264 -pix_fmt yuv420p -c:a aac -shortest -movflags +faststart"
    subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), *sources.split(), *coding.split(), str(output)], check=True)


def picture(path: Path, step: int) -> None:
    what = f"-y -v error -f lavfi -i color=c=0x{(step * 37) % 256:02x}4080:size=64x64 -frames:v 1 -update 1"
    subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), *what.split(), str(path)], check=True)


def generate(task: dict) -> None:
    run, settings, words = task["run"], task["settings"], task["settings"]["prompt"].split()
    output, folder = Path(task["output"]), Path(task["folder"])
    pause = 0.5 if "slow" in words else 0.01
    for phase in ("load", "text", "adaln", "denoise"):
        say("phase", run, phase=phase, done=0, total=1)
    for step in range(1, settings["steps"] + 1):
        time.sleep(pause)
        if step == 2 and "crash" in words and not ("once" in words and (folder / "crashed").exists()):
            (folder / "crashed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 2 and "fail" in words:
            return say("failed", run, kind="internal", message="The stand-in failed as asked.", phase="denoise")
        if run in cancelled and "stuck" not in words:
            return say("cancelled", run, phase="denoise")
        say(
            "step", run, step=step, steps=settings["steps"], step_s=pause, left_s=pause * (settings["steps"] - step) + 1
        )
        if "slow" in words:
            picture(folder / "preview.png", step)
            say("preview", run, path=str(folder / "preview.png"))
    for phase in ("audio", "video", "mux"):
        say("phase", run, phase=phase, done=0, total=1)
    if "full" in words and not (folder / "state.safetensors").exists():
        (folder / "state.safetensors").touch()
        return say("failed", run, kind="disk", message="The disk is full.", phase="mux")
    poster = output.with_suffix(".png")
    if "nofilm" not in words:
        film(settings, output)
        picture(poster, 3)
    return say("finished", run, output=str(output), poster=str(poster), seed=settings["seed"], peak_bytes=2**28)


def main() -> None:
    threading.Thread(target=listen, daemon=True).start()
    print("a library that prints where it should not", flush=True)
    say("hello", version="0", cpu="Stand-in", isa="c", isa_name="portable C", threads=2)
    while True:
        with arrived:
            while not tasks:
                arrived.wait()
            task = tasks.pop(0)
        if task["type"] == "run":
            generate(task)
        elif task["type"] == "unload":
            say("memory", None, rss_bytes=1)


if __name__ == "__main__":
    main()
