"""The ``gpustreamlab`` command: ``gpustreamlab doctor`` says what this machine can do."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress

from gpustreamlab import __version__
from gpustreamlab._util.words import install_line
from gpustreamlab.backends.cuda._probe import Check, CheckStatus, cuda_checks, why_unavailable
from gpustreamlab.backends.cuda.cupti._buffers import find_library

_OLDEST_PYTHON = (3, 11)
_NARROWEST_COLUMNS = 60
_BROKEN_PIPE_STATUS = 141  # 128 + SIGPIPE, what shells say of a program that is ended so


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    argv
        The arguments after the command's name; None takes those of the process.

    Returns
    -------
    int
        The exit status: 0; 1 where ``doctor`` finds that no session can start, not even on the simulated device; 141 where
        who reads the output has gone, as ``head`` does.

    Raises
    ------
    SystemExit
        From argparse: with 2 for wrong arguments, with 0 after ``--help`` and ``--version``.
    """
    options = make_parser().parse_args(argv)
    checks = run_checks()
    text = checks_to_json(checks) if options.json else checks_to_text(checks, columns=shutil.get_terminal_size().columns)
    try:
        print(text, flush=True)  # at exit nobody could catch what fails
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at exit
        return _BROKEN_PIPE_STATUS
    return 0 if checks[-1].status is CheckStatus.OK else 1


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(prog="gpustreamlab", description="See and steer GPU concurrency from a notebook.")
    parser.add_argument("--version", action="version", version=f"gpustreamlab {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    doctor = commands.add_parser(
        "doctor",
        help="print what this machine supports, and the command that adds what is missing",
        description="Print what this machine supports, and the command that adds what is missing. The exit status is 0, or 1 "
        "if no session can start at all.",
    )
    doctor.add_argument("--json", action="store_true", help="print the checks as JSON")
    return parser


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
    if sys.version_info >= _OLDEST_PYTHON:
        return Check(name="Python", status=CheckStatus.OK, detail=detail)
    fix = "Install Python 3.11 or newer and make a new environment: python3 -m venv .venv"
    return Check(name="Python", status=CheckStatus.LACKING, detail=detail, fix=fix)


def _check_package_version() -> Check:
    return Check(name="gpustreamlab", status=CheckStatus.OK, detail=__version__)


def _check_kernel_capture() -> list[Check]:
    """Say whether CUPTI's callbacks are compiled, which needs a C compiler once; without a GPU nothing needs them."""
    if why_unavailable() is not None:
        return []
    name = "kernel capture"
    try:
        return [Check(name=name, status=CheckStatus.OK, detail=f"its callbacks are compiled: {find_library()}")]
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
    name = "Session()"
    if why_unavailable() is None:
        return Check(name=name, status=CheckStatus.OK, detail="uses the GPU (backend 'cuda')")
    try:
        importlib.import_module("gpustreamlab.backends.sim")
    except ImportError as error:
        detail = f"cannot start: no GPU can be used, and the simulated device cannot be imported: {error}"
        return Check(
            name=name,
            status=CheckStatus.LACKING,
            detail=detail,
            fix=install_line("notebook").replace("install ", "install --force-reinstall ", 1),
        )
    detail = "uses the simulated device (backend 'sim'), as no GPU can be used: see above"
    return Check(name=name, status=CheckStatus.OK, detail=detail)


if __name__ == "__main__":
    sys.exit(main())
