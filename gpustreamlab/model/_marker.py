"""A moment with a name."""

from __future__ import annotations

from dataclasses import dataclass

from gpustreamlab.model._fields import Whole, check_fields
from gpustreamlab.typing import MarkerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A moment of the host that is marked across all lanes.

    Examples
    --------
    >>> Marker(time_ns=1_500, text="warm-up done", kind="mark").kind
    <MarkerKind.MARK: 'mark'>
    """

    time_ns: Whole
    """When, on the trace's clock, in ns since its epoch."""
    text: str
    """What is written at it."""
    kind: MarkerKind
    """What it stands for."""

    def __post_init__(self) -> None:
        check_fields(self)
