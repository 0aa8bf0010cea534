"""What every trainer here shares: a clock that survives restarts, checkpoints, an average of the weights, optimisers.

Training is measured in minutes, because it runs beside other work: a run of `--minutes 10` does what fits, writes its
checkpoint and ends; the next one goes on from there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

CHECKPOINT_S = 120.0


class Average:
    """Exponential moving average of a module's parameters, with a short horizon at the start."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self.values = {name: p.detach().clone() for name, p in module.named_parameters()}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        names, values = zip(*module.named_parameters(), strict=True)
        torch._foreach_lerp_([self.values[name] for name in names], [v.detach() for v in values], 1 - decay)

    def copy_to(self, module: nn.Module) -> None:
        module.load_state_dict({**module.state_dict(), **self.values})


def optimisers(module: nn.Module, lr: float, muon: tuple[str, ...] = (), weight_decay: float = 0.01) -> list[torch.optim.Optimizer]:
    """AdamW for everything, except Muon for the matrices whose name contains one of the words in muon."""
    matrices, rest = [], []
    for name, p in module.named_parameters():
        if p.requires_grad:
            (matrices if p.ndim == 2 and any(word in name for word in muon) else rest).append(p)
    found: list[torch.optim.Optimizer] = []
    if rest:
        found.append(torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.98), weight_decay=weight_decay, foreach=True))
    if matrices:
        found.append(torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"))
    return found


def set_lr(found: list[torch.optim.Optimizer], lr: float) -> None:
    for optimiser in found:
        for group in optimiser.param_groups:
            group["lr"] = lr


def load_optimisers(found: list[torch.optim.Optimizer], saved: list[dict] | None) -> None:
    """Go on with saved optimisers; a checkpoint made from a shipped tree has none."""
    for optimiser, state in zip(found, saved or [], strict=bool(saved)):
        optimiser.load_state_dict(state)


class Clock:
    """Minutes trained so far, over all runs; `running` yields step numbers until this run's share is used up."""

    def __init__(self, minutes: float) -> None:
        self.limit, self.before, self.step = minutes, 0.0, 0
        self.start = self.saved = time.monotonic()

    @property
    def minutes(self) -> float:
        return self.before + (time.monotonic() - self.start) / 60

    def running(self) -> Iterator[int]:
        while (time.monotonic() - self.start) / 60 < self.limit:
            yield self.step
            self.step += 1

    def checkpoint_due(self) -> bool:
        if time.monotonic() - self.saved < CHECKPOINT_S:
            return False
        self.saved = time.monotonic()
        return True

    def state(self) -> dict:
        return {"minutes": self.minutes, "step": self.step}

    def resume(self, state: dict) -> None:
        self.before, self.step = state["minutes"], state["step"]


def save_state(path: Path, state: dict) -> None:
    """Write a checkpoint so that a kill at any moment leaves the old or the new one, never half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    os.replace(partial, path)


def load_state(path: Path) -> dict | None:
    return torch.load(path, weights_only=False, map_location="cpu") if path.exists() else None


def warmed_lr(peak: float, step: int, minutes: float, end: float, warmup: int = 200, fade: float = 0.4) -> float:
    """Linear warm-up, flat, then linear decay to a twentieth over the last `fade` of the planned minutes."""
    up = min(1.0, (step + 1) / warmup)
    left = max(0.0, (end - minutes) / (end * fade))
    return peak * up * max(0.05, min(1.0, left))
