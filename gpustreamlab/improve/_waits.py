"""Changes of waits: of the host, of streams, and of copies that block."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpustreamlab._util.arrays import is_array
from gpustreamlab.analysis import _changes as changes
from gpustreamlab.analysis._changes import Run, with_cost_of_calls
from gpustreamlab.analysis._replay import Impossible, replay
from gpustreamlab.improve._draft import Draft, parsed
from gpustreamlab.improve._facts import LOOPS, Facts, is_plain_place, is_pure, is_reading, names_bound, root_of, selection
from gpustreamlab.improve._run import names_loaded
from gpustreamlab.programs._source import copied_syntax, short_text
from gpustreamlab.streams.stream import Stream

_SYNCHRONIZES = ("synchronize", "deviceSynchronize")


@dataclass(frozen=True, slots=True)
class Variant:
    """A program with something changed."""

    title: str  # What was done, as a sentence without its end
    draft: Draft
    predict: Callable[[Run], Run | None] | None = None  # The same change of a recorded run; None where none is known
    why_not: str = ""  # Why it is not made, where it might gain: then the draft is as it was


def predicted_gain(facts: Facts, variant: Variant) -> int | None:
    """Return what a change is predicted to gain, in ns; None where nothing is known."""
    if variant.predict is None:
        return None
    gain_ns, share = 0, 0
    try:
        for run in facts.pieces:
            changed = variant.predict(run)
            if changed is not None:
                share += 1
                gain_ns += replay(run.program).wall_ns - replay(with_cost_of_calls(run, changed, run.wait_ns).program).wall_ns
    except Impossible:
        return None
    return gain_ns if share else None


class Editor:
    """Changes a copy of a draft, by the places of its statements."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.draft = facts.draft.copy()
        self._all = list(self.draft.statements())

    def at(self, place: int) -> Any:
        """Return a statement of the copy."""
        return self._all[place][1]

    def replace(self, place: int, statements: Sequence[ast.stmt]) -> None:
        """Put statements in place of one."""
        body, one = self._all[place]
        number = _index(body, one)
        body[number : number + 1] = statements

    def insert(self, place: int, statements: Sequence[ast.stmt], *, behind: bool = False) -> None:
        """Put statements in front of one, or behind it."""
        body, one = self._all[place]
        number = _index(body, one) + behind
        body[number:number] = statements

    def at_end(self, place: int, statements: Sequence[ast.stmt]) -> None:
        """Put statements behind the outermost loop that one stands in; else at the end, before what is given back."""
        loop = self.facts.loop_of(place)
        if loop is not None:
            self.insert(loop, statements, behind=True)
            return
        body = last = self.draft.body
        while last and isinstance(last[-1], ast.With):  # what is given back may be read on a stream
            last = last[-1].body
        number = len(body) - bool(last and isinstance(last[-1], ast.Return))
        body[number:number] = statements

    def tidy(self) -> Draft:
        """Leave out what has nothing in it any more; return what was made."""
        _tidy(self.draft.body)
        return self.draft


def put_before_all(editor: Editor, loop: int, lines: Sequence[str]) -> None:
    """Put lines where the program prepares, else in front of a loop."""
    body = editor.draft.prepare
    if body is None:
        editor.insert(loop, parsed("\n".join(lines)))
        return
    inner = next(number for number, part in enumerate(body) if getattr(part, "name", None) == editor.draft.inner)
    body[inner:inner] = parsed("\n".join(lines))


def _index(body: list[ast.stmt], one: ast.stmt) -> int:
    return next(number for number, other in enumerate(body) if other is one)


def _tidy(body: list[ast.stmt]) -> None:
    for one in [*body]:
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(one, name, None)
            if isinstance(inner, list) and not isinstance(one, (ast.FunctionDef, ast.ClassDef)):
                _tidy(inner)
        number = _index(body, one)
        if isinstance(one, ast.If) and is_pure(one.test):
            if not one.body and not one.orelse:
                del body[number]
            elif [*map(ast.dump, one.body)] == [*map(ast.dump, one.orelse)]:
                body[number : number + 1] = one.body
            elif not one.body:
                one.test, one.body, one.orelse = ast.UnaryOp(ast.Not(), one.test), one.orelse, []
        elif isinstance(one, ast.With) and not one.body:
            del body[number]
        elif isinstance(one, (ast.If, *LOOPS)) and not one.body:
            one.body = [ast.Pass()]


