"""Changes of a program, as pure functions: what it would be if one thing were done in another way.

Where a change takes an order away that a wait gave, the data keep what is needed of it: see `_needed_waits`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from gpustreamlab.analysis._data_order import Memory, Touch
from gpustreamlab.analysis._needed_waits import across, host_orders, kept_for_opaque, needed_calls
from gpustreamlab.analysis._program import DOWNLOAD, KERNEL, UPLOAD, Call, Program, Work
from gpustreamlab.typing import Int64Array

SMALL_BYTES = 1 << 16
"""A smaller copy of pageable memory is a value that the host reads: the wait is the cause, not the memory."""
COPY_NS = 1_500
"""What a copy takes besides its bytes, about."""
HELD_UP_TIMES = 10  # How many times as long as most a launch takes that was held up
MOST_SPACING_NS = 100_000
"""Between launches that follow closer than this the host does little else; what it does more is no matter of a graph."""
LEAST_SPACING_NS = 20_000
"""A launch follows another one as closely as this, in Python."""
ROLES = ("uploads", "kernels", "downloads")
"""Streams of a program of which each does one kind of work."""
LEAST_BLOCK = 4
"""From so many launches on one stream in a row on, in the mean, it is worth to launch in turn."""
MOST_FIRST = 8
"""Of up to so many streams it is tried what a priority gains."""
FEWEST_NODES = 4
"""From how many launches on a graph is worth it."""
MOST_PERIOD, MOST_NODES = 256, 64
"""The longest body of a loop that is looked for, in launches; and up to how many launches some turns of it are one graph."""
INSTANTIATE_NS, INSTANTIATE_NODE_NS = 20_000, 4_000
"""What it costs the host to make a graph of what was captured, and each node of it, its first launch included.

Source: an H200, CuPy: 74, 62 and 330 us of 8, 16 and 64 nodes."""
MOST_TRIES = 8
"""So many lengths of a turn are looked at closely."""
REPEATED_SHARE = 0.75
"""How much of the launches has to be turns of one loop."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A program and what its work touches: what changes are made to."""

    program: Program
    memory: Memory
    rates: Mapping[int, float]
    """Bytes per second of copies of page-locked memory, by `UPLOAD` and `DOWNLOAD`; what is missing is not known."""
    wait_ns: int = 0
    """What it takes the host to let a stream wait for another one."""
    share: float = 1.0
    """Of a longer run, where it is a piece of one."""

    def with_program(self, **changed: object) -> Run:
        """Return the same with another program."""
        return replace(self, program=self.program.change(**changed))


Change = Callable[[Run], Run | None]
"""None where there is nothing to change."""


def with_cost_of_calls(before: Run, after: Run, wait_ns: int) -> Run:
    """Let the host pay for the waits that a change adds: it records an event and calls for each, in front of the launch."""
    if before.program.waits == after.program.waits and before.program.works == after.program.works:
        return after
    more = _wait_counts(after.program) - _wait_counts(before.program)

    def paid(call: Call) -> Call:
        return call._replace(gap_ns=call.gap_ns + wait_ns * sum(more[place] for place in call.works))

    return after.with_program(calls=tuple(map(paid, after.program.calls))) if more else after


def with_dear_calls(before: Run, after: Run, call_ns: int) -> Run:
    """Let the host pay so much for each wait that changes add, and for each time more that it launches on another stream."""
    after = with_cost_of_calls(before, after, call_ns)
    more = max(0, _switch_count(after.program) - _switch_count(before.program))
    share_ns = call_ns * more // max(1, sum(bool(call.works) for call in after.program.calls))
    calls = (call._replace(gap_ns=call.gap_ns + share_ns * bool(call.works)) for call in after.program.calls)
    return after.with_program(calls=tuple(calls)) if share_ns else after


def _switch_count(program: Program) -> int:
    """Return how often the next launch of the host is on another stream."""
    lanes = [program.works[call.works[0]].lane for call in program.calls if call.works]
    return sum(lane != before for before, lane in pairwise(lanes))


