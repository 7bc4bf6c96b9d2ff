from __future__ import annotations

import copy
import pickle
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from gpustreamlab import load_trace
from gpustreamlab.errors import TraceError, TraceFileError
from gpustreamlab.model import (
    SCHEMA_VERSION,
    Device,
    TraceMetadata,
    table_to_trace,
    write_file_whole,
)
from tests.helpers.files import CHECKSUM_KEY, COUNTERS_KEY, EDGES_KEY, METADATA_KEY, rewrite
from tests.helpers.traces import make_trace
from tests.unit.model.equality import assert_same_trace
from tests.unit.model.strategies import traces

FRESH = TraceMetadata(backend="sim", device=Device(name="demo", sm_count=4))


@pytest.fixture
def trace():
    spans = [("compute", "step", 0, 1_000), ("compute", "名前 </script>", 500, 900, {"parent": 0, "queued_ns": 0})]
    return make_trace(spans, extra={"size_bytes": [1, 2]}, device=FRESH.device)


@pytest.fixture
def path(trace, tmp_path):
    trace.save(str(tmp_path / "run.parquet"))
    return tmp_path / "run.parquet"


@settings(max_examples=25, deadline=None)
@given(traces())
def test_parquet_round_trip_is_exact(tmp_path_factory, trace):
    path = tmp_path_factory.mktemp("trace") / "run.parquet"

    trace.save(path)

    assert_same_trace(load_trace(path), trace)


