"""Turns of a loop as a CUDA graph, where each launches the same on the same memory, and the host does nothing else."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from gpustreamlab._util.arrays import is_array
from gpustreamlab.analysis import _changes as changes
from gpustreamlab.analysis._advice import GRAPH_CALL_NS, GRAPH_NODE_NS
from gpustreamlab.analysis._program import DOWNLOAD, UPLOAD
from gpustreamlab.improve._draft import parsed
from gpustreamlab.improve._facts import Facts, is_reading, names_bound, root_of, selection
from gpustreamlab.improve._run import memory_of, parts_of_statement
from gpustreamlab.improve._waits import Editor, Variant

_PURE = frozenset({"range", "len"})
_HAS_STATE = (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom, ast.Lambda)
_ORDERS = frozenset({"record", "wait", "query", "synchronize", "hold", "stream"})
LAUNCH_NS = 4_000
"""What a launch takes on the host, to choose how many turns are one graph."""


def replayed(facts: Facts) -> Iterator[Variant]:
    """Launch turns of a loop with one call."""
    for place in sorted(facts.executed):
        if facts.session_name is None or facts.loop_of(place) is not None:
            continue
        match facts.statements[place]:
            case ast.For(target=ast.Name(id=item), iter=ast.Call(func=ast.Name(id="range"), args=given), orelse=[]):
                inside = facts.within(place)[1:]
                stream = _stream_of(facts, inside)
                is_constant = not any(item in _names(facts.statements[one]) for one in inside)
                if stream is not None and is_constant and _is_capturable(facts, inside):
                    yield _as_graph(facts, place, given, stream)


def _names(one: ast.stmt) -> set[str]:
    return {part.id for part in parts_of_statement(one) if isinstance(part, ast.Name)}


def _stream_of(facts: Facts, inside: Sequence[int]) -> str | None:
    """Return what to type for the one stream of a loop's work; None where there are others, copies of the host, or waits."""
    works = [work for work, site in zip(facts.run.program.works, facts.site_of, strict=True) if site in inside]
    moves = any(work.kind in (UPLOAD, DOWNLOAD) for work in works)
    is_one = len({work.lane for work in works}) == 1
    last = max((number for number, call in enumerate(facts.run.program.calls) if call.works), default=0)
    waits = any(number < last for one in inside for number in facts.waiting.get(one, ()))  # behind the last it is not its own
    return facts.text_of_lane(works[0].lane) if is_one and not moves and not waits else None


def _is_capturable(facts: Facts, inside: Sequence[int]) -> bool:
    """Tell whether a graph does the same each time: no variable goes from turn to turn, and nothing of the host is called."""
    statements = [facts.statements[one] for one in inside]
    bound, seen = set[str]().union(*map(_bound_by, statements)), set[str]()
    for place, one in zip(inside, statements, strict=True):
        values = facts.look.kinds[place]
        parts = [*parts_of_statement(one)]
        loaded = {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}
        is_simple = isinstance(one, (ast.Expr, ast.Assign, ast.AugAssign, ast.For)) or selection(one) is not None
        calls = [part for part in parts if isinstance(part, ast.Call)]
        if (
            not is_simple
            or loaded & (bound - seen)
            or place not in facts.executed
            or any(memory_of(value)[0] for value in values.values())
        ):
            return False
        if not all(_is_of_device(facts, call, values) for call in calls) or not _writes_the_device(one, values):
            return False
        if any(isinstance(part, _HAS_STATE) for part in parts) or not all(_is_same_each_time(part, values) for part in parts):
            return False
        seen |= _bound_by(one)
    return True


def _is_same_each_time(part: ast.AST, values: dict[str, Any]) -> bool:
    """Tell whether to look something up, or to go through it, changes nothing: iterators end, and properties may count."""
    match part:
        case ast.For(iter=ast.Name(id=name)):
            return isinstance(values.get(name), (list, tuple, range))
        case ast.Subscript(value=value) | ast.Attribute(value=value) if root_of(value):  # what a call gives is the device's
            found = values.get(root_of(value))
            is_plain = is_array(found) or isinstance(found, (list, tuple, dict, types.ModuleType))
            return is_plain or type(found).__module__.startswith("gpustreamlab.")
    return True


