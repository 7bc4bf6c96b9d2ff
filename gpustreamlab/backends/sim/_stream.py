"""Streams of the simulated device."""

from __future__ import annotations

from gpustreamlab.backends.sim._commands import StreamQueue
from gpustreamlab.backends.sim._driver import SimDriver
from gpustreamlab.backends.sim._event import SimEvent
from gpustreamlab.errors import StreamClosedError


class SimStream:
    """A stream of the simulated device; see `gpustreamlab.backends._protocol.BackendStream`.

    Parameters
    ----------
    driver
        The device's driver.
    queue
        The stream's work.
    key
        Device ordinal, context number, handle.
    priority
        CUDA priority: lower runs first.
    is_owned
        Whether closing destroys it.
    """

    __slots__ = ("_driver", "_is_owned", "is_closed", "key", "priority", "queue")

    def __init__(
        self, driver: SimDriver, queue: StreamQueue, *, key: tuple[int, int, int], priority: int, is_owned: bool
    ) -> None:
        self._driver = driver
        self._is_owned = is_owned
        self.queue = queue
        """The stream inside the simulation."""
        self.key = key
        """Device ordinal, context number, handle."""
        self.priority = priority
        """CUDA priority: lower runs first."""
        self.is_closed = False
        """Whether `close` was called."""

    def __repr__(self) -> str:
        return f"<SimStream {self.handle}{', closed' if self.is_closed else ''}>"

    def __cuda_stream__(self) -> tuple[int, int]:
        """Lend the stream to other parts of the simulated device; no real driver knows the handle."""
        return 0, self.handle

    @property
    def handle(self) -> int:
        """The stream's number, 3 or more."""
        return self.queue.number

    @property
    def sm_count(self) -> int:
        """How many SMs its kernels may run on."""
        return self.queue.sm_count

    @property
    def driver(self) -> SimDriver:
        """The driver of the device that the stream is on."""
        return self._driver

    def check_open(self) -> None:
        """Raise if the stream was closed."""
        if self.is_closed:
            raise StreamClosedError(
                f"Stream {self.handle} of the simulated device was closed before this call, and may still be selected here. "
                "Make its lane anew, then select it: lab.stream('name'), with lab.on('name'): ..."
            )

    @property
    def is_capturing(self) -> bool:
        """False: CUDA graphs are not simulated."""
        return False

    def record(self, event: SimEvent) -> None:
        """Record the event behind the work enqueued so far."""
        if self.is_closed:
            self.check_open()
        self._driver.record(self.queue, event)

    def record_raw(self, event: SimEvent) -> None:
        """Do what `record` does, for a range: nobody waits for it. There are no errors of a driver's to map."""
        if self.is_closed:
            self.check_open()
        self._driver.record(self.queue, event, is_noted=False)

    def wait(self, event: SimEvent) -> None:
        """Make work enqueued from now on wait for the event."""
        self.check_open()
        self._driver.wait(self.queue, event)

    def query(self) -> bool:
        """Tell whether all work enqueued so far has ended."""
        self.check_open()
        return self._driver.is_stream_idle(self.queue)

    def synchronize(self) -> None:
        """Block the host until all work enqueued so far has ended."""
        self.check_open()
        self._driver.synchronize_stream(self.queue)

    def close(self) -> None:
        """Destroy the stream, or forget it if it was lent. Work that it holds still runs. Idempotent."""
        if not self.is_closed:
            self.is_closed = True
            if self._is_owned:
                self._driver.destroy_stream(self.queue)
