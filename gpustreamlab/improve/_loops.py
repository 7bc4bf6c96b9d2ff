"""Changes of loops and of what stands before them: phases, buffers, streams, the order of launches, memory, partitions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from gpustreamlab._util.arrays import find_arrays, find_owner
from gpustreamlab.analysis import _changes as changes
from gpustreamlab.analysis._changes import Run
from gpustreamlab.analysis._program import UPLOAD
from gpustreamlab.improve._draft import Draft, parsed, walk_statements
from gpustreamlab.improve._facts import Facts, names_bound, selection
from gpustreamlab.improve._run import names_loaded, parts_of_statement
from gpustreamlab.improve._waits import Editor, Variant, call_of, put_before_all, stream_of_cupy
from gpustreamlab.programs._source import copied_syntax
from gpustreamlab.streams.stream import Stream

LEAST_BLOCK = 4
"""From so many launches of one stream in a row on they are launched in turn."""
MOST_MORE = 2
"""So many more buffers are tried."""


# Memory of the host


def pinned_sources(facts: Facts) -> Iterator[Variant]:
    """Make arrays that are copied to the device page-locked, where the program makes them before what is measured."""
    lab, prepare = facts.session_name, facts.draft.prepare
    if prepare is None or (lab is None and stream_of_cupy(facts) is None):
        return
    # What CuPy takes in by itself it copies to page-locked memory first, and the host stands still for that.
    works = [work.is_pageable or (lab is None and work.kind == UPLOAD) for work in facts.run.program.works]
    places = {place for place, is_copied in zip(facts.site_of, works, strict=True) if is_copied}
    names = {name for place in places if place >= 0 for name in facts.copied_names(place)}
    for one in facts.statements:  # whose items a loop takes
        match one:
            case ast.For(target=ast.Name(id=item), iter=ast.Name(id=items)) if item in names:
                names = names - {item} | {items}
    for name in sorted(names):
        values = [value for one, value in facts.values() if one == name]
        editor = Editor(facts)
        body = editor.draft.prepare or []
        bound = [number for number, one in enumerate(body) if isinstance(one, ast.Assign) and name in names_bound(one)]
        lists = [isinstance(value, (list, tuple)) for value in values]
        arrays = [one for value, is_list in zip(values, lists, strict=True) for one in (value if is_list else [value])]
        if not bound or any(lists) is not all(lists) or not all(isinstance(one, np.ndarray) for one in arrays):
            continue
        if facts.is_touched(range(len(facts.statements)), facts.look.known.get(name, set())):
            continue  # a copy from ordinary memory is done with it when it returns, this one is not
        imports, make = ("import cupyx\n", "cupyx.empty_pinned") if lab is None else ("", f"{lab}.memory.pinned_empty")
        new = editor.draft.new_name("pinned" if name != "pinned" else "page_locked")
        if all(lists):
            item, other = (editor.draft.new_name(part) for part in ("item", "other"))
            lines = f"{new} = [{make}({item}.shape, {item}.dtype) for {item} in {name}]\n"
            lines += f"for {item}, {other} in zip({new}, {name}):\n    {item}[...] = {other}\n{name} = {new}"
        else:
            lines = f"{new} = {make}({name}.shape, {name}.dtype)\n{new}[...] = {name}\n{name} = {new}"
        body[bound[-1] + 1 : bound[-1] + 1] = parsed(imports + lines)
        yield Variant(f"{name} {'are' if all(lists) else 'is'} page-locked", editor.tidy(), changes.pinned)


# Phases


class _Phase(NamedTuple):
    """A loop over all items that does one thing with each."""

    item: str
    items: ast.expr
    body: list[ast.stmt]  # In the block that stands around it
    before: list[ast.stmt]  # What has to stand in front of all
    behind: list[ast.stmt]  # Waits behind it


def joined_phases(facts: Facts) -> Iterator[Variant]:
    """Join loops over the same items that stand in a row: all is done with an item before the next one."""
    if facts.hindering():
        return
    editor, joined = Editor(facts), list[str]()
    for body in {id(body): body for body, _ in editor.draft.statements()}.values():
        for place in range(len(body)):
            found, end = _phases_from(body, place)
            if len(found) > 1:
                body[place:end] = _as_one_loop(found)
                joined.append(ast.unparse(found[0].items))
    if joined:
        title = f"loops over {joined[0]} are one: each item is worked on as soon as it is there"
        yield Variant(title, editor.tidy(), _turns_and_waits)


def _phases_from(body: list[ast.stmt], place: int) -> tuple[list[_Phase], int]:
    """Return loops over the same items from a place on, each with the waits behind it; and where the last of them ends."""
    first = _phase_of(body[place]) if place < len(body) else None
    found, end, waits, before = [first] if first is not None else [], place + 1, list[ast.stmt](), list[ast.stmt]()
    for number in range(place + 1, len(body) if found else 0):
        one = body[number]
        phase, call = _phase_of(one), call_of(one)
        if phase is not None and ast.dump(phase.items) == ast.dump(found[0].items):
            found[-1] = found[-1]._replace(behind=waits)
            found.append(phase._replace(before=[*before, *phase.before]))
            end, waits, before = number + 1, [], []
        elif call is not None and isinstance(call.func, ast.Attribute) and call.func.attr == "wait":
            waits = [*waits, one]
        elif isinstance(one, ast.Assign) and ast.unparse(one.value) == "[]":
            before = [*before, one]
        else:
            break
    return found, end


def _phase_of(one: ast.stmt) -> _Phase | None:
    around = one if isinstance(one, ast.With) and selection(one) is not None and len(one.body) == 1 else None
    name, body, before = "", list[ast.stmt](), list[ast.stmt]()
    items: ast.expr | None = None
    match one if around is None else around.body[0]:
        case ast.For(target=ast.Name(id=name), iter=items, body=body, orelse=[]):
            pass
        case (
            ast.AugAssign(target=ast.Name(id=made), op=ast.Add(), value=ast.ListComp(elt=part, generators=[each]))
            | ast.Assign(targets=[ast.Name(id=made)], value=ast.ListComp(elt=part, generators=[each]))
        ) if isinstance(each.target, ast.Name) and not each.ifs:
            name, items = each.target.id, each.iter
            body = [ast.Expr(ast.Call(ast.Attribute(ast.Name(made, ast.Load()), "append", ast.Load()), [part], []))]
            before = parsed(f"{made} = []") if isinstance(one if around is None else around.body[0], ast.Assign) else []
    leaves = any(isinstance(part, (ast.Break, ast.Continue, ast.Return)) for inner in body for part in ast.walk(inner))
    if items is None or not is_simple(items) or leaves:
        return None
    return _Phase(name, items, body if around is None else [ast.With(around.items, body)], before, [])


def is_simple(items: ast.expr) -> bool:
    """Tell whether it is the same items each time: a variable, or a range."""
    is_range = isinstance(items, ast.Call) and isinstance(items.func, ast.Name) and items.func.id == "range"
    return isinstance(items, ast.Name) or is_range


def _as_one_loop(found: Sequence[_Phase]) -> list[ast.stmt]:
    first = found[0]
    body = [
        one for phase in found for one in (*(_renamed(part, {phase.item: first.item}) for part in phase.body), *phase.behind)
    ]
    return [
        *(one for phase in found for one in phase.before),
        ast.For(ast.Name(first.item, ast.Store()), first.items, body, []),
    ]


def _renamed(node: Any, names: dict[str, str]) -> Any:
    if all(old == new for old, new in names.items()):
        return node
    made = copied_syntax(node)
    for one in ast.walk(made):
        if isinstance(one, ast.Name) and one.id in names:
            one.id = names[one.id]
    return made


def batches_of_one(facts: Facts) -> Iterator[Variant]:
    """Take batches of one item each, where a loop takes batches and loops over the items of each several times."""
    for place in sorted(facts.executed) if not facts.hindering() else ():
        match facts.statements[place]:
            case ast.For(target=ast.Name(id=batch), iter=items, body=body):
                inner = [part for one in body for part in ast.walk(one)]
                over = [ast.unparse(part.iter) for part in inner if isinstance(part, (ast.For, ast.comprehension))]
                uses = [part for part in inner if isinstance(part, ast.Name) and part.id == batch]
                if len(over) > 1 and over == [batch] * len(uses):
                    editor = Editor(facts)
                    item = editor.draft.new_name("item")
                    text = f"[[{item}] for {batch} in {ast.unparse(items)} for {item} in {batch}]"
                    editor.at(place).iter = ast.parse(text, mode="eval").body
                    yield Variant(f"each {batch} has one item", editor.tidy(), _turns_and_waits)


def _turns_and_waits(run: Run) -> Run | None:
    turned = changes.in_turn(run)
    return changes.fine_waits(turned or run) or turned


# Buffers


def more_buffers(facts: Facts) -> Iterator[Variant]:
    """Fill one buffer while others are worked on: where each turn of a loop fills the same array anew."""
    bound = set().union(*map(names_bound, facts.statements))
    for place in sorted(facts.executed) if not facts.hindering() else ():
        loop = facts.loop_of(place)
        if (
            loop is None
            or facts.inner_loop_of(place) != loop
            or facts.session_name is None
            or not _is_filled_again(facts, place)
        ):
            continue
        match call_of(facts.statements[place]), facts.statements[loop]:
            case (
                ast.Call(func=ast.Attribute(attr="set", value=ast.Name(id=buffer) | ast.Subscript(value=ast.Name(id=buffer)))),
                ast.For(),
            ) if buffer not in bound and _is_filled_first(facts, place, loop, buffer):
                count = sum(1 for at, _ in facts.look.times if at == place)
                for buffers in range(2, 2 + min(count - 1, MOST_MORE)):
                    yield _with_more(facts, loop, buffer, count, buffers)


def _is_filled_again(facts: Facts, place: int) -> bool:
    """Tell whether the work of a statement waits until others have read what it wrote the last time."""
    own = [number for number, site in enumerate(facts.site_of) if site == place]
    return any(before not in own and after in own and before > own[0] for before, after in facts.run.memory.edges())


def _is_filled_first(facts: Facts, place: int, loop: int, buffer: str) -> bool:
    """Tell whether each turn fills a buffer before it uses it, and no other variable leads to it.

    What reads it behind the loop has to find the last turn's in it: in which it is depends on how many turns there are.
    """
    keys = {name: {find_owner(one).key for one in find_arrays(value)} for name, value in facts.values()}
    is_shared = any(own & keys[buffer] for name, own in keys.items() if name != buffer)
    is_used = any(buffer in names_loaded(facts.statements[one]) for one in range(loop + 1, place))
    may_skip = any(isinstance(facts.statements[one], (ast.If, ast.Try)) for one in facts.parents[place][1:])
    leaves = any(isinstance(facts.statements[one], (ast.Continue, ast.Break)) for one in facts.within(loop))
    behind = facts.statements[max(facts.within(loop)) + 1 :]
    items = facts.statements[loop].iter  # type: ignore[attr-defined]
    is_counted = isinstance(items, ast.Call) and all(isinstance(one, ast.Constant) for one in items.args)
    is_read_later = not is_counted and any(buffer in names_loaded(one) for one in behind)
    return not (is_shared or is_used or may_skip or leaves or is_read_later)


def _with_more(facts: Facts, loop: int, buffer: str, count: int, buffers: int) -> Variant:
    values = [value for name, value in facts.values() if name == buffer]
    is_list = bool(values) and isinstance(values[0], (list, tuple))
    editor = Editor(facts)
    one = editor.at(loop)
    lab, draft = facts.session_name, editor.draft
    like = f"{lab}.xp.empty_like({buffer})" if not is_list else f"[{lab}.xp.empty_like(one) for one in {buffer}]"
    more = [draft.new_name(f"{buffer}_{number}") for number in range(2, buffers + 1)]
    ring = [*more]
    ring.insert((count - 1) % buffers, buffer)  # the last turn fills the one that there was
    turns = _turning(draft, buffer, buffers)
    names = {buffer: turns[0]}
    before = [f"{', '.join(turns)} = {', '.join(ring)}"]
    behind = [_turned(turns)]
    for events, is_named in _events_in(one):
        turns = [events, *_turning(draft, events, buffers)[1:]] if is_named else _turning(draft, events, buffers)
        names |= {} if is_named else {events: turns[0]}
        first = [*turns[1:]] if is_named else [*turns]
        before.append(f"{', '.join(first)} = {', '.join([events if is_named else f'[*{events}]'] * len(first))}")
        behind.append(_turned(turns))
    one.body = [_renamed(part, names) for part in one.body] + parsed("\n".join(behind))
    put_before_all(editor, loop, [f"{name} = {like}" for name in more])
    editor.insert(loop, parsed("\n".join(before)))
    word = {2: "a second buffer", 3: "three buffers"}[buffers]
    title = f"{buffer} has {word}, and turns of the loop fill them in turn"
    return Variant(title, editor.tidy(), partial(changes.fine_waits, buffers=buffers))


def _turning(draft: Draft, name: str, buffers: int) -> list[str]:
    """Return variables for what this turn of a loop uses, and the next ones."""
    return [draft.new_name(f"{name}_{when}") for when in ("now", "next", "third")[:buffers]]


def _turned(turns: Sequence[str]) -> str:
    return f"{', '.join(turns)} = {', '.join([*turns[1:], turns[0]])}"


def _events_in(loop: ast.For) -> list[tuple[str, bool]]:
    """Return the variables, and lists, to which a loop gives events of its turns that it waits for in later ones."""
    waited, found = set[str](), dict[str, tuple[bool, bool]]()
    for _, one in walk_statements(loop.body):
        for call in (node for node in parts_of_statement(one) if isinstance(node, ast.Call)):
            if ast.unparse(call.func).endswith(".wait"):
                waited |= {part.id for node in call.args for part in ast.walk(node) if isinstance(part, ast.Name)}
        match one:
            case ast.Assign(targets=[target], value=ast.Call(func=ast.Attribute(attr="record"))):
                match target:
                    case ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)):
                        found.setdefault(name, (isinstance(target, ast.Name), name in waited))
    return [(name, is_named) for name, (is_named, is_of_turn_before) in found.items() if is_of_turn_before]


# Launches


def in_turn(facts: Facts) -> Iterator[Variant]:
    """Take items in turn where a loop takes many of one kind, then many of the next."""
    for place in sorted(facts.executed) if not facts.hindering() else ():
        one = facts.statements[place]
        if not isinstance(one, ast.For) or not isinstance(one.iter, ast.Name) or not isinstance(one.target, ast.Name):
            continue
        items = facts.look.kinds[place].get(one.iter.id)
        if not isinstance(items, (str, list, tuple)) or not all(isinstance(item, (str, int, Stream)) for item in items):
            continue
        sizes = [len([*some]) for _, some in groupby(items)]
        if len(sizes) < 2 or len({*sizes}) > 1 or sizes[0] < LEAST_BLOCK:
            continue
        editor = Editor(facts)
        turn = editor.draft.new_name("turn")
        item, name = one.target.id, one.iter.id
        text = f"[{item} for {turn} in range({sizes[0]}) for {item} in {name}[{turn}::{sizes[0]}]]"
        editor.at(place).iter = ast.parse(text, mode="eval").body
        yield Variant(f"items of {name} are launched in turn", editor.tidy(), changes.in_turn)
