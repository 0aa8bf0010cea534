"""Results that outlive a run: modulation tables by (transformer, schedule), prompt embeddings by (encoder, prompt),
latent-to-RGB fits.

A cache may lose anything at any time and nothing but time is lost: a missing, damaged or foreign entry is computed
again, and a full disk only means that an entry is not kept. Knows arrays, not what they mean.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from h3core.engine.checkpoint import load_arrays, save_arrays
from h3core.engine.plan import home

VERSION = 1  # raise when the arithmetic behind a cached result changes
LIMIT_BYTES = 8 << 30  # a 50-point schedule of the released transformer is about 2 GB
SPARE_BYTES = 1 << 30  # never fill the disk: leave this much to the films


class Cache:
    """A folder of entries, `<kind>/<digest>.safetensors`; beyond `limit_bytes` the least recently used go first."""

    def __init__(self, folder: Path | None = None, limit_bytes: int = LIMIT_BYTES):
        self.folder, self.limit_bytes = folder or home() / "cache", limit_bytes

    def path(self, kind: str, key: Mapping[str, object]) -> Path:
        """Where the entry lives. key: whatever the result depends on, as JSON values."""
        text = json.dumps([VERSION, kind, key], sort_keys=True)
        return self.folder / kind / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.safetensors"

    def get(self, kind: str, key: Mapping[str, object]) -> dict[str, np.ndarray] | None:
        """The arrays that were put under this key, or None."""
        path = self.path(kind, key)
        loaded = load_arrays(path)
        if loaded is None:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # recently used
        return loaded[0]

    def put(self, kind: str, key: Mapping[str, object], arrays: Mapping[str, np.ndarray]) -> None:
        """Keeps the arrays if there is room; older entries make place."""
        size = sum(array.nbytes for array in arrays.values())
        path = self.path(kind, key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if size > self.limit_bytes or shutil.disk_usage(path.parent).free < size + SPARE_BYTES:
                return
            save_arrays(path, arrays, {"kind": kind}, "cache")
            self._shrink(path)
        except OSError:
            return  # no room or no permission: computed again next time

    def _shrink(self, newest: Path) -> None:
        entries = []
        for path in self.folder.glob("*/*"):
            status = path.stat()
            entries.append((path == newest, status.st_mtime_ns, status.st_size, path))
        total = sum(entry[2] for entry in entries)
        for _, _, size, path in sorted(entries, key=lambda entry: entry[:2]):
            if total <= self.limit_bytes:
                break
            path.unlink(missing_ok=True)
            total -= size
