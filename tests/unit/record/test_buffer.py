"""The ring of finished spans."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.errors import OptionError
from gpustreamlab.record import RowRing
from gpustreamlab.record._buffer import SPAN_COLUMNS


def columns(first, count):
    return {name: np.arange(first, first + count, dtype=np.int64) * (place + 1) for place, name in enumerate(SPAN_COLUMNS)}


@given(
    ring_size=st.integers(1, 50), blocks=st.lists(st.integers(0, 30), max_size=20), reads=st.lists(st.booleans(), max_size=20)
)
def test_a_reader_sees_every_span_once_or_is_told_how_many_it_missed(ring_size, blocks, reads):
    buffer = RowRing(ring_size)
    appended = cursor = missed = 0
    seen = []
    for block, is_read in zip(blocks, [*reads, *[True] * len(blocks)], strict=False):
        buffer.append(columns(appended, block))
        appended += block
        if is_read:
            drained = buffer.read(cursor)
            cursor, missed = drained.cursor, missed + drained.missed
            seen += drained.columns["start_ns"].tolist()
            assert all(len(values) == len(drained.columns["start_ns"]) for values in drained.columns.values())
    drained = buffer.read(cursor)
    seen += drained.columns["start_ns"].tolist()
    missed += drained.missed
    assert len(seen) + missed == appended
    assert seen == sorted(set(seen))
    assert seen[-ring_size:] == list(range(appended))[-ring_size:][-len(seen[-ring_size:]) :]


@given(ring_size=st.integers(1, 50), blocks=st.lists(st.integers(0, 30), max_size=20))
def test_the_newest_stay_and_the_rest_is_counted(ring_size, blocks):
    buffer = RowRing(ring_size)
    appended = 0
    for block in blocks:
        buffer.append(columns(appended, block))
        appended += block
    kept = buffer.read().columns["start_ns"].tolist()
    assert kept == list(range(appended))[-ring_size:]
    assert buffer.dropped_count == appended - len(kept)


def test_memory_grows_with_use_and_not_before():
    assert RowRing(1_000_000).size_bytes < 1_000_000


@given(
    ring_size=st.integers(1, 9_000),
    before=st.lists(st.integers(0, 9_000), max_size=4),
    after=st.lists(st.integers(0, 30), max_size=9),
)
def test_clearing_gives_the_memory_back_and_append_indices_go_on(ring_size, before, after):
    # GIVEN a buffer that has grown
    buffer, appended = RowRing(ring_size), 0
    for block in before:
        buffer.append(columns(appended, block))
        appended += block

    # WHEN it is cleared, THEN it holds nothing
    cleared = appended
    buffer.clear()
    assert buffer.size_bytes == 0
    assert len(buffer) == buffer.dropped_count == 0

    # AND what comes later is kept as ever
    for block in after:
        buffer.append(columns(appended, block))
        appended += block
    drained = buffer.read(cleared)
    assert drained.columns["start_ns"].tolist() == list(range(cleared, appended))[-ring_size:]
    assert drained.missed == buffer.dropped_count == max(0, appended - cleared - ring_size)
    assert buffer.read().columns["start_ns"].tolist() == drained.columns["start_ns"].tolist()

    # AND in no more memory than in a new buffer
    new = RowRing(ring_size)
    for block in after:
        new.append(columns(0, block))
    assert buffer.size_bytes == new.size_bytes


def test_drained_columns_are_copies():
    buffer = RowRing(10)
    buffer.append(columns(0, 5))
    buffer.read().columns["start_ns"][:] = -1
    assert buffer.read().columns["start_ns"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("ring_size", [0, -1, True, 1.5, "10"])
def test_a_ring_of_no_size_is_refused(ring_size):
    with pytest.raises(OptionError, match="ring_size"):
        RowRing(ring_size)
