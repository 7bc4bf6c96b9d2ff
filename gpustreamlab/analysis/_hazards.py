"""Data that crossed streams without an order."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar

from gpustreamlab._util.words import wrap_sentence
from gpustreamlab.analysis._report import Answer, ReportTable, more_row
from gpustreamlab.analysis._scale import count_text
from gpustreamlab.model import display_name
from gpustreamlab.typing import AccessCertainty, HazardKind, HazardMode

if TYPE_CHECKING:
    import pandas as pd


NO_STREAM = "no stream"  # What stands for work with no stream selected: CUDA's NULL stream


@dataclass(frozen=True, slots=True, kw_only=True)
class HazardSide:
    """One of the two accesses of a hazard."""

    stream: str
    """Name of the stream; ``"no stream"`` where none was selected."""
    range: str
    """Name of the innermost range of its thread; empty outside all ranges."""
    work: str
    """What accessed the memory, such as ``"matmul"``."""
    order: int
    """Its place among all work that was watched, from 1; 0 for the end of a stream's scratch, which is no work."""
    device: int | None = None
    """Number of the stream's card in its node; None where there is one card."""
    code: str = ""
    """How a stream of another library is written; empty for one of the session."""
    library: str = ""
    """That library."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Hazard:
    """Two accesses of the same memory on two streams, of which one writes, and nothing orders them."""

    kind: HazardKind
    """How they conflict."""
    is_certain: bool
    """Whether they certainly share memory; False where an index array chose the elements, or NumPy could not tell."""
    array: str
    """The array: its name in the caller's namespace, now or when `hazards` saw it last; else its dtype and
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
    """Name of the range in which its memory was allocated, or first used on the simulated device; empty outside all ranges."""
    scratch_bytes: int | None = None
    """How much scratch was asked for, where it was used after it had ended; None for other hazards."""
    certainty: AccessCertainty = AccessCertainty.KNOWN
    """How it is known what was read and what written: told by calls, or learned from the arguments of kernels."""

    def __repr__(self) -> str:
        sides = f"{self.first.stream!r} and {self.second.stream!r}"
        return f"<Hazard: {self.kind.value}, {self.array}, {sides}, {self.hazard_count:,}x; {self.fix}>"

    @property
    def fix(self) -> str:
        """The missing order, as code to type."""
        if self.first.code or self.second.code:
            return _foreign_fix(self)
        lab = "lab" if self.second.device is None else "node"
        first, second = (f"{lab}.stream({side.stream!r})" for side in (self.first, self.second))
        if self.scratch_bytes is not None:
            is_closed = self.first.work == STREAM_CLOSED
            return f"{first}.close()" if is_closed else f"work = {first}.scratch({self.scratch_bytes})"
        if self.first.stream == NO_STREAM:
            return f"{lab}.synchronize()"
        if _can_be_held(self):
            return f"{first}.hold({self.array})"
        if self.second.stream == NO_STREAM:
            return f"{first}.synchronize()"
        return f"{second}.wait({first})"

    @property
    def text(self) -> str:
        """What conflicts, in a line."""
        return f"{_kind(self)}: {_sides(self)}"

    @property
    def where(self) -> str:
        """Where that code belongs."""
        if self.scratch_bytes is not None:
            if self.first.work == STREAM_CLOSED:
                return f"after {_place(self.second)}, not before it"
            return "where the scratch is taken, without `with` or close(): then it stays as long as its arrays"
        if _can_be_held(self):
            return f"after {_place(self.first)}, before the array goes"
        if self.first.stream == NO_STREAM:
            return f"after {_place(self.first)}, or select a stream for that too"
        return f"before {_place(self.second)}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Hazards(Answer):
    """What was found among the accesses that were watched. False where there is no hazard.

    Its trace has no spans: the backend tells of accesses, and only what the numbers are of is known here.
    """

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

    _columns: ClassVar = ()
    _title: ClassVar = "Hazards:"
    _simulated: ClassVar = "The order is exact; no hardware stands behind it."

    def __len__(self) -> int:
        return len(self.hazards)

    @property
    def hazard_count(self) -> int:
        """How many there were, repeats too."""
        return sum(hazard.hazard_count for hazard in self.hazards) + self.unlisted_count

    def to_pandas(self) -> pd.DataFrame:
        """Return one row for each, as a `pandas.DataFrame`.

        The columns are ``kind``, ``is_certain``, ``array``, ``shape``, ``dtype``, ``allocation``, ``first_stream``,
        ``first_range``, ``first_work``, ``first_order``, the same for ``second``, ``hazard_count``, ``fix`` and ``where``.
        """
        import pandas as pd

        names = ["kind", "is_certain", "array", "shape", "dtype", "allocation"]
        names += [f"{side}_{what}" for side in ("first", "second") for what in ("stream", "range", "work", "order")]
        rows = [asdict(row) | {"kind": row.kind.value, "fix": row.fix, "where": row.where} for row in self.hazards]
        return pd.json_normalize(rows, sep="_").reindex(columns=[*names, "hazard_count", "fix", "where"])

    def _line(self) -> str:
        if self.mode is HazardMode.OFF:
            return 'nothing was watched (hazards="off")'
        seen = f"in {count_text(self.access_count, 'access', 'accesses')} of {count_text(self.array_count, 'array')}"
        if self.mode is HazardMode.WAIT:
            seen += f"; {count_text(self.wait_count, 'wait was', 'waits were')} put in"
        kinds = ", ".join(dict.fromkeys(hazard.kind.value for hazard in self.hazards))
        return f"{count_text(self.hazard_count, 'hazard')} ({kinds}) {seen}" if len(self) else f"No hazard {seen}"

    def _tables(self) -> list[ReportTable]:
        listed = self.hazards[:LISTED_HAZARDS]
        note = more_row(len(self.hazards) - len(listed), 7)
        rows = [["", "missing", "where", "array", "first", "then, unordered", "times"], *map(_row, listed), *note]
        lines = [*(line for hazard in listed for line in _lines(hazard)), *(row[0] for row in note)]
        caption = "What crossed streams without an order"
        return [ReportTable(caption=caption, rows=rows, has_row_heads=True, names=(), lines=lines, wraps=True)]

    def _notes(self) -> list[str]:
        notes = []
        if len(self):
            notes.append("Each row is one missing order; #n stands for the memory of its first array.")
        freed = [one for one in self.hazards if one.kind is HazardKind.USE_AFTER_FREE and one.scratch_bytes is None]
        if not all(hazard.array.isidentifier() for hazard in freed):
            notes.append(
                "use-after-free of an array without a name here: stream.hold(array) after its last use is better than the wait."
            )
        if any(hazard.certainty is not AccessCertainty.KNOWN for hazard in self.hazards):
            notes.append(
                "Of kernels it is learned from their arguments which memory they write; that they use its beginning is assumed."
            )
        if any(not hazard.is_certain for hazard in self.hazards):
            notes.append('"may be": which elements were meant is not known, so the two need not share any.')
        if self.unlisted_count:
            notes.append(f"{self.unlisted_count:,} more hazards found no place in the list.")
        if self.let_go_count:
            notes.append(
                f"{self.let_go_count:,} accesses were forgotten to keep memory bounded: a hazard with them went unfound."
            )
        return [*notes, *self.unwatched]


