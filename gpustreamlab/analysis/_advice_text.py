"""What a change is: what happened without it, and the lines to type, for the program at hand."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from gpustreamlab.analysis import _changes as changes
from gpustreamlab.analysis._advice import ENOUGH_SHARE, ONE_STREAM_SHARE, Step
from gpustreamlab.analysis._explain_text import LESS_LAUNCHES, THEN_WAIT
from gpustreamlab.analysis._needed_waits import across, host_orders
from gpustreamlab.analysis._program import DOWNLOAD, KERNEL, UPLOAD, Call, Program
from gpustreamlab.analysis._replay import replay
from gpustreamlab.analysis._scale import count_text, format_ns
from gpustreamlab.model import Trace, display_name
from gpustreamlab.typing import Cause, LaneKind

_NAME_WIDTH = 40
_MOST_NAMES = 3
_MOST_LINES = 8
"""So many waits are told one by one; of more it is said that there are more."""


def step_texts(trace: Trace, step: Step) -> tuple[str, str]:
    """Return what happened, and what to type; the latter is empty where the cause's own advice says it."""
    return _TEXTS[step.key](trace, step)


def _pinned(trace: Trace, step: Step) -> tuple[str, str]:
    before, after = step.before.program, step.after.program
    told, lines = [], []
    for kind, where in ((UPLOAD, "to the device"), (DOWNLOAD, "to the host")):
        own = [place for place in changes.large_pageable(before) if before.works[place].kind == kind]
        if own:
            size = sum(before.works[one].size_bytes for one in own)
            lasted_ns = sum(before.works[one].alone_ns for one in own)
            rate = size / max(1, sum(after.works[one].alone_ns for one in own))
            told.append(
                f"{count_text(len(own), 'copy', 'copies')} of pageable memory {where}, {size / 1e6:,.1f} MB at "
                f"{size / max(1, lasted_ns):.0f} GB/s, held up the host; page-locked memory gives {rate:.0f} GB/s."
            )
            lines.append("x.get(out=pinned, blocking=False)" if kind == DOWNLOAD else "x.set(pinned)")
    fix = f"Let the host's side be pinned = lab.memory.pinned_empty(shape, dtype), then {' and '.join(lines)}."
    waits = _new_waits(trace, step, "As the host then goes on, streams must wait: ") or _waits_behind_copies(trace, step)
    keep = "Before the host reads or writes over pinned, let it wait for that copy."
    return " ".join(told), " ".join(filter(None, [fix, waits, keep]))


def _waits_behind_copies(trace: Trace, step: Step) -> str:
    """Say which streams have to wait for copies that no longer block, where only the host saw to that: those that use them."""
    program, memory, copies = step.before.program, step.before.memory, {*step.places}
    blocking = [number for number, call in enumerate(program.calls) if call.awaits and not copies.isdisjoint(call.works)]
    orders = across(program, host_orders(program, blocking))
    if memory.is_known:
        orders = frozenset(pair for pair in across(program, memory.edges()) if pair[0] in copies)
    waited = _lane_pairs(program, program.waits)
    new = [pair for pair in _lane_pairs(program, orders) if pair not in waited]
    name = _namer(trace, step)
    typed = ", ".join(f"lab.stream({name(second)}).wait({name(first)})" for first, second in new[:_MOST_LINES])
    return f"{THEN_WAIT}{typed}{_so_on(len(new))}." if new else ""


