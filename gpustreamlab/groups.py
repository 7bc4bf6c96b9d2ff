"""What a session can do beyond every day's work, in groups: `partitions`, `memory`, `recording`, `expect`."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from os import PathLike
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from numpy.typing import DTypeLike, NDArray

from gpustreamlab._util.arrays import find_arrays
from gpustreamlab._util.words import StandsElsewhere
from gpustreamlab.adapters import Adapters
from gpustreamlab.analysis import (
    Check,
    Explanation,
    Hazards,
    Missed,
    ScratchTable,
    Share,
    check_layout,
    concurrency,
    expect_faster,
    expect_no_host_waits,
    expect_no_strays,
    expect_none,
    expect_overlap,
)
from gpustreamlab.backends import Backend
from gpustreamlab.errors import ExpectationError, GPUStreamLabError, InvalidNameError, OptionError, SessionError
from gpustreamlab.green import SMMap
from gpustreamlab.memory.guards import Guard
from gpustreamlab.memory.hazards import variables_of
from gpustreamlab.memory.scratch import Scratch
from gpustreamlab.model import Capabilities, Layout, Verification, WorkqueueOptions, without_tools
from gpustreamlab.model import Trace as AnyTrace
from gpustreamlab.recorder import OpenRange
from gpustreamlab.sinks.spool import Spool
from gpustreamlab.streams.layout import read_plan, read_renamed
from gpustreamlab.streams.stream import Stream, check_label
from gpustreamlab.timeline import Timeline
from gpustreamlab.trace import Trace, as_trace, load_trace
from gpustreamlab.typing import CaptureTier, HazardMode, Rounding, SessionState, SupportsCudaStream

if TYPE_CHECKING:
    from gpustreamlab.notebook.partitioner import Partitioner
    from gpustreamlab.session import Session

_log = logging.getLogger(__name__)

__all__ = ["Expect", "Expectation", "Group", "Memory", "PartitionTools", "Recorded", "Recording"]


class Group(StandsElsewhere):
    """Some of what a session can do. It is made where it is asked for, so it keeps nothing that the session does not.

    Parameters
    ----------
    session
        The session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(name for name in vars(type(self)) if name[0] != '_')}>"


