"""Counters of a card: how busy its SMs, its memory and its bus were, over intervals, as a backend reads them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from gpustreamlab.typing import FloatArray, Int64Array

COUNTER_GROUPS = MappingProxyType(
    {
        "sm": ("sm_active_percent", "sm_occupancy_percent", "sm_clock_mhz"),
        "tensor": ("tensor_active_percent",),
        "dram": ("dram_active_percent", "dram_bytes_per_s"),
        "pcie": ("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"),
        "nvlink": ("nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s"),
    }
)
"""What can be sampled finely, by the word that asks for it: names of `gpustreamlab.model.CARD_COUNTERS`."""


class CounterReading(NamedTuple):
    """What was counted over an interval of the host's clock, on average; or over several that follow each other."""

    begin_host_ns: int | Int64Array
    end_host_ns: int  # Of the last one
    values: Mapping[str, float | FloatArray]  # By names of `gpustreamlab.model.CARD_COUNTERS`; NaN for what was missed


class CounterSource(Protocol):
    """Counts on one card. One thread at a time may use it."""

    @property
    def description(self) -> str:
        """Who counts, for a lane's name: at most 40 signs."""

    @property
    def period_s(self) -> float:
        """How often it should be read, about; 0 for when it is asked for."""

    @property
    def pause_s(self) -> float:
        """After how long it should be read next."""

    def read(self, *, is_last: bool = False) -> list[CounterReading]:
        """Return what was counted since the last time, in order; nothing where the hardware has not counted on yet.

        Where it is the last time, nothing is counted any more.
        """

    def close(self) -> None:
        """Count no more. Idempotent."""


class FineCounterSource(CounterSource, Protocol):
    """Counts each few microseconds."""

    @property
    def left_out(self) -> Mapping[str, str]:
        """Counters that were asked for and are not counted, and why."""
