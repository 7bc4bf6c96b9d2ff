"""Read CUPTI's raw activity buffers into columns.

A buffer holds records of many kinds, each a struct of a known size that begins with its kind. Finding where the records
begin is the only sequential part: stretches in which sizes repeat (a run of kernels; a call and its kernel in turn) are stepped
over with numpy, the rest one by one in a loop that only adds.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.backends.cuda.cupti._layouts import Layouts
from gpustreamlab.typing import BoolArray, Int64Array

__all__ = ["PLACE", "Columns", "Records", "concat_records", "parse_buffer"]


Columns: TypeAlias = Mapping[str, NDArray[Any]]
"""The fields of the records of one kind, each of shape (n_records,), or (n_records, 32) for a TPC mask."""

PLACE = "place"
"""The column that tells where in its buffer each record lies, in units of 8 bytes."""

_UNIT = 8
"""Records begin at multiples of 8 bytes. Source: ACTIVITY_RECORD_ALIGNMENT in cupti_activity.h."""
_KINDS = 256
"""Kinds are below this; a greater one is not a record. Source: CUpti_ActivityKind, 59 at most in CUPTI 13.5."""
_FIRST_STRETCH, _LAST_STRETCH = 64, 8192
"""How many units are walked one by one before numpy looks whether sizes repeat: few after a long run, then more."""
_LONGEST_PERIOD = 6
"""After how many records sizes may repeat at most."""
_LONG_RUN = 128
"""How many records numpy must have found at once for the next stretch to be short."""
_FIRST_WINDOW = 256
"""How many periods numpy looks at first; each further look takes four times as many."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Records:
    """What one or several buffers held."""

    columns: Mapping[int, Columns]
    """Per record kind that occurred and whose fields are read: field name -> column, in the buffer's order. Times and sizes are
    int64, addresses uint64, everything else as the struct has it. A field that this version of CUPTI lacks is zero. `PLACE`
    is among them."""
    counts: Mapping[int, int]
    """How many records of each kind there were, also of kinds that are stepped over."""
    unknown_kinds: Mapping[int, int]
    """Kinds whose size is not known, and how many buffers ended at one."""
    skipped_bytes: int
    """Bytes after an unknown kind or of a record that was cut off; never guessed at."""

    @property
    def record_count(self) -> int:
        """How many records were read or stepped over."""
        return sum(self.counts.values())


def parse_buffer(data: NDArray[np.uint8], layouts: Layouts) -> Records:
    """Read the records of one buffer.

    Parameters
    ----------
    data : ndarray of uint8, shape (n_bytes,)
        The valid part of an activity buffer. It is not kept: columns are copies.
    layouts
        The structs of the CUPTI version that wrote it.

    Returns
    -------
    Records
        Reading ends at the first kind whose size is not known and at a record that reaches over the end; the rest is counted in
        ``skipped_bytes``. Any content is safe: nothing outside ``data`` is read, and memory stays below a few times its size.

    Examples
    --------
    >>> from gpustreamlab.backends.cuda.cupti._layouts import find_layouts
    >>> data = np.zeros(40, np.uint8)
    >>> data[0], data[8] = 5, 100
    >>> parse_buffer(data, find_layouts(130001)).columns[5]["start"]
    array([100])
    """
    data = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
    steps = _make_steps(layouts)
    places, kinds, end_unit = _find_records(data, steps)
    end = end_unit * _UNIT
    unknown: dict[int, int] = {}
    if end + _UNIT <= data.size:
        kind = int.from_bytes(data[end : end + 4].tobytes(), "little")
        if kind >= _KINDS or not steps[kind]:
            unknown[kind] = 1
    counts, columns = {}, {}
    for kind, where in _group_by_kind(places, kinds).items():
        counts[kind] = where.size
        if kind in layouts.fields:
            columns[kind] = {**_read_columns(data, where, kind, layouts), PLACE: where}
    return Records(columns=columns, counts=counts, unknown_kinds=unknown, skipped_bytes=data.size - end)


