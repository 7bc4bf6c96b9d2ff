"""The session: owns every stream, event and clock, and the recorder that watches them."""

from __future__ import annotations

import atexit
import html
import logging
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import EllipsisType, MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from numpy.typing import DTypeLike, NDArray

from gpustreamlab.analysis import Overlap, Share, Utilisation, check_layout, overlap, utilisation
from gpustreamlab.backends import Backend, choose_backend
from gpustreamlab.errors import (
    CloseError,
    InvalidNameError,
    OptionError,
    PartitionError,
    SessionClosedError,
    SessionError,
)
from gpustreamlab.green import DEFAULT_CONTEXT_LIMIT, ContextCache, SMMap, fit_layout, plan_layout
from gpustreamlab.live import (
    DEFAULT_CAPACITY,
    DEFAULT_REFRESH_HZ,
    LiveFeed,
    check_refresh_hz,
    check_span_limit,
)
from gpustreamlab.model import Capabilities, Device, Layout, Trace, Verification, WorkqueueOptions
from gpustreamlab.notebook import running_kernel_shell
from gpustreamlab.recorder import DEFAULT_PENDING_LIMIT, DEFAULT_RING_SIZE, OpenRange, Range, Recorder
from gpustreamlab.repartition import Partitions
from gpustreamlab.selections import Selection, Selections
from gpustreamlab.stream_table import StreamTable
from gpustreamlab.streams import Event, Stream, check_label, check_priority, check_stream_name
from gpustreamlab.timeline import Timeline
from gpustreamlab.typing import Rounding, SessionState, SupportsCudaStream

if TYPE_CHECKING:
    from gpustreamlab.widgets import LiveTimeline, Partitioner

__all__ = ["Session"]

_log = logging.getLogger(__name__)
_OPEN = SessionState.OPEN
_open_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


