"""A cell as a program: its plans, of which a cell that runs again uses the one it has, and what is shown of them."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError
from IPython.display import display

from gpustreamlab.notebook.cells import cell_number
from gpustreamlab.programs import Ground, Plan, make_program

__all__ = ["PlannedCell", "ProgramCells"]

MOST_PLANS = 64
"""How many plans are kept; the one that was used least recently goes."""
_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCell:
    """A cell and its plan."""

    plan: Plan
    """The plan."""
    number: int
    """The number of the cell when it was planned."""
    note: str
    """Why it was planned again; empty where it was not."""


class ProgramCells:
    """The programs of one shell's cells.

    Parameters
    ----------
    shell
        The IPython shell; programs run on its variables.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._planned: dict[tuple[object, ...], PlannedCell] = {}

    def plan(
        self, ground: Ground, body: str, streams: int | tuple[str, ...], begin: Callable[[str], object] = bool
    ) -> PlannedCell:
        """Return a cell's plan: the one that it has, if its inputs still fit, else a new one.

        What it prints and shows while it is recorded on copies is kept back, unless it fails there.

        Parameters
        ----------
        ground, body, streams
            Where it runs, its source, and how many streams it may use, or which.
        begin
            Called with the stream in which the program begins and ends, before anything runs there.

        Raises
        ------
        ProgramError
            If it cannot be planned.
        SyntaxError
            If it is no Python.
        Exception
            What a statement raises, with its own traceback.
        """
        __tracebackhide__ = True
        shell = self._shell
        # Below the magic's line, so that lines have the cell's numbers; IPython leaves empty lines at the beginning out.
        source = "\n" * (1 + _empty_lines(body)) + shell.transform_cell(body)
        # A cell that runs again has another number, which its tracebacks show.
        filename = shell.compile.cache(source, cell_number(shell), raw_code=source)
        key = (id(ground.lab), source, streams)
        known, note = self._planned.pop(key, None), ""
        if known is not None:
            changed = known.plan.changed_inputs()
            if not changed:
                known.plan.rename(filename)
                begin(known.plan.streams[0])
                self._planned[key] = known
                return known
            names = ", ".join(changed[:4])
            note = f"Planned again: another type, shape or plain value than as In [{known.number}]: {names}."
        program = make_program(ground, source, lambda: shell.user_ns, filename=filename, result=_free_name(source, filename))
        begin(program.home(streams))
        plan = program.plan(streams=streams)
        made = self._planned[key] = PlannedCell(plan=plan, number=cell_number(shell), note=note)
        for oldest in list(self._planned)[:-MOST_PLANS]:
            del self._planned[oldest]
        return made

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


def show_plan(planned: PlannedCell, *, is_ordered: bool) -> None:
    """Show a plan above what its cell shows: its picture, and its line; and what a later cell does first that reads results."""
    home, notes = planned.plan.streams[0], [planned.note]
    if not is_ordered:
        notes.append(
            f"Results are on stream {home!r}: a plain cell that reads them calls lab.stream({home!r}).synchronize() first; "
            "with %gpulab auto cells wait by themselves."
        )
    note = "\n".join(filter(None, notes))
    display({"text/plain": f"{planned.plan!r}\n{note}".rstrip(), "text/html": planned.plan.overview(note)}, raw=True)


def show_check(plan: Plan) -> None:
    """Show whether a plan gives what one stream gives.

    Raises
    ------
    UsageError
        If it does not: then the cell must not run.
    """
    __tracebackhide__ = True
    check = plan.check()
    display(check)
    if not check:
        raise UsageError(
            "%%gpuprogram: the planned run differs from one stream, so the cell was not run; the check says where."
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
    numbered = (f"result_{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain(("result",), numbered) if name not in used)
