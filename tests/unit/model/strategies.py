"""Random values of the model, for property tests."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gpustreamlab import Trace
from gpustreamlab.model import (
    COLUMN_DTYPES,
    EDGE_KINDS,
    SCHEMA_VERSION,
    SPAN_KINDS,
    Counters,
    Device,
    Edges,
    Lane,
    Layout,
    LayoutChange,
    Marker,
    Partition,
    SMResource,
    TraceMetadata,
    WorkqueueOptions,
)
from gpustreamlab.typing import CaptureTier, MarkerKind

EXTRA_DTYPES = ("<i1", "<i2", "<i4", "<i8", "<u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", ">i4", ">f8")
TIMES_NS = st.integers(-(2**62), 2**62 - 1)

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=12) | st.sampled_from(
    ["", "</script>", "名前", "🚀", "a\x00b", "é", "e\u0301"]
)


def columns(dtype: object, size: int, elements: st.SearchStrategy[object]) -> st.SearchStrategy[np.ndarray]:
    """Draw one column."""
    return hnp.arrays(dtype, size, elements=elements)


def codes(size: int, count: int, *, lowest: int = 0) -> st.SearchStrategy[np.ndarray]:
    """Draw codes into a table of `count` entries."""
    return columns(np.int64, size, st.integers(lowest, count - 1))


def built(cls, **known: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """Draw a value of the model: its texts, whole numbers that are not negative, and truths by their annotations."""
    plain = {"str": texts, "Count": st.integers(0, 2**31), "Whole": st.integers(-(2**31), 2**31), "bool": st.booleans()}
    fields = {field.name: plain[field.type] for field in dataclasses.fields(cls) if field.type in plain}
    return st.builds(cls, **fields | known)


def tuples(values: st.SearchStrategy[object], size: int = 4) -> st.SearchStrategy[tuple[object, ...]]:
    """Draw up to four of them."""
    return st.lists(values, max_size=size).map(tuple)


sizes = st.integers(1, 16)
resources = built(SMResource, min_sms=sizes, alignment_sms=sizes, group_sms=sizes, group_count=sizes)
devices = built(
    Device,
    sm_count=st.integers(1, 200),
    compute_capability=st.tuples(st.integers(0, 12), st.integers(0, 9)),
    sm_resource=st.none() | resources,
)
metadatas = built(
    TraceMetadata,
    backend=st.sampled_from(["sim", "cuda"]),
    device=devices,
    tier=st.sampled_from(CaptureTier),
    dropped_spans=st.integers(0, 2**63 - 1),
    schema_version=st.just(SCHEMA_VERSION),
)
partitions = built(Partition, groups=tuples(st.integers(0, 15)), sm_ids=st.none() | tuples(st.integers(0, 131)))
queues = st.builds(
    WorkqueueOptions,
    sharing_scope=st.sampled_from(["green_ctx_balanced", "device_ctx"]),
    concurrency_limit=st.none() | st.integers(1, 128),
)
layouts = built(
    Layout,
    partitions=st.lists(partitions, max_size=3, unique_by=lambda partition: partition.name).map(tuple),
    workqueue=st.none() | queues,
)
markers = built(Marker, time_ns=TIMES_NS, kind=st.sampled_from(MarkerKind))
layout_changes = st.builds(LayoutChange, time_ns=TIMES_NS, layout=st.none() | layouts)


@st.composite
def lanes(draw: st.DrawFn) -> tuple[Lane, ...]:
    """Draw lanes whose names and keys do not repeat; handles are as large as addresses get."""
    names = draw(st.lists(texts, min_size=1, max_size=4, unique=True))
    handles = draw(st.lists(st.integers(0, 2**64 - 1), min_size=len(names), max_size=len(names), unique=True))
    made = built(Lane, partition=st.none() | texts)
    return tuple(dataclasses.replace(draw(made), name=name, stream=handle) for name, handle in zip(names, handles, strict=True))


@st.composite
def edges(draw: st.DrawFn, span_count: int) -> Edges:
    """Draw edges between the spans of a trace."""
    size = draw(st.integers(0, 5)) if span_count else 0
    if not size:
        return Edges()
    return Edges(
        source=draw(codes(size, span_count)), target=draw(codes(size, span_count)), kind=draw(codes(size, len(EDGE_KINDS)))
    )


@st.composite
def counters(draw: st.DrawFn, lane_count: int) -> Counters:
    """Draw counters, with NaN and infinity among the values."""
    names = draw(st.lists(texts, min_size=1, max_size=3, unique=True))
    size = draw(st.integers(0, 5))
    return Counters(
        time_ns=draw(columns(np.int64, size, TIMES_NS)),
        lane=draw(codes(size, lane_count)),
        name=draw(codes(size, len(names))),
        value=draw(hnp.arrays(np.float64, size, elements=st.floats(allow_nan=True))),
        names=tuple(names),
    )


@st.composite
def extras(draw: st.DrawFn, size: int) -> dict[str, np.ndarray]:
    """Draw extra columns of every dtype, NaN included."""
    reserved = {*COLUMN_DTYPES, "duration_ns"}
    names = draw(st.lists(texts.filter(lambda text: text not in reserved and "\0" not in text), max_size=3, unique=True))
    return {name: draw(hnp.arrays(draw(st.sampled_from(EXTRA_DTYPES)), size)) for name in names}


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Draw whole traces, empty ones included."""
    size = draw(st.integers(0, 6))
    own_lanes = draw(lanes())
    names = tuple(draw(st.lists(texts, min_size=1, max_size=4, unique=True)))
    threads = tuple(draw(st.lists(texts, max_size=3, unique=True)))
    own_partitions = tuple(draw(st.lists(partitions, max_size=3)))
    changes = tuple(draw(st.lists(layout_changes, max_size=3)))
    start_ns = draw(columns(np.int64, size, TIMES_NS))
    # A parent stands in an earlier row, so that no span is its own ancestor.
    parents = [draw(st.integers(-1, row - 1)) for row in range(size)]
    return Trace(
        start_ns=start_ns,
        end_ns=start_ns + draw(columns(np.int64, size, st.integers(0, 2**61))),
        queued_ns=draw(columns(np.int64, size, TIMES_NS)),
        lane=draw(codes(size, len(own_lanes))),
        name=draw(codes(size, len(names))),
        kind=draw(codes(size, len(SPAN_KINDS))),
        parent=np.array(parents, np.int64),
        thread=draw(codes(size, len(threads), lowest=-1)),
        names=names,
        lanes=own_lanes,
        threads=threads,
        metadata=draw(metadatas),
        extra=draw(extras(size)),
        edges=draw(edges(size)),
        counters=draw(counters(len(own_lanes))),
        layout=None if changes else draw(st.none() | layouts),
        partition=draw(codes(size, len(own_partitions), lowest=-1)),
        partitions=own_partitions,
        layouts=changes,
        markers=tuple(draw(st.lists(markers, max_size=3))),
    )
