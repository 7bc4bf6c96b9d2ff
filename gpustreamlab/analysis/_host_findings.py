"""Findings beside the streams that waited for each other: calls in which the card was idle, and short work that began late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpustreamlab.analysis._advice import Advice, delays_with_priority
from gpustreamlab.analysis._busy import sweep
from gpustreamlab.analysis._causes import LAUNCH_SPACING_NS, blocked_ns, idle_in_calls, launched_in_a_row
from gpustreamlab.analysis._device_causes import SURE
from gpustreamlab.analysis._explain_text import LESS_LAUNCHES, finding_texts, make_room
from gpustreamlab.analysis._explanation import Finding
from gpustreamlab.analysis._host_waits import lasted_ns, thread_lanes
from gpustreamlab.analysis._pieces import LatePieces, Pieces, pieces_on_time
from gpustreamlab.analysis._scale import count_text, format_ns, format_share
from gpustreamlab.analysis._stacks import with_operation
from gpustreamlab.model import SPAN_KINDS, Trace, display_name
from gpustreamlab.typing import BoolArray, Cause, Certainty, EdgeKind, SpanKind

CALLED = (Cause.LAZY_LOAD, Cause.ALLOC_SYNC, Cause.QUEUE_FULL, Cause.PROFILER_OVERHEAD)
"""Causes whose calls are simply too long: what the run would be without is scheduled anew."""
SHARED = "Both need the SMs."
FEWEST_LATE, SHORT_SHARE, LATE_TIMES, LATE_SHARE = 4, 0.1, 5, 0.01
"""A stream of so many kernels, which take so little of the run, is told of where 5% of them wait for so many times what they
take, and for so much of the run."""
LEAST_DELAY = 0.1  # By which share of the delay work has to begin sooner for a priority to be told

FEWEST, FREE_SHARE, LEFT_SHARE = 8, 0.25, 0.2
"""Of so many kernels it is told that they wait for launches; or that they use no more than this share of the SMs, where that
leaves this share of the run to be gained."""
SHOWN = 1_000  # How many of them are shown


def finding_of(trace: Trace, code: Cause, pieces: LatePieces, *, text: str | None = None, **told: Any) -> Finding:
    """Make a finding of pieces, the longest first, which its words are of: the words of its cause, or others."""
    row, before, call = (int(column[0]) for column in (pieces.row, pieces.other_row, pieces.call_row))
    text, fix = finding_texts(code, trace, pieces) if text is None else (text, "")
    first = Finding(
        code=code,
        certainty=SURE[int(pieces.certainty[0])],
        stream=trace.lanes[int(trace.lane[row])].name,
        other=trace.lanes[int(trace.lane[before])].name if before >= 0 else None,
        saves_ns=0,
        bound_ns=0,
        waited_ns=0,
        piece_count=len(pieces.row),
        pair_count=1,
        row=row,
        other_row=before,
        call_row=call,
        text=text,
        fix=fix,
        pieces=pieces,
    )
    return replace(first, **told)


def idle_call_findings(trace: Trace, pieces: Pieces, findings: Sequence[Finding], least_ns: int) -> list[Finding]:
    """Tell of calls that held the host while the whole card was idle, by their names, where that is not told already."""
    told = {(one.code, trace.name[one.call_row]) for one in findings if one.call_row >= 0}
    if any(one.saves_ns and one.code in CALLED for one in findings):
        return []
    found = []
    for code, row, call, inside_ns in idle_in_calls(trace, pieces, least_ns):
        for name in np.unique(trace.name[call]).tolist():
            own = np.flatnonzero(trace.name[call] == name)
            total_ns, longest = int(inside_ns[own].sum()), own[np.argmax(inside_ns[own])]
            if total_ns < least_ns or (code, name) in told:
                continue
            held = pieces_on_time(
                trace, int(row[longest]), total_ns, [*zip(call[own].tolist(), row[own].tolist(), strict=True)]
            )
            base = finding_of(trace, code, held, bound_ns=total_ns, waited_ns=total_ns)
            idle = f" Nothing ran on the card meanwhile: {format_ns(total_ns)} in all."
            found.append(with_operation(trace, pieces, replace(base, text=base.text + idle)))
    return found


def launch_bound(trace: Trace, pieces: Pieces, findings: Sequence[Finding], least_ns: int) -> list[Finding]:
    """Return findings with that of a card that waited for launches in a row, each of which takes longer than the work before.

    What is known of it by scheduling the run anew, or what overlap could gain where that is more, is told instead.
    """
    own = [one for one in findings if one.code is Cause.LAUNCH_BOUND]
    from_ns, to_ns = sweep(trace).steps.pauses_ns
    # Of a longer pause the launch in front was not the reason.
    is_short = to_ns - from_ns <= LAUNCH_SPACING_NS + pieces.latency_ns
    from_ns, to_ns = from_ns[is_short], to_ns[is_short]
    if any(one.saves_ns or not one.bound_ns for one in own) or (to_ns - from_ns).sum() < least_ns:
        return [*findings]
    rows = np.flatnonzero(pieces.counted)
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    row = rows[np.searchsorted(trace.start_ns[rows], to_ns)]
    before = rows[np.searchsorted(np.maximum.accumulate(trace.end_ns[rows]), from_ns)]
    call = pieces.launch[row]
    launched_ns = np.where(call >= 0, trace.end_ns[call], trace.queued_ns[row])
    is_late = launched_ns > from_ns
    if (to_ns - from_ns)[is_late].sum() < least_ns:
        return [*findings]
    spacing_ns = launched_in_a_row(pieces, row, before)
    hit = np.flatnonzero((spacing_ns > 0) & is_late & (to_ns - from_ns <= spacing_ns + pieces.latency_ns))
    queued_ns, lane = trace.queued_ns[row[hit]], thread_lanes(trace, pieces.launch)(row[hit])
    # A wait in between is a cause of its own.
    hit = hit[2 * blocked_ns(trace, lane, queued_ns - spacing_ns[hit], queued_ns) < spacing_ns[hit]]
    idle_ns = int((to_ns - from_ns)[hit].sum())
    if len(hit) < FEWEST or idle_ns < max(least_ns, 1 + sum(one.bound_ns for one in own)):
        return [*findings]
    told = hit[np.argsort((from_ns - to_ns)[hit], kind="stable")][:SHOWN]
    held = [*zip(call[told].tolist(), row[told].tolist(), strict=True)]
    typical_ns = (int(np.median(times_ns)) for times_ns in (spacing_ns[hit], lasted_ns(trace, before[hit])))
    spacing, lasted = map(format_ns, typical_ns)
    text = (
        f"The host took {spacing} from one launch to the next (median), the work before {lasted}: {len(hit):,} times the card "
        f"had nothing to do until the next was launched, {format_ns(idle_ns)} in all."
    )
    is_known = bool((call[hit] >= 0).all())
    shown = pieces_on_time(trace, int(row[told[0]]), idle_ns, held if is_known else ())
    told_of = {"certainty": Certainty.PROVED if is_known else Certainty.LIKELY, "fix": LESS_LAUNCHES, "piece_count": len(hit)}
    found = finding_of(trace, Cause.LAUNCH_BOUND, shown, text=text, waited_ns=idle_ns, bound_ns=idle_ns, **told_of)
    return [*(one for one in findings if one.code is not Cause.LAUNCH_BOUND), found]


def small_kernels(trace: Trace, rows: BoolArray) -> list[Finding]:
    """Tell of one stream whose kernels use few of the SMs, one after the other."""
    sms, blocks = trace.metadata.device.sm_count, trace.extra.get("grid_blocks")
    kernels = np.flatnonzero(rows & (trace.kind == SPAN_KINDS.index(SpanKind.KERNEL)))
    if len(kernels) < FEWEST or not sms or blocks is None or not blocks[kernels].all():
        return []
    alone_ns, share = lasted_ns(trace, kernels), np.minimum(blocks[kernels] / sms, 1.0)
    used_ns, busy_ns = float((alone_ns * share).sum()), int(alone_ns.sum())
    bound_ns = busy_ns - max(int(used_ns), int(alone_ns.max()))
    wall_ns = int(trace.end_ns[rows].max() - trace.start_ns[rows].min())
    if used_ns > FREE_SHARE * busy_ns or bound_ns < LEFT_SHARE * wall_ns:
        return []
    shown = pieces_on_time(trace, int(kernels[np.argmax(alone_ns)]), bound_ns)
    stream = trace.lanes[int(trace.lane[kernels[0]])].name
    text = (
        f"{count_text(len(kernels), 'kernel')} of {stream!r} ran one after the other, with "
        f"{np.median(blocks[kernels]):,.0f} blocks each (median): they use {format_share(used_ns / busy_ns)} of {sms} SMs."
    )
    fix = (
        "Give each more to do, as by a larger batch. Of those that do not need each other's results, put some on a stream of "
        "their own: lab.stream('other')."
    )
    told = {"fix": fix, "piece_count": len(kernels), "waited_ns": bound_ns, "bound_ns": bound_ns}
    return [finding_of(trace, Cause.SAME_LANE, shown, text=text, **told)]


def short_and_late(trace: Trace, rows: BoolArray, advice: Advice, findings: Sequence[Finding]) -> list[Finding]:
    """Find streams of short kernels that wait for long behind a full card: that costs the run nothing, and each much."""
    found = []
    told = {one.stream for one in findings if one.code is Cause.GRID_FILLS_DEVICE}
    awaited_ns, waits = np.zeros(len(trace), np.int64), trace.edges.select(EdgeKind.WAIT)
    np.maximum.at(awaited_ns, waits.target, trace.end_ns[waits.source])
    for lane in np.unique(trace.lane[rows]).tolist():
        work = np.flatnonzero(rows & (trace.lane == lane))
        is_kernel = trace.kind[work] == SPAN_KINDS.index(SpanKind.KERNEL)
        own = work[is_kernel]
        lasted_ns, stream = trace.end_ns[own] - trace.start_ns[own], trace.lanes[lane].name
        if len(own) < FEWEST_LATE or stream in told or lasted_ns.sum() > SHORT_SHARE * advice.forecast.measured_ns:
            continue
        free_ns = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(trace.end_ns[work])[:-1])[is_kernel]
        late_ns = trace.start_ns[own] - np.maximum(np.maximum(trace.queued_ns[own], free_ns), awaited_ns[own])
        longest = int(np.argmax(late_ns))
        worth_ns = max(LATE_TIMES * int(np.median(lasted_ns)), LATE_SHARE * advice.forecast.measured_ns)
        if np.quantile(late_ns, 0.95) < worth_ns or (delays := delays_with_priority(advice, lane)) is None:
            continue
        row = int(own[longest])
        base = finding_of(trace, Cause.GRID_FILLS_DEVICE, pieces_on_time(trace, row, int(late_ns[longest])), text="")
        # Latency is the loss here, not throughput: with priority or without the whole takes as long.
        others = np.flatnonzero(rows & (trace.lane != lane) & (trace.start_ns < trace.start_ns[row]))
        before = int(others[np.argmax(trace.end_ns[others])]) if len(others) else row
        helps = delays[1].most_ns <= 0.5 * delays[0].most_ns
        fix = sooner(trace, advice, base) if helps else make_room(trace, row, before)
        most_ns, median_ns = (format_ns(int(np.quantile(late_ns, share))) for share in (0.95, 0.5))
        waited = f"{median_ns} in the median, and 5% of them {most_ns} or longer"
        text = f"{len(own):,} short kernels of {stream!r} waited for room on the SMs: {waited}."
        found.append(replace(base, text=text, fix=fix, piece_count=len(own), waited_ns=int(late_ns.sum()), other_row=before))
    return found


def sooner(trace: Trace, advice: Advice, finding: Finding) -> str:
    """Say how much sooner work would begin with priority, where all of it takes as long in any order."""
    before = finding.other_row
    if before >= 0 and trace.lanes[int(trace.lane[finding.row])].priority < trace.lanes[int(trace.lane[before])].priority:
        return f"{SHARED} {make_room(trace, finding.row, before)}"
    told = delays_with_priority(advice, int(trace.lane[finding.row]))
    if told is None or told[0].most_ns - told[1].most_ns < LEAST_DELAY * told[0].most_ns:
        return f"{SHARED} In another order they take as long."
    stream = repr(display_name(finding.stream, 40))
    (median_ns, most_ns), after = told
    return (
        f"{SHARED} In all they take as long in any order. With priority, lab.stream({stream}, priority=-1), work of {stream} "
        f"would begin {format_ns(after.median_ns)} after it could (median; {format_ns(median_ns)} now), 95% of it within "
        f"{format_ns(after.most_ns)} ({format_ns(most_ns)} now). Blocks that run are not pushed out."
    )
