"""Where a session is in its life, its locks, and its orderly end."""

from __future__ import annotations

import atexit
import html
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpustreamlab._util.defences import LEFT_TO_PARENT, in_forked_child, process_lock
from gpustreamlab.analysis._scale import count_text
from gpustreamlab.errors import CloseError, SessionClosedError
from gpustreamlab.green import ContextCache
from gpustreamlab.model import Layout
from gpustreamlab.recorder import LossReport
from gpustreamlab.typing import SessionState

if TYPE_CHECKING:
    from gpustreamlab.session import Session

_log = logging.getLogger(__name__)


Step = tuple[str, Callable[[], object]]  # What is closed, and how


def failure_of(step: Callable[[], object]) -> Exception | None:
    """Return what a step raises; an interrupt comes through."""
    try:
        step()
    except Exception as error:  # noqa: BLE001 - every failure of a close is reported, none stops the others
        return error
    return None


known_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
"""The sessions that are open."""
session_followers: list[Callable[[Session], object]] = []
"""Called with each session that opens from now on, when it takes work."""


def note_open(session: Session) -> None:
    """Note that a session takes work, and tell who follows it; what goes wrong there is logged."""
    known_sessions.add(session)
    for follow in [*session_followers]:
        failure = failure_of(lambda follow=follow: follow(session))  # type: ignore[misc]
        if failure is not None:
            _log.warning("A session is not followed: %s", failure)


def _leave_to_the_parent() -> None:
    """Give up the sessions of the parent in a forked child: a CUDA context does not survive a fork."""
    for session in list(known_sessions):
        session._life.leave_to_parent()
        for stream in session._table.by_name.values():
            stream._disown()
    known_sessions.clear()


def open_sessions() -> list[Session]:
    """Return every open session of this process."""
    return [session for session in list(known_sessions) if session.state is SessionState.OPEN]


in_forked_child(_leave_to_the_parent)


@atexit.register
def _close_open_sessions() -> None:
    """Close what is still open before the interpreter takes its modules apart."""
    for session in list(known_sessions):
        failure = failure_of(session.close)
        if failure is not None:
            _log.debug("A session could not be closed at exit: %s", failure)


class SessionLocks:
    """Who moves streams, and who changes what the session knows. Who needs both takes `moves` first."""

    __slots__ = ("moves", "state")

    def __init__(self) -> None:
        self.moves = process_lock()
        """Held by one repartition, move, proof or closing of the session at a time, also while it waits."""
        self.state = process_lock()
        """Held where streams are made, marked as closed and settled, and never while anybody waits for the device."""


class SessionLife:
    """Closed until `begin`: before everything is made, there is nothing to close."""

    __slots__ = ("_is_in_close", "_loss_report", "_steps", "_why_closed", "failures", "locks", "state")

    def __init__(self, loss_report: LossReport) -> None:
        self.locks = SessionLocks()
        self._loss_report = loss_report
        self._why_closed = "is closed"
        self._is_in_close = False  # Whether the thread that holds the lock for moves is closing it
        self._steps: list[Step] | None = None  # What is left to close; None before it began
        self.failures: list[tuple[str, Exception]] = []  # What could not be closed, and why
        self.state = SessionState.CLOSED  # Where it is

    def begin(self) -> None:
        """Take work from now on."""
        self.state = SessionState.OPEN

    def close(self, plan: Callable[[], list[Step]]) -> list[tuple[str, Exception]] | None:
        """Take each step of closing once; return what failed, or None where it is closed, or this thread closes it, already.

        New work is refused from the beginning. A step that is interrupted is taken again by the next call.
        """
        with self.locks.state:
            if self.state is SessionState.OPEN:
                self.state = SessionState.CLOSING
        with self.locks.moves:
            if self._is_in_close or self.state is SessionState.CLOSED:
                return None
            self._is_in_close = True
            try:
                self._steps = plan() if self._steps is None else self._steps
                while self._steps:
                    what, step = self._steps[0]
                    failure = failure_of(step)
                    del self._steps[:1]
                    self.failures += [] if failure is None else [(what, failure)]
            finally:
                self._is_in_close = False
            self._steps, self.state = [], SessionState.CLOSED
            return self.failures

    def leave_to_parent(self) -> None:
        """End in a forked child."""
        self._why_closed = LEFT_TO_PARENT
        self.state = SessionState.CLOSED

    def require_open(self, doing: str) -> None:
        """Raise `SessionClosedError`, with what the session cannot do, unless it is open."""
        if self.state is not SessionState.OPEN:
            # A child may have been forked in the middle of a change of what the trace is made from.
            trace = "Read its trace there." if self._why_closed is LEFT_TO_PARENT else "Its trace can still be read."
            raise SessionClosedError(
                f"This session {self._why_closed}; it cannot {doing}. {trace} Start another with gpustreamlab.Session()."
            )

    @contextmanager
    def working(self, doing: str) -> Iterator[None]:
        """Hold the lock of the session's state, in a session that is open. Nobody waits for the device in here."""
        with self.locks.state, self._loss_report:
            self.require_open(doing)
            yield

    @contextmanager
    def moving(self, doing: str) -> Iterator[None]:
        """Hold the session's lock for moves, in a session that is open: it may have been closed while this thread waited."""
        with self.locks.moves, self._loss_report:
            self.require_open(doing)
            yield


