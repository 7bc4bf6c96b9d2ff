"""Programs that go on: take the last seconds out of one, watch it, and begin to record one that was started without us."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gpustreamlab.draw import timeline_page
from gpustreamlab.errors import BackendUnavailableError, OptionError, TraceFileError
from gpustreamlab.exchange import find_writer
from gpustreamlab.model import is_bare_page, write_file_whole
from gpustreamlab.run._recording import LEAST_LIMIT_MB, ProgramRecording, Wanted
from gpustreamlab.run._told import told_lines
from gpustreamlab.run._written import numbered, write_files
from gpustreamlab.sinks.arrived import FollowedFile, followed_file
from gpustreamlab.streams.life import open_sessions
from gpustreamlab.trace import Trace, as_trace, load_trace

SUFFIX = ".gsl"  # Of files that sessions are spooled to
ATTACHED_LIMIT_MB = 64
LOOK_EVERY_S, TELL_AFTER_S = 0.1, 2.0
_attached: list[ProgramRecording] = []  # That of this process, if it was begun from outside


def add_running_parsers(commands: Any, show: Callable[[Path], object]) -> None:
    """Add the commands to those of a parser; `show` opens a page where there is a browser."""
    snap_parser = commands.add_parser(
        "snap",
        help="take the last seconds out of a program that is being recorded, while it goes on",
        description="Read what a process has recorded so far, which gpustreamlab run, record, attach or Session(spool=...) "
        "started; say what happened, and write the timeline. The process is not touched.",
    )
    snap_parser.add_argument("-o", "--output", metavar="FILE", help="write the trace, too: snap.parquet, snap.json, ...")
    live_parser = commands.add_parser(
        "live",
        help="show a page that follows a program that is being recorded",
        description="Write the timeline of what a recorded process has done in the last seconds, again and again until it ends "
        "or Ctrl-C; the page loads itself anew. The process is not touched, and no port is opened.",
    )
    live_parser.add_argument("--every", type=float, default=2.0, metavar="SECONDS", help="how often (default: %(default)g)")
    for parser, last_s in ((snap_parser, None), (live_parser, 5.0)):
        parser.add_argument("pid", type=int, metavar="PID", help="number of the process")
        parser.add_argument(
            "--last",
            type=float,
            default=last_s,
            metavar="SECONDS",
            help=f"only these (default: {'all that its file holds' if last_s is None else '%(default)g'})",
        )
        parser.add_argument("--page", metavar="NAME.html", help="the page; by default the program's name and number")
        parser.add_argument("--no-open", action="store_true", help="open no browser")
        parser.set_defaults(show=show)
    attach_parser = commands.add_parser(
        "attach",
        help="begin to record a Python program that runs already (Python 3.14)",
        description="Begin to record a Python process of the same user that was not started by gpustreamlab run, by "
        "sys.remote_exec: this command and the process need the same Python, 3.14 or later. Then: gpustreamlab snap PID",
    )
    attach_parser.add_argument("pid", type=int, metavar="PID", help="number of the process")
    attach_parser.add_argument("--device", type=int, default=0, metavar="N", help="the GPU (default: 0)")
    attach_parser.add_argument("--backend", choices=("cuda", "sim"), help="sim: only sessions on the simulated device")
    attach_parser.add_argument(
        "--limit", type=int, default=ATTACHED_LIMIT_MB, metavar="MB", help="size of its file (default: %(default)s)"
    )


def spools_of(pid: int) -> list[Path]:
    """Return the files that a process records to, by what it has open.

    Raises
    ------
    OptionError
        If there is no such process, it is another user's, or the system does not tell what it has open.
    """
    if not sys.platform.startswith("linux"):
        raise OptionError("What another process records is found by /proc, which Linux has. Read its file: gpustreamlab view")
    try:
        links = sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda link: int(link.name))
    except FileNotFoundError as error:
        raise OptionError(f"There is no process {pid}.") from error
    except PermissionError as error:
        raise OptionError(f"Process {pid} is another user's. Run gpustreamlab as that user.") from error
    found = dict[Path, None]()
    for link in links:
        with suppress(OSError):  # closed meanwhile
            target = link.readlink()
            if target.suffix == SUFFIX and target.is_file():
                found[target] = None
    return list(found)


def recorded_by(pid: int) -> list[Path]:
    """Return those; raise `OptionError` where there are none."""
    paths = spools_of(pid)
    if not paths and (children := _recorded_children(pid)):
        listed = ", ".join(map(str, children))
        raise OptionError(f"Process {pid} itself is not recorded, but what it started: {listed}. Take one of these numbers.")
    if not paths:
        raise OptionError(
            f"Process {pid} is not recorded. Start it by gpustreamlab run or record, give its session a file by "
            f"Session(spool=True), or, with Python 3.14: gpustreamlab attach {pid}"
        )
    return paths


def _recorded_children(pid: int) -> list[int]:
    """Return the processes that are recorded of those that a process started, and they: a shell, torchrun."""
    found, waiting = list[int](), [pid]
    while waiting:
        parent = waiting.pop()
        for told in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(OSError):  # it has ended
                waiting += map(int, told.read_text().split())
        if parent != pid:
            with suppress(OptionError):
                found += [parent] if spools_of(parent) else []
    return sorted(found)


def take(pid: int, last_s: float | None = None) -> list[Trace]:
    """Return what a process has recorded, of each session that recorded anything, the fullest first; it is not touched.

    Raises
    ------
    OptionError
        If it is not recorded, has recorded nothing yet, or `last_s` is not above 0.
    """
    _checked(last_s)
    traces = []
    for path in recorded_by(pid):
        with suppress(TraceFileError):  # nothing is in it yet
            traces.append(_last(load_trace(path), pid, last_s))
    found = sorted((trace for trace in traces if len(trace)), key=len, reverse=True)
    if not found:
        raise OptionError(f"Process {pid} has recorded nothing yet.")
    return found


def _checked(last_s: float | None) -> float | None:
    if last_s is not None and not last_s > 0:
        raise OptionError(f"--last is {last_s:g}; it is seconds, more than 0, as in: --last 5")
    return last_s


def follow(pid: int) -> FollowedFile:
    """Return what follows the fullest file of a process; raise `OptionError` where none has anything yet."""
    files = [followed_file(path) for path in recorded_by(pid)]
    for file in files:
        file.read()
    chosen = max(files, key=lambda file: file.span_count)
    for file in files:
        if file is not chosen or not file.is_told:
            file.close()
    if not chosen.is_told:
        raise OptionError(f"Process {pid} has recorded nothing yet.")
    return chosen


def records_to(pid: int, file: FollowedFile) -> bool:
    """Tell whether a process has a file open."""
    try:
        return not file.is_ended and file.path in spools_of(pid)
    except OptionError:  # the process has ended
        return False


def _last(trace: Trace, pid: int, last_s: float | None) -> Trace:
    """Return the last seconds of a trace, which says that its process went on."""
    if last_s is not None and len(trace):
        end_ns = int(trace.end_ns.max()) + 1
        trace = trace.between(end_ns - int(last_s * 1e9), end_ns)
    meta = trace.metadata
    note = meta.recovery_note.partition("; ")[2]  # what was open by then
    said = f"taken out of process {pid}, which went on, at {datetime.now():%H:%M:%S}"
    title = meta.title or f"process {pid}"
    return replace(trace, metadata=replace(meta, title=title, recovery_note="; ".join(filter(None, [said, note]))))


def snap(options: argparse.Namespace) -> int:
    """Write what a process has recorded so far, and say what happened."""
    if options.output is not None:
        find_writer(options.output)  # refuses before anything is read
    traces = take(options.pid, options.last)
    for place, trace in enumerate(traces):
        page, output = _page(options, trace, place), None if options.output is None else numbered(Path(options.output), place)
        files = write_files(trace, page, output)
        print("\n".join([trace.metadata.title, *(f"  {line}" for line in [*told_lines(trace), files])]), flush=True)
        if not options.no_open:
            options.show(page)
    return 0


def live(options: argparse.Namespace) -> int:
    """Write the last seconds of a process again and again, until it ends."""
    if not options.every > 0:
        raise OptionError(f"--every is {options.every:g}; it is seconds, more than 0, as in: --every 2")
    file, is_there = follow(options.pid), True

    def last() -> Trace:
        return _last(as_trace(file.trace()), options.pid, _checked(options.last))

    page = _page(options, last(), 0)
    _write_live(last(), page, options.every)
    print(f"Live timeline of process {options.pid}: {page}. Ctrl-C ends it, and not the process.", flush=True)
    if not options.no_open:
        options.show(page)
    while is_there:
        time.sleep(options.every)
        is_there = records_to(options.pid, file)  # first: what was written before it ended is read
        file.read()
        _write_live(last(), page, options.every)
    last().timeline().save(page)
    file.close()
    print(f"Process {options.pid} has ended, or is not recorded any more. Its last timeline: {page}")
    return 0


_AGAIN = """<script>{let used = -1e9
for (const kind of ["pointerdown", "wheel", "keydown"]) addEventListener(kind, () => { used = performance.now() }, true)
setInterval(() => { if (performance.now() - used > 15000) location.reload() }, EVERY_MS)}</script>"""
"""Loads a page anew; not for 15 s after somebody used it."""


def _write_live(trace: Trace, page: Path, every_s: float) -> None:
    """Write a page that loads itself anew; whoever loads it meanwhile gets the one before."""
    again = _AGAIN.replace("EVERY_MS", f"{1e3 * every_s:.0f}")
    text = timeline_page(trace).replace("<head>", f"<head>{again}", 1)
    write_file_whole(page, lambda partial: partial.write_text(text, encoding="utf-8"))


def _page(options: argparse.Namespace, trace: Trace, place: int) -> Path:
    """Return where the page goes."""
    page = numbered(Path(options.page or f"{trace.metadata.title.replace(' ', '-')}-{options.pid}.html"), place)
    if page.suffix.lower() != ".html":
        raise OptionError(f"The page is {page.name!r}; it has to end in .html. For the data: -o snap.parquet")
    if page.exists() and not is_bare_page(page):
        raise OptionError(f"{str(page)!r} is there already, and is no page of gpustreamlab. Name another one with --page.")
    return page


# Begun from outside

_SCRIPT = """
import sys, threading