def _host_waits(trace: Trace, step: Step) -> tuple[str, str]:
    before, after = step.before.program, step.after.program
    kept = frozenset(after.calls)
    gone = [call for call in before.calls if call.awaits and call not in kept]
    names = sorted({trace.names[trace.name[call.row]] for call in gone if call.row >= 0})
    text = f"The host waited {count_text(len(gone), 'time')} in {_listed(names)} before it launched more."
    if step.cause is Cause.ALLOC_SYNC:
        return text, ""
    values = [call for call in gone if call.works and before.works[call.works[0]].kind != UPLOAD]
    small = [call for call in gone if call.works and before.works[call.works[0]].kind == UPLOAD]
    copies = [call for call in gone if not call.works and _is_behind_copy(before, call)]
    lines = []
    if values:
        lines.append("Read values such as float(x) or x.item() only behind the loop, if no launch depends on one: each waits.")
    if small:
        lines.append("Copy small arrays from pinned memory, too: lab.memory.pinned_empty(shape, dtype).")
    if copies:
        lines.append("Copy to pinned memory without blocking, x.get(out=pinned, blocking=False), and wait once, at the end.")
    waits = _new_waits(trace, step, "Let streams wait in place of the host: ")
    if waits:
        lines.append(waits)
    elif len(values) + len(small) + len(copies) < len(gone):
        known = "Leave these waits out: what is launched behind them needs nothing of what they wait for."
        lines.append(known if step.before.memory.is_known else "Leave these waits out: streams keep their order without them.")
    if len(values) < len(gone):
        lines.append("Where the host itself reads a result, or writes over what is copied, keep the wait.")
    return text, " ".join(lines)


def _is_behind_copy(program: Program, call: Call) -> bool:
    """Tell whether a call waits for one copy to the host, as `get` does."""
    return len(call.awaits) == 1 and program.works[call.awaits[0]].kind == DOWNLOAD


def _new_waits(trace: Trace, step: Step, head: str) -> str:
    """Say which streams now have to wait for which, where the host saw to that before."""
    name = _namer(trace, step)
    known = _lane_pairs(step.before.program, step.before.program.waits)
    new = [pair for pair in _lane_pairs(step.after.program, step.after.program.waits) if pair not in known]
    if not new:
        return ""
    own = [pair for pair in new if not any(_is_foreign(trace, lane) for lane in pair)]
    typed = _typed_waits(trace, step.after.program, own, name)
    said = [f"{head}{typed}."] if own else []
    for lane in sorted({lane for pair in new for lane in pair if _is_foreign(trace, lane)})[:_MOST_LINES]:
        others = sorted({name(other) for pair in new if lane in pair for other in pair if other != lane})
        said.append(
            f"{name(lane)} shares arrays with {_listed(others)}: launch its work with lab.on(...), and let one stream wait for "
            "the other, or call lab.synchronize() once in between."
        )
    return " ".join(said)


def _typed_waits(trace: Trace, program: Program, pairs: Sequence[tuple[int, int]], name: Callable[[int], str]) -> str:
    """Return what lets streams wait for others: for all that is launched there until then, or for an event of less."""
    needed = _last_waits(program)
    typed = []
    for pair in pairs[:_MOST_LINES]:
        first, second = (name(lane) for lane in pair)
        on_first = [place for place, work in enumerate(program.works) if work.lane == pair[0]]
        if all(on_first[bisect_left(on_first, after) - 1] == before for after, before in needed.get(pair, {}).items()):
            typed.append(f"lab.stream({second}).wait({first})")
        else:  # more is launched there by then, which would be waited for, too
            last = _name_of(trace, program, max(needed[pair].values()))
            typed.append(f"done = lab.stream({first}).record() right behind {last}, later lab.stream({second}).wait(done)")
    return ", ".join(typed) + _so_on(len(pairs))


def _last_waits(program: Program) -> dict[tuple[int, int], dict[int, int]]:
    """Return by pair of streams, and by work of the second one, the last work of the first that it waits for."""
    found: dict[tuple[int, int], dict[int, int]] = {}
    for before, after in sorted(program.waits):
        found.setdefault((program.works[before].lane, program.works[after].lane), {})[after] = before
    return found


def _is_implied(pair: tuple[int, int], waits: Mapping[tuple[int, int], Mapping[int, int]]) -> bool:
    """Tell whether each wait between two streams is one by way of a third."""
    first, second = pair

    def by_way(after: int, before: int) -> bool:
        for (lane, target), of_lane in waits.items():
            if target == second and after in of_lane and lane != first:
                earlier = [source for at, source in waits.get((first, lane), {}).items() if at <= of_lane[after]]
                if max(earlier, default=-1) >= before:
                    return True
        return False

    return all(by_way(after, before) for after, before in waits.get(pair, {}).items())


