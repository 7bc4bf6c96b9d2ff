"""What a recorder has that a spool does not have yet."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.errors import DeviceError
from gpustreamlab.model import Counters, Trace
from gpustreamlab.recorder import SPAN_COLUMNS, Drained, Recorder
from gpustreamlab.spool._format import Batch
from gpustreamlab.typing import Int64Array

MAX_BATCH_ROWS = 65_536
"""Rows of one batch: 7 MB before they are compressed."""
TABLES_EVERY_S = 10.0
"""After how long what has no version, the errors of the clock, is looked at again."""
LISTS = ("lanes", "threads", "partitions", "layouts", "markers")
"""Tables of a trace that are written as what was added."""
SAMPLE_COLUMNS = ("time_ns", "lane", "name", "value")
"""Columns of `gpustreamlab.model.Counters`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How much of what a recorder has is on disk."""

    cursor: int = 0
    """Append index of the next row."""
    clear_count: int = 0
    """How often the recorder had been cleared."""
    row_count: int = 0
    """Rows that count: those since the last clear."""
    missed_count: int = 0
    """Rows that were overwritten before they could be written, since the last clear."""
    name_count: int = 0
    """Names written."""
    detail_count: int = 0
    """Details written."""
    edge_cursor: int = 0
    """Where the edges go on."""
    dependency_cursor: int = 0
    """Where the dependencies go on."""
    sample_cursor: int = 0
    """Where the samples of counters go on."""
    samples: tuple[bytes, ...] = ()
    """The samples that were written last: the newest of each counter come again."""
    unfinished: str = ""
    """The ranges that had not ended."""
    tables: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The tables as they were written, see `LISTS`, and ``metadata``."""
    tables_version: tuple[object, ...] = ()
    """What tells whether they have changed."""
    tables_s: float = -TABLES_EVERY_S
    """When they were looked at."""


def read_changes(
    recorder: Recorder, known: Progress, *, title: str = "", is_last: bool = False
) -> Iterator[tuple[Batch, Progress]]:
    """Read what is new, as batches, each with the progress that writing it makes.

    Parameters
    ----------
    recorder
        What is spooled.
    known
        What is on disk already.
    title
        The title of the session.
    is_last
        Whether to look at everything again, and to write that this is the end.
    """
    with recorder.observing():
        drained = _drain(recorder, known.cursor)
        # Names, lanes, threads and partitions are known before the rows that need them, so they are asked for afterwards.
        facts, progress = _changed_facts(recorder, known, drained, title=title, is_last=is_last)
    row_count = len(drained.columns["number"])
    if not row_count and not facts and not is_last:
        return
    facts |= _state_facts(recorder, progress, is_last=is_last and row_count <= MAX_BATCH_ROWS)
    first = drained.cursor - row_count
    for low in range(0, max(row_count, 1), MAX_BATCH_ROWS):
        high = min(low + MAX_BATCH_ROWS, row_count)
        columns = {name: values[low:high] for name, values in drained.columns.items()}
        progress = dataclasses.replace(progress, cursor=first + high, row_count=progress.row_count + high - low)
        yield Batch(columns, facts), progress
        facts = _state_facts(recorder, progress, is_last=is_last and high + MAX_BATCH_ROWS >= row_count)


def rows_between(recorder: Recorder, batch: Batch, progress: Progress, low: int, high: int) -> tuple[Batch, Progress]:
    """Return some rows of a batch, and the progress that writing them makes, where those before them are written.

    Parameters
    ----------
    recorder
        What is spooled.
    batch, progress
        The whole batch, and the progress that it would make.
    low, high
        The first row, and the one behind the last.
    """
    left_count = batch.row_count - high
    progress = dataclasses.replace(progress, cursor=progress.cursor - left_count, row_count=progress.row_count - left_count)
    facts = _state_facts(recorder, progress, is_last=False)
    if not low:
        facts = {**batch.facts, **facts}
        facts.pop("end", None)
    return Batch({name: values[low:high] for name, values in batch.columns.items()}, facts), progress


def limit_batch(recorder: Recorder, known: Progress, limit_bytes: int) -> Batch:
    """Return a batch that says that nothing more is written, for lack of room."""
    facts = _state_facts(recorder, known, is_last=False) | {"limit_bytes": limit_bytes}
    if not known.tables:  # without them, nothing could be read of a file in which this stands alone
        facts["tables"] = {"metadata": dataclasses.asdict(recorder.tables().metadata)}
    return Batch(no_rows(), facts)


def end_batch(recorder: Recorder, known: Progress) -> Batch:
    """Return a batch that says that the session was closed, and how many rows were not written."""
    unwritten_count = recorder.drain_collected(known.cursor).cursor - known.cursor
    facts = _state_facts(recorder, known, is_last=True)
    return Batch(no_rows(), facts | {"missed": known.missed_count + unwritten_count})


