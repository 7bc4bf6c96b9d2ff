"""IPython magics: `%gpulab`, `%%gpustream`, `%gpupartition`, `%gpucapture`, `%gputimeline`, `%gpuexplain`, as in Python."""

from __future__ import annotations

import argparse
import keyword
import shlex
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any, NoReturn, TypeGuard

import numpy as np
from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand, output_can_be_silenced
from IPython.display import display

from gpustreamlab.analysis import Explanation
from gpustreamlab.backends import BACKEND_NAMES
from gpustreamlab.errors import GPUStreamLabError, nearest_hint
from gpustreamlab.model import Counters, Layout
from gpustreamlab.notebook.cells import CellMarks, cell_number, compile_cell, magic_transformer, show_value
from gpustreamlab.record.capture import AUTO, Capture
from gpustreamlab.session import Session, open_sessions
from gpustreamlab.streams.selection import Selection
from gpustreamlab.streams.stream import Stream
from gpustreamlab.timeline import Timeline
from gpustreamlab.typing import CaptureTier, Rounding, SessionState

__all__ = ["GpuStreamMagics", "load_ipython_extension", "unload_ipython_extension"]

DEFAULT_VARIABLE = "lab"
"""The variable that `%gpulab start` puts the session into."""
_TIERS = (*(tier.value for tier in CaptureTier), AUTO)


class MagicParser(argparse.ArgumentParser):
    """An argument parser that answers misuse with one line and the nearest valid choice."""

    advice = "Put quotes around text with spaces."
    """What to do about a word too many."""

    def parse(self, line: str) -> argparse.Namespace | None:
        """Return the arguments, or None if help was asked for and shown.

        Raises
        ------
        UsageError
            For anything that cannot be understood.
        """
        try:
            words = shlex.split(line)
        except ValueError as error:
            self.error(f"{error} in {line!r}; close the quotes")
        if {"-h", "--help"} & set(words):
            self.print_help()
            return None
        arguments, left = self.parse_known_intermixed_args(words)  # options may stand between names
        if left:
            advice = self.hint(left[0]) if left[0].startswith("-") else self.advice
            self.error(f"there is no option or argument {left[0]!r}. {advice}")
        return arguments

    @property
    def options(self) -> list[str]:
        """Every option, long form."""
        return [option for action in self._actions for option in action.option_strings if option.startswith("--")]

    @property
    def choices(self) -> list[str]:
        """Every closed choice of an argument or option."""
        return [choice for action in self._actions for choice in action.choices or ()]

    def hint(self, wrong: str) -> str:
        """Name the option nearest to a wrong one."""
        return nearest_hint(wrong.partition("=")[0], self.options)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Name the choice nearest to a wrong one."""
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}. {nearest_hint(str(value), action.choices)}")

    def error(self, message: str) -> NoReturn:
        """Raise IPython's own `UsageError`, which shows as one line."""
        raise UsageError(f"{self.prog}: {message} (see {self.prog} -h)")


def gpulab_parser() -> MagicParser:
    """Return the parser of `%gpulab`."""
    parser = MagicParser(prog="%gpulab", description="Start, show or close the session.", allow_abbrev=False)
    parser.add_argument(
        "action",
        nargs="?",
        choices=("start", "show", "use", "close", "stop"),
        help="default: show the session, or start one if there is none; use: let the magics work on the one in --as; "
        "stop: the same as close",
    )
    parser.add_argument("--backend", choices=BACKEND_NAMES, help="default: the GPU if there is one, else the simulated device")
    parser.add_argument("--device", type=int, default=0, help="CUDA device number (default: 0)")
    parser.add_argument(
        "--capture",
        choices=_TIERS,
        default=AUTO,
        help="ranges: named ranges only, at less cost; kernels: every kernel too; auto, the default: kernels where that works",
    )
    parser.add_argument("--as", dest="variable", help="variable of the session (default: lab)")
    parser.advice = "The session's variable is named by --as: %gpulab use --as lab2"
    return parser


