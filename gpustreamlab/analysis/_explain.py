"""Why work did not overlap: why, what proves it, what changing it gains, and what to type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import numpy as np

from gpustreamlab.analysis._advice import CHANGES, Advice, Step, advise, held_by, read_runs
from gpustreamlab.analysis._advice_text import pairs_changed, step_texts
from gpustreamlab.analysis._busy import (
    StepTime,
    counted_kinds,
    counted_rows,
    distinct,
    is_work,
    lane_devices,
    lane_processes,
    require_one_rank,
    require_trace,
)
from gpustreamlab.analysis._card_counters import counted_text
from gpustreamlab.analysis._card_idle import card_idle
from gpustreamlab.analysis._causes import LONGER, Found, find_causes
from gpustreamlab.analysis._changes import Run, apart, host_waits, in_one_stream, launched_at_once, without_waits
from gpustreamlab.analysis._device_causes import CODES, piece_of
from gpustreamlab.analysis._explain_text import LESS_LAUNCHES, OF_CALL_ROW, REST, TEXTS
from gpustreamlab.analysis._explanation import LEAST_SHARE, Explanation, Finding, joined
from gpustreamlab.analysis._host_findings import (
    CALLED,
    finding_of,
    idle_call_findings,
    launch_bound,
    short_and_late,
    small_kernels,
    sooner,
)
from gpustreamlab.analysis._host_waits import calls_alike, lasted_ns, named_calls, open_operations, thread_lanes
from gpustreamlab.analysis._makers import OF_RANKS, maker_of
from gpustreamlab.analysis._needed_waits import NEEDED, strongest_need
from gpustreamlab.analysis._overlap import concurrency
from gpustreamlab.analysis._pieces import NO_PIECES, LatePieces, Pieces, find_pieces, pieces_on_time
from gpustreamlab.analysis._replay import Impossible, replay
from gpustreamlab.analysis._rows import MAX_LANE_ROWS
from gpustreamlab.analysis._scale import format_ns
from gpustreamlab.analysis._stacks import KEEP_VALUE, READS_VALUE, find_host_bound, in_operation, name_threads, with_operation
from gpustreamlab.analysis._steps import name_tags, spans_named
from gpustreamlab.errors import OptionError, StreamNotFoundError, nearest_hint
from gpustreamlab.model import SPAN_KINDS, Trace, TraceMetadata, display_name
from gpustreamlab.typing import BoolArray, CaptureTier, Cause, Certainty, Change, Int64Array, LaneKind, NoteKind, SpanKind

PAIRS_TOLD = 4  # Up to how many pairs of streams are told apart for one cause; what more cost is added up
PROFILER_TIMES = 10  # The profiler's own time is told if it costs so many times what else is told
OF_HOST = (
    Cause.HOST_SYNC_DEVICE,
    Cause.HOST_SYNC_STREAM,
    Cause.HOST_LATE,
    Cause.LAUNCH_BOUND,
    Cause.LAZY_LOAD,
    Cause.ALLOC_SYNC,
    Cause.PAGEABLE_COPY,
    Cause.HOST_CALL,
    Cause.QUEUE_FULL,
    Cause.PROFILER_OVERHEAD,
)
"""What a program does all the time without harm; told where something is to be gained."""
SAME_KIND = (frozenset({Cause.HOST_SYNC_DEVICE, Cause.HOST_SYNC_STREAM}), frozenset({Cause.HOST_LATE, Cause.LAUNCH_BOUND}))
"""Causes that one change mends together."""
NOT_TRIED = (Cause.HOST_LATE, Cause.NOT_OFFERED, Cause.HOST_FUNC, Cause.SERIALISED_BY_TOOL, Cause.LEGACY_STREAM, Cause.UNKNOWN)
"""Causes that are not scheduled anew without: whether what the host does could be done earlier nobody knows."""
LEFT_AS_IT_IS = "Leave it as it is: scheduled anew without it the run is no shorter."
HOST_NEEDS_IT = (
    "Keep this wait: the host may read what it waits for, or write over what was copied, before it launches what comes next."
)
NO_GAIN: Mapping[Cause, str] = MappingProxyType(
    dict.fromkeys((Cause.HOST_SYNC_DEVICE, Cause.HOST_SYNC_STREAM, Cause.LAUNCH_BOUND, Cause.PAGEABLE_COPY), LEFT_AS_IT_IS)
    | dict.fromkeys((Cause.PARTITION_SMALL, *CALLED), LEFT_AS_IT_IS)
)
"""What is to be done where it is known that nothing is gained; for other causes what is always said."""
SLOWED_TOLD = 4  # How many kernels that were slowed are told by their names
IDLE_SHARE = 0.05  # From which share of that time on it is told that the card was idle while the host was in a call
NOT_OFFERED_SHARE = 0.2
"""From which share of that time on it is told that nothing was there to overlap with: streams never begin and end as one."""
LEAST_GAIN = 0.1
"""Streams that gain less than this share of the time for which they overlap gain nothing by it."""
FEW_HELP = (Cause.LAUNCH_BOUND, Cause.SERIALISED_BY_TOOL, Cause.HOST_CALL, *CALLED)  # Beside them launches are no news
AS_GRAPH = CHANGES[Change.GRAPH]
FEWER_GAIN = 0.25  # From which share of the run on it is told what fewer launches would gain at most
AGAIN_SHARE = 0.5  # Waits that come again and again go before a load of code from this share of what that costs on
WAIT_WEIGHT = 0.5  # How much of the time of a wait for an event, and of what no cause explains, counts in the order of findings


def explain(trace: Trace, first: str | int | None = None, second: str | None = None) -> Explanation:
    """Say why pieces of work did not overlap.

    Parameters
    ----------
    trace
        The spans; with calls of the host in it (``lab.capture("kernels", host=True)``) most can be told.
    first, second
        Two streams, or names of ranges or kernels, of which it is asked; None for all streams. One alone: it and all others. A
        row number as `first`: why that span began late.

    Returns
    -------
    Explanation
        Findings, ranked by what changing each is predicted to gain. Where work overlapped, or nothing is to be gained, there
        are none.

    Raises
    ------
    OptionError
        If it is no trace, or nothing has such a name; or if what is asked of is of several ranks: ``trace.where(device=1)`` is
        of one.

    Notes
    -----
    A piece of work is a run of kernels, copies and fills of one stream without a pause. It began late if other streams worked
    while its stream was idle. Until its launch the host held it up, from then to its start the device. Each cause is told by
    records that it must leave; the codes are those of `Cause`. What changing it gains is found by scheduling the run anew with
    that changed, and with what work is known to read and to write kept in order; first it is scheduled as it was, and how far
    that is off is said. Where it cannot be, or where it is not known what a wait is for, the most that overlap could save is
    told, and nothing is promised.

    Examples
    --------
    >>> trace = Trace.from_columns(
    ...     start_ns=[0, 1_000_000], end_ns=[900_000, 2_000_000], stream=["copy", "compute"], queued_ns=[-5_000, 995_000]
    ... )
    >>> explain(trace, "copy", "compute").findings[0].code
    <Cause.HOST_LATE: 'HOST_LATE'>
    """
    require_trace(trace, "explain")
    rows = counted_rows(trace)
    if isinstance(first, (int, np.integer)) and not isinstance(first, bool):
        return _of_row(trace, rows, int(first))
    groups = [_named_rows(trace, rows, name) for name in (first, second) if name is not None]
    if len(groups) == 2:
        rows = groups[0] | groups[1]
    elif groups:
        process = lane_processes(trace)[trace.lane]
        rows = rows & np.isin(process, process[groups[0]])
    require_one_rank(trace, rows, "explain")
    pieces = find_pieces(trace, rows)
    found = find_causes(trace, pieces)
    if len(groups) == 1:
        found = found.among(groups[0][pieces.row[found.piece]] | ((found.before >= 0) & groups[0][found.before]))
    result = _explanation(trace, rows, pieces, found, is_part=len(groups) == 2)
    if len(groups) < 2:
        return result
    same = _same_stream(trace, groups, (str(first), str(second)))
    idle = [str(name) for name, group in zip((first, second), groups, strict=True) if not group.any()]
    return replace(
        result,
        findings=(*same, *result.findings),
        gain_ns=max([result.gain_ns, *(finding.saves_ns for finding in same)]),
        bound_ns=max([result.bound_ns, *(finding.bound_ns for finding in same)]),
        asked=f"nothing ran on {display_name(idle[0], 40)!r}" if idle and len(result.streams) < 2 else "",
    )


def _of_row(trace: Trace, rows: BoolArray, row: int) -> Explanation:
    """Say why one span began late, however little that cost."""
    if not 0 <= row < len(trace):
        raise OptionError(f"explain({row}) names a row; the trace has rows 0 to {len(trace) - 1:,}.")
    process = lane_processes(trace)[trace.lane]
    rows = rows & (process == process[row])
    pieces = find_pieces(trace, rows)
    found = find_causes(trace, pieces)
    inside = np.flatnonzero(rows & descendants(trace, np.arange(len(trace)) == row))
    places = piece_of(trace, pieces, inside)
    found = found.among(np.isin(found.piece, places[places >= 0]))
    result = _explanation(trace, rows, pieces, found, is_part=False, least_ns=1)
    delay_ns = int(trace.start_ns[row] - trace.queued_ns[row])
    began = f"began {format_ns(delay_ns)} after its launch" if delay_ns > 0 else "has no time of its launch"
    held = "" if result.findings else "; nothing held it up while others worked"
    name, stream = (
        display_name(text, 40) for text in (trace.names[int(trace.name[row])], trace.lanes[int(trace.lane[row])].name)
    )
    return replace(result, asked=f"row {row:,}, {name} on {stream!r}, {began}{held}", host_bound=())


def _with_hazards(trace: Trace) -> TraceMetadata:
    """Return what is known of a trace, with the hazards that its session found: what is fast with them may be wrong."""
    if not any(note.kind is NoteKind.HAZARD for note in trace.notes):
        return trace.metadata
    note = "Hazards were found, so results may be wrong: lab.memory.hazards(), or the timeline, has the missing waits."
    return replace(trace.metadata, missing=(*trace.metadata.missing, note))


def _explanation(
    trace: Trace, rows: BoolArray, pieces: Pieces, found: Found, *, is_part: bool, least_ns: int | None = None
) -> Explanation:
    whole = concurrency(trace if np.array_equal(rows, pieces.counted) else trace[rows])
    used = np.flatnonzero(np.bincount(trace.lane[rows]))
    shares = whole.shared.reason if whole.shared.busy_ns > whole.busiest_ns else ""
    result = Explanation(
        findings=(),
        asked="",
        host_bound=find_host_bound(trace, used.tolist(), pieces),
        streams=tuple(trace.lanes[lane].name for lane in used.tolist()),
        active_ns=whole.active_ns,
        together_ns=whole.together_ns,
        offered_ns=max(pieces.offered_ns, whole.together_ns),
        gain_ns=0,
        bound_ns=max(whole.active_ns - whole.ideal_ns, 0),
        forecast=None,
        reason=shares,
        idle="" if is_part or len(used) != 1 else _idle_text(trace),
        is_ranges=SpanKind.RANGE in counted_kinds(trace) and trace.metadata.tier is not CaptureTier.KERNELS,
        no_gain="",
        has_calls=bool((pieces.launch >= 0).any()),
        looked_share=pieces.looked_share,
        metadata=_with_hazards(trace),
        maker=maker_of(trace),
    )
    findings = _grouped(trace, pieces, found, result.bound_ns, result.worth_ns if least_ns is None else least_ns)
    if trace.metadata.is_predicted:  # calls, and most of what stood in front, are not in it
        findings = [one for one in findings if one.code is not Cause.UNKNOWN]
    findings = name_threads(trace, pieces, found, findings)
    slowed_ns = max((one.bound_ns for one in findings if one.code is Cause.SLOWED_DOWN), default=0)
    advice = _advised(trace, rows, found, slowed_ns)
    if advice is not None:
        asked = set() if least_ns is not None else {*used.tolist()} if is_part else {*range(len(trace.lanes))}
        findings = _with_steps(trace, pieces, advice, findings, asked)
        if least_ns is None and advice.is_certain:
            findings += short_and_late(trace, rows, advice, findings)
        is_shared = not advice.steps and result.together_ns >= LEAST_GAIN * result.active_ns
        no_gain = no_gain_text(trace, rows, result.together_ns) if is_shared and least_ns is None else ""
        gain_ns = sum(finding.saves_ns for finding in findings)
        result = replace(result, forecast=advice.forecast, gain_ns=gain_ns, no_gain=no_gain)
    else:  # of several cards, say: no change gains more than the calls took, or than all order and idle time
        most_ns = whole.wall_ns - whole.ideal_ns
        findings = [replace(one, bound_ns=max(one.bound_ns, min(_calls_ns(trace, one), most_ns))) for one in findings]
    if least_ns is None and not is_part:
        worth_ns = max(result.worth_ns, int(IDLE_SHARE * result.active_ns))
        findings += _values_read(trace, pieces, advice, findings, worth_ns) if advice else []
        findings += idle_call_findings(trace, pieces, findings, worth_ns)
        findings = launch_bound(trace, pieces, findings, worth_ns)
        findings += _fewer_launches(trace, advice, findings)
        if not findings and result.idle and not (advice and advice.is_certain):
            findings = small_kernels(trace, rows)
    if least_ns is None and not any(finding.saves_ns or finding.step >= 0 for finding in findings):
        findings += _not_offered(trace, rows, pieces, result, findings)
    if result.forecast is not None:  # order alone beats no floor
        most_ns = max(0, result.forecast.measured_ns - result.forecast.floor_ns)
        capped = (one if one.code in LONGER else replace(one, bound_ns=min(one.bound_ns, most_ns)) for one in findings)
        findings = [*capped]
    words = result.maker.words
    findings = [replace(one, text=words(one.text), fix=words(one.fix)) for one in findings]
    return replace(result, findings=tuple(_ranked(findings)))


def _idle_text(trace: Trace) -> str:
    """Say why a card was idle with one stream, as far as that is known."""
    if trace.metadata.tier is not CaptureTier.KERNELS:
        return "one stream of ranges, which contain waiting"
    if len({lane.process for lane in trace.lanes}) > 1:
        return "one stream"
    found = card_idle(trace)
    is_idle = found.idle_ns > LEAST_SHARE * found.wall_ns
    return f"one stream, {found.line}" if is_idle else "one stream, hardly ever idle"


def _ranked(findings: Sequence[Finding]) -> list[Finding]:
    """Sort findings: by what is promised, the most first; then the others by how long work waited.

    A tool that lets nothing overlap goes first, since without it the run is another one. A wait mostly orders data, so that
    what can be mended without harm goes before it. A load of code comes once: waits of the host that come again and again go
    before it. That only one stream had work goes behind a cause that may cost more.
    """
    again_ns = max((sum(_worth_ns(one) for one in findings if one.code in some) for some in SAME_KIND), default=0)
    most_ns = max((one.bound_ns for one in findings if one.code is not Cause.NOT_OFFERED), default=0)

    def rank(finding: Finding) -> tuple[bool, int, bool, float]:
        is_run, saves_ns, waited_ns = finding.code is not Cause.SERIALISED_BY_TOOL, finding.saves_ns, float(finding.waited_ns)
        if finding.code is Cause.LAZY_LOAD and again_ns > AGAIN_SHARE * saves_ns:
            saves_ns = min(saves_ns, finding.waited_ns)
        elif finding.code is Cause.EVENT_WAIT:
            return is_run, -saves_ns, strongest_need(finding.pieces.need) == NEEDED, -waited_ns * WAIT_WEIGHT
        elif finding.code is Cause.NOT_OFFERED:  # what is left where no cause is known
            waited_ns = 0.0 if most_ns > finding.bound_ns else waited_ns * WAIT_WEIGHT
        return is_run, -saves_ns, False, -waited_ns

    return sorted(findings, key=rank)


def _worth_ns(finding: Finding) -> int:
    return finding.saves_ns or finding.bound_ns


# What changing it gains


def _advised(trace: Trace, rows: BoolArray, found: Found, slowed_ns: int) -> Advice | None:
    """Schedule the run anew; None where it is not known what ran, or how several cards hang together."""
    work = rows & is_work(trace)
    if not work.any() or trace.metadata.is_predicted or trace.metadata.tier is not CaptureTier.KERNELS:
        return None
    cards = np.unique(lane_devices(trace)[trace.lane[work]])
    # All work of the card: what was not asked about holds it up, too.
    process = lane_processes(trace)[trace.lane]
    own = is_work(trace) & np.isin(process, process[work]) & np.isin(lane_devices(trace)[trace.lane], cards)
    if len(cards) > 1 and not _are_played_together(trace, cards, own):
        return None
    if not (trace.queued_ns[own] < trace.start_ns[own]).any() or not trace.metadata.device.sm_count:
        return None
    return advise(trace, np.flatnonzero(own), _held_calls(trace, found), slowed_ns)


def _are_played_together(trace: Trace, cards: Int64Array, work: BoolArray) -> bool:
    """Tell whether cards are alike and of one process, without partitions, and no kernel waits for one of another card."""
    kinds = {(one.name, one.sm_count, one.memory_bytes_per_s) for one in (trace.devices[card] for card in cards.tolist())}
    is_of_ranks = named_calls(trace, OF_RANKS.search, SpanKind.KERNEL)
    is_one = len(kinds) == len(np.unique(lane_processes(trace)[trace.lane[work]])) == 1
    return is_one and not is_of_ranks.any() and not (trace.partition[work] >= 0).any()


def _held_calls(trace: Trace, found: Found) -> dict[Cause, list[int]]:
    """Return the calls that were simply too long, by cause, with those of the same name before the same launch."""
    calls = {code: np.unique(found.call[(found.cause == CODES.index(code)) & (found.call >= 0)]) for code in CALLED}
    return {code: calls_alike(trace, rows).tolist() for code, rows in calls.items() if len(rows)}


def _calls_ns(trace: Trace, finding: Finding) -> int:
    """Return what all calls took that are named as those of a finding: one that held nothing up then may now."""
    calls = finding.pieces.call_row
    is_alike = np.isin(trace.name, trace.name[calls[calls >= 0]]) & (trace.kind == SPAN_KINDS.index(SpanKind.HOST))
    return int(trace.duration_ns[is_alike].sum())


def held_calls(trace: Trace) -> dict[Cause, list[int]]:
    """Return the calls of a trace that held up launches and were simply too long, by cause."""
    return _held_calls(trace, find_causes(trace, find_pieces(trace, counted_rows(trace))))


def _with_steps(trace: Trace, pieces: Pieces, advice: Advice, findings: Sequence[Finding], asked: set[int]) -> list[Finding]:
    """Give each change to the finding that it mends, or make one where it is of the lanes asked for.

    What is then left of the others was scheduled anew.
    """
    left = [*findings]
    if advice.is_certain:
        fewer_ns = _gain_of(advice, AS_GRAPH) if any(one.code is Cause.LAUNCH_BOUND for one in findings) else 0
        left = [_without_gain(trace, advice, one, fewer_ns) for one in findings]
    told = []
    for number, step in enumerate(advice.steps):
        causes = next((some for some in SAME_KIND if step.cause in some), frozenset({step.cause}))
        if step.key == "in_turn":
            causes -= {Cause.LAUNCH_BOUND}  # in any order a launch takes as long
        own = [one for one in left if one.code in causes and _is_of_step(trace, one, step)]
        own.sort(key=lambda one: (one.code is not step.cause, -one.waited_ns))
        works = step.before.program.works
        if not own and not (asked and {works[place].home for place in step.places} <= asked):
            continue
        first = works[step.places[0] if step.places else 0]
        held = step.held or [(call.row, works[call.works[0]].row) for call in step.shortened]
        text, fix = step_texts(trace, step)
        is_of_call = step.shortened or step.cause is Cause.ALLOC_SYNC
        on_time = pieces_on_time(trace, first.row, step.gain_ns, held)
        base = joined(own) if own else finding_of(trace, step.cause, on_time, text=None if is_of_call else text)
        saves_ns, bound_ns = (0, step.gain_ns) if advice.forecast.is_bound else (step.gain_ns, 0)
        changed = replace(base, step=number, saves_ns=saves_ns, bound_ns=bound_ns, fix=fix or base.fix)
        told.append(changed if own or changed.call_row < 0 else with_operation(trace, pieces, changed))
        left = [one for one in left if not any(one is mended for mended in own)]
    return [*told, *(_if_sooner(advice, one) for one in left)]


def _fewer_launches(trace: Trace, advice: Advice | None, findings: Sequence[Finding]) -> list[Finding]:
    """Tell of launches that take most of what is then left, though the card never stands still for them."""
    if advice is None or len(advice.runs) > 1 or any(one.code in FEW_HELP for one in findings):
        return []
    run = advice.steps[-1].after if advice.steps else advice.runs[0]
    before_ns, after_ns = _walls((run,), AS_GRAPH) or (0, 0)
    gain_ns = before_ns - after_ns
    if not run.program.has_calls or gain_ns < FEWER_GAIN * advice.forecast.measured_ns:
        return []
    launches = [call for call in run.program.calls if call.works and not call.awaits]
    each = format_ns(int(np.median([call.cost_ns + call.gap_ns for call in launches])))
    row = run.program.works[launches[0].works[0]].row
    text = f"{len(launches):,} launches take the host {each} each (median): that is most of the run."
    held = pieces_on_time(trace, row, gain_ns)
    return [finding_of(trace, Cause.LAUNCH_BOUND, held, text=text, fix=LESS_LAUNCHES, bound_ns=gain_ns, waited_ns=gain_ns)]


def _values_read(trace: Trace, pieces: Pieces, advice: Advice, findings: Sequence[Finding], least_ns: int) -> list[Finding]:
    """Tell of operations that read a value of the card, for which the host waited: what the run would be without at most."""
    waits = [(run.program, run.program.calls[number]) for run in advice.runs for number in host_waits(run.program)]
    waits = [(program, call) for program, call in waits if call.row >= 0]
    row = np.array([call.row for _, call in waits], np.int64)
    around = open_operations(trace, trace.lane[row].astype(np.int64), trace.start_ns[row], trace.end_ns[row], of_call=True)
    found = []
    for code in np.unique(trace.name[around[around >= 0]]).tolist():
        own = np.flatnonzero((around >= 0) & (trace.name[around] == code)).tolist()
        if not READS_VALUE.search(trace.names[code]) or any(one.operation == trace.names[code] for one in findings):
            continue
        gain_ns = _gain_of(advice, partial(_without_calls, rows=frozenset(row[own].tolist())))
        if gain_ns < least_ns:
            continue
        works = [(waits[place], int(row[place])) for place in own]
        held = [(call_row, program.works[held_by(program, call)].row) for (program, call), call_row in works]
        on_time = pieces_on_time(trace, held[0][1], gain_ns, held)
        each = format_ns(int(np.median(lasted_ns(trace, row[own]))))
        times = f"{len(own):,} times, {each} each (median)" if len(own) > 1 else f"once, for {each}"
        text = f"The host was in {display_name(trace.names[int(trace.name[on_time.call_row[0]])], 40)} {times}."
        fix = f"{KEEP_VALUE} Scheduled anew without these waits, the run is {format_ns(gain_ns)} shorter at most."
        told = finding_of(trace, Cause.HOST_SYNC_STREAM, on_time, text=text, fix=fix, bound_ns=gain_ns, waited_ns=gain_ns)
        found.append(with_operation(trace, pieces, told))
    return found


def _without_calls(run: Run, rows: frozenset[int]) -> Run | None:
    calls = run.program.calls
    return without_waits(run, [number for number, call in enumerate(calls) if call.row in rows], even_needed=True)


def _if_sooner(advice: Advice, finding: Finding) -> Finding:
    """Let the bound of work that was launched late be what the run is shorter without what the host did in front of it."""
    if finding.code is not Cause.HOST_LATE or finding.saves_ns:
        return finding
    gain_ns = _gain_of(advice, partial(launched_at_once, rows=frozenset(finding.pieces.row.tolist())))
    return replace(finding, bound_ns=max(finding.bound_ns, gain_ns))


def _gain_of(advice: Advice, change: Callable[[Run], Run | None]) -> int:
    """Return what a change of the run gains, in ns; 0 where there is nothing to change."""
    walls = _walls(advice.runs, change)
    return int((1 - max(1, walls[1]) / max(1, walls[0])) * advice.forecast.measured_ns) if walls else 0


def _walls(runs: Sequence[Run], change: Callable[[Run], Run | None]) -> tuple[int, int] | None:
    """Return what runs take as they are, and with a change, in ns; None where there is nothing to change, or it cannot be."""
    try:
        changed = [change(run) for run in runs]
        if not any(changed):
            return None
        after = (made or run for made, run in zip(changed, runs, strict=True))
        return sum(replay(run.program).wall_ns for run in runs), sum(replay(run.program).wall_ns for run in after)
    except Impossible:
        return None


def _is_of_step(trace: Trace, finding: Finding, step: Step) -> bool:
    """Tell whether a change leaves out what a finding tells of: of waits of streams those between the same two."""
    if finding.code is not Cause.EVENT_WAIT or finding.pair_count > 1 or step.before.program.names:
        return True
    names = [lane.name for lane in trace.lanes]
    return any((names[before], names[after]) == (finding.other, finding.stream) for before, after in pairs_changed(step))


def _without_gain(trace: Trace, advice: Advice, finding: Finding, fewer_ns: int) -> Finding:
    """Say of a finding that it was scheduled anew without it, and that this gains nothing, but what fewer launches do."""
    if finding.code in NOT_TRIED:
        return finding
    if finding.code is Cause.LAUNCH_BOUND and fewer_ns >= FEWER_GAIN * advice.forecast.measured_ns:
        return replace(finding, bound_ns=fewer_ns)  # whether it comes again, so that a graph can be launched, nobody knows
    if finding.code is Cause.GRID_FILLS_DEVICE:
        return replace(finding, bound_ns=0, fix=sooner(trace, advice, finding))
    if finding.code in SAME_KIND[0] and not advice.needed_calls.isdisjoint(finding.pieces.call_row.tolist()):
        return replace(finding, bound_ns=0, fix=HOST_NEEDS_IT)
    if finding.code is Cause.EVENT_WAIT and not (finding.pieces.need == NEEDED).any():
        return replace(finding, bound_ns=0, fix=LEFT_AS_IT_IS)
    return replace(finding, bound_ns=0, fix=NO_GAIN.get(finding.code, finding.fix))


def _not_offered(
    trace: Trace, rows: BoolArray, pieces: Pieces, result: Explanation, findings: Sequence[Finding]
) -> list[Finding]:
    """Say for how long only one stream had work, where nothing that was found tells why, and every launch is known."""
    missing_ns = result.active_ns - result.offered_ns
    unexplained_ns = result.bound_ns - sum(finding.waited_ns for finding in findings)
    if (
        min(missing_ns, unexplained_ns) < NOT_OFFERED_SHARE * result.active_ns
        or not missing_ns
        or not pieces.is_launch_known.all()
    ):
        return []
    from_ns, to_ns = StepTime(pieces.offered_edges).longest_alone_ns
    inside_ns = np.minimum(trace.end_ns, to_ns) - np.maximum(trace.start_ns, from_ns)
    row = int(np.argmax(np.where(rows, inside_ns, -1)))
    happened, fix = TEXTS[Cause.NOT_OFFERED]
    stream = trace.lanes[int(trace.lane[row])].name
    words = {"missing": format_ns(missing_ns), "stream": display_name(stream, 40), "longest": format_ns(to_ns - from_ns)}
    worth_ns = min(missing_ns, unexplained_ns)
    alone = pieces_on_time(trace, row, worth_ns)
    text = happened.format(**words)
    finding = finding_of(trace, Cause.NOT_OFFERED, alone, text=text, fix=fix, bound_ns=worth_ns, waited_ns=worth_ns)
    lane = int(thread_lanes(trace, pieces.launch)(np.array([row]))[0])
    return [in_operation(trace, finding, lane, from_ns, to_ns)]


def _named_rows(trace: Trace, rows: BoolArray, name: object) -> BoolArray:
    """Return the work of a stream, or of all ranges or kernels of a name; shape (n_spans,), bool."""
    found = work_of(trace, rows, name)
    if found is None:
        hint = name_hint(trace, name)
        raise StreamNotFoundError(f"The trace has no stream, range or kernel {name!r:.60}. {hint} Use trace.explain() for all.")
    if name in trace.names and not found.any():
        count = int((trace.name == trace.names.index(str(name))).sum())
        raise OptionError(f"{name!r} names no work of a stream in this trace: {count:,} spans of the host. Name a stream.")
    return found


def work_of(trace: Trace, rows: BoolArray, name: object) -> BoolArray | None:
    """Return which of some rows are of a stream, or in ranges or kernels of a name; None where nothing has that name.

    A stream on which nothing ran gives way to a range of its name.
    """
    is_lane = np.array([lane.name == name and lane.kind is LaneKind.STREAM for lane in trace.lanes], bool)
    of_stream: BoolArray = rows & is_lane[trace.lane]
    if not of_stream.any() and ((named := spans_named(trace, str(name))).any() or name in trace.names):
        return rows & descendants(trace, named)
    return of_stream if is_lane.any() else None


def name_hint(trace: Trace, name: object) -> str:
    """Suggest the stream, range or kernel whose name is nearest."""
    streams = [lane.name for lane in trace.lanes if lane.kind is LaneKind.STREAM]
    return nearest_hint(str(name)[:60], [*streams, *dict.fromkeys(name_tags(text).phase for text in trace.names)])


def _same_stream(trace: Trace, groups: Sequence[BoolArray], names: tuple[str, str]) -> list[Finding]:
    """Say that two things share a stream, if they do, and what it gains to give the second one a stream of its own."""
    lanes = [np.unique(trace.lane[group]) for group in groups]
    shared = np.intersect1d(lanes[0], lanes[1])
    if not len(shared) or names[0] == names[1]:
        return []
    stream = trace.lanes[int(shared[0])].name
    on_it = [np.flatnonzero(group & (trace.lane == shared[0])) for group in groups]
    least_ns = min(int(trace.duration_ns[rows].sum()) for rows in on_it)
    first, second = (display_name(name, 40) for name in names)
    text = f"{first} and {second} are both on {stream!r}: a stream runs its work in order."
    moved = groups[1] & ~groups[0]
    gain_ns = _gain_ns(trace, lambda run: apart(run, _places(run, moved)) if run.memory.is_known else None)
    made = finding_of(trace, Cause.SAME_LANE, pieces_on_time(trace, int(on_it[1][0]), least_ns), text=text)
    return [
        replace(
            made,
            other=stream,
            saves_ns=max(0, gain_ns or 0),
            bound_ns=least_ns if gain_ns is None else 0,
            waited_ns=least_ns,
            piece_count=min(map(len, on_it)),
            other_row=int(on_it[0][0]),
            pieces=NO_PIECES,
            fix=TEXTS[Cause.SAME_LANE][1],
        )
    ]


def no_gain_text(trace: Trace, rows: BoolArray, common_ns: int) -> str:
    """Say that it gained nothing that some work of several streams ran at once for so long; empty where it did, or may have."""
    gain_ns = _gain_ns(trace, lambda run: in_one_stream(run, _places(run, rows)))
    if gain_ns is None or -gain_ns >= LEAST_GAIN * common_ns:
        return ""
    own = np.flatnonzero(rows)
    alone_ns = {work.row: work.alone_ns for run in read_runs(trace, own)[0] for work in run.program.works}
    lasted_ns = sum(int(trace.end_ns[row] - trace.start_ns[row]) for row in alone_ns)
    is_shared = 2 * (lasted_ns - sum(alone_ns.values())) >= common_ns * min(1.0, len(alone_ns) / max(1, len(own)))
    why = "they share the SMs or the memory" if is_shared else "the card was idle for longer than that"
    return (
        f"overlapped for {format_ns(common_ns)}, and that gained {format_ns(max(0, -gain_ns))}: scheduled anew one after the "
        f"other they take about as long, as {why}"
    )


def _places(run: Run, rows: BoolArray) -> list[int]:
    return [place for place, work in enumerate(run.program.works) if rows[work.row]]


def _gain_ns(trace: Trace, change: Callable[[Run], Run | None]) -> int | None:
    """Return what a change of a run gains, of a long one by pieces, in ns; None where it cannot be scheduled anew."""
    rows = np.flatnonzero(is_work(trace))
    if not len(rows) or len(trace.devices) > 1 or not trace.metadata.device.sm_count:
        return None
    runs, measured_ns, _ = read_runs(trace, rows)
    walls = _walls(runs, change)
    times = concurrency(trace).wall_ns / max(1, measured_ns)
    return None if walls is None else round((walls[0] - walls[1]) * times)


def descendants(trace: Trace, member: BoolArray) -> BoolArray:
    """Tell which rows are some rows, or in ranges among them; shape (n_spans,), bool."""
    inside = np.append(member, False)
    for _ in range(4 * MAX_LANE_ROWS):
        grown = inside[:-1] | inside[trace.parent]
        if (grown == inside[:-1]).all():
            break
        inside[:-1] = grown
    found: BoolArray = inside[:-1]
    return found


def _grouped(trace: Trace, pieces: Pieces, found: Found, most_ns: int, least_ns: int) -> list[Finding]:
    """Put together what has one cause and one pair of streams; add up further pairs; leave out what is not worth telling."""
    if not len(found.piece):
        return []
    found = found.once_each()
    other = np.where(found.before >= 0, trace.lane[found.before], -1)
    width = len(trace.lanes) + 1
    pairs, pair = distinct((found.cause * width + pieces.lane[found.piece]) * width + other + 1)
    cause = pairs // (width * width)
    is_apart = np.bincount(pair.astype(np.intp, copy=False), weights=found.saves_ns) >= least_ns
    for code in np.unique(cause).tolist():
        if (cause == code).sum() > PAIRS_TOLD:
            is_apart[cause == code] = False
    groups, group_of_pair = np.unique(np.where(is_apart, np.arange(len(pairs)), len(pairs) + cause), return_inverse=True)
    group = group_of_pair[pair].astype(np.intp, copy=False)
    waited_ns = np.bincount(group, weights=found.saves_ns)
    cause_of_group = np.zeros(len(groups), np.int64)
    cause_of_group[group_of_pair] = cause
    is_elsewhere = np.isin(cause_of_group, [CODES.index(code) for code in (Cause.OTHER_STREAM, *LONGER)])
    bound_ns = np.where(is_elsewhere, waited_ns, np.minimum(waited_ns, most_ns))
    # Why work that had been launched did not begin is told also where nothing is to be gained by it.
    is_of_host = np.isin(cause_of_group, [CODES.index(code) for code in OF_HOST])
    worth_ns = np.where(is_of_host & (least_ns > 1), bound_ns, waited_ns)
    # That the profiler takes some time is no news.
    worth_ns[(cause_of_group == CODES.index(Cause.PROFILER_OVERHEAD)) & (worth_ns < PROFILER_TIMES * least_ns)] = 0
    first, second = pairs // width % width, pairs % width - 1
    both_ways = np.unique(np.stack([group_of_pair, np.minimum(first, second), np.maximum(first, second)]), axis=1)[0]
    counts, pair_counts = np.bincount(group), np.bincount(both_ways.astype(np.intp, copy=False))
    members = np.split(np.lexsort((found.waited_ns, found.saves_ns, group)), np.cumsum(counts)[:-1])
    return [
        _finding(
            trace,
            pieces,
            found,
            members[place][::-1],
            piece_count=int(counts[place]),
            pair_count=int(pair_counts[place]),
            waited_ns=int(waited_ns[place]),
            bound_ns=int(bound_ns[place]),
        )
        for place in np.flatnonzero(worth_ns >= least_ns).tolist()
    ]


def _slowed_text(trace: Trace, row: Int64Array, waited_ns: Int64Array) -> str:
    """Say which kernels were slowed, where there are several, by their names; what cost most comes first."""
    sums = [(int(waited_ns[trace.name[row] == name].sum()), name) for name in np.unique(trace.name[row]).tolist()]
    told = [f"{display_name(trace.names[name], 40)} {format_ns(cost_ns)}" for cost_ns, name in sorted(sums, reverse=True)]
    more = f" and {len(told) - SLOWED_TOLD:,} others" if len(told) > SLOWED_TOLD else ""
    return f" In all {', '.join(told[:SLOWED_TOLD])}{more}." if len(told) > 1 else ""


def _finding(
    trace: Trace,
    pieces: Pieces,
    found: Found,
    members: Int64Array,
    *,
    piece_count: int,
    pair_count: int,
    waited_ns: int,
    bound_ns: int,
) -> Finding:
    """Make one of what was found, of which what saves most comes first."""
    late, before = found.piece[members], found.before[members]
    row, code = pieces.row[late], CODES[int(found.cause[members[0]])]
    held = LatePieces(
        row=row,
        other_row=before,
        call_row=found.call[members],
        idle_since_ns=pieces.idle_since_ns[late],
        launched_ns=pieces.launched_ns[late],
        start_ns=pieces.start_ns[late],
        waited_ns=found.waited_ns[members],
        certainty=found.certainty[members],
        need=pieces.needs_of(row, before).astype(np.int64),
    )
    is_kept = code is Cause.EVENT_WAIT and pair_count == 1 and strongest_need(held.need) == NEEDED
    made = replace(
        finding_of(trace, code, held),
        piece_count=piece_count,
        pair_count=pair_count,
        waited_ns=waited_ns,
        bound_ns=0 if is_kept else bound_ns,
    )
    is_slowed = code is Cause.SLOWED_DOWN
    counted, is_shown = counted_text(trace, code, held.call_row if is_slowed else before[before >= 0])
    told = made.text.replace(REST, "") if counted else made.text  # what the rest is, was counted
    text = told + (_slowed_text(trace, held.call_row, held.waited_ns) if is_slowed else "") + counted
    made = replace(made, text=text, certainty=Certainty.MEASURED if is_shown else made.certainty)
    if code not in OF_CALL_ROW:
        return made
    return replace(made, call_row=-1, pieces=held._replace(call_row=np.full(len(row), -1)))