def _so_on(count: int) -> str:
    """Say that there are more pairs of streams than were told."""
    return f", and so for {count_text(count - _MOST_LINES, 'pair')} of streams more" if count > _MOST_LINES else ""


def _is_foreign(trace: Trace, lane: int) -> bool:
    """Tell whether a stream is not of the session though others are: it has no name there, so that none can wait for it."""
    are_outside = [one.outside for one in trace.lanes if one.kind is LaneKind.STREAM]
    return lane < len(trace.lanes) and trace.lanes[lane].outside and not all(are_outside)


def _fine_waits(trace: Trace, step: Step) -> tuple[str, str]:
    name = _namer(trace, step)
    after = step.after.program
    needed = _lane_pairs(after, after.waits)
    told: list[str] = []
    lines: list[str] = []
    left_out = []
    last = _last_waits(after)
    for pair in pairs_changed(step):
        first, second = (name(lane) for lane in pair)
        if pair not in needed:
            left_out.append((first, second))
        elif len(told) < _MOST_NAMES:
            told.append(f"{second} waited for more of {first} than it uses.")
            lines.append(
                f"Record an event right behind {_name_of(trace, after, max(last[pair].values()))} on {first}, and let {second} "
                "wait for the one that it needs: "
                f"done = lab.stream({first}).record(), then lab.stream({second}).wait(done)."
            )
    told += [f"{second} waited for {first} and uses nothing of it." for first, second in left_out[:_MOST_NAMES]]
    if left_out:
        typed = ", ".join(f"lab.stream({second}).wait({first})" for first, second in left_out[:_MOST_LINES])
        lines.append(f"Leave out {typed}{_so_on(len(left_out))}: no array asks for it.")
    return " ".join(told), " ".join([*lines, *filter(None, [_new_waits(trace, step, "Instead: ")])])


def pairs_changed(step: Step) -> list[tuple[int, int]]:
    """Return between which streams other waits are told: those that can go, where that gains nearly all, else all."""
    before, after, works = step.before.program, step.after.program, step.before.program.works
    needed = _lane_pairs(after, after.waits)
    changed = [*_lane_pairs(before, before.waits - after.waits)]
    left_out = [pair for pair in changed if pair not in needed]
    if not left_out or len(left_out) == len(changed):
        return changed
    kept = {wait for wait in before.waits if (works[wait[0]].lane, works[wait[1]].lane) not in left_out}
    wall_ns = replay(before.change(waits=frozenset(kept | after.waits))).wall_ns
    return left_out if replay(before).wall_ns - wall_ns >= ENOUGH_SHARE * step.gain_ns else changed


def _name_of(trace: Trace, program: Program, place: int) -> str:
    return repr(display_name(trace.names[trace.name[program.works[place].row]], _NAME_WIDTH))


def _two_buffers(trace: Trace, step: Step) -> tuple[str, str]:
    name = _namer(trace, step)
    before, after = step.before.program, step.after.program
    told = []
    for first, second in _lane_pairs(before, before.waits - after.waits)[:_MOST_NAMES]:
        told.append(f"{name(second)} waited until {name(first)} had read the array that it writes over.")
    more = "one more array of that size, and write them in turn: the others are still read meanwhile"
    return " ".join(told), f"Use {more}. Keep the waits, each for the event of its own array."


def _streams(trace: Trace, step: Step) -> tuple[str, str]:
    name = _namer(trace, step)
    after = step.after.program
    used = sorted({work.lane for work in after.works})
    main, share = step.before.program.main_lane()
    what = {KERNEL: "kernels", UPLOAD: "copies to the device", DOWNLOAD: "copies to the host"}
    roles: dict[int, list[str]] = {}
    for lane in used:
        kinds = sorted({work.kind for work in after.works if work.lane == lane and work.kind in what})
        roles[lane] = [what[kind] for kind in kinds]
    text = f"All work is on {name(main)}: a stream runs its work in order, so nothing overlaps."
    if share < ONE_STREAM_SHARE:
        main, _ = step.before.program.main_lane(KERNEL)
        text = f"All kernels are on {name(main)}, one after the other, and some need nothing of each other."
    kernel_lanes = sum("kernels" in role for role in roles.values())
    parts = [", ".join(role) for role in roles.values() if role and role != ["kernels"]]
    if kernel_lanes:
        parts.insert(0, "the kernels" if kernel_lanes == 1 else f"kernels that share no data in turn on {kernel_lanes} streams")
    made = ", ".join(f"lab.stream({after.names[lane]!r})" for lane in used if kernel_lanes < 2 or "kernels" not in roles[lane])
    if kernel_lanes > 1:
        several = f"streams = [lab.stream(f'kernels-{{i}}') for i in range(1, {kernel_lanes + 1})]"
        made = ", ".join(filter(None, [several, made]))
    waits = _waits_between(trace, after, lambda lane: repr(after.names[lane]))
    return text, f"Give a stream each to {'; '.join(parts)}: {made}.{waits}"


