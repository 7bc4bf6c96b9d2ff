"""All that the forms of one timeline share, computed once: the page, the frame in a notebook, the static picture."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gpustreamlab.analysis import (
    Concurrency,
    basis_of,
    busy_edges,
    busy_word,
    concurrency,
    count_steps,
    finding_text,
    over_wall,
    span_rows,
    used_stream_count,
)
from gpustreamlab.draw._columns import SpanColumns, columns_of
from gpustreamlab.draw._header import Header, plan_header
from gpustreamlab.draw._scene import Scene, plan_scene
from gpustreamlab.model import Trace
from gpustreamlab.typing import Int64Array, SpanKind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Picture:
    """A trace, laid out and counted."""

    trace: Trace
    """The spans."""
    columns: SpanColumns
    """The spans as they are drawn: by row, then by start."""
    scene: Scene
    """Where everything is."""
    header: Header
    """What stands above it."""
    counted: tuple[SpanKind, ...]
    """Kinds of spans that count as busy time."""
    steps: tuple[Int64Array, Int64Array]
    """When the number of busy lanes changes, on the trace's clock, and to what, as `count_steps` returns."""


def plan_picture(trace: Trace) -> Picture:
    """Lay out a trace, and find what is to be said about it."""
    with ThreadPoolExecutor(1) as pool:
        # Sorting takes most of the time, and numpy sorts without the interpreter's lock.
        found = pool.submit(basis_of, trace)
        counting = pool.submit(lambda: _count(trace, found.result().counted))
        rows, codes = span_rows(trace)
        basis = found.result()
        scene = plan_scene(trace, rows, strip_word=busy_word(basis.counted))
        columns = columns_of(trace, codes, scene.zero_ns)
        steps, result = counting.result()
    finding = finding_text(result, lane_count=used_stream_count(trace), counted=basis.counted)
    return Picture(
        trace=trace,
        columns=columns,
        scene=scene,
        header=plan_header(trace, finding=finding, basis=basis),
        counted=basis.counted,
        steps=steps,
    )


def _count(trace: Trace, counted: tuple[SpanKind, ...]) -> tuple[tuple[Int64Array, Int64Array], Concurrency]:
    edges_ns = busy_edges(trace, counted)
    steps = count_steps(edges_ns)
    return steps, over_wall(trace, concurrency(trace, edges_ns, steps))