def gpustream_parser() -> MagicParser:
    """Return the parser of `%%gpustream`."""
    parser = MagicParser(
        prog="%%gpustream", description="Run the cell with a stream selected, as one named range.", allow_abbrev=False
    )
    parser.advice = "Names of streams have no spaces; put quotes around a label that has."
    parser.add_argument("stream", help="name of the stream; made on first use")
    parser.add_argument("--priority", type=int, help="CUDA priority for a new stream: lower runs first (default: 0)")
    parser.add_argument("--partition", help="partition in which the stream works; it moves there if it is elsewhere")
    parser.add_argument("--whole-card", action="store_true", help="move the stream out of its partition")
    parser.add_argument("--after", default="", metavar="STREAM[,STREAM]", help="wait for what these streams hold now")
    parser.add_argument("--label", help="name of the range (default: the cell's number)")
    parser.add_argument("--sync", action="store_true", help="wait for the stream's work when the cell has run")
    parser.add_argument("--kernels", action="store_true", help="--sync, and capture kernels and host calls while it runs")
    parser.add_argument("--show", action="store_true", help="--sync, then show what ran in this cell below it")
    return parser


def gpucapture_parser() -> MagicParser:
    """Return the parser of `%gpucapture`."""
    parser = MagicParser(
        prog="%gpucapture",
        description="Choose how much is captured: named ranges, every kernel, the calls of the host. Alone it tells.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "tier",
        nargs="?",
        choices=_TIERS,
        help="auto: kernels where that works, else ranges",
    )
    parser.add_argument("--no-host", action="store_true", help="leave out the calls of the host that enqueued the kernels")
    parser.add_argument("--stacks", action="store_true", help="sample the Python stacks of threads that launch, up to 200 Hz")
    return parser


def gpupartition_parser() -> MagicParser:
    """Return the parser of `%gpupartition`."""
    parser = MagicParser(prog="%gpupartition", description="Share out the SMs, or show how they are.", allow_abbrev=False)
    parser.add_argument("shares", nargs="*", metavar="NAME=SMS", help="SMs (96), a share (25%% or 0.25), or rest")
    parser.add_argument(
        "--round",
        choices=[rule.value for rule in Rounding],
        default=Rounding.UP.value,
        help="where the device cannot grant that count (default: up)",
    )
    parser.add_argument("--strict", action="store_true", help="an error instead of a warning where the device lacks something")
    parser.add_argument("--off", action="store_true", help="go back to the whole card")
    return parser


def gputimeline_parser() -> MagicParser:
    """Return the parser of `%gputimeline`."""
    parser = MagicParser(
        prog="%gputimeline",
        description="Show the timeline of what ran so far; in a notebook it goes on growing.",
        allow_abbrev=False,
    )
    parser.add_argument("--save", metavar="FILE", help="write it to a .html, .svg or .png file instead")
    parser.add_argument("--static", action="store_true", help="a picture of now, which does not grow")
    return parser


def gpuexplain_parser() -> MagicParser:
    """Return the parser of `%gpuexplain`."""
    parser = MagicParser(
        prog="%gpuexplain", description="Say why work did not overlap, and what to change.", allow_abbrev=False
    )
    parser.add_argument(
        "first", nargs="?", help="a stream, the name of a range or kernel, or a row of the trace (default: all)"
    )
    parser.add_argument("second", nargs="?", help="what it should have overlapped with (default: all others)")
    return parser