def _waits_between(trace: Trace, program: Program, name: Callable[[int], str], lanes: Iterable[int] = ()) -> str:
    """Say which streams then wait for which; of some streams, or of all."""
    chosen = frozenset(lanes)
    waits = _last_waits(program)
    pairs = [pair for pair in waits if (not chosen or chosen.intersection(pair)) and not _is_implied(pair, waits)]
    if not pairs:
        return ""
    return f" Where one uses what another made, or writes over what it reads: {_typed_waits(trace, program, pairs, name)}."


def _split_copies(trace: Trace, step: Step) -> tuple[str, str]:
    before, after = step.before.program, step.after.program
    name = _namer(trace, step)
    moved = [one.lane for one, other in zip(before.works, after.works, strict=True) if one.lane != other.lane]
    shared = _listed([name(lane) for lane in sorted({*moved})])
    gone = {work.kind for work, other in zip(before.works, after.works, strict=True) if work.lane != other.lane}
    what = " and ".join({UPLOAD: "copies to the device", DOWNLOAD: "copies to the host"}[kind] for kind in sorted(gone))
    text = f"On {shared} {what} stand in the way of other work: a stream runs its work in order."
    own = {work.lane: changes.ROLES[0 if work.kind == UPLOAD else -1] for work in after.works if work.lane >= len(before.seats)}
    made = ", ".join(f"lab.stream({role!r})" for role in own.values())
    waits = _waits_between(trace, after, lambda lane: repr(own[lane]) if lane in own else name(lane), own)
    return text, f"Give {what} a stream{' each' if len(gone) > 1 else ''} of their own: {made}.{waits}"


def _dealt_evenly(trace: Trace, step: Step) -> tuple[str, str]:
    name = _namer(trace, step)
    before, after = step.before.program, step.after.program
    pairs = list(zip(before.works, after.works, strict=True))
    lanes = sorted({work.lane for pair in pairs for work in pair if pair[0].lane != pair[1].lane})
    now_ns, then_ns = (
        {lane: sum(pair[which].alone_ns for pair in pairs if pair[which].lane == lane) for lane in lanes} for which in (0, 1)
    )
    most, least = (name(pick(lanes, key=now_ns.__getitem__)) for pick in (max, min))
    text = (
        f"Work is dealt unevenly: {most} has {format_ns(max(now_ns.values()))} of it, {least} "
        f"{format_ns(min(now_ns.values()))}, and in the end {most} works alone."
    )
    streams = f"streams = [{', '.join(f'lab.stream({name(lane)})' for lane in lanes[:_MOST_LINES])}]"
    fix = f"Launch each piece on the stream that has least to do: {streams}; {format_ns(max(then_ns.values()))} each at most."
    known = (
        ""
        if step.before.memory.is_known
        else " That holds if no piece needs another of its stream: what they touch is not known."
    )
    return text, fix + known


def _whole_card(trace: Trace, step: Step) -> tuple[str, str]:
    name = _namer(trace, step)
    before = step.before.program
    lanes = [lane for lane, seat in enumerate(before.seats) if seat and any(work.lane == lane for work in before.works)]
    sizes = _listed([f"{name(lane)} has {len(before.seats[lane] or ())}" for lane in lanes])
    text = f"Of {before.card.sm_count} SMs {sizes}, fewer than its work could use."
    typed = ", ".join(f"lab.stream({name(lane)}, partition=None)" for lane in lanes[:_MOST_LINES])
    return text, f"Let them use the whole card: {typed}. Or give the partition more SMs."


