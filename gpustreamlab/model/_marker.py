"""A moment with a name."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from gpustreamlab.errors import TraceError, nearest_hint
from gpustreamlab.typing import MarkerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A moment of the host that is marked across all lanes.

    Examples
    --------
    >>> Marker(time_ns=1_500, text="warm-up done", kind="mark").kind
    <MarkerKind.MARK: 'mark'>
    """

    time_ns: int
    """When, on the trace's clock, in ns since its epoch."""
    text: str
    """What is written at it."""
    kind: MarkerKind
    """What it stands for."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "time_ns", _read_time_ns(self.time_ns))
        try:
            self.text.encode("utf-8")
        except (AttributeError, UnicodeEncodeError) as error:
            raise TraceError(f"Marker.text is {self.text!r}; it is a text that UTF-8 can write.") from error
        try:
            object.__setattr__(self, "kind", MarkerKind(self.kind))
        except ValueError as error:
            raise TraceError(f"Marker.kind is {self.kind!r}. {nearest_hint(str(self.kind), MarkerKind)}") from error


def _read_time_ns(value: object) -> int:
    try:
        time_ns = operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise TraceError(f"Marker.time_ns is {value!r}; it is a whole number of nanoseconds.") from error
    if isinstance(value, bool) or not -(1 << 63) <= time_ns < 1 << 63:
        raise TraceError(f"Marker.time_ns is {value!r}; it is a whole number of nanoseconds within 64 bits.")
    return time_ns
