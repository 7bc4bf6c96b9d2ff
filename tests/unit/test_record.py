"""Programs in C, recorded by what the driver loads into them; the driver and CUPTI are those of `fake_driver.c`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab import cli
from gpustreamlab.backends.cuda.cupti import _library, _stored
from gpustreamlab.backends.cuda.cupti._buffers import COMPILERS
from gpustreamlab.errors import OptionError, TraceFileError
from gpustreamlab.run import _running
from gpustreamlab.sinks.live import LiveFeed
from gpustreamlab.typing import EdgeKind, LaneKind, SessionState, SpanKind

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the driver loads it on Linux"),
    pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="there is no C compiler"),
]

DRIVER = Path(__file__).parents[1] / "helpers/fake_driver.c"
PROGRAM = r"""
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
int cuInit(unsigned), fake_stream(int);
void fake_launch(int, const char *, uint64_t), fake_copy(int, uint64_t, uint64_t), fake_wait(int, int, int);
void fake_upload(int, uint64_t, uint64_t, uint64_t), fake_compute(int, const char *, uint64_t, uint64_t, uint64_t);
uint64_t fake_allocate(uint64_t);
void fake_graph(int, uint64_t), fake_synchronize(int), fake_mark(uint32_t, const char *), fake_reset(void);
int set_up(void) { return 1; } /* what the recorder has, too: each has its own */
int main(int count, char **words)
{
    int steps = count > 1 ? atoi(words[1]) : 10, scale = count > 3 ? atoi(words[3]) : 1;
    const char *how = count > 2 ? words[2] : "";
    if (!strcmp(how, "nothing"))
        return 0;
    cuInit(0);
    if (!strcmp(how, "exec"))
        execl(words[0], words[0], words[1], NULL);
    int copies = fake_stream(0), work = fake_stream(-1);
    for (int i = 0; i < steps; i++) {
        char name[32];
        snprintf(name, sizeof name, "step %d", i);
        fake_mark(i + 1, name);
        fake_copy(copies, 4096, 40000 * scale);
        fake_wait(work, copies, 5);
        fake_launch(work, i % 2 ? "_ZN3lab4gemmEPf" : "_ZN3lab4reluEPf", 100000 * scale);
        fake_synchronize(work);
        fake_mark(i + 1, NULL);
    }
    for (int i = 0; i < 4 && !strcmp(how, "memory"); i++) {
        uint64_t input = fake_allocate(4096), output = fake_allocate(4096), other = fake_allocate(4096);
        fake_upload(copies, input, 4096, 40000);
        fake_wait(work, copies, 5); /* needed */
        fake_compute(work, "twice", input, output, 100000);
        fake_wait(copies, work, 6); /* not needed */
        fake_compute(copies, "fill", other, other, 100000);
        fake_synchronize(copies);
    }
    if (!strcmp(how, "graph"))
        fake_graph(work, 50000);
    if (!strcmp(how, "gone")) {
        char *name = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        fake_launch(work, strcpy(name, "unloaded"), 1000);
        munmap(name, 4096);
    }
    printf("done\n");
    fflush(stdout);
    if (!strcmp(how, "fork") && !fork())
        exit(0); /* as a child of a server does, whose file this is not */
    if (!strcmp(how, "kill"))
        usleep(700000), raise(SIGKILL);
    if (!strcmp(how, "reset"))
        fake_reset();
    if (!strcmp(how, "wait"))
        getchar();
    return 5;
}
"""
KERNEL, COPY = (list(SpanKind).index(kind) for kind in (SpanKind.KERNEL, SpanKind.COPY))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return a program that is linked with the driver, as nvcc links one."""
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "program.c").write_text(PROGRAM)
    compiler, driver = next(filter(None, map(shutil.which, COMPILERS))), folder / "libcuda.so.1"
    library = ["-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([compiler, "-O1", *library, "-o", driver, DRIVER, "-ldl"], check=True)
    program = [folder / "program.c", driver, "-rdynamic", f"-Wl,-rpath,{folder}"]
    subprocess.run([compiler, "-O1", "-o", folder / "program", *program], check=True)
    return SimpleNamespace(program=str(folder / "program"), driver=str(driver))


@pytest.fixture
def record(built, tmp_path, monkeypatch):
    """Return what runs the command in an empty folder, and gives its status."""
    monkeypatch.chdir(tmp_path)
    for name in ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"):  # a session of another test may have set it
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_library, "find_loaded", lambda: None)
    monkeypatch.setattr(_library, "find_installed", lambda: built.driver)
    monkeypatch.setattr(_library, "_loaded", {})
    return lambda *words: cli.main(["record", *words])


