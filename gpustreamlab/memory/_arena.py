"""The scratch memory of one lane: what is free, what is in use, and on which stream it is in order."""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from gpustreamlab._util.defences import LEFT_TO_PARENT, delayed_interrupts, process_lock
from gpustreamlab.analysis import ScratchStatistics
from gpustreamlab.backends import BackendStream, order_behind
from gpustreamlab.errors import DeviceError, DeviceMemoryError, OptionError
from gpustreamlab.memory.lifetimes import KeptStream
from gpustreamlab.record import LaneSample

if TYPE_CHECKING:
    from gpustreamlab.memory.scratch import Scratch, ScratchPool

_log = logging.getLogger(__name__)


TRIM_FACTOR = 2
"""A lane that holds more than this many times what it needed of late gives the rest back."""
WINDOW_NS = 1_000_000_000
"""What a lane needed of late is the most that was in use in this window of time and the one before it."""
SAMPLE_EVERY_NS = 1_000_000
"""In each such time the most and the last that was in use is noted for the timeline."""
HAND_OVER_AT = 4_096
"""Samples that a lane keeps before it hands them to the recorder by itself."""
KEPT_SAMPLES = 4 * HAND_OVER_AT
"""Samples that a lane keeps at most."""
ALIGNMENT_BYTES = 512
"""Addresses and sizes of blocks are multiples of it."""
CLASSES_PER_DOUBLING = 4
"""How many sizes of blocks there are between a power of two and the next: at most a quarter of what is asked for is wasted."""
MAX_BYTES = 1 << 63
"""What is no size any more."""

USED, RESERVED = "scratch_used_bytes", "scratch_reserved_bytes"


@dataclass(slots=True, eq=False, repr=False)
class Block:
    """A piece of device memory. One whose scratch is gone, and has not given it back, is garbage."""

    address: int
    size_bytes: int
    peers: list[Block]
    """The free blocks of its size, where it goes when it is given back."""
    holder: ref[Any] | None = None
    """The scratch that has it; None while it is free."""
    is_late: bool = False
    """True if it may have been used where the lane worked before, and is not in order with its stream of now."""


