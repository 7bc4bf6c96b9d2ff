"""Counters of a card: how busy its SMs, its memory and its bus were, over intervals, as a backend reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol


class CounterReading(NamedTuple):
    """What was counted over an interval of the host's clock, on average."""

    begin_host_ns: int
    end_host_ns: int
    values: Mapping[str, float]  # By names of `gpustreamlab.model.CARD_COUNTERS`


class CounterSource(Protocol):
    """Counts on one card. One thread at a time may use it."""

    @property
    def description(self) -> str:
        """Who counts, for a lane's name: at most 40 signs."""

    @property
    def period_s(self) -> float:
        """How often it should be read; 0 for when it is asked for."""

    def read(self) -> list[CounterReading]:
        """Return what was counted since the last time, in order; nothing where the hardware has not counted on yet."""

    def close(self) -> None:
        """Count no more. Idempotent."""
