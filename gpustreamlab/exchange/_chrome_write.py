"""Write Chrome's trace event format, for Perfetto, chrome://tracing and Speedscope, and so that `read_chrome` reads it back.

A viewer shows spans of one thread only where they nest or follow each other; it loses the others. So each lane is one thread,
or several where its spans overlap. Viewers read times as floats of 64 bits: they are counted from the trace's first moment, and
exact to the nanosecond below 2^43 us (100 days).
"""

from __future__ import annotations

import base64
import gzip
import io
import json
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gpustreamlab._util.shell import steps
from gpustreamlab.exchange._formats import require_suffix
from gpustreamlab.model import EDGE_KINDS, SPAN_KINDS, Trace, WorkDetail, parquet_bytes, write_file_whole
from gpustreamlab.recorder import cut_text
from gpustreamlab.typing import BoolArray, Int64Array, LaneKind

FIRST_THREAD = 100  # Lowest number of a thread: 0 is the idle thread of a system
SHOWN_CHARACTERS = 1_000  # How much of a name stands in each of its events
SHOWN_DETAIL = 256  # How much of a kernel's full name stands in each of its events

MOST_NESTED = 500  # How deep spans of one sub-lane nest at most; Perfetto's engine drops those below 512
_NEVER = 1 << 63  # When what is open in a sub-lane that is empty ends: later than all spans

_THOUSANDTHS = pa.array([f".{part:03}" for part in range(1_000)], pa.large_string())
_BLOCK_ROWS = 1 << 16
_PACKING_LEVEL = 3  # Of gzip. Higher levels take several times as long, and save a tenth.


def write_chrome(trace: Trace, path: str | PathLike[str]) -> None:
    """Write a trace as JSON in Chrome's trace event format; Perfetto, chrome://tracing and `read_chrome` read it."""
    name = require_suffix(path, (".json", ".json.gz"), "Chrome's JSON")
    write_file_whole(path, lambda partial: _write(trace, partial, is_packed=name.endswith(".gz")))


