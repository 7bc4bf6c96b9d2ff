"""What happened in a program, in ten lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from gpustreamlab._util.words import install_line
from gpustreamlab.analysis import (
    BY_CALL,
    Finding,
    card_idle,
    concurrency,
    count_text,
    dropped_text,
    empty_hint,
    finding_text,
    format_ns,
    format_share,
    is_work,
    named_steps,
    pending_text,
    used_stream_count,
)
from gpustreamlab.analysis._quality import WHOLE_GRAPHS, quality
from gpustreamlab.errors import OptionError
from gpustreamlab.model import SPAN_KINDS, Trace, display_name
from gpustreamlab.trace import as_trace
from gpustreamlab.typing import CaptureTier, Int32Array, SpanKind

MOST_CHANGES = 3
"""How many changes are told."""
MOST_STREAMS = 4
"""How many streams are named."""
MOST_NAMES = 4
"""How many kernels are named."""
WIDTH = 240
"""How many characters of a sentence are shown: the page has all of it."""


def told_lines(trace: Trace) -> list[str]:
    r"""Say what ran where, what overlapped, why the card was idle, and what to change.

    Examples
    --------
    >>> trace = Trace.from_columns(
    ...     start_ns=[0, 5_000_000], end_ns=[4_000_000, 9_000_000], stream=["a", "a"], kind="kernel", name=["gemm", "relu"]
    ... )
    >>> print(*told_lines(trace), sep="\n")
    2 kernels in 1 stream of unknown device: 9.00 ms from the first to the last
    Where: a 8.00 ms (89%)
    What: gemm 50% ×1, relu 50% ×1
    Idle: 11% of 9.00 ms, in 1 gap between gemm and relu
    """
    if not is_work(trace).any():
        return [_nothing(trace)]
    lines = [_head(trace), _where(trace), _what(trace)]
    if used_stream_count(trace) > 1:
        found = finding_text(concurrency(trace))
        lines += [f"Overlap: {found[:1].lower()}{found[1:]}"] if found else []
    try:
        lines.append(f"Idle: {card_idle(trace).line.removeprefix('idle ')}")
        named = named_steps(trace)
        lines += [*([] if named is None else [f"Steps: {named.text}"]), *_changes(trace)]
    except OptionError as error:  # several ranks
        lines.append(str(error))
    return [*(_cut(line) for line in lines), *_missing(trace)]


def _nothing(trace: Trace) -> str:
    hint = "" if len(trace) else empty_hint(trace.metadata)
    if trace.metadata.tier is CaptureTier.RANGES and not trace.metadata.simulated:
        note = trace.metadata.capture_note or f"For kernels CUPTI is needed: {install_line('cupti')}"
        return f"No kernel, copy or fill was recorded. {note}"
    return f"No kernel, copy or fill was recorded.{f' {hint}' if hint else ''}"


def _head(trace: Trace) -> str:
    counts = np.bincount(trace.kind[is_work(trace)], minlength=len(SPAN_KINDS))
    words = {SpanKind.KERNEL: ("kernel", "kernels"), SpanKind.COPY: ("copy", "copies"), SpanKind.FILL: ("fill", "fills")}
    told = [count_text(int(counts[SPAN_KINDS.index(kind)]), *both) for kind, both in words.items()]
    told = [text for text in told if not text.startswith("0 ")]
    rows = is_work(trace)
    wall_ns = int(trace.end_ns[rows].max() - trace.start_ns[rows].min())
    device = f"{trace.metadata.device.name}{', SIMULATED' if trace.metadata.simulated else ''}"
    streams = count_text(used_stream_count(trace), "stream")
    return f"{', '.join(told)} in {streams} of {device}: {format_ns(wall_ns)} from the first to the last"


def _where(trace: Trace) -> str:
    wall_ns = concurrency(trace).wall_ns
    told = [
        f"{display_name(trace.lanes[lane].name, 32)} {format_ns(ns)} ({format_share(ns / wall_ns)})"
        for lane, ns, _ in _longest(trace, trace.lane)
        if ns
    ]
    return f"Where: {_listed(told, MOST_STREAMS)}"


def _what(trace: Trace) -> str:
    longest = _longest(trace, trace.name)
    total_ns = max(sum(ns for _, ns, _ in longest), 1)
    told = [f"{display_name(trace.names[code], 40)} {format_share(ns / total_ns)} ×{count:,}" for code, ns, count in longest]
    return f"What: {_listed(told, MOST_NAMES)}"


def _longest(trace: Trace, code: Int32Array) -> list[tuple[int, int, int]]:
    """Return each code that work has, how long that takes in all, and how many there are; the longest first."""
    rows = is_work(trace)
    codes, place = np.unique(code[rows], return_inverse=True)
    sums = np.zeros(len(codes), np.int64)
    np.add.at(sums, place, trace.duration_ns[rows])
    order = np.argsort(-sums, kind="stable")
    return [*zip(codes[order].tolist(), sums[order].tolist(), np.bincount(place)[order].tolist(), strict=True)]


def _listed(texts: Sequence[str], most: int) -> str:
    more = [f"{len(texts) - most:,} more"] if len(texts) > most else []
    return ", ".join([*texts[:most], *more])


def _changes(trace: Trace) -> list[str]:
    """Say what to change, what gains most first."""
    found = as_trace(trace).explain()
    told = [
        f"{place}. {one.head.replace(':', f'{_where_called(trace, one)}:', 1)}. {one.fix}"
        for place, one in enumerate(found.findings[:MOST_CHANGES], 1)
    ]
    if told:
        return told
    return [f"Bound by the host: {one}" for one in found.host_bound[:1]]


def _where_called(trace: Trace, finding: Finding) -> str:
    """Name the calls that a finding is about, the longest first, and where the host was meanwhile."""
    rows = finding.pieces.call_row if finding.code in BY_CALL else finding.pieces.call_row[:0]
    names = [display_name(trace.names[code], 40) for code in dict.fromkeys(trace.name[rows[rows >= 0]].tolist())]
    where = finding.function or finding.operation
    return "".join([f", {_listed(names, 2)}" if names else "", f" in {display_name(where, 80)}" if where else ""])


def _missing(trace: Trace) -> Iterable[str]:
    """Say what is not in the trace."""
    meta = trace.metadata
    facts = [
        meta.recovery_note,
        meta.capture_note,
        dropped_text(meta) if meta.dropped_spans else "",
        pending_text(meta.pending_spans, meta) if meta.pending_spans else "",
        *(f"{one.text} Type --graphs nodes." for one in quality(trace).doubts if one.check == WHOLE_GRAPHS),
    ]
    told = "; ".join(filter(None, facts))
    return [f"Missing: {_cut(told)}"] if told else []


def _cut(text: str) -> str:
    """Return a text as one line that is not too long."""
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"
