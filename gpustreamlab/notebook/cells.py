"""Run the body of a cell magic as IPython runs a cell, or as a program.

IPython's ``%%time`` is the model: transform, parse, run, evaluate the last expression. Running the body through
``shell.run_cell`` instead would lose the last value and mark a failing cell as successful.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import linecache
import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

from IPython.core.displayhook import DisplayHook
from IPython.core.error import UsageError
from IPython.display import display

from gpustreamlab._util.tasks import Steered
from gpustreamlab.programs import FUTURES, Plan, free_name, make_program

if TYPE_CHECKING:
    from gpustreamlab.session import Session

__all__ = [
    "CellMarks",
    "CompiledCell",
    "ProgramCells",
    "awaits_at_top_level",
    "cell_number",
    "compile_cell",
    "first_run_note",
    "magic_transformer",
    "show_check",
    "show_plan",
    "show_replay",
    "show_value",
    "unregister",
]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCell:
    """A cell's statements, and its last expression apart."""

    statements: CodeType  # All but the last expression
    last_expression: CodeType | None  # What the cell's value comes from; None if it ends in a statement

    @property
    def is_async(self) -> bool:
        """True if the cell awaits at its top level."""
        return any(code is not None and _is_coroutine(code) for code in (self.statements, self.last_expression))

    def run(self, namespace: dict[str, Any], around: AbstractContextManager[object]) -> object:
        """Run the cell inside a context manager; return the value of its last expression, or None."""
        __tracebackhide__ = True  # IPython then shows the user's cell in a traceback and not this frame
        with around:
            exec(self.statements, namespace)  # noqa: S102 - running the user's cell is what this is for
            return None if self.last_expression is None else eval(self.last_expression, namespace)  # noqa: S307

    async def run_async(self, namespace: dict[str, Any], around: AbstractContextManager[object]) -> object:
        """Run a cell that awaits at its top level; see `run`. Its selections are its own: other tasks do not get them."""
        __tracebackhide__ = True
        return await Steered(self._run_awaiting(namespace, around))

    async def _run_awaiting(self, namespace: dict[str, Any], around: AbstractContextManager[object]) -> object:
        __tracebackhide__ = True
        with around:
            value = None
            for code in (self.statements, self.last_expression):
                if code is not None:
                    value = eval(code, namespace)  # noqa: S307
                    if _is_coroutine(code):
                        value = await value
            return None if self.last_expression is None else value


class CellMarks:
    """Tells sessions when a cell begins and ends, so that the timeline shows where cells began that recorded ranges.

    Only the cell's number is told, never its source.
    """

    def __init__(self, shell: Any, sessions: Callable[[], Iterable[Any]]) -> None:
        self._shell = shell
        self._sessions = sessions
        self._text = ""

    def register(self) -> None:
        """Be called by the shell from now on."""
        self._shell.events.register("pre_run_cell", self._begin)
        self._shell.events.register("post_run_cell", self._end)

    def _begin(self, info: Any) -> None:
        # What tools run on the side is no cell of the user's.
        self._text = f"In [{len(self._shell.history_manager.input_hist_parsed)}]" if info.store_history else ""
        self._tell("_begin_cell")

    def _end(self, result: Any) -> None:
        self._tell("_end_cell")
        self._text = ""
        error = getattr(result, "error_in_exec", None)
        if isinstance(error, KeyboardInterrupt):
            for session in self._sessions():
                session._put_back_left()  # noqa: SLF001 - for this module

    def _tell(self, method: str) -> None:
        if not self._text:
            return
        for session in self._sessions():
            try:
                getattr(session, method)(self._text)
            except Exception as error:  # noqa: BLE001 - a mark must not disturb the cell
                _log.debug("A cell could not be marked: %s", error)


def unregister(shell: Any, *kinds: type) -> None:
    """Let the shell call none of some kinds any more."""
    for event in ("pre_run_cell", "post_run_cell"):
        for callback in tuple(shell.events.callbacks[event]):
            if isinstance(getattr(callback, "__self__", None), kinds):
                shell.events.unregister(event, callback)


def show_value(shell: Any, body: str, value: object, around: AbstractContextManager[object]) -> object:
    """Show the value of a cell magic inside a context manager, as IPython would behind that; return what is left to show."""
    cell = shell.displayhook.exec_result
    if value is None or cell is None or not cell.info.raw_cell.lstrip().startswith("%%"):
        return value
    if DisplayHook.semicolon_at_end_of_expression(body):
        return value
    with around:
        sys.displayhook(value)
    return None


def compile_cell(shell: Any, body: str, *, lines_above: int = 1, file: str | None = None) -> CompiledCell:
    """Compile the body of a cell magic."""
    source = "\n" * lines_above + shell.transform_cell(body)
    if file is None:
        name = shell.compile.cache(source, cell_number(shell), raw_code=source)
    else:
        name = file
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    tree = shell.transform_ast(shell.compile.ast_parse(source, filename=name))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with shell.compile.extra_flags(ast.PyCF_ALLOW_TOP_LEVEL_AWAIT):
        return CompiledCell(
            statements=shell.compile(tree, name, "exec"),
            last_expression=None if last is None else shell.compile(ast.Expression(last.value), name, "eval"),
        )


