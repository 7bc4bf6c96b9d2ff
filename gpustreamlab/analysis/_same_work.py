"""Whether two traces are of the same work: only then is one of them faster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpustreamlab.analysis._busy import is_work
from gpustreamlab.model import SPAN_KINDS, Trace, display_name
from gpustreamlab.typing import SpanKind

NAME_CHARACTERS = 40
"""How many characters of a name the sentence shows."""

_COPY_CODE = SPAN_KINDS.index(SpanKind.COPY)
_PLURALS = {SpanKind.COPY: "copies"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How much work a trace holds."""

    counts: Counter[str] = field(default_factory=Counter)
    """Spans of each name; names that differ by a number only are one."""
    kinds: tuple[SpanKind, ...] = ()
    """Of which kinds they are."""
    copied_bytes: int | None = None
    """How much was copied, in bytes; None where that is not known."""


def count_work(trace: Trace, labels: Sequence[str]) -> Work:
    """Count kernels, copies and fills.

    Parameters
    ----------
    trace
        The spans.
    labels
        What each of its names is called, by code. A copy is known by its direction alone: from pinned memory or not, the work
        is the same.
    """
    rows = np.flatnonzero(is_work(trace))
    is_copy = trace.kind[rows] == _COPY_CODE
    copies = [label.partition(" (")[0] for label in labels]
    counts = _counted(trace.name[rows[~is_copy]], labels) + _counted(trace.name[rows[is_copy]], copies)
    kinds = tuple(SPAN_KINDS[code] for code in np.unique(trace.kind[rows]).tolist())
    sizes = trace.extra.get("size_bytes", np.zeros(len(trace), np.int64))[rows[is_copy]]
    copied = int(sizes.sum()) if (sizes > 0).all() else None  # 0 stands for a size that was not told
    return Work(counts=counts, kinds=kinds, copied_bytes=copied)


def count_ranges(trace: Trace, labels: Sequence[str]) -> Work:
    """Count ranges: where nothing else is known, they stand for the work in them."""
    is_range = trace.kind == SPAN_KINDS.index(SpanKind.RANGE)
    return Work(counts=_counted(trace.name[is_range], labels), kinds=(SpanKind.RANGE,))


def work_difference(a: Work, b: Work) -> str:
    """Say in one sentence what makes the work of two traces another; empty where it is the same.

    Examples
    --------
    >>> four, two = (Work(counts=Counter(gemm=count), kinds=(SpanKind.KERNEL,)) for count in (4, 2))
    >>> work_difference(four, two), work_difference(four, four)
    ('Not the same work: 4 kernels against 2', '')
    """
    of_a, of_b = a.counts.total(), b.counts.total()
    kinds = [kind for kind in SPAN_KINDS if kind in {*a.kinds, *b.kinds}]
    if of_a != of_b:
        return f"Not the same work: {_counted_text(of_a, kinds)} against {of_b:,}"
    if a.counts != b.counts:
        name = max(a.counts | b.counts, key=lambda name: abs(a.counts[name] - b.counts[name]))
        example = f"{display_name(name, NAME_CHARACTERS)} {_times(a.counts[name])} in a, {_times(b.counts[name])} in b"
        return f"Not the same work: {_counted_text(of_a, kinds)} in both, but not the same ones; {example}"
    if a.copied_bytes is not None and b.copied_bytes is not None and a.copied_bytes != b.copied_bytes:
        return f"Not the same work: {a.copied_bytes:,} B copied against {b.copied_bytes:,} B"
    return ""


def _counted(codes: np.ndarray, labels: Sequence[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    count = np.bincount(codes, minlength=len(labels))
    for code in np.flatnonzero(count).tolist():
        counts[labels[code]] += int(count[code])
    return counts


def _counted_text(count: int, kinds: Collection[SpanKind]) -> str:
    words = [kind.value if count == 1 else _PLURALS.get(kind, f"{kind.value}s") for kind in kinds]
    last = "or" if count == 1 else "and"
    return f"{count:,} {f' {last} '.join(filter(None, (', '.join(words[:-1]), words[-1])))}"


def _times(count: int) -> str:
    return f"{count:,} time{'' if count == 1 else 's'}"
