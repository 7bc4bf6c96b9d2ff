"""Programs: statements planned onto streams, shown as Python, checked, and replayed as a CUDA graph."""

from gpustreamlab.programs._check import Check, PlanComparison, Run
from gpustreamlab.programs._plan import Plan, PlannedStatement, Program, make_program
from gpustreamlab.programs._source import FUTURES, free_name

__all__ = [
    "FUTURES",
    "Check",
    "Plan",
    "PlanComparison",
    "PlannedStatement",
    "Program",
    "Run",
    "free_name",
    "make_program",
]