class PartitionTools(Group):
    """Plan, prepare, watch and prove what `Session.partition` does."""

    _guesses: ClassVar = {
        "lab.bench.tune({'prefill': f, 'decode': g})": "tune optimize",
        "lab.layout, or lab.layout['prefill']": "layout names sms list",
    }

    def prepare(self, *plans: Mapping[str, Share] | Layout, round: Rounding | str = Rounding.UP) -> tuple[Layout, ...]:  # noqa: A002
        """Make the green contexts of layouts now, so that going over to them later waits only for the streams that move.

        Making a context takes about a millisecond, and on the drivers tried it waits for everything that runs on the device.

        Parameters
        ----------
        *plans
            Names with what each gets, or planned layouts, as for `Session.partition`.
        round
            As for `Session.partition`.

        Returns
        -------
        tuple of Layout
            What each would get.

        Raises
        ------
        PartitionError
            If SMs cannot be shared out like this.
        SessionClosedError
            If the session is closed.

        Examples
        --------
        >>> from gpustreamlab import Session
        >>> with Session("sim") as lab:
        ...     day, night = lab.partitions.prepare({"prefill": 96, "decode": "rest"}, {"prefill": 32, "decode": "rest"})
        ...     lab.partition(night)["decode"].granted_sms
        100
        """
        session = self._session
        session._life.require_open("prepare layouts")
        with session._recorder.loss_report:
            layouts = [read_plan(session._backend, plan, {}, rounding=round) for plan in plans]
            return tuple(session._partitions.prepare(layout) for layout in layouts if layout is not None)

    def plan_moves(
        self,
        plan: Mapping[str, Share] | Layout | EllipsisType | None = ...,
        /,
        *,
        round: Rounding | str = Rounding.UP,  # noqa: A002 - what the user types
        strict: bool = False,
        workqueue: WorkqueueOptions | None = None,
        renamed: Mapping[str, str] | None = None,
        **shares: Share,
    ) -> tuple[str, ...]:
        """Return the names of the streams that `Session.partition` would drain and move, for the same arguments.

        Raises
        ------
        PartitionError
            If the SMs cannot be shared out like this, or a layout is not one of this device.
        PartitionInUseError
            If a stream works in a partition that the layout does not have.
        """
        session = self._session
        if isinstance(plan, Layout) and not shares:  # as it is: a widget asks at each step of a drag, and must not warn
            layout: Layout | None = check_layout(plan, session.device)
        else:
            layout = read_plan(session._backend, plan, shares, rounding=round, strict=strict, workqueue=workqueue)
        moves = session._partitions.plan_moves(layout, read_renamed(renamed))
        return tuple(stream.name for stream in moves)

    def verify(self) -> Verification:
        """Prove where work runs: a kernel on every stream, and in every partition, tells which SMs it was on.

        It waits for what the streams hold. The SM ids that were seen are kept in the layout and in the trace.
        """
        doing = "verify its partitions"
        session = self._session
        session._life.require_open(doing)
        with session._life.moving(doing):
            return session._partitions.verify()

    def map(self) -> SMMap:
        """Return a drawing of the card, one cell for each SM, coloured by partition; measured first where that was not done."""
        session = self._session
        layout = session.layout
        if layout is not None and not layout.has_verified_sms and session.state is SessionState.OPEN:
            with session._locks.moves:
                is_open = session._life.state is SessionState.OPEN  # it may have been closed meanwhile
                layout = session._partitions.locate() if is_open else session.layout
        return SMMap(session.device, layout)

    def watch(self, listener: Callable[[Layout | None], object]) -> Callable[[], None]:
        """Call a function with the layout after each change of it, and when the session has closed; return what stops that."""
        return self._session._partitions.watch(listener)

    def widget(self) -> Partitioner:
        """Return a widget to share out the SMs by hand: drag a boundary, see what is granted, apply, verify."""
        from gpustreamlab.notebook.partitioner import Partitioner

        self._session._life.require_open("show a widget")
        return Partitioner(self._session)

    @property
    def capabilities(self) -> Capabilities:
        """What this device and its driver can do with SMs and work queues, what each needs, and what happens without it."""
        return self._session._backend.capabilities


