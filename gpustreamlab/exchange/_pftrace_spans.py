"""Spans of the events of Perfetto's traces: which end belongs to which beginning, and which flow goes from where to where."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpustreamlab.exchange._pftrace_events import COMPLETE, Events
from gpustreamlab.exchange._pftrace_packets import BEGIN, END, INSTANT
from gpustreamlab.exchange._protobuf import Numbers
from gpustreamlab.typing import BoolArray, Int64Array


class Matched(NamedTuple):
    """Spans, in the order of their events in the file."""

    event: Int64Array
    """The event that begins each span; shape (n_spans,)."""
    start_ns: Int64Array
    end_ns: Int64Array
    is_open: BoolArray
    """Whether nothing ends it: it lasts until the last event."""
    span_of: Int64Array
    """Of each event, the span that it begins or ends, or -1; shape (n_events,)."""
    unmatched: int
    """Ends that end nothing."""


def match_spans(events: Events, time_ns: Int64Array, is_used: BoolArray) -> Matched:
    """Find the spans of events; times of all of them are given, and which ones count."""
    kind = np.where(is_used, events.type, 0)
    both = np.flatnonzero((kind == BEGIN) | (kind == END))
    begins, ends, unmatched = _pairs(events.track[both], time_ns[both], kind[both] == BEGIN)
    starting = np.flatnonzero((kind == BEGIN) | (kind == INSTANT) | (kind == COMPLETE))
    span_of = np.full(len(kind), -1)
    span_of[starting] = np.arange(len(starting))
    start_ns = time_ns[starting]
    end_ns, is_open = start_ns + events.duration_ns[starting], kind[starting] == BEGIN
    ended = span_of[both[begins]]
    end_ns[ended], is_open[ended] = time_ns[both[ends]], False
    span_of[both[ends]] = ended
    if is_open.any():
        last_ns = int(time_ns[np.flatnonzero(is_used)].max())
        end_ns[is_open] = np.maximum(last_ns, start_ns[is_open])
    return Matched(starting, start_ns, end_ns, is_open, span_of, unmatched)


def _pairs(track: Numbers, time_ns: Int64Array, is_begin: BoolArray) -> tuple[Int64Array, Int64Array, int]:
    """Return beginnings, the end of each, and how many ends end nothing; an end belongs to what began last on its track."""
    order = np.lexsort((time_ns, track))  # events of one moment stay as they are in the file
    order, unmatched = _without_lonely_ends(order, track, is_begin)
    begins = is_begin[order]
    _, code = np.unique(track[order], return_inverse=True)
    step = np.where(begins, 1, -1)
    depth = np.cumsum(step)
    depth -= np.where(begins, 1, 0)  # of an end: as deep as what it ends
    first = np.flatnonzero(np.diff(code, prepend=-1))
    before = np.append(0, np.cumsum(step))[first]
    depth -= np.repeat(before, np.diff(np.append(first, len(order))))
    by_depth = np.lexsort((depth, code))
    sorted_depth, sorted_code, sorted_begin = depth[by_depth], code[by_depth], begins[by_depth]
    is_pair = (
        sorted_begin[:-1] & ~sorted_begin[1:] & (sorted_depth[:-1] == sorted_depth[1:]) & (sorted_code[:-1] == sorted_code[1:])
    )
    at = np.flatnonzero(is_pair)
    return order[by_depth[at]], order[by_depth[at + 1]], unmatched


def _without_lonely_ends(order: Int64Array, track: Numbers, is_begin: BoolArray) -> tuple[Int64Array, int]:
    """Leave out ends at which nothing is open."""
    if not len(order):
        return order, 0
    step = np.where(is_begin[order], 1, -1)
    tracks = track[order]
    total = np.cumsum(step)
    first = np.flatnonzero(np.append(True, tracks[1:] != tracks[:-1]))
    sizes = np.diff(np.append(first, len(order)))
    open_count = total - np.repeat(total[first] - step[first], sizes)
    # The lowest count so far, of each track on its own: each new one below 0 is an end too many.
    span = len(order) + 1
    shifted = open_count - np.repeat(np.arange(len(first)), sizes) * 2 * span
    lowest = np.minimum.accumulate(shifted) + np.repeat(np.arange(len(first)), sizes) * 2 * span
    lowest = np.minimum(lowest, 0)
    before = np.append(0, lowest[:-1])
    before[first] = 0
    is_lonely = (step < 0) & (lowest < before)
    return order[~is_lonely], int(is_lonely.sum())


def link_flows(events: Events, time_ns: Int64Array, span_of: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the spans that flows come from, and those that they go to: from each event of a flow to the next one.

    An event that is the last one of its flow ends it; the next one of its number begins another.
    """
    event, flow, is_last = events.flows
    kept = span_of[event] >= 0
    event, flow, is_last = event[kept], flow[kept], is_last[kept]
    # Where an event ends one flow and is in another of the same number, it ends that first.
    order = np.lexsort((~is_last, event, time_ns[event], flow))
    event, flow, is_last = event[order], flow[order], is_last[order]
    is_next = (flow[1:] == flow[:-1]) & ~is_last[:-1]
    source, target = span_of[event[:-1][is_next]], span_of[event[1:][is_next]]
    differs = source != target
    return source[differs], target[differs]
