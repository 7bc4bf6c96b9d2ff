"""Programs and their plans: what a user makes, looks at, runs, checks and measures."""

from __future__ import annotations

import itertools
import linecache
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar

from gpustreamlab.analysis._report import Report, Reported, ReportTable, more_row
from gpustreamlab.analysis._scale import count_text, format_ns
from gpustreamlab.draw import picture_html
from gpustreamlab.errors import OptionError, ProgramError, StreamNotFoundError
from gpustreamlab.model import Trace
from gpustreamlab.programs._check import Check, PlanComparison, Replay, check_plan, compare_plan, kept_back
from gpustreamlab.programs._code import Code, Statements, probed, write_code
from gpustreamlab.programs._graph import (
    Engine,
    Recording,
    Work,
    behind_text,
    length_text,
    on_one_stream,
    schedule,
    schedule_trace,
    why_nothing,
)
from gpustreamlab.programs._record import least_work, measured, record
from gpustreamlab.programs._source import RESULT, free_name, read_source
from gpustreamlab.programs._values import (
    FunctionNames,
    Signature,
    can_be_weak,
    is_plain,
    needed_names,
    required_names,
    signature,
)

if TYPE_CHECKING:
    from gpustreamlab.session import Session

__all__ = ["Plan", "PlannedStatement", "Program", "make_program"]

_numbers = itertools.count(1)

MOST_STREAMS = 32  # How many streams a plan may use
LEAST_GAIN = 1.05  # Below this predicted speed-up one stream is planned
_CODE = "margin:0.4em 0;padding:0.5em;overflow-x:auto;color:inherit;background:rgba(128,128,128,0.12)"
TIMED_RUNS = 2  # Runs as planned that are measured
_PROBE = "__gpustreamlab_time__"
LISTED_STATEMENTS = 60  # How many statements a plan's table has


