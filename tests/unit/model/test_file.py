from __future__ import annotations

import copy
import dataclasses
import pickle
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from gpustreamlab.errors import OptionError, TraceError, TraceFileError
from gpustreamlab.model import (
    SCHEMA_VERSION,
    Device,
    Layout,
    LayoutChange,
    Partition,
    Trace,
    TraceMetadata,
    WorkqueueOptions,
    write_file_whole,
)
from gpustreamlab.sinks.reading import load_trace
from tests.helpers.files import CHECKSUM_KEY, COUNTERS_KEY, EDGES_KEY, METADATA_KEY, rewrite
from tests.helpers.traces import make_trace
from tests.unit.model.equality import assert_same_trace
from tests.unit.model.strategies import traces

FRESH = TraceMetadata(backend="sim", device=Device(name="demo", sm_count=4))


@pytest.fixture
def trace():
    spans = [("compute", "step", 0, 1_000), ("compute", "名前 </script>", 500, 900, {"parent": 0, "queued_ns": 0})]
    return make_trace(spans, extra={"size_bytes": [1, 2]}, device=FRESH.device)


@settings(max_examples=25, deadline=None)
@given(traces())
def test_parquet_round_trip_is_exact(tmp_path_factory, trace):
    path = tmp_path_factory.mktemp("trace") / "run.parquet"

    trace.save(path)

    assert_same_trace(Trace.load(path), trace)


def test_path_may_be_text_or_any_path_like(trace, tmp_path):
    trace.save(str(tmp_path / "a.parquet"))

    assert_same_trace(Trace.load(str(tmp_path / "a.parquet")), trace)


def test_other_tools_read_the_spans(trace, tmp_path):
    trace.save(tmp_path / "run.parquet")

    assert pq.read_table(tmp_path / "run.parquet")["name"].to_pylist() == ["step", "名前 </script>"]


@pytest.mark.parametrize("name", ["run.json", "run.csv", "run.HTML", "run.gsl"])
def test_a_suffix_that_says_another_format_is_refused(trace, tmp_path, name):
    with pytest.raises(OptionError, match=rf"cannot be saved as '{name}'.*save\('run\.parquet'\).*\.html.*to_pandas"):
        trace.save(tmp_path / name)

    assert not list(tmp_path.iterdir())
    trace.save(tmp_path / "run.PARQUET")
    trace.save(tmp_path / "run")
    assert len(list(tmp_path.iterdir())) == 2


def test_saving_leaves_one_file(trace, tmp_path):
    trace.save(tmp_path / "run.parquet")

    assert [path.name for path in tmp_path.iterdir()] == ["run.parquet"]


def corrupt(data):
    return data[:4] + bytes(byte ^ 0xFF for byte in data[4:-8]) + data[-8:]


