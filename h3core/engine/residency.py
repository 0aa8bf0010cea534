"""Which weights are in memory, and when. With csrc/pool.c the only file that knows the operating system.

Blocks come from an iterator: resident ones are read once and kept; streamed ones pass through two slots that a reader
thread fills ahead of the arithmetic. A block is plain: its name within the block -> QuantMatrix or float32 array.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from h3core.kernels.quant_matrix import QuantMatrix
from h3core.weights.formats.table import FORMATS
from h3core.weights.model_files import ModelError, Weight, shown

Block = dict[str, Any]  # QuantMatrix | float32 array

ALIGNMENT = 64  # a cache line, and the widest vector
HUGE_PAGE = 2 << 20
CHUNK = 16 << 20  # one read: long enough for any disk, short enough to stop within a tenth of a second
CACHED_BELOW = (
    256 << 20
)  # streams smaller than this may stay in the page cache; larger ones would push everything else out
EMBEDDINGS = ("embed_tokens.weight", "pos_embed.weight")  # tables that are looked up, never multiplied


class Cancelled(Exception):
    """The person asked to stop."""


def allocate(size_bytes: int) -> np.ndarray:
    """Zeroed memory of its own, uint8 (size_bytes,), 64-byte aligned, on huge pages where the system has them.

    Given back to the system when the last array over it goes.   raises: MemoryError.
    """
    if size_bytes == 0:
        return np.zeros(0, np.uint8)
    rounded = -(-size_bytes // HUGE_PAGE) * HUGE_PAGE if size_bytes >= HUGE_PAGE else size_bytes
    try:
        # private: shared anonymous memory is a file to Linux, and gets no huge pages
        region = mmap.mmap(-1, rounded, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise MemoryError(f"{size_bytes / 1e9:.1f} GB of memory could not be had") from error
    if hasattr(mmap, "MADV_HUGEPAGE") and size_bytes >= HUGE_PAGE:
        with contextlib.suppress(OSError):  # a kernel built without them
            region.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(region, np.uint8, size_bytes)


class _File:
    """An open weight file: exact reads at any place, and no trace in the page cache when asked so."""

    def __init__(self, path: Path, forget: bool):
        self.path, self.forget = path, forget
        self.descriptor = os.open(path, os.O_RDONLY)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def read(self, into: np.ndarray, offset: int) -> None:
        """Fill uint8 `into` from this offset; raises ModelError when the file ends before."""
        view, done = memoryview(into.data), 0
        while done < len(view):
            if hasattr(os, "preadv"):
                got = os.preadv(self.descriptor, [view[done:]], offset + done)
            else:
                data = os.pread(self.descriptor, len(view) - done, offset + done)
                view[done : done + len(data)] = data
                got = len(data)
            if got == 0:
                raise ModelError(f"{shown(self.path)} became shorter while it was read; download this file again.")
            done += got
        if self.forget and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.descriptor, offset, len(view), os.POSIX_FADV_DONTNEED)


class _Reader:
    """Reads one block at a time, in file order."""

    def __init__(self, residency: Residency, forget: bool, stopped: Callable[[], bool]):
        self.residency, self.forget, self.stopped = residency, forget, stopped

    def block(self, weights: Mapping[str, Weight], memory: np.ndarray | None = None) -> Block:
        """Read a block. memory: uint8 slot for the bytes that stay packed; None allocates exactly what is needed."""
        place = _places(weights)
        if memory is None:
            memory = allocate(_end(place))
        spans: dict[tuple[Path, int], list[tuple[str, Weight]]] = {}
        for name, weight in weights.items():
            spans.setdefault((weight.path, weight.offset), []).append((name, weight))
        block: Block = {}
        with contextlib.ExitStack() as open_files:
            files: dict[Path, _File] = {}
            for key in sorted(spans, key=lambda span: (os.fspath(span[0]), span[1])):
                path, size = key[0], spans[key][0][1].size_bytes
                if path not in files:
                    files[path] = self._open(path, open_files)
                packed = key in place
                raw = memory[place[key][0] : place[key][1]] if packed else np.empty(size, np.uint8)
                self._read(files[path], raw, key[1])
                for name, weight in spans[key]:
                    scale = self._scale(weight, raw.size, files, open_files) if weight.scale else None
                    block[name] = self._ready(name, weight, raw, scale)
        return {name: block[name] for name in weights}  # in the order that was asked

    def _open(self, path: Path, open_files: contextlib.ExitStack) -> _File:
        try:
            file = _File(path, self.forget)
        except OSError as error:
            raise ModelError(
                f"{shown(path)} cannot be opened ({error.strerror}); put it back and start again."
            ) from error
        open_files.callback(os.close, file.descriptor)
        return file

    def _read(self, file: _File, raw: np.ndarray, offset: int) -> None:
        for start in range(0, len(raw), CHUNK):
            if self.stopped():
                raise Cancelled
            part = raw[start : start + CHUNK]
            try:
                file.read(part, offset + start)
            except OSError as error:
                raise ModelError(
                    f"{shown(file.path)} cannot be read ({error.strerror}); check the disk it lies on."
                ) from error
            self.residency.bytes_read += len(part)

    def _scale(
        self, weight: Weight, size_bytes: int, files: dict[Path, _File], open_files: contextlib.ExitStack
    ) -> np.ndarray:
        """The scale of every stored row, float32 (rows,)."""
        scale = weight.scale
        assert scale
        if scale.path not in files:
            files[scale.path] = self._open(scale.path, open_files)
        raw = np.empty(scale.size_bytes, np.uint8)
        self._read(files[scale.path], raw, scale.offset)
        rows = size_bytes // FORMATS[weight.format].size_bytes(*weight.shape[1:])
        return np.ascontiguousarray(np.broadcast_to(FORMATS[scale.format].decode(raw), (rows,)))

    def _ready(self, name: str, weight: Weight, raw: np.ndarray, scale: np.ndarray | None) -> Any:
        order = weight.order
        if is_matrix(name, weight):
            n, k = weight.shape
            packed = (order.offset, order.block, order.stride) if order else None
            if _stays_packed(name, weight):
                return QuantMatrix(raw, weight.format, n, k, self.residency.kernels, packed, scale)
            values = FORMATS[weight.format].decode(raw).view(np.uint8)
            return QuantMatrix(values, "f32", n, k, self.residency.kernels, packed, scale)
        values = FORMATS[weight.format].decode(raw)
        if scale is not None:
            values = (values.reshape(len(scale), -1) * scale[:, None]).reshape(-1)
        if order:
            values = values.reshape(-1, *weight.shape[1:])[order.index(weight.shape[0])]
        return np.ascontiguousarray(values.reshape(weight.shape))


def is_matrix(name: str, weight: Weight) -> bool:
    """A linear layer's weight, kept packed as a QuantMatrix. Norms, biases, convolutions and tables become floats."""
    return len(weight.shape) == 2 and name.endswith("weight") and not name.endswith(EMBEDDINGS)


