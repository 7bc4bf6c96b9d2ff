"""A program played again: the host issues its calls one by one and stands still in waits, the device does its work."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakKeyDictionary

import numpy as np

from gpustreamlab.analysis._program import DOWNLOAD, KERNEL, UPLOAD, Call, Card, Program
from gpustreamlab.schedule import CopyRun, CopySpec, DeviceWork, KernelSpec, Mark, Scheduler, StreamQueue, Wait
from gpustreamlab.typing import Int64Array

MOST_ROUNDS = 12
"""How often what kernels take alone is worked out anew, until they last as they were recorded."""
SM_DRAWS = 2.9
"""How many times its share of the memory's bandwidth an SM may draw: 94 GB/s of an H200's 4.25 TB/s. Kernels that draw less
than their SMs may are slowed last."""
CLOSE_SHARE = 1e-4
"""Kernels that last as recorded within this share are as they should be."""


class Impossible(ValueError):  # noqa: N818 - not raised to users
    """A wait stands in front of what it waits for, or waits form a ring: no device would ever do this."""


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """When each work begins and ends; shape (n_works,), int64, in ns since the host began."""

    start_ns: Int64Array
    end_ns: Int64Array
    launched_ns: Int64Array  # when its launch lets it begin at the earliest

    @property
    def wall_ns(self) -> int:
        """From the first start to the last end, in ns."""
        return int(self.end_ns.max() - self.start_ns.min()) if len(self.end_ns) else 0


def replay(program: Program) -> Replayed:
    """Play a program, once; deterministic."""
    if program not in _PLAYED:
        _PLAYED[program] = _Replay(program).run()
    return _PLAYED[program]


_PLAYED: WeakKeyDictionary[Program, Replayed] = WeakKeyDictionary()
"""What was played; it is asked for again where changes are made on top of each other."""


def is_as_before(program: Program, changed: Program) -> bool:
    """Tell whether other waits of streams leave the course of a program as it is, so that it need not be played again.

    What is no longer waited for had ended before the work could begin anyhow, and what is waited for now had, too.
    """
    columns = ("works", "calls", "seats", "priorities", "card")
    if program.thread_count > 1 or any(getattr(program, name) is not getattr(changed, name) for name in columns):
        return False
    played = replay(program)
    end_ns, start_ns, free_ns = played.end_ns.tolist(), played.start_ns.tolist(), _free_ns(program, played)
    gone, new = program.waits - changed.waits, changed.waits - program.waits
    idle = all(end_ns[before] <= free_ns[after] for before, after in gone)
    return idle and all(end_ns[before] <= start_ns[after] for before, after in new)


def has_full_sms(program: Program) -> bool:
    """Tell whether any kernel of a program, as it is played, waits for room on the SMs, or for room for some of its blocks."""
    played = replay(program)
    ends_ns, ready_ns = played.end_ns.tolist(), _free_ns(program, played)
    for before, after in program.waits:
        ready_ns[after] = max(ready_ns[after], ends_ns[before])
    columns = zip(program.works, played.start_ns.tolist(), ends_ns, ready_ns, strict=True)
    return any(
        work.kind == KERNEL and (start_ns > since_ns or end_ns - start_ns > (1 + CLOSE_SHARE) * work.alone_ns + 1)
        for work, start_ns, end_ns, since_ns in columns
    )


def _free_ns(program: Program, played: Replayed) -> list[int]:
    """Return since when each work was launched and the one before it in its stream had ended, in ns."""
    found: list[int] = played.launched_ns.tolist()
    last: dict[int, int] = {}
    for place, (work, end_ns) in enumerate(zip(program.works, played.end_ns.tolist(), strict=True)):
        found[place] = max(found[place], last.get(work.lane, 0))
        last[work.lane] = max(end_ns, last.get(work.lane, 0))
    return found


def calibrate(program: Program, lasted_ns: Int64Array, rounds: int = MOST_ROUNDS) -> Program:
    """Find what each kernel takes alone: what lets it last in a replay as it did when it was recorded.

    A kernel that shared its SMs or the memory took longer than it takes alone. Of the rounds the best is kept.
    """
    is_kernel = np.array([work.kind == KERNEL for work in program.works], bool)
    best, best_ns = program, np.inf
    for _ in range(rounds):
        played = replay(program)
        took_ns = np.maximum(1, played.end_ns - played.start_ns)
        off_ns = np.abs(took_ns - lasted_ns)[is_kernel]
        if off_ns.sum() < best_ns:
            best, best_ns = program, float(off_ns.sum())
        if not (off_ns > np.maximum(1, CLOSE_SHARE * lasted_ns[is_kernel])).any():
            break
        alone_ns = np.array([work.alone_ns for work in program.works]) * np.where(is_kernel, lasted_ns / took_ns, 1.0)
        columns = zip(program.works, np.maximum(1, np.rint(alone_ns)).astype(np.int64).tolist(), strict=True)
        program = program.change(works=tuple(work._replace(alone_ns=ns) for work, ns in columns))
    return best


@lru_cache(maxsize=65_536)
def _spec(alone_ns: int, blocks: int, slots: int, sms: int, size_bytes: int, card: Card, *, is_whole: bool) -> KernelSpec:
    """Return a kernel as the scheduler takes it: a grid of equal blocks that alone takes this time on so many SMs."""
    fit = card.slots_per_sm // slots
    waves = -(-blocks // max(1, sms * fit))
    return KernelSpec(
        name="",
        blocks=blocks,
        block_slots=slots,
        block_ns=max(1, round(alone_ns / waves)),
        block_bytes=size_bytes // blocks,
        block_limit_bytes_per_s=round(SM_DRAWS * card.memory_bytes_per_s / card.sm_count / fit) if size_bytes else 0,
        is_cooperative=is_whole and waves == 1,
    )


class _Replay:
    """One playing of a program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        count = len(program.works)
        self._start_ns, self._end_ns = [-1] * count, [-1] * count
        engine_count, card_count = 2 + len(program.seats), 1 + max(program.cards, default=0)
        self._cards = [Scheduler(program.card, engine_count=engine_count, is_shielded=False) for _ in range(card_count)]
        for card in self._cards:
            card.observer, card.cards = self._take_in, self._cards
        self._streams: list[StreamQueue] = [
            self._cards[program.card_of(number)].add_stream(number, priority, seat)
            for number, (priority, seat) in enumerate(zip(program.priorities, program.seats, strict=True))
        ]
        self._marks = {before: Mark() for before, _ in program.waits}
        self._before: dict[int, list[int]] = {}
        for before, after in program.waits:
            self._before.setdefault(after, []).append(before)
        self._is_sent = [False] * count
        self._launched_ns = [0] * count
        self._left: dict[int, int] = {}  # By thread that stands in a wait: how much of what it waits for has not ended
        self._waiters: dict[int, list[int]] = {}  # By work: threads that wait for it
        self._ready: list[tuple[int, int]] = []  # When each thread that does not wait makes its next call, a heap
        self._calls: list[list[Call]] = [[] for _ in range(1 + max((call.thread for call in program.calls), default=-1))]
        for call in program.calls:
            self._calls[call.thread].append(call)
        self._next = [0] * len(self._calls)
        self._since_ns = [0] * len(self._calls)  # When the call began in which a thread stands, or what it waited for ended
        self._moved = any(work.lane != work.home for work in program.works)
        self._of_home: dict[int, list[int]] = {}
        for place, work in enumerate(program.works):
            self._of_home.setdefault(work.home, []).append(place)

    def run(self) -> Replayed:
        ready, first = self._ready, self._cards[0]
        for thread, calls in enumerate(self._calls):
            if calls:
                heapq.heappush(ready, (calls[0].gap_ns, thread))
        while ready or self._left:
            while self._left:
                card = first.next_card()
                if ready and card.next_ns >= ready[0][0]:
                    break
                if not any(one.busy_count for one in self._cards):
                    raise Impossible("The host waits for work that never ends.")
                card.step()
            if ready:
                now_ns, thread = heapq.heappop(ready)
                self._make(thread, self._calls[thread][self._next[thread]], now_ns)
        while (card := first.next_card()).next_ns < _END:
            card.step()
        end_ns = np.array(self._end_ns, np.int64)
        if (end_ns < 0).any():
            raise Impossible("Waits form a ring, so some work never begins.")
        return Replayed(np.array(self._start_ns, np.int64), end_ns, np.array(self._launched_ns, np.int64))

    def _take_in(self, done: DeviceWork) -> None:
        place = done.correlation
        self._start_ns[place], self._end_ns[place] = done.start_ns, done.end_ns
        for thread in self._waiters.pop(place, ()):
            self._since_ns[thread] = max(self._since_ns[thread], done.end_ns)
            self._left[thread] -= 1
            if not self._left[thread]:
                del self._left[thread]
                self._return(thread, self._since_ns[thread] + self._calls[thread][self._next[thread]].back_ns)

    def _return(self, thread: int, now_ns: int) -> None:
        """Let a call return; the next one of the thread follows."""
        self._next[thread] += 1
        calls = self._calls[thread]
        if self._next[thread] < len(calls):
            due_ns = max(now_ns + calls[self._next[thread]].gap_ns, *(card.now_ns for card in self._cards))
            heapq.heappush(self._ready, (due_ns, thread))

    def _make(self, thread: int, call: Call, now_ns: int) -> None:
        """Make a call; where it waits for work that has not ended, its thread stands still until then."""
        for place in call.works:
            self._launch(place, max(1, now_ns + call.latency_ns))
        if not call.awaits:
            self._return(thread, now_ns + call.cost_ns)
            return
        end_ns, since_ns, left = self._end_ns, now_ns, 0
        for place in self._all_awaited(call):
            if end_ns[place] >= 0:
                since_ns = max(since_ns, end_ns[place])
            elif self._is_sent[place]:
                left += 1
                self._waiters.setdefault(place, []).append(thread)
        if left:
            self._since_ns[thread], self._left[thread] = since_ns, left
        else:
            self._return(thread, since_ns + call.back_ns)

    def _all_awaited(self, call: Call) -> Sequence[int]:
        """Return what a call waits for: where work moved to other streams, of each of these the last that was in front."""
        if not self._moved or not call.awaits:
            return call.awaits
        works, found = self._program.works, {}
        for last in call.awaits:
            for place in self._of_home[works[last].home]:
                if place <= last:
                    found[works[last].home, works[place].lane] = place
        return list(found.values())

    def _launch(self, place: int, due_ns: int) -> None:
        work = self._program.works[place]
        stream = self._streams[work.lane]
        device = stream.card
        for before in self._before.get(place, ()):
            if not self._is_sent[before]:
                raise Impossible("Work would wait for what is launched only later.")
            device.submit(stream, Wait(self._marks[before]), due_ns)
        if work.kind == KERNEL:
            need = (work.alone_ns, work.blocks, work.slots, work.sms, work.size_bytes)
            device.submit_kernel(stream, _spec(*need, self._program.card, is_whole=work.is_whole), due_ns, place)
        else:
            engine = 0 if work.kind == UPLOAD else 1 if work.kind == DOWNLOAD else 2 + work.lane
            engine = 0 if engine == 1 and self._program.card.share_engine else engine
            device.submit(stream, CopyRun(stream, CopySpec("", engine, 0, work.alone_ns), place), due_ns)
        if place in self._marks:
            device.submit(stream, self._marks[place], due_ns)
        self._is_sent[place] = True
        self._launched_ns[place] = due_ns


_END = 1 << 62
