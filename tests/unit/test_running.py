"""What a process records is read while it goes on, and a process that was started without us is recorded from then on."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

import gpustreamlab as gsl
from gpustreamlab import cli
from gpustreamlab.errors import OptionError
from gpustreamlab.run import _running
from gpustreamlab.run.followed import Followed
from gpustreamlab.sinks._spool_format import LEAST_LIMIT_BYTES, SpoolFile
from gpustreamlab.sinks.arrived import FollowedSpool
from gpustreamlab.sinks.spool import Spool
from gpustreamlab.typing import SessionState, SpanKind, SpoolState
from gpustreamlab.workloads import spin
from tests.unit.notebook.test_live_timeline import FakeShell

ROOT = Path(__file__).resolve().parents[2]
KERNEL = list(SpanKind).index(SpanKind.KERNEL)
SERVER = """
import sys
from gpustreamlab.workloads import spin
lab.stream("decode")
for line in sys.stdin:
    if line.startswith("exec "):
        exec(open(line[5:].strip()).read())
        continue
    for step in range(int(line)):
        with lab.on("decode", "decode", step=step):
            spin(lab, 100_000)
    lab.synchronize()
    print("done", flush=True)
"""
"""Works as often as a line says; `lab` is a session."""
OWN = "import gpustreamlab as gsl\nlab = gsl.Session('sim', capture='ranges')\n"

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no /proc")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def start(folder):
    """Start a server, recorded or not; at the end it ends, too."""
    running = []

    def start(*options: str, text: str = SERVER) -> subprocess.Popen[str]:
        (folder / "server.py").write_text(textwrap.dedent(text))
        command = [sys.executable, *options, "server.py"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        one = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.append(one)
        return one

    yield start
    for one in running:
        one.stdin.close()
        one.wait(60)
        one.stdout.close()


RECORDED = ("-m", "gpustreamlab", "run", "-q", "--backend", "sim", "--force")


def work(server: subprocess.Popen[str], steps: int) -> None:
    server.stdin.write(f"{steps}\n")
    server.stdin.flush()
    assert server.stdout.readline() == "done\n"


def taken(pid: int, kernels: int) -> gsl.Trace:
    """Take what a process recorded, as soon as that is so many kernels."""
    while True:
        with suppress(OptionError):  # nothing yet
            (trace,) = _running.take(pid)
            if (trace.kind == KERNEL).sum() >= kernels:
                return trace
        assert Path(f"/proc/{pid}").exists()
        threading.Event().wait(0.02)


def test_what_a_process_has_recorded_is_taken_while_it_goes_on_and_a_live_page_follows(start, capsys, monkeypatch):
    server = start(*RECORDED)
    work(server, 5)
    trace = taken(server.pid, 5)
    assert "which went on" in trace.metadata.recovery_note
    work(server, 7)
    assert (taken(server.pid, 12).kind == KERNEL).sum() == 12
    assert cli.main(["snap", str(server.pid), "--no-open", "--last", "0.0005", "-o", "snap.parquet"]) == 0
    said = capsys.readouterr().out
    assert "server\n" in said
    assert f"Timeline: server-{server.pid}.html; trace: snap.parquet" in said
    last = gsl.load_trace("snap.parquet")
    assert 3 <= (last.kind == KERNEL).sum() <= 6  # of 100 us each, in the last 500 us
    assert last.end_ns.max() == taken(server.pid, 12).end_ns.max()
    # AND a live page follows until the process ends
    page, seen = Path(f"server-{server.pid}.html"), []

    def sleep(seconds: float) -> None:
        seen.append((seconds, page.read_text()))
        if len(seen) == 1:
            work(server, 7)
            taken(server.pid, 19)
        elif len(seen) == 3:
            server.stdin.close()
            server.wait(60)

    monkeypatch.setattr(_running, "time", SimpleNamespace(sleep=sleep))
    assert cli.main(["live", str(server.pid), "--no-open", "--every", "0.5", "--last", "60"]) == 0
    assert [seconds for seconds, _ in seen] == [0.5] * 3
    again = "location.reload() }, 500)"
    assert all(again in text for _, text in seen)
    assert again not in page.read_text()
    assert seen[0][1] != seen[1][1], "what came meanwhile is drawn"
    assert "has ended" in capsys.readouterr().out
    assert not [*Path().glob(".server*")]


@pytest.fixture
def reaches(monkeypatch):
    """Let the process itself run what it is sent, as Python 3.14 does; return whom."""
    servers: dict[int, subprocess.Popen[str]] = {}

    def remote_exec(pid: int, script: str) -> None:
        servers[pid].stdin.write(f"exec {script}\n")
        servers[pid].stdin.flush()

    monkeypatch.setattr(sys, "remote_exec", remote_exec, raising=False)
    return servers


def test_a_process_that_runs_is_recorded_from_then_on(start, reaches, capsys):
    server = start(text=OWN + SERVER)
    reaches[server.pid] = server
    work(server, 4)
    assert cli.main(["attach", str(server.pid), "--backend", "sim"]) == 0
    assert f"gpustreamlab snap {server.pid}" in capsys.readouterr().out
    work(server, 6)
    trace = taken(server.pid, 6)
    assert (trace.kind == KERNEL).sum() == 6, "kernels are captured from then on"
    assert (trace.kind == list(SpanKind).index(SpanKind.RANGE)).sum() >= 10, "the session has kept its ranges"
    assert cli.main(["attach", str(server.pid), "--backend", "sim"]) == 0
    assert "is recorded already" in capsys.readouterr().out
    server.stdin.close()
    assert server.wait(60) == 0
    assert gsl.load_trace(f"process-{server.pid}.gsl").metadata.recovery_note == ""


def test_what_goes_wrong_in_the_process_is_told(start, reaches, capsys, folder, monkeypatch):
    server = start(text=OWN + SERVER)
    reaches[server.pid] = server
    work(server, 1)
    # GIVEN a folder for its file that is gone when the process would write there
    (folder / "gone").mkdir()
    monkeypatch.chdir(folder / "gone")
    send = sys.remote_exec
    monkeypatch.setattr(sys, "remote_exec", lambda *told: [(folder / "gone").rmdir(), send(*told)])
    # THEN who asked is told, and the process goes on
    assert cli.main(["attach", str(server.pid), "--backend", "sim"]) == 1
    assert "could not be recorded: The run cannot be spooled to" in capsys.readouterr().err
    work(server, 1)


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (PermissionError("no"), "kernel.yama.ptrace_scope=0"),
        (RuntimeError("Remote debugging is not enabled in the remote process"), "PYTHON_DISABLE_REMOTE_DEBUG"),
        (None, "attach needs Python 3.14"),
    ],
)
def test_it_is_told_why_a_process_cannot_be_reached(monkeypatch, capsys, failure, told):
    def remote_exec(pid: int, script: str) -> None:
        raise failure

    if failure is None:
        monkeypatch.delattr(sys, "remote_exec", raising=False)
    else:
        monkeypatch.setattr(sys, "remote_exec", remote_exec, raising=False)
    assert cli.main(["attach", str(os.getpid())]) == 1
    said = capsys.readouterr().err
    assert told in said
    assert "gpustreamlab run" in said


@pytest.mark.parametrize("command", ["snap", "live", "attach"])
def test_a_process_that_is_not_there_is_told(capsys, command):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert cli.main([command, str(gone.pid)]) == 1
    assert f"There is no process {gone.pid}" in capsys.readouterr().err


def test_a_process_that_is_not_recorded_says_what_to_type(capsys):
    assert cli.main(["snap", str(os.getpid())]) == 1
    assert f"gpustreamlab attach {os.getpid()}" in capsys.readouterr().err


def test_a_ring_keeps_the_newest_in_a_bounded_file(tmp_path):
    # GIVEN a session whose file has room for a part of what is recorded
    path = tmp_path / "ring.gsl"
    with gsl.Session("sim", ring_size=2_000) as lab:
        spool = Spool(SpoolFile(path, limit_bytes=LEAST_LIMIT_BYTES), lab._recorder, is_ring=True)
        a, b = lab.stream("a"), lab.stream("b")
        largest, renewed, before = 0, 0, 0
        for step in range(60):
            for _ in range(100):
                with lab.on("a", "work", step=step):
                    spin(lab, 1_000)
            b.wait(a)
            with lab.on("b", "more", step=step):
                lab.xp.ones(100)
            lab.synchronize()
            spool.refresh()
            # THEN at each moment the file is bounded, can be read, and ends with the newest
            size = path.stat().st_size
            largest, renewed, before = max(largest, size), renewed + (size < before), size
            read = gsl.load_trace(path)
            assert read.steps().labels[-1] == str(step)
        assert spool.state is SpoolState.WRITING
        assert renewed >= 2
        assert largest <= LEAST_LIMIT_BYTES
        spool.close()
        kept = gsl.load_trace(path)
        assert kept.metadata.recovery_note == ""
        assert len(kept) + kept.metadata.dropped_spans == len(lab.trace) + lab.trace.metadata.dropped_spans
    assert not [*tmp_path.glob("*.part")]


# The live timeline in a notebook


def followed_until(followed: Followed, is_so: Callable[[], bool]) -> None:
    """Wait for what a followed process does next."""
    while not is_so():
        threading.Event().wait(0.02)
    assert "Followed: process" in repr(followed)


def kernels_of(trace: gsl.Trace) -> int:
    return int((trace.kind == KERNEL).sum())


def test_a_process_is_followed_in_a_notebook_until_it_ends(start, monkeypatch):
    shell = FakeShell()
    for module in ("notebook.views", "timeline", "notebook.live_timeline"):
        monkeypatch.setattr(f"gpustreamlab.{module}.running_kernel_shell", lambda: shell)
    server = start(*RECORDED)
    work(server, 5)
    taken(server.pid, 5)
    followed = gsl.live(server.pid)
    timeline = followed.timeline()
    assert timeline.is_live
    timeline._ipython_display_()
    assert "application/vnd.jupyter.widget-view+json" in shell.data
    work(server, 7)
    followed_until(followed, lambda: kernels_of(followed.trace) == 12)
    assert kernels_of(timeline.trace) == 12
    server.stdin.close()
    server.wait(60)
    followed_until(followed, lambda: followed.state is SessionState.CLOSED and shell.published[-1][2])
    assert "text/html" in shell.data, "the output becomes a picture that stays"
    assert not timeline.is_live
    assert kernels_of(followed.trace) == 12
    followed.close()


@pytest.mark.parametrize("end", ["killed", "file removed"])
def test_a_process_that_is_not_recorded_any_more_is_not_followed(start, end):
    server = start(text=f"import gpustreamlab as gsl\nlab = gsl.Session('sim', spool=True)\n{SERVER}")
    work(server, 5)
    taken(server.pid, 5)
    followed = gsl.live(server.pid)
    if end == "killed":
        server.kill()
        server.wait()
    else:
        next(Path().glob("*.gsl")).unlink()
    followed_until(followed, lambda: followed.state is SessionState.CLOSED)
    assert kernels_of(followed.trace) == 5
    with pytest.raises(OptionError, match="There is no process" if end == "killed" else "is not recorded"):
        gsl.live(server.pid)


@pytest.mark.parametrize("pid", ["4711", 1.5, True])
def test_what_is_no_number_of_a_process_is_refused(pid):
    with pytest.raises(OptionError, match=r"as gsl\.live\(4711\)"):
        gsl.live(pid)


def test_a_file_with_nothing_in_it_is_told(tmp_path):
    path = tmp_path / "program-1.gsl"
    path.write_bytes(b"")
    with path.open("rb"), pytest.raises(OptionError, match="has recorded nothing yet"):
        gsl.live(os.getpid())


def columns_of(trace: gsl.Trace) -> list[list[int]]:
    return [trace.start_ns.tolist(), trace.end_ns.tolist(), trace.kind.tolist(), [trace.names[code] for code in trace.name]]


def test_a_spool_is_followed_in_any_pieces(tmp_path):
    whole, growing = tmp_path / "whole.gsl", tmp_path / "growing.gsl"
    with gsl.Session("sim", spool=whole) as lab:
        for count in (1, 200, 30):
            for _ in range(count):
                spin(lab, 1_000, stream=lab.stream("a"))
            lab.synchronize()
            lab.recording.spool.refresh()
    data, expected = whole.read_bytes(), columns_of(gsl.load_trace(whole))
    for step in (701, 5_003):
        growing.write_bytes(b"")
        followed = FollowedSpool(growing)
        for end in [*range(0, len(data), step), len(data)]:
            with growing.open("r+b") as file:
                file.write(data[:end])
            followed.read()
        assert followed.is_ended
        assert columns_of(followed.trace()) == expected
        followed.close()


def test_a_followed_ring_begins_anew_with_its_file(tmp_path):
    path = tmp_path / "ring.gsl"
    with gsl.Session("sim", ring_size=2_000) as lab:
        spool = Spool(SpoolFile(path, limit_bytes=LEAST_LIMIT_BYTES), lab._recorder, is_ring=True)
        followed, files = FollowedSpool(path), set()
        for _ in range(30):
            for _ in range(100):
                spin(lab, 1_000, stream=lab.stream("a"))
            lab.synchronize()
            spool.refresh()
            followed.read()
            files.add(path.stat().st_ino)
            assert columns_of(followed.trace()) == columns_of(gsl.load_trace(path))
        assert len(files) >= 2
        spool.close()
        followed.read()
        assert followed.is_ended
        followed.close()
