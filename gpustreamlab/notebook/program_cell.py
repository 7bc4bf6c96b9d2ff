"""A cell as a program: its plan, which is made from its first run, and what is shown of it."""

from __future__ import annotations

import ast
import itertools
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.display import display

from gpustreamlab.notebook.cells import cell_number
from gpustreamlab.programs import FUTURES, Plan, free_name, make_program

if TYPE_CHECKING:
    from gpustreamlab.session import Session

__all__ = ["ProgramCells", "first_run_note", "show_check", "show_plan", "show_replay"]

MOST_PLANS = 64
"""How many plans are kept; the one that was used least recently goes."""
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