def told(facts: Facts, places: Iterable[int]) -> str:
    """Return what statements are, for a title."""
    return ", ".join(dict.fromkeys(short_text(ast.unparse(facts.statements[place])) for place in places))


def call_of(one: ast.stmt) -> ast.Call | None:
    """Return the call that a statement is."""
    return one.value if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call) else None


# Waits of the host


def host_waits(facts: Facts) -> Iterator[Variant]:
    """Leave out waits of the host; streams wait for each other where their data ask for it, and the host once, at the end."""
    sites = [place for place in sorted(facts.executed) if is_synchronize(facts, place) and _can_leave_out(facts, place)]
    for chosen in [sites, *([[one] for one in sites] if len(sites) > 1 else [])]:
        made = _without_host_waits(facts, chosen) if chosen else None
        if made is not None:
            yield Variant(
                f"the host does not wait by {told(facts, chosen)}: streams wait for each other", made, changes.no_host_waits
            )


def is_synchronize(facts: Facts, place: int) -> bool:
    """Tell whether a statement is a wait of the host, and not the last: who called the program may read what that is for."""
    call = call_of(facts.statements[place])
    is_it = call is not None and isinstance(call.func, ast.Attribute) and call.func.attr in _SYNCHRONIZES and not call.args
    is_between = min(facts.site_of, default=place) < place < max(facts.units, default=place)
    return is_it and (facts.loop_of(place) is not None or is_between)  # in front of all, and behind, it is the caller's


def _can_leave_out(facts: Facts, place: int) -> bool:
    """Tell whether the host is known not to need a wait, neither by what it does nor by what is copied behind it."""
    return not facts.needs_wait(place) and is_untouched(facts, place)


def is_untouched(facts: Facts, place: int) -> bool:
    """Tell whether the host touches nothing that is copied until the end of a loop, where it waits again in any case."""
    return _stopping(facts, place) == []


def _stopping(facts: Facts, place: int) -> list[int] | None:
    """Return what did not run, or may leave the loop, for which a wait of the host stays; None where what ran asks for it."""
    region = facts.region(place)
    touching = [*facts.touching(region, facts.memory_of_copies(region, _lanes_awaited(facts, place)))]
    if not facts.executed.isdisjoint(touching):
        return None
    return sorted({*touching, *facts.hindering(max(region)), *facts.leaving(place)})


def hindered(facts: Facts) -> Iterator[Variant]:
    """Tell which waits stay only for what did not run, or for what may leave the loop: by each of these."""
    stopped = dict[tuple[int, ...], list[int]]()
    for place in sorted(facts.executed):
        is_wait = place in facts.waiting and (place in facts.reading or is_synchronize(facts, place))
        if is_wait and not facts.needs_wait(place):
            stopped.setdefault(tuple(_stopping(facts, place) or ()), []).append(place)
    for stops, places in stopped.items():
        if stops:
            title = f"the host does not wait by {told(facts, places)}"
            yield Variant(title, facts.draft, changes.no_host_waits, _reasons(facts, stops))
    waits, hindering = [place for place in sorted(facts.executed) if _is_stream_wait(facts, place)], facts.hindering()
    if waits and hindering and facts.run.memory.is_known:
        yield Variant(f"{told(facts, waits)} left out", facts.draft, changes.fine_waits, _reasons(facts, hindering))


def _reasons(facts: Facts, places: Iterable[int]) -> str:
    """Say for which statements waits stay, with their lines."""
    why = {True: "did not run, and may need the wait", False: "may jump over the wait"}
    return "; ".join(f"{place_text(facts, place)}, {why[place in facts.unseen]}" for place in places)


def place_text(facts: Facts, place: int) -> str:
    """Return what a statement is, with its line if the source has it."""
    one = facts.statements[place]
    text = short_text(ast.unparse(one).partition("\n")[0])
    return f"line {one.lineno}, {text}" if hasattr(one, "given") else text


