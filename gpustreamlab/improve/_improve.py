"""Variants made by machine, one on top of the other: each is run beside the program as it was, and kept only if it gains."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from gpustreamlab._util.shell import steps
from gpustreamlab._util.words import wrap_sentence
from gpustreamlab.analysis import Overlap, explain
from gpustreamlab.analysis._explanation import Finding
from gpustreamlab.analysis._report import Report, Reported, ReportTable, simulated_notes
from gpustreamlab.analysis._scale import count_text, format_ns, format_share
from gpustreamlab.errors import OptionError, ProgramError
from gpustreamlab.improve import _graph, _loops, _split, _streams, _torch, _waits
from gpustreamlab.improve._draft import Draft, forwarded, read_draft
from gpustreamlab.improve._facts import Facts
from gpustreamlab.improve._run import Look, Outcome, Runner, refused
from gpustreamlab.improve._waits import Variant, predicted_gain
from gpustreamlab.improve._why import why_not
from gpustreamlab.model import DEVICE_WORK, SPAN_KINDS, Trace
from gpustreamlab.programs._values import closed_over
from gpustreamlab.timeline import Comparison
from gpustreamlab.tuning._measure import clock_notes, interval
from gpustreamlab.typing import Cause

if TYPE_CHECKING:
    from gpustreamlab.session import Session

LEAST_SHARE = 0.01
"""A gain of less than this share of the run is not worth another program."""
BLOCKS = 7
"""How often the old and the new program are run in turn, on a card; on the simulated device each run takes the same."""
MOST_KEPT = 8
MOST_TOLD = 5
"""So many values that cannot be compared are named."""
SMALL_BYTES = 1 << 18
"""So much more memory of the device is no matter, however little the program took."""
_HOST, _COPY = (Cause.HOST_SYNC_DEVICE, Cause.HOST_SYNC_STREAM), Cause.PAGEABLE_COPY
_PHASES = (Cause.EVENT_WAIT, Cause.NOT_OFFERED, Cause.HOST_LATE)
MAKERS: Mapping[Callable[[Facts], Iterator[Variant]], tuple[Cause, ...]] = {
    _waits.unread_values: _HOST,
    _waits.late_values: _HOST,
    _waits.host_waits: _HOST,
    _waits.blocking_gets: (_COPY, *_HOST),
    _waits.stream_waits: (Cause.EVENT_WAIT,),
    _waits.hindered: (*_HOST, Cause.EVENT_WAIT),
    _torch.uploads: (_COPY, *_HOST),
    _torch.fetches: (_COPY, *_HOST),
    _loops.pinned_sources: (_COPY,),
    _loops.batches_of_one: _PHASES,
    _loops.joined_phases: _PHASES,
    _loops.more_buffers: (Cause.EVENT_WAIT,),
    _streams.by_role: (Cause.SAME_LANE,),
    _streams.independent: (Cause.SAME_LANE,),
    _streams.turns: (Cause.SAME_LANE,),
    _streams.streams_before: (Cause.LAUNCH_BOUND, Cause.HOST_CALL),
    _loops.in_turn: (Cause.HOST_LATE, Cause.QUEUE_FULL),
    _streams.whole_card: (Cause.PARTITION_SMALL,),
    _streams.first_of_all: (Cause.GRID_FILLS_DEVICE,),
    _split.other_numbers: (Cause.PARTITION_SMALL,),
    _graph.replayed: (Cause.LAUNCH_BOUND,),
}
"""What makes variants, what is simplest first, each with the findings that it is meant to mend."""


class Kept(NamedTuple):
    """A change that was kept."""

    title: str
    """What was done."""
    predicted_ns: int | None
    """What it was predicted to gain, in ns, on top of those before it; None where that is not known."""
    measured_ns: int
    """What it gained, in ns: the median of the differences of runs in turns."""
    interval_ns: tuple[float, float]
    """Where that median lies, by the bootstrap: 95%."""
    mends: tuple[Cause, ...] = ()
    """The findings that it was made for, and those that are gone with it."""


class Left(NamedTuple):
    """A change that was tried and not kept."""

    title: str
    """What was done."""
    predicted_ns: int | None
    """What it was predicted to gain, in ns; None where that is not known."""
    why: str
    """Why it was not kept."""
    mends: tuple[Cause, ...] = ()
    """The findings that it was made for."""


class Advice(NamedTuple):
    """A finding of the program as it is now, which no change that was tried mends."""

    finding: Finding
    """What was found, with its predicted gain and what to do."""
    why: str
    """Why it was not made by machine."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Improvement(Reported):
    """A program with what was changed, each change measured. Made by `Session.improve`. False where nothing was kept."""

    source: str
    """The program as it is now; as it was where nothing was kept."""
    diff: str
    """What was changed, as a unified diff; empty where nothing was."""
    kept: tuple[Kept, ...]
    """What was changed, each on top of those before it."""
    left: tuple[Left, ...]
    """What was tried and not kept, and why."""
    advice: tuple[Advice, ...]
    """What would gain more and was not made by machine, with its predicted gain, and why."""
    before: Trace
    """A run of the program as it was."""
    after: Trace
    """A run of the program as it is now."""
    before_ns: tuple[int, ...]
    """How long runs of the program as it was took, from the first call to the end of the last work, in ns; in turns with the
    others."""
    after_ns: tuple[int, ...]
    """How long runs of the program as it is now took, in ns."""
    notes: tuple[str, ...] = ()
    """What may be wrong with it, one sentence each."""

    _columns: ClassVar = ()
    _guesses: ClassVar = {"improvement.page('improved.html')": "save timeline to_html show"}

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def speedup(self) -> float:
        """How many times as fast the program is: the ratio of the medians of runs in turns."""
        return float(np.median(self.before_ns) / max(np.median(self.after_ns), 1))

    def apply(self) -> str:
        """Return the source of the program as it is now; in a notebook it stands in the next cell, too."""
        if self.kept and "IPython" in sys.modules:
            shell = sys.modules["IPython"].get_ipython()
            if shell is not None:
                shell.set_next_input(self.source)
        return self.source

    def page(self, path: str | PathLike[str]) -> Path:
        """Write both runs, one above the other on one scale of time, as one page that opens offline; return its path."""
        both = Comparison(self.before, self.after)
        a, b = map(_with_wall, (both.result.a, both.result.b), (self.before_ns, self.after_ns))
        both.result = replace(both.result, a=a, b=b)
        return both.save(path)

    def _line(self) -> str:
        before, after = (format_ns(float(np.median(one))) for one in (self.before_ns, self.after_ns))
        if not self.kept:
            count = count_text(len(self.left), "change")
            return f"left as it is: nothing that was tried makes its {before} shorter ({count} tried)"
        return f"{before} is {after} now, {self.speedup:.2f} times as fast, with {count_text(len(self.kept), 'change')}"

    def _report(self) -> Report:
        kept = [(_against(one), _gain(one.predicted_ns), _measured(one)) for one in self.kept]
        left = [(_against(one), _gain(one.predicted_ns), one.why) for one in self.left]
        advice = [
            (str(one.code), format_ns(one.saves_ns), f"{why[:1].upper()}{why[1:]}. What to do: {one.fix}")
            for one, why in self.advice
        ]
        tables = (
            _table("Kept, each on top of those before it", ("kept", "predicted", "measured"), kept, lead="measured "),
            _table("Tried and not kept", ("not kept", "predicted", "why"), left),
            _table("Advice, not made by machine", ("advice", "predicted", "why not, and what to do"), advice),
        )
        notes = (
            "Results, prints and exceptions are those of the program as it was, and no race is new.",
            "Nothing of yours is changed: .apply() returns the new source, .page('improved.html') has both runs.",
        )
        return Report(
            title="Improved:" if self.kept else "Program:",
            line=self._line(),
            tables=tuple(one for one in tables if len(one.rows) > 1),
            notes=(*notes[: 2 * bool(self.kept)], *self.notes, *simulated_notes(self.before.metadata)),
        )

    def __str__(self) -> str:
        return f"{super().__str__()}\n\n{self.diff}".rstrip()

    def _repr_html_(self) -> str:
        from html import escape

        style = "margin:0.4em 0;padding:0.5em;overflow-x:auto;color:inherit;background:rgba(128,128,128,0.12)"
        code = f"<pre style='{style}'>{escape(self.diff)}</pre>" if self.diff else ""
        return f"{super()._repr_html_()}{code}"


