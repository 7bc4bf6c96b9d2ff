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
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import IO

import numpy as np

from gpustreamlab._util.shell import steps
from gpustreamlab.exchange._chrome_text import FIRST_THREAD, Plan, SpanText, sample_text
from gpustreamlab.exchange._formats import require_suffix
from gpustreamlab.exchange._sublanes import sublanes
from gpustreamlab.model import Trace, parquet_bytes, write_file_whole
from gpustreamlab.typing import LaneKind

_BLOCK_ROWS = 1 << 16
_PACKING_LEVEL = 3
"""Of gzip. Higher levels take several times as long, and save a tenth."""


def write_chrome(trace: Trace, path: str | PathLike[str]) -> None:
    """Write a trace as JSON in Chrome's trace event format; Perfetto, chrome://tracing and `read_chrome` read it.

    Spans that overlap in their lane are split over several threads, so a viewer loses none. Lanes are grouped by device and by
    partition, in their order. Viewers draw no waits and launches that go back in time or end at an instant. The trace itself
    stands in front, as a Parquet file in letters of base64 under the key ``gpustreamlab``: read back, nothing is lost.

    Parameters
    ----------
    trace
        What to write.
    path
        Where; the suffix is ``.json`` or ``.json.gz``.

    Raises
    ------
    OptionError
        If the suffix is another one.
    TraceFileError
        If the file cannot be written; a file that was there before is then left as it was.

    Examples
    --------
    >>> trace = Trace.from_columns(start_ns=[0, 50], end_ns=[100, 250], stream=["copy", "compute"])
    >>> path = getfixture("tmp_path") / "run.json"
    >>> write_chrome(trace, path)
    >>> [row["ts"] for row in json.loads(path.read_text())["traceEvents"] if row["ph"] == "X"]
    [0.0, 0.05]
    """
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
