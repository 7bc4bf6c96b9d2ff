"""Pieces of work that waited while others ran: how long, how much of it was the host's doing, and what was in front."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gpustreamlab.analysis._busy import (
    StepTime,
    count_durations,
    counted_rows,
    map_threaded,
    sweep,
    sweep_of,
    union_edges,
)
from gpustreamlab.analysis._needed_waits import wait_needs
from gpustreamlab.model import Trace
from gpustreamlab.typing import BoolArray, Certainty, EdgeKind, Int8Array, Int64Array, MarkerKind

CLOSE_NS = 4_000
"""Work of one stream that follows within this time is one piece: a card starts the next kernel of a stream 1 to 2 us after the
one before. Source: FACTS.md, an H200."""
RUN_NS = 100_000
"""Pieces of one stream that follow within this time are one run: a host that launches one kernel after the other."""
PAUSE_NS = 1_000_000_000  # Where the whole card was idle for longer, nothing is asked to overlap with what was before
LEAST_LATENCY_NS, MOST_LATENCY_NS = 8_000, 50_000
"""Between these the time lies within which work counts as begun when it was launched; see `launch_latency_ns`."""
MOST_PIECES = 1_000_000
"""How many pieces are looked into at most: those that cost most. With 10 million spans more would take longer than 5 s."""
LATENCY_TIMES = 3  # How many times the lower quartile of the delays of idle streams is still a launch


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """Pieces of work, each of one stream and without a pause in it, with what they waited through; in order of lane and time.

    Each field is an int64 array of shape (n_pieces,) unless it says otherwise; times in ns.
    """

    trace: Trace
    """Where they are from."""
    row: Int64Array
    """The piece's first row."""
    lane: Int64Array
    """Its stream."""
    start_ns: Int64Array
    """When it began."""
    end_ns: Int64Array
    """When it ended."""
    idle_since_ns: Int64Array
    """Since when its stream had been idle, or since when anything ran at all."""
    launched_ns: Int64Array
    """When it was launched, never before `idle_since_ns` nor after `start_ns`."""
    is_launch_known: BoolArray
    """Whether the trace has the time of the launch; shape (n_pieces,), bool."""
    host_ns: Int64Array
    """For how long others ran before its launch while its stream was idle, but no longer than it and its run lasted."""
    device_ns: Int64Array
    """The same from its launch to its start."""
    alone_ns: Int64Array
    """For how long no other stream worked while the rest of its run lasted, from it on: the most that starting it at once would
    save. A run is pieces of one stream with pauses of at most `RUN_NS`: what is late makes late what follows."""
    costly: Int64Array
    """Which pieces are looked into, shape (n_costly,): all that waited while others ran; of more than `MOST_PIECES` those
    that waited longest."""
    before: Int64Array
    """Row of the work of another stream that was the last to end before it began, or that still ran; -1 for none,
    and for pieces that are not `costly`."""
    latency_ns: int
    """Within this time of its launch a piece counts as begun at once."""
    edges: list[Int64Array]
    """When each lane became busy and idle, as `busy_edges` returns it."""
    steps: StepTime
    """When how many streams were busy."""

    @cached_property
    def wait_need(self) -> Int8Array:
        """Whether data need each edge of the trace, as `WaitNeeds.need` says."""
        return wait_needs(self.trace).need

    def needs_of(self, row: Int64Array, awaited: Int64Array) -> Int8Array:
        """Return the code of the `Need` of each row's wait for other work, given by rows; -1 for none; shape (n,), int8."""
        waits = np.flatnonzero(self.wait_need >= 0)
        source, target = self.trace.edges.source[waits], self.trace.edges.target[waits]
        keys = target * len(self.trace) + source
        order = np.argsort(keys, kind="stable")
        asked = row * len(self.trace) + awaited
        place = np.minimum(np.searchsorted(keys[order], asked), len(keys) - 1)
        if not len(keys):
            return np.full(len(row), -1, np.int8)
        is_there = (awaited >= 0) & (keys[order[place]] == asked)
        return np.where(is_there, self.wait_need[waits[order[place]]], -1).astype(np.int8)

    @cached_property
    def counted(self) -> BoolArray:
        """Which rows of the trace count as busy time, whether they were looked at or not; shape (n_spans,), bool."""
        return counted_rows(self.trace)

    @cached_property
    def behind(self) -> Int64Array:
        """Of each row that counts the one before it on its lane that ended last, else -1; shape (n_spans,)."""
        return behind_on_lane(self.trace, sweep(self.trace).by_lane)

    @cached_property
    def launch(self) -> Int64Array:
        """Row of the call that launched each row, or -1; shape (n_spans,)."""
        return launch_calls(self.trace)

    @property
    def looked_share(self) -> float:
        """For how much of the time that all pieces waited the `costly` ones did; 1.0 if they are all."""
        waited_ns = self.host_ns + self.device_ns
        total_ns = int(waited_ns.sum())
        return int(waited_ns[self.costly].sum()) / total_ns if total_ns else 1.0

    @cached_property
    def offered_edges(self) -> list[Int64Array]:
        """When each stream had work queued or running, as far as launches are known, as `busy_edges` returns it."""
        lanes = np.split(np.arange(len(self.lane)), 1 + np.flatnonzero(np.diff(self.lane)))
        return map_threaded(lambda own: union_edges(self.launched_ns[own], self.end_ns[own]), lanes, row_count=len(self.lane))

    @property
    def offered_ns(self) -> int:
        """For how long two streams or more had work queued or running, in ns."""
        return int(count_durations(self.offered_edges)[2:].sum())


