"""Changes of torch's copies: from and into page-locked memory, and the host goes on meanwhile."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from functools import partial

from gpustreamlab.analysis import _changes as changes
from gpustreamlab.analysis._changes import Run
from gpustreamlab.analysis._program import DOWNLOAD, UPLOAD
from gpustreamlab.improve._draft import parsed
from gpustreamlab.improve._facts import Facts, is_upload, names_bound, parts_of_simple, root_of
from gpustreamlab.improve._run import is_host_tensor
from gpustreamlab.improve._waits import Editor, Variant, is_untouched, order_by_data, put_before_all, told


def uploads(facts: Facts) -> Iterator[Variant]:
    """Copy to the device from page-locked memory, and let the host go on meanwhile: nothing may write what is copied."""
    editor, everything = Editor(facts), range(len(facts.statements))
    places, names = list[int](), dict[str, int]()
    for place in sorted(facts.executed):
        found = facts.loop_of(place) is not None and _blocking_uploads(facts.statements[place], facts, place)
        if not found or not is_untouched(facts, place) or facts.is_touched(everything, facts.copies_at(place)):
            continue
        for call in _blocking_uploads(editor.at(place), facts, place):
            call.keywords.append(ast.keyword("non_blocking", ast.Constant(value=True)))
            names.setdefault(_held_by(facts, root_of(call.func.value)), place)  # type: ignore[attr-defined]
        places.append(place)
    if not places or not _is_ordered(facts, editor):
        return
    locked = {name: place for name, place in names.items() if _page_lock(facts, editor, name, place)}
    for place in {facts.loop_of(place): place for name, place in names.items() if name not in locked}.values():
        editor.at_end(place, _wait(facts, editor))  # who called the program may write what it copied
    title = f"{told(facts, places)}: the host does not wait{' for copies from page-locked memory' * bool(locked)}"
    yield Variant(title, editor.tidy(), partial(_unblocked, kind=UPLOAD, rows=_rows_of_waits(facts, places)))


def _blocking_uploads(one: ast.stmt, facts: Facts, place: int) -> list[ast.Call]:
    values = facts.look.kinds[place]
    calls = [node for node in parts_of_simple(one) if isinstance(node, ast.Call) and is_upload(node, values)]
    return [call for call in calls if not any(part.arg == "non_blocking" for part in call.keywords)]


def _held_by(facts: Facts, name: str) -> str:
    """Return the variable whose items loops take as this one; itself where there is none."""
    for one in facts.statements[::-1]:  # the inner loops come first
        if isinstance(one, ast.For):
            taken = ((items, ast.walk(target)) for target, items in _taken(one.target, one.iter))
            name = next((items for items, parts in taken if name in {getattr(part, "id", "") for part in parts}), name)
    return name


def _taken(target: ast.expr, items: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """Yield what a loop takes from which variable, also through ``enumerate`` and ``zip``."""
    match target, items:
        case _, ast.Name(id=name):
            yield target, name
        case ast.Tuple(elts=[_, inner]), ast.Call(func=ast.Name(id="enumerate"), args=[given, *_]):
            yield from _taken(inner, given)
        case ast.Tuple(elts=parts), ast.Call(func=ast.Name(id="zip"), args=given):
            for part, one in zip(parts, given, strict=False):
                yield from _taken(part, one)


def _page_lock(facts: Facts, editor: Editor, name: str, place: int) -> bool:
    """Make what a variable holds page-locked before the loop, or as its loader gives it; tell whether that can be written."""
    value = next((value for one, value in facts.values() if one == name), None)
    if any(kind.__name__ == "DataLoader" for kind in type(value).__mro__):
        return _lock_loader(editor, name)
    loop, function = facts.loop_of(place), facts.draft.definition
    inside = facts.statements if facts.draft.prepare is not None or loop is None else [facts.statements[loop]]
    if loop is None or name in set().union(*map(names_bound, inside)):
        return False
    if function is not None and name not in names_bound(function) | {one.arg for one in function.args.args}:
        return False  # it is of the module, or of another function
    if is_host_tensor(value):
        line = f"{name} = {name}.pin_memory()"
    elif isinstance(value, (list, tuple)) and value and all(map(is_host_tensor, value)):
        line = f"{name} = [one.pin_memory() for one in {name}]"
    else:
        return False
    put_before_all(editor, loop, [line])
    return True


def _lock_loader(editor: Editor, name: str) -> bool:
    """Let a loader give batches in page-locked memory; how many workers it has stays."""
    for one in ast.walk(editor.draft.tree):
        match one:
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Call(func=function, keywords=keywords)) if target == name:
                if ast.unparse(function).rpartition(".")[2] == "DataLoader":
                    asked = [part for part in keywords if part.arg == "pin_memory"]
                    if not asked:
                        keywords.append(ast.keyword("pin_memory", ast.Constant(value=True)))
                    return not asked or (isinstance(asked[0].value, ast.Constant) and asked[0].value.value is True)
    return False


def fetches(facts: Facts) -> Iterator[Variant]:
    """Let copies to the host that a loop collects go on while the host does; it waits for them once, behind the loop."""
    editor = Editor(facts)
    places, loops = list[int](), dict[int, int]()
    for place in sorted(facts.executed):
        loop = facts.loop_of(place)
        if loop is None or not _fetched(facts.statements[place]) or not _is_kept_only(facts, place):
            continue
        for call in _fetched(editor.at(place)):
            call.func.attr = "to"  # type: ignore[attr-defined]
            call.args = [ast.Constant("cpu")]
            call.keywords = [ast.keyword("non_blocking", ast.Constant(value=True))]
        places.append(place)
        loops.setdefault(loop, place)
    if not places or not _is_ordered(facts, editor):
        return
    for place in loops.values():
        editor.at_end(place, _wait(facts, editor))
    title = f"{told(facts, places)}: into page-locked memory, the host waits once behind the loop"
    yield Variant(title, editor.tidy(), partial(_unblocked, kind=DOWNLOAD, rows=_rows_of_waits(facts, places)))


def _fetched(one: ast.stmt) -> list[ast.Call]:
    """Return the calls of a statement that copy tensors to the host, where it does no more than to keep what they give."""
    match one:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="append", value=ast.Name()), args=[value], keywords=[])):
            return _copies_in(value)
        case ast.Assign(targets=[ast.Name() | ast.Subscript(value=ast.Name())], value=value):
            return _copies_in(value)
        case ast.AugAssign(target=ast.Name(), op=ast.Add(), value=ast.List() as value):
            return _copies_in(value)
    return []


def _copies_in(value: ast.expr) -> list[ast.Call]:
    match value:
        case ast.Call(func=ast.Attribute(attr="numpy", value=inner), args=[], keywords=[]):
            return _copies_in(inner)  # which shares the memory
        case ast.Call(func=ast.Attribute(attr="cpu"), args=[], keywords=[]):
            return [value]
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return [call for part in parts for call in _copies_in(part)]
    return []


def _is_kept_only(facts: Facts, place: int) -> bool:
    """Tell whether nothing looks at what a statement keeps, by any name, until the loop has ended."""
    one, values = facts.statements[place], facts.look.kinds[place]
    match one:
        case ast.Assign(targets=[kept]) | ast.AugAssign(target=kept) | ast.Expr(value=ast.Call(func=kept)):
            name = root_of(kept)
        case _:
            return False
    held = values.get(name)
    is_new = isinstance(one, ast.Assign) and isinstance(kept, ast.Name)  # the variable is it
    if not is_new and not isinstance(held, (list, dict)):
        return False
    others = [other for other in facts.region(place) if other != place]
    is_alone = not any(facts.is_looked_up(name, held, other) for other in others)
    memory = set[tuple[int, int]]() if is_new else facts.look.host_memory[place].get(name, set())
    return is_alone and not facts.is_touched(others, memory) and is_untouched(facts, place)


def _is_ordered(facts: Facts, editor: Editor) -> bool:
    """Tell whether work has an order without the waits of the host: on one stream, or by waits of streams that are added."""
    lanes = {work.lane for work in facts.run.program.works}
    return len(lanes) < 2 or order_by_data(facts, editor, {*facts.units})


def _wait(facts: Facts, editor: Editor) -> list[ast.stmt]:
    """Return a wait of the host for all that the device does."""
    name = facts.module_name("torch")
    return parsed("import torch\ntorch.cuda.synchronize()" if name is None else f"{name}.cuda.synchronize()")


def _rows_of_waits(facts: Facts, places: Collection[int]) -> frozenset[int]:
    """Return the rows of the trace in which the host waited in some statements."""
    numbers = [number for place in places for number in facts.waiting.get(place, ())]
    return frozenset(facts.run.program.calls[number].row for number in numbers)


def _unblocked(run: Run, *, kind: int, rows: frozenset[int]) -> Run | None:
    changed = changes.pinned(run, (kind,))
    now = changed or run
    numbers = [number for number, call in enumerate(now.program.calls) if call.awaits and call.row in rows]
    return changes.without_waits(now, numbers, even_needed=True) or changed  # the source shows that the host needs none