def kernels(trace):
    return int((trace.kind == KERNEL).sum())


def test_a_program_in_c_does_what_it_does_and_is_recorded(record, built, capfd):
    assert record("-o", "run.parquet", "--", built.program, "20") == 5

    said = capfd.readouterr()
    assert said.out == "done\n"
    assert "program: 20 kernels, 20 copies in 2 streams of Fake GPU" in said.err
    assert "Timeline: program.html; trace: run.parquet" in said.err
    assert sorted(path.name for path in Path().iterdir()) == ["program.html", "run.parquet"]
    trace = gsl.load_trace("run.parquet")
    lanes = {lane.name: lane for lane in trace.lanes}
    assert [*lanes] == ["stream 13", "stream 14", "host: thread 1"]
    assert (lanes["stream 14"].priority, lanes["stream 14"].is_blocking, lanes["stream 14"].sm_count) == (-1, False, 132)
    assert trace.metadata.title == "program"
    assert (trace.metadata.dropped_spans, trace.metadata.recovery_note, trace.metadata.missing) == (0, "", ())
    assert trace.metadata.clock_error_ns < 1_000_000
    device = trace.metadata.device
    assert (device.name, device.compute_capability, device.copy_engines, device.driver_version) == (
        "Fake GPU",
        (9, 0),
        3,
        "13.0",
    )


def test_what_is_read_is_what_the_program_did(record, built):
    record("-o", "run.parquet", "-q", "--", built.program, "6")
    trace = gsl.load_trace("run.parquet")
    frame = trace.to_pandas()
    work = frame[frame.lane == "stream 14"]
    assert work.name.tolist() == ["relu", "gemm"] * 3
    assert (trace.duration_ns[trace.kind == KERNEL] == 100_000).all()
    assert trace.details[int(trace.extra["detail"][np.flatnonzero(trace.kind == KERNEL)[0]])].full_name == "lab::relu(float*)"
    names = frame[frame.lane == "host: thread 1"].name.tolist()
    assert [name for name in names if name.startswith("step")] == [f"step {step}" for step in range(6)]
    assert names.count("cuLaunchKernel") == names.count("cuMemcpyHtoDAsync") == names.count("cuStreamSynchronize") == 6
    edges = trace.edges
    kinds = [list(EdgeKind)[kind] for kind in edges.kind.tolist()]
    sources, targets = trace.kind[edges.source], trace.kind[edges.target]
    waits = [kind is EdgeKind.WAIT for kind in kinds]
    assert sum(waits) == 6
    assert (sources[waits] == COPY).all()
    assert (targets[waits] == KERNEL).all()
    assert kinds.count(EdgeKind.LAUNCH) == 12
    launch = edges.source[[kind is EdgeKind.LAUNCH for kind in kinds]]
    assert {trace.names[code] for code in trace.name[launch].tolist()} == {"cuLaunchKernel", "cuMemcpyHtoDAsync"}
    assert [str(trace.lanes[lane].kind) for lane in trace.lane[launch][:1].tolist()] == [LaneKind.HOST]


def test_what_work_touches_is_read_from_the_words_of_its_calls(record, built, capfd):
    record("-o", "run.parquet", "--", built.program, "0", "memory")
    trace = gsl.load_trace("run.parquet")
    told = trace.accesses
    names = [trace.names[trace.name[row]] for row in told.span.tolist()]
    assert [*zip(names, told.is_write.tolist(), strict=True)] == [
        ("memcpy HtoD (pinned)", True),
        *[("twice", False), ("twice", True)],
        ("fill", True),
    ] * 4
    assert len({*told.buffer.tolist()}) == 12
    assert "lab.stream('stream 13').wait('stream 14'): no array asks for it" in capfd.readouterr().err


@pytest.mark.parametrize("field", ["dropped", "begin"])
def test_what_work_touches_is_not_known_where_calls_are_missing(record, built, tmp_path, field):
    told = _stored.injection(tmp_path / "part", limit_bytes=1 << 24, last_s=None)
    subprocess.run([built.program, "0", "memory"], env=os.environ | told, check=False)
    (path,) = tmp_path.glob("part-*.gsl")
    assert len(gsl.load_trace(path).accesses.span) == 16
    head = np.memmap(path, _stored._HEAD, "r+", shape=1)
    head[field] += _stored._CHUNK.itemsize + 16 if field == "begin" else 1
    head.flush()
    with suppress(TraceFileError):  # nothing is left behind a beginning that is none
        assert not len(gsl.load_trace(path).accesses.span)


