"""Changes of loops and of what stands before them: phases, buffers, streams, the order of launches, memory, partitions."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from gpustreamlab._util.arrays import find_arrays, find_owner
from gpustreamlab.analysis import _changes as changes
from gpustreamlab.analysis._changes import Run
from gpustreamlab.analysis._program import DOWNLOAD, KERNEL, UPLOAD
from gpustreamlab.analysis._replay import has_full_sms
from gpustreamlab.improve._draft import Draft, parsed, walk_statements
from gpustreamlab.improve._facts import Facts, names_bound, selection
from gpustreamlab.improve._run import names_loaded, parts_of_statement
from gpustreamlab.improve._waits import Editor, Variant, call_of, put_before_all
from gpustreamlab.streams.stream import Stream

LEAST_BLOCK = 4
"""From so many launches of one stream in a row on they are launched in turn."""
MOST_MORE = 2
"""So many more buffers are tried."""
ROLES = {UPLOAD: "uploads", DOWNLOAD: "downloads"}


# Memory of the host


def pinned_sources(facts: Facts) -> Iterator[Variant]:
    """Make arrays that are copied to the device page-locked, where the program makes them before what is measured."""
    prepare = facts.draft.prepare
    if prepare is None or facts.session_name is None:
        return
    pageable = {facts.site_of[number] for number, work in enumerate(facts.run.program.works) if work.is_pageable}
    names = {name for place in pageable if place >= 0 for name in facts.copied_names(place)}
    for one in facts.statements:  # whose items a loop takes
        match one:
            case ast.For(target=ast.Name(id=item), iter=ast.Name(id=items)) if item in names:
                names = names - {item} | {items}
    for name in sorted(names):
        values = [value for one, value in facts.values() if one == name]
        editor = Editor(facts)
        body = editor.draft.prepare or []
        bound = [number for number, one in enumerate(body) if isinstance(one, ast.Assign) and name in names_bound(one)]
        if not bound or not all(isinstance(value, np.ndarray) for value in values):
            continue
        if facts.is_touched(range(len(facts.statements)), facts.look.known.get(name, set())):
            continue  # a copy from ordinary memory is done with it when it returns, this one is not
        new = editor.draft.new_name("pinned" if name != "pinned" else "page_locked")
        lines = (
            f"{new} = {facts.session_name}.memory.pinned_empty({name}.shape, {name}.dtype)\n{new}[...] = {name}\n{name} = {new}"
        )
        body[bound[-1] + 1 : bound[-1] + 1] = parsed(lines)
        yield Variant(f"{name} is page-locked", editor.tidy(), changes.pinned)


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
    if items is None or not _is_simple(items) or leaves:
        return None
    return _Phase(name, items, body if around is None else [ast.With(around.items, body)], before, [])


def _is_simple(items: ast.expr) -> bool:
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
    made = copy.deepcopy(node)
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


# Streams


def by_role(facts: Facts) -> Iterator[Variant]:
    """Give copies each way a stream of their own, where all work of a loop is on one stream; data order what they do."""
    works = facts.run.program.works
    for loop in sorted({one for unit in facts.units if (one := facts.loop_of(unit)) is not None}):
        inside = [unit for unit in facts.units if loop in facts.parents[unit]]
        kinds = {unit: {works[number].kind for number in facts.units[unit]} for unit in inside}
        lanes = facts.lanes_of([one for unit in inside for one in facts.within(unit)])
        moving = {unit: ROLES[kind] for unit, own in kinds.items() if len(own) == 1 for kind in own if kind in ROLES}
        is_mixed = {*moving} != {*inside}
        if len(lanes) != 1 or not moving or not is_mixed or facts.session_name is None or not facts.run.memory.is_known:
            continue
        if facts.hindering(max(facts.within(loop))):
            continue
        calls = [one for one in ast.walk(facts.statements[loop]) if isinstance(one, ast.Call)]
        if any(ast.unparse(one.func).endswith((".record", ".synchronize", ".query")) for one in calls):
            continue  # these are of the one stream, and would not wait for the others
        waiting = {one for one in facts.within(loop) if facts.unit_of(one) not in moving} & facts.waiting.keys()
        if waiting and facts.is_touched(facts.within(loop), facts.memory_of_copies(facts.within(loop))):
            continue  # so does what a function waits for, or a value
        yield from _with_roles(facts, loop, inside, moving, *lanes)


def _with_roles(facts: Facts, loop: int, inside: Sequence[int], moving: dict[int, str], lane: int) -> Iterator[Variant]:
    editor = Editor(facts)
    home, lab = facts.text_of_lane(lane), facts.session_name
    if home is None:
        return
    names = {role: editor.draft.new_name(role) for role in dict.fromkeys(moving.values())}
    unit_of = [facts.unit_of(site) for site in facts.site_of]
    follows = {(unit_of[before], unit_of[after]) for before, after in facts.run.memory.edges()}
    text_of = {unit: names[moving[unit]] if unit in moving else home for unit in inside}
    for unit in inside:
        others = [before for before in inside if text_of[before] != text_of[unit]]
        needed = dict.fromkeys(text_of[before] for before in others if (before, unit) in follows)
        one = editor.at(unit)
        editor.insert(unit, parsed("\n".join(f"{text_of[unit]}.wait({other})" for other in needed)))
        if unit in moving and selection(one) is not None:
            one.items[0].context_expr.args[0] = ast.Name(names[moving[unit]], ast.Load())
        elif unit in moving:
            around = parsed(f"with {lab}.on({names[moving[unit]]}):\n    pass")
            around[0].body = [one]  # type: ignore[attr-defined]
            editor.replace(unit, around)
    made = [f'{name} = {lab}.stream("{role}")' for role, name in names.items()]
    put_before_all(editor, loop, made)
    editor.insert(loop, parsed("\n".join(f"{name}.wait({home})" for name in names.values())))
    editor.insert(loop, parsed("\n".join(f"{home}.wait({name})" for name in names.values())), behind=True)
    roles = " and ".join(names)
    yield Variant(f"{roles} have streams of their own", editor.tidy(), changes.by_role)


def streams_before(facts: Facts) -> Iterator[Variant]:
    """Make streams before the loop that makes one in each turn."""
    session = facts.session_name
    for loop in sorted(one for one in facts.executed if facts.loop_of(one) is None):
        match facts.statements[loop]:
            case ast.For(target=ast.Name(id=item), iter=items, body=body) if _is_simple(items):
                parts = [part for inner in body for part in ast.walk(inner) if isinstance(part, ast.Call)]
                calls = [part for part in parts if ast.unparse(part.func) == f"{session}.stream"]
                names = {one.id for call in calls for one in ast.walk(call) if isinstance(one, ast.Name)}
                if len({*map(ast.dump, calls)}) == 1 and names <= {item, str(session)}:
                    editor = Editor(facts)
                    name = editor.draft.new_name("made")
                    _Replace(ast.dump(calls[0]), ast.parse(f"{name}[{item}]", mode="eval").body).visit(editor.at(loop))
                    made = editor.draft.quoted(ast.unparse(calls[0]))
                    put_before_all(editor, loop, [f"{name} = {{{item}: {made} for {item} in {ast.unparse(items)}}}"])
                    yield Variant("streams are made before the loop", editor.tidy(), changes.streams_before)


class _Replace(ast.NodeTransformer):
    """Puts an expression in place of another one."""

    def __init__(self, old: str, new: ast.expr) -> None:
        self._old, self._new = old, new

    def visit_Call(self, node: ast.Call) -> ast.expr:
        return self._new if ast.dump(node) == self._old else self.generic_visit(node)  # type: ignore[return-value]


def first_of_all(facts: Facts) -> Iterator[Variant]:
    """Let a stream go before all others, where kernels wait for SMs."""
    program = facts.run.program
    lanes = sorted({work.lane for work in program.works if work.kind == KERNEL})
    for lane in lanes if 2 <= len(lanes) <= changes.MOST_FIRST and has_full_sms(program) else ():
        editor, level, name = Editor(facts), min(program.priorities) - 1, facts.lane_name(lane)
        calls = [one for one in ast.walk(editor.draft.tree) if isinstance(one, ast.Call) and _makes_stream(facts, one, name)]
        for call in calls:
            call.keywords.append(ast.keyword("priority", ast.parse(str(level), mode="eval").body))
        if calls:
            predict = partial(changes.with_priorities, levels={lane: level})
            yield Variant(f"{name} goes before all other streams, by its priority", editor.tidy(), predict)


def _makes_stream(facts: Facts, node: ast.Call, name: str) -> bool:
    match node:
        case ast.Call(ast.Attribute(value=ast.Name(id=session), attr="stream"), [ast.Constant(value=given)], keywords):
            return (session, given) == (facts.session_name, name) and not any(one.arg == "priority" for one in keywords)
    return False


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


# SMs


def whole_card(facts: Facts) -> Iterator[Variant]:
    """Let streams use all SMs."""
    editor = Editor(facts)
    names = []
    for node in ast.walk(editor.draft.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "stream":
            names += [ast.unparse(one.value) for one in node.keywords if one.arg == "partition"]
            node.keywords = [one for one in node.keywords if one.arg != "partition"]
    if names:
        yield Variant("streams use all SMs, and no partition", editor.tidy(), changes.whole_card)