def _wait_counts(program: Program) -> Counter[int]:
    """Return for how many streams each work has to wait, but for those for which its stream waited as long before."""
    counts, until = Counter[int](), dict[tuple[int, int], int]()
    for source, target in sorted(program.waits, key=lambda wait: (wait[1], -wait[0])):
        lanes = program.works[target].lane, program.works[source].lane
        if until.get(lanes, -1) < source and lanes[0] != lanes[1]:
            until[lanes] = source
            counts[target] += 1
    return counts


# Memory of the host


def pinned(run: Run, kinds: Collection[int] = (UPLOAD, DOWNLOAD)) -> Run | None:
    """Let copies of some size be of page-locked memory: faster, and the host goes on. Orders that the host gave stay."""
    program = run.program
    hit = frozenset(place for place in large_pageable(program) if program.works[place].kind in kinds)
    if not hit or any(program.works[place].kind not in run.rates for place in hit):
        return None
    works = tuple(
        work._replace(is_pageable=False, alone_ns=_pinned_ns(run, work)) if place in hit else work
        for place, work in enumerate(program.works)
    )
    calls = {number for number, call in enumerate(program.calls) if call.awaits and hit.intersection(call.works)}
    changed = run.with_program(works=works)
    return without_waits(changed, calls) or changed


def large_pageable(program: Program) -> list[int]:
    """Return the copies of pageable memory that are more than a value."""
    return [place for place, work in enumerate(program.works) if work.is_pageable and work.size_bytes > SMALL_BYTES]


def _pinned_ns(run: Run, work: Work) -> int:
    return min(work.alone_ns, int(work.size_bytes / run.rates[work.kind] * 1e9) + COPY_NS)


# Waits of the host


def host_waits(program: Program) -> dict[int, bool]:
    """Return the waits of the host that hold up launches, by their places in `Program.calls`, and which await several streams.

    Copies of pageable memory of some size are no waits: that is `pinned`.
    """
    last = max((number for number, call in enumerate(program.calls) if call.works), default=-1)
    large = frozenset(large_pageable(program))
    return {
        number: call.is_of_device
        for number, call in enumerate(program.calls[: last + 1])
        if call.awaits and not call.ends_cell and not large.intersection(call.works) and (number < last or call.works)
    }


def without_waits(run: Run, numbers: Iterable[int], *, even_needed: bool = False) -> Run | None:
    """Leave out some waits of the host but those that it may need; streams wait in their place, as far as data ask for it."""
    program = run.program
    left_out = frozenset(numbers) - (frozenset() if even_needed else needed_calls(program, run.memory))
    if not left_out:
        return None
    calls = tuple(_not_waiting(call) if number in left_out else call for number, call in enumerate(program.calls))
    orders = host_orders(program, left_out)
    waits = program.waits | across(program, run.memory.edges()) | kept_for_opaque(program, run.memory, orders)
    return run.with_program(calls=calls, waits=waits)


def _not_waiting(call: Call) -> Call:
    return call._replace(awaits=(), back_ns=0, cost_ns=call.latency_ns if call.works else 0)


def no_host_waits(run: Run) -> Run | None:
    """Leave out all waits of the host that it does not need."""
    return without_waits(run, host_waits(run.program))


def device_waits(run: Run) -> Run | None:
    """Make each wait of the host one of all streams that it launches on next."""
    program = run.program
    numbers = frozenset(host_waits(program))
    if not numbers:
        return None
    calls = tuple(_not_waiting(call) if number in numbers else call for number, call in enumerate(program.calls))
    waits = across(program, program.waits | host_orders(program, numbers))
    return run.with_program(calls=calls, waits=waits)


# Waits of streams


def fine_waits(run: Run, buffers: int = 1) -> Run | None:
    """Let streams wait for what their data ask for, and for nothing else; with more buffers writes wait for less."""
    program = run.program
    kept = kept_for_opaque(program, run.memory, program.waits)
    waits = across(program, run.memory.edges(buffers) | _moved_opaque(run)) | kept
    return None if waits == program.waits else run.with_program(waits=waits)


