"""Where work is measured: in a session of its own on the same device, whose calls the host makes in turns."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from gpustreamlab.backends import Backend
from gpustreamlab.errors import MeasureError, OptionError
from gpustreamlab.model import BENCH, DEVICE_WORK, SPAN_KINDS, Device, Layout, Trace
from gpustreamlab.typing import CaptureTier, Int64Array, SpanKind

AHEAD = 4
"""How many calls of one task are enqueued ahead of the device at least, so that it need not wait for the host."""
AHEAD_NS = 1_000_000
"""How much work of one task is, if that takes more calls: meanwhile the host calls the others."""
MOST_AHEAD = 64
"""How many calls are, at most."""
WORK = [SPAN_KINDS.index(kind) for kind in DEVICE_WORK]
_RANGE = SPAN_KINDS.index(SpanKind.RANGE)


class Lab(Protocol):
    """A session, as measurements use it."""

    def on(self, stream: Any, label: str | None = None) -> AbstractContextManager[Any]: ...

    def select(self, stream: Any) -> AbstractContextManager[Any]: ...

    def range(self, label: str) -> AbstractContextManager[Any]: ...

    def stream(
        self, name: str, *, priority: int | None = None, partition: str | None = ..., external: object | None = None
    ) -> Any: ...

    def partition(self, plan: Any = ..., /, **shares: Any) -> Layout | None: ...

    def synchronize(self) -> None: ...

    def clear(self) -> None: ...

    def close(self) -> None: ...

    @property
    def trace(self) -> Trace: ...

    @property
    def device(self) -> Device: ...

    @property
    def current(self) -> Any: ...

    @property
    def layout(self) -> Layout | None: ...

    @property
    def streams(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What measurements need of a session."""

    lab: Lab
    """The session of the user."""
    backend: Backend
    """Its device."""
    open_bench: Callable[[], Lab]
    """Opens another session on the same device."""
    unwatched: Callable[[], AbstractContextManager[None]]
    """Lets the user's session follow no accesses to arrays in a ``with`` block."""
    twins: dict[tuple[str, int], Any] = field(default_factory=dict)
    """Streams of the bench as lanes of the user's session, by name and handle."""

    @contextmanager
    def bench(self) -> Iterator[Lab]:
        """Open a session in which work is measured: the trace and the layout of the user's stay as they are."""
        self.lab.synchronize()  # what the user's streams hold is no part of it
        bench = self.open_bench()
        try:
            with self.unwatched():
                yield bench
                bench.synchronize()
        finally:
            for name, twin in [*self.twins.items()]:
                if twin.name.startswith(BENCH):
                    twin.close()
                del self.twins[name]
            bench.close()

    def twin(self, stream: Any) -> Any:
        """Return a stream of the bench as one of the user's session: its functions may ask that what is selected."""
        key = (stream.name, stream.handle)
        if key not in self.twins:
            self.twins[key] = self.lab.stream(f"{BENCH}{stream.name}/{stream.handle:x}", external=stream)
        return self.twins[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is called again and again."""

    name: str
    """How its calls are named in the trace."""
    call: Callable[[], object]
    """Enqueues its work on the selected stream."""
    setup: Callable[[], object] | None = None
    """Called before each call, on the same stream; its work is no part of the samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """What the device did for the calls of one task, in their order. All columns have shape (n_calls,), in ns."""

    start_ns: Int64Array
    """When the first work of each began."""
    end_ns: Int64Array
    """When the last work of each ended."""
    busy_ns: Int64Array
    """How long its work took, summed; the same as from start to end where kernels are not known."""
    launch_count: int
    """Kernels, copies and fills of a call, at most; 0 where they are not known."""
    has_kernels: bool
    """Whether kernels were captured."""
    stray_count: int
    """Pieces of work on other streams than that of the call."""
    host_ns: Int64Array
    """How long the host took for each call."""
    waited_count: int
    """Calls behind which the stream had nothing to do any more: the call, or the host, has waited for the device."""
    host_share: float
    """Share of the time in which the host made calls; near 1 it never had to wait, and sets the pace."""

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def duration_ns(self) -> Int64Array:
        """From the first start to the last end of each call."""
        return self.end_ns - self.start_ns

    @property
    def period_ns(self) -> Int64Array:
        """From the end of the call before to the end of each, the first left out; shape (n_calls - 1,)."""
        return np.diff(self.end_ns)


def check_task(call: str, task: object) -> Callable[[], object]:
    """Return a callable that takes nothing."""
    if not callable(task):
        raise OptionError(
            f"{call} takes a function without arguments that enqueues work, not {task!r:.60}. Use {call.partition('(')[0]}"
            "(lambda: f(x))."
        )
    return task


def check_count(name: str, value: object, least: int) -> int:
    """Return a whole number of at least so many."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise OptionError(
            f"{name} is {value!r:.40}; give a whole number of at least {least}, for example {name}={max(least, 10)}."
        )
    return int(value)


def ahead_of(call_ns: float) -> int:
    """Return how many calls of a task are enqueued ahead of the device, by how long one takes.

    Examples
    --------
    >>> ahead_of(50_000), ahead_of(3_000_000), ahead_of(1_000)
    (20, 4, 64)
    """
    return int(np.clip(np.ceil(AHEAD_NS / max(call_ns, 1)), AHEAD, MOST_AHEAD))


def drive(
    room: Room,
    bench: Lab,
    tasks: Sequence[tuple[Task, Any]],
    goes_on: Callable[[Sequence[int]], bool],
    *,
    ahead: Sequence[int] | None = None,
) -> list[Calls]:
    """Call tasks in turns, each on its stream, until told to stop; return what the device did for the calls of each.

    The host fills the queue of whichever task has the least ahead of the device, so that all streams have work as long as it
    keeps up; one selection serves all calls of a filling, as it takes the host longer than many a launch. Earlier records of
    the bench are forgotten.

    Parameters
    ----------
    room, bench
        The user's session, and one of `Room.bench`.
    tasks
        Each with the stream on which it is called.
    goes_on
        Given how often each task was called; asked before each call.
    ahead
        How many calls of each may wait on its stream; None for `AHEAD`.
    """
    bench.synchronize()
    bench.clear()
    queues = [_Queue(task, stream, depth) for (task, stream), depth in zip(tasks, ahead or [AHEAD] * len(tasks), strict=True)]
    now, waiting_ns = room.backend.host_time_ns, 0
    began_ns = now()
    while goes_on([len(queue.host_ns) for queue in queues]):
        queue = min(queues, key=lambda one: (len(one.flying) / one.depth, len(one.host_ns)))
        if len(queue.flying) >= queue.depth:
            waiting_ns -= now()
            _await_room(queues)
            waiting_ns += now()
            continue
        with room.lab.select(room.twin(queue.stream)), bench.select(queue.stream):
            while len(queue.flying) < queue.depth and goes_on([len(queue.host_ns) for queue in queues]):
                queue.call(bench, now)
    host_share = 1 - waiting_ns / max(now() - began_ns, 1)
    bench.synchronize()
    trace = bench.trace
    return [_calls_of(trace, queue, host_share) for queue in queues]


class _Queue:
    """The calls of one task: those that were made, and those of which the device has not done all."""

    def __init__(self, task: Task, stream: Any, depth: int) -> None:
        self.task, self.stream, self.depth = task, stream, depth
        self.flying: deque[Any] = deque()
        self.host_ns: list[int] = []
        self.waited_count = 0

    def call(self, bench: Lab, now: Callable[[], int]) -> None:
        """Make one more call, on the stream that is selected."""
        if self.task.setup is not None:
            with bench.range("setup"):
                self.task.setup()
        began_ns = now()
        with bench.range(self.task.name):
            self.task.call()
        self.host_ns.append(now() - began_ns)
        event = self.stream.record()
        self.waited_count += event.query()
        self.flying.append(event)


def _await_room(queues: Sequence[_Queue]) -> None:
    """Wait until half of a queue has ended, and forget all calls that have: being asked first is no advantage."""
    while all(2 * len(queue.flying) > queue.depth for queue in queues):
        for queue in queues:
            while queue.flying and queue.flying[0].query():
                queue.flying.popleft()
        time.sleep(0)


def _calls_of(trace: Trace, queue: _Queue, host_share: float) -> Calls:
    name = queue.task.name
    code = trace.names.index(name) if name in trace.names else -1
    lane = next(place for place, one in enumerate(trace.lanes) if one.name == queue.stream.name)
    rows = np.flatnonzero((trace.kind == _RANGE) & (trace.name == code) & (trace.lane == lane))
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    place_of = np.full(len(trace), -1, np.int64)
    place_of[rows] = np.arange(len(rows))
    work = np.flatnonzero(np.isin(trace.kind, WORK))
    owner = trace.parent[work].astype(np.int64)
    while True:  # up to the call, through ranges in between
        onward = (owner >= 0) & (place_of[owner] < 0)
        if not onward.any():
            break
        owner[onward] = trace.parent[owner[onward]]
    place = np.where(owner >= 0, place_of[owner], -1)
    work, place = work[place >= 0], place[place >= 0]
    start_ns, end_ns = trace.start_ns[rows].copy(), trace.end_ns[rows].copy()
    busy_ns, counts = end_ns - start_ns, np.bincount(place, minlength=len(rows))
    if len(work):
        known = counts > 0
        first, last, busy = (
            np.full(len(rows), np.iinfo(np.int64).max),
            np.zeros(len(rows), np.int64),
            np.zeros(len(rows), np.int64),
        )
        np.minimum.at(first, place, trace.start_ns[work])
        np.maximum.at(last, place, trace.end_ns[work])
        np.add.at(busy, place, trace.duration_ns[work])
        start_ns, end_ns, busy_ns = (np.where(known, *pair) for pair in ((first, start_ns), (last, end_ns), (busy, busy_ns)))
        if not known.all():
            start_ns, end_ns, busy_ns = (values[known] for values in (start_ns, end_ns, busy_ns))
    return Calls(
        start_ns=start_ns,
        end_ns=end_ns,
        busy_ns=busy_ns,
        launch_count=int(counts.max(initial=0)),
        has_kernels=trace.metadata.tier == CaptureTier.KERNELS,
        stray_count=int((trace.lane[work] != lane).sum()),
        host_ns=np.array(queue.host_ns, np.int64),
        waited_count=queue.waited_count,
        host_share=host_share,
    )


def require_work(calls: Calls, task: Task, stream: str) -> None:
    """Raise where nothing was seen to run."""
    if not len(calls) or int(calls.duration_ns.max()) <= 0 or (calls.has_kernels and not calls.launch_count):
        raise MeasureError(
            f"{task.name!r} enqueued no work on stream {stream!r}, so there is nothing to measure. Pass a function "
            "that enqueues "
            "work on the stream that is selected, for example lambda: xp.matmul(a, b, out=c)."
        )
