"""Calls and cells on an engine: one after another, with what they print and show, until Ctrl-C of the client that made them."""

from __future__ import annotations

import asyncio
import base64
import ctypes
import os
import pickle
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from gpustreamlab.errors import ClusterError

if TYPE_CHECKING:
    from gpustreamlab.session import Session

MOST_PRINTED = 1_000_000
"""Characters of one call that are sent; what is printed beyond is left out, and that is said."""
LOOK_EVERY_S = 0.1
"""How often a cell that awaits looks for Ctrl-C."""
_AROUND = frozenset({"gpustreamlab", "asyncio", "concurrent"})
"""Packages whose frames above those of the user are not told."""


class Outcome(NamedTuple):
    """What came of a call."""

    value: Any = None
    """What it returned, pickled."""
    text: str = ""
    """What it printed."""
    shown: tuple[dict[str, Any], ...] = ()
    """What it displayed, each by MIME type."""
    error: str = ""
    """Kind and message of what it raised; empty where it did not."""
    traceback: str = ""
    """From the user's code on; empty where that has no part in it."""


class Shown(str):
    """The last value of a cell, as text; in a notebook as it shows itself there."""

    data: Mapping[str, Any] = MappingProxyType({})
    """What it is, by MIME type."""

    def _repr_html_(self) -> str | None:
        page = self.data.get("text/html") or self.data.get("image/svg+xml")
        image = self.data.get("image/png")
        if page is None and image is not None:
            letters = base64.b64encode(image).decode() if isinstance(image, bytes) else image
            return f"<img alt='' src='data:image/png;base64,{escape(letters)}'>"
        return page


@dataclass
class _Turn:
    """Which call works now."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by the call that works. A worker of Dask may have several threads."""
    change: threading.Lock = field(default_factory=threading.Lock)
    number: str = ""
    thread: int = 0
    revoked: deque[str] = field(default_factory=lambda: deque(maxlen=64))
    """Calls that are to end as they begin."""


_turn = _Turn()


def call(number: str, work: Callable[[], Any]) -> Outcome:
    """Do something when what ran before has ended, and return what came of it: what was raised too, so that it arrives."""
    from IPython.utils.capture import capture_output

    with _turn.lock, capture_output() as printed:
        value, failure = None, ("", "")
        try:
            with _interruptible(number):
                value = work()
            value = _pack(value)
        except BaseException as error:  # noqa: BLE001 - also Ctrl-C, of which the client is told
            value, failure = None, _told(error)
    text = printed.stdout + printed.stderr
    if len(text) > MOST_PRINTED:
        text = f"{text[:MOST_PRINTED]}\n… it has printed more than {MOST_PRINTED:,} characters; the rest is left out\n"
    return Outcome(value, text, tuple(one.data for one in printed.outputs), *failure)


def interrupt(number: str) -> None:
    """Raise `KeyboardInterrupt` in a call, as soon as it runs Python; one that has not begun ends as it begins. Quick."""
    with _turn.change:
        if number != _turn.number:
            _turn.revoked.append(number)
        elif _turn.thread == threading.main_thread().ident and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            os.kill(os.getpid(), signal.SIGINT)  # ends a sleep too
        else:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(_turn.thread), ctypes.py_object(KeyboardInterrupt))


@contextmanager
def _interruptible(number: str) -> Iterator[None]:
    """Let `interrupt` end what is done inside. One that comes as it ends strikes behind it, where `call` still catches it."""
    with _turn.change:
        if number in _turn.revoked:
            raise KeyboardInterrupt("it was taken back before it began")
        _turn.number, _turn.thread = number, threading.get_ident()
    try:
        yield
    finally:
        with _turn.change:
            _turn.number = ""