def two_buffers(run: Run) -> Run | None:
    """Let writes that replace an array write another one meanwhile, in turn."""
    return fine_waits(run, 2)


# Streams


def by_role(run: Run) -> Run | None:
    """Give uploads, kernels and downloads a stream each."""
    places = {UPLOAD: 0, KERNEL: 1, DOWNLOAD: 2}
    return spread(run, [places.get(work.kind, 1) for work in run.program.works], ROLES)


def _kinds_of(program: Program) -> dict[int, set[int]]:
    """Return which kinds of work each stream has."""
    kinds: dict[int, set[int]] = {}
    for work in program.works:
        kinds.setdefault(work.lane, set()).add(work.kind)
    return kinds


def lanes_of_copies_both_ways(program: Program) -> list[int]:
    """Return the streams that copy both ways, and do nothing else: two of them use one engine in turns, and leave the other."""
    return [lane for lane, own in _kinds_of(program).items() if own == {UPLOAD, DOWNLOAD}]


def split_copies(run: Run) -> Run | None:
    """Give copies streams of their own where they share one with copies the other way, or with the only stream of kernels.

    Where several streams have kernels each may do all of its own batches, copies too.
    """
    program = run.program
    kinds = _kinds_of(program)
    with_kernels = [lane for lane, own in kinds.items() if KERNEL in own]
    if len(kinds) < 2 or not run.memory.is_known or any(program.seats) or any(program.priorities):
        return None
    lane_of: dict[tuple[int, int], int] = {}
    for lane, own in kinds.items():
        mixed = own & {UPLOAD, DOWNLOAD}
        if with_kernels == [lane] and mixed:
            lane_of |= {(lane, kind): len(program.seats) + (kind == DOWNLOAD) for kind in mixed}
        elif lane not in with_kernels and mixed == {UPLOAD, DOWNLOAD}:
            lane_of[lane, DOWNLOAD] = len(program.seats) + 1
    places = {place: lane_of[key] for place, work in enumerate(program.works) if (key := (work.lane, work.kind)) in lane_of}
    seats, priorities = (*program.seats, None, None), (*program.priorities, 0, 0)
    changed = moved(run.with_program(seats=seats, priorities=priorities), places)
    return changed and changed.with_program(waits=across(changed.program, run.memory.edges()))


def in_streams(run: Run, count: int) -> Run | None:
    """Let kernels go in turn on some streams, each behind what it needs; copies each way have one."""
    kinds = [work.kind for work in run.program.works]
    behind = {after: before for before, after in sorted(run.memory.edges()) if kinds[before] == KERNEL}
    lanes, turn, taken = [], 0, set[int]()
    for place, work in enumerate(run.program.works):
        if work.kind != KERNEL:
            lanes.append(count + (work.kind == DOWNLOAD))
            continue
        before = behind.get(place, -1)
        if before >= 0 and before not in taken:  # what follows a kernel goes on in its stream, the first that does
            taken.add(before)
            lanes.append(lanes[before])
        else:
            lanes.append(turn % count)
            turn += 1
    return spread(run, lanes, (*(f"kernels-{number}" for number in range(1, count + 1)), *ROLES[::2]))


def spread(run: Run, lanes: Sequence[int], names: tuple[str, ...]) -> Run | None:
    """Give the work other streams; only data order it then, and opaque work all. No partition or priority may be set."""
    program = run.program
    if any(program.seats) or any(program.priorities) or run.memory.is_opaque.all() or len(set(lanes)) < 2:
        return None
    works = tuple(work._replace(lane=lane) for work, lane in zip(program.works, lanes, strict=True))
    changed = run.with_program(works=works, seats=(None,) * len(names), priorities=(0,) * len(names), names=names)
    return changed.with_program(waits=across(changed.program, run.memory.edges() | _moved_opaque(changed)))


