"""Counters of the card, on the session's clock: how busy its SMs, its memory and its bus were."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Sequence

import numpy as np

from gpustreamlab._util.background import Updater
from gpustreamlab._util.defences import process_lock
from gpustreamlab.backends import Backend, CounterSource
from gpustreamlab.errors import CaptureUnavailableError, OptionError
from gpustreamlab.recorder._recorder import Recorder

__all__ = ["CounterSampler", "start_counters"]

_log = logging.getLogger(__name__)

AUTO = "auto"


class CounterSampler:
    """Reads counters into the recorder: on a GPU some times a second from a thread of its own, and wherever a trace is made.

    A sample stands at the beginning of its interval, and holds until the next one; behind the last one stands NaN.
    """

    def __init__(self, recorder: Recorder, source: CounterSource) -> None:
        self._recorder, self._source = recorder, source
        self.period_ns = round(source.period_s * 1e9)
        self._lane = recorder.add_counter_lane(source.description)
        self._lock = process_lock()
        self._is_closed = False
        self._ends: dict[str, int] = {}  # Of each counter, until when it is known
        self._updater: Updater | None = None
        if source.period_s:
            self._updater = Updater(_step_of(self), refresh_hz=1 / source.period_s, name="gpustreamlab counters")
            self._updater.start()

    def take(self) -> None:
        """Read what was counted since the last time. What fails ends it, and disturbs nobody."""
        with self._lock:
            if self._is_closed:
                return
            try:
                readings = self._source.read()
            except Exception:  # noqa: BLE001 - a tool that fails must not disturb the work it watches
                _log.warning("Counters are not read any more.", exc_info=True)
                self._end()
                return
            self._put([(one.begin_host_ns, name, value) for one in readings for name, value in one.values.items()])
            for one in readings:
                self._ends.update(dict.fromkeys(one.values, one.end_host_ns))

    def close(self) -> None:
        """Read the rest, and count no more. Idempotent."""
        if self._updater is not None:
            self._updater.stop()  # not with the lock, which its thread may be about to take
        self.take()
        with self._lock:
            if not self._is_closed:
                self._put([(end_ns, name, math.nan) for name, end_ns in self._ends.items()])
                self._end()

    def _put(self, rows: Sequence[tuple[int, str, float]]) -> None:
        if rows:
            host_ns, names, values = zip(*rows, strict=True)
            self._recorder.add_samples(self._lane, np.array(host_ns, np.int64), names, np.array(values, np.float64))

    def _end(self) -> None:
        self._is_closed = True
        self._source.close()


def start_counters(recorder: Recorder, backend: Backend, *, wanted: bool | str) -> CounterSampler | None:
    """Begin to count, where that is wanted; ``"auto"`` is for GPUs, and where it cannot be had nothing.

    Raises
    ------
    OptionError
        If it is neither True, False nor ``"auto"``.
    CaptureUnavailableError
        If True was asked for, and nothing counts.
    """
    if wanted is not True and wanted is not False and wanted != AUTO:
        raise OptionError(f"counters is {wanted!r}; it must be True, False or 'auto'. Use gpustreamlab.Session(counters=True).")
    if not wanted or (wanted == AUTO and backend.device.simulated):
        return None
    open_source: Callable[[], CounterSource | None] = getattr(backend, "counter_source", _no_source)  # others may be older
    source = open_source()
    if source is not None:
        sampler = CounterSampler(recorder, source)
        recorder.read_counters = sampler.take
        return sampler
    if wanted is True:
        raise CaptureUnavailableError(
            f"Nothing counts on {backend.device.label}: NVML cannot be asked. Install it with `pip install nvidia-ml-py`, or "
            "use gpustreamlab.Session(counters=False)."
        )
    return None


def _no_source() -> None:
    return None


def _step_of(sampler: CounterSampler) -> Callable[[], bool]:
    """Return what the thread does; it keeps no sampler alive that was lost."""
    known = weakref.ref(sampler)

    def step() -> bool:
        alive = known()
        if alive is not None:
            alive.take()
        return alive is not None

    return step