def _pack(value: object) -> bytes:
    """Return a value as bytes. Here, so that what cannot be sent is this call's error and no one else's."""
    try:
        from cloudpickle import dumps  # comes with Dask; knows what was defined in a notebook too
    except ImportError:
        from pickle import dumps
    try:
        return bytes(dumps(value))
    except Exception as error:  # noqa: BLE001 - of whatever class it is
        raise ClusterError(
            f"What it returned, of type {type(value).__name__}, cannot be sent to the client. Return numbers, text or NumPy "
            f"arrays. ({type(error).__name__}: {error})"
        ) from None


def unpack(outcome: Outcome) -> Outcome:
    """Return an outcome with its value as it was there."""
    if outcome.error:
        return outcome
    try:
        return outcome._replace(value=pickle.loads(outcome.value))  # noqa: S301 - of an engine, which runs our code
    except Exception as error:  # noqa: BLE001 - of whatever class it is
        return outcome._replace(value=None, error=f"What it returned cannot be read here: {type(error).__name__}: {error}")


def _told(error: BaseException) -> tuple[str, str]:
    """Return kind and message of an exception, and its traceback from the user's code on."""
    at = error.__traceback__
    while at is not None and str(at.tb_frame.f_globals.get("__name__")).partition(".")[0] in _AROUND:
        at = at.tb_next
    text = f"{type(error).__name__}: {error}".strip(": ")
    return text, "" if at is None else "".join(traceback.format_exception(error.with_traceback(at)))


def run_cell(session: Session, source: str, stream: str, label: str, options: dict[str, Any], lines_above: int) -> Shown | None:
    """Run a cell with a stream selected, as one range, and return its last expression; None where it shows none.

    Parameters
    ----------
    session
        The session; ``lab`` in the cell.
    source
        The cell.
    stream
        Name of the stream; made on first use.
    label
        Name of the range, and of the cell in tracebacks.
    options
        Of the stream, as for `Session.stream`; and ``sync``, whether to wait for its work.
    lines_above
        How many lines the cell has above what is run here.
    """
    from IPython.core.displayhook import DisplayHook

    from gpustreamlab.notebook.cells import compile_cell

    shell = engine_shell()
    shell.user_ns["lab"] = session
    code = compile_cell(shell, source, lines_above=lines_above, file=f"<{label}>")
    chosen = session.stream(stream, **{name: value for name, value in options.items() if name != "sync"})
    around = session.on(chosen, label)
    value = _awaited(code.run_async(shell.user_ns, around)) if code.is_async else code.run(shell.user_ns, around)
    if options.get("sync"):
        chosen.synchronize()
    shell.events.trigger("post_execute")  # on which plots are drawn
    if value is None or DisplayHook.semicolon_at_end_of_expression(source):
        return None
    with session.select(chosen):
        data, _ = shell.display_formatter.format(value)
    if not data:  # it has shown itself
        return None
    shown = Shown(data.get("text/plain", ""))
    shown.data = dict(data)
    return shown


def engine_shell() -> Any:
    """Return the IPython shell of this process. ipyparallel has one; a worker of Dask gets one, without a history in a file."""
    from IPython import get_ipython
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class EngineShell(InteractiveShell):  # type: ignore[misc]
        def enable_gui(self, gui: str | None = None) -> None:
            """Be asked for no window, as by ``%matplotlib inline``."""

    settings = {"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "nocolor"}}
    return get_ipython() or EngineShell.instance(config=Config(settings))


def _awaited(cell: Coroutine[Any, Any, object]) -> object:
    """Run a coroutine on the loop of all cells, and wait for it."""
    future = asyncio.run_coroutine_threadsafe(cell, _loop())
    try:
        while not wait([future], LOOK_EVERY_S).done:
            pass  # Ctrl-C comes between two waits, where this is not the main thread
        return future.result()
    finally:
        future.cancel()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Start the event loop of cells, in a thread: ipyparallel's own runs the cell. A task of one cell is awaited by another."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=lambda: (loop.run_forever(), loop.close()), name="gpustreamlab cells", daemon=True).start()
    return loop