def cell_number(shell: Any) -> int:
    """Return the number of the running cell, as in ``In [3]``.

    Not ``shell.execution_count``: IPython 9 raises that before the cell runs, IPython 8 after it.
    """
    return len(shell.history_manager.input_hist_parsed) - 1


def awaits_at_top_level(shell: Any, body: str) -> bool:
    """Tell whether a cell's body awaits at its top level; False for one that does not compile."""
    try:
        code = compile(shell.transform_cell(body), "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except (SyntaxError, ValueError):
        return False
    return _is_coroutine(code)


def magic_transformer(shell: Any, magic_name: str) -> Callable[[list[str]], list[str]]:
    """Return an input transformer for what a cell magic alone cannot have: a body that awaits, and no body at all.

    A magic is an ordinary call, so it cannot await for its body inside the running event loop. The call can be awaited by
    the cell, though: the magic then returns a coroutine, and IPython runs the cell on its loop as it does any other.
    IPython refuses a cell magic with an empty body, but ``-h`` needs none.
    """
    marker = f"%%{magic_name}"

    def transform(lines: list[str]) -> list[str]:
        if not lines or lines[0].split(None, 1)[:1] != [marker]:
            return lines
        line, body = lines[0].strip()[len(marker) :].strip(), "".join(lines[1:])
        awaited = "await " if shell.autoawait and awaits_at_top_level(shell, body) else ""
        if body.strip() and not awaited:
            return lines
        return [f"{awaited}get_ipython().run_cell_magic({magic_name!r}, {line!r}, {body or chr(10)!r})\n"]

    return transform


def _is_coroutine(code: CodeType) -> bool:
    return bool(code.co_flags & inspect.CO_COROUTINE)


MOST_PLANS = 64  # How many plans are kept; the one that was used least recently goes
_MISSING = object()


class ProgramCells:
    """The programs of one shell's cells."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._plans: dict[tuple[object, ...], Plan] = {}

    def plan(self, lab: Session, body: str, streams: int | tuple[str, ...]) -> Plan:
        """Return a cell's plan: the one that it has, else a new one."""
        shell = self._shell
        # Below the magic's line, so that lines have the cell's numbers; IPython leaves empty lines at the beginning out.
        source = "\n" * (1 + _empty_lines(body)) + shell.transform_cell(body)
        # A cell that runs again has another number, which its tracebacks show.
        filename = shell.compile.cache(source, cell_number(shell), raw_code=source)
        flags = shell.compile.flags & FUTURES
        key = (id(lab), source, streams, flags)
        plan = self._plans.pop(key, None)
        if plan is None:
            result = _free_name(source, filename)
            program = make_program(lab, source, lambda: shell.user_ns, filename=filename, result=result, flags=flags)
            plan = program.plan(streams=streams)
        self._plans[key] = plan
        plan.rename(filename)
        for oldest in list(self._plans)[:-MOST_PLANS]:
            del self._plans[oldest]
        return plan

    def run(self, plan: Plan) -> object:
        """Run a plan on the shell's variables; return the value of its last expression, or None."""
        __tracebackhide__ = True
        variables, name = self._shell.user_ns, plan.result
        before = _MISSING if name is None else variables.get(name, _MISSING)
        try:
            plan.run(variables)
            return None if name is None else variables[name]
        finally:
            if before is not _MISSING:
                variables[name] = before
            elif name is not None:
                variables.pop(name, None)


def show_plan(plan: Plan, note: str, *, is_ordered: bool) -> None:
    """Show a plan: its picture, and its line; a note, and what a later cell does first that reads results."""
    home, notes = plan.streams[0], [note]
    if not is_ordered:
        notes.append(
            f"Results are on stream {home!r}: a plain cell that reads them calls lab.stream({home!r}).synchronize() first; "
            "with %gpulab auto cells wait by themselves."
        )
    shown = "\n".join(filter(None, notes))
    display({"text/plain": f"{plan!r}\n{shown}".rstrip(), "text/html": plan.overview(shown)}, raw=True)


def first_run_note(plan: Plan) -> str:
    """Say why a cell runs in order on one stream now, to be planned by what is seen; nothing where it runs as planned."""
    changed = plan.changed_inputs()
    again = f"another type, shape or plain value than before: {', '.join(changed[:4])}" if plan.has_run else "its first run"
    is_planned = plan.has_run and not changed
    return "" if is_planned else f"It ran in order on one stream ({again}); the next run of the cell is as planned here."


def show_check(plan: Plan) -> None:
    """Show whether a plan gives what one stream gives."""
    __tracebackhide__ = True
    check = plan.check()
    display(check)
    if not check:
        raise UsageError(
            "%%gpuprogram: the planned run differs from one stream, so the cell was not run as planned; the check says where."
        )


def show_replay(plan: Plan, repeats: int) -> None:
    """Show what the program takes on one stream, as planned, and as one CUDA graph, in so many runs of each."""
    __tracebackhide__ = True
    display(plan.compare(repeats))


def _empty_lines(body: str) -> int:
    """Return how many lines stand above the first that is not empty."""
    return sum(1 for _ in itertools.takewhile(lambda line: not line.strip(), body.splitlines()))


def _free_name(source: str, filename: str) -> str:
    """Return a variable for the value of a cell: none that the cell uses."""
    used = {one.id for one in ast.walk(ast.parse(source, filename)) if isinstance(one, ast.Name)}
    return free_name("result", used)
