"""IPython magics: `%gpulab`, `%%gpustream`, `%gpupartition`, `%gputimeline`, `%gpuexplain` and others, as in Python."""

from __future__ import annotations

import argparse
import keyword
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from traceback import walk_tb
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher
from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand, output_can_be_silenced
from IPython.display import display

from gpustreamlab.analysis import Explanation
from gpustreamlab.cluster import ByEngine, Cluster, Outcomes
from gpustreamlab.errors import ClusterError, GPUStreamLabError, nearest_hint
from gpustreamlab.groups import Recorded
from gpustreamlab.model import Counters, Layout
from gpustreamlab.node import Node
from gpustreamlab.notebook.cell_graph import CellGraph, CellLog, make_cell_graph
from gpustreamlab.notebook.cells import (
    CellMarks,
    ProgramCells,
    awaits_at_top_level,
    cell_number,
    compile_cell,
    first_run_note,
    magic_transformer,
    show_check,
    show_plan,
    show_replay,
    show_value,
    unregister,
)
from gpustreamlab.notebook.parsers import PARSERS, complete
from gpustreamlab.programs import Plan
from gpustreamlab.recorder.capture import Capture
from gpustreamlab.session import Session
from gpustreamlab.streams.life import open_sessions
from gpustreamlab.streams.selection import Selection
from gpustreamlab.streams.stream import Stream
from gpustreamlab.timeline import Timeline
from gpustreamlab.tuning import Tuning
from gpustreamlab.typing import SessionState

__all__ = ["GpuStreamMagics", "load_ipython_extension", "unload_ipython_extension"]


_CELL_MAGICS = ("gpustream", "gpuprogram", "gpurecord")
_MAGIC = ("%gpu", "%%gpu", "gpu")  # How lines begin that are completed
DEFAULT_STREAMS = 4  # Over how many streams `%gpulab start --auto` spreads cells
DEFAULT_VARIABLE = "lab"  # The variable that `%gpulab start` puts the session into
Lab: TypeAlias = Session | Node | Cluster  # What magics work on


