"""An illegal address: the range is named, the timeline is kept, the close is quiet. Each breaks a process of its own."""

import subprocess
import sys

import pytest

START = """
import cupy
import gpustreamlab as gsl
from gpustreamlab.errors import CloseError, StickyDeviceError

bad = cupy.RawKernel('extern "C" __global__ void bad(long long* p) { p[threadIdx.x] = 1; }', "bad")
bad.compile()
lab = gsl.Session("cuda", spool=SPOOL, capture=CAPTURE)
lab.stream("compute")
lab.stream("copy")
for name in ("fine", "fine too"):
    with lab.on("compute", name):
        cupy.ones(1000).sum()
lab.synchronize()

def break_it():
    with lab.on("compute", "bad write"):
        bad((1,), (32,), (cupy.int64(8),))

def failing(call):
    try:
        call()
    except StickyDeviceError as error:
        return str(error)
    raise AssertionError("it did not fail")
"""
KEPT = """
trace = lab.trace
assert [trace.names[code] for code in trace.name] == ["fine", "fine too"], trace
assert trace.metadata.pending_spans == 1, trace.metadata
assert "2 spans" in repr(lab.timeline()), lab.timeline()
lab.trace.save(SPOOL + ".parquet")
lab.close()
assert lab.state != "open" and len(lab.trace) == 2
loaded = gsl.load_trace(SPOOL)
assert len(loaded) == 2 and not loaded.metadata.recovery_note, loaded.metadata
"""
NAMED = "The first range that had not ended was 'bad write' on stream 'compute'"

PROGRAMS = {
    "synchronize the device": f"""
break_it()
message = failing(lab.synchronize)
assert {NAMED!r} in message, message
assert "Only a restart of this process" in message, message
again = failing(lab.stream("copy").synchronize)
assert {NAMED!r} in again, again
{KEPT}
""",
    "with a range open": f"""
with lab.on("copy", "outer"):
    break_it()
    message = failing(lab.stream("compute").synchronize)
    assert {NAMED!r} + "; open: 'outer' on stream 'copy'" in message, message
    try:
        cupy.cuda.runtime.deviceSynchronize()
    except cupy.cuda.runtime.CUDARuntimeError:
        pass
""",
    "CuPy's own error": f"""
try:
    with lab.on("copy", "outer"):
        break_it()
        cupy.cuda.runtime.deviceSynchronize()
except cupy.cuda.runtime.CUDARuntimeError as error:
    (note,) = error.__notes__
    assert {NAMED!r} in note, note
else:
    raise AssertionError("it did not fail")
""",
    "a close that is the first to tell": f"""
break_it()
try:
    lab.close()
except CloseError as error:
    assert len(error.failures) == 1, error
    assert {NAMED!r} in str(error), error
else:
    raise AssertionError("it did not fail")
assert lab.state != "open" and len(lab.trace) == 2, lab.trace
""",
}


def run(program, tmp_path, capture="ranges"):
    spool = str(tmp_path / "run.gsl")
    source = f"SPOOL, CAPTURE = {spool!r}, {capture!r}\n{program}"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False, timeout=120)
    return done, spool


@pytest.mark.parametrize("name", ["synchronize the device", "CuPy's own error", "a close that is the first to tell"])
def test_an_illegal_address_names_the_range_and_keeps_the_timeline(name, tmp_path):
    done, _ = run(START + PROGRAMS[name], tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr


def test_an_open_range_is_named_and_its_end_fails_with_the_same_words(tmp_path):
    done, _ = run(START + PROGRAMS["with a range open"], tmp_path)

    assert done.returncode == 1
    assert "StickyDeviceError: Recording range 'outer' on stream 'copy' failed" in done.stderr
    assert done.stderr.count(NAMED) >= 1


def test_a_program_that_dies_of_it_leaves_its_spool(tmp_path):
    done, spool = run(START + "break_it()\nlab.synchronize()", tmp_path)

    from gpustreamlab import load_trace

    assert done.returncode == 1
    assert NAMED in done.stderr
    assert len(load_trace(spool)) == 2


BY_KERNELS = """
import time
time.sleep(1)  # until the clock of kernels is known
lab.synchronize()
break_it()
message = failing(lab.synchronize)
assert "Not known to have ended: 'bad write' on stream 'compute'." in message, message
assert "'bad write'" in failing(lab.stream("copy").synchronize)
names = [lab.trace.names[code] for code in lab.trace.name]
assert "fine" in names and "fine too" in names and "bad write" not in names, names
lab.close()
for trace in (lab.trace, gsl.load_trace(SPOOL)):
    names = [trace.names[code] for code in trace.name]
    assert "fine too" in names and "bad write" not in names, names
    assert trace.metadata.dropped_spans >= 1, trace.metadata
"""


def test_where_kernels_are_captured_the_range_is_named_too(tmp_path):
    done, _ = run(START + BY_KERNELS, tmp_path, capture="auto")

    assert done.returncode == 0, done.stdout + done.stderr


def test_an_error_of_cupy_has_the_note_where_kernels_are_captured(tmp_path):
    program = START + PROGRAMS["CuPy's own error"].replace(NAMED, "Not known to have ended: ")

    done, _ = run(program, tmp_path, capture="auto")

    assert done.returncode == 0, done.stdout + done.stderr
