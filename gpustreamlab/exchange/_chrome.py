"""Read JSON in Chrome's trace event format: what JAX and XLA, VizTracer and many others write, and `write_chrome`.

What is a stream of a GPU is told by names as XLA gives them: a process ``/device:GPU:0`` with threads ``Stream #17(Kernel)``.
All other threads are threads of the host. Times are decimals of microseconds, and read as such.

Source: "Trace Event Format" (Chromium), and ``tsl/profiler/convert/trace_events_to_json.cc`` (OpenXLA).
"""

from __future__ import annotations

import re
from collections import Counter
from os import PathLike
from pathlib import Path

import numpy as np

from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange._chrome_dialects import XLA
from gpustreamlab.exchange._chrome_events import NO_NUMBERS, Event, Events, Shape, Top
from gpustreamlab.exchange._frame import (
    ANNOTATION,
    HOST,
    MARKER,
    Frame,
    add_launches,
    launch_note,
    not_read,
    own_name,
    unknown_device,
)
from gpustreamlab.exchange._json_events import EventFile, own_data, whole_number
from gpustreamlab.exchange._rows import called, kind_of
from gpustreamlab.model import (
    CHROME_BACKEND,
    UNNAMED_SOURCE,
    Counters,
    Device,
    Lane,
    Trace,
    WorkDetail,
    parquet_trace,
)
from gpustreamlab.recorder import Intervals, cut_text, find_innermost
from gpustreamlab.typing import BoolArray, Int64Array, LaneKind

_GRID = re.compile(r"\bgrid:(\d+),(\d+),(\d+)")
_BLOCK = re.compile(r"\bblock:(\d+),(\d+),(\d+)")
_CALL = re.compile(r"(?:hip|cuda|cu|ze|cl|acl|aclrt|aclnn)[A-Z]\w*$|hsa_\w+$")  # Names of calls of runtimes and drivers
_NUMBER = re.compile(r"\b(regs|static_shared|dynamic_shared|size|num_bytes):(\d{1,18})\b")


def read_chrome(path: str | PathLike[str]) -> Trace:
    """Read JSON in Chrome's trace event format, packed by gzip or not."""
    try:
        data = own_data(Path(path))
    except TraceFileError:
        raise
    except OSError:  # told where events are read
        data = None
    except ValueError as error:
        raise TraceFileError(
            f"{str(path)!r} was written by gpustreamlab, and is damaged or was cut off: {error}. Copy it again."
        ) from error
    if data is not None:
        return parquet_trace(data, repr(str(path)))
    file, events = EventFile(path, Event, Top), Events()
    for block in file.blocks():
        events.take(block)
    return _Maker(file, events).trace()