class Memory(Group):
    """Memory for a few launches, page-locked memory, guards, and races between streams."""

    _guesses: ClassVar = {
        "lab.memory.hazards()": "race races find_races check",
        "lab.memory.pinned_empty(shape, dtype)": "pinned pinned_zeros empty_pinned alloc_pinned",
    }

    def scratch(self, nbytes: int) -> Scratch:
        """Return device memory for work of the stream selected in this thread; see `Stream.scratch`.

        Raises
        ------
        SelectionError
            If no stream is selected in this thread: the NULL stream is never meant.
        SessionClosedError
            If the session is closed.
        """
        self._session._life.require_open("take scratch memory")
        return self._session._selections.require("scratch memory").scratch(nbytes)

    @property
    def statistics(self) -> ScratchTable:
        """How much scratch memory every stream uses, as a table."""
        return ScratchTable(items=tuple(stream._scratch.statistics for stream in [*self._session._table.by_name.values()]))

    def pinned_empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = "float64") -> NDArray[Any]:
        """Return page-locked host memory as an uninitialised NumPy array: copies to and from it can overlap other work."""
        self._session._life.require_open("allocate page-locked memory")
        return self._session._backend.pinned_empty(shape, dtype)

    def guard(self, resource: object, name: str = "") -> Guard:
        """Return a guard of what one stream at a time may use: an engine's execution context, a workspace. See `Guard`."""
        self._session._life.require_open("guard something")
        return Guard(self._session._keeper, self._session.on, resource, name)

    @staticmethod
    def arrays_in(*values: object) -> list[Any]:
        """Return the arrays that values lead to now, in containers and attributes: to hold them when others took their place.

        Examples
        --------
        >>> from gpustreamlab import Session
        >>> with Session("sim") as lab:
        ...     table = {"x": lab.xp.zeros(2)}
        ...     kept = lab.memory.arrays_in(table)
        ...     table["x"] = lab.xp.ones(2)
        ...     lab.stream("a").hold(kept)
        ...     kept
        [array([0., 0.])]
        """
        return list(find_arrays(values))

    @property
    def held_count(self) -> int:
        """How many objects are kept for work in flight, or because they crossed streams and somebody still uses them."""
        return self._session._keeper.held_count

    def hazards(self) -> Hazards:
        """Return which data crossed streams without an order: what conflicts, and the wait that is missing.

        Every access to arrays of `Session.xp` since the start is compared with those before it, and on a GPU all work of other
        libraries, too; see docs/how-to/find-a-race.md.

        Examples
        --------
        >>> from gpustreamlab import Session
        >>> with Session("sim") as lab:
        ...     copy, compute = lab.stream("copy"), lab.stream("compute")
        ...     with lab.on("copy", "upload"):
        ...         x = lab.xp.ones(8)
        ...     with lab.on("compute", "double"):
        ...         y = x * 2
        ...     found = lab.memory.hazards()
        ...     found.hazards[0].kind.value, found.hazards[0].array, found.hazards[0].fix, found.hazards[0].where
        ('read-after-write', 'x', "lab.stream('compute').wait(lab.stream('copy'))", "before 'double' (multiply)")
        """
        return self._session._accesses.check(variables_of(sys._getframe(1)))  # for the names of its arrays


class Recording(Group):
    """What is recorded, of whom, and where it goes."""

    @property
    def tier(self) -> CaptureTier:
        """How much of the device's work is captured now: named ranges, or ranges and every kernel."""
        return self._session._captures.tier

    @property
    def note(self) -> str:
        """Why kernels are not captured although they were asked for; empty where they are."""
        return self._session._captures.note

    @property
    def backend(self) -> Backend:
        """What does the work, and whose clock times it."""
        return self._session._backend

    @property
    def adapters(self) -> Adapters:
        """Which libraries follow a selected stream, and why others do not; looking imports none of them."""
        return self._session._selections.adapters

    @property
    def spool(self) -> Spool | None:
        """The file to which what is recorded is appended, and how it stands; None without one."""
        return self._session._spool

    def start_range(self, stream: str | Stream | SupportsCudaStream, label: str) -> OpenRange:
        """Open a range on a stream now; call its ``end()`` later, from any thread. One that is never ended is not kept."""
        session = self._session
        session._life.require_open("start a range")
        check_label(label)
        chosen = session._table.find(stream)
        chosen._require_open()
        return OpenRange(session._recorder, chosen._recorded, label)

    def mark(self, text: str) -> None:
        """Mark this moment in the timeline, across all streams; the newest 10,000 marks are kept.

        Raises
        ------
        InvalidNameError
            If the text is none.

        Examples
        --------
        >>> from gpustreamlab import Session
        >>> with Session("sim") as lab:
        ...     lab.recording.mark("warm-up done")
        ...     [marker.text for marker in lab.trace.markers]
        ['warm-up done']
        """
        self._session._life.require_open("mark a moment")
        if not isinstance(text, str):
            raise InvalidNameError(
                f"A mark's text is a str, not {type(text).__name__}. Use for example lab.recording.mark({str(text)[:40]!r})."
            )
        self._session._recorder.mark(text)

    def checkpoint(self) -> int:
        """Return a number that stands for now, for `since`."""
        return self._session._recorder.checkpoint()

    def since(self, checkpoint: int) -> Trace:
        """Return the ranges that were opened after a `checkpoint` and whose work has ended. Never waits for the device.

        Raises
        ------
        OptionError
            If it is no checkpoint.

        Examples
        --------
        >>> from gpustreamlab import Session
        >>> with Session("sim") as lab:
        ...     copy = lab.stream("copy")
        ...     with lab.on("copy", "warm-up"):
        ...         pass
        ...     before = lab.recording.checkpoint()
        ...     with lab.on("copy", "upload"):
        ...         pass
        ...     lab.synchronize()
        ...     later = lab.recording.since(before).where(kind="range")
        ...     [later.names[code] for code in later.name]
        ['upload']
        """
        if isinstance(checkpoint, bool) or not isinstance(checkpoint, int):
            raise OptionError(
                f"checkpoint is {checkpoint!r:.40}; it must be a number that lab.recording.checkpoint() returned."
            )
        session = self._session
        session._life.require_open("cut its trace")
        trace = session._recorder.trace(since=checkpoint)
        # Asked again: the recorder lets go of everything where another thread closes the session meanwhile.
        session._life.require_open("cut its trace")
        return as_trace(without_tools(trace))


