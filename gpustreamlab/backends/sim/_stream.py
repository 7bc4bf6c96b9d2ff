"""Streams and contexts of the simulated device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpustreamlab.backends._activity import CallClass
from gpustreamlab.backends.sim._commands import SimEvent, StreamQueue
from gpustreamlab.backends.sim._driver import SimDriver, closed_stream
from gpustreamlab.backends.sim._memory import Pages
from gpustreamlab.errors import DeviceMemoryError, InvalidHandleError


class SimStream:
    """A stream of the simulated device; see `gpustreamlab.backends._protocol.BackendStream`."""

    __slots__ = ("_is_owned", "driver", "is_closed", "key", "priority", "queue")

    def __init__(self, driver: SimDriver, queue: StreamQueue, *, is_owned: bool) -> None:
        self._is_owned = is_owned
        self.driver = driver
        """The driver of the device that it is on."""
        self.queue = queue
        """The stream inside the simulation."""
        self.key = (driver.ordinal, queue.context, queue.number)
        """Device ordinal, context number, handle."""
        self.priority = queue.level + driver.preset.priority_range[1]
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
    def is_blocking(self) -> bool:
        """Whether it and the default stream wait for each other."""
        return self.queue.is_blocking

    @property
    def sm_count(self) -> int:
        """How many SMs its kernels may run on."""
        return self.queue.sm_count

    def check_open(self) -> None:
        """Raise if the stream was closed."""
        if self.is_closed:
            raise closed_stream(self.queue)

    @property
    def is_capturing(self) -> bool:
        """Whether its work is being captured into a CUDA graph."""
        return self.queue in self.driver.captures

    def record(self, event: SimEvent) -> None:
        """Record the event behind the work enqueued so far."""
        self.check_open()
        self.driver.record(self.queue, event)

    def record_raw(self, event: SimEvent) -> None:
        """Do what `record` does, for a range: nobody waits for it. There are no errors of a driver's to map."""
        self.check_open()
        self.driver.record(self.queue, event, is_noted=False)

    def wait(self, event: SimEvent) -> None:
        """Make work enqueued from now on wait for the event."""
        self.check_open()
        self.driver.wait(self.queue, event)

    def query(self) -> bool:
        """Tell whether all work enqueued so far has ended."""
        self.check_open()
        return self.driver.is_stream_idle(self.queue)

    def synchronize(self) -> None:
        """Block the host until all work enqueued so far has ended."""
        self.check_open()
        self.driver.synchronize_stream(self.queue)

    def close(self) -> None:
        """Destroy the stream, or forget it if it was lent. Work that it holds still runs. Idempotent."""
        if not self.is_closed:
            self.is_closed = True
            if self._is_owned:
                self.driver.destroy_stream(self.queue)


class SimContext:
    """A green context of the simulated device; see `gpustreamlab.backends._protocol.BackendContext`."""

    def __init__(self, driver: SimDriver, sm_ids: frozenset[int]) -> None:
        self._driver = driver
        self._sm_ids = sm_ids
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
        """Make a non-blocking stream whose kernels run on these SMs only."""
        with self._driver.lock:
            if self.is_closed:
                self._driver.check_open()
                raise InvalidHandleError(
                    f"Context {self.number} of the simulated device was closed before this call. Share the SMs out "
                    "anew: lab.partition(name=32).",
                    driver_code="CONTEXT_IS_DESTROYED",
                )
            queue = self._driver.create_stream(priority, self._sm_ids, is_blocking=False, context=self.number)
            stream = SimStream(self._driver, queue, is_owned=True)
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


FIRST_ADDRESS = 0x7000_0000_0000
"""Where blocks begin."""
PAGE_BYTES = 1 << 21
"""Blocks are this far apart at least, as a driver's are."""
ASYNC_USED = "async_used_bytes"
"""Counter of what was allocated in stream order, as CUPTI tells of it."""