def _lanes_awaited(facts: Facts, place: int) -> set[int] | None:
    call = call_of(facts.statements[place])
    of = call.func.value if call is not None and isinstance(call.func, ast.Attribute) else None
    value = facts.look.kinds[place].get(of.id) if isinstance(of, ast.Name) else None
    if not isinstance(value, Stream):
        return None
    return {lane for lane in facts.lanes_of(facts.executed) if facts.lane_name(lane) == value.name}


def _without_host_waits(facts: Facts, places: Collection[int]) -> Draft | None:
    editor = Editor(facts)
    if not order_by_data(facts, editor, {one for place in places for one in facts.region(place)}):
        return None
    finals: dict[tuple[int | None, str], ast.stmt] = {}
    for place in places:
        one = editor.at(place)
        finals.setdefault((facts.loop_of(place), ast.unparse(one)), one)
        editor.replace(place, [])
    for loop in dict.fromkeys(loop for loop, _ in finals):
        own = [one for (where, _), one in finals.items() if where == loop]
        place = next(place for place in places if facts.loop_of(place) == loop)
        bound = _bound_in(facts, loop)
        if facts.session_name is not None and (len(own) > 1 or any(names_loaded(one) & bound for one in own)):
            own = parsed(f"{facts.session_name}.synchronize()")
        editor.at_end(place, [ast.parse(ast.unparse(one)).body[0] for one in own])
    return editor.tidy()


def _bound_in(facts: Facts, loop: int | None) -> set[str]:
    return set() if loop is None else names_bound(facts.statements[loop])


def order_by_data(facts: Facts, editor: Editor, region: Collection[int]) -> bool:
    """Let each stream wait for those whose data its next work needs, in a part of a program; tell whether that can be written.

    Where it is not known what work touches, each waits for all others.
    """
    waits: dict[int, dict[int, None]] = {}
    if facts.run.memory.is_known:
        for (before, after), works in sorted(facts.needs.items()):
            if after in region and not all(facts.is_awaited(*pair) for pair in works):
                waits.setdefault(after, {})[before] = None
    else:
        chosen = [unit for unit in facts.units if unit in region]
        for unit in chosen:
            own = facts.lanes_of(facts.within(unit))
            waits[unit] = dict.fromkeys(one for one in chosen if facts.lanes_of(facts.within(one)) != own)
    for unit, others in waits.items():
        stream, texts = facts.stream_text(unit), [facts.stream_text(one) for one in others]
        is_reading_alone = unit in facts.reading and selection(editor.at(unit)) is None and len({*texts}) == 1
        if stream is None and is_reading_alone and None not in texts and facts.session_name is not None:
            around = parsed(f"with {facts.session_name}.on({texts[0]}):\n    pass")
            around[0].body = [editor.at(unit)]  # type: ignore[attr-defined]
            editor.replace(unit, around)
            continue
        if stream is None or None in texts:
            return False
        lines = [f"{stream}.wait({text})" for text in dict.fromkeys(texts) if text != stream]
        editor.insert(unit, [one for line in lines for one in parsed(line)])
    return True


# Copies that block


def blocking_gets(facts: Facts) -> Iterator[Variant]:
    """Let copies to the host go on while the host does; it waits for them once, at the end."""
    found = [place for place in facts.waiting if place in facts.executed and _blocking_get(facts, place) is not None]
    editor = Editor(facts)
    streams, into = dict[tuple[int | None, str], int](), ""
    for place in sorted(found):
        unit = facts.unit_of(place)
        own = facts.stream_text(unit)
        stream = own or stream_of_cupy(facts)
        if stream is None or not is_untouched(facts, place) or not _can_go_on(facts, place):
            continue
        call = _blocking_get(facts, place, editor)
        assert call is not None  # noqa: S101 - for the type checker
        if call.args:  # cupy.asnumpy(x)
            call.func, call.args = ast.Attribute(call.args[0], "get", ast.Load()), []
        if not any(one.arg == "out" for one in call.keywords):
            if not _with_memory(facts, editor, place, call):
                continue
            into = " into page-locked memory"
        call.keywords = [one for one in call.keywords if one.arg != "blocking"] + [
            ast.keyword("blocking", ast.Constant(value=False))
        ]
        value = call.func.value if isinstance(call.func, ast.Attribute) else call
        if own and isinstance(value, ast.Name):  # which may be bound to another array while the copy goes on
            editor.insert(place, parsed(f"{stream}.hold({value.id})"), behind=True)
        streams.setdefault((facts.loop_of(place), stream), place)
    for (_, stream), place in streams.items():
        editor.at_end(place, parsed(f"{stream}.synchronize()"))
    if streams:
        yield Variant(f"copies to the host{into} do not block, the host waits for them once", editor.tidy(), _no_blocking)