class ScratchArena:
    """The scratch memory of one lane.

    Two locks, both re-entrant: a garbage collection in the middle of anything here may run code that takes or gives back
    scratch. One is held around the state only, never around a call of the driver. The other one keeps calls of the driver
    apart, so that nothing is allocated on a stream that is being closed.

    Parameters
    ----------
    lane
        The `Stream`.
    stream
        The backend's stream on which it works now.
    lane_index
        The recorder's index of the lane.
    pool
        The session's.
    """

    def __init__(self, lane: KeptStream, stream: BackendStream, lane_index: int, pool: ScratchPool) -> None:
        self.lane = lane
        self.backend = pool.backend
        self.glance_ns = pool.backend.glance_ns
        self.is_closed = False
        """True once everything is given back to the device."""
        self.why_closed = "was closed, which frees its memory"
        """What happened to the lane then."""
        self.turn_ns = 0
        """When the next sample is due."""
        self.reserved_bytes = 0
        """What it holds of the device's memory."""
        self._pool = pool
        self._lane_index = lane_index
        self._stream = stream
        self._left: list[BackendStream] = []  # streams on which the lane worked before
        self._lock = process_lock()
        self._driving = process_lock()
        self._blocks: set[Block] = set()  # in use or free
        self._free: dict[int, list[Block]] = {}  # by size; last in, first out, so that caches are warm
        self._is_collecting = False
        self._used_bytes = 0
        self._top_bytes = 0  # the most that was in use since the last sample
        self._top_ns = self._changed_ns = -1  # when that was, and when it changed last; -1 if it did not since then
        self._samples: deque[tuple[int, str, int]] = deque(maxlen=KEPT_SAMPLES)
        self._window_ns = self._window_bytes = self._before_bytes = 0
        self._asked_bytes = self._given_bytes = 0
        self._peak_bytes = self._taken_count = self._growth_count = self._trim_count = 0

    @property
    def statistics(self) -> ScratchStatistics:
        """How it is now, as a value."""
        self._collect()
        pool = self._pool
        with self._lock:
            given_bytes = self._given_bytes
            return ScratchStatistics(
                lane=self.lane.name,
                used_bytes=0 if self.is_closed else self._used_bytes,
                reserved_bytes=self.reserved_bytes,
                peak_bytes=max(self._peak_bytes, self._top_bytes),
                allocation_count=self._taken_count,
                reuse_count=max(0, self._taken_count - self._growth_count),
                growth_count=self._growth_count,
                trim_count=self._trim_count,
                waste_share=(given_bytes - self._asked_bytes) / given_bytes if given_bytes else 0.0,
                is_stream_ordered=not pool.reason,
                reason=pool.reason,
                limit_bytes=pool.limit_bytes,
            )

    def give_out(self, scratch: Scratch) -> bool:
        """Take a free block for scratch, if there is one of its size that is in order."""
        size_bytes = size_class(scratch.nbytes)
        holder, now_ns = ref(scratch), self.glance_ns()
        with self._lock:
            free = self._free.get(size_bytes)
            if not free or free[-1].is_late:
                return False
            block = free.pop()
            block.holder = scratch._lease = holder
            scratch._block = block
            self._taken_count += 1
            self._asked_bytes += scratch.nbytes
            self._given_bytes += size_bytes
            self._used_bytes += size_bytes
            self._changed_ns = now_ns
            if self._used_bytes > self._top_bytes:
                self._top_bytes = self._used_bytes
                self._top_ns = now_ns
            return True

    def take_back(self, scratch: Scratch, now_ns: int) -> None:
        """Take the block of scratch back, once."""
        with self._lock:
            block = scratch._block
            scratch._block = None
            # One in a cycle of garbage is found as such before the finalisers of that cycle run, which may give it back again.
            if block is not None and block.holder is scratch._lease:
                self._put_back(block, now_ns)

    def supply(self, scratch: Scratch) -> None:
        """Find a block for scratch whose size has no free one: of what is garbage, or was of another stream, or a new one."""
        self.lane._require_open()
        self._collect()
        if self.give_out(scratch):
            return
        with delayed_interrupts():  # a block that was made is known
            while not self.give_out(scratch):
                if not self._bring_over():
                    self._grow(scratch.nbytes)

    def trim(self, keep_bytes: int = 0) -> int:
        """Give free blocks back to the device, the largest first, behind the lane's work.

        Parameters
        ----------
        keep_bytes
            How much the lane keeps at least, in use or free.

        Returns
        -------
        int
            How many bytes were given back.
        """
        check_size(keep_bytes, example="lane.trim_scratch(keep_bytes=0)")
        self._collect()
        with delayed_interrupts(), self._driving:
            if self.is_closed or self.reserved_bytes <= keep_bytes:
                return 0
            self._bring_over()
            before_bytes = self.reserved_bytes
            failures = self._free_blocks(self._take_free(keep_bytes))
            freed_bytes = before_bytes - self.reserved_bytes
            if freed_bytes:
                self._trim_count += 1
                self._note_reserved()
        if failures:
            raise failures[0]
        return freed_bytes

    def turn(self, now_ns: int) -> None:
        """Note samples for the timeline; where a window of time ends, give back what was not needed in it."""
        with self._lock:
            if now_ns >= self._window_ns:
                self._collect()
            self._note(now_ns)
            keep_bytes = self._recent_bytes(now_ns)
            is_excessive = keep_bytes is not None and self.reserved_bytes > TRIM_FACTOR * keep_bytes
        if len(self._samples) >= HAND_OVER_AT:
            self._pool.hand_over(self)
        if is_excessive and not self.is_closed:
            try:
                self.trim(keep_bytes or 0)
            except DeviceError as error:  # the block that runs here has nothing to do with it
                _log.debug("The scratch of lane %r was not trimmed: %s", self.lane.name, error)

    def work_on(self, stream: BackendStream) -> None:
        """Give out blocks for another stream from now on: those that there are, as soon as they are in order with it."""
        with self._driving, self._lock:
            if stream is self._stream or self.is_closed:
                return
            self._left = [*(left for left in self._left if left is not stream), self._stream]
            self._stream = stream
            for block in self._blocks:
                block.is_late = True

    def leave(self, stream: BackendStream) -> None:
        """Forget a stream that is going to be destroyed; all of its work is done."""
        with self._driving, self._lock:
            self._left = [left for left in self._left if left is not stream]

    def close(self, *, keeps_held: bool = False) -> None:
        """Give everything back to the device behind the lane's work. Idempotent.

        Parameters
        ----------
        keeps_held
            Whether what is still held stays until `free_held`: a thread that has the lane selected goes on working there.
        """
        failures: list[Exception] = []
        with delayed_interrupts(), self._driving:
            self._collect()
            with self._lock:
                self._note(self.glance_ns())
                self.is_closed = True
                blocks, free = [*self._blocks], [block for free in self._free.values() for block in free]
                self._free = {}
            if blocks:
                try:
                    self._order_behind_left()
                except Exception as error:  # noqa: BLE001 - raised below; the stream is closed all the same
                    failures.append(error)
                failures += self._free_blocks(free if keeps_held else blocks)
                self._samples.append((self.glance_ns(), USED, 0))
                self._note_reserved()
            self._left = []
        if failures:
            raise failures[0]

    def free_held(self) -> None:
        """Give back what is still there after `close`, behind the work of the lane's stream, which is destroyed next."""
        with delayed_interrupts(), self._driving:
            held = [*self._blocks]
            failures = self._free_blocks(held)
            if held:
                self._note_reserved()
        if failures:
            raise failures[0]

    def disown(self) -> None:
        """Give everything up without touching it: in a forked child, what it holds is the parent's."""
        self.is_closed = True
        self.why_closed = LEFT_TO_PARENT
        self._blocks, self._free = set(), {}

    def take_samples(self) -> list[LaneSample]:
        """Return the samples since the last time, the present one last."""
        self._collect()
        with self._lock:
            self._note(self.glance_ns())
            taken = [*self._samples]
            self._samples.clear()
        return [LaneSample(host_ns, self._lane_index, name, float(value)) for host_ns, name, value in taken]

    def tell_all(self) -> None:
        """Let the next samples begin with how it is now."""
        with self._lock:
            self._samples.clear()
            if self.reserved_bytes:
                self._samples.append((self.glance_ns(), USED, self._used_bytes))
                self._note_reserved()

    def _put_back(self, block: Block, now_ns: int) -> None:
        block.holder = None
        block.peers.append(block)
        self._used_bytes -= block.size_bytes
        self._changed_ns = now_ns

    def _collect(self) -> None:
        """Take back what is garbage: blocks whose scratch is gone.

        They are looked for, so that scratch needs no finaliser: one would run anywhere, also where the lists change.
        """
        now_ns = self.glance_ns()
        with self._lock:
            if self._is_collecting:
                return  # called from inside itself, by a finaliser
            self._is_collecting = True
            try:
                for block in [*self._blocks]:
                    if block.holder is not None and block.holder() is None:
                        self._put_back(block, now_ns)
            finally:
                self._is_collecting = False

    def _note_reserved(self) -> None:
        self._samples.append((self.glance_ns(), RESERVED, self.reserved_bytes))

    def _note(self, now_ns: int) -> None:
        self.turn_ns = now_ns + SAMPLE_EVERY_NS
        if self.is_closed:
            return
        if self._top_ns >= 0:
            self._samples.append((self._top_ns, USED, self._top_bytes))
        if self._changed_ns > self._top_ns:
            self._samples.append((self._changed_ns, USED, self._used_bytes))
        self._peak_bytes = max(self._peak_bytes, self._top_bytes)
        self._window_bytes = max(self._window_bytes, self._top_bytes)
        self._top_bytes = self._used_bytes
        self._top_ns = self._changed_ns = -1

    def _recent_bytes(self, now_ns: int) -> int | None:
        """Return the most that was in use of late where a window of time ends, else None."""
        if now_ns < self._window_ns:
            return None
        recent_bytes = max(self._before_bytes, self._window_bytes)
        self._before_bytes, self._window_bytes = self._window_bytes, self._used_bytes
        is_first, self._window_ns = not self._window_ns, now_ns + WINDOW_NS
        return None if is_first else recent_bytes

    def _grow(self, nbytes: int) -> None:
        size_bytes = size_class(nbytes)
        self._pool.reserve(size_bytes, self)
        try:
            try:
                self._add_block(size_bytes)
            except DeviceMemoryError:
                self._pool.relieve()
                self._add_block(size_bytes)
        except DeviceMemoryError as error:
            self._pool.release(size_bytes)
            raise DeviceMemoryError(
                f"Lane {self.lane.name!r} asked for {nbytes:,} bytes of scratch, and the device does not have enough, "
                f"even after every lane and CuPy's pool gave back what nobody used. {self._pool.memory_text()} Take less, free "
                "arrays, or close lanes that are not needed.",
                driver_code=error.driver_code,
            ) from error
        except BaseException:
            self._pool.release(size_bytes)
            raise

    def _add_block(self, size_bytes: int) -> None:
        with self._driving:
            self.lane._require_open()  # else it may have been closed meanwhile
            address = self.backend.allocate_scratch(self._stream, size_bytes)
            with self._lock:
                block = Block(address, size_bytes, self._free.setdefault(size_bytes, []))
                self._blocks.add(block)
                block.peers.append(block)
                self.reserved_bytes += size_bytes
                self._growth_count += 1
                self._note_reserved()

    def _take_free(self, keep_bytes: int) -> list[Block]:
        """Take free blocks out of their lists, the largest first, as long as so many bytes are kept."""
        taken = []
        with self._lock:
            spare_bytes = self.reserved_bytes - keep_bytes
            for size_bytes in sorted(self._free, reverse=True):
                free = self._free[size_bytes]
                count = min(len(free), spare_bytes // size_bytes)
                taken += free[:count]
                del free[:count]
                spare_bytes -= count * size_bytes
        return taken

    def _free_blocks(self, blocks: Iterable[Block]) -> list[Exception]:
        """Free blocks behind the stream's work, and return what failed; what cannot be freed stays."""
        failures: list[Exception] = []
        for block in blocks:
            try:
                self.backend.free_scratch(self._stream, block.address)
            except Exception as error:  # noqa: BLE001 - told by who called, after the other blocks
                failures.append(error)
                block.peers.append(block)
            else:
                self._pool.release(block.size_bytes)
                with self._lock:
                    self._blocks.discard(block)
                    self.reserved_bytes -= block.size_bytes
        return failures

    def _bring_over(self) -> bool:
        """Bring free blocks that are late in order: the stream waits, on the device, for the others. Tell whether any were."""
        with self._driving:
            with self._lock:  # what comes back later is not in order yet
                ready = [block for free in self._free.values() for block in free if block.is_late]
            if ready:
                self._order_behind_left()
            for block in ready:
                block.is_late = False
            return bool(ready)

    def _order_behind_left(self) -> None:
        for left in self._left:
            if not left.query():
                order_behind(self.backend, self._stream, left)


@functools.lru_cache(maxsize=1_024)
def size_class(nbytes: int) -> int:
    """Return the size of the block that is given out for a number of bytes.

    Multiples of 512 up to 4 KiB, then four sizes between a power of two and the next: at most 25% more than was asked for, or
    511 bytes.

    Examples
    --------
    >>> [size_class(nbytes) for nbytes in (0, 1, 512, 513, 4_097, 1 << 20, (1 << 20) + 1)]
    [512, 512, 512, 1024, 5120, 1048576, 1310720]
    """
    step = max(ALIGNMENT_BYTES, 1 << max(0, nbytes - 1).bit_length() >> CLASSES_PER_DOUBLING.bit_length())
    return max(1, -(-nbytes // step)) * step


def check_size(nbytes: object, *, example: str = "lane.scratch(1 << 20)") -> int:
    """Return a number of bytes, 0 or more; raise `OptionError` for anything else, with an example of the call."""
    try:
        size: int = index(nbytes)  # type: ignore[arg-type]
    except TypeError:
        size = -1
    if isinstance(nbytes, (bool, np.bool_)) or not 0 <= size < MAX_BYTES:
        raise OptionError(
            f"{str(nbytes)[:40]!s} ({type(nbytes).__name__}) is not a size of scratch: an integer number of bytes from 0 to "
            f"2**63 - 1. Use for example {example}."
        )
    return size
