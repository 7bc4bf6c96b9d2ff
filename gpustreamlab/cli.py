"""The ``gpustreamlab`` command: ``run`` records programs, ``snap`` looks into them, ``view`` opens traces, ..."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import io
import json
import os
import platform
import shutil
import sys
import textwrap
import traceback
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpustreamlab import __version__
from gpustreamlab._util.shell import steps
from gpustreamlab._util.words import install_line, wrap_lines
from gpustreamlab.analysis import counts_text, judge, named_steps, summary_text
from gpustreamlab.backends.cuda._probe import Check, CheckStatus, cuda_checks, why_unavailable
from gpustreamlab.backends.cuda.cupti._buffers import SOURCES, find_library
from gpustreamlab.errors import GPUStreamLabError, OptionError
from gpustreamlab.exchange import AUTO, FORMATS, WRITERS, find_writer
from gpustreamlab.model import is_bare_page
from gpustreamlab.run import add_record_parser, add_run_parser, add_running_parsers, attach, live, record, run, snap
from gpustreamlab.timeline import Comparison
from gpustreamlab.trace import Trace, load_trace

_INPUTS = "several are ranks of one job"
_NARROWEST_COLUMNS = 60
_BROKEN_PIPE_STATUS = 141  # 128 + SIGPIPE, what shells say of a program that is ended so
_INTERRUPTED_STATUS = 130  # 128 + SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    argv
        The arguments after the command's name; None takes those of the process.

    Returns
    -------
    int
        The exit status: 0; 1 where a file cannot be read or written, or ``compare`` finds a run that is not as it should be; 2
        where that cannot be told; 130 after Ctrl-C; 141 where who reads the output has gone, as ``head`` does.

    Raises
    ------
    SystemExit
        From argparse: with 2 for wrong arguments, with 0 after ``--help`` and ``--version``.
    """
    options = (parser := make_parser()).parse_args(argv)
    if options.command is None:
        parser.print_help()
        return 0
    if options.command == "run":
        return _run(options)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every terminal has a sign for µ
    try:
        status = _COMMANDS[options.command](options)
        sys.stdout.flush()  # at exit nobody could catch what fails
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at exit
        return _BROKEN_PIPE_STATUS
    except GPUStreamLabError as error:
        print(f"gpustreamlab: {' '.join(str(error).split())}", file=sys.stderr)
        return _REFUSED_STATUS.get(options.command, 1)
    except KeyboardInterrupt:
        return _INTERRUPTED_STATUS
    except Exception:
        if options.command not in _REFUSED_STATUS:
            raise
        traceback.print_exc()  # Python's own status for it, 1, would say that the run is slower
        return _REFUSED_STATUS[options.command]
    return status


