"""Run tests/gpu on this machine and keep the report. A run in which every test was skipped, or none was found, is a failed run.

It uses the python that runs it, since a GPU machine brings its own packages, and needs nothing but pytest.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return pytest's status, or 1 where nothing ran."""
    options, more = make_parser().parse_known_args(argv)
    options.report.parent.mkdir(parents=True, exist_ok=True)
    # pytest-benchmark, where a machine has it, warns under xdist, and a warning is an error here.
    command = [sys.executable, "-m", "pytest", "-p", "no:benchmark", options.tests, f"--junitxml={options.report}", *more]
    status = subprocess.run(command, check=False).returncode
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
    return parser


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