def _write(trace: Trace, path: Path, *, is_packed: bool) -> None:
    plan = _plan(trace)
    spans = SpanText(trace, plan)
    block_count = -(-len(trace) // _BLOCK_ROWS)
    with ExitStack() as opened:
        file: IO[bytes] = opened.enter_context(path.open("wb"))
        if is_packed:
            packed = gzip.GzipFile("", "wb", _PACKING_LEVEL, file, mtime=0)
            file = opened.enter_context(io.BufferedWriter(opened.enter_context(packed), 1 << 20))
        step = opened.enter_context(steps(block_count, "writing spans"))
        file.write(_head(trace, plan))
        file.write(",\n".join(_thread_events(trace, plan)).encode())
        for block in range(block_count):
            rows = slice(block * _BLOCK_ROWS, (block + 1) * _BLOCK_ROWS)
            file.write(spans.text(rows))
            step(f"{min(rows.stop, len(trace)):,}")
        file.write(sample_text(trace, plan))
        file.writelines(_moments(trace, plan))
        file.write(b"\n]}\n")


def _plan(trace: Trace) -> Plan:
    moments = [
        trace.start_ns,
        trace.counters.time_ns,
        np.array([*(one.time_ns for one in trace.markers), *(one.time_ns for one in trace.layouts)], np.int64),
    ]
    base_ns = min((int(times.min()) for times in moments if len(times)), default=0)
    sub = sublanes(trace.start_ns, trace.end_ns, trace.lane)
    most = np.zeros(len(trace.lanes), np.int64)
    np.maximum.at(most, trace.lane, sub)
    first = np.cumsum(most + 1) - (most + 1)
    titles = [_process(trace, code) for code in range(len(trace.lanes))]
    processes = list(dict.fromkeys(titles)) or ["no lanes"]
    threads = [(processes.index(title), code, part) for code, title in enumerate(titles) for part in range(int(most[code]) + 1)]
    source, target = trace.edges.source, trace.edges.target
    is_shown = (trace.end_ns > trace.start_ns)[source] & (trace.end_ns > trace.start_ns)[target]
    return Plan(
        base_ns=base_ns,
        place=first[trace.lane] + sub,
        threads=threads,
        processes=processes,
        drawn=is_shown & (trace.start_ns[source] < trace.start_ns[target]),
    )


def _process(trace: Trace, code: int) -> str:
    """Return what a lane belongs to: the host, a device, or a partition of it."""
    lane, device = trace.lanes[code], trace.metadata.device
    if lane.kind is LaneKind.HOST:
        return "host"
    name = f"GPU {lane.device}" + (f" {device.label}" if lane.device == device.ordinal else "")
    return name if lane.partition is None else f"{name}, partition {lane.partition} ({lane.sm_count} SMs)"


def _head(trace: Trace, plan: Plan) -> bytes:
    """Return everything before the events."""
    unix_ns = trace.metadata.epoch_unix_ns + plan.base_ns if trace.metadata.epoch_unix_ns else 0
    times = f'"displayTimeUnit":"ns","baseTimeNanoseconds":{unix_ns},\n"traceEvents":[\n'
    return b'{"gpustreamlab":"%b",\n%b' % (base64.b64encode(parquet_bytes(trace)), times.encode())


def _thread_events(trace: Trace, plan: Plan) -> Iterator[str]:
    """Yield what names processes and threads, and puts them in our order."""
    for number, title in enumerate(plan.processes, 1):
        yield from _named("process", {"pid": number}, title, number)
    for number, (process, code, part) in enumerate(plan.threads):
        name = trace.lanes[code].name + (f" ({part + 1})" if part else "")
        yield from _named("thread", {"pid": process + 1, "tid": FIRST_THREAD + number}, name, number)


def _named(what: str, where: Mapping[str, int], name: str, order: int) -> Iterator[str]:
    yield json.dumps({"ph": "M", "name": f"{what}_name", **where, "args": {"name": name}})
    yield json.dumps({"ph": "M", "name": f"{what}_sort_index", **where, "args": {"sort_index": order}})


def _moments(trace: Trace, plan: Plan) -> Iterator[bytes]:
    """Yield what was marked, and when the layout changed."""
    marks = [(one.time_ns, one.kind.value, one.text) for one in trace.markers]
    marks += [(one.time_ns, "layout", str(one.layout or "Layout: the whole card")) for one in trace.layouts]
    for time_ns, category, text in marks:
        since_ns = time_ns - plan.base_ns
        event = {"ph": "i", "s": "g", "cat": category, "name": text, "pid": 1, "tid": FIRST_THREAD}
        yield f',\n{json.dumps(event)[:-1]},"ts":{since_ns // 1_000}.{since_ns % 1_000:03}}}'.encode()


class Plan(NamedTuple):
    """What stands where."""

    base_ns: int  # The first moment of the trace, from which times are counted
    place: Int64Array  # Which thread each span stands in; shape (n_spans,)
    threads: list[tuple[int, int, int]]  # Process, lane and sub-lane of each thread, in our order
    processes: list[str]  # Names, in our order
    drawn: BoolArray
    """Which edges are drawn as flows: viewers know none that goes back in time, or ends at an instant; shape (n_edges,)."""


class SpanText:
    """Writes the spans, some rows at a time."""

    def __init__(self, trace: Trace, plan: Plan) -> None:
        self._trace, self._plan = trace, plan
        places = [
            f'"pid":{process + 1},"tid":{FIRST_THREAD + number},"ts":' for number, (process, _, _) in enumerate(plan.threads)
        ]
        self._places = _table(places)
        self._kinds = _table([kind.value for kind in SPAN_KINDS])
        self._names = _table([json.dumps(cut_text(name, SHOWN_CHARACTERS)) for name in trace.names])
        self._threads = _table([f',"thread":{json.dumps(thread)}' for thread in trace.threads])
        parts = [{"code": code, "name": one.name, "sms": one.granted_sms} for code, one in enumerate(trace.partitions)]
        self._partitions = _table([f',"partition":{json.dumps(part)}' for part in parts])
        details = [{"code": code} | _facts(one) for code, one in enumerate(trace.details)]
        self._details = _table([f',"detail":{json.dumps(detail)}' for detail in details])
        self._edges = _table([f',"cat":"{kind.value}","name":"{kind.value}","id":' for kind in EDGE_KINDS])

    def text(self, rows: slice) -> memoryview:
        """Return the text of each span of some rows, with the flows that begin and end there."""
        trace, plan = self._trace, self._plan
        parent, start_ns, end_ns = trace.parent[rows], trace.start_ns[rows], trace.end_ns[rows]
        parts: list[Any] = [
            ',\n{"ph":"X","cat":"',
            _chosen(self._kinds, trace.kind[rows]),
            '","name":',
            _chosen(self._names, trace.name[rows]),
            ",",
            _chosen(self._places, plan.place[rows]),
            *_microseconds(_since(start_ns, plan)),
            ',"dur":',
            *_microseconds(end_ns.view(np.uint64) - start_ns.view(np.uint64)),
            ',"args":{"queued_ns":',
            _numbers(_since(trace.queued_ns[rows], plan).view(np.int64)),
            _chosen(self._threads, trace.thread[rows]),
            _chosen(self._partitions, trace.partition[rows]),
            pc.if_else(pa.array(parent >= 0), _joined([',"parent":', _numbers(parent)]), ""),
        ]
        for name, values in trace.extra.items():
            if name == "detail":
                parts.append(_chosen(self._details, values[rows]))
            else:
                parts += [f",{json.dumps(name)}:", _numbers(values[rows])]
        return _bytes(_joined([*parts, "}}", self._flows(rows.start, rows.start + len(parent))]))

    def _flows(self, first: int, last: int) -> pa.Array:
        """Return for each row the ends of flows that stand there: behind its span, so that they are bound to this one."""
        trace, plan = self._trace, self._plan
        texts, places = [], []
        for phase, ends in (('"s"', trace.edges.source), ('"f","bp":"e"', trace.edges.target)):
            found = np.flatnonzero(plan.drawn & (ends >= first) & (ends < last))
            row = ends[found]
            begin = [f',\n{{"ph":{phase}', _chosen(self._edges, trace.edges.kind[found]), _numbers(found), ","]
            where = [_chosen(self._places, plan.place[row]), *_microseconds(_since(trace.start_ns[row], plan)), "}"]
            texts.append(_joined(begin + where))
            places.append(row - first)
        place = np.concatenate(places)
        order = np.argsort(place, kind="stable")
        offsets = np.searchsorted(place[order], np.arange(last - first + 1))
        lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.concat_arrays(texts).take(pa.array(order)))
        return pc.binary_join(lists, _constant(""))


