"""CUPTI's records of the host: calls, event waits, and NVTX ranges of any library, as neutral columns."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from gpustreamlab.analysis import distinct
from gpustreamlab.backends._activity import EVERY_STREAM, THE_HOST, AnnotationBatch, CallBatch, CallClass, DependencyBatch
from gpustreamlab.backends.cuda._nvtx import DEFAULT_DOMAIN
from gpustreamlab.backends.cuda.cupti._clients import stream_key
from gpustreamlab.backends.cuda.cupti._clock import WallClock
from gpustreamlab.backends.cuda.cupti._layouts import (
    ACCESSED,
    CALLED,
    CallbackDomain,
    MarkerFlag,
    OverheadKind,
    RecordKind,
    SynchronizationKind,
)
from gpustreamlab.backends.cuda.cupti._library import CALL_DOMAINS
from gpustreamlab.backends.cuda.cupti._records import FIELD, Columns, Records, join_columns, select_rows
from gpustreamlab.backends.cuda.cupti._work import Texts
from gpustreamlab.typing import BoolArray, Int64Array

KEPT_STRETCHES = 1_024
"""Stretches of own calls that are remembered; a few a second at most."""
KEPT_CALLS = 16_384
"""Numbers of own calls that are remembered: their records may come later than those of the kernels that they launched."""
KNOWN_CALLS = 262_144
"""Calls whose work may still be told of; see `CallTimes`."""
KNOWN_EVENTS = 1_048_576
"""Events whose last record is known."""
SLACK_NS = 2_000
"""CUPTI's time of a call and the host's clock agree to about a microsecond."""


class OwnCalls:
    """Tells own calls by the kernels they launched, and by the thread and the time at which they were made.

    The record of a call may come a drain earlier than that of its kernel, or later: neither sign is enough alone.
    """

    def __init__(self, host_time_ns: Callable[[], int]) -> None:
        self._host_time_ns = host_time_ns
        self._stretches: deque[tuple[int, int, int]] = deque(maxlen=KEPT_STRETCHES)
        self._numbers: Int64Array = np.empty(0, np.int64)

    @contextmanager
    def making(self) -> Iterator[None]:
        """Take what this thread calls inside as own."""
        begin_ns = self._host_time_ns()
        try:
            yield
        finally:
            self._stretches.append((threading.get_ident() & 0xFFFF_FFFF, begin_ns, self._host_time_ns()))

    def note(self, correlation: Int64Array) -> None:
        """Take calls as own by their numbers."""
        if len(correlation):
            self._numbers = np.concatenate([self._numbers, correlation])[-KEPT_CALLS:]

    def are_own(self, *, thread: Int64Array, start_host_ns: Int64Array, correlation: Int64Array) -> BoolArray:
        """Tell which calls are own; all shapes are (n,)."""
        is_own: BoolArray = np.isin(correlation, self._numbers)
        stretches = np.array(self._stretches, np.int64).reshape(-1, 3)
        for own_thread in np.unique(stretches[:, 0]).tolist():
            _, begin_ns, end_ns = stretches[stretches[:, 0] == own_thread].T
            order = np.argsort(begin_ns, kind="stable")
            # Stretches may lie within others: whoever began before and ends last holds the call.
            end_ns = np.maximum.accumulate(end_ns[order])
            at = np.searchsorted(begin_ns[order], start_host_ns + SLACK_NS, side="right") - 1
            is_own |= (thread == own_thread) & (at >= 0) & (start_host_ns <= end_ns[at] + SLACK_NS)
        return is_own


_NEVER = np.iinfo(np.int64).max
_OF_THREAD = 2
"""CUPTI_ACTIVITY_OBJECT_THREAD."""
_OVERHEAD_WORDS: dict[int, str] = {kind: kind.name.lower().replace("_", " ").replace("cupti", "CUPTI") for kind in OverheadKind}


class Functions(Protocol):
    """The functions of CUDA that records name by their numbers."""

    @property
    def call_classes(self) -> Mapping[CallbackDomain, Mapping[int, CallClass]]:
        """What those are for that are recorded, by number."""

    def call_name(self, domain: CallbackDomain, number: int) -> str:
        """Return a function's name as it is called in programs."""


