"""Run the contract battery on this machine's GPU under compute-sanitizer's memcheck, and print how many errors it found.

Errors of memory fail the run, and so do failed checks. Calls that the driver refused are listed too: the sanitizer reports
each, also one that asks what the driver can do. The checks that capture kernels are left out, as they need CUPTI, which the
sanitizer does not share; and those that compare times, which it stretches. Where the sanitizer is missing, or refuses the
device (it does under gVisor), that is said, in its own words, and the status is 2.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TESTS = "tests/gpu/test_contract_cuda.py"
PROBE = "import cupy; cupy.arange(1000).sum().get()"
"""A program without errors, which shows whether the sanitizer works here at all."""
TIMED_CHECKS = ("a_repartition_drains_what_moves_and_nothing_else",)
CANNOT_RUN = 2
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error")
_PASSED = re.compile(r"(\d+) passed")
_FAILED = re.compile(r"^FAILED (\S+)", re.MULTILINE)
_RECORD = re.compile(r"^========= (?!COMPUTE-SANITIZER|ERROR SUMMARY|Target application)(\S.*)$", re.MULTILINE)
_REFUSED = "Program hit "


class Outcome(NamedTuple):
    """What one run under the sanitizer came to."""

    status: int
    """Exit status of the run."""
    text: str
    """All that was written."""

    @property
    def error_count(self) -> int | None:
        """What the sanitizer counted, calls that the driver refused included; None if it did not come to its end."""
        summaries = _SUMMARY.findall(self.text)
        return sum(map(int, summaries)) if summaries else None

    @property
    def refused_calls(self) -> Counter[str]:
        """Calls that the driver refused, as it may: the battery passes handles that are wrong on purpose."""
        return Counter(record for record in _RECORD.findall(self.text) if record.startswith(_REFUSED))

    @property
    def errors(self) -> Counter[str]:
        """Every other kind of error: what work on the device did to memory."""
        return Counter(record for record in _RECORD.findall(self.text) if not record.startswith(_REFUSED))

    @property
    def passed_count(self) -> int:
        """Tests that passed."""
        passed = _PASSED.findall(self.text)
        return int(passed[-1]) if passed else 0

    @property
    def failed_tests(self) -> list[str]:
        """Tests that failed."""
        return _FAILED.findall(self.text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if clean, 1 for errors or failed tests, 2 where the sanitizer cannot work."""
    options = make_parser().parse_args(argv)
    program = shutil.which(options.sanitizer)
    if program is None:
        print(f"Not run: there is no {options.sanitizer} on the PATH. It comes with the CUDA toolkit.")
        return CANNOT_RUN
    command = [program, "--tool", options.tool, "--error-exitcode", "86"]
    probe = run([*command, sys.executable, "-c", PROBE], options.timeout)
    if probe.error_count != 0 or probe.status:
        print(f"Not run: compute-sanitizer does not work on this device; a program without errors gave status {probe.status}:")
        print("\n".join(_RECORD.findall(probe.text)) or probe.text[-1000:])
        return CANNOT_RUN
    pytest = [sys.executable, "-m", "pytest", TESTS, "-q", "-p", "no:cacheprovider", "-o", "timeout=0", "-k", selection()]
    return judge(run([*command, *pytest], options.timeout), options.tool)


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(description="Run the contract battery under compute-sanitizer.")
    parser.add_argument("--tool", default="memcheck", help="memcheck, racecheck, initcheck or synccheck (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=540, help="seconds for each of the two runs (default: %(default)s)")
    parser.add_argument("--sanitizer", default="compute-sanitizer", help="the program (default: %(default)s)")
    return parser


def selection() -> str:
    """Return pytest's expression for the checks that need no CUPTI, and no times as they are."""
    from gpustreamlab.testing import CAPTURE_CHECKS

    return " and ".join(f"not {name}" for name in (*(check.__name__ for check in CAPTURE_CHECKS), *TIMED_CHECKS))


def run(command: Sequence[str], timeout_s: float) -> Outcome:
    """Run a command in the checkout, and read what the sanitizer and pytest say at its end."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        text = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
        return Outcome(-1, f"{text}\nStopped after {timeout_s:g} s.")
    return Outcome(done.returncode, done.stdout)


def judge(outcome: Outcome, tool: str) -> int:
    """Say what the battery came to; return the status of the command."""
    if outcome.error_count is None or not outcome.passed_count:
        print(
            f"{tool} did not come to an end of the battery; the run ended with status {outcome.status}:\n{outcome.text[-2000:]}"
        )
        return 1
    refused, errors = outcome.refused_calls, outcome.errors
    for what, count in (*errors.most_common(), *refused.most_common()):
        print(f"{count:6}  {what}")
    for test in outcome.failed_tests:
        print(f"Failed under {tool}: {test}")
    print(
        f"{tool}: {sum(errors.values())} errors; {sum(refused.values())} calls that the driver refused; "
        f"{outcome.passed_count} checks of the contract passed, {len(outcome.failed_tests)} failed."
    )
    return 1 if errors or outcome.failed_tests else 0


if __name__ == "__main__":
    sys.exit(main())
