"""Buffers that CUPTI wrote on an H200, in six versions, hold what was run there."""

from __future__ import annotations

import numpy as np
import pytest

from gpustreamlab._util.kernel_names import short_name
from gpustreamlab.backends.cuda.cupti._layouts import (
    CopyKind,
    MarkerFlag,
    MemoryKind,
    MemoryOperation,
    RecordKind,
    find_layouts,
)
from gpustreamlab.backends.cuda.cupti._records import parse_buffer
from gpustreamlab.backends.cuda.cupti._work import NODE, NodeNumbers, demangle
from tests.helpers.recorded_buffers import CALL_NAMES, GREEN, MIXED, read_buffers, read_names, read_records

KERNEL = RecordKind.CONCURRENT_KERNEL
WAIT_EVENT, SYNC_EVENT, SYNC_STREAM, SYNC_CONTEXT = 2, 1, 3, 4
"""Values of CUpti_ActivitySynchronizationType."""

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

TABLES = {
    RecordKind.MEMCPY: (
        ("copyKind", "srcKind", "dstKind", "bytes", "streamId", "deviceId"),
        [(CopyKind.HTOD, MemoryKind.PAGEABLE, MemoryKind.DEVICE, 4 << 20, 14, 0)] * 2,
    ),
    RecordKind.MEMSET: (("bytes", "value", "streamId"), [(8, 0, 7), *[(1024, 0, 14)] * 3]),
    RecordKind.CUDA_EVENT: (("streamId", "eventId"), [(13, 1)] * 3),
    # Our range, and within it one of cub, three times.
    RecordKind.MARKER: (
        ("flags", "id"),
        [
            (flag, 2 * number + inner)
            for number in range(3)
            for flag, inner in ((MarkerFlag.START, 1), (MarkerFlag.START, 2), (MarkerFlag.END, 2), (MarkerFlag.END, 1))
        ],
    ),
    RecordKind.CONTEXT: (("contextId", "nullStreamId", "isGreenContext"), [(1, 7, 0)]),
}
"""What the records of each kind hold, in order."""


@pytest.fixture(scope="module", params=MIXED)
def mixed(request):
    return read_records("mixed", request.param)


@pytest.fixture(scope="module", params=GREEN)
def green(request):
    return read_records("green", request.param)


def rows_of(records, kind, *names):
    """Return a tuple for each record of a kind, in order."""
    return list(zip(*(records.columns[kind][name].tolist() for name in names), strict=True))


def durations_ns(columns):
    return columns["end"] - columns["start"]


@pytest.mark.parametrize(
    ("name", "version"), [*(("mixed", version) for version in MIXED), *(("green", version) for version in GREEN)]
)
def test_every_byte_is_a_known_record(name, version):
    records, sizes = read_records(name, version), find_layouts(version).sizes
    assert (records.skipped_bytes, records.unknown_kinds) == (0, {})
    assert sum(sizes[kind] * count for kind, count in records.counts.items()) == sum(map(len, read_buffers(name, version)))


@pytest.mark.parametrize(("kind", "table"), TABLES.items())
def test_records_hold_what_was_done(mixed, kind, table):
    names, rows = table
    assert rows_of(mixed, kind, *names) == rows


