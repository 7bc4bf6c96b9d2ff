"""A session in any order of steps: what is selected, what the trace holds and what ran in which order is what a model says."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gpustreamlab import Session
from gpustreamlab.analysis import counted_rows
from gpustreamlab.errors import (
    PartitionInUseError,
    PartitionNotFoundError,
    SelectionError,
    SessionClosedError,
    StreamClosedError,
    StreamExistsError,
)
from gpustreamlab.typing import SpanKind
from gpustreamlab.workloads import spin
from tests.helpers.long_runs import count

NAMES = st.sampled_from(["a", "b", "c"])
LABELS = st.sampled_from(["load", "step", "store"])
DURATIONS_NS = st.sampled_from([700, 3_000, 50_000, 400_000])
THREADS = st.sampled_from([0, 1])
PLACES = st.integers(0, 20)
LAYOUTS = (None, {"p": 32, "q": "rest"}, {"p": 64}, {"q": 32})
"""No two of them give a partition the same SMs, so that whatever is in one moves at each change."""


class BodyError(Exception):
    """What the code of a user raises."""


@dataclass(eq=False)
class ModelStream:
    name: str
    real: object
    wish: str | None = None
    home: tuple[str | None, int] = (None, 0)
    """The partition that it works in, and which layout made that."""
    before: frozenset = frozenset()
    """Kernels that the next one comes after."""
    is_closed: bool = False


@dataclass(eq=False)
class ModelRange:
    label: str
    stream: ModelStream
    thread: int
    parent: ModelRange | None
    is_dropped: bool = False
    is_in_trace: bool = False

    @property
    def path(self):
        """Return what a trace knows it by: names and lanes outward, up to the first that is open, dropped or forgotten."""
        above = self.parent
        own = (self.label, self.stream.name, self.thread)
        return (own,) if above is None or not above.is_in_trace else (own, *above.path)


@dataclass(eq=False)
class ModelKernel:
    stream: ModelStream
    duration_ns: int
    parent: ModelRange | None
    partition: str | None
    before: frozenset


@dataclass(eq=False)
class Entry:
    """What a ``with`` block has entered: a selection, a range, or both."""

    real: object
    stream: ModelStream
    is_selection: bool
    range: ModelRange | None = None


@dataclass
class Thread:
    entries: list[Entry] = field(default_factory=list)
    open_ranges: list[ModelRange] = field(default_factory=list)

    @property
    def current(self):
        return next((entry.stream for entry in reversed(self.entries) if entry.is_selection), None)

    def forget(self, entry):
        self.entries.remove(entry)
        if entry.range is not None:
            self.open_ranges.remove(entry.range)


class SessionMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.lab = Session("sim")
        self.worker = ThreadPoolExecutor(1, "worker")
        self.streams: dict[str, ModelStream] = {}
        self.threads = (Thread(), Thread())
        self.layout, self.layout_number = None, 0
        self.events: list[tuple[object, frozenset]] = []
        self.closed: list[ModelRange] = []
        self.dropped_count = 0
        self.kernels: list[ModelKernel] = []
        self.marks: list[str] = []
        self.is_capturing = True

    def do(self, thread, call, *args):
        """Call it in one of the two threads."""
        return call(*args) if thread == 0 else self.worker.submit(call, *args).result()

    # Streams

    @initialize()
    def start(self):
        for name in ("a", "b"):
            self.make(name, None)

    @rule(name=NAMES, priority=st.sampled_from([None, 0, -2]))
    def make(self, name, priority):
        known = self.streams.get(name)
        if known is None:
            stream = ModelStream(name, self.lab.stream(name, priority=priority))
            self.streams[name] = stream
            assert stream.real.priority == (priority or 0)
        elif priority is None or known.real.priority == priority:
            assert self.lab.stream(name, priority=priority) is known.real
        else:
            with pytest.raises(StreamExistsError):
                self.lab.stream(name, priority=priority)

    @rule(name=NAMES)
    def close_stream(self, name):
        stream = self.streams.pop(name, None)
        if stream is None:
            return
        stream.is_closed = True
        for thread in self.threads:
            for opened in thread.open_ranges:
                if opened.stream is stream:
                    opened.is_dropped = True
        stream.real.close()
        stream.real.close()
        with pytest.raises(StreamClosedError):
            stream.real.record()
        with pytest.raises(StreamClosedError), self.lab.on(stream.real):
            pytest.fail("a closed stream was selected")

    # Selections and ranges

    @rule(thread=THREADS, name=NAMES, label=st.none() | LABELS, by_name=st.booleans())
    def select_with_a_range(self, thread, name, label, by_name):
        if (stream := self.streams.get(name)) is not None:
            self.enter(thread, self.lab.on(name if by_name else stream.real, label), stream, label or name, is_selection=True)

    @rule(thread=THREADS, name=NAMES)
    def select_alone(self, thread, name):
        if (stream := self.streams.get(name)) is not None:
            self.enter(thread, self.lab.select(name), stream, None, is_selection=True)

    @rule(thread=THREADS, names=st.lists(NAMES, min_size=2, max_size=4), place=st.none() | PLACES)
    def select_several(self, thread, names, place):
        for name in names:
            self.select_alone(thread, name)
        if place is not None:
            self.leave_out_of_turn(thread, len(self.threads[thread].entries) - 2 - place % 2, leaves_later_ones=True)

    @rule(thread=THREADS, label=LABELS)
    def open_a_range(self, thread, label):
        stream = self.threads[thread].current
        if stream is None:
            with pytest.raises(SelectionError):
                self.do(thread, self.lab.range, label)
        elif stream.is_closed:
            with pytest.raises(StreamClosedError):
                self.do(thread, lambda: self.lab.range(label).__enter__())
        else:
            self.enter(thread, self.do(thread, self.lab.range, label), stream, label, is_selection=False)

    def enter(self, thread, real, stream, label, *, is_selection):
        self.do(thread, real.__enter__)
        state = self.threads[thread]
        opened = None
        if label is not None:
            opened = ModelRange(label, stream, thread, state.open_ranges[-1] if state.open_ranges else None)
            state.open_ranges.append(opened)
        state.entries.append(Entry(real, stream, is_selection, opened))

    @rule(thread=THREADS, fails=st.booleans())
    def leave(self, thread, fails):
        state = self.threads[thread]
        if state.entries:
            self.leave_entry(thread, state.entries[-1], BodyError() if fails else None)

    @rule(thread=THREADS, count=st.integers(2, 4))
    def leave_many(self, thread, count):
        for _ in range(count):
            self.leave(thread, fails=False)

    def leave_entry(self, thread, entry, error=None):
        swallowed = self.do(thread, entry.real.__exit__, type(error) if error else None, error, None)
        assert not swallowed
        self.end(thread, entry)

    def end(self, thread, entry):
        opened = self.threads[thread].open_ranges
        if entry.range is not None:  # what was left before it, out of turn, does not contain it
            place = opened.index(entry.range)
            entry.range.parent = opened[place - 1] if place else None
        self.threads[thread].forget(entry)
        if entry.range is not None:
            self.keep(entry.range)

    def keep(self, ended):
        if ended.is_dropped:
            self.dropped_count += 1
        else:
            ended.is_in_trace = True
            self.closed.append(ended)

    @rule(thread=THREADS, place=PLACES, leaves_later_ones=st.booleans())
    def leave_out_of_turn(self, thread, place, leaves_later_ones):
        entries = self.threads[thread].entries
        lower = [entry for entry, above in pairwise(entries) if entry.is_selection and above.is_selection]
        if lower:
            entry = lower[place % len(lower)]
            later = entries[entries.index(entry) + 1 :]
            with pytest.raises(SelectionError):
                self.do(thread, entry.real.__exit__, None, None, None)
            self.end(thread, entry)
            for left in reversed(later if leaves_later_ones else []):
                self.leave_entry(thread, left)
            self.launch_through_the_library(thread)

    @rule(thread=THREADS, place=PLACES)
    def leave_in_another_thread(self, thread, place):
        selections = [entry for entry in self.threads[thread].entries if entry.is_selection]
        if selections:
            with pytest.raises(SelectionError):
                self.do(1 - thread, selections[place % len(selections)].real.__exit__, None, None, None)

    # Work

    @rule(thread=THREADS, duration_ns=DURATIONS_NS)
    def launch(self, thread, duration_ns):
        stream = self.threads[thread].current
        if stream is None:
            with pytest.raises(SelectionError):
                self.do(thread, spin, self.lab, duration_ns)
        elif stream.is_closed:
            with pytest.raises(StreamClosedError):
                self.do(thread, spin, self.lab, duration_ns)
        else:
            self.do(thread, spin, self.lab, duration_ns)
            opened = self.threads[thread].open_ranges
            self.note_kernel(stream, duration_ns, opened[-1] if opened else None)

    @rule(thread=THREADS)
    def launch_through_the_library(self, thread):
        stream = self.threads[thread].current
        if stream is not None and not stream.is_closed:
            self.do(thread, self.lab.xp.ones, 8)
            opened = self.threads[thread].open_ranges
            self.note_kernel(stream, None, opened[-1] if opened else None)

    @rule(thread=THREADS, name=NAMES, other=NAMES, how=st.sampled_from(["stream", "name", "event"]))
    def hand_over(self, thread, name, other, how):
        """Launch on one stream, let another wait for it, and launch there."""
        first, second = self.streams.get(name), self.streams.get(other)
        if first is None or second is None:
            return
        opened = self.threads[thread].open_ranges
        parent = opened[-1] if opened else None
        self.do(thread, lambda: spin(self.lab, 400_000, stream=name))
        self.note_kernel(first, 400_000, parent)
        second.real.wait({"stream": first.real, "name": name}[how] if how != "event" else first.real.record())
        second.before |= first.before
        self.do(thread, lambda: spin(self.lab, 700, stream=second.real))
        self.note_kernel(second, 700, parent)

    def note_kernel(self, stream, duration_ns, parent):
        kernel = ModelKernel(stream, duration_ns, parent, stream.home[0], stream.before)
        stream.before |= {kernel}
        if self.is_capturing:
            self.kernels.append(kernel)

    @rule(thread=THREADS, name=NAMES, label=st.none() | LABELS, fails=st.booleans())
    def run_on(self, thread, name, label, fails):
        if (stream := self.streams.get(name)) is None:
            return

        def body(lane, value):
            assert lane is stream.real is self.lab.current
            spin(self.lab, 1_000)
            if fails:
                raise BodyError
            return value

        opened = self.threads[thread].open_ranges
        ran = ModelRange(label or name, stream, thread, opened[-1] if opened else None)
        if fails:
            with pytest.raises(BodyError):
                self.do(thread, lambda: self.lab.run_on(name, body, 5, label=label))
        else:
            assert self.do(thread, lambda: self.lab.run_on(name, body, 5, label=label)) == 5
        self.note_kernel(stream, 1_000, ran)
        self.keep(ran)

    # Order

    @rule(name=NAMES, place=st.none() | PLACES)
    def record(self, name, place):
        if (stream := self.streams.get(name)) is None:
            return
        if place is None or not self.events:
            self.events.append((stream.real.record(), stream.before))
        else:
            place %= len(self.events)
            event = self.events[place][0]
            assert stream.real.record(event) is event
            self.events[place] = (event, stream.before)

    @rule()
    def make_an_event(self):
        self.events.append((self.lab.event(), frozenset()))

    @rule(name=NAMES, place=PLACES)
    def wait_for_an_event(self, name, place):
        if self.events and (stream := self.streams.get(name)) is not None:
            event, before = self.events[place % len(self.events)]
            stream.real.wait(event)
            stream.before |= before

    @rule(name=NAMES, other=NAMES, by_name=st.booleans())
    def wait_for_a_stream(self, name, other, by_name):
        stream, source = self.streams.get(name), self.streams.get(other)
        if stream is not None and source is not None:
            stream.real.wait(other if by_name else source.real)
            stream.before |= source.before

    @rule(name=NAMES)
    def synchronize_a_stream(self, name):
        if (stream := self.streams.get(name)) is not None:
            stream.real.synchronize()
            assert stream.real.query()

    # Partitions

    def in_use(self):
        return {entry.stream for thread in self.threads for entry in thread.entries}

    def home_of(self, stream, layout, number):
        return (stream.wish, number) if layout and stream.wish in layout else (None, 0)

    @rule(choice=st.sampled_from(range(len(LAYOUTS))))
    def partition(self, choice):
        layout = LAYOUTS[choice]
        streams = self.streams.values()
        homes = {stream: self.home_of(stream, layout, choice) for stream in streams}
        lost = [stream for stream in streams if layout and stream.home[0] and stream.home[0] not in layout]
        moving = {stream for stream in streams if homes[stream] != stream.home}
        if lost or moving & self.in_use():
            with pytest.raises(PartitionInUseError):
                self.lab.partition(layout)
            return
        made = self.lab.partition(layout)
        assert [part.name for part in made.partitions] == list(layout) if layout else made is None
        self.layout, self.layout_number = layout, choice
        for stream, home in homes.items():
            stream.home = home

    @rule(name=NAMES, wish=st.sampled_from([None, "p", "q"]))
    def move_a_stream(self, name, wish):
        if (stream := self.streams.get(name)) is None:
            return
        if wish is not None and wish not in (self.layout or {}):
            with pytest.raises(PartitionNotFoundError):
                self.lab.stream(name, partition=wish)
            return
        home = (wish, self.layout_number) if wish else (None, 0)
        if home != stream.home and stream in self.in_use():
            with pytest.raises(PartitionInUseError):
                self.lab.stream(name, partition=wish)
            return
        assert self.lab.stream(name, partition=wish) is stream.real
        stream.wish, stream.home = wish, home

    # Recording

    @rule(tier=st.sampled_from(["kernels", "ranges", "auto"]))
    def capture(self, tier):
        self.lab.capture(tier)
        self.is_capturing = tier != "ranges"

    @rule()
    def mark(self):
        self.marks.append(f"mark {len(self.marks)}")
        self.lab.recording.mark(self.marks[-1])

    @rule()
    def synchronize_and_clear(self):
        self.lab.synchronize()
        self.lab.clear()
        for forgotten in self.closed:
            forgotten.is_in_trace = False
        self.closed.clear()
        self.kernels.clear()
        self.marks.clear()
        self.dropped_count = 0

    @rule()
    def synchronize_and_look(self):
        self.lab.synchronize()
        self.check_trace(self.lab.trace)

    @invariant()
    def what_is_selected_is_what_the_model_says(self):
        for number, thread in enumerate(self.threads):
            current = self.do(number, lambda: self.lab.current)
            assert current is (None if thread.current is None else thread.current.real)
        assert dict(self.lab.streams) == {name: stream.real for name, stream in self.streams.items()}
        for stream in self.streams.values():
            assert stream.real.partition == stream.home[0]
        assert (self.lab.layout and [part.name for part in self.lab.layout.partitions]) == (self.layout and list(self.layout))

    def check_trace(self, trace):
        assert Counter(paths_of(trace)) == Counter(one.path for one in self.closed)
        assert trace.metadata.dropped_spans == self.dropped_count
        assert trace.metadata.pending_spans == 0
        assert [marker.text for marker in trace.markers] == self.marks
        self.check_kernels(trace)
        check_sums(trace)

    def check_kernels(self, trace):
        rows = {}
        kernel_rows = rows_of(trace, SpanKind.KERNEL)
        for name in {kernel.stream.name for kernel in self.kernels}:
            mine = [row for row in kernel_rows if trace.lanes[trace.lane[row]].name == name]
            mine.sort(key=lambda row: trace.start_ns[row])
            wanted = [kernel for kernel in self.kernels if kernel.stream.name == name]
            assert len(mine) == len(wanted)
            # One stream's kernels run one after the other.
            assert all(trace.end_ns[first] <= trace.start_ns[second] for first, second in pairwise(mine))
            rows |= zip(wanted, mine, strict=True)
        assert len(rows) == len(kernel_rows)
        for kernel, row in rows.items():
            assert kernel.duration_ns in {None, trace.end_ns[row] - trace.start_ns[row]}
            partition = trace.partition[row]
            assert (None if partition < 0 else trace.partitions[partition].name) == kernel.partition
            assert all(trace.end_ns[rows[first]] <= trace.start_ns[row] for first in kernel.before if first in rows)

    def teardown(self):
        for opened in self.threads[1].open_ranges:  # nobody can end them for that thread
            opened.is_dropped = True
        for thread in self.threads:
            for place, opened in enumerate(thread.open_ranges):
                opened.parent = thread.open_ranges[place - 1] if place else None
                self.keep(opened)
        self.lab.close()
        self.lab.close()
        assert self.lab.state.value == "closed"
        assert self.lab.current is None
        try:
            self.check_trace(self.lab.trace)
            for number, thread in enumerate(self.threads):
                for entry in reversed(thread.entries):
                    self.do(number, entry.real.__exit__, None, None, None)
            with pytest.raises(SessionClosedError):
                self.lab.stream("a")
            with pytest.raises(SessionClosedError):
                self.lab.synchronize()
            self.check_trace(self.lab.trace)
        finally:
            self.worker.shutdown()


def rows_of(trace, kind):
    return np.flatnonzero(trace.kind == list(SpanKind).index(kind)).tolist()


def paths_of(trace):
    """Return what each range is known by: names and lanes from itself outward."""
    found = []
    for innermost in rows_of(trace, SpanKind.RANGE):
        path, row = [], innermost
        while row >= 0:
            thread = int(trace.threads[trace.thread[row]] != "MainThread")
            path.append((trace.names[trace.name[row]], trace.lanes[trace.lane[row]].name, thread))
            row = int(trace.parent[row])
        found.append(tuple(path))
    return found


def check_sums(trace):
    """Compare overlap and utilization with a count of the moments between any two edges."""
    overlap, use = trace.overlap(), trace.utilization()
    rows = np.flatnonzero(counted_rows(trace))
    times = np.unique(np.concatenate((trace.start_ns[rows], trace.end_ns[rows])))
    lengths = np.diff(times)

    def busy(rows):
        covers = [(trace.start_ns[row] <= times[:-1]) & (times[:-1] < trace.end_ns[row]) for row in rows]
        return np.any(covers, axis=0) if covers else np.zeros(len(lengths), bool)

    names = [lane.name for lane in overlap.lanes]
    lanes = [busy([row for row in rows if trace.lanes[trace.lane[row]].name == name]) for name in names]
    assert overlap.common_ns.tolist() == [[int(lengths[one & other].sum()) for other in lanes] for one in lanes]
    counts = np.sum(lanes, axis=0) if lanes else np.zeros(0, int)
    assert overlap.concurrency_ns.tolist() == [int(lengths[counts == count].sum()) for count in range(len(lanes) + 1)]
    assert overlap.wall_ns == lengths.sum()

    sizes = {}
    for row in np.flatnonzero(counted_rows(trace, use.counted)):
        part = None if trace.partition[row] < 0 else trace.partitions[trace.partition[row]]
        sizes.setdefault((part and part.name, part.granted_sms if part else use.sm_count), []).append(row)
    wanted = {size: int(lengths[busy(rows)].sum()) for size, rows in sizes.items()}
    found = dict(zip(zip(use.names, use.granted_sms.tolist(), strict=True), use.busy_ns.tolist(), strict=True))
    assert {size: ns for size, ns in found.items() if ns} == wanted


SessionMachine.TestCase.settings = settings(max_examples=count(25, 60), stateful_step_count=40)
TestSession = SessionMachine.TestCase
