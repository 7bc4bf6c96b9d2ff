"""The simulated device as a source of activities: what CUPTI tells of a GPU, told of the model."""

from __future__ import annotations

from typing import Any

from gpustreamlab.backends._activity import Activities, StreamFacts
from gpustreamlab.backends._protocol import BackendStream
from gpustreamlab.backends.sim._commands import KEPT_RECORDS, ActivityLog
from gpustreamlab.backends.sim._driver import SimDriver
from gpustreamlab.errors import CaptureUnavailableError


class SimActivitySource:
    """Tells of every kernel, copy, fill and call of the simulated device; see `gpustreamlab.backends.ActivitySource`.

    It looks on: a program takes the same virtual time with it and without. As on hardware, one source collects at a time. Work
    is told of if it was launched while the source collected, also if it ends after `stop`.

    Parameters
    ----------
    driver
        The device's driver.
    ordinal
        The device's number.
    record_limit
        Records that wait to be drained, at most; newer ones are dropped and counted.

    Examples
    --------
    >>> from gpustreamlab.backends.sim import SimBackend
    >>> backend = SimBackend()
    >>> source = backend.activity_source()
    >>> source.start()
    >>> backend.launch_spin(backend.create_stream(priority=0), 5_000, blocks=8, fill_sms=True)
    >>> backend.synchronize()
    >>> told = source.drain()
    >>> [told.names[code] for code in told.work.name], told.work.end_ns - told.work.start_ns
    (['spin'], array([5000]))
    >>> source.close()
    """

    description = "simulated device"
    times_ranges = False
    """Events of the model hold nothing up, and its ranges are exact: they keep their events."""

    def __init__(self, driver: SimDriver, *, ordinal: int = 0, record_limit: int = KEPT_RECORDS) -> None:
        self._driver = driver
        self._ordinal = ordinal
        self._log = ActivityLog(driver.take_call_number, slots_per_sm=driver.preset.slots_per_sm, record_limit=record_limit)
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "collecting" if self._driver.log is self._log else "stopped"
        return f"<SimActivitySource, {state}>"

    def start(self, *, with_calls: bool = True) -> None:
        """Begin to collect; may be called again after `stop`, and twice.

        Raises
        ------
        CaptureUnavailableError
            If another source of this device is collecting, or this one was closed.
        SessionClosedError
            If the device was closed.
        """
        driver = self._driver
        with driver.lock:
            driver.check_open()
            if self._is_closed:
                raise CaptureUnavailableError(
                    "This source of the simulated device was closed before start(). Begin another capture: lab.capture()."
                )
            if driver.log is self._log:
                return
            if driver.log is not None:
                raise CaptureUnavailableError(
                    "Another source of the simulated device is collecting; as on hardware, one collects at a time. Stop the "
                    "other one first: source.stop(), or close the session that captures."
                )
            driver.memory.settle()
            driver.set_observer(self._log.note_work, role=self)
            driver.log = self._log
            driver.memory.tell_all()

    def stop(self) -> None:
        """Stop collecting; what was collected, or launched before and ends later, can still be drained. Idempotent."""
        driver = self._driver
        with driver.lock:
            if driver.log is self._log:
                driver.memory.settle()
                driver.log = None
            self._leave_if_done()

    def keep_up(self) -> bool:
        """Tell that it may be drained at any time: that costs the simulated program nothing."""
        return True

    def drain(self, *, is_last: bool = False) -> Activities:
        """Return what has ended by the host's present time. The clock does not move; nothing is held back for the last time."""
        driver = self._driver
        with driver.lock:
            if self._is_closed:
                return Activities()
            driver.catch_up()
            if driver.log is self._log:
                driver.memory.settle()
            self._leave_if_done()
            build = self._log.take()
        return build()

    @property
    def lost_reason(self) -> str:
        """Return nothing: no other tool takes over a simulated device."""
        return ""

    @property
    def complete_until_host_ns(self) -> int:
        """Return the host's present time: nothing is ever lost."""
        return self._driver.clock.now_ns

    @property
    def dropped_count(self) -> int:
        """Records that are missing because too many waited to be drained."""
        return self._log.dropped_count

    @property
    def error_ns(self) -> int:
        """Return 0: the virtual clock is exact."""
        return 0

    def key_of(self, stream: BackendStream) -> tuple[int, int]:
        """Return the numbers of the context and of the stream."""
        return stream.key[1:]

    def describe_stream(self, context: int, stream: int) -> StreamFacts:
        """Tell of a stream that is in the records and of no session."""
        driver = self._driver
        queue: Any = driver.null_stream if stream == 0 else driver.streams.get(stream)
        sm_count = driver.context_sms(context) if queue is None else queue.sm_count
        return StreamFacts("default stream" if stream == 0 else f"stream {stream}", sm_count, self._ordinal)

    def close(self) -> None:
        """Stop, and forget what was not drained. Idempotent."""
        with self._driver.lock:
            self.stop()
            self._is_closed = True
            self._log.clear()
            self._leave_if_done()

    def _leave_if_done(self) -> None:
        """Stop looking at the device once the last work that was told of has ended."""
        if self._driver.log is not self._log and not self._log.is_waiting:
            self._driver.set_observer(None, role=self)