def _bound_by(one: ast.stmt) -> set[str]:
    """Return the variables that a statement itself gives another value; an array that it adds to stays the same one."""
    target = [one.target] if isinstance(one, ast.For) else one.targets if isinstance(one, ast.Assign) else []
    return set().union(*map(names_bound, target))


def _is_of_device(facts: Facts, call: ast.Call, values: dict[str, Any]) -> bool:
    """Tell whether a call launches work and no more: of an array, of the array module, or of this package's workloads."""
    text, value = ast.unparse(call.func), values.get(root_of(call.func))
    if is_reading(call) or "random" in text or text.rpartition(".")[2] in _ORDERS:
        return False
    if isinstance(value, types.FunctionType):
        return value.__module__ == "gpustreamlab.workloads"
    is_module = text.startswith(f"{facts.session_name}.xp.") or (
        isinstance(value, types.ModuleType) and value.__name__ in ("cupy", "cupyx")
    )
    is_selection = text in (f"{facts.session_name}.on", f"{facts.session_name}.select")
    return text in _PURE or is_module or is_selection or is_array(value)


def _writes_the_device(one: ast.stmt, values: dict[str, Any]) -> bool:
    """Tell whether a statement changes nothing but variables of its turn, and arrays of the device."""
    match one:
        case ast.AugAssign(target=target):
            return is_array(values.get(root_of(target)))
        case ast.Assign(targets=targets):
            parts = [part for one in targets for part in (one.elts if isinstance(one, ast.Tuple) else [one])]
            return all(isinstance(part, ast.Name) or is_array(values.get(root_of(part))) for part in parts)
    return True


def _as_graph(facts: Facts, place: int, given: Sequence[ast.expr], stream: str) -> Variant:
    editor = Editor(facts)
    one, lab = editor.at(place), facts.session_name
    inside = facts.within(place)
    first = inside[1]
    count = sum(1 for at, _ in facts.look.times if at == first)
    nodes = sum(site in inside for site in facts.site_of) // max(1, count)
    item = one.target.id
    others = {name for at, other in enumerate(facts.statements) if at not in inside for name in _names(other)}
    is_inside = facts.draft.definition is not None and item not in others  # nobody looks at which turn was the last
    is_plain = len(given) == 1 and isinstance(given[0], ast.Constant) and is_inside
    each = min(
        (turns for turns in range(1, count + 1) if count % turns == 0 and (is_plain or turns == 1)),
        key=lambda turns: turns * nodes * LAUNCH_NS + count // turns * GRAPH_CALL_NS,
    )
    name = editor.draft.new_name("turns")
    before = parsed(f"with {stream}.graph() as {name}:\n    pass")
    before[0].body = (  # type: ignore[attr-defined]
        one.body if each == 1 else [ast.For(one.target, ast.parse(f"range({each})", mode="eval").body, one.body, [])]
    )
    launches = f"range({count // each})" if is_plain else ast.unparse(one.iter)
    after = parsed(f'for {item} in {launches}:\n    with {lab}.on({stream}, "turns"):\n        {name}.launch()\n{name}.close()')
    editor.replace(place, [*before, *after])
    title = f"{'each turn is' if each == 1 else f'{each} turns are'} launched as one CUDA graph"
    works = [work for work, site in enumerate(facts.site_of) if site in inside]
    loop = (works[0], works[-1] + 1, max(1, nodes))
    predict = partial(changes.repeats_as_graph, call_ns=GRAPH_CALL_NS, node_ns=GRAPH_NODE_NS, turns=each, loop=loop)
    return Variant(title, editor.tidy(), predict)