def test_all_kernels_are_there_with_their_shapes_and_their_spins(mixed):
    columns = mixed.columns[KERNEL]
    order = np.argsort(columns["correlationId"], kind="stable")
    names = ("streamId", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")

    shapes = [(row[0], row[1:4], row[4:]) for row in zip(*(columns[name][order].tolist() for name in names), strict=True)]

    assert shapes == KERNELS
    sets = {"contextId": {1}, "deviceId": {0}, "registersPerThread": {16, 18, 20, 32}, "dynamicSharedMemory": {0}}
    assert {name: set(columns[name].tolist()) for name in sets} == sets
    # The two kernels of each sum use shared memory; the nodes of a graph carry their graph and their launch.
    assert np.flatnonzero(columns["staticSharedMemory"][order]).tolist() == [3, 4, 8, 9, 13, 14]
    assert columns["graphId"][order].tolist() == [0] * 16 + [2] * 4 + [0]
    (of_graph,) = np.nonzero(columns["graphId"][order])
    numbered = NodeNumbers().put_on({KERNEL: columns})[KERNEL][NODE][order]
    assert numbered[of_graph].tolist() == [0, 1, 0, 1]
    assert set(np.delete(numbered, of_graph).tolist()) == {-1}
    first, second = np.split(columns["correlationId"][columns["graphId"] > 0], 2)
    assert first[0] == first[1] != second[0] == second[1]
    is_spin = (columns["gridX"] < 10) & (columns["blockX"] < 128)
    assert ((durations_ns(columns) > 1_000) & (durations_ns(columns) < 20_000)).all()
    assert ((durations_ns(columns)[is_spin] > 5_000) & (durations_ns(columns)[is_spin] < 6_500)).all()
    for stream in (7, 13, 14):
        rows = np.flatnonzero(columns["streamId"] == stream)
        rows = rows[np.argsort(columns["start"][rows])]
        assert (columns["end"][rows][:-1] <= columns["start"][rows][1:]).all()


def test_the_second_stream_waits_for_the_event_of_the_first_and_so_does_the_host(mixed):
    waits = rows_of(mixed, RecordKind.SYNCHRONIZATION, "type", "streamId", "cudaEventId", "correlationId")
    kinds = [row[0] for row in waits]
    assert kinds[:9] == 3 * [WAIT_EVENT, SYNC_EVENT, SYNC_STREAM]
    assert kinds[9:] in ([], [SYNC_CONTEXT])  # CUPTI 12 does not tell of cudaDeviceSynchronize
    streams = [row for row in waits if row[0] == WAIT_EVENT]
    assert [row[1:3] for row in streams] == [(14, 1)] * 3
    recorded = mixed.columns[RecordKind.CUDA_EVENT]["correlationId"].tolist()
    assert all(record < wait[3] for record, wait in zip(recorded, streams, strict=True))


def test_calls_launched_what_ran(mixed):
    """Each kernel, copy and fill carries the number of a call whose name says that it launched it."""
    names = {}
    for kind, domain in ((RecordKind.DRIVER, 1), (RecordKind.RUNTIME, 2)):
        names |= {n: CALL_NAMES[domain].get(cbid, "") for n, cbid in rows_of(mixed, kind, "correlationId", "cbid")}
        columns = mixed.columns[kind]
        assert (columns["end"] >= columns["start"]).all()
        assert len(set(columns["threadId"].tolist())) == 1
    expected = {
        KERNEL: {"cuLaunchKernel", "cudaLaunchKernel_v7000", "cudaGraphLaunch_v10000"},
        RecordKind.MEMCPY: {"cudaMemcpyAsync_v3020"},
        RecordKind.MEMSET: {"cudaMemsetAsync_v3020"},
    }
    for kind, launchers in expected.items():
        assert {names[number] for number in mixed.columns[kind]["correlationId"].tolist()} == launchers
        assert (durations_ns(mixed.columns[kind]) > 0).all()


def test_memory_allocated_in_stream_order_is_told_with_its_stream(mixed):
    rows = rows_of(mixed, RecordKind.MEMORY2, "isAsync", "memoryOperationType", "bytes", "streamId", "address")
    (made, freed) = [row for row in rows if row[0]]
    assert (made[1:4], freed[1:4]) == ((MemoryOperation.ALLOCATION, 1 << 20, 13), (MemoryOperation.RELEASE, 1 << 20, 13))
    assert made[4] == freed[4]


def test_green_contexts_have_their_sms_in_either_form(green):
    if RecordKind.GREEN_CONTEXT in green.columns:
        rows = rows_of(green, RecordKind.GREEN_CONTEXT, "contextId", "numMultiprocessors")
    else:
        rows = [
            row[:2] for row in rows_of(green, RecordKind.CONTEXT, "contextId", "numMultiprocessors", "isGreenContext") if row[2]
        ]
    assert rows == [(2, 32), (3, 64)]
    columns = green.columns[KERNEL]
    for stream, context in {18: 2, 19: 3, 20: 1}.items():
        assert columns["contextId"][columns["streamId"] == stream].tolist() == [context] * 3
    # A quarter of the card takes longer for the same work.
    took_ns = {n: durations_ns(columns)[(columns["gridX"] == 8192) & (columns["streamId"] == n)][0] for n in (18, 19)}
    assert took_ns[18] > 1.5 * took_ns[19]


def test_launches_and_kernels_come_in_turn():
    (data,) = read_buffers("launches", 130001)
    records = parse_buffer(data, layouts=find_layouts(130001))
    kernels, calls = records.columns[KERNEL], records.columns[RecordKind.DRIVER]
    assert records.counts == {RecordKind.DRIVER: 234, KERNEL: 234}
    assert records.skipped_bytes == 96  # the file was cut within a kernel
    assert kernels["correlationId"].tolist() == calls["correlationId"].tolist()
    assert (calls["start"] < kernels["start"]).all()
    assert ((durations_ns(kernels) >= 500) & (durations_ns(kernels) < 1_000)).all()


def test_names_are_where_the_records_say():
    names, records = read_names(), read_records("mixed", 130001)
    short = [short_name(demangle(names[address])) for address in records.columns[KERNEL]["name"].tolist()]
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