class _Maker:
    """Turns the events of one file into a trace."""

    def __init__(self, file: EventFile[Event, Top], events: Events) -> None:
        self._file, self._told = file, events
        self._event_count = file.event_count + file.damaged_count
        self._slices = events.close()
        if not (len(self._slices["start_ns"]) or len(events.samples[0]) or events.markers):
            raise TraceFileError(
                f"{file.path!r} holds no slices, instants or counters in {self._event_count:,} events: nothing was "
                f"recorded, or it is another tool's{f', or {file.cut}' if file.cut else ''}."
            )

    def trace(self) -> Trace:
        """Return the trace."""
        told, tracks = self._told, self._told.tracks
        is_gpu = self._drop_memory()
        slices = self._slices
        track = slices["track"]
        is_summary = np.array([*map(tracks.is_summary, tracks.known), False], bool)[track]
        slices["kind"] = np.where(is_summary & (slices["kind"] == HOST), ANNOTATION, slices["kind"])
        if self._told.flows and tracks.streams and tracks.dialect is not XLA:  # which tells calls by their correlation
            is_call = np.array([bool(_CALL.match(shape.name)) for shape in told.shapes], bool)[slices["shape"]]
            slices["kind"][is_call & ~is_gpu & ~is_summary & (slices["kind"] == ANNOTATION)] = HOST
        lanes, threads, lane, thread = tracks.lanes(np.unique(track))
        flows = np.concatenate((self._flow_pairs(), self._awaited(is_gpu)))
        slices["correlation"][slices["kind"] == ANNOTATION] = 0  # events were told by it
        names, details = self._describe(is_gpu)
        slices |= {"lane": lane[track], "thread": thread[track]}
        call = self._launches(is_gpu)
        call[np.isin(np.flatnonzero(is_gpu), flows[:, 1])] = 0  # told by a flow
        counters = self._counters(lanes)
        told.left_out["damaged events"] += self._file.damaged_count
        devices = [device for device, _ in tracks.streams.values()]
        work_count = int(is_gpu.sum())
        idle = unknown_device(min(devices, default=0)) if work_count else Device(name="unknown device", ordinal=0, sm_count=0)
        base_ns, viztracer = self._file.facts.base_ns, self._file.facts.viztracer
        told_ns = viztracer.get("baseTimeNanoseconds") if isinstance(viztracer, dict) else 0
        return Frame(
            backend=CHROME_BACKEND,
            source=tracks.dialect.source if work_count else UNNAMED_SOURCE,
            path=self._file.path,
            lanes=lanes,
            threads=threads,
            names=names,
            parts=[slices],
            details=details,
            flows=flows,
            counters=counters,
            markers=sorted(told.markers, key=lambda one: one.time_ns),
            idle_device=idle,
            base_ns=whole_number(base_ns) or whole_number(told_ns),
            least_step_ns=1,
            imported=self._used(work_count, len(is_gpu)),
            missing=self._missing(call),
            facts={
                "waits_told": len(tracks.streams) < 2 or self._waits_told,
                "recovery_note": f"not all of the file was read: {self._file.cut}" if self._file.cut else "",
            },
        ).trace()

    def _drop_memory(self) -> BoolArray:
        """Leave out what lasts as long as memory was allocated; return which of the rest is work of a GPU."""
        slices, tracks = self._slices, self._told.tracks
        is_gpu: BoolArray = np.array([*(track in tracks.streams for track in tracks.known), False], bool)[slices["track"]]
        is_gpu &= slices["kind"] != MARKER
        if waits := tracks.dialect.waits:  # of a stream, and no work
            is_gpu &= ~np.array([bool(waits.match(shape.name)) for shape in self._told.shapes] or [False])[slices["shape"]]
        is_memory = is_gpu & np.array([shape.is_memory for shape in self._told.shapes] or [False], bool)[slices["shape"]]
        self._told.left_out["spans of allocated memory on streams"] += int(is_memory.sum())
        self._slices = {name: values[~is_memory] for name, values in slices.items()}
        kept: BoolArray = is_gpu[~is_memory]
        return kept

    def _describe(self, is_gpu: BoolArray) -> tuple[list[str], tuple[WorkDetail, ...]]:
        """Give slices their names, and work its kind, detail and bytes; return all names and details."""
        slices, shapes = self._slices, [*self._told.shapes]
        names: dict[str, int] = {}
        plain = [names.setdefault(cut_text(shape.name), len(names)) for shape in shapes]
        works = [work_of(shape) for shape in shapes]
        named = [called(kind, shape.name) for shape, (kind, *_) in zip(shapes, works, strict=True)]
        short = [names.setdefault(cut_text(name), len(names)) for name in named]
        details = {detail: code for code, detail in enumerate(dict.fromkeys(detail for _, detail, _ in works))}
        rows = [(kind, details[detail], size) for kind, detail, size in works]
        kind, detail, size = np.array(rows or [(0, -1, 0)], np.int64)[slices["shape"]].T
        code = slices["shape"]
        slices["name"] = np.where(is_gpu, np.array(short or [0])[code], np.array(plain or [0])[code])
        slices["kind"] = np.where(is_gpu, kind, slices["kind"])
        slices["detail"] = np.where(is_gpu, detail, -1)
        slices["size_bytes"] = np.where(is_gpu, size, 0)
        return [*names], tuple(details)

    def _launches(self, is_gpu: BoolArray) -> Int64Array:
        """Give work the thread and the time of its call; return the call of each, or -1."""
        slices = self._slices
        calls, work = ({name: values[rows] for name, values in slices.items()} for rows in (slices["kind"] == HOST, is_gpu))
        call = add_launches(work, calls)
        slices["queued_ns"] = slices["start_ns"].copy()
        slices["queued_ns"][is_gpu] = work["queued_ns"]
        slices["thread"][is_gpu] = work["thread"]
        return call

    def _flow_pairs(self) -> Int64Array:
        """Return rows of slices of which the first leads to the second, shape (n, 2); count ends that lead nowhere."""
        slices = self._slices
        flow, phase, at_ns, at_track, is_next = np.frombuffer(self._told.flows, np.int64).reshape(-1, 5).T
        rows = np.flatnonzero(slices["kind"] != MARKER)
        track, start_ns, end_ns = (slices[name][rows] for name in ("track", "start_ns", "end_ns"))
        bound = slices_at(track, start_ns, end_ns, at_track, at_ns, is_next == 1)
        bound = np.append(rows, -1)[bound]
        order = np.lexsort((phase, at_ns))
        last: dict[int, int] = {}
        pairs, loose = [], 0
        ends = (values[order].tolist() for values in (flow, phase, bound))
        for number, part, row in zip(*ends, strict=True):
            source = last.pop(number, -1) if part == 2 else last.get(number, -1)
            if part and (source < 0 or row < 0):
                loose += 1
            elif part and source != row:
                pairs.append((source, row))
            if part < 2:
                last[number] = row
        self._told.left_out["ends of flows that lead from or to no slice"] += loose
        return np.array(pairs, np.int64).reshape(-1, 2)

    def _awaited(self, is_gpu: BoolArray) -> Int64Array:
        """Return rows of work of which the second's stream waited for an event behind the first; shape (n, 2).

        A wait is for the last record of its event that ended before it did.
        """
        slices, sign = self._slices, self._told.tracks.dialect.waits
        signs = [sign and sign.match(shape.name) for shape in self._told.shapes]
        codes = [("WAIT", "RECORD").index(found[1].upper()) if found else -1 for found in signs]
        code = np.where(is_gpu, -1, np.array(codes or [-1], np.int8)[slices["shape"]])
        is_wait, is_told = code == 0, slices["correlation"] > 0
        wait, record = np.flatnonzero(is_wait & is_told), np.flatnonzero((code == 1) & is_told)
        self._has_waits, self._waits_told = bool(is_wait.any()), bool(is_wait.any()) and len(wait) == int(is_wait.sum())
        both = np.concatenate((record, wait))
        event, when = (np.unique(slices[name][both], return_inverse=True)[1].reshape(-1) for name in ("correlation", "end_ns"))
        key = event * (len(both) + 1) + when
        order = np.argsort(key[: len(record)], kind="stable")
        place = np.searchsorted(key[order], key[len(record) :], side="right") - 1
        found = np.append(record[order], -1)[place]
        is_known = (found >= 0) & (slices["correlation"][found] == slices["correlation"][wait])  # else of another event
        wait, record = wait[is_known], found[is_known]
        track, start_ns = slices["track"], slices["start_ns"]
        before = _beside(track, start_ns, is_gpu, track[record], start_ns[record], is_next=False)
        behind = _beside(track, start_ns, is_gpu, track[wait], slices["end_ns"][wait], is_next=True)
        is_known = (before >= 0) & (behind >= 0) & (track[record] != track[wait])
        pairs: Int64Array = np.stack((before, behind), axis=1)[is_known]
        return pairs

    def _counters(self, lanes: list[Lane]) -> Counters:
        """Return the samples; each process that has some gets a lane."""
        quantities, taken = self._told.quantities, Counter(one.name for one in lanes)
        names = {name: code for code, name in enumerate(dict.fromkeys(name for _, name in quantities))}
        lane_of: dict[int, int] = {}
        for process in dict.fromkeys(process for process, _ in quantities):
            lane_of[process] = len(lanes)
            name = own_name(f"host: counters of {self._told.tracks.process_name(process)}", taken)
            lanes.append(Lane(name=name, kind=LaneKind.HOST))
        table = np.array([(lane_of[process], names[name]) for process, name in quantities] or [(0, 0)], np.int64)
        time_ns, code = (np.array(values, np.int64) for values in self._told.samples[:2])
        order = np.argsort(time_ns, kind="stable")
        lane, name_code = table[code[order]].T
        value = np.array(self._told.samples[2], np.float64)[order]
        return Counters(time_ns=time_ns[order], lane=lane, name=name_code, value=value, names=tuple(names))

    def _used(self, work_count: int, count: int) -> str:
        """Say how many events were read, used, left out and refused."""
        told = self._told
        used = f"{count:,} spans ({work_count:,} of GPUs), {len(told.samples[0]):,} samples, {len(told.markers):,} markers"
        used_count = self._event_count - sum(number for what, number in told.left_out.items() if what != NO_NUMBERS)
        return f"{used} from {used_count:,} of {self._event_count:,} events{not_read(told.left_out)}"

    def _missing(self, call: Int64Array) -> list[str]:
        """Say what the file does not tell."""
        if not len(call):
            return [
                "No thread of the file is a stream of a GPU as JAX and XLA name them (process '/device:GPU:0', thread "
                "'Stream #7(Kernel)'), or another known tool: all are shown as threads of the host."
            ]
        facts = ["The file has no properties of GPUs: when kernels fill their SMs is not known.", *launch_note(call)]
        dialect = self._told.tracks.dialect
        if dialect is not XLA:
            facts += [dialect.hint] if dialect.hint else []
        elif not any(shape.kernel for shape in self._told.shapes):
            facts.append("The file does not tell grids and blocks of kernels; JAX's .xplane.pb beside it does.")
        if len(self._told.tracks.streams) > 1 and not self._waits_told:
            what = "For which events streams waited" if self._has_waits else "Whether streams waited for events"
            facts.append(f"{what} is not told.")
        return facts