def close_session(lab: Session) -> None:
    """Close a session; see `gpustreamlab.Session.close`."""
    failures = lab._life.close(lambda: _steps_of_closing(lab))
    known_sessions.discard(lab)  # also by the call behind one that was interrupted right here
    if failures is None:
        return
    lab._partitions.tell()
    failures = lab._recorder.loss_report.sift(failures)
    if failures:
        raise CloseError(failures)


def _steps_of_closing(lab: Session) -> list[Step]:
    def keep_trace() -> None:
        lab._recorder.end()
        lab._last_trace = lab._make_trace()

    lab._recorder.loss_report.is_closing = True
    return [
        ("selections", lab._selections.close),
        ("capture", lambda: lab._captures.finish([one._drain for one in lab._table.open_streams.values()])),
        *((f"stream {stream.name!r}", stream.close) for stream in lab._table.by_name.values()),
        ("held objects", lab._keeper.close),
        *([] if lab._recorder.end_counter_block is None else [("counter block", lab._recorder.end_counter_block)]),
        *([] if lab._counters is None else [("counters", lab._counters.close)]),
        ("trace", keep_trace),
        *([] if lab._spool is None else [("spool", lab._spool.close)]),
        ("live timelines", lab._views.finish),
        ("partitions", lab._partitions.close),
        ("events", lab._recorder.close),
        ("accesses", lab._accesses.close),
        ("recording", lambda: None if lab._life.failures else lab._recorder.let_go()),  # what failed may still be asked for
        *([(f"backend {lab._backend.name!r}", lab._backend.close)] if lab._owns_backend else []),
    ]


def raise_first(failures: Iterable[Exception | None]) -> None:
    """Raise the first of what several steps have failed with, if any has."""
    for failure in failures:
        if failure is not None:
            raise failure


def facts_table(facts: Mapping[str, str]) -> str:
    """Return facts as HTML."""
    left = "style='text-align:left'"
    rows = "".join(
        f"<tr><th {left}>{html.escape(name)}</th><td {left}>{html.escape(value)}</td></tr>" for name, value in facts.items()
    )
    return f"<div><strong>gpustreamlab session</strong><table>{rows}</table></div>"


def session_facts(lab: Session) -> dict[str, str]:
    """Return what the representations say, by its heading; never touches the device."""
    device, layout, spool, recorder = lab.device, lab.layout, lab._spool, lab._recorder
    span_count, dropped_count, tier = recorder.span_count, recorder.dropped_count, lab._captures.text
    last = lab._last_trace  # not before the recorder, which has let go of everything by the time that there is one
    if last is not None:
        span_count, dropped_count, tier = len(last), last.metadata.dropped_spans, last.metadata.tier.value
    streams = list(lab.streams if lab.state is SessionState.OPEN else lab._table.by_name)
    listed = f" ({', '.join(streams[:8])}{', …' if len(streams) > 8 else ''})" if streams else ""
    return {
        "device": f"{device.label}, {device.sm_count} SMs",
        "numbers": "simulated, no hardware behind them" if device.simulated else "real, measured",
        **({} if layout is None else {"partitions": _partition_fact(layout, lab._partitions.cache)}),
        "streams": f"{count_text(len(streams), 'stream')}{listed}",
        "captured": tier,
        "spans": count_text(span_count, "span"),
        "dropped": f"{dropped_count:,} dropped",
        **({} if spool is None else {"spool": f"spool {spool.path.name}: {spool.summary}"}),
        "state": lab.state.value,
    }


def _partition_fact(layout: Layout, cache: ContextCache) -> str:
    """Return what a layout gives to each partition, in words, and how many green contexts there are."""
    listed = ", ".join(f"{part.name} {part.granted_sms} SMs" for part in layout)
    alive = f"{count_text(len(cache), 'green context')} alive"
    return f"{listed} ({alive if layout.is_enforced else 'not enforced'})"