def stream_of_cupy(facts: Facts) -> str | None:
    """Return what to type for the one stream of a program that knows of no session, and gives memory back in its order."""
    cupy = facts.module_name("cupy")
    is_alone = facts.session_name is None and len(facts.lanes_of(facts.executed)) == 1
    return f"{cupy}.cuda.get_current_stream()" if cupy is not None and is_alone else None


def _no_blocking(run: Run) -> Run | None:
    changed = changes.pinned(run)
    return changes.no_host_waits(changed or run) or changed


def _blocking_get(facts: Facts, place: int, editor: Editor | None = None) -> ast.Call | None:
    """Return the call of a statement that copies to the host: one that is the statement, or that a list is given."""
    call = call_of(facts.statements[place] if editor is None else editor.at(place))
    match call:
        case ast.Call(func=ast.Attribute(attr="append", value=ast.Name()), args=[ast.Call(keywords=[]) as got]):
            match got:
                case ast.Call(func=ast.Attribute(attr="get"), args=[]):
                    return got
                case ast.Call(func=ast.Attribute(attr="asnumpy"), args=[given]) if is_plain_place(given):
                    return got
        case ast.Call(func=ast.Attribute(attr="get", value=value), args=[]) if is_plain_place(value):
            return call
    return None


def _can_go_on(facts: Facts, place: int) -> bool:
    """Tell whether the host does not look at what a copy gives, until the loop or the program has ended."""
    region = facts.region(place)
    own = facts.statements[place]
    match call_of(own):
        case ast.Call(func=ast.Attribute(attr="append", value=ast.Name(id=name))):
            others = [other for other in region if other != place]
            memory = facts.look.host_memory[place].get(name, set())  # of the turns before
            is_alone = not any(name in names_loaded(facts.statements[other]) for other in others)
            return is_alone and facts.inner_loop_of(place) is not None and not facts.is_touched(others, memory)
    return not facts.needs_wait(place) and not facts.is_touched(region, facts.copies_at(place))


def _with_memory(facts: Facts, editor: Editor, place: int, call: ast.Call) -> bool:
    """Give a copy page-locked memory of its own, which a list keeps; tell whether that can be written."""
    loop = facts.loop_of(place)
    if loop is None or not isinstance(call.func, ast.Attribute):
        return False
    one = editor.at(place)
    value = ast.unparse(call.func.value)
    pinned_empty = _pinned_empty(facts, editor, loop)
    if pinned_empty is None:
        return False
    new = f"{pinned_empty}({value}.shape, {value}.dtype)"
    match call_of(one):
        case ast.Call(func=ast.Attribute(attr="append", value=ast.Name(id=name))):
            editor.insert(place, parsed(f"{name}.append({new})"))
            one.value = call
        case _:
            name = editor.draft.new_name("copies")
            editor.insert(loop, parsed(f"{name} = []"))
            editor.insert(place, parsed(f"{name}.append({new})"))
    call.keywords.append(ast.keyword("out", ast.parse(f"{name}[-1]", mode="eval").body))
    return True


def _pinned_empty(facts: Facts, editor: Editor, loop: int) -> str | None:
    """Return what makes page-locked arrays: of the session, else of CuPy."""
    if facts.session_name is not None:
        return f"{facts.session_name}.memory.pinned_empty"
    if stream_of_cupy(facts) is None:
        return None
    known = facts.module_name("cupyx")
    prepared = {name.name for one in editor.draft.prepare or [] if isinstance(one, ast.Import) for name in one.names}
    if known is None and "cupyx" not in prepared:
        editor.insert(loop, parsed("import cupyx"))
    return f"{known or 'cupyx'}.empty_pinned"


