"""What is said of engines: how they stand, what is known of one that is lost, and what failed where."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from gpustreamlab.analysis import Explanation, format_ns
from gpustreamlab.cluster._calls import Outcome
from gpustreamlab.cluster._follower import Life, clock_text
from gpustreamlab.cluster._outcomes import EngineStatus, Outcomes
from gpustreamlab.errors import ClusterError, OptionError, StreamNotFoundError, TraceFileError
from gpustreamlab.model import ClockOffset, without_tools
from gpustreamlab.record import Tables
from gpustreamlab.sinks.reading import read_spool
from gpustreamlab.trace import Trace, as_trace

_log = logging.getLogger(__name__)


def status_of(life: Life) -> EngineStatus:
    mirror, facts = life.mirror, life.facts
    state = f"lost, {life.why}" if not life.is_there else "silent" if life.is_silent else "there"
    return EngineStatus(
        name=life.name,
        host=facts.host,
        pid=facts.pid,
        device=f"{facts.device} (simulated)" if facts.simulated else facts.device,
        state=state,
        span_count=mirror.span_count,
        missed_count=mirror.missed_count,
        bytes_per_span=mirror.received_bytes / mirror.span_count if mirror.span_count else float("nan"),
        retry_count=life.retry_count,
        lost_unix_ns=life.lost_unix_ns,
    )


def trace_of(life: Life) -> Trace:
    """Return what has arrived, or of a lost engine what its spool has, where that is more and can be read from here."""
    trace = as_trace(without_tools(life.mirror.trace()))
    if life.is_there or not life.facts.spool or not Path(life.facts.spool).is_file():
        return trace
    try:
        spooled = as_trace(read_spool(life.facts.spool))
    except TraceFileError as error:
        _log.warning("The spool of engine %s cannot be read: %s", life.name, error)
        return trace
    if len(spooled) <= len(trace):
        return trace
    placed = life.mirror.placed(Tables(*(getattr(spooled, name) for name in Tables._fields)))
    marks = [replace(mark, time_ns=int(spooled.end_ns.max())) for mark in life.mirror.loss]
    whole = replace(
        spooled,
        lanes=tuple(placed.lanes),
        threads=tuple(placed.threads),
        markers=(*spooled.markers, *marks),
        metadata=placed.metadata,
    )
    return life.mirror.with_hazards(whole)


def explain_each(traces: Mapping[str, Trace], first: str | int | None, second: str | None) -> dict[str, Explanation]:
    """Return by engine why its work did not overlap, of those that have what is named.

    Raises
    ------
    OptionError, StreamNotFoundError
        If none has.
    """
    found: dict[str, Explanation] = {}
    failure: OptionError | StreamNotFoundError | None = None
    for name, trace in traces.items():
        prefix = f"{name}:"  # streams are asked for as they are typed on the engine
        lanes = tuple(replace(lane, name=lane.name.removeprefix(prefix)) for lane in trace.lanes)
        one = first.removeprefix(prefix) if isinstance(first, str) else first
        try:
            found[name] = replace(trace, lanes=lanes).explain(one, second and second.removeprefix(prefix))
        except (OptionError, StreamNotFoundError) as error:
            failure = error
    if failure is not None and not found:
        raise failure
    return found


def extents_of(lives: Sequence[Life]) -> list[tuple[int, int] | None]:
    """Return from when to when each has spans, by its own clock, in ns; None where it has none."""
    return [life.mirror.extent_ns if life.mirror.span_count else None for life in lives]


def began_ns(lives: Sequence[Life], extents: Sequence[tuple[int, int] | None]) -> list[int]:
    """Return when each simulated engine began, in ns: at 0, or where the process ended whose place it took.

    Parameters
    ----------
    lives
        Some engines; of those of one name the first process first.
    extents
        From when to when each has spans, by its own clock, in ns; None where it has none.
    """
    ends_ns: dict[str, int] = {}
    found = []
    for life, own in zip(lives, extents, strict=True):
        found.append(ends_ns.get(life.called, 0))
        ends_ns[life.called] = found[-1] + (0 if own is None else own[1])
    return found


def loss_texts(
    lives: Sequence[Life], extents: Sequence[tuple[int, int] | None], offsets: Sequence[ClockOffset] | None
) -> list[str]:
    """Say of each lost engine since when and why it is, and what of it is shown.

    Parameters
    ----------
    lives
        All that are shown.
    extents
        From when to when each has spans, by its own clock, in ns; None where it has none.
    offsets
        How the clock of each is compared with the client's; None where they have no common time.
    """
    times = [np.array(own or (), np.int64) for own in extents]
    if offsets is None:
        placed = [own + began for own, began in zip(times, began_ns(lives, extents), strict=True)]
    else:
        placed = [offset.shift(own) for own, offset in zip(times, offsets, strict=True)]
    zero_ns = min((int(own[0]) for own in placed if len(own)), default=0)
    texts = []
    for life, own in zip(lives, placed, strict=True):
        if life.is_there:
            continue
        after = "" if offsets is None else f", {format_ns(life.lost_ns - zero_ns)} into the trace"
        shown = f"Its spans up to {format_ns(int(own[1]) - zero_ns)} are shown" if len(own) else "No span of it had come"
        unended = f"; {life.mirror.unended_count:,} had not ended" if life.mirror.unended_count else ""
        texts.append(f"Engine {life.name} was lost at {clock_text(life.lost_unix_ns)}{after}: {life.why}. {shown}{unended}.")
    return texts


def failure_of(failed: Mapping[str, Outcome], good: Outcomes) -> ClusterError:
    """Return an error that tells what each engine raised, once where several raised the same."""
    told: dict[str, list[str]] = {}
    for name, outcome in failed.items():
        told.setdefault(outcome.traceback.strip() or outcome.error, []).append(name)
    asked = len(failed) + len(good)
    kept = f"What the other {len(good)} returned is in error.results." if len(good) else ""
    where = f"all {asked} engines" if asked == len(failed) > 1 else f"{len(failed)} of {asked} engines"
    parts = [f"[{', '.join(names)}] {text}" for text, names in told.items()]
    return ClusterError(
        "\n".join([f"It failed on {where}. {kept}".rstrip(), *parts]),
        failures={name: outcome.traceback or outcome.error for name, outcome in failed.items()},
        results=good,
    )
