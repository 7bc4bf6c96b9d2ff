"""What a change is: what happened without it, and the lines to type, for the program at hand."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence

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
    texts: tuple[str, str] = getattr(_Told(trace, step), step.key)()
    return texts


class _Told:
    """What is told of a change: a method for each key of `Option`."""

    def __init__(self, trace: Trace, step: Step) -> None:
        self.trace, self.step = trace, step
        self.before, self.after = step.before.program, step.after.program

    def name(self, lane: int) -> str:
        """Write the name of a stream of the program before the change."""
        names = self.before.names or [one.name for one in self.trace.lanes]
        return repr(display_name(names[lane], _NAME_WIDTH)) if lane < len(names) else "another stream"

    def pinned(self) -> tuple[str, str]:
        told, lines = [], []
        for kind, where in ((UPLOAD, "to the device"), (DOWNLOAD, "to the host")):
            own = [place for place in changes.large_pageable(self.before) if self.before.works[place].kind == kind]
            if own:
                size = sum(self.before.works[one].size_bytes for one in own)
                lasted_ns = sum(self.before.works[one].alone_ns for one in own)
                rate = size / max(1, sum(self.after.works[one].alone_ns for one in own))
                told.append(
                    f"{count_text(len(own), 'copy', 'copies')} of pageable memory {where}, {size / 1e6:,.1f} MB at "
                    f"{size / max(1, lasted_ns):.0f} GB/s, held up the host; page-locked memory gives {rate:.0f} GB/s."
                )
                lines.append("x.get(out=pinned, blocking=False)" if kind == DOWNLOAD else "x.set(pinned)")
        fix = f"Let the host's side be pinned = lab.memory.pinned_empty(shape, dtype), then {' and '.join(lines)}."
        waits = self._new_waits("As the host then goes on, streams must wait: ") or self._waits_behind_copies()
        keep = "Before the host reads or writes over pinned, let it wait for that copy."
        return " ".join(told), " ".join(filter(None, [fix, waits, keep]))

    def host_waits(self) -> tuple[str, str]:
        kept = frozenset(self.after.calls)
        gone = [call for call in self.before.calls if call.awaits and call not in kept]
        names = sorted({self.trace.names[self.trace.name[call.row]] for call in gone if call.row >= 0})
        text = f"The host waited {count_text(len(gone), 'time')} in {_listed(names)} before it launched more."
        if self.step.cause is Cause.ALLOC_SYNC:
            return text, ""
        values = [call for call in gone if call.works and self.before.works[call.works[0]].kind != UPLOAD]
        small = [call for call in gone if call.works and self.before.works[call.works[0]].kind == UPLOAD]
        copies = [call for call in gone if not call.works and _is_behind_copy(self.before, call)]
        lines = []
        if values:
            lines.append(
                "Read values such as float(x) or x.item() only behind the loop, if no launch depends on one: each waits."
            )
        if small:
            lines.append("Copy small arrays from pinned memory, too: lab.memory.pinned_empty(shape, dtype).")
        if copies:
            lines.append(
                "Copy to pinned memory without blocking, x.get(out=pinned, blocking=False), and wait once, at the end."
            )
        waits = self._new_waits("Let streams wait in place of the host: ")
        if waits:
            lines.append(waits)
        elif len(values) + len(small) + len(copies) < len(gone):
            is_known = self.step.before.memory.is_known
            why = "what is launched behind them needs nothing of what they wait for"
            lines.append(f"Leave these waits out: {why if is_known else 'streams keep their order without them'}.")
        if len(values) < len(gone):
            lines.append("Where the host itself reads a result, or writes over what is copied, keep the wait.")
        return text, " ".join(lines)

    def fine_waits(self) -> tuple[str, str]:
        needed = _lane_pairs(self.after, self.after.waits)
        told: list[str] = []
        lines: list[str] = []
        left_out = []
        last = _last_waits(self.after)
        for pair in pairs_changed(self.step):
            first, second = (self.name(lane) for lane in pair)
            if pair not in needed:
                left_out.append((first, second))
            elif len(told) < _MOST_NAMES:
                told.append(f"{second} waited for more of {first} than it uses.")
                lines.append(
                    f"Record an event right behind {self._last_of(last[pair])} on {first}, and let {second} wait for the "
                    f"one that it needs: done = lab.stream({first}).record(), then lab.stream({second}).wait(done)."
                )
        told += [f"{second} waited for {first} and uses nothing of it." for first, second in left_out[:_MOST_NAMES]]
        if left_out:
            typed = ", ".join(f"lab.stream({second}).wait({first})" for first, second in left_out[:_MOST_LINES])
            lines.append(f"Leave out {typed}{_so_on(len(left_out))}: no array asks for it.")
        return " ".join(told), " ".join([*lines, *filter(None, [self._new_waits("Instead: ")])])

    def two_buffers(self) -> tuple[str, str]:
        told = []
        for first, second in _lane_pairs(self.before, self.before.waits - self.after.waits)[:_MOST_NAMES]:
            told.append(f"{self.name(second)} waited until {self.name(first)} had read the array that it writes over.")
        more = "one more array of that size, and write them in turn: the others are still read meanwhile"
        return " ".join(told), f"Use {more}. Keep the waits, each for the event of its own array."

    def by_role(self) -> tuple[str, str]:
        used = sorted({work.lane for work in self.after.works})
        main, share = self.before.main_lane()
        what = {KERNEL: "kernels", UPLOAD: "copies to the device", DOWNLOAD: "copies to the host"}
        roles: dict[int, list[str]] = {}
        for lane in used:
            kinds = sorted({work.kind for work in self.after.works if work.lane == lane and work.kind in what})
            roles[lane] = [what[kind] for kind in kinds]
        text = f"All work is on {self.name(main)}: a stream runs its work in order, so nothing overlaps."
        if share < ONE_STREAM_SHARE:
            main, _ = self.before.main_lane(KERNEL)
            text = f"All kernels are on {self.name(main)}, one after the other, and some need nothing of each other."
        kernel_lanes = sum("kernels" in role for role in roles.values())
        parts = [", ".join(role) for role in roles.values() if role and role != ["kernels"]]
        if kernel_lanes:
            parts.insert(
                0, "the kernels" if kernel_lanes == 1 else f"kernels that share no data in turn on {kernel_lanes} streams"
            )
        made = ", ".join(
            f"lab.stream({self.after.names[lane]!r})" for lane in used if kernel_lanes < 2 or "kernels" not in roles[lane]
        )
        if kernel_lanes > 1:
            several = f"streams = [lab.stream(f'kernels-{{i}}') for i in range(1, {kernel_lanes + 1})]"
            made = ", ".join(filter(None, [several, made]))
        waits = self._waits_between(lambda lane: repr(self.after.names[lane]))
        return text, f"Give a stream each to {'; '.join(parts)}. Type {made}.{waits}"

    def split_copies(self) -> tuple[str, str]:
        moved = [one.lane for one, other in zip(self.before.works, self.after.works, strict=True) if one.lane != other.lane]
        shared = _listed([self.name(lane) for lane in sorted({*moved})])
        gone = {work.kind for work, other in zip(self.before.works, self.after.works, strict=True) if work.lane != other.lane}
        what = " and ".join({UPLOAD: "copies to the device", DOWNLOAD: "copies to the host"}[kind] for kind in sorted(gone))
        text = f"On {shared} {what} stand in the way of other work: a stream runs its work in order."
        own = {
            work.lane: changes.ROLES[0 if work.kind == UPLOAD else -1]
            for work in self.after.works
            if work.lane >= len(self.before.seats)
        }
        made = ", ".join(f"lab.stream({role!r})" for role in own.values())
        waits = self._waits_between(lambda lane: repr(own[lane]) if lane in own else self.name(lane), own)
        return text, f"Give {what} a stream{' each' if len(gone) > 1 else ''} of their own: {made}.{waits}"

    def dealt_evenly(self) -> tuple[str, str]:
        pairs = list(zip(self.before.works, self.after.works, strict=True))
        lanes = sorted({work.lane for pair in pairs for work in pair if pair[0].lane != pair[1].lane})
        now_ns, then_ns = (
            {lane: sum(pair[which].alone_ns for pair in pairs if pair[which].lane == lane) for lane in lanes}
            for which in (0, 1)
        )
        most, least = (self.name(pick(lanes, key=now_ns.__getitem__)) for pick in (max, min))
        text = (
            f"Work is dealt unevenly: {most} has {format_ns(max(now_ns.values()))} of it, {least} "
            f"{format_ns(min(now_ns.values()))}, and in the end {most} works alone."
        )
        streams = f"streams = [{', '.join(f'lab.stream({self.name(lane)})' for lane in lanes[:_MOST_LINES])}]"
        fix = (
            f"Launch each piece on the stream that has least to do: {streams}; {format_ns(max(then_ns.values()))} each at most."
        )
        if not self.step.before.memory.is_known:
            fix += " That holds if no piece needs another of its stream: what they touch is not known."
        return text, fix

    def whole_card(self) -> tuple[str, str]:
        lanes = [
            lane for lane, seat in enumerate(self.before.seats) if seat and any(work.lane == lane for work in self.before.works)
        ]
        sizes = _listed([f"{self.name(lane)} has {len(self.before.seats[lane] or ())}" for lane in lanes])
        text = f"Of {self.before.card.sm_count} SMs {sizes}, fewer than its work could use."
        typed = ", ".join(f"lab.stream({self.name(lane)}, partition=None)" for lane in lanes[:_MOST_LINES])
        return text, f"Let them use the whole card: {typed}. Or give the partition more SMs."

    def other_part(self) -> tuple[str, str]:
        lane = next(
            lane for lane, (one, other) in enumerate(zip(self.before.seats, self.after.seats, strict=True)) if one != other
        )
        part = next(part for part in self.after.parts if part.sms == self.after.seats[lane])
        text = f"Nothing runs in partition {part.name!r}, with {len(part.sms)} SMs."
        return text, f"Let {self.name(lane)} run there: lab.stream({self.name(lane)}, partition={part.name!r})."

    def first_of_all(self) -> tuple[str, str]:
        pairs = zip(self.before.priorities, self.after.priorities, strict=True)
        lane = next(lane for lane, (one, other) in enumerate(pairs) if one != other)
        text = f"Kernels of {self.name(lane)} waited until others left room on the SMs."
        fix = f"Give it priority where it is made: lab.stream({self.name(lane)}, priority={self.after.priorities[lane]})."
        return text, f"{fix} Its blocks then go first as others end; blocks that run are not pushed out."

    def streams_before(self) -> tuple[str, str]:
        made = [call for call in self.before.calls if call.makes_stream]
        took = format_ns(sum(call.cost_ns for call in made))
        if any("GreenCtx" in self.trace.names[self.trace.name[call.row]] for call in made if call.row >= 0):
            text = f"The host made green contexts between launches, which took it {took}."
            return (
                text,
                "Make them before: lab.partitions.prepare(...) with all plans that come; going over to one is quick then.",
            )
        text = f"The host made {count_text(len(made), 'stream')} between launches, which took it {took}."
        return text, "Make streams once, before the loop: streams = [lab.stream(f's{i}') for i in range(n)]."

    def in_turn(self) -> tuple[str, str]:
        lanes = list(dict.fromkeys(work.lane for work in self.before.works))
        names = [self.name(lane) for lane in lanes[:2]]
        text = f"Much of {names[0]} was launched in a row before {_listed(names[1:])}, which had nothing to do until then."
        return text, f"Launch in turn: one piece on {names[0]}, then one on {_listed(names[1:])}, and so on."

    def as_graph(self) -> tuple[str, str]:
        launches = [call for call in self.before.calls if call.works]
        each = format_ns(int(np.median([call.cost_ns + call.gap_ns for call in launches if not call.awaits] or [0])))
        which = "Each launch" if self.step.before.share < 1 else f"Each of {count_text(len(launches), 'launch', 'launches')}"
        text = f"{which} takes the host {each} (median), more than the card."
        return text, LESS_LAUNCHES

    def calls(self) -> tuple[str, str]:
        return "The host was held up in calls that need not be there.", ""

    in_streams = by_role
    moved = calls

    def _waits_behind_copies(self) -> str:
        """Say which streams have to wait for copies that no longer block, where only the host saw to that."""
        program, memory, copies = self.before, self.step.before.memory, {*self.step.places}
        blocking = [number for number, call in enumerate(program.calls) if call.awaits and not copies.isdisjoint(call.works)]
        orders = across(program, host_orders(program, blocking))
        if memory.is_known:
            orders = frozenset(pair for pair in across(program, memory.edges()) if pair[0] in copies)
        waited = _lane_pairs(program, program.waits)
        new = [pair for pair in _lane_pairs(program, orders) if pair not in waited]
        typed = ", ".join(f"lab.stream({self.name(second)}).wait({self.name(first)})" for first, second in new[:_MOST_LINES])
        return f"{THEN_WAIT}{typed}{_so_on(len(new))}." if new else ""

    def _new_waits(self, head: str) -> str:
        """Say which streams now have to wait for which, where the host saw to that before."""
        known = _lane_pairs(self.before, self.before.waits)
        new = [pair for pair in _lane_pairs(self.after, self.after.waits) if pair not in known]
        if not new:
            return ""
        own = [pair for pair in new if not any(self._is_foreign(lane) for lane in pair)]
        typed = self._typed_waits(own, self.name)
        said = [f"{head}{typed}."] if own else []
        for lane in sorted({lane for pair in new for lane in pair if self._is_foreign(lane)})[:_MOST_LINES]:
            others = sorted({self.name(other) for pair in new if lane in pair for other in pair if other != lane})
            said.append(
                f"{self.name(lane)} shares arrays with {_listed(others)}. Launch its work with lab.on(...), and let one stream "
                "wait for the other, or call lab.synchronize() once in between."
            )
        return " ".join(said)

    def _typed_waits(self, pairs: Sequence[tuple[int, int]], name: Callable[[int], str]) -> str:
        """Return what lets streams wait for others: for all that is launched there until then, or for an event of less."""
        needed = _last_waits(self.after)
        typed = []
        for pair in pairs[:_MOST_LINES]:
            first, second = map(name, pair)
            on_first = [place for place, work in enumerate(self.after.works) if work.lane == pair[0]]
            if all(on_first[bisect_left(on_first, after) - 1] == before for after, before in needed.get(pair, {}).items()):
                typed.append(f"lab.stream({second}).wait({first})")
            else:  # more is launched there by then, which would be waited for, too
                last = self._last_of(needed[pair])
                typed.append(f"done = lab.stream({first}).record() right behind {last}, later lab.stream({second}).wait(done)")
        return ", ".join(typed) + _so_on(len(pairs))

    def _is_foreign(self, lane: int) -> bool:
        """Tell whether a stream is not of the session though others are: it has no name there, so that none can wait for it."""
        are_outside = [one.outside for one in self.trace.lanes if one.kind is LaneKind.STREAM]
        return lane < len(self.trace.lanes) and self.trace.lanes[lane].outside and not all(are_outside)

    def _last_of(self, waits: Mapping[int, int]) -> str:
        """Write the name of the last work that any of some waits is for."""
        row = self.after.works[max(waits.values())].row
        return repr(display_name(self.trace.names[self.trace.name[row]], _NAME_WIDTH))

    def _waits_between(self, name: Callable[[int], str], lanes: Iterable[int] = ()) -> str:
        """Say which streams then wait for which; of some streams, or of all."""
        chosen = frozenset(lanes)
        waits = _last_waits(self.after)
        pairs = [pair for pair in waits if (not chosen or chosen.intersection(pair)) and not _is_implied(pair, waits)]
        if not pairs:
            return ""
        return f" Where one uses what another made, or writes over what it reads: {self._typed_waits(pairs, name)}."


def _is_behind_copy(program: Program, call: Call) -> bool:
    """Tell whether a call waits for one copy to the host, as `get` does."""
    return len(call.awaits) == 1 and program.works[call.awaits[0]].kind == DOWNLOAD


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


def _lane_pairs(program: Program, pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return between which streams pairs of work are, in order of the work; each once."""
    works = program.works
    return list(dict.fromkeys((works[before].lane, works[after].lane) for before, after in sorted(pairs)))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
