"""What a new user gets wrong: one row each, with the error, what it says, and that nothing was lost by it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import gpustreamlab as gsl
from gpustreamlab import Event, Session, Trace
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
from gpustreamlab.model._schema import METADATA_KEY
from gpustreamlab.workloads import copy_to_device, copy_to_host, spin, spin_card


@dataclass(frozen=True)
class Bad:
    """One thing done wrong on an open session that has streams "copy" (priority -1) and "compute", and one range."""

    do: Callable[[Session, Any], object]
    error: type[Exception]
    words: tuple[str, ...]


class Lender:
    def __init__(self, lent):
        self.lent = lent

    def __cuda_stream__(self):
        return self.lent


def closed_session():
    lab = Session("sim")
    lab.stream("a")
    lab.close()
    return lab


def closed_stream(lab):
    stream = lab.stream("short-lived")
    stream.close()
    return stream


def closed_event(lab):
    event = lab.stream("copy").record()
    event.close()
    return event


def on_other_session(use):
    """Do something with the streams of a second simulated device."""
    with Session("sim") as other:
        other.stream("theirs")
        return use(other)


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


BACKENDS = {
    "unknown backend": Bad(
        lambda lab, _: Session("cuad"), BackendNotFoundError, ("'cuad'", "Did you mean 'cuda'?", "Session(backend=...)")
    ),
    "empty backend": Bad(lambda lab, _: Session(""), BackendNotFoundError, ("no backend ''", "'cuda', 'sim'")),
    "number as backend": Bad(lambda lab, _: Session(0), BackendNotFoundError, ("0", "int", "Session('cuda')")),
    "class as backend": Bad(lambda lab, _: Session(SimBackend), BackendNotFoundError, ("the class SimBackend", "SimBackend()")),
    "unknown preset": Bad(lambda lab, _: SimBackend("h2000"), BackendNotFoundError, ("'h2000'", "'h200'")),
    "cuda without a driver": Bad(
        lambda lab, _: Session("cuda"), BackendUnavailableError, ("No NVIDIA driver", "Install it from")
    ),
    "device 7 of 1": Bad(lambda lab, _: Session("sim", device=7), DeviceNotFoundError, ("device 7", "Session(device=0)")),
    "negative device": Bad(lambda lab, _: Session("sim", device=-1), DeviceNotFoundError, ("device -1", "Session(device=0)")),
    "device True": Bad(lambda lab, _: Session("sim", device=True), OptionError, ("device is True", "Session(device=0)")),
    "device as text": Bad(lambda lab, _: Session("sim", device="0"), OptionError, ("device is '0'", "Session(device=0)")),
    "device beside a backend of another": Bad(
        lambda lab, _: Session(lab._backend, device=3), OptionError, ("device is 3", "works on device 0", "Leave out device=")
    ),
    "ring size 0": Bad(lambda lab, _: Session("sim", ring_size=0), OptionError, ("ring_size is 0", "ring_size=1_000_000")),
    "negative ring size": Bad(lambda lab, _: Session("sim", ring_size=-1), OptionError, ("ring_size is -1", "from 1 to")),
    "fractional ring size": Bad(lambda lab, _: Session("sim", ring_size=1e6), OptionError, ("1000000.0", "ring_size=")),
    "ring size beyond memory": Bad(
        lambda lab, _: Session("sim", ring_size=10**30), OptionError, ("ring_size", "1,000,000,000")
    ),
    "pending limit 0": Bad(lambda lab, _: Session("sim", pending_limit=0), OptionError, ("pending_limit is 0", "65_536")),
    "title that is no text": Bad(lambda lab, _: Session("sim", title=5), OptionError, ("title is 5", "title='my run'")),
}

STREAMS = {
    "empty name": Bad(lambda lab, _: lab.stream(""), InvalidNameError, ("cannot be empty", "lab.stream('copy')")),
    "name of 10 kB": Bad(
        lambda lab, _: lab.stream("x" * 10_000), InvalidNameError, ("at most 100", "10,000", "a range's label")
    ),
    "emoji name": Bad(lambda lab, _: lab.stream("copy🚀"), InvalidNameError, ("'🚀'", "use 'copy'", "a range's label")),
    "HTML name": Bad(lambda lab, _: lab.stream("<b>x</b>"), InvalidNameError, ("'<'", "use 'b_x_/b'", "a range's label")),
    "name with a space": Bad(lambda lab, _: lab.stream("copy in"), InvalidNameError, ("' '", "use 'copy_in'")),
    "name of signs only": Bad(lambda lab, _: lab.stream("<>"), InvalidNameError, ("'<>'", "use 'stream'")),
    "name with a line break": Bad(lambda lab, _: lab.stream("a\nb"), InvalidNameError, (r"'\n'", "use 'a_b'")),
    "name that is no text": Bad(lambda lab, _: lab.stream(3), InvalidNameError, ("not int", "lab.stream('copy')")),
    "duplicate with another priority": Bad(
        lambda lab, _: lab.stream("copy", priority=-2), StreamExistsError, ("'copy'", "priority -1, not -2", ".close()")
    ),
    "duplicate of another owner": Bad(
        lambda lab, _: lab.stream("copy", external=lab.stream("compute")), StreamExistsError, ("'copy'", "another name")
    ),
    "one stream under two names": Bad(
        lambda lab, _: lab.stream("again", external=lab.stream("copy")), StreamExistsError, ("lab.stream('copy')", "already")
    ),
    "priority below the lowest": Bad(
        lambda lab, _: lab.stream("new", priority=1), OptionError, ("Priority 1", "from -5", "to 0", "priority=-5")
    ),
    "huge priority": Bad(lambda lab, _: lab.stream("new", priority=10**30), OptionError, ("1000000", "priority=-5")),
    "too negative priority": Bad(lambda lab, _: lab.stream("new", priority=-6), OptionError, ("Priority -6", "priority=-5")),
    "fractional priority": Bad(lambda lab, _: lab.stream("new", priority=-0.5), OptionError, ("-0.5", "whole number")),
    "priority True": Bad(lambda lab, _: lab.stream("new", priority=True), OptionError, ("True", "whole number")),
    "priority of a lent stream": Bad(
        lambda lab, _: lab.stream("lent", priority=-3, external=Lender((0, lab._backend.create_stream().handle))),
        OptionError,
        ("'lent'", "priority -3", "made with 0", "Leave out priority="),
    ),
    "external that lends nothing": Bad(
        lambda lab, _: lab.stream("lent", external=object()), StreamRefusedError, ("object", "__cuda_stream__", "CuPy, torch")
    ),
    "external False": Bad(lambda lab, _: lab.stream("lent", external=False), StreamRefusedError, ("bool", "__cuda_stream__")),
    "external handle": Bad(lambda lab, _: lab.stream("lent", external=140), StreamRefusedError, ("int", "not its handle")),
    "external of a newer protocol": Bad(
        lambda lab, _: lab.stream("lent", external=Lender((1, 140))), StreamRefusedError, ("(1, 140)", "(0, handle)")
    ),
    "external NULL stream": Bad(
        lambda lab, _: lab.stream("lent", external=Lender((0, 0))),
        StreamRefusedError,
        ("the NULL stream", "lab.stream('name')"),
    ),
    "external of another device": Bad(
        lambda lab, _: lab.stream("lent", external=Lender((0, 0x7F00))),
        StreamRefusedError,
        ("0x7f00", "Session(backend='cuda')"),
    ),
    "external of another simulated session": Bad(
        lambda lab, _: on_other_session(lambda other: lab.stream("lent", external=other.stream("theirs"))),
        StreamRefusedError,
        ("'theirs'", "another session", "lab.stream('theirs')"),
    ),
    "selecting a stream of another simulated session": Bad(
        lambda lab, _: on_other_session(lambda other: lab.on(other.stream("theirs"))),
        StreamRefusedError,
        ("'theirs'", "another session"),
    ),
    "selecting a misspelt stream": Bad(
        lambda lab, _: lab.on("cpoy"), StreamNotFoundError, ("'cpoy'", "Did you mean 'copy'?", "lab.stream('cpoy')")
    ),
    "selecting a number": Bad(lambda lab, _: lab.on(7), StreamRefusedError, ("int", "__cuda_stream__")),
    "label that is no text": Bad(lambda lab, _: lab.on("copy", 5), InvalidNameError, ("label", "not int", "example '5'")),
    "label of a range that is no text": Bad(
        lambda lab, _: lab.range(["a"]), SelectionError, ("needs a stream", "lab.on('name'")
    ),
    "label of a handed-over range": Bad(
        lambda lab, _: lab.recording.start_range("copy", None), InvalidNameError, ("label", "NoneType", "example 'load'")
    ),
    "range without a stream": Bad(lambda lab, _: lab.range("x"), SelectionError, ("'x'", "none is selected", "lab.on('name'")),
    "handed-over range on a misspelt stream": Bad(
        lambda lab, _: lab.recording.start_range("cpoy", "x"), StreamNotFoundError, ("'cpoy'", "'copy'")
    ),
    "work without a stream": Bad(lambda lab, _: spin(lab, 1_000), SelectionError, ("spin", "lab.on('name')")),
    "card-filling work without a stream": Bad(lambda lab, _: spin_card(lab, 1_000), SelectionError, ("spin_card",)),
}

EVENTS = {
    "wait on a closed event": Bad(
        lambda lab, _: lab.stream("compute").wait(closed_event(lab)), EventClosedError, ("closed", "lab.stream(name).record()")
    ),
    "record a closed event": Bad(
        lambda lab, _: lab.stream("compute").record(closed_event(lab)), EventClosedError, ("closed", ".record()")
    ),
    "query a closed event": Bad(lambda lab, _: closed_event(lab).query(), EventClosedError, ("closed", ".record()")),
    "enter a closed event": Bad(lambda lab, _: closed_event(lab).__enter__(), EventClosedError, ("closed", ".record()")),
    "time to a closed event": Bad(
        lambda lab, _: lab.stream("copy").record().elapsed_ns(closed_event(lab)), EventClosedError, ("closed", ".record()")
    ),
    "time to an unrecorded event": Bad(
        lambda lab, _: lab.stream("copy").record().elapsed_ns(lab.event()), EventNotRecordedError, ("stream.record(event)",)
    ),
    "time to something else": Bad(
        lambda lab, _: lab.stream("copy").record().elapsed_ns(5), OptionError, ("int", "lab.stream(name).record()")
    ),
    "wait for a number": Bad(
        lambda lab, _: lab.stream("copy").wait(7),
        OptionError,
        ("'copy'", "wait for 7", "lab.stream(name).record()"),
    ),
    "record something else": Bad(lambda lab, _: lab.stream("copy").record("x"), OptionError, ("'copy'", "str", "lab.event()")),
    "event recorded on a name": Bad(
        lambda lab, _: lab.event().record("copy"), OptionError, ("not a str", "lab.stream('name')")
    ),
    "event makes a name wait": Bad(
        lambda lab, _: lab.event().make_wait("copy"), OptionError, ("not a str", "lab.stream('name')")
    ),
    "wait for another simulated session": Bad(
        lambda lab, _: on_other_session(lambda other: lab.stream("copy").wait(other.stream("theirs").record())),
        OptionError,
        ("'copy'", "two sessions", "one session"),
    ),
    "event of another simulated session": Bad(
        lambda lab, _: on_other_session(lambda other: lab.stream("copy").record(other.event())),
        OptionError,
        ("'copy'", "two sessions"),
    ),
    "time to an event of another simulated session": Bad(
        lambda lab, _: on_other_session(lambda other: lab.stream("copy").record().elapsed_ns(other.stream("b").record())),
        OptionError,
        ("two sessions", "clock of its own", "one session"),
    ),
}

QUESTIONS = {
    "feature that there is not": Bad(
        lambda lab, _: lab.partitions.capabilities["green"], OptionError, ("'green'", "green-contexts")
    ),
    "feature that is no text": Bad(lambda lab, _: lab.partitions.capabilities.has(3), OptionError, ("feature 3", "'backfill'")),
    "checkpoint that is no number": Bad(
        lambda lab, _: lab.recording.since("x"), OptionError, ("'x'", "lab.recording.checkpoint()")
    ),
    "no checkpoint": Bad(lambda lab, _: lab.recording.since(None), OptionError, ("None", "lab.recording.checkpoint()")),
    "name of a stream that nobody would type": Bad(
        lambda lab, _: lab.on("x" * 10_000).__enter__(), StreamNotFoundError, ("no stream 'x", "lab.stream('x")
    ),
}

CLOSED = {
    "stream of a closed session": Bad(
        lambda lab, _: closed_session().stream("a"), SessionClosedError, ("get stream 'a'", "gpustreamlab.Session()")
    ),
    "selection on a closed session": Bad(lambda lab, _: closed_session().on("a"), SessionClosedError, ("select", "Session()")),
    "range on a closed session": Bad(lambda lab, _: closed_session().range("a"), SessionClosedError, ("range", "Session()")),
    "handed-over range on a closed session": Bad(
        lambda lab, _: closed_session().recording.start_range("a", "x"), SessionClosedError, ("range", "Session()")
    ),
    "event of a closed session": Bad(lambda lab, _: closed_session().event(), SessionClosedError, ("event", "Session()")),
    "synchronize a closed session": Bad(
        lambda lab, _: closed_session().synchronize(), SessionClosedError, ("synchronize", "Session()")
    ),
    "clear a closed session": Bad(lambda lab, _: closed_session().clear(), SessionClosedError, ("clear", "Session()")),
    "pinned memory of a closed session": Bad(
        lambda lab, _: closed_session().memory.pinned_empty(3), SessionClosedError, ("page-locked", "Session()")
    ),
    "enter a closed session": Bad(lambda lab, _: closed_session().__enter__(), SessionClosedError, ("enter it", "Session()")),
    "enter a session twice": Bad(
        lambda lab, _: lab.__enter__(), SessionError, ("entered already", "one `with` block", "lab.close()")
    ),
    "selecting a closed stream": Bad(
        lambda lab, _: lab.on(closed_stream(lab)), StreamClosedError, ("'short-lived'", "lab.stream('short-lived')")
    ),
    "selecting the name of a closed stream": Bad(
        lambda lab, _: lab.on(closed_stream(lab).name), StreamClosedError, ("'short-lived'", "lab.stream('short-lived')")
    ),
    "handed-over range on a closed stream": Bad(
        lambda lab, _: lab.recording.start_range(closed_stream(lab).name, "x"), StreamClosedError, ("'short-lived'",)
    ),
    "lending a closed stream": Bad(lambda lab, _: closed_stream(lab).__cuda_stream__(), StreamClosedError, ("lab.stream(",)),
    "waiting for a closed stream": Bad(
        lambda lab, _: lab.stream("copy").wait(closed_stream(lab)), StreamClosedError, ("'short-lived'", "lab.stream(")
    ),
    "arrays after close": Bad(lambda lab, _: closed_session().xp.ones(3), SessionClosedError, ("closed",)),
}

FILES = {
    "no such trace file": Bad(
        lambda lab, at: gsl.load_trace(at / "none.parquet"), TraceFileError, ("none.parquet", "save(path)")
    ),
    "name of a file that is too long": Bad(
        lambda lab, _: gsl.load_trace("n" * 300), TraceFileError, ("no trace file", "save(path)")
    ),
    "corrupted trace file": Bad(lambda lab, at: saved(lab, at, flip_bytes), TraceFileError, ("run.parquet", "save it again")),
    "truncated trace file": Bad(
        lambda lab, at: saved(lab, at, lambda path: path.write_bytes(path.read_bytes()[:-100])),
        TraceFileError,
        ("run.parquet", "truncated", "save it again"),
    ),
    "empty trace file": Bad(
        lambda lab, at: saved(lab, at, lambda path: path.write_bytes(b"")), TraceFileError, ("run.parquet", "is empty")
    ),
    "newer trace file": Bad(
        lambda lab, at: saved(lab, at, make_newer), TraceFileError, ("run.parquet", "version 99", "pip install --upgrade")
    ),
    "trace into a missing folder": Bad(
        lambda lab, at: lab.trace.save(at / "none" / "run.parquet"), TraceFileError, ("none/run.parquet", "writable folder")
    ),
    "trace through a file": Bad(
        lambda lab, at: lab.trace.save(through_a_file(at, "x.parquet")), TraceFileError, ("x.parquet", "writable folder")
    ),
    "trace over a folder": Bad(lambda lab, at: lab.trace.save(at), TraceFileError, ("cannot be written", "writable folder")),
    "timeline into a missing folder": Bad(
        lambda lab, at: lab.timeline().save(at / "none" / "run.html"), TraceFileError, ("none/run.html", "writable folder")
    ),
    "timeline through a file": Bad(
        lambda lab, at: lab.timeline().save(through_a_file(at, "run.svg")), TraceFileError, ("run.svg", "writable folder")
    ),
    "timeline of an unknown kind": Bad(
        lambda lab, at: lab.timeline().save(at / "run.pdf"),
        OptionError,
        ("'run.pdf'", "'.html'", "lab.trace.save('run.parquet')"),
    ),
    "timeline without a suffix": Bad(lambda lab, at: lab.timeline().save(at / "run"), OptionError, ("'run'", "'.html'")),
    "timeline of a path": Bad(
        lambda lab, _: lab.timeline("run.parquet"), OptionError, ("not of a str", "load_trace('run.parquet')")
    ),
}

WORK = {
    "spin for no time": Bad(lambda lab, _: on_copy(lab, lambda: spin(lab, 0)), OptionError, ("duration_ns is 0", "from 1 to")),
    "spin for a fraction": Bad(
        lambda lab, _: on_copy(lab, lambda: spin(lab, 0.5)), OptionError, ("duration_ns is 0.5", "whole")
    ),
    "spin on no blocks": Bad(lambda lab, _: on_copy(lab, lambda: spin(lab, 5, blocks=0)), OptionError, ("blocks is 0",)),
    "spin on True blocks": Bad(
        lambda lab, _: on_copy(lab, lambda: spin(lab, 5, blocks=True)), OptionError, ("blocks is True",)
    ),
    "copy the wrong way round": Bad(
        lambda lab, _: copy_to_device(lab, lab.xp.ones(3), np.ones(3)), OptionError, ("ndarray", "lab.xp.empty", "order")
    ),
    "copy back the wrong way round": Bad(
        lambda lab, _: copy_to_host(lab, np.ones(3), lab.xp.ones(3)), OptionError, ("ndarray", "lab.xp.empty", "order")
    ),
    # As with CuPy, what is wrong with an array is a ValueError or TypeError of the array module.
    "copy of another shape": Bad(
        lambda lab, _: copy_to_device(lab, np.ones(3), lab.xp.ones(4)), ValueError, ("(3,)", "(4,)", "reshape")
    ),
    "copy back into another shape": Bad(
        lambda lab, _: copy_to_host(lab, lab.xp.ones(4), np.ones(3)), ValueError, ("(3,)", "(4,)")
    ),
    "copy back into another type": Bad(
        lambda lab, _: copy_to_host(lab, lab.xp.ones(3), np.ones(3, "float32")), ValueError, ("float32", "float64")
    ),
    "host array in device work": Bad(lambda lab, _: lab.xp.ones(3) + np.ones(3), TypeError, ("asarray",)),
    "what is not simulated": Bad(lambda lab, _: lab.xp.busday_count, NotSimulatedError, ("busday_count",)),
}

PARTITIONS = {
    "0 SMs": Bad(lambda lab, _: lab.partition(a=0), PartitionError, ("'a'", "0 SMs", "nearest plan that works: a=8")),
    "-8 SMs": Bad(lambda lab, _: lab.partition(a=-8), PartitionError, ("-8 SMs", "a=8")),
    "133 SMs": Bad(lambda lab, _: lab.partition(a=133), PartitionError, ("133 SMs", "has 132", "a=132")),
    "a billion SMs": Bad(lambda lab, _: lab.partition(a=10**9), PartitionError, ("1,000,000,000", "a=132")),
    "1 SM exactly": Bad(lambda lab, _: lab.partition(a=1, round="exact"), PartitionError, ("exactly", "multiples of 8", "a=8")),
    "7 SMs at most": Bad(lambda lab, _: lab.partition(a=7, round="down"), PartitionError, ("at most", "a=8")),
    "sum beyond the card": Bad(lambda lab, _: lab.partition(a=100, b=100), PartitionError, ("200 SMs", "a=64, b=68")),
    "66 and 66": Bad(lambda lab, _: lab.partition(a=66, b=66), PartitionError, ("at least", "a=64, b=68")),
    "shares beyond 1": Bad(lambda lab, _: lab.partition(a=0.6, b="60%"), PartitionError, ("132", "nearest plan that works")),
    "share of 96.0": Bad(lambda lab, _: lab.partition(a=96.0), PartitionError, ("96.0", "whole number 96")),
    "share NaN": Bad(lambda lab, _: lab.partition(a=float("nan")), PartitionError, ("nan", "at most 1")),
    "SMs True": Bad(lambda lab, _: lab.partition(a=True), PartitionError, ("'True'", "'rest'")),
    "SMs as a word": Bad(lambda lab, _: lab.partition(a="some"), PartitionError, ("'some'", "'rest'")),
    "two rests": Bad(lambda lab, _: lab.partition(a="rest", b="rest"), PartitionError, ("Only one", "a, b")),
    "empty partition name": Bad(lambda lab, _: lab.partition({"": 8}), InvalidNameError, ("cannot be empty", "decode=32")),
    "partition name with a space": Bad(lambda lab, _: lab.partition({"a b": 8}), InvalidNameError, ("use 'a_b'",)),
    "partition name that is no text": Bad(lambda lab, _: lab.partition({3: 8}), InvalidNameError, ("not int",)),
    "no partitions": Bad(lambda lab, _: lab.partition({}), PartitionError, ("No partition was named", "lab.partition(None)")),
    "partitions as a list": Bad(lambda lab, _: lab.partition([96, 32]), PartitionError, ("of type list", "prefill=96")),
    "partitions as a number": Bad(lambda lab, _: lab.partition(96), PartitionError, ("of type int", "prefill=96")),
    "partitions given twice": Bad(lambda lab, _: lab.partition({"a": 8}, b=8), PartitionError, ("either", "(b)")),
    "unknown rounding": Bad(lambda lab, _: lab.partition(a=8, round="near"), OptionError, ("'near'", "'up'")),
    "work queues as a number": Bad(lambda lab, _: lab.partition(a=8, workqueue=4), PartitionError, ("WorkqueueOptions(",)),
    "new names as a text": Bad(lambda lab, _: lab.partition({"a": 8}, renamed="b"), PartitionError, ("renamed=", "'new'")),
    "strict on an older driver": Bad(
        lambda lab, _: lab.partition({"a": gsl.PartitionOptions(sms=8, backfill=True)}, strict=True),
        PartitionUnavailableError,
        ("backfill", "CUDA 13.1", "strict=True"),
    ),
    "unknown partition": Bad(
        lambda lab, _: lab.stream("new", partition="decode"), PartitionNotFoundError, ("'decode'", "lab.partition(decode=32")
    ),
    "moving to an unknown partition": Bad(
        lambda lab, _: lab.stream("copy", partition="decode"), PartitionNotFoundError, ("'decode'", "lab.partition(")
    ),
    "moves of a number": Bad(lambda lab, _: lab.partitions.plan_moves(8), PartitionError, ("int", "lab.partition(")),
    "listener that cannot be called": Bad(
        lambda lab, _: lab.partitions.watch(None), OptionError, ("NoneType", "lab.partitions.watch(")
    ),
    "partition of a closed session": Bad(
        lambda lab, _: closed_session().partition(a=8), SessionClosedError, ("share out", "Session()")
    ),
    "proof of a closed session": Bad(
        lambda lab, _: closed_session().partitions.verify(), SessionClosedError, ("verify", "Session()")
    ),
    "context limit 0": Bad(
        lambda lab, _: Session("sim", context_limit=0), OptionError, ("context_limit is 0", "Session(context_limit=64)")
    ),
}

CASES = BACKENDS | STREAMS | EVENTS | QUESTIONS | CLOSED | FILES | WORK | PARTITIONS


def on_copy(lab, work):
    with lab.on("copy", "wrong"):
        work()


def facts(trace):
    """What a trace holds, without the ranges that a row of the table opened itself."""
    kept = [row for row, code in enumerate(trace.name) if trace.names[code] != "wrong"]
    return [(trace.names[trace.name[row]], int(trace.start_ns[row]), int(trace.end_ns[row])) for row in kept]


@pytest.fixture(scope="module")
def no_driver():
    from gpustreamlab.backends.cuda._probe import why_unavailable

    return why_unavailable() is not None


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_told_and_loses_nothing(name, tmp_path, no_driver):
    bad = CASES[name]
    if bad.error is BackendUnavailableError and not no_driver:
        pytest.skip("this machine has a driver")
    with Session("sim", capture="ranges") as lab:
        lab.stream("copy", priority=-1)
        lab.stream("compute")
        with lab.on("copy", "kept"):
            spin(lab, 1_000)
        lab.synchronize()
        before = facts(lab.trace)

        with pytest.raises(bad.error) as told:
            bad.do(lab, tmp_path)

        assert type(told.value) is bad.error or bad.error in (ValueError, TypeError, NotSimulatedError)
        missing = [word for word in bad.words if word not in str(told.value)]
        assert not missing, f"{missing} not in: {told.value}"
        assert len(str(told.value)) < 500
        assert isinstance(told.value, GPUStreamLabError) or bad.error in (ValueError, TypeError)
        assert {path.name for path in tmp_path.iterdir()} <= {"run.parquet"}
        assert_still_works(lab, before)


def assert_still_works(lab, before):
    """The session has its streams and its trace, selects nothing, and goes on recording."""
    assert list(lab.streams) == ["copy", "compute"]
    assert lab.current is None
    assert lab._backend.selected_stream is lab._backend.null_stream
    assert facts(lab.trace) == before
    assert lab.layout is None
    assert lab._backend.context_bytes == 0
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
        lab.title = "saved"
        lab.trace.save(tmp_path / "run.parquet")
        loaded = Trace.load(tmp_path / "run.parquet")
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
