"""Many small jobs in a row with cancels mixed in: memory, threads, files, children and temporary folders stay as they were.

    python -m tests.bench.soak [--jobs 200] [--cancels 30]

22 frames at 64x64 in 2 steps with the tiny model. Prints what the studio and its worker hold after job 3 and at the end.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
from pathlib import Path

import psutil

from h3core.studio import jobs
from h3core.studio.studio import Studio
from tests.golden_files import TINY
from tests.studio import server_that_dies as real

SMALL = {**real.FOX, "size": "64x64", "steps": 2, "seed": -1}


def held(home: Path) -> dict[str, int]:
    """What this process and its children hold now."""
    own = psutil.Process()
    family = [own, *own.children(recursive=True)]
    return {
        "memory_mb": sum(each.memory_info().rss for each in family) >> 20,
        "threads": sum(each.num_threads() for each in family),
        "files": sum(each.num_fds() for each in family),
        "children": len(family) - 1,
        "run_folders": len(list((home / "runs").iterdir())),
        "hidden_files": sum(path.name.startswith(".") for path in home.rglob("*")),
        "temporary": len(os.listdir(tempfile.gettempdir())),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--cancels", type=int, default=30)
    options = parser.parse_args()
    home, chance = Path(tempfile.mkdtemp(prefix="h3-soak-")), random.Random(4)
    cancelled = set(chance.sample(range(4, options.jobs + 1), min(options.cancels, options.jobs - 3)))
    states: dict[str, int] = {}
    begun = time.monotonic()
    with Studio(home, whole_queue=True) as studio:
        for number in range(1, options.jobs + 1):
            job = studio.add(SMALL, prompt=f"film {number % 7}", model=str(TINY))
            if number in cancelled:
                time.sleep(chance.uniform(0, 1.5))
                studio.cancel(job)
            state = studio.wait(job).state
            states[state] = states.get(state, 0) + 1
            if state == jobs.FAILED:
                print(studio.job(job).error)
            if number in (3, options.jobs):
                time.sleep(1.0)
                print(f"after job {number:4}  {held(home)}", flush=True)
    print(f"{states} in {time.monotonic() - begun:.0f} s")
    shutil.rmtree(home)


if __name__ == "__main__":
    main()
