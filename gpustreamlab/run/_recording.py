"""What of a program is recorded: by a session of our own on a GPU, and by those that the program opens."""

# A session of our own on a GPU begins when the program first loads what uses CUDA, and with torch when that first uses the GPU:
# until then the program may choose its GPU by CUDA_VISIBLE_DEVICES, and fork. A CUDA context that is there earlier would take
# both away from it.

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from gpustreamlab._util.defences import HomeProcess, process_lock
from gpustreamlab.backends import BACKEND_NAMES, prefer_backend
from gpustreamlab.errors import CaptureWarning, GPUStreamLabError
from gpustreamlab.model import merge
from gpustreamlab.recorder.capture import AUTO, Capture
from gpustreamlab.run._imports import ImportWatch
from gpustreamlab.run._torch import TorchHooks
from gpustreamlab.session import Session
from gpustreamlab.sinks._spool_format import DEFAULT_LIMIT_BYTES, free_path, open_spool_file
from gpustreamlab.sinks.spool import Spool
from gpustreamlab.streams.life import session_followers
from gpustreamlab.trace import Trace
from gpustreamlab.typing import CaptureTier, SessionState

CUDA_MODULES = ("torch", "cupy", "numba.cuda", "cuda.bindings", "cuda.core", "jax", "pycuda.driver", "tensorflow", "tensorrt")
"""Modules that use CUDA: the recording begins with the first one."""
SIM = BACKEND_NAMES[1]
LEAST_LIMIT_MB = 8  # Names alone, which never leave a file, take 2 MB where they are many


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be recorded."""

    title: str
    """Name of the program."""
    stem: Path
    """Where files go, without their suffix."""
    backend: str | None = None
    """None for a GPU, ``"sim"`` for the simulated device."""
    device: int = 0
    """Number of the GPU."""
    has_stacks: bool = False
    """Whether it is looked where Python stands."""
    is_at_once: bool = False
    """Whether the recording begins before the program."""
    from_s: float = 0.0
    """After how many seconds kernels are recorded."""
    for_s: float | None = None
    """For how many; None up to the end."""
    steps: tuple[int, int] | None = None
    """From which step of torch's optimizer on, and up to which one; the first is 0."""
    has_torch_ranges: bool = False
    """Whether modules and optimizers of torch become ranges."""
    spool_limit_bytes: int = DEFAULT_LIMIT_BYTES
    """Size of the file that is kept while the program runs, at most; the oldest leave."""

    is_child: bool = False
    """Whether the process was started by the program: then a session of its own begins with the first use of CUDA, too, but it
    is given none, and ends when the process does."""

    @property
    def has_window(self) -> bool:
        """Whether kernels are recorded for a part of the time only."""
        return bool(self.from_s) or self.for_s is not None or self.steps is not None