@dataclass(slots=True)
class _Block:
    address: int
    stream: StreamQueue
    size_bytes: int
    pages: Pages | None = None
    """Its memory, once an array looks at it."""


class SimScratch:
    """Gives out blocks of device memory, counted against the device's size.

    Each stream has a pool: what was freed in its order is given out again in it, where the size is the same.
    """

    def __init__(self, driver: SimDriver) -> None:
        self._driver = driver
        self._blocks: dict[int, _Block] = {}
        self._next_address = FIRST_ADDRESS
        self.used_bytes = 0
        """What all blocks take."""

    def allocate(self, stream: StreamQueue, size_bytes: int) -> int:
        """Return the address of a block; the host's clock goes on by what the call costs."""
        driver, memory_bytes = self._driver, self._driver.preset.memory_bytes
        with driver.lock:
            driver.check_open()
            if stream in driver.captures:
                raise driver.captures[stream].refuse(
                    f"Taking scratch of stream {stream.number}",
                    "Take scratch before the capture begins, and hold it for as long as the graph is used.",
                )
            if memory_bytes and self.used_bytes + size_bytes > memory_bytes:
                raise DeviceMemoryError(
                    f"Allocating {size_bytes:,} bytes on the simulated {driver.preset.name} failed: "
                    f"{self.used_bytes:,} of its {memory_bytes:,} bytes are in use as scratch. Free some.",
                    driver_code="OUT_OF_MEMORY",
                )
            spare = stream.spare.get(size_bytes)
            block = spare.pop() if spare else self._make(stream, size_bytes)
            self._blocks[block.address] = block
            self._change("cudaMalloc", stream, size_bytes)
        return int(block.address)

    def free(self, stream: StreamQueue, address: int) -> None:
        """Take a block back; a device without memory pools first waits for the stream."""
        driver = self._driver
        if not driver.preset.has_memory_pools:
            driver.synchronize_stream(stream)
        with driver.lock:
            block = self._find(address)
            del self._blocks[address]
            if stream is block.stream and driver.preset.has_memory_pools:
                stream.spare.setdefault(block.size_bytes, []).append(block)
            self._change("cudaFree", block.stream, -block.size_bytes)

    def array(self, address: int, shape: int | tuple[int, ...], dtype: DTypeLike, owner: Any) -> NDArray[Any]:
        """Return values in a block's memory; they keep the owner alive, and alias every other array of the block."""
        with self._driver.lock:
            block = self._find(address)
            if block.pages is None:
                block.pages = Pages(block.size_bytes, np.uint8)
                block.pages.is_scratch, block.pages.stream_number = True, block.stream.number
        held = block.pages.view(Pages)
        held.is_scratch, held.owner = True, owner
        return np.ndarray(shape, dtype, held)

    def _make(self, stream: StreamQueue, size_bytes: int) -> _Block:
        block = _Block(self._next_address, stream, size_bytes)
        self._next_address += -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
        return block

    def _find(self, address: int) -> _Block:
        block = self._blocks.get(address)
        if block is None:
            raise InvalidHandleError(f"The simulated device has no memory at {address:#x}: it was freed, or is no scratch.")
        return block

    def _change(self, call: str, stream: StreamQueue, change_bytes: int) -> None:
        """Count a change, spend what the call costs, and tell of it."""
        driver = self._driver
        began_ns = driver.clock.now_ns
        driver.charge(driver.preset.host.allocate_ns)
        self.used_bytes += change_bytes
        if driver.source is not None:
            is_ordered = driver.preset.has_memory_pools
            name = f"{call}Async" if is_ordered else call
            driver.source.note_call(name, CallClass.MEMORY, began_ns, driver.clock.now_ns, size_bytes=abs(change_bytes))
            if is_ordered:
                used_bytes = sum(block.size_bytes for block in self._blocks.values() if block.stream is stream)
                driver.source.note_memory(driver.clock.now_ns, stream, ASYNC_USED, used_bytes)
