"""CUPTI's records of kernels, copies and fills as neutral columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.analysis import distinct
from gpustreamlab.backends._activity import WorkBatch
from gpustreamlab.backends.cuda._cupti_constants import WORK_KINDS, RecordKind, copy_name
from gpustreamlab.backends.cuda._cupti_records import Columns, Records
from gpustreamlab.backends.cuda._cupti_strings import demangle, short_name
from gpustreamlab.model import SPAN_KINDS, WorkDetail
from gpustreamlab.typing import BoolArray, Int64Array, SpanKind

UNKNOWN_KERNEL = "(unknown kernel)"
"""Stands for a kernel whose name cannot be read."""

KERNELS = (RecordKind.CONCURRENT_KERNEL, RecordKind.KERNEL)
COPIES = (RecordKind.MEMCPY, RecordKind.MEMCPY2)

_KERNEL_SHAPE = (
    "name",
    "gridX",
    "gridY",
    "gridZ",
    "blockX",
    "blockY",
    "blockZ",
    "registersPerThread",
    "staticSharedMemory",
    "dynamicSharedMemory",
    "graphId",
)
_COPY_SHAPE = ("copyKind", "srcKind", "dstKind", "graphId")
_FILL_SHAPE = ("graphId",)

_HASH_FACTOR = np.uint64(0x9E37_79B9_7F4A_7C15)


class Texts:
    """Interned names and details of one drain."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.details: dict[WorkDetail, int] = {}

    def name(self, text: str) -> int:
        """Return the index of a name."""
        return self.names.setdefault(text, len(self.names))

    def detail(self, detail: WorkDetail) -> int:
        """Return the index of a detail."""
        return self.details.setdefault(detail, len(self.details))


class _Shape(NamedTuple):
    """What several pieces of work have in common."""

    name: str
    detail: WorkDetail


def kernel_rows(records: Records) -> Columns | None:
    """Return the columns of all kernels, or None where there are none."""
    return next((records.columns[kind] for kind in KERNELS if kind in records.columns), None)


def without_untimed(records: Records) -> Records:
    """Leave out the work that CUPTI could not time, as that which ran while another client had set its clock."""
    columns = dict(records.columns)
    for kind in columns.keys() & {*WORK_KINDS}:
        columns[kind] = _select(columns[kind], columns[kind]["start"] > 0)
    return replace(records, columns=columns)


def work_batch(
    records: Records, texts: Texts, read_text: Callable[[int], str | None], keep: Callable[[Columns], BoolArray]
) -> WorkBatch:
    """Turn the records of device work into columns; times stay CUPTI's.

    Parameters
    ----------
    records
        What was parsed.
    texts
        Takes the names and details.
    read_text
        Reads a text at an address.
    keep
        Tells which rows are wanted.
    """
    parts = []
    for kinds, span_kind, shape, describe in (
        (KERNELS, SpanKind.KERNEL, _KERNEL_SHAPE, lambda row: _kernel_shape(row, read_text)),
        (COPIES, SpanKind.COPY, _COPY_SHAPE, _copy_shape),
        ((RecordKind.MEMSET,), SpanKind.FILL, _FILL_SHAPE, _fill_shape),
    ):
        for kind in kinds:
            columns = records.columns.get(kind)
            if columns is not None:
                parts.append(_part(_select(columns, keep(columns)), span_kind, shape, describe, texts))
    if not parts:
        return WorkBatch()
    return WorkBatch(**{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def _select(columns: Columns, is_kept: BoolArray) -> Columns:
    return columns if is_kept.all() else {name: values[is_kept] for name, values in columns.items()}


def _part(
    columns: Columns,
    kind: SpanKind,
    shape: Sequence[str],
    describe: Callable[[Mapping[str, int]], _Shape],
    texts: Texts,
) -> dict[str, Int64Array]:
    count = len(columns["start"])
    name, detail = _code_shapes(columns, shape, describe, texts)
    sizes = columns["bytes"].astype(np.int64) if "bytes" in columns else np.zeros(count, np.int64)
    return {
        "kind": np.full(count, SPAN_KINDS.index(kind), np.int64),
        "start_ns": columns["start"].astype(np.int64),
        "end_ns": columns["end"].astype(np.int64),
        "context": columns["contextId"].astype(np.int64),
        "stream": columns["streamId"].astype(np.int64),
        "name": name,
        "detail": detail,
        "correlation": columns["correlationId"].astype(np.int64),
        "size_bytes": sizes,
    }


def _code_shapes(
    columns: Columns, shape: Sequence[str], describe: Callable[[Mapping[str, int]], _Shape], texts: Texts
) -> tuple[Int64Array, Int64Array]:
    """Return the codes of each row's name and detail; each distinct shape is described once."""
    keys, place = distinct(hash_rows([columns[name] for name in shape]))
    first = np.zeros(len(keys), np.int64)
    first[place[::-1]] = np.arange(len(place))[::-1]
    names, details = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
    for code, row in enumerate(first.tolist()):
        found = describe({name: int(columns[name][row]) for name in shape})
        names[code], details[code] = texts.name(found.name), texts.detail(found.detail)
    return names[place], details[place]


def hash_rows(columns: Sequence[NDArray[Any]]) -> Int64Array:
    """Return one 63-bit number for each row, equal for equal rows; that two others meet has odds of 1 in 10**19.

    Examples
    --------
    >>> codes = hash_rows([np.array([1, 2, 1]), np.array([5, 5, 5])])
    >>> bool(codes[0] == codes[2]), bool(codes[0] == codes[1])
    (True, False)
    """
    mixed = np.zeros(len(columns[0]), np.uint64)
    for values in columns:
        mixed = (mixed ^ values.astype(np.int64).view(np.uint64)) * _HASH_FACTOR
        mixed ^= mixed >> np.uint64(29)
    return (mixed >> np.uint64(1)).astype(np.int64)


def _kernel_shape(row: Mapping[str, int], read_text: Callable[[int], str | None]) -> _Shape:
    raw = read_text(row["name"])
    full = UNKNOWN_KERNEL if not raw else demangle(raw)
    detail = WorkDetail(
        full_name=full,
        grid=(row["gridX"], row["gridY"], row["gridZ"]),
        block=(row["blockX"], row["blockY"], row["blockZ"]),
        registers=row["registersPerThread"],
        static_shared_bytes=row["staticSharedMemory"],
        dynamic_shared_bytes=row["dynamicSharedMemory"],
        graph=row["graphId"],
    )
    return _Shape(short_name(full) if raw else full, detail)


def _copy_shape(row: Mapping[str, int]) -> _Shape:
    name = copy_name(row["copyKind"], row["srcKind"], row["dstKind"])
    return _Shape(name, WorkDetail(full_name=name, graph=row["graphId"]))


def _fill_shape(row: Mapping[str, int]) -> _Shape:
    return _Shape("memset", WorkDetail(full_name="memset", graph=row["graphId"]))
