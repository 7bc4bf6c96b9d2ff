"""Programs that know nothing of us: what inject.c is told, and what it wrote, by what sessions read records with."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpustreamlab.backends._activity import Activities, CallClass, StreamFacts
from gpustreamlab.backends.cuda._nvtx import INJECTION_VARIABLE
from gpustreamlab.backends.cuda.cupti._accesses import AccessReader, access_batch
from gpustreamlab.backends.cuda.cupti._arguments import QUESTIONS, c_shape, shape_of
from gpustreamlab.backends.cuda.cupti._buffers import CALL, CALL_FIELDS, find_library
from gpustreamlab.backends.cuda.cupti._calls import CallReader, DependencyReader, MarkerReader
from gpustreamlab.backends.cuda.cupti._clock import WallClock
from gpustreamlab.backends.cuda.cupti._layouts import ACCESSED, CALLED, WORK_KINDS, CallbackDomain, RecordKind, find_layouts
from gpustreamlab.backends.cuda.cupti._library import bare_name, classify_call, load_cupti
from gpustreamlab.backends.cuda.cupti._records import CallNumbers, Columns, Records, concat_records, parse_buffer
from gpustreamlab.backends.cuda.cupti._source import ALL_KINDS
from gpustreamlab.backends.cuda.cupti._work import NodeNumbers, RecordedStreams, Texts, join_staged, work_batch
from gpustreamlab.errors import CaptureUnavailableError
from gpustreamlab.model import Device, SMLimits
from gpustreamlab.typing import BoolArray, Int64Array

MAGIC = b"GSLSTORE"
_HEAD = np.dtype([("magic", "S8"), *((name, "u8") for name in ("begin", "pid", "dropped")), ("version", "u4"), ("state", "u4")])
_FIRST = -(-_HEAD.itemsize // 8) * 8  # Where the first chunk stands
_CHUNK = np.dtype([("mark", "S4"), ("kind", "u4"), ("bytes", "u8")])
_MARK = b"GSLC"
_RECORDS, _CALLS, _TEXT, _FUNCTION, _CLOCK, _DEVICE, _PROBLEM, _WORDS, _LAUNCHED = range(1, 10)
_MOST_WORDS = 512  # Of a call, as in callbacks.c
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
        "GPUSTREAMLAB_RECORD_CALLS": _listed(cupti.followed_calls),
        "GPUSTREAMLAB_RECORD_SHAPES": ",".join(
            f"{number}:{int.from_bytes(bytes(c_shape(name)), 'little'):x}" for number, name in cupti.followed_calls.items()
        ),
        "GPUSTREAMLAB_RECORD_QUESTIONS": ",".join(QUESTIONS),
        "GPUSTREAMLAB_RECORD_ENDS": _listed(cupti.ending_calls),
        "GPUSTREAMLAB_RECORD_LIMIT": str(limit_bytes),
        "GPUSTREAMLAB_RECORD_LAST": str(0 if last_s is None else max(1, round(1e3 * last_s))),
    }


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(str(int(number)) for number in numbers)


def read_stored(path: Path) -> Stored:
    """Read a file, also one that is still written; see `StoredReader`."""
    with closing(StoredReader(path)) as reader:
        return reader.read()


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


class StoredReader:
    """Reads a file as it grows, also when it has been removed."""

    def __init__(self, path: Path) -> None:
        self._file, self._place = path.open("rb"), 0
        self._raw_texts: dict[int, str] = {}
        self._functions: dict[int, str] = {}
        self._devices: dict[int, Device] = {}
        self._context_devices: dict[int, int] = {}
        self._problems: dict[str, None] = {}
        self._texts, self._nodes, self._numbers = Texts(), NodeNumbers(), CallNumbers()
        self._markers, self._dependencies = MarkerReader(""), DependencyReader({})
        self._book = RecordedStreams(ordinal=0, sm_count=0, sms={})
        self._keys: dict[tuple[int, int], None] = {}  # Of the streams, in the order in which they came
        self._launched: dict[int, str] = {}
        self._words = np.empty(0, np.uint64)  # Of calls that are to come
        self._accesses = AccessReader(name_of=lambda one: self._launched.get(one, ""), ask=lambda _: None, tell_memory=max)
        self._accesses.has_unseen_pool = True
        self._is_whole = True  # Whether all calls were read, from the first one on: else an allocation may be missing
        self._skipped_bytes = self._dropped_count = self._clock_error_ns = 0

    def read(self) -> Stored:
        """Return what came since the last time, with all streams and devices so far.

        Raises
        ------
        ValueError
            If there is nothing in it that can be read.
        OSError
            If the file cannot be read.
        """
        head, data = self._new_bytes()
        parts: dict[int, list[NDArray[np.uint8]]] = defaultdict(list)
        for kind, part in _chunks(data):
            parts[kind].append(part)
            self._place += _CHUNK.itemsize + len(part) + -len(part) % 8
        self._raw_texts |= _named(parts[_TEXT])
        self._functions |= _named(parts[_FUNCTION])
        self._launched |= _named(parts[_LAUNCHED])
        self._words = np.concatenate([self._words, *(one.view(np.uint64) for one in parts[_WORDS])])
        self._devices |= {one.ordinal: one for one in map(_device, parts[_DEVICE])}
        self._problems |= dict.fromkeys(bytes(one).decode(errors="replace") for one in parts[_PROBLEM])
        clocks = np.array([one.view(np.int64) for one in parts[_CLOCK]], np.int64).reshape(-1, 4)
        if len(clocks):
            apart = np.abs(clocks[:, 0] - clocks[:, [1, 3]].mean(axis=1))
            # Who was interrupted tells nothing.
            self._clock_error_ns = max(self._clock_error_ns, int(np.percentile(apart, 99)) + 1)
        return self._stored(head, self._records(head, parts[_RECORDS], parts[_CALLS]))

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    def _new_bytes(self) -> tuple[np.void, NDArray[np.uint8]]:
        """Return the head and what is behind the last whole chunk; where its beginning has gone, what is there."""
        for _ in range(_READINGS):
            head = self._read_at(0, _HEAD, 1)
            if not len(head):
                raise ValueError("it was cut off before anything was in it")
            self._is_whole &= int(head["begin"][0]) <= max(self._place, _FIRST) and not head["dropped"][0]
            self._place = max(self._place, int(head["begin"][0]))
            data = self._read_at(self._place, np.uint8)
            if self._read_at(0, _HEAD, 1)["begin"] <= self._place:
                break
        if head["magic"][0] != MAGIC:
            raise ValueError("it is of another version of gpustreamlab")
        return head[0], data

    def _read_at(self, place: int, dtype: DTypeLike, count: int = -1) -> NDArray[Any]:
        self._file.seek(place)
        return np.fromfile(self._file, dtype, count)

    def _records(self, head: np.void, buffers: list[NDArray[np.uint8]], called: list[NDArray[np.uint8]]) -> Records:
        layouts = find_layouts(int(head["version"]))
        if layouts is None:
            raise ValueError(f"the records of this CUPTI (API version {head['version']}) are not known")
        found = [parse_buffer(*buffers, layouts=layouts)] if buffers else []
        calls = np.concatenate([np.empty(0, CALL), *(one.view(CALL) for one in called)])
        if len(calls):
            columns = {CALLED: {name: calls[name].astype(np.int64) for name in CALL_FIELDS}}
            word_count = int(calls["words"].sum())
            words, self._words = np.split(self._words, [word_count])
            self._is_whole &= len(words) == word_count and int(calls["words"].max()) <= _MOST_WORDS  # else it is damaged
            if self._is_whole:
                shapes = {number: shape for number, name in self._functions.items() if (shape := shape_of(name)) is not None}
                columns[ACCESSED] = self._accesses.read(calls, words, shapes)
            found.append(Records(columns=columns, counts={CALLED: len(calls)}, unknown_kinds={}, skipped_bytes=0))
        records = self._numbers.continue_in(concat_records(found))
        self._skipped_bytes += records.skipped_bytes
        return join_staged(records, lambda context, _: np.zeros(len(context), bool))

    def _stored(self, head: np.void, records: Records) -> Stored:
        texts, wall = self._texts, WallClock(lambda: 0, lambda: 0)
        functions = _Functions(self._functions)
        work = work_batch(records, texts, self._raw_texts.get, self._are_whole, self._nodes)
        calls = CallReader(functions, lambda **told: np.zeros(len(told["thread"]), bool), wall).read(records, texts)
        annotations = self._markers.read(records, texts, self._raw_texts.get, wall)
        activities = Activities(
            work=work,
            calls=calls,
            annotations=annotations,
            dependencies=self._dependencies.read(records),
            accesses=access_batch(records),
            names=tuple(texts.names),
            details=tuple(texts.details),
        )
        return Stored(
            source=f"CUPTI (API {head['version']}), injected",
            activities=activities,
            streams=self._streams(activities, records),
            devices={**self._devices},
            context_devices={**self._context_devices},
            dropped_count=int(head["dropped"]) + self._dropped_count,
            clock_error_ns=self._clock_error_ns,
            has_ended=int(head["state"]) != _GOES_ON,
            notes=self._notes(int(head["state"])),
        )

    def _are_whole(self, columns: Columns) -> BoolArray:
        are_whole: BoolArray = (columns["start"] > 0) & (columns["end"] >= columns["start"])
        self._dropped_count += int(np.count_nonzero(~are_whole))
        return are_whole

    def _streams(self, activities: Activities, records: Records) -> dict[tuple[int, int], StreamFacts]:
        """Return the streams that have had work; a process numbers its contexts over all devices."""
        for kind in WORK_KINDS:
            if (columns := records.columns.get(kind)) is not None:
                keys: Int64Array = np.unique(columns["contextId"].astype(np.int64) << 32 | columns["deviceId"])
                self._context_devices |= {key >> 32: key & 0xFFFF_FFFF for key in keys.tolist()}
        self._book.note(records)
        self._book.note_names(activities.work, activities.details)
        keys = np.unique(np.stack((activities.work.context, activities.work.stream)), axis=1).T
        self._keys |= dict.fromkeys((context, stream) for context, stream in keys.tolist())
        return {key: self._facts(*key) for key in self._keys}

    def _facts(self, context: int, stream: int) -> StreamFacts:
        facts, ordinal = self._book.describe(context, stream), self._context_devices[context]
        sm_count = self._devices[ordinal].sm_count if ordinal in self._devices else 0
        return facts._replace(device=ordinal, sm_count=facts.sm_count or sm_count)

    def _notes(self, state: int) -> tuple[str, ...]:
        notes = [f"{text}." for text in sorted(self._problems)]
        if self._skipped_bytes:
            notes.append(f"{self._skipped_bytes:,} bytes of records could not be read.")
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
