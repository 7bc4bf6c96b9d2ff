"""Work that did not run on the stream that was selected when it was launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gpustreamlab.analysis._busy import KIND_WORDS, RANGE_CODE, is_work, join_words, require_trace
from gpustreamlab.analysis._report import Answer, ReportTable, add_up, listed
from gpustreamlab.analysis._rows import MAX_LANE_ROWS
from gpustreamlab.analysis._scale import count_text, format_ns
from gpustreamlab.model import SPAN_KINDS, Lane, Partition, Trace, display_name
from gpustreamlab.typing import BoolArray, CaptureTier, Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class StrayGroup:
    """Strays of one name that went the same way."""

    name: str  # What ran
    ran_on: str  # The stream on which it ran
    selected: str  # The stream that was selected
    ran_in: str | None  # Partition in which it ran; None for the whole card
    selected_in: str | None  # Partition of the selected stream; None for the whole card
    span_count: int  # How many ran
    total_ns: int  # What their durations add up to, in ns
    fix: str = ""  # What to do

    @property
    def left_partition(self) -> bool:
        """Whether they ran on other SMs than those that were chosen for them."""
        return self.ran_in != self.selected_in


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Strays(Answer):
    """Kernels, copies and fills whose innermost range is of another stream than the one on which they ran.

    A range is of the stream that was selected when it was opened. Work outside all ranges is no stray: nobody said where it
    was to run. False where there are none.
    """

    row: Int64Array
    """Rows of the trace; shape (n_strays,), int64."""
    kind: Int64Array
    """Code of the `SpanKind`; shape (n_strays,), int64."""
    name: Int64Array
    """Index into `names`; shape (n_strays,), int64."""
    ran_on: Int64Array
    """The lane on which it ran, index into `lanes`; shape (n_strays,), int64."""
    selected: Int64Array
    """The lane of the range, index into `lanes`; shape (n_strays,), int64."""
    range_name: Int64Array
    """Name of the range, index into `names`; shape (n_strays,), int64."""
    ran_in: Int64Array
    """Index into `partitions` of the one in which it ran, -1 for the whole card; shape (n_strays,), int64."""
    selected_in: Int64Array
    """Index into `partitions` of the one in which the range was, -1 for the whole card; shape (n_strays,), int64."""
    duration_ns: Int64Array
    """How long it ran; shape (n_strays,), int64, in ns."""
    work_count: int
    """How many kernels, copies and fills the trace has inside ranges."""

    _title: ClassVar = "Strays:"
    _columns: ClassVar = ("row", "kind", "name", "ran_on", "selected", "range_name", "ran_in", "selected_in", "duration_ns")
    _frame: ClassVar = {
        "row": "row",
        "name": ("name", "names"),
        "kind": ("kind", "kinds"),
        "ran_on": ("ran_on", "lanes"),
        "selected": ("selected", "lanes"),
        "range": ("range_name", "names"),
        "ran_in": ("ran_in", "partitions"),
        "selected_in": ("selected_in", "partitions"),
        "left_partition": "left_partition",
        "duration_ns": "duration_ns",
    }

    @property
    def left_partition(self) -> BoolArray:
        """Whether each ran in another partition than the selected stream's; shape (n_strays,), bool."""
        place = _partition_places(self.partitions)
        left: BoolArray = place[self.ran_in] != place[self.selected_in]
        return left

    @property
    def groups(self) -> tuple[StrayGroup, ...]:
        """Those of one name that went the same way, together; what took longest first."""
        place = _partition_places(self.partitions)
        named = [*dict.fromkeys(part.name for part in self.partitions), None]
        columns = (self.name, self.ran_on, self.selected, place[self.ran_in], place[self.selected_in])
        return tuple(
            StrayGroup(
                name=self.names[name],
                ran_on=self.lanes[ran_on].name,
                selected=self.lanes[selected].name,
                ran_in=named[ran_in],
                selected_in=named[selected_in],
                span_count=count,
                total_ns=total_ns,
                fix=_advice(self.lanes[ran_on], self.lanes[selected]),
            )
            for (name, ran_on, selected, ran_in, selected_in), count, total_ns in add_up(columns, self.duration_ns)
        )

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do, one sentence for each stream that work strayed to; those with most of it first."""
        return tuple(_advice(self.lanes[lane], self.lanes[selected]) for lane, selected in _streams(self)[:LISTED_STREAMS])

    def _line(self) -> str:
        return stray_line(self)

    def _tables(self) -> list[ReportTable]:
        head = ["name", "ran on", "selected", "partition", "spans", "time"]
        return [listed("Work that left the selected stream", head, self.groups, _row, names=(0, 1, 2, 3))]

    def _notes(self) -> tuple[str, ...]:
        return self.advice


def strays(trace: Trace) -> Strays:
    """Find the kernels, copies and fills that did not run on the stream that was selected when they were launched.

    Parameters
    ----------
    trace
        The spans. Without kernels in it (tier ``ranges``) nothing is found.

    Raises
    ------
    OptionError
        If it is no trace.

    Examples
    --------
    >>> from gpustreamlab.model import Device, Lane, Trace, TraceMetadata
    >>> trace = Trace(
    ...     start_ns=[0, 50, 60], end_ns=[100, 90, 70], queued_ns=[0, 0, 0], lane=[0, 0, 1], name=[0, 1, 1], kind=[0, 1, 1],
    ...     parent=[-1, 0, 0], thread=[0, 0, 0], names=("step", "gemm"), threads=("MainThread",),
    ...     lanes=(Lane(name="compute", stream=1), Lane(name="torch stream 13", stream=13, outside=True)),
    ...     metadata=TraceMetadata(backend="sim", device=Device(name="demo", sm_count=4), tier="kernels"),
    ... )
    >>> found = strays(trace)
    >>> found.row.tolist(), found.groups[0].ran_on, found.groups[0].selected, found.groups[0].total_ns
    ([2], 'torch stream 13', 'compute', 10)
    """
    require_trace(trace, "strays")
    work = np.flatnonzero(is_work(trace) & (trace.parent >= 0))
    above = nearest_ranges(trace, work)
    work, above = work[above >= 0], above[above >= 0]
    is_stray = trace.lane[work] != trace.lane[above]
    row, around = work[is_stray], above[is_stray]
    return Strays(
        row=row,
        kind=trace.kind[row],
        name=trace.name[row],
        ran_on=trace.lane[row],
        selected=trace.lane[around],
        range_name=trace.name[around],
        ran_in=trace.partition[row],
        selected_in=trace.partition[around],
        duration_ns=trace.end_ns[row] - trace.start_ns[row],
        work_count=len(work),
        trace=trace,
    )


def nearest_ranges(trace: Trace, rows: Int64Array) -> Int64Array:
    """Return the nearest range around each of these rows, or -1; ranges of others are passed over."""
    above = trace.parent[rows]
    is_range = trace.kind == RANGE_CODE
    for _ in range(4 * MAX_LANE_ROWS):
        other = np.flatnonzero((above >= 0) & ~is_range[above])
        if not other.size:
            return above
        above[other] = trace.parent[above[other]]
    return np.where((above >= 0) & is_range[above], above, -1)


def _partition_places(partitions: tuple[Partition, ...]) -> Int64Array:
    """Return one number for each name of a partition, by code; the last, for the code -1, is the whole card's."""
    names = list(dict.fromkeys(part.name for part in partitions))
    return np.array([*(names.index(part.name) for part in partitions), len(names)], np.int64)


