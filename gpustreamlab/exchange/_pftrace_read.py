"""Read Perfetto's traces: our own ones back exactly, and those of others as far as they hold what a trace does."""

from __future__ import annotations

import io
from os import PathLike

import numpy as np

from gpustreamlab.exchange._pftrace_events import NO_TRACK, Events, Texts, read_events
from gpustreamlab.exchange._pftrace_file import read_packets
from gpustreamlab.exchange._pftrace_others import Content, trace_of_others
from gpustreamlab.exchange._pftrace_said import Said, packet_times, read_said
from gpustreamlab.model import Trace
from gpustreamlab.model._file import parquet_trace


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
        If the file holds no packet or no event of those, is too large, or is one of ours whose own data is damaged.

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
    if len(said.own) == 1:
        ((first, last),) = said.own
        return parquet_trace(io.BytesIO(packets.data[first:last].tobytes()), f"{name!r}, which gpustreamlab wrote,")
    events = read_events(packets, texts, left_out)
    times = packet_times(packets, said)
    is_used = times.is_known[events.packet] & ~events.is_delta & (events.type > 0)
    left_out["events whose time is not told"] += int((~is_used & (events.type > 0)).sum())
    lacks = packets.needs_state[events.packet] & ~said.is_known[said.generation[events.packet]]
    left_out["events whose names are lost"] += int((is_used & lacks).sum())
    is_used &= ~lacks
    events = _with_default_tracks(events, said)
    return trace_of_others(Content(name, packets, said, texts, events, times, is_used, left_out))


def _with_default_tracks(events: Events, said: Said) -> Events:
    """Return events with the tracks that their sequence says for those that name none."""
    known = np.full(int(said.version.max(initial=0)) + 1, NO_TRACK, np.uint64)
    for version, defaults in said.defaults.items():
        known[version] = defaults.track
    is_none = events.track == NO_TRACK
    return events._replace(track=np.where(is_none, known[said.version[events.packet]], events.track))