@magics_class
class GpuStreamMagics(Magics):  # type: ignore[misc]
    """The magics of one shell, and the session, node or cluster that they work on."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._chosen: Lab | None = None
        self._recorder: Session | None = None  # What records cells where the notebook has no session of its own
        self._programs = ProgramCells(shell)
        self._cells = CellLog(shell, self._open_sessions)

    @line_magic  # type: ignore[untyped-decorator]
    @no_var_expand  # type: ignore[untyped-decorator]
    def gpulab(self, line: str) -> Lab | None:
        """Start, show or close the session."""
        arguments = PARSERS["gpulab"]().parse(line)
        if arguments is None:
            return None
        action = arguments.action or ("show" if self._open_sessions() or self._open_labs() else "start")
        if action != "start" and (arguments.auto or (action != "auto" and (arguments.streams is not None or arguments.off))):
            raise UsageError("%gpulab: --auto goes with start, --streams with start --auto or auto, and --off with auto")
        if action == "start":
            return self._start(arguments)
        if action == "auto":
            self._choose_streams(self._find_session(), arguments)
            return None
        if action == "use":
            return self._use(arguments.variable or DEFAULT_VARIABLE)
        lab = self._find_lab() if arguments.variable is None else self._use(arguments.variable)
        if action in {"show", "status"}:
            _ = isinstance(lab, Session) and lab.trace  # so that what has ended is counted
            return lab
        lab.close()
        print(f"Closed: {lab!r}")  # noqa: T201 - which one it was: others may be open
        self._chosen = None
        return None

    @cell_magic  # type: ignore[untyped-decorator]
    @no_var_expand  # type: ignore[untyped-decorator]
    @output_can_be_silenced  # type: ignore[untyped-decorator]
    def gpustream(self, line: str, cell: str) -> object:
        """Run the cell with a stream selected, as one named range."""
        __tracebackhide__ = True
        arguments = PARSERS["gpustream"]().parse(line)
        if arguments is None:
            return None
        label = f"In [{cell_number(self.shell)}]" if arguments.label is None else arguments.label
        if arguments.on is not None:
            found = self._run_on_engines(arguments, cell, label)
            is_awaited = self.shell.autoawait and awaits_at_top_level(self.shell, cell)
            return _already(found) if is_awaited else found
        lab = self._find_lab()
        node = lab if isinstance(lab, Node) else None
        code = compile_cell(self.shell, cell)
        with _usage_errors():
            if arguments.whole_card and arguments.partition is not None:
                raise UsageError("%%gpustream: --partition and --whole-card exclude each other (see %%gpustream -h)")
            if node is None and arguments.device is not None:
                raise UsageError(f"%%gpustream: --device chooses a GPU of a node. {self._another(Node)}")
            session = self._find_session() if node is None else node.home_of(arguments.stream, arguments.device)
            stays = arguments.partition is None and not arguments.whole_card
            partition = ... if stays else arguments.partition
            stream = session.stream(arguments.stream, priority=arguments.priority, partition=partition)
            self._cells.order(session, stream.name)
            for other in self._named_streams(session if node is None else node, arguments.after):
                stream.wait(other)
            waits = arguments.sync or arguments.show or arguments.kernels or arguments.counters
            around = _selected(session.on(stream, label), stream, synchronize=waits)
            around = _captured(session, around, arguments)
            if arguments.show:
                around = _shown(session, stream, around, label)

        def show(value: object) -> object:
            return value if stream.is_closed else show_value(self.shell, cell, value, session.select(stream))

        if code.is_async:
            return _awaited(code.run_async(self.shell.user_ns, around), show)
        return show(code.run(self.shell.user_ns, around))

    @cell_magic  # type: ignore[untyped-decorator]
    @no_var_expand  # type: ignore[untyped-decorator]
    @output_can_be_silenced  # type: ignore[untyped-decorator]
    def gpuprogram(self, line: str, cell: str) -> object:
        """Run the cell's statements: in order the first time, then on streams, as planned from what was seen."""
        __tracebackhide__ = True
        arguments = PARSERS["gpuprogram"]().parse(line)
        if arguments is None:
            return None
        if arguments.on is not None and arguments.streams is not None:
            raise UsageError("%%gpuprogram: --streams and --on exclude each other (see %%gpuprogram -h)")
        session = self._find_session()
        if arguments.improve is not None:
            if arguments.plan or arguments.check or {arguments.streams, arguments.on, arguments.replay} != {None}:
                raise UsageError("%%gpuprogram: --improve takes no other option beside it (see %%gpuprogram -h)")
            with _usage_errors(of_cell=True):
                source = self.shell.transform_cell(cell)
                return session.improve(source, seconds=arguments.improve, namespace=self.shell.user_ns)
        streams = 2 if arguments.streams is None else arguments.streams
        if arguments.on is not None:
            streams = tuple(name for name in arguments.on.split(",") if name)
        with _usage_errors(of_cell=True):
            plan = self._programs.plan(session, cell, streams)
            if arguments.plan:
                return plan
            note = first_run_note(plan)
            self._cells.order(session, plan.streams[0])
            if not note:
                self._show_program(plan, note, arguments)
        value = self._programs.run(plan)
        with _usage_errors(of_cell=True):
            if note:
                self._show_program(plan, note, arguments)
        return show_value(self.shell, cell, value, session.select(plan.streams[0]))

    @cell_magic  # type: ignore[untyped-decorator]
    @no_var_expand  # type: ignore[untyped-decorator]
    @output_can_be_silenced  # type: ignore[untyped-decorator]
    def gpurecord(self, line: str, cell: str) -> object:
        """Run the cell as it is, with no stream selected, and show what it did on the GPU below it."""
        __tracebackhide__ = True
        arguments = PARSERS["gpurecord"]().parse(line)
        if arguments is None:
            return None
        code = compile_cell(self.shell, cell)
        with _usage_errors():
            recorded = self._find_recorder().record(stacks=arguments.stacks)
        around = _recorded(recorded, arguments)
        if code.is_async:
            return _awaited(code.run_async(self.shell.user_ns, around), lambda value: value)
        return code.run(self.shell.user_ns, around)

    def _find_recorder(self) -> Session:
        """Return the notebook's session, or one that records cells, which stays for the next one."""
        if self._open_labs() or _is_open(self._chosen):
            return self._find_session()
        if self._recorder is None or not _is_open(self._recorder):
            self._recorder = Session(capture="ranges", title="%%gpurecord")
        return self._recorder

    def _show_program(self, plan: Plan, note: str, arguments: Any) -> None:
        """Show a program's plan, and what was asked for beside it: behind its first run, in front of each other one."""
        __tracebackhide__ = True
        show_plan(plan, note, is_ordered=self._cells.auto is not None)
        if arguments.check:
            show_check(plan)
        if arguments.replay is not None:
            show_replay(plan, arguments.replay)

    @line_magic  # type: ignore[untyped-decorator]
    @no_var_expand  # type: ignore[untyped-decorator]
    def gpucapture(self, line: str) -> Capture | None:
        """Choose how much is captured, or say what is captured."""
        arguments = PARSERS["gpucapture"]().parse(line)
        if arguments is None:
            return None
        session = self._find_session()
        if arguments.tier is None:
            if arguments.no_host or arguments.stacks:
                option = "--no-host" if arguments.no_host else "--stacks"
                raise UsageError(f"%gpucapture: {option} needs a tier, for example kernels (see %gpucapture -h)")
            print(f"Captured: {session._captures.text}")  # noqa: SLF001, T201 - a magic's answer
            return None
        with _usage_errors():
            return session.capture(arguments.tier, host=not arguments.no_host, stacks=arguments.stacks)

    @line_magic  # type: ignore[untyped-decorator]
    @no_var_expand  # type: ignore[untyped-decorator]
    def gputimeline(self, line: str) -> Timeline | None:
        """Show the timeline of what ran so far, or save it."""
        arguments = PARSERS["gputimeline"]().parse(line)
        if arguments is None:
            return None
        lab = self._find_lab()
        self._rest()
        timeline = lab.timeline(live=not (arguments.static or arguments.save))
        if arguments.save is None:
            return timeline
        with _usage_errors():
            print(f"Timeline saved to {timeline.save(arguments.save)}")  # noqa: T201 - a magic's answer
        return None

    @line_magic  # type: ignore[untyped-decorator]
    @no_var_expand  # type: ignore[untyped-decorator]
    def gpugraph(self, line: str) -> CellGraph | None:
        """Show the notebook's cells as a graph."""
        if PARSERS["gpugraph"]().parse(line) is None:
            return None
        session = self._find_session()
        records, trace = self._cells.cells_since(session), session.trace
        running = session._recorder.running() if session.state is SessionState.OPEN else []  # noqa: SLF001 - of this package
        return make_cell_graph(records, trace, running)

    @line_magic  # type: ignore[untyped-decorator]
    @no_var_expand  # type: ignore[untyped-decorator]
    def gpuexplain(self, line: str) -> Explanation | ByEngine[Explanation] | None:
        """Say why work did not overlap."""
        arguments = PARSERS["gpuexplain"]().parse(line)
        if arguments is None:
            return None
        lab, first = self._find_lab(), arguments.first
        self._rest()
        with _usage_errors():
            if first and first.isdecimal():
                trace = lab.trace
                if first not in {*trace.names, *(lane.name for lane in trace.lanes)}:
                    first = int(first)
            return lab.explain(first, arguments.second)

    @line_magic  # type: ignore[untyped-decorator]
    @no_var_expand  # type: ignore[untyped-decorator]
    def gputune(self, line: str) -> Tuning | None:
        """Find the split of the SMs that serves functions best."""
        arguments = PARSERS["gputune"]().parse(line)
        if arguments is None:
            return None
        session, known = self._find_session(), self.shell.user_ns
        missing = [name for name in arguments.functions if not callable(known.get(name))]
        if missing and missing[0] in {"<", "<=", ">", ">="}:
            raise UsageError("%gputune: write the constraint without spaces: --constraint decode.p95<2ms")
        if missing:
            functions = [name for name, value in known.items() if callable(value) and not name.startswith("_")]
            hint = nearest_hint(missing[0], functions)
            raise UsageError(f"%gputune: {missing[0]!r} is no function of the notebook. {hint} Define one without arguments.")
        with _usage_errors():
            tasks = {name: known[name] for name in arguments.functions}
            found = session.bench.tune(tasks, arguments.objective, constraint=arguments.constraint, budget_s=arguments.budget)
            if arguments.apply:
                found.apply()
        return found

    @line_magic  # type: ignore[untyped-decorator]
    @no_var_expand  # type: ignore[untyped-decorator]
    def gpupartition(self, line: str) -> Layout | None:
        """Share out the SMs, or show how they are shared out."""
        arguments = PARSERS["gpupartition"]().parse(line)
        if arguments is None:
            return None
        session = self._find_session()
        if arguments.off and arguments.shares:
            raise UsageError("%gpupartition: --off goes back to the whole card and takes no partitions (see %gpupartition -h)")
        with _usage_errors():
            if arguments.shares:
                return session.partition(_read_shares(arguments.shares), round=arguments.round, strict=arguments.strict)
            if arguments.off:
                session.partition(None)
        if session.layout is None:
            print(f"No partitions: every stream has all {session.device.sm_count} SMs.")  # noqa: T201 - a magic's answer
        return session.layout

    def watch_cells(self) -> None:
        """Record cells from now on."""
        self._cells.register()

    @context_matcher()  # type: ignore[untyped-decorator]
    def complete(self, context: CompletionContext) -> SimpleMatcherResult:
        """Complete what a magic of ours takes next, and nothing of Python's beside it; called by IPython's completer."""
        line = context.text_until_cursor
        if not line.lstrip().startswith(_MAGIC):  # asked for at each key
            return {"completions": []}
        sessions = self._open_sessions()
        clusters = [lab for lab in self._open_labs().values() if isinstance(lab, Cluster)]
        names = {
            "STREAM": sorted({name for session in sessions for name in session.streams}),
            "PARTITION": sorted({part.name for session in sessions for part in session.layout or ()}),
            "ENGINE": [name for cluster in clusters for name in ("all", *cluster.names)],
        }
        typed, found = complete(line, names)
        return {
            "completions": [SimpleCompletion(text=one, type="magic") for one in found],
            "matched_fragment": typed,
            "ordered": True,
            "suppress": line.lstrip().startswith("%"),  # else it may be Python
        }

    def _start(self, arguments: argparse.Namespace) -> Session:
        variable = arguments.variable or DEFAULT_VARIABLE
        if not variable.isidentifier() or keyword.iskeyword(variable):
            raise UsageError(f"%gpulab: --as takes a variable's name, not {variable!r}")
        replaced = self.shell.user_ns.get(variable)
        if _is_open(replaced) and not isinstance(replaced, Session):
            raise UsageError(
                f"%gpulab: {variable} is open, with several GPUs. Close it first: {variable}.close(), or use --as NAME"
            )
        if arguments.off or (arguments.streams is not None and not arguments.auto):
            raise UsageError("%gpulab: --streams goes with start --auto, and --off with auto (see %gpulab -h)")
        with _usage_errors():
            session = Session(arguments.backend, device=arguments.device, capture=arguments.capture, host=not arguments.no_host)
        if _is_open(replaced):
            replaced.close()  # nothing but Out would reach it any more
            print(f"Closed: {replaced!r}")  # noqa: T201 - it was open until now
        self._chosen = session
        self.shell.push({variable: session})
        if arguments.auto:
            self._choose_streams(session, arguments)
        return session

    def _choose_streams(self, session: Session, arguments: argparse.Namespace) -> None:
        """Choose a stream for each cell from the next one on, or not any more."""
        if arguments.off:
            self._cells.stop_auto()
            print("Cells run as they are.")  # noqa: T201 - a magic's answer
            return
        with _usage_errors():
            self._cells.start_auto(session, DEFAULT_STREAMS if arguments.streams is None else arguments.streams)
        assert self._cells.auto is not None  # noqa: S101 - for the type checker
        print(f"From the next cell on, each runs on a stream chosen for it, one of {self._cells.auto.count}.")  # noqa: T201

    def _open_labs(self) -> dict[str, Lab]:
        """Return what is open in the notebook's variables, once each; those of IPython itself (``_3``, ``Out``) do not count.

        Nor does the session of a GPU of a node that is among them.
        """
        named = {name: value for name, value in self.shell.user_ns.items() if name[0] != "_" and _is_open(value)}
        of_nodes = {session for value in named.values() if isinstance(value, Node) for session in value}
        names = {value: name for name, value in reversed(named.items()) if value not in of_nodes}
        return {name: value for name, value in named.items() if names.get(value) == name}

    def _open_sessions(self) -> list[Session]:
        """Return the open sessions of this process, those of nodes too."""
        labs = [*self._open_labs().values(), *([self._chosen] if _is_open(self._chosen) else [])]
        of_labs = [[lab] if isinstance(lab, Session) else lab for lab in labs if not isinstance(lab, Cluster)]
        return list(dict.fromkeys(session for sessions in of_labs for session in sessions))

    def _rest(self) -> None:
        """Let the work of cells before this one end where it is simulated, as on a GPU while nobody types."""
        for session in self._open_sessions():
            session._recorder.rest()  # noqa: SLF001 - of this package

    def _find_lab(self) -> Lab:
        """Return what `%gpulab` started or chose, what is in variable `lab`, or the only open session, node or cluster."""
        for one in (self._chosen, self.shell.user_ns.get(DEFAULT_VARIABLE)):
            if _is_open(one):
                return one
        labs = self._open_labs()
        if len(labs) == 1:
            return next(iter(labs.values()))
        if not labs:
            raise UsageError(f"There is no open session.{self._closed_hint()} Start one with: %gpulab start")
        names = sorted(labs)
        raise UsageError(f"There are {len(labs)} open: {', '.join(names)}. Choose one with: %gpulab use --as {names[0]}")

    def _find_session(self) -> Session:
        """Return the same, where it is a session."""
        lab = self._find_lab()
        if isinstance(lab, Node):
            raise UsageError("There is a node of several GPUs. Ask it or one GPU: node.explain(), node[0].partition(decode=32)")
        if isinstance(lab, Cluster):
            raise UsageError("There is a cluster. Ask it in Python, lab.partition(decode=32), or run cells with --on all.")
        return lab

    def _another(self, kind: type[Lab]) -> str:
        """Say how the magics come to work on a node or a cluster, as they work on something else."""
        names = [name for name, lab in self._open_labs().items() if isinstance(lab, kind)]
        if names:
            return f"Choose one that is open: %gpulab use --as {names[0]}"
        return f"Make one: lab = gpustreamlab.{kind.__name__}({'client' * (kind is Cluster)})"

    def _closed_hint(self) -> str:
        """Say how to see what a closed session recorded, which magics no longer find; empty where there is none."""
        names = [name for name, value in self.shell.user_ns.items() if name[0] != "_" and isinstance(value, Lab)]
        if not names:
            return ""
        name = DEFAULT_VARIABLE if DEFAULT_VARIABLE in names else names[-1]
        return f" What {name!r} recorded until it was closed is still there: {name}.timeline(), {name}.explain()."

    def _run_on_engines(self, arguments: argparse.Namespace, cell: str, label: str) -> Outcomes:
        """Run a cell on engines of a cluster; what those returned that did not fail is shown first."""
        __tracebackhide__ = True
        held = (self._chosen, self.shell.user_ns.get(DEFAULT_VARIABLE))
        clusters = [lab for lab in self._open_labs().values() if isinstance(lab, Cluster)]
        cluster = next((lab for lab in held if lab in clusters), clusters[0] if len(clusters) == 1 else None)
        if not isinstance(cluster, Cluster):
            raise UsageError(f"%%gpustream: --on names engines of a cluster. {self._another(Cluster)}")
        if arguments.device is not None or arguments.after or arguments.kernels or arguments.counters or arguments.show:
            raise UsageError(
                "%%gpustream: with --on there is no --device, --after, --kernels, --counters or --show (see %%gpustream -h)"
            )
        options: dict[str, Any] = {"priority": arguments.priority, "sync": arguments.sync}
        if arguments.partition is not None or arguments.whole_card:
            options["partition"] = arguments.partition
        try:
            return cluster.run_cell(cell, arguments.stream, on=arguments.on, label=label, lines_above=1, **options)
        except ClusterError as error:
            if error.results:
                display(error.results)
            shown = f"{type(error).__name__}: {error}".splitlines()
            # IPython asks an error for this; the frames of this process tell nothing of what failed there.
            error._render_traceback_ = lambda: shown  # type: ignore[attr-defined]
            raise
        except GPUStreamLabError as error:
            raise UsageError(f"%%gpustream: {error}") from error

    def _use(self, variable: str) -> Lab:
        lab = self.shell.user_ns.get(variable)
        if not _is_open(lab):
            raise UsageError(
                f"%gpulab: variable {variable!r} holds no open session. {nearest_hint(variable, self._open_labs())}"
            )
        self._chosen = lab
        return lab

    @staticmethod
    def _named_streams(session: Session | Node, listed: str) -> Sequence[Stream]:
        names = [name for name in listed.split(",") if name]
        for name in names:
            if name not in session.streams:
                raise UsageError(
                    f"%%gpustream: --after names no stream of the session: {name!r}. {nearest_hint(name, session.streams)}"
                )
        return [session.streams[name] for name in names]