LISTED_STREAMS = 3  # For how many streams that work strayed to it is said what to do
_NAME_WIDTH = 32


def work_text(kind: Int64Array) -> str:
    """Say how many kernels, copies and fills there are."""
    counts = np.bincount(kind, minlength=len(SPAN_KINDS)).tolist()
    shown = [count_text(count, *KIND_WORDS[kind]) for kind, count in zip(SPAN_KINDS, counts, strict=True) if count]
    return join_words(shown, "and") if shown else "nothing"


def stray_line(result: Strays) -> str:
    """Say the main facts in one line."""
    if not len(result):
        where = "all work inside ranges ran on the selected stream"
        return where if result.work_count else _nothing_captured(result)
    ran = f"{work_text(result.kind)} ran on {'another stream' if len(_streams(result)) == 1 else 'other streams'}"
    left = int(result.left_partition.sum())
    outside = "" if left == len(result) else f"{left:,} of them "
    beyond = f", {outside}outside the partition" if left else ""
    return f"{ran} than the selected one{beyond}: {_group_text(result.groups[0], len(result))}"


def _streams(result: Strays) -> list[tuple[int, int]]:
    """Return each lane that work strayed to, by how much did, with the stream that it most often came from."""
    pairs, counts = np.unique(np.stack((result.ran_on, result.selected), axis=1), axis=0, return_counts=True)
    most: dict[int, tuple[int, int]] = {}
    totals: dict[int, int] = {}
    for (ran_on, selected), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        totals[ran_on] = totals.get(ran_on, 0) + count
        most[ran_on] = max(most.get(ran_on, (0, 0)), (count, selected))
    return [(ran_on, most[ran_on][1]) for ran_on in sorted(totals, key=lambda lane: -totals[lane])]


