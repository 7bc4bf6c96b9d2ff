"""Programs run by ``gpustreamlab run`` do what they do without it; what they did is recorded, however they end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

import gpustreamlab as gsl
from gpustreamlab import cli
from gpustreamlab.run import _command, _written
from gpustreamlab.typing import SpanKind

ROOT = Path(__file__).resolve().parents[2]
WORK = """
from gpustreamlab.workloads import spin
for step in range(3):
    for name in ("copy", "compute"):
        lab.stream(name)
        with lab.on(name, f"{name} {step}"):
            spin(lab, 100_000)
lab.synchronize()
"""
"""What a program does with the session that it is given."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def run_python(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env=environment(), capture_output=True, text=True, check=False, timeout=120, **options
    )


def record(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "gpustreamlab", "run", "--backend", "sim", *arguments, **options)


def write(folder: Path, text: str, name: str = "program.py") -> str:
    (folder / name).write_text(textwrap.dedent(text))
    return name


TELLS = """
import sys
print(__name__, __file__, __package__, __spec__, sorted(set(globals()) - {"lab"})[:3])
print(sys.argv, sys.path[0], sys.modules["__main__"].__dict__ is globals())
import neighbour
"""


@pytest.mark.parametrize("how", ["script", "module", "folder", "link"])
def test_a_program_sees_what_it_sees_under_python(folder, how):
    # GIVEN a program that tells what it sees, in each form that Python runs
    inner = folder / "inner"
    inner.mkdir()
    write(inner, TELLS.replace("__spec__", "__spec__ and __spec__.name"), "__main__.py")
    write(inner, "print('neighbour', __name__)", "neighbour.py")
    write(folder, "print('neighbour of the module', __name__)", "neighbour.py")
    write(inner, TELLS.replace("__spec__", "__spec__ and __spec__.name"), "program.py")
    (folder / "link.py").symlink_to(inner / "program.py")
    arguments = {
        "script": ["inner/program.py"],
        "module": ["-m", "inner.program"],
        "folder": ["inner"],
        "link": ["link.py"],
    }[how]
    # WHEN Python runs it, and we do
    bare = run_python(*arguments, "one", "--two", "-o", "3")
    recorded = record("-q", *arguments, "one", "--two", "-o", "3")
    # THEN nothing differs
    assert bare.returncode == recorded.returncode == 0, recorded.stderr
    assert recorded.stdout == bare.stdout
    assert "neighbour" in bare.stdout


ENDS = {
    "status": "import sys; sys.exit(7)",
    "text": "import sys; sys.exit('no such thing')",
    "exception": "def inner():\n    raise ValueError('as it is')\ninner()",
    "syntax": "def (:\n",
    "our own error": "import gpustreamlab as gsl\ngsl.load_trace('no such file.parquet')",
    "hook": "import sys\nsys.excepthook = lambda *told: print('hooked', told[0].__name__)\n1 / 0",
    "os._exit": "import os; print('gone', flush=True); os._exit(5)",
    "SIGKILL": "import os; os.kill(os.getpid(), 9)",
    "SIGTERM": "import os, time; os.kill(os.getpid(), 15); time.sleep(5)",
    "SIGSEGV": "import ctypes; ctypes.string_at(0)",
    "SIGINT": "import os, time; os.kill(os.getpid(), 2); time.sleep(5)",
    "threads": """
import atexit, threading
from concurrent.futures import ThreadPoolExecutor as Pool
atexit.register(print, 'bye')
threading.Timer(0.3, lambda: print('late')).start()
print('main is over', Pool(2).submit(pow, 2, 3).result())
""",
}
WORKS_FIRST = {"exception", "os._exit", "SIGKILL", "SIGTERM", "SIGSEGV", "SIGINT"}
"""Which of them end in the middle, after some work that the file must have."""
WORK_WHERE_RECORDED = f"""
if "lab" in globals():
{textwrap.indent(WORK, "    ")}
    import time
    from pathlib import Path
    from gpustreamlab import load_trace
    while "copy 2" not in (seen := load_trace("program.gsl")).names or not (seen.name == seen.names.index("copy 2")).any():
        time.sleep(0.05)
"""


