"""The command ``gpustreamlab run``."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from gpustreamlab._util.host import rank
from gpustreamlab.backends import BACKEND_NAMES
from gpustreamlab.errors import BackendUnavailableError, OptionError
from gpustreamlab.run._children import Children
from gpustreamlab.run._preflight import why_no_gpu
from gpustreamlab.run._program import Program, end_of, join_threads
from gpustreamlab.run._recording import LEAST_LIMIT_MB, ProgramRecording, Wanted
from gpustreamlab.run._written import add_file_options, chosen_files, say, shown, write_traces

RANGES = ("torch",)


def add_run_parser(commands: Any) -> None:
    """Add the command to those of a parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="run a Python program, record what it does on the GPU, and say what to change",
        description="Run a Python program as python would, and record its kernels, copies, and calls of CUDA. When it has "
        "ended, ten lines on stderr say what ran where, what overlapped, why the GPU was idle and what to change; NAME.html "
        "has the timeline. Options stand before the program; all behind it is the program's.",
        usage="gpustreamlab run [options] (SCRIPT | -m MODULE) [ARGUMENT ...]",
    )
    add_file_options(parser)
    parser.add_argument(
        "--backend",
        choices=BACKEND_NAMES,
        help="sim: the simulated device, for sessions of gpustreamlab that the program opens, and for `lab`, which it is given",
    )
    parser.add_argument(
        "--device", type=int, metavar="N", help="the GPU (default: LOCAL_RANK, else 0); others are not recorded"
    )
    parser.add_argument("--stacks", action="store_true", help="look up to 200 times a second where the program's Python stands")
    parser.add_argument("--ranges", choices=RANGES, help="torch: a range for each module's forward and each optimizer's step")
    parser.add_argument("--from", dest="from_s", type=float, default=0.0, metavar="SECONDS", help="record from then on")
    parser.add_argument("--for", dest="for_s", type=float, metavar="SECONDS", help="record for so long")
    parser.add_argument("--steps", metavar="A:B", help="record steps A to B - 1 of torch's optimizer; the first is 0")
    parser.add_argument(
        "--now", action="store_true", help="begin before the program, not when it loads torch, CuPy or another such library"
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=4096,
        metavar="MB",
        help="size of the file that is kept while it runs (default: %(default)s); older spans make room",
    )
    parser.add_argument("--children", action="store_true", help="record the Python processes, too, that the program starts")
    parser.add_argument("-m", dest="is_module", action="store_true", help="the program is a module, as for python -m")
    parser.add_argument("program", metavar="SCRIPT | MODULE", help="what to run")
    its_own = parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="its arguments")
    its_own.required = False  # else a missing program is said to need arguments


def run(options: argparse.Namespace) -> NoReturn:
    """Run a program, and end as it would: with its exit status, or what it raises.

    Raises
    ------
    SystemExit, KeyboardInterrupt
        What the program ends with. The report is printed behind that, when its threads have ended, too.
    GPUStreamLabError
        Before the program: if an option is wrong, a file exists already, or there is no GPU.
    """
    given = Program(target=options.program, arguments=options.arguments, is_module=options.is_module)
    given.check()
    report = _Report(given, options)
    wanted = _read(options, given.name, report.page.with_suffix(""))
    if wanted.backend != BACKEND_NAMES[1]:
        if options.children:
            raise OptionError(
                "--children works on the simulated device so far: on an H200 the children's kernels were missing. Record each "
                "process itself: torchrun --nproc-per-node 2 -m gpustreamlab run train.py"
            )
        _require_gpu(options)
    recording = report.recording = ProgramRecording(wanted, report.say, lambda text: say(f"gpustreamlab: {text}"))
    offered = recording.start()
    if options.children:
        report.children = Children(wanted)
        report.children.start()
    program = Program(target=given.target, arguments=given.arguments, is_module=given.is_module, offered=offered)
    report.keep(sys.modules["__main__"])
    end: BaseException = SystemExit(0)
    try:
        program.run()
    except BaseException as error:  # noqa: BLE001 - whatever the program ends with
        end = end_of(error)
    try:
        join_threads()
    except KeyboardInterrupt as error:
        end = end_of(error)
    # Not at exit: the interpreter starts no threads then, which writing files needs.
    report.finish()
    raise end