def _other_part(trace: Trace, step: Step) -> tuple[str, str]:
    name = _namer(trace, step)
    before, after = step.before.program, step.after.program
    lane = next(lane for lane, (one, other) in enumerate(zip(before.seats, after.seats, strict=True)) if one != other)
    part = next(part for part in after.parts if part.sms == after.seats[lane])
    text = f"Nothing runs in partition {part.name!r}, with {len(part.sms)} SMs."
    return text, f"Let {name(lane)} run there: lab.stream({name(lane)}, partition={part.name!r})."


def _first_of_all(trace: Trace, step: Step) -> tuple[str, str]:
    name = _namer(trace, step)
    before, after = step.before.program, step.after.program
    pairs = zip(before.priorities, after.priorities, strict=True)
    lane = next(lane for lane, (one, other) in enumerate(pairs) if one != other)
    text = f"Kernels of {name(lane)} waited until others left room on the SMs."
    fix = f"Give it priority: lab.stream({name(lane)}, priority={after.priorities[lane]})."
    return text, f"{fix} Its blocks then go first as others end; blocks that run are not pushed out."


def _streams_before(trace: Trace, step: Step) -> tuple[str, str]:
    made = [call for call in step.before.program.calls if call.makes_stream]
    took = format_ns(sum(call.cost_ns for call in made))
    if any("GreenCtx" in trace.names[trace.name[call.row]] for call in made if call.row >= 0):
        text = f"The host made green contexts between launches, which took it {took}."
        return text, "Make them before: lab.partitions.prepare(...) with all plans that come; going over to one is quick then."
    text = f"The host made {count_text(len(made), 'stream')} between launches, which took it {took}."
    return text, "Make streams once, before the loop: streams = [lab.stream(f's{i}') for i in range(n)]."


def _in_turn(trace: Trace, step: Step) -> tuple[str, str]:
    name = _namer(trace, step)
    lanes = list(dict.fromkeys(work.lane for work in step.before.program.works))
    names = [name(lane) for lane in lanes[:2]]
    text = f"Much of {names[0]} was launched in a row before {_listed(names[1:])}, which had nothing to do until then."
    return text, f"Launch in turn: one piece on {names[0]}, then one on {_listed(names[1:])}, and so on."


def _as_graph(trace: Trace, step: Step) -> tuple[str, str]:
    before = step.before.program
    launches = [call for call in before.calls if call.works]
    each = format_ns(int(np.median([call.cost_ns + call.gap_ns for call in launches if not call.awaits] or [0])))
    text = f"Each of {count_text(len(launches), 'launch', 'launches')} takes the host {each} (median), more than the card."
    return text, LESS_LAUNCHES


def _own(trace: Trace, step: Step) -> tuple[str, str]:
    return "The host was held up in calls that need not be there.", ""


_TEXTS: Mapping[str, Callable[[Trace, Step], tuple[str, str]]] = MappingProxyType(
    {
        "pinned": _pinned,
        "host_waits": _host_waits,
        "fine_waits": _fine_waits,
        "two_buffers": _two_buffers,
        "by_role": _streams,
        "in_streams": _streams,
        "split_copies": _split_copies,
        "dealt_evenly": _dealt_evenly,
        "moved": _own,
        "whole_card": _whole_card,
        "other_part": _other_part,
        "first_of_all": _first_of_all,
        "streams_before": _streams_before,
        "in_turn": _in_turn,
        "as_graph": _as_graph,
        "calls": _own,
    }
)


def _namer(trace: Trace, step: Step) -> Callable[[int], str]:
    """Return what writes the name of a stream of the program before a change."""
    names = step.before.program.names or [lane.name for lane in trace.lanes]
    return lambda lane: repr(display_name(names[lane], _NAME_WIDTH)) if lane < len(names) else "another stream"


def _lane_pairs(program: Program, pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return between which streams pairs of work are, in order of the work; each once."""
    works = program.works
    return list(dict.fromkeys((works[before].lane, works[after].lane) for before, after in sorted(pairs)))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