def _read_shares(words: Sequence[str]) -> dict[str, str]:
    """Return what each partition gets, as text; `plan_partitions` reads it."""
    shares: dict[str, str] = {}
    for word in words:
        name, equals, share = word.partition("=")
        if word == "off":
            raise UsageError("%gpupartition: to go back to the whole card, type %gpupartition --off")
        if not (name and equals and share):
            raise UsageError(f"%gpupartition: {word!r} is not NAME=SMS, for example decode=32 (see %gpupartition -h)")
        if "," in share:
            raise UsageError(f"%gpupartition: {word!r} has a comma; put a space between partitions (see %gpupartition -h)")
        if name in shares:
            raise UsageError(f"%gpupartition: partition {name!r} is given twice; name each once (see %gpupartition -h)")
        shares[name] = share
    return shares


async def _already(value: object) -> object:
    return value


async def _awaited(value: Awaitable[object], show: Callable[[object], object]) -> object:
    __tracebackhide__ = True
    return show(await value)


def _is_open(value: object) -> TypeGuard[Lab]:
    return isinstance(value, Lab) and value.state is SessionState.OPEN


@contextmanager
def _selected(selection: Selection, stream: Stream, *, synchronize: bool) -> Iterator[None]:
    try:
        with selection:
            yield
    finally:
        selection.put_back()  # after an interrupt that kept even the leaving from starting
    if synchronize:
        stream.synchronize()


