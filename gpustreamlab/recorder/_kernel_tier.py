"""The kernel tier of a recorder: where its records come from, when it was on, and what it knows."""

# A range that is timed by events contains the waiting in front of its first kernel: four kernels that ran one after the other,
# on four streams, were drawn as four bars side by side. So a session captures kernels wherever that works, and ranges are
# timed by them.
#
# Tried or weighed, and left:
# - Records as Python objects, as cupti-python has them: 16 to 42 us each, where a program launches every 5 us. Sources hand
#   over columns in batches, which NumPy reads from raw buffers in 0.04 us a kernel.
# - Callbacks of CUPTI in Python. CUPTI may hold a lock of its own while it calls, and a thread may enter CUDA with the
#   interpreter's lock held: each then waits for the other one, for ever. They are C, and take no lock of Python's.
# - CUPTI's latency timestamps instead of records of calls: they cost less than half as much, but where CUDA graphs were
#   launched meanwhile they destroyed the process's memory, in 5 of 5 processes. Launches are known by the calls that made
#   them.
# - Reading records as they come. That takes the interpreter's lock from the thread that launches. They lie in their buffers
#   until somebody asks, or until there are many or they are old.
# - CUPTI's times as they are. They are the host's wall clock, which drifts by 1.3 to 3.4 us a second against the card. Once a
#   second a kernel of our own stores the card's timer, and ties the two.
# - Leaving CUPTI in the process: each launch then costs 1.5 to 2.5 us more for good. It is detached when nobody records, but
#   not once a CUDA graph was launched: its next launch would end with "unspecified launch failure".
#
# So a source (`backends/_activity.py`) is drained, by whoever asks for the trace or by a thread on the side. Nothing here
# knows CUPTI: the simulated device has a source of the same columns, and one contract holds for both. A batch is taken and
# stored under one lock, so that batches are stored in their order. Work that still runs at `stop` is taken until `finish`. A
# source that fails ends the capture, with a note that says why; ranges, and the user's program, go on.

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from gpustreamlab._util.background import Updater, held_weakly
from gpustreamlab._util.defences import delayed_interrupts, process_lock
from gpustreamlab.backends import Activities, ActivitySource, Backend, Step
from gpustreamlab.recorder._chunks import Chunk, join
from gpustreamlab.recorder._in_flight import RangesInFlight, is_done, to_clock
from gpustreamlab.recorder._ranges import RecordedLane, ThreadState
from gpustreamlab.recorder._work import NO_WORK, WorkReader
from gpustreamlab.typing import CaptureTier, Int64Array

_log = logging.getLogger(__name__)


KEPT_WINDOWS = 10_000  # Windows that are kept; of more, the two oldest count as one


class CaptureWindows:
    """From when to when kernels were captured, on the backend's clock."""

    def __init__(self) -> None:
        self._windows: list[tuple[int, int | None]] = []  # one that is open, which is the last, has no end

    @property
    def were_any(self) -> bool:
        """True if kernels are captured, or were."""
        return bool(self._windows)

    @property
    def is_open(self) -> bool:
        """True while kernels are captured."""
        return bool(self._windows) and self._windows[-1][1] is None

    def open(self, now_ns: int) -> None:
        """Note that kernels are captured from now on."""
        self._windows.append((now_ns, None))

    def close(self, now_ns: int) -> None:
        """Note that they are not any more; nothing to do where they were not."""
        if self.is_open:
            begin_ns = self._windows[-1][0]
            self._windows[-1] = begin_ns, max(begin_ns, now_ns)
            if len(self._windows) > KEPT_WINDOWS:
                self._windows[:2] = [(self._windows[0][0], self._windows[1][1])]

    def until(self, now_ns: Callable[[], int]) -> tuple[tuple[int, int], ...]:
        """Return all windows; one that is open ends now."""
        return tuple((begin, max(begin, now_ns()) if end is None else end) for begin, end in [*self._windows])

    def clear(self) -> None:
        """Forget those that are closed."""
        self._windows = self._windows[-1:] if self.is_open else []


TakeSteps: TypeAlias = Callable[[Sequence[Step], Sequence[str], Sequence[int]], object]
"""Takes steps, the names of the ranges that they were made in, and when, on the host's clock."""