# Values that the host reads


def unread_values(facts: Facts) -> Iterator[Variant]:
    """Fetch no value that nothing reads."""
    editor, lines = Editor(facts), []
    for place in sorted(facts.executed):
        call = call_of(facts.statements[place])
        if call is None or not is_reading(call) or place not in facts.waiting or not is_untouched(facts, place):
            continue
        read = call.args[0] if call.args else call.func.value if isinstance(call.func, ast.Attribute) else call
        if is_plain_place(read) and not (isinstance(call.func, ast.Attribute) and call.func.attr == "get"):
            editor.replace(place, [])
            lines.append(place)
    if lines:
        yield Variant(f"{told(facts, lines)}, which nothing reads, is not fetched", editor.tidy(), changes.no_host_waits)


def late_values(facts: Facts) -> Iterator[Variant]:
    """Read values behind the loop where nothing in it needs them."""
    for place in sorted(facts.waiting):
        loop = facts.inner_loop_of(place) if place in facts.executed else None
        if loop is None or not any(map(is_reading, ast.walk(facts.statements[place]))) or not _can_be_late(facts, place, loop):
            continue
        editor = Editor(facts)
        one, unit = editor.at(place), facts.unit_of(place)
        bound = _bound_in(facts, loop)
        kept = sorted(names_loaded(facts.statements[place]) & bound - names_bound(facts.statements[place]))
        name = editor.draft.new_name("later")
        head = ", ".join(kept)
        values = f"({head})" if len(kept) > 1 else head
        editor.replace(place, parsed(f"{name}.append({values})"))
        again = parsed(f"for {head} in {name}:\n    pass")
        again[0].body = [one]  # type: ignore[attr-defined]
        if unit != place:  # on the stream on which it was read
            again = [ast.With(copied_syntax(editor.at(unit).items), again)]
        editor.insert(loop, parsed(f"{name} = []"))
        editor.insert(loop, again, behind=True)
        yield Variant(f"{told(facts, [place])} stands behind the loop", editor.tidy(), changes.no_host_waits)


def _can_be_late(facts: Facts, place: int, loop: int) -> bool:
    """Tell whether nothing in a loop looks at what a statement gives, and what it reads is bound anew in each turn."""
    one = facts.statements[place]
    if not isinstance(facts.statements[loop], ast.For) or not is_untouched(facts, place):
        return False
    target = names_loaded(facts.statements[place])
    reads = {name for name in target if name in _bound_in(facts, loop)} - names_bound(one)
    places = [other for other in facts.within(loop) if other not in (place, loop)]
    others = [facts.statements[other] for other in places]
    match one:
        case (
            ast.AugAssign(target=ast.Name(id=name))
            | ast.Expr(value=ast.Call(func=ast.Attribute(attr="append", value=ast.Name(id=name))))
            | ast.Expr(value=ast.Call(func=ast.Name(id="print" as name)))
        ):
            is_alone = not any(facts.is_looked_up(name, facts.look.kinds[place].get(name), other) for other in places)
        case _:
            return False
    others_read = [value for one, value in facts.look.kinds[place].items() if one not in (*reads, name)]
    if any(isinstance(value, (list, dict)) or is_array(value) for value in others_read):
        return False  # which may hold something else by then
    if facts.unit_of(place) != place and names_loaded(facts.statements[facts.unit_of(place)]) & _bound_in(facts, loop):
        return False  # the stream is another one in each turn
    return is_alone and bool(reads) and all(_is_new_each_turn(others, facts.statements[loop], name) for name in reads)


def _is_new_each_turn(others: Sequence[ast.stmt], loop: ast.stmt, name: str) -> bool:
    """Tell whether a variable is given another object in each turn, and nothing changes that: no item of it is set."""
    is_target = isinstance(loop, ast.For) and any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(loop.target))
    bound = [one for one in others if isinstance(one, ast.Assign) and any(_is_name(target, name) for target in one.targets)]
    is_fresh = all(isinstance(one.value, (ast.Call, ast.BinOp)) for one in bound)
    changed = any(
        (isinstance(one, ast.AugAssign) and root_of(one.target) == name)
        or (
            isinstance(one, ast.Assign)
            and any(root_of(target) == name and not _is_name(target, name) for target in one.targets)
        )
        for one in others
    )
    return (is_target or (len(bound) == 1 and is_fresh)) and not changed