def _facts(detail: WorkDetail) -> dict[str, object]:
    """Return what a viewer shows of a detail."""
    facts: dict[str, object] = {"full_name": detail.full_name[:SHOWN_DETAIL]}
    if detail.grid_blocks:
        facts |= {"grid": list(detail.grid), "block": list(detail.block), "registers": detail.registers}
        facts |= {"static_shared_bytes": detail.static_shared_bytes, "dynamic_shared_bytes": detail.dynamic_shared_bytes}
    return facts | ({"graph": detail.graph, "node": detail.node, "label": detail.label} if detail.graph else {})


def sample_text(trace: Trace, plan: Plan) -> memoryview | bytes:
    """Return the text of every sample of a quantity."""
    samples = trace.counters
    if not len(samples):
        return b""
    keys, track = np.unique(samples.lane.astype(np.int64) * len(samples.names) + samples.name, return_inverse=True)
    process = {lane: number for number, lane, _ in plan.threads}
    texts = [
        f',\n{{"ph":"C","name":{json.dumps(f"{samples.names[name]} of {trace.lanes[lane].name}")},'
        f'"pid":{process[lane] + 1},"args":'
        for lane, name in (divmod(key, len(samples.names)) for key in keys.tolist())
    ]
    times = _microseconds(_since(samples.time_ns, plan))
    is_number = pa.array(np.isfinite(samples.value))  # viewers know nothing else
    values = pc.if_else(is_number, _joined(['{"value":', _numbers(samples.value), "}"]), "{}")
    return _bytes(_joined([_chosen(_table(texts), track), values, ',"ts":', *times, "}"]))


def _since(time_ns: Int64Array, plan: Plan) -> NDArray[np.uint64]:
    """Return times since the trace's first moment, which may lie further apart than 64 bits with a sign can tell."""
    return np.ascontiguousarray(time_ns).view(np.uint64) - np.uint64(plan.base_ns % (1 << 64))


def _numbers(values: NDArray[Any]) -> pa.Array:
    """Return numbers as JSON, which knows no others than finite ones."""
    if values.dtype.kind != "f":
        return pc.cast(pa.array(values), pa.large_string())
    wide = values.astype(np.float64)
    return pc.if_else(pa.array(np.isfinite(wide)), pc.cast(pa.array(wide), pa.large_string()), "null")


def _microseconds(time_ns: NDArray[np.uint64]) -> list[pa.Array]:
    """Return decimals of microseconds, as their whole part and their three digits."""
    whole, part = np.divmod(time_ns, np.uint64(1_000))
    return [pc.cast(pa.array(whole), pa.large_string()), _THOUSANDTHS.take(pa.array(part.astype(np.int32)))]


def _table(texts: Sequence[str]) -> pa.Array:
    """Return texts by their code; the last one, of -1, is empty."""
    return pa.array([*texts, ""], pa.large_string())


def _chosen(table: pa.Array, codes: NDArray[Any]) -> pa.Array:
    return table.take(pa.array(np.where(codes < 0, len(table) - 1, codes).astype(np.int64)))


