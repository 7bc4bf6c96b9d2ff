"""The widget: passes actions of the page to the state and the session, and the state to the page."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from gpustreamlab.errors import GPUStreamLabError
from gpustreamlab.model import Layout
from gpustreamlab.notebook import _state
from gpustreamlab.notebook._form import Surroundings, forms_of, view_of
from gpustreamlab.notebook.kept import KeptWidget, static_text, traitlets
from gpustreamlab.typing import Feature, SessionState

if TYPE_CHECKING:
    from gpustreamlab.session import Session

_log = logging.getLogger(__name__)


class CellThread:
    """The thread, and the event loop, in which this was made: in a notebook, those that run the cells.

    JupyterLab may pass messages of widgets on a subshell, a thread of its own, while a cell runs. Work for the device is then
    handed back to the cells' thread, where it waits for the running cell. Source: Jupyter Enhancement Proposal 91, "Kernel
    Subshells".
    """

    def __init__(self) -> None:
        self._thread_id = threading.get_ident()
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None

    @property
    def has_loop(self) -> bool:
        """True in a notebook: the thread has an event loop that is not closed."""
        return self._loop is not None and not self._loop.is_closed()

    def run(self, call: Callable[[], None]) -> None:
        """Call a function in this thread: at once if it is the current one or has no event loop, else as soon as it is free."""
        if self._loop is None or self._loop.is_closed() or threading.get_ident() == self._thread_id:
            call()
        else:
            self._loop.call_soon_threadsafe(_run_interruptibly, call)


def _run_interruptibly(call: Callable[[], None]) -> None:
    """Call a function that Ctrl-C reaches: between cells, ipykernel ignores it (``Kernel.post_handler_hook``)."""
    if threading.current_thread() is not threading.main_thread():
        call()
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        call()
    finally:
        signal.signal(signal.SIGINT, before)


_DEVICE_ACTIONS = ("apply", "verify")
FOLLOW_S = 0.05  # How long the page of a notebook may lag behind layouts that did not come from it


class Partitioner(KeptWidget):
    """A card as a grid of its SMs, to share out by hand: drag a boundary or type a number, then Apply.

    Nothing touches the device before Apply or Verify. The session does not stay alive for the widget: once it is closed or
    gone, the widget shows its last layout.

    Parameters
    ----------
    target
        The session.

    Examples
    --------
    ::

        lab.partitions.widget()          # the last line of a cell: shows the widget
    """

    _esm = static_text("kept.js", "partitioner.js")
    _css = static_text("partitioner.css")

    view = traitlets.Dict().tag(sync=True)  # All that the page draws. Sent to the page, never read back from it.

    def __init__(self, target: Session) -> None:
        capability = target.partitions.capabilities[Feature.GREEN_CONTEXTS]
        obstacle = "" if capability.available and target.device.sm_resource is not None else str(capability)
        self._target = weakref.ref(target)
        self._cell_thread = CellThread()
        self._lock = threading.RLock()  # held while state and view change, never while the session is asked for anything
        self._state = _state.start(target.device, target.layout, obstacle)
        view = view_of(self._state, self._look_around())
        super().__init__(view=view, forms=forms_of(self._state, view))
        listener = _Listener(self)
        listener.stop = target.partitions.watch(listener)
        self._listener = weakref.ref(listener)
        self.on_msg(self._take_message)

    def __repr__(self) -> str:
        return f"<Partitioner of {self._state.device.label}: {self.python_line or 'no partitions'}>"

    @property
    def python_line(self) -> str:
        """The Python line that asks for what the widget shows."""
        return str(self.view["python_line"])

    def close(self) -> None:
        """Take the widget off the page and stop following the session. Idempotent."""
        listener = getattr(self, "_listener", _do_nothing)()  # ipywidgets calls this from __del__ too
        if listener is not None:
            listener.stop()
            listener.stop = _do_nothing
        super().close()

    def _take_message(self, _widget: object, content: object, _buffers: object) -> None:
        """Do what the page asks for; what touches the device waits for the cells' thread."""
        message = content if isinstance(content, Mapping) else {}
        answer = partial(self._answer, message, self._state)
        if _name_of(message.get("action")) in _DEVICE_ACTIONS:
            self._cell_thread.run(answer)
        else:
            answer()

    def _answer(self, message: Mapping[str, object], seen: _state.PartitionerState) -> None:
        """Do what the page asks for, and tell it that this is done. Nothing is raised: no one is there to catch it."""
        try:
            self._do(message.get("action"), seen)
        except KeyboardInterrupt:
            self._say("Interrupted. This is the layout in use.", is_bad=True)
        except Exception as error:  # noqa: BLE001 - shown on the page, and logged
            _log.warning("The partitioner could not do what the page asked for.", exc_info=error)
            self._say(f"{type(error).__name__}: {error}", is_bad=True)
        finally:
            self._refresh()
            self.send({"ack": message.get("seq"), "client": message.get("client")})

    def _do(self, action: object, seen: _state.PartitionerState) -> None:
        name, target = _name_of(action), self._open_target()
        if name == "look" or target is None:
            return
        if name == "apply":
            self._apply(target, seen)
        elif name == "verify":
            self._verify(target)
        else:
            self._change(lambda state: _state.act(state, action))

    def _apply(self, target: Session, state: _state.PartitionerState) -> None:
        """Apply what stood on the screen when the page asked for it, although the draft may have changed since."""
        plan = state.plan
        if plan.problem is not None or state.obstacle or not state.is_dirty:
            return
        refusal = ""
        try:
            target.partition(plan.layout, round=state.rounding, renamed=state.renamed)
        except GPUStreamLabError as error:
            refusal = f"Not applied: {error}"
        finally:
            self._take_layout()
        since = " The draft was changed since." if self._state.is_dirty else ""
        self._say(refusal or f"Applied.{since}", is_bad=bool(refusal))

    def _verify(self, target: Session) -> None:
        if self._state.obstacle:
            return
        try:
            verification = target.partitions.verify()
        except GPUStreamLabError as error:
            self._say(f"Not verified: {error}", is_bad=True)
        else:
            self._change(lambda state: _state.take_verification(state, verification))
        finally:
            self._take_layout()

    def _take_layout(self) -> None:
        target = self._open_target()
        if target is not None:
            layout = target.layout
            self._change(lambda state: _state.take_layout(state, layout))

    def _open_target(self) -> Session | None:
        """Return the session while it is open; note where it no longer is."""
        target = self._target()
        if target is not None and target.state is SessionState.OPEN:
            return target
        self._change(lambda state: _state.take_closed(state, state.applied if target is None else target.layout))
        return None

    def _change(self, step: Callable[[_state.PartitionerState], _state.PartitionerState]) -> None:
        with self._lock:
            self._state = step(self._state)

    def _say(self, text: str, *, is_bad: bool = False) -> None:
        self._change(lambda state: _state.say(state, text, is_bad=is_bad))

    def _refresh(self) -> None:
        """Send the page what there is now."""
        around = self._look_around()
        with self._lock, self.hold_sync():
            self.view = view_of(self._state, around)
            self.forms = forms_of(self._state, self.view)

    def _look_around(self) -> Surroundings:
        target, state = self._open_target(), self._state
        if target is None:
            return Surroundings()
        streams: dict[str, tuple[str, ...]] = {}
        for name, stream in dict(target.streams).items():
            where = stream.partition or ""
            streams[where] = (*streams.get(where, ()), name)
        plan = state.plan
        if plan.problem is not None or state.obstacle or not state.is_dirty:
            return Surroundings(streams=streams)
        try:
            return Surroundings(streams=streams, moves=target.partitions.plan_moves(plan.layout, renamed=state.renamed))
        except GPUStreamLabError as error:
            return Surroundings(streams=streams, refusal=str(error))


