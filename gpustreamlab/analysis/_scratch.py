"""What the streams of a session take of device memory as scratch, as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from gpustreamlab.analysis._report import Report, Reported, ReportTable
from gpustreamlab.analysis._scale import count_text
from gpustreamlab.errors import StreamNotFoundError, nearest_hint
from gpustreamlab.model import display_name

_NAME_WIDTH = 32
_HINT = 'Nothing was taken yet. Take some: with lab.stream("decode").scratch(1 << 20) as work: ...'


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchStatistics:
    """What one stream has of scratch memory."""

    stream: str  # Its name
    used_bytes: int  # In use now, as it was asked for
    peak_bytes: int  # The most that was in use at once
    allocation_count: int  # How often scratch was taken


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ScratchTable(Reported):
    """The scratch memory of every stream of a session."""

    items: tuple[ScratchStatistics, ...]
    """One for each stream."""

    _columns: ClassVar[tuple[str, ...]] = ()

    def __iter__(self) -> Iterator[ScratchStatistics]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, stream: str) -> ScratchStatistics:
        for item in self.items:
            if item.stream == stream:
                return item
        hint = nearest_hint(str(stream), [item.stream for item in self.items]) if self.items else "No stream was opened yet."
        raise StreamNotFoundError(f"The scratch table has no stream {stream!r}. {hint}")

    @property
    def used_bytes(self) -> int:
        """What all streams have in use."""
        return sum(item.used_bytes for item in self.items)

    def _line(self) -> str:
        return f"{count_text(len(self.items), 'stream')}, {self.used_bytes:,} B in use"

    def _report(self) -> Report:
        rows = [
            [
                display_name(item.stream, _NAME_WIDTH),
                f"{item.used_bytes:,} B",
                f"{item.peak_bytes:,} B",
                f"{item.allocation_count:,}",
            ]
            for item in self.items
        ]
        head = ["stream", "in use", "most in use", "allocations"]
        table = ReportTable(caption="scratch memory by stream", rows=[head, *rows], has_row_heads=True)
        return Report(
            title="Scratch",
            line=self._line(),
            tables=(table,) if rows else (),
            notes=() if any(item.allocation_count for item in self.items) else (_HINT,),
        )