class CallReader:
    """Tells of calls by their records."""

    def __init__(self, functions: Functions, are_own: Callable[..., BoolArray], wall: WallClock) -> None:
        self._functions = functions
        self._are_own = are_own
        self._wall = wall
        self._callers: set[int] = set()
        """Threads that made calls of their own."""

    def read(self, records: Records, texts: Texts, *, first: int = 0, until_host_ns: int = _NEVER) -> CallBatch:
        """Return the calls but own ones; `start_ns` and `end_ns` stay CUPTI's."""
        tables = [
            *_overheads(records, texts),
            *(
                self._recorded(records.columns[kind], domain, texts)
                for kind, domain in CALL_DOMAINS.items()
                if kind in records.columns
            ),
        ]
        if not tables:
            return CallBatch()
        joined = join_columns(tables)
        start_host_ns = self._wall.to_host_ns(joined["start_ns"])
        is_own = self._are_own(thread=joined["thread"], start_host_ns=start_host_ns, correlation=joined["correlation"])
        kept = (joined["correlation"] >= first) & (start_host_ns <= until_host_ns) & ~is_own
        # What CUPTI does in threads of its own, and in ours, holds up nobody.
        is_call = joined["call_class"] != CallClass.OTHER
        self._callers.update(distinct(joined["thread"][kept & is_call])[0].tolist())
        kept &= is_call | np.isin(joined["thread"], list(self._callers))
        found = select_rows({**joined, "start_host_ns": start_host_ns}, kept)
        return CallBatch(**found, size_bytes=_sizes(records, found["correlation"]))

    def _recorded(self, columns: Columns, domain: CallbackDomain, texts: Texts) -> Columns:
        numbers, place = distinct(columns["cbid"].astype(np.int64, copy=False))
        classes = self._functions.call_classes[domain]
        kind = np.array([classes.get(number, -1) for number in numbers.tolist()], np.int64)[place]
        named = [texts.name(self._functions.call_name(domain, n)) if n in classes else -1 for n in numbers.tolist()]
        kept = (kind >= 0) & (columns["start"] > 0) & (columns["end"] > 0)
        told = {
            "start_ns": columns["start"],
            "end_ns": np.maximum(columns["end"], columns["start"]),
            "thread": columns["threadId"].astype(np.int64, copy=False) & 0xFFFF_FFFF,
            "name": np.array(named, np.int64)[place],
            "call_class": kind,
            "correlation": columns["correlationId"].astype(np.int64, copy=False),
        }
        return select_rows(told, kept)


def _overheads(records: Records, texts: Texts) -> list[Columns]:
    """Return what the driver or CUPTI did besides in a thread, as calls with a name that says so."""
    columns = records.columns.get(RecordKind.OVERHEAD)
    if columns is None:
        return []
    kept = (columns["objectKind"] == _OF_THREAD) & (columns["start"] > 0)
    start_ns, end_ns = columns["start"][kept], columns["end"][kept]
    thread = columns["threadId"][kept].astype(np.int64)
    kinds, place = distinct(columns["overheadKind"][kept].astype(np.int64))
    words = [_OVERHEAD_WORDS.get(kind, "other") for kind in kinds.tolist()]
    return [
        {
            "start_ns": start_ns,
            "end_ns": np.maximum(end_ns, start_ns),
            "thread": thread,
            "name": np.array([texts.name(f"overhead: {word}") for word in words], np.int64)[place],
            "call_class": np.full(len(place), CallClass.OTHER, np.int64),
            "correlation": columns["correlationId"][kept].astype(np.int64),
        }
    ]


def _sizes(records: Records, correlation: Int64Array) -> Int64Array:
    """Return the bytes that each call allocated or freed, 0 where it did not."""
    columns = records.columns.get(RecordKind.MEMORY2)
    if columns is None:
        return np.zeros_like(correlation)
    number, first = np.unique(columns["correlationId"].astype(np.int64), return_index=True)
    size = columns["bytes"].astype(np.int64)[first]
    at = np.minimum(np.searchsorted(number, correlation), len(number) - 1)
    found: Int64Array = np.where(number[at] == correlation, size[at], 0)
    return found


_HOST_TIMES = (
    (RecordKind.DRIVER, "end"),
    (RecordKind.RUNTIME, "end"),
    (RecordKind.MARKER, "timestamp"),
)
"""Records that tell when a thread of the host was where, and their fields."""


_OF_CALLS = (CALLED, ACCESSED)
"""Records that come as soon as a call returns, long before those of its work."""


