"""A studio with one job of the real engine: adds it if it is not there, waits for it, prints the film's path.

argument: the user folder. Started again and again by tests that kill it.
"""

import sys
import time

from h3core.studio import executor, jobs
from h3core.studio.studio import Studio
from tests.golden_files import TINY

FOX = {"prompt": "a red fox", "size": "64x32", "frames": 22, "steps": 6, "seed": 11, "model": str(TINY)}


def settings(request, seed):
    """The engine's settings with the noise guard off, since these weights are random."""
    return REAL_SETTINGS(request, seed) | {"noise_guard": False}


REAL_SETTINGS, executor.settings = executor.settings, settings
jobs.DEATHS_OF_PROGRAMS = jobs.DEATHS_OF_WORKERS = 1000  # here it is the test that kills, again and again


def main() -> None:
    with Studio(sys.argv[1], whole_queue=True) as studio:
        job = studio.jobs()[0].id if studio.jobs() else studio.add(FOX)
        done = studio.wait(job)
        while done.state == jobs.DONE and (studio.home / "runs" / str(done.run)).exists():
            time.sleep(0.02)
        print(done.output if done.state == jobs.DONE else f"{done.state}: {done.error}")


if __name__ == "__main__":
    main()
