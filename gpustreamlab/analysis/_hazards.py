"""Data that crossed lanes without an order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gpustreamlab.analysis._report import Report, Reported
from gpustreamlab.typing import HazardKind, HazardMode

if TYPE_CHECKING:
    import pandas as pd

NO_LANE = "no stream"
"""What stands for work with no stream selected: CUDA's NULL stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HazardSide:
    """One of the two accesses of a hazard."""

    lane: str
    """Name of the lane; ``"no stream"`` where none was selected."""
    range: str
    """Name of the innermost range of its thread; empty outside all ranges."""
    work: str
    """What accessed the memory, such as ``"matmul"``."""
    order: int
    """Its place among all work that was watched, from 1; 0 for the end of a lane's scratch, which is no work."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Hazard:
    """Two accesses of the same memory on two lanes, of which one writes, and nothing orders them."""

    kind: HazardKind
    """How they conflict."""
    is_certain: bool
    """Whether they certainly share memory; False where an index array chose the elements, or NumPy could not tell."""
    array: str
    """The array: its name in the caller's namespace, now or when `check_hazards` saw it last; else its dtype and
    shape. For scratch that was used after its end, how much it was."""
    shape: tuple[int, ...]
    """Shape of the array that the memory was allocated for."""
    dtype: str
    """Its dtype."""
    allocation: int
    """Its memory's number, never used again."""
    first: HazardSide
    """The access that was enqueued first, at its first finding."""
    second: HazardSide
    """The access that does not wait for it."""
    hazard_count: int
    """How many there were of this kind between the same two ranges."""
    maker: str = ""
    """Name of the range in which its memory was allocated; empty outside all ranges."""
    scratch_bytes: int | None = None
    """How much scratch was asked for, where it was used after it was given back or its lane closed; None for other hazards."""

    def __repr__(self) -> str:
        return (
            f"<Hazard: {self.kind.value}, {self.array}, {self.first.lane!r} and {self.second.lane!r}, {self.hazard_count:,}x; "
            f"{self.fix}>"
        )

    @property
    def fix(self) -> str:
        """The missing order, as code to type."""
        from gpustreamlab.analysis._hazards_text import hazard_fix

        return hazard_fix(self)

    @property
    def where(self) -> str:
        """Where that code belongs."""
        from gpustreamlab.analysis._hazards_text import hazard_where

        return hazard_where(self)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Hazards(Reported):
    """What was found among the accesses that were watched. False where there is no hazard."""

    hazards: tuple[Hazard, ...]
    """What was found, in its order: one for each kind and pair of ranges."""
    access_count: int
    """How many reads and writes of arrays were watched."""
    array_count: int
    """How many arrays were made meanwhile."""
    wait_count: int
    """How many waits were put in, with ``Session(hazards="wait")``."""
    unlisted_count: int
    """Hazards that found no place in the list."""
    let_go_count: int
    """Accesses that were forgotten to keep memory bounded."""
    mode: HazardMode
    """What the session does about hazards."""
    unwatched: tuple[str, ...]
    """What was not watched, one sentence each."""
    device: str
    """The device."""
    simulated: bool
    """Whether no hardware stands behind it."""

    _columns: ClassVar = ()

    def __len__(self) -> int:
        return len(self.hazards)

    @property
    def hazard_count(self) -> int:
        """How many there were, repeats too."""
        return sum(hazard.hazard_count for hazard in self.hazards) + self.unlisted_count

    def to_pandas(self) -> pd.DataFrame:
        """Return one row for each, as a `pandas.DataFrame`.

        The columns are ``kind``, ``is_certain``, ``array``, ``shape``, ``dtype``, ``allocation``, ``first_lane``,
        ``first_range``, ``first_work``, ``first_order``, the same for ``second``, ``hazard_count``, ``fix`` and ``where``.
        """
        import pandas as pd

        names = ["kind", "is_certain", "array", "shape", "dtype", "allocation"]
        names += [f"{side}_{what}" for side in ("first", "second") for what in ("lane", "range", "work", "order")]
        return pd.DataFrame(
            [
                (
                    *(row.kind.value, row.is_certain, row.array, row.shape, row.dtype, row.allocation),
                    *(row.first.lane, row.first.range, row.first.work, row.first.order),
                    *(row.second.lane, row.second.range, row.second.work, row.second.order),
                    *(row.hazard_count, row.fix, row.where),
                )
                for row in self.hazards
            ],
            columns=[*names, "hazard_count", "fix", "where"],
        )

    def _line(self) -> str:
        from gpustreamlab.analysis._hazards_text import hazard_line

        return hazard_line(self)

    def _report(self) -> Report:
        from gpustreamlab.analysis._hazards_text import hazard_report

        return hazard_report(self)
