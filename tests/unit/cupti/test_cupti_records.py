"""What was written into a buffer comes back as columns."""

from __future__ import annotations

import tracemalloc
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.backends.cuda.cupti import _records as _cupti_records
from gpustreamlab.backends.cuda.cupti._constants import RecordKind
from gpustreamlab.backends.cuda.cupti._layouts import VERSIONS, find_layouts
from gpustreamlab.backends.cuda.cupti._records import PLACE, concat_records, parse_buffer
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
            wanted = [row[name] for row in rows] if name in {*layouts.fields[kind], PLACE} else [0] * len(rows)
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


@pytest.mark.parametrize(
    "kinds",
    [
        [10] * 3000,
        [5, 10] * 700,
        [4, 5] * 1500,
        [5] * 600 + [10] * 600 + [5] * 600 + [1],
        [5, 10, 1] * 400 + [10] * 2000 + [9, 9, 36] * 30,
        ([10] * 127 + [5] * 128) * 5,
    ],
    ids=["one run", "two in turn", "two of one size", "runs", "mixed", "short runs"],
)
def test_long_buffers_come_back(kinds):
    check_against_slow(random_buffer(kinds), LAYOUTS)


@pytest.mark.parametrize("version", VERSIONS)
def test_fields_of_a_kernel_come_back_in_every_version(version):
    # GIVEN a kernel with the largest and smallest values among bytes that are all set
    fields = {"start": 2**62, "end": 2**62 + 5, "gridX": 2**31 - 1, "blockX": 1024, "registersPerThread": 65535}
    fields |= {"correlationId": 2**32 - 1, "name": 2**64 - 1, "graphNodeId": 2**63, "dynamicSharedMemory": 232448}

    # WHEN it is read
    kernels = parse_buffer(build_buffer([(KERNEL, fields)], version, filler=255), find_layouts(version)).columns[KERNEL]

    # THEN each field is what was written
    assert {name: kernels[name][0] for name in fields} == fields
    assert kernels["name"].dtype == np.uint64
    assert kernels["start"].dtype == np.int64


def test_field_that_a_version_lacks_is_zero():
    fields = {"contextId": 7, "deviceId": 1, "nullStreamId": 3}
    contexts = parse_buffer(build_buffer([(9, fields)] * 2, 18, filler=255), find_layouts(18)).columns[9]
    assert contexts["contextId"].tolist() == [7, 7]
    assert contexts["isGreenContext"].tolist() == [0, 0]
    assert contexts["numMultiprocessors"].dtype == np.uint16


def test_mask_of_a_green_context_is_one_row_each():
    masks = [list(range(32)), [2**32 - 1] * 32]
    records = [(59, {"logicalTpcMask": mask, "numTpcs": 5}) for mask in masks]
    for version in (130200, 130202, 130500):
        table = parse_buffer(build_buffer(records, version), find_layouts(version)).columns[59]
        assert table["logicalTpcMask"].tolist() == masks


def test_unknown_kind_ends_the_buffer():
    data = build_buffer([(API, {}), (API, {}), (KERNEL, {})])
    data[40] = 200
    records = parse_buffer(data, LAYOUTS)
    assert (records.record_count, records.unknown_kinds, records.skipped_bytes) == (1, {200: 1}, data.size - 40)