class ProgramRecording:
    """Follows a program: each session that it opens, and on a GPU all that it does beside those.

    Nothing here raises into the program: what goes wrong is kept in `problems`.

    Parameters
    ----------
    wanted
        What is to be recorded.
    tell, warn
        Take a line for the user: that it has begun; what went wrong.
    """

    def __init__(self, wanted: Wanted, tell: Callable[[str], object], warn: Callable[[str], object]) -> None:
        self._wanted, self._tell, self._warn = wanted, tell, warn
        self._home = HomeProcess()
        self._lock = process_lock()
        self._own: Session | None = None
        self._starts = threading.Lock()  # Taken by the first who starts, for good: nobody waits for it
        self._sessions: list[Session] = []
        self._captures: list[Capture] = []
        self._spools: dict[Path, Session] = {}
        self._is_told = False
        self._timers: list[threading.Timer] = []
        self._is_in_window = not wanted.has_window or (wanted.steps is not None and not wanted.steps[0])
        self._imports = ImportWatch(CUDA_MODULES, self._note_import)
        self._torch = TorchHooks(has_ranges=wanted.has_torch_ranges, on_step=None if wanted.steps is None else self._note_step)
        self._step_count = 0
        self.problems: list[str] = []
        """What could not be recorded, and why."""

    def start(self) -> dict[str, Any]:
        """Begin to follow; return what the program is offered: with the simulated device ``lab``, a session on it."""
        wanted = self._wanted
        session_followers.append(self.follow)
        if wanted.steps is None and wanted.has_window:
            self._after(wanted.from_s, self._open_window)
        if wanted.backend == SIM:
            prefer_backend(SIM)
            self._imports.start()
            if wanted.is_child:
                return {}
            self._own = Session(SIM, title=wanted.title, capture=CaptureTier.RANGES)  # `follow` captures more
            return {"lab": self._own}
        if wanted.is_at_once:
            self._begin()
        self._imports.start()
        return {}

    def finish(self, children: Iterable[Trace] = ()) -> list[Trace]:
        """End it all, and return what was recorded, with what children of the program recorded.

        That is one trace, or, where sessions have no common clock, one for each of them.

        Sessions that recorded nothing are left out. What the device has not ended is waited for.
        """
        self._imports.stop()
        self._torch.remove()
        for timer in self._timers:
            timer.cancel()
        with suppress(ValueError):
            session_followers.remove(self.follow)
        for capture in self._captures:
            capture.stop()  # first, so that the waits are none of the program's; what still runs comes all the same
        for session in self._sessions:
            for step in (session.synchronize, session.close):
                if session.state is not SessionState.OPEN:
                    continue
                try:
                    step()
                except GPUStreamLabError as error:
                    self.problems.append(" ".join(str(error).split()))
        # Sessions that the program closed have their last trace, too.
        traces = [session.trace for session in self._sessions]
        if traces and self._wanted.has_window and not any(trace.metadata.capture_windows for trace in traces):
            steps = f"torch's optimizer made {self._step_count:,} steps"
            why = "the program ended before --from" if self._wanted.steps is None else steps
            self.problems.append(f"What was to be recorded was never reached: {why}.")
        own = [trace for trace in traces if len(trace)]
        others = [trace for trace in children if len(trace)]
        notes = [trace.metadata.capture_note for trace in others]  # in a child nobody was told
        self.problems += dict.fromkeys(f"Of a child: {note}" for note in notes if note)
        used = [*own, *others] or traces[:1]
        if len(used) > 1 and self._wanted.backend != SIM:
            try:
                return [merge(used, processes=[*[0] * len(own), *range(1, 1 + len(others))])]
            except GPUStreamLabError as error:
                self.problems.append(f"Sessions of the program are told apart: {' '.join(str(error).split())}")
        return sorted(used, key=len, reverse=True)

    def remove_spools(self) -> list[Path]:
        """Remove what was kept for the case that the program dies, but what has more than memory had room for: return that."""
        kept = []
        for path, session in self._spools.items():
            if session.trace.metadata.dropped_spans:
                kept.append(path)
            else:
                path.unlink(missing_ok=True)
        return kept

    @property
    def is_another_process(self) -> bool:
        """Whether this is a child that the program has forked, which is not recorded."""
        return self._home.is_another

    def _note_import(self, name: str) -> None:
        """Begin where a library has come that uses CUDA; torch tells itself when it first does."""
        if self.is_another_process:
            return
        try:
            if name == "torch":
                self._torch.install(self._begin)
            elif not (name.startswith("cuda.") and "torch" in sys.modules):  # parts of torch import these and use no GPU yet
                self._begin()
        except Exception as error:  # noqa: BLE001 - the program's import must not fail for it
            self.problems.append(f"{name} is not followed: {type(error).__name__}: {error}")

    def _begin(self) -> None:
        """Open our own session on the GPU, once; what goes wrong is kept, and the program goes on."""
        if self.is_another_process or self._wanted.backend == SIM or not self._starts.acquire(blocking=False):
            return
        try:
            # Ranges at first: `follow` captures more.
            self._own = Session("cuda", device=self._wanted.device, title=self._wanted.title, capture=CaptureTier.RANGES)
        except Exception as error:  # noqa: BLE001 - likewise
            self.problems.append(f"Nothing is recorded. {' '.join(str(error).split())}")
            self._warn(self.problems[-1])

    def follow(self, session: Session) -> None:
        """Follow a session from its beginning: with calls of the host, and with a file for the case that the program dies."""
        if self.is_another_process:
            return
        self._sessions.append(session)
        try:
            if self._wanted.is_child and "multiprocessing.process" in sys.modules:
                # Its processes do not come to the end at which sessions are closed.
                Finalize(None, session.close, exitpriority=0)
            self._give_way()
            self._spool(session)
            if self._is_in_window:
                self._capture(session)
            elif session.recording.tier is CaptureTier.KERNELS:
                session.capture(CaptureTier.RANGES)
        except Exception as error:  # noqa: BLE001 - likewise
            self.problems.append(" ".join(str(error).split()))

    def _give_way(self) -> None:
        """Let a session of the program have the file of the one that it was given and has not used."""
        given = self._own
        if given is None or given._spool is None or given.streams or given.recording.backend.name != SIM:
            return
        path = given._spool.path
        if path in self._spools and not given._recorder.span_count:
            given._spool.close()
            given._spool = None
            self._spools.pop(path)
            path.unlink(missing_ok=True)

    def _spool(self, session: Session) -> None:
        if session._spool is not None:
            return
        path = free_path(self._wanted.stem.with_name(f"{self._wanted.stem.name}.gsl"))
        file = open_spool_file(path, self._wanted.spool_limit_bytes)
        assert file is not None  # noqa: S101 - for the type checker
        session._spool = Spool(file, session._recorder, is_ring=os.name == "posix")  # elsewhere no open file is replaced
        self._spools[path] = session
        if not self._is_told:
            self._is_told = True
            shown = os.path.relpath(path)
            self._tell(f"recording {session.device.label}. If the program is killed: gpustreamlab view {shown}")

    def _capture(self, session: Session) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CaptureWarning)  # the trace says why
            self._captures.append(session.capture(AUTO, host=True, stacks=self._wanted.has_stacks))

    # The window

    def _after(self, seconds: float, call: Callable[[], object]) -> None:
        timer = threading.Timer(seconds, call)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def _open_window(self) -> None:
        with self._lock:
            if self._is_in_window or self.is_another_process:
                return
            self._is_in_window = True
            for session in self._sessions:
                if session.state is SessionState.OPEN:
                    with suppress(GPUStreamLabError):
                        self._capture(session)
        if self._wanted.for_s is not None:
            self._after(self._wanted.for_s, self._close_window)

    def _close_window(self) -> None:
        with self._lock:
            self._is_in_window = False
            for capture in self._captures:
                capture.stop()
            self._captures.clear()
            for session in self._sessions:
                if session.state is SessionState.OPEN and session.recording.tier is CaptureTier.KERNELS:
                    with suppress(GPUStreamLabError):
                        session.capture(CaptureTier.RANGES)

    def _note_step(self) -> None:
        """Count a step of an optimizer that has ended."""
        assert self._wanted.steps is not None  # noqa: S101 - for the type checker
        first, end = self._wanted.steps
        self._step_count += 1
        if self._step_count == end:
            self._close_window()
        elif self._step_count == first:
            self._open_window()