def _advice(lane: Lane, selected: Lane) -> str:
    name, wanted = display_name(lane.name, _NAME_WIDTH), display_name(selected.name, _NAME_WIDTH)
    if lane.device != selected.device:
        return (
            f"{name} is on GPU {lane.device}, and {wanted} on GPU {selected.device}: launch with node[{selected.device}].xp, "
            f"or select a stream of GPU {lane.device}."
        )
    if not lane.outside:
        return f"{name} is not the selected stream: open the range on it, with lab.on({name!r}, ...), or launch on {wanted}."
    if lane.name.startswith("torch stream"):
        handle = f"torch.cuda.ExternalStream(lab.stream({wanted!r}).handle)"
        return f"{name} is not the selected stream: wrap the call in torch.cuda.stream({handle})."
    if "default" in lane.name:
        return f"{name} takes the work that names no stream: pass lab.stream({wanted!r}) to the library that launched it."
    return f"{name} belongs to others: pass lab.stream({wanted!r}) to the library that launched on it."


def _row(group: StrayGroup) -> list[str]:
    ran_in, selected_in = (name and display_name(name, 24) for name in (group.ran_in, group.selected_in))
    place = f"left {selected_in or 'the whole card'} for {ran_in or 'the whole card'}" if group.left_partition else "same"
    return [
        display_name(group.name, _NAME_WIDTH),
        display_name(group.ran_on, _NAME_WIDTH),
        display_name(group.selected, _NAME_WIDTH),
        place,
        f"{group.span_count:,}",
        format_ns(group.total_ns),
    ]


def _nothing_captured(result: Strays) -> str:
    """Say that there is no work to look at, and what to type."""
    if result.metadata.imported:
        return "the file of another tool does not say which stream was selected"
    if result.metadata.tier is CaptureTier.KERNELS:
        return "no kernels were captured inside ranges"
    return "kernels were not captured, only ranges: capture them with lab.capture('kernels')"


def _group_text(group: StrayGroup, count: int) -> str:
    name, ran_on, selected = (display_name(text, _NAME_WIDTH) for text in (group.name, group.ran_on, group.selected))
    if group.span_count < count:
        share = f"{group.span_count:,} of {count:,}, {format_ns(group.total_ns)}"
        return f"most often {name} ({share}), on {ran_on} instead of {selected}"
    times = f" {count:,} times" if count > 1 else ""
    return f"{name} ran{times} on {ran_on} instead of {selected} ({format_ns(group.total_ns)})"
