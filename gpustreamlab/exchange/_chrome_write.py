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
from itertools import islice, pairwise, repeat
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpustreamlab._util.shell import steps
from gpustreamlab.exchange._formats import require_suffix
from gpustreamlab.model import EDGE_KINDS, SPAN_KINDS, Trace, WorkDetail, parquet_bytes, write_file_whole
from gpustreamlab.recorder import cut_text
from gpustreamlab.typing import Int64Array, LaneKind

FIRST_THREAD = 100  # Lowest number of a thread: 0 is the idle thread of a system
SHOWN_CHARACTERS = 1_000  # How much of a name stands in each of its events
SHOWN_DETAIL = 256  # How much of a kernel's full name stands in each of its events

MOST_NESTED = 500  # How deep spans of one sub-lane nest at most; Perfetto's engine drops those below 512
_NEVER = 1 << 63  # When what is open in a sub-lane that is empty ends: later than all spans

_BLOCK_ROWS = 1 << 16
_PACKING_LEVEL = 3  # Of gzip. Higher levels take several times as long, and save a tenth.


def write_chrome(trace: Trace, path: str | PathLike[str]) -> None:
    """Write a trace as JSON in Chrome's trace event format; Perfetto, chrome://tracing and `read_chrome` read it."""
    name = require_suffix(path, (".json", ".json.gz"), "Chrome's JSON")
    write_file_whole(path, lambda partial: _write(trace, partial, is_packed=name.endswith(".gz")))