@pytest.mark.parametrize(("graphs", "names"), [("nodes", ["node", "node"]), ("whole", ["graph 3 (whole)"])])
def test_graphs_are_recorded_as_a_whole_or_by_their_kernels(record, built, capfd, graphs, names):
    asked = ["--graphs", graphs] if graphs == "nodes" else []
    record("-o", "run.parquet", *asked, "--", built.program, "0", "graph")
    trace = gsl.load_trace("run.parquet")
    assert ("Type --graphs nodes" in capfd.readouterr().err) == (graphs == "whole")
    assert [trace.names[code] for code in trace.name[trace.kind == KERNEL].tolist()] == names
    assert trace.duration_ns[trace.kind == KERNEL].sum() == 100_000
    assert ("cuGraphLaunch" in trace.names, len(trace.edges)) == (True, len(names))
    assert ("whole graphs" in [doubt.check for doubt in trace.quality().doubts]) == (graphs == "whole")


def test_what_a_killed_program_did_is_kept_and_the_status_is_that_of_shells(record, built, capfd):
    assert record("-o", "run.parquet", "--", built.program, "10", "kill") == 128 + signal.SIGKILL
    trace = gsl.load_trace("run.parquet")
    assert kernels(trace) == 10
    assert "was killed" in trace.metadata.recovery_note
    assert "Missing: the process was killed" in capfd.readouterr().err


def test_what_a_reset_of_the_device_would_take_is_read_before(record, built):
    record("-o", "run.parquet", "-q", "--", built.program, "10", "reset")
    assert kernels(gsl.load_trace("run.parquet")) == 10


def test_a_name_that_is_gone_ends_no_program(record, built):
    assert record("-o", "run.parquet", "-q", "--", built.program, "2", "gone") == 5
    trace = gsl.load_trace("run.parquet")
    assert [trace.names[code] for code in trace.name[trace.kind == KERNEL].tolist()] == ["relu", "gemm", "(unknown kernel)"]


def test_a_forked_child_leaves_the_file_alone(record, built):
    record("-o", "run.parquet", "-q", "--", built.program, "10", "fork")
    trace = gsl.load_trace("run.parquet")
    assert (kernels(trace), trace.metadata.recovery_note) == (10, "")


def test_each_process_has_its_trace_and_one_that_becomes_another_program_a_further_one(record, built, capfd):
    assert (
        record("-o", "run.parquet", "--", "sh", "-c", f"{built.program} 3; {built.program} 4; {built.program} 1 nothing") == 0
    )
    traces = [gsl.load_trace(name) for name in ("run.parquet", "run-2.parquet")]
    assert [*map(kernels, traces)] == [3, 4]
    merged = gsl.merge(traces, processes=[0, 1])
    first, second = (merged.kind == KERNEL) & (np.array([lane.process for lane in merged.lanes])[merged.lane] == 0), merged.kind
    assert (kernels(merged), merged.end_ns[first].max() < merged.start_ns[(second == KERNEL) & ~first].min()) == (7, True)
    assert "sh, process 2 of 2: 4 kernels" in capfd.readouterr().err

    record("-o", "exec.parquet", "--page", "exec.html", "-q", "--", built.program, "7", "exec")
    assert kernels(gsl.load_trace("exec.parquet")) == 7


def test_a_script_gives_its_name(record, built):
    Path("train.py").write_text(f"import subprocess\nsubprocess.run([{built.program!r}, '2'])\n")
    assert record("-q", "--", sys.executable, "-u", "train.py") == 0
    assert Path("train.html").exists()


def test_a_program_without_cuda_is_said_to_have_nothing(record, built, capfd):
    assert record("--", built.program, "1", "nothing") == 0
    assert "nothing was recorded: it made no call of CUDA" in capfd.readouterr().err
    assert not [*Path().iterdir()]


def test_where_another_has_the_callbacks_kernels_are_recorded_and_it_is_said_what_is_missing(record, built, monkeypatch):
    monkeypatch.setenv("FAKE_SUBSCRIBED", "1")
    record("-o", "run.parquet", "-q", "--", built.program, "4")
    trace = gsl.load_trace("run.parquet")
    assert kernels(trace) == 4
    assert trace.metadata.missing[0] == "calls of CUDA could not be recorded: CUPTI said CUPTI_ERROR_OF_THE_TEST (39)."
    assert "cuLaunchKernel" not in trace.names


