"""Read what ``gpustreamlab record`` wrote of a process, also while that goes on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np

from gpustreamlab.analysis import distinct
from gpustreamlab.backends import EVERY_STREAM, THE_HOST
from gpustreamlab.backends.cuda.cupti._stored import Stored, StoredReader
from gpustreamlab.errors import TraceError, TraceFileError
from gpustreamlab.exchange._frame import ANNOTATION, HOST, TIMES, Columns, Frame, add_launches, own_name, reading
from gpustreamlab.model import Device, Lane, Partition, Trace
from gpustreamlab.recorder import (
    ACCESS_COLUMNS,
    DEPENDENCY_COLUMNS,
    FIRST_WORK_NUMBER,
    HOST_WAITS,
    KEPT_LAUNCHES,
    SPAN_COLUMNS,
    Chunk,
    Tables,
    cut_text,
)
from gpustreamlab.typing import Int64Array, LaneKind

_GARBAGE = (ValueError, KeyError, IndexError, OverflowError)  # What damaged bytes raise
_NUMBERS = re.compile(r"(-\d+)+$")  # Of processes, behind a program's name
_WORK = ("start_ns", "end_ns", "kind", "name", "detail", "correlation", "size_bytes")
_LAUNCHING = ("correlation", "start_ns", "thread")  # What work asks of the calls that launched it
_CALLS = ("start_ns", "end_ns", "name", "correlation", "size_bytes", "thread")


def read_record(path: str | PathLike[str]) -> Trace:
    """Read what ``gpustreamlab record`` has written so far; see `gpustreamlab.load_trace`."""
    with _reading(path), closing(StoredFrames(path)) as frames:
        frame = frames.read()
    if not any(len(part["start_ns"]) for part in frame.parts):
        notes = "".join(f" {one}" for one in frame.missing)
        raise TraceFileError(f"{str(path)!r} holds nothing yet: no kernel, copy or call.{notes}")
    with _reading(path):
        return frame.trace()


def _reading(path: object) -> AbstractContextManager[None]:
    return reading(path, "a recording", "Record again: gpustreamlab record -- COMMAND", TraceError, *_GARBAGE)


class StoredFrames:
    """What ``gpustreamlab record`` writes, frame by frame: names, threads, details and streams keep their numbers.

    Parameters
    ----------
    path
        The file.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path, self._reader = Path(path), StoredReader(Path(path))
        self._names: dict[str, int] = {}
        self._threads: dict[int, int] = {}
        self._calls: Columns = {}  # The newest, for work that ends later
        self._lanes: dict[object, int] = {}
        self._shown: list[Lane] = []
        self._device: Device | None = None
        self._zero_ns = self._end_ns = self._row_count = self._name_count = self._detail_count = 0

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._reader.close()

    def read_chunk(self) -> Chunk | None:
        """Return what came since the last time as recorders tell it, from the first time on; None before anything has come.

        Raises
        ------
        TraceFileError
            If the file cannot be read.
        """
        frame = self.read()
        columns = {name: column.astype(np.int64) for name, column in frame.joined()[0].items()}
        if not (self._row_count or len(columns["start_ns"])):
            return None
        self._zero_ns = self._zero_ns or int(columns["start_ns"].min())
        for name in TIMES:
            columns[name] -= self._zero_ns
        self._end_ns = int(columns["end_ns"].max(initial=self._end_ns))
        meta = frame.described(columns, is_in_us=False, epoch_ns=self._zero_ns)
        if self._device is None and (columns["lane"] < len(frame.lanes) - len(frame.threads)).any():
            self._device = meta.device
        lane = self._lane_codes(frame.lanes)
        columns["lane"] = lane[columns["lane"]]
        columns["number"] += FIRST_WORK_NUMBER + self._row_count
        waits = [frame.dependencies[name] for name in DEPENDENCY_COLUMNS]
        for place in (0, 2):  # the lanes
            waits[place] = np.where(waits[place] >= 0, lane[np.maximum(waits[place], 0)], waits[place])
        told = Chunk(
            rows=np.stack([columns[name] for name in SPAN_COLUMNS]),
            dependencies=np.stack(waits),
            accesses=frame.accesses,
            names=frame.names[self._name_count :],
            details=frame.details[self._detail_count :],
            tables=Tables(
                (*self._shown,),
                tuple(frame.threads),
                tuple(frame.partitions),
                (),
                (),
                replace(meta, device=self._device or meta.device, capture_windows=((0, self._end_ns),)),
            ),
            lost=meta.dropped_spans,
            is_capturing=bool(meta.recovery_note),
        )
        self._name_count, self._detail_count = len(frame.names), len(frame.details)
        self._row_count += told.row_count
        return told

    def _lane_codes(self, lanes: Sequence[Lane]) -> Int64Array:
        """Return the number that each lane keeps, though others come in front of it, and names may be known better later."""
        codes = np.empty(len(lanes), np.int64)
        for place, lane in enumerate(lanes):
            key = lane.name if lane.kind is LaneKind.HOST else (lane.device, lane.context, lane.stream)
            code = codes[place] = self._lanes.setdefault(key, len(self._shown))
            self._shown[code : code + 1] = [lane]
        return codes

    def read(self) -> Frame:
        """Return what came since the last time.

        Raises
        ------
        TraceFileError
            If the file cannot be read.
        """
        with _reading(self._path):
            return self._frame(self._reader.read())

    def _frame(self, stored: Stored) -> Frame:
        told = stored.activities
        # Two names may be one once they are cut.
        code = np.array([self._names.setdefault(cut_text(name), len(self._names)) for name in told.names], np.int64)
        work, calls = (
            {name: getattr(batch, name) for name in wanted} for batch, wanted in ((told.work, _WORK), (told.calls, _CALLS))
        )
        ranges: Columns = {name: getattr(told.annotations, name) for name in ("start_ns", "end_ns", "name", "thread")}
        lanes, partitions = _stream_lanes(stored, work)
        for part, kind in ((calls, HOST), (ranges, ANNOTATION)):
            known, place = distinct(part["thread"])
            numbers = [self._threads.setdefault(ident, len(self._threads)) for ident in known.tolist()]
            part["thread"] = np.array(numbers, np.int64)[place]
            part["lane"] = part["thread"] + len(lanes)
            part["kind"] = np.full(len(part["thread"]), kind)
        for part in (work, calls, ranges):
            part["name"] = code[part["name"]]
        self._calls = {
            name: np.concatenate((self._calls.get(name, calls[name][:0])[-KEPT_LAUNCHES:], calls[name])) for name in _LAUNCHING
        }
        add_launches(work, self._calls)
        threads = [f"thread {number + 1}" for number in range(len(self._threads))]
        note = "" if stored.has_ended else "the process was killed, or goes on: what it did in the last second may be missing"
        return Frame(
            backend="cuda",
            source=stored.source,
            path=str(self._path),
            told_by="host, the wall clock",
            lanes=[*lanes, *(Lane(name=f"host: {name}", kind=LaneKind.HOST) for name in threads)],
            threads=threads,
            names=[*self._names],
            parts=[ranges, calls, work],
            details=told.details,
            partitions=partitions,
            dependencies=_dependencies(stored),
            accesses=np.stack([getattr(told.accesses, name) for name in ACCESS_COLUMNS]),
            devices={
                number: device for number, device in stored.devices.items() if number in {*stored.context_devices.values()}
            },
            idle_device=next(iter(stored.devices.values()), None),
            least_step_ns=max(1, stored.clock_error_ns),
            is_in_us=False,
            missing=stored.notes,
            facts={
                "title": _NUMBERS.sub("", self._path.stem),
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