class KernelTier:
    """Drains a source of activity records, in batches.

    Records of work that was launched while kernels were captured may come after `stop`: they are taken until `finish`.

    Whatever goes wrong here ends the capture, and nothing else.
    """

    def __init__(
        self, backend: Backend, reader: WorkReader, in_flight: RangesInFlight, on_loss: Callable[[int], object]
    ) -> None:
        self._backend = backend
        self._in_flight = in_flight
        self._on_loss = on_loss
        self._reader = reader
        reader.lanes_of = lambda number: in_flight.facts_of(number)[0]
        self._threads = reader.threads
        self.stacks = StackSampler(backend.glance_ns)  # Looks where threads that launch stand in Python
        # Held while a batch is taken and stored, so that batches are stored in their order.
        self._lock = process_lock()
        self._is_taking = False
        self._source: ActivitySource | None = None
        self._tell_loss: Callable[[str], object] = bool
        self._dropped_before = 0
        self._dropped_base = 0
        self._taken_ns = self._taken_host_ns = self._noisy_ns = 0
        self.beside: tuple[KernelTier, ...] = ()
        """Those of other devices of the process: work launched in a range of theirs is part of that, and streams keep names."""
        self.windows = CaptureWindows()  # When kernels were captured
        self.stop_count = 0  # How often capturing has ended
        self.keeps_calls = True  # Whether calls of the host get rows
        self.take_steps: TakeSteps | None = None  # Looks for hazards; is there before kernels are captured
        self.note = ""  # Why kernels are missing although they were asked for
        self._description = ""
        self._error_ns = 0
        self.edit_count = 0  # Goes up with every change of what `facts` returns

    @property
    def is_on(self) -> bool:
        """True while kernels are captured."""
        return self.windows.is_open

    @property
    def tells_steps(self) -> bool:
        """Whether hazards can be found from what the source tells."""
        return self.is_on and bool(getattr(self._source, "follows_calls", False))

    @property
    def times_ranges(self) -> bool:
        """Whether ranges need no events now."""
        return self.is_on and bool(getattr(self._source, "times_ranges", False))

    @property
    def is_awaiting_work(self) -> bool:
        """True while records of work may come: from before the start until `finish`."""
        return self._in_flight.is_awaiting_work

    def facts(self) -> dict[str, Any]:
        """Return what the metadata of a trace say of kernels."""
        were_any = self.windows.were_any
        return {
            "tier": CaptureTier.KERNELS if were_any else CaptureTier.RANGES,
            "capture_windows": self.windows.until(self._now_ns),
            "capture_source": self._description if were_any else "",
            "capture_note": self.note,
            "kernel_error_ns": self._error_ns if were_any else 0,
            "dropped_records": self.dropped_count,
        }

    def note_refusal(self, text: str) -> None:
        """Note why kernels are missing although they were asked for."""
        self.note = text
        self.edit_count += 1

    @property
    def dropped_count(self) -> int:
        """Records that are missing."""
        source = self._source
        lost = 0 if source is None else max(0, source.dropped_count - self._dropped_base)
        return self._dropped_before + lost + self._reader.refused_count + self.stacks.dropped_count

    def start(
        self, source: ActivitySource, *, keeps_calls: bool, tell_loss: Callable[[str], object], samples_stacks: bool = False
    ) -> None:
        """Capture kernels from now on; where the source refuses, its error goes to the caller and nothing has changed."""
        with self._lock:
            if self.is_on:
                self.take()
                self.keeps_calls = keeps_calls
                self._sample(is_wanted=samples_stacks and self.windows.is_open)
                return
            if self._source is not None and self._source is not source:
                self._take_rest()
                self._forget_source()
            if self.take_steps is not None and hasattr(source, "tells_steps"):
                source.tells_steps = True
            was_awaiting = self._in_flight.is_awaiting_work
            self._in_flight.is_awaiting_work = True  # a range may end before the start returns
            try:
                source.start()
            except BaseException:
                self._in_flight.is_awaiting_work = was_awaiting
                raise
            if self._source is None:
                self._source, self._dropped_base = source, source.dropped_count
            self._tell_loss, self.keeps_calls = tell_loss, keeps_calls
            self._description, self.note = source.description, ""
            self._taken_ns = self._now_ns()
            self.windows.open(self._taken_ns)
            self.edit_count += 1
            self._sample(is_wanted=samples_stacks)
            for recorded in sorted(self._in_flight.lanes, key=lambda lane: not lane.is_retired):
                self.note_stream(recorded)

    def stop(self) -> None:
        """Capture no more kernels, and take what is complete; `take` goes on to take the rest. Idempotent."""
        with self._lock:
            if self.is_on:
                self._noisy_ns = self._backend.glance_ns()
                self._stop_source()
                self.take(is_complete=False)

    def finish_when_quiet(self, quiet_ns: int) -> None:
        """Take the rest of what was captured, if all lanes and the default stream are idle and nothing has come for so long."""
        stop_count = self.stop_count
        with observing(self._backend):
            is_idle = self._backend.is_default_stream_idle() and all(map(is_done, self._in_flight.lanes))
        now_ns = self._backend.glance_ns()
        if not is_idle:
            self._noisy_ns = now_ns
        if now_ns - self._noisy_ns >= quiet_ns:
            self.finish(stop_count)

    def finish(self, stop_count: int) -> None:
        """Take the rest of what was captured, where it was stopped before the device was idle, that is at this `stop_count`."""
        with self._lock:
            if self.is_awaiting_work and not self.is_on and self.stop_count == stop_count:
                self._take_rest()

    def end(self) -> None:
        """Stop, take the rest, and forget the source, which stays its owner's."""
        with self._lock:
            self._stop_source()
            self._take_rest()
            self._forget_source()

    def note_stream(self, recorded: RecordedLane) -> None:
        """Note where the records' stream belongs from now on. What goes wrong is logged: it must not stop the user's work."""
        source = self._source
        if source is None or not self.is_on or recorded.is_closed:
            return
        try:
            key = source.key_of(recorded.stream)
            self._reader.note_context(key[0], recorded.lane.context)
            self._reader.keys.note(key, lane=recorded.index, partition=recorded.partition, from_ns=self._now_ns())
        except Exception as error:  # noqa: BLE001 - logged; the stream's work then has a lane of its own
            _log.warning("Kernels of stream %r cannot be told from those of others: %s", recorded.name, error)

    def stand_beside(self, others: Sequence[KernelTier]) -> None:
        """Ask these, too, whose a range or a stream is."""
        self.beside = tuple(others)
        self._reader.beside = tuple(other._reader for other in others)  # noqa: SLF001 - of this class

    def note_thread(self, state: ThreadState) -> None:
        """Take that a thread has begun to use the session: another one may have had its number before."""
        with observing(self._backend):
            self._threads.note(state.ident, state.name, self._backend.host_time_ns())

    def take(self, *, is_last: bool = False, is_complete: bool = True) -> None:
        """Drain the source, and store its records. Never waits for the device; after a failure the capture is off."""
        source = self._source
        if source is None:
            return
        with delayed_interrupts(), self._lock:
            if self._is_taking or self._source is not source:
                return  # called from inside itself: who takes already goes on when this returns
            self._is_taking = True
            try:
                reason = self._take_from(source, is_last=is_last, is_complete=is_complete)
                if reason:
                    self._lose(reason)
            finally:
                self._is_taking = False
        if reason:
            self._tell_loss(reason)

    def clear(self) -> None:
        """Forget what is not in the log."""
        with self._lock:
            self._reader.refused_count = 0
            self.windows.clear()
            self._dropped_before = self.stacks.dropped_count = 0
            self._dropped_base = 0 if self._source is None else self._source.dropped_count
            self.edit_count += 1

    def name_graph(self, graph: int, labels: Sequence[tuple[int, str]]) -> None:
        """Name the parts of a CUDA graph: in the trace, each launch of it has a row for each of them."""
        with self._lock:
            self._reader.labels.name(graph, labels)

    def _take_from(self, source: ActivitySource, *, is_last: bool, is_complete: bool) -> str:
        """Take and store a batch; return why there will be no more, or nothing."""
        try:
            with observing(self._backend):
                asked_ns = self._now_ns()
                asked_host_ns = self._backend.host_time_ns()
                idle = self._in_flight.find_idle()
                activities = source.drain(is_last=is_last)
                told, work = Chunk(), NO_WORK
                if activities.steps and self.take_steps is not None:
                    self._hand_on(activities, self.take_steps)
                if activities.names or len(activities.dependencies) or self._reader.waiting or self.stacks.has_looks:
                    self._threads.look(self._backend.host_time_ns)
                    told, work = self._reader.read(
                        activities,
                        source,
                        self._find_ranges,
                        with_calls=self.keeps_calls,
                        is_complete=is_complete or is_last,
                    )
                    told = join([told, self._read_stacks()])
                    if len(activities.work):
                        self._noisy_ns = asked_host_ns
            idle_until = dict.fromkeys(idle, asked_host_ns)
            self._in_flight.store(told, work, activities.told_until, idle_until)
            self._error_ns = max(self._error_ns, source.error_ns)
            self._taken_ns, self._taken_host_ns = asked_ns, asked_host_ns
            lost = source.lost_reason if self.is_on else ""
        except Exception as error:  # noqa: BLE001 - a tool that fails must not disturb the work it watches
            _log.debug("Activities could not be read", exc_info=True)
            self._close_window(self._taken_ns)
            self._forget_source()
            source.stop()
            return f"{type(error).__name__}: {error}"
        return lost

    def _hand_on(self, activities: Activities, take: TakeSteps) -> None:
        """Hand on what hazards are found from, with the names of the ranges around."""
        thread = np.array([step.thread for step in activities.steps], np.int64)
        _, codes = self._in_flight.facts_of(self._find_ranges(thread, activities.step_host_ns))
        take(activities.steps, self._reader.texts_of(codes), activities.step_host_ns.tolist())

    def _find_ranges(self, thread: Int64Array, at_host_ns: Int64Array) -> Int64Array:
        """Return the number of the range that each thread had open, in this session or else in one beside it, or -1."""
        found = self._in_flight.find_enclosing(thread, at_host_ns)
        for other in self.beside:
            if (missing := np.flatnonzero(found < 0)).size:
                ranges = other._in_flight  # noqa: SLF001 - of this class
                found[missing] = ranges.find_enclosing(thread[missing], at_host_ns[missing])
        return found

    def _sample(self, *, is_wanted: bool) -> None:
        """Look at the stacks of threads from now on, or no more."""
        (self.stacks.start if is_wanted else self.stacks.stop)()

    def _read_stacks(self) -> Chunk:
        """Return what was seen of stacks, once their threads have launched something."""
        batch = self.stacks.take(self._reader.launching)
        if not len(batch.thread):
            return Chunk()
        start_ns, end_ns = (to_clock(self._backend, host_ns) for host_ns in (batch.start_host_ns, batch.end_host_ns))
        return self._reader.read_stacks(batch, start_ns, end_ns, self._in_flight.find_enclosing)

    def _lose(self, reason: str) -> None:
        source = self._source
        self._on_loss(self._taken_host_ns if source is None else source.complete_until_host_ns)
        self._stop_source()
        self.note = f"Kernels are not captured any more. {reason}"
        self._let_go()

    def _stop_source(self) -> None:
        if self._source is not None:
            if self.is_on:
                self._close_window(self._complete_until_ns(self._source))
            self._source.stop()

    def _take_rest(self) -> None:
        self.take(is_last=True)
        self._let_go()

    def _let_go(self) -> None:
        """Forget what late work is looked up in."""
        self._in_flight.end_awaiting()
        self._reader.forget_calls()

    def _complete_until_ns(self, source: ActivitySource) -> int:
        """Return until when the records are complete: now, or where the source has lost the device, when it saw it last."""
        with observing(self._backend):
            now_ns = self._now_ns()
            return min(now_ns, self._backend.host_to_clock_ns(source.complete_until_host_ns)) if source.lost_reason else now_ns

    def _close_window(self, at_ns: int) -> None:
        self.stacks.stop()
        if self.is_on:
            self.windows.close(at_ns)
            self.stop_count += 1
            self.edit_count += 1

    def _forget_source(self) -> None:
        if self._source is not None:
            self._dropped_before += max(0, self._source.dropped_count - self._dropped_base)
            self._source = None

    def _now_ns(self) -> int:
        with observing(self._backend):
            return self._backend.host_to_clock_ns(self._backend.host_time_ns())


