"""Calls on an engine: one after another, with what they print and show, until Ctrl-C of the client that made them."""

from __future__ import annotations

import ctypes
import io
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from gpustreamlab.errors import ClusterError, GPUStreamLabError

MOST_PRINTED = 1_000_000
"""Characters of one call that are kept; what is printed beyond is left out, and that is said."""
_MOST_REVOKED = 64
_AROUND = frozenset({"gpustreamlab", "asyncio", "concurrent"})
"""Packages whose frames above those of the user are not told."""

Output: TypeAlias = str | dict[str, Any]
"""What a call has printed, or a thing that it showed: what it is by MIME type, as Jupyter has it."""


class Outcome(NamedTuple):
    """What came of a call or a cell."""

    value: Any = None
    """What the function returned; of a cell its last expression by MIME type, as Jupyter has it, or None."""
    outputs: tuple[Output, ...] = ()
    """What it has printed and shown, in its order."""
    error: str = ""
    """Kind and message of what it raised; empty where it did not."""
    traceback: str = ""
    """Where it was raised; empty where that tells a user nothing."""
    is_cell: bool = False
    """Whether it is of a cell."""

    @property
    def text(self) -> str:
        """What it has printed."""
        return "".join(part for part in self.outputs if isinstance(part, str))


class Printed(io.TextIOBase):
    """Keeps what is printed, and what is shown in between."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.parts: list[Output] = []
        """What was kept so far; only grows."""
        self._room = MOST_PRINTED

    def write(self, text: str) -> int:
        """Keep a text, where there is room."""
        if self._room > 0:
            self.parts.append(text[: self._room])
            self._room -= len(text)
            if self._room <= 0:
                self.parts.append(f"\n… it has printed more than {MOST_PRINTED:,} characters; the rest is left out\n")
        return len(text)

    def show(self, data: dict[str, Any]) -> None:
        """Keep a thing that was shown."""
        self.parts.append(data)


@dataclass
class _Turn:
    """Which call works now."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by the call that works. A worker of Dask may have several threads."""
    change: threading.RLock = field(default_factory=threading.RLock)
    call: str = ""
    printed: Printed = field(default_factory=Printed)
    """What keeps the output of that call."""
    thread: int = 0
    is_raised: bool = False
    """Whether an exception was sent into the thread, which may be under way still."""
    revoked: dict[str, None] = field(default_factory=dict)
    """Calls that are to end as they begin."""


_turn = _Turn()


def caught(call: str, work: Callable[[Printed], Any]) -> Outcome:
    """Do something when what ran before has ended, and return what came of it: what was raised too, so that it arrives.

    Parameters
    ----------
    call
        What `interrupt` takes.
    work
        Is given what keeps the output.
    """
    printed = Printed()
    with _turn.lock, redirect_stdout(printed), redirect_stderr(printed):
        try:
            _begin(call, printed)
            value = work(printed)
            _end()
            return Outcome(value, tuple(printed.parts))
        except BaseException as error:  # noqa: BLE001 - also Ctrl-C, of which the client is told
            _end()
            return Outcome(None, tuple(printed.parts), *_told(error))


def printed_beyond(call: str, count: int) -> tuple[str, tuple[Output, ...]]:
    """Return which call works now, and what it has printed and shown beyond what a client has of it. Quick.

    Parameters
    ----------
    call
        Which call the client has something of.
    count
        How many parts of it.
    """
    with _turn.change:
        if not _turn.call:
            return "", ()
        return _turn.call, tuple(_turn.printed.parts[count if _turn.call == call else 0 :])


def pack(value: object) -> bytes:
    """Return a value as bytes for the client. Here, so that what cannot be sent is this call's error and no one else's.

    Raises
    ------
    ClusterError
        If it cannot be sent.
    """
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
    """Return an outcome with its value as it was before `pack`."""
    if outcome.error or outcome.is_cell:
        return outcome
    try:
        return outcome._replace(value=pickle.loads(outcome.value))  # noqa: S301 - of an engine, which runs our code
    except Exception as error:  # noqa: BLE001 - likewise
        return outcome._replace(value=None, error=f"What it returned cannot be read here: {type(error).__name__}: {error}")


def interrupt(call: str) -> None:
    """Raise `KeyboardInterrupt` in a call, as soon as it runs Python; one that has not begun ends as it begins. Quick."""
    with _turn.change:
        if call != _turn.call:
            _turn.revoked[call] = None
            for oldest in [*_turn.revoked][:-_MOST_REVOKED]:
                del _turn.revoked[oldest]
        elif _turn.thread == threading.main_thread().ident and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            os.kill(os.getpid(), signal.SIGINT)  # ends a sleep too
        else:
            _turn.is_raised = True
            _raise_in(_turn.thread)


def _begin(call: str, printed: Printed) -> None:
    with _turn.change:
        if call in _turn.revoked:
            del _turn.revoked[call]
            raise KeyboardInterrupt("it was taken back before it began")
        _turn.call, _turn.printed, _turn.thread = call, printed, threading.get_ident()


def _end() -> None:
    """Let no interrupt of this call come any more. Called again where one came here."""
    with _turn.change:
        _turn.call = ""
        is_raised, _turn.is_raised = _turn.is_raised, False
    if is_raised:
        with suppress(KeyboardInterrupt):  # one that is still under way comes in this call
            time.sleep(0)


def _raise_in(thread: int) -> None:
    """Raise `KeyboardInterrupt` in a thread at its next instruction."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt))


def _told(error: BaseException) -> tuple[str, str]:
    """Return kind and message of an exception, and where it was raised in what the user wrote."""
    kind = type(error).__name__
    told = f"{kind}: {error}".strip(": ")
    if kind == "UsageError":  # of IPython: what was typed is wrong, not the program
        return told, ""
    at = error.__traceback__
    module = ""
    while at is not None and (module := at.tb_frame.f_globals.get("__name__", "")).partition(".")[0] in _AROUND:
        at = at.tb_next
    # Else it is ours, and who reports it needs to know where; what is raised as a function is called is not.
    if at is None and (isinstance(error, GPUStreamLabError) or module.startswith("gpustreamlab.cluster.")):
        return told, ""
    if isinstance(error, SyntaxError) and error.filename and error.filename.startswith("<"):  # of the cell
        return told, "".join(traceback.format_exception_only(error))
    return told, "".join(traceback.format_exception(error.with_traceback(at or error.__traceback__)))
