"""Threads on the side: one that does something some times a second and keeps out of the way, and pools of them."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import cache
from typing import Any

from gpustreamlab.errors import OptionError

_log = logging.getLogger(__name__)


DEFAULT_REFRESH_HZ = 10.0  # Updates a second
LEAST_HZ, MOST_HZ = 1.0, 20.0  # How seldom and how often a view can be updated
REST = 9.0
"""The thread rests this many times as long as it computed: it takes a tenth of one core at most. Waiting, as for the
interpreter that a busy cell keeps, is not counted: it would make updates rarest where most is going on."""
STOP_LIMIT_S = 2.0  # How long `Updater.stop` waits for the thread to end


class Updater:
    """Calls a function periodically, in a daemon thread of its own."""

    def __init__(
        self,
        step: Callable[[], bool],
        *,
        aside: Callable[[], object] = bool,
        refresh_hz: float = DEFAULT_REFRESH_HZ,
        rest: float = REST,
        name: str,
    ) -> None:
        self._step, self._aside = step, aside
        self.period_s, self._rest = 1 / refresh_hz, rest
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_running(self) -> bool:
        """True while the thread lives."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread. Where none can start, what it does waits until it is asked for: it only does it earlier."""
        try:
            self._thread.start()
        except RuntimeError:
            _log.info("%s does not run: no thread can start here.", self._thread.name)

    def stop(self) -> None:
        """End the thread and wait until it has ended; idempotent, and silent in the thread itself."""
        self._stopping.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(STOP_LIMIT_S)

    def _run(self) -> None:
        pause_s = self.period_s
        while not self._stopping.wait(pause_s):
            began_s, began_cpu_s = time.perf_counter(), time.thread_time()
            try:
                if not self._step():
                    return
                took_s, computed_s = time.perf_counter() - began_s, time.thread_time() - began_cpu_s
                self._aside()
            except Exception:  # noqa: BLE001 - a view that fails must not disturb the work it shows
                _log.exception("%s ends: it could not be updated.", threading.current_thread().name)
                return
            pause_s = max(self.period_s - took_s, self._rest * computed_s)


def held_weakly(method: Callable[[], object], otherwise: Callable[[], object] = bool) -> Callable[[], bool]:
    """Return a step that calls a method as long as its object lives, and then something else; it keeps no object alive."""
    known = weakref.WeakMethod(method)

    def step() -> bool:
        alive = known()
        if alive is None:
            otherwise()
        return alive is not None and bool(alive())

    return step


class _AtOnce(Executor):
    """Runs each call as it is handed in."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whoever asks for the result gets it
            future.set_exception(error)
        return future


@cache
def has_threads() -> bool:
    """Try once whether a thread can start: none can where Python runs in a browser."""
    thread = threading.Thread(target=bool, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return False
    thread.join()
    return True


def thread_pool(thread_count: int) -> Executor:
    """Return a pool of threads, or what takes its place where none can start."""
    return ThreadPoolExecutor(thread_count) if has_threads() else _AtOnce()


def check_refresh_hz(value: object) -> float:
    """Return how often a view is updated; raise `OptionError` for what is no number in range."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not LEAST_HZ <= value <= MOST_HZ:
        raise OptionError(
            f"refresh_hz is {value!r}; a view is updated {LEAST_HZ:.0f} to {MOST_HZ:.0f} times a second. "
            "Use lab.timeline(refresh_hz=10)."
        )
    return float(value)
