"""Samples of the Python stacks of threads that launch work."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Container
from pathlib import PurePath
from types import CodeType, FrameType
from typing import NamedTuple

import numpy as np

from gpustreamlab._util.background import Updater
from gpustreamlab._util.defences import process_lock
from gpustreamlab.typing import Int64Array

STACK_HZ = 200.0  # Looks a second, at most: each waits for the interpreter, which a busy thread keeps for up to 5 ms
MOST_NS = 20_000_000  # For how long a look stands at most: where no thread could look for longer, nobody knows
MAX_FRAMES = 12  # Frames that are kept of a stack, from the innermost on
MAX_DEPTH = 100  # So many frames are looked through for them
KEPT_LOOKS = 4_000  # Looks at one thread that wait to be taken, 20 s; the newest count. Once it has launched, that is every 2 s
HELPER_PREFIX = "gpustreamlab"  # How threads of this package are named

_PASSED = frozenset({"gpustreamlab", "threading", "contextlib"})
"""Modules whose frames are passed over: who calls them is named."""


class StackBatch(NamedTuple):
    """Samples of threads that launched work; shape (n_samples,) each."""

    thread: Int64Array  # As in `CallBatch.thread`
    start_host_ns: Int64Array  # When it was looked, on the host's clock
    end_host_ns: Int64Array  # When it was looked again, but no more than `MOST_NS` later
    stack: Int64Array  # Index into `stacks`
    stacks: tuple[tuple[str, str], ...]  # Each stack: its innermost function, and all that is kept of it, from the outermost on


class StackSampler:
    """Looks where threads stand in Python, some hundred times a second, from a thread of its own.

    A look is kept until it is known whether its thread launches work: most threads of a notebook never do.
    """

    def __init__(self, glance_ns: Callable[[], int]) -> None:
        self._glance_ns = glance_ns
        self._looks: dict[int, deque[tuple[int, tuple[CodeType, ...]]]] = {}
        self._updater: Updater | None = None
        self._lock = process_lock()
        self._launching: set[int] = set()
        self.dropped_count = 0  # Samples of threads that launch which were not taken in time

    @property
    def is_on(self) -> bool:
        """Whether it looks."""
        return self._updater is not None

    def start(self) -> None:
        """Look from now on. Idempotent."""
        if self._updater is None:
            self._looks.clear()
            self._updater = Updater(_look_of(self), refresh_hz=STACK_HZ, name=f"{HELPER_PREFIX} stacks")
            self._updater.start()

    def stop(self) -> None:
        """Look no more; what was seen can still be taken. Idempotent."""
        updater, self._updater = self._updater, None
        if updater is not None:
            updater.stop()

    def abandon(self) -> None:
        """Forget the thread: in a forked child it is not there."""
        self._updater = None

    def look(self) -> None:
        """Note where every thread stands but the one that asks."""
        now_ns, own = self._glance_ns(), threading.get_ident()
        for ident, frame in sys._current_frames().items():  # noqa: SLF001 - documented, and the only way
            codes, thread = () if ident == own else _codes_of(frame), ident & 0xFFFF_FFFF
            if codes:
                with self._lock:
                    looks = self._looks.setdefault(thread, deque(maxlen=KEPT_LOOKS))
                    self.dropped_count += len(looks) == KEPT_LOOKS and thread in self._launching
                    looks.append((now_ns, codes))

    def take(self, launching: Container[int]) -> StackBatch:
        """Return what was seen of the threads that launch work, but the last look while there will be another."""
        alive = {one.ident & 0xFFFF_FFFF: one.name for one in threading.enumerate() if one.ident is not None}
        rows: list[tuple[int, int, int, int]] = []
        places: dict[tuple[int, ...], int] = {}
        stacks: list[tuple[str, str]] = []
        with self._lock:
            now_ns = self._glance_ns()
            for ident in [*self._looks]:
                if ident not in launching or alive.get(ident, "").startswith(HELPER_PREFIX):
                    if ident not in alive or not self.is_on:
                        del self._looks[ident]
                    continue
                self._launching.add(ident)
                looks = self._looks[ident]
                while len(looks) > self.is_on:
                    start_ns, codes = looks.popleft()
                    key = tuple(map(id, codes))  # to hash code takes long
                    if key not in places:
                        places[key] = len(stacks)
                        stacks.append(_texts(codes))
                    end_ns = min(looks[0][0] if looks else now_ns, start_ns + MOST_NS)
                    rows.append((ident, start_ns, end_ns, places[key]))
        thread, start_host_ns, end_host_ns, stack = np.array(rows, np.int64).reshape(-1, 4).T
        return StackBatch(thread, start_host_ns, end_host_ns, stack, tuple(stacks))


def _look_of(sampler: StackSampler) -> Callable[[], bool]:
    """Return what the thread does; it keeps no sampler alive that was lost."""
    known = weakref.ref(sampler)

    def look() -> bool:
        alive = known()
        if alive is not None:
            alive.look()
        return alive is not None

    return look


def _codes_of(frame: FrameType | None) -> tuple[CodeType, ...]:
    """Return what runs in a frame and in those around it, from the innermost on; without what is passed over."""
    codes: list[CodeType] = []
    for _ in range(MAX_DEPTH):
        if frame is None or len(codes) == MAX_FRAMES:
            break
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _PASSED:
            codes.append(frame.f_code)
        frame = frame.f_back
    return tuple(codes)


def _texts(codes: tuple[CodeType, ...]) -> tuple[str, str]:
    texts = [_text(code) for code in codes]
    return texts[0], " > ".join(reversed(texts))


def _text(code: CodeType) -> str:
    """Name a function, its file and its first line; no folder, as that may name a person."""
    path = PurePath(code.co_filename)
    # IPython writes a cell into a folder of the kernel's, under a number.
    file = "cell" if path.parent.name.startswith("ipykernel_") else path.name
    return f"{code.co_qualname.rpartition('<locals>.')[2]} ({file}:{code.co_firstlineno})"
