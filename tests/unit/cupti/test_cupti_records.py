"""What was written into a buffer comes back as columns."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.backends.cuda.cupti._layouts import VERSIONS, RecordKind, copy_name, find_layouts
from gpustreamlab.backends.cuda.cupti._records import concat_records, parse_buffer
from scripts import fuzz_cupti_parser
from tests.helpers.cupti_buffers import build_buffer, random_buffer, read_slowly
from tests.helpers.cupti_mutate import check_parse, mutated_buffer

KERNEL, API = RecordKind.CONCURRENT_KERNEL, RecordKind.RUNTIME
LAYOUTS = find_layouts(130001)


def check_against_slow(data, layouts):
    """Compare every column with a reader that does one record after another."""
    records = check_parse(data, layouts)
    expected, skipped = read_slowly(data, layouts)
    assert records.record_count == len(expected)
    assert records.skipped_bytes == skipped
    for kind, table in records.columns.items():
        rows = [fields for found, fields in expected if found == kind]
        for name, column in table.items():
            wanted = [row[name] for row in rows] if name in layouts.fields[kind] else [0] * len(rows)
            assert column.tolist() == wanted
    return records


kinds_of = st.sampled_from(VERSIONS).flatmap(
    lambda version: st.tuples(
        st.just(version), st.lists(st.tuples(st.sampled_from(sorted(find_layouts(version).sizes)), st.integers(1, 40)))
    )
)


@given(kinds_of, st.integers(0, 100))
def test_any_mix_of_kinds_of_any_version_comes_back(case, seed):
    version, runs = case
    kinds = [kind for kind, count in runs for _ in range(count)]
    records = check_against_slow(random_buffer(kinds, version, seed=seed), find_layouts(version))
    assert records.counts == {kind: kinds.count(kind) for kind in sorted(set(kinds))}
    assert (records.skipped_bytes, records.unknown_kinds) == (0, {})


@pytest.mark.parametrize("version", VERSIONS)
def test_fields_of_a_kernel_come_back_in_every_version(version):
    # GIVEN a kernel with the largest and smallest values among bytes that are all set
    fields = {"start": 2**62, "end": 2**62 + 5, "gridX": 2**31 - 1, "blockX": 1024, "registersPerThread": 65535}
    fields |= {"correlationId": 2**32 - 1, "name": 2**64 - 1, "graphId": 2**31, "dynamicSharedMemory": 232448}

    # WHEN it is read
    kernels = parse_buffer(build_buffer([(KERNEL, fields)], version, filler=255), layouts=find_layouts(version)).columns[KERNEL]

    # THEN each field is what was written
    assert {name: kernels[name][0] for name in fields} == fields
    assert (kernels["name"].dtype, kernels["start"].dtype) == (np.uint64, np.int64)


def test_field_that_a_version_lacks_is_zero():
    fields = {"contextId": 7, "nullStreamId": 3}
    contexts = parse_buffer(build_buffer([(9, fields)] * 2, 18, filler=255), layouts=find_layouts(18)).columns[9]
    assert contexts["contextId"].tolist() == [7, 7]
    assert contexts["isGreenContext"].tolist() == [0, 0]
    assert contexts["numMultiprocessors"].dtype == np.uint16


CALL = [(API, {})]
ENDS = {
    "unknown kind": (np.append(build_buffer(CALL), np.full(8, 200, np.uint8)), 1, 8, {200: 1}),
    "zeros": (np.zeros(4096, np.uint8), 0, 4096, {0: 1}),
    "empty": (np.empty(0, np.uint8), 0, 0, {}),
    **{f"cut after {left}": (build_buffer(CALL * 3)[: 80 + left], 2, left, {}) for left in (1, 7, 8, 39)},
}


@pytest.mark.parametrize(("data", "count", "skipped", "unknown"), ENDS.values(), ids=ENDS)
def test_reading_ends_where_nothing_is_known_or_a_record_is_cut_off(data, count, skipped, unknown):
    records = parse_buffer(data, layouts=LAYOUTS)
    assert (records.record_count, records.skipped_bytes, records.unknown_kinds) == (count, skipped, unknown)


def test_columns_do_not_keep_the_buffer_wherever_it_lies():
    data = random_buffer([5, 10] * 300 + [10] * 300)
    frozen = data.copy()
    frozen.flags.writeable = False
    others = (np.repeat(data, 2)[::2], np.concatenate([data[:3], data])[3:], frozen)
    tables = [check_parse(other, LAYOUTS).columns[10] for other in others]
    expected = parse_buffer(data, layouts=LAYOUTS).columns[10]
    data[:] = 0
    assert expected["start"].any()
    for table in tables:
        assert all((table[name] == column).all() for name, column in expected.items())


def test_buffers_are_put_behind_each_other():
    parts = [[5, 10, 10], [], [1], [10] * 5, [10, 11]]
    buffers = [random_buffer(kinds, seed=seed) for seed, kinds in enumerate(parts)]
    buffers[2] = np.concatenate([buffers[2], np.full(16, 99, np.uint8)])
    total = concat_records([parse_buffer(data, layouts=LAYOUTS) for data in buffers])
    separate = [parse_buffer(data, layouts=LAYOUTS).columns for data in buffers]
    starts = [start for columns in separate if 10 in columns for start in columns[10]["start"].tolist()]
    assert total.columns[10]["start"].tolist() == starts
    assert total.counts == {1: 1, 5: 1, 10: 8, 11: 1}
    assert (total.skipped_bytes, total.unknown_kinds) == (16, {99: 1})
    assert concat_records([]).record_count == 0


def test_five_hundred_broken_buffers_are_read_as_the_slow_reader_does():
    rng = np.random.default_rng(6)
    for _ in range(500):
        data, layouts = mutated_buffer(rng)
        if data.size < 20_000:
            check_against_slow(data, layouts)
    result = fuzz_cupti_parser.run_batch(40, seed=1)
    assert result["buffers"] == 40
    assert result["records"] > 0


@pytest.mark.parametrize("kinds", [[9] * 60_000, [9, 39] * 40_000, [5, 10] * 8_000], ids=["smallest", "in turn", "kernels"])
def test_memory_stays_below_a_few_times_the_buffer(kinds):
    data = random_buffer(kinds, 18)
    tracemalloc.start()
    parse_buffer(data, layouts=find_layouts(18))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * data.size


@pytest.mark.parametrize(
    ("numbers", "name"),
    [
        ((1, 2, 3), "memcpy HtoD (pinned)"),
        ((2, 3, 2), "memcpy DtoH (pinned)"),
        ((8, 3, 3), "memcpy DtoD"),
        ((8, 5, 5), "memcpy DtoD (managed)"),
        ((8, 0, 3), "memcpy DtoD (unknown to device)"),
        ((9, 2, 2), "memcpy HtoH (pinned)"),
        ((1, 0, 3), "memcpy HtoD"),
        ((3, 2, 4), "memcpy HtoA (pinned)"),
        ((0, 0, 0), "memcpy"),
        ((255, 255, 255), "memcpy"),
    ],
)
def test_copies_are_named_as_profilers_do(numbers, name):
    assert copy_name(*numbers) == name
