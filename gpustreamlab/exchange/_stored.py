"""Read what ``gpustreamlab record`` wrote of a process, also while that goes on."""

from __future__ import annotations

import re
from collections import Counter
from os import PathLike
from pathlib import Path

import numpy as np

from gpustreamlab.analysis import distinct
from gpustreamlab.backends import EVERY_STREAM, THE_HOST
from gpustreamlab.backends.cuda.cupti._stored import Stored, read_stored
from gpustreamlab.errors import TraceError, TraceFileError
from gpustreamlab.exchange._frame import ANNOTATION, HOST, Columns, Frame, add_launches, own_name, reading
from gpustreamlab.model import Lane, Partition, Trace
from gpustreamlab.recorder import DEPENDENCY_COLUMNS, HOST_WAITS, cut_text
from gpustreamlab.typing import Int64Array, LaneKind

_GARBAGE = (ValueError, KeyError, IndexError, OverflowError)  # What damaged bytes raise
_NUMBERS = re.compile(r"(-\d+)+$")  # Of processes, behind a program's name
_WORK = ("start_ns", "end_ns", "kind", "name", "detail", "correlation", "size_bytes")
_CALLS = ("start_ns", "end_ns", "name", "correlation", "size_bytes", "thread")


def read_record(path: str | PathLike[str]) -> Trace:
    """Read what ``gpustreamlab record`` has written so far; see `gpustreamlab.load_trace`."""
    with reading(path, "a recording", "Record again: gpustreamlab record -- COMMAND", TraceError, *_GARBAGE):
        stored = read_stored(Path(path))
        told = stored.activities
        if not (len(told.work) or len(told.calls) or len(told.annotations)):
            notes = "".join(f" {one}" for one in stored.notes)
            raise TraceFileError(f"{str(path)!r} holds nothing yet: no kernel, copy or call.{notes}")
        return _frame(stored, str(path)).trace()


def _frame(stored: Stored, path: str) -> Frame:
    told = stored.activities
    names = dict[str, int]()  # two may be one once they are cut
    code = np.array([names.setdefault(cut_text(name), len(names)) for name in told.names], np.int64)
    work, calls = (
        {name: getattr(batch, name) for name in wanted} for batch, wanted in ((told.work, _WORK), (told.calls, _CALLS))
    )
    ranges: Columns = {name: getattr(told.annotations, name) for name in ("start_ns", "end_ns", "name", "thread")}
    lanes, partitions = _stream_lanes(stored, work)
    known, place = distinct(np.concatenate((calls["thread"], ranges["thread"])))
    calls["thread"], ranges["thread"] = place[: len(told.calls)], place[len(told.calls) :]
    for part, kind in ((calls, HOST), (ranges, ANNOTATION)):
        part["lane"] = part["thread"] + len(lanes)
        part["kind"] = np.full(len(part["thread"]), kind)
    for part in (work, calls, ranges):
        part["name"] = code[part["name"]]
    add_launches(work, calls)
    threads = [f"thread {number + 1}" for number in range(len(known))]
    note = "" if stored.has_ended else "the process was killed, or goes on: what it did in the last second may be missing"
    return Frame(
        backend="cuda",
        source=stored.source,
        path=path,
        told_by="host, the wall clock",
        lanes=[*lanes, *(Lane(name=f"host: {name}", kind=LaneKind.HOST) for name in threads)],
        threads=threads,
        names=[*names],
        parts=[ranges, calls, work],
        details=told.details,
        partitions=partitions,
        dependencies=_dependencies(stored),
        devices={number: device for number, device in stored.devices.items() if number in {*stored.context_devices.values()}},
        idle_device=next(iter(stored.devices.values()), None),
        least_step_ns=max(1, stored.clock_error_ns),
        is_in_us=False,
        missing=stored.notes,
        facts={
            "title": _NUMBERS.sub("", Path(path).stem),
            "recovery_note": note,
            "dropped_spans": stored.dropped_count,
            "dropped_records": stored.dropped_count,
        },
    )


def _stream_lanes(stored: Stored, work: Columns) -> tuple[list[Lane], list[Partition]]:
    """Return a lane for each stream, in the order of `Stored.streams`, and the partitions; work gets both."""
    batch, several = stored.activities.work, len({one.device for one in stored.streams.values()}) > 1
    lanes, codes, taken = list[Lane](), list[int](), Counter[str]()
    partitions = dict[Partition, int]()
    for (context, stream), facts in stored.streams.items():
        device = stored.devices.get(facts.device)
        is_part = device is not None and 0 < facts.sm_count < device.sm_count
        name = f"green context {context}"
        partition = Partition(name=name, requested_sms=facts.sm_count, granted_sms=facts.sm_count) if is_part else None
        codes.append(-1 if partition is None else partitions.setdefault(partition, len(partitions)))
        lanes.append(
            Lane(
                name=own_name(f"GPU {facts.device} {facts.name}" if several else facts.name, taken),
                device=facts.device,
                context=context,
                stream=stream,
                partition=None if partition is None else partition.name,
                sm_count=facts.sm_count,
                priority=facts.priority,
                is_blocking=facts.is_blocking,
                outside=True,
            )
        )
    work["lane"] = _lanes_at(stored, batch.context, batch.stream)
    work["partition"] = np.array([*codes, -1], np.int64)[work["lane"]]
    return lanes, [*partitions]


def _lanes_at(stored: Stored, context: Int64Array, stream: Int64Array) -> Int64Array:
    """Return the lanes of streams; -1 of those without work."""
    lane_of = {key: number for number, key in enumerate(stored.streams)}
    keys, place = distinct(context << 32 | stream)
    return np.array([lane_of.get((key >> 32, key & 0xFFFF_FFFF), -1) for key in keys.tolist()], np.int64)[place]


def _dependencies(stored: Stored) -> Columns:
    """Return which lane, or the host, waited for which, as sessions have it."""
    told = stored.activities.dependencies
    source = _lanes_at(stored, told.source_context, told.source_stream & 0xFFFF_FFFF)
    target = _lanes_at(stored, told.target_context & 0xFFFF_FFFF, told.target_stream & 0xFFFF_FFFF)
    devices = np.array([stored.context_devices.get(context, 0) for context in told.source_context.tolist()], np.int64)
    by_host, every = told.target_stream == THE_HOST, told.source_stream == EVERY_STREAM
    is_known = (every | (source >= 0)) & (by_host | (target >= 0))
    columns = (np.where(every, -1 - devices, source), told.record, np.where(by_host, HOST_WAITS, target), told.wait)
    return {name: column[is_known] for name, column in zip(DEPENDENCY_COLUMNS, columns, strict=True)}
