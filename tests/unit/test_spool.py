"""A run on disk: what is written, what is read back from whatever is left, and what happens when nothing can be written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from contextlib import suppress

import pyarrow as pa
import pytest

import gpustreamlab as gsl
from gpustreamlab.errors import OptionError, SpoolWarning, TraceFileError
from gpustreamlab.model import EDGE_KINDS
from gpustreamlab.recorder import SPAN_COLUMNS, _chunks
from gpustreamlab.sinks import _spool_format as _file
from gpustreamlab.sinks import spool as _spool
from gpustreamlab.sinks._spool_format import VERSION_KEY
from gpustreamlab.sinks.spool import read_spool
from gpustreamlab.typing import EdgeKind, SpoolState
from gpustreamlab.workloads import spin
from tests.helpers import long_runs
from tests.helpers.line_interrupts import LineInterrupts, send_interrupt
from tests.unit.model.equality import assert_same_trace


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.gsl"


def work(lab, count=1, first=0):
    """Run pairs of ranges, of which the second waits for the first."""
    for number in range(first, first + count):
        with lab.on(lab.stream("copy"), f"step {number}"):
            spin(lab, 1_000)
        lab.stream("compute").wait(lab.stream("copy").record())
        with lab.on("compute", "gemm"):
            spin(lab, 2_000)
    lab.synchronize()


def varied_run(path):
    """Spool a run that has some of everything; return its trace."""
    with gsl.Session("sim", spool=path, title="a run", capture="ranges") as lab:
        lab.partition(left=32, right="rest")
        lab.stream("copy", partition="left")
        work(lab, 3)
        lab.recording.spool.refresh()
        lab.recording.mark("half-way")
        lab.partition(left=64, right="rest")
        work(lab, 3, first=3)
        lab.recording.spool.refresh()
        thread = threading.Thread(target=work, args=(lab, 2, 6), name="helper")
        thread.start()
        thread.join()
    return lab.trace


# What is read back


def test_a_closed_session_is_read_back_exactly(path):
    trace = varied_run(path)

    loaded = gsl.load_trace(path)

    assert_same_trace(loaded, trace)
    assert loaded.metadata.recovery_note == ""
    assert (len(loaded), len(loaded.edges), len(loaded.layouts), len(loaded.markers)) == (16, 8, 2, 1)


def test_kernels_calls_waits_and_memory_are_read_back_exactly(path):
    with gsl.Session("sim", spool=path) as lab:
        work(lab, 2)
        lab.recording.spool.refresh()
        with lab.capture("kernels"):
            for number in range(3):
                with lab.on("copy", "product"):
                    lab.xp.ones((32, 32)) @ lab.xp.ones((32, 32))
                work(lab, 1, first=number)
                lab.recording.spool.refresh()
            assert lab.recording.spool.refresh()
            size_bytes = lab.recording.spool.size_bytes
            assert lab.recording.spool.refresh()
            assert lab.recording.spool.size_bytes == size_bytes

            recovered = gsl.load_trace(path)
            assert recovered.metadata.capture_windows[-1][1] >= recovered.end_ns.max()
        work(lab, 1)
    loaded = gsl.load_trace(path)

    assert_same_trace(loaded, lab.trace)
    assert loaded.details == lab.trace.details != ()
    assert len(loaded.counters)
    assert {EDGE_KINDS[code] for code in loaded.edges.kind} == {*EdgeKind}
    assert len(loaded.accesses)


def test_a_session_that_runs_is_read_up_to_the_last_refresh(path):
    with gsl.Session("sim", spool=path, capture="ranges") as lab:
        lab.recording.spool._updater.stop()
        work(lab, 2)
        assert lab.recording.spool.refresh()
        work(lab, 1, first=2)

        loaded = gsl.load_trace(path)

        assert lab.recording.spool.span_count == len(loaded) == 4
        assert "session was not closed" in loaded.metadata.recovery_note
        assert "session was not closed" in str(gsl.Timeline(loaded)._repr_mimebundle_()["text/plain"])


def test_many_rows_are_written_in_pieces(path, monkeypatch):
    monkeypatch.setattr(_chunks, "CHUNK_ROWS", 7)
    monkeypatch.setattr(_spool, "MAX_BATCH_ROWS", 7)
    with gsl.Session("sim", spool=path) as lab:
        lab.recording.spool._updater.stop()
        work(lab, 10)

    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        assert stream.schema.names == list(SPAN_COLUMNS)
        assert 7 <= max(len(batch) for batch in stream) < 14
    assert_same_trace(gsl.load_trace(path), lab.trace)


def test_ranges_that_had_not_ended_are_told(path):
    with gsl.Session("sim", spool=path) as lab:
        work(lab)
        with lab.on("copy", "too much memory"), lab.range("inner"):
            lab.recording.spool.refresh()
            note = gsl.load_trace(path).metadata.recovery_note

    assert note.endswith("UTC is missing; at that time open: 'too much memory' on stream 'copy', 'inner' on stream 'copy'")
    assert gsl.load_trace(path).metadata.recovery_note == ""


# What is left of a file


def test_a_file_that_ends_at_any_byte_gives_what_is_whole(tmp_path, path):
    with gsl.Session("sim", spool=path, capture="ranges") as lab:
        work(lab, 1)
        lab.recording.spool.refresh()
        work(lab, 2, first=1)
    data = path.read_bytes()
    cut = tmp_path / "cut.gsl"
    counts, refused = [], []
    sizes = sorted({*range(0, len(data) + 1, long_runs.count(sample=13, full=1)), *range(len(data) - 40, len(data) + 1)})
    for size in sizes:
        cut.write_bytes(data[:size])
        try:
            counts.append(len(read_spool(cut)))
        except TraceFileError:
            refused.append(size)

    assert len(counts) + len(refused) == len(sizes)
    assert read_spool(cut).metadata.recovery_note == ""
    assert refused == sizes[: len(refused)]  # what can be read once can be read from then on
    assert counts == sorted(counts)
    assert set(counts) == {0, 2, 6}
    assert refused[-1] < len(data) / 2  # the beginning of the stream and the first tables


def test_a_damaged_file_gives_a_beginning_or_says_so(tmp_path, path):
    trace = varied_run(path)
    data = path.read_bytes()
    bad = tmp_path / "bad.gsl"
    starts = set(trace.start_ns.tolist())
    counts, refused = set(), 0
    for at in range(0, len(data), long_runs.count(sample=97, full=11)):
        bad.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        try:
            loaded = read_spool(bad)
        except TraceFileError:
            refused += 1
        else:
            assert set(loaded.start_ns.tolist()) <= starts
            counts.add(len(loaded))

    assert refused > 5
    assert len(counts) > 2


def arrow_stream(metadata):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([(name, pa.int64()) for name in SPAN_COLUMNS], metadata=metadata)):
        pass
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (arrow_stream({VERSION_KEY: b"99"}), "version 99.*pip install --upgrade gpustreamlab"),
        (arrow_stream({}), "no spool"),
        (b"\xff\xff\xff\xff\x00\x00\x00\x7f" + b"a" * 99, r"run\.gsl' cannot be read as a spool"),
    ],
)
def test_what_is_no_spool_of_this_version_is_refused(path, data, words):
    path.write_bytes(data)
    with pytest.raises(TraceFileError, match=words):
        gsl.load_trace(path)


# Where it cannot be written


def test_a_file_that_holds_something_is_left_as_it_is(path):
    path.write_text("precious")
    (path.parent / "run-2.gsl").write_text("taken too")

    with pytest.raises(TraceFileError, match=r"holds something already. Use spool='.*run-3\.gsl'"):
        gsl.Session("sim", spool=path)

    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("", ("it is a folder", "Name a file in it", "run.gsl")),
        ("nowhere/run.gsl", ("No such file or directory", "leave spool out")),
        ("a\0b", ("embedded null",)),
        ("x" * 5_000, ("File name too long",)),
    ],
)
def test_a_place_that_cannot_be_written_stops_the_session_before_anything_is_made(tmp_path, monkeypatch, place, words):
    monkeypatch.setattr("gpustreamlab.session.choose_backend", lambda *_: pytest.fail("a backend was started"))
    with pytest.raises(TraceFileError) as caught:
        gsl.Session("sim", spool=f"{tmp_path}/{place}")

    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("spool", ["", 3, b"run.gsl", ["run.gsl"], 1.5])
def test_what_is_no_path_is_said(spool):
    with pytest.raises(OptionError, match=r"Use gpustreamlab.Session\(spool='run.gsl'\)"):
        gsl.Session("sim", spool=spool)


@pytest.mark.parametrize("limit", [0, 10, -1, 1e9, True, "1 GB", None])
def test_a_limit_that_is_no_size_is_said(path, limit):
    with pytest.raises(OptionError, match="spool_limit_bytes is"):
        gsl.Session("sim", spool=path, spool_limit_bytes=limit)

    assert not path.exists()


def test_a_name_is_chosen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with gsl.Session("sim", spool=True) as first, gsl.Session("sim", spool=True) as second:
        names = [lab.recording.spool.path.name for lab in (first, second)]

    assert all(name.startswith("gpustreamlab-") and name.endswith(".gsl") for name in names)
    assert sorted(names) == sorted(file.name for file in tmp_path.iterdir())
    assert len(set(names)) == 2


class Disk:
    """Stands in for `os.write`: writes half of what it is given, then nothing, while it is full."""

    def __init__(self):
        self.is_full, self.write = False, os.write

    def __call__(self, descriptor, data):
        if not self.is_full:
            return self.write(descriptor, data)
        if self.is_full == "after half":
            self.is_full = True
            return self.write(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def disk(monkeypatch):
    made = Disk()
    monkeypatch.setattr(_file.os, "write", made)
    return made


def test_a_full_disk_costs_one_warning_and_nothing_that_was_written(path, disk):
    with gsl.Session("sim", spool=path, capture="ranges") as lab:
        work(lab, 2)
        lab.recording.spool.refresh()
        disk.is_full = "after half"
        work(lab, 2, first=2)

        with pytest.warns(SpoolWarning, match=r"run\.gsl' any more: No space left on device.*lab.trace.save") as caught:
            assert not lab.recording.spool.refresh()
            assert not lab.recording.spool.refresh()

        assert len(caught) == 1
        assert (lab.recording.spool.state, lab.recording.spool.problem) == (SpoolState.FAILING, "No space left on device")
        assert "failing (No space left on device)" in repr(lab.recording.spool)
        assert "No space left" in repr(lab)
        assert (len(gsl.load_trace(path)), len(lab.trace)) == (4, 8)
        assert path.stat().st_size == lab.recording.spool.size_bytes

        disk.is_full = False
        assert lab.recording.spool.refresh()
        assert (lab.recording.spool.state, lab.recording.spool.problem) == (SpoolState.WRITING, "")
    assert_same_trace(gsl.load_trace(path), lab.trace)


def test_a_removed_file_costs_one_warning(path):
    with gsl.Session("sim", spool=path, capture="ranges") as lab:
        work(lab, 2)
        path.unlink()

        with pytest.warns(SpoolWarning, match="the file was removed") as caught:
            assert not lab.recording.spool.refresh()
            work(lab, 2)
            assert not lab.recording.spool.refresh()

        assert len(caught) == 1
        assert lab.recording.spool.state is SpoolState.REMOVED
    assert len(lab.trace) == 8
    assert not path.exists()


def test_the_limit_is_kept_and_shown(path):
    with gsl.Session("sim", spool=path, spool_limit_bytes=1 << 16, capture="ranges") as lab:
        with pytest.warns(SpoolWarning, match="reached spool_limit_bytes=65,536"):
            for number in range(200):
                work(lab, 5, first=5 * number)
                lab.recording.spool.refresh()
        written = lab.recording.spool.span_count
        assert lab.recording.spool.state is SpoolState.FULL
        assert 200 < written < 2_000
        assert "reached its limit of 65,536 bytes" in gsl.load_trace(path).metadata.recovery_note
    loaded = gsl.load_trace(path)

    assert path.stat().st_size <= 1 << 16
    assert (len(loaded), loaded.metadata.dropped_spans) == (written, 2_000 - written)
    assert loaded.metadata.recovery_note.startswith("the spool reached its limit of 65,536 bytes (spool_limit_bytes)")


@pytest.mark.parametrize("span_count", [10_000, 30_000])
def test_what_fits_of_many_spans_at_once_is_written(path, span_count):
    limit_bytes = 1 << 16
    with gsl.Session("sim", spool=path, spool_limit_bytes=limit_bytes, host=False) as lab:
        lab.recording.spool._updater.stop()
        lab.stream("copy")
        for _ in range(span_count):
            with lab.on("copy", "step"):
                pass
        lab.synchronize()
        with pytest.warns(SpoolWarning, match="reached spool_limit_bytes"):
            lab.recording.spool.refresh()
        written = lab.recording.spool.span_count
        trace = lab.trace
    loaded = gsl.load_trace(path)

    assert 0.8 * limit_bytes < path.stat().st_size <= limit_bytes
    assert len(loaded) == written > 1_000
    assert loaded.metadata.dropped_spans == span_count - written
    assert loaded.start_ns.tolist() == trace.start_ns[:written].tolist()


def test_ranges_that_are_open_at_the_end_are_dropped_in_the_file_too(path):
    is_open, may_end = threading.Event(), threading.Event()

    def hold_open(lab):
        with lab.on("copy", "outer"), lab.range("inner"):
            is_open.set()
            may_end.wait(60)

    with gsl.Session("sim", spool=path) as lab:
        work(lab)
        started = lab.recording.start_range("compute", "started")
        thread = threading.Thread(target=hold_open, args=(lab,))
        thread.start()
        is_open.wait(60)
    may_end.set()
    thread.join()
    started.end()

    assert lab.trace.metadata.dropped_spans == 3
    assert_same_trace(gsl.load_trace(path), lab.trace)


@pytest.mark.no_cover  # coverage's own lock does not survive an interrupt
def test_ctrl_c_at_any_line_of_a_write_leaves_a_whole_file(tmp_path):
    for at in range(1, 1_000, long_runs.count(3, 1)):
        path = tmp_path / f"{at}.gsl"
        with gsl.Session("sim", spool=path) as lab:
            lab.recording.spool._updater.stop()
            work(lab, 2)
            interrupts = LineInterrupts([_spool, _file], at, send_interrupt)
            with suppress(KeyboardInterrupt), interrupts:
                lab.recording.spool.refresh()
            work(lab, 2, first=2)
        assert_same_trace(gsl.load_trace(path), lab.trace)
        if interrupts.left > 0:
            break
    assert at > 30


# What it costs the user


def run_python(program):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


START = """
import gpustreamlab as gsl
from gpustreamlab.workloads import spin
lab = gsl.Session("sim", spool={path!r}, capture="ranges")
lab.stream("copy")
def work(count):
    for _ in range(count):
        with lab.on("copy"):
            spin(lab, 1_000)
    lab.synchronize()
"""


def test_a_program_that_ends_without_closing_loses_nothing(path):
    run_python(START.format(path=str(path)) + "work(100)")
    loaded = gsl.load_trace(path)

    assert (len(loaded), loaded.metadata.recovery_note) == (100, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_write(path):
    fork = """
import os
work(5)
lab.recording.spool.refresh()
lab.recording.spool._lock.acquire()  # as its thread may hold it
child = os.fork()
if not child:
    lab.recording.spool.refresh()
    lab.recording.spool.close()
    lab.close()
    raise SystemExit(0)
lab.recording.spool._lock.release()
_, status = os.waitpid(child, 0)
assert status == 0
size = os.stat(lab.recording.spool.path).st_size
assert size == lab.recording.spool.size_bytes, (size, lab.recording.spool)
work(5)
lab.close()
"""
    run_python(START.format(path=str(path)) + fork)

    assert len(gsl.load_trace(path)) == 10
