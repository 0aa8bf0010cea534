"""Makes one film with workers that are killed at one fault point after the other; prints how many it took.

A process of its own, without threads, so that each worker is a fork that has everything imported already.
arguments: folder, and the points in any order, with commas between.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np  # noqa: F401 - imported once for all forks

from h3core import fault
from h3core.engine import pipeline, plan, worker  # noqa: F401
from h3core.weights.identify import open_model
from tests.golden_files import TINY

# a state or a preview that was written is passed for good, so there are more steps than points after them
FOX = {"prompt": "a red fox", "width": 64, "height": 32, "frames": 22, "steps": 8, "seed": 11, "noise_guard": False}


def serve_once(folder: Path) -> bool:
    """One worker with one task. True when it ended by itself after it had finished the film."""
    task_in, task_out = os.pipe()
    said_in, said_out = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(task_in, 0)
        os.dup2(said_out, 1)
        for pipe in (task_in, task_out, said_in, said_out):
            os.close(pipe)
        os._exit(worker.main())
    os.close(task_in)
    os.close(said_out)
    task = {"type": "run", "run": "1", "settings": FOX, "model": str(TINY)}
    task |= {"folder": str(folder / "run"), "output": str(folder / "film.mp4")}
    os.write(task_out, json.dumps(task).encode() + b"\n")
    finished = False
    with open(said_in, "rb") as said:
        for line in said:
            message = json.loads(line)
            if message["type"] == "failed":
                raise SystemExit(message["message"])
            if message["type"] == "finished":
                finished = True
                os.write(task_out, b'{"type":"quit"}\n')
    os.close(task_out)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and finished


def main() -> None:
    folder, points = Path(sys.argv[1]), sys.argv[2]
    marks = folder / "marks"
    marks.mkdir()
    fault._wanted, fault._marks = frozenset(filter(None, points.split(","))), str(marks)
    open_model(TINY)
    workers = 1
    while not serve_once(folder):
        workers += 1
        if workers > 200:
            raise SystemExit("it never ends")
    print(workers)


if __name__ == "__main__":
    main()