def _run(options: argparse.Namespace) -> int:
    """Run a program: stdout, errors and interrupts are its own from then on."""
    try:
        run(options)
    except GPUStreamLabError as error:
        print(f"gpustreamlab: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(prog="gpustreamlab", description="See and steer GPU concurrency from a notebook.")
    parser.add_argument("--version", action="version", version=f"gpustreamlab {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    add_run_parser(commands)
    add_record_parser(commands)
    add_running_parsers(commands, _open)
    doctor = commands.add_parser(
        "doctor",
        help="print what this machine supports, and the command that adds what is missing",
        description="Print what this machine supports, and the command that adds what is missing.",
    )
    doctor.add_argument("--json", action="store_true", help="print the checks as JSON")
    view = commands.add_parser(
        "view",
        help="say what happened in a trace, and open its timeline in a browser",
        description="Print what happened in a trace: its summary, how much streams overlapped, and why not more. Write the "
        "timeline as one page that opens offline, and open it where there is a browser. No port is opened.",
    )
    view.add_argument("inputs", metavar="FILE", nargs="+", help=f"the trace, of gpustreamlab or of another tool; {_INPUTS}")
    view.add_argument(
        "-o", "--output", metavar="OUT.html", help="the page; by default FILE's name, or trace, with .html, in this folder"
    )
    view.add_argument("--no-open", action="store_true", help="open no browser")
    convert = commands.add_parser(
        "convert",
        help="write a trace in another format, or a notebook as a page",
        description="Write a trace in another format, which the suffix of OUT says: "
        f"{', '.join(WRITERS)}, or .html, a page that holds the data as well. A notebook (.ipynb) becomes a page that opens "
        "offline, in which a live timeline is the picture that it showed last.",
    )
    convert.add_argument("inputs", metavar="IN", nargs="+", help=f"the trace; {_INPUTS}")
    convert.add_argument("output", metavar="OUT", help="the file to write")
    convert.add_argument("--force", action="store_true", help="replace OUT where it exists")
    _add_compare(commands)
    for command in (view, convert):
        command.add_argument(
            "--format", default=AUTO, metavar="NAME", help=f"what is read: {AUTO} (by its first bytes), {', '.join(FORMATS)}"
        )
    return parser


def _add_compare(commands: Any) -> None:
    compare = commands.add_parser(
        "compare",
        help="say whether a run is slower than its baseline, or not as expected: for CI",
        description="Compare a run with its baseline. The exit status is 0; 1 if it is slower than --gate lets it be, or not "
        "as expected; 2 if that cannot be told: a file that cannot be read, a name that is in no trace.",
    )
    compare.add_argument("base", metavar="BASE", help=f"the baseline: a trace, or @NAME for {BASELINES}/NAME.parquet")
    compare.add_argument("new", metavar="NEW", help="the run: a trace, of gpustreamlab or of another tool")
    compare.add_argument("--gate", type=_percent, metavar="PERCENT", help="how much longer the run may take than its baseline")
    compare.add_argument(
        "--expect",
        action="append",
        default=[],
        metavar="EXPRESSION",
        help="what the run should do, such as 'overlap(copy, compute) >= 0.6', 'wall <= 20 ms', 'idle < 10%%', "
        "'p95(decode) < 2 ms', 'count(gemm) == 12', 'host_waits == 0'; may be given several times",
    )
    compare.add_argument("--format", choices=("text", "markdown", "json"), default="text", help="how it is told")
    compare.add_argument("--page", metavar="OUT.html", help="write both timelines and all figures as one page, too")
    compare.add_argument("--update", action="store_true", help="let the run be the baseline @NAME from now on, if all holds")


def _percent(text: str) -> float:
    return float(text.removesuffix("%"))


def compare(options: argparse.Namespace) -> int:
    """Compare a run with its baseline, and say whether it may pass."""
    base = _baseline(options.base) if options.base.startswith("@") else Path(options.base)
    if options.update and not options.base.startswith("@"):
        raise OptionError("--update writes a named baseline: gpustreamlab compare @main new.parquet --update")
    new = load_trace(options.new)
    if options.base.startswith("@") and not base.exists() and not options.update:
        again = f"gpustreamlab compare {options.base} NEW --update"
        raise OptionError(f"There is no baseline {options.base} yet. Let a run be it: {again}")
    is_first = options.update and not base.exists()
    old = new if is_first else load_trace(base)
    verdict = judge(old, new, gate=options.gate, expected=options.expect)
    print(getattr(verdict, options.format)())
    if options.page is not None:
        Comparison(old, new).save(options.page)
    if options.update and verdict.holds:
        base.parent.mkdir(parents=True, exist_ok=True)
        new.save(base)
    return 0 if verdict.holds else 1


BASELINES = "gpustreamlab-baselines"  # Folder of baselines that have names


def _baseline(name: str) -> Path:
    """Return the file of a named baseline."""
    if not name[1:] or Path(name[1:]).name != name[1:]:
        raise OptionError(f"{name!r} names no baseline; use letters, as in @main.")
    return Path(BASELINES) / f"{name[1:]}.parquet"


def doctor(options: argparse.Namespace) -> int:
    """Print what this machine supports."""
    checks = run_checks()
    print(checks_to_json(checks) if options.json else checks_to_text(checks, columns=shutil.get_terminal_size().columns))
    return 0


def view(options: argparse.Namespace) -> int:
    """Print what happened in a trace, and write its timeline as a page."""
    page = Path(options.output) if options.output else _page_beside(options.inputs[0])
    if page.suffix.lower() != ".html":
        raise OptionError(f"view writes a page, so {str(page)!r} has to end in .html. For the data: gpustreamlab convert.")
    _require_other(options.inputs[1:] if options.output is None else options.inputs, page)
    trace = load_trace(options.inputs, options.format)
    texts = []
    with steps(len(_REPORTS) + 1, "view") as done:
        for name, report in _REPORTS.items():
            texts.append(str(report(trace)))
            done(name)
        if not _is_same(options.inputs[0], page):  # a page with its data is there already
            trace.timeline().save(page)
        done("timeline")
    print(*filter(None, texts), f"Timeline: {page}", sep="\n\n", flush=True)
    if not options.no_open:
        _open(page)
    return 0


def _open(page: Path) -> None:
    """Open a page where there is a browser."""
    if _has_screen():
        webbrowser.open(page.resolve().as_uri())


def convert(options: argparse.Namespace) -> int:
    """Write a trace in another format, and say what it was read from."""
    target = Path(options.output)
    if options.output == "-":
        raise OptionError("convert writes a file, and nothing to stdout. Name one, such as run.parquet.")
    is_page = target.suffix.lower() == ".html"
    if not is_page:
        find_writer(target)  # refuses before anything is read
    _require_other(options.inputs, target)
    if target.exists() and not options.force:
        raise OptionError(f"{options.output!r} exists; the last argument is what is written. Replace it with --force.")
    if is_page and len(options.inputs) == 1 and options.inputs[0].endswith(".ipynb"):
        from gpustreamlab.notebook.kept import write_notebook_page

        write_notebook_page(Path(options.inputs[0]), target)
        return 0
    trace = load_trace(options.inputs, options.format)
    if is_page:
        trace.timeline().save(target, with_data=True)
    else:
        trace.save(target)
    print(f"{options.output}: {counts_text(trace, len(trace))}")
    if trace.metadata.imported:
        print(wrap_lines([*filter(None, [trace.metadata.doubt]), trace.metadata.imported, *trace.metadata.missing]))
    return 0


def _why(trace: Trace) -> str:
    """Say why streams did not overlap; of several processes on several GPUs, one after the other."""
    try:
        return str(trace.explain())
    except OptionError:
        devices = [device.ordinal for device in trace.devices]
    told = [f"GPU {one}. {trace.where(device=one).explain()}" for one in devices[:_MOST_EXPLAINED]]
    return "\n\n".join([*told, *(["and more GPUs"] if len(devices) > _MOST_EXPLAINED else [])])


def _idle(trace: Trace) -> str:
    """Say when the card was idle, which needs no second stream; nothing of several processes on several GPUs."""
    try:
        found = trace.idle().card
    except OptionError:
        return ""
    return str(found) if found else ""


def _steps(trace: Trace) -> str:
    """Say how long the steps or requests took that ranges name."""
    return str(named_steps(trace) or "")


_MOST_EXPLAINED = 8  # GPUs that `view` explains
_REPORTS: dict[str, Callable[[Trace], object]] = {
    "summary": summary_text,
    "overlap": Trace.overlap,
    "idle": _idle,
    "steps": _steps,
    "why": _why,
}
_COMMANDS = {
    "record": record,
    "snap": snap,
    "live": live,
    "attach": attach,
    "doctor": doctor,
    "view": view,
    "convert": convert,
    "compare": compare,
}
_REFUSED_STATUS = {"compare": 2, "record": 2}  # Where 1 says something else than that a command could not do what it was asked


def _page_beside(file: str) -> Path:
    """Return where the page of a file goes; only what can be drawn again is replaced."""
    page = Path(f"{Path(file).name.lstrip('.').partition('.')[0]}.html")
    if page.exists() and not _is_same(file, page) and not is_bare_page(page):
        raise OptionError(f"{str(page)!r} is there already, and is no page that view wrote. Name another one with -o.")
    return page


def _require_other(inputs: Sequence[str], target: Path) -> None:
    """Raise `OptionError` where the target is one of the files that are read."""
    if any(_is_same(path, target) for path in inputs):
        raise OptionError(f"{str(target)!r} would replace what is read. Write to another file.")


def _is_same(first: str, second: Path) -> bool:
    with suppress(OSError, ValueError):
        return second.samefile(first)
    return False


def _has_screen() -> bool:
    """Tell whether a browser can be opened in a window: one of a terminal would hide what was printed."""
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def run_checks() -> list[Check]:
    """Check everything that a session and a notebook need; the last check says what ``Session()`` would use."""
    rows = [_check_python(), _check_package_version(), *cuda_checks(), *_check_kernel_capture(), *_check_jupyter()]
    return [*rows, _check_session()]


def checks_to_text(checks: Sequence[Check], *, columns: int = 100) -> str:
    """Write the checks as a table, each fix once, on a line of its own that can be copied whole.

    Parameters
    ----------
    checks
        The rows.
    columns
        How wide the terminal is, in characters; only details are wrapped.

    Examples
    --------
    >>> from gpustreamlab.backends.cuda._probe import Check, CheckStatus
    >>> print(checks_to_text([Check(name="nvtx", status=CheckStatus.LACKING, detail="not installed", fix="pip install nvtx")]))
    lacking      nvtx  not installed
                       fix: pip install nvtx
    """
    name_width = max(len(check.name) for check in checks)
    lines, fixed_by = [], dict[str, str]()
    for check in checks:
        head = f"{check.status:<11}  {check.name:<{name_width}}  "
        indent = " " * len(head)
        lines += textwrap.wrap(
            check.detail,
            width=max(columns, _NARROWEST_COLUMNS),
            initial_indent=head,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        if check.fix:
            known = fixed_by.setdefault(check.fix, check.name)
            lines.append(f"{indent}fix: {check.fix if known == check.name else f'as for {known}'}")
    return "\n".join(lines)


def checks_to_json(checks: Sequence[Check]) -> str:
    """Write the checks as a JSON object with the version and one entry a check."""
    return json.dumps({"gpustreamlab": __version__, "checks": [dataclasses.asdict(check) for check in checks]}, indent=2)


def _check_python() -> Check:
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Check(name="Python", status=CheckStatus.OK, detail=detail)


def _check_package_version() -> Check:
    return Check(name="gpustreamlab", status=CheckStatus.OK, detail=__version__)


def _check_kernel_capture() -> list[Check]:
    """Say whether CUPTI's callbacks are compiled, which needs a C compiler once; without a GPU nothing needs them."""
    if why_unavailable() is not None:
        return []
    name = "kernel capture"
    try:
        library = find_library()
        origin = "came with the package" if library.parent == SOURCES[0].parent else "were compiled on this machine"
        return [Check(name=name, status=CheckStatus.OK, detail=f"its callbacks {origin}: {library}")]
    except OSError as error:
        detail = "kernels will not be captured; ranges are timed without them"
        return [Check(name=name, status=CheckStatus.LACKING, detail=detail, fix=str(error))]


def _check_jupyter() -> list[Check]:
    return [_check_distribution(name) for name in ("jupyterlab", "ipykernel", "ipywidgets")]


def _check_distribution(name: str) -> Check:
    with suppress(importlib.metadata.PackageNotFoundError):
        return Check(name=name, status=CheckStatus.OK, detail=importlib.metadata.version(name))
    return Check(name=name, status=CheckStatus.LACKING, detail="not installed", fix=install_line("notebook"))


def _check_session() -> Check:
    """Say what ``Session()`` would use, without starting one."""
    is_gpu = why_unavailable() is None
    detail = "uses the GPU (backend 'cuda')" if is_gpu else "uses the simulated device (backend 'sim'), as no GPU can be used"
    return Check(name="Session()", status=CheckStatus.OK, detail=detail if is_gpu else f"{detail}: see above")