def _write(trace: Trace, path: Path, *, is_packed: bool) -> None:
    plan = _plan(trace)
    with ExitStack() as opened:
        file: IO[bytes] = opened.enter_context(path.open("wb"))
        if is_packed:
            packed = gzip.GzipFile("", "wb", _PACKING_LEVEL, file, mtime=0)
            file = opened.enter_context(io.BufferedWriter(opened.enter_context(packed), 1 << 20))
        step = opened.enter_context(steps(-(-len(trace) // _BLOCK_ROWS), "writing spans"))
        file.write(_head(trace, plan))
        file.write(",\n".join(_thread_events(trace, plan)).encode())
        spans, done = _spans(trace, plan), 0
        while block := "".join(islice(spans, _BLOCK_ROWS)):
            done += _BLOCK_ROWS
            file.write(block.encode())
            step(f"{min(done, len(trace)):,}")
        file.writelines(_samples(trace, plan))
        file.writelines(_moments(trace, plan))
        file.write(b"\n]}\n")


def _plan(trace: Trace) -> Plan:
    moments = [
        trace.start_ns,
        trace.counters.time_ns,
        np.array([*(one.time_ns for one in trace.markers), *(one.time_ns for one in trace.layouts)], np.int64),
    ]
    sub = sublanes(trace.start_ns, trace.end_ns, trace.lane)
    most = np.zeros(len(trace.lanes), np.int64)
    np.maximum.at(most, trace.lane, sub)
    first = np.cumsum(most + 1) - (most + 1)
    titles = [_process(trace, code) for code in range(len(trace.lanes))]
    processes = list(dict.fromkeys(titles)) or ["no lanes"]
    return Plan(
        base_ns=min((int(times.min()) for times in moments if len(times)), default=0),
        place=first[trace.lane] + sub,
        threads=[
            (processes.index(title), code, part) for code, title in enumerate(titles) for part in range(int(most[code]) + 1)
        ],
        processes=processes,
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
        event = {"ph": "i", "s": "g", "cat": category, "name": text, "pid": 1, "tid": FIRST_THREAD}
        yield f',\n{json.dumps(event)[:-1]},"ts":{_microseconds(time_ns - plan.base_ns)}}}'.encode()


class Plan(NamedTuple):
    """What stands where."""

    base_ns: int  # The first moment of the trace, from which times are counted
    place: Int64Array  # Which thread each span stands in; shape (n_spans,)
    threads: list[tuple[int, int, int]]  # Process, lane and sub-lane of each thread, in our order
    processes: list[str]  # Names, in our order


def _spans(trace: Trace, plan: Plan) -> Iterator[str]:
    """Yield the text of each span, with the flows that begin and end there behind it, so that they are bound to it."""
    places = [f'"pid":{process + 1},"tid":{FIRST_THREAD + number},"ts":' for number, (process, _, _) in enumerate(plan.threads)]
    kinds, names = [kind.value for kind in SPAN_KINDS], [json.dumps(cut_text(name, SHOWN_CHARACTERS)) for name in trace.names]
    threads = [*(f',"thread":{json.dumps(thread)}' for thread in trace.threads), ""]  # the last one is that of -1
    parts = [{"code": code, "name": one.name, "sms": one.granted_sms} for code, one in enumerate(trace.partitions)]
    partitions = [*(f',"partition":{json.dumps(part)}' for part in parts), ""]
    flows = _flows(trace, plan, places)
    extras = zip(*_extras(trace), strict=True) if trace.extra else repeat(())
    codes = (trace.kind, trace.name, plan.place, trace.thread, trace.partition, trace.parent)
    columns = (column.tolist() for column in (trace.start_ns, trace.end_ns, trace.queued_ns, *codes))
    for row, (start_ns, end_ns, queued_ns, kind, name, place, thread, partition, parent) in enumerate(
        zip(*columns, strict=True)
    ):
        own = f"{threads[thread]}{partitions[partition]}" + (f',"parent":{parent}' if parent >= 0 else "")
        yield (
            f',\n{{"ph":"X","cat":"{kinds[kind]}","name":{names[name]},{places[place]}{_microseconds(start_ns - plan.base_ns)},'
            f'"dur":{_microseconds(end_ns - start_ns)},"args":{{"queued_ns":{queued_ns - plan.base_ns}{own}'
            f"{''.join(next(extras))}}}}}{''.join(flows.get(row, ()))}"
        )


def _extras(trace: Trace) -> Iterator[Iterator[str]]:
    """Yield for each further column what stands of it in the arguments of each span."""
    details = [*(f',"detail":{json.dumps({"code": code} | _facts(one))}' for code, one in enumerate(trace.details)), ""]
    for name, values in trace.extra.items():
        if name == "detail":
            yield map(details.__getitem__, values.tolist())
        else:
            head = f",{json.dumps(name)}:"
            yield map(head.__add__, map(_number, values.tolist()))  # not a generator, which would see the last head


def _flows(trace: Trace, plan: Plan, places: Sequence[str]) -> dict[int, list[str]]:
    """Return the ends of flows by row, beginnings first: viewers know none that goes back in time, or ends at an instant."""
    found: dict[int, list[str]] = {}
    edges, is_shown = trace.edges, trace.end_ns > trace.start_ns
    drawn = is_shown[edges.source] & is_shown[edges.target] & (trace.start_ns[edges.source] < trace.start_ns[edges.target])
    kinds = [EDGE_KINDS[code].value for code in edges.kind[drawn].tolist()]
    for phase, rows in (('"s"', edges.source[drawn]), ('"f","bp":"e"', edges.target[drawn])):
        columns = (rows, plan.place[rows], trace.start_ns[rows], np.flatnonzero(drawn))
        for kind, row, place, at_ns, number in zip(kinds, *(column.tolist() for column in columns), strict=True):
            begin = f',\n{{"ph":{phase},"cat":"{kind}","name":"{kind}","id":{number},{places[place]}'
            found.setdefault(row, []).append(f"{begin}{_microseconds(at_ns - plan.base_ns)}}}")
    return found


def _facts(detail: WorkDetail) -> dict[str, object]:
    """Return what a viewer shows of a detail."""
    facts: dict[str, object] = {"full_name": detail.full_name[:SHOWN_DETAIL]}
    if detail.grid_blocks:
        facts |= {"grid": list(detail.grid), "block": list(detail.block), "registers": detail.registers}
        facts |= {"static_shared_bytes": detail.static_shared_bytes, "dynamic_shared_bytes": detail.dynamic_shared_bytes}
    return facts | ({"graph": detail.graph, "node": detail.node, "label": detail.label} if detail.graph else {})


def _samples(trace: Trace, plan: Plan) -> Iterator[bytes]:
    """Yield the text of every sample of a quantity."""
    samples = trace.counters
    process = {lane: number for number, lane, _ in plan.threads}
    columns = (samples.time_ns.tolist(), samples.lane.tolist(), samples.name.tolist(), samples.value.tolist())
    for time_ns, lane, name, value in zip(*columns, strict=True):
        title = json.dumps(f"{samples.names[name]} of {trace.lanes[lane].name}")
        args = f'{{"value":{value!r}}}' if isfinite(value) else "{}"  # viewers know nothing else
        at = _microseconds(time_ns - plan.base_ns)
        yield f',\n{{"ph":"C","name":{title},"pid":{process[lane] + 1},"args":{args},"ts":{at}}}'.encode()


def _number(value: float) -> str:
    """Return a number as JSON, which knows no others than finite ones."""
    return repr(value) if isfinite(value) else "null"


def _microseconds(time_ns: int) -> str:
    return f"{time_ns // 1_000}.{time_ns % 1_000:03}"


def sublanes(start_ns: Int64Array, end_ns: Int64Array, lane: NDArray[np.integer]) -> Int64Array:
    """Tell which sub-lane of its lane each span gets, so that the spans of one nest or do not overlap."""
    order = nesting_order(start_ns, end_ns, lane)
    # An instant is inside or between others wherever it is.
    order = order[end_ns[order] > start_ns[order]]
    start, end = start_ns[order].tolist(), end_ns[order].tolist()
    bounds = np.flatnonzero(np.diff(lane[order], prepend=-1, append=-2)).tolist()
    found = [sub for first, last in pairwise(bounds) for sub in _assign(start[first:last], end[first:last])]
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


def _assign(start: list[int], end: list[int]) -> list[int]:
    """Return a sub-lane for each span of a lane: the one in which the span around it ends soonest, else an empty one."""
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
