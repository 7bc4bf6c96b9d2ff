"""What runs on an engine: a session for the process, and what is told of it. Plain functions, called from other machines."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gpustreamlab
from gpustreamlab._util.host import monotonic_clock_id
from gpustreamlab.analysis import Hazard
from gpustreamlab.backends import BACKEND_NAMES, device_count
from gpustreamlab.cluster._calls import Outcome, Output, Printed, caught, pack, printed_beyond
from gpustreamlab.errors import GPUStreamLabError, MissingExtraError
from gpustreamlab.record import Recorder
from gpustreamlab.session import Session
from gpustreamlab.sinks._spool_format import BatchEncoder
from gpustreamlab.sinks.spool import Progress, read_changes
from gpustreamlab.typing import SessionState

MOST_ROWS = 32_768
"""Rows of one answer, 0.5 MB: who reads aside must not keep a cell from working for long."""
CLIENT_GONE_S = 60.0
"""A client that has not read for so long is gone."""


class Facts(NamedTuple):
    """What an engine is."""

    host: str
    """Name of the machine."""
    pid: int
    """Number of the process there."""
    version: str
    """Of this package."""
    visible: str
    """``CUDA_VISIBLE_DEVICES``."""
    clock: str
    """What tells its clock of `time.monotonic_ns` from that of another machine; empty where that is not known."""
    process: str
    """What tells the process from every other of any machine."""
    device: str = ""
    """Name of the device; empty without a session."""
    ordinal: int = 0
    """Its number."""
    sm_count: int = 0
    """How many SMs it has."""
    simulated: bool = False
    """True if no hardware stands behind it."""
    spool: str = ""
    """Path of the spool there; empty without one."""


class Changes(NamedTuple):
    """What is new on an engine since a reader asked the last time."""

    number: int
    """To be told of the next time: what was read up to here has arrived."""
    data: bytes
    """A batch as a spool has it, without the head; empty where nothing is new."""
    is_anew: bool
    """Whether this begins at the beginning, because the engine does not know what was read before."""
    is_full: bool
    """Whether there is more already."""
    open_ranges: tuple[tuple[int, int, int, int], ...] = ()
    """What has not ended, see `gpustreamlab.record.Recorder.unended`."""
    now_ns: int = 0
    """When that was so, by the clock of the trace."""
    newest_hazard_ns: int = -1
    """When the newest hazard was found, by the clock of the host; -1 where there is none."""
    hazards: tuple[tuple[Hazard, int], ...] | None = None
    """All that were found, and when, by the clock of the trace; None where the reader knows of the newest."""
    printed: tuple[str, tuple[Output, ...]] = "", ()
    """Which call works now, empty where none does, and what it has printed and shown beyond what the reader has."""


@dataclass
class _Reader:
    """How far a client has read."""

    number: int = 0
    before: Progress = field(default_factory=Progress)
    after: Progress = field(default_factory=Progress)


@dataclass
class _Home:
    """What this process has."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    session: Session | None = None
    readers: dict[str, _Reader] = field(default_factory=dict)
    clients: dict[str, float] = field(default_factory=dict)
    """When each was last heard of, by `time.monotonic`."""
    encoder: BatchEncoder | None = None


_home = _Home()
_PROCESS = uuid.uuid4().hex
"""Tells this process from all others, also those of other machines and containers."""


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
    device, spool = session.device, session.recording.spool
    return facts._replace(
        device=device.name,
        ordinal=device.ordinal,
        sm_count=device.sm_count,
        simulated=device.simulated,
        spool="" if spool is None else str(spool.path),
    )


def attach(client: str, backend: str | None) -> Facts | str | None:
    """Return what this engine is if it has a session, which is then the client's too; else None. Quick.

    It is a text where the session is on no such device as the client wants: why it cannot be used.
    """
    session = _home.session
    if session is None or session.state is not SessionState.OPEN:
        return None
    if backend in BACKEND_NAMES and (backend == "sim") != session.device.simulated:
        return (
            f"another client has a session there, on {session.device.name}{' (simulated)' * session.device.simulated}; "
            "close that or start the engines anew, or leave backend out"
        )
    _home.clients[client] = time.monotonic()
    return look()


