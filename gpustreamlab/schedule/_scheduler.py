"""The discrete-event core of the simulated device: what runs when, on which SMs.

Pure: it holds no clock but its own, and the same commands at the same times give the same times. Rules:

- A stream runs its commands in order. A kernel that reaches the head of its stream joins the kernels that wait for SMs.
- Blocks are given out by priority, then by who came first. A kernel with blocks left over claims the SMs that it may use
  against everyone behind it. Running blocks are never pushed out; a higher priority gets the slots as blocks end.
  Source: Amert et al., "GPU Scheduling on the NVIDIA TX2: Hidden Details Revealed", RTSS 2017, rules for the execution
  engine's queues. A cooperative launch gets none before there is room for all its blocks.
- Everything that happens at one instant is taken in before blocks are given out for that instant.
- An instant is only simulated when the host's clock is past it, so nothing submitted later could have changed it.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from gpustreamlab._util.defences import delayed_interrupts
from gpustreamlab.errors import OptionError, SessionError
from gpustreamlab.schedule._commands import (
    Batch,
    Command,
    CopyRun,
    DeviceWork,
    KernelRun,
    KernelSpec,
    Mark,
    StreamQueue,
    Wait,
)
from gpustreamlab.typing import SpanKind

if TYPE_CHECKING:
    from gpustreamlab.backends.sim._source import Collecting


class Card(Protocol):
    """What the scheduler has to know of a device."""

    @property
    def sm_count(self) -> int:
        """How many SMs it has."""

    @property
    def slots_per_sm(self) -> int:
        """In how many slots an SM is counted."""

    @property
    def memory_bytes_per_s(self) -> int:
        """What its memory gives at most."""

    @property
    def priority_range(self) -> tuple[int, int]:
        """The lowest priority and the highest, which is the smaller number."""


def share_bandwidth(draws: Sequence[tuple[float, float]], cap: float) -> float:
    """Return the share of its own limit that each kernel may draw so that all of them together stay under the cap.

    Each kernel draws what it wants, or this share of its limit if that is less: kernels that are bound by arithmetic are
    slowed last.

    The share solves ``sum(min(wanted, share * limit)) == cap``, by going through the kernels from the least thirsty one.

    Examples
    --------
    >>> share_bandwidth([(60, 60), (60, 60)], 100)  # both bound by memory: 50 each
    0.8333333333333334
    >>> share_bandwidth([(20, 60), (100, 100)], 100)  # the first wants less than its share, and gets it
    0.8
    """
    if sum(wanted for wanted, _ in draws) <= cap:
        return 1.0
    left = cap
    limits = sum(limit for _, limit in draws)
    for wanted, limit in sorted(draws, key=lambda draw: draw[0] / draw[1]):
        if wanted * limits > left * limit:
            return left / limits
        left -= wanted
        limits -= limit
    return 1.0


class SlotPool:
    """The slots of all SMs.

    SMs that every stream's allowed set either contains or excludes are alike; they form one group, and only the group's free
    slots are counted. A set of SMs is then a bit mask of groups.
    """

    def __init__(self, sm_count: int, slots_per_sm: int) -> None:
        self.sm_count = sm_count
        self.slots_per_sm = slots_per_sm
        self.groups: list[frozenset[int]] = [frozenset(range(sm_count))]
        """SM ids of each group."""
        self.free: list[int] = [sm_count * slots_per_sm]
        """Free slots of each group."""
        self.full_mask = 1
        """All groups."""

    def check_sm_ids(self, sm_ids: Iterable[int]) -> frozenset[int]:
        """Return the SM ids as a set, or say what is wrong with them."""
        wanted = frozenset(sm_ids)
        wrong = sorted(sm for sm in wanted if not 0 <= sm < self.sm_count)
        if wrong or not wanted:
            raise OptionError(
                f"A simulated stream was given the SMs {wrong or 'of an empty set'}; this device has SMs 0 to "
                f"{self.sm_count - 1}. Give some of those as sm_ids, or None for all."
            )
        return wanted

    def plan_splits(self, sm_ids: frozenset[int]) -> list[int]:
        """Return the groups that the set would cut in two."""
        return [number for number, group in enumerate(self.groups) if sm_ids & group and group - sm_ids]

    def split(self, number: int, sm_ids: frozenset[int], held: Iterable[tuple[Batch, int]]) -> int:
        """Cut a group in two: what the set excludes becomes a new group."""
        group = self.groups[number]
        kept, cut = group & sm_ids, group - sm_ids
        new = len(self.groups)
        self.groups[number] = kept
        self.groups.append(cut)
        self.free[number] = len(kept) * self.slots_per_sm
        self.free.append(len(cut) * self.slots_per_sm)
        self.full_mask |= 1 << new
        # The widest blocks first: all widths are powers of two, so what is left always fits (see the module's test).
        for batch, slots in sorted(held, key=lambda item: -item[1]):
            self._deal(batch, slots, number, new)
        return new

    def mask_of(self, sm_ids: frozenset[int] | None) -> int:
        """Return the bit mask of a set of SMs that no group crosses."""
        if sm_ids is None:
            return self.full_mask
        return sum(1 << number for number, group in enumerate(self.groups) if group <= sm_ids)

    def has_room(self, mask: int, slots: int, blocks: int) -> bool:
        """Tell whether so many blocks of so many slots find room in the groups of a mask."""
        return sum(free // slots for number, free in enumerate(self.free) if mask >> number & 1) >= blocks

    def take(self, mask: int, slots: int, blocks: int) -> tuple[int, list[tuple[int, int]], int]:
        """Take slots for as many blocks as fit, spread over the groups in proportion to their room."""
        free = self.free
        if len(free) == 1:
            count = min(free[0] // slots, blocks)
            if not mask or count < 1:
                return 0, [], 0
            free[0] -= count * slots
            return count, [(0, count)], 1
        rooms = [(number, room // slots) for number, room in enumerate(free) if mask >> number & 1 and room >= slots]
        total = sum(room for _, room in rooms)
        count = left = min(total, blocks)
        parts = []
        used = 0
        for number, room in rooms:
            # Proportional, rounded up, so that the last group never has to take more than it has.
            share = min(left, -(-count * room // total))
            if share:
                free[number] -= share * slots
                parts.append((number, share))
                used |= 1 << number
                left -= share
        return count, parts, used

    def give_back(self, parts: list[tuple[int, int]], slots: int) -> None:
        """Free the slots of blocks that ended."""
        for number, count in parts:
            self.free[number] += count * slots

    def _deal(self, batch: Batch, slots: int, kept: int, new: int) -> None:
        """Deal out a batch's blocks on a group that was cut in two."""
        count = next(count for number, count in batch.parts if number == kept)
        sizes = len(self.groups[kept]), len(self.groups[new])
        rooms = self.free[kept] // slots, self.free[new] // slots
        stay = min(max(count * sizes[0] // sum(sizes), count - rooms[1]), rooms[0])
        batch.parts = [part for part in batch.parts if part[0] != kept]
        batch.parts += [part for part in ((kept, stay), (new, count - stay)) if part[1]]
        batch.mask = sum(1 << number for number, _ in batch.parts)
        self.free[kept] -= stay * slots
        self.free[new] -= (count - stay) * slots


_WAKE, _BOUNDARY, _COPY_END = 0, 1, 2
SHIELDED_STEPS = 512  # Instants that are simulated before an interrupt is let through: some milliseconds of real time
_TINY = 1e-3  # ns; due times are rounded up to whole ns, but not for a rounding error of the progress
_STALE_ENTRIES = 4_096  # entries of the heap that may be out of date before it is cleaned


class Scheduler:
    """Simulates the device's side of everything submitted to it."""

    def __init__(self, preset: Card, *, engine_count: int = 3, is_shielded: bool = True) -> None:
        self.preset = preset
        self._is_shielded = is_shielded
        """Whether an interrupt must leave it whole; not where it is then thrown away."""
        self.now_ns = 0
        """The last instant that was simulated."""
        self.busy_count = 0
        """Streams that have work."""
        self.cards = [self]
        """All cards of the host, which share its time: what happens first is simulated first, on whichever it is."""
        self.is_stepping = False
        """Whether a step has begun and not ended; for good if an exception came out of the middle of it."""
        self.observer: Callable[[DeviceWork], None] | None = None
        """Gets each finished kernel, copy and fill."""
        self.meters: list[Callable[[int], None]] = []
        """Each gets every instant at which something changes, before it does."""
        self.placement_observer: Callable[[KernelRun, list[tuple[int, int]]], None] | None = None
        """Gets each kernel whose blocks start, with (SM group, blocks on it)."""
        self.pool = SlotPool(preset.sm_count, preset.slots_per_sm)
        self.streams: list[StreamQueue] = []
        # Time, running number, what is due, and the stream, kernel or copy that it is due for.
        self._heap: list[tuple[int, int, int, Any]] = []
        self._heap_limit = _STALE_ENTRIES
        self._order = 0
        self._levels: list[list[KernelRun]] = [[] for _ in range(1 + preset.priority_range[0] - preset.priority_range[1])]
        self._waiting_count = 0
        self._arrived: list[KernelRun | CopyRun] = []
        self._must_issue = False
        self._may_interrupt = False
        self._planned: dict[int, KernelRun] = {}
        self._engines: tuple[deque[CopyRun], ...] = tuple(deque() for _ in range(engine_count))
        self._drawing: dict[int, KernelRun] = {}
        self._wanted_bytes_per_s = 0
        self._traffic_changed = False
        self._is_contended = False

    # Streams

    def add_stream(self, number: int, priority: int, sm_ids: frozenset[int] | None) -> StreamQueue:
        """Make a stream, and cut the SM groups that its set crosses."""
        if sm_ids is not None:
            for group in self.pool.plan_splits(sm_ids):
                self._split_group(group, sm_ids)
        sm_count = self.pool.sm_count if sm_ids is None else len(sm_ids)
        level = priority - self.preset.priority_range[1]
        stream = StreamQueue(number, level, self.pool.mask_of(sm_ids), sm_count, card=self)
        self.streams.append(stream)
        return stream

    def add_twin(self, stream: StreamQueue) -> StreamQueue:
        """Make another queue of a stream's number, priority and SMs."""
        twin = StreamQueue(stream.number, stream.level, stream.mask, stream.sm_count, stream.context, card=self)
        self.streams.append(twin)
        return twin

    def remove_stream(self, stream: StreamQueue) -> None:
        """Forget a stream; what it holds still runs."""
        stream.is_closed = True
        if not stream.is_busy:
            self.streams.remove(stream)

    def _split_group(self, group: int, sm_ids: frozenset[int]) -> None:
        held = [
            (batch, run.spec.block_slots) for run in self.running_kernels() for batch in run.batches if batch.mask >> group & 1
        ]
        new = self.pool.split(group, sm_ids, held)
        for stream in self.streams:
            if stream.mask >> group & 1:
                stream.mask |= 1 << new

    def running_kernels(self) -> list[KernelRun]:
        """Return the kernels that hold slots, in the order in which they became ready."""
        runs = {entry[3].order: entry[3] for entry in self._heap if isinstance(entry[3], KernelRun)}
        return [runs[order] for order in sorted(runs) if runs[order].batches]

    def running_copies(self) -> list[CopyRun]:
        """Return the copy that each engine is busy with."""
        return [engine[0] for engine in self._engines if engine]

    # Submission

    def submit(self, stream: StreamQueue, command: Command, now_ns: int) -> None:
        """Put a command into a stream at a host time that is later than every simulated instant."""
        command.submit_ns = now_ns
        if stream.is_busy:
            stream.queue.append(command)
            return
        if not self._is_shielded:
            self._begin(stream, command, now_ns)
            return
        with delayed_interrupts():  # a stream has work, is busy, counted and going to wake up, or none of it
            self._begin(stream, command, now_ns)

    def _begin(self, stream: StreamQueue, command: Command, now_ns: int) -> None:
        stream.queue.append(command)
        stream.is_busy = True
        self.busy_count += 1
        self._wake_at(stream, now_ns)

    def submit_kernel(
        self,
        stream: StreamQueue,
        spec: KernelSpec,
        now_ns: int,
        correlation: int = 0,
        source: Collecting | None = None,
        *,
        node: tuple[int, int] = (0, -1),
    ) -> None:
        """Put a kernel into a stream, with the number of the call, whom to tell of its end, and which node it is."""
        block_ns = spec.block_ns_on(stream.sm_count * self.preset.slots_per_sm)
        self.submit(stream, KernelRun(stream, spec, block_ns, correlation, source, node), now_ns)

    # Time

    def run_before(self, limit_ns: int) -> None:
        """Simulate every instant before a host time. The host may still submit work at that time itself."""
        self.run_until(lambda: self.next_card().next_ns >= limit_ns, lambda _now_ns: None)

    @property
    def next_ns(self) -> float:
        """When something happens next on this card; infinite for never."""
        return self._heap[0][0] if self._heap else math.inf

    def next_card(self) -> Scheduler:
        """Return the card of the host on which something happens next."""
        return self if len(self.cards) == 1 else min(self.cards, key=attrgetter("next_ns"))

    def run_until(self, is_reached: Callable[[], bool], tell_time: Callable[[int], object]) -> None:
        """Simulate instant by instant until something is reached. An interrupt (Ctrl-C) comes between two instants."""
        while not is_reached():
            with delayed_interrupts():
                if self.is_stepping:
                    raise SessionError(
                        "The simulated device was asked to wait in the middle of a step: by a finaliser (wait where work is "
                        "enqueued, not in __del__), or after a handler of another signal than Ctrl-C, such as an alarm, cut "
                        "the step off. Then open another session: gpustreamlab.Session('sim')."
                    )
                self.is_stepping = True
                for _ in range(SHIELDED_STEPS):
                    card = self.next_card()
                    card.step()
                    if is_reached():
                        break
                self.is_stepping = False
                tell_time(card.now_ns)

    def step(self) -> None:
        """Simulate the next instant at which something happens."""
        heap = self._heap
        for meter in self.meters:
            meter(heap[0][0])
        now_ns = self.now_ns = heap[0][0]
        while heap and heap[0][0] == now_ns:
            _, order, what, item = heapq.heappop(heap)
            if what == _WAKE:
                self._advance(item)
            elif what == _BOUNDARY:
                if item.due_order == order:
                    self._end_waves(item)
            else:
                self._end_copy(item)
        if self._arrived:
            self._admit()
        if self._must_issue:
            self._issue()
        if self._traffic_changed:
            self._share_bandwidth()

    # Streams in order

    def _advance(self, stream: StreamQueue) -> None:
        """Start what comes next in a stream whose last command has ended."""
        queue = stream.queue
        now_ns = self.now_ns
        while queue:
            command = queue[0]
            if command.submit_ns > now_ns:
                self._wake_at(stream, command.submit_ns)
                return
            queue.popleft()
            if isinstance(command, Mark):
                self._reach(command)
            elif not isinstance(command, Wait):
                self._arrived.append(command)
                return
            elif command.mark.time_ns < 0:
                command.mark.waiters.append(stream)
                return
        stream.is_busy = False
        self.busy_count -= 1
        if stream.is_closed:
            self.streams.remove(stream)

    def _wake_at(self, stream: StreamQueue, time_ns: int) -> None:
        self._order += 1
        heapq.heappush(self._heap, (time_ns, self._order, _WAKE, stream))

    def _reach(self, mark: Mark) -> None:
        mark.time_ns = self.now_ns
        for waiter in mark.waiters:
            waiter.card._wake_at(waiter, self.now_ns)  # noqa: SLF001 - it may be a stream of another card
        mark.waiters.clear()

    def _admit(self) -> None:
        """Let what reached the head of its stream at this instant queue up for SMs or a copy engine, by time of submission."""
        arrived, self._arrived = self._arrived, []
        if len(arrived) > 1:
            arrived.sort(key=attrgetter("submit_ns"))
        for run in arrived:
            if isinstance(run, KernelRun):
                self._enter_kernel(run)
                continue
            engine = self._engines[run.spec.engine]
            engine.append(run)
            if len(engine) == 1:
                self._start_copy(run)

    # Copies

    def _start_copy(self, copy: CopyRun) -> None:
        copy.start_ns = self.now_ns
        self._order += 1
        heapq.heappush(self._heap, (self.now_ns + copy.spec.duration_ns, self._order, _COPY_END, copy))

    def _end_copy(self, copy: CopyRun) -> None:
        engine = self._engines[copy.spec.engine]
        engine.popleft()
        if engine:
            self._start_copy(engine[0])
        self._tell(copy, SpanKind.COPY, 0, 0)
        self._advance(copy.stream)

    def _tell(self, run: KernelRun | CopyRun, kind: SpanKind, blocks: int, operations: int) -> None:
        """Tell who looks on of work that has ended."""
        if self.observer is None and run.source is None:
            return
        times, amount = (run.submit_ns, run.start_ns, self.now_ns), (blocks, run.spec.size_bytes, operations)
        origin = run.stream.context, run.correlation
        work = DeviceWork(kind, run.spec.name, run.stream.number, *times, *amount, *origin)
        if run.source is not None:
            run.source.note_work(run.spec, work, run.node)
        if self.observer is not None:
            self.observer(work)

    # Kernels

    def _enter_kernel(self, run: KernelRun) -> None:
        """Let a kernel join those that wait for SMs."""
        self._order += 1
        run.order = self._order
        level = run.stream.level
        self._levels[level].append(run)
        self._waiting_count += 1
        self._must_issue = True
        if not self._may_interrupt and self._waiting_count > 1:
            self._may_interrupt = any(self._levels[level + 1 :])

    def _end_waves(self, run: KernelRun) -> None:
        """Take in that a kernel's planned waves end now."""
        self._free_ended(run)
        if self._waiting_count:
            self._must_issue = True
        if run.batches:
            self._expect_boundary(run)
        elif not run.backlog:
            self._finish(run)

    def _free_ended(self, run: KernelRun) -> None:
        """Free the slots of the batches that end now."""
        work = run.work_at(self.now_ns) + 2 * _TINY
        going_on = []
        for batch in run.batches:
            if batch.end_work > work:
                going_on.append(batch)
                continue
            self.pool.give_back(batch.parts, run.spec.block_slots)
            self._change_running(run, -batch.blocks)
        run.batches = going_on

    def _end_waves_within_plans(self) -> None:
        """Free the slots between two planned waves that meet at this instant, so that all that is free is given out at once.

        With one group of SMs this changes nothing: whoever is first gets the slots. With several it decides who gets which.
        """
        for run in list(self._planned.values()):
            work = run.work_at(self.now_ns)
            if any(batch.start_work != work and (batch.end_work - work) % run.block_ns == 0 for batch in run.batches):
                self._drop_plan(run)
                self._free_ended(run)

    def _drop_plan(self, run: KernelRun) -> None:
        """Let a kernel's batches end with the wave that they are in."""
        run.drop_plan(self.now_ns)
        self._planned.pop(run.order, None)
        if run.batches:
            self._expect_boundary(run)

    def _finish(self, run: KernelRun) -> None:
        run.due_order = -1
        self._tell(run, run.spec.kind, run.spec.blocks, run.spec.operations)
        self._advance(run.stream)

    def _change_running(self, run: KernelRun, blocks: int) -> None:
        run.running += blocks
        if run.block_draw:
            self._wanted_bytes_per_s += blocks * run.block_draw
            self._traffic_changed = True
            if run.running:
                self._drawing[run.order] = run
            else:
                del self._drawing[run.order]

    def _expect_boundary(self, run: KernelRun) -> None:
        """Enter the instant at which the kernel's next batch ends."""
        batches = run.batches
        end_work = batches[0].end_work if len(batches) == 1 else min(batch.end_work for batch in batches)
        left = end_work - run.ref_work
        time_ns = run.ref_ns + math.ceil((left if run.speed == 1 else left / run.speed) - _TINY)
        self._order = run.due_order = self._order + 1
        heapq.heappush(self._heap, (max(time_ns, self.now_ns), self._order, _BOUNDARY, run))
        if len(self._heap) > self._heap_limit:
            self._clean_heap()

    def _clean_heap(self) -> None:
        """Drop entries of kernels that have a newer one."""
        live = [entry for entry in self._heap if entry[2] != _BOUNDARY or entry[3].due_order == entry[1]]
        self._heap[:] = live
        heapq.heapify(self._heap)
        self._heap_limit = _STALE_ENTRIES + 2 * len(live)

    # Giving out blocks

    def _issue(self) -> None:
        """Give free slots to the kernels that wait, in order."""
        self._must_issue = False
        pool = self.pool
        if self._planned and len(pool.free) > 1:
            self._end_waves_within_plans()
        claimed = 0
        for level in self._levels:
            position = 0
            while position < len(level):
                run = level[position]
                if claimed & run.stream.mask and run.is_planned:
                    self._drop_plan(run)
                open_mask = run.stream.mask & ~claimed
                if open_mask and pool.has_room(open_mask, run.spec.block_slots, run.least_blocks):
                    self._place(run, open_mask)
                if run.backlog:
                    claimed |= run.stream.mask
                    position += 1
                    if claimed == pool.full_mask and not self._may_interrupt:
                        return
                else:
                    del level[position]
                    self._waiting_count -= 1
        self._may_interrupt = False

    def _place(self, run: KernelRun, open_mask: int) -> None:
        """Start as many of a kernel's blocks as find room in the open SM groups."""
        now_ns = self.now_ns
        if run.is_planned:
            run.drop_plan(now_ns)
            del self._planned[run.order]
        blocks, parts, mask = self.pool.take(open_mask, run.spec.block_slots, run.backlog)
        if blocks:
            if run.start_ns < 0:
                run.start_ns = run.ref_ns = now_ns
            work = run.work_at(now_ns)
            run.batches.append(Batch(blocks, parts, mask, work, work + run.block_ns))
            run.backlog -= blocks
            self._change_running(run, blocks)
            if self.placement_observer is not None:
                self.placement_observer(run, parts)
        if run.backlog:
            run.plan(open_mask)
        if run.is_planned:
            self._planned[run.order] = run
        if run.batches:
            self._expect_boundary(run)

    # Memory bandwidth

    def _share_bandwidth(self) -> None:
        """Set the speed of every kernel that draws on the memory, after a change of what runs."""
        self._traffic_changed = False
        cap = self.preset.memory_bytes_per_s
        if self._wanted_bytes_per_s <= cap and not self._is_contended:
            return
        runs = list(self._drawing.values())
        draws = [
            (run.running * run.block_draw, run.running * max(run.spec.block_limit_bytes_per_s, run.block_draw)) for run in runs
        ]
        share = share_bandwidth(draws, cap)
        self._is_contended = share < 1.0
        for run, (wanted, limit) in zip(runs, draws, strict=True):
            speed = min(1.0, share * limit / wanted)
            if speed != run.speed:
                run.ref_work = run.work_at(self.now_ns)
                run.ref_ns = self.now_ns
                run.speed = speed
                self._expect_boundary(run)