def _is_name(part: ast.expr, name: str) -> bool:
    return isinstance(part, ast.Name) and part.id == name


# Waits of streams


def stream_waits(facts: Facts) -> Iterator[Variant]:
    """Leave out waits of streams, one by one, where all that work touches is known: a race that it brings would be seen."""
    if not facts.run.memory.is_known or facts.hindering():
        return
    for place in sorted(facts.executed):
        if _is_stream_wait(facts, place) and not _is_of_host(facts, place) and not _is_of_caller(facts, place):
            editor = Editor(facts)
            editor.replace(place, [])
            yield Variant(f"{told(facts, [place])} is left out", editor.tidy(), changes.fine_waits)


def _is_of_caller(facts: Facts, place: int) -> bool:
    """Tell whether a wait is for a stream on which the program has launched nothing by then, so for what was there before."""
    other, loop = _stream_names(facts, place)[1], facts.loop_of(place)
    last = place if loop is None else max(facts.within(loop))
    pairs = zip(facts.site_of, facts.run.program.works, strict=True)
    return other is not None and other not in {facts.lane_name(work.lane) for site, work in pairs if site <= last}


def _is_of_host(facts: Facts, place: int) -> bool:
    """Tell whether the host may wait for other streams by a wait of a stream: the search for races does not see it."""
    everywhere = range(len(facts.statements))
    ends = [
        one for one in everywhere[place:] if one in facts.executed and not facts.parents[one] and _awaited(facts, one) == {""}
    ]
    if ends and not facts.is_touched(everywhere, facts.memory_of_copies(everywhere)):
        return False  # it waits for all, and reads nothing before
    found = {name for one in facts.executed for name in _awaited(facts, one)} - {""}
    waits = [_stream_names(facts, one) for one in sorted(facts.executed) if _is_stream_wait(facts, one)]
    for _ in waits:
        found |= {other for stream, other in waits if {stream, None} & found}
    stream, other = _stream_names(facts, place)
    return stream != other and not found.isdisjoint({stream, None})


def _awaited(facts: Facts, place: int) -> set[str | None]:
    """Return the streams for which the host waits in a statement: an empty name for all of them, None for one not known."""
    call = call_of(facts.statements[place])
    match call.func if call is not None else None:
        case ast.Attribute(attr="synchronize", value=ast.Name(id=name)) if name == facts.session_name:
            return {""}
        case ast.Attribute(attr="synchronize", value=ast.Name() | ast.Call(func=ast.Attribute(attr="record")) as part):
            stream = part.func.value if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) else part
            return {_stream_name(facts, place, stream)}
    if all(facts.run.program.calls[number].is_of_device for number in facts.waiting.get(place, ())):
        return set()  # nothing, or all streams: that behind the program is not the program's
    return {facts.lane_name(lane) for lane in facts.lanes_of(facts.within(facts.unit_of(place)))} or {None}


def _stream_names(facts: Facts, place: int) -> tuple[str | None, str | None]:
    """Return which stream waits in a statement, and for which; None where that is not known, as of an event."""
    call = call_of(facts.statements[place])
    parts = [call.func.value, call.args[0]] if call is not None and isinstance(call.func, ast.Attribute) else [None, None]
    first, second = (_stream_name(facts, place, part) for part in parts)
    return first, second


def _stream_name(facts: Facts, place: int, part: ast.expr | None) -> str | None:
    match part:
        case ast.Constant(value=str(name)) | ast.Call(func=ast.Attribute(attr="stream"), args=[ast.Constant(value=str(name))]):
            return name
        case ast.Name(id=variable):
            value = facts.look.kinds[place].get(variable)
            return value.name if isinstance(value, Stream) else None
    return None


def _is_stream_wait(facts: Facts, place: int) -> bool:
    match call_of(facts.statements[place]):
        case ast.Call(func=ast.Attribute(attr="wait", value=ast.Name(id=name)), args=[_]):
            return isinstance(facts.look.kinds[place].get(name), Stream)
    return False
