"""What every reader of a file of others keeps to, whatever the format, and every writer."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import re
import time
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings

import gpustreamlab as gsl
from gpustreamlab.errors import GPUStreamLabError, OptionError, TraceFileError
from gpustreamlab.exchange import WRITERS, _chrome_write, _formats, _frame, _json_events, find_format
from tests.helpers.kernel_traces import kernel_trace
from tests.helpers.kineto import two_streams as kineto_file
from tests.helpers.long_runs import count
from tests.helpers.nsys_files import two_streams as nsys_file
from tests.helpers.traces import make_trace, nested_trace
from tests.unit.exchange.test_chrome import all_phases, jax_file
from tests.unit.exchange.test_pftrace import random_trace
from tests.unit.exchange.test_pftrace_others import a_file_of_others
from tests.unit.model.equality import assert_same_trace
from tests.unit.model.strategies import traces

DAMAGED = count(10, 60)


def saved(suffix, trace=None):
    """Return a function that gives the bytes of a file of ours."""

    def make(folder):
        (trace or random_trace(0, 20)).save(folder / f"ours{suffix}")
        return (folder / f"ours{suffix}").read_bytes()

    return make


def page(folder):
    """Return what is read of a page, near enough together to be hit."""
    make_trace([("a", "x", 0, 5), ("b", "y", 3, 9)]).timeline().save(folder / "run.html", with_data=True)
    data = (folder / "run.html").read_bytes()
    tag = data[data.index(b'<script type="text/x-wide" id="gsl-bokeh">') :][:60]
    return data[:300] + tag + data[data.index(b'<script type="app') :]


OTHERS = {
    "kineto": lambda _: json.dumps(kineto_file()).encode(),
    "chrome": lambda _: json.dumps(all_phases()).encode(),
    "xla": lambda _: json.dumps(jax_file()).encode(),
    "nsys": lambda folder: nsys_file().write(folder / "made.sqlite").read_bytes(),
    "perfetto": lambda _: a_file_of_others(),
}
FILES = OTHERS | {
    "our .json": saved(".json", kernel_trace(1)),
    "our .pftrace": saved(".pftrace"),
    "our .parquet": saved(".parquet", kernel_trace(1)),
    "our page": page,
}
FORMAT_OF = {"xla": "chrome", "our .json": "chrome", "our .pftrace": "perfetto", "our page": "html"}
TOKENS = [
    b"-1",
    b"1e999",
    b"null",
    b"[]",
    b"{}",
    b'"x"',
    b"9" * 40,
    b"NaN",
    b'"\\ud800"',
    b",",
    b"}",
    b'"',
    b"\xff" * 8,
    bytes(8),
]


@pytest.fixture(params=OTHERS)
def content(request, tmp_path):
    return OTHERS[request.param](tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_the_first_bytes_tell_the_format(tmp_path, name):
    content = FILES[name](tmp_path)
    for number, data in enumerate((content, gzip.compress(content))):
        (tmp_path / str(number)).write_bytes(data)
        assert find_format(tmp_path / str(number)) == FORMAT_OF.get(name, name.removeprefix("our ."))


def test_plain_and_packed_files_are_one_trace(tmp_path, content):
    (tmp_path / "run").write_bytes(content)
    wanted = gsl.load_trace(tmp_path / "run")
    (tmp_path / "run.gz").write_bytes(gzip.compress(content))
    assert_same_trace(gsl.load_trace(tmp_path / "run.gz"), wanted)


@pytest.mark.parametrize("name", ["kineto", "chrome", "xla"])
def test_a_mark_of_the_byte_order_and_small_blocks_change_nothing(tmp_path, monkeypatch, name):
    (tmp_path / "run").write_bytes(OTHERS[name](tmp_path))
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbf\n" + OTHERS[name](tmp_path))
    wanted = gsl.load_trace(tmp_path / "run")
    monkeypatch.setattr(_json_events, "BLOCK_BYTES", 300)
    assert_same_trace(gsl.load_trace(tmp_path / "marked"), wanted)


@pytest.mark.parametrize("suffix", [".parquet", ".json"])
@settings(
    max_examples=count(10, 20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(trace=traces())
def test_any_trace_comes_back_as_it_was(tmp_path, suffix, trace):
    trace.save(tmp_path / f"run{suffix}")
    assert_same_trace(gsl.load_trace(tmp_path / f"run{suffix}"), trace)


def test_a_trace_of_a_file_can_be_saved_drawn_pickled_and_asked(tmp_path, content):
    (tmp_path / "run").write_bytes(content)
    trace = gsl.load_trace(tmp_path / "run")
    trace.save(tmp_path / "run.parquet")
    assert_same_trace(gsl.load_trace(tmp_path / "run.parquet"), trace)
    assert_same_trace(pickle.loads(pickle.dumps(trace)), trace)
    trace.timeline().save(tmp_path / "run.html")
    text = (tmp_path / "run.html").read_text()
    assert trace.metadata.imported in text
    assert "±0 ns" not in text  # nobody knows
    repr((trace.explain(), trace.idle(), trace.critical_path(), trace.overlap()))


def test_more_lanes_than_a_trace_can_have_are_refused(tmp_path, monkeypatch, content):
    monkeypatch.setattr(_frame, "MOST_LANES", 1)
    (tmp_path / "run").write_bytes(content)
    with pytest.raises(TraceFileError, match=r"run' has \d+ streams and threads; 1 are read. Profile for a shorter time"):
        gsl.load_trace(tmp_path / "run")


@pytest.mark.parametrize("name", ["kineto", "nsys"])
def test_more_names_than_are_kept_are_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr(_frame, "MOST_KNOWN", 3)
    (tmp_path / "run").write_bytes(OTHERS[name](tmp_path))
    with pytest.raises(TraceFileError, match=r"more than 3 different names.*Profile fewer steps"):
        gsl.load_trace(tmp_path / "run")


@pytest.mark.parametrize("name", ["kineto", "chrome"])
def test_events_beyond_a_limit_are_said(tmp_path, monkeypatch, name):
    monkeypatch.setattr(_json_events, "MOST_EVENTS", 5)
    monkeypatch.setattr(_json_events, "BLOCK_BYTES", 300)
    (tmp_path / "run").write_bytes(OTHERS[name](tmp_path))
    metadata = gsl.load_trace(tmp_path / "run").metadata
    assert re.search(r"nly its first \d+ events are read", f"{metadata.missing} {metadata.recovery_note}")


@pytest.mark.parametrize("format_", ["kineto", "chrome", "nsys", "perfetto", "parquet"])
def test_what_is_missing_or_empty_says_so(tmp_path, format_):
    with pytest.raises(TraceFileError, match="There is no trace file at"):
        gsl.load_trace(tmp_path / "none", format_)
    (tmp_path / "run").write_bytes(b"")
    with pytest.raises(TraceFileError, match="run' is empty"):
        gsl.load_trace(tmp_path / "run", format_)


def mutations(content, count, seed):
    """Yield contents that were cut off, or with bytes changed, cut out, doubled or put in."""
    chance = random.Random(seed)
    for _ in range(count):
        data = bytearray(content)
        for _ in range(chance.choice([1, 1, 2, 6])):
            at = chance.randrange(len(data) or 1)
            size = chance.choice([0, 1, 8, 40])
            match chance.randrange(5):
                case 0:
                    data[at : at + 1] = chance.randbytes(1)
                case 1:
                    data[at : at + size] = chance.choice(TOKENS)
                case 2:
                    del data[at : at + size]
                case 3:
                    data[at:at] = data[at : at + size]
                case 4:
                    if chance.random() < 0.3:
                        del data[at:]
        yield bytes(data)


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("name", FILES)
def test_any_damage_gives_a_trace_or_an_error_of_ours(tmp_path, name, is_packed):
    data, path, read = FILES[name](tmp_path), tmp_path / "damaged", 0
    data, told = gzip.compress(data, mtime=0) if is_packed else data, set[str]()
    for content in mutations(data, DAMAGED, name):
        path.write_bytes(content)
        began_s = time.process_time()
        try:
            trace = gsl.load_trace(path)
            read += 1
        except GPUStreamLabError as error:
            told.add(str(error))
            continue
        finally:
            assert time.process_time() - began_s < 5
        if not read % 8:
            with suppress(OptionError):
                repr((trace.idle(), trace.overlap(), trace.explain(), trace.critical_path()))
    assert all("damaged" in text for text in told)  # by the name of the file
    assert is_packed or 0 < read < DAMAGED or name in {"kineto", "chrome", "xla"}  # of which any event can be spared


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_writer_refuses_other_names_and_missing_folders_and_leaves_the_old_file(tmp_path, monkeypatch, suffix):
    module, _, function = WRITERS[suffix].partition(":")
    write = getattr(__import__(module, fromlist=[function]), function)
    if suffix != ".parquet":
        with pytest.raises(OptionError, match=r"is no name for .* Use for example 'run\."):
            write(nested_trace(), tmp_path / "run.other")
    with pytest.raises(TraceFileError, match="no folder"):
        write(nested_trace(), tmp_path / "nowhere" / f"run{suffix}")
    path = tmp_path / f"run{suffix}"
    write(nested_trace(), path)
    before = path.read_bytes()

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(_formats, "trace_to_table", interrupt)
    monkeypatch.setattr(_chrome_write, "parquet_bytes", interrupt)
    monkeypatch.setattr("gpustreamlab.exchange._pftrace_write.parquet_bytes", interrupt)
    monkeypatch.setattr("gpustreamlab.model._file.trace_to_table", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(kernel_trace(1), path)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_csv_has_the_columns_of_pandas(tmp_path):
    import pandas as pd

    trace = kernel_trace()
    trace.save(tmp_path / "run.csv")
    tables = pd.read_csv(tmp_path / "run.csv"), trace.to_pandas()
    found, wanted = (
        table.astype(object).where(table.notna() & (table != ""), None) for table in tables
    )  # a CSV has no empty text
    assert {name: found[name].tolist() for name in found} == {name: wanted[name].tolist() for name in wanted}