def test_a_file_keeps_the_end_and_its_size(record, built, tmp_path):
    limit_bytes = 16 << 20
    told = _stored.injection(tmp_path / "ring", limit_bytes=limit_bytes, last_s=None)
    subprocess.run([built.program, "80000", "", "0"], env=os.environ | told, check=False)
    (path,) = tmp_path.glob("ring-*.gsl")
    taken_bytes = path.stat().st_blocks * 512
    if taken_bytes > limit_bytes:
        assert "cannot let go of its beginning" in gsl.load_trace(path).metadata.missing[0]
        pytest.skip("this file system makes no holes")
    trace = gsl.load_trace(path)
    names = [name for name in trace.names if name.startswith("step")]
    assert "step 79999" in names
    assert "step 0" not in names
    assert 5_000 < kernels(trace) < 40_000
    # What was told at the beginning is told in each part.
    assert {"relu", "gemm", "cuLaunchKernel"} < {*trace.names}
    assert (trace.metadata.device.name, trace.lanes[0].priority, trace.lanes[1].priority) == ("Fake GPU", 0, -1)


def test_where_no_more_can_be_written_the_program_goes_on(record, built, tmp_path):
    told = _stored.injection(tmp_path / "full", limit_bytes=1 << 24, last_s=None)
    most_bytes = 60_000
    done = subprocess.run(
        ["sh", "-c", f"ulimit -f {most_bytes // 512}; {built.program} 2000 '' 0"], env=os.environ | told, check=False
    )
    assert done.returncode == 5
    (path,) = tmp_path.glob("full-*.gsl")
    assert path.stat().st_size <= most_bytes
    stored = _stored.read_stored(path)
    assert stored.has_ended
    assert "could not be written any more" in stored.notes[0]


def test_the_last_seconds_are_kept(record, built):
    record("--last", "0.3", "-o", "run.parquet", "-q", "--", built.program, "12", "", "1000")  # of 140 ms each
    trace = gsl.load_trace("run.parquet")
    assert 2 <= kernels(trace) < 10
    assert "step 11" in trace.names