def _beside(
    track: Int64Array, start_ns: Int64Array, is_work: BoolArray, at_track: Int64Array, at_ns: Int64Array, *, is_next: bool
) -> Int64Array:
    """Return the last work of each track that began before a moment, or the first that began from then on; or -1."""
    found = np.full(len(at_ns), -1, np.int64)
    for one in np.unique(at_track).tolist():
        asked, own = np.flatnonzero(at_track == one), np.flatnonzero(is_work & (track == one))
        place = np.searchsorted(start_ns[own], at_ns[asked]) - (not is_next)
        is_in = (place >= 0) & (place < len(own))
        found[asked[is_in]] = own[place[is_in]]
    return found


def work_of(shape: Shape) -> tuple[int, WorkDetail, int]:
    """Return what work on a stream is, how it was launched, and its bytes."""
    numbers = {key: int(value) for text in (shape.kernel, shape.copy, shape.fill) for key, value in _NUMBER.findall(text)}
    kind = kind_of("memcpy" if shape.copy else "memset" if shape.fill else shape.name)
    detail = WorkDetail(
        full_name=shape.name,
        grid=_three(_GRID.search(shape.kernel)),
        block=_three(_BLOCK.search(shape.kernel)),
        registers=numbers.get("regs", 0),
        static_shared_bytes=numbers.get("static_shared", 0),
        dynamic_shared_bytes=numbers.get("dynamic_shared", 0),
    )
    return kind, detail, numbers.get("size", numbers.get("num_bytes", 0))