def begin(client: str, backend: str | None, options: dict[str, Any], rank: int) -> Facts | str | None:
    """Open the session of this process where it has none, for a client. One that is there stays as it is.

    Returns what the engine is; a text where that fails: why. It raises nothing, of which Dask would print pages.

    Parameters
    ----------
    client
        Who asks.
    backend, options
        As for `Session`; of a spool the folder.
    rank
        Which of the engines that see the same devices this is: where no device is chosen, each takes another one.
    """
    with _home.lock:
        if _home.session is None or _home.session.state is not SessionState.OPEN:
            folder = options.pop("spool", None)
            if folder is not None:
                options["spool"] = os.path.join(folder, f"engine-{socket.gethostname()}-{os.getpid()}.gsl")  # noqa: PTH118
            try:
                _home.session = Session(backend, **{"device": rank % device_count(backend)} | options)
            except Exception as error:  # noqa: BLE001 - the client is told
                return str(error) if isinstance(error, GPUStreamLabError) else f"{type(error).__name__}: {error}"
            _home.readers.clear()
    shell = None if "IPython" not in sys.modules else sys.modules["IPython"].get_ipython()
    if shell is not None:  # for %%px
        shell.user_ns["lab"] = _home.session
    return attach(client, backend)


def end(client: str) -> None:
    """Close the session where no other client uses it; one that went away without a word does not count."""
    with _home.lock:
        gone_s = time.monotonic() - CLIENT_GONE_S
        for known in [known for known, heard_s in _home.clients.items() if known == client or heard_s < gone_s]:
            del _home.clients[known]
            _home.readers.pop(known, None)
        if not _home.clients and _home.session is not None:
            session, _home.session = _home.session, None
            session.close()
            cells = sys.modules.get("gpustreamlab.cluster._cells")  # there where a cell was run
            if cells is not None:
                cells.end_loop()


def told_ns() -> int:
    """Return the time by the clock of the trace, in ns; costs the simulated device none."""
    recorder = _recorder()
    with recorder.observing():
        return recorder.now_ns()


def told_between() -> tuple[int, int, int]:
    """Return `told_ns`, and between which times of this machine's monotonic clock it was."""
    return time.monotonic_ns(), told_ns(), time.monotonic_ns()


def read(client: str, arrived: int, newest_hazard_ns: int = -1, call: str = "", output_count: int = 0) -> Changes:
    """Return what is new for a client. What it was told and has not got is told again.

    Parameters
    ----------
    client
        Who reads.
    arrived
        `Changes.number` of the last answer that has arrived; 0 for none.
    newest_hazard_ns
        `Changes.newest_hazard_ns` of that.
    call, output_count
        Of which call it has outputs, and how many.
    """
    with _home.lock:
        session, recorder = _require_session(), _recorder()
        data, is_full = b"", False
        _home.clients[client] = time.monotonic()
        reader = _home.readers.setdefault(client, _Reader())
        is_anew = not arrived or arrived not in {reader.number, reader.number - 1}
        if is_anew:
            reader = _home.readers[client] = _Reader()
        elif arrived == reader.number - 1:  # the last answer has not arrived
            reader.number, reader.after = arrived, reader.before
        if _home.encoder is None:
            _home.encoder = BatchEncoder()
        for batch, progress in read_changes(recorder, reader.after, title=session._title, batch_rows=MOST_ROWS):  # noqa: SLF001 - of this package
            reader.number, reader.before, reader.after = reader.number + 1, reader.after, progress
            data, is_full = _home.encoder.encode(batch), batch.row_count == MOST_ROWS
            break
        watch = session._accesses  # noqa: SLF001 - of the package
        with recorder.observing():
            changes = Changes(reader.number, data, is_anew, is_full, tuple(recorder.unended()), recorder.now_ns())
            changes = changes._replace(printed=printed_beyond(call, output_count))
            newest_ns = watch.newest_ns
            if newest_ns == newest_hazard_ns:
                return changes._replace(newest_hazard_ns=newest_ns)
            return changes._replace(newest_hazard_ns=newest_ns, hazards=tuple(watch.found()))


def call(number: str, function: Callable[..., Any], *args: Any) -> Outcome:
    """Call a function with the session of this process; `_calls.interrupt` takes the number. The value is packed."""
    return caught(number, lambda _: pack(function(_require_session(), *args)))


def run_cell(number: str, source: str, stream: str, label: str, options: dict[str, Any], lines_above: int = 0) -> Outcome:
    """Run a cell; see `_cells.run_cell`."""

    def work(printed: Printed) -> dict[str, Any] | None:
        try:
            from gpustreamlab.cluster import _cells
        except ImportError as error:
            raise MissingExtraError(
                f"Cells need IPython on the engine too ({error}). Install it there: pip install 'ipython>=8.24'. "
                "lab.run(function) works without."
            ) from error
        return _cells.run_cell(_require_session(), source, stream, label, options, lines_above, printed)

    return caught(number, work)._replace(is_cell=True)


def _require_session() -> Session:
    if _home.session is None:
        raise RuntimeError("This engine has no session: it was closed, or the process has begun anew.")
    return _home.session


def _recorder() -> Recorder:
    return _require_session()._recorder  # noqa: SLF001 - of the package
