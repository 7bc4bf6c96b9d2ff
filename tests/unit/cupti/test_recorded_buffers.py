"""Buffers that CUPTI wrote on an H200, in six versions, hold what was run there."""

from __future__ import annotations

import numpy as np
import pytest

from gpustreamlab.backends.cuda.cupti._constants import (
    CopyKind,
    MarkerFlag,
    MemoryKind,
    MemoryOperation,
    RecordKind,
    SynchronizationKind,
)
from gpustreamlab.backends.cuda.cupti._layouts import find_layouts
from gpustreamlab.backends.cuda.cupti._records import parse_buffer
from gpustreamlab.backends.cuda.cupti._strings import demangle, short_name
from tests.helpers.recorded_buffers import CALL_NAMES, GREEN, MIXED, read_buffers, read_names, read_records

NO_STREAM = 0xFFFF_FFFF
LAYOUTS = find_layouts(130001)

ROUND = [
    (13, (4, 1, 1), (64, 1, 1)),
    (13, (8192, 1, 1), (128, 1, 1)),
    (13, (256, 1, 1), (256, 1, 1)),
    (13, (1, 1, 1), (256, 1, 1)),
]
"""Spin, multiply, and the two kernels of a sum, on the first stream."""
SPIN_ON_SECOND = [(14, (8, 1, 1), (32, 1, 1))]
GRAPH = [(stream, (blocks, 1, 1), (64, 1, 1)) for stream in (13, 14) for blocks in (4, 5)]
KERNELS = [
    (7, (8192, 1, 1), (128, 1, 1)),
    *3 * [*ROUND, *SPIN_ON_SECOND],
    *GRAPH,
    (7, (4, 1, 1), (64, 1, 1)),
]
"""Stream, grid and block of every kernel, in the order in which they were launched."""


@pytest.fixture(scope="module", params=MIXED)
def mixed(request):
    return read_records("mixed", request.param)


@pytest.fixture(scope="module", params=GREEN)
def green(request):
    return read_records("green", request.param)


def rows_of(records, kind, *names):
    """Return a tuple for each record of a kind, in order."""
    return list(zip(*(records.columns[kind][name].tolist() for name in names), strict=True))


@pytest.mark.parametrize(
    ("name", "version"), [*(("mixed", version) for version in MIXED), *(("green", version) for version in GREEN)]
)
def test_every_byte_is_a_known_record(name, version):
    records = read_records(name, version)

    assert records.skipped_bytes == 0
    assert records.unknown_kinds == {}
    sizes = find_layouts(version).sizes
    assert sum(sizes[kind] * count for kind, count in records.counts.items()) == sum(map(len, read_buffers(name, version)))


