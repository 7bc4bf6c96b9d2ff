"""The scratch memory of one lane: what is free, what is in use, and on which stream it is in order."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol
from weakref import ref

from gpustreamlab._util.defences import LEFT_TO_PARENT, delayed_interrupts, process_lock
from gpustreamlab.analysis import ScratchStatistics
from gpustreamlab.backends import BackendStream, order_behind
from gpustreamlab.errors import DeviceError, DeviceMemoryError
from gpustreamlab.memory._blocks import Block, SizeClass, Slot, check_size, size_class
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
KEPT_SIZES = 1_024
"""Different sizes asked for whose class is remembered."""

USED, RESERVED = "scratch_used_bytes", "scratch_reserved_bytes"


class ScratchLane(Protocol):
    """What scratch needs of a stream."""

    name: str
    is_closed: bool

    @property
    def handle(self) -> int:
        """Address of the ``cudaStream_t``."""
        ...

    def _require_open(self) -> None:
        """Raise `StreamClosedError` if the stream is closed."""
        ...


class ScratchArena:
    """The scratch memory of one lane.

    Two locks, both re-entrant: a garbage collection in the middle of anything here may run code that takes or gives back
    scratch. `lock` is held around the state only, never around a call of the driver. The other one keeps calls of the driver
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

    __slots__ = (
        "__weakref__",
        "_asked_bytes",
        "_before_bytes",
        "_classes",
        "_driving",
        "_given_bytes",
        "_growth_count",
        "_held",
        "_is_collecting",
        "_lane_index",
        "_late",
        "_left",
        "_peak_bytes",
        "_pool",
        "_reserved_bytes",
        "_samples",
        "_stream",
        "_taken_count",
        "_trim_count",
        "_window_bytes",
        "_window_ns",
        "backend",
        "changed_ns",
        "glance_ns",
        "is_closed",
        "is_simulated",
        "lane",
        "lock",
        "slots",
        "top_bytes",
        "top_ns",
        "turn_ns",
        "used_bytes",
        "why_closed",
    )

    def __init__(self, lane: ScratchLane, stream: BackendStream, lane_index: int, pool: ScratchPool) -> None:
        self.lane = lane
        self.backend = pool.backend
        self.is_simulated = pool.backend.device.simulated
        self.glance_ns = pool.backend.glance_ns
        self.lock = process_lock()
        self.is_closed = False
        """True once everything is given back to the device."""
        self.why_closed = "was closed, which frees its memory"
        """What happened to the lane then."""
        self.slots: dict[int, Slot] = {}
        """By the size asked for."""
        self.used_bytes = 0
        """In use now."""
        self.top_bytes = 0
        """The most that was in use since the last sample."""
        self.top_ns = -1
        """When; -1 if that is what the sample before says."""
        self.changed_ns = -1
        """When it changed last; -1 if it did not since the last sample."""
        self.turn_ns = 0
        """When the next sample is due."""
        self._lane_index = lane_index
        self._pool = pool
        self._driving = process_lock()
        self._stream = stream
        self._left: list[BackendStream] = []  # streams on which the lane worked before
        self._classes: dict[int, SizeClass] = {}
        self._held: list[tuple[int, int]] = []  # size and address of what a closed lane still lends
        self._late: list[SizeClass] = []  # of streams before: their blocks are not in order with this one
        self._is_collecting = False
        self._samples: deque[tuple[int, str, int]] = deque(maxlen=KEPT_SAMPLES)
        self._reserved_bytes = self._peak_bytes = self._growth_count = self._trim_count = 0
        self._asked_bytes = self._given_bytes = self._taken_count = 0  # of sizes that are forgotten
        self._window_ns = 0
        self._window_bytes = self._before_bytes = 0

    @property
    def reserved_bytes(self) -> int:
        """What it holds of the device's memory."""
        return self._reserved_bytes

    @property
    def statistics(self) -> ScratchStatistics:
        """How it is now, as a value."""
        self._collect(self._all_kinds())
        pool = self._pool
        with self.lock:
            asked, given, taken = self._asked_bytes, self._given_bytes, self._taken_count
            for size, slot in self.slots.items():
                asked += size * slot.taken_count
                given += slot.size_bytes * slot.taken_count
                taken += slot.taken_count
            return ScratchStatistics(
                lane=self.lane.name,
                used_bytes=0 if self.is_closed else self.used_bytes,
                reserved_bytes=self._reserved_bytes,
                peak_bytes=max(self._peak_bytes, self.top_bytes),
                allocation_count=taken,
                reuse_count=max(0, taken - self._growth_count),
                growth_count=self._growth_count,
                trim_count=self._trim_count,
                waste_share=(given - asked) / given if given else 0.0,
                is_stream_ordered=not pool.reason,
                reason=pool.reason,
                limit_bytes=pool.limit_bytes,
            )

    def find_slot(self, nbytes: int) -> Slot:
        """Return what is known of a size, made on first use."""
        size_bytes = size_class(nbytes)
        with self.lock:
            if len(self.slots) >= KEPT_SIZES:
                self._forget_sizes()
            slot = self.slots.get(nbytes)
            if slot is None:
                kind = self._classes.get(size_bytes)
                if kind is None:
                    kind = self._classes[size_bytes] = SizeClass(size_bytes)
                slot = self.slots[nbytes] = Slot(kind)
            return slot

    def give_out(self, scratch: Scratch) -> bool:
        """Take a free block for scratch, if there is one of its size."""
        holder, now_ns = ref(scratch), self.glance_ns()
        with self.lock:
            slot = scratch._slot = self.slots.get(scratch.nbytes) or self.find_slot(scratch.nbytes)
            if not slot.free:
                return False
            block = slot.free.pop()
            block.holder = scratch._lease = holder
            scratch._block = block
            slot.taken_count += 1
            self.used_bytes += slot.size_bytes
            self.changed_ns = now_ns
            if self.used_bytes > self.top_bytes:
                self.top_bytes = self.used_bytes
                self.top_ns = now_ns
            return True

    def take_back(self, scratch: Scratch, now_ns: int) -> None:
        """Take the block of scratch back, once."""
        with self.lock:
            block, slot = scratch._block, scratch._slot
            scratch._block = None
            # One in a cycle of garbage is found as such before the finalisers of that cycle run, which may give it back again.
            if block is not None and block.holder is scratch._lease:
                block.holder = None
                slot.back.append(block)
                self.used_bytes -= slot.size_bytes
                self.changed_ns = now_ns

    def supply(self, scratch: Scratch) -> None:
        """Find a block for scratch whose size has no free one: of what is garbage, or was of another stream, or a new one."""
        self.lane._require_open()
        if not self._late:
            self._collect((scratch._slot.kind,))
            if self.give_out(scratch):
                return
        with delayed_interrupts():  # a block that was made is known
            self._collect(self._all_kinds())
            self._take_late()
            while not self.give_out(scratch):
                self._grow(scratch)

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
        self._collect(self._all_kinds())
        with delayed_interrupts(), self._driving:
            if self.is_closed or self._reserved_bytes <= keep_bytes:
                return 0
            self._take_late()
            return self._free_taken(self._take_free(keep_bytes))

    def turn(self, now_ns: int) -> None:
        """Note samples for the timeline; where a window of time ends, give back what was not needed in it."""
        with self.lock:
            if now_ns >= self._window_ns:
                self._collect(self._all_kinds())
            self._note(now_ns)
            keep_bytes = self._recent_bytes(now_ns)
            is_excessive = keep_bytes is not None and self._reserved_bytes > TRIM_FACTOR * keep_bytes
        if len(self._samples) >= HAND_OVER_AT:
            self._pool.hand_over(self)
        if is_excessive and not self.is_closed:
            try:
                self.trim(keep_bytes or 0)
            except DeviceError as error:  # the block that runs here has nothing to do with it
                _log.debug("The scratch of lane %r was not trimmed: %s", self.lane.name, error)

    def work_on(self, stream: BackendStream) -> None:
        """Give out blocks for another stream from now on: those that there are, as soon as they are in order with it."""
        with self._driving, self.lock:
            if stream is self._stream or self.is_closed:
                return
            self._left = [*(left for left in self._left if left is not stream), self._stream]
            self._stream = stream
            self._late += [kind for kind in self._classes.values() if kind.block_count]
            self._forget_sizes()
            self._classes = {}

    def leave(self, stream: BackendStream) -> None:
        """Forget a stream that is going to be destroyed; all of its work is done."""
        with self._driving, self.lock:
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
            self._collect(self._all_kinds())
            with self.lock:
                self._forget_sizes()
                now_ns = self.glance_ns()
                self._note(now_ns)
                self.is_closed = True
                blocks = [(kind.size_bytes, block) for kind in self._all_kinds() for block in kind.blocks]
                free = {block for kind in self._all_kinds() for block in kind.free}
            held = [(size_bytes, block.address) for size_bytes, block in blocks if keeps_held and block not in free]
            spare = [(size_bytes, block.address) for size_bytes, block in blocks if not keeps_held or block in free]
            try:
                if blocks:
                    self._order_behind_left()
            except Exception as error:  # noqa: BLE001 - raised below; the stream is closed all the same
                failures.append(error)
            failures += self._free_blocks(spare)
            with self.lock:
                self._held += held
                self._classes, self._late, self._left = {}, [], []
                if blocks:
                    self._samples += [(now_ns, USED, 0), (now_ns, RESERVED, self._reserved_bytes)]
        if failures:
            raise failures[0]

    def free_held(self) -> None:
        """Give back what was still held as the lane was closed, behind the work of its stream, which is destroyed next."""
        with delayed_interrupts(), self._driving:
            held, self._held = self._held, []
            failures = self._free_blocks(held)
            if held:
                self._samples.append((self.glance_ns(), RESERVED, self._reserved_bytes))
        if failures:
            raise failures[0]

    def _free_blocks(self, blocks: Sequence[tuple[int, int]]) -> list[Exception]:
        """Free blocks, given as size and address; return what failed."""
        failures: list[Exception] = []
        for size_bytes, address in blocks:
            try:
                self.backend.free_scratch(self._stream, address)
            except Exception as error:  # noqa: BLE001 - told by who called, after the other blocks
                failures.append(error)
            else:
                self._pool.release(size_bytes)
                with self.lock:
                    self._reserved_bytes -= size_bytes
        return failures

    def disown(self) -> None:
        """Give everything up without touching it: in a forked child, what it holds is the parent's."""
        self.is_closed = True
        self.why_closed = LEFT_TO_PARENT
        for slot in self.slots.values():
            slot.free = []
        self.slots, self._classes, self._late, self._held = {}, {}, [], []

    def take_samples(self) -> list[LaneSample]:
        """Return the samples since the last time, the present one last."""
        self._collect(self._all_kinds())
        with self.lock:
            self._note(self.glance_ns())
        taken = []
        while self._samples:
            try:
                taken.append(self._samples.popleft())
            except IndexError:  # another thread took it
                break
        return [LaneSample(host_ns, self._lane_index, name, float(value)) for host_ns, name, value in taken]

    def tell_all(self) -> None:
        """Let the next samples begin with how it is now."""
        with self.lock:
            self._samples.clear()
            if self._reserved_bytes:
                now_ns = self.glance_ns()
                self._samples += [(now_ns, USED, self.used_bytes), (now_ns, RESERVED, self._reserved_bytes)]

    def _collect(self, kinds: Sequence[SizeClass]) -> None:
        """Take back what is garbage."""
        now_ns = self.glance_ns()
        with self.lock:
            if self._is_collecting:
                return  # called from inside itself, by a finaliser
            self._is_collecting = True
            try:
                for kind in kinds:
                    for block in kind.take_garbage():
                        self.used_bytes -= kind.size_bytes
                        self.changed_ns = now_ns
                        kind.free.append(block)
            finally:
                self._is_collecting = False

    def _all_kinds(self) -> list[SizeClass]:
        return [*self._classes.values(), *self._late]

    def _note(self, now_ns: int) -> None:
        if self.is_closed:
            self.turn_ns = now_ns + SAMPLE_EVERY_NS
            return
        # What is read and reset together: nothing is called between.
        top_bytes = self.top_bytes
        top_ns = self.top_ns
        used_bytes = self.used_bytes
        changed_ns = self.changed_ns
        self.top_bytes = used_bytes
        self.top_ns = -1
        self.changed_ns = -1
        self.turn_ns = now_ns + SAMPLE_EVERY_NS
        if top_ns >= 0:
            self._samples.append((top_ns, USED, top_bytes))
        if changed_ns > top_ns:
            self._samples.append((changed_ns, USED, used_bytes))
        self._peak_bytes = max(self._peak_bytes, top_bytes)
        self._window_bytes = max(self._window_bytes, top_bytes)

    def _recent_bytes(self, now_ns: int) -> int | None:
        """Return the most that was in use of late where a window of time ends, else None."""
        if now_ns < self._window_ns:
            return None
        recent_bytes = max(self._before_bytes, self._window_bytes)
        self._before_bytes, self._window_bytes = self._window_bytes, self.used_bytes
        is_first, self._window_ns = not self._window_ns, now_ns + WINDOW_NS
        return None if is_first else recent_bytes

    def _grow(self, scratch: Scratch) -> None:
        size_bytes = scratch._slot.size_bytes
        self._pool.reserve(size_bytes, self)
        try:
            try:
                self._add_block(scratch)
            except DeviceMemoryError as error:
                self._pool.relieve()
                self._add_block_at_last(scratch, error)
        except BaseException:
            self._pool.release(size_bytes)
            raise

    def _add_block(self, scratch: Scratch) -> None:
        with self._driving:
            self.lane._require_open()  # else it may have been closed meanwhile
            slot = scratch._slot = self.find_slot(scratch.nbytes)
            block = Block(self.backend.allocate_scratch(self._stream, slot.size_bytes))
            with self.lock:
                slot.free.append(block)
                slot.kind.blocks.append(block)
                self._reserved_bytes += slot.size_bytes
                self._growth_count += 1
                self._samples.append((self.glance_ns(), RESERVED, self._reserved_bytes))

    def _add_block_at_last(self, scratch: Scratch, first: DeviceMemoryError) -> None:
        try:
            self._add_block(scratch)
        except DeviceMemoryError as error:
            raise DeviceMemoryError(
                f"Lane {self.lane.name!r} asked for {scratch.nbytes:,} bytes of scratch, and the device does not have enough, "
                f"even after every lane and CuPy's pool gave back what nobody used. {self._pool.memory_text()} Take less, free "
                "arrays, or close lanes that are not needed.",
                driver_code=error.driver_code or first.driver_code,
            ) from error

    def _take_free(self, keep_bytes: int) -> list[tuple[SizeClass, Block]]:
        """Take free blocks out, the largest first, as long as so many bytes are kept."""
        taken: list[tuple[SizeClass, Block]] = []
        with self.lock:
            for size_bytes in sorted(self._classes, reverse=True):
                kind = self._classes[size_bytes]
                while self._reserved_bytes - size_bytes >= keep_bytes:
                    try:
                        taken.append((kind, kind.free.pop(0)))
                    except IndexError:  # none, or another thread has taken the last one
                        break
                    kind.blocks.remove(taken[-1][1])
                    self._reserved_bytes -= size_bytes
        return taken

    def _free_taken(self, taken: list[tuple[SizeClass, Block]]) -> int:
        """Free blocks behind the stream's work; what cannot be freed stays."""
        freed_bytes = 0
        try:
            while taken:
                kind, block = taken[0]
                self.backend.free_scratch(self._stream, block.address)
                del taken[0]
                freed_bytes += kind.size_bytes
        finally:
            with self.lock:
                for kind, block in taken:
                    kind.free.append(block)
                    kind.blocks.append(block)
                    self._reserved_bytes += kind.size_bytes
                if freed_bytes:
                    self._trim_count += 1
                    self._pool.release(freed_bytes)
                    self._samples.append((self.glance_ns(), RESERVED, self._reserved_bytes))
        return freed_bytes

    def _take_late(self) -> None:
        """Make blocks of streams before free for this one: it waits, on the device, for what they hold."""
        if not self._late:
            return
        with self._driving:
            with self.lock:
                ready = [(kind, len(kind.free)) for kind in self._late if kind.free]  # what comes later is not in order yet
            if not ready:
                return
            self._order_behind_left()
            with self.lock:
                for kind, count in ready:
                    now, moved = self._classes.setdefault(kind.size_bytes, SizeClass(kind.size_bytes)), kind.free[:count]
                    del kind.free[:count]
                    chosen = set(moved)
                    kind.blocks = [block for block in kind.blocks if block not in chosen]
                    now.blocks += moved
                    now.free += moved
                self._late = [kind for kind in self._late if kind.block_count]

    def _order_behind_left(self) -> None:
        for left in self._left:
            if not left.query():
                order_behind(self.backend, self._stream, left)

    def _forget_sizes(self) -> None:
        """Let no block be taken through what is known of sizes; those in use are given back to where they are from."""
        for size, slot in self.slots.items():
            self._asked_bytes += size * slot.taken_count
            self._given_bytes += slot.size_bytes * slot.taken_count
            self._taken_count += slot.taken_count
            slot.free = []
        self.slots = {}
