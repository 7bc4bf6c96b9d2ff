"""The timeline that grows while work runs, and what of it stays in the notebook."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustreamlab._util.background import DEFAULT_REFRESH_HZ, Updater
from gpustreamlab._util.shell import Cell, holds_code, running_cell, running_kernel_shell
from gpustreamlab.analysis import summary_text
from gpustreamlab.draw import hazard_tables, packed_bokeh, plan_picture, timeline_svg, viewer_script, viewer_style, why_tables
from gpustreamlab.errors import GPUStreamLabError, SessionClosedError
from gpustreamlab.model import Note, Trace, read_written
from gpustreamlab.notebook.kept import KeptWidget, static_text, traitlets
from gpustreamlab.sinks.live import LiveFeed, Update
from gpustreamlab.timeline import Timeline, notebook_forms
from gpustreamlab.typing import Int64Array, NoteKind, SessionState

if TYPE_CHECKING:
    from gpustreamlab.notebook.views import Watched

_log = logging.getLogger(__name__)

_MESSAGES = 16  # A page that is being loaded takes no messages, but keeps what the last of each of so many names said


class TimelinePage(KeptWidget):
    """What JupyterLab shows of a live timeline.

    The widget outlives the session; it knows nothing of it but a function that packs all spans so far.

    Parameters
    ----------
    take_snapshot
        Returns everything up to the last update, for a page that comes later.
    figure
        The empty figure, as an item of BokehJS.
    capacity
        How many spans the page holds.
    tell_why
        Explains what ran so far, as `why_tables` does, when a page asks; False where the timeline is gone.
    """

    _esm = f"{viewer_script()}\n{static_text('kept.js', 'timeline.js')}"
    _css = f"{viewer_style()}\n{static_text('timeline.css')}"

    item = traitlets.Unicode().tag(sync=True)  # The figure, as JSON
    bokeh_gz = traitlets.Bytes().tag(sync=True)  # BokehJS, compressed
    bokeh_version = traitlets.Unicode().tag(sync=True)  # Its version: of several in one page, each is loaded once
    capacity = traitlets.Int().tag(sync=True)  # How many spans the page holds
    message_count = traitlets.Int(_MESSAGES).tag(sync=True)
    """Updates are called ``update_0``, ``update_1`` and so on, and begin again after so many."""
    status = traitlets.Dict().tag(sync=True)  # ``state``: live, failing or closed; ``text``: what the page says about it
    view_state = traitlets.Dict().tag(sync=True)
    """What the reader chose and wrote: window, pinned span, search, notes; by key. It stays where the page is loaded again."""
    found = traitlets.Dict().tag(sync=True)
    """Hazards that were found by now, as `hazard_tables` tells them: nobody needs to ask for these."""
    snapshot = traitlets.Dict().tag(sync=True, to_json=lambda _, page: page.pack_snapshot())
    """Made when it is asked for: by a page that loads, or has missed an update."""

    def __init__(
        self, take_snapshot: Callable[[], Update], figure: Mapping[str, Any], *, capacity: int, tell_why: Callable[[], Any]
    ) -> None:
        import bokeh

        self._take_snapshot = take_snapshot
        self._tell_why = tell_why
        self._sent_number = -1
        self._sending = threading.Lock()
        super().__init__(
            item=json.dumps(figure, separators=(",", ":")),
            bokeh_gz=packed_bokeh(),
            bokeh_version=bokeh.__version__,
            capacity=capacity,
            status={"state": "live", "text": ""},
        )
        self.on_msg(self._take_message)

    def __repr__(self) -> str:
        return f"<TimelinePage: {self.status.get('state', 'closed')}>"

    def send_update(self, update: Update) -> None:
        """Send what is new, as one message. It goes out at once, also while a cell runs."""
        name = f"update_{update.facts['number'] % _MESSAGES}"
        with self._sending:
            self._sent_number = update.facts["number"]
            if self.comm is not None:
                state = {name: {"facts": update.facts, "blob": None}}
                # As a change of state, but not of a trait: the kernel keeps no copy.
                message = {"method": "update", "state": state, "buffer_paths": [[name, "blob"]]}
                self.comm.send(data=message, buffers=[update.blob])

    def say(self, state: str, text: str = "") -> None:
        """Show what has become of the session."""
        status = {"state": state, "text": text}
        if self.status != status:
            self.status = status

    @property
    def notes(self) -> tuple[Note, ...]:
        """What the reader has written on it, in order of time."""
        return read_written(self.view_state.get("notes"))

    def freeze(self, last: Update) -> None:
        """Keep the last snapshot, and let go of where it came from."""
        self._take_snapshot = lambda: last

    def pack_snapshot(self) -> dict[str, Any]:
        """Return everything so far, as the page takes it."""
        update = self._take_snapshot()
        return {"facts": update.facts, "blob": update.blob}

    def _take_message(self, _widget: object, content: object, _buffers: object) -> None:
        """Answer a page that has missed an update, or asks why work did not overlap."""
        content = content if isinstance(content, Mapping) else {}
        asked = content.get("ask")
        if asked == "snapshot" and content.get("number", -1) < self._sent_number:
            self.send_state("snapshot")
        elif asked == "why":
            self.send({"why": self._tell_why()})


REST = 20.0  # After a look at hazards none follows for this many times as long as it took
_UNPLACED_NS = -2  # Told of hazards whose work had not ended: where it is in time is not known before
MAX_DISPLAYS = 100  # Outputs that become a static picture when the session closes; the newest count


class LiveTimeline(Timeline):
    """A timeline that shows what runs, while it runs.

    In JupyterLab and Notebook 7 it is a widget. Where no page shows widgets (nbclient), it is a picture, of which the last one
    is drawn anew after each cell until the spans are cleared. When the session closes, each becomes the picture of a closed
    session, which stays in the saved notebook; a notebook that is saved before keeps what the page showed then. Nothing here
    waits for the device or keeps the session alive.

    Parameters
    ----------
    target
        The session.
    feed
        Where updates come from.
    refresh_hz
        How often the page is updated, 1 to 20 times a second.

    Examples
    --------
    ::

        lab.timeline()                      # the last line of a cell
        lab.timeline().save("run.html")     # what there is by now
    """

    def __init__(self, target: Watched, feed: LiveFeed, *, refresh_hz: float = DEFAULT_REFRESH_HZ) -> None:
        self._target = weakref.ref(target)
        self._feed: LiveFeed | None = feed
        self._lock = threading.RLock()
        self._page: TimelinePage | None = None
        self._displays: dict[str, _Display] = {}
        self._last_trace: Trace | None = None
        self._shown_count = 0  # spans in the last picture
        self._hazard_ns, self._next_look_s = -1, 0.0  # the newest hazard of which the page knows; when it may learn of more
        self._stop_following: Callable[[], None] | None = None
        step, aside = _weakly(self.refresh), _weakly(self.find)
        self._updater = Updater(step, aside=aside, refresh_hz=refresh_hz, name="gpustreamlab live timeline")
        self._name = repr(target)

    @property
    def trace(self) -> Trace:
        """What was recorded so far; after the session has closed, everything."""
        target = self._target()
        if target is not None:
            self._last_trace = target.trace if target.state is not SessionState.OPEN else None
            return target.trace
        if self._last_trace is None:
            raise SessionClosedError(
                f"The session of this timeline ({self._name}) is gone. Keep it in a variable: lab = gpustreamlab.Session()"
            )
        return self._last_trace

    @property
    def is_live(self) -> bool:
        """True while it can grow."""
        target = self._target()
        return self._feed is not None and target is not None and target.state is SessionState.OPEN

    @property
    def page(self) -> TimelinePage:
        """The widget, made on first use; to put beside others in a box of ipywidgets."""
        with self._lock:
            if self._page is None:
                self._page = self._make_page()
            return self._page

    def refresh(self) -> bool:
        """Send the page what is new; return False once there is nothing more to come.

        A thread does this 10 times a second.
        """
        with self._lock:
            feed, page = self._feed, self._page
            if feed is None or page is None:
                return False
            try:
                update = feed.refresh()
            except GPUStreamLabError as error:
                page.say("failing", f"{type(error).__name__}: {error}")
                return True
            if self._feed is not feed:  # a signal handler has closed the session meanwhile: the page has its last picture
                return False
            if update is not None:
                page.send_update(update)
            page.say("live")
            return True

    def find(self, *, is_last: bool = False) -> None:
        """Let the page mark hazards that were found since; of a long session that is asked for less often."""
        feed, page, target, began_s = self._feed, self._page, self._target(), time.monotonic()
        if feed is None or page is None or target is None or (began_s < self._next_look_s and not is_last):
            return
        newest_ns = target._newest_hazard_ns()  # noqa: SLF001 - of the package
        if newest_ns != self._hazard_ns:
            is_running, trace = feed.has_unended(), target.trace
            if not self.refresh():  # the page has the spans before it is told what is wrong with them
                return
            page.found = hazard_tables(trace, _zero_ns(trace), _numbers(trace))
            ended_s = time.monotonic()
            is_unplaced = is_running and any(note.kind is NoteKind.HAZARD and note.end_ns is None for note in trace.notes)
            self._hazard_ns = _UNPLACED_NS if is_unplaced else newest_ns
            self._next_look_s = ended_s + REST * (ended_s - began_s)

    @property
    def notes(self) -> tuple[Note, ...]:
        """What the reader has written on it, in order of time; ``trace.notes`` has it as well."""
        page = self._page
        return () if page is None else page.notes

    def _take_notes(self) -> None:
        """Let the session's trace have what the reader has written."""
        target = self._target()
        if target is not None:
            target._keep_notes(self.notes)  # noqa: SLF001 - of the package

    def tell_why(self) -> dict[str, Any]:
        """Explain what ran so far, for the page, which has the spans before it is told of them."""
        trace = self.trace
        self.refresh()
        return why_tables(trace, _zero_ns(trace), _numbers(trace))

    def finish(self) -> None:
        """Send the rest, and make every output a picture that stays. Idempotent; what fails is logged.

        Where the interpreter ends, nothing is sent: nobody listens, and ipykernel mixes messages of several threads then.
        """
        self._updater.stop()
        if not threading.main_thread().is_alive():
            return
        for step in (self._refresh_whole, self._freeze, self._leave_pictures):
            try:
                step()
            except Exception as error:  # noqa: BLE001 - a view that fails must not keep a session from closing
                _log.warning("The live timeline could not be finished: %s", error, exc_info=error)

    def _refresh_whole(self) -> None:
        if self.refresh():  # takes what has ended, which is then looked at
            self.find(is_last=True)
            self.refresh()

    def _ipython_display_(self) -> None:
        shell = running_kernel_shell()
        if shell is None or not self.is_live:
            _publish(shell, Timeline(self.trace)._repr_mimebundle_())
            return
        display_id, shown = uuid.uuid4().hex, _Display(shell, running_cell())
        if _shows_widgets(shell):
            data, metadata = self._bundle()
        else:
            data, metadata = self._picture(with_code=shown.with_code), {}
            self._displays.clear()  # earlier pictures stay as they are: they belong to what was told there
            self._follow_cells(shell)
        _publish(shell, data, metadata, display_id=display_id)
        with self._lock:
            self._displays[display_id] = shown
            while len(self._displays) > MAX_DISPLAYS:
                del self._displays[next(iter(self._displays))]

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        return Timeline(self.trace)._repr_mimebundle_(include, exclude)

    def _display_(self) -> Any:
        """Return what marimo shows instead."""
        return self.page if self.is_live else Timeline(self.trace)

    def _bundle(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the widget, and a small picture for what cannot show it."""
        trace = self.trace
        shown = self.page._repr_mimebundle_()
        data, metadata = ({}, {}) if shown is None else shown
        static = {"text/plain": summary_text(trace), "image/svg+xml": timeline_svg(trace, picture=plan_picture(trace))}
        return {**data, **static}, metadata

    def _follow_cells(self, shell: Any) -> None:
        """Draw the pictures anew after each cell that recorded something: nothing else will, where no page shows widgets."""
        if self._stop_following is None:
            draw_anew = _weakly(self.draw_anew)

            def after_cell(_result: object) -> None:
                try:
                    draw_anew()
                except GPUStreamLabError as error:
                    _log.warning("The timeline could not be drawn anew: %s", error)

            shell.events.register("post_run_cell", after_cell)
            self._stop_following = lambda: shell.events.unregister("post_run_cell", after_cell)
            if self._feed is not None:
                self._feed.refresh()

    def draw_anew(self) -> None:
        """Draw the pictures anew where something was recorded since; called after each cell."""
        feed = self._feed
        update = feed.refresh() if feed is not None and self._page is None else None
        if update is None:
            return
        if update.facts["is_cleared"] and not update.facts["is_moved"] and self._shown_count:
            self._displays.clear()  # the picture stays as it is: it shows what was forgotten
        self._publish_pictures(self._displays)

    def _make_page(self) -> TimelinePage:
        feed = self._feed
        if feed is None:
            raise SessionClosedError(
                f"The session of this timeline ({self._name}) is closed. Use lab.timeline() for its picture."
            )
        feed.refresh()  # what was recorded before comes with the page's first state
        page = TimelinePage(feed.snapshot, feed.figure(), capacity=feed.capacity, tell_why=_weakly(self.tell_why))
        take_notes = _weakly(self._take_notes)
        page.observe(lambda _change: take_notes(), "view_state")
        self._updater.start()
        return page

    def _freeze(self) -> None:
        with self._lock:
            feed, self._feed = self._feed, None
            if feed is not None and self._page is not None:
                self._page.freeze(feed.snapshot())
                self._page.say("closed", "The session is closed. This is all that was recorded.")

    def _leave_pictures(self) -> None:
        with self._lock:
            displays, self._displays = self._displays, {}
            stop_following, self._stop_following = self._stop_following, None
        if stop_following is not None:
            stop_following()
        self._publish_pictures(displays)

    def _picture(self, *, with_code: bool) -> dict[str, str]:
        trace = self.trace
        self._shown_count = len(trace)
        return notebook_forms(trace, with_code=with_code)

    def _publish_pictures(self, displays: Mapping[str, _Display]) -> None:
        pictures: dict[bool, dict[str, str]] = {}
        for display_id, shown in [*displays.items()]:
            data = pictures[shown.with_code] = pictures.get(shown.with_code) or self._picture(with_code=shown.with_code)
            _publish(shown.shell, data, display_id=display_id, is_update=True)


def _shows_widgets(shell: Any) -> bool:
    """Tell whether the running cell came from a page that can show widgets.

    JupyterLab, Notebook 7 and VS Code say which cell they run. Runs without a page (nbclient, ``nbconvert --execute``) and
    text consoles do not; nor does Voila, which sets the variable that servers set for programs of the web.
    """
    if os.environ.get("SERVER_SOFTWARE", "").startswith("voila/"):
        return True
    try:
        parent = shell.get_parent()
    except (AttributeError, LookupError):
        return False
    metadata = parent.get("metadata") if isinstance(parent, Mapping) else None
    return isinstance(metadata, Mapping) and "cellId" in metadata


@dataclass
class _Display:
    """An output of a cell."""

    shell: Any
    cell: Cell | None

    @cached_property
    def with_code(self) -> bool:
        """Whether it holds the viewer's code as a picture; settled when it becomes one."""
        return holds_code(self.cell)


def _zero_ns(trace: Trace) -> int:
    return int(trace.start_ns.min()) if len(trace) else 0


def _numbers(trace: Trace) -> Int64Array:
    """Return what the page calls each span; -1, which none is called, where several recorders gave one number twice."""
    numbers: Int64Array = trace.extra.get("number", np.full(len(trace), -1))
    return numbers


def _weakly(method: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that calls a method, and does not keep its object alive; False where that is gone."""
    known = weakref.WeakMethod(method)

    def call() -> Any:
        alive = known()
        return alive is not None and alive()

    return call


def _publish(
    shell: Any, data: dict[str, Any], metadata: dict[str, Any] | None = None, *, display_id: str = "", is_update: bool = False
) -> None:
    transient = {"display_id": display_id} if display_id else {}
    shell.display_pub.publish(data, metadata or {}, transient=transient, update=is_update)
