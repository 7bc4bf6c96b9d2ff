"""Partitions and layouts, and the proof that work stayed inside."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gpustreamlab._util.words import wrap_lines
from gpustreamlab.errors import OptionError, PartitionNotFoundError, TraceError, nearest_hint
from gpustreamlab.model._fields import Checked, Count, Positive, Whole, check_fields, display_name, html_table, show_text


@dataclass(frozen=True, slots=True, kw_only=True)
class SMResource(Checked):
    """Granularity in which the SMs of a device are shared out. Source: CUDA driver API, ``CUdevSmResource``."""

    min_sms: Positive
    """Fewest SMs that a partition can have."""
    alignment_sms: Positive
    """SMs that are scheduled together: counts of a structured split are multiples of this."""
    group_sms: Positive
    """SMs of each group, after the device was split into as many of the smallest groups as it has."""
    group_count: Positive
    """Number of such groups."""
    remainder_sms: Count = 0
    """SMs that are in none of them; they stay together, and one partition can have them."""
    is_structured: bool = False
    """True where the driver also splits into unequal groups (CUDA 13.1 and later)."""
    remainder_joins: bool = True
    """False where the remainder cannot be in one partition with groups; a layout that needs that is split anew."""

    @property
    def usable_sms(self) -> int:
        """SMs of all groups and the remainder."""
        return self.group_sms * self.group_count + self.remainder_sms

    def sms_of(self, groups: tuple[int, ...]) -> int:
        """Return how many SMs a set of groups has; number `group_count` stands for the remainder."""
        return sum(self.remainder_sms if group == self.group_count else self.group_sms for group in groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition(Checked):
    """A named share of the SMs of one device."""

    name: str
    """Name that the user gave it."""
    requested_sms: Count
    """Number of SMs that were asked for."""
    granted_sms: Count
    """Number of SMs that the device granted."""
    groups: tuple[Whole, ...] = ()
    """Numbers of the groups that it was planned in, see `SMResource`; empty where it asked for a structured split."""
    split: tuple[Count, ...] = ()
    """SMs of every partition of the structured split that it comes from; empty where it is made of groups."""
    place: Count = 0
    """Which of them it is."""
    coscheduled_sms: Count = 0
    """SMs that a structured split guarantees to schedule together; 0 where none was asked for."""
    preferred_coscheduled_sms: Count = 0
    """The same, as a wish."""
    backfill: bool = False
    """Whether a structured split may relax that to reach the count."""
    takes_rest: bool = False
    """True if it asked for what the others leave."""
    sm_ids: tuple[Count, ...] | None = None
    """The SM ids that were seen to run its work; None until measured."""

    @property
    def is_structured(self) -> bool:
        """True if it comes from a structured split (CUDA 13.1 and later)."""
        return bool(self.split)

    @property
    def seen_sms(self) -> frozenset[int]:
        """The SM ids that were seen to run its work; empty until measured."""
        return frozenset(self.sm_ids or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkqueueOptions:
    """Sharing of hardware work queues by the partitions of a layout (CUDA 13.1 and later).

    Source: CUDA driver API, ``CUdevWorkqueueConfigResource``.
    """

    sharing_scope: Literal["green_ctx_balanced", "device_ctx"] = "green_ctx_balanced"
    """``"green_ctx_balanced"``: each partition has its own where there are enough; ``"device_ctx"``: all share."""
    concurrency_limit: Positive | None = None
    """Number of streams of a partition that are expected to run at the same time; None for the driver's default."""

    def __post_init__(self) -> None:
        check_fields(self, OptionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Layout of the SMs of one device: its partitions, and the SMs that none has."""

    partitions: tuple[Partition, ...]
    """The partitions, in the order in which they were asked for."""
    remainder_sms: Count = 0
    """SMs that no partition has."""
    workqueue: WorkqueueOptions | None = None
    """Sharing of work queues; None for the driver's default."""
    is_enforced: bool = True
    """False where the device cannot partition its SMs: every partition then is the whole card, with plain streams."""

    def __post_init__(self) -> None:
        check_fields(self)
        names = [partition.name for partition in self.partitions]
        if len(set(names)) != len(names):
            raise TraceError(f"A layout names each partition once; got {names}.")

    def __len__(self) -> int:
        return len(self.partitions)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self.partitions)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> Partition:
        for partition in self.partitions:
            if partition.name == name:
                return partition
        raise PartitionNotFoundError(f"The layout has no partition {name!r}. {nearest_hint(str(name), self.names)}")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the partitions."""
        return tuple(partition.name for partition in self.partitions)

    @property
    def has_verified_sms(self) -> bool:
        """True if the SM ids of every partition were measured."""
        return all(partition.sm_ids is not None for partition in self.partitions)

    _repr_pretty_ = show_text

    def __str__(self) -> str:
        if not self.is_enforced:
            names = ", ".join(display_name(name) for name in self.names)
            return f"Layout not enforced (SMs cannot be partitioned here): {names} share all SMs"
        parts = [
            f"{display_name(part.name)} {part.granted_sms} SMs (asked for {part.requested_sms})" for part in self.partitions
        ]
        left = f"; {self.remainder_sms} SMs in no partition" if self.remainder_sms else ""
        return wrap_lines([f"Layout: {', '.join(parts)}{left}", *self._why_not_as_asked()])

    def _why_not_as_asked(self) -> list[str]:
        if not self.is_enforced or all(part.granted_sms == part.requested_sms for part in self.partitions):
            return []
        return ["The device grants SMs in groups, and what is left over to one partition; round='exact' refuses instead."]

    def _repr_html_(self) -> str:
        rows = [
            (
                *(display_name(part.name), part.requested_sms, part.granted_sms),
                "not yet" if part.sm_ids is None else f"{len(part.sm_ids)} SMs seen",
            )
            for part in self.partitions
        ]
        table = html_table(("partition", "requested SMs", "granted SMs", "verified"), rows, "lrrl")
        note = (
            f"<p>{self.remainder_sms} SMs are in no partition.</p>"
            if self.is_enforced
            else "<p><strong>Not enforced:</strong> SMs cannot be partitioned here; all streams share the whole card.</p>"
        )
        return f"<div>{table}{note}{''.join(f'<p>{why}</p>' for why in self._why_not_as_asked())}</div>"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChange(Checked):
    """A layout and when it began."""

    time_ns: Whole
    """When, on the trace's clock, in ns since its epoch."""
    layout: Layout | None
    """The layout from then on; None for the whole card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedStream:
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
    """Number of its SMs."""
    partitions: tuple[Partition, ...]
    """The partitions of the layout, in its order, with the SM ids that a kernel in the context of each saw."""
    streams: tuple[VerifiedStream, ...]
    """The streams of the session."""
    duration_ns: int
    """Time that the host waited for it, in ns of the backend's host clock."""
    is_enforced: bool = True
    """False where the device cannot partition its SMs, whatever the layout says."""

    @property
    def shared(self) -> tuple[tuple[str, str, int], ...]:
        """Pairs of partitions that share SMs, and how many."""
        pairs = [
            (first.name, second.name, len(first.seen_sms & second.seen_sms))
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
        return not any(stream.outside for stream in self.streams)

    @property
    def holds(self) -> bool:
        """True if the partitions are enforced, disjoint, complete, and no work left its own."""
        return self.is_enforced and self.is_disjoint and self.is_confined and not self._incomplete

    @property
    def _incomplete(self) -> list[Partition]:
        """Partitions of which fewer SMs were seen than granted."""
        return [part for part in self.partitions if len(part.seen_sms) != part.granted_sms]

    _repr_pretty_ = show_text

    def __str__(self) -> str:
        return wrap_lines([self._headline(), *self._facts()])

    def _repr_html_(self) -> str:
        granted = {part.name: part.granted_sms for part in self.partitions}
        rows: list[tuple[object, ...]] = [
            (f"partition {part.name}", part.requested_sms, part.granted_sms, len(part.seen_sms), "") for part in self.partitions
        ]
        for stream in self.streams:
            where = "the whole card" if stream.partition is None else stream.partition
            sms = granted.get(stream.partition or "", self.sm_count)
            rows.append((f"stream {stream.name} in {where}", "", sms, len(stream.inside), len(stream.outside)))
        head = ("", "requested SMs", "granted SMs", "seen inside", "seen outside")
        table = html_table(head, rows, "lrrrr", head_sides="lllll")
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self._notes())
        headline = html.escape(self._headline())
        return f"<div><p><strong>{headline}</strong></p>{table}{notes}</div>"

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
            f"  partition {part.name}: asked for {part.requested_sms}, granted {part.granted_sms}, "
            f"seen {len(part.seen_sms)} SMs"
            for part in self.partitions
        ]
        streams = [
            f"  stream {stream.name} ({stream.partition or 'whole card'}): "
            f"{len(stream.inside)} SMs inside, {len(stream.outside)} outside"
            for stream in self.streams
        ]
        return [*parts, *streams, *(f"  {note}" for note in self._notes())]

    def _notes(self) -> list[str]:
        notes = [f"Partitions {first} and {second} share {count} SMs." for first, second, count in self.shared]
        notes += [
            f"Partition {part.name} was granted {part.granted_sms} SMs and {len(part.seen_sms)} were seen: others may have "
            "held them. Verify again on an idle card."
            for part in self._incomplete
        ]
        whole = [stream.name for stream in self.streams if stream.partition is None]
        if self.partitions and whole:
            notes.append(f"Streams on the whole card share SMs with every partition: {', '.join(whole)}.")
        return notes
