"""Why work did not overlap: what it cost at most, why, what proves it, and what to type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gpustreamlab._util.words import wrap_sentence
from gpustreamlab.analysis._busy import counted_kinds, counted_rows, distinct, lane_processes, require_one_rank, require_trace
from gpustreamlab.analysis._causes import CODES, SURE, Found, find_causes, piece_of
from gpustreamlab.analysis._explain_text import TEXTS, finding_texts
from gpustreamlab.analysis._host_waits import calls_by
from gpustreamlab.analysis._overlap import concurrency
from gpustreamlab.analysis._pieces import NO_PIECES, LatePieces, Pieces, StepTime, find_pieces, needed_chain_ns
from gpustreamlab.analysis._report import Report, Reported, ReportTable, more_row, pending_text, simulated_notes
from gpustreamlab.analysis._rows import MAX_LANE_ROWS
from gpustreamlab.analysis._scale import format_ns, format_share
from gpustreamlab.analysis._stacks import HostBound, find_host_bound, name_threads
from gpustreamlab.errors import OptionError, StreamNotFoundError, nearest_hint
from gpustreamlab.model import Trace, TraceMetadata, display_name
from gpustreamlab.typing import BoolArray, CaptureTier, Cause, Certainty, Int64Array, LaneKind, SpanKind

if TYPE_CHECKING:
    import pandas as pd

LISTED_FINDINGS = 10
"""How many findings are shown; all are in `Explanation.findings`."""
PAIRS_TOLD = 4
"""Up to how many pairs of streams are told apart for one cause; what more cost is added up."""
POOLED_TIMES = 1.5
"""Pairs are added up as well where together they would save so many times what each would alone."""
PROFILER_TIMES = 10
"""The profiler's own time is told if it costs so many times what else is told."""
OF_HOST = (
    Cause.HOST_SYNC_DEVICE,
    Cause.HOST_SYNC_STREAM,
    Cause.HOST_LATE,
    Cause.LAUNCH_BOUND,
    Cause.LAZY_LOAD,
    Cause.ALLOC_SYNC,
    Cause.PAGEABLE_COPY,
    Cause.QUEUE_FULL,
    Cause.PROFILER_OVERHEAD,
)
"""What a program does all the time without harm; told where something is to be gained."""
HOST_FIRST_SHARE = 0.1
"""From which share of that time on it comes first that streams waited for the host with the card idle."""
LEAST_SHARE = 0.01
"""From which share of the time that anything ran a finding is worth telling."""
NOT_OFFERED_SHARE = 0.2
"""From which share of that time on it is told that nothing was there to overlap with: streams never begin and end as one."""
WAIT_WEIGHT = 0.5
"""How much of the time of a wait for an event counts in the order of findings."""
NEEDS_DATA = "waits for data that streams need are kept as they are"
"""What bounds the gain where waits for data do."""
LEAST_NS = 10_000
"""From which time on: less is a launch more or less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One reason why pieces of work of one stream did not overlap with those of another."""

    code: Cause
    """The cause."""
    certainty: Certainty
    """How sure it is."""
    stream: str
    """The stream whose work began late."""
    other: str | None
    """The stream whose work ran meanwhile; None where it is no single one."""
    saves_ns: int
    """The most that the whole could be shorter without it, in ns: never more than the busiest stream leaves to be gained; 0 for
    a wait that is known to be needed."""
    waited_ns: int
    """For how long others ran while this work waited, but no longer than it and what followed it then ran
    alone, in ns; of all such pieces."""
    piece_count: int
    """How many pieces of work it concerns."""
    pair_count: int
    """How many pairs of streams: of more than one, `stream`, `other` and the rows are those of the longest piece."""
    row: int
    """Row of the first work of the longest of them."""
    other_row: int
    """Row of the work that stood in front, or -1."""
    call_row: int
    """Row of the call of the host that proves it, or -1."""
    text: str
    """What happened, in one sentence with the figures of the longest."""
    fix: str
    """What to type, or to do."""
    pieces: LatePieces = field(default=NO_PIECES, repr=False, compare=False)
    """All pieces that it concerns; none for `Cause.SAME_LANE`."""
    thread: str | None = None
    """The thread that launched late; None where the host is not the cause, or the thread not known."""
    last_call_row: int = -1
    """Row of the last call of that thread before the launch of the longest, or -1."""
    launch_row: int = -1
    """Row of that launch, or -1."""
    function: str | None = None
    """Where the thread stood most often, in all such gaps; None without samples of its stack."""
    function_share: float = 0.0
    """In which share of the samples."""
    sample_count: int = 0
    """How many samples there are in these gaps."""

    @property
    def head(self) -> str:
        """The cause, how sure it is, and what it saves at most, in a line."""
        why, which, saves = _told(self)
        most = "at most " if self.saves_ns else ""
        return f"{why}: saves {most}{saves}{f'; {which}' if self.pair_count > 1 else ''}"

    @property
    def page(self) -> str:
        """Page of the documentation on this cause, with a program that shows it and the same mended."""
        return f"docs/how-to/why/{self.code.lower().replace('_', '-')}.md"

    def __str__(self) -> str:
        return f"{self.code} ({self.certainty}): {self.text} {self.fix} See {self.page}."


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Explanation(Reported):
    """Why work did not overlap, what would be gained at most, and what to change. False where nothing was found."""

    findings: tuple[Finding, ...]
    """Reasons; what saves most comes first. A wait for an event counts half, and one that is known to be needed comes last."""
    host_bound: tuple[HostBound, ...]
    """Streams that stood idle for most of their time because the host launched late, whether that cost overlap or not."""
    streams: tuple[str, ...]
    """The streams that were looked at."""
    active_ns: int
    """Time in which any of them worked, in ns."""
    together_ns: int
    """Time in which two or more worked at once, in ns."""
    offered_ns: int
    """Time in which two or more had work queued or running, in ns: more could not overlap, as it was launched."""
    gain_ns: int
    """The most that overlap could still save, in ns: `active_ns` less the time that the busiest stream, what they share, or the
    longest chain of work with waits for data that are known to be needed, takes at full speed."""
    asked: str
    """What is to be said of the span, or of the names, that was asked for; else empty."""
    reason: str
    """What bounds the gain where it is not the busiest stream; else empty."""
    is_ranges: bool
    """Whether only ranges are known, so that kernels within them are not."""
    has_calls: bool
    """Whether calls of the host are in the trace."""
    looked_share: float
    """How much of what late pieces cost was looked into: 1.0 but in traces with millions of late pieces."""
    metadata: TraceMetadata
    """Where the numbers come from."""

    _columns: ClassVar = ()

    def __len__(self) -> int:
        return len(self.findings)

    @property
    def headline(self) -> str:
        """What overlapped, and what is to be gained at most, in a line."""
        return self._line()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the figures mean, and what cannot be known."""
        return tuple(self._notes())

    def to_pandas(self) -> pd.DataFrame:
        """Return one row for each finding, as a `pandas.DataFrame`; the columns are the fields of `Finding`, but `pieces`."""
        import pandas as pd

        names = [name for name in Finding.__slots__ if name != "pieces"]
        return pd.DataFrame([[getattr(finding, name) for name in names] for finding in self.findings], columns=names)

    @property
    def worth_ns(self) -> int:
        """From which time on a finding is told."""
        return max(LEAST_NS, int(LEAST_SHARE * self.active_ns))

    @property
    def _first_bound(self) -> list[HostBound]:
        """Streams that waited for the host, with the card idle, for longer than all that overlap could save."""
        least_ns = max(self.gain_ns, int(HOST_FIRST_SHARE * self.active_ns))
        return [one for one in self.host_bound if one.idle_card_ns > least_ns]

    def _line(self) -> str:
        line = self._overlap_line()
        if not self._first_bound:
            return line
        names = ", ".join(repr(display_name(one.stream, 32)) for one in self._first_bound[:3])
        return f"{names} bound by the host, see below; {line}"

    def _overlap_line(self) -> str:
        if self.asked:
            return self.asked
        if len(self.streams) < 2 and not self.findings:
            nothing = "no work of a GPU is in the file" if self.metadata.imported else "nothing has ended"
            return "one stream, so nothing can overlap" if self.streams else nothing
        together_ns, active_ns = format_ns(self.together_ns), format_ns(self.active_ns)
        if self.is_ranges:
            known = f"{together_ns} of {active_ns} with ranges of two or more streams queued or running"
            return f"{known}; what of it ran at once is not known"
        together = f"{together_ns} of the {active_ns} in which anything ran with two or more streams at work"
        bound = f": {self.reason}" if self.reason else ""
        if self.gain_ns < LEAST_SHARE * self.active_ns or not self.gain_ns:
            return f"{together}; nothing to gain{bound or ': the busiest stream hides the others'}"
        gain = f"at most {format_ns(self.gain_ns)} ({format_share(self.gain_ns / self.active_ns)}) to gain{bound}"
        missing_ns = self.active_ns - self.offered_ns
        alone = f"; in {format_ns(missing_ns)} only one stream had work queued or running"
        return f"{together}; {gain}{alone if missing_ns > LEAST_SHARE * self.active_ns else ''}"

    def _report(self) -> Report:
        told = [_told(finding) for finding in self.findings[:LISTED_FINDINGS]]
        rows = [["why", "which", "saves at most", "what happened, and what to do"]]
        rows += [[*columns, f"{finding.text} {finding.fix}"] for columns, finding in zip(told, self.findings, strict=False)]
        rows += more_row(len(self.findings) - LISTED_FINDINGS, len(rows[0]), "more: see .findings")
        lines = []
        for place, finding in enumerate(self.findings[:LISTED_FINDINGS], 1):
            lines += wrap_sentence(f"{place}. {finding.head}")
            for sentence in (finding.text, finding.fix):
                lines += wrap_sentence(sentence, first_indent="   ", indent="   ")
        table = ReportTable(caption="Why work began late", rows=rows, names=(1,), lines=lines, wraps=True)
        tables = ([table] if self.findings else []) + ([_bound_table(self)] if self.host_bound else [])
        if self._first_bound:
            tables.reverse()
        return Report(title="Why:", line=self._line(), tables=tuple(tables), notes=self.notes)

    def _notes(self) -> list[str]:
        notes = []
        if self.findings:
            notes.append(
                "Saves at most: by overlap of that work, if it runs as fast beside the other as alone. "
                "What waited for it in turn may save more."
            )
        elif self.worth_ns <= self.gain_ns and not self.asked and not self.is_ranges:
            notes.append("No cause stands out: nothing that held work up cost 1% or more.")
        if self.streams and self.is_ranges and not self.findings:
            notes.append(
                "Kernels were not captured, so causes are not known: type lab.capture('kernels', host=True) and run it again."
            )
        elif self.streams and self.is_ranges:
            notes.append(
                "Only ranges are known, and they contain waiting: type lab.capture('kernels', host=True) and run it again."
            )
        elif self.streams and not self.has_calls:
            notes.append(f"Calls of the host are not in the trace: {calls_by(self.metadata)} tells why launches came late.")
        if self.metadata.imported and any("lab." in finding.fix for finding in self.findings):
            notes.append(
                "lab is a session in the program that was recorded; in torch, streams are torch.cuda.Stream(), and "
                "lab.stream(a).wait(b) is a.wait_stream(b)."
            )
        if self.looked_share < 1:
            notes.append(f"The costliest pieces were looked into, {format_share(self.looked_share)} of what all of them cost.")
        if self.metadata.pending_spans:
            notes.append(f"{pending_text(self.metadata.pending_spans, self.metadata)}.")
        if self.metadata.dropped_spans:
            notes.append(f"{self.metadata.dropped_spans:,} spans were dropped: what stood in front may be missing.")
        simulated = simulated_notes(self.metadata)
        sleeps = ["Its host takes time in calls alone: sleeps and slow Python do not show."] if simulated else []
        return [*notes, *self.metadata.missing, *simulated, *sleeps]


def _bound_table(found: Explanation) -> ReportTable:
    """Tell of streams that waited for the host, those of findings too: their cost is of overlap only."""
    rows = [["stream", "what happened, and what to do"]]
    rows += [[display_name(one.stream, 32), str(one)] for one in found.host_bound[:LISTED_FINDINGS]]
    rows += more_row(len(found.host_bound) - LISTED_FINDINGS, len(rows[0]), "more: see .host_bound")
    lines = [line for one in found.host_bound[:LISTED_FINDINGS] for line in wrap_sentence(f"Bound by the host: {one}")]
    return ReportTable(caption="Bound by the host", rows=rows, lines=lines, wraps=True)


def _told(finding: Finding) -> list[str]:
    """Write why, which work, and what it would save at most."""
    likely = " (likely)" if finding.certainty is Certainty.LIKELY else ""
    which = f"{display_name(finding.stream, 32)}, while {display_name(finding.other or 'others', 32)} ran"
    if finding.code is Cause.SAME_LANE:
        which = f"{display_name(finding.stream, 32)}, for both"
    if finding.pair_count > 1:
        which = f"{finding.pair_count:,} pairs of streams; the longest: {which}"
    times = f", {finding.piece_count:,} times" if finding.piece_count > 1 else ""
    longer = f", took longer by {format_ns(finding.waited_ns)}" if finding.code is Cause.SLOWED_DOWN else ""
    saves = format_ns(finding.saves_ns) if finding.saves_ns else f"nothing{longer}"
    return [f"{finding.code}{likely}", which, f"{saves}{times}"]


def explain(trace: Trace, first: str | int | None = None, second: str | None = None) -> Explanation:
    """Say why pieces of work did not overlap.

    Parameters
    ----------
    trace
        The spans; with calls of the host in it (``lab.capture("kernels", host=True)``) most can be told.
    first, second
        Two streams, or names of ranges or kernels, of which it is asked; None for all streams. One alone: it and all others. A
        row number as `first`: why that span began late.

    Returns
    -------
    Explanation
        Findings, ranked by what each would save at most. Where work overlapped, or nothing is to be gained, there are none.

    Raises
    ------
    OptionError
        If it is no trace, or nothing has such a name; or if what is asked of is of several ranks: ``trace.where(device=1)`` is
        of one.

    Notes
    -----
    A piece of work is a run of kernels, copies and fills of one stream without a pause. It began late if other streams worked
    while its stream was idle. Until its launch the host held it up, from then to its start the device. Each cause is told by
    records that it must leave; the codes are those of `Cause`. What overlap would save is bounded by the time for which the
    piece, and what followed it without a pause, then ran alone, and for all together by `Explanation.gain_ns`.

    Examples
    --------
    >>> trace = Trace.from_columns(
    ...     start_ns=[0, 1_000_000], end_ns=[900_000, 2_000_000], stream=["copy", "compute"], queued_ns=[-5_000, 995_000]
    ... )
    >>> explain(trace, "copy", "compute").findings[0].code
    <Cause.HOST_LATE: 'HOST_LATE'>
    """
    require_trace(trace, "explain")
    rows = counted_rows(trace)
    if isinstance(first, (int, np.integer)) and not isinstance(first, bool):
        return _of_row(trace, rows, int(first))
    groups = [_named_rows(trace, rows, name) for name in (first, second) if name is not None]
    if len(groups) == 2:
        rows = groups[0] | groups[1]
    elif groups:
        process = lane_processes(trace)[trace.lane]
        rows = rows & np.isin(process, process[groups[0]])
    require_one_rank(trace, rows, "explain")
    pieces = find_pieces(trace, rows)
    found = find_causes(trace, pieces)
    if len(groups) == 1:
        found = found.among(groups[0][pieces.row[found.piece]] | ((found.before >= 0) & groups[0][found.before]))
    result = _explanation(trace, rows, pieces, found, is_part=len(groups) == 2)
    if len(groups) < 2:
        return result
    same = _same_stream(trace, groups, (str(first), str(second)))
    idle = [str(name) for name, group in zip((first, second), groups, strict=True) if not group.any()]
    return replace(
        result,
        findings=(*same, *result.findings),
        gain_ns=max([result.gain_ns, *(finding.saves_ns for finding in same)]),
        asked=f"nothing ran on {display_name(idle[0], 40)!r}" if idle and len(result.streams) < 2 else "",
    )


def _of_row(trace: Trace, rows: BoolArray, row: int) -> Explanation:
    """Say why one span began late, however little that cost."""
    if not 0 <= row < len(trace):
        raise OptionError(f"explain({row}) names a row; the trace has rows 0 to {len(trace) - 1:,}.")
    process = lane_processes(trace)[trace.lane]
    rows = rows & (process == process[row])
    pieces = find_pieces(trace, rows)
    found = find_causes(trace, pieces)
    inside = np.flatnonzero(rows & descendants(trace, np.arange(len(trace)) == row))
    places = piece_of(trace, pieces, inside)
    found = found.among(np.isin(found.piece, places[places >= 0]))
    result = _explanation(trace, rows, pieces, found, is_part=False, least_ns=1)
    delay_ns = int(trace.start_ns[row] - trace.queued_ns[row])
    began = f"began {format_ns(delay_ns)} after its launch" if delay_ns > 0 else "has no time of its launch"
    held = "" if result.findings else "; nothing held it up while others worked"
    name, stream = (
        display_name(text, 40) for text in (trace.names[int(trace.name[row])], trace.lanes[int(trace.lane[row])].name)
    )
    return replace(result, asked=f"row {row:,}, {name} on {stream!r}, {began}{held}", host_bound=())


def _explanation(
    trace: Trace, rows: BoolArray, pieces: Pieces, found: Found, *, is_part: bool, least_ns: int | None = None
) -> Explanation:
    whole = concurrency(trace[rows]) if is_part else concurrency(trace, pieces.edges, pieces.steps.steps)
    used, chain_ns = np.unique(trace.lane[rows]), needed_chain_ns(pieces)
    shares = whole.shared.reason if whole.shared.busy_ns > whole.busiest_ns else ""
    result = Explanation(
        findings=(),
        asked="",
        host_bound=find_host_bound(trace, used.tolist(), pieces),
        streams=tuple(trace.lanes[lane].name for lane in used.tolist()),
        active_ns=whole.active_ns,
        together_ns=whole.together_ns,
        offered_ns=max(pieces.offered_ns, whole.together_ns),
        gain_ns=max(whole.active_ns - max(whole.ideal_ns, chain_ns), 0),
        reason=NEEDS_DATA if chain_ns > whole.ideal_ns else shares,
        is_ranges=SpanKind.RANGE in counted_kinds(trace) and trace.metadata.tier is not CaptureTier.KERNELS,
        has_calls=bool((pieces.launch >= 0).any()),
        looked_share=pieces.looked_share,
        metadata=trace.metadata,
    )
    findings = _grouped(trace, pieces, found, result.gain_ns, result.worth_ns if least_ns is None else least_ns)
    findings = name_threads(trace, pieces, found, findings)
    if least_ns is None:
        findings += _not_offered(trace, rows, pieces, result, findings)
    elsewhere_ns = [finding.saves_ns for finding in findings if finding.code is Cause.OTHER_STREAM]
    return replace(
        result,
        findings=tuple(sorted(findings, key=_rank)),
        gain_ns=max([result.gain_ns, *elsewhere_ns]),
    )


def _rank(finding: Finding) -> tuple[bool, float]:
    """Return the key to sort findings by: a wait mostly orders data, so that what can be mended without harm goes before it."""
    if finding.code is not Cause.EVENT_WAIT:
        return False, -finding.waited_ns
    return bool(finding.pieces.is_needed[0]), -finding.waited_ns * WAIT_WEIGHT


def _not_offered(
    trace: Trace, rows: BoolArray, pieces: Pieces, result: Explanation, findings: Sequence[Finding]
) -> list[Finding]:
    """Say for how long only one stream had work, where nothing that was found tells why, and every launch is known."""
    missing_ns = result.active_ns - result.offered_ns
    unexplained_ns = result.gain_ns - sum(finding.waited_ns for finding in findings)
    if (
        min(missing_ns, unexplained_ns) < NOT_OFFERED_SHARE * result.active_ns
        or not missing_ns
        or not pieces.is_launch_known.all()
    ):
        return []
    from_ns, to_ns = StepTime(pieces.offered_edges).longest_alone_ns
    inside_ns = np.minimum(trace.end_ns, to_ns) - np.maximum(trace.start_ns, from_ns)
    row = int(np.argmax(np.where(rows, inside_ns, -1)))
    happened, fix = TEXTS[Cause.NOT_OFFERED]
    stream = trace.lanes[int(trace.lane[row])].name
    words = {"missing": format_ns(missing_ns), "stream": display_name(stream, 40), "longest": format_ns(to_ns - from_ns)}
    return [
        Finding(
            code=Cause.NOT_OFFERED,
            certainty=Certainty.PROVED,
            stream=stream,
            other=None,
            saves_ns=min(missing_ns, unexplained_ns),
            waited_ns=min(missing_ns, unexplained_ns),
            piece_count=1,
            pair_count=1,
            row=row,
            other_row=-1,
            call_row=-1,
            text=happened.format(**words),
            fix=fix,
            pieces=_one_piece(trace, row, waited_ns=min(missing_ns, unexplained_ns)),
        )
    ]


def _one_piece(trace: Trace, row: int, *, waited_ns: int) -> LatePieces:
    """Return work that was not late."""
    start_ns = int(trace.start_ns[row])
    figures = (row, -1, -1, start_ns, start_ns, start_ns, waited_ns, SURE.index(Certainty.PROVED), 0)
    return LatePieces(*(np.array([figure]) for figure in figures))


def _named_rows(trace: Trace, rows: BoolArray, name: object) -> BoolArray:
    """Return the work of a stream, or of all ranges or kernels of a name; shape (n_spans,), bool."""
    found = work_of(trace, rows, name)
    if found is None:
        hint = name_hint(trace, name)
        raise StreamNotFoundError(f"The trace has no stream, range or kernel {name!r:.60}. {hint} Use trace.explain() for all.")
    if name in trace.names and not found.any():
        count = int((trace.name == trace.names.index(str(name))).sum())
        raise OptionError(f"{name!r} names no work of a stream in this trace: {count:,} spans of the host. Name a stream.")
    return found


def work_of(trace: Trace, rows: BoolArray, name: object) -> BoolArray | None:
    """Return which of some rows are of a stream, or in ranges or kernels of a name; None where nothing has that name.

    A stream on which nothing ran gives way to a range of its name.
    """
    is_lane = np.array([lane.name == name and lane.kind is LaneKind.STREAM for lane in trace.lanes], bool)
    of_stream: BoolArray = rows & is_lane[trace.lane]
    if name in trace.names and not of_stream.any():
        return rows & descendants(trace, trace.name == trace.names.index(str(name)))
    return of_stream if is_lane.any() else None


def name_hint(trace: Trace, name: object) -> str:
    """Suggest the stream, range or kernel whose name is nearest."""
    streams = [lane.name for lane in trace.lanes if lane.kind is LaneKind.STREAM]
    return nearest_hint(str(name)[:60], [*streams, *trace.names])


def _same_stream(trace: Trace, groups: Sequence[BoolArray], names: tuple[str, str]) -> list[Finding]:
    """Say that two things share a stream, if they do."""
    lanes = [np.unique(trace.lane[group]) for group in groups]
    shared = np.intersect1d(lanes[0], lanes[1])
    if not len(shared) or names[0] == names[1]:
        return []
    stream = trace.lanes[int(shared[0])].name
    on_it = [np.flatnonzero(group & (trace.lane == shared[0])) for group in groups]
    least_ns = min(int(trace.duration_ns[rows].sum()) for rows in on_it)
    first, second = (display_name(name, 40) for name in names)
    return [
        Finding(
            code=Cause.SAME_LANE,
            certainty=Certainty.PROVED,
            stream=stream,
            other=stream,
            saves_ns=least_ns,
            waited_ns=least_ns,
            piece_count=min(map(len, on_it)),
            pair_count=1,
            row=int(on_it[1][0]),
            other_row=int(on_it[0][0]),
            call_row=-1,
            text=f"{first} and {second} are both on {stream!r}: a stream runs its work in order.",
            fix="If neither needs the other's result, put one on a stream of its own: lab.stream('other').",
        )
    ]


def descendants(trace: Trace, member: BoolArray) -> BoolArray:
    """Tell which rows are some rows, or in ranges among them; shape (n_spans,), bool."""
    inside = np.append(member, False)
    for _ in range(4 * MAX_LANE_ROWS):
        grown = inside[:-1] | inside[trace.parent]
        if (grown == inside[:-1]).all():
            break
        inside[:-1] = grown
    found: BoolArray = inside[:-1]
    return found


def _grouped(trace: Trace, pieces: Pieces, found: Found, gain_ns: int, least_ns: int) -> list[Finding]:
    """Put together what has one cause and one pair of streams; add up further pairs; leave out what is not worth telling."""
    if not len(found.piece):
        return []
    found = found.once_each()
    other = np.where(found.before >= 0, trace.lane[found.before], -1)
    width = len(trace.lanes) + 1
    pairs, pair = distinct((found.cause * width + pieces.lane[found.piece]) * width + other + 1)
    cause, cost_ns = pairs // (width * width), np.bincount(pair, weights=found.saves_ns)
    is_told = cost_ns >= least_ns
    most_ns = {}
    for code in np.unique(cause).tolist():
        own = cause == code
        # What is late together is told together: of many pairs, and where mending one pair alone would save less.
        most_ns[code] = min(_most_ns(pieces, found.among(found.cause == code)), gain_ns) if own.sum() > 1 else 0
        if own.sum() > PAIRS_TOLD or most_ns[code] > POOLED_TIMES * cost_ns[own & is_told].sum():
            is_told[own] = False
    groups, group_of_pair = np.unique(np.where(is_told, np.arange(len(pairs)), len(pairs) + cause), return_inverse=True)
    group = group_of_pair[pair]
    waited_ns = np.bincount(group, weights=found.saves_ns)
    for place in np.flatnonzero(groups >= len(pairs)).tolist():
        code = int(groups[place]) - len(pairs)
        waited_ns[place] = max(most_ns[code] - cost_ns[is_told & (cause == code)].sum(), waited_ns[place])
    cause_of_group = np.zeros(len(groups), np.int64)
    cause_of_group[group_of_pair] = cause
    is_elsewhere = cause_of_group == CODES.index(Cause.OTHER_STREAM)
    saves_ns = np.where(is_elsewhere, waited_ns, np.minimum(waited_ns, gain_ns))
    # Why work that had been launched did not begin is told also where nothing is to be gained by it.
    is_of_host = np.isin(cause_of_group, [CODES.index(code) for code in OF_HOST])
    worth_ns = np.where(is_of_host & (least_ns > 1), saves_ns, waited_ns)
    # That the profiler takes some time is no news.
    worth_ns[(cause_of_group == CODES.index(Cause.PROFILER_OVERHEAD)) & (worth_ns < PROFILER_TIMES * least_ns)] = 0
    first, second = pairs // width % width, pairs % width - 1
    both_ways = np.unique(np.stack([group_of_pair, np.minimum(first, second), np.maximum(first, second)]), axis=1)[0]
    counts, pair_counts = np.bincount(group), np.bincount(both_ways)
    members = np.split(np.lexsort((found.waited_ns, found.saves_ns, group)), np.cumsum(counts)[:-1])
    return [
        _finding(
            trace,
            pieces,
            found,
            members[place][::-1],
            piece_count=int(counts[place]),
            pair_count=int(pair_counts[place]),
            waited_ns=int(waited_ns[place]),
            saves_ns=int(saves_ns[place]),
        )
        for place in np.flatnonzero(worth_ns >= least_ns).tolist()
    ]


def _most_ns(pieces: Pieces, found: Found) -> int:
    """Return what it would save at most if none of these pieces, of one cause, had been held up, in ns.

    That is more than what each alone would save: where three that waited for one thing run beside each other, none of them
    runs alone. It is no more than the time in which nothing else ran, nor than what they waited in all.
    """
    return min(pieces.spanned_ns - pieces.spanned_without_ns(found.piece), int(found.waited_ns.sum()))


def _finding(
    trace: Trace,
    pieces: Pieces,
    found: Found,
    members: Int64Array,
    *,
    piece_count: int,
    pair_count: int,
    waited_ns: int,
    saves_ns: int,
) -> Finding:
    """Make one of what was found, of which what saves most comes first."""
    longest, late = int(members[0]), found.piece[members]
    piece, before, call = (int(column[longest]) for column in (found.piece, found.before, found.call))
    code = CODES[int(found.cause[longest])]
    are_needed = pieces.are_needed(pieces.lane[late], found.before[members])
    is_kept = code is Cause.EVENT_WAIT and pair_count == 1 and bool(are_needed[0])
    text, fix = finding_texts(
        code,
        trace,
        pieces,
        piece=piece,
        before=before,
        call=call,
        waited_ns=int(found.waited_ns[longest]),
        is_proved=SURE[int(found.certainty[longest])] is Certainty.PROVED,
        is_needed=bool(are_needed[0]),
    )
    return Finding(
        code=code,
        certainty=SURE[int(found.certainty[longest])],
        stream=trace.lanes[int(pieces.lane[piece])].name,
        other=trace.lanes[int(trace.lane[before])].name if before >= 0 else None,
        row=int(pieces.row[piece]),
        other_row=before,
        call_row=call,
        text=text,
        fix=fix,
        pieces=LatePieces(
            row=pieces.row[late],
            other_row=found.before[members],
            call_row=found.call[members],
            idle_since_ns=pieces.idle_since_ns[late],
            launched_ns=pieces.launched_ns[late],
            start_ns=pieces.start_ns[late],
            waited_ns=found.waited_ns[members],
            certainty=found.certainty[members],
            is_needed=are_needed.astype(np.int64),
        ),
        piece_count=piece_count,
        pair_count=pair_count,
        waited_ns=waited_ns,
        saves_ns=0 if is_kept else saves_ns,
    )