def test_a_program_that_goes_on_is_read_as_sessions_are(record, built, tmp_path):
    told = _stored.injection(tmp_path / "on", limit_bytes=1 << 24, last_s=None)
    with subprocess.Popen(
        [built.program, "9", "wait"], env=os.environ | told, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "done\n"
        pause = threading.Event()
        for _ in range(100):  # at most 2 s
            pause.wait(0.02)
            if [path for path in tmp_path.glob("on-*") if path.stat().st_size > 9 * 200]:
                (trace,) = _running.take(process.pid)
                if kernels(trace) == 9:
                    break
        assert kernels(trace) == 9
        assert (trace.metadata.title, "which went on" in trace.metadata.recovery_note) == ("on", True)
        process.communicate("\n")


def test_a_program_that_goes_on_is_followed_with_what_it_did_each_time(record, built, tmp_path):
    told = _stored.injection(tmp_path / "on", limit_bytes=1 << 24, last_s=None)
    with subprocess.Popen(
        [built.program, "120", "wait", "100"], env=os.environ | told, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        pause, followed = threading.Event(), None
        while followed is None:
            with suppress(OptionError):  # nothing is in its file yet
                followed = gsl.live(process.pid)
            pause.wait(0.02)
        feed = LiveFeed(followed._spool)
        feed.refresh()
        assert process.stdout.readline() == "done\n"
        while kernels(followed.trace) < 120:
            pause.wait(0.1)
            feed.refresh()
        (path,) = tmp_path.glob("on-*")
        whole = gsl.load_trace(path)
        path.unlink()  # as `record` does, at the end
        process.communicate("\n")
    while followed.state is SessionState.OPEN:
        pause.wait(0.05)
    trace = followed.trace
    assert (trace.metadata.device, trace.metadata.title) == (whole.metadata.device, "on")
    assert sorted(lane.name for lane in trace.lanes) == sorted(lane.name for lane in whole.lanes)
    for kind in (KERNEL, COPY):
        mine, its = trace[trace.kind == kind], whole[whole.kind == kind]
        assert [mine.names[code] for code in mine.name] == [its.names[code] for code in its.name]
        offset = trace.metadata.epoch_unix_ns - whole.metadata.epoch_unix_ns
        for name in ("start_ns", "end_ns", "queued_ns"):
            assert (getattr(mine, name) + offset == getattr(its, name)).all()
        assert [mine.lanes[lane].name for lane in mine.lane] == [its.lanes[lane].name for lane in its.lane]
        assert (mine.thread == 0).all()
    assert np.bincount(trace.edges.kind, minlength=3).tolist() == np.bincount(whole.edges.kind, minlength=3).tolist()
    assert feed.snapshot().blob


def test_a_live_page_follows_a_program_in_c(record, built, tmp_path, monkeypatch, capsys):
    told = _stored.injection(tmp_path / "on", limit_bytes=1 << 24, last_s=None)
    with subprocess.Popen(
        [built.program, "5", "wait"], env=os.environ | told, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        while not taken_kernels(process.pid):
            threading.Event().wait(0.02)
        monkeypatch.setattr(_running, "time", SimpleNamespace(sleep=lambda _: process.poll() or process.communicate(b"\n")))
        assert cli.main(["live", str(process.pid), "--no-open", "--page", "live.html"]) == 0
    assert "relu" in Path("live.html").read_text()
    assert f"Process {process.pid} has ended" in capsys.readouterr().out


def test_who_asks_a_shell_is_told_which_of_its_processes_is_recorded(record, built, tmp_path):
    told = _stored.injection(tmp_path / "inner", limit_bytes=1 << 24, last_s=None)
    command = ["sh", "-c", f"{built.program} 3 wait; true"]
    with subprocess.Popen(command, env=os.environ | told, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        (path,) = tmp_path.glob("inner-*.gsl")
        pid = path.stem.removeprefix("inner-")
        with pytest.raises(OptionError, match=f"Process {process.pid} itself is not recorded, but what it started: {pid}"):
            gsl.live(process.pid)
        process.communicate(b"\n")


def taken_kernels(pid):
    with suppress(OptionError):
        return kernels(_running.take(pid)[0])


def test_what_outlives_the_command_goes_on_being_recorded(record, built, tmp_path, capfd):
    assert record("-o", "run.parquet", "--", "sh", "-c", f"(sleep 30 | exec {built.program} 3 wait) & sleep 1") == 0
    said = capfd.readouterr().err
    pid = int(said.partition("gpustreamlab: process ")[2].partition(" ")[0])
    try:
        assert f"gpustreamlab snap {pid}" in said
        assert kernels(gsl.load_trace("run.parquet")) == kernels(_running.take(pid)[0]) == 3
    finally:
        os.kill(pid, signal.SIGKILL)


def test_signals_go_to_the_program(record, built, capfd):
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    before = signal.getsignal(signal.SIGTERM)
    assert record("-o", "run.parquet", "--", built.program, "1000", "", "100") == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    assert kernels(gsl.load_trace("run.parquet")) >= 1


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 2, "no command to record"),
        (["--last", "0", "--", "true"], 2, "--last is 0"),
        (["-o", "run.xyz", "--", "true"], 2, "run.xyz"),
        (["--page", "not-there/run.html", "--", "true"], 2, "Nothing can be written"),
        (["--", "./not-there"], 127, "cannot be run: No such file"),
    ],
)
def test_what_cannot_be_recorded_is_refused(record, capfd, words, status, said):
    assert record(*words) == status
    assert said in capfd.readouterr().err


def test_beside_another_injected_profiler_it_does_not_start(record, capfd, monkeypatch):
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/nsys/libToolsInjection64.so")
    assert record("--", "true") == 2
    assert "another profiler records already" in capfd.readouterr().err


def test_what_is_cut_off_or_damaged_is_read_as_far_as_it_goes_or_refused(record, built, tmp_path):
    told = _stored.injection(tmp_path / "whole", limit_bytes=1 << 24, last_s=None)
    subprocess.run([built.program, "30"], env=os.environ | told, check=False)
    assert told["NVTX_INJECTION64_PATH"] == built.driver  # by which CUPTI hears of NVTX ranges
    (path,) = tmp_path.glob("whole-*.gsl")
    whole, random, found = path.read_bytes(), np.random.default_rng(4), count()
    for turn in range(60):
        data = bytearray(whole[: random.integers(len(whole))] if turn % 2 else whole)
        for place in random.integers(len(data), size=turn % 7):
            data[place] = random.integers(256)
        path.write_bytes(data)
        try:
            assert kernels(gsl.load_trace(path)) <= 30
            next(found)
        except TraceFileError:
            pass
    assert next(found) > 10
