"""Run tests/gpu on this machine and keep the report. A run in which every test was skipped, or none was found, is a failed run.

It uses the python that runs it, since a GPU machine brings its own packages, and needs nothing but pytest; with ``--gpus 2``,
which takes half as long, also pytest-xdist.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

ALONE = ("test_clock_cuda.py", "test_node_cuda.py", "test_cluster_cuda.py", "test_hazards_cuda.py")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return pytest's status, or 1 where nothing ran."""
    options, more = make_parser().parse_known_args(argv)
    options.report.parent.mkdir(parents=True, exist_ok=True)
    status = run_tests(options, more)
    if not options.report.is_file():
        print(f"pytest wrote no report to {options.report}.", file=sys.stderr)
        return status or 1
    remove_host_name(options.report)
    ran_count = count_ran(options.report)
    print(f"{ran_count} GPU tests ran; the report is in {options.report}.")
    if not ran_count:
        print("A GPU run in which nothing ran is a failed run. Look at what was skipped: gpustreamlab doctor", file=sys.stderr)
        return status or 1
    return status


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(description="Run the GPU tests and keep the report; more options go to pytest.")
    parser.add_argument("--report", type=Path, required=True, help="the JUnit XML file to write")
    parser.add_argument("--tests", default="tests/gpu", help="the folder of the tests (default: %(default)s)")
    parser.add_argument("--gpus", type=int, default=1, help="spread the files over so many GPUs (default: %(default)s)")
    return parser


def run_tests(options: argparse.Namespace, more: Sequence[str]) -> int:
    """Run pytest; return its status, or that of the first run that failed.

    With several GPUs the clock's tests come by themselves: work on another card of the host delays the events they look at; and
    those of a node and a cluster, and of hazards between cards, which see all cards.
    """
    # pytest-benchmark, where a machine has it, warns under xdist, and a warning is an error here.
    command = [sys.executable, "-m", "pytest", "-p", "no:benchmark", *more]
    if options.gpus == 1:
        return subprocess.run([*command, options.tests, f"--junitxml={options.report}"], check=False).returncode
    alone, part = [f"{options.tests}/{name}" for name in ALONE], options.report.with_suffix(".alone.xml")
    ignored = [f"--ignore={path}" for path in alone]
    spread = ["-n", str(options.gpus), "--dist", "loadfile", *ignored, options.tests, f"--junitxml={options.report}"]
    runs = [spread, [*alone, f"--junitxml={part}"]]
    status = [subprocess.run([*command, *run], check=False).returncode for run in runs]
    if options.report.is_file() and part.is_file():
        tree = ET.parse(options.report)
        tree.getroot().extend(ET.parse(part).getroot())
        tree.write(options.report, encoding="utf-8", xml_declaration=True)
    part.unlink(missing_ok=True)
    return next((one for one in status if one), 0)


def count_ran(report: Path) -> int:
    """Count the tests of a report that were not skipped."""
    cases = ET.parse(report).getroot().iter("testcase")
    return sum(case.find("skipped") is None for case in cases)


def remove_host_name(report: Path) -> None:
    """Take the machine's name out of a report that will be committed."""
    tree = ET.parse(report)
    for suite in tree.getroot().iter("testsuite"):
        suite.attrib.pop("hostname", None)
    tree.write(report, encoding="utf-8", xml_declaration=True)


if __name__ == "__main__":
    sys.exit(main())
