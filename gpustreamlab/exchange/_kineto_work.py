"""What PyTorch's profiler tells of kernels, copies and fills as the names and details that a trace of our own has."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustreamlab._util.kernel_names import short_name
from gpustreamlab.exchange._kineto_columns import Codes, Shape
from gpustreamlab.model import SPAN_KINDS, WorkDetail
from gpustreamlab.record import MAX_FULL_NAME, cut_text
from gpustreamlab.typing import BoolArray, Int8Array, Int32Array, Int64Array, SpanKind

LARGEST_GRID = 1 << 61
"""Grids of more blocks are none."""
_COPY = re.compile(r"Memcpy (\w+) \((\w+) -> (\w+)\)")


def describe_work(
    shapes: Sequence[Shape], names: Codes, codes: NDArray[Any], hides_grid: BoolArray
) -> tuple[Int32Array, Int32Array, Int8Array, tuple[WorkDetail, ...]]:
    """Return of each piece of work the codes of its name, detail and kind; and all details.

    Parameters
    ----------
    shapes
        How work was launched, as the file tells it.
    names
        Known names; those of work are added.
    codes
        Index into the shapes of each piece of work; shape (n,).
    hides_grid
        Whether the grid that is told is none; shape (n,), bool.
    """
    nodes: dict[tuple[int, int], set[int]] = {}
    for shape in shapes:
        nodes.setdefault((shape.file, shape.graph), set()).add(shape.node)
    places = {graph: {node: place for place, node in enumerate(sorted(ids - {-1}))} for graph, ids in nodes.items()}
    used, number = by_appearance(codes * 2 + hides_grid, 2 * len(shapes))
    details = Codes(lambda detail: detail)
    found = []
    for code in used.tolist():
        shape = shapes[code // 2]
        detail = _detail(shape, places[shape.file, shape.graph].get(shape.node, -1) if shape.graph > 0 else -1)
        name = names[_work_name(detail.full_name, shape.kind)]
        found.append((name, details[replace(detail, grid=(0, 0, 0)) if code % 2 else detail], SPAN_KINDS.index(shape.kind)))
    table = np.array(found, np.int32).reshape(-1, 3)[number[codes * 2 + hides_grid]]
    return table[:, 0], table[:, 1], table[:, 2].astype(np.int8), (*details.known,)


def by_appearance(codes: NDArray[Any], count: int) -> tuple[Int64Array, Int32Array]:
    """Return which of so many codes there are, as they come first; and the place of each code among those, or -1.

    Examples
    --------
    >>> [found.tolist() for found in by_appearance(np.array([3, 0, 3]), 4)]
    [[3, 0], [1, -1, -1, 0]]
    """
    first = np.full(count, len(codes))
    first[codes[::-1]] = np.arange(len(codes))[::-1]  # the last one that is written stays
    used = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(codes))]
    number = np.full(count, -1, np.int32)
    number[used] = np.arange(len(used))
    return used, number


def _detail(shape: Shape, node: int) -> WorkDetail:
    """Return how work was launched."""
    return WorkDetail(
        full_name=cut_text(shape.name, MAX_FULL_NAME),
        grid=_sizes(shape.grid),
        block=_sizes(shape.block),
        registers=max(shape.registers, 0),
        static_shared_bytes=max(shape.shared, 0),
        graph=max(shape.graph, 0),
        node=node,
        channel=max(shape.channel, -1),
    )


def _sizes(given: tuple[int, int, int] | None) -> tuple[int, int, int]:
    """Return three sizes, or zeros for what has none.

    Examples
    --------
    >>> _sizes((64, 2, 1)), _sizes((64, -2, 1)), _sizes((1 << 60, 2, 1)), _sizes(None)
    ((64, 2, 1), (0, 0, 0), (0, 0, 0), (0, 0, 0))
    """
    return given if given is not None and min(given) > 0 and math.prod(given) < LARGEST_GRID else (0, 0, 0)


def _work_name(full: str, kind: SpanKind) -> str:
    """Return the name that the same work has in a trace of our own.

    Examples
    --------
    >>> _work_name("Memcpy HtoD (Pageable -> Device)", SpanKind.COPY), _work_name("Memset (Device)", SpanKind.FILL)
    ('memcpy HtoD (pageable)', 'memset')
    >>> _work_name("Memcpy DtoD (Device -> Device)", SpanKind.COPY), _work_name("CopyHostToDevice", SpanKind.COPY)
    ('memcpy DtoD', 'CopyHostToDevice')
    """
    if kind is SpanKind.KERNEL:
        return short_name(full)
    if kind is SpanKind.FILL:
        return "memset"
    found = _COPY.match(full)
    if found is None:
        return full
    ends = [word.lower() for word in found.groups()[1:] if word != "Device"]
    return f"memcpy {found[1]}" + (f" ({' to '.join(dict.fromkeys(ends))})" if ends else "")
