"""Whether a trace can be trusted: what is missing of it, and which of its times contradict each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from gpustreamlab.analysis._busy import is_work, require_trace
from gpustreamlab.analysis._host_waits import copy_rates, lasted_ns, named_calls
from gpustreamlab.analysis._report import Answer, ReportTable
from gpustreamlab.analysis._scale import count_text, format_ns, format_share
from gpustreamlab.model import SPAN_KINDS, Trace, display_name
from gpustreamlab.typing import BoolArray, EdgeKind, Int64Array, SpanKind

if TYPE_CHECKING:
    import pandas as pd

WHOLE_GRAPHS = "whole graphs"
CHECKS = (
    *("cut", "kernels lost", "copies lost", "no time", "doubled", "unit", "clocks", "dropped", "tool", "overhead"),
    *("launches lost", "fills lost", WHOLE_GRAPHS),
)
"""What speaks against a trace; the gravest first."""
BESIDE = ("launches lost", "fills lost", WHOLE_GRAPHS)  # What is never said before answers; of the first the readers tell
GRAVE_SHARE = 0.01
"""From which share on launches without work, and work before its launch, are more than the end of a recording."""
GRAVE_OVERHEAD = 0.1
"""From which share of the time on the profiler made another run of it."""
LISTED = 3  # How many warnings of the tool are shown
LONGEST_NS = 86_400 * 10**9
"""No kernel, copy or fill lasts longer: a day."""
FEWEST, SHORTEST_NS, MOST_BYTES_PER_S = 4, 100, 2e12
"""So many kernels, or launches, of which the median takes less than that, are told in another unit than is said: no card and
no host is as fast. Likewise a copy of a megabyte between host and card that went faster."""

_LAUNCHES = re.compile(r"^(cu(da)?|hip|ur|ze)\w*(LaunchKernel|KernelLaunch|LaunchCooperative|GraphLaunch)", re.IGNORECASE)
_COPIES = re.compile(r"^(cu(da)?|hip)Memcpy|^urEnqueueUSMMemcpy")
_FILLS = re.compile(r"^(cu(da)?|hip)Memset|^urEnqueueUSMFill")
_CAPTURE = re.compile(r"Stream(Begin|End)Capture")
_OVERHEAD = re.compile(r"^overhead: (CUPTI .*|activity buffer request|uvm activity init)$", re.IGNORECASE)
_FAILED = re.compile(r" \(error \d+\)$")  # As the reader of nsys marks calls
_WHOLE_GRAPH = re.compile(r"^graph \d+ \(whole\)$")


class Doubt(NamedTuple):
    """One thing that speaks against a trace."""

    check: str  # Of `CHECKS`
    record_count: int  # How many records have it
    of: int  # Of how many; 0 where that is not known
    worst_ns: int  # The most that a time is off, or what it took, in ns; 0 where it is no time
    text: str  # What it is, and what it means, in a sentence
    share: float = 1.0  # How much of the trace it concerns, where that is known

    @property
    def is_grave(self) -> bool:
        """Whether it is said before any answer, not beside it."""
        least = GRAVE_OVERHEAD if self.check == "overhead" else GRAVE_SHARE
        return self.check not in BESIDE and self.share >= least


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Quality(Answer):
    """What speaks against a trace: what is missing, and which times cannot be. False where nothing does."""

    doubts: tuple[Doubt, ...]
    """What was found, the gravest first."""
    lost_row: Int64Array
    """Rows of calls of which the kernel, copy or fill is missing; int64."""
    dependent_count: int
    """How many kernels began before the one in front on their stream had ended: programmatic dependent launches."""

    _columns: ClassVar = ("lost_row",)
    _title: ClassVar = "Quality:"
    _tells_doubt: ClassVar = True

    def __len__(self) -> int:
        return len(self.doubts)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row for each doubt, with the fields of it, as a `pandas.DataFrame`."""
        import pandas as pd

        return pd.DataFrame(self.doubts, columns=Doubt._fields)

    def __getitem__(self, check: str) -> int:
        """Return how many records a check of `CHECKS` found; 0 where it found none."""
        return next((one.record_count for one in self.doubts if one.check == check), 0)

    @property
    def grave(self) -> str:
        """What has to be said before any answer, in a sentence or several; empty where nothing has."""
        return " ".join(one.text for one in self.doubts if one.is_grave)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is said beside answers, and not before them: each a sentence."""
        return tuple(one.text for one in self.doubts if one.check in {"overhead", *BESIDE[1:]} and not one.is_grave)

    def _line(self) -> str:
        return self.doubts[0].text.rstrip(".") if self.doubts else "nothing in the trace speaks against it"

    def _tables(self) -> list[ReportTable]:
        rows = [["check", "records", "what it means"]]
        rows += [[one.check, f"{one.record_count:,}{f' of {one.of:,}' if one.of else ''}", one.text] for one in self.doubts]
        return [
            ReportTable(caption="What speaks against the trace", rows=rows, lines=[one.text for one in self.doubts], wraps=True)
        ]

    def _notes(self) -> list[str]:
        count = self.dependent_count
        told = f"{count_text(count, 'kernel')} began before the one in front had ended: programmatic dependent launch."
        return [*([told] if count else []), "Only what records tell is checked: what left no record at all nobody can tell."]


def quality(trace: Trace) -> Quality:
    """Say whether a trace can be trusted: what is missing of it, and which of its times contradict each other.

    Parameters
    ----------
    trace
        All of a trace: a part lacks what was cut off.

    Raises
    ------
    OptionError
        If it is no trace.

    Notes
    -----
    Checked are files and runs that were cut short, launches without kernels, copies or fills and those without launches (where
    calls were recorded), records without times or of more than a day, records that are there twice, files whose times are in
    another unit than their format says, work that begins before the call that launched it by more than the clocks' error,
    dropped records, what the tool itself warns of, graphs of which only the whole was recorded, and the profiler's own time.

    Examples
    --------
    >>> names, kinds = ["cudaLaunchKernel", "gemm"], ["host", "kernel"]
    >>> trace = Trace.from_columns(start_ns=[0, 5], end_ns=[3, 9], stream=["main", "a"], name=names, kind=kinds)
    >>> quality(trace)["kernels lost"], quality(trace)["no time"]
    (1, 0)
    """
    require_trace(trace, "quality")
    calls = {check: _launches(trace, pattern) for check, (pattern, _) in _LOST.items()}
    doubts = [*_doubts(trace), *(() if trace.metadata.part_of_spans else _lost(calls)), *_overhead(trace), *_failed(trace)]
    doubts.sort(key=lambda one: CHECKS.index(one.check))
    lost = np.sort(np.concatenate([rows for _, rows in calls.values()]))
    return Quality(trace=trace, doubts=tuple(doubts), lost_row=lost, dependent_count=_dependent_count(trace))


_LOST = {
    "kernels lost": (_LAUNCHES, "launches have no kernel"),
    "copies lost": (_COPIES, "calls that copy have no copy"),
    "fills lost": (_FILLS, "calls that fill memory have no fill"),
}
"""Calls that launch work, by the check of which they lack it, and what is then said."""


def _lost(calls: Mapping[str, tuple[int, Int64Array]]) -> Iterator[Doubt]:
    again = " Times without work may be without a record only. Record again, for a shorter time and behind a step to warm up."
    for check, (count, rows) in calls.items():
        if len(rows):
            told = f"{len(rows):,} of {count:,} {_LOST[check][1]}"
            text, again = f"The profile is incomplete: {told}.{again}", ""
            if check in BESIDE:  # libraries fill 0 bytes quite often
                text = f"{told}: there was nothing to fill, or it is lost."
            yield Doubt(check, len(rows), count, 0, text, len(rows) / count)


def _doubts(trace: Trace) -> Iterator[Doubt]:
    meta, edges = trace.metadata, trace.edges.select(EdgeKind.LAUNCH)
    if meta.recovery_note:
        yield Doubt("cut", 1, 0, 0, f"The trace is cut short: {meta.recovery_note}.")
    if meta.refused_records:
        text = f"{count_text(meta.refused_records, 'record')} had no time: none, or one that cannot be. They are left out."
        yield Doubt("no time", meta.refused_records, 0, 0, text)
    error_ns = meta.kernel_error_ns + meta.host_error_ns
    early_ns = trace.start_ns[edges.source] - trace.start_ns[edges.target]
    if (early_ns > error_ns).any():
        count, worst_ns = int((early_ns > error_ns).sum()), int(early_ns.max())
        yield Doubt(
            *("clocks", count, len(edges), worst_ns),
            f"The clocks of host and device disagree: {count:,} of {len(edges):,} kernels, copies and fills begin before their "
            f"call, by up to {format_ns(worst_ns)}. What the host did meanwhile may be off by as much.",
            count / len(edges),
        )
    yield from _impossible(trace)
    if dropped := meta.dropped_spans:
        text = f"{count_text(dropped, 'span')} were dropped, as a buffer was full."
        yield Doubt("dropped", dropped, len(trace) + dropped, 0, text, dropped / (len(trace) + dropped))
    if meta.diagnostics:
        told = "; ".join(display_name(one, 160).rstrip(".") for one in meta.diagnostics[:LISTED])
        yield Doubt("tool", len(meta.diagnostics), 0, 0, f"The tool that recorded it warns: {told}.")
    work = is_work(trace)
    has_calls = bool((trace.kind == SPAN_KINDS.index(SpanKind.HOST)).any())
    is_orphan = work.copy()
    is_orphan[edges.target] = False
    orphan_count = int(is_orphan.sum())
    if has_calls and orphan_count and not meta.part_of_spans:
        text = f"{orphan_count:,} of {int(work.sum()):,} kernels, copies and fills have no call that launched them."
        yield Doubt("launches lost", orphan_count, int(work.sum()), 0, text)
    whole = np.flatnonzero(named_calls(trace, _WHOLE_GRAPH.match, SpanKind.KERNEL))
    if len(whole):
        graphs = count_text(len(whole), "launch of a graph", "launches of graphs")
        text = f"{graphs} are one span each: what ran in them is not told."
        yield Doubt(WHOLE_GRAPHS, len(whole), int(work.sum()), 0, text)


def _impossible(trace: Trace) -> Iterator[Doubt]:
    """Tell of records that cannot all be true: they last too long, are there twice, or are told in another unit."""
    rows = np.flatnonzero(is_work(trace))
    longest_ns = int(lasted_ns(trace, rows).max(initial=0))
    if longest_ns > LONGEST_NS:
        count = int((lasted_ns(trace, rows) > LONGEST_NS).sum())
        text = f"{count_text(count, 'kernel, copy or fill', 'kernels, copies and fills')} last for up to "
        text += f"{longest_ns / LONGEST_NS:,.0f} days, which cannot be: all shares of time are wrong."
        yield Doubt("no time", count, len(rows), longest_ns, text)
    doubled = _doubled_count(trace, rows)
    if doubled:
        text = f"{doubled:,} of {len(rows):,} kernels, copies and fills are there twice: same stream, name and times."
        yield Doubt("doubled", doubled, len(rows), 0, f"{text} What they took is counted twice.", doubled / len(rows))
    told = _too_fast(trace, rows) if trace.metadata.imported else ""
    if told:
        text = f"The times are in another unit than the format says, perhaps 1,000 times too short: {told}."
        yield Doubt("unit", len(rows), len(rows), 0, text)


def _doubled_count(trace: Trace, rows: Int64Array) -> int:
    """Return how much work has the stream, name, start and end of other work; nodes of graphs may run in pairs."""
    start_ns = trace.start_ns[rows]
    if (start_ns[1:] < start_ns[:-1]).any():
        rows = rows[np.argsort(start_ns, kind="stable")]
    is_at_once = np.diff(trace.start_ns[rows]) == 0
    rows = rows[np.append(is_at_once, False) | np.append(False, is_at_once)] if len(rows) else rows
    launches = trace.edges.select(EdgeKind.LAUNCH)
    is_graph = np.array([*("GraphLaunch" in name for name in trace.names), False])[trace.name[launches.source]]
    rows = np.setdiff1d(_outside_graphs(trace, rows[trace.end_ns[rows] > trace.start_ns[rows]]), launches.target[is_graph])
    rows = rows[np.lexsort((trace.name[rows], trace.end_ns[rows], trace.start_ns[rows], trace.lane[rows]))]
    told = np.stack([column[rows] for column in (trace.lane, trace.start_ns, trace.end_ns, trace.name)])
    return int((told[:, 1:] == told[:, :-1]).all(axis=0).sum())


def _outside_graphs(trace: Trace, rows: Int64Array) -> Int64Array:
    """Return the work of some rows that is no node of a graph by its detail."""
    if "detail" not in trace.extra:
        return rows
    is_node = np.array([*(one.graph > 0 for one in trace.details), False], bool)
    outside: Int64Array = rows[~is_node[trace.extra["detail"][rows]]]
    return outside


def _too_fast(trace: Trace, rows: Int64Array) -> str:
    """Say what is faster than any card or host, in words; empty where nothing is."""
    is_kernel = trace.kind[rows] == SPAN_KINDS.index(SpanKind.KERNEL)
    launches = np.flatnonzero(named_calls(trace, _LAUNCHES.search))
    for own, what in ((rows[is_kernel], "kernels take"), (launches, "launches take the host")):
        if len(own) >= FEWEST and (typical_ns := float(np.median(lasted_ns(trace, own)))) < SHORTEST_NS:
            return f"{what} {format_ns(int(typical_ns))} (median)"
    rates = [rate for rate in copy_rates(trace) if rate is not None]
    return f"copies go at {max(rates) / 1e12:,.0f} TB/s" if max(rates, default=0) > MOST_BYTES_PER_S else ""


def _overhead(trace: Trace) -> Iterator[Doubt]:
    rows = np.flatnonzero(named_calls(trace, _OVERHEAD.match))
    took_ns = int(lasted_ns(trace, rows).sum()) + trace.metadata.profiler_ns
    if took_ns:
        share = took_ns / max(1, int(trace.end_ns.max() - trace.start_ns.min()))
        means = ": times, and what changes save, are those of the profiled run" if share >= GRAVE_OVERHEAD else ""
        how_long = f"{format_share(share)} of the time" if share <= 1 else "longer than what was recorded"
        yield Doubt(
            *("overhead", max(1, len(rows)), 0, took_ns),
            f"The profiler itself took {format_ns(took_ns)}, {how_long}{means}.",
            share,
        )


def _failed(trace: Trace) -> Iterator[Doubt]:
    rows = np.flatnonzero(named_calls(trace, _FAILED.search))
    if len(rows):
        name = display_name(trace.names[int(trace.name[rows[0]])], 60)
        text = f"{count_text(len(rows), 'call')} failed and launched nothing, the first of them {name}: see what it returned."
        yield Doubt("tool", len(rows), 0, 0, text)


def _launches(trace: Trace, pattern: re.Pattern[str]) -> tuple[int, Int64Array]:
    """Return how many calls of some names launch work, and the rows of those of which none is in the trace.

    Of a call within another one the outer counts; launches while a stream is captured run nothing, nor do those that failed.
    """
    rows = np.flatnonzero(named_calls(trace, lambda name: pattern.search(name) and not _FAILED.search(name)))
    if not len(rows):
        return 0, rows
    rows = rows[np.lexsort((-trace.end_ns[rows], trace.start_ns[rows], trace.lane[rows]))]
    rows = rows[~_captured(trace, rows)]
    launched = np.zeros(len(trace), bool)
    launched[trace.edges.select(EdgeKind.LAUNCH).source] = True
    outer, lost = [], []
    for lane in np.unique(trace.lane[rows]).tolist():
        own = rows[trace.lane[rows] == lane]
        reach_ns = np.maximum.accumulate(trace.end_ns[own])
        is_outer = np.append(True, trace.end_ns[own[1:]] > reach_ns[:-1])
        has_work = np.bincount(np.cumsum(is_outer, dtype=np.intp) - 1, weights=launched[own]) > 0
        outer.append(int(is_outer.sum()))
        lost.append(own[is_outer][~has_work])
    return sum(outer), np.concatenate([rows[:0], *lost])


def _captured(trace: Trace, rows: Int64Array) -> BoolArray:
    """Tell which calls lie between the begin and the end of a capture of their thread."""
    found = np.zeros(len(rows), bool)
    marks = np.flatnonzero(named_calls(trace, _CAPTURE.search))
    for lane in np.unique(trace.lane[marks]).tolist():
        own = marks[trace.lane[marks] == lane]
        own = own[np.argsort(trace.start_ns[own], kind="stable")]
        begins = np.array(["Begin" in trace.names[name] for name in trace.name[own].tolist()], np.int64)
        depth = np.append(0, np.cumsum(2 * begins - 1))
        asked = trace.lane[rows] == lane
        found[asked] = depth[np.searchsorted(trace.start_ns[own], trace.start_ns[rows[asked]])] > 0
    return found


def _dependent_count(trace: Trace) -> int:
    """Return how many kernels of a stream, but those of graphs, began before the one in front had ended."""
    rows = np.flatnonzero(is_work(trace) & (trace.kind == SPAN_KINDS.index(SpanKind.KERNEL)))
    rows = _outside_graphs(trace, rows)
    rows = rows[np.lexsort((trace.start_ns[rows], trace.lane[rows]))]
    is_same = trace.lane[rows[1:]] == trace.lane[rows[:-1]]
    early_ns = trace.end_ns[rows[:-1]] - trace.start_ns[rows[1:]]
    return int((is_same & (early_ns > 2 * trace.metadata.kernel_error_ns)).sum())