DAMAGED = {
    "truncated at the end": lambda data: data[:-1],
    "truncated in the middle": lambda data: data[: len(data) // 2],
    "corrupted inside": lambda data: data[:4] + bytes(byte ^ 0xFF for byte in data[4:-8]) + data[-8:],
    "corrupted footer": lambda data: data[:-200] + bytes(192) + data[-8:],
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_named_in_the_error(path, damage):
    path.write_bytes(damage(path.read_bytes()))

    with pytest.raises(TraceFileError, match=r"run\.parquet.*cannot be read as a trace.*save it again") as caught:
        load_trace(path)

    assert caught.value.__cause__ is not None


def test_a_flipped_bit_is_noticed_or_changes_nothing(trace, path):
    data = path.read_bytes()
    loaded = 0
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    last = (column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size - 1
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    of_rows = 8 * data.find(METADATA_KEY, footer)  # how many a group of them has stands right before
    anywhere = random.Random(7).sample(range(footer * 8, len(data) * 8), 30)
    for bit in (8 * last, *range(of_rows - 15 * 8, of_rows), *anywhere):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            again = load_trace(path)
        except TraceFileError:
            continue
        loaded += 1
        assert_same_trace(again, trace)
    assert loaded < 100


def test_metadata_that_was_changed_without_its_checksum_is_refused(trace):
    table = pa.table(trace)
    metadata = dict(table.schema.metadata)
    metadata[METADATA_KEY] = metadata[METADATA_KEY].replace(b"demo", b"memo")

    with pytest.raises(TraceError, match=r"checksum of its metadata is wrong.*lab\.trace\.save"):
        table_to_trace(table.replace_schema_metadata(metadata))

    del metadata[CHECKSUM_KEY]  # as older versions wrote it
    assert table_to_trace(table.replace_schema_metadata(metadata)).metadata.device.name == "memo"


WRONG_CONTENTS = {
    "newer schema": ({"schema_version": SCHEMA_VERSION + 1}, r"schema version 4.*pip install --upgrade gpustreamlab"),
    "lanes are no list": ({"lanes": 7}, r"cannot be read as a trace"),
    "a lane is no object": ({"lanes": ["compute"]}, r"cannot be read as a trace"),
    "the version is no number": ({"schema_version": "one"}, r"cannot be read as a trace"),
    "metadata is null": ({"metadata": None}, r"cannot be read as a trace"),
    "no metadata of ours": ({METADATA_KEY: None}, r"holds no gpustreamlab metadata"),
    "edges are garbage": ({EDGES_KEY: b"!!!!"}, r"cannot be read"),
    "counters are garbage": ({COUNTERS_KEY: b"AAAA"}, r"cannot be read"),
    "a column is missing": ({"queued_ns": None}, r"lacks the columns \['queued_ns'\]"),
    "an extra column is missing": ({"size_bytes": None}, r"size_bytes"),
    "nulls among the numbers": ({"start_ns": [0, None]}, r"1 nulls"),
    "times as text": ({"start_ns": ["0", "500"]}, r"'start_ns'"),
    "lists as times": ({"start_ns": [[0], [1]]}, r"'start_ns' holds list"),
    "numbers as names": ({"name": [0, 1]}, r"holds int64, not text"),
    "a name that no table holds": ({"name": ["step", "stranger"]}, r"'stranger'"),
    "a span that ends too early": ({"end_ns": [-1, 900]}, r"Span 0 ends at -1 ns"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG_CONTENTS.values(), ids=WRONG_CONTENTS)
def test_a_parquet_file_that_is_no_trace_is_refused(path, changes, message):
    def change(table, facts, metadata):
        for name, value in changes.items():
            if isinstance(name, bytes):
                metadata[name] = value
                if value is None:
                    del metadata[name]
            elif name not in table.column_names:
                facts[name] = value
            else:
                place = table.column_names.index(name)
                table = table.remove_column(place) if value is None else table.set_column(place, name, pa.array(value))
        return table

    rewrite(path, change)
    with pytest.raises(TraceFileError, match=message):
        load_trace(path)


def test_an_older_file_loads_through_defaults(trace, path):
    # GIVEN a file without what later versions added, and with a field that only they know

    def make_old(table, facts, metadata):
        facts["schema_version"] = 0
        for name in ("host_error_ns", "pending_spans", "title", "schema_version", "dropped_markers"):
            del facts["metadata"][name]
        del facts["markers"]
        facts["metadata"]["from_the_future"] = 1
        del facts["lanes"][0]["priority"]
        del metadata[EDGES_KEY], metadata[COUNTERS_KEY]

    rewrite(path, make_old)

    # WHEN it is loaded
    loaded = load_trace(path)

    # THEN the defaults stand in
    assert_same_trace(loaded, trace)


def test_a_link_is_followed_and_a_mode_is_kept(trace, tmp_path):
    target, link = tmp_path / "run.parquet", tmp_path / "link.parquet"
    target.write_bytes(b"old")
    target.chmod(0o600)
    link.symlink_to(target)

    trace.save(link)

    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o600
    assert len(load_trace(target)) == len(trace)


def test_a_trace_can_be_copied_and_pickled(trace):
    for twin in (pickle.loads(pickle.dumps(trace)), copy.deepcopy(trace)):
        assert_same_trace(twin, trace)
        assert not twin.start_ns.flags.writeable


UNWRITABLE = [
    "missing/run.parquet",
    "file/run.parquet",
    "folder.parquet",
    "x" * 300 + ".parquet",
    "/dev/null",
    None,
    "a\0b",
    "",
]


@pytest.mark.parametrize("place", UNWRITABLE, ids=str)
def test_an_unwritable_path_is_named(trace, tmp_path, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.parquet").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(TraceFileError, match=r"cannot be written: .*Give a path in a writable folder") as caught:
        trace.save(tmp_path / place if place else place)
    assert isinstance(caught.value, OSError)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("raised", "told"), [(OSError(28, "No space left"), TraceFileError), (KeyboardInterrupt(), KeyboardInterrupt)]
)
def test_a_save_that_fails_or_is_interrupted_leaves_the_old_file(tmp_path, raised, told):
    path = tmp_path / "run.parquet"
    path.write_text("old")

    def write_half(partial):
        partial.write_text("half of the ne")
        raise raised

    with pytest.raises(told):
        write_file_whole(path, write_half)
    assert path.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["run.parquet"]


def test_a_new_file_has_the_usual_mode_and_is_written_where_nobody_else_can_put_a_link(tmp_path):
    def write(partial):
        assert partial.parent.stat().st_mode & 0o777 == 0o700
        assert not partial.is_symlink()
        partial.touch()

    tmp_path.chmod(0o777)
    write_file_whole(tmp_path / "run.parquet", write)
    (tmp_path / "usual").touch()
    assert (tmp_path / "run.parquet").stat().st_mode == (tmp_path / "usual").stat().st_mode
