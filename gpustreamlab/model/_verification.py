"""What was seen when kernels told on which SMs they ran."""

from __future__ import annotations

import html
from dataclasses import dataclass

from gpustreamlab.model._shown import show_text
from gpustreamlab.sentences import wrap_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedPartition:
    """The SMs of one partition, as a kernel in its own context saw them."""

    name: str
    """The partition."""
    requested_sms: int
    """How many SMs were asked for."""
    granted_sms: int
    """How many the device granted."""
    sm_ids: tuple[int, ...]
    """The SM ids that were seen, ascending."""

    @property
    def is_complete(self) -> bool:
        """True if as many SMs were seen as granted."""
        return len(self.sm_ids) == self.granted_sms


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedLane:
    """Where the work of one stream ran."""

    name: str
    """The stream."""
    partition: str | None
    """Its partition; None for the whole card."""
    inside: tuple[int, ...]
    """SM ids that were seen and belong to the partition (for the whole card: all that were seen), ascending."""
    outside: tuple[int, ...]
    """SM ids that were seen and do not, ascending; empty is what was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A proof, or a refutation, that work stays inside its partition.

    Each stream and each partition's own context ran a kernel whose blocks noted the SM they were on (``%smid``).
    """

    device: str
    """The device, marked where it is simulated."""
    sm_count: int
    """How many SMs it has."""
    partitions: tuple[VerifiedPartition, ...]
    """The partitions of the layout, in its order."""
    lanes: tuple[VerifiedLane, ...]
    """The streams of the session."""
    duration_ns: int
    """How long the host waited for it, in ns of the backend's host clock."""
    is_enforced: bool = True
    """False where the device cannot partition its SMs, whatever the layout says."""

    @property
    def shared(self) -> tuple[tuple[str, str, int], ...]:
        """Pairs of partitions that share SMs, and how many."""
        pairs = [
            (first.name, second.name, len(set(first.sm_ids) & set(second.sm_ids)))
            for place, first in enumerate(self.partitions)
            for second in self.partitions[place + 1 :]
        ]
        return tuple(pair for pair in pairs if pair[2])

    @property
    def is_disjoint(self) -> bool:
        """True if no two partitions share an SM."""
        return not self.shared

    @property
    def is_confined(self) -> bool:
        """True if no stream was seen outside its partition."""
        return not any(lane.outside for lane in self.lanes)

    @property
    def holds(self) -> bool:
        """True if the partitions are enforced, disjoint, complete, and no work left its own."""
        return self.is_enforced and self.is_disjoint and self.is_confined and all(part.is_complete for part in self.partitions)

    _repr_pretty_ = show_text

    def __str__(self) -> str:
        return wrap_lines([self._headline(), *self._facts()])

    def _repr_html_(self) -> str:
        left, right = "style='text-align:left'", "style='text-align:right'"
        head = "".join(
            f"<th {left}>{text}</th>" for text in ("", "requested SMs", "granted SMs", "seen inside", "seen outside")
        )
        granted = {part.name: part for part in self.partitions}
        rows = [
            f"<tr><td {left}>partition {html.escape(part.name)}</td><td {right}>{part.requested_sms}</td>"
            f"<td {right}>{part.granted_sms}</td><td {right}>{len(part.sm_ids)}</td><td {right}></td></tr>"
            for part in self.partitions
        ]
        for lane in self.lanes:
            part = granted.get(lane.partition or "")
            where = html.escape(lane.partition) if lane.partition is not None else "the whole card"
            rows.append(
                f"<tr><td {left}>stream {html.escape(lane.name)} in {where}</td><td {right}></td>"
                f"<td {right}>{part.granted_sms if part else self.sm_count}</td><td {right}>{len(lane.inside)}</td>"
                f"<td {right}>{len(lane.outside)}</td></tr>"
            )
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self._notes())
        headline = html.escape(self._headline())
        return f"<div><p><strong>{headline}</strong></p><table><tr>{head}</tr>{''.join(rows)}</table>{notes}</div>"

    def _headline(self) -> str:
        if not self.is_enforced:
            verdict = "not enforced, SMs cannot be partitioned here: every stream may use the whole card"
        elif not self.partitions:
            verdict = "no partitions: every stream may use the whole card"
        else:
            verdict = "verified" if self.holds else "NOT as asked"
        return f"SMs of {self.device}: {verdict} ({self.duration_ns / 1e6:.1f} ms)"

    def _facts(self) -> list[str]:
        parts = [
            f"  partition {part.name}: asked for {part.requested_sms}, granted {part.granted_sms}, seen {len(part.sm_ids)} SMs"
            for part in self.partitions
        ]
        lanes = [
            f"  stream {lane.name} ({lane.partition or 'whole card'}): "
            f"{len(lane.inside)} SMs inside, {len(lane.outside)} outside"
            for lane in self.lanes
        ]
        return [*parts, *lanes, *(f"  {note}" for note in self._notes())]

    def _notes(self) -> list[str]:
        notes = [f"Partitions {first} and {second} share {count} SMs." for first, second, count in self.shared]
        notes += [
            f"Partition {part.name} was granted {part.granted_sms} SMs and {len(part.sm_ids)} were seen: others may have held "
            "them. Verify again on an idle card."
            for part in self.partitions
            if not part.is_complete
        ]
        whole = [lane.name for lane in self.lanes if lane.partition is None]
        if self.partitions and whole:
            notes.append(f"Streams on the whole card share SMs with every partition: {', '.join(whole)}.")
        return notes