class Session:
    """Streams of one device, and the record of what ran in them.

    Parameters
    ----------
    backend
        ``"cuda"``, ``"sim"``, a backend object, or None: the GPU if there is one, else the simulated device. A session always
        says which it uses. A backend object stays its owner's: the session does not close it.
    device
        The CUDA device number.
    ring_size
        How many finished ranges are kept, 80 bytes each; the oldest make room and are counted.
    pending_limit
        How many closed ranges of one stream may wait for the device; later ones are dropped and counted.
    context_limit
        How many green contexts are kept for later layouts: about 4 MiB of device memory each. A change may have more for a
        moment, those of the new layout.
    title
        A name for traces and timelines.

    Raises
    ------
    BackendNotFoundError
        If there is no such backend.
    BackendUnavailableError
        If ``"cuda"`` was asked for and cannot run here.
    DeviceNotFoundError
        If there is no device of that number.
    OptionError
        If a size is below 1.

    Examples
    --------
    >>> with Session("sim") as lab:
    ...     copy, compute = lab.stream("copy"), lab.stream("compute", priority=-1)
    ...     with lab.on("copy", "upload"):
    ...         a = lab.xp.asarray([[1.0, 2.0], [3.0, 4.0]])
    ...     compute.wait(copy.record())
    ...     with lab.on("compute", "gemm"):
    ...         b = a @ a
    ...     lab.synchronize()
    ...     len(lab.trace), b.get().tolist()
    (2, [[7.0, 10.0], [15.0, 22.0]])
    """

    def __init__(
        self,
        backend: str | Backend | None = None,
        *,
        device: int = 0,
        ring_size: int = DEFAULT_RING_SIZE,
        pending_limit: int = DEFAULT_PENDING_LIMIT,
        context_limit: int = DEFAULT_CONTEXT_LIMIT,
        title: str = "",
    ) -> None:
        self._why_closed = "is closed"
        self._state = SessionState.CLOSED  # until everything below has worked, there is nothing to close
        if isinstance(device, bool) or not isinstance(device, int):
            raise OptionError(f"device is {device!r}; it is the CUDA device's number. Use gpustreamlab.Session(device=0).")
        self.title = title
        choice = choose_backend(backend, device)
        self._backend = choice.backend
        self._owns_backend = choice.is_owned
        if choice.fallback_reason:
            _log.warning("This session runs on the simulated device. %s", choice.fallback_reason)
        self.fallback_reason: str = choice.fallback_reason
        """Why the simulated device stands in for a GPU; empty if it does not."""
        try:
            self._recorder = Recorder(self._backend, ring_size=ring_size, pending_limit=pending_limit)
            self._partitions = Partitions(self._backend, self._recorder, ContextCache(self._backend, context_limit))
        except BaseException:
            if self._owns_backend:
                self._backend.close()
            raise
        self._lock = threading.RLock()
        self._table = StreamTable(self._backend, self._recorder, self._partitions, self._lock)
        self._streams = self._table.by_name  # one lookup less where a stream is selected
        self._selections = Selections(self._backend, self._recorder)
        self._entered = False
        self._last_trace: Trace | None = None
        self._live_timelines: dict[tuple[float, int], LiveTimeline] = {}
        self._closing: list[tuple[str, Callable[[], object]]] = []
        self._failures: list[tuple[str, Exception]] = []
        self._state = SessionState.OPEN
        _open_sessions.add(self)

    def __enter__(self) -> Self:
        self._require_open("enter it")
        if self._entered:
            raise SessionError("This session is entered already. Use one `with` block, or call lab.close() at the end.")
        self._entered = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except CloseError as failure:
            if error is None:
                raise
            error.add_note(str(failure))

    def __del__(self) -> None:
        if getattr(self, "_state", None) is SessionState.OPEN and not sys.is_finalizing():
            warnings.warn(f"{self!r} was never closed. Call lab.close() or use `with`.", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        facts = self._facts()
        return f"<Session: {', '.join(facts.values())}>"

    def _repr_html_(self) -> str:
        left = "style='text-align:left'"
        rows = "".join(
            f"<tr><th {left}>{html.escape(name)}</th><td {left}>{html.escape(value)}</td></tr>"
            for name, value in self._facts().items()
        )
        note = f"<p>The simulated device is used. {html.escape(self.fallback_reason)}</p>" if self.fallback_reason else ""
        return f"<div><strong>gpustreamlab session</strong><table>{rows}</table>{note}</div>"

    @property
    def title(self) -> str:
        """A name for traces and timelines; any text."""
        return self._title

    @title.setter
    def title(self, text: str) -> None:
        if not isinstance(text, str):
            raise OptionError(f"title is {text!r}; it is a text. Use gpustreamlab.Session(title='my run').")
        self._title = text.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate could not be saved

    @property
    def state(self) -> SessionState:
        """Where the session is in its life."""
        return self._state

    @property
    def is_closed(self) -> bool:
        """True unless the session is open."""
        return self._state is not SessionState.OPEN

    @property
    def backend(self) -> Backend:
        """The backend in use."""
        return self._backend

    @property
    def device(self) -> Device:
        """The device in use, real or simulated."""
        return self._backend.device

    @property
    def is_simulated(self) -> bool:
        """True if no hardware stands behind the numbers."""
        return self._backend.device.simulated

    @property
    def xp(self) -> Any:
        """The array module: CuPy on a GPU, a NumPy-compatible one on the simulated device."""
        return self._backend.xp

    @property
    def streams(self) -> Mapping[str, Stream]:
        """The session's open streams by name, in the order of their making."""
        return MappingProxyType(self._table.open_streams)

    @property
    def current(self) -> Stream | None:
        """The stream selected in this thread, or None."""
        return self._selections.current

    @property
    def capabilities(self) -> Capabilities:
        """What this device and its driver can do with SMs and work queues, what each needs, and what happens without it."""
        return self._backend.capabilities

    @property
    def layout(self) -> Layout | None:
        """How the SMs are shared out now; None for the whole card."""
        return self._partitions.layout

    def stream(
        self,
        name: str,
        *,
        priority: int | None = None,
        partition: str | EllipsisType | None = ...,
        external: object | None = None,
    ) -> Stream:
        """Return the stream of this name, making it on first use.

        Parameters
        ----------
        name
            Letters, digits and ``_ - . + : / # @``, at most 100 of them.
        priority
            CUDA priority, lower runs first; None for the default on first use and for "as it is" later.
        partition
            The partition of the current layout in which it works; None for the whole card. A stream that is elsewhere is
            drained and moves there. If left out, it stays where it is, and a new one has the whole card.
        external
            An object with ``__cuda_stream__`` (a stream of CuPy, torch, cuda.core, ...) to use instead of a new stream. It
            stays its owner's, is kept alive until the session closes, and is never destroyed here.

        Returns
        -------
        Stream
            Non-blocking: it does not wait for the NULL stream. Order it after work done with no stream selected by
            `synchronize`, or by an event.

        Raises
        ------
        InvalidNameError
            If the name cannot be used.
        OptionError
            If the device does not take the priority, or the lent stream has another.
        PartitionNotFoundError
            If the layout has no such partition.
        PartitionError
            If a lent stream should move, or one that a thread has selected.
        StreamExistsError
            If the name is taken by a stream of another priority or owner.
        StreamRefusedError
            If `external` lends no stream, or a default stream.
        SessionClosedError
            If the session is closed.
        """
        doing = f"get stream {name!r}"[:60]
        self._require_open(doing)
        check_stream_name(name)
        if priority is not None:
            check_priority(priority, self._backend.priority_range)
        with self._working(doing):
            return self._table.get(name, priority, partition, external)

    def partition(
        self,
        plan: Mapping[str, Share] | Layout | EllipsisType | None = ...,
        /,
        *,
        round: Rounding | str = Rounding.UP,  # noqa: A002 - what the user types
        strict: bool = False,
        workqueue: WorkqueueOptions | None = None,
        renamed: Mapping[str, str] | None = None,
        **shares: Share,
    ) -> Layout | None:
        """Share out the SMs: green contexts, each with some of them. Only the streams that move are drained.

        The streams keep their names and their history. A stream goes to the partition that it was given to, by
        ``lab.stream(name, partition=...)``, whenever the layout has one of that name.

        Parameters
        ----------
        plan
            Names with what each gets (see `gpustreamlab.plan_partitions`), or a layout that was planned; None goes back to the
            whole card.
        round
            ``"up"``, ``"down"`` or ``"exact"``, where the device cannot grant what was asked for.
        strict
            Raise where the device or driver lacks something, instead of one warning and going on without.
        workqueue
            How the partitions share work queues (CUDA 13.1 and later).
        renamed
            New names by old ones, for partitions whose streams should follow.
        **shares
            The same as `plan`, for names that are Python identifiers.

        Returns
        -------
        Layout or None
            What was asked for and what the device granted; None for the whole card.

        Raises
        ------
        PartitionError
            If the SMs cannot be shared out like this; the message has the nearest plan that works.
        PartitionInUseError
            If a stream works in a partition that would go, or is selected by a thread while it would have to move.
        PartitionUnavailableError
            With `strict`, if this device or driver lacks a feature.
        SessionClosedError
            If the session is closed.

        Examples
        --------
        >>> with Session("sim") as lab:
        ...     print(lab.partition(prefill=96, decode="rest"))
        ...     print(lab.stream("decode", partition="decode").sm_count)
        ...     lab.verify().holds
        Layout: prefill 96 SMs (asked for 96), decode 36 SMs (asked for 36); 0 SMs in none
        36
        True
        """
        with self._working("share out its SMs"):
            layout = self._read_plan(plan, shares, round, strict=strict, workqueue=workqueue)
            return self._partitions.switch(layout, self.streams.values(), _read_renamed(renamed))

    def prepare(self, *plans: Mapping[str, Share] | Layout, round: Rounding | str = Rounding.UP) -> tuple[Layout, ...]:  # noqa: A002
        """Make the green contexts of layouts now, so that going over to them later waits for nothing but the streams that move.

        Making a context takes about a millisecond, and on the drivers tried it waits for everything that runs on the device.

        Parameters
        ----------
        *plans
            Names with what each gets, or planned layouts, as for `partition`.
        round
            As for `partition`.

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
        >>> with Session("sim") as lab:
        ...     day, night = lab.prepare({"prefill": 96, "decode": "rest"}, {"prefill": 32, "decode": "rest"})
        ...     lab.partition(night)["decode"].granted_sms
        100
        """
        with self._working("prepare layouts"):
            layouts = [self._read_plan(plan, {}, round, strict=False, workqueue=None) for plan in plans]
            streams = tuple(self.streams.values())
            return tuple(self._partitions.prepare(layout, streams) for layout in layouts if layout is not None)

    def partitioner(self) -> Partitioner:
        """Return a widget to share out the SMs by hand: drag a boundary, see what is granted, apply, verify."""
        from gpustreamlab.widgets import Partitioner

        self._require_open("show a widget")
        return Partitioner(self)

    def plan_moves(self, layout: Layout | None, *, renamed: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """Return the names of the streams that `partition` would drain and move for a layout.

        Raises
        ------
        PartitionInUseError
            If a stream works in a partition that the layout does not have.
        """
        if layout is not None:
            check_layout(layout, self.device)
        moves = self._partitions.plan_moves(layout, self.streams.values(), _read_renamed(renamed))
        return tuple(stream.name for stream in moves)

    def watch_layout(self, listener: Callable[[Layout | None], object]) -> Callable[[], None]:
        """Call a function with the layout after each change of it, and when the session has closed; return what stops that."""
        return self._partitions.watch(listener)

    def verify(self) -> Verification:
        """Prove where work runs: a kernel on every stream, and in every partition, tells which SMs it was on.

        It waits for what the streams hold. The SM ids that were seen are kept in the layout and in the trace.
        """
        with self._working("verify its partitions"):
            return self._partitions.verify(tuple(self.streams.values()))

    def sm_map(self) -> SMMap:
        """Return a drawing of the card, one cell for each SM, coloured by partition; measured first where that was not done."""
        with self._lock:
            return SMMap(self.device, self.layout if self.is_closed else self._partitions.locate())

    def utilisation(self) -> Utilisation:
        """Return how long each partition was busy and how much SM-time that is; see `gpustreamlab.analysis.utilisation`."""
        return utilisation(self.trace)

    def on(self, stream: str | Stream | SupportsCudaStream, label: str | None = None) -> Selection:
        """Select a stream for this thread, and record a range around what runs in the ``with`` block.

        CuPy's current stream (or the simulated device's) follows, and is put back on every exit. Selections nest.

        Parameters
        ----------
        stream
            A stream's name, a `Stream`, or any object with ``__cuda_stream__``, which becomes a lane on first use.
        label
            Name of the range; the stream's name if None.

        Raises
        ------
        StreamNotFoundError
            If no stream has this name; the message names the nearest.
        InvalidNameError
            If the label is no text.
        """
        if self._state is not _OPEN:
            self._require_open("select a stream")
        if label is not None and type(label) is not str:
            check_label(label)
        chosen = self._streams.get(stream) if type(stream) is str else stream
        if type(chosen) is not Stream or self._streams.get(chosen.name) is not chosen:
            chosen = self._find(stream)
        if chosen.is_closed:
            chosen.require_open()
        return Selection(self._selections, chosen, chosen.name if label is None else label)

    def range(self, label: str) -> Range:
        """Return a named range on the stream selected in this thread, to enter with ``with``. Ranges nest.

        Raises
        ------
        SelectionError
            If no stream is selected in this thread.
        InvalidNameError
            If the label is no text.
        """
        try:
            known: Range = self._recorder.local.state.writer.ranges[label]
        except (AttributeError, KeyError, TypeError):
            self._require_open("open a range")
            return self._selections.range(label)
        return known

    def start_range(self, stream: str | Stream | SupportsCudaStream, label: str) -> OpenRange:
        """Open a range on a stream now; call its ``end()`` later, from any thread. One that is never ended is not kept."""
        self._require_open("start a range")
        check_label(label)
        chosen = self._find(stream)
        chosen.require_open()
        return self._recorder.start_range(chosen.recorded, label)

    def mark(self, text: str) -> None:
        """Mark this moment in the timeline, across all streams.

        Parameters
        ----------
        text
            What is written there; the newest 10,000 marks are kept.

        Raises
        ------
        InvalidNameError
            If the text is none.

        Examples
        --------
        >>> with Session("sim") as lab:
        ...     lab.mark("warm-up done")
        ...     [marker.text for marker in lab.trace.markers]
        ['warm-up done']
        """
        self._require_open("mark a moment")
        if not isinstance(text, str):
            raise InvalidNameError(
                f"A mark's text is a str, not {type(text).__name__}. Use for example lab.mark({str(text)[:40]!r})."
            )
        self._recorder.mark(text)

    def begin_cell(self, text: str) -> None:
        """Note that a notebook cell begins: it is marked in the timeline as soon as a range is opened in it."""
        self._recorder.begin_cell(text)

    def end_cell(self, text: str) -> None:
        """Note that the cell has ended. If it made this session, it is marked where that was."""
        self._recorder.end_cell(text)

    def checkpoint(self) -> int:
        """Return a number that stands for now, for `trace_since`."""
        return self._recorder.checkpoint()

    def trace_since(self, checkpoint: int) -> Trace:
        """Return the ranges that were opened after a `checkpoint` and whose work has ended. Never waits for the device.

        Examples
        --------
        >>> with Session("sim") as lab:
        ...     lab.stream("copy")
        ...     with lab.on("copy", "warm-up"):
        ...         pass
        ...     before = lab.checkpoint()
        ...     with lab.on("copy", "upload"):
        ...         pass
        ...     lab.synchronize()
        ...     [lab.trace.names[code] for code in lab.trace_since(before).name]
        <Stream 'copy', priority 0, handle 0x3>
        ['upload']
        """
        self._require_open("cut its trace")
        return self._recorder.trace(title=self.title, since=checkpoint)

    def event(self) -> Event:
        """Return an event that is not recorded yet."""
        self._require_open("make an event")
        return Event(self._backend)

    def pinned_empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = "float64") -> NDArray[Any]:
        """Return page-locked host memory as an uninitialised NumPy array: copies to and from it can overlap other work."""
        self._require_open("allocate page-locked memory")
        return self._backend.pinned_empty(shape, dtype)

    def synchronize(self) -> None:
        """Block the host until the whole device is idle; afterwards every closed range is in the trace."""
        self._require_open("synchronize")
        self._backend.synchronize()
        self._recorder.collect()

    def clear(self) -> None:
        """Forget what was recorded so far, for example a warm-up; ranges whose work still runs come into the trace later."""
        self._require_open("clear its trace")
        self._recorder.clear()

    @property
    def trace(self) -> Trace:
        """An immutable snapshot of the ranges whose work has ended. Never waits for the device.

        Ranges that still run are counted in ``trace.metadata.pending_spans``; call `synchronize` first to have them all. A
        closed session keeps its last trace.
        """
        # Without the session's lock, which is held while streams are drained: a live view must not wait for that.
        if self._last_trace is None:
            try:
                return self._recorder.trace(title=self.title)
            except Exception:
                if self._last_trace is None:  # else the session was closed by another thread meanwhile
                    raise
        return self._last_trace

    def overlap(self) -> Overlap:
        """Return how much the streams' work overlapped, so far; see `gpustreamlab.analysis.overlap`."""
        return overlap(self.trace)

    def timeline(
        self,
        trace: Trace | None = None,
        *,
        live: bool = True,
        refresh_hz: float = DEFAULT_REFRESH_HZ,
        capacity: int = DEFAULT_CAPACITY,
    ) -> Timeline:
        """Return the timeline of what ran so far, or of a saved trace.

        In a notebook, that of an open session goes on growing while work runs; when the session closes it becomes a picture
        that stays. Elsewhere, and for a saved trace, it is a picture of now.

        Parameters
        ----------
        trace
            A saved trace to draw instead of the session's own.
        live
            Whether it may go on growing.
        refresh_hz
            How often it is updated then, 1 to 20 times a second.
        capacity
            How many spans it holds then; the oldest make room, and it says so.

        Raises
        ------
        OptionError
            If an argument is out of range, or no trace.
        """
        if not isinstance(live, bool):
            raise OptionError(f"live is {live!r}; it is True or False. Use lab.timeline(live=False) for a picture of now.")
        check_refresh_hz(refresh_hz)
        check_span_limit("capacity", capacity)
        if trace is not None and not isinstance(trace, Trace):
            raise OptionError(
                f"A timeline is drawn of a trace, not of a {type(trace).__name__}. Use "
                "lab.timeline(gpustreamlab.load_trace('run.parquet')), or lab.timeline() for what ran so far."
            )
        if trace is None and live and self._state is _OPEN and running_kernel_shell() is not None:
            return self._live_timeline(refresh_hz, capacity)
        return Timeline(self.trace if trace is None else trace)

    def close(self) -> None:
        """Wait for the streams' work, keep the trace, and release everything the session made.

        Order: this thread's open ranges and selections, each stream (its work, its ranges, the stream), green contexts, events,
        the clock, the backend if the session made it. Closing twice is silent. A part that fails does not stop the others;
        after an interrupt (Ctrl-C) the next call goes on with what is left.

        Raises
        ------
        CloseError
            If parts failed; the session is closed all the same.
        """
        with self._lock:
            if self._state is SessionState.OPEN:
                self._closing = self._plan_close()
                self._state = SessionState.CLOSING
            while self._closing:
                what, step = self._closing[0]
                failure = _failure_of(step)
                del self._closing[:1]
                if failure is not None:
                    self._failures.append((what, failure))
            was_open = self._state is not SessionState.CLOSED
            self._state = SessionState.CLOSED
            _open_sessions.discard(self)
            failures, self._failures = self._failures, []
        if was_open:
            self._partitions.tell()
        if failures:
            raise CloseError(failures)

    def _live_timeline(self, refresh_hz: float, capacity: int) -> Timeline:
        """Return the session's live timeline: one for all cells that ask for the same."""
        from gpustreamlab.widgets import LiveTimeline

        with self._working("show a live timeline"):
            known = self._live_timelines.get((refresh_hz, capacity))
            if known is None:
                feed = LiveFeed(self._recorder, title=_title_of(self), capacity=capacity)
                known = LiveTimeline(self, feed, refresh_hz=refresh_hz)
                self._live_timelines[refresh_hz, capacity] = known
            return known

    def _finish_live_timelines(self) -> None:
        for timeline in tuple(self._live_timelines.values()):
            timeline.finish()

    def _plan_close(self) -> list[tuple[str, Callable[[], object]]]:
        steps: list[tuple[str, Callable[[], object]]] = [("selections", self._selections.close)]
        steps += [(f"stream {stream.name!r}", stream.close) for stream in self._streams.values()]
        steps += [
            ("trace", self._keep_trace),
            ("live timelines", self._finish_live_timelines),
            ("partitions", self._partitions.close),
            ("events", self._recorder.close),
        ]
        if self._owns_backend:
            steps.append((f"backend {self._backend.name!r}", self._backend.close))
        return steps

    def _disown(self) -> None:
        """Give the session up without closing anything: in a forked child, what it holds is the parent's."""
        self._why_closed = "belongs to the process that this one was forked from"
        self._lock = threading.RLock()  # a thread that is not in this process may hold the other one
        self._closing = []
        self._state = SessionState.CLOSED

    @contextmanager
    def _working(self, doing: str) -> Iterator[None]:
        """Hold the session's lock, in a session that is open: another thread may have closed it while this one waited."""
        with self._lock:
            self._require_open(doing)
            yield

    def _require_open(self, doing: str) -> None:
        if self._state is not SessionState.OPEN:
            raise SessionClosedError(
                f"This session {self._why_closed}; it cannot {doing}. Its trace can still be read. "
                "Start another with gpustreamlab.Session()."
            )

    def _read_plan(
        self,
        plan: Mapping[str, Share] | Layout | EllipsisType | None,
        shares: Mapping[str, Share],
        round: Rounding | str,  # noqa: A002
        *,
        strict: bool,
        workqueue: WorkqueueOptions | None,
    ) -> Layout | None:
        if plan is not ... and shares:
            raise PartitionError(
                f"Partitions are given either as one mapping or layout, or as keywords; both were given ({', '.join(shares)})."
            )
        if plan is None:
            return None
        if isinstance(plan, Layout):
            return fit_layout(self._backend, plan, round=round, strict=strict)
        asked = shares if plan is ... else plan
        return plan_layout(self._backend, asked, round=round, strict=strict, workqueue=workqueue)

    def _find(self, stream: object) -> Stream:
        found = self._table.find(stream)
        if found is None:
            with self._working("take a stream"):
                found = self._table.take(stream)
        return found

    def _partition_fact(self, layout: Layout) -> str:
        cache = self._partitions.cache
        listed = ", ".join(f"{part.name} {part.granted_sms} SMs" for part in layout)
        alive = f"{len(cache)} of at most {cache.limit} green contexts alive, {cache.created_count} made"
        return f"{listed} ({alive if layout.is_enforced else 'not enforced'})"

    def _keep_trace(self) -> None:
        self._last_trace = self._recorder.trace(title=self.title)

    def _facts(self) -> dict[str, str]:
        """Return what the representations say; never touches the device."""
        trace = self._last_trace
        span_count = len(trace) if trace is not None else self._recorder.span_count
        dropped_count = trace.metadata.dropped_spans if trace is not None else self._recorder.dropped_count
        names = list(self._streams) if self.is_closed else list(self.streams)
        listed = f" ({', '.join(names[:8])}{', …' if len(names) > 8 else ''})" if names else ""
        partitions = {} if self.layout is None else {"partitions": self._partition_fact(self.layout)}
        return {
            "device": f"{self.device.label}, {self.device.sm_count} SMs",
            "numbers": "simulated, no hardware behind them" if self.is_simulated else "real, measured",
            **partitions,
            "streams": f"{_counted(len(names), 'stream')}{listed}",
            "spans": _counted(span_count, "span"),
            "dropped": f"{dropped_count:,} dropped",
            "state": self._state.value,
        }


def _title_of(session: Session) -> Callable[[], str]:
    """Return a function of the session's title that does not keep it alive."""
    known = weakref.ref(session)

    def title() -> str:
        alive = known()
        return "" if alive is None else alive.title

    return title


def open_sessions() -> list[Session]:
    """Return every open session of this process."""
    return [session for session in list(_open_sessions) if not session.is_closed]


def _read_renamed(renamed: Mapping[str, str] | None) -> dict[str, str]:
    if renamed is not None and not isinstance(renamed, Mapping):
        raise PartitionError(
            f"renamed is a {type(renamed).__name__}; it has new names by old ones. Use renamed={{'old': 'new'}}."
        )
    return dict(renamed or {})


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _failure_of(step: Callable[[], object]) -> Exception | None:
    try:
        step()
    except Exception as error:  # noqa: BLE001 - every failure of a close is reported, none stops the others
        return error
    return None


def _leave_to_the_parent() -> None:
    """Give up the sessions of the parent in a forked child: a CUDA context does not survive a fork."""
    for session in list(_open_sessions):
        session._disown()  # noqa: SLF001 - a session of this module
    _open_sessions.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)


@atexit.register
def _close_open_sessions() -> None:
    """Close what is still open before the interpreter takes its modules apart."""
    for session in list(_open_sessions):
        failure = _failure_of(session.close)
        if failure is not None:
            _log.debug("A session could not be closed at exit: %s", failure)
