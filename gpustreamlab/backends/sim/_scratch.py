"""Scratch memory of the simulated device: modelled addresses, and NumPy's memory where an array looks at it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpustreamlab.backends._activity import CallClass
from gpustreamlab.backends.sim._commands import StreamQueue
from gpustreamlab.backends.sim._driver import SimDriver
from gpustreamlab.backends.sim._memory import ScratchPages
from gpustreamlab.errors import DeviceMemoryError, InvalidHandleError

FIRST_ADDRESS = 0x7000_0000_0000
"""Where blocks begin; no block is ever where another one was."""
PAGE_BYTES = 1 << 21
"""Blocks are this far apart at least, as a driver's are."""
ASYNC_USED = "async_used_bytes"
"""Counter of what was allocated in stream order, as CUPTI tells of it."""


class SimScratch:
    """Gives out blocks of device memory, counted against the device's size.

    Parameters
    ----------
    driver
        The device's driver.
    """

    def __init__(self, driver: SimDriver) -> None:
        self._driver = driver
        self._sizes: dict[int, int] = {}
        self._pages: dict[int, ScratchPages] = {}
        self._next_address = FIRST_ADDRESS
        self._used: dict[int, int] = {}
        self._owners: dict[int, StreamQueue] = {}
        self.used_bytes = 0
        """What all blocks take."""

    def allocate(self, stream: StreamQueue, size_bytes: int) -> int:
        """Return the address of a new block; the host's clock goes on by what the call costs."""
        driver, memory_bytes = self._driver, self._driver.preset.memory_bytes
        with driver.lock:
            driver.check_open()
            if memory_bytes and self.used_bytes + size_bytes > memory_bytes:
                raise DeviceMemoryError(
                    f"Allocating {size_bytes:,} bytes on the simulated {driver.preset.name} failed: "
                    f"{self.used_bytes:,} of its {memory_bytes:,} bytes are in use as scratch. Free some.",
                    driver_code="OUT_OF_MEMORY",
                )
            address = self._next_address
            self._next_address += -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
            self._sizes[address], self._owners[address] = size_bytes, stream
            self.used_bytes += size_bytes
            self._tell("cudaMalloc", stream, size_bytes)
        return address

    def free(self, stream: StreamQueue, address: int) -> None:
        """Take a block back; a device without memory pools first waits for the stream."""
        driver = self._driver
        if not driver.preset.has_memory_pools:
            driver.synchronize_stream(stream)
        with driver.lock:
            size_bytes = self._sizes.pop(address, None)
            if size_bytes is None:
                raise InvalidHandleError(f"The simulated device has no memory at {address:#x} to free.")
            self._pages.pop(address, None)
            self.used_bytes -= size_bytes
            self._tell("cudaFree", self._owners.pop(address), -size_bytes)

    def array(self, address: int, shape: int | tuple[int, ...], dtype: DTypeLike, owner: Any) -> NDArray[Any]:
        """Return values in a block's memory; they keep the owner alive, and alias every other array of the block."""
        with self._driver.lock:
            whole_bytes = self._sizes.get(address)
            if whole_bytes is None:
                raise InvalidHandleError(f"The simulated device has no memory at {address:#x} to look at.")
            pages = self._pages.get(address)
            if pages is None:
                pages = self._pages[address] = ScratchPages(whole_bytes, np.uint8)
                pages.stream_number = self._owners[address].number
        held = pages.view(ScratchPages)
        held.owner = owner
        return np.ndarray(shape, dtype, held)

    def _tell(self, call: str, stream: StreamQueue, change_bytes: int) -> None:
        driver = self._driver
        began_ns = driver.clock.now_ns
        driver.charge(driver.preset.host.allocate_ns)
        used_bytes = self._used[stream.number] = self._used.get(stream.number, 0) + change_bytes
        if driver.log is not None:
            is_ordered = driver.preset.has_memory_pools
            name = f"{call}Async" if is_ordered else call
            driver.log.note_call(name, CallClass.MEMORY, began_ns, driver.clock.now_ns, size_bytes=abs(change_bytes))
            if is_ordered:
                driver.log.note_memory(driver.clock.now_ns, stream, ASYNC_USED, used_bytes)
