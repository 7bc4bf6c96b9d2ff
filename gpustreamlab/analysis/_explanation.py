"""What `explain` gives back: findings, three plain figures of the whole, and how both are said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gpustreamlab._util.words import wrap_sentence
from gpustreamlab.analysis._causes import LONGER
from gpustreamlab.analysis._host_waits import calls_by
from gpustreamlab.analysis._makers import NVIDIA, Maker
from gpustreamlab.analysis._pieces import NO_PIECES, LatePieces
from gpustreamlab.analysis._report import Report, Reported, ReportTable, more_row, pending_text, simulated_notes
from gpustreamlab.analysis._scale import format_ns, format_share
from gpustreamlab.analysis._stacks import HostBound
from gpustreamlab.model import TraceMetadata, display_name
from gpustreamlab.typing import Cause, Certainty

if TYPE_CHECKING:
    import pandas as pd

LISTED_FINDINGS = 10  # How many findings are shown; all are in `Explanation.findings`
HOST_FIRST_SHARE = 0.1  # From which share of that time on it comes first that streams waited for the host with the card idle
MOST_ERROR = 0.1  # From which error of the replay on gains are bounds
LEAST_SHARE = 0.01  # From which share of the time that anything ran a finding is worth telling
LEAST_NS = 10_000  # From which time on: less is a launch more or less
FULL_SHARE = 0.9  # Of what takes this share of the run alone it is said that it fills the card
_NAME_WIDTH = 32
_COUNTS = ("no change", "the change", "the two changes", "the three changes", "the four changes")


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
    """What the whole is predicted to be shorter by with this changed, in ns: the run was scheduled anew, with the changes of
    findings in front of it made. 0 where changing it gains nothing, and where nothing can be promised."""
    bound_ns: int
    """Where nothing can be promised the most that the whole could be shorter without it, in ns; 0 for a wait that is known to
    be needed, and where it was scheduled anew."""
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
    operation: str | None = None
    """The operation of a framework, or the range of NVTX, in which the thread was meanwhile; None where none was open."""
    function: str | None = None
    """Where the thread stood most often, in all such gaps; None without samples of its stack."""
    function_share: float = 0.0
    """In which share of the samples."""
    sample_count: int = 0
    """How many samples there are in these gaps."""
    step: int = -1
    """Which of the changes one after the other this is, the first is 0; -1 where none is predicted to gain anything."""

    @property
    def head(self) -> str:
        """The cause, how sure it is, and what changing it saves, in a line."""
        why, which, saves = told_columns(self)
        after = "after that " if self.step > 0 else ""
        return f"{why}: {after}saves {saves}{f'; {which}' if self.pair_count > 1 else ''}"

    @property
    def page(self) -> str:
        """Page of the documentation on this cause, with a program that shows it and the same mended."""
        return f"docs/how-to/why/{self.code.lower().replace('_', '-')}.md"

    def __str__(self) -> str:
        return f"{self.code} ({self.certainty}): {self.text} {self.fix} See {self.page}."


def joined(findings: Sequence[Finding]) -> Finding:
    """Return findings that one change mends as one, with the words of the first and the pieces of all."""
    if len(findings) == 1:
        return findings[0]
    columns = [np.concatenate(parts) for parts in zip(*(one.pieces for one in findings), strict=True)]
    pieces = LatePieces(*columns)
    order = np.lexsort((np.arange(len(pieces.row)), -pieces.waited_ns))
    order = np.append(0, order[order != 0])  # the words are of the first
    return replace(
        findings[0],
        pieces=LatePieces(*(column[order] for column in columns)),
        piece_count=sum(one.piece_count for one in findings),
        pair_count=sum(one.pair_count for one in findings),
        waited_ns=sum(one.waited_ns for one in findings),
    )


def told_columns(finding: Finding) -> list[str]:
    """Write why, which work, and what changing it saves."""
    likely = f" ({finding.certainty})" if finding.certainty in (Certainty.LIKELY, Certainty.MEASURED) else ""
    stream, other = (display_name(name, _NAME_WIDTH) for name in (finding.stream, finding.other or "others"))
    which = f"{stream}, while {other} ran"
    if finding.code is Cause.SAME_LANE:
        which = f"{stream}, for both" if finding.other else stream
    elif finding.step >= 0 and finding.other is None:
        which = stream
    if finding.pair_count > 1:
        which = f"{finding.pair_count:,} pairs of streams; the longest: {which}"
    in_all, times = (" in all", f" ({finding.piece_count:,} times)") if finding.piece_count > 1 else ("", "")
    longer = f", took longer by {format_ns(finding.waited_ns)}{in_all}" if finding.code is Cause.SLOWED_DOWN else ""
    saves = f"nothing{longer}"
    if finding.saves_ns:
        saves = f"{format_ns(finding.saves_ns)}{in_all}"
    elif finding.bound_ns:
        saves = f"at most {format_ns(finding.bound_ns)}{in_all}, not promised"
    return [f"{finding.code}{likely}", which, f"{saves}{times}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a run took and would take, by scheduling it anew."""

    measured_ns: int
    """From the first start to the last end of its work, in ns."""
    replayed_ns: int
    """The same of the run scheduled anew as it was, in ns."""
    gain_ns: int
    """What all changes gain together, in ns."""
    change_count: int
    """How many changes that are."""
    floor_ns: int
    """What no change of order can beat, in ns."""
    floor_of: str
    """Why: what takes that long alone."""
    is_bound: bool
    """Whether gains are bounds: the run scheduled anew as it was is too far off, or kernels slow each other down."""
    slowed_ns: int
    """What it cost that kernels slowed each other down, in ns."""
    is_frail: bool
    """Whether the changes gain nothing where what the host does for them takes as long as it may."""
    works_share: float
    """How much of the work was scheduled anew: 1.0 but in long traces, of which parts stand for the whole."""

    @property
    def error(self) -> float:
        """By how much the run scheduled anew as it was is off, as a share."""
        return self.replayed_ns / self.measured_ns - 1 if self.measured_ns else 0.0

    def line(self, perhaps_ns: int = 0, shorter_ns: int = 0) -> str:
        """Say it in a line, with what may be gained besides where nobody knows: by order, and by work that takes less time."""
        perhaps_ns = min(perhaps_ns, self.measured_ns - self.floor_ns) + shorter_ns
        where = " on all SMs" if self.floor_of == "kernels" else ""
        wall, floor = format_ns(self.measured_ns), f"lower bound: {self.floor_of}{where}, {format_ns(self.floor_ns)}"
        if not self.change_count and perhaps_ns >= LEAST_SHARE * self.measured_ns:
            share = format_share(perhaps_ns / self.measured_ns)
            return f"{wall}; at most {format_ns(perhaps_ns)} ({share}) less, not promised; {floor}"
        if not self.change_count:
            full = self.floor_ns >= FULL_SHARE * self.measured_ns
            nothing = "no overlap makes it shorter" if full else "nothing that was tried makes it shorter"
            return f"{wall}; {nothing}; {floor}"
        left = format_ns(self.measured_ns - self.gain_ns)
        share = format_share(self.gain_ns / self.measured_ns)
        at_best = "at best " if self.is_bound else ""
        return f"{wall}; {at_best}{left} with {_COUNTS[self.change_count]} below ({share} less); {floor}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Explanation(Reported):
    """Why work did not overlap, what changing it gains, and what to type. False where nothing was found."""

    findings: tuple[Finding, ...]
    """Reasons; what changing gains most comes first. Of the others a wait for an event counts half, and one that is known to be
    needed comes last."""
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
    """What the changes of all findings are predicted to gain together, in ns; 0 where nothing can be promised."""
    bound_ns: int
    """The most that overlap could still save, in ns: `active_ns` less what the busiest stream, or what is shared, takes."""
    forecast: Forecast | None
    """What the run would take with these changes; None where it cannot be scheduled anew."""
    asked: str
    """What is to be said of the span, or of the names, that was asked for; else empty."""
    reason: str
    """What bounds `bound_ns` where it is not the busiest stream; else empty."""
    idle: str
    """With one stream: for how long the card was idle, where the host was meanwhile, by step where the run has steps; empty
    where it was hardly, or with several."""
    no_gain: str
    """That the overlap that there was gained nothing, as the work shares the SMs; empty where it gained something, or where
    changes gain more."""
    is_ranges: bool
    """Whether only ranges are known, so that kernels within them are not."""
    has_calls: bool
    """Whether calls of the host are in the trace."""
    looked_share: float
    """How much of what late pieces cost was looked into: 1.0 but in traces with millions of late pieces."""
    metadata: TraceMetadata
    """Where the numbers come from."""
    maker: Maker = field(default=NVIDIA, repr=False)
    """Whose words it is said in."""

    _columns: ClassVar = ()

    def __len__(self) -> int:
        return len(self.findings)

    @property
    def headline(self) -> str:
        """What the run took, what it would take, and what no change of order can beat, in a line."""
        return self._words(self._line())

    @property
    def notes(self) -> tuple[str, ...]:
        """What the figures mean, and what cannot be known."""
        return tuple(map(self._words, self._notes()))

    def _words(self, text: str) -> str:
        return self.maker.words(text)

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
        """Streams that waited for the host, with the card idle, for longer than all that changes could save."""
        least_ns = max(self.gain_ns or self.bound_ns, int(HOST_FIRST_SHARE * self.active_ns))
        return [one for one in self.host_bound if one.idle_card_ns > least_ns]

    def _line(self) -> str:
        line = self._plain_line()
        if not self._first_bound:
            return line
        names = ", ".join(repr(display_name(one.stream, 32)) for one in self._first_bound[:3])
        return f"{names} bound by the host, see below; {line}"

    def _plain_line(self) -> str:
        if self.asked:
            return self.asked
        if self.forecast is not None and (self.findings or len(self.streams) > 1):
            # What no other stream is in front of costs what it costs, whatever overlap could save.
            shorter_ns = sum(one.bound_ns for one in self.findings if one.code in LONGER)
            of_order = [one for one in self.findings if one.code not in LONGER]
            free_ns, late_ns = (sum(one.bound_ns for one in of_order if (one.other is None) is free) for free in (True, False))
            idle_ns = max(0, self.forecast.measured_ns - self.active_ns)
            return self.forecast.line(free_ns + min(late_ns, self.bound_ns + idle_ns), shorter_ns)
        if len(self.streams) < 2:
            nothing = "no work of a GPU is in the file" if self.metadata.imported else "nothing has ended"
            return self.idle or "one stream" if self.streams else nothing
        together_ns, active_ns = format_ns(self.together_ns), format_ns(self.active_ns)
        if self.is_ranges:
            known = f"{together_ns} of {active_ns} with ranges of two or more streams queued or running"
            return f"{known}; what of it ran at once is not known"
        together = f"two or more streams worked at once for {together_ns} of {active_ns}"
        bound = f": {self.reason}" if self.reason else ""
        if self.bound_ns < LEAST_SHARE * self.active_ns or not self.bound_ns:
            return f"{together}; nothing to gain as the work is dealt{bound or ': the busiest stream hides the others'}"
        gain = f"at most {format_ns(self.bound_ns)} ({format_share(self.bound_ns / self.active_ns)}) to gain{bound}"
        missing_ns = self.active_ns - self.offered_ns
        alone = f"; in {format_ns(missing_ns)} only one stream had work queued or running"
        return f"{together}; {gain}{alone if missing_ns > LEAST_SHARE * self.active_ns else ''}"

    def _report(self) -> Report:
        told = [told_columns(finding) for finding in self.findings[:LISTED_FINDINGS]]
        rows = [["why", "which", "saves", "what happened, and what to do"]]
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
        line, doubt = self._line(), self.metadata.doubt
        return Report(title="Why:", line=line, tables=tuple(tables), notes=self.notes, doubt=doubt)

    def _notes(self) -> list[str]:
        notes = [f"{self.idle[:1].upper()}{self.idle[1:]}."] if self.idle and self.findings and self.forecast else []
        notes += [f"Streams {self.no_gain}."] if self.no_gain else []
        notes += self._notes_of_forecast()
        if self.streams and self.is_ranges and not self.findings:
            notes.append(
                "Kernels were not captured, so causes are not known: type lab.capture('kernels', host=True) and run it again."
            )
        elif self.streams and self.is_ranges:
            notes.append(
                "Only ranges are known, and they contain waiting: type lab.capture('kernels', host=True) and run it again."
            )
        elif self.metadata.is_predicted:
            notes.append("Predicted, not recorded: ask the recorded trace, also for several changes together, with what_if().")
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

    def _notes_of_forecast(self) -> list[str]:
        """Say how far what is promised can be trusted, and what is not promised."""
        told = self.forecast
        notes = []
        if told is not None and told.change_count:
            off = format_share(abs(told.error)) if abs(told.error) >= 0.0005 else "0%"
            notes.append(f"Predicted by scheduling the run anew; scheduled as it was it is {off} off.")
            if told.gain_ns < told.slowed_ns:
                notes.append("Kernels slowed each other down here, and may do so again: what is said to be saved are bounds.")
            elif told.is_frail:
                notes.append(
                    "The host is as busy as the card, and has more to do with these changes: with 40 us for each wait and "
                    "change of stream more the run is no shorter. What is said to be saved are bounds."
                )
            elif told.is_bound and abs(told.error) <= MOST_ERROR:
                notes.append("Not all that this rests on is known: what is said to be saved are bounds.")
            elif told.is_bound:
                notes.append("That is too far off to promise anything: what is said to be saved are bounds.")
        if told is not None and told.works_share < 1:
            notes.append(f"Long: {format_share(told.works_share)} of the work was scheduled anew, and stands for the whole.")
        if any(finding.bound_ns for finding in self.findings):
            of_host = (Cause.HOST_LATE, Cause.LAUNCH_BOUND)
            is_late = any(finding.bound_ns and finding.code in of_host for finding in self.findings)
            host = ", or without what the host did before it" if is_late else ""
            notes.append(
                f"At most: by overlap of that work{host}, if nothing needs the order that it has. Nothing is promised, as not "
                "all of what the work reads and writes, and of what the host waits for, is known."
            )
        elif not self.findings and told is None and self.worth_ns <= self.bound_ns and not self.asked and not self.is_ranges:
            notes.append("No cause stands out: nothing that held work up cost 1% or more.")
        return notes


def _bound_table(found: Explanation) -> ReportTable:
    """Tell of streams that waited for the host, those of findings too: their cost is of overlap only."""
    rows = [["stream", "what happened, and what to do"]]
    rows += [[display_name(one.stream, 32), str(one)] for one in found.host_bound[:LISTED_FINDINGS]]
    rows += more_row(len(found.host_bound) - LISTED_FINDINGS, len(rows[0]), "more: see .host_bound")
    lines = [line for one in found.host_bound[:LISTED_FINDINGS] for line in wrap_sentence(f"Bound by the host: {one}")]
    return ReportTable(caption="Bound by the host", rows=rows, lines=lines, wraps=True)
