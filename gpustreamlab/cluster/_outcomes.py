"""What engines returned, and how they stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpustreamlab.cluster._worker import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """How an engine stands."""

    name: str
    """What ``on=`` takes."""
    host: str
    """The machine."""
    pid: int
    """Its process there."""
    device: str
    """Name of its device, marked where it is simulated."""
    state: str
    """``"there"``, ``"silent"`` (it does not answer at present), or ``"lost"``, and why."""
    span_count: int
    """Spans that have arrived."""
    missed_count: int
    """Spans that made room before they were read, there or here, or never came into the buffer there."""
    bytes_per_span: float
    """What came over the wire for a span; NaN where none did."""
    retry_count: int
    """Answers that were given up and asked for again."""
    lost_unix_ns: int = 0
    """When it was found to be gone, in ns since 1970 (UTC); 0 while it is there."""

    def __str__(self) -> str:
        missed = f", {self.missed_count:,} missed" if self.missed_count else ""
        return f"{self.name} on {self.host} ({self.device}): {self.state}, {self.span_count:,} spans{missed}"


class Outcomes(Mapping[str, Any]):
    """What engines returned, by their names; shows what they printed.

    Parameters
    ----------
    outcomes
        Of each engine.
    """

    def __init__(self, outcomes: Mapping[str, Outcome]) -> None:
        self._outcomes = dict(outcomes)

    def __getitem__(self, engine: str) -> Any:
        return self._outcomes[str(engine)].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._outcomes)

    def __len__(self) -> int:
        return len(self._outcomes)

    @property
    def texts(self) -> dict[str, str]:
        """What each has printed."""
        return {name: outcome.text for name, outcome in self._outcomes.items()}

    def __repr__(self) -> str:
        lines = []
        for name, outcome in self._outcomes.items():
            value = [] if outcome.value is None else [outcome.value if isinstance(outcome.value, str) else repr(outcome.value)]
            lines += [f"[{name}] {line}" for text in (outcome.text, *value) for line in text.splitlines()]
        return "\n".join(lines)