def _moved_opaque(run: Run) -> set[tuple[int, int]]:
    """Return what keeps opaque work of a run in other streams behind all that was in front of it, and all else behind it."""
    lanes = np.array([work.lane for work in run.program.works])
    if all(work.lane == work.home for work in run.program.works):
        return set()  # what its own streams kept is known
    opaque = np.flatnonzero(run.memory.is_opaque)
    found: set[tuple[int, int]] = set()
    for lane in np.unique(lanes):
        own = np.flatnonzero(lanes == lane)
        before, behind = np.searchsorted(own, opaque), np.searchsorted(own, opaque, side="right")
        is_first, is_last = before == 0, behind == len(own)
        found.update(zip(own[before[~is_first] - 1].tolist(), opaque[~is_first].tolist(), strict=True))
        found.update(zip(opaque[~is_last].tolist(), own[behind[~is_last]].tolist(), strict=True))
    return found


def in_one_stream(run: Run, places: Collection[int] | None = None) -> Run | None:
    """Put all work, or some by its places, in one stream, in the order of its launches."""
    program = run.program
    chosen = frozenset(range(len(program.works)) if places is None else places)
    if len({program.works[place].lane for place in chosen}) < 2:
        return None
    lane = len(program.seats)
    works = tuple(work._replace(lane=lane) if place in chosen else work for place, work in enumerate(program.works))
    seats, priorities = (*program.seats, None), (*program.priorities, 0)
    changed = run.with_program(works=works, seats=seats, priorities=priorities)
    return changed.with_program(waits=across(changed.program, program.waits))


def moved(run: Run, lanes: Mapping[int, int]) -> Run | None:
    """Let some work run in other streams of the program, behind what it needs of those that it leaves."""
    program = run.program
    if not lanes or run.memory.is_opaque[[*lanes]].any():
        return None
    works = tuple(work._replace(lane=lanes[place]) if place in lanes else work for place, work in enumerate(program.works))
    changed = run.with_program(works=works)
    return changed.with_program(waits=across(changed.program, program.waits | run.memory.edges()))


def dealt_evenly(run: Run, lanes: Collection[int]) -> Run | None:
    """Deal the jobs of some streams to these anew, each to the one that has least to do so far.

    A job is all work that shares arrays, or waits for each other; where nothing is known of the data each work is one.
    """
    program = run.program
    orders = run.memory.edges() | program.waits if run.memory.is_known else program.waits
    done_ns, moves = dict.fromkeys(lanes, 0), dict[int, int]()
    for job in _jobs(len(program.works), orders):
        homes = {program.works[place].lane for place in job}
        if len(homes) > 1 or not homes <= done_ns.keys():
            continue
        (home,) = homes
        lane = min(done_ns, key=lambda one: (done_ns[one], one != home))
        done_ns[lane] += sum(program.works[place].alone_ns for place in job)
        moves |= dict.fromkeys(job, lane) if lane != home else {}
    if not moves:
        return None
    works = tuple(work._replace(lane=moves.get(place, work.lane)) for place, work in enumerate(program.works))
    return run.with_program(works=works)


def _jobs(count: int, orders: Iterable[tuple[int, int]]) -> Iterable[list[int]]:
    """Return work that is held together by orders, in the order of the first of each."""
    first = list(range(count))

    def first_of(place: int) -> int:
        while first[place] != place:
            first[place] = first[first[place]]
            place = first[place]
        return place

    for before, after in orders:
        one, other = sorted((first_of(before), first_of(after)))
        first[other] = one
    jobs: dict[int, list[int]] = {}
    for place in range(count):
        jobs.setdefault(first_of(place), []).append(place)
    return jobs.values()


def apart(run: Run, places: Collection[int]) -> Run | None:
    """Give some work a stream of its own, behind what it needs."""
    program = run.program
    lane = len(program.seats)
    seats, priorities = (*program.seats, None), (*program.priorities, 0)
    return moved(run.with_program(seats=seats, priorities=priorities), dict.fromkeys(places, lane))


# SMs


def whole_card(run: Run) -> Run | None:
    """Let all streams use all SMs."""
    seats = run.program.seats
    return run.with_program(seats=(None,) * len(seats)) if any(seats) else None


