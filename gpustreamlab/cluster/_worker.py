"""What runs on an engine: its session, what is told of it, and calls and cells. Plain functions, called from other machines."""

from __future__ import annotations

import asyncio
import ctypes
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import gpustreamlab
from gpustreamlab._util.host import monotonic_clock_id
from gpustreamlab.analysis import Hazard
from gpustreamlab.backends import BACKEND_NAMES, device_count
from gpustreamlab.errors import ClusterError, GPUStreamLabError
from gpustreamlab.recorder import Recorder
from gpustreamlab.session import Session
from gpustreamlab.sinks._spool_format import BatchEncoder
from gpustreamlab.typing import SessionState

MOST_PRINTED = 1_000_000  # Characters of one call that are sent; what is printed beyond is left out, and that is said
LOOK_EVERY_S = 0.1  # How often a cell that awaits looks for Ctrl-C
_AROUND = frozenset({"gpustreamlab", "asyncio", "concurrent"})  # Packages whose frames above those of the user are not told
MOST_ROWS = 32_768  # Rows of one answer, 0.5 MB: who reads aside must not keep a cell from working for long


class Outcome(NamedTuple):
    """What came of a call."""

    value: Any = None  # What it returned, pickled
    text: str = ""  # What it printed
    shown: tuple[dict[str, Any], ...] = ()  # What it displayed, each by MIME type
    error: str = ""  # Kind and message of what it raised; empty where it did not
    traceback: str = ""  # From the user's code on; empty where that has no part in it


class Facts(NamedTuple):
    """What an engine is."""

    host: str  # Name of the machine
    pid: int  # Number of the process there
    version: str  # Of this package
    visible: str  # ``CUDA_VISIBLE_DEVICES``
    clock: str  # What tells its clock of `time.monotonic_ns` from that of another machine; empty where that is not known
    process: str  # What tells the process from every other of any machine
    device: str = ""  # Name of the device; empty without a session
    ordinal: int = 0  # Its number
    simulated: bool = False  # True if no hardware stands behind it


class Changes(NamedTuple):
    """What is new on an engine since a place."""

    place: int  # The place behind it, to ask from the next time
    data: bytes  # A chunk as a spool has it, without the head; empty where nothing is new
    log: int  # `ChunkLog.number` of the engine's session
    is_full: bool  # Whether there is more already
    open_ranges: tuple[tuple[int, int, int, int], ...] = ()  # What has not ended, see `gpustreamlab.recorder.Recorder.unended`
    now_ns: int = 0  # When that was so, by the clock of the trace
    newest_hazard_ns: int = -1  # When the newest hazard was found, by the clock of the host; -1 where there is none
    hazards: tuple[tuple[Hazard, int], ...] | None = None
    """All that were found, and when, by the clock of the trace; None where the reader knows of the newest."""