class LatePieces(NamedTuple):
    """Pieces of work that one finding concerns, what saves most first; int64 arrays of shape (piece_count,)."""

    row: Int64Array
    """First row of each."""
    other_row: Int64Array
    """Row of the work that stood in front, or -1."""
    call_row: Int64Array
    """Row of the call of the host that proves it, or -1."""
    idle_since_ns: Int64Array
    """Since when its stream had been idle, or since when anything ran at all, in ns."""
    launched_ns: Int64Array
    """When it was launched, never before `idle_since_ns` nor after `start_ns`, in ns."""
    start_ns: Int64Array
    """When it began, in ns."""
    waited_ns: Int64Array
    """For how long others ran meanwhile, in ns."""
    certainty: Int64Array
    """Code of the `Certainty`, by its order."""
    need: Int64Array
    """Code of the `Need` of its wait for the work in front, by `NEEDS`; -1 where it was told of none."""


NO_PIECES = LatePieces(*[np.empty(0, np.int64)] * len(LatePieces._fields))


def find_pieces(trace: Trace, rows: BoolArray) -> Pieces:
    """Find the pieces of work of each stream; `rows` says what counts as work."""
    is_whole = np.array_equal(rows, counted_rows(trace))
    by_lane, edges, steps = sweep(trace) if is_whole else sweep_of(trace, rows)
    lasting = [part[trace.end_ns[part] > trace.start_ns[part]] for part in by_lane]  # what took no time held nothing up
    by_lane = tuple(part for part in lasting if len(part))
    if not by_lane:
        none = np.empty(0, np.int64)
        columns: dict[str, Any] = {field.name: none for field in fields(Pieces)}
        return Pieces(**columns | {"trace": trace, "latency_ns": 0, "edges": [], "steps": StepTime([])})
    begins_ns = _begins(trace, edges, steps)
    parts = map_threaded(lambda part: _pieces_of(trace, part, steps, begins_ns), by_lane, row_count=len(trace))
    row, start_ns, end_ns, idle_since_ns, launched_ns, is_known, host_ns, device_ns, alone_ns = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    queued_ns = trace.queued_ns[row]
    latency_ns = launch_latency_ns((start_ns - queued_ns)[is_known & (queued_ns >= idle_since_ns)])
    device_ns[start_ns - launched_ns <= latency_ns] = 0
    costly = np.flatnonzero(host_ns + device_ns)
    if len(costly) > MOST_PIECES:
        costly = np.sort(costly[np.argpartition((host_ns + device_ns)[costly], -MOST_PIECES)[-MOST_PIECES:]])
    before = np.full(len(row), -1, np.int64)
    before[costly] = work_before(trace, np.concatenate(by_lane), row[costly], idle_since_ns[costly], latency_ns)
    return Pieces(
        trace=trace,
        row=row,
        lane=trace.lane[row].astype(np.int64),
        start_ns=start_ns,
        end_ns=end_ns,
        idle_since_ns=idle_since_ns,
        launched_ns=launched_ns,
        is_launch_known=is_known,
        host_ns=host_ns,
        device_ns=device_ns,
        alone_ns=alone_ns,
        costly=costly,
        before=before,
        latency_ns=latency_ns,
        edges=edges,
        steps=steps,
    )


