"""Places where a test may end this process, to prove that nothing is lost when the machine does it there.

H3_FAULT names one or more points, with commas between. The process that reaches one of them is killed as by SIGKILL.
With H3_FAULT_MARKS, a folder, each point kills only once, over all processes: a file of its name is left there.
Without H3_FAULT a point costs one look at an empty set. Knows nothing of what happens between the points.
"""

import os
import signal
from pathlib import Path

WRITES = ("state", "cache", "preview", "poster", "recipe")  # files that are written whole or not at all
MOMENTS = ("begun", "written", "synced", "renamed", "durable")
WORKER = (
    *(f"{what}.{moment}" for what in WRITES for moment in MOMENTS),
    *("sound.begun", "sound.written", "encoder.started", "encoder.fed", "encoder.ended"),
    *("film.checked", "film.synced", "film.renamed", "film.durable", "run.made", "run.said"),
)
TRANSACTIONS = ("add", "start", "note", "end")
SERVER = (
    *(f"{what}.{moment}" for what in TRANSACTIONS for moment in ("open", "filled", "committed")),
    *("run.given", "run.cleaned", "again.filled", "again.committed"),
)

_wanted = frozenset(filter(None, os.environ.get("H3_FAULT", "").split(",")))
_marks = os.environ.get("H3_FAULT_MARKS", "")


def point(name: str) -> None:
    """Ends the process here if it was asked for."""
    if _wanted and name in _wanted and _first_time(name):
        os.kill(os.getpid(), signal.SIGKILL)


def _first_time(name: str) -> bool:
    if not _marks:
        return True
    try:
        Path(_marks, name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