def concat_records(parts: Sequence[Records]) -> Records:
    """Put the records of several buffers, written by one CUPTI, behind each other."""
    kinds = sorted({kind for part in parts for kind in part.columns})
    columns = {}
    for kind in kinds:
        tables = [part.columns[kind] for part in parts if kind in part.columns]
        columns[kind] = (
            tables[0] if len(tables) == 1 else {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
        )
    return Records(
        columns=columns,
        counts=_add_up([part.counts for part in parts]),
        unknown_kinds=_add_up([part.unknown_kinds for part in parts]),
        skipped_bytes=sum(part.skipped_bytes for part in parts),
    )


def _add_up(tables: Sequence[Mapping[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for table in tables:
        for kind, count in table.items():
            total[kind] = total.get(kind, 0) + count
    return total


def _make_steps(layouts: Layouts) -> bytes:
    """Return how many units each kind takes, 0 where that is not known."""
    steps = bytearray(_KINDS)
    for kind, size in layouts.sizes.items():
        steps[kind] = size // _UNIT
    return bytes(steps)


def _find_records(data: NDArray[np.uint8], steps: bytes) -> tuple[Int64Array, NDArray[np.uint32], int]:
    """Return where each record begins, each one's kind, and where the last one ends; places in units."""
    low = data[: data.size // _UNIT * _UNIT : _UNIT]
    places = np.frombuffer(_walk(low, steps), np.uint32).astype(np.int64)
    kinds = np.ndarray((low.size,), "<u4", data, 0, (_UNIT,))[places] if low.size else np.empty(0, np.uint32)
    # The walk looked at the lowest byte of each kind only.
    is_false = kinds >= _KINDS
    if is_false.any():
        count = int(np.argmax(is_false))
        return places[:count], kinds[:count], int(places[count])
    end = int(places[-1]) + steps[int(kinds[-1])] if places.size else 0
    if end > low.size:
        return places[:-1], kinds[:-1], int(places[-1])
    return places, kinds, end


def _walk(low: NDArray[np.uint8], steps: bytes) -> array[int]:
    """Go from record to record by the low byte of each unit, until an unknown kind or the end."""
    places = array("I")
    position, stretch = 0, _FIRST_STRETCH
    while position < low.size:
        first = len(places)
        position = _walk_stretch(low, steps, position, stretch, places)
        if position < low.size and not steps[low[position]]:
            break
        sizes = _find_period(places[first:], position)
        if sizes:
            run = _find_run(low, steps, position, sizes)
            places.frombytes(run.tobytes())
            position += run.size // len(sizes) * sum(sizes)
            if run.size >= _LONG_RUN:
                stretch = _FIRST_STRETCH
                continue
        stretch = min(stretch * 2, _LAST_STRETCH)
    return places


def _walk_stretch(low: NDArray[np.uint8], steps: bytes, position: int, stretch: int, places: array[int]) -> int:
    """Add the records that begin in a stretch of units; return where the next one begins."""
    kinds = low[position : position + stretch].tobytes()
    begin, place, end = position, 0, len(kinds)
    append = places.append
    while place < end:
        step = steps[kinds[place]]
        if not step:
            break
        append(begin + place)
        place += step
    return begin + place


def _find_period(places: array[int], end: int) -> list[int]:
    """Return the sizes that the last records repeat, in their order; empty where nothing repeats."""
    last = [*places[-2 * _LONGEST_PERIOD :], end]
    sizes = [following - place for place, following in pairwise(last)]
    for period in range(1, len(sizes) // 2 + 1):
        if sizes[-period:] == sizes[-2 * period : -period]:
            return sizes[-period:]
    return []


def _find_run(low: NDArray[np.uint8], steps: bytes, position: int, sizes: list[int]) -> NDArray[np.uint32]:
    """Return where the records begin that have these sizes in turn, as far as whole periods begin inside the buffer."""
    size_of = np.frombuffer(steps, np.uint8)
    period = sum(sizes)
    offsets = np.cumsum([0, *sizes[:-1]])
    count = min(
        _count_run(low[position + offset :: period], size_of == size) for offset, size in zip(offsets, sizes, strict=True)
    )
    begins = np.arange(count, dtype=np.int64) * period + position
    run: NDArray[np.uint32] = (begins[:, np.newaxis] + offsets).astype(np.uint32).reshape(-1)
    return run


def _count_run(kinds: NDArray[np.uint8], is_same: BoolArray) -> int:
    """Count the kinds at the begin that have the size."""
    begin, window = 0, _FIRST_WINDOW
    while begin < kinds.size:
        same = is_same[kinds[begin : begin + window]]
        if not same.all():
            return begin + int(np.argmin(same))
        begin, window = begin + window, window * 4
    return int(kinds.size)


def _group_by_kind(places: Int64Array, kinds: NDArray[np.uint32]) -> dict[int, Int64Array]:
    found = np.flatnonzero(np.bincount(kinds)).tolist()
    return {found[0]: places} if len(found) == 1 else {kind: places[np.flatnonzero(kinds == kind)] for kind in found}


def _read_columns(data: NDArray[np.uint8], places: Int64Array, kind: int, layouts: Layouts) -> dict[str, NDArray[Any]]:
    """Copy the fields of the records of one kind."""
    table, size = layouts.fields[kind], layouts.sizes[kind]
    names = list(table)
    record = np.dtype(
        {
            "names": names,
            "formats": [table[name][1] for name in names],
            "offsets": [table[name][0] for name in names],
            "itemsize": size,
        }
    )
    stride = int(places[1] - places[0]) if places.size > 1 else size // _UNIT
    if (places[1:] - places[:-1] == stride).all():
        view = np.ndarray((places.size,), record, data, int(places[0]) * _UNIT, (stride * _UNIT,))
        columns = {name: view[name].copy() for name in names}
    else:
        view = np.ndarray(((data.size - size) // _UNIT + 1,), record, data, 0, (_UNIT,))
        columns = {name: view[name][places] for name in names}
    return columns | {name: np.zeros(places.size, format_) for name, format_ in layouts.missing[kind].items()}


FIELD = "correlationId"

_TURN = 1 << 32
_HALF = 1 << 31


class CallNumbers:
    """Continues CUPTI's numbers of calls beyond 32 bits, for the records of all kinds alike.

    A number is taken as the one that is nearest to the newest so far, or, where numbers may have begun anew, as one after it.
    Nothing is added to the first ones, and 0, for no call, stays 0.
    """

    def __init__(self) -> None:
        self._newest = 0
        self._may_be_new = True

    def begin(self) -> None:
        """Take the next numbers for newer ones than all before."""
        self._may_be_new = True

    def continue_in(self, records: Records) -> Records:
        """Return the records with numbers of 64 bits."""
        kinds = [kind for kind, columns in records.columns.items() if FIELD in columns]
        parts = [records.columns[kind][FIELD].astype(np.int64) for kind in kinds]
        if not parts:
            return records
        sizes = np.cumsum([len(part) for part in parts])[:-1]
        numbers = np.split(self._continued(np.concatenate(parts)), sizes)
        columns = dict(records.columns)
        columns |= {kind: {**columns[kind], FIELD: part} for kind, part in zip(kinds, numbers, strict=True)}
        return replace(records, columns=columns)

    def _continued(self, raw: Int64Array) -> Int64Array:
        known = raw[raw != 0]
        if not len(known):
            return raw
        near = self._newest
        if self._may_be_new:
            near += (int(known.min()) - near) % _TURN
            self._may_be_new = False
        numbers = near + (raw - near + _HALF) % _TURN - _HALF
        if not self._newest and numbers[raw != 0].min() <= 0:
            numbers += _TURN  # they passed the end within the first records
        numbers[raw == 0] = 0
        self._newest = max(self._newest, int(numbers.max()))
        return numbers