def test_all_kernels_are_there_with_their_shapes(mixed):
    columns = mixed.columns[RecordKind.CONCURRENT_KERNEL]
    order = np.argsort(columns["correlationId"], kind="stable")
    names = ("streamId", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")

    shapes = [(row[0], row[1:4], row[4:]) for row in zip(*(columns[name][order].tolist() for name in names), strict=True)]

    assert shapes == KERNELS
    assert set(columns["contextId"].tolist()) == {1}
    assert set(columns["deviceId"].tolist()) == {0}
    assert set(columns["registersPerThread"].tolist()) == {16, 18, 20, 32}
    # The two kernels of each sum use shared memory.
    assert np.flatnonzero(columns["staticSharedMemory"][order]).tolist() == [3, 4, 8, 9, 13, 14]
    assert set(columns["dynamicSharedMemory"].tolist()) == {0}


def test_durations_are_those_of_the_spins(mixed):
    columns = mixed.columns[RecordKind.CONCURRENT_KERNEL]
    duration_ns = columns["end"] - columns["start"]

    assert ((duration_ns > 1_000) & (duration_ns < 20_000)).all()
    is_spin = (columns["gridX"] < 10) & (columns["blockX"] < 128)
    assert ((duration_ns[is_spin] > 5_000) & (duration_ns[is_spin] < 6_500)).all()


def test_kernels_of_one_stream_do_not_overlap(mixed):
    columns = mixed.columns[RecordKind.CONCURRENT_KERNEL]
    for stream in (7, 13, 14):
        rows = np.flatnonzero(columns["streamId"] == stream)
        rows = rows[np.argsort(columns["start"][rows])]
        assert (columns["end"][rows][:-1] <= columns["start"][rows][1:]).all()


def test_graph_nodes_carry_their_graph_and_their_launch(mixed):
    columns = mixed.columns[RecordKind.CONCURRENT_KERNEL]
    rows = np.flatnonzero(columns["graphId"])

    assert columns["graphId"][rows].tolist() == [2, 2, 2, 2]
    assert (columns["graphNodeId"][rows] & 0xFFFF_FFFF).tolist() == [0, 1, 0, 1]
    assert columns["streamId"][rows].tolist() == [13, 13, 14, 14]
    first, second = np.split(columns["correlationId"][rows], 2)
    assert first[0] == first[1] != second[0] == second[1]


def test_copies_and_fills_have_their_bytes(mixed):
    copies = rows_of(mixed, RecordKind.MEMCPY, "copyKind", "srcKind", "dstKind", "bytes", "streamId", "deviceId")
    fills = rows_of(mixed, RecordKind.MEMSET, "bytes", "value", "streamId")

    assert copies == [(CopyKind.HTOD, MemoryKind.PAGEABLE, MemoryKind.DEVICE, 4 << 20, 14, 0)] * 2
    assert fills == [(8, 0, 7), *[(1024, 0, 14)] * 3]
    for kind in (RecordKind.MEMCPY, RecordKind.MEMSET):
        assert (mixed.columns[kind]["end"] > mixed.columns[kind]["start"]).all()


def test_the_second_stream_waits_for_the_event_of_the_first(mixed):
    records = rows_of(mixed, RecordKind.CUDA_EVENT, "streamId", "eventId", "correlationId")
    waits = [
        row
        for row in rows_of(mixed, RecordKind.SYNCHRONIZATION, "type", "streamId", "cudaEventId", "correlationId")
        if row[0] == SynchronizationKind.STREAM_WAIT_EVENT
    ]

    assert [row[:2] for row in records] == [(13, 1)] * 3
    assert [row[1:3] for row in waits] == [(14, 1)] * 3
    assert all(record[2] < wait[3] for record, wait in zip(records, waits, strict=True))


def test_waits_of_the_host_are_told(mixed):
    kinds = [row[0] for row in rows_of(mixed, RecordKind.SYNCHRONIZATION, "type")]

    assert kinds[:9] == 3 * [
        SynchronizationKind.STREAM_WAIT_EVENT,
        SynchronizationKind.EVENT_SYNCHRONIZE,
        SynchronizationKind.STREAM_SYNCHRONIZE,
    ]
    # CUPTI 12 does not tell of cudaDeviceSynchronize.
    assert kinds[9:] in ([], [SynchronizationKind.CONTEXT_SYNCHRONIZE])


def test_calls_launched_what_ran(mixed):
    """Each kernel, copy and fill carries the number of a call whose name says that it launched it."""
    names = {
        number: CALL_NAMES[domain].get(cbid, "")
        for kind, domain in ((RecordKind.DRIVER, 1), (RecordKind.RUNTIME, 2))
        for number, cbid in rows_of(mixed, kind, "correlationId", "cbid")
    }
    expected = {
        RecordKind.CONCURRENT_KERNEL: {"cuLaunchKernel", "cudaLaunchKernel_v7000", "cudaGraphLaunch_v10000"},
        RecordKind.MEMCPY: {"cudaMemcpyAsync_v3020"},
        RecordKind.MEMSET: {"cudaMemsetAsync_v3020"},
    }
    for kind, launchers in expected.items():
        assert {names[number] for number in mixed.columns[kind]["correlationId"].tolist()} == launchers


def test_calls_end_before_nothing_and_come_from_one_thread(mixed):
    for kind in (RecordKind.DRIVER, RecordKind.RUNTIME):
        columns = mixed.columns[kind]
        assert (columns["end"] >= columns["start"]).all()
        assert len(set(columns["threadId"].tolist())) == 1


def test_nvtx_ranges_begin_and_end(mixed):
    markers = rows_of(mixed, RecordKind.MARKER, "flags", "id", "timestamp")
    times = [row[2] for row in markers]

    assert times == sorted(times)
    # Our range, and within it one of cub, three times.
    assert [(row[0], row[1]) for row in markers] == [
        (flag, 2 * number + inner)
        for number in range(3)
        for flag, inner in ((MarkerFlag.START, 1), (MarkerFlag.START, 2), (MarkerFlag.END, 2), (MarkerFlag.END, 1))
    ]


def test_memory_allocated_in_stream_order_is_told_with_its_stream(mixed):
    columns = mixed.columns[RecordKind.MEMORY2]
    rows = np.flatnonzero(columns["isAsync"])

    assert columns["memoryOperationType"][rows].tolist() == [MemoryOperation.ALLOCATION, MemoryOperation.RELEASE]
    assert columns["bytes"][rows].tolist() == [1 << 20] * 2
    assert columns["streamId"][rows].tolist() == [13, 13]
    assert len(set(columns["address"][rows].tolist())) == 1


def test_external_numbers_are_those_that_were_pushed(mixed):
    assert set(mixed.columns[RecordKind.EXTERNAL_CORRELATION]["externalId"].tolist()) == {1000, 1001, 1002}


def test_the_primary_context_has_its_null_stream(mixed):
    assert rows_of(mixed, RecordKind.CONTEXT, "contextId", "nullStreamId", "isGreenContext", "deviceId") == [(1, 7, 0, 0)]


def test_green_contexts_have_their_sms_in_either_form(green):
    if RecordKind.GREEN_CONTEXT in green.columns:
        rows = rows_of(green, RecordKind.GREEN_CONTEXT, "contextId", "numMultiprocessors", "parentContextId")
        masks = green.columns[RecordKind.GREEN_CONTEXT]["logicalTpcMask"]
        assert green.columns[RecordKind.GREEN_CONTEXT]["numTpcs"].tolist() == [16, 32]
        assert [sum(int(word).bit_count() for word in mask) for mask in masks] == [16, 32]
        assert not any((first & second).any() for first, second in [masks])
    else:
        rows = [
            row[:3]
            for row in rows_of(
                green, RecordKind.CONTEXT, "contextId", "numMultiprocessors", "parentContextId", "isGreenContext"
            )
            if row[3]
        ]
    assert rows == [(2, 32, 1), (3, 64, 1)]


def test_kernels_of_three_lanes_are_in_their_contexts(green):
    columns = green.columns[RecordKind.CONCURRENT_KERNEL]
    lanes = {18: 2, 19: 3, 20: 1}
    for stream, context in lanes.items():
        rows = np.flatnonzero(columns["streamId"] == stream)
        assert columns["contextId"][rows].tolist() == [context] * 3
        duration_ns = columns["end"][rows] - columns["start"][rows]
        assert ((duration_ns > 800) & (duration_ns < 20_000)).all()
    # A quarter of the card takes longer for the same work.
    large = columns["gridX"] == 8192
    took_ns = {stream: int((columns["end"] - columns["start"])[large & (columns["streamId"] == stream)][0]) for stream in lanes}
    assert took_ns[18] > 1.5 * took_ns[19]


def test_launches_and_kernels_come_in_turn():
    (data,) = read_buffers("launches", 130001)

    records = parse_buffer(data, LAYOUTS)

    assert records.counts == {RecordKind.DRIVER: 234, RecordKind.CONCURRENT_KERNEL: 234}
    assert records.skipped_bytes == 96  # the file was cut within a kernel
    kernels, calls = records.columns[RecordKind.CONCURRENT_KERNEL], records.columns[RecordKind.DRIVER]
    assert kernels["correlationId"].tolist() == calls["correlationId"].tolist()
    assert (calls["start"] < kernels["start"]).all()
    assert set(kernels["streamId"].tolist()) == {13}
    assert ((kernels["end"] - kernels["start"] >= 500) & (kernels["end"] - kernels["start"] < 1_000)).all()


def test_names_are_where_the_records_say():
    names, records = read_names(), read_records("mixed", 130001)

    raw = [names[address] for address in records.columns[RecordKind.CONCURRENT_KERNEL]["name"].tolist()]
    short = [short_name(demangle(name)) for name in raw]

    assert short[:5] == [
        "cupy_arange__float_float_float32",
        "spin",
        "cupy_multiply__float32_float_float32",
        "DeviceReduceKernel<...>",
        "DeviceReduceSingleTileKernel<...>",
    ]
    assert short.count("spin") == 11
    marks = [names[address] for address in records.columns[RecordKind.MARKER]["name"].tolist() if address]
    assert marks == 3 * ["my range é", "cub::DeviceReduce::Sum"]