def other_part(run: Run) -> list[Run]:
    """Return what is to be tried: each stream of a partition in each one where nothing runs."""
    program = run.program
    free = [part.sms for part in program.parts if part.sms not in program.seats]
    return [
        run.with_program(seats=(*program.seats[:lane], sms, *program.seats[lane + 1 :]))
        for sms in free
        for lane, seat in enumerate(program.seats)
        if seat
    ]


def with_priorities(run: Run, levels: Mapping[int, int]) -> Run:
    """Give some streams other priorities; a lower number goes first."""
    priorities = tuple(levels.get(lane, priority) for lane, priority in enumerate(run.program.priorities))
    card = run.program.card._replace(priority_range=(max(0, *priorities), min(0, *priorities)))
    return run.with_program(priorities=priorities, card=card)


def first_of_all(run: Run) -> list[Run]:
    """Return what is to be tried: each stream with kernels before all others, where there are several."""
    lanes = sorted({work.lane for work in run.program.works if work.kind == KERNEL})
    if not 2 <= len(lanes) <= MOST_FIRST:
        return []
    priorities = run.program.priorities
    first = min(priorities) - 1
    return [with_priorities(run, {lane: first}) for lane in lanes if priorities[lane] > first + 1 or not any(priorities)]


# Launches


def streams_before(run: Run) -> Run | None:
    """Make streams before the run."""
    if not any(call.makes_stream for call in run.program.calls):
        return None
    calls = tuple(call._replace(cost_ns=0) if call.makes_stream else call for call in run.program.calls)
    return run.with_program(calls=calls)


def calls_of(run: Run, rows: Collection[int], cost_ns: int) -> Run | None:
    """Let some calls, by their rows, take so long at most, and wait for nothing; their work begins as that of others does."""
    chosen = frozenset(rows)
    latencies_ns = [call.latency_ns for call in run.program.calls if call.works]
    usual_ns = int(np.median(latencies_ns)) if latencies_ns else 0

    def quick(call: Call) -> Call:
        latency_ns = min(call.latency_ns, usual_ns)
        return call._replace(cost_ns=min(cost_ns, call.cost_ns), awaits=(), back_ns=0, latency_ns=latency_ns)

    calls = tuple(quick(call) if call.row in chosen else call for call in run.program.calls)
    return run.with_program(calls=calls) if calls != run.program.calls else None


def launched_at_once(run: Run, rows: Collection[int]) -> Run | None:
    """Launch some work, by its rows, as soon as the host has made its call before: what it did in between is done elsewhere."""
    works = run.program.works
    spacing_ns = min([LEAST_SPACING_NS, *(call.gap_ns for call in run.program.calls[1:] if call.works)])
    calls = tuple(
        call._replace(gap_ns=min(call.gap_ns, spacing_ns)) if any(works[place].row in rows for place in call.works) else call
        for call in run.program.calls
    )
    return run.with_program(calls=calls) if run.program.has_calls and calls != run.program.calls else None


def is_in_blocks(program: Program) -> bool:
    """Tell whether launches come stream by stream, many of one in a row."""
    lanes = [program.works[place].lane for call in program.calls for place in call.works]
    rows = 1 + sum(lane != before for before, lane in pairwise(lanes))
    return len({*lanes}) > 1 and len(lanes) >= LEAST_BLOCK * rows


def in_turn(run: Run) -> Run | None:
    """Launch what stands between two waits of the host stream by stream in turn, each after what it waits for."""
    program = run.program
    if program.thread_count > 1:
        return None  # each thread has an order of its own
    before: dict[int, list[int]] = {}
    for source, target in program.waits:
        before.setdefault(target, []).append(source)
    done: set[int] = set()
    found: list[Call] = []
    stretch: list[Call] = []
    for call in (*program.calls, None):
        if call is not None and not call.awaits:
            stretch.append(call)
            continue
        found += _in_turn(program, stretch, before, done)
        stretch = []
        if call is not None:
            found.append(call)
            done.update(call.works)
    return None if tuple(found) == program.calls else run.with_program(calls=tuple(found))