class Program:
    """Statements that can be planned onto streams. Made by `Session.program`."""

    def __init__(self, program: Statements) -> None:
        self._program = program

    def __repr__(self) -> str:
        return f"<Program: {count_text(len(self._program.source.statements), 'statement')}>"

    def plan(self, streams: int | Sequence[str] = 2) -> Plan:
        """Return a plan, which runs nothing yet: its first run is in order on one stream, and shows what can be planned.

        The statements keep their order on the host. Those that name a stream, by ``with lab.on("copy"):`` or ``#: copy``, get
        it; each other one gets the stream on which it can begin first.

        Parameters
        ----------
        streams
            How many streams to use at most, or their names; the program begins and ends in the first of them.

        Raises
        ------
        StreamNotFoundError
            If a statement is annotated with a stream that there is not.
        """
        names, given = self._streams(streams)
        further = [name for name in given if name not in names]
        return Plan(self._program, [*names, *further], is_one=len(names) < 2)

    def _streams(self, streams: int | Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the streams to use, which are made if need be, and those that statements name."""
        given = list(dict.fromkeys(one.stream for one in self._program.source.statements if one.stream is not None))
        names = _stream_names(streams, given)
        for one in self._program.source.statements:
            if one.stream is not None and (one.stream not in names or isinstance(streams, int)):
                _require_stream(self._program, one.stream, one.line)
        for name in names:
            self._program.lab.stream(name)
        return names, given


def _require_stream(program: Statements, name: str, line: int) -> None:
    try:
        program.lab._table.choose(name)
    except StreamNotFoundError as error:
        raise StreamNotFoundError(f"Line {line} of {program.source.filename}: {error}") from None


def _stream_names(streams: int | Sequence[str], given: Sequence[str]) -> list[str]:
    """Return the streams to use: those that are named, else those that statements were given and some of its own."""
    if isinstance(streams, int):
        if isinstance(streams, bool) or not 1 <= streams <= MOST_STREAMS:
            raise OptionError(f"streams is {streams!r}; a plan uses 1 to {MOST_STREAMS} streams. Use program.plan(streams=2).")
        return [*given, *(f"plan-{number}" for number in range(1, streams + 1))][:streams]
    names = [] if isinstance(streams, str) else list(streams)
    if not 1 <= len(set(names)) == len(names) <= MOST_STREAMS:
        raise OptionError(
            f"streams is {streams!r}; give a number, or 1 to {MOST_STREAMS} different names: streams=['copy', 'compute']."
        )
    return names


def make_program(
    lab: Session,
    program: str | Callable[..., Any],
    look_up: Callable[[], dict[str, Any]],
    *,
    is_own: bool = True,
    filename: str = "<program>",
    result: str = RESULT,
    flags: int = 0,
) -> Program:
    """Return a program of a session; see `Session.program`.

    Parameters
    ----------
    look_up, is_own
        Returns the variables, and whether running changes them in place.
    filename
        Where a text stands, for tracebacks.
    result
        The variable that gets what the last expression of a text gives.
    flags
        What a text is compiled with.
    """
    values = look_up()
    is_unnamed = isinstance(program, str) and filename == "<program>"
    if is_unnamed:
        filename = f"<program {next(_numbers)}>"
    source = read_source(program, lambda name: values.get(name) is lab, filename=filename, result=result, flags=flags)
    if is_unnamed and isinstance(program, str):  # tracebacks show its lines, as long as it exists
        linecache.cache[filename] = len(program), None, program.splitlines(keepends=True), filename
        weakref.finalize(source, linecache.cache.pop, filename, None)
    function = source.function
    missing = [] if function is None else [name for name in required_names(function) if name not in values]
    if missing:
        raise ProgramError(
            f"The program needs {', '.join(map(repr, missing))}. Pass what it runs on: lab.program(f, namespace={{'x': x}})."
        )
    if not source.statements:
        raise ProgramError("The program has no statements. Write what it is to run, a statement a line.")
    find = look_up
    if function is not None:
        find, is_own = partial(FunctionNames, function, look_up), False
    known = find()
    named = [name for name, value in known.items() if value is lab and not name.startswith("_")]
    bound = {name for one in source.statements for name in one.writes}
    lasting = [name for name in sorted(named, key="lab".__ne__) if name not in bound]
    session_name = source.session_name or (lasting[0] if lasting else free_name("lab", bound))
    return Program(Statements(lab=lab, source=source, look_up=find, is_own=is_own, session_name=session_name))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStatement:
    """One statement of a plan."""

    line: int
    """Its line in the source."""
    text: str
    """Its source."""
    stream: str | None
    """Where it runs; None for one that enqueues nothing."""
    start_ns: int
    """When its work would begin, in ns since the program's beginning; modelled."""
    duration_ns: int
    """How long its work kept the device busy as it was recorded, in ns."""
    waits_for: tuple[int, ...]
    """Statements that its stream waits for in front of it, by their place in the program."""
    behind: tuple[int, ...]
    """Statements that it has to be behind, on whatever stream."""
    is_critical: bool
    """Whether it is of the chain that sets the length."""
    barrier: str
    """Why it is ordered before and after everything; empty where what it touches is known."""


class Plan(Reported):
    """Where the statements of a program run, and what waits for what. Made by `Program.plan`; its first run is what it is of.

    It holds as long as its inputs keep their types, shapes and plain values; else the next run is recorded and planned anew.
    """

    _columns: ClassVar = ()

    def __init__(self, program: Statements, names: Sequence[str], *, is_one: bool) -> None:
        self._program = program
        self._names = list(names)
        self._is_one = is_one
        self._signature: Signature | None = None  # What its recording depends on; None before the first run
        self._shared: tuple[str, ...] = ()  # What the first run changed, and copies would share
        self._runs = 0
        self._timed: list[list[Work]] = []  # What each statement took in the runs that measure it
        self._alive: list[weakref.ref[Any]] = []
        self._fitted: tuple[Signature | None, dict[str, int]] = None, {}
        """What fitted last, as long as the inputs are the same objects and hold the same ones."""
        unknown = Work(engine=Engine.SMS)
        self._arrange(Recording(works=(unknown,) * len(program.source.statements)))

    def _arrange(self, recording: Recording) -> None:
        """Plan what was recorded; on one stream, where more gain nothing."""
        self._recording = recording
        self._one = self._planned = on_one_stream(recording.works, self._names[0])
        self._reason = ""
        if self.has_run:
            planned = schedule(recording.works, self._names, recording.costs)
            if any(work.stream is not None for work in recording.works):
                self._planned = planned
            elif self._is_one:
                self._reason = "one stream was asked for"
            elif self._one.length_ns < LEAST_GAIN * planned.length_ns:
                self._reason = why_nothing(self._program.source.statements, recording, self._one, planned)
            else:
                self._planned = planned
        self._code = write_code(self._program.source, self._planned, recording, self._program.session_name)

    @property
    def has_run(self) -> bool:
        """Whether it was recorded: its first run is in order on one stream, and only then there is something to plan from."""
        return self._signature is not None

    @property
    def code(self) -> str:
        """The Python that `run` runs, to read, paste and keep."""
        return self._code.text

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that are used; the program begins and ends in the first."""
        return self._planned.streams

    @property
    def statements(self) -> tuple[PlannedStatement, ...]:
        """The statements in their order."""
        planned = self._planned
        return tuple(
            PlannedStatement(
                line=statement.line,
                text=statement.text,
                stream=planned.stream[place],
                start_ns=planned.start_ns[place],
                duration_ns=work.duration_ns,
                waits_for=tuple(wait.behind for wait in planned.waits[place] if wait.behind >= 0),
                behind=tuple(one.first for one in planned.dependencies[place]),
                is_critical=place in planned.critical,
                barrier=work.barrier,
            )
            for place, (statement, work) in enumerate(zip(self._program.source.statements, self._recording.works, strict=True))
        )

    @property
    def result(self) -> str | None:
        """The variable that gets what the last expression gives; None if the program ends in another statement."""
        return self._program.source.result

    @property
    def predicted_speedup(self) -> float:
        """How many times as fast as one stream it would be, by the model; `compare` measures."""
        return self._one.length_ns / max(self._planned.length_ns, 1)

    def run(self, namespace: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the program; return its variables.

        The first run, and each whose inputs are not as they were planned for, is in order on one stream, waits for the device
        at its end, and is what the plan is made from. The others run as planned. The next two wait as well, and are measured,
        since a first run also compiles; the plan is made once more by what they took. Behind the others nothing waits.

        Parameters
        ----------
        namespace
            The variables to run on, changed in place. If None, those of the program: the namespace that it was given, or what
            its caller's globals hold by now, and a function's own variables held when the program was made; both stay as they
            are. Then what the program binds is returned.

        Raises
        ------
        ProgramError
            If a statement cannot be part of a program: one that closes the session, for example. Those before it have run.
        Exception
            What a statement raises, with its own traceback.
        """
        __tracebackhide__ = True
        program = self._program
        values = program.values if namespace is None else namespace
        changed, now = self._changed(values)
        if now is not None and (changed or not self.has_run):
            self._record(values, now)
        elif self._runs <= TIMED_RUNS:
            self._run_timed(values)
        else:
            program.execute(self._code, values)
        self._runs += 1
        if program.is_own or namespace is not None:
            return values
        bound = dict.fromkeys(name for one in program.source.statements for name in sorted(one.writes))
        return {name: values[name] for name in bound if name in values}

    def _record(self, values: dict[str, Any], before: Signature) -> None:
        __tracebackhide__ = True
        recording = record(self._program, self._names[0], values)
        self._signature, self._runs, self._timed = before, 0, []
        after = self._sign(values)
        self._shared = tuple(
            name for name in before.changed(after) if " " in name and name in before.parts and name in after.parts
        )
        self._arrange(recording)

    def _run_timed(self, values: dict[str, Any]) -> None:
        """Run it as planned and measure each statement; plan by the least of what some runs took.

        The first run may have compiled, and have copied what a library keeps; another one may have asked the driver for memory.
        """
        __tracebackhide__ = True
        program, backend = self._program, self._program.backend
        code = probed(self._code, program.source, _PROBE)
        code.compile(program.source.filename, program.source.flags)  # not in the time of the first statement
        times_ns = [backend.host_time_ns()]
        program.execute(code, values, {_PROBE: lambda _number: times_ns.append(backend.host_time_ns())})
        program.lab.synchronize()
        works, is_told = measured(program.lab.trace, [backend.host_to_clock_ns(one) for one in times_ns])
        taken = [last_ns - first_ns for first_ns, last_ns in itertools.pairwise(times_ns)]
        self._timed.append([replace(work, host_ns=host_ns) for work, host_ns in zip(works, taken, strict=True)])
        if len(self._timed) == TIMED_RUNS:
            known = zip(self._recording.works, *self._timed, strict=True)
            self._arrange(
                replace(self._recording, works=tuple(least_work(one, timed, is_told=is_told) for one, *timed in known))
            )

    def fits(self, namespace: Mapping[str, Any] | None = None) -> bool:
        """Tell whether it has run, and all that it depends on is as it was then: types, shapes, plain values, shared memory."""
        return self.has_run and not self.changed_inputs(namespace)

    def changed_inputs(self, namespace: Mapping[str, Any] | None = None) -> tuple[str, ...]:
        """Return what is not as it was planned for: variables, and functions, classes and modules of the user's."""
        if not self.has_run:
            return ()
        return tuple(self._changed(self._program.values if namespace is None else dict(namespace))[0])

    def rename(self, filename: str) -> None:
        """Let tracebacks call the source so from now on."""
        self._program = replace(self._program, source=replace(self._program.source, filename=filename))

    def check(self, tolerance: float | None = None) -> Check:
        """Run it beside the same program on one stream, on the same inputs, and compare all results bit for bit.

        That is three runs on copies, and a fourth where results differ. What they print is kept back, and the session's trace
        does not hold them.

        Raises
        ------
        ProgramError
            If it has not run yet, or uses what cannot be copied, such as files, or changes what copies share, such as a class.

        Parameters
        ----------
        tolerance
            How far results may be apart that differ from run to run on one stream, too, as a share of the largest value;
            if None, 1,000 times the spacing of their type.
        """
        with self._on_copies("check"):
            return check_plan(self, tolerance)

    def capture(self) -> Replay:
        """Capture the program into one CUDA graph, which `Replay.launch` runs with one call.

        In a graph the host launches nothing between the statements, so they are planned anew without its time: the streams may
        be others than those of this plan.

        Raises
        ------
        ProgramError
            If it has not run yet, or a statement cannot be captured: one that reads a value on the host, for example. The
            message names its line.
        """
        __tracebackhide__ = True
        self._require_run("capture")
        return Replay(self._program, self._graph_code, self.streams[0], self._program.values)

    def compare(self, repeats: int = 5) -> PlanComparison:
        """Measure it beside the same program on one stream and as one CUDA graph, on the same inputs, in turns.

        What the runs, which are on copies, print is kept back, and the session's trace does not hold them.

        Parameters
        ----------
        repeats
            How often each is run; the medians count. Once more it runs to warm up, and once it is captured.

        Raises
        ------
        ProgramError
            As `check` does.
        """
        with self._on_copies("compare"):
            return compare_plan(self, repeats)

    @contextmanager
    def _on_copies(self, method: str) -> Iterator[None]:
        """Keep back what runs on copies print in a ``with`` block; they are not in the session's trace behind it."""
        self._require_run(method)
        refused = [self._recording.outside, *(f"it changes {name}" for name in self._shared)]
        for why in filter(None, refused):
            raise ProgramError(
                f"plan.{method}() runs the program again, on copies. This one cannot have them: {why}. Leave that out of the "
                "program, or measure what plan.run() does."
            )
        with self._program.lab._recorder.forgetting(), kept_back():
            yield

    def _require_run(self, method: str) -> None:
        if not self.has_run:
            raise ProgramError(f"The program has not run yet, so plan.{method}() knows nothing of it. Call plan.run() before.")

    @property
    def _one_code(self) -> Code:
        """What runs on one stream, to compare with."""
        return write_code(self._program.source, self._one, self._recording, self._program.session_name)

    @property
    def _graph_code(self) -> Code:
        """What is captured into a CUDA graph: planned as if the host took no time."""
        works = [replace(work, host_ns=0, waits=False) for work in self._recording.works]
        planned, one = schedule(works, self._names), on_one_stream(works, self._names[0])
        best = planned if one.length_ns > planned.length_ns else one
        return write_code(self._program.source, best, self._recording, self._program.session_name, has_ranges=False)

    def _sign(self, values: dict[str, Any]) -> Signature:
        source = self._program.source
        return signature(values, needed_names(source, values), source.looked_up)

    def _changed(self, values: dict[str, Any]) -> tuple[list[str], Signature | None]:
        """Return what is not as it was planned for, and how it is now; None where nothing was touched since the last look."""
        known, roots = self._fitted
        if known is not None and roots == self._roots(values) and known.is_untouched():
            return [], None
        now = self._sign(values)
        if self._signature is None:
            return [], now
        changed = now.changed(self._signature)
        # It is kept only as long as the inputs live: what they hold must not live longer for it.
        inputs = [values[name] for name in self._program.source.inputs if name in values and not is_plain(values[name])]
        self._fitted = (None, {}) if changed or not all(map(can_be_weak, inputs)) else (now, self._roots(values))
        self._alive = [weakref.ref(one, self._forget) for one in inputs if can_be_weak(one)]
        return changed, now

    def _forget(self, _input: object) -> None:
        self._fitted = None, {}

    def _roots(self, values: Mapping[str, Any]) -> dict[str, int]:
        """Return the identities of the program's inputs, and which there are not."""
        return {name: id(values.get(name, self)) for name in self._program.source.inputs}

    def _line(self) -> str:
        planned = self._planned
        count = len(planned.stream)
        if not self.has_run:
            return (
                f"{count_text(count, 'statement')}, not run yet: plan.run() runs them once, in order on stream "
                f"{self._names[0]!r}, and plans by what it sees"
            )
        if self._reason:
            return f"{count_text(count, 'statement')} on one stream: {self._reason}"
        return (
            f"{count_text(count, 'statement')} on {count_text(len(planned.streams), 'stream')}, "
            f"{count_text(planned.wait_count, 'wait')}, "
            f"{count_text(planned.switch_count, 'switch', 'switches')}; modelled {format_ns(planned.length_ns)}, "
            f"{self.predicted_speedup:.2f} times as fast as on one stream"
        )

    def overview(self, note: str = "") -> str:
        """Return its main figures as HTML, with a note."""
        noted = f"<p style='margin:0.4em 0;opacity:0.75;font-size:90%'>{escape(note)}</p>" if note else ""
        length = length_text(self._texts, self._planned, self._recording) if self.has_run else ""
        head = f"<p style='margin:0.4em 0'><b>Plan:</b> {escape(self._line())}. {escape(length)}</p>"
        return f"<div class='gpustreamlab-plan' style='overflow-x:auto'>{noted}{head}</div>{self._picture()}"

    @property
    def trace(self) -> Trace:
        """The plan as a trace that says it is predicted: statements are spans, waits are edges; empty before the first run."""
        return self._traced(type(self._program.lab.trace))

    def _traced(self, make: Callable[..., Trace]) -> Trace:
        program, known = self._program, (self._planned, self._recording)
        planned, recording = known if self.has_run else (on_one_stream((), self._names[0]), Recording(works=()))
        return schedule_trace(
            planned, recording, self._texts, device=program.lab.device, backend=program.backend.name, make=make
        )

    @property
    def _texts(self) -> list[tuple[int, str]]:
        return [(one.line, one.text) for one in self._program.source.statements]

    def __str__(self) -> str:
        return f"{super().__str__()}\n\n{self.code}".rstrip()

    def _picture(self) -> str:
        return picture_html(self._traced(Trace)) if self.has_run else ""

    def _repr_html_(self) -> str:
        code = f"<pre style='{_CODE}'>{escape(self.code)}</pre>"
        return f"{self._picture()}{super()._repr_html_()}<details><summary>The Python that runs</summary>{code}</details>"

    def _report(self) -> Report:
        rows = [["", "line", "statement", "stream", "begins", "takes", "waits for"]]
        statements = self.statements
        for place, one in enumerate(statements[:LISTED_STATEMENTS]):
            mark = "critical" if one.is_critical else ""
            rows.append(
                [
                    mark,
                    str(one.line),
                    one.text.splitlines()[0][:48],
                    one.stream or "host",
                    format_ns(one.start_ns),
                    format_ns(one.duration_ns),
                    behind_text(self._planned, self._recording, self._texts, place),
                ]
            )
        rows += more_row(len(statements) - LISTED_STATEMENTS, 7)
        table = ReportTable(caption="Statements, as planned", rows=rows, names=(2,))
        return Report(title="Plan:", line=self._line(), tables=(table,), notes=self.notes)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the figures mean, and what could not be known."""
        if not self.has_run:
            return ()
        notes = ["Durations were measured on one stream; when statements begin is modelled. plan.compare() measures both."]
        barriers = [(one.line, one.barrier) for one in self.statements if one.barrier]
        notes += [f"Line {line} is ordered before and after everything: it {why}." for line, why in barriers[:5]]
        if len(barriers) > 5:
            notes.append(f"{len(barriers) - 5} more lines are ordered before and after everything.")
        length = length_text(self._texts, self._planned, self._recording)
        return (*filter(None, [length]), *notes, *self._recording.notes)
