"""What is said of engines: how they stand, what is known of one that is lost, and what failed where."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from gpustreamlab.cluster._follower import Life
from gpustreamlab.cluster._outcomes import EngineStatus, Outcomes
from gpustreamlab.cluster._worker import Outcome
from gpustreamlab.errors import ClusterError, TraceFileError
from gpustreamlab.model import Note, Trace
from gpustreamlab.record import Tables
from gpustreamlab.sinks.reading import read_spool
from gpustreamlab.typing import NoteKind

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
    trace = life.mirror.trace()
    if life.is_there or not life.facts.spool or not Path(life.facts.spool).is_file():
        return trace
    try:
        spooled = read_spool(life.facts.spool)
    except TraceFileError as error:
        _log.warning("The spool of engine %s cannot be read: %s", life.name, error)
        return trace
    if len(spooled) <= len(trace):
        return trace
    placed = life.mirror.placed(Tables(*(getattr(spooled, name) for name in Tables._fields)))
    return replace(spooled, lanes=tuple(placed.lanes), threads=tuple(placed.threads), metadata=placed.metadata)


def loss_text(life: Life) -> str:
    when = datetime.fromtimestamp(life.lost_unix_ns / 1e9, UTC)
    return f"Engine {life.name} was lost at {when:%Y-%m-%d %H:%M:%S} UTC: {life.why}. What it did later is not here."


def loss_note(life: Life, whole: Trace) -> Note | None:
    """Return a note at the end of what is known of a lost engine."""
    if life.is_there:
        return None
    lanes = [place for place, lane in enumerate(whole.lanes) if lane.process == life.mirror.process]
    is_own = np.isin(whole.lane, lanes)
    if not is_own.any():
        return None
    last = int(np.argmax(np.where(is_own, whole.end_ns, np.iinfo(np.int64).min)))
    name = whole.lanes[int(whole.lane[last])].name
    text = f"engine {life.name} is lost from here on: {life.why}"
    return Note(time_ns=int(whole.end_ns[last]), text=text, stream=name, kind=NoteKind.NOTE)


def failure_of(failed: Mapping[str, Outcome], good: Outcomes) -> ClusterError:
    parts = [f"[{name}] {outcome.error}\n{outcome.text}{outcome.traceback}".rstrip() for name, outcome in failed.items()]
    kept = f"What the other {len(good)} returned is in error.results." if len(good) else "No other engine was asked."
    return ClusterError(
        f"It failed on {len(failed)} of {len(failed) + len(good)} engines. {kept}\n" + "\n".join(parts),
        failures={name: outcome.traceback or outcome.error for name, outcome in failed.items()},
        results=good,
    )