def _three(found: re.Match[str] | None) -> tuple[int, int, int]:
    sizes = tuple(int(size) for size in found.groups()) if found else (0, 0, 0)
    return sizes if max(sizes) < 1 << 32 else (0, 0, 0)  # type: ignore[return-value] # it has three groups


def slices_at(
    track: Int64Array, start_ns: Int64Array, end_ns: Int64Array, at_track: Int64Array, at_ns: Int64Array, is_next: BoolArray
) -> Int64Array:
    """Return which slice each moment of a track is bound to, or -1; slices come in the order of their starts."""
    found = np.full(len(at_ns), -1, np.int64)
    rows = np.flatnonzero(np.isin(track, np.unique(at_track)))
    if not len(rows):
        return found
    # An instant lasts a moment here. What ended just then counts where nothing else is around.
    slices = Intervals(track[rows], start_ns[rows], np.maximum(end_ns, start_ns + 1)[rows], rows)
    around, before = (find_innermost(slices, at_track, at_ns - ago_ns) for ago_ns in (0, 1))
    around = np.where((around < 0) & (before >= 0) & (end_ns[rows[before]] == at_ns), before, around)
    found = np.where(around >= 0, rows[around], -1)
    for one in np.unique(at_track[is_next]).tolist():
        mine, asking = rows[track[rows] == one], np.flatnonzero((at_track == one) & is_next)
        found[asking] = np.append(mine, -1)[np.searchsorted(start_ns[mine], at_ns[asking])]
    return found
