"""CUPTI's records of the host: calls, event waits, and NVTX ranges of any library, as neutral columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np

from gpustreamlab.analysis import distinct
from gpustreamlab.backends._activity import AnnotationBatch, CallBatch, DependencyBatch
from gpustreamlab.backends.cuda._cupti import CALL_DOMAINS, Cupti
from gpustreamlab.backends.cuda._cupti_constants import CallbackDomain, MarkerFlag, RecordKind, SynchronizationKind
from gpustreamlab.backends.cuda._cupti_records import Columns, Records
from gpustreamlab.backends.cuda._cupti_wall import WallClock
from gpustreamlab.backends.cuda._cupti_work import Texts
from gpustreamlab.backends.cuda._nvtx import DEFAULT_DOMAIN
from gpustreamlab.backends.cuda._own_calls import SLACK_NS, OwnCalls
from gpustreamlab.typing import Int64Array

OPEN_MARKERS = 65_536
"""NVTX ranges that may be open at once; the oldest are forgotten."""
_HOST_TIMES = (
    (RecordKind.DRIVER, "end"),
    (RecordKind.RUNTIME, "end"),
    (RecordKind.MARKER, "timestamp"),
    (RecordKind.CONCURRENT_KERNEL, "queued"),
)
"""Records that tell when a thread of the host was where, and their fields."""
KNOWN_EVENTS = 1_048_576
"""Events whose last record is known, by their number."""


class CallReader:
    """Turns records of calls into columns.

    Parameters
    ----------
    cupti
        Knows the functions' names.
    """

    def __init__(self, cupti: Cupti) -> None:
        self._cupti = cupti

    def read(
        self, records: Records, texts: Texts, own: OwnCalls, wall: WallClock, *, until_host_ns: int = 2**63 - 1
    ) -> CallBatch:
        """Return the calls but own ones; `start_ns` and `end_ns` stay CUPTI's.

        Parameters
        ----------
        records
            What was parsed.
        texts
            Takes the functions' names.
        own
            Tells own calls.
        wall
            Puts CUPTI's times of calls on the host's clock.
        until_host_ns
            Calls that were made later are left out.
        """
        parts = [
            self._part(records.columns[kind], domain, texts, own, wall, until_host_ns)
            for kind, domain in CALL_DOMAINS.items()
            if kind in records.columns
        ]
        if not parts:
            return CallBatch()
        sizes = _sizes_by_correlation(records)
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        joined["size_bytes"] = sizes(joined["correlation"])
        return CallBatch(**joined)

    def _part(
        self, columns: Columns, domain: CallbackDomain, texts: Texts, own: OwnCalls, wall: WallClock, until_host_ns: int
    ) -> dict[str, Int64Array]:
        numbers, place = distinct(columns["cbid"].astype(np.int64))
        classes = self._cupti.call_classes[domain]
        kind = np.array([classes.get(number, -1) for number in numbers.tolist()], np.int64)[place]
        correlation = columns["correlationId"].astype(np.int64)
        thread = columns["threadId"].astype(np.int64) & 0xFFFF_FFFF
        kept = (kind >= 0) & (columns["start"] > 0) & (columns["end"] > 0)
        start_host_ns = wall.to_host_ns(columns["start"].astype(np.int64))
        kept &= start_host_ns <= until_host_ns
        kept &= ~own.are_own(thread=thread, start_host_ns=start_host_ns, correlation=correlation)
        named = [texts.name(self._cupti.call_name(domain, n)) if n in classes else -1 for n in numbers.tolist()]
        start_ns = columns["start"][kept].astype(np.int64)
        return {
            "start_ns": start_ns,
            "end_ns": np.maximum(columns["end"][kept].astype(np.int64), start_ns),
            "start_host_ns": start_host_ns[kept],
            "thread": thread[kept],
            "name": np.array(named, np.int64)[place][kept],
            "call_class": kind[kept],
            "correlation": correlation[kept],
        }


def join_calls(*batches: CallBatch) -> CallBatch:
    """Put batches behind each other."""
    full = [batch for batch in batches if len(batch)]
    if len(full) < 2:
        return full[0] if full else CallBatch()
    return CallBatch(**{one.name: np.concatenate([getattr(batch, one.name) for batch in full]) for one in fields(CallBatch)})


def _sizes_by_correlation(records: Records) -> Callable[[Int64Array], Int64Array]:
    """Return a function of the bytes that a call allocated or freed, 0 where it did not."""
    columns = records.columns.get(RecordKind.MEMORY2)
    if columns is None:
        return np.zeros_like
    number = columns["correlationId"].astype(np.int64)
    order = np.argsort(number, kind="stable")
    number, size = number[order], columns["bytes"].astype(np.int64)[order]

    def sizes(correlation: Int64Array) -> Int64Array:
        at = np.minimum(np.searchsorted(number, correlation), len(number) - 1)
        found: Int64Array = np.where(number[at] == correlation, size[at], 0)
        return found

    return sizes


def told_until(records: Records, wall: WallClock) -> dict[int, int]:
    """Return by thread the host time of the last record that it wrote; see `Activities.told_until`.

    CUPTI hands over a buffer when all in it is complete, and a thread writes its calls, ranges and launches in their order. The
    two clocks agree to less than `SLACK_NS`, and a launch takes longer than that.
    """
    threads, times = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for kind, field in _HOST_TIMES:
        columns = records.columns.get(kind)
        if columns is not None:
            threads.append(columns["threadId"].astype(np.int64) & 0xFFFF_FFFF)
            times.append(columns[field].astype(np.int64))
    thread, place = distinct(np.concatenate(threads))
    newest = np.zeros(len(thread), np.int64)
    np.maximum.at(newest, place, np.concatenate(times))
    return dict(zip(thread.tolist(), (wall.to_host_ns(newest) + SLACK_NS).tolist(), strict=True))


class DependencyReader:
    """Finds which stream was told to wait for what, from recorded events and waits."""

    def __init__(self) -> None:
        # By the event's number: correlation of its last record, and where that was.
        self._last = np.zeros((3, 64), np.int64)

    def read(self, records: Records) -> DependencyBatch:
        """Return the waits of these records."""
        recorded = _event_rows(records)
        waits = records.columns.get(RecordKind.SYNCHRONIZATION)
        found = DependencyBatch() if waits is None else self._match(waits, recorded)
        self._remember(recorded)
        return found

    def _match(self, waits: Columns, recorded: Int64Array) -> DependencyBatch:
        rows = np.flatnonzero((waits["type"] == SynchronizationKind.STREAM_WAIT_EVENT) & (waits["cudaEventId"] < KNOWN_EVENTS))
        event = waits["cudaEventId"][rows].astype(np.int64)
        wait = waits["correlationId"][rows].astype(np.int64)
        source = self._known(event)
        if recorded.shape[1]:
            # The last record of the same event before the wait: both are sorted by event, then by number of the call.
            # Numbers of 64 bits that are told of together lie within 2**33.
            low = min(int(recorded[1].min()), int(wait.min(initial=recorded[1, 0])))
            key = (recorded[0] << 40) + recorded[1] - low
            at = np.searchsorted(key, (event << 40) + wait - low) - 1
            is_here = (at >= 0) & (recorded[0, at] == event)
            source = np.where(is_here, recorded[1:, at], source)
        is_known = (source[0] > 0) & (source[0] < wait)
        return DependencyBatch(
            record=source[0][is_known],
            source_context=source[1][is_known],
            source_stream=source[2][is_known],
            target_context=waits["contextId"][rows][is_known].astype(np.int64),
            target_stream=waits["streamId"][rows][is_known].astype(np.int64),
            wait=wait[is_known],
        )

    def _known(self, event: Int64Array) -> Int64Array:
        inside = event < self._last.shape[1]
        found: Int64Array = np.where(inside, self._last[:, np.where(inside, event, 0)], 0)
        return found

    def _remember(self, recorded: Int64Array) -> None:
        if not recorded.shape[1]:
            return
        most = int(recorded[0].max()) + 1
        if most > self._last.shape[1]:
            grown = np.zeros((3, min(KNOWN_EVENTS, 2 * most)), np.int64)
            grown[:, : self._last.shape[1]] = self._last
            self._last = grown
        # Sorted by number of the call within each event: of several values for one place the last one stays.
        self._last[:, recorded[0]] = recorded[1:]


def _event_rows(records: Records) -> Int64Array:
    """Return recorded events as rows event, correlation, context, stream, sorted by the first two; shape (4, n)."""
    columns = records.columns.get(RecordKind.CUDA_EVENT)
    if columns is None:
        return np.empty((4, 0), np.int64)
    rows = np.stack([columns[name].astype(np.int64) for name in ("eventId", "correlationId", "contextId", "streamId")])
    rows = rows[:, rows[0] < KNOWN_EVENTS]
    return rows[:, np.lexsort((rows[1], rows[0]))]


class MarkerReader:
    """Pairs the begin and the end of NVTX ranges.

    Parameters
    ----------
    own_domain
        Ranges of this domain are ours and left out.
    """

    def __init__(self, own_domain: str) -> None:
        self._own_domain = own_domain
        self._open: dict[int, tuple[int, int, str]] = {}

    def read(self, records: Records, texts: Texts, read_text: Callable[[int], str | None], wall: WallClock) -> AnnotationBatch:
        """Return the ranges that have ended; `start_ns` and `end_ns` stay CUPTI's.

        Parameters
        ----------
        records
            What was parsed.
        texts
            Takes the ranges' texts.
        read_text
            Reads a text at an address.
        wall
            Puts CUPTI's times of the host on the host's clock.
        """
        columns = records.columns.get(RecordKind.MARKER)
        if columns is None:
            return AnnotationBatch()
        rows: list[tuple[int, int, int, int]] = []
        for flags, at_ns, thread, number, name, domain in zip(*self._others(columns, read_text), strict=True):
            if flags & MarkerFlag.START:
                self._begin(number, at_ns, thread, read_text(domain) or "", read_text(name) or "(no text)")
            elif flags & MarkerFlag.END and (begun := self._open.pop(number, None)) is not None:
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