@contextmanager
def _captured(session: Session, around: AbstractContextManager[None], arguments: argparse.Namespace) -> Iterator[None]:
    """Capture kernels, or count finely, while a cell runs that asks for it; then go back to what was captured before."""
    with ExitStack() as asked:
        with _usage_errors():
            if arguments.kernels:
                asked.enter_context(session.capture("kernels"))
            if arguments.counters:
                asked.enter_context(session.counters())
        with around:
            yield


@contextmanager
def _shown(session: Session, stream: Stream, around: AbstractContextManager[None], label: str) -> Iterator[None]:
    """Show the ranges of a cell below it, when it has run or failed."""
    checkpoint = session.recording.checkpoint()
    try:
        with around:
            yield
    except Exception:
        # Whatever goes wrong here, the cell's own error is what the user has to see.
        with suppress(Exception):
            stream.synchronize()
            _show_slice(session, checkpoint, label)
        raise
    _show_slice(session, checkpoint, label)


@contextmanager
def _recorded(recorded: Recorded, arguments: argparse.Namespace) -> Iterator[None]:
    """Show what was recorded of a cell below it, when it has run or failed; explain it where that is asked for."""
    try:
        with recorded:
            yield
    except BaseException:  # also where it was interrupted
        with suppress(Exception):  # the cell's own error is what the user has to see
            display(recorded.timeline())
        raise
    display(recorded.timeline())
    if arguments.explain:
        display(recorded.explain())
    if arguments.save is not None:
        with _usage_errors():
            print(f"Timeline saved to {recorded.timeline().save(arguments.save)}")  # noqa: T201 - a magic's answer


