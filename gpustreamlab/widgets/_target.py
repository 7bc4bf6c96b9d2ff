"""What the widget needs of a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from gpustreamlab.model import Capabilities, Device, Layout, Verification
from gpustreamlab.typing import Rounding


class PartitionTarget(Protocol):
    """A session, as far as its SMs are concerned."""

    @property
    def device(self) -> Device:
        """The device whose SMs are shared out."""
        ...

    @property
    def layout(self) -> Layout | None:
        """The layout in use; None for the whole card."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What the device and its driver can do."""
        ...

    @property
    def is_closed(self) -> bool:
        """True if the layout can no longer change."""
        ...

    def partition(self, plan: Layout | None, /, *, round: Rounding, renamed: Mapping[str, str]) -> Layout | None:  # noqa: A002
        """Make a layout the one in use, None for the whole card; `renamed` gives the new name of each renamed partition."""
        ...

    def plan_moves(self, layout: Layout | None, /, *, renamed: Mapping[str, str]) -> tuple[str, ...]:
        """Return the names of the streams that a layout would drain and move; raise what `partition` would refuse it with."""
        ...

    def verify(self) -> Verification:
        """Look on which SMs work runs."""
        ...

    def watch_layout(self, callback: Callable[[Layout | None], None], /) -> Callable[[], None]:
        """Call back after each change of the layout, and when it can no longer change; return what stops that."""
        ...


class PartitionedStream(Protocol):
    """A stream, as far as the widget shows it."""

    @property
    def partition(self) -> str | None:
        """The name of its partition; None for the whole card."""
        ...


@runtime_checkable
class HasStreams(Protocol):
    """A target that also tells which streams it has."""

    @property
    def streams(self) -> Mapping[str, PartitionedStream]:
        """Its open streams by name."""
        ...


def streams_by_partition(target: PartitionTarget) -> dict[str, tuple[str, ...]]:
    """Return the names of the streams in each partition, "" for the whole card; none where the target does not tell."""
    found: dict[str, tuple[str, ...]] = {}
    streams = dict(target.streams) if isinstance(target, HasStreams) else {}
    for name, stream in streams.items():
        where = stream.partition or ""
        found[where] = (*found.get(where, ()), name)
    return found