class Recorded:
    """What runs in a ``with`` block, of any library, as it is: no stream is selected. `Session.record` makes it.

    Streams that a session has not made are lanes of their own. Behind the block it waits for the device; what of it is shown,
    and what `trace` has, is what ran inside.

    Parameters
    ----------
    find
        Returns the session that records, when the block begins.
    stacks
        Whether it is looked where the Python of each thread stands that launches work.
    is_owner
        Whether the session is made for it, and closed behind the block.
    """

    def __init__(self, find: Callable[[], Session], *, stacks: bool, is_owner: bool = False) -> None:
        self._find, self._stacks, self._is_owner = find, stacks, is_owner
        self._session: Session | None = None
        self._began: int | None = None
        self._trace: Trace | None = None

    def __enter__(self) -> Self:
        if self._began is not None:
            raise SessionError("This has recorded a block already. Make another: with lab.record() as run:")
        self._session = self._find()
        try:
            self._capture = self._session.capture("auto", stacks=self._stacks)
            self._began = self._session.recording.checkpoint()
        except BaseException:
            if self._is_owner:
                self._session.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            self._finish()
        except GPUStreamLabError:
            if error is None:
                raise
            _log.debug("What was recorded of a block that failed could not be read", exc_info=True)

    def _finish(self) -> None:
        assert self._began is not None  # noqa: S101 - for the type checker
        self._capture.stop()  # first, so that the wait is none of the program's; what still runs comes all the same
        try:
            self.session.synchronize()
        finally:
            try:
                if self.session.state is SessionState.OPEN:
                    self._trace = self.session.recording.since(self._began)
            finally:
                if self._is_owner:
                    self.session.close()

    @property
    def session(self) -> Session:
        """What records; in the block, its streams and arrays can be used as ever.

        Raises
        ------
        SessionError
            Before the block has begun.
        """
        if self._session is None:
            raise SessionError("There is no session yet: this has one once its with block has begun.")
        return self._session

    @property
    def trace(self) -> Trace:
        """What ran in the block.

        Raises
        ------
        SessionError
            Before the block has ended.
        """
        if self._trace is None:
            raise SessionError("Nothing is recorded yet: this has the trace once its with block has ended.")
        return self._trace

    def timeline(self) -> Timeline:
        """Return a picture of what ran, which shows itself and can be saved."""
        return self.trace.timeline()

    def explain(self) -> Explanation:
        """Say why work did not overlap, and what to change; see `gpustreamlab.analysis.explain`."""
        return self.trace.explain()

    def __repr__(self) -> str:
        return f"<Recorded: {'a block that has not ended' if self._trace is None else repr(self.timeline())[1:-1]}>"

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        if self._trace is None:
            return {"text/plain": repr(self)}
        return self.timeline()._repr_mimebundle_(include, exclude)


