"""Which thread launched late, between which of its calls, and where its Python stood meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpustreamlab.analysis._busy import union_edges
from gpustreamlab.analysis._causes import CODES, Found, launch_calls, thread_lanes
from gpustreamlab.analysis._pieces import Pieces
from gpustreamlab.analysis._scale import format_ns, format_share
from gpustreamlab.model import SPAN_KINDS, Trace, display_name
from gpustreamlab.typing import Cause, Int64Array, SpanKind

if TYPE_CHECKING:
    from gpustreamlab.analysis._explain import Finding

_OF_HOST = (Cause.HOST_LATE, Cause.LAUNCH_BOUND)
_NAME_WIDTH = 40
_FUNCTION_WIDTH = 80


class FunctionCount(NamedTuple):
    """In how many samples a thread stood in a function."""

    function: str
    """The function, with its file and its first line."""
    sample_count: int
    """How many samples."""


def count_functions(trace: Trace, lane: Int64Array, from_ns: Int64Array, to_ns: Int64Array) -> tuple[FunctionCount, ...]:
    """Count in which functions threads stood between some times; the most frequent first.

    Parameters
    ----------
    trace
        The spans, samples of stacks among them.
    lane, from_ns, to_ns
        The thread's lane, from when and to when; shape (n,) each. What is covered twice counts once.

    Examples
    --------
    >>> trace = Trace.from_columns(
    ...     start_ns=[0, 5, 10], end_ns=[5, 10, 15], stream=["main"] * 3, name=["f", "g", "f"], kind="sample"
    ... )
    >>> count_functions(trace, np.array([0]), np.array([0]), np.array([11]))
    (FunctionCount(function='f', sample_count=2), FunctionCount(function='g', sample_count=1))
    """
    rows = np.flatnonzero(trace.kind == SPAN_KINDS.index(SpanKind.SAMPLE))
    inside = np.zeros(len(rows), bool)
    for thread in np.unique(trace.lane[rows]).tolist():
        asked, own = lane == thread, trace.lane[rows] == thread
        edges = union_edges(from_ns[asked], to_ns[asked])
        inside[own] = np.searchsorted(edges, trace.start_ns[rows[own]], side="right") % 2 == 1
    counts = np.bincount(trace.name[rows[inside]], minlength=len(trace.names))
    order = np.argsort(-counts, kind="stable")
    return tuple(FunctionCount(trace.names[code], int(counts[code])) for code in order.tolist() if counts[code])


def functions_text(functions: Sequence[FunctionCount]) -> str:
    """Say in which share of the samples a thread stood in the most frequent function.

    Examples
    --------
    >>> functions_text((FunctionCount("step (run.py:7)", 3), FunctionCount("load (run.py:2)", 1)))
    '75% of 4 samples of the Python stack stand in step (run.py:7)'
    """
    count = sum(one.sample_count for one in functions)
    samples = f"{count:,} sample{'s' if count > 1 else ''} of the Python stack"
    function = display_name(functions[0].function, _FUNCTION_WIDTH)
    return f"{format_share(functions[0].sample_count / count)} of {samples} stand in {function}"


def name_threads(trace: Trace, pieces: Pieces, found: Found, findings: Iterable[Finding]) -> list[Finding]:
    """Add to each finding of a late host the thread, the calls around the gap, and the function in which it stood."""
    findings = list(findings)
    if not any(finding.code in _OF_HOST for finding in findings):
        return findings
    launch, lanes_of = launch_calls(trace), thread_lanes(trace)
    calls = np.flatnonzero(trace.kind == SPAN_KINDS.index(SpanKind.HOST))

    def told(finding: Finding) -> Finding:
        row = finding.row
        thread = _thread_name(trace, row, int(lanes_of(np.array([row]))[0]))
        if finding.code not in _OF_HOST or thread is None:
            return finding
        last = _call_before(trace, calls, int(launch[row]))
        is_such = (found.cause == CODES.index(finding.code)) & (pieces.lane[found.piece] == trace.lane[row])
        late = found.piece[is_such]
        lanes = lanes_of(pieces.row[late])
        functions = count_functions(trace, lanes, pieces.idle_since_ns[late], pieces.launched_ns[late])
        count = sum(one.sample_count for one in functions)
        function, most = functions[0] if functions else (None, 0)
        stood = f". In all such gaps of the stream {functions_text(functions)}" if functions else ""
        result = replace(
            finding,
            thread=thread,
            last_call_row=last,
            launch_row=int(launch[row]),
            function=function,
            function_share=most / max(count, 1),
            sample_count=count,
        )
        return replace(result, text=f"{finding.text} {_launch_text(trace, result)}{stood}.")

    return [told(finding) for finding in findings]


def _thread_name(trace: Trace, row: int, lane: int) -> str | None:
    """Return what the thread is called that launched a row."""
    if trace.thread[row] >= 0:
        return trace.threads[int(trace.thread[row])]
    return trace.lanes[lane].name.removeprefix("host: ") if lane >= 0 else None


def _call_before(trace: Trace, calls: Int64Array, launch: int) -> int:
    """Return the row of the call of the same thread that returned last before a call, or -1."""
    own = calls[(trace.lane[calls] == trace.lane[launch]) & (trace.end_ns[calls] <= trace.start_ns[launch])]
    return int(own[np.argmax(trace.end_ns[own])]) if launch >= 0 and len(own) else -1


def _launch_text(trace: Trace, finding: Finding) -> str:
    def name(row: int) -> str:
        return display_name(trace.names[int(trace.name[row])], _NAME_WIDTH)

    text = f"Thread {display_name(str(finding.thread), _NAME_WIDTH)!r} launched it"
    if finding.launch_row >= 0:
        text += f" with {name(finding.launch_row)}"
    if finding.last_call_row >= 0:
        apart_ns = int(trace.start_ns[finding.launch_row] - trace.end_ns[finding.last_call_row])
        text += f", {format_ns(apart_ns)} after its call before, {name(finding.last_call_row)}"
    return text