def _begins(trace: Trace, edges: Sequence[Int64Array], steps: StepTime) -> Int64Array:
    """Return when work began after a pause of the whole card, the first time among them; in ns."""
    from_ns, to_ns = steps.pauses_ns
    cells_ns = np.array([mark.time_ns for mark in trace.markers if mark.kind is MarkerKind.CELL], np.int64)
    has_cell = np.searchsorted(cells_ns, to_ns) > np.searchsorted(cells_ns, from_ns)
    first_ns = min(int(own[0]) for own in edges if len(own))
    return np.append(first_ns, to_ns[has_cell | (to_ns - from_ns > PAUSE_NS)])


def _pieces_of(trace: Trace, part: Int64Array, steps: StepTime, begins_ns: Int64Array) -> tuple[np.ndarray, ...]:
    """Return the pieces of one stream, as fields of `Pieces`: the device held up those that count as begun at once, too."""
    row, start_ns, end_ns, idle_since_ns = _cut(trace, part)
    began_ns = begins_ns[np.searchsorted(begins_ns, start_ns, side="right") - 1]
    is_first = idle_since_ns < began_ns
    idle_since_ns = np.maximum(idle_since_ns, began_ns)
    busy_by_start_ns, busy_since_ns = steps.up_to(start_ns), steps.up_to(idle_since_ns)
    # A pause in which no other stream worked, either, cost no overlap: what comes behind it is of the same piece.
    first = np.flatnonzero(is_first | (busy_by_start_ns > busy_since_ns))
    end_ns = end_ns[np.append(first[1:], len(end_ns)) - 1]
    row, start_ns, idle_since_ns = row[first], start_ns[first], idle_since_ns[first]
    busy_since_ns, busy_by_start_ns = busy_since_ns[first], busy_by_start_ns[first]
    queued_ns = trace.queued_ns[row]
    is_known = queued_ns < start_ns
    launched_ns = np.where(is_known, np.clip(queued_ns, idle_since_ns, start_ns), start_ns)
    runs = np.append(0, 1 + np.flatnonzero(start_ns[1:] - end_ns[:-1] > RUN_NS))
    lasts_ns = _rest_of_run(end_ns - start_ns, runs)
    alone_ns = _rest_of_run(np.minimum(steps.between(start_ns, end_ns, alone=True), end_ns - start_ns), runs)
    busy_by_launch_ns = steps.up_to(launched_ns)
    host_ns = np.minimum(busy_by_launch_ns - busy_since_ns, lasts_ns)
    device_ns = np.minimum(busy_by_start_ns - busy_by_launch_ns, lasts_ns)
    return row, start_ns, end_ns, idle_since_ns, launched_ns, is_known, host_ns, device_ns, alone_ns


def _rest_of_run(lasted_ns: Int64Array, runs: Int64Array) -> Int64Array:
    """Return for each piece what it and those behind it in its run add up to, in ns; given are the first pieces of runs.

    Examples
    --------
    >>> _rest_of_run(np.array([1, 2, 3, 4]), np.array([0, 3])).tolist()
    [6, 5, 3, 4]
    """
    found: Int64Array = np.cumsum(lasted_ns[::-1])[::-1]
    found -= np.repeat(np.append(found[runs[1:]], 0), np.diff(runs, append=len(lasted_ns)).astype(np.intp, copy=False))
    return found


def pieces_on_time(trace: Trace, row: int, waited_ns: int, held: Sequence[tuple[int, int]] = ()) -> LatePieces:
    """Return work that was not late: one row, or those of calls that stood still, the longest call first."""
    calls, rows = np.array(held or [(-1, row)], np.int64).T
    lasted_ns = trace.duration_ns[calls] if held else np.array([waited_ns])
    order = np.argsort(-lasted_ns, kind="stable")
    calls, rows, lasted_ns, none = calls[order], rows[order], lasted_ns[order], np.full(len(rows), -1)
    start_ns, sure = trace.start_ns[rows], np.full(len(rows), tuple(Certainty).index(Certainty.PROVED))
    return LatePieces(rows, none, calls, start_ns, start_ns, start_ns, lasted_ns, sure, none)