@pytest.mark.parametrize("kind", [0x10A, 0x100, 0x0A00000A, 0xFFFFFFFF])
def test_kind_with_a_known_low_byte_is_unknown(kind):
    data = build_buffer([(KERNEL, {})] * 500)
    data.view("<u4")[300 * 216 // 4] = kind
    records = check_parse(data, LAYOUTS)
    assert (records.record_count, records.unknown_kinds) == (300, {kind: 1})


@pytest.mark.parametrize("left", [1, 3, 4, 7, 8, 100, 215])
def test_record_that_is_cut_off_is_counted(left):
    records = parse_buffer(build_buffer([(KERNEL, {})] * 3)[: 432 + left], LAYOUTS)
    assert (records.record_count, records.skipped_bytes, records.unknown_kinds) == (2, left, {})


def test_empty_buffer_holds_nothing():
    records = parse_buffer(np.empty(0, np.uint8), LAYOUTS)
    assert (records.record_count, records.skipped_bytes, dict(records.columns)) == (0, 0, {})


def test_zeros_are_not_records():
    assert parse_buffer(np.zeros(4096, np.uint8), LAYOUTS).unknown_kinds == {0: 1}


def test_columns_do_not_keep_the_buffer():
    data = random_buffer([10] * 100 + [5, 10] * 50)
    records = parse_buffer(data, LAYOUTS)
    before = {kind: table["start"].copy() for kind, table in records.columns.items()}
    data[:] = 0
    assert all((records.columns[kind]["start"] == start).all() for kind, start in before.items())


def test_buffer_that_is_read_only_strided_or_misaligned_is_read():
    data = random_buffer([5, 10] * 300 + [10] * 300)
    expected = parse_buffer(data, LAYOUTS).columns[10]
    twice = np.repeat(data, 2)[::2]
    shifted = np.concatenate([data[:3], data])[3:]
    frozen = data.copy()
    frozen.flags.writeable = False
    for other in (twice, shifted, frozen):
        table = check_parse(other, LAYOUTS).columns[10]
        assert all((table[name] == column).all() for name, column in expected.items())


def test_buffers_are_put_behind_each_other():
    parts = [[5, 10, 10], [], [1], [10] * 5, [10, 11]]
    buffers = [random_buffer(kinds, seed=seed) for seed, kinds in enumerate(parts)]
    buffers[2] = np.concatenate([buffers[2], np.full(16, 99, np.uint8)])
    total = concat_records([parse_buffer(data, LAYOUTS) for data in buffers])
    separate = [parse_buffer(data, LAYOUTS).columns for data in buffers]
    starts = [start for columns in separate if 10 in columns for start in columns[10]["start"].tolist()]
    assert total.columns[10]["start"].tolist() == starts
    assert total.counts == {1: 1, 5: 1, 10: 8, 11: 1}
    assert (total.skipped_bytes, total.unknown_kinds) == (16, {0x63636363: 1})


def test_no_buffers_hold_nothing():
    total = concat_records([])
    assert (total.record_count, dict(total.columns), total.skipped_bytes) == (0, {}, 0)


def test_two_thousand_broken_buffers_are_read():
    rng = np.random.default_rng(5)
    read = skipped = 0
    for _ in range(2_000):
        data, layouts = mutated_buffer(rng)
        records = check_parse(data, layouts)
        read, skipped = read + records.record_count, skipped + (records.skipped_bytes > 0)
    assert read > 10_000
    assert skipped > 1_000


def test_fuzz_batch_counts_what_it_did():
    result = fuzz_cupti_parser.run_batch(40, seed=1)
    assert result["buffers"] == 40
    assert 0 < result["cut"] <= 40
    assert result["records"] > 0
    summary = fuzz_cupti_parser._summary([result, result], [7])
    assert (summary["buffers"], summary["slowest_ms"], summary["failed_seeds"]) == (80, result["slowest_ms"], [7])


@given(st.binary(max_size=600), st.sampled_from(VERSIONS))
def test_any_bytes_are_read_as_the_slow_reader_does(raw, version):
    check_against_slow(np.frombuffer(raw, np.uint8), find_layouts(version))


def test_five_hundred_broken_buffers_are_read_as_the_slow_reader_does():
    rng = np.random.default_rng(6)
    for _ in range(500):
        data, layouts = mutated_buffer(rng)
        if data.size < 20_000:
            check_against_slow(data, layouts)


@pytest.mark.parametrize("kinds", [[9] * 60_000, [9, 14] * 40_000, [5, 10] * 8_000], ids=["smallest", "in turn", "kernels"])
def test_memory_stays_below_a_few_times_the_buffer(kinds):
    data = random_buffer(kinds, 18)
    tracemalloc.start()
    parse_buffer(data, find_layouts(18))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * data.size


def test_every_kind_of_every_version_fits_the_walk():
    for version in VERSIONS:
        sizes = find_layouts(version).sizes
        assert all(size % 8 == 0 and 8 <= size < 8 * 256 for size in sizes.values())
        assert max(sizes) < _cupti_records._KINDS


PERIODS = {
    "call and kernel": [10, 4],
    "three": [5, 10, 36],
    "two calls, then two kernels": [4, 4, 10, 10],
    "five": [4, 10, 36, 38, 5],
    "six": [4, 10, 36, 5, 1, 38],
    "seven, which is not looked for": [4, 10, 36, 5, 1, 38, 2],
}


@pytest.mark.parametrize("every", [0, 7, 100, 1_000])
@pytest.mark.parametrize("pattern", PERIODS.values(), ids=PERIODS.keys())
def test_kinds_in_turn_are_read_also_where_others_come_between(pattern, every):
    kinds = np.resize(pattern, 3_000)
    if every:
        kinds = np.insert(kinds, np.arange(every, 3_000, every), 12)
    data = random_buffer(kinds, seed=every)

    records = check_against_slow(data[: data.size - 16], LAYOUTS)

    assert records.record_count == kinds.size - 1


def test_a_period_is_what_the_last_records_repeat():
    def period_of(sizes):
        ends = np.cumsum([0, *sizes]).tolist()
        return _cupti_records._find_period(array("I", ends[:-1]), ends[-1])

    assert period_of([27, 5, 27, 5]) == [27, 5]
    assert period_of([9, 9, 27, 5, 5, 27, 5, 5]) == [5]
    assert period_of([5, 27, 7, 5, 27, 7]) == [5, 27, 7]
    assert period_of([5, 27, 7]) == []
    assert period_of([5]) == []