@magics_class
class GpuStreamMagics(Magics):  # type: ignore[misc]
    """The magics of one shell, and the session that they work on."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._session: Session | None = None

    @line_magic  # type: ignore[untyped-decorator]
    @no_var_expand  # type: ignore[untyped-decorator]
    def gpulab(self, line: str) -> Session | None:
        """Start, show or close the session."""
        arguments = gpulab_parser().parse(line)
        if arguments is None:
            return None
        open_sessions = self._open_sessions()
        action = arguments.action or ("show" if open_sessions else "start")
        if action == "start":
            return self._start(arguments)
        if action == "use":
            return self._use(arguments.variable or DEFAULT_VARIABLE)
        session = self._find_session() if arguments.variable is None else self._use(arguments.variable)
        if action == "show":
            return session
        session.close()
        print(f"Closed: {session!r}")  # noqa: T201 - which one it was: others may be open
        self._session = None
        return None

    @cell_magic  # type: ignore[untyped-decorator]
    @no_var_expand  # type: ignore[untyped-decorator]
    @output_can_be_silenced  # type: ignore[untyped-decorator]
    def gpustream(self, line: str, cell: str) -> object:
        """Run the cell with a stream selected, as one named range."""
        __tracebackhide__ = True
        arguments = gpustream_parser().parse(line)
        if arguments is None:
            return None
        session = self._find_session()
        code = compile_cell(self.shell, cell)
        label = f"In [{cell_number(self.shell)}]" if arguments.label is None else arguments.label
        with _usage_errors():
            if arguments.whole_card and arguments.partition is not None:
                raise UsageError("%%gpustream: --partition and --whole-card exclude each other (see %%gpustream -h)")
            stays = arguments.partition is None and not arguments.whole_card
            partition = ... if stays else arguments.partition
            stream = session.stream(arguments.stream, priority=arguments.priority, partition=partition)
            for other in self._named_streams(session, arguments.after):
                stream.wait(other)
            waits = arguments.sync or arguments.show or arguments.kernels
            around = _selected(session.on(stream, label), stream, synchronize=waits)
            if arguments.kernels:
                around = _captured(session, around)
            if arguments.show:
                around = _shown(session, stream, around, label)

        def show(value: object) -> object:
            return value if stream.is_closed else show_value(self.shell, cell, value, session.select(stream))

        if code.is_async:
            return _awaited(code.run_async(self.shell.user_ns, around), show)
        return show(code.run(self.shell.user_ns, around))

    @line_magic  # type: ignore[untyped-decorator]
    @no_var_expand  # type: ignore[untyped-decorator]
    def gpucapture(self, line: str) -> Capture | None:
        """Choose how much is captured, or say what is captured."""
        arguments = gpucapture_parser().parse(line)
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
        arguments = gputimeline_parser().parse(line)
        if arguments is None:
            return None
        timeline = self._find_session().timeline(live=not (arguments.static or arguments.save))
        if arguments.save is None:
            return timeline
        with _usage_errors():
            print(f"Timeline saved to {timeline.save(arguments.save)}")  # noqa: T201 - a magic's answer
        return None

    @line_magic  # type: ignore[untyped-decorator]
    @no_var_expand  # type: ignore[untyped-decorator]
    def gpuexplain(self, line: str) -> Explanation | None:
        """Say why work did not overlap."""
        arguments = gpuexplain_parser().parse(line)
        if arguments is None:
            return None
        session, first = self._find_session(), arguments.first
        with _usage_errors():
            if first and first.isdecimal():
                trace = session.trace
                if first not in {*trace.names, *(lane.name for lane in trace.lanes)}:
                    first = int(first)
            return session.explain(first, arguments.second)

    @line_magic  # type: ignore[untyped-decorator]
    @no_var_expand  # type: ignore[untyped-decorator]
    def gpupartition(self, line: str) -> Layout | None:
        """Share out the SMs, or show how they are shared out."""
        arguments = gpupartition_parser().parse(line)
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

    def complete(self, event: Any) -> list[str]:
        """Complete options, stream and partition names; called by IPython's completer."""
        magic = event.line.lstrip().split(None, 1)[0].lstrip("%")
        parser = PARSERS[magic]()
        if event.symbol.startswith("-"):
            return parser.options
        sessions = self._open_sessions()
        partitions = sorted({name for session in sessions if session.layout is not None for name in session.layout.names})
        if magic == "gpupartition":
            return [f"{name}=" for name in partitions] + parser.choices + parser.options
        if magic == "gpustream" and event.line.split()[-2:].count("--partition"):
            return partitions
        names = {name for session in sessions for name in session.streams} if magic in {"gpustream", "gpuexplain"} else set()
        return sorted(names) + parser.choices + parser.options

    def _start(self, arguments: argparse.Namespace) -> Session:
        variable = arguments.variable or DEFAULT_VARIABLE
        if not variable.isidentifier() or keyword.iskeyword(variable):
            raise UsageError(f"%gpulab: --as takes a variable's name, not {variable!r}")
        with _usage_errors():
            session = Session(arguments.backend, device=arguments.device, capture=arguments.capture)
        replaced = self.shell.user_ns.get(variable)
        if _is_open_session(replaced):
            replaced.close()  # nothing but Out would reach it any more
        self._session = session
        self.shell.push({variable: session})
        return session

    def _named_sessions(self) -> dict[str, Session]:
        """Return the open sessions in the notebook's variables; those of IPython itself (``_3``, ``Out``) do not count."""
        return {name: value for name, value in self.shell.user_ns.items() if name[0] != "_" and _is_open_session(value)}

    def _open_sessions(self) -> list[Session]:
        held = [self._session] if _is_open_session(self._session) else []
        return list({id(session): session for session in [*held, *self._named_sessions().values()]}.values())

    def _find_session(self) -> Session:
        """Return the session started or chosen by `%gpulab`, the one in variable `lab`, or the only open one there is."""
        for session in (self._session, self.shell.user_ns.get(DEFAULT_VARIABLE)):
            if _is_open_session(session):
                return session
        sessions = self._open_sessions()
        if len(sessions) == 1:
            return sessions[0]
        if not sessions:
            raise UsageError("There is no open session. Start one with: %gpulab start")
        names = sorted(self._named_sessions())
        raise UsageError(
            f"There are {len(sessions)} open sessions: {', '.join(names)}. Choose one with: %gpulab use --as {names[0]}"
        )

    def _use(self, variable: str) -> Session:
        session = self.shell.user_ns.get(variable)
        if not _is_open_session(session):
            hint = nearest_hint(variable, self._named_sessions())
            raise UsageError(f"%gpulab: variable {variable!r} holds no open session. {hint}")
        self._session = session
        return session

    @staticmethod
    def _named_streams(session: Session, listed: str) -> Sequence[Stream]:
        names = [name for name in listed.split(",") if name]
        for name in names:
            if name not in session.streams:
                raise UsageError(
                    f"%%gpustream: --after names no stream of the session: {name!r}. {nearest_hint(name, session.streams)}"
                )
        return [session.streams[name] for name in names]


