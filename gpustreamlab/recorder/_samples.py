"""Quantities of lanes that others keep, such as scratch memory: asked for before counters are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from gpustreamlab.typing import FloatArray, Int64Array


class LaneSample(NamedTuple):
    """A quantity of a lane at a moment."""

    host_ns: int
    """By the host's clock."""
    lane: int
    """Index of the lane."""
    name: str
    """Of the counter, with its unit as suffix."""
    value: float
    """How much."""


class Sampler(Protocol):
    """Keeps quantities of lanes."""

    def take_samples(self) -> Sequence[LaneSample]:
        """Return the samples since the last time. Called without any lock."""
        ...

    def tell_all(self) -> None:
        """Let the next samples begin with how everything is now: what was told before is forgotten."""
        ...


class SampleColumns(NamedTuple):
    """Samples as a log of counters takes them, shape (n_samples,) each."""

    time_ns: Int64Array
    """On the session's clock."""
    lane: Int64Array
    """Index of the lane."""
    name: Int64Array
    """Code of the counter."""
    value: FloatArray
    """How much."""


def sample_columns(
    samples: Sequence[LaneSample], *, to_clock_ns: Callable[[int], int], code: Callable[[str], int]
) -> SampleColumns:
    """Return samples as columns.

    Their first and last time are put on the clock, and those between along the line: clocks drift by millionths.
    """
    host_ns = np.array([sample.host_ns for sample in samples], np.int64)
    ends = np.array([host_ns.min(), host_ns.max()])
    offsets = np.array([to_clock_ns(int(end)) - int(end) for end in ends])
    time_ns = host_ns + np.rint(np.interp((host_ns - ends[0]).astype(float), ends - ends[0], offsets - offsets[0])).astype(
        np.int64
    )
    codes = {name: code(name) for name in dict.fromkeys(sample.name for sample in samples)}
    return SampleColumns(
        time_ns + offsets[0],
        np.array([sample.lane for sample in samples], np.int64),
        np.array([codes[sample.name] for sample in samples], np.int64),
        np.array([sample.value for sample in samples], np.float64),
    )
