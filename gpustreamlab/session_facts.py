"""What a session says of itself in one line, and in a notebook's table."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from gpustreamlab.backends import Backend
from gpustreamlab.green import ContextCache
from gpustreamlab.model import Layout
from gpustreamlab.typing import SessionState

__all__ = ["facts_table", "session_facts"]


def session_facts(
    backend: Backend,
    cache: ContextCache,
    *,
    layout: Layout | None,
    counts: tuple[int, int],
    streams: Sequence[str],
    capture: str,
    spool: str,
    state: SessionState,
) -> dict[str, str]:
    """Return what the representations say, by its heading; never touches the device.

    Parameters
    ----------
    counts
        Spans that there are, and spans that were dropped.
    streams
        Names of the streams to list.
    capture
        What is captured, in words.
    spool
        How the spool stands, in words; empty without one.
    """
    device = backend.device
    span_count, dropped_count = counts
    listed = f" ({', '.join(streams[:8])}{', …' if len(streams) > 8 else ''})" if streams else ""
    partitions = {} if layout is None else {"partitions": _partition_fact(layout, cache)}
    return {
        "device": f"{device.label}, {device.sm_count} SMs",
        "numbers": "simulated, no hardware behind them" if device.simulated else "real, measured",
        **partitions,
        "streams": f"{_counted(len(streams), 'stream')}{listed}",
        "captured": capture,
        "spans": _counted(span_count, "span"),
        "dropped": f"{dropped_count:,} dropped",
        **({"spool": spool} if spool else {}),
        "state": state.value,
    }


def facts_table(facts: Mapping[str, str], note: str) -> str:
    """Return facts as HTML, with a note below them."""
    left = "style='text-align:left'"
    rows = "".join(
        f"<tr><th {left}>{html.escape(name)}</th><td {left}>{html.escape(value)}</td></tr>" for name, value in facts.items()
    )
    below = f"<p>{html.escape(note)}</p>" if note else ""
    return f"<div><strong>gpustreamlab session</strong><table>{rows}</table>{below}</div>"


def _partition_fact(layout: Layout, cache: ContextCache) -> str:
    listed = ", ".join(f"{part.name} {part.granted_sms} SMs" for part in layout)
    alive = f"{len(cache)} of at most {cache.limit} green contexts alive, {cache.created_count} in all"
    return f"{listed} ({alive if layout.is_enforced else 'not enforced'})"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