def _with_wall(times: Overlap, walls_ns: Sequence[int]) -> Overlap:
    """Return times with the wall that was measured: in it stands what the host does in front of the first work, too."""
    wall_ns = int(np.median(walls_ns))
    idle_ns = np.eye(1, len(times.concurrency_ns), dtype=np.int64)[0] * (wall_ns - times.wall_ns)
    return replace(times, wall_ns=wall_ns, concurrency_ns=times.concurrency_ns + idle_ns)


def _against(one: Kept | Left) -> str:
    """Return what was done, and which findings it is against."""
    return f"{one.title}, against {' and '.join(one.mends)}" if one.mends else one.title


def _gain(gain_ns: int | None) -> str:
    return "not known" if gain_ns is None else format_ns(gain_ns)


def _measured(one: Kept) -> str:
    """Write a gain, and how far it is certain; on the simulated device it is exact."""
    low, high = map(format_ns, one.interval_ns)
    return format_ns(one.measured_ns) + (f" (95%: {low} to {high})" if low != high else "")


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], *, lead: str = "") -> ReportTable:
    """Return a table which text has as a list where it is too wide."""
    told = [f"{name} (predicted: {gain}): {lead}{text}" for name, gain, text in rows]
    lines = [f"{caption}:", *(line for one in told for line in wrap_sentence(one, first_indent="  ", indent="    "))]
    return ReportTable(caption=caption, rows=[[*row] for row in (head, *rows)], names=(), lines=lines, wraps=True)


