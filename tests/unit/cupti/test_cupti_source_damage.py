"""Records that are incomplete, senseless, too many, or out of time."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from gpustreamlab.backends import EVERY_STREAM, THE_HOST
from gpustreamlab.backends.cuda.cupti import _source as _cupti_source
from gpustreamlab.backends.cuda.cupti._buffers import COMPILERS, ActivityBuffers
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import SpanKind
from tests.helpers.captured import drain_all, keep_for, kernels_of
from tests.helpers.fake_cupti import (
    MALLOC,
    SYNCHRONIZE,
    FakeCard,
    FakeCuptiLibrary,
    make_source,
)
from tests.helpers.recorded_buffers import MIXED, read_buffers


def test_incomplete_kernels_are_counted_as_dropped_and_work_of_other_devices_left_out(card, source):
    source.start()
    card.kernel(start=0)
    card.kernel(end=5)
    card.kernel("fine")
    card.kernel(start=0, deviceId=1)
    card.kernel("theirs", deviceId=1)

    assert [name for name, *_ in kernels_of(drain_all(source, card))] == ["fine"]
    assert source.dropped_count == 2


def test_records_that_cupti_drops_are_counted_also_at_the_end(card, source):
    source.start()
    card.library.dropped_count = 3
    drain_all(source, card)
    source.stop()
    card.library.dropped_count = 4
    source.drain(is_last=True)

    assert source.dropped_count == 7


def test_bytes_that_make_no_sense_are_counted_and_logged(card, source, caplog):
    source.start()
    card.library.emit_raw(np.full(64, 200, np.uint8))
    card.advance(200_000_000)
    done = source.drain()

    assert len(done.work) == 0
    assert source.dropped_count == 1
    assert "bytes that cannot be read: {200: 1}" in caplog.text


@pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="there is no C compiler")
def test_more_records_than_buffers_are_dropped_and_counted(monkeypatch, card):
    source = make_source(monkeypatch, card)
    monkeypatch.setattr(_cupti_source.SHARING, "_buffers", [ActivityBuffers(buffer_bytes=4096, buffer_limit=2)])
    source.start()
    for _ in range(100):
        card.kernel()

    told = len(kernels_of(drain_all(source, card)))

    assert 0 < told < 100
    # Calls and kernels are dropped alike; the anchor's two records may be among them.
    assert source.dropped_count >= 100 - told


@pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="there is no C compiler")
@pytest.mark.parametrize(("version", "is_refused"), [(26, False), (27, True)])
def test_before_12_9_nobody_is_refused_a_buffer_and_what_is_lost_is_counted(monkeypatch, version, is_refused):
    card = FakeCard(FakeCuptiLibrary(version))
    source = make_source(monkeypatch, card)
    monkeypatch.setattr(_cupti_source.SHARING, "_buffers", [ActivityBuffers(buffer_bytes=4096, buffer_limit=2)])
    source.start()
    for _ in range(100):
        card.kernel()

    told = len(kernels_of(drain_all(source, card)))

    assert 0 < told < 100
    assert source.dropped_count >= 100 - told
    assert card.library.was_refused == is_refused


def test_work_before_the_first_anchor_is_held_until_it_can_be_placed(card, source):
    card.is_slow = True
    source.start()
    card.is_slow = False
    began_ns = card.kernel()
    card.is_stuck = True

    early = source.drain()
    card.is_stuck = False
    (done,) = drain_all(source, card, 1)

    assert len(early.work) == 0
    assert abs(int(done.work.start_ns[0]) - began_ns) <= source.error_ns


def test_work_that_can_never_be_placed_is_dropped(card, source):
    card.is_stuck = True
    source.start()
    card.kernel()
    source.stop()

    assert len(source.drain(is_last=True).work) == 0
    assert source.dropped_count > 0


@pytest.mark.parametrize("version", MIXED)
def test_recorded_buffers_become_work_and_calls(monkeypatch, version):
    card = FakeCard(FakeCuptiLibrary(version))
    source = make_source(monkeypatch, card)
    source.start()
    for data in read_buffers("mixed", version):
        card.library.emit_raw(data)
    card.advance(8_000_000_000)  # by then all of them are past

    # The names' addresses are those of another process: they cannot be read, or are anything.
    done = source.drain()

    kinds = [SPAN_KINDS[kind] for kind in done.work.kind.tolist()]
    assert kinds.count(SpanKind.KERNEL) == 21
    assert sorted(done.work.size_bytes[[kind is SpanKind.COPY for kind in kinds]].tolist()) == [4 << 20] * 2
    assert sorted(done.work.size_bytes[[kind is SpanKind.FILL for kind in kinds]].tolist()) == [8, 1024, 1024, 1024]
    assert sum(done.details[code].graph == 2 for code in done.work.detail.tolist()) == 4
    assert "memcpy HtoD (pageable)" in done.names
    # Every launch that ran something is among the calls; the three waits of the second stream are dependencies.
    assert set(done.work.correlation.tolist()) <= set(done.calls.correlation.tolist())
    waits = done.dependencies
    by_host = waits.target_stream == THE_HOST
    assert waits.source_stream[~by_host].tolist() == [13] * 3
    called = {number: done.names[name] for number, name in zip(*_lists(done.calls.correlation, done.calls.name), strict=True)}
    blocked = [
        (called[number], stream)
        for number, stream in zip(*_lists(waits.wait[by_host], waits.source_stream[by_host]), strict=True)
    ]
    assert blocked[:6] == [("cudaEventSynchronize", 13)] * 3 + [("cudaStreamSynchronize", 14)] * 3
    assert blocked[6:] == [("cudaDeviceSynchronize", EVERY_STREAM)] * (version > 100_000)
    assert waits.target_stream[~by_host].tolist() == [14] * 3
    assert len(done.annotations) == 6
    assert (done.calls.size_bytes == 1 << 20).sum() == 2


def test_records_that_wait_for_the_first_anchor_are_bounded(monkeypatch, card, source):
    monkeypatch.setattr(_cupti_source, "HELD_RECORDS", 100)
    card.is_stuck = True
    source.start()
    held = []
    for _ in range(20):
        for _ in range(10):
            card.kernel()
        drain_all(source, card, 1)
        held.append(sum(records.record_count for records in source._held))
    card.is_stuck = False
    parts = drain_all(source, card, 2)
    source.stop()
    parts.append(source.drain(is_last=True))

    assert max(held) <= 100
    told = sum(len(part.work) for part in parts)
    assert 0 < told < 200
    assert source.dropped_count >= 200 - told


@pytest.mark.parametrize("step_ns", [1_000_000_000, -1_000_000_000, 60_000])
def test_a_call_is_placed_by_the_wall_clock_of_its_own_time(card, source, caplog, step_ns):
    source.start()
    drain_all(source, card)
    keep_for(source, card, 1e9)
    card.advance(1e9)
    source.keep_up()
    if step_ns > 0:
        card.advance(50_000)
        before_ns = card.now_ns
        card.call(MALLOC)
    card.wall_step_ns = step_ns
    card.advance(100_000_000)
    after_ns = card.now_ns
    card.call(SYNCHRONIZE)
    parts = [*drain_all(source, card, 1), *keep_for(source, card, 10e9)]
    told = {
        part.names[name]: start
        for part in parts
        for name, start in zip(part.calls.name.tolist(), part.calls.start_host_ns.tolist(), strict=True)
    }

    assert abs(told["cuStreamSynchronize"] - after_ns) < 5_000
    assert step_ns < 0 or abs(told["cuMemAlloc"] - before_ns) < 5_000
    assert caplog.text.count("The wall clock was set by") == 1
    assert set(told) <= {"cuStreamSynchronize", "cuMemAlloc"}  # own calls are known all the same


def test_numbers_of_calls_go_on_beyond_32_bits(card, source):
    card.correlation = 2**32 - 30
    source.start()
    parts = []
    for _ in range(20):
        card.advance(50_000)
        card.kernel()
        parts += drain_all(source, card, 1)

    work = np.concatenate([part.work.correlation for part in parts])
    calls = np.concatenate([part.calls.correlation for part in parts])
    assert (np.diff(work) > 0).all()
    assert work.max() > 2**32
    assert set(work.tolist()) == set(calls.tolist())


def test_numbers_of_calls_that_begin_anew_do_not_come_twice(card, source):
    numbers = []
    for _ in range(3):
        card.correlation = 1_000
        source.start()
        card.advance(50_000)
        card.kernel()
        parts = drain_all(source, card)
        source.stop()
        parts.append(source.drain(is_last=True))
        numbers += [number for part in parts for number in part.work.correlation.tolist()]
        assert {n for part in parts for n in part.calls.correlation.tolist()} == {numbers[-1]}

    assert len(set(numbers)) == 3
    assert numbers == sorted(numbers)


def test_the_sessions_clock_is_kept_without_a_stretch_of_own_calls(card, source):
    source.start()
    before = len(source._own_calls._stretches)
    keep_for(source, card, 10e9)

    # The first anchors, and then one a second.
    assert len(source._own_calls._stretches) - before <= 20


def _lists(*columns):
    return [column.tolist() for column in columns]