def _in_turn(program: Program, stretch: Sequence[Call], before: Mapping[int, Sequence[int]], done: set[int]) -> list[Call]:
    """Order the launches of a stretch; a call that launches nothing goes with the launch behind it."""
    units: dict[int, deque[list[Call]]] = {}
    unit: list[Call] = []
    for call in stretch:
        unit.append(call)
        if call.works:
            units.setdefault(program.works[call.works[0]].lane, deque()).append(unit)
            unit = []
    found: list[Call] = []
    while any(units.values()):
        count = len(found)
        for own in units.values():
            if own and all(source in done for place in own[0][-1].works for source in before.get(place, ())):
                found += own[0]
                done.update(own.popleft()[-1].works)
        if len(found) == count:  # a wait for what is launched elsewhere
            found += [call for own in units.values() for rest in own for call in rest]
            break
    return found + unit


def in_threads(run: Run) -> Run | None:
    """Let each stream have a thread that launches on it, all at the same time; what launches nothing goes with what follows."""
    if len({work.lane for work in run.program.works}) < 2:
        return None
    calls: list[Call] = []
    before: list[Call] = []
    thread = 0
    for call in run.program.calls:
        before.append(call)
        if call.works:
            thread = run.program.works[call.works[0]].lane
            calls += [one._replace(thread=thread) for one in before]
            before = []
    return run.with_program(calls=(*calls, *(one._replace(thread=thread) for one in before)))


def as_graph(run: Run, call_ns: int, node_ns: int) -> Run | None:
    """Launch what stands between two waits of the host in one call, as a CUDA graph: so long for it, and so long for each."""
    return _in_graphs(run, range(len(run.program.works)), frozenset(), call_ns, node_ns)


