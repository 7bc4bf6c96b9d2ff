"""Read Perfetto's traces: our own ones back exactly, and those of others as far as they hold what a trace does."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

import msgspec
import numpy as np

from gpustreamlab.errors import GPUStreamLabError, TraceFileError
from gpustreamlab.exchange._pftrace_events import NO_TRACK, Events, Texts, read_events
from gpustreamlab.exchange._pftrace_file import Packets, read_packets
from gpustreamlab.exchange._pftrace_others import Content, trace_of_others
from gpustreamlab.exchange._pftrace_own import ARGUMENTS, COLUMN, FACTS, Facts, read_column, read_tables, span_columns
from gpustreamlab.exchange._pftrace_packets import COUNTER
from gpustreamlab.exchange._pftrace_said import Said, packet_times, read_message, read_said
from gpustreamlab.exchange._pftrace_spans import Matched, match_spans
from gpustreamlab.exchange._protobuf import read_fields
from gpustreamlab.model import Counters, Edges, Trace
from gpustreamlab.typing import Int64Array

_GARBAGE = (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError, MemoryError)
"""What a file raises that says it is of ours, and is not."""


def read_pftrace(path: str | PathLike[str]) -> Trace:
    """Read a trace of Perfetto's, packed by gzip or not.

    Returns
    -------
    Trace
        What `write_pftrace` wrote, exactly as it was. Of files of others: slices, instants, flows and counters of track events,
        and work of GPUs (render stages). Each track is a lane, a thread of the host unless its slices have categories of work
        of a GPU. Slices are annotations, instants are markers; what nothing ended lasts until the last event.
        ``trace.metadata.imported`` counts what was used, left out and refused.

    Notes
    -----
    Nothing of our own files is lost. Of others' are not read: arguments of slices, times and instruction counts of threads in
    events of the old kind, old asynchronous events, events whose time is the distance from another event in the old way,
    process ids, and all other data sources. An end belongs to what began last on its track, whatever its name is.

    Raises
    ------
    TraceFileError
        If the file holds no packet or no event of those, is too large, or is one of ours that is damaged.

    Examples
    --------
    >>> from gpustreamlab.exchange._pftrace import write_pftrace
    >>> from gpustreamlab.exchange._pftrace_read import read_pftrace
    >>> path = getfixture("tmp_path") / "run.pftrace.gz"
    >>> write_pftrace(Trace.from_columns(start_ns=[0, 5], end_ns=[9, 7], stream=["a", "b"]), path)
    >>> read_pftrace(path)
    <Trace: 2 spans in 2 lanes on unknown device>
    """
    name, texts = str(path), Texts()
    packets = read_packets(path)
    said = read_said(packets, texts)
    left_out = packets.left_out
    events = read_events(packets, texts, left_out)
    times = packet_times(packets, said)
    time_ns = times.time_ns[events.packet]
    is_used = times.is_known[events.packet] & ~events.is_delta & (events.type > 0)
    left_out["events whose time is not told"] += int((~is_used & (events.type > 0)).sum())
    lacks = packets.needs_state[events.packet] & ~said.is_known[said.generation[events.packet]]
    left_out["events whose names are lost"] += int((is_used & lacks).sum())
    is_used &= ~lacks
    events = _with_default_tracks(events, said)
    if not said.own:
        return trace_of_others(Content(name, packets, said, texts, events, times, is_used, left_out))
    try:
        if packets.lost_bytes or packets.is_cut or packets.damaged:
            raise ValueError("it was cut off")
        return _own_trace(packets, said, events, time_ns, match_spans(events, time_ns, is_used))
    except (GPUStreamLabError, msgspec.MsgspecError, *_GARBAGE) as error:
        raise TraceFileError(
            f"{name!r} was written by gpustreamlab and is damaged: {str(error)[:300].rstrip('.')}. Write or copy it again."
        ) from error


def _with_default_tracks(events: Events, said: Said) -> Events:
    """Return events with the tracks that their sequence says for those that name none."""
    known = np.full(int(said.version.max(initial=0)) + 1, NO_TRACK, np.uint64)
    for version, defaults in said.defaults.items():
        known[version] = defaults.track
    is_none = events.track == NO_TRACK
    return events._replace(track=np.where(is_none, known[said.version[events.packet]], events.track))


def _own_trace(packets: Packets, said: Said, events: Events, time_ns: Int64Array, matched: Matched) -> Trace:
    """Return the trace that `write_pftrace` wrote."""
    facts, columns = _own_content(packets, said)
    tables, counter_names = read_tables(facts.tables.encode())
    if matched.unmatched or matched.is_open.any():
        raise ValueError("spans have no beginning or no end")
    lane_of = dict(facts.lanes)
    is_span = np.isin(events.track[matched.event], np.array([*lane_of], np.uint64))
    spans = np.flatnonzero(is_span)  # the others are markers
    event = matched.event[spans]
    row = np.cumsum(columns["row"])
    if len(row) != len(spans) or not np.array_equal(np.sort(row), np.arange(len(row))):
        raise ValueError(f"{len(spans):,} spans stand where {len(row):,} were written")
    place = np.empty_like(row)
    place[row] = np.arange(len(row))
    event = event[place]
    uuids, track = np.unique(events.track[event], return_inverse=True)
    start_ns, end_ns = (_shifted(times[spans][place], facts) for times in (matched.start_ns, matched.end_ns))
    known = {"start_ns": start_ns, "end_ns": end_ns} | _told(events, event)
    plain, extra = span_columns(known, columns, facts)
    spans_columns: dict[str, Any] = {
        "lane": np.array([lane_of[uuid] for uuid in uuids.tolist()], np.int64)[track],
        "name": events.name[event] - 1,
        "kind": events.category[event] - 1,
    }
    return Trace(
        start_ns=start_ns,
        end_ns=end_ns,
        **plain | spans_columns,
        names=tables.names,
        lanes=tables.lanes,
        threads=tables.threads,
        partitions=tables.partitions,
        metadata=tables.metadata,
        details=tables.details,
        layout=tables.layout,
        layouts=tables.layouts,
        markers=tables.markers,
        extra=extra,
        edges=_edges(events, columns, event),
        counters=_counters(events, time_ns, columns, facts, counter_names),
    )


def _own_content(packets: Packets, said: Said) -> tuple[Facts, dict[str, Int64Array]]:
    """Return the facts, and the columns."""
    facts, columns, view = None, {}, packets.data.data
    for first, last in said.own:
        for number, _, _, begin, end in read_message(view, first, last):
            if number == FACTS:
                facts = msgspec.json.decode(bytes(view[begin:end]), type=Facts)
            elif number == COLUMN:
                fields = read_fields(packets.data, np.array([begin]), np.array([end]))
                name, values = read_column(packets.data, fields)
                columns[name] = values
    if facts is None:
        raise ValueError("its facts are missing")
    return facts, columns


def _shifted(times_ns: Int64Array, facts: Facts) -> Int64Array:
    """Return times on the trace's clock."""
    return (times_ns.view(np.uint64) - np.uint64(facts.shift_ns & ((1 << 64) - 1))).view(np.int64)


