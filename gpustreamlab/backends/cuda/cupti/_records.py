"""Read CUPTI's raw activity buffers into columns.

A buffer holds records of many kinds, each a struct of a known size that begins with its kind. C finds and copies them
(callbacks.c), all buffers at once and without the interpreter's lock: the program goes on launching meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.backends.cuda.cupti._buffers import reading_library
from gpustreamlab.backends.cuda.cupti._layouts import Layouts
from gpustreamlab.typing import BoolArray, Int64Array

Columns: TypeAlias = Mapping[str, NDArray[Any]]
"""The fields of the records of one kind, each of shape (n_records,)."""

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


def parse_buffer(*buffers: NDArray[np.uint8], layouts: Layouts) -> Records:
    """Read the records of buffers, in their order.

    Examples
    --------
    >>> from gpustreamlab.backends.cuda.cupti._layouts import find_layouts
    >>> data = np.zeros(40, np.uint8)
    >>> data[0], data[8] = 5, 100
    >>> parse_buffer(data, layouts=find_layouts(130001)).columns[5]["start"]
    array([100])
    """
    library = reading_library()
    data = [np.ascontiguousarray(one) for one in buffers]
    stretches = np.array([(one.ctypes.data, one.size) for one in data], np.uint64).reshape(-1, 2)
    sizes, counts = np.zeros(_KINDS, np.uint64), np.zeros(_KINDS, np.uint64)
    sizes[[*layouts.sizes]] = [*layouts.sizes.values()]
    given = stretches.ctypes.data, len(stretches), sizes.ctypes.data
    library.count_records(*given, counts.ctypes.data)
    found = {kind: int(counts[kind]) for kind in np.flatnonzero(counts).tolist()}
    columns = {
        kind: {name: np.empty(count, format_) for name, (_, format_) in layouts.fields[kind].items()}
        for kind, count in found.items()
        if kind in layouts.fields
    }
    fields = [
        (kind, layouts.fields[kind][name][0], column.itemsize, column.ctypes.data)
        for kind, table in columns.items()
        for name, column in table.items()
    ]
    table = np.array(fields, np.uint64).reshape(-1, 4)
    library.split_records(*given, table.ctypes.data, len(table))
    for kind, own in columns.items():
        own |= {name: np.zeros(found[kind], format_) for name, format_ in layouts.missing[kind].items()}
    ends = stretches[:, 1].tolist()
    left = [int(one[end]) for one, end in zip(data, ends, strict=True) if end < one.size]
    return Records(
        columns=columns,
        counts=found,
        unknown_kinds=Counter(kind for kind in left if kind not in layouts.sizes),
        skipped_bytes=sum(one.size for one in data) - sum(ends),
    )


def join_columns(tables: Sequence[Columns]) -> Columns:
    """Put tables of the same columns behind each other."""
    return tables[0] if len(tables) == 1 else {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def select_rows(columns: Columns, is_kept: BoolArray) -> Columns:
    """Return the rows that are kept."""
    return columns if is_kept.all() else {name: values[is_kept] for name, values in columns.items()}


def concat_records(parts: Sequence[Records]) -> Records:
    """Put the records of several buffers, written by one CUPTI, behind each other."""
    kinds = sorted({kind for part in parts for kind in part.columns})
    columns = {}
    for kind in kinds:
        columns[kind] = join_columns([part.columns[kind] for part in parts if kind in part.columns])
    return Records(
        columns=columns,
        counts=sum((Counter(part.counts) for part in parts), Counter()),
        unknown_kinds=sum((Counter(part.unknown_kinds) for part in parts), Counter()),
        skipped_bytes=sum(part.skipped_bytes for part in parts),
    )


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
        numbers = self._continued([records.columns[kind][FIELD].astype(np.int64, copy=False) for kind in kinds])
        columns = dict(records.columns)
        columns |= {kind: {**columns[kind], FIELD: part} for kind, part in zip(kinds, numbers, strict=True)}
        return replace(records, columns=columns)

    def _continued(self, parts: list[Int64Array]) -> list[Int64Array]:
        near = self._newest
        if self._may_be_new:
            least = min((int(part[part != 0].min()) for part in parts if part.any()), default=0)
            if not least:
                return parts
            near += (least - near) % _TURN
            self._may_be_new = False
        base = near - _HALF
        if any(len(part) and not base <= part.min() <= part.max() < base + _TURN for part in parts):
            numbers = [base + (part - base & _TURN - 1) for part in parts]
            if not self._newest and any((own[part != 0] <= 0).any() for own, part in zip(numbers, parts, strict=True)):
                numbers = [own + _TURN for own in numbers]  # they passed the end within the first records
            parts = [np.where(part == 0, 0, own) for own, part in zip(numbers, parts, strict=True)]
        self._newest = max([self._newest, *(int(part.max(initial=0)) for part in parts)])
        return parts