class _Report:
    """What is written when the program has ended."""

    def __init__(self, program: Program, options: argparse.Namespace) -> None:
        of_rank = "" if rank() < 0 else f"-rank{rank()}"  # in all names: ranks are given the same options
        self._program, self._is_quiet = f"{program.name}{of_rank}", options.quiet
        self.page, self.output = chosen_files(options, program.name, of_rank)
        self.recording: ProgramRecording | None = None
        self.children: Children | None = None
        self._kept: list[object] = []

    def keep(self, thing: object) -> None:
        """Keep something up to the end of the process."""
        self._kept.append(thing)

    def say(self, text: str) -> None:
        """Print a line to stderr, whatever the program has made of it."""
        if not self._is_quiet:
            say(f"gpustreamlab: {text}")

    def finish(self) -> None:
        """End the recording, print the ten lines, and write the files; in a child that the program has forked do nothing."""
        recording = self.recording
        if recording is None or recording.is_another_process:
            return
        with suppress(Exception):
            sys.stdout.flush()  # what the program said comes first
        try:
            children = self.children
            traces = recording.finish(() if children is None else children.traces())
            if not traces:
                self._tell_nothing(recording)
                return
            write_traces(traces, self._program, self.page, self.output, part="session", is_quiet=self._is_quiet)
            for problem in recording.problems:
                say(f"gpustreamlab: {problem}")
            for path in [] if children is None else children.paths():
                path.unlink(missing_ok=True)
            for path in recording.remove_spools():
                say(f"gpustreamlab: memory had no room for all spans; those of before are in: gpustreamlab view {shown(path)}")
        except Exception as error:  # noqa: BLE001 - the program's end is not to be another one for it
            say(f"gpustreamlab: the report failed: {type(error).__name__}: {error}")

    def _tell_nothing(self, recording: ProgramRecording) -> None:
        if recording.problems:
            return  # they were told when they came
        why = "it loaded none of the libraries that use CUDA (torch, CuPy, ...), or torch did not use the GPU"
        again = "If it reaches CUDA in another way: gpustreamlab run --now"
        say(f"gpustreamlab: {self._program}: nothing was recorded: {why}. {again}")


def _read(options: argparse.Namespace, title: str, stem: Path) -> Wanted:
    """Read the options; raise `OptionError` for a wrong one."""
    if options.from_s < 0 or (options.for_s is not None and options.for_s <= 0):
        raise OptionError("--from and --for are seconds, the second more than 0, as in: --from 60 --for 5")
    device = options.device if options.device is not None else int(os.environ.get("LOCAL_RANK") or 0)
    return Wanted(
        title=title,
        stem=stem,
        backend=options.backend,
        device=device,
        has_stacks=options.stacks,
        is_at_once=options.now,
        from_s=options.from_s,
        for_s=options.for_s,
        steps=None if options.steps is None else _read_steps(options.steps),
        has_torch_ranges=options.ranges == RANGES[0],
        spool_limit_bytes=max(LEAST_LIMIT_MB, options.limit) << 20,
    )


def _read_steps(text: str) -> tuple[int, int]:
    first, colon, end = text.partition(":")
    if not (colon and first.isdecimal() and end.isdecimal() and int(first) < int(end)):
        raise OptionError(f"--steps is {text!r}; it takes the first step and the one behind the last, as in: --steps 10:13")
    return int(first), int(end)


def _require_gpu(options: argparse.Namespace) -> None:
    problem = why_no_gpu()
    if problem:
        again = f"{'-m ' if options.is_module else ''}{shlex.join([options.program, *options.arguments])}"
        raise BackendUnavailableError(
            f"{problem} What is missing: gpustreamlab doctor. To try it on the simulated device: "
            f"gpustreamlab run --backend sim {again}"
        )