class Expect(Group):
    """Expect something of a run: of what runs in a ``with`` block, or, with ``.check()``, of what ran so far.

    A failure raises `ExpectationError`, with what happened and why.

    Examples
    --------
    >>> from gpustreamlab import Session
    >>> from gpustreamlab.workloads import spin
    >>> with Session("sim") as lab:
    ...     for name in ("copy", "compute"):
    ...         _ = lab.stream(name)
    ...     with lab.expect.overlap("copy", "compute", at_least=0.9):
    ...         spin(lab, 1_000_000, stream="copy")
    ...         spin(lab, 1_000_000, stream="compute")
    """

    def overlap(self, first: str, second: str, *, at_least: float) -> Expectation:
        """Expect two streams, ranges or kernels, by name, to work at once, for this share of the shorter one's time or more.

        Kernels that share the SMs and take as long as one after the other gain nothing by it: that is not as expected either.
        """
        return self._of(expect_overlap(first, second, at_least))

    def no_strays(self) -> Expectation:
        """Expect all work in ranges to run on the stream that was selected."""
        return self._of(expect_no_strays)

    def no_hazards(self) -> Expectation:
        """Expect no data to cross streams without an order; the session must watch its arrays, see `Memory.hazards`."""
        return _NoHazards(self._session, variables_of(sys._getframe(1)))

    def no_host_waits(self, *, during: str | None = None) -> Expectation:
        """Expect the host not to wait for the device, anywhere or in ranges of a name."""
        return self._of(expect_no_host_waits(during))

    def faster_than(self, baseline: Trace | str | PathLike[str] | float, *, by: float = 1.0) -> Expectation:
        """Expect the run, from first start to last end, to be `by` times as fast as a trace, a saved one, or a time in ns."""
        if isinstance(baseline, (int, float)):
            return self._of(expect_faster(baseline, by))
        trace = baseline if isinstance(baseline, Trace) else load_trace(baseline)
        return self._of(expect_faster(concurrency(trace).wall_ns, by))

    def _of(self, check: Check) -> Expectation:
        return Expectation(self._session, check)


class Expectation:
    """What is expected of what runs in a ``with`` block, or ran so far; see `Expect`."""

    def __init__(self, session: Session, check: Check) -> None:
        self._session, self._check, self._is_used = session, check, False

    def __enter__(self) -> None:
        self._is_used = True
        self._began = self._session.recording.checkpoint()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if kind is None:
            self._session.synchronize()
            self._require(self._session.recording.since(self._began))

    def check(self) -> None:
        """Wait for the device, and raise `ExpectationError` if what ran so far is not as expected."""
        self._is_used = True
        self._session.synchronize()
        self._require(self._session.trace)

    def __del__(self) -> None:
        # An expectation that nobody asks for would be a test that cannot fail.
        if not getattr(self, "_is_used", True):
            warnings.warn("An expectation was never checked: use it in a with statement, or call .check().", stacklevel=2)

    def _require(self, trace: Trace) -> None:
        missed = self._check(trace)
        if missed:
            raise ExpectationError(missed.text)


class _NoHazards(Expectation):
    """Expects that no hazard comes to those that were known when its ``with`` block began."""

    def __init__(self, session: Session, names: Mapping[str, object]) -> None:
        super().__init__(session, self._missed)
        self._names, self._known_count = names, 0

    def __enter__(self) -> None:
        super().__enter__()
        self._known_count = self._session._accesses.check(self._names).hazard_count

    def _missed(self, trace: AnyTrace) -> Missed:
        found = self._session._accesses.check(self._names)
        if found.mode is HazardMode.OFF:
            text = "Whether data crossed streams without an order cannot be told: nothing was watched. "
            return Missed(trace=trace, text=f"{text}Start the session with gpustreamlab.Session(hazards='report').")
        if found.hazard_count == self._known_count:
            return Missed(trace=trace, text="")
        return expect_none(found)
