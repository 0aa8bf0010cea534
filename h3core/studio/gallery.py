"""What there is to say of a film that was made: where its time went, and the request that makes it again.

Reads jobs and their messages; changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from h3core.studio.jobs import Job


@dataclass(frozen=True)
class Span:
    """Something that took from start_s to end_s, counted from the run's start."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """phases: in order, one after the other.   steps: each evaluation.   peak_bytes: memory at its highest."""

    phases: tuple[Span, ...] = ()
    steps: tuple[Span, ...] = ()
    total_s: float = 0.0
    peak_bytes: int = 0


def timeline(messages: Iterable[Mapping[str, Any]]) -> Timeline:
    """From the messages of one run, oldest first, each with "at" in seconds.

    Phases that a run enters again (one waits inside another) are drawn again; a run that was cut short and went on is
    drawn with the pause in it.
    """
    began: float | None = None
    phases: list[Span] = []
    steps: list[Span] = []
    name, since, last_step, now, peak = "", 0.0, 0.0, 0.0, 0
    for message in messages:
        began = message["at"] if began is None else began
        now = max(now, message["at"] - began)
        kind = message.get("type")
        if kind == "phase" and message.get("phase") != name:
            if name:
                phases.append(Span(name, since, now))
            name, since = str(message.get("phase")), now
            if name == "denoise":
                last_step = now
        elif kind == "step":
            steps.append(Span(str(message.get("step")), last_step, now))
            last_step = now
        peak = max(peak, int(message.get("peak_bytes") or 0))
    if name:
        phases.append(Span(name, since, now))
    return Timeline(tuple(phases), tuple(steps), now, peak)


def again(job: Job, *, new_seed: bool) -> dict[str, Any]:
    """Raw values of the request that makes this film once more, or one like it. The output gets a name of its own."""
    request = job.request
    values = {
        "size": f"{request['width']}x{request['height']}",
        "seed": None if new_seed else job.seed,
        "guidance": request.get("guidance"),
    }
    for name in (
        "prompt",
        "negative_prompt",
        "frames",
        "steps",
        "precision",
        "residency",
        "threads",
        "model",
        "recipe",
    ):
        if request.get(name) is not None:
            values[name] = request[name]
    return values