def _stays_packed(name: str, weight: Weight) -> bool:
    """Its stored bytes are used as they are and need a place in the slot; the others only pass through.

    A flattened matrix, whose rows begin in the middle of a block, becomes plain floats.
    """
    if is_matrix(name, weight):
        return weight.shape[1] % FORMATS[weight.format].block == 0
    return weight.format == "f32" and weight.order is None


def _places(weights: Mapping[str, Weight]) -> dict[tuple[Path, int], tuple[int, int]]:
    """Where each stored tensor lies in a block's memory: start and end in bytes; a fused q, k, v has one place."""
    place: dict[tuple[Path, int], tuple[int, int]] = {}
    end = 0
    for name, weight in weights.items():
        key = (weight.path, weight.offset)
        if key not in place and _stays_packed(name, weight):
            start = -(-end // ALIGNMENT) * ALIGNMENT
            end = start + weight.size_bytes
            place[key] = (start, end)
    return place


def _end(place: Mapping[tuple[Path, int], tuple[int, int]]) -> int:
    return max((end for _, end in place.values()), default=0)


def memory_bytes(weights: Mapping[str, Weight]) -> int:
    """Memory that a loaded block takes: packed bytes, and float32 for what is unpacked."""
    unpacked = sum(
        4 * int(np.prod(weight.shape)) for name, weight in weights.items() if not _stays_packed(name, weight)
    )
    scales = sum(4 * weight.shape[0] for weight in weights.values() if weight.scale)
    return _end(_places(weights)) + unpacked + scales


class Residency:
    """The weights of one worker: loads them, keeps what it was told to keep, counts what it read."""

    def __init__(self, kernels: Any, cancelled: Callable[[], bool] = lambda: False):
        self.kernels, self.cancelled = kernels, cancelled
        self.bytes_read = 0
        self.waited_s = 0.0  # how long the arithmetic stood still because the disk was slower
        self._kept: dict[str, Blocks] = {}

    def load(self, weights: Mapping[str, Weight]) -> Block:
        """Read weights into memory of their own; it is freed with the block.

        raises: ModelError, MemoryError, Cancelled.
        """
        return _Reader(self, forget=False, stopped=self.cancelled).block(weights)

    def lookup(self, weight: Weight, rows: np.ndarray) -> np.ndarray:
        """Rows of a table that is too large to load for a few of them.

        weight: (n, k).   rows: int (m,), 0 <= row < n.   returns: float32 (m, k).
        raises: ModelError, IndexError.
        """
        n, k = weight.shape
        rows = np.asarray(rows, np.int64)
        if rows.size and not (rows.min() >= 0 and rows.max() < n):
            raise IndexError(f"row {int(rows.min() if rows.min() < 0 else rows.max())} of a table of {n}")
        storage = FORMATS[weight.format]
        distinct, place = np.unique(rows, return_inverse=True)
        stored = weight.order.index(n)[distinct] if weight.order else distinct
        values = np.empty((len(distinct), k), np.float32)
        reader = _Reader(self, forget=False, stopped=self.cancelled)
        with contextlib.ExitStack() as open_files:
            file = reader._open(weight.path, open_files)
            for i, row in enumerate(map(int, stored)):
                first = row * k // storage.block  # the row's blocks; a flattened table's rows begin inside one
                end = -(-(row + 1) * k // storage.block)
                raw = np.empty((end - first) * storage.block_bytes, np.uint8)
                reader._read(file, raw, weight.offset + first * storage.block_bytes)
                before = row * k - first * storage.block
                values[i] = storage.decode(raw)[before : before + k]
            if weight.scale:
                scale = reader._scale(weight, weight.size_bytes, {weight.path: file}, open_files)
                values *= scale[stored][:, None]
        return values[place.reshape(rows.shape)]

    def blocks(self, groups: Sequence[Mapping[str, Weight]], mode: str, keep: str | None = None) -> Blocks:
        """The blocks in order, ready to use; iterate again for every step.

        mode: "resident" reads each once and keeps it while the returned object lives; "streamed" reads it every time,
        into one of two slots: a streamed block is valid until the next one is asked for.
        keep: a name under which resident blocks outlive this object, until `drop`.
        Iterating raises ModelError, MemoryError, or Cancelled (between blocks).
        """
        if mode not in ("resident", "streamed"):
            raise ValueError(f"residency {mode!r} is neither 'resident' nor 'streamed'")
        groups = tuple(dict(group) for group in groups)
        if mode == "streamed":
            return Blocks(self, groups, streamed=True)
        if keep is None:
            return Blocks(self, groups, streamed=False)
        if keep not in self._kept or self._kept[keep].groups != groups:
            self._kept[keep] = Blocks(self, groups, streamed=False)
        return self._kept[keep]

    def drop(self, keep: str | None = None) -> None:
        """Let go of the blocks kept under a name, or of all."""
        if keep is None:
            self._kept.clear()
        else:
            self._kept.pop(keep, None)


class Blocks:
    """An iterable of ready blocks; len() is their number. One pass at a time."""

    def __init__(self, residency: Residency, groups: Sequence[Mapping[str, Weight]], streamed: bool):
        self.residency, self.groups, self.streamed = residency, groups, streamed
        self._slots: list[np.ndarray] = []  # streamed: two, made on the first pass
        self._resident: dict[int, Block] = {}
        self._running = False

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[Block]:
        if self._running:
            raise RuntimeError("these blocks are being iterated already")
        self._running = True
        try:
            yield from self._streamed_pass() if self.streamed else self._resident_pass()
        finally:
            self._running = False

    def _resident_pass(self) -> Iterator[Block]:
        missing = [i for i in range(len(self.groups)) if i not in self._resident]
        with _Ahead(self.residency, self.groups, missing, None) as ahead:
            for i in range(len(self.groups)):
                self._between_blocks()
                if i not in self._resident:
                    self._resident[i] = ahead.take()
                yield self._resident[i]

    def _streamed_pass(self) -> Iterator[Block]:
        if not self._slots:
            largest = max((_end(_places(group)) for group in self.groups), default=0)
            self._slots = [allocate(largest) for _ in range(min(2, len(self.groups)))]
        with _Ahead(self.residency, self.groups, range(len(self.groups)), self._slots) as ahead:
            for _ in self.groups:
                self._between_blocks()
                yield ahead.take()
                ahead.give_back()

    def _between_blocks(self) -> None:
        if self.residency.cancelled():
            raise Cancelled


class _Ahead:
    """The reader thread: reads the wanted blocks in order, as far ahead as there are slots (no limit without slots)."""

    def __init__(
        self,
        residency: Residency,
        groups: Sequence[Mapping[str, Weight]],
        wanted: Sequence[int],
        slots: Sequence[np.ndarray] | None,
    ):
        self.residency = residency
        self.groups, self.wanted, self.slots = groups, wanted, slots
        self.ready: queue.SimpleQueue[Block | BaseException] = queue.SimpleQueue()
        self.free = threading.Semaphore(len(slots) if slots is not None else len(wanted))
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name="h3-reader", daemon=True)

    def __enter__(self) -> _Ahead:
        if self.wanted:
            self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.free.release()
        if self.thread.ident is not None:
            self.thread.join()

    def _run(self) -> None:
        try:
            size = sum({(w.path, w.offset): w.size_bytes for group in self.groups for w in group.values()}.values())
            forget = self.slots is not None and size >= CACHED_BELOW
            reader = _Reader(self.residency, forget, self.stop.is_set)
            for turn, i in enumerate(self.wanted):
                self.free.acquire()
                if self.stop.is_set():
                    return
                slot = self.slots[turn % len(self.slots)] if self.slots is not None else None
                self.ready.put(reader.block(self.groups[i], slot))
        except BaseException as error:  # whatever it is, the consumer must hear of it or it would wait for ever
            self.ready.put(error)

    def take(self) -> Block:
        """The next block; waits for the disk, but not after a cancel."""
        started = time.monotonic()
        while True:
            try:
                got = self.ready.get(timeout=0.1)
                break
            except queue.Empty:
                if self.residency.cancelled():
                    raise Cancelled from None
        self.residency.waited_s += time.monotonic() - started
        if isinstance(got, BaseException):
            raise got
        return got

    def give_back(self) -> None:
        """The last taken block's slot may be filled again."""
        self.free.release()
