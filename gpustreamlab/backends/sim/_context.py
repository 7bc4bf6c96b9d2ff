"""Green contexts of the simulated device."""

from __future__ import annotations

from gpustreamlab.backends.sim._driver import SimDriver
from gpustreamlab.backends.sim._stream import SimStream
from gpustreamlab.errors import InvalidHandleError


class SimContext:
    """A green context of the simulated device; see `gpustreamlab.backends._protocol.BackendContext`.

    Parameters
    ----------
    driver
        The device's driver.
    sm_ids
        The SMs that kernels of its streams run on.
    ordinal
        The device's number.
    """

    def __init__(self, driver: SimDriver, sm_ids: frozenset[int], *, ordinal: int) -> None:
        self._driver = driver
        self._sm_ids = sm_ids
        self._ordinal = ordinal
        self._streams: list[SimStream] = []
        self.number = driver.create_context(len(sm_ids))
        """Number of the context, from 1."""
        self.sm_count = len(sm_ids)
        """How many SMs it has."""
        self.is_closed = False
        """Whether `close` was called."""

    def __repr__(self) -> str:
        return f"<SimContext {self.number}, {self.sm_count} SMs{', closed' if self.is_closed else ''}>"

    def create_stream(self, *, priority: int = 0) -> SimStream:
        """Make a non-blocking stream whose kernels run on these SMs only.

        Raises
        ------
        InvalidHandleError
            If the context was closed.
        OptionError
            For a priority outside the device's range.
        """
        with self._driver.lock:
            if self.is_closed:
                self._driver.check_open()
                raise InvalidHandleError(
                    f"Context {self.number} of the simulated device was closed before this call. Share the SMs out "
                    "anew: lab.partition(name=32).",
                    driver_code="CONTEXT_IS_DESTROYED",
                )
            queue = self._driver.create_stream(priority, self._sm_ids, is_blocking=False, context=self.number)
            key = self._ordinal, self.number, queue.number
            stream = SimStream(self._driver, queue, key=key, priority=priority, is_owned=True)
            self._streams = [other for other in self._streams if not other.is_closed]
            self._streams.append(stream)
            return stream

    def close(self) -> None:
        """Destroy the context and its streams. Work that they hold still runs. Idempotent."""
        with self._driver.lock:
            if not self.is_closed:
                self.is_closed = True
                for stream in self._streams:
                    stream.close()
                self._streams.clear()
                self._driver.destroy_context()