def _show_slice(session: Session, checkpoint: int, label: str) -> None:
    """Show what was recorded since a checkpoint, of the streams that had any of it."""
    trace = session.recording.since(checkpoint)
    used = np.unique(trace.lane)
    lanes = tuple(trace.lanes[lane] for lane in used.tolist())
    titled = replace(trace.metadata, title=label)
    lane = np.searchsorted(used, trace.lane).astype(np.int32)
    # What they held by then is no part of what ran in the cell.
    display(Timeline(replace(trace, lane=lane, lanes=lanes, counters=Counters(), metadata=titled)))


@contextmanager
def _usage_errors(*, of_cell: bool = False) -> Iterator[None]:
    """Show errors of ours as one line: what was typed is wrong, not the program. A cell's own errors stay as they are."""
    try:
        yield
    except GPUStreamLabError as error:
        if of_cell and any(frame.f_globals.get("__name__") == "__main__" for frame, _ in walk_tb(error.__traceback__)):
            raise
        raise UsageError(str(error)) from error


def load_ipython_extension(shell: Any) -> None:
    """Register the magics; what ``%load_ext gpustreamlab`` calls. Loading twice is silent."""
    unload_ipython_extension(shell)
    magics = GpuStreamMagics(shell)
    shell.register_magics(magics)
    for name in _CELL_MAGICS:
        transform = magic_transformer(shell, name)
        transform.owner = GpuStreamMagics  # type: ignore[attr-defined]
        shell.input_transformers_cleanup.append(transform)
    CellMarks(shell, open_sessions).register()
    magics.watch_cells()
    shell.Completer.custom_matchers.append(magics.complete)


def unload_ipython_extension(shell: Any) -> None:
    """Take the magics away again; what ``%unload_ext gpustreamlab`` calls."""
    unregister(shell, CellMarks, CellLog)
    matchers = shell.Completer.custom_matchers
    matchers[:] = [one for one in matchers if not isinstance(getattr(one, "__self__", None), GpuStreamMagics)]
    transformers = shell.input_transformers_cleanup
    transformers[:] = [transform for transform in transformers if getattr(transform, "owner", None) is not GpuStreamMagics]
    for name in PARSERS:
        kind = "cell" if name in _CELL_MAGICS else "line"
        shell.magics_manager.magics[kind].pop(name, None)
