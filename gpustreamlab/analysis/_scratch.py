"""What the lanes of a session take of device memory as scratch, as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from gpustreamlab.analysis._report import Report, Reported, ReportTable
from gpustreamlab.analysis._scale import count_text
from gpustreamlab.errors import StreamNotFoundError, nearest_hint
from gpustreamlab.model import display_name, show_text

_NAME_WIDTH = 32
_HINT = 'Nothing was taken yet. Take some: with lab.stream("decode").scratch(1 << 20) as work: ...'
_HEAD = ["stream", "in use", "reserved", "most in use", "allocations", "reuses", "growths", "trims", "waste", "memory"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ScratchStatistics:
    """What one lane's scratch memory does."""

    lane: str
    """Name of the lane."""
    used_bytes: int
    """In use now: what was given out, rounded up to size classes."""
    reserved_bytes: int
    """Held by the lane: in use and free."""
    peak_bytes: int
    """The most that was in use at once."""
    allocation_count: int
    """How often scratch was taken."""
    reuse_count: int
    """How often it was memory that the lane had already."""
    growth_count: int
    """How often the device was asked for more."""
    trim_count: int
    """How often free memory was given back to the device."""
    waste_share: float
    """How much of all that was given out had not been asked for, from 0 to 1: sizes are rounded up."""
    is_stream_ordered: bool
    """Whether growing and trimming waits for nothing."""
    reason: str
    """Why it does wait; empty where it does not."""
    limit_bytes: int
    """How much all lanes of the session may reserve."""

    def __repr__(self) -> str:
        return f"<ScratchStatistics of {self.lane!r}: {self.used_bytes:,} B in use of {self.reserved_bytes:,} B>"

    def __str__(self) -> str:
        how = "in the order of the stream" if self.is_stream_ordered else f"waits for the stream's work: {self.reason}"
        sizes = f"{self.used_bytes:,} B in use of {self.reserved_bytes:,} B, at most {self.peak_bytes:,} B"
        counts = f"{count_text(self.allocation_count, 'allocation')}, {self.reuse_count:,} reused, "
        counts += f"{count_text(self.growth_count, 'growth')}, {count_text(self.trim_count, 'trim')}"
        return f"scratch of {self.lane}: {sizes}; {counts}, {self.waste_share:.1%} waste; {how}"

    _repr_pretty_ = show_text


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ScratchTable(Reported):
    """The scratch memory of every lane of a session."""

    items: tuple[ScratchStatistics, ...]
    """One for each lane."""
    limit_bytes: int
    """How much they may reserve together."""

    _columns: ClassVar[tuple[str, ...]] = ()

    def __iter__(self) -> Iterator[ScratchStatistics]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, lane: str) -> ScratchStatistics:
        for item in self.items:
            if item.lane == lane:
                return item
        hint = nearest_hint(str(lane), [item.lane for item in self.items]) if self.items else "No stream was opened yet."
        raise StreamNotFoundError(
            f"The scratch table has no stream {lane!r}. {hint} Use lab.stream({str(lane)!r}).scratch_statistics."
        )

    @property
    def reserved_bytes(self) -> int:
        """What all lanes hold."""
        return sum(item.reserved_bytes for item in self.items)

    def _line(self) -> str:
        if not self.items:
            return f"no stream yet; all may hold {self.limit_bytes:,} B"
        hold = "hold" if len(self.items) > 1 else "holds"
        return f"{count_text(len(self.items), 'stream')} {hold} {self.reserved_bytes:,} B of at most {self.limit_bytes:,} B"

    def _report(self) -> Report:
        reasons = dict.fromkeys(item.reason for item in self.items if item.reason)
        table = ReportTable(caption="scratch memory by stream", rows=[_HEAD, *map(_row, self.items)], has_row_heads=True)
        return Report(
            title="Scratch",
            line=self._line(),
            tables=(table,) if self.items else (),
            notes=(
                *(f"Growing and trimming wait for the stream's work: {reason}." for reason in reasons),
                *(() if any(item.allocation_count for item in self.items) else (_HINT,)),
            ),
        )


def _row(item: ScratchStatistics) -> list[str]:
    sizes = (f"{size:,} B" for size in (item.used_bytes, item.reserved_bytes, item.peak_bytes))
    counts = (f"{number:,}" for number in (item.allocation_count, item.reuse_count, item.growth_count, item.trim_count))
    name = display_name(item.lane, _NAME_WIDTH)
    return [name, *sizes, *counts, f"{item.waste_share:.1%}", "stream-ordered" if item.is_stream_ordered else "cudaMalloc"]