def begin():
    sys.path.append({root!r})
    from gpustreamlab.run import begin_attached

    begin_attached({told!r})

threading.Thread(target=begin, name="gpustreamlab attach", daemon=True).start()
"""
"""What a process runs. In a thread of its own: the main one may hold any lock at that moment."""


def attach(options: argparse.Namespace) -> int:
    """Begin to record a process that runs."""
    pid = options.pid
    if spools_of(pid):
        print(f"Process {pid} is recorded already. What it did: gpustreamlab snap {pid}")
        return 0
    facts = {"backend": options.backend, "device": options.device, "limit_bytes": max(LEAST_LIMIT_MB, options.limit) << 20}
    with tempfile.TemporaryDirectory(prefix="gpustreamlab-") as folder:
        script, answer = Path(folder) / "attach.py", Path(folder) / "answer"
        facts |= {"stem": str(Path.cwd() / f"process-{pid}"), "answer": str(answer)}
        root = str(Path(__file__).resolve().parents[2])
        script.write_text(
            _SCRIPT.format(root=root, told=json.dumps(facts)),
            encoding="utf-8",
        )
        _execute(pid, script)
        said = _answered(pid, answer)
    if said:
        raise OptionError(f"Process {pid} could not be recorded: {said}")
    print(
        f"Process {pid} is recorded from now on. The last seconds: gpustreamlab snap {pid}; as it goes: gpustreamlab live {pid}"
    )
    return 0


def _execute(pid: int, script: Path) -> None:
    """Have a process run a script at its next chance."""
    remote: Callable[[int, str], None] | None = getattr(sys, "remote_exec", None)
    again = "Start the program by gpustreamlab run."
    if remote is None:
        mine = ".".join(map(str, sys.version_info[:2]))
        raise BackendUnavailableError(
            f"attach needs Python 3.14 (sys.remote_exec), for itself and for process {pid}; this is Python {mine}. {again}"
        )
    try:
        remote(pid, str(script))
    except PermissionError as error:
        raise BackendUnavailableError(
            f"The system forbids to reach into process {pid}. It has to be of the same user, and Linux may ask for more: "
            f"sudo sysctl kernel.yama.ptrace_scope=0. {again}"
        ) from error
    except (RuntimeError, OSError, ValueError) as error:
        raise BackendUnavailableError(
            f"Process {pid} takes nothing from outside: {error}. It needs the same version of Python as this command, and runs "
            f"without PYTHON_DISABLE_REMOTE_DEBUG and -X disable-remote-debug. {again}"
        ) from error


def _answered(pid: int, answer: Path) -> str:
    """Wait until the process has begun, which is between two lines of its Python; return what went wrong."""
    is_told, since_s = False, time.monotonic()
    while not answer.exists():
        if not Path(f"/proc/{pid}").exists():
            return "it has ended"
        if not is_told and time.monotonic() - since_s > TELL_AFTER_S:
            is_told = True
            print(f"Process {pid} has to come to its next line of Python; until then this waits, or Ctrl-C.", flush=True)
        time.sleep(LOOK_EVERY_S)
    return answer.read_text(encoding="utf-8")


def begin_attached(told: str) -> None:
    """Record this process from now on: its open sessions, those to come, and on a GPU all that it does beside them."""
    facts = json.loads(told)
    problem = ""
    try:
        wanted = Wanted(
            title=Path(sys.argv[0] or "python").stem,
            stem=Path(facts["stem"]),
            backend=facts["backend"],
            device=facts["device"],
            is_at_once=facts["backend"] != "sim",
            is_child=True,
            spool_limit_bytes=facts["limit_bytes"],
        )
        recording = ProgramRecording(wanted, str, str)
        _attached.append(recording)
        before = open_sessions()
        recording.start()
        for session in before:
            recording.follow(session)
        problem = "; ".join(recording.problems)
    except Exception as error:  # noqa: BLE001 - it is the user's process
        problem = f"{type(error).__name__}: {error}"
    answer = Path(facts["answer"])
    with suppress(OSError):  # who asked may have gone
        partial = answer.with_suffix(".part")
        partial.write_text(problem, encoding="utf-8")
        partial.replace(answer)