def _constant(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


def _joined(parts: Sequence[Any]) -> pa.Array:
    """Return the parts of each row as one text; a plain text is the same in all rows."""
    columns = [_constant(part) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*columns, _constant(""))


def _bytes(rows: pa.Array) -> memoryview:
    """Return the texts of all rows, one behind the other, without a copy."""
    offsets = np.frombuffer(rows.buffers()[1], np.int64)[rows.offset : rows.offset + len(rows) + 1]
    return memoryview(rows.buffers()[2])[int(offsets[0]) : int(offsets[-1])]


def sublanes(start_ns: Int64Array, end_ns: Int64Array, lane: NDArray[np.integer]) -> Int64Array:
    """Tell which sub-lane of its lane each span gets, so that the spans of one nest or do not overlap."""
    order = nesting_order(start_ns, end_ns, lane)
    # An instant is inside or between others wherever it is.
    order = order[end_ns[order] > start_ns[order]]
    start, end = start_ns[order], end_ns[order]
    found = np.zeros(len(order), np.int64)
    for first, last in _runs(np.asarray(lane)[order]):
        for begin, stop in (_crossed(start[first:last], end[first:last]) + first).tolist():
            found[begin:stop] = _assign(start[begin:stop].tolist(), end[begin:stop].tolist())
    result = np.zeros(len(start_ns), np.int64)
    result[order] = found
    return result


def nesting_order(start_ns: Int64Array, end_ns: Int64Array, lane: NDArray[np.integer]) -> Int64Array:
    """Return the rows by lane and start; of two that begin at once the longer one is first."""
    if len(lane) and (start_ns[1:] >= start_ns[:-1]).all() and lane.max() < 1 << 15:  # sorting small codes is quick
        order = np.argsort(lane.astype(np.int16), kind="stable")
        starts, ends, lanes = start_ns[order], end_ns[order], lane[order]
        is_tie = (starts[1:] == starts[:-1]) & (lanes[1:] == lanes[:-1])
        if not (is_tie & (ends[1:] > ends[:-1])).any():
            return order
    return np.lexsort((~end_ns, start_ns, lane))  # ~ is a minus that never overflows


def _runs(lanes: NDArray[np.integer]) -> list[tuple[int, int]]:
    """Return where each lane begins and stops."""
    bounds = [*np.flatnonzero(np.diff(lanes, prepend=-1)).tolist(), len(lanes)]
    return list(pairwise(bounds))


def _crossed(start: Int64Array, end: Int64Array) -> Int64Array:
    """Return where stretches of a lane begin and stop in which spans overlap but do not nest, or too deep; shape (n, 2)."""
    is_first = np.append(True, start[1:] >= np.maximum.accumulate(end)[:-1])
    if is_first.all():
        return np.empty((0, 2), np.int64)
    place = np.arange(len(start))
    depth = place - np.searchsorted(np.sort(end), start, side="right")
    # Where those before it nest, the innermost that is open is the last one that lies one less deep.
    keys = np.sort(depth * len(start) + place)
    inside = np.flatnonzero(depth > 0)
    around = keys[np.searchsorted(keys, (depth[inside] - 1) * len(start) + inside) - 1] % len(start)
    is_bad = depth >= MOST_NESTED
    is_bad[inside] |= end[inside] > end[around]
    bounds = np.append(np.flatnonzero(is_first), len(start))
    bad = np.unique(np.searchsorted(bounds, np.flatnonzero(is_bad), side="right"))
    return np.stack((bounds[bad - 1], bounds[bad]), axis=1)


def _assign(start: list[int], end: list[int]) -> list[int]:
    """Return a sub-lane for each span of a stretch: the one in which the span around it ends soonest, else an empty one."""
    open_ends: list[list[int]] = []
    innermost: list[tuple[int, int]] = []  # end of the innermost open span of each sub-lane, in order
    found = []
    for begins, ends in zip(start, end, strict=True):
        while innermost and innermost[0][0] <= begins:
            _, lane = innermost.pop(0)
            open_ends[lane].pop()
            insort(innermost, (open_ends[lane][-1] if open_ends[lane] else _NEVER, lane))
        at = bisect_left(innermost, (ends, -1))
        while at < len(innermost) and len(open_ends[innermost[at][1]]) >= MOST_NESTED:
            at += 1
        if at == len(innermost):
            open_ends.append([])
            lane = len(open_ends) - 1
        else:
            _, lane = innermost.pop(at)
        open_ends[lane].append(ends)
        insort(innermost, (ends, lane))
        found.append(lane)
    return found
