"""Why a finding was not mended by machine: what stands against it in this program, by its lines."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping

from gpustreamlab.analysis._changes import large_pageable
from gpustreamlab.analysis._program import UPLOAD
from gpustreamlab.improve._facts import LOOPS, Facts, names_bound
from gpustreamlab.improve._waits import call_of, is_synchronize, place_text
from gpustreamlab.typing import Cause

MOST_TOLD = 3
"""So many lines are named."""


def why_not(facts: Facts, cause: Cause) -> str:
    """Say why no change was made for a finding: by the statements that stand against it, else by what a machine changes."""
    found = dict[str, list[str]]()
    for place, why in _BY_LINE[cause](facts) if cause in _BY_LINE else ():
        where = found.setdefault(why, [])
        where += [text] if (text := place_text(facts, place)) not in where else []
    told = [
        f"in {', and '.join(where[:MOST_TOLD])}{', and others' * (len(where) > MOST_TOLD)}: {why}"
        for why, where in found.items()
    ]
    return "; ".join(told[:MOST_TOLD]) or _RULES.get(cause, "no change of the source is known for it")


def _of_copies(facts: Facts) -> Iterator[tuple[int, str]]:
    """Say of each copy of ordinary memory why that memory stays as it is."""
    for number in large_pageable(facts.run.program):
        place, is_upload = facts.site_of[number], facts.run.program.works[number].kind == UPLOAD
        if place >= 0 and is_upload:
            yield place, _of_upload(facts, place)
        elif place >= 0 and facts.loop_of(place) is None:
            yield place, "it copies once, and page-locked memory takes longer to make than it gains"
        elif place >= 0:
            yield place, _uses(facts, place) or "it is no x.get() by itself or in a list, on a stream that can be named"


def _of_upload(facts: Facts, place: int) -> str:
    names = sorted(facts.copied_names(place))
    prepare = facts.draft.prepare
    if prepare is None:
        return (
            "page-locked memory has to be made before what is measured, and this program has no such part; pass a function "
            "that makes its arrays and gives back a function of the rest"
        )
    if facts.session_name is None:
        return "nothing in the program is a session, which makes page-locked memory"
    if not names:
        return "what it copies is no variable"
    if not any(names_bound(one) & {*names} for one in prepare):
        return f"{names[0]} is not made in the part that prepares"
    return _uses(facts, place) or f"{names[0]} is not one array of NumPy, made there"


def _uses(facts: Facts, place: int) -> str:
    """Name a statement that uses what is copied; empty for none."""
    using = facts.touching(facts.region(place), facts.copies_at(place))
    return next((f"what it copies is used in {place_text(facts, one)}" for one in using), "")


def _of_waits(facts: Facts) -> Iterator[tuple[int, str]]:
    """Say of each wait of the host what needs it."""
    last = max(facts.units, default=-1)
    for place in sorted(facts.waiting):
        if place not in facts.executed or (facts.loop_of(place) is None and place > last):
            continue
        region = facts.region(place)
        using = next(facts.touching(region, facts.memory_of_copies(region)), None)
        if facts.needs_wait(place):
            yield place, "what is copied behind it may be memory that the host wrote by then"
        elif place in facts.reading:
            yield place, "it reads a value that is used at once, or that may be another one behind the loop"
        elif using is not None:
            yield place, f"what is copied is used in {place_text(facts, using)}"
        elif not is_synchronize(facts, place):
            yield place, "it does more than to wait"
        else:
            yield place, "no other wait can take its place: the streams that it orders have no names here"


def _of_events(facts: Facts) -> Iterator[tuple[int, str]]:
    """Say why waits of streams stay."""
    is_known = facts.run.memory.is_known
    for place in sorted(facts.executed):
        call = call_of(facts.statements[place])
        if call is not None and isinstance(call.func, ast.Attribute) and call.func.attr == "wait":
            yield (
                place,
                "the data ask for it, and are in no buffer that one set() in a loop fills"
                if is_known
                else ("what each kernel uses is not known, so that any wait of a stream may be needed"),
            )


def _of_launches(facts: Facts) -> Iterator[tuple[int, str]]:
    """Say of each loop why its turns are no CUDA graph."""
    for place in sorted(facts.executed):
        if facts.loop_of(place) is not None or not isinstance(facts.statements[place], LOOPS):
            continue
        inside = facts.within(place)[1:]
        lanes, waits = facts.lanes_of(inside), [other for other in inside if other in facts.waiting]
        if facts.session_name is None or any(facts.text_of_lane(lane) is None for lane in lanes):
            yield place, "a graph is captured on a stream that has a name, as in with lab.on('work'):"
        elif len(lanes) > 1:
            yield place, f"its work is on {len(lanes)} streams, and a graph is made of one"
        elif waits:
            yield place, f"the host waits in it, in {place_text(facts, waits[0])}, which cannot be captured"
        else:
            yield place, "its turns are not known to launch the same on the same memory, and nothing else"


_BY_LINE: Mapping[Cause, Callable[[Facts], Iterator[tuple[int, str]]]] = {
    Cause.PAGEABLE_COPY: _of_copies,
    Cause.HOST_SYNC_DEVICE: _of_waits,
    Cause.HOST_SYNC_STREAM: _of_waits,
    Cause.EVENT_WAIT: _of_events,
    Cause.LAUNCH_BOUND: _of_launches,
}
_RULES: Mapping[Cause, str] = {
    Cause.PAGEABLE_COPY: "the copies are not made by statements of the program itself",
    Cause.HOST_SYNC_DEVICE: "the waits are not made by statements of the program itself",
    Cause.HOST_SYNC_STREAM: "the waits are not made by statements of the program itself",
    Cause.EVENT_WAIT: "the waits are not made by statements of the program itself",
    Cause.LAUNCH_BOUND: "only turns of a loop are made a graph, and here is none",
    Cause.ALLOC_SYNC: "which arrays are to be made before, or kept, is the author's to say",
    Cause.LAZY_LOAD: "kernels are loaded by a run before, which is no change of this program",
    Cause.HOST_CALL: "the call is not one that makes streams in a loop",
    Cause.HOST_LATE: "the launches are no loop over a list, or over the same items several times",
    Cause.QUEUE_FULL: "the launches are no loop over a list that could be taken in turn",
    Cause.COPY_ENGINE: "which copies go on which stream is written by the program itself, for each of them",
    Cause.OTHER_STREAM: "on which stream the work was meant to be is not in the source",
    Cause.NOT_OFFERED: "which jobs there are, and on which stream each goes, is written by the program itself",
    Cause.PROFILER_OVERHEAD: "the program has no part in it",
    Cause.GRID_FILLS_DEVICE: "no stream with a name of its own, and no priority, is made in the source",
    Cause.PARTITION_SMALL: "no partition of a stream, and no split of the SMs in numbers, is written in the source",
    Cause.SAME_LANE: "no statements, or turns of a loop, are known to be independent of each other",
}
