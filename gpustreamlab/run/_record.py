"""The command ``gpustreamlab record``: any program that uses CUDA, recorded by a library that the driver loads into it."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from gpustreamlab._util.host import host_id
from gpustreamlab.backends.cuda.cupti._stored import injection
from gpustreamlab.errors import OptionError, TraceFileError
from gpustreamlab.run._written import add_file_options, chosen_files, say, shown, write_traces
from gpustreamlab.trace import Trace, load_trace

LEAST_LIMIT_MB = 32  # Of eight segments that hold a buffer of CUPTI's each
_PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGCONT")
_NOT_STARTED = {FileNotFoundError: 127, PermissionError: 126}  # As shells say it


def add_record_parser(commands: Any) -> None:
    """Add the command to those of a parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "record",
        help="run any program that uses CUDA, C++ too, record what it does on the GPU, and say what to change",
        description="Run a command, and have CUDA's driver load a recorder into it and its children: kernels, copies, calls of "
        "CUDA, waits and NVTX ranges of all their GPUs. When it has ended, ten lines on stderr for each process say what ran "
        "where, what overlapped, why the GPU was idle and what to change; NAME.html has the timeline. Meanwhile: gpustreamlab "
        "snap PID, gpustreamlab live PID.",
        usage="gpustreamlab record [options] -- COMMAND [ARGUMENT ...]",
    )
    add_file_options(parser)
    parser.add_argument("--last", type=float, metavar="SECONDS", help="keep only the last seconds")
    parser.add_argument(
        "--limit",
        type=int,
        default=512,
        metavar="MB",
        help="size of the file of each process (default: %(default)s); what is older makes room",
    )
    parser.add_argument(
        "--graphs",
        choices=("nodes", "whole"),
        default="whole",
        help="nodes: each kernel of a CUDA graph is a span, which costs more than one for a launch (default: %(default)s)",
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="COMMAND", help="what to run, and its arguments")


def record(options: argparse.Namespace) -> int:
    """Run a command, and return its exit status: of one that a signal ended 128 and the signal's number, as shells do.

    Raises
    ------
    GPUStreamLabError
        Before the command: if an option is wrong, a file exists already, or CUPTI is missing.
    """
    command = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not command:
        raise OptionError(
            "There is no command to record. Put it behind the options: gpustreamlab record -- ./simulate --steps 9"
        )
    if options.last is not None and not options.last > 0:
        raise OptionError(f"--last is {options.last:g}; it is seconds, more than 0, as in: --last 30")
    if os.environ.get("CUDA_INJECTION64_PATH"):
        raise OptionError(
            "CUDA_INJECTION64_PATH is set: another profiler records already, and CUPTI serves one. Run without it."
        )
    name = Path(next((word for word in command if word.endswith(".py")), command[0])).stem or "program"
    page, output = chosen_files(options, name)
    if not os.access(page.parent, os.W_OK):
        raise OptionError(f"Nothing can be written in {shown(page.parent)!r}. Name another folder: --page /tmp/run.html")
    # The number of this process, so that files of another run are not taken for these.
    stem = page.with_name(f"{name}-{os.getpid()}")
    has_nodes, limit_bytes = options.graphs == "nodes", max(LEAST_LIMIT_MB, options.limit) << 20
    told = injection(stem, limit_bytes=limit_bytes, last_s=options.last, has_nodes=has_nodes)
    try:
        process = subprocess.Popen(command, env=os.environ | told)  # noqa: S603 - the user's own command
    except OSError as error:
        say(f"gpustreamlab: {command[0]!r} cannot be run: {error.strerror}")
        return _NOT_STARTED.get(type(error), 1)
    if not options.quiet:
        kept = f"{shown(stem)}-{process.pid}.gsl"
        say(f"gpustreamlab: recording process {process.pid}. If both are killed: gpustreamlab view {kept}")
    with _passing_signals_to(process):
        status = process.wait()
    _report(stem, name, page, output, is_quiet=options.quiet)
    return status if status >= 0 else 128 - status


@contextmanager
def _passing_signals_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Let the command decide on signals; Ctrl-C reaches it from the terminal."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            process.send_signal(number)

    passed = [getattr(signal, name) for name in _PASSED_ON if hasattr(signal, name)]
    before = {number: signal.signal(number, pass_on) for number in passed}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(stem: Path, name: str, page: Path, output: Path | None, *, is_quiet: bool) -> None:
    """Write what was recorded, the processes in the order in which they came to CUDA."""
    traces, empty = list[Trace](), list[str]()
    files = sorted(stem.parent.glob(f"{stem.name}-*.gsl"), key=lambda path: path.stat().st_ctime_ns)
    for path in files:
        try:
            trace = load_trace(path)
            traces.append(replace(trace, metadata=replace(trace.metadata, host=host_id())))
        except TraceFileError as error:  # of a process that only asked which GPUs there are, too
            empty.append(str(error))
    if not traces:
        why = empty or ["it made no call of CUDA, or it runs where the driver loads nothing."]
        say(f"gpustreamlab: {name}: nothing was recorded: {' '.join(why)}")
    write_traces(traces, name, page, output, part="process", is_quiet=is_quiet)
    for path in files:
        pid = path.stem.removeprefix(f"{stem.name}-").partition("-")[0]
        if Path(f"/proc/{pid}").exists():  # a server, whose command has ended
            say(f"gpustreamlab: process {pid} goes on, and is recorded. Its last seconds: gpustreamlab snap {pid}")
        else:
            path.unlink(missing_ok=True)