def repeats_as_graph(
    run: Run, call_ns: int, node_ns: int, *, turns: int | None = None, loop: tuple[int, int, int] | None = None
) -> Run | None:
    """Launch turns of a loop as a graph: only where each uses the memory of the one before, as a graph keeps its addresses.

    So many turns at once, as many as take the host least if None; of the loop with its first work, the one behind it, and how
    many a turn has. It is launched twice at least, and its capture is paid for, by a piece of a run its share of that.
    """
    found = loop or find_repeats(run)
    if found is None:
        return None
    begin, end, period = found
    calls = [call for call in run.program.calls if call.works]
    launch_ns = int(np.median([call.gap_ns + call.cost_ns for call in calls]))
    nodes = round(((end - begin) * call_ns / max(1, launch_ns)) ** 0.5)  # which take as long to capture as all graphs to launch
    size = turns or max(-(-FEWEST_NODES // period), min(nodes, MOST_NODES, (end - begin) // 2) // period)
    captured = frozenset(range(begin, begin + size * period))
    capture_ns = sum(call.gap_ns + call.cost_ns for call in calls if captured & {*call.works})
    made_ns = round(run.share * (capture_ns + INSTANTIATE_NS + INSTANTIATE_NODE_NS * len(captured)))
    changed = _in_graphs(run, range(begin, end), frozenset(range(begin, end, size * period)), call_ns, node_ns)
    graphs = [call for call in changed.program.calls if len(call.works) > 1] if changed else []
    if changed is None or len(graphs) < 2:
        return None
    again = graphs[1]  # not the first: a run's time begins with its first work
    paid = again._replace(gap_ns=again.gap_ns + made_ns)
    return changed.with_program(calls=tuple(paid if call is again else call for call in changed.program.calls))


def _in_graphs(run: Run, places: Collection[int], cuts: Collection[int], call_ns: int, node_ns: int) -> Run | None:
    """Launch some work as graphs; a wait of the host, or one of some places, begins another one."""
    if run.program.thread_count > 1:
        return None  # each thread has launches of its own
    calls: list[Call] = []
    stretch: list[Call] = []
    for call in (*run.program.calls, None):
        is_close = call is not None and (call.gap_ns <= MOST_SPACING_NS or not stretch)
        is_same = call is not None and not (call.works and call.works[0] in cuts)
        if call is not None and is_close and is_same and not call.awaits and all(place in places for place in call.works):
            stretch.append(call)
            continue
        calls += _as_graph(stretch, call_ns, node_ns)
        stretch = []
        if call is not None:
            is_outside = call.awaits or not all(place in places for place in call.works)
            (calls if is_outside else stretch).append(call)
    return run.with_program(calls=tuple(calls))


def _as_graph(stretch: Sequence[Call], call_ns: int, node_ns: int) -> list[Call]:
    launches = [call for call in stretch if call.works]
    if len(launches) < FEWEST_NODES or len({call.thread for call in stretch}) > 1:
        return list(stretch)
    first = launches[0]
    places = tuple(place for call in launches for place in call.works)
    # What held the host up once, as the system does, would have held up this call, too.
    lasted_ns = np.array([call.gap_ns + call.cost_ns for call in launches[1:]], np.int64)
    usual_ns = int(np.median(lasted_ns))
    held_up_ns = int((lasted_ns - usual_ns)[lasted_ns > HELD_UP_TIMES * usual_ns].sum())
    cost_ns = call_ns + node_ns * len(places) + held_up_ns
    gap_ns = stretch[0].gap_ns
    return [first._replace(gap_ns=gap_ns, cost_ns=cost_ns, works=places, latency_ns=first.latency_ns - first.cost_ns + cost_ns)]


def find_repeats(run: Run) -> tuple[int, int, int] | None:
    """Find turns of a loop that launch the same on the same memory: from which work on, until which, and how long one is."""
    works, touches = run.program.works, run.memory.touches
    spans: dict[int, list[int]] = {}  # By buffer that work itself makes: the first and the last work that uses it
    for place, some in enumerate(touches):
        read = {touch.buffer for touch in some or () if touch.is_host or not touch.is_write}
        for touch in some or ():
            first = -MOST_PERIOD if touch.buffer in read else place  # what was there before lives on from then
            spans.setdefault(touch.buffer, [first, place])[1] = place
    plain = [(work.lane, work.kind, work.name, work.blocks, work.size_bytes) for work in works]
    # What lives on through the longest turn is the same memory in each, whatever the turn.
    rough = _codes([(*key, _lasting(some, spans)) for key, some in zip(plain, touches, strict=True)])
    tries = 0
    for period in range(1, min(MOST_PERIOD, len(works) // 2) + 1):
        if _longest(rough, period)[1] < REPEATED_SHARE * len(works):
            continue
        keys = _codes([(*plain[place], _relative(some, place, period, spans)) for place, some in enumerate(touches)])
        begin, count = _longest(keys, period)
        if count >= max(2 * period, REPEATED_SHARE * len(works)):
            return begin, begin + count, period
        tries += 1
        if tries == MOST_TRIES:
            break
    return None


def _codes(keys: Sequence[object]) -> Int64Array:
    """Return a number for each key, the same for the same."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


def _longest(codes: Int64Array, period: int) -> tuple[int, int]:
    """Return from where on, and for how many, codes are those one period before; the first period counts."""
    others = np.flatnonzero(codes[period:] != codes[:-period])
    edges = np.concatenate(([-1], others, [len(codes) - period]))
    longest = int(np.argmax(np.diff(edges)))
    return int(edges[longest]) + 1, int(edges[longest + 1] - edges[longest]) - 1 + period


def _lasting(touches: Sequence[Touch] | None, spans: Mapping[int, Sequence[int]]) -> object:
    """Return the memory that work touches which lives on for long; of memory of the host all."""
    if touches is None:
        return object()  # like nothing else
    return tuple(one for one in touches if spans[one.buffer][1] - spans[one.buffer][0] >= MOST_PERIOD)


def _relative(touches: Sequence[Touch] | None, place: int, period: int, spans: Mapping[int, Sequence[int]]) -> object:
    """Return what work touches; arrays that live for less than a turn, as results between, count by when they were made."""
    if touches is None:
        return object()
    found = []
    for touch in touches:
        first, last = spans[touch.buffer]
        is_short = last - first < period
        found.append((is_short, place - first if is_short else touch.buffer, *touch[1:]))
    return tuple(found)
