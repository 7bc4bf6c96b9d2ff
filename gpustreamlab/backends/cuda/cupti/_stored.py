"""Programs that know nothing of us: what inject.c is told, and what it wrote, by what sessions read records with."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.backends._activity import Activities, CallClass, StreamFacts
from gpustreamlab.backends.cuda._nvtx import INJECTION_VARIABLE
from gpustreamlab.backends.cuda.cupti._buffers import CALL, CALL_FIELDS, find_library
from gpustreamlab.backends.cuda.cupti._calls import CallReader, DependencyReader, MarkerReader
from gpustreamlab.backends.cuda.cupti._clock import WallClock
from gpustreamlab.backends.cuda.cupti._layouts import CALLED, WORK_KINDS, CallbackDomain, RecordKind, find_layouts
from gpustreamlab.backends.cuda.cupti._library import bare_name, classify_call, load_cupti
from gpustreamlab.backends.cuda.cupti._records import CallNumbers, Columns, Records, concat_records, parse_buffer
from gpustreamlab.backends.cuda.cupti._source import ALL_KINDS
from gpustreamlab.backends.cuda.cupti._work import NodeNumbers, RecordedStreams, Texts, join_staged, work_batch
from gpustreamlab.errors import CaptureUnavailableError
from gpustreamlab.model import Device, SMLimits
from gpustreamlab.typing import BoolArray, Int64Array

MAGIC = b"GSLSTORE"
_HEAD = np.dtype([("magic", "S8"), *((name, "u8") for name in ("begin", "pid", "dropped")), ("version", "u4"), ("state", "u4")])
_CHUNK = np.dtype([("mark", "S4"), ("kind", "u4"), ("bytes", "u8")])
_MARK = b"GSLC"
_RECORDS, _CALLS, _TEXT, _FUNCTION, _CLOCK, _DEVICE, _PROBLEM = range(1, 8)
_GOES_ON, _IS_FULL, _NOT_WRITTEN = 0, 2, 3  # As in `enum state` of inject.c
_CARD = np.dtype([("ordinal", "i4"), ("driver", "i4"), ("attributes", "i4", 160), ("memory", "u8"), ("name", "S256")])
_READINGS = 3  # How often a file is read that goes on and lets go of its beginning meanwhile


class Stored(NamedTuple):
    """What a process did, as far as its file has it."""

    source: str
    activities: Activities
    """Times are the wall clock's; a dependency's contexts and streams are CUPTI's."""
    streams: Mapping[tuple[int, int], StreamFacts]
    """Streams with work, by context and number."""
    devices: Mapping[int, Device]
    context_devices: Mapping[int, int]
    dropped_count: int
    clock_error_ns: int
    """How far CUPTI's clock and the wall clock, which calls are told by, were apart, at most."""
    has_ended: bool
    notes: tuple[str, ...]
    """What is missing, in sentences."""


def injection(stem: Path, *, limit_bytes: int, last_s: float | None, has_nodes: bool = True) -> dict[str, str]:
    """Return the environment in which a process and its children are recorded, each into ``STEM-PID.gsl``.

    Without nodes a launch of a graph is one record: CUPTI then leaves its kernels as they are, which costs less.

    Raises
    ------
    MissingExtraError
        If CUPTI is not installed.
    CaptureUnavailableError
        If its version is not known, or what the driver loads cannot be compiled.
    """
    cupti = load_cupti()
    try:
        library = find_library()
    except OSError as error:
        raise CaptureUnavailableError(f"What the driver is to load cannot be made on this machine. {error}") from error
    return {
        "CUDA_INJECTION64_PATH": str(library),
        INJECTION_VARIABLE: os.environ.get(INJECTION_VARIABLE) or cupti.path,
        "GPUSTREAMLAB_RECORD": str(stem),
        "GPUSTREAMLAB_RECORD_CUPTI": cupti.path,
        "GPUSTREAMLAB_RECORD_KINDS": _listed(ALL_KINDS if has_nodes else (*ALL_KINDS, RecordKind.GRAPH_TRACE)),
        "GPUSTREAMLAB_RECORD_CALLS": _listed(cupti.call_classes[CallbackDomain.DRIVER_API]),
        "GPUSTREAMLAB_RECORD_ENDS": _listed(cupti.ending_calls),
        "GPUSTREAMLAB_RECORD_LIMIT": str(limit_bytes),
        "GPUSTREAMLAB_RECORD_LAST": str(0 if last_s is None else max(1, round(1e3 * last_s))),
    }


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(str(int(number)) for number in numbers)