@dataclass
class _Home:
    """What this process has."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    session: Session | None = None
    client: str = ""  # Who began last, and ends the session
    encoder: BatchEncoder | None = None


@dataclass
class _Turn:
    """Which call works now."""

    lock: threading.Lock = field(default_factory=threading.Lock)  # Held by the call that works: Dask may have several threads
    change: threading.Lock = field(default_factory=threading.Lock)
    number: str = ""
    thread: int = 0
    revoked: deque[str] = field(default_factory=lambda: deque(maxlen=64))  # Calls that are to end as they begin


_home = _Home()
_turn = _Turn()
_PROCESS = uuid.uuid4().hex  # Tells this process from all others, also those of other machines and containers


def look() -> Facts:
    """Return what this engine is. Quick: it opens no session."""
    facts = Facts(
        host=socket.gethostname(),
        pid=os.getpid(),
        version=gpustreamlab.__version__,
        visible=os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        clock=monotonic_clock_id(),
        process=f"{os.getpid()} {_PROCESS}",
    )
    session = _home.session
    if session is None:
        return facts
    device = session.device
    return facts._replace(device=device.name, ordinal=device.ordinal, simulated=device.simulated)


def begin(client: str, backend: str | None, options: dict[str, Any], rank: int) -> Facts | str:
    """Let a client use the session of this process, opened where there is none; return what the engine is, or why not."""
    # It raises nothing, of which Dask would print pages. Where no device is chosen, each rank takes another one.
    with _home.lock:
        session = _home.session
        if session is None or session.state is not SessionState.OPEN:
            folder = options.pop("spool", None)
            if folder is not None:
                options["spool"] = os.path.join(folder, f"engine-{socket.gethostname()}-{os.getpid()}.gsl")  # noqa: PTH118
            try:
                session = _home.session = Session(backend, **{"device": rank % device_count(backend)} | options)
            except Exception as error:  # noqa: BLE001 - the client is told
                return str(error) if isinstance(error, GPUStreamLabError) else f"{type(error).__name__}: {error}"
        if backend in BACKEND_NAMES and (backend == "sim") != session.device.simulated:
            return (
                f"another client has a session there, on {session.device.name}{' (simulated)' * session.device.simulated}; "
                "close that or start the engines anew, or leave backend out"
            )
        _home.client = client
    shell = None if "IPython" not in sys.modules else sys.modules["IPython"].get_ipython()
    if shell is not None:  # for %%px
        shell.user_ns["lab"] = session
    return look()


def end(client: str) -> None:
    """Close the session, unless another client has begun since."""
    with _home.lock:
        if client == _home.client and _home.session is not None:
            session, _home.session = _home.session, None
            session.close()


def told_ns() -> int:
    """Return the time by the clock of the trace, in ns; costs the simulated device none."""
    recorder = _recorder()
    with recorder.observing():
        return recorder.now_ns()


def told_between() -> tuple[int, int, int]:
    """Return `told_ns`, and between which times of this machine's monotonic clock it was."""
    return time.monotonic_ns(), told_ns(), time.monotonic_ns()


def read(since: int, newest_hazard_ns: int = -1) -> Changes:
    """Return what is new since the place of the last answer that has arrived, 0 for none; what was lost is told again."""
    with _home.lock:
        session, recorder = _require_session(), _recorder()
        with recorder.observing():
            chunk = recorder.changes(since, most=MOST_ROWS)
        if _home.encoder is None:
            _home.encoder = BatchEncoder()
        data, log = b"" if chunk.place == since else _home.encoder.encode(chunk), recorder.log
        watch = session._accesses  # noqa: SLF001 - of the package
        with recorder.observing():
            is_full, open_ranges = chunk.place != log.place, tuple(recorder.unended())
            changes = Changes(chunk.place, data, log.number, is_full, open_ranges, recorder.now_ns())
            newest_ns = watch.newest_ns
            if newest_ns == newest_hazard_ns:
                return changes._replace(newest_hazard_ns=newest_ns)
            return changes._replace(newest_hazard_ns=newest_ns, hazards=tuple(watch.found()))


def call(number: str, function: Callable[..., Any], *args: Any) -> Outcome:
    """Call a function with the session, behind what runs there, and return what came of it: what was raised too."""
    from IPython.utils.capture import capture_output

    if function is run_cell:
        _engine_shell()  # what is displayed is kept where there is a shell before the call begins
    with _turn.lock, capture_output() as printed:
        value, failure = None, ("", "")
        try:
            with _interruptible(number):
                session = _require_session()
                with nullcontext() if session.device.simulated else session.xp.cuda.Device(session.device.ordinal):
                    value = function(session, *args)  # what it makes outside of streams is on that card, too
            value = _pack(value)
        except BaseException as error:  # noqa: BLE001 - also Ctrl-C, of which the client is told
            value, failure = None, _told(error)
        if function is not run_cell and _home.session is not None:  # cells follow each other at once, as in a notebook
            _recorder().rest()
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


def run_cell(session: Session, source: str, stream: str, label: str, options: dict[str, Any], lines_above: int) -> str | None:
    """Run a cell with a stream selected, as one range, and return its last expression as text; None where it shows none."""
    from IPython.core.displayhook import DisplayHook

    from gpustreamlab.notebook.cells import compile_cell

    shell = _engine_shell()
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
    text: str | None = data.get("text/plain")  # nothing where it has shown itself
    return text


def _engine_shell() -> Any:
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


def _require_session() -> Session:
    if _home.session is None:
        raise RuntimeError("This engine has no session: it was closed, or the process has begun anew.")
    return _home.session


def _recorder() -> Recorder:
    return _require_session()._recorder  # noqa: SLF001 - of the package
