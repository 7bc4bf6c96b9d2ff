"""Several traces as one, on one clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.errors import OptionError, TraceError
from gpustreamlab.model._columns import COLUMN_DTYPES, DEVICE_WORK, SPAN_KINDS, Accesses, Counters, Edges, WorkDetail
from gpustreamlab.model._device import ClockOffset, Device, Lane, TraceMetadata, interpolate
from gpustreamlab.model._trace import Trace
from gpustreamlab.typing import Int64Array, LaneKind, SpanKind

SAME_NS = 100_000  # Two records of one call, or of one kernel, differ by no more than this, by two clocks
LEAST_WALL_CLOCK_NS, YEAR_NS = 10**18, 365 * 86_400 * 10**9  # No two traces are so far apart: that is one wall clock and 0
_HOST = SPAN_KINDS.index(SpanKind.HOST)
_WORK = [SPAN_KINDS.index(kind) for kind in DEVICE_WORK]
_ADDED = ("dropped_spans", "dropped_records", "pending_spans", "dropped_markers", "unselected_work", "refused_records")


Ahead: TypeAlias = int | tuple[Int64Array, Int64Array]
_T = TypeVar("_T", bound=Trace)


def merge(
    traces: Sequence[_T],
    *,
    clocks: Mapping[Any, ClockOffset] | Sequence[ClockOffset] | None = None,
    ahead_ns: Sequence[Ahead] | None = None,
    error_ns: int | None = None,
    processes: Sequence[int] | None = None,
) -> _T:
    """Return several traces as one, with the zero of the first; see `gpustreamlab.merge`."""
    if processes is not None:
        if len(processes) != len(traces):
            raise OptionError("processes takes one number for each trace: gsl.merge([first, second], processes=[0, 1]).")
        traces = [
            replace(trace, lanes=tuple(replace(lane, process=number) for lane in trace.lanes))
            for trace, number in zip(traces, processes, strict=True)
        ]
    traces = _with_own_cards(traces)
    placing = _place(traces, clocks, ahead_ns)
    ahead_ns = placing.ahead_ns
    lanes, lane_code = _join_lanes(traces)
    names, name_code = _intern([trace.names for trace in traces])
    threads, thread_code = _intern([trace.threads for trace in traces])
    counter_names, counter_code = _intern([trace.counters.names for trace in traces])
    details: list[WorkDetail] = []
    first_row, first_partition = 0, 0
    parts: list[dict[str, NDArray[Any]]] = []
    edges: list[tuple[NDArray[Any], ...]] = []
    counters: list[tuple[NDArray[Any], ...]] = []
    for place, (trace, ahead) in enumerate(zip(traces, ahead_ns, strict=True)):
        columns: dict[str, NDArray[Any]] = {name: getattr(trace, name) for name in COLUMN_DTYPES} | dict(trace.extra)
        for name in ("start_ns", "end_ns", "queued_ns", "work_start_ns", "work_end_ns"):
            if name in columns:
                columns[name] = shifted(columns[name], ahead)
        for start, end in (("start_ns", "end_ns"), ("work_start_ns", "work_end_ns")):
            if end in columns:  # a jump of the clock between the two may have taken the end before the start
                columns[end] = np.maximum(columns[start], columns[end])
        columns["lane"] = lane_code[place][trace.lane]
        columns["name"] = name_code[place][trace.name]
        columns["thread"] = _moved(trace.thread, thread_code[place])
        columns["parent"] = np.where(trace.parent >= 0, trace.parent + first_row, -1)
        columns["partition"] = np.where(trace.partition >= 0, trace.partition + first_partition, -1)
        if "detail" in columns:
            columns["detail"] = np.where(columns["detail"] >= 0, columns["detail"] + len(details), -1)
        parts.append(columns)
        edges.append((trace.edges.source + first_row, trace.edges.target + first_row, trace.edges.kind))
        told = trace.counters
        counters.append((shifted(told.time_ns, ahead), lane_code[place][told.lane], counter_code[place][told.name], told.value))
        details += trace.details
        first_row += len(trace)
        first_partition += len(trace.partitions)
    rows: dict[str, Any] = _joined(parts, [len(trace) for trace in traces])
    source, target, kind = (np.concatenate(column) for column in zip(*edges, strict=True))
    sampled = dict(zip(("time_ns", "lane", "name", "value"), map(np.concatenate, zip(*counters, strict=True)), strict=True))
    whole = type(traces[0])(
        **{name: rows.pop(name) for name in COLUMN_DTYPES},
        extra=rows,
        names=names,
        lanes=lanes,
        threads=threads,
        partitions=tuple(chain.from_iterable(trace.partitions for trace in traces)),
        details=tuple(details),
        edges=Edges(source=source, target=target, kind=kind),
        accesses=_join_accesses(traces),
        counters=Counters(**sampled, names=counter_names),
        markers=tuple(
            sorted(
                {
                    replace(marker, time_ns=shifted_moment(marker.time_ns, ahead))
                    for trace, ahead in zip(traces, ahead_ns, strict=True)
                    for marker in trace.markers
                },
                key=lambda marker: marker.time_ns,
            )
        ),
        notes=tuple(
            replace(
                note,
                time_ns=shifted_moment(note.time_ns, ahead),
                end_ns=None if note.end_ns is None else shifted_moment(note.end_ns, ahead),
                stream=next((lanes[code[own]].name for own, lane in enumerate(trace.lanes) if lane.name == note.stream), None),
            )
            for trace, ahead, code in zip(traces, ahead_ns, lane_code, strict=True)
            for note in trace.notes
        ),
        metadata=placing.told_by(
            join_metadata(
                [trace.metadata for trace in traces],
                chain.from_iterable(trace.devices for trace in traces),
                ahead_ns=ahead_ns,
                error_ns=placing.error_ns if error_ns is None else error_ns,
                busiest=max(range(len(traces)), key=lambda place: len(traces[place])),
            )
        ),
    )
    return _in_order(whole, np.repeat(np.arange(len(parts)), [len(trace) for trace in traces]))


def _with_own_cards(traces: Sequence[_T]) -> list[_T]:
    """Return traces in which a number is of one card: what is another one, by name or UUID, gets the next free number."""
    cards, found = dict[int, Device](), []
    used = {card.ordinal for trace in traces for card in trace.devices}
    for trace in traces:
        moved = dict[int, int]()
        for card in trace.devices:
            same = (one for one, known in cards.items() if known.ordinal == card.ordinal and _may_be(known, card))
            other = card.ordinal if card.ordinal not in cards else max(used) + 1
            number = moved[card.ordinal] = next(same, other)
            used.add(number)
            if number not in cards or _is_unnamed(cards[number]):
                cards[number] = card
        found.append(_renumbered(trace, moved))
    return found


def _is_unnamed(card: Device) -> bool:
    return not card.sm_count and card.name in {"", "unknown device", f"GPU {card.ordinal}"}


def _may_be(one: Device, other: Device) -> bool:
    """Tell whether two records may be of one card; of what has no name nothing speaks against it."""
    if one.uuid and other.uuid:
        return one.uuid == other.uuid
    return one.name == other.name or _is_unnamed(one) or _is_unnamed(other)


def _renumbered(trace: _T, moved: Mapping[int, int]) -> _T:
    if all(old == new for old, new in moved.items()):
        return trace
    is_host, meta = LaneKind.HOST, trace.metadata
    lanes = [one if one.kind is is_host else replace(one, device=moved.get(one.device, one.device)) for one in trace.lanes]
    first, *rest = (replace(one, ordinal=moved.get(one.ordinal, one.ordinal)) for one in (meta.device, *meta.devices))
    return replace(trace, lanes=tuple(lanes), metadata=replace(meta, device=first, devices=tuple(rest)))


def shifted(times_ns: Int64Array, ahead: Ahead) -> Int64Array:
    """Return times on the first clock; beyond what was measured the difference goes on as it went."""
    if isinstance(ahead, int):
        return times_ns + ahead
    moved: Int64Array = times_ns + interpolate(*ahead, times_ns)
    return moved


def shifted_moment(time_ns: int, ahead: Ahead) -> int:
    """Return one time on the first clock, as `shifted` does of many."""
    return int(shifted(np.array([time_ns]), ahead)[0])


class _Placing(NamedTuple):
    """How several traces come onto one clock."""

    ahead_ns: Sequence[Ahead]
    error_ns: int | None = None
    how: str = ""
    """In words."""
    offset: ClockOffset | None = None
    """How that clock was compared with the reference of all."""
    missing: tuple[str, ...] = ()
    """What is not known of the clocks, and where they jumped, a sentence each."""

    def told_by(self, meta: TraceMetadata) -> TraceMetadata:
        """Return the metadata of the whole with it."""
        clock = "; ".join(filter(None, (meta.clock, self.how)))
        return replace(meta, clock=clock, clock_offset=self.offset, missing=(*meta.missing, *self.missing))


def _place(
    traces: Sequence[Trace],
    clocks: Mapping[Any, ClockOffset] | Sequence[ClockOffset] | None,
    ahead_ns: Sequence[Ahead] | None,
) -> _Placing:
    offsets = [*clocks.values()] if isinstance(clocks, Mapping) else clocks
    if not traces or any(told is not None and len(told) != len(traces) for told in (offsets, ahead_ns)):
        raise OptionError(
            "merge takes one trace or more, and if ahead_ns or clocks is given one number for each: gsl.merge([first, second])."
        )
    if ahead_ns is not None:
        given: Sequence[Any] = ahead_ns
        wrong = next((one for one in given if not isinstance(one, (int, np.integer, tuple, list))), None)
        if wrong is not None:
            raise OptionError(
                f"ahead_ns has {wrong!r:.40}; give whole numbers of ns: gsl.merge([first, second], ahead_ns=[0, 1_500])."
            )
        unknown = [place for place, one in enumerate(traces) if one.metadata.imported and not one.metadata.epoch_unix_ns]
        return _as_given([int(one) if isinstance(one, np.integer) else one for one in given], unknown)
    if len(traces) == 1:
        return _Placing([0], offset=traces[0].metadata.clock_offset)
    if offsets is None:
        kept = [trace.metadata.clock_offset for trace in traces]
        offsets = [offset for offset in kept if offset is not None]
    if len(offsets) == len(traces) and len({offset.reference for offset in offsets}) == 1:
        return _by_offsets(traces, offsets)
    if clocks is not None:
        raise OptionError("The clocks were compared with different references. Take all of one gsl.Cluster's.")
    return _by_wall_clock(traces)


def _as_given(ahead_ns: Sequence[Ahead], unknown: Sequence[int]) -> _Placing:
    """Place traces as it was said, if it is no difference to a wall clock that is not known, and say of which it is not."""
    far = next((one for one in ahead_ns if isinstance(one, int) and abs(one) >= LEAST_WALL_CLOCK_NS), None)
    if far is not None:
        raise OptionError(
            f"ahead_ns has {far:,} ns, which is {abs(far) // YEAR_NS} years: the wall clock of one of the traces is not known "
            "(metadata.epoch_unix_ns is 0). Say how far each is ahead of the first: gsl.merge(traces, ahead_ns=[0, 1_500])."
        )
    told = ", ".join(map(str, unknown))
    said = f"Files do not tell when these of the traces began: {told}. How far they are apart is as ahead_ns said."
    return _Placing(ahead_ns, missing=(said,) if unknown and len(ahead_ns) > 1 else ())


def _by_offsets(traces: Sequence[Trace], offsets: Sequence[ClockOffset]) -> _Placing:
    """Place traces on the reference clock, but for the zero, which stays that of the first."""
    zero_ns = int(offsets[0].shift(np.zeros(1, np.int64))[0])
    ahead: list[Ahead] = []
    errors_ns, jumps = [], []
    for place, (trace, offset) in enumerate(zip(traces, offsets, strict=True)):
        at_ns, ahead_ns = offset.points
        ahead.append((at_ns, ahead_ns - zero_ns))
        times_ns = np.concatenate((trace.start_ns, trace.end_ns, trace.queued_ns)) if len(trace) else np.zeros(1, np.int64)
        errors_ns.append(offset.error_between(int(times_ns.min()), int(times_ns.max())) + trace.metadata.host_error_ns)
        jumps += [
            f"The clock of trace {place} jumped by {jump.by_ns / 1e9:+,.3f} s between {jump.start_ns / 1e9:,.3f} and "
            f"{jump.end_ns / 1e9:,.3f} s of its own time; what it recorded in between may be misplaced by as much."
            for jump in offset.jumps
        ]
    error_ns, reference = sum(sorted(errors_ns)[-2:]), offsets[0].reference
    return _Placing(
        ahead,
        error_ns,
        how="several traces, whose clocks were compared by messages",
        offset=ClockOffset(reference=reference, at_ns=(0,), ahead_ns=(zero_ns,), error_ns=(max(errors_ns),)),
        missing=tuple(jumps),
    )


def _by_wall_clock(traces: Sequence[Trace]) -> _Placing:
    """Place traces by the wall-clock times of their zeros, which one machine must have told."""
    told = [trace.metadata for trace in traces]
    zeros = [meta.epoch_unix_ns for meta in told]
    if all(meta.simulated for meta in told):
        raise TraceError(
            "The traces are of simulated runs, and the time of each begins at 0: nothing says which of their work ran at once. "
            "Of one run say so, else how far each is ahead of the first, in ns: gsl.merge(traces, ahead_ns=[0, 0])."
        )
    hosts = {meta.host for meta in told}
    if not all(zeros) or len(hosts) > 1 or "" in hosts:
        unknown = next((place for place, meta in enumerate(told) if not (meta.epoch_unix_ns and meta.host)), None)
        reason = (
            "they are of different machines" if unknown is None else f"trace {unknown} does not tell where or when it began"
        )
        trusting = (
            " To trust wall clocks: ahead_ns=[one.metadata.epoch_unix_ns - traces[0].metadata.epoch_unix_ns for one in traces]."
        )
        raise TraceError(
            f"How far the clocks of the traces are apart is not known: {reason}. Record them with gsl.Cluster, which compares "
            "clocks, or say how far each is ahead of the first, in ns: gsl.merge(traces, ahead_ns=[0, 1_500])."
            f"{trusting if all(zeros) else ''}"
        )
    return _Placing([zero - zeros[0] for zero in zeros], how="several traces, put together by the wall clock of their machine")


_PROCESS_BUFFERS = 1 << 40  # Buffers of two processes are so far apart: a process numbers its own from 1


def _join_accesses(traces: Sequence[Trace]) -> Accesses:
    """Return the accesses of all, by rows that follow each other; buffers of each process have numbers of their own."""
    first_row, parts = 0, []
    for trace in traces:
        told = trace.accesses
        process = np.array([lane.process for lane in trace.lanes], np.int64)[trace.lane[told.span]]
        is_own = (told.buffer > 0) & (told.buffer < _PROCESS_BUFFERS)  # those of a trace that was merged before are not
        buffer = told.buffer + is_own * process * _PROCESS_BUFFERS
        parts.append(told.columns | {"span": told.span + first_row, "buffer": buffer})
        first_row += len(trace)
    return Accesses(**{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def _join_lanes(traces: Sequence[Trace]) -> tuple[tuple[Lane, ...], list[Int64Array]]:
    """Return the lanes of all, streams first, and by trace the code of each of its own; threads of one process are joined.

    Streams of several devices that have one name have the device before it.
    """
    keys: dict[object, Lane] = {}
    placed = []
    for trace in traces:
        own = [
            (lane.process, lane.kind, *(lane.key if lane.kind is LaneKind.STREAM else ()), lane.name) for lane in trace.lanes
        ]
        for key, lane in zip(own, trace.lanes, strict=True):
            keys.setdefault(key, lane)
        placed.append(own)
    order = sorted(keys, key=lambda key: (keys[key].kind is LaneKind.HOST, keys[key].process, keys[key].device))
    lanes = with_devices([keys[key] for key in order])
    code = {key: place for place, key in enumerate(order)}
    return lanes, [np.array([code[key] for key in own], np.int64) for own in placed]


def _require_streams_of_one(whole: Trace, of: Int64Array, kept: Int64Array) -> None:
    """Raise where two traces have work of one stream at once: a stream does one thing after the other."""
    meta = whole.metadata
    allowed_ns = meta.kernel_error_ns + meta.clock_error_ns  # so much later may one of them say that work ended
    work = kept[np.isin(whole.kind[kept], _WORK)]
    work = work[np.lexsort((whole.start_ns[work], whole.lane[work]))]
    before, behind = work[:-1], work[1:]
    is_at_once = (whole.lane[before] == whole.lane[behind]) & (of[before] != of[behind])
    is_at_once &= whole.start_ns[behind] < whole.end_ns[before] - allowed_ns
    if is_at_once.any():
        stream = whole.lanes[whole.lane[before[is_at_once][0]]]
        raise TraceError(
            f"Two of the traces have work in stream {stream.name!r} at once, so it is two streams of one name. Say which "
            "process recorded each trace: gsl.merge(traces, processes=[0, 1])."
        )


def with_devices(lanes: Sequence[Lane]) -> tuple[Lane, ...]:
    """Return lanes in which those of several processes, or streams of several devices, that have one name, say which."""
    processes: dict[str, set[int]] = {}
    devices: dict[tuple[str, int], set[int]] = {}
    for lane in lanes:
        processes.setdefault(lane.name, set()).add(lane.process)
        devices.setdefault((lane.name, lane.process), set()).add(lane.device)
    named = []
    for lane in lanes:
        name = lane.name
        if lane.kind is not LaneKind.HOST and len(devices[lane.name, lane.process]) > 1:
            name = f"gpu{lane.device}:{name}"
        if len(processes[lane.name]) > 1:
            name = f"p{lane.process}:{name}"
        named.append(replace(lane, name=name))
    return tuple(named)


def _intern(texts: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], list[Int64Array]]:
    """Return all texts, each once, and by trace the code of each of its own."""
    codes: dict[str, int] = {}
    placed = [np.array([codes.setdefault(text, len(codes)) for text in one], np.int64) for one in texts]
    return tuple(codes), placed


def _moved(codes: NDArray[Any], to: Int64Array) -> NDArray[Any]:
    return np.where(codes >= 0, np.append(to, -1)[codes], -1)


_MISSING = {"detail": -1, "correlation": 0, "size_bytes": 0}


def _joined(parts: Sequence[dict[str, NDArray[Any]]], counts: Sequence[int]) -> dict[str, NDArray[Any]]:
    """Return columns below each other; one that a trace lacks is filled with what says that nothing is known."""
    found = {}
    for name in dict.fromkeys(chain.from_iterable(parts)):
        fill = _MISSING.get(name, 0)
        kind = np.result_type(*(part[name].dtype for part in parts if name in part))
        if name in {"work_start_ns", "work_end_ns"}:
            columns = [part.get(name, part[name.removeprefix("work_")]) for part in parts]
        else:
            columns = [part[name] if name in part else np.full(count, fill) for part, count in zip(parts, counts, strict=True)]
        found[name] = np.concatenate(columns).astype(kind, copy=False)
    if "number" in found and len(np.unique(found["number"])) < len(found["number"]):
        del found["number"]  # they tell spans apart, or are of no use
    return found


def _in_order(whole: _T, of: Int64Array) -> _T:
    """Return the rows in order of their starts; of what several sessions of a process recorded, one, in a range if one is.

    Sessions of a process are told of all calls, and of the work in streams that are of none of them. Of a graph's launch the
    kernels have one number: the first of a name is the first of the others', too.
    """
    keeper = np.arange(len(whole))
    correlation = whole.extra.get("correlation", np.zeros(len(whole), np.int64))
    rows = np.flatnonzero((correlation != 0) & np.isin(whole.kind, [_HOST, *_WORK]))
    if len(rows) and of[-1]:
        keys = np.stack((whole.lane[rows], whole.name[rows], correlation[rows]))
        _, group = np.unique(keys, axis=1, return_inverse=True)
        order = np.lexsort((whole.start_ns[rows], of[rows], group.reshape(-1)))
        rows, group = rows[order], group.reshape(-1)[order]
        bounds = np.flatnonzero(np.diff(group, prepend=-1) | np.diff(of[rows], prepend=-1))
        nth = np.arange(len(rows)) - np.repeat(bounds, np.diff(bounds, append=len(rows)))
        order = np.lexsort((of[rows], whole.parent[rows] < 0, nth, group))
        rows, group, nth = rows[order], group[order], nth[order]
        first = np.flatnonzero(np.diff(group, prepend=-1) | np.diff(nth, prepend=-1))
        same = rows[np.repeat(first, np.diff(first, append=len(rows)))]
        is_same = (np.abs(whole.start_ns[rows] - whole.start_ns[same]) <= SAME_NS) & (of[rows] != of[same])
        keeper[rows[is_same]] = same[is_same]
    kept = np.flatnonzero(keeper == np.arange(len(whole)))
    _require_streams_of_one(whole, of, kept)
    edges = replace(whole.edges, source=keeper[whole.edges.source], target=keeper[whole.edges.target])
    parent = np.where(whole.parent >= 0, keeper[whole.parent], -1)
    ordered = replace(whole, edges=edges, parent=parent)[kept[np.argsort(whole.start_ns[kept], kind="stable")]]
    return replace(ordered, metadata=whole.metadata)


def join_metadata(
    told: Sequence[TraceMetadata], devices: Iterable[Device], *, ahead_ns: Sequence[Ahead], error_ns: int | None, busiest: int
) -> TraceMetadata:
    """Return what several traces say of themselves as one, on the clock of the first."""
    by_number = {device.ordinal: device for device in devices}
    windows: list[tuple[int, int]] = []
    for begin, end in sorted(
        (shifted_moment(begin, ahead), shifted_moment(end, ahead))
        for meta, ahead in zip(told, ahead_ns, strict=True)
        for begin, end in meta.capture_windows
    ):
        if windows and begin <= windows[-1][1]:
            windows[-1] = windows[-1][0], max(end, windows[-1][1])
        else:
            windows.append((begin, end))
    between = sum(sorted(meta.host_error_ns for meta in told)[-2:]) if error_ns is None else error_ns
    return replace(
        told[0],
        device=told[busiest].device,
        devices=tuple(by_number[number] for number in sorted(by_number)) if len(by_number) > 1 else (),
        clock_error_ns=max(meta.clock_error_ns for meta in told) + (between if len(told) > 1 else 0),
        capture_windows=tuple(windows),
        host=told[0].host if len({meta.host for meta in told}) == 1 else "",
        rank=told[0].rank if len({meta.rank for meta in told}) == 1 else -1,
        title=next((meta.title for meta in told if meta.title), ""),
        diagnostics=tuple(dict.fromkeys(chain.from_iterable(meta.diagnostics for meta in told))),
        doubt=" ".join(dict.fromkeys(meta.doubt for meta in told if meta.doubt)),
        **{name: max(getattr(meta, name) for meta in told) for name in ("range_error_ns", "kernel_error_ns", "host_error_ns")},
        **{name: sum(getattr(meta, name) for meta in told) for name in _ADDED},
    )