def _told(events: Events, event: Int64Array) -> dict[str, Int64Array]:
    """Return what arguments of spans say, 0 where one lacks it."""
    of_event, name, value = events.arguments
    place = np.full(len(events.packet), -1)
    place[event] = np.arange(len(event))
    told = {}
    for column, number in ARGUMENTS.items():
        rows = np.flatnonzero((name == number) & (place[of_event] >= 0))
        told[column] = np.zeros(len(event), np.int64)
        told[column][place[of_event[rows]]] = value[rows]
    return told


def _edges(events: Events, columns: Mapping[str, Int64Array], event: Int64Array) -> Edges:
    kind = np.cumsum(columns["edge"])
    place = np.full(len(events.packet), -1)
    place[event] = np.arange(len(event))
    of_event, number, is_last = events.flows
    ends = np.full((2, len(kind)), -1)
    fits = (number > 0) & (number <= len(kind))
    ends[is_last[fits].astype(int), number[fits].astype(np.int64) - 1] = place[of_event[fits]]
    hidden = np.cumsum(columns["hidden_edge"])
    for side, name in enumerate(("hidden_source", "hidden_target")):
        ends[side, hidden] = np.cumsum(columns[name])
    fields: dict[str, Any] = {"source": ends[0], "target": ends[1], "kind": kind}
    return Edges(**fields)


def _counters(
    events: Events, time_ns: Int64Array, columns: Mapping[str, Int64Array], facts: Facts, names: tuple[str, ...]
) -> Counters:
    samples = np.flatnonzero(
        (events.type == COUNTER) & np.isin(events.track, np.array([uuid for uuid, *_ in facts.samples], np.uint64))
    )
    row = np.cumsum(columns["sample"])
    if len(row) != len(samples) or not np.array_equal(np.sort(row), np.arange(len(row))):
        raise ValueError(f"{len(samples):,} samples stand where {len(row):,} were written")
    place = np.empty_like(row)
    place[row] = np.arange(len(row))
    samples = samples[place]
    codes = {uuid: (lane, name) for uuid, lane, name in facts.samples}
    found = np.array([codes[uuid] for uuid in events.track[samples].tolist()], np.int64).reshape(-1, 2)
    fields: dict[str, Any] = {"lane": found[:, 0], "name": found[:, 1], "value": events.value[samples]}
    return Counters(time_ns=_shifted(time_ns[samples], facts), names=names, **fields)
