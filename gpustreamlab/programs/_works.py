"""What the first runs of a program tell of its statements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpustreamlab.programs._graph import StreamCosts, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What the first runs of a program told."""

    works: tuple[Work, ...]
    """What each statement did, in order."""
    names: tuple[Mapping[int, str], ...]
    """For each statement, the variables through which pieces of memory can be reached behind it, by the piece's number."""
    reached: tuple[Mapping[int, str], ...]
    """The same in front of each statement, of the variables that it looks up."""
    containers: frozenset[str]
    """Variables that lead to arrays and are none: what they lead to may change while they stay."""
    born: Mapping[int, int]
    """In which statement each piece of memory was allocated; those that are not there were there before."""
    survivors: frozenset[int]
    """Pieces that variables still reach when the program has ended."""
    notes: tuple[str, ...]
    """What could not be known, one sentence each."""
    costs: StreamCosts
    """What more streams cost the host here."""
    is_measured: bool
    """Whether kernels were captured; else durations are those of ranges, and shares are not known."""
