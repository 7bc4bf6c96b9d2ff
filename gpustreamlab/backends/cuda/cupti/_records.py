"""Read CUPTI's raw activity buffers into columns.

A buffer holds records of many kinds, each a struct of a known size that begins with its kind. Finding where the records
begin is the only sequential part: a loop that only adds.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.backends.cuda.cupti._layouts import Layouts
from gpustreamlab.typing import Int64Array

Columns: TypeAlias = Mapping[str, NDArray[Any]]
"""The fields of the records of one kind, each of shape (n_records,), or (n_records, 32) for a TPC mask."""

_UNIT = 8
"""Records begin at multiples of 8 bytes. Source: ACTIVITY_RECORD_ALIGNMENT in cupti_activity.h."""
_LONG_RUN = 32
"""After so many records of a kind the next ones are found together, as those of a loop of launches."""
_KINDS = 256
"""Kinds are below this. Source: CUpti_ActivityKind, 59 at most in CUPTI 13.5."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Records:
    """What one or several buffers held."""

    columns: Mapping[int, Columns]
    """Per record kind that occurred and whose fields are read: field name -> column, in the buffer's order. Times and sizes are
    int64, addresses uint64, everything else as the struct has it. A field that this version of CUPTI lacks is zero."""
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

    Examples
    --------
    >>> from gpustreamlab.backends.cuda.cupti._layouts import find_layouts
    >>> data = np.zeros(40, np.uint8)
    >>> data[0], data[8] = 5, 100
    >>> parse_buffer(data, find_layouts(130001)).columns[5]["start"]
    array([100])
    """
    data = np.ascontiguousarray(data)
    places, kinds, end = _find_records(data, layouts)
    unknown = {kind: 1 for kind in data[end : end + _UNIT : _UNIT].tolist() if kind not in layouts.sizes}
    counts, columns = {}, {}
    for kind in np.flatnonzero(np.bincount(kinds)).tolist():
        where = places[kinds == kind]
        counts[kind] = where.size
        if kind in layouts.fields:
            columns[kind] = _read_columns(data, where, kind, layouts)
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
        counts=sum((Counter(part.counts) for part in parts), Counter()),
        unknown_kinds=sum((Counter(part.unknown_kinds) for part in parts), Counter()),
        skipped_bytes=sum(part.skipped_bytes for part in parts),
    )


def _find_records(data: NDArray[np.uint8], layouts: Layouts) -> tuple[Int64Array, NDArray[np.uint8], int]:
    """Return where each record begins, in units, each one's kind, and where the last one ends, in bytes."""
    low = data[: data.size // _UNIT * _UNIT : _UNIT]  # the lowest byte of a kind tells it
    steps = [layouts.sizes.get(kind, 0) // _UNIT for kind in range(_KINDS)]
    kinds, end = low.tobytes(), low.size
    places = array("I")
    append, place = places.append, 0
    before = run = 0
    while place < end and (step := steps[kind := kinds[place]]) and place + step <= end:
        append(place)
        place += step
        run = run + 1 if kind == before else 0
        before = kind
        if run == _LONG_RUN:  # kernels of a loop: all at once
            like = low[place : place + (end - place) // step * step : step] == kind
            count = like.size if like.all() else int(like.argmin())
            places.frombytes(np.arange(place, place + step * count, step, dtype=np.uint32).tobytes())
            place += step * count
            run = 0
    found = np.frombuffer(places, np.uint32).astype(np.int64)
    return found, low[found], place * _UNIT


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