def no_rows() -> dict[str, Int64Array]:
    """Return empty columns."""
    return {name: np.empty(0, np.int64) for name in SPAN_COLUMNS}


def _drain(recorder: Recorder, cursor: int) -> Drained:
    try:
        return recorder.drain(cursor)
    except DeviceError:  # what had been collected before the device failed is still to be had
        return recorder.drain_collected(cursor)


def _changed_facts(
    recorder: Recorder, known: Progress, drained: Drained, *, title: str, is_last: bool
) -> tuple[dict[str, Any], Progress]:
    facts, progress = _added_facts(recorder, known)
    if drained.clear_count != known.clear_count:
        facts["clear"] = True
        # Rows that were cleared are not missed; those that the ring dropped since then are.
        missed_count = recorder.dropped_count - recorder.lost_count
        progress = dataclasses.replace(progress, clear_count=drained.clear_count, row_count=0, missed_count=missed_count)
    elif drained.missed:
        progress = dataclasses.replace(progress, missed_count=known.missed_count + drained.missed)
    version = (*recorder.tables_version(), title)
    now_s = time.monotonic()
    if is_last or version != known.tables_version or now_s - known.tables_s >= TABLES_EVERY_S:
        tables = recorder.tables(title=title)
        changed = _changed_tables(tables, known.tables)
        if changed:
            facts["tables"] = changed
        progress = dataclasses.replace(progress, tables=_kept(tables), tables_version=version, tables_s=now_s)
    return facts, progress


def _added_facts(recorder: Recorder, known: Progress) -> tuple[dict[str, Any], Progress]:
    """Return what was appended to the tables that only grow."""
    names = recorder.names_from(known.name_count)
    details = recorder.details_from(known.detail_count)
    edges, edge_cursor = recorder.edges_from(known.edge_cursor)
    dependencies, dependency_cursor = recorder.dependencies_from(known.dependency_cursor)
    counters, sample_cursor = recorder.counters_from(known.sample_cursor)
    samples = tuple(getattr(counters, name).tobytes() for name in SAMPLE_COLUMNS)
    facts = {
        "names": names,
        "details": [dataclasses.asdict(detail) for detail in details],
        "edges": [list(edge) for edge in edges],
        "dependencies": _lists(dependencies) if dependency_cursor != known.dependency_cursor else {},
        "counters": {} if samples == known.samples or not len(counters) else _counter_facts(counters),
    }
    progress = dataclasses.replace(
        known,
        name_count=known.name_count + len(names),
        detail_count=known.detail_count + len(details),
        edge_cursor=edge_cursor,
        dependency_cursor=dependency_cursor,
        sample_cursor=sample_cursor,
        samples=samples,
    )
    facts = {name: value for name, value in facts.items() if value}
    unfinished = str(recorder.unfinished())
    if unfinished != known.unfinished:
        facts["unfinished"] = unfinished
        progress = dataclasses.replace(progress, unfinished=unfinished)
    return facts, progress


def _counter_facts(counters: Counters) -> dict[str, Any]:
    return {"names": counters.names, **_lists({name: getattr(counters, name) for name in SAMPLE_COLUMNS})}


def _lists(columns: Mapping[str, NDArray[Any]]) -> dict[str, list[Any]]:
    return {name: values.tolist() for name, values in columns.items()}


def _state_facts(recorder: Recorder, progress: Progress, *, is_last: bool) -> dict[str, Any]:
    """Say what is different in every batch."""
    facts = {
        "written_unix_ns": time.time_ns(),
        "missed": progress.missed_count,
        "lost": recorder.lost_count,
        "pending": recorder.pending_count,
        "capturing": recorder.is_capturing,
    }
    return facts | {"end": True} if is_last else facts


def _kept(tables: Trace) -> dict[str, Any]:
    return {name: getattr(tables, name) for name in (*LISTS, "metadata")}


def _changed_tables(tables: Trace, known: Mapping[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name in LISTS:
        old, new = known.get(name, ()), getattr(tables, name)
        if old != new:
            changed[name] = _list_change(old, new)
    if known.get("metadata") != tables.metadata:
        changed["metadata"] = dataclasses.asdict(tables.metadata)
    return changed


def _list_change(old: Sequence[Any], new: Sequence[Any]) -> dict[str, Any]:
    """Say how one list becomes another: how many are dropped at its beginning, how many then stay, and what follows."""
    dropped = old.index(new[0]) if new and new[0] in old else len(old)
    stay = 0
    for before, after in zip(old[dropped:], new, strict=False):
        if before != after:
            break
        stay += 1
    return {"drop": dropped, "keep": stay, "add": [_plain(value) for value in new[stay:]]}


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value