class _Listener:
    """Hears of new layouts. The session owns it; it knows the widget weakly, and the widget knows it weakly.

    Drawing a layout takes some milliseconds, and a loop may ask for hundreds. So in a notebook the page follows from a thread
    of its own, at most every `FOLLOW_S`, and the user's code goes on.
    """

    def __init__(self, widget: Partitioner) -> None:
        self._widget = weakref.ref(widget)
        self._is_due = False
        self._lock = threading.Lock()
        self.stop: Callable[[], None] = _do_nothing

    def __call__(self, _layout: Layout | None) -> None:
        widget = self._widget()
        if widget is None:
            return
        if not widget._cell_thread.has_loop:  # noqa: SLF001 - a part of the widget
            self._follow()
            return
        with self._lock:
            if self._is_due:
                return
            self._is_due = True
        timer = threading.Timer(FOLLOW_S, self._follow)
        timer.daemon = True
        timer.start()

    def _follow(self) -> None:
        self._is_due = False  # before looking: a change from here on is followed anew
        widget = self._widget()
        if widget is not None:
            widget._take_layout()  # noqa: SLF001
            widget._refresh()  # noqa: SLF001


def _name_of(action: object) -> object:
    return action.get("do") if isinstance(action, Mapping) else None


def _do_nothing() -> None:
    return