class CallTimes:
    """Which thread made a call that was followed, and when it returned: the records of its work do not say."""

    def __init__(self) -> None:
        self._known = [np.empty(0, np.int64)] * 3  # number, thread, end: of calls whose work was not told of

    def of(self, records: Records) -> tuple[Int64Array, Int64Array]:
        """Return the threads that made the calls of these records, and when those returned; a call is known once it has."""
        if (calls := records.columns.get(CALLED)) is not None:
            new = (calls[name] for name in ("correlationId", "threadId", "end"))
            self._known = [np.concatenate((old[-KNOWN_CALLS:], own)) for old, own in zip(self._known, new, strict=True)]
        told = [columns[FIELD] for kind, columns in records.columns.items() if kind not in _OF_CALLS and FIELD in columns]
        if not (len(self._known[0]) and told):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        numbers = np.concatenate(told)
        is_told = np.isin(self._known[0], numbers[numbers != 0])
        thread, end = (column[is_told] for column in self._known[1:])
        left = np.flatnonzero(~is_told)
        self._known = [column[left] for column in self._known]
        return thread, end


def told_until(records: Records, wall: WallClock, calls: CallTimes) -> dict[int, int]:
    """Return by thread the host time of the last record that it wrote; see `Activities.told_until`.

    CUPTI hands over a buffer when all in it is complete, and a thread writes its calls, ranges and launches in their order. A
    call that was followed is known as it returns, long before the record of its work: it counts once that has come. The two
    clocks agree to less than `SLACK_NS`, and a launch takes longer than that.
    """
    threads, times = ([column] for column in calls.of(records))
    for kind, field in _HOST_TIMES:
        columns = records.columns.get(kind)
        if columns is not None:
            threads.append(columns["threadId"].astype(np.int64) & 0xFFFF_FFFF)
            times.append(columns[field].astype(np.int64))
    thread, at_ns = np.concatenate(threads), np.concatenate(times)
    if not len(thread):
        return {}
    idents, place = distinct(thread)
    newest = np.full(len(idents), np.iinfo(np.int64).min)
    np.maximum.at(newest, place, at_ns)
    return dict(zip(idents.tolist(), (wall.to_host_ns(newest) + SLACK_NS).tolist(), strict=True))


class DependencyReader:
    """Finds which stream was told to wait for what, from recorded events and waits.

    Records of waits tell the wrong context: the primary one for a stream in a partition, that of the current device for a
    stream of another one. All others tell the right one, and streams are numbered through all contexts and devices of a
    process. Source: CUPTI 13.0, H100 and two H200.
    """

    def __init__(self, claimed: Mapping[int, int]) -> None:
        self._claimed = claimed
        self._last = np.empty((4, 0), np.int64)
        """Of the last record of each event so far: event, number of the call, context, stream."""
        self._contexts: dict[int, int] = {}
        """Of the streams that recorded an event or had work, by number."""

    def read(self, records: Records) -> DependencyBatch:
        """Return the waits of these records, of streams and of the host."""
        new = _rows(records.columns.get(RecordKind.CUDA_EVENT), "eventId")
        for kind in (RecordKind.CUDA_EVENT, RecordKind.CONCURRENT_KERNEL, RecordKind.MEMCPY, RecordKind.MEMSET):
            if (columns := records.columns.get(kind)) is not None:
                keys, _ = distinct(stream_key(columns["contextId"], columns["streamId"]))
                self._contexts |= dict(zip((keys & 0xFFFF_FFFF).tolist(), (keys >> 32).tolist(), strict=True))
        recorded = np.concatenate([self._last, new], axis=1)
        recorded = recorded[:, np.lexsort((recorded[1], recorded[0]))]
        self._last = recorded[:, np.diff(recorded[0], append=-1) != 0][:, -KNOWN_EVENTS:]
        waits = records.columns.get(RecordKind.SYNCHRONIZATION)
        wait = _rows(waits, "cudaEventId")
        how = np.empty(0, np.int64) if waits is None else waits["type"].astype(np.int64)
        wait[2] = self._true_contexts(wait[2], wait[3])
        is_of_event = (how == SynchronizationKind.STREAM_WAIT_EVENT) | (how == SynchronizationKind.EVENT_SYNCHRONIZE)
        wait[2:, how == SynchronizationKind.EVENT_SYNCHRONIZE] = THE_HOST
        source, target = _paired(recorded, wait[:, is_of_event])
        is_blocking = np.isin(how, _OF_NO_EVENT)
        blocked, is_all = wait[:, is_blocking], how[is_blocking] == SynchronizationKind.CONTEXT_SYNCHRONIZE
        host = np.full(blocked.shape[1], THE_HOST)
        return DependencyBatch(
            record=np.concatenate((source[1], blocked[1])),
            source_context=np.concatenate((source[2], blocked[2])),
            source_stream=np.concatenate((source[3], np.where(is_all, EVERY_STREAM, blocked[3]))),
            target_context=np.concatenate((target[2], host)),
            target_stream=np.concatenate((target[3], host)),
            wait=np.concatenate((target[1], blocked[1])),
        )

    def _true_contexts(self, told: Int64Array, stream: Int64Array) -> Int64Array:
        streams, place = distinct(stream)
        known = [self._contexts.get(number, self._claimed.get(number, 0)) for number in streams.tolist()]  # 0 is no context
        context = np.array(known, np.int64)[place]
        return np.where(context, context, told)


