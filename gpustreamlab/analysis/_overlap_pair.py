"""How much of the work of two lanes ran at the same time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpustreamlab.analysis._units import format_ns, format_share
from gpustreamlab.model import display_name


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OverlapPair:
    """Two lanes of an `Overlap`, as ``overlap["copy", "compute"]`` gives them.

    Examples
    --------
    >>> pair = OverlapPair(streams=("copy", "gemm"), busy_ns=(100, 200), common_ns=50, device="demo", is_upper_bound=False)
    >>> print(pair)
    copy and gemm on demo: 50 ns in common, 50% of copy, 25% of gemm
    >>> pair.shares, pair.common_share
    ((0.5, 0.25), 0.5)
    """

    streams: tuple[str, str]
    """Their names."""
    busy_ns: tuple[int, int]
    """Busy time of each, in ns."""
    common_ns: int
    """Time in which both were busy, in ns."""
    device: str
    """The device, marked where it is simulated."""
    is_upper_bound: bool
    """True where ranges count, which also contain the queueing inside them."""

    @property
    def shares(self) -> tuple[float, float]:
        """`common_ns` as a share of the busy time of each, from 0 to 1; NaN for one that was never busy."""
        first, second = (self.common_ns / busy_ns if busy_ns else math.nan for busy_ns in self.busy_ns)
        return first, second

    @property
    def common_share(self) -> float:
        """`common_ns` as a share of the shorter busy time, from 0 to 1; NaN where one of both was never busy."""
        return self.common_ns / min(self.busy_ns) if min(self.busy_ns) else math.nan

    def __str__(self) -> str:
        names = [display_name(name, 32) for name in self.streams]
        most = "at most " if self.is_upper_bound else ""
        shares = [f"{format_share(share)} of {name}" for share, name in zip(self.shares, names, strict=True)]
        where = f"{' and '.join(names)} on {display_name(self.device)}"
        return f"{where}: {most}{format_ns(self.common_ns)} in common, {', '.join(shares)}"

    def __repr__(self) -> str:
        return f"<OverlapPair: {self}>"
