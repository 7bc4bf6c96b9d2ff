"""Read reports of Nsight Systems: the trace that their tables make, with lanes, waits, and what a report does not tell."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from os import PathLike

import numpy as np
import pyarrow as pa

from gpustreamlab.analysis import distinct
from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange._frame import ANNOTATION, Frame, add_launches, card_note, launch_note, not_read, own_name, reading
from gpustreamlab.exchange._nsys_counters import read_gpu_metrics
from gpustreamlab.exchange._nsys_lines import Lines, is_lines
from gpustreamlab.exchange._nsys_report import NO_NUMBER, SAMPLES, Columns, Place, Places, Report, export_hint, open_report
from gpustreamlab.exchange._nsys_tables import MOST_DETAILS, NO_STREAM, TELLING, WHERE, Tables, alike, chosen, or_else
from gpustreamlab.model import NSYS_BACKEND, Lane, Partition, Trace
from gpustreamlab.recorder import DEPENDENCY_COLUMNS, RowFinder
from gpustreamlab.typing import Int64Array, LaneKind

_NO_EVENT = (NO_NUMBER, 0xFFFF_FFFF)
_NO_TIE = (*_NO_EVENT, 0)
_CALL_BITS = 32
_PROCESS_MASK = -(1 << 24)  # What a thread's global number has in common with its process's


def read_nsys(path: str | PathLike[str]) -> Trace:
    """Read a report of Nsight Systems; see `gpustreamlab.load_trace`."""
    with reading(path, "a report of Nsight Systems", export_hint("run.nsys-rep"), sqlite3.Error, pa.ArrowException):
        with nullcontext(Lines(path)) if is_lines(path) else open_report(path) as report:
            frame = _Maker(report, str(path)).frame()
        return frame.trace()


class _Maker:
    """Turns the tables of one report into a frame."""

    def __init__(self, report: Report, name: str) -> None:
        self._report, self._name = report, name
        self._told = Tables(report, name)
        self._places = Places(report)
        self._work, self._calls, self._ranges = self._told.work, self._told.calls, self._told.ranges

    def frame(self) -> Frame:
        """Return what the report tells."""
        work, calls, ranges = self._work, self._calls, self._ranges
        if not any(len(part["start_ns"]) for part in (work, calls, ranges)):
            raise self._nothing()
        owners = [
            distinct(part[name] & _PROCESS_MASK)[0] for part, name in ((work, "process"), (ranges, "thread"), (calls, "thread"))
        ]
        self._processes = np.unique(np.concatenate(owners))
        self._pids = [number >> 24 & 0xFF_FFFF for number in self._processes.tolist()]
        for part, owner in ((calls, calls["thread"]), (work, work["process"])):
            part["correlation"] = self._call_numbers(owner, part["correlation"])
        lanes, partitions = self._stream_lanes()
        threads, thread_lanes = self._thread_lanes(len(lanes))
        counter_lanes, counters = read_gpu_metrics(self._report, len(lanes) + len(thread_lanes))
        call = add_launches(work, calls)
        self._wait_count = 0
        dependencies = self._dependencies()
        self._lacks_waits = self._has_pairs and not (
            len(self._told.is_wait)
            and (call >= 0)[work["kind"] != ANNOTATION].all()
            and self._wait_count == np.count_nonzero(self._told.is_wait)
        )
        started = [told.get("utcEpochNs") for told in self._report.facts("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"])]
        return Frame(
            backend=NSYS_BACKEND,
            source=f"Nsight Systems {self._told.version}".strip(),
            path=self._name,
            told_by="report",
            lanes=[*lanes, *thread_lanes, *counter_lanes],
            threads=threads,
            names=[*self._told.names.known],
            parts=[ranges, calls, work],
            details=[*self._told.details],
            partitions=partitions,
            dependencies=dependencies,
            counters=counters,
            markers=self._told.markers,
            devices={number: self._places.device(number) for number in sorted({lane.device for lane in lanes})},
            idle_device=self._places.device(0),
            epoch_ns=next((given for given in started if type(given) is int and 0 < given < 1 << 62), 0),
            is_in_us=False,
            imported=self._used(),
            missing=self._missing(lanes, call),
            facts={
                "refused_records": self._told.refused_count,
                "recovery_note": self._report.cut,
                "diagnostics": self._told.diagnostics(),
                "profiler_ns": self._told.profiler_ns(),
                "waits_told": not self._lacks_waits,
                "pending_spans": self._told.left_out["ranges that nobody closed"],
                "dropped_markers": self._told.left_out["further marks"],
            },
        )

    def _nothing(self) -> TraceFileError:
        """Say that a report has nothing of CUDA in it, or is none."""
        if self._told.version or "TARGET_INFO_SYSTEM_ENV" in self._report.tables:
            what = "is a report of Nsight Systems in which no CUDA was recorded: no kernels, calls or ranges"
        else:
            what = f"holds no kernels, calls or ranges of Nsight Systems, in {len(self._report.tables):,} tables: another "
            what += "program wrote it"
        return TraceFileError(f"{self._name!r} {what}. Record with: nsys profile --trace=cuda,nvtx python run.py")

    def _thread_lanes(self, first_lane: int) -> tuple[list[str], list[Lane]]:
        """Return the threads and their lanes. Their own names are not read: they may be those of programs."""
        ranges, calls = self._ranges, self._calls
        known, place = distinct(np.concatenate((ranges["thread"], calls["thread"])))
        owners, taken = self._owners(known).tolist(), Counter[str]()
        has_processes = len(set(owners)) > 1
        names = [
            own_name((f"process {self._pids[owner]} " if has_processes else "") + f"thread {number & 0xFF_FFFF}", taken)
            for number, owner in zip(known.tolist(), owners, strict=True)
        ]
        bound = len(ranges["thread"])
        ranges["thread"], calls["thread"] = place[:bound].astype(np.int64), place[bound:].astype(np.int64)
        for part in (ranges, calls):
            part["lane"] = part["thread"] + first_lane
        lanes = [
            Lane(name=f"host: {name}", kind=LaneKind.HOST, process=max(owner, 0))
            for name, owner in zip(names, owners, strict=True)
        ]
        return names, lanes

    def _owners(self, numbers: Int64Array) -> Int64Array:
        """Return the place of the process of each process or thread among all; -1 for one that is not known."""
        return RowFinder(self._processes).rows_of(numbers & _PROCESS_MASK)

    def _call_numbers(self, process: Int64Array, correlation: Int64Array) -> Int64Array:
        """Return numbers of calls that no two processes share; 0 for none. Those of the first stay as they are."""
        owner = self._owners(process)
        is_there = (correlation > 0) & (correlation < 1 << _CALL_BITS) & (owner >= 0)
        return np.where(is_there, correlation + (owner << _CALL_BITS), 0)

    def _stream_lanes(self) -> tuple[list[Lane], list[Partition]]:
        """Return a lane for each stream, named by what tells it from the others, and the partitions; work gets both."""
        work, places = self._work, self._places
        owner = self._owners(work["process"])
        first, sort = alike([owner, *(work[name] for name in WHERE)])
        keys = []
        for code, device, context, green, stream in zip(
            owner[first].tolist(), *(work[name][first].tolist() for name in WHERE), strict=True
        ):
            pid = self._pids[code]
            keys.append((code, Place(pid, device, context, places.green_of(pid, context, green), stream)))
        self._streams = sorted(set(keys))
        number_of = {key: number for number, key in enumerate(self._streams)}
        own = Counter(code for code, place in self._streams if place.stream != NO_STREAM)
        self._has_pairs = any(count > 1 for count in own.values())
        some = [place for _, place in self._streams]
        gpus = [places.gpu_of(place.process, place.device) for place in some]
        devices = {gpu: places.device(gpu) for gpu in gpus}
        has_processes = len({(gpu, place.process) for gpu, place in zip(gpus, some, strict=True)}) > len(devices)
        has_contexts = len({place[:3] for place in some}) > len({place[:2] for place in some})
        partitions: dict[Partition, int] = {}
        lanes, codes, taken = list[Lane](), list[int](), Counter[str]()
        self._unsized = 0
        for (code, place), gpu in zip(self._streams, gpus, strict=True):
            process = f"process {place.process} " if has_processes else ""
            green = f"green context {place.green} " if place.green else ""
            partition = places.partition(place.process, place.green, f"{process}{green}".strip()) if green else None
            self._unsized += bool(green) and partition is None
            where = process + (f"GPU {gpu} " if len(devices) > 1 else "")
            where += f"context {place.context} " if has_contexts and place.context != place.green else ""
            is_null, (priority, is_blocking) = places.is_null(place), places.stream(place)
            lanes.append(
                Lane(
                    name=own_name(_lane_name(place, where + green, is_null=is_null), taken),
                    device=gpu,
                    context=place.green or place.context,
                    stream=place.stream,
                    partition=None if partition is None else partition.name,
                    sm_count=partition.granted_sms if partition else 0 if green else devices[gpu].sm_count,
                    priority=priority,
                    is_blocking=is_blocking,
                    outside=is_null or place.stream == NO_STREAM,
                    process=max(code, 0),
                )
            )
            codes.append(-1 if partition is None else partitions.setdefault(partition, len(partitions)))
        work["lane"] = np.array([number_of[key] for key in keys], np.int64)[sort]
        work["partition"] = np.array([*codes, -1], np.int64)[work["lane"]]
        return lanes, [*partitions]

    def _lanes_at(self, owner: Int64Array, where: Mapping[str, Int64Array]) -> Int64Array:
        """Return the lanes of streams, or -1. These rows may lack the green context, or tell it as their context."""
        # Nor is their device told right: waits say 0, whichever it is. A process numbers its contexts over all of them.
        lanes: dict[tuple[int, int, int], set[tuple[int, int]]] = {}
        for number, (code, place) in enumerate(self._streams):
            for context in {place.context, place.green or place.context}:
                lanes.setdefault((code, context, place.stream), set()).add((place.green, number))
        told = [owner, *(or_else(where[column], 0) for column in (WHERE["context"], WHERE["stream"], WHERE["green"]))]
        first, sort = alike(told)
        found = np.full(len(first), -1, np.int64)
        for at, (code, context, stream, green) in enumerate(zip(*(column[first].tolist() for column in told), strict=True)):
            some = lanes.get((code, context, stream), set())
            some = {one for one in some if one[0] == green} if len(some) > 1 else some
            if len(some) == 1:
                found[at] = next(iter(some))[1]
        return found[sort]

    def _dependencies(self) -> Columns:
        """Return which lane waited for which, of waits of which the record is told, one of each call."""
        # What sort a row is these tables tell wrongly, in several versions of nsys: here their calls say it.
        wanted = ("globalPid", "correlationId", *WHERE.values(), "eventId", "eventSyncId")
        waits, records = (self._report.numbers(table, wanted) for table in TELLING)
        self._has_records = len(records["eventId"]) > 0
        for rows in (waits, records):
            rows["call"] = self._call_numbers(rows["globalPid"], rows["correlationId"])
        wait_calls = np.unique(self._calls["correlation"][self._told.is_wait])
        waits = chosen(waits, np.isin(waits["call"], wait_calls))
        waits, records = (chosen(rows, (rows["call"] > 0) & ~np.isin(rows["eventId"], _NO_EVENT)) for rows in (waits, records))
        found = _last_records(waits, records)
        waits = chosen(waits, found >= 0)
        records = {name: values[found[found >= 0]] for name, values in records.items()}
        self._wait_count = len(np.unique(waits["call"]))
        owner = self._owners(waits["globalPid"])
        source, target = (self._lanes_at(owner, rows) for rows in (records, waits))
        is_known = (source >= 0) & (target >= 0)
        columns = (source, records["call"], target, waits["call"])
        return {name: column[is_known] for name, column in zip(DEPENDENCY_COLUMNS, columns, strict=True)}

    def _used(self) -> str:
        """Say how many rows were read, used, left out and refused."""
        work, calls, ranges = (len(part["start_ns"]) for part in (self._work, self._calls, self._ranges))
        used = f"{work:,} kernels, copies and fills, {calls:,} calls, {ranges:,} ranges"
        used += f", {len(self._told.markers):,} marks" if self._told.markers else ""
        used += f", {self._wait_count:,} waits of streams" if self._wait_count else ""
        used += f", {samples:,} samples of counters" if (samples := self._report.count(SAMPLES)) else ""
        said_count = sum(self._report.count(table) for table in TELLING) - self._wait_count + self._told.domain_count
        used += f", {said_count:,} that say the same again or name domains" if said_count else ""
        refused = (
            f"; {self._told.refused_count:,} refused, as their times or devices make no sense"
            if self._told.refused_count
            else ""
        )
        return f"{used} of {self._told.row_count:,} rows{not_read(self._told.left_out)}{refused}"

    def _missing(self, lanes: Sequence[Lane], call: Int64Array) -> list[str]:
        """Say what the report does not tell."""
        said = launch_note(call[self._work["kind"] != ANNOTATION], why=": the report was cut, or begins in the middle")
        cards = sorted({lane.device for lane in lanes if not self._places.device(lane.device).sm_count})
        if cards:
            said.append(card_note(", ".join(f"GPU {card}" for card in cards)))
        if self._has_pairs and any(lane.is_blocking is None and lane.stream != NO_STREAM for lane in lanes):
            said.append(
                "Of some streams the file does not tell whether they and the legacy default stream wait for each other."
            )
        if self._lacks_waits:
            wait_calls = int(np.count_nonzero(self._told.is_wait))
            told = f"{self._wait_count:,} of {wait_calls:,} waits of streams for events are told"
            told = told if wait_calls else "Whether streams waited for events is not told"
            said.append(f"{told}{'' if self._has_records else '; nsys tells it with --trace=cuda --cuda-event-trace=true'}.")
        if self._told.whole_graph_count:
            said.append(
                f"{self._told.whole_graph_count:,} launches of graphs are one span each, and what ran in them is not "
                "told; nsys tells it with --cuda-graph-trace=node."
            )
        if self._unsized:
            said.append(
                f"How many SMs {self._unsized:,} streams in green contexts may use is not told; nsys 2026.1 or later does it."
            )
        if undetailed := int(np.count_nonzero(self._work["detail"] < 0)):
            said.append(f"{undetailed:,} launches have no grid: more than {MOST_DETAILS:,} sorts of launches differ.")
        return said


def _last_records(waits: Columns, records: Columns) -> Int64Array:
    """Return for each wait the last record of its event before it, or -1: that is what CUDA lets a stream wait for."""
    # An event's number is one of a handle, which is used again. Newer versions also tell a number that ties both together.
    found = _match(waits, records, ("globalPid", "eventId", "eventSyncId"))
    untied = np.flatnonzero(np.isin(waits["eventSyncId"], _NO_TIE))
    found[untied] = _match({name: values[untied] for name, values in waits.items()}, records, ("globalPid", "eventId"))
    return found


def _match(waits: Columns, records: Columns, columns: Sequence[str]) -> Int64Array:
    """Return for each wait the last record before it that is equal in some columns, or -1."""
    import pandas as pd  # slow to load

    wanted, known = (
        pd.DataFrame({name: rows[name] for name in ("call", *columns)}).rename_axis("row").reset_index().sort_values("call")
        for rows in (waits, records)
    )
    pairs = pd.merge_asof(wanted, known, on="call", by=[*columns], suffixes=("", "_before"), allow_exact_matches=False)
    return np.array(pairs.sort_values("row")["row_before"].fillna(-1), np.int64)


def _lane_name(place: Place, where: str, *, is_null: bool) -> str:
    if place.stream == NO_STREAM:
        return f"{where}managed memory"
    if is_null:  # reports look for the legacy stream by how its name begins
        return f"default stream {place.stream}" + (f" of {where.strip()}" if where else "")
    return f"{where}stream {place.stream}"