def improve(
    lab: Session,
    program: str | Callable[..., Any],
    arguments: Sequence[Any],
    values: Mapping[str, Any],
    *,
    seconds: float,
    tolerance: float | None,
    memory: float,
) -> Improvement:
    """Improve a program; see `Session.improve`."""
    _check_options(seconds, tolerance, memory)
    program, arguments, values = _target(program, arguments, values)
    draft = read_draft(program)
    runner = Runner(lab, values, arguments)
    with runner.aside(), steps(MOST_KEPT, "improve") as step:
        search = _Search(runner, draft, seconds, tolerance, memory, step)
        search.run()
        return search.result()


def _check_options(seconds: object, tolerance: object, memory: object) -> None:
    for name, value, least in (("seconds", seconds, 0.0), ("memory", memory, 1.0), ("tolerance", tolerance, 0.0)):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (is_number and value >= least) and not (name == "tolerance" and value is None):  # type: ignore[operator]
            raise OptionError(
                f"{name} is {value!r:.40}; give a number of at least {least:g}, as in lab.improve(f, seconds=30, memory=2)."
            )


def _target(
    program: str | Callable[..., Any], arguments: Sequence[Any], values: Mapping[str, Any]
) -> tuple[str | Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
    """Return what is improved, its arguments and what its names mean: of a function of one line what it hands on to."""
    if not isinstance(program, FunctionType):
        return program, arguments, values
    while True:
        named = _named(program, arguments)
        values = {**program.__globals__, **{one.key: one.value for one in closed_over(program)}, **named}
        following = forwarded(program, values)
        if following is None:
            break
        program, arguments = following
    return program, [*named.values()], values


def _named(function: FunctionType, arguments: Sequence[Any]) -> dict[str, Any]:
    import inspect

    try:
        bound = inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise ProgramError(
            f"{function.__qualname__} cannot be called so: {error}. Pass what it runs on: lab.improve(f, x, y)."
        ) from None
    bound.apply_defaults()
    if any(one.kind.name.startswith("VAR_") for one in bound.signature.parameters.values()):
        raise ProgramError(f"{function.__qualname__} takes * or ** arguments; name each parameter of a program.")
    return dict(bound.arguments)


class _Tried(NamedTuple):
    """A variant that was run."""

    variant: Variant
    outcome: Outcome
    predicted_ns: int | None
    gain_ns: int  # of one run
    why_not: str  # empty where it may be kept


class _Search:
    """What was tried so far, and what comes next."""

    def __init__(
        self,
        runner: Runner,
        draft: Draft,
        seconds: float,
        tolerance: float | None,
        memory: float,
        step: Callable[[str], None],
    ) -> None:
        self._runner = runner
        self._given = draft
        self._seconds, self._until_s = seconds, time.monotonic() + seconds
        self._tolerance = tolerance
        self._memory = memory
        self._step = step
        self._seen = {draft.text}
        self._is_simulated = runner.lab.device.simulated
        self._kept: list[Kept] = []
        self._made = set[str]()  # Titles of changes that were kept, those of a pair by themselves
        self._left: dict[str, Left] = {}
        self._meant: dict[str, tuple[Cause, ...]] = {}  # Which findings changes are made for, by their titles
        self._notes: dict[str, None] = {}
        self._base = self._first_run()  # What all are compared with
        self._now, self._outcome, self._findings = draft, self._base, _findings_of(self._base)
        self._samples: tuple[list[int], list[int]] = [self._base.wall_ns], [self._base.wall_ns]

    def run(self) -> None:
        """Make the change that gains most, then the one that gains most of what is left, until none gains, or time is over."""
        while len(self._kept) < MOST_KEPT and not self._is_over():
            self._step(f"{format_ns(self._outcome.wall_ns)} now")
            tried = self._try_all(self._now, self._outcome)
            best = next(iter(self._gaining(tried)), None)
            if best is None and (self._kept or not any(self._keep(pair) for pair in self._pairs(tried))):
                break
            for one in self._gaining(tried)[1:]:
                self._leave(one, f"it gains {format_ns(one.gain_ns)}, and another change was made that gains as much or more")
            if best is not None and not self._keep([best]):
                self._leave(best, "its gain is within the noise")
                if not any(self._keep([one]) for one in self._gaining(tried) if one is not best):
                    break

    def result(self) -> Improvement:
        """Return what was found."""
        if self._is_over():
            more_s = max(60, 4 * self._seconds)
            self._notes[f"Not all was tried in {self._seconds:g} s: give it more, lab.improve(..., seconds={more_s:g})."] = None
        before_ns, after_ns = self._samples
        found = {one.code for one in self._findings}.union(*(one.mends for one in self._kept))
        left = [
            one._replace(mends=tuple(code for code in self._meant[title] if code in found))
            for title, one in self._left.items()
            if title not in self._made
        ]
        return Improvement(
            source=self._now.text,
            diff=self._given.diff(self._now),
            kept=tuple(self._kept),
            left=tuple(left),
            advice=tuple(self._advice(left)),
            before=self._base.trace,
            after=self._outcome.trace,
            before_ns=tuple(before_ns),
            after_ns=tuple(after_ns),
            notes=tuple(self._notes),
        )

    def _advice(self, left: Sequence[Left]) -> Iterator[Advice]:
        """Yield what there is still to gain, with what was tried for it; else with why nothing was."""
        facts = self._look_at(self._now) if self._findings and not self._is_over() else None
        for one in self._findings:
            tried = [f"{change.title}: {change.why}" for change in left if one.code in change.mends]
            if tried:
                why = f"tried and not kept, {'; '.join(tried)}"
            else:
                why = (
                    why_not(facts, one.code) if facts is not None else f"its {self._seconds:g} s were over before it was tried"
                )
            yield Advice(one, why)

    def _is_over(self) -> bool:
        return time.monotonic() >= self._until_s

    def _first_run(self) -> Outcome:
        """Run the program twice: it has to do the same, and nothing that cannot be done again."""
        look = Look(self._given, self._runner.lab._backend.host_time_ns)
        with look.following() as effects:
            first = self._runner.run(self._given, look)
        if effects.found:
            raise refused(effects.found)
        if first.error is not None:
            raise first.error
        again = self._runner.run(self._given, compares=True)
        self._varying = frozenset(name for name in first.differing(again, self._tolerance) if "." in name)
        differing = first.differs_from(again, self._tolerance, again.untouched | self._varying)
        if differing:
            raise refused(f"of two runs on the same inputs {differing}")
        self._note_unseen([*again.unseen, *(f"{name}, another value in each run" for name in sorted(self._varying))])
        return again

    def _note_unseen(self, told: Sequence[str]) -> None:
        """Take note of what is not compared."""
        if told:
            more = f"; and {len(told) - MOST_TOLD:,} more" if len(told) > MOST_TOLD else ""
            self._notes[f"Not compared between runs: {'; '.join(told[:MOST_TOLD])}{more}."] = None

    # Variants

    def _try_all(self, draft: Draft, outcome: Outcome) -> list[_Tried]:
        """Run the variants of a draft: those that are predicted to gain, and the others where none of these does."""
        if not np.isin(outcome.trace.kind, [SPAN_KINDS.index(kind) for kind in DEVICE_WORK]).any():
            return []  # it launches nothing
        facts = self._look_at(draft)
        made = []
        for make, causes in MAKERS.items():
            for variant in make(facts):
                self._meant[variant.title] = causes
                made.append((variant, predicted_gain(facts, variant)))
        least_ns = LEAST_SHARE * outcome.wall_ns
        promising = [one for one in made if one[1] is None or one[1] >= least_ns]
        for variant, predicted_ns in promising:
            if variant.why_not:
                self._left.setdefault(variant.title, Left(variant.title, predicted_ns, variant.why_not))
        tried = list(self._try(promising, outcome))
        if not any(self._gaining(tried)):
            tried += self._try([one for one in made if one not in promising], outcome)
        return tried

    def _look_at(self, draft: Draft) -> Facts:
        look = Look(draft, self._runner.lab._backend.host_time_ns)
        with look.following():
            outcome = self._runner.run(draft, look)
        kinds = type(self._runner.lab)
        session = next((value for names in look.kinds for value in names.values() if isinstance(value, kinds)), None)
        return Facts(draft, look, outcome.trace, self._runner.lab._backend, session, self._runner.session_name)

    def _try(self, made: Iterable[tuple[Variant, int | None]], before: Outcome) -> Iterator[_Tried]:
        for variant, predicted_ns in made:
            text = variant.draft.text
            if self._is_over() or text in self._seen:
                continue
            self._seen.add(text)
            least_ns = LEAST_SHARE * before.wall_ns
            try:
                outcome = self._runner.run(variant.draft)
                if not self._is_simulated and before.wall_ns - outcome.wall_ns < least_ns:
                    del outcome  # The first run imports modules and page-locks memory, which the next one has if that is free
                    outcome = self._runner.run(variant.draft)
            except Exception as error:  # noqa: BLE001 - what prepares is the user's, too
                self._left[variant.title] = Left(variant.title, predicted_ns, f"it raises {error!r:.200}")
                continue
            why_not = self._why_not(variant.draft, outcome)
            outcome = replace(outcome, values={})
            tried = _Tried(variant, outcome, predicted_ns, before.wall_ns - outcome.wall_ns, why_not)
            if why_not or tried.gain_ns < least_ns:
                self._leave(tried, tried.why_not or _why_no_gain(tried, before))
            yield tried

    def _why_not(self, draft: Draft, outcome: Outcome) -> str:
        """Say why a variant may not be kept, whatever it gains."""
        unsure = outcome.differing(self._base, self._tolerance) & self._base.untouched
        untouched = self._runner.run(draft, compares=True).untouched if unsure else unsure
        differing = outcome.differs_from(self._base, self._tolerance, untouched & self._base.untouched | self._varying)
        if differing:
            return differing
        race = outcome.new_hazard(self._base)
        if race:
            return f"a race is new: {race}"
        if outcome.device_bytes > max(self._memory * self._base.device_bytes, self._base.device_bytes + SMALL_BYTES):
            return f"it takes {outcome.device_bytes / max(1, self._base.device_bytes):.1f} times as much memory"
        return ""

    def _gaining(self, tried: Sequence[_Tried]) -> list[_Tried]:
        """Return the variants that gain in one run and may be kept, what gains most first; what is simplest of those alike."""
        least_ns = LEAST_SHARE * self._outcome.wall_ns
        found = [one for one in tried if not one.why_not and one.gain_ns >= least_ns]
        return sorted(found, key=lambda one: -(one.gain_ns // max(1, least_ns)))

    def _pairs(self, tried: Sequence[_Tried]) -> Iterator[list[_Tried]]:
        """Yield changes that gain only together: one that gains nothing, and one on top of it that gains."""
        for first in tried:
            if first.why_not or self._is_over():
                continue
            second = next(iter(self._gaining(self._try_all(first.variant.draft, first.outcome))), None)
            if second is not None:
                yield [first, second]

    # Keeping

    def _leave(self, one: _Tried, why: str) -> None:
        self._left[one.variant.title] = Left(one.variant.title, one.predicted_ns, why)

    def _keep(self, changes: Sequence[_Tried]) -> bool:
        """Keep changes if the last of them gains beyond the noise against the program as it is now; measured in turns."""
        draft = changes[-1].variant.draft
        before_ns, after_ns = samples = self._in_turns(self._now, draft)
        gains_ns = np.array(before_ns) - np.array(after_ns)
        low, high = interval(gains_ns)
        if low <= 0 or np.median(gains_ns) < LEAST_SHARE * np.median(before_ns):
            return False
        outcome = changes[-1].outcome
        told_ns = [one.predicted_ns for one in changes if one.predicted_ns is not None]
        self._made |= {one.variant.title for one in changes}
        title = ", and ".join(one.variant.title for one in changes)
        before, self._findings = self._findings, _findings_of(outcome)
        gone = {one.code for one in before} - {one.code for one in self._findings}
        meant = gone.union(*(self._meant[one.variant.title] for one in changes))
        mends = tuple(dict.fromkeys(one.code for one in before if one.code in meant))
        self._kept.append(Kept(title, sum(told_ns) if told_ns else None, int(np.median(gains_ns)), (low, high), mends))
        self._samples = samples if self._now is self._given else self._in_turns(self._given, draft)
        self._now, self._outcome = draft, outcome
        return True

    def _in_turns(self, old: Draft, new: Draft) -> tuple[list[int], list[int]]:
        """Run two programs in turns, in an order by chance; return what each run took."""
        taken: tuple[list[int], list[int]] = [], []
        backend, dice = self._runner.lab._backend, random.Random(20_26)  # noqa: S311 - an order, no secret
        for block in range(1 if self._is_simulated else BLOCKS + 1):
            before = backend.read_clocks()
            order = [(old, taken[0]), (new, taken[1])]
            dice.shuffle(order)
            for draft, own in order:
                own.append(self._runner.run(draft, is_watched=False).wall_ns)
            self._notes |= dict.fromkeys(clock_notes(before, backend.read_clocks()))
            if block == 0 and not self._is_simulated:  # loads kernels, and fills pools
                taken[0].clear()
                taken[1].clear()
        return taken


def _findings_of(outcome: Outcome) -> tuple[Finding, ...]:
    """Return what is predicted to gain more than is too little to be worth another program."""
    return tuple(one for one in explain(outcome.trace).findings if one.saves_ns >= LEAST_SHARE * outcome.wall_ns)


def _why_no_gain(tried: _Tried, before: Outcome) -> str:
    if tried.gain_ns < 0:
        return f"it takes {format_ns(-tried.gain_ns)} longer"
    return (
        f"it gains {format_ns(tried.gain_ns)} ({format_share(tried.gain_ns / max(1, before.wall_ns))}), less than is worth it"
    )
