"""Changes of streams and of the SMs that they have: copies and independent work apart, priorities, partitions."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from gpustreamlab._util.arrays import is_array
from gpustreamlab.analysis import _changes as changes
from gpustreamlab.analysis._advice import ENOUGH_SHARE, STREAM_COUNTS
from gpustreamlab.analysis._changes import Run
from gpustreamlab.analysis._program import DOWNLOAD, KERNEL, UPLOAD
from gpustreamlab.analysis._replay import has_full_sms
from gpustreamlab.improve._draft import parsed
from gpustreamlab.improve._facts import Facts, names_bound, selection
from gpustreamlab.improve._loops import is_simple
from gpustreamlab.improve._run import parts_of_statement, reached
from gpustreamlab.improve._waits import Editor, Variant, predicted_gain, put_before_all
from gpustreamlab.programs import free_name
from gpustreamlab.programs._calls import is_user_function
from gpustreamlab.programs._source import what_decides

ROLES = {UPLOAD: "uploads", DOWNLOAD: "downloads"}
DEFAULT_STREAM = "default stream"
_ORDERS = (".record", ".synchronize", ".query", ".wait", ".use", ".graph", ".close")


def by_role(facts: Facts) -> Iterator[Variant]:
    """Give copies each way a stream of their own, where all work of a loop is on one stream; data order what they do."""
    works = facts.run.program.works
    for loop in sorted({one for unit in facts.units if (one := facts.loop_of(unit)) is not None}):
        inside = [unit for unit in facts.units if loop in facts.parents[unit]]
        kinds = {unit: {works[number].kind for number in facts.units[unit]} for unit in inside}
        moving = {unit: ROLES[kind] for unit, own in kinds.items() if len(own) == 1 for kind in own if kind in ROLES}
        home = _home_of(facts, inside, loop)
        if home is not None and moving and {*moving} != {*inside}:
            moving = moving if home else {unit: moving.get(unit, "kernels") for unit in inside}
            title = f"{' and '.join(dict.fromkeys(moving.values()))} have streams of their own"
            yield from _apart(facts, _Region(inside, loop, loop, home), moving, title, changes.by_role)


def independent(facts: Facts) -> Iterator[Variant]:
    """Put statements that need nothing of each other on streams of their own, where all work is on one stream."""
    for inside in _bodies(facts):
        loop = facts.loop_of(inside[0])
        home = _home_of(facts, inside, loop)
        if home is None or (loop is not None and facts.inner_loop_of(inside[0]) != loop):
            continue
        region = _Region(inside, *((inside[0], inside[-1]) if loop is None else (loop, loop)), home)
        made = list[Variant]()
        for count in STREAM_COUNTS:
            moving = _dealt(facts, inside, count, has_home=bool(home))
            used = len({moving.get(unit) for unit in inside})
            if used > 1:
                lanes = {work: moving.get(unit, "") for work, unit in _owners(facts, inside).items()}
                title = f"statements that need nothing of each other are on {used} streams"
                made += _apart(facts, region, moving, title, partial(_spread, facts=facts, lanes=lanes))
        yield from _fewest(facts, made)


def turns(facts: Facts) -> Iterator[Variant]:
    """Let turns of a loop that need nothing of each other go in turn on some streams, where all work is on one."""
    for loop in sorted(facts.executed):
        if not isinstance(facts.statements[loop], ast.For) or facts.loop_of(loop) is not None:
            continue
        inside = [one for one in facts.within(loop) if facts.parents[one][-1:] == (loop,) and facts.lanes_of(facts.within(one))]
        home = _home_of(facts, inside, loop) if inside else None
        turn_of = facts.turns_of(loop)
        pairs = [(turn_of[before], turn_of[after]) for before, after in facts.run.memory.edges()]
        blocks = {selection(facts.statements[one]) is not None for one in inside}
        if home is None or len(blocks) > 1 or any(first != second and min(first, second) >= 0 for first, second in pairs):
            continue
        counts, region = [count for count in STREAM_COUNTS if count <= max(turn_of) + 1], _Region(inside, loop, loop, home)
        yield from _fewest(facts, [_in_turns(facts, region, count, turn_of) for count in counts])


def _fewest(facts: Facts, made: Sequence[Variant]) -> list[Variant]:
    """Return of the same with more and more streams that with the fewest that is predicted to gain about as much as any."""
    gains_ns = [predicted_gain(facts, one) or 0 for one in made]
    return [one for one, gain_ns in zip(made, gains_ns, strict=True) if gain_ns >= ENOUGH_SHARE * max(gains_ns)][:1]


def _in_turns(facts: Facts, region: _Region, streams: int, turn_of: Sequence[int]) -> Variant:
    editor, lab, loop = Editor(facts), facts.session_name, region.first
    one, name = editor.at(loop), editor.draft.new_name("turns")
    items = ast.unparse(one.iter)
    match one:
        case ast.For(target=ast.Name(id=item), iter=ast.Call(func=ast.Name(id="range"))) if not any(
            item in names_bound(facts.statements[place]) for place in facts.within(loop)[1:]
        ):
            pass
        case _:
            item = editor.draft.new_name("turn")
            one.target = ast.Tuple([ast.Name(item, ast.Store()), one.target], ast.Store())
            one.iter = ast.Call(ast.Name("enumerate", ast.Load()), [one.iter], [])
    chosen = f"{name}[{item} % {streams}]"
    if selection(facts.statements[region.inside[0]]) is None:
        around = parsed(f"with {lab}.on({chosen}):\n    pass")
        around[0].body = one.body  # type: ignore[attr-defined]
        one.body = around
    else:
        for place in region.inside:
            editor.at(place).items[0].context_expr.args[0] = ast.parse(chosen, mode="eval").body
    base = free_name("turn", {lane.name.rpartition("-")[0] for lane in facts.trace.lanes})
    put_before_all(editor, loop, [f'{name} = [{lab}.stream(f"{base}-{{number}}") for number in range({streams})]'])
    stream = editor.draft.new_name("stream")
    _part_and_join(editor, region, [stream], f"for {stream} in {name}:\n    {{line}}")
    lanes = {work: f"{base}-{turn % streams}" for work, turn in enumerate(turn_of) if turn >= 0}
    title = f"turns of the loop over {items} are on {streams} streams"
    return Variant(title, editor.tidy(), partial(_spread, facts=facts, lanes=lanes))


def _bodies(facts: Facts) -> Iterator[list[int]]:
    """Yield of each list of statements those that launched work, themselves or by others in them; where there are several."""
    found = dict[int, dict[int, None]]()
    for site in facts.site_of:
        chain = (*facts.parents[site], site) if site >= 0 else ()
        for place in chain:
            found.setdefault(facts.list_of(place), {})[place] = None
    for places in found.values():
        own = [place for place in sorted(places) if not _returns(facts, place)]
        if len(own) > 1 and own == sorted(places)[: len(own)]:
            yield own


def _part_and_join(editor: Editor, region: _Region, names: Sequence[str], each: str = "{line}") -> None:
    """Let streams wait for the one that they are in place of, in front, and that one for them behind all."""
    facts, home = editor.facts, region.home
    both = f"{facts.session_name}.synchronize()"  # the default stream has no name, and a value that was read waited for all
    is_read = facts.has_waits(one for unit in region.inside for one in facts.within(unit))
    front = [each.format(line=f"{name}.wait({home})") for name in names] if home else [both]
    back = [each.format(line=f"{home}.wait({name})") for name in names] if home and not is_read else [both]
    editor.insert(region.first, parsed("\n".join(front)))
    editor.insert(region.last, parsed("\n".join(back)), behind=True)


def _returns(facts: Facts, place: int) -> bool:
    return any(isinstance(facts.statements[one], ast.Return) for one in facts.within(place))


def _home_of(facts: Facts, inside: Sequence[int], loop: int | None) -> str | None:
    """Return what to type for the one stream of statements, empty for the default stream; None where they must stay on it."""
    lanes = facts.lanes_of([one for unit in inside for one in facts.within(unit)])
    region = facts.region(inside[0])
    is_open = facts.session_name is None or not facts.run.memory.is_known or facts.hindering(max(region))
    if len(lanes) != 1 or is_open or (loop is not None and _returns(facts, loop)):
        return None
    parts = [part for place in region for part in parts_of_statement(facts.statements[place])]
    calls = [ast.unparse(part.func) for part in parts if isinstance(part, ast.Call)]
    if any(isinstance(part, ast.keyword) and part.arg == "stream" for part in parts):
        return None  # it says itself where its work goes
    if not _is_fixed(facts, region):
        return None  # other values would have other work need each other
    if any(call.endswith(_ORDERS) and call != f"{facts.session_name}.synchronize" for call in calls):
        return None  # these are of the one stream, and would not wait for the others
    if loop is not None and f"{facts.session_name}.synchronize" in calls:
        return None
    if facts.has_waits(region) and facts.is_touched(region, facts.memory_of_copies(region)):
        return None  # so does what a function waits for, or a value
    return "" if facts.lane_name(*lanes) == DEFAULT_STREAM else facts.text_of_lane(*lanes)


def _is_fixed(facts: Facts, region: Sequence[int]) -> bool:
    """Tell whether no value of the host says which arrays statements use: only numbers and turns of loops choose items."""
    counted = set[str]()
    for place in region:
        match facts.statements[place]:
            case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"))):
                counted.add(name)
            case ast.For(target=ast.Tuple(elts=[ast.Name(id=name), _]), iter=ast.Call(func=ast.Name(id="enumerate"))):
                counted.add(name)
    parts = [part for place in region for part in parts_of_statement(facts.statements[place])]
    indices = [one for part in parts if isinstance(part, ast.Subscript) for one in ast.walk(part.slice)]
    chosen = {one.id for one in indices if isinstance(one, ast.Name)}
    held = [one for place in region for value in facts.look.kinds[place].values() for one in reached(value)]
    return counted >= chosen and not any(any(what_decides(one.__code__)) for one in held if is_user_function(one))


def _owners(facts: Facts, inside: Sequence[int]) -> dict[int, int]:
    """Return of each work of some statements which of them launched it, itself or by one in it."""
    found = {}
    for work, site in enumerate(facts.site_of):
        chain = (site, *facts.parents[site]) if site >= 0 else ()
        owner = next((place for place in chain if place in inside), None)
        if owner is not None:
            found[work] = owner
    return found


def _follows(facts: Facts, inside: Sequence[int]) -> set[tuple[int, int]]:
    """Return which statements need another one, in the same turn of a loop or one before."""
    owner = _owners(facts, inside)
    return {(owner[before], owner[after]) for before, after in facts.run.memory.edges() if before in owner and after in owner}


def _dealt(facts: Facts, inside: Sequence[int], count: int, *, has_home: bool) -> dict[int, str]:
    """Deal statements to streams: each goes on behind one that it needs, if nothing else did; else it is on the next stream."""
    follows, names = _follows(facts, inside), [""] * has_home + [f"side-{number + 1}" for number in range(count - has_home)]
    last, found, turn = dict[str, int](), dict[int, str](), 0
    for unit in inside:
        before = [found[one] for one in inside if one < unit and (one, unit) in follows and last.get(found[one]) == one]
        if not before:
            before, turn = [names[turn % count]], turn + 1
        found[unit] = before[-1]
        last[before[-1]] = unit
    return {unit: name for unit, name in found.items() if name}


def _spread(run: Run, facts: Facts, lanes: Mapping[int, str]) -> Run | None:
    """Return a run with its work on the streams that it is dealt to."""
    names = tuple(dict.fromkeys(["", *lanes.values()]))
    of_row = {facts.run.program.works[work].row: names.index(name) for work, name in lanes.items()}
    return changes.spread(run, [of_row.get(work.row, 0) for work in run.program.works], names)


class _Region(NamedTuple):
    """Statements that launch work, and between which of them streams part and join: in front of one and behind one."""

    inside: Sequence[int]
    first: int
    last: int
    home: str  # What to type for the stream that they are on; empty for the default stream


def _apart(
    facts: Facts, region: _Region, moving: Mapping[int, str], title: str, predict: Callable[[Run], Run | None]
) -> Iterator[Variant]:
    """Put statements on streams of their own, each behind what it needs of others."""
    editor, lab, (inside, first, _, home) = Editor(facts), facts.session_name, region
    taken = {lane.name for lane in facts.trace.lanes}
    names = {name: editor.draft.new_name(name.replace("-", "_")) for name in dict.fromkeys(moving.values())}
    text_of = {unit: names[moving[unit]] if unit in moving else home for unit in inside}
    put_before_all(editor, first, [f'{name} = {lab}.stream("{free_name(stream, taken)}")' for stream, name in names.items()])
    _part_and_join(editor, region, [*names.values()])
    follows, kept = _follows(facts, inside), _kept_alive(facts, region, text_of)
    if any(names_bound(facts.statements[unit]) & {*kept[unit]} for unit in inside):
        return  # its name gets another array before it could be held
    for unit in inside:
        needed = dict.fromkeys(text_of[one] for one in inside if (one, unit) in follows and text_of[one] != text_of[unit])
        one = editor.at(unit)
        editor.insert(unit, parsed("\n".join(f"{text_of[unit]}.wait({other})" for other in needed)))
        if kept[unit]:
            editor.insert(unit, parsed(f"{text_of[unit]}.hold({', '.join(kept[unit])})"), behind=True)
        if unit in moving and selection(one) is not None:
            one.items[0].context_expr.args[0] = ast.Name(text_of[unit], ast.Load())
        elif unit in moving:
            around = parsed(f"with {lab}.on({text_of[unit]}):\n    pass")
            around[0].body = [one]  # type: ignore[attr-defined]
            editor.replace(unit, around)
    for body, _ in [*editor.draft.statements()]:
        _join_blocks(body)
    yield Variant(title, editor.tidy(), predict)


def _kept_alive(facts: Facts, region: _Region, text_of: Mapping[int, str]) -> dict[int, list[str]]:
    """Return of each statement the arrays of other streams that it uses and whose names get other ones: they have to stay."""
    loop = facts.loop_of(region.inside[0])
    places = facts.within(loop) if loop is not None else range(region.first, max(facts.within(region.last)) + 1)
    made = dict[str, set[str]]()  # by name on which streams
    ends = dict[str, list[int]]()  # by name where it gets another value, or is deleted
    for place in places:
        text = next((text_of[one] for one in (place, *facts.parents[place]) if one in text_of), region.home)
        for part in parts_of_statement(facts.statements[place]):
            if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
                ends.setdefault(part.id, []).append(place)
                made.setdefault(part.id, set()).update([text] if isinstance(part.ctx, ast.Store) else [])
    found = {}
    for unit in region.inside:
        own = facts.within(unit)
        used = {name for one in own for name, value in facts.look.kinds[one].items() if name in made and is_array(value)}
        is_again = {name: loop is not None or max(ends[name]) > own[-1] for name in used}
        found[unit] = sorted(name for name in used if is_again[name] and made[name] - {text_of[unit]})
    return found


def _join_blocks(body: list[Any]) -> None:
    """Put what stands in blocks of the same stream in a row into one."""
    for number in range(len(body) - 1, 0, -1):
        pair = one, other = body[number - 1], body[number]
        are_ours = all(isinstance(part, ast.With) and hasattr(part, "ours") for part in pair)
        if are_ours and [*map(ast.dump, one.items)] == [*map(ast.dump, other.items)]:
            one.body += other.body
            del body[number]


def streams_before(facts: Facts) -> Iterator[Variant]:
    """Make streams before the loop that makes one in each turn."""
    session = facts.session_name
    for loop in sorted(one for one in facts.executed if facts.loop_of(one) is None):
        match facts.statements[loop]:
            case ast.For(target=ast.Name(id=item), iter=items, body=body) if is_simple(items):
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
