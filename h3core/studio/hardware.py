"""What this computer has: memory that a run may use, physical cores, the processor's name. Measures nothing."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import psutil

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def memory_bytes() -> int:
    """All memory this process may ever use: the machine's, or the container's limit if that is less."""
    total = psutil.virtual_memory().total
    try:
        return min(total, int(_CGROUP_LIMIT.read_text(encoding="ascii")))
    except (OSError, ValueError):  # no cgroup, or "max"
        return total


def free_memory_bytes() -> int:
    """What is free now, without pushing another program to the disk."""
    return min(psutil.virtual_memory().available, memory_bytes())


def physical_cores() -> int:
    """Cores this process may run on, two threads of one core counted once."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(psutil.cpu_count(logical=False) or allowed, allowed)


def cpu_name() -> str:
    """The processor as people call it, without trademark signs."""
    name = ""
    try:
        found = re.search(
            r"^(?:model name|Hardware)\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text("utf-8", "replace"), re.MULTILINE
        )
        name = found[1] if found else ""
    except OSError:
        pass
    return short_cpu_name(name or platform.processor() or platform.machine())


def short_cpu_name(name: str) -> str:
    """The name without (R), (TM), clock and words that say nothing."""
    name = re.sub(r"\((R|TM)\)|\b(CPU|Processor)\b|\d+-Core\b|@.*", " ", name, flags=re.IGNORECASE)
    return " ".join(name.split()) or "CPU"