LISTED_HAZARDS = 20  # How many hazards the table lists
_NAME_WIDTH = 32
STREAM_CLOSED = "stream closed"  # Work of the first side where scratch was freed with its stream. Source: ``Scratch.ending``
_INDENT = "    "


def _can_be_held(hazard: Hazard) -> bool:
    """Tell whether the array that goes too early can be named: then it is held. Else a wait makes it right as well."""
    return hazard.kind is HazardKind.USE_AFTER_FREE and hazard.array.isidentifier()


def _foreign_fix(hazard: Hazard) -> str:
    """Return the missing order where a stream is not of the session, in the words of the library that it is of."""
    first, second = (side.code or f"lab.stream({side.stream!r})" for side in (hazard.first, hazard.second))
    if hazard.kind is HazardKind.USE_AFTER_FREE and hazard.second.library == "torch":
        return f"{hazard.array if hazard.array.isidentifier() else 'tensor'}.record_stream({first})"
    if not hazard.second.code:
        return f"{second}.wait({first})"
    if hazard.second.library == "cupy":
        return f"{second}.wait_event({first}.record())"
    return f"{second}.wait_stream({first})"


def _row(hazard: Hazard) -> list[str]:
    sides = _side(hazard.first), _side(hazard.second)
    return [_kind(hazard), hazard.fix, hazard.where, _array(hazard), *sides, f"{hazard.hazard_count:,}"]


def _lines(hazard: Hazard) -> list[str]:
    """Return a hazard as text: its kind and where the missing line belongs, the line to type there, and what it is about."""
    words = _sides(hazard)
    head = wrap_sentence(f"{_kind(hazard)}: put this line {hazard.where}")
    return [*head, f"{_INDENT}{hazard.fix}", *wrap_sentence(words, first_indent=_INDENT, indent=_INDENT)]


def _sides(hazard: Hazard) -> str:
    order = "" if hazard.scratch_bytes is not None else ", unordered,"
    times = f"{_array(hazard)}, {count_text(hazard.hazard_count, 'time')}"
    return f"{times}: first {_side(hazard.first)}; then{order} {_side(hazard.second)}"


def _kind(hazard: Hazard) -> str:
    return hazard.kind.value if hazard.is_certain else f"{hazard.kind.value}, may be"


def _array(hazard: Hazard) -> str:
    """Return what the array is called, or which one it was."""
    name = f"{display_name(hazard.array, _NAME_WIDTH)} #{hazard.allocation}"
    if hazard.array.isidentifier() or hazard.scratch_bytes is not None:
        return name
    place = repr(display_name(hazard.maker, _NAME_WIDTH)) if hazard.maker else "outside all ranges"
    return f"the array of {name} from {place}"


def _side(side: HazardSide) -> str:
    card = "" if side.device is None else f" (GPU {side.device})"
    return f"{display_name(side.stream, _NAME_WIDTH)}{card}: {_place(side)}"


def _place(side: HazardSide) -> str:
    if not side.order:
        return "its stream was closed" if side.work == STREAM_CLOSED else side.work
    if side.range:
        return f"{display_name(side.range, _NAME_WIDTH)!r} ({side.work})"
    return f"{side.work} ({'outside all ranges' if side.stream != NO_STREAM else 'no stream selected'})"