def read_stored(path: Path) -> Stored:
    """Read a file, also one that is still written.

    Raises
    ------
    ValueError
        If there is nothing in it that can be read.
    """
    for _ in range(_READINGS):
        head = np.fromfile(path, _HEAD, 1)
        if not len(head):
            raise ValueError("it was cut off before anything was in it")
        data = np.fromfile(path, np.uint8, offset=int(head["begin"][0]))
        if np.fromfile(path, _HEAD, 1)["begin"] == head["begin"]:
            break
    if head["magic"][0] != MAGIC:
        raise ValueError("it is of another version of gpustreamlab")
    parts: dict[int, list[NDArray[np.uint8]]] = defaultdict(list)
    for kind, part in _chunks(data):
        parts[kind].append(part)
    return _Reader(head[0], parts).stored()


def _chunks(data: NDArray[np.uint8]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yield the kind and the bytes of each chunk, up to one that was cut off."""
    place = 0
    while place + _CHUNK.itemsize <= len(data):
        chunk = data[place : place + _CHUNK.itemsize].view(_CHUNK)[0]
        begin = place + _CHUNK.itemsize
        end = begin + int(chunk["bytes"])
        if chunk["mark"] != _MARK or end > len(data):
            return
        yield int(chunk["kind"]), data[begin:end]
        place = end + -end % 8


class _Functions:
    """The functions of the driver that a file names; see `Functions`."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = {number: bare_name(name.lstrip("_")) for number, name in names.items()}
        known = {number: classify_call(name) for number, name in self._names.items()}
        self.call_classes: Mapping[CallbackDomain, Mapping[int, CallClass]] = {
            CallbackDomain.DRIVER_API: {number: sort for number, sort in known.items() if sort is not None},
            CallbackDomain.RUNTIME_API: {},
        }

    def call_name(self, _domain: CallbackDomain, number: int) -> str:
        """Return a function's name as it is called in programs."""
        return self._names[number]


class _Reader:
    """Reads the chunks of one file."""

    def __init__(self, head: np.void, parts: Mapping[int, list[NDArray[np.uint8]]]) -> None:
        self._head = head
        self._texts = _named(parts[_TEXT])
        self._functions = _Functions(_named(parts[_FUNCTION]))
        self._devices = {one.ordinal: one for one in map(_device, parts[_DEVICE])}
        self._problems = {bytes(one).decode(errors="replace") for one in parts[_PROBLEM]}
        clocks = np.array([one.view(np.int64) for one in parts[_CLOCK]], np.int64).reshape(-1, 4)
        apart = np.abs(clocks[:, 0] - clocks[:, [1, 3]].mean(axis=1))
        self._clock_error_ns = int(np.percentile(apart, 99)) + 1 if len(apart) else 0  # who was interrupted tells nothing
        self._records = self._read(parts[_RECORDS], parts[_CALLS])
        self._dropped_count = int(head["dropped"])

    def _read(self, buffers: list[NDArray[np.uint8]], called: list[NDArray[np.uint8]]) -> Records:
        layouts = find_layouts(int(self._head["version"]))
        if layouts is None:
            raise ValueError(f"the records of this CUPTI (API version {self._head['version']}) are not known")
        found = [parse_buffer(*buffers, layouts=layouts)] if buffers else []
        calls = np.concatenate([np.empty(0, CALL), *(one.view(CALL) for one in called)])
        if len(calls):
            columns = {CALLED: {name: calls[name].astype(np.int64) for name in CALL_FIELDS}}
            found.append(Records(columns=columns, counts={CALLED: len(calls)}, unknown_kinds={}, skipped_bytes=0))
        records = CallNumbers().continue_in(concat_records(found))
        return join_staged(records, lambda context, _: np.zeros(len(context), bool))

    def stored(self) -> Stored:
        """Return what the file tells."""
        texts, records = Texts(), self._records
        wall = WallClock(lambda: 0, lambda: 0)
        work = work_batch(records, texts, self._texts.get, self._are_whole, NodeNumbers())
        calls = CallReader(self._functions, lambda **told: np.zeros(len(told["thread"]), bool), wall).read(records, texts)
        annotations = MarkerReader("").read(records, texts, self._texts.get, wall)
        activities = Activities(
            work=work,
            calls=calls,
            annotations=annotations,
            dependencies=DependencyReader({}).read(records),
            names=tuple(texts.names),
            details=tuple(texts.details),
        )
        where = self._context_devices()
        return Stored(
            source=f"CUPTI (API {self._head['version']}), injected",
            activities=activities,
            streams=self._streams(activities, where),
            devices=self._devices,
            context_devices=where,
            dropped_count=self._dropped_count,
            clock_error_ns=self._clock_error_ns,
            has_ended=int(self._head["state"]) != _GOES_ON,
            notes=self._notes(),
        )

    def _are_whole(self, columns: Columns) -> BoolArray:
        are_whole: BoolArray = (columns["start"] > 0) & (columns["end"] >= columns["start"])
        self._dropped_count += int(np.count_nonzero(~are_whole))
        return are_whole

    def _context_devices(self) -> dict[int, int]:
        """Return the device of each context that had work: a process numbers its contexts over all of them."""
        found: dict[int, int] = {}
        for kind in WORK_KINDS:
            if (columns := self._records.columns.get(kind)) is not None:
                keys: Int64Array = np.unique(columns["contextId"].astype(np.int64) << 32 | columns["deviceId"])
                found |= {key >> 32: key & 0xFFFF_FFFF for key in keys.tolist()}
        return found

    def _streams(self, activities: Activities, where: Mapping[int, int]) -> dict[tuple[int, int], StreamFacts]:
        sms: dict[int, int] = {}
        books = {}
        for ordinal in {*where.values()}:
            device = self._devices.get(ordinal)
            book = books[ordinal] = RecordedStreams(ordinal=ordinal, sm_count=device.sm_count if device else 0, sms=sms)
            book.note(self._records)
            book.note_names(activities.work, activities.details)
        keys = np.unique(np.stack((activities.work.context, activities.work.stream)), axis=1).T.tolist()
        return {(context, stream): books[where[context]].describe(context, stream) for context, stream in keys}

    def _notes(self) -> tuple[str, ...]:
        state = int(self._head["state"])
        notes = [f"{text}." for text in sorted(self._problems)]
        if self._records.skipped_bytes:
            notes.append(f"{self._records.skipped_bytes:,} bytes of records could not be read.")
        if state == _IS_FULL:
            notes.append("The file was full, and its file system cannot let go of its beginning: what came later is missing.")
        if state == _NOT_WRITTEN:
            notes.append("The file could not be written any more, as where a disk is full: what came later is missing.")
        return tuple(notes)


def _named(parts: list[NDArray[np.uint8]]) -> dict[int, str]:
    """Return texts by their numbers, which stand in front of them."""
    return {int(one[:8].view(np.uint64)[0]): bytes(one[8:]).decode(errors="replace") for one in parts}


def _device(part: NDArray[np.uint8]) -> Device:
    """Return a card by its attributes. Source of their numbers: CUDA driver API, CUdevice_attribute."""
    card = part.view(_CARD)[0]
    told = card["attributes"].tolist()
    driver = int(card["driver"])
    return Device(
        name=card["name"].decode(errors="replace"),
        ordinal=int(card["ordinal"]),
        sm_count=told[16],
        compute_capability=(told[75], told[76]),
        memory_bytes=int(card["memory"]),
        memory_bytes_per_s=2_000 * told[36] * told[37] // 8 or None,  # two transfers a clock, in kHz, of so many bits
        copy_engines=told[40] or None,
        driver_version=f"{driver // 1000}.{driver % 1000 // 10}",
        sm_limits=SMLimits(blocks=told[106], threads=told[39], registers=told[82], shared_bytes=told[81]),
    )
