"""Random values of the model, for property tests."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gpustreamlab.model import (
    COLUMN_DTYPES,
    EDGE_KINDS,
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
    Trace,
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


devices = st.builds(
    Device,
    name=texts,
    ordinal=st.integers(0, 7),
    sm_count=st.integers(1, 200),
    compute_capability=st.tuples(st.integers(0, 12), st.integers(0, 9)),
    memory_bytes=st.integers(0, 2**40),
    driver_version=texts,
    simulated=st.booleans(),
    sm_resource=st.none()
    | st.builds(
        SMResource,
        min_sms=st.integers(1, 16),
        alignment_sms=st.integers(1, 16),
        group_sms=st.integers(1, 16),
        group_count=st.integers(1, 16),
        remainder_sms=st.integers(0, 16),
        is_structured=st.booleans(),
    ),
)
metadatas = st.builds(
    TraceMetadata,
    backend=st.sampled_from(["sim", "cuda"]),
    device=devices,
    clock=texts,
    clock_error_ns=st.integers(0, 10**9),
    range_error_ns=st.integers(0, 10**9),
    range_correction_ns=st.integers(-(10**9), 10**9),
    host_error_ns=st.integers(0, 10**9),
    tier=st.sampled_from(CaptureTier),
    dropped_spans=st.integers(0, 2**63 - 1),
    pending_spans=st.integers(0, 2**31),
    dropped_markers=st.integers(0, 2**31),
    unselected_work=st.integers(0, 2**31),
    epoch_unix_ns=st.integers(0, 2**63 - 1),
    title=texts,
)
partitions = st.builds(
    Partition,
    name=texts,
    requested_sms=st.integers(0, 132),
    granted_sms=st.integers(0, 132),
    groups=st.lists(st.integers(0, 15), max_size=4).map(tuple),
    coscheduled_sms=st.integers(0, 16),
    preferred_coscheduled_sms=st.integers(0, 16),
    backfill=st.booleans(),
    sm_ids=st.none() | st.lists(st.integers(0, 131), max_size=4).map(tuple),
)
layouts = st.builds(
    Layout,
    partitions=st.lists(partitions, max_size=3, unique_by=lambda partition: partition.name).map(tuple),
    remainder_sms=st.integers(0, 132),
    workqueue=st.none()
    | st.builds(
        WorkqueueOptions,
        sharing_scope=st.sampled_from(["green_ctx_balanced", "device_ctx"]),
        concurrency_limit=st.none() | st.integers(1, 128),
    ),
    is_enforced=st.booleans(),
)
markers = st.builds(Marker, time_ns=TIMES_NS, text=texts, kind=st.sampled_from(MarkerKind))
layout_changes = st.builds(LayoutChange, time_ns=TIMES_NS, layout=st.none() | layouts)


@st.composite
def lanes(draw: st.DrawFn) -> tuple[Lane, ...]:
    """Draw lanes whose names and keys do not repeat; handles are as large as addresses get."""
    names = draw(st.lists(texts, min_size=1, max_size=4, unique=True))
    handles = draw(st.lists(st.integers(0, 2**64 - 1), min_size=len(names), max_size=len(names), unique=True))
    return tuple(
        Lane(
            name=name,
            device=draw(st.integers(0, 7)),
            context=draw(st.integers(0, 9)),
            stream=handle,
            partition=draw(st.none() | texts),
            sm_count=draw(st.integers(0, 132)),
            priority=draw(st.integers(-5, 0)),
        )
        for name, handle in zip(names, handles, strict=True)
    )


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