def observing(backend: Backend) -> AbstractContextManager[None]:
    """Let this thread's questions cost the simulated device no virtual time; on a GPU this does nothing."""
    return cast(AbstractContextManager[None], getattr(backend, "observing", nullcontext)())


# Samples of the Python stacks of threads that launch work

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

    @property
    def has_looks(self) -> bool:
        """Whether there may be something to take."""
        return bool(self._looks)

    def start(self) -> None:
        """Look from now on. Idempotent."""
        if self._updater is None:
            self._looks.clear()
            self._updater = Updater(held_weakly(self.look), refresh_hz=STACK_HZ, name=f"{HELPER_PREFIX} stacks")
            self._updater.start()

    def stop(self) -> None:
        """Look no more; what was seen can still be taken. Idempotent."""
        updater, self._updater = self._updater, None
        if updater is not None:
            updater.stop()

    def look(self) -> bool:
        """Note where every thread stands but the one that asks; there is always more to see."""
        now_ns, own = self._glance_ns(), threading.get_ident()
        for ident, frame in sys._current_frames().items():  # noqa: SLF001 - documented, and the only way
            codes, thread = () if ident == own else _codes_of(frame), ident & 0xFFFF_FFFF
            if codes:
                with self._lock:
                    looks = self._looks.setdefault(thread, deque(maxlen=KEPT_LOOKS))
                    self.dropped_count += len(looks) == KEPT_LOOKS and thread in self._launching
                    looks.append((now_ns, codes))
        return True

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
