"""What a new user gets wrong: one row each, as it is typed, with the error, what it says, and that nothing was lost by it."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

import gpustreamlab as gsl
from gpustreamlab import Event, Session, load_trace
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.errors import (
    BackendNotFoundError,
    BackendUnavailableError,
    DeviceNotFoundError,
    EventClosedError,
    EventNotRecordedError,
    GPUStreamLabError,
    InvalidNameError,
    NotSimulatedError,
    OptionError,
    PartitionError,
    PartitionNotFoundError,
    PartitionUnavailableError,
    SelectionError,
    SessionClosedError,
    SessionError,
    StreamClosedError,
    StreamExistsError,
    StreamNotFoundError,
    StreamRefusedError,
    TraceFileError,
)
from gpustreamlab.workloads import copy_to_device, copy_to_host, spin, spin_card
from tests.helpers.files import METADATA_KEY


class Lender:
    def __init__(self, lent):
        self.lent = lent

    def __cuda_stream__(self):
        return self.lent


def saved(lab, folder, change):
    """Save the trace, spoil the file, and load it."""
    path = folder / "run.parquet"
    lab.trace.save(path)
    change(path)
    return gsl.load_trace(path)


def flip_bytes(path):
    data = path.read_bytes()
    path.write_bytes(data[:4] + bytes(byte ^ 0xFF for byte in data[4:-8]) + data[-8:])


def make_newer(path):
    table = pq.read_table(path)
    facts = json.loads(table.schema.metadata[METADATA_KEY])
    facts["schema_version"] = 99
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: json.dumps(facts).encode()}), path)


def through_a_file(folder, name):
    (folder / "run.parquet").write_bytes(b"a file, not a folder")
    return folder / "run.parquet" / name


SAYS = {
    BackendNotFoundError: [
        ("Session('cuad')", "'cuad'", "Did you mean 'cuda'?", "Session(backend=...)"),
        ("Session('')", "no backend ''", "'cuda', 'sim'"),
        ("Session('SIM')", "'cuda', 'sim'"),
        ("Session(0)", "0", "type int is not a backend: it has no create_stream", "Session('cuda')"),
        ("Session(pytest)", "type module is not a backend"),
        ("Session(SimBackend)", "the class SimBackend", "SimBackend()"),
        ("SimBackend('h2000')", "'h2000'", "'h200'"),
    ],
    BackendUnavailableError: [("Session('cuda')", "No NVIDIA driver", "Install it from")],
    DeviceNotFoundError: [
        ("Session('sim', device=7)", "device 7", "Session(device=0)"),
        ("Session('sim', device=-1)", "device -1", "Session(device=0)"),
    ],
    OptionError: [
        ("Session('sim', device=True)", "device is True", "Session(device=0)"),
        ("Session('sim', device='0')", "device is '0'", "Session(device=0)"),
        ("Session(lab._backend, device=3)", "device is 3", "works on device 0", "Leave out device="),
        ("Session('sim', ring_size=0)", "ring_size is 0", "ring_size=1_000_000"),
        ("Session('sim', ring_size=-1)", "ring_size is -1", "from 1 to"),
        ("Session('sim', ring_size=1e6)", "1000000.0", "ring_size="),
        ("Session('sim', ring_size=10**30)", "ring_size", "1,000,000,000"),
        ("Session('sim', title=5)", "title is 5", "title='my run'"),
        ("Session('sim', host=0)", "host is 0", "True or False", "Session(host=False)"),
        ("Session('sim', host='no', spool=at / 'none.gsl')", "host is 'no'", "Session(host=False)"),
        ("lab.stream('new', priority=1)", "Priority 1", "from -5", "to 0", "priority=-5"),
        ("lab.stream('new', priority=10**30)", "1000000", "priority=-5"),
        ("lab.stream('new', priority=-6)", "Priority -6", "priority=-5"),
        ("lab.stream('new', priority=-0.5)", "-0.5", "whole number"),
        ("lab.stream('new', priority=True)", "True", "whole number"),
        (
            "lab.stream('lent', priority=-3, external=Lender((0, lab._backend.create_stream().handle)))",
            *("'lent'", "priority -3", "made with 0", "Leave out priority="),
        ),
        ("lab.stream('copy').record().elapsed_ns(5)", "int", "lab.stream(name).record()"),
        ("lab.stream('copy').record().elapsed_ns(other.stream('b').record())", "two sessions", "clock of its own"),
        ("lab.stream('copy').wait(7)", "'copy'", "wait for 7", "lab.stream(name).record()"),
        ("lab.stream('copy').wait(other.stream('theirs').record())", "'copy'", "two sessions", "one session"),
        ("lab.stream('copy').record('x')", "'copy'", "str", "lab.event()"),
        ("lab.stream('copy').record(other.event())", "'copy'", "two sessions"),
        ("lab.event().record('copy')", "not a str", "lab.stream('name')"),
        ("lab.event().make_wait('copy')", "not a str", "lab.stream('name')"),
        ("lab.partitions.capabilities['green']", "'green'", "green-contexts"),
        ("lab.partitions.capabilities.has(3)", "feature 3", "'backfill'"),
        ("lab.partitions.watch(None)", "NoneType", "lab.partitions.watch("),
        ("lab.partition(a=8, round='near')", "'near'", "'up'"),
        ("lab.recording.since('x')", "'x'", "lab.recording.checkpoint()"),
        ("lab.recording.since(None)", "None", "lab.recording.checkpoint()"),
        ("lab.timeline().save(at / 'run.jpg')", "'run.jpg'", "'.html'", "lab.trace.save('run.parquet')"),
        ("lab.timeline().save(at / 'run')", "'run'", "'.html'"),
        ("lab.timeline(live='run.parquet')", "'run.parquet'", "load_trace('run.parquet').timeline()"),
        ("lab.on('copy')(int)", "cannot decorate", "takes a function"),
        ("lab.on('copy')('f')", "cannot decorate", "takes a function"),
        ("lab.on('copy')(classmethod(print))", "cannot decorate", "below @classmethod"),
        ("copy_to_device(lab, lab.xp.ones(3), np.ones(3))", "copy_to_device(lab, ", "ndarray", "lab.xp.empty", "order"),
        ("copy_to_host(lab, np.ones(3), lab.xp.ones(3))", "copy_to_host(lab, ", "ndarray", "lab.xp.empty", "order"),
    ],
    InvalidNameError: [
        ("lab.stream('')", "cannot be empty", "lab.stream('copy')"),
        ("lab.stream('x' * 10_000)", "at most 100", "10,000", "a range's label"),
        ("lab.stream('copy🚀')", "'🚀'", "use 'copy'", "a range's label"),
        ("lab.stream('<b>x</b>')", "'<'", "use 'b_x_/b'", "a range's label"),
        ("lab.stream('copy in')", "' '", "use 'copy_in'"),
        ("lab.stream('<>')", "'<>'", "use 'stream'"),
        ("lab.stream('a\\nb')", r"'\n'", "use 'a_b'"),
        ("lab.stream(3)", "not int", "lab.stream('copy')"),
        ("lab.stream('bench/mine')", "names with 'bench/'", "traces leave them out", "'bench-mine'"),
        ("lab.stream('gpu1:bench/mine', external=lab.stream('copy'))", "'gpu1:bench/mine'", "'gpu1:bench-mine'"),
        ("lab.on('copy', 5)", "label", "not int", "example '5'"),
        ("lab.recording.start_range('copy', None)", "label", "NoneType", "example 'load'"),
        ("lab.recording.mark(5)", "not int", "lab.recording.mark('5')"),
        ("lab.partition({'': 8})", "cannot be empty", "decode=32"),
        ("lab.partition({'a b': 8})", "use 'a_b'"),
        ("lab.partition({3: 8})", "not int"),
    ],
    StreamExistsError: [
        ("lab.stream('copy', priority=-2)", "'copy'", "priority -1, not -2", ".close()"),
        ("lab.stream('copy', external=lab.stream('compute'))", "'copy'", "another name"),
        ("lab.stream('again', external=lab.stream('copy'))", "lab.stream('copy')", "already"),
    ],
    StreamRefusedError: [
        ("lab.stream('lent', external=object())", "object", "__cuda_stream__", "CuPy, torch"),
        ("lab.stream('lent', external=False)", "bool", "__cuda_stream__"),
        ("lab.stream('lent', external=140)", "int", "not its handle"),
        ("lab.stream('lent', external=Lender((1, 140)))", "(1, 140)", "(0, handle)"),
        ("lab.stream('lent', external=Lender((0, 0)))", "the NULL stream", "lab.stream('name')"),
        ("lab.stream('lent', external=Lender((0, 0x7F00)))", "0x7f00", "Session(backend='cuda')"),
        ("lab.stream('lent', external=other.stream('theirs'))", "'theirs'", "another session", "lab.stream('theirs')"),
        ("lab.on(other.stream('theirs'))", "'theirs'", "another session"),
        ("lab.on(7)", "int", "__cuda_stream__"),
    ],
    StreamNotFoundError: [
        ("lab.on('cpoy')", "'cpoy'", "Did you mean 'copy'?", "lab.stream('cpoy')"),
        ("lab.on('x' * 10_000)", "no stream 'x", "lab.stream('x"),
        ("lab.stream('copy').wait('compte')", "'compte'", "'compute'"),
        ("lab.recording.start_range('cpoy', 'x')", "'cpoy'", "'copy'"),
    ],
    SelectionError: [
        ("lab.range('x')", "'x'", "none is selected", "lab.on('name'"),
        ("lab.range(['a'])", "needs a stream", "lab.on('name'"),
        ("lab.memory.scratch(8)", "none is selected", "lab.on('name')"),
        ("spin(lab, 1_000)", "spin needs a stream", "lab.on('name')", "stream='name'"),
        ("spin_card(lab, 1_000)", "spin_card needs a stream", "lab.on('name')"),
        ("lab.on('copy').__exit__(None, None, None)", "before it was entered"),
    ],
    EventClosedError: [
        ("lab.stream('compute').wait(ended)", "closed", "lab.stream(name).record()"),
        ("lab.stream('compute').record(ended)", "closed", ".record()"),
        ("ended.query()", "closed", ".record()"),
        ("ended.__enter__()", "closed", ".record()"),
        ("lab.stream('copy').record().elapsed_ns(ended)", "closed", ".record()"),
    ],
    EventNotRecordedError: [("lab.stream('copy').record().elapsed_ns(lab.event())", "stream.record(event)")],
    SessionError: [("lab.__enter__()", "entered already", "one `with` block", "lab.close()")],
    SessionClosedError: [
        ("closed.stream('a')", "get stream 'a'", "gpustreamlab.Session()"),
        ("closed.on('a')", "select", "Session()"),
        ("closed.range('a')", "range", "Session()"),
        ("closed.recording.start_range('a', 'x')", "range", "Session()"),
        ("closed.event()", "event", "Session()"),
        ("closed.synchronize()", "synchronize", "Session()"),
        ("closed.clear()", "clear", "Session()"),
        ("closed.memory.pinned_empty(3)", "page-locked", "Session()"),
        ("closed.__enter__()", "This session is closed; it cannot enter it.", "Session()"),
        ("closed.partition(a=8)", "share out", "Session()"),
        ("closed.partitions.verify()", "verify", "Session()"),
        ("closed.partitions.prepare({'a': 8})", "prepare", "Session()"),
        ("closed.xp.ones(3)", "closed"),
    ],
    StreamClosedError: [
        ("lab.on(gone)", "'short-lived'", "lab.stream('short-lived')"),
        ("lab.on('short-lived')", "'short-lived'", "lab.stream('short-lived')"),
        ("lab.recording.start_range('short-lived', 'x')", "'short-lived'"),
        ("gone.__cuda_stream__()", "lab.stream("),
        ("gone.handle", "'short-lived' is closed"),
        ("lab.stream('copy').wait(gone)", "'short-lived'", "lab.stream("),
    ],
    TraceFileError: [
        ("gsl.load_trace(at / 'none.parquet')", "none.parquet", "save(path)"),
        ("gsl.load_trace('n' * 300)", "no trace file", "save(path)"),
        ("saved(lab, at, flip_bytes)", "run.parquet", "save it again"),
        (
            "saved(lab, at, lambda path: path.write_bytes(path.read_bytes()[:-100]))",
            "run.parquet",
            "truncated",
            "save it again",
        ),
        ("saved(lab, at, lambda path: path.write_bytes(b''))", "run.parquet", "is empty"),
        ("saved(lab, at, make_newer)", "run.parquet", "version 99", "pip install --upgrade"),
        ("lab.trace.save(at / 'none' / 'run.parquet')", "none/run.parquet", "writable folder"),
        ("lab.trace.save(through_a_file(at, 'x.parquet'))", "x.parquet", "writable folder"),
        ("lab.trace.save(at)", "cannot be written", "writable folder"),
        ("lab.timeline().save(at / 'none' / 'run.html')", "none/run.html", "writable folder"),
        ("lab.timeline().save(through_a_file(at, 'run.svg'))", "run.svg", "writable folder"),
    ],
    PartitionError: [
        ("lab.partition(a=0)", "'a'", "0 SMs", "nearest plan that works: a=8"),
        ("lab.partition(a=-8)", "-8 SMs", "a=8"),
        ("lab.partition(a=133)", "133 SMs", "has 132", "a=132"),
        ("lab.partition(a=10**9)", "1,000,000,000", "a=132"),
        ("lab.partition(a=1, round='exact')", "exactly", "multiples of 8", "a=8"),
        ("lab.partition(a=7, round='down')", "at most", "a=8"),
        ("lab.partition(a=100, b=100)", "200 SMs", "a=64, b=68"),
        ("lab.partition(a=66, b=66)", "at least", "a=64, b=68"),
        ("lab.partition(a=0.6, b='60%')", "132", "nearest plan that works"),
        ("lab.partition(a=96.0)", "96.0", "whole number 96"),
        ("lab.partition(a=float('nan'))", "nan", "at most 1"),
        ("lab.partition(a=True)", "'True'", "'rest'"),
        ("lab.partition(a=np.True_)", "True"),
        ("lab.partition(a=[8])", "'[8]'"),
        ("lab.partition(a='some')", "'some'", "'rest'"),
        ("lab.partition(96, 36)", "needs a name", "prefill=96"),
        ("lab.partition({f'p{k}': 1 for k in range(17)})", "room for 16"),
        ("lab.partition({})", "No partition was named", "lab.partition(None)"),
        ("lab.partition()", "No partition", "prefill=96"),
        ("lab.partition([96, 32])", "of type list", "prefill=96"),
        ("lab.partition(96)", "of type int", "prefill=96"),
        ("lab.partition({'a': 8}, b=8)", "either", "(b)"),
        ("lab.partition(a=8, workqueue=4)", "WorkqueueOptions("),
        ("lab.partition({'a': 8}, renamed='b')", "renamed=", "'new'"),
        ("lab.partitions.plan_moves(8)", "int", "lab.partition("),
        ("lab.partitions.prepare({})", "No partition"),
    ],
    PartitionUnavailableError: [
        (
            "lab.partition({'a': gsl.PartitionOptions(sms=8, backfill=True)}, strict=True)",
            *("backfill", "CUDA 13.1", "strict=True"),
        ),
    ],
    PartitionNotFoundError: [
        ("lab.stream('new', partition='decode')", "'decode'", "lab.partition(decode=32"),
        ("lab.stream('copy', partition='decode')", "'decode'", "lab.partition("),
    ],
    NotSimulatedError: [("lab.xp.busday_count", "busday_count"), ("lab.stream('copy').cupy", "'copy'", "lab.on('copy')")],
    # As with CuPy, what is wrong with an array is a ValueError or TypeError of the array module.
    ValueError: [
        ("copy_to_device(lab, np.ones(3), lab.xp.ones(4))", "(3,)", "(4,)", "reshape"),
        ("copy_to_host(lab, lab.xp.ones(4), np.ones(3))", "(3,)", "(4,)"),
        ("copy_to_host(lab, lab.xp.ones(3), np.ones(3, 'float32'))", "float32", "float64"),
    ],
    TypeError: [("lab.xp.ones(3) + np.ones(3)", "asarray")],
}
"""What is typed, by its error, and words of the message. `lab` is an open session with streams "copy" (priority -1) and
"compute", and one range; `other` another simulated one with a stream "theirs"; `closed` a closed one; `gone` the closed stream
"short-lived" of `lab`; `ended` a closed event; `at` a folder."""
NAMES = {
    "Session": Session,
    "SimBackend": SimBackend,
    "Lender": Lender,
    "gsl": gsl,
    "np": np,
    "pytest": pytest,
    "spin": spin,
    "spin_card": spin_card,
    "copy_to_device": copy_to_device,
    "copy_to_host": copy_to_host,
    "saved": saved,
    "flip_bytes": flip_bytes,
    "make_newer": make_newer,
    "through_a_file": through_a_file,
}
CASES = {row[0]: (error, row[1:]) for error, rows in SAYS.items() for row in rows}


def facts(trace):
    return [(trace.names[trace.name[row]], int(trace.start_ns[row]), int(trace.end_ns[row])) for row in range(len(trace))]


@pytest.fixture(scope="module")
def no_driver():
    with Session() as lab:
        return lab.device.simulated


@pytest.mark.parametrize("typed", CASES)
def test_bad_input_is_told_and_loses_nothing(typed, tmp_path, no_driver):
    error, words = CASES[typed]
    if error is BackendUnavailableError and not no_driver:
        pytest.skip("this machine has a driver")
    with Session("sim") as closed:
        closed.stream("a")
    with Session("sim", capture="ranges") as lab, Session("sim") as other:
        lab.stream("copy", priority=-1), lab.stream("compute"), other.stream("theirs")
        gone, ended = lab.stream("short-lived"), lab.stream("copy").record()
        gone.close(), ended.close()
        with lab.on("copy", "kept"):
            spin(lab, 1_000)
        lab.synchronize()
        before = facts(lab.trace)

        made = {"lab": lab, "other": other, "closed": closed, "gone": gone, "ended": ended, "at": tmp_path}
        with pytest.raises(error) as told:
            eval(typed, NAMES | made)

        assert type(told.value) is error or error in (ValueError, TypeError, NotSimulatedError)
        missing = [word for word in words if word not in str(told.value)]
        assert not missing, f"{missing} not in: {told.value}"
        assert len(str(told.value)) < 500
        assert isinstance(told.value, GPUStreamLabError) or error in (ValueError, TypeError)
        assert {path.name for path in tmp_path.iterdir()} <= {"run.parquet"}
        assert_still_works(lab, before)


def assert_still_works(lab, before):
    """The session has its streams and its trace, selects nothing, and goes on recording."""
    assert list(lab.streams) == ["copy", "compute"]
    assert lab.current is None
    assert lab._backend.selected_stream is lab._backend.null_stream
    assert facts(lab.trace) == before
    assert lab.layout is None
    assert lab._backend.driver.context_count == 0
    with lab.on("compute", "afterwards"):
        spin(lab, 1_000)
    lab.synchronize()
    assert [name for name, *_ in facts(lab.trace)] == ["kept", "afterwards"]
    assert lab.trace.metadata.dropped_spans == 0


def test_a_file_that_was_there_stays_when_saving_fails(tmp_path, monkeypatch):
    with Session("sim") as lab:
        lab.trace.save(tmp_path / "run.parquet")
        lab.timeline().save(tmp_path / "run.html")
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

        def full(self, target):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("pathlib.Path.replace", full)
        for save in (lambda: lab.trace.save(tmp_path / "run.parquet"), lambda: lab.timeline().save(tmp_path / "run.html")):
            with pytest.raises(TraceFileError, match="No space left"):
                save()
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "label", ["", " ", "🚀", "</script><img src=x onerror=alert(1)>", "a\0b\nc", "\ud800", "名前", "x" * 5_000]
)
def test_a_label_may_be_any_text(label, tmp_path):
    with Session("sim", title=label[:100], capture="ranges") as lab:
        with lab.on(lab.stream("a"), label), lab.range(label):
            spin(lab, 1_000)
        lab.synchronize()
        lab._title = "saved"
        lab.trace.save(tmp_path / "run.parquet")
        loaded = load_trace(tmp_path / "run.parquet")
        (shown,) = loaded.names
        assert loaded.name.tolist() == [0, 0]
        assert shown == label.encode("utf-8", "replace").decode() if len(label) < 1_000 else shown == "x" * 1_000 + "…"
        page = lab.timeline().save(tmp_path / "run.html").read_text()
        assert "<img src=x" not in page


def test_a_label_of_a_range_is_text():
    with Session("sim") as lab, lab.on(lab.stream("a")):
        for label in (5, None, ["a"], b"a"):
            with pytest.raises(InvalidNameError, match=f"not {type(label).__name__}"):
                lab.range(label)


def test_events_tell_their_state():
    with Session("sim") as lab:
        event = lab.event()
        assert repr(event) == "<Event not recorded>"
        assert isinstance(lab.stream("a").record(event), Event)
        assert repr(event) == "<Event recorded on 'a'>"
        with event as entered:
            assert entered is event
        event.close()
        assert (repr(event), event.is_closed) == ("<Event closed>", True)