DAMAGED = {
    "truncated at the end": lambda data: data[:-1],
    "truncated in the middle": lambda data: data[: len(data) // 2],
    "corrupted inside": corrupt,
    "corrupted footer": lambda data: data[:-200] + bytes(192) + data[-8:],
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_named_in_the_error(trace, tmp_path, damage):
    path = tmp_path / "run.parquet"
    trace.save(path)
    path.write_bytes(damage(path.read_bytes()))

    with pytest.raises(TraceFileError, match=r"run\.parquet.*cannot be read as a trace.*save it again") as caught:
        Trace.load(path)

    assert caught.value.__cause__ is not None


NO_TRACE = {
    "nothing, as of a run that was killed": (b"", r"is empty: the run ended before anything was written"),
    "a text": (b"hello, world\n" * 100, r"is no trace: it is neither"),
    "a pickle": (b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtins\x94.", r"is no trace: it is neither"),
    "zeros": (bytes(400), r"is no trace: it is neither"),
}


@pytest.mark.parametrize(("data", "message"), NO_TRACE.values(), ids=NO_TRACE.keys())
def test_a_file_that_is_no_trace_is_not_called_damaged(tmp_path, data, message):
    path = tmp_path / "run.gsl"
    path.write_bytes(data)

    with pytest.raises(TraceFileError, match=message) as told:
        load_trace(path)

    assert "damaged" not in str(told.value)


def test_a_flipped_bit_of_the_footer_is_noticed_or_changes_nothing(trace, tmp_path):
    path = tmp_path / "run.parquet"
    trace.save(path)
    data = path.read_bytes()
    loaded = 0
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    of_rows = 8 * data.find(METADATA_KEY, footer)  # how many a group of them has stands right before
    anywhere = random.Random(7).sample(range(footer * 8, len(data) * 8), 30)
    for bit in (*range(of_rows - 15 * 8, of_rows), *anywhere):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            again = Trace.load(path)
        except TraceFileError:
            continue
        loaded += 1
        assert_same_trace(again, trace)
    assert loaded < 100


def test_metadata_that_was_changed_without_its_checksum_is_refused(trace):
    table = trace.to_arrow()
    metadata = dict(table.schema.metadata)
    metadata[METADATA_KEY] = metadata[METADATA_KEY].replace(b"demo", b"memo")

    with pytest.raises(TraceError, match=r"checksum of its metadata is wrong.*lab\.trace\.save"):
        Trace.from_arrow(table.replace_schema_metadata(metadata))

    del metadata[CHECKSUM_KEY]  # as older versions wrote it
    assert Trace.from_arrow(table.replace_schema_metadata(metadata)).metadata.device.name == "memo"


def test_every_truncation_is_an_error_of_ours(trace, tmp_path):
    path = tmp_path / "run.parquet"
    trace.save(path)
    data = path.read_bytes()

    for size in range(0, len(data), 97):
        path.write_bytes(data[:size])
        with pytest.raises(TraceFileError):
            Trace.load(path)


def test_a_flipped_bit_among_the_columns_is_noticed(trace, tmp_path):
    # GIVEN a saved trace, whose pages carry checksums
    path = tmp_path / "run.parquet"
    trace.save(path)
    data = path.read_bytes()
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    place = column.dictionary_page_offset or column.data_page_offset
    last = place + column.total_compressed_size - 1

    # WHEN one bit of a column's last page changes
    path.write_bytes(data[:last] + bytes([data[last] ^ 1]) + data[last + 1 :])

    # THEN it is not loaded
    with pytest.raises(TraceFileError, match="cannot be read as a trace"):
        Trace.load(path)


def set_fact(name, value):
    def change(table, facts, metadata):
        facts[name] = value

    return change


def drop_key(key):
    def change(table, facts, metadata):
        del metadata[key]

    return change


def drop_column(name):
    return lambda table, facts, metadata: table.drop_columns([name])


def replace_column(name, values):
    return lambda table, facts, metadata: table.set_column(table.column_names.index(name), name, pa.array(values))


def set_raw(key, value):
    def change(table, facts, metadata):
        metadata[key] = value

    return change


WRONG_CONTENTS = {
    "newer schema": (set_fact("schema_version", SCHEMA_VERSION + 1), r"schema version 4.*pip install --upgrade gpustreamlab"),
    "no metadata of ours": (drop_key(METADATA_KEY), r"holds no gpustreamlab metadata"),
    "a column is missing": (drop_column("queued_ns"), r"lacks the columns \['queued_ns'\]"),
    "an extra column is missing": (drop_column("size_bytes"), r"size_bytes"),
    "nulls among the numbers": (replace_column("start_ns", [0, None]), r"1 nulls"),
    "times as text": (replace_column("start_ns", ["0", "500"]), r"'start_ns'"),
    "a name that no table holds": (replace_column("name", ["step", "stranger"]), r"'stranger'"),
    "a span that ends too early": (replace_column("end_ns", [-1, 900]), r"Span 0 ends at -1 ns"),
    "lanes are no list": (set_fact("lanes", 7), r"cannot be read as a trace"),
    "a lane is no object": (set_fact("lanes", ["compute"]), r"cannot be read as a trace"),
    "a lane without a name": (set_fact("lanes", [{}]), r"cannot be read as a trace"),
    "the version is no number": (set_fact("schema_version", "one"), r"cannot be read as a trace"),
    "the version is null": (set_fact("schema_version", None), r"cannot be read as a trace"),
    "metadata is null": (set_fact("metadata", None), r"cannot be read as a trace"),
    "edges are garbage": (set_raw(EDGES_KEY, b"!!!!"), r"cannot be read as a trace"),
    "counters are garbage": (set_raw(COUNTERS_KEY, b"AAAA"), r"cannot be read as a trace"),
}


@pytest.mark.parametrize(("change", "message"), WRONG_CONTENTS.values(), ids=WRONG_CONTENTS.keys())
def test_a_parquet_file_that_is_no_trace_is_refused(trace, tmp_path, change, message):
    path = tmp_path / "run.parquet"
    trace.save(path)
    rewrite(path, change)

    with pytest.raises(TraceFileError, match=message):
        Trace.load(path)


def test_metadata_that_is_no_json_is_refused(trace, tmp_path):
    path = tmp_path / "run.parquet"
    table = trace.to_arrow().replace_schema_metadata({METADATA_KEY: b"{not json"})
    pq.write_table(table, path)

    with pytest.raises(TraceFileError, match="cannot be read as a trace"):
        Trace.load(path)


def test_an_older_file_loads_through_defaults(trace, tmp_path):
    # GIVEN a file without what later versions added, and with a field that only they know
    path = tmp_path / "run.parquet"
    trace.save(path)

    def make_old(table, facts, metadata):
        facts["schema_version"] = 0
        for name in ("host_error_ns", "pending_spans", "title", "schema_version"):
            del facts["metadata"][name]
        facts["metadata"]["from_the_future"] = 1
        del facts["lanes"][0]["priority"]
        del metadata[EDGES_KEY], metadata[COUNTERS_KEY]

    rewrite(path, make_old)

    # WHEN it is loaded
    loaded = Trace.load(path)

    # THEN the defaults stand in
    assert_same_trace(loaded, trace)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TraceFileError, match=r"no trace file at .*gone\.parquet.*lab\.trace\.save"):
        Trace.load(tmp_path / "gone.parquet")


def test_a_file_of_version_1_has_no_partitions(trace, tmp_path):
    # GIVEN a file as the version without partitions wrote it
    path = tmp_path / "run.parquet"
    old = Layout(partitions=(Partition(name="a", requested_sms=90, granted_sms=96, groups=(0, 1)),), remainder_sms=36)
    dataclasses.replace(trace, layout=old).save(path)

    def make_old(table, facts, metadata):
        facts["schema_version"] = facts["metadata"]["schema_version"] = 1
        del facts["partitions"], facts["layouts"], facts["metadata"]["device"]["sm_resource"]
        for lane in facts["lanes"]:
            del lane["sm_count"]
        for name in ("workqueue", "is_enforced"):
            del facts["layout"][name]
        for part in facts["layout"]["partitions"]:
            for name in ("coscheduled_sms", "preferred_coscheduled_sms", "backfill"):
                del part[name]
        return table.drop_columns(["partition"])

    rewrite(path, make_old)

    # WHEN it is loaded, and saved anew
    loaded = Trace.load(path)
    loaded.save(tmp_path / "again.parquet")

    # THEN all that it held is there, and no span is in a partition
    assert loaded.partition.tolist() == [-1, -1]
    assert loaded.partition.dtype == "int32"
    assert (loaded.partitions, loaded.layouts, loaded.layout) == ((), (), old)
    assert loaded.lanes[0].sm_count == 0
    assert loaded.metadata.device.sm_resource is None
    assert loaded.start_ns.tolist() == [0, 500]
    assert_same_trace(Trace.load(tmp_path / "again.parquet"), loaded)


def test_partitions_and_layouts_are_kept_exactly(trace, tmp_path):
    parts = (
        Partition(name="a", requested_sms=18, granted_sms=20, coscheduled_sms=4, sm_ids=(0, 1, 16)),
        Partition(name="a", requested_sms=20, granted_sms=20, backfill=True, preferred_coscheduled_sms=8),
    )
    layout = Layout(partitions=parts[:1], remainder_sms=112, workqueue=WorkqueueOptions(concurrency_limit=3))
    changes = (LayoutChange(time_ns=0, layout=None), LayoutChange(time_ns=5, layout=layout))
    placed = dataclasses.replace(trace, partition=[1, -1], partitions=parts, layouts=changes, layout=layout)
    placed.save(tmp_path / "run.parquet")

    loaded = Trace.load(tmp_path / "run.parquet")

    assert_same_trace(loaded, placed)
    assert (loaded.partitions, loaded.layouts, loaded.layout) == (parts, changes, layout)


def test_a_folder_is_no_trace_file(tmp_path):
    with pytest.raises(TraceFileError, match="no trace file"):
        Trace.load(tmp_path)


UNWRITABLE = {
    "folder is missing": lambda folder: folder / "missing" / "run.parquet",
    "folder is a file": lambda folder: make_file(folder / "file") / "run.parquet",
    "target is a folder": lambda folder: make_folder(folder / "run.parquet"),
    "name is too long": lambda folder: folder / ("x" * 300 + ".parquet"),
}


def make_file(path):
    path.write_text("")
    return path


def make_folder(path):
    path.mkdir()
    return path


@pytest.mark.parametrize("place", UNWRITABLE.values(), ids=UNWRITABLE.keys())
def test_an_unwritable_path_is_named(trace, tmp_path, place):
    path = place(tmp_path)
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(TraceFileError, match=r"cannot be written: .*Give a path in a writable folder") as caught:
        trace.save(path)

    assert isinstance(caught.value, OSError)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_failing_save_leaves_the_old_file(tmp_path):
    # GIVEN a file, and a writer that fails half-way
    path = tmp_path / "run.parquet"
    path.write_text("old")

    def write_half(partial):
        partial.write_text("half of the ne")
        raise OSError(28, "No space left on device")

    # WHEN it is written anew
    with pytest.raises(TraceFileError, match="No space left on device"):
        write_file_whole(path, write_half)

    # THEN the old file stands and nothing else
    assert path.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["run.parquet"]


def test_an_interrupted_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "run.parquet"
    path.write_text("old")

    def interrupt(partial):
        partial.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file_whole(path, interrupt)

    assert path.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["run.parquet"]


def test_a_save_replaces_the_old_file(trace, tmp_path):
    path = tmp_path / "run.parquet"
    path.write_text("old")

    trace.save(path)

    assert_same_trace(Trace.load(path), trace)


@pytest.mark.parametrize("path", [None, "a\0b.parquet", ""], ids=["none", "nul", "empty"])
def test_what_is_no_path_is_named(trace, path):
    with pytest.raises(TraceFileError, match="cannot be written"):
        trace.save(path)


def test_a_link_is_followed_and_a_mode_is_kept(trace, tmp_path):
    target, link = tmp_path / "run.parquet", tmp_path / "link.parquet"
    target.write_bytes(b"old")
    target.chmod(0o600)
    link.symlink_to(target)

    trace.save(link)

    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o600
    assert len(Trace.load(target)) == len(trace)


def test_a_device_is_not_replaced(trace):
    with pytest.raises(TraceFileError, match="device stands there"):
        trace.save("/dev/null")


def test_a_trace_can_be_copied_and_pickled(trace):
    for twin in (pickle.loads(pickle.dumps(trace)), copy.deepcopy(trace)):
        assert_same_trace(twin, trace)
        assert not twin.start_ns.flags.writeable
