"""All that the forms of one timeline share, computed once: the page, the frame in a notebook, the static picture."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gpustreamlab.analysis import (
    Concurrency,
    busy_edges,
    concurrency,
    count_steps,
    counted_kinds,
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
        counting = pool.submit(_count, trace)
        rows, codes = span_rows(trace)
        scene = plan_scene(trace, rows)
        columns = columns_of(trace, codes, scene.zero_ns)
        counted, steps, result = counting.result()
    finding = finding_text(result, lane_count=used_stream_count(trace), counted=counted)
    return Picture(
        trace=trace,
        columns=columns,
        scene=scene,
        header=plan_header(trace, finding=finding),
        counted=counted,
        steps=steps,
    )


def _count(trace: Trace) -> tuple[tuple[SpanKind, ...], tuple[Int64Array, Int64Array], Concurrency]:
    counted = counted_kinds(trace)
    edges_ns = busy_edges(trace, counted)
    steps = count_steps(edges_ns)
    return counted, steps, over_wall(trace, concurrency(trace, edges_ns, steps))