_OF_NO_EVENT = (SynchronizationKind.STREAM_SYNCHRONIZE, SynchronizationKind.CONTEXT_SYNCHRONIZE)


def _paired(recorded: Int64Array, wait: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return for each wait for an event that was recorded its last record before it, and the wait; in order of the waits."""
    # Behind each record of an event, in order of the calls, stand those that wait for it.
    both = np.concatenate([recorded, wait], axis=1)
    order = np.lexsort((both[1], both[0]))
    is_record = order < recorded.shape[1]
    newest = np.maximum.accumulate(np.where(is_record, np.arange(len(order)), 0))
    source, target = order[newest][~is_record], order[~is_record]
    is_known = (source < recorded.shape[1]) & (both[0, source] == both[0, target])
    in_order = np.argsort(target[is_known])
    return both[:, source[is_known][in_order]], both[:, target[is_known][in_order]]


def _rows(columns: Columns | None, event: str) -> Int64Array:
    """Return the event, the number of the call, the context and the stream of records; shape (4, n)."""
    if columns is None:
        return np.empty((4, 0), np.int64)
    return np.stack([columns[name].astype(np.int64) for name in (event, "correlationId", "contextId", "streamId")])


_START, _END = int(MarkerFlag.START), int(MarkerFlag.END)  # Plain numbers, as markers are many
OPEN_MARKERS = 65_536
"""NVTX ranges that may be open at once; the oldest are forgotten."""


class MarkerReader:
    """Pairs the begin and the end of NVTX ranges."""

    def __init__(self, own_domain: str) -> None:
        self._own_domain = own_domain
        self._open: dict[int, tuple[int, int, str]] = {}

    def read(self, records: Records, texts: Texts, read_text: Callable[[int], str | None], wall: WallClock) -> AnnotationBatch:
        """Return the ranges that have ended; `start_ns` and `end_ns` stay CUPTI's."""
        columns = records.columns.get(RecordKind.MARKER)
        if columns is None:
            return AnnotationBatch()
        rows: list[tuple[int, int, int, int]] = []
        for flags, at_ns, thread, number, name, domain in zip(*self._others(columns, read_text), strict=True):
            if flags & _START:
                self._begin(number, at_ns, thread, read_text(domain) or "", read_text(name) or "(no text)")
            elif flags & _END and (begun := self._open.pop(number, None)) is not None:
                rows.append((begun[0], max(begun[0], at_ns), begun[1], texts.name(begun[2])))
        start_ns, end_ns, thread_of, name_of = np.array(rows, np.int64).reshape(-1, 4).T.copy()
        start_host_ns = wall.to_host_ns(start_ns)
        return AnnotationBatch(start_ns=start_ns, end_ns=end_ns, start_host_ns=start_host_ns, thread=thread_of, name=name_of)

    def _others(self, columns: Columns, read_text: Callable[[int], str | None]) -> list[list[int]]:
        """Return the fields of other domains' markers in order of time: ours may be most of them."""
        domains, place = distinct(columns["domain"].astype(np.int64))
        is_own = np.array([read_text(domain) == self._own_domain for domain in domains.tolist()], bool)
        rows = np.flatnonzero(~is_own[place])
        rows = rows[np.argsort(columns["timestamp"][rows], kind="stable")]
        thread = columns["threadId"].astype(np.int64) & 0xFFFF_FFFF
        fields = (columns["flags"], columns["timestamp"], thread, columns["id"], columns["name"], columns["domain"])
        return [values[rows].tolist() for values in fields]

    def _begin(self, number: int, at_ns: int, thread: int, domain: str, text: str) -> None:
        while len(self._open) >= OPEN_MARKERS:
            del self._open[next(iter(self._open))]
        self._open[number] = (at_ns, thread, f"{domain}: {text}" if domain not in {"", DEFAULT_DOMAIN} else text)
