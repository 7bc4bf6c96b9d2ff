"""Other numbers of SMs in a program's partitions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from gpustreamlab.analysis._changes import Run
from gpustreamlab.analysis._program import Part
from gpustreamlab.analysis._replay import Impossible, replay
from gpustreamlab.improve._facts import Facts
from gpustreamlab.improve._waits import Editor, Variant
from gpustreamlab.tuning._tune import candidates

LEAST_SHARE = 0.02
"""Other numbers are tried from such a predicted gain on."""
MOST_SPLITS = 2
"""So many splits are run, of those that are predicted to gain most."""


def other_numbers(facts: Facts) -> Iterator[Variant]:
    """Give partitions other numbers of SMs, where the program has them as numbers."""
    calls = [one for one in ast.walk(facts.draft.tree) if isinstance(one, ast.Call)]
    found = [(number, shares) for number, one in enumerate(calls) if (shares := _shares_of(facts, one))]
    parts = facts.run.program.parts
    if len(found) != 1 or {*found[0][1]} != {part.name for part in parts}:
        return
    number, names = found[0][0], [part.name for part in parts]
    for sizes in _best_splits(facts, names):
        editor = Editor(facts)
        call = [one for one in ast.walk(editor.draft.tree) if isinstance(one, ast.Call)][number]
        for name, share in _shares_of(facts, call).items():
            share.value = share.value if share.value == "rest" else sizes[name]
        title = f"partitions have {_told(sizes)} SMs"
        yield Variant(title, editor.tidy(), partial(_seated, sizes=sizes))


def _told(sizes: Mapping[str, int]) -> str:
    return " and ".join(f"{name} {size}" for name, size in sizes.items())


def _shares_of(facts: Facts, call: ast.Call) -> dict[str, ast.Constant]:
    """Return what ``lab.partition(...)`` gives each partition, where all of that is numbers and ``"rest"``; else nothing."""
    match call:
        case ast.Call(func=ast.Attribute(attr="partition", value=ast.Name(id=name)), args=[], keywords=keywords):
            pairs: list[tuple[Any, Any]] = [(one.arg, one.value) for one in keywords]
        case ast.Call(func=ast.Attribute(attr="partition", value=ast.Name(id=name)), args=[ast.Dict() as given], keywords=[]):
            pairs = [(getattr(key, "value", None), value) for key, value in zip(given.keys, given.values, strict=True)]
        case _:
            return {}
    found = {key: value for key, value in pairs if isinstance(value, ast.Constant)}
    are_plain = all(value.value == "rest" or type(value.value) is int for value in found.values())
    return found if name == facts.session_name and are_plain and len(found) == len(pairs) else {}


def _best_splits(facts: Facts, names: Sequence[str]) -> list[dict[str, int]]:
    """Return the splits that are predicted to gain most, of those that move SMs between two partitions."""
    device = facts.trace.metadata.device
    now = {part.name: len(part.sms) for part in facts.run.program.parts}
    splits = []
    for place in candidates(device, names, (0, 0), priorities=False)[1]:
        given = {name: size for name, size in place.shares if isinstance(size, int)}
        sizes = {name: given.get(name, device.sm_count - sum(given.values())) for name in names}
        if 0 < sum(sizes[name] != now[name] for name in names) <= 2:
            splits.append(sizes)
    try:
        own_ns = sum(replay(run.program).wall_ns for run in facts.pieces)
        walls_ns = [sum(replay((_seated(run, sizes) or run).program).wall_ns for run in facts.pieces) for sizes in splits]
    except Impossible:
        return []
    order = sorted(range(len(splits)), key=walls_ns.__getitem__)
    return [splits[place] for place in order[:MOST_SPLITS] if own_ns - walls_ns[place] >= LEAST_SHARE * own_ns]


def _seated(run: Run, sizes: Mapping[str, int]) -> Run | None:
    """Return a run whose partitions have such sizes."""
    ends = accumulate(sizes.values())
    sms = {name: frozenset(range(end - size, end)) for (name, size), end in zip(sizes.items(), ends, strict=True)}
    new = {part.sms: sms[part.name] for part in run.program.parts}
    seats = tuple(new.get(seat, seat) if seat else None for seat in run.program.seats)
    return run.with_program(seats=seats, parts=tuple(Part(*one) for one in sms.items())) if any(seats) else None