def without_locations(text: str) -> str:
    """Return what is on stderr without the notes that Python marks code with, which differ by version alone."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("<frozen"))


@pytest.mark.parametrize("how", ENDS)
def test_a_program_ends_as_under_python_and_what_was_recorded_until_then_can_be_read(folder, capsys, how):
    program = write(folder, WORK_WHERE_RECORDED * (how in WORKS_FIRST) + ENDS[how])
    bare, recorded = run_python(program), record("-q", "-o", "run.parquet", program)
    assert recorded.returncode == bare.returncode, recorded.stderr
    assert recorded.stdout == bare.stdout
    told = [
        line for line in without_locations(recorded.stderr).splitlines() if not line.startswith("gpustreamlab: program: No k")
    ]
    if how == "our own error":  # frames of this package are the program's own there
        assert told[0] == "Traceback (most recent call last):"
        assert "_program.py" not in recorded.stderr
    else:
        assert told == bare.stderr.splitlines()
    if how not in WORKS_FIRST:
        return
    # Of a program that was killed, the file of the first line tells all until then.
    is_killed = how not in {"exception", "SIGINT"}
    trace = gsl.load_trace("program.gsl" if is_killed else "run.parquet")
    assert (trace.kind == list(SpanKind).index(SpanKind.KERNEL)).sum() == 6
    assert Path("program.gsl").exists() == is_killed
    if not is_killed:
        assert trace.metadata.recovery_note == ""
        return
    assert trace.metadata.recovery_note.startswith("recovered from a spool whose session was not closed")
    assert cli.main(["view", "--no-open", "program.gsl"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "recovered from a spool whose session was not closed: what came after" in said


def test_a_missing_module_and_a_missing_script_are_told(folder, capsys):
    missing = record("-m", "no_such_module")
    assert missing.returncode == 1
    assert "No module named no_such_module" in missing.stderr
    assert cli.main(["run", "--backend", "sim", "no_such_script.py"]) == 2
    assert "There is no script 'no_such_script.py'" in capsys.readouterr().err


def test_ten_lines_a_page_and_a_trace_say_what_happened(folder):
    done = record("-o", "run.parquet", write(folder, WORK))
    assert done.returncode == 0
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0] == "gpustreamlab: recording H200 (simulated). If the program is killed: gpustreamlab view program.gsl"
    assert lines[1].startswith("gpustreamlab: program: 6 kernels in 2 streams of H200, SIMULATED: ")
    assert [line.split(":")[0].strip() for line in lines[2:6]] == ["Where", "What", "Overlap", "Idle"]
    assert lines[-1] == "  Timeline: program.html; trace: run.parquet"
    assert len(lines) <= 11
    trace = gsl.load_trace("run.parquet")
    assert [lane.name for lane in trace.lanes][:2] == ["copy", "compute"]
    assert (trace.kind == list(SpanKind).index(SpanKind.HOST)).any(), "calls of the host are recorded"
    assert "program" in Path("program.html").read_text()[:20_000]
    assert sorted(path.name for path in folder.iterdir()) == ["program.html", "program.py", "run.parquet"]


def test_sessions_that_the_program_opens_are_recorded_each_and_much_output_comes_through_untouched(folder):
    own = "import gpustreamlab as gsl\nfor round in range(2):\n    with gsl.Session(capture='ranges') as lab:\n"
    prints = "\nimport sys\nfor _ in range(100):\n    sys.stdout.write('x' * 99_999 + '\\n')"
    program = write(folder, own + textwrap.indent(WORK, " " * 8) + prints)
    done = record("-o", "run.parquet", program)
    assert done.returncode == 0
    assert (len(done.stdout), set(done.stdout.splitlines())) == (10_000_000, {"x" * 99_999})
    assert "program, session 1 of 2: 6 kernels in 2 streams" in done.stderr
    assert "Timeline: program-2.html; trace: run-2.parquet" in done.stderr
    for name in ("run.parquet", "run-2.parquet"):
        trace = gsl.load_trace(name)
        assert (trace.kind == list(SpanKind).index(SpanKind.KERNEL)).sum() == 6
        assert (trace.kind == list(SpanKind).index(SpanKind.HOST)).any()


def test_a_forked_child_is_left_alone_and_a_rank_has_its_number_in_its_files(folder, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    fork = "import os, sys\nif os.fork() == 0:\n    sys.exit(3)\nprint(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)"
    done = record("-o", "run.parquet", write(folder, f"{WORK}\n{fork}\n{WORK}"))
    assert (done.returncode, done.stdout) == (0, "3\n")
    assert done.stderr.count("Timeline: ") == done.stderr.count("Timeline: program-rank3.html") == 1
    assert Path("program-rank3.html").exists()
    assert (gsl.load_trace("run-rank3.parquet").kind == list(SpanKind).index(SpanKind.KERNEL)).sum() == 12


def test_ctrl_c_at_the_terminal_ends_program_and_recording_and_what_a_killed_run_has_left_stays(folder):
    # GIVEN a program that runs until it is stopped, and the file of one that was killed
    Path("program.gsl").write_bytes(b"left")
    program = write(folder, f"{WORK}\nimport time\nprint('ready', flush=True)\ntime.sleep(60)")
    command = [sys.executable, "-m", "gpustreamlab", "run", "--backend", "sim", program]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline() == "ready\n"
        # WHEN it is interrupted
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    # THEN it dies of that, with its own traceback and the report
    assert running.returncode == -signal.SIGINT
    assert out == ""
    assert "KeyboardInterrupt\n" in err
    assert "_program.py" not in err
    assert "6 kernels in 2 streams" in err
    # AND has left the file, which is another's
    assert "gpustreamlab view program-2.gsl" in err
    assert Path("program.gsl").read_bytes() == b"left"
    assert not Path("program-2.gsl").exists()


def test_a_window_in_seconds_leaves_out_the_rest(folder):
    text = """
    import time
    from gpustreamlab.workloads import spin
    lab.stream("a")
    began = time.monotonic()
    while time.monotonic() - began < 1.6:
        with lab.on("a", "step"):
            spin(lab, 1_000)
        lab.synchronize()
        time.sleep(0.02)
    """
    done = record("--from", "0.5", "--for", "0.5", "-o", "run.parquet", write(folder, text))
    trace = gsl.load_trace("run.parquet")
    windows = trace.metadata.capture_windows
    kernels = trace.kind == list(SpanKind).index(SpanKind.KERNEL)
    ranges = trace.kind == list(SpanKind).index(SpanKind.RANGE)
    assert len(windows) == 1, done.stderr
    assert 0 < kernels.sum() < ranges.sum() * 0.8


@pytest.mark.parametrize(
    ("options", "why"),
    [(["--from", "60"], "the program ended before --from"), (["--steps", "2:4"], "torch's optimizer made 0 steps")],
)
def test_a_window_that_was_never_reached_is_told(folder, options, why):
    done = record(*options, write(folder, WORK))
    assert done.stderr.endswith(f"gpustreamlab: What was to be recorded was never reached: {why}.\n")
    assert "No kernel, copy or fill was recorded.\n  Timeline: program.html" in done.stderr


REFUSED = {
    "page": (["--page", "x.png"], "it has to end in .html"),
    "output": (["-o", "run.what"], "run.what"),
    "steps": (["--steps", "4:2"], "--steps 10:13"),
    "seconds": (["--for", "-1"], "--from 60 --for 5"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_a_wrong_option_is_told_before_anything_runs(folder, capsys, how):
    options, told = REFUSED[how]
    program = write(folder, "raise AssertionError('it ran')")
    assert cli.main(["run", "--backend", "sim", *options, program]) == 2
    assert told in capsys.readouterr().err


def test_files_of_others_are_not_replaced(folder, capsys):
    program = write(folder, "raise AssertionError('it ran')")
    Path("program.html").write_text("mine")
    assert cli.main(["run", "--backend", "sim", program]) == 2
    assert "'program.html' is there already. Replace it with --force" in capsys.readouterr().err
    assert record("--force", write(folder, WORK)).returncode == 0
    assert Path("program.html").read_text() != "mine"
    # A page that it has written itself is written again.
    options = SimpleNamespace(page=None, output=None, force=False)
    assert _written.chosen_files(options, "program") == (folder / "program.html", None)


@pytest.mark.parametrize(
    ("name", "of_rank", "second"),
    [
        ("run.parquet", "run-rank1.parquet", "run-2.parquet"),
        ("run.json.gz", "run-rank1.json.gz", "run-2.json.gz"),
        ("train.v2.pftrace.gz", "train.v2-rank1.pftrace.gz", "train.v2-2.pftrace.gz"),
    ],
)
def test_a_name_is_marked_in_front_of_what_says_its_format(folder, name, of_rank, second):
    options = SimpleNamespace(page=None, output=name, force=False)
    assert _written.chosen_files(options, "train.v2", "-rank1") == (folder / "train.v2-rank1.html", folder / of_rank)
    assert _written.numbered(Path(name), 1) == Path(second)


def test_children_are_refused_on_a_gpu(folder, capsys):
    assert cli.main(["run", "--children", write(folder, "raise AssertionError('it ran')")]) == 2
    assert "Record each process itself: torchrun" in capsys.readouterr().err


def test_without_a_gpu_it_says_what_to_type(folder, capsys, monkeypatch):
    monkeypatch.setattr(_command, "why_no_gpu", lambda: "No NVIDIA driver was found.")
    program = write(folder, "raise AssertionError('it ran')")
    assert cli.main(["run", program, "--its", "own"]) == 2
    told = capsys.readouterr().err
    assert "No NVIDIA driver was found." in told
    assert f"gpustreamlab run --backend sim {program} --its own\n" in told


def test_the_first_page_of_the_docs_prints_what_is_printed(folder):
    page = (ROOT / "docs" / "tutorials" / "record-what-you-have.md").read_text(encoding="utf-8")
    program = next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "gsl.Session()" in block)
    printed = re.search(r"^```\n(gpustreamlab: .*?)^```", page, re.DOTALL | re.MULTILINE)[1]
    assert record(write(folder, program, "pipeline.py")).stderr == printed


def test_what_memory_had_no_room_for_stays_in_the_file(folder):
    text = """
    import time
    import gpustreamlab as gsl
    from gpustreamlab.workloads import spin
    with gsl.Session(ring_size=20) as lab:
        for step in range(12):
            with lab.on(lab.stream("a"), f"step {step}"):
                spin(lab, 1_000)
            if step % 3 == 0:
                lab.synchronize()
                time.sleep(0.3)
    """
    done = record(write(folder, text))
    assert "gpustreamlab view program.gsl" in done.stderr.splitlines()[-1], done.stderr
    kept = gsl.load_trace("program.gsl")
    assert len(kept) > 24
    assert kept.metadata.recovery_note == ""


CHILD = """
import gpustreamlab as gsl
from gpustreamlab.workloads import spin
def work(count):
    with gsl.Session(title=f"child {count}") as own:
        own.stream("a")
        for _ in range(count):
            with own.on("a", "work"):
                spin(own, 1_000)
    return count
if __name__ == "__main__":
    import multiprocessing as mp
    import subprocess, sys
    if sys.argv[1:] == ["again"]:
        work(7)
    else:
        for count, method in ((3, "fork"), (5, "spawn")):
            with mp.get_context(method).Pool(1) as pool:
                assert pool.map(work, [count]) == [count]
                pool.close()
                pool.join()
        subprocess.run([sys.executable, __file__, "again"], check=True)
        print("all done")
"""


def test_children_are_recorded_where_that_is_wanted(folder):
    # GIVEN a program that works in a forked child, in a spawned one, and in a Python of its own
    program = write(folder, CHILD)
    # WHEN it is recorded with and without them
    alone = record(program)
    whole = record("--children", "-o", "run.parquet", program)
    # THEN each is there, and none is left
    assert (alone.returncode, alone.stdout) == (whole.returncode, whole.stdout) == (0, "all done\n"), whole.stderr
    assert "No kernel, copy or fill was recorded" in alone.stderr
    counts = [
        (gsl.load_trace(path).kind == list(SpanKind).index(SpanKind.KERNEL)).sum() for path in folder.glob("run*.parquet")
    ]
    assert sorted(counts) == [3, 5, 7], whole.stderr
    assert not list(folder.glob("*.gsl"))