def launch_latency_ns(delay_ns: Int64Array) -> int:
    """Say within which time of its launch work counts as begun at once, from the delays of work that an idle stream started.

    A card begins 3 to 10 us after the call was made, more where a tool listens; three times the lower quartile is taken, and
    within `LEAST_LATENCY_NS` and `MOST_LATENCY_NS`.

    Examples
    --------
    >>> launch_latency_ns(np.array([5_000, 6_000, 900_000])), launch_latency_ns(np.array([], np.int64))
    (16500, 50000)
    """
    if not len(delay_ns):
        return MOST_LATENCY_NS
    return int(np.clip(LATENCY_TIMES * np.quantile(delay_ns, 0.25), LEAST_LATENCY_NS, MOST_LATENCY_NS))


def behind_on_lane(trace: Trace, by_lane: Iterable[Int64Array]) -> Int64Array:
    """Return for each row of each lane the one before it there that ended last, else -1; shape (n_spans,), int64."""
    behind = np.full(len(trace), -1, np.int64)
    for part in by_lane:
        reach_ns = np.maximum.accumulate(trace.end_ns[part])
        latest = np.maximum.accumulate(np.where(trace.end_ns[part] == reach_ns, np.arange(len(part)), 0))
        behind[part[1:]] = part[latest[:-1]]
    return behind


def launch_calls(trace: Trace) -> Int64Array:
    """Return for each row the row of the call that launched it, or -1; shape (n_spans,), int64."""
    call = np.full(len(trace), -1, np.int64)
    launches = trace.edges.select(EdgeKind.LAUNCH)
    call[launches.target] = launches.source
    return call


def _cut(trace: Trace, part: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Cut the rows of one stream into pieces; return their first rows, starts, ends, and the ends of those before."""
    start_ns, reach_ns = trace.start_ns[part], np.maximum.accumulate(trace.end_ns[part])
    first = np.concatenate(([0], 1 + np.flatnonzero(start_ns[1:] > reach_ns[:-1] + CLOSE_NS)))
    end_ns = reach_ns[np.append(first[1:], len(part)) - 1]
    # A stream's first piece waited since anything ran, see `_pieces_of`.
    return part[first], start_ns[first], end_ns, np.concatenate(([np.iinfo(np.int64).min], end_ns[:-1]))


def work_before(trace: Trace, work: Int64Array, row: Int64Array, idle_since_ns: Int64Array, latency_ns: int) -> Int64Array:
    """Return for each piece the work of another stream that stood in front of it.

    That is what ended just before it began; else what still ran as it began; else what was the last to end while it waited.
    """
    start_ns = trace.start_ns[row]
    error_ns = max(trace.metadata.kernel_error_ns, trace.metadata.clock_error_ns)
    asked = ((trace.end_ns, start_ns + error_ns), (trace.start_ns, start_ns - 1))
    ended, running = map_threaded(lambda of: last_of_others(trace, work, of[0], row, of[1]), asked, row_count=len(work))
    has_ended = (ended >= 0) & (trace.end_ns[ended] > idle_since_ns)
    is_running = (running >= 0) & (trace.end_ns[running] > start_ns)
    is_close = has_ended & (start_ns - trace.end_ns[ended] <= latency_ns)
    found: Int64Array = np.where(is_close | (has_ended & ~is_running), ended, np.where(is_running, running, -1))
    return found


def last_of_others(trace: Trace, work: Int64Array, times_ns: Int64Array, row: Int64Array, up_to_ns: Int64Array) -> Int64Array:
    """Return for each row the work of other lanes that has the latest of these times up to a time, or -1."""
    order = work[np.argsort(times_ns[work], kind="stable")]
    lane = trace.lane[order]
    is_first = np.concatenate(([True], lane[1:] != lane[:-1]))
    place = np.searchsorted(times_ns[order], up_to_ns, side="right") - 1
    # In front of a run of one lane stands the last of another one.
    own = np.flatnonzero((place >= 0) & (lane[place] == trace.lane[row]))
    firsts = np.flatnonzero(is_first)
    place[own] = firsts[np.searchsorted(firsts, place[own], side="right") - 1] - 1
    found: Int64Array = np.where(place >= 0, order[place], -1)
    return found