PARSERS: dict[str, Callable[[], MagicParser]] = {
    "gpucapture": gpucapture_parser,
    "gpulab": gpulab_parser,
    "gpupartition": gpupartition_parser,
    "gpustream": gpustream_parser,
    "gputimeline": gputimeline_parser,
    "gpuexplain": gpuexplain_parser,
}


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


async def _awaited(value: Awaitable[object], show: Callable[[object], object]) -> object:
    __tracebackhide__ = True
    return show(await value)


def _is_open_session(value: object) -> TypeGuard[Session]:
    return isinstance(value, Session) and value.state is SessionState.OPEN


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
def _captured(session: Session, around: AbstractContextManager[None]) -> Iterator[None]:
    """Capture kernels while a cell runs, then go back to what was captured before."""
    with _usage_errors():
        capture = session.capture("kernels")
    with capture, around:
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
def _usage_errors() -> Iterator[None]:
    """Show errors of ours as one line: what was typed is wrong, not the program."""
    try:
        yield
    except GPUStreamLabError as error:
        raise UsageError(str(error)) from error


def load_ipython_extension(shell: Any) -> None:
    """Register the magics; what ``%load_ext gpustreamlab`` calls. Loading twice is silent."""
    unload_ipython_extension(shell)
    magics = GpuStreamMagics(shell)
    shell.register_magics(magics)
    transform = magic_transformer(shell, "gpustream")
    transform.owner = GpuStreamMagics  # type: ignore[attr-defined]
    shell.input_transformers_cleanup.append(transform)
    CellMarks(shell, open_sessions).register()
    for make in PARSERS.values():
        shell.set_hook("complete_command", lambda _, event: magics.complete(event), str_key=make().prog)


def unload_ipython_extension(shell: Any) -> None:
    """Take the magics away again; what ``%unload_ext gpustreamlab`` calls."""
    CellMarks.unregister(shell)
    transformers = shell.input_transformers_cleanup
    transformers[:] = [transform for transform in transformers if getattr(transform, "owner", None) is not GpuStreamMagics]
    for name in PARSERS:
        kind = "cell" if name == "gpustream" else "line"
        shell.magics_manager.magics[kind].pop(name, None)
