"""A cluster: many processes on an engine of others, one session in each, one trace of all."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from inspect import signature
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gpustreamlab._util.words import wrap_lines
from gpustreamlab.cluster import _worker
from gpustreamlab.cluster._clocks import Clocks
from gpustreamlab.cluster._engines import Answer, ask, open_engines
from gpustreamlab.cluster._mirror import (
    ANSWER_S,
    SILENT_S,
    EngineStatus,
    Follower,
    Mirror,
    admit,
    loss_texts,
    named,
    reason,
)
from gpustreamlab.cluster._outcomes import ByEngine, Outcomes, failure_of, show_printed
from gpustreamlab.cluster._worker import Outcome
from gpustreamlab.errors import (
    ClusterError,
    OptionError,
    SessionClosedError,
    StreamNotFoundError,
    TraceError,
    nearest_hint,
)
from gpustreamlab.model import (
    NO_COMMON_TIME,
    Ahead,
    ClockOffset,
    merge,
    without_tools,
)
from gpustreamlab.notebook.views import WATCHED_GUESSES, LiveViews, Watched
from gpustreamlab.recorder import DEFAULT_RING_SIZE, JoinedJournal
from gpustreamlab.session import Session
from gpustreamlab.trace import Trace, as_trace
from gpustreamlab.typing import SessionState

if TYPE_CHECKING:
    from typing import Self

    from gpustreamlab.analysis import Explanation

_log = logging.getLogger(__name__)

LOOK_S = 0.02  # For how long a call that runs is not looked at, at most
SHORT_SHARE = 0.1  # A short call is looked at more often: of its time it waits for that no more than this share
STOP_S = 2.0  # How long is waited for calls that were interrupted


def _require_fit(function: Callable[..., Any], args: Sequence[Any]) -> None:
    """Raise `OptionError` for a function that does not take a session and these arguments."""
    try:
        parameters = signature(function)
    except ValueError:  # of what is written in C they may be unknown
        return
    try:
        parameters.bind(None, *args)
    except TypeError as error:
        takes = f"{getattr(function, '__name__', 'function')}{parameters}"
        raise OptionError(
            f"lab.run(function, *args) calls function(session, *args), and this one is {takes}: {error}."
        ) from None


class Cluster(Watched):
    """Many processes, each with a `Session`, on engines of ipyparallel or workers of Dask.

    Parameters
    ----------
    client
        An `ipyparallel.Client` or a `distributed.Client`; it stays its owner's. None to start workers on this machine.
    workers
        How many workers of Dask are started here, where there is no client.
    backend
        As for `Session`. If None, each engine takes the GPU that is its own: by ``CUDA_VISIBLE_DEVICES`` where that differs
        between engines of a host, else one after the other.
    spool
        A folder on each engine's machine: each session is spooled to a file in it, which `gpustreamlab.load_trace` reads.
    ring_size
        How many spans are kept here of each engine, 104 bytes each; the oldest make room and are counted.
    title
        A name for traces and timelines.
    options
        Given to each session, see `Session`.

    Raises
    ------
    OptionError
        If it is no client, or neither a client nor a number of workers is given.
    MissingExtraError
        If workers are to be started and Dask or cryptography is not installed.
    ClusterError
        If there is no engine, or some cannot be used: the message names each, and says why.

    Examples
    --------
    ::

        with gsl.Cluster(workers=4, backend="sim") as lab:
            lab.run(step)                    # step(session) on each
            lab.synchronize()
            lab.timeline()
    """

    _homes: ClassVar = {"the session of an engine: in a cell of %%gpustream NAME --on all, lab.": Session, "lab.trace.": Trace}
    _guesses: ClassVar = WATCHED_GUESSES | {"lab.engines": "nodes workers ranks sessions hosts"}

    def __init__(
        self,
        client: Any = None,
        *,
        workers: int | None = None,
        backend: str | None = None,
        spool: str | None = None,
        ring_size: int = DEFAULT_RING_SIZE,
        title: str = "",
        **options: Any,
    ) -> None:
        unknown = next(iter(options.keys() - signature(Session).parameters.keys()), None)
        if unknown is not None:
            raise OptionError(f"gsl.Cluster has no option {unknown!r}. {nearest_hint(unknown, signature(Session).parameters)}")
        self._engines = open_engines(client, workers)
        self._client = uuid.uuid4().hex
        self.title = title
        """A name for traces and timelines."""
        options = options | {"title": title} | ({} if spool is None else {"spool": str(spool)})
        self._is_closed = False
        self._clocks = Clocks()
        self._live_zero_ns: int | None = None
        try:
            self._mirrors = admit(self._engines, self._client, backend, options, ring_size)
            self._follower = Follower(self._engines, self._mirrors, self._clocks)
            self._follower.drain(ANSWER_S)
            deaf = [mirror.name for mirror in self._mirrors if not mirror.is_told]
            if deaf:
                raise ClusterError(f"Engine {', '.join(deaf)} does not answer beside its work. Start it anew.")
        except BaseException:
            self._engines.close()
            raise
        for mirror in self._mirrors:
            self._follower.ping(mirror)
        self._joined = JoinedJournal(
            self._mirrors,
            ahead=self._how_far_ahead,
            error_ns=self._live_error_ns,
            devices=[mirror.metadata.device for mirror in self._mirrors],
            tells_alike=False,
            missing=self._missing,
            title=title,
        )
        self._views = LiveViews(self._joined)
        self._follower.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        closed = "" if self._last_trace is None else ", closed"
        return wrap_lines([f"<Cluster: {len(self.names)} engines{closed}>", *map(str, self.engines)])

    @property
    def names(self) -> tuple[str, ...]:
        """The engines that are there, as ``on=`` takes them."""
        return tuple(mirror.name for mirror in self._there())

    @property
    def engines(self) -> tuple[EngineStatus, ...]:
        """How each engine stands, those that are lost too."""
        return tuple(mirror.status for mirror in self._mirrors)

    @property
    def lost(self) -> tuple[EngineStatus, ...]:
        """The engines that are gone, why, and from when on."""
        return tuple(status for status in self.engines if status.lost_unix_ns)

    def run(self, function: Callable[..., Any], *args: Any, on: str | int | Sequence[str | int] = "all") -> Outcomes:
        """Call ``function(session, *args)`` on engines, and wait for all of them. What has run by then is in `trace`.

        Parameters
        ----------
        function
            Takes the engine's session, then `args`. Dask and ipyparallel both send functions of a notebook too.
        on
            ``"all"``, a name, several as ``"0,2"``, or a sequence of names.

        Returns
        -------
        Outcomes
            What each returned, by its name.

        Raises
        ------
        ClusterError
            If it failed on some: which, with the traceback of each; ``error.results`` has what the others returned.
        OptionError
            If there is no such engine.
        """
        __tracebackhide__ = True  # what failed on the engines is what the user has to see
        if not callable(function):
            raise OptionError(
                "lab.run takes a function, and calls it with each engine's session: lab.run(step). See lab.run_cell too."
            )
        known = getattr(function, "__globals__", {})
        used = getattr(getattr(function, "__code__", None), "co_names", ())
        name = next((name for name in used if known.get(name) is self), None)
        if name is not None:
            raise OptionError(
                f"{function.__name__} uses {name!r}, which is this cluster. On an engine the session is the first argument of "
                "the function: def step(session): with session.on('compute'): ..."
            )
        _require_fit(function, args)
        return self._run_all(on, function, *args)

    def run_cell(
        self,
        source: str,
        stream: str,
        *,
        on: str | int | Sequence[str | int] = "all",
        label: str | None = None,
        lines_above: int = 0,
        **options: Any,
    ) -> Outcomes:
        """Run a cell on engines with a stream selected, as ``%%gpustream NAME --on all`` does; its variables stay there.

        It may await, and have magics and shell commands, as a cell of a notebook.

        Parameters
        ----------
        source
            The cell. ``lab`` is the engine's session in it.
        stream
            Name of the stream; made on first use.
        on, label
            As for `run`; name of the range, the stream's if None.
        lines_above
            How many lines the cell has above the source, so that tracebacks show its own line numbers.
        options
            Of the stream, as for `Session.stream`; ``sync=True`` to wait for its work.

        Raises
        ------
        ClusterError, OptionError
            As `run`.
        """
        __tracebackhide__ = True
        if not isinstance(source, str):
            raise OptionError("lab.run_cell takes the text of a cell. For a function there is lab.run(step).")
        return self._run_all(on, _worker.run_cell, source, stream, stream if label is None else label, options, lines_above)

    def partition(self, plan: Any = ..., /, **shares: Any) -> Outcomes:
        """Share out the SMs of every engine alike, as `Session.partition` does.

        Raises
        ------
        ClusterError
            If some device does not grant it: cards may be unequal. Those that do have it then.
        """
        return self._run_all("all", _do, "partition", () if plan is ... else (plan,), shares)

    def synchronize(self) -> None:
        """Wait until the devices of all engines are idle, and all that was recorded has arrived."""
        self._run_all("all", _do, "synchronize")
        self._follower.drain(ANSWER_S)

    @property
    def traces(self) -> ByEngine[Trace]:
        """What has arrived of each engine, on its own clock.

        Each tells how its clock was compared, so that traces that were saved can be merged later: ``gsl.merge``.
        """
        return ByEngine({mirror.name: self._with_clock(mirror, _trace_of(mirror)) for mirror in self._mirrors})

    @property
    def trace(self) -> Trace:
        """What has arrived of all engines, on one clock; a group for each host and device.

        Raises
        ------
        TraceError
            If an engine has not told its time yet: how far its clock is from the others' is not known.
        """
        if self._last_trace is not None:
            return self._last_trace
        traces = [_trace_of(mirror) for mirror in self._mirrors]
        if self._has_common_time():
            whole = merge(traces, clocks=self._offsets())
        else:
            whole = merge(traces, ahead_ns=[0] * len(traces), error_ns=0)
        missing = (*whole.metadata.missing, *self._missing())
        return replace(
            whole,
            notes=(*whole.notes, *self._notes),
            metadata=replace(whole.metadata, title=self.title, missing=missing),
        )

    def explain(self, first: str | int | None = None, second: str | None = None) -> ByEngine[Explanation]:
        """Say for each engine why its work did not overlap so far, and what to change there; see `Trace.explain`.

        How engines waited for each other is not in their traces.

        Parameters
        ----------
        first, second
            As for `Session.explain`: streams are called ``"decode"``, which asks all engines that have one, or ``"0:decode"``.

        Raises
        ------
        OptionError, StreamNotFoundError
            If no engine has anything of such a name.
        """
        found: dict[str, Explanation] = {}
        failure: OptionError | StreamNotFoundError | None = None
        for name, trace in self.traces.items():
            prefix = f"{name}:"  # streams are asked for as they are typed on the engine
            lanes = tuple(replace(lane, name=lane.name.removeprefix(prefix)) for lane in trace.lanes)
            one = first.removeprefix(prefix) if isinstance(first, str) else first
            try:
                found[name] = replace(trace, lanes=lanes).explain(one, second and second.removeprefix(prefix))
            except (OptionError, StreamNotFoundError) as error:
                failure = error
        if failure is not None and not found:
            raise failure
        return ByEngine(found)

    def hazards(self) -> Outcomes:
        """Return for each engine which data crossed streams without an order; see `Memory.hazards`.

        Raises
        ------
        ClusterError
            As `run`.
        """
        return self._run_all("all", _do, "memory.hazards")

    @property
    def state(self) -> SessionState:
        """Where it is in its life."""
        return SessionState.CLOSED if self._is_closed else SessionState.OPEN

    def clear(self) -> None:
        """Forget what was recorded so far, on all engines, and what is known of lost ones."""
        self._run_all("all", _do, "clear")
        self._follower.drain(ANSWER_S)
        for mirror in self._mirrors:
            if not mirror.is_there:
                mirror.forget()

    def close(self) -> None:
        """Wait for the work, keep the trace, and close the sessions, but for those that a later cluster uses. Idempotent."""
        if self._is_closed:
            return
        there = self._there()
        answering = [mirror for mirror in there if not mirror.is_silent]
        try:
            self._engines.engines()  # fails at once where the client was closed before this
            with suppress(ClusterError):
                if answering:
                    self._run_all([mirror.name for mirror in answering], _do, "synchronize")
            self._follower.drain(ANSWER_S if len(answering) == len(there) else SILENT_S)
            for mirror in there:
                self._follower.ping(mirror)
        except Exception as error:  # noqa: BLE001 - each adapter has its own
            _log.warning("What the engines did last could not be read: %s", error)
            there = []
        self._follower.stop()
        self._views.finish()
        with suppress(TraceError):
            self._last_trace = self.trace
        self._is_closed = True
        for mirror, answer in [(mirror, ask(self._engines.run, mirror.key, _worker.end, self._client)) for mirror in there]:
            try:
                answer.result(ANSWER_S if mirror in answering else LOOK_S)  # one that is silent may do it later
            except Exception as error:  # noqa: BLE001 - the others are closed all the same
                _log.warning("The session of engine %s could not be closed: %s", mirror.name, error)
        self._engines.close()

    def _there(self) -> list[Mirror]:
        return [mirror for mirror in self._mirrors if mirror.is_there]

    def _run_all(self, on: str | int | Sequence[str | int], function: Callable[..., Any], *args: Any) -> Outcomes:
        """Call a function with each engine's session, and show what they print when each has answered or is gone."""
        __tracebackhide__ = True
        if self._is_closed:
            raise SessionClosedError("This cluster is closed. Its trace can be read; start another with gsl.Cluster(client).")
        number, began_s = uuid.uuid4().hex, time.monotonic()
        mirrors = named(self._mirrors, on)
        answers = {mirror: ask(self._engines.run, mirror.key, _worker.call, number, function, *args) for mirror in mirrors}
        try:
            while _awaited(answers):
                time.sleep(min(LOOK_S, SHORT_SHARE * (time.monotonic() - began_s)))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._interrupt(number, answers)) from None
        outcomes = {mirror.name: _outcome(mirror, answer) for mirror, answer in answers.items()}
        self._follower.drain(SILENT_S, [mirror for mirror in mirrors if not mirror.is_silent])  # the trace has it then
        for name, outcome in outcomes.items():
            show_printed(name, outcome)
        failed = {name: outcome for name, outcome in outcomes.items() if outcome.error}
        good = Outcomes({name: outcome for name, outcome in outcomes.items() if not outcome.error})
        if failed:
            raise failure_of(failed, good)
        return good

    def _interrupt(self, number: str, answers: Mapping[Mirror, Answer]) -> str:
        """Interrupt a call on the engines that have not answered, and show what they printed; say which go on with it."""
        for mirror in _awaited(answers):
            ask(self._engines.aside, mirror.key, _worker.interrupt, number)
        end_s = time.monotonic() + STOP_S
        while time.monotonic() < end_s and _awaited(answers):
            time.sleep(LOOK_S)
        for mirror, answer in answers.items():
            if answer.done():
                show_printed(mirror.name, _outcome(mirror, answer))
        busy = ", ".join(mirror.name for mirror in _awaited(answers))
        if not busy:
            return "Stopped here and on the engines."
        return f"Stopped here. Engine {busy} goes on until its work is back in Python; the next call waits for that."

    def _has_common_time(self) -> bool:
        return not self._mirrors[0].facts.simulated

    def _how_far_ahead(self) -> list[Ahead]:
        """Return what the times of each engine lack to be on the clock of the first, in ns."""
        if not self._has_common_time():
            return [0] * len(self._mirrors)
        offsets = self._offsets()
        if self._live_zero_ns is None:  # what is shown already stays where it is, though more is known later
            self._live_zero_ns = int(offsets[0].shift(np.zeros(1, np.int64))[0])
        zero_ns = self._live_zero_ns
        return [(offset.points[0], offset.points[1] - zero_ns) for offset in offsets]

    def _live_error_ns(self, _until_ns: int) -> int:
        """Return the bound on the error of that for what has arrived last, in ns."""
        if not self._has_common_time():
            return 0
        errors_ns = [
            int(offset.error_at(np.array([mirror.now_ns()]))[0]) + mirror.metadata.host_error_ns
            for mirror, offset in zip(self._mirrors, self._offsets(), strict=True)
        ]
        return sum(sorted(errors_ns)[-2:])

    def _missing(self) -> list[str]:
        """Return what a trace of engines cannot tell, in sentences."""
        if self._has_common_time():
            return loss_texts(self._mirrors, self._offsets())
        return [*[NO_COMMON_TIME] * (len(self._mirrors) > 1), *loss_texts(self._mirrors, None)]

    def _with_clock(self, mirror: Mirror, trace: Trace) -> Trace:
        """Return the trace of an engine with how its clock was compared, where it was."""
        if mirror.key not in self._clocks:
            return trace
        return replace(trace, metadata=replace(trace.metadata, clock_offset=self._clocks[mirror.key]))

    def _offsets(self) -> list[ClockOffset]:
        missing = [mirror.name for mirror in self._mirrors if mirror.key not in self._clocks]
        if missing:
            raise TraceError(
                f"Engine {', '.join(missing)} has not told its time yet, so its clock cannot be compared. It is asked each "
                "second: try again, or use lab.traces, each on its own clock."
            )
        return [self._clocks[mirror.key] for mirror in self._mirrors]

    def _newest_hazard_ns(self) -> int:
        """Return when an engine has told of hazards last, by the client's clock; -1 where none has."""
        return max(mirror.hazards_ns for mirror in self._mirrors)


def _do(session: Session, method: str, args: Sequence[Any] = (), options: Mapping[str, Any] | None = None) -> Any:
    return attrgetter(method)(session)(*args, **(options or {}))


def _trace_of(mirror: Mirror) -> Trace:
    """Return what has arrived of an engine, but for what tools did."""
    return as_trace(without_tools(mirror.trace()))


def _awaited(answers: Mapping[Mirror, Answer]) -> list[Mirror]:
    """Return the engines that may still answer: how long work takes is the user's matter."""
    return [mirror for mirror, answer in answers.items() if mirror.is_there and not answer.done()]


def _outcome(mirror: Mirror, answer: Answer) -> Outcome:
    """Return what came of a call that is not awaited any more."""
    if not answer.done():
        return Outcome(error=f"It was lost: {mirror.why}.")
    try:
        return _worker.unpack(answer.result(ANSWER_S))
    except Exception as error:  # noqa: BLE001 - of the library: each has its own for engines that die
        return Outcome(error=reason(error))
