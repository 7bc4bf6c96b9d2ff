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
PROFILES = "test_pm_sampling_cuda.py"


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
    those of a node and a cluster, and of hazards between cards, which see all cards. PM sampling always does, as in a process
    that CUPTI has left it does not come back.
    """
    # pytest-benchmark, where a machine has it, warns under xdist, and a warning is an error here.
    command = [sys.executable, "-m", "pytest", "-p", "no:benchmark", *more]
    if Path(options.tests).is_file():
        return subprocess.run([*command, options.tests, f"--junitxml={options.report}"], check=False).returncode
    groups = [[PROFILES], *([ALONE] if options.gpus > 1 else [])]
    paths = [[f"{options.tests}/{name}" for name in group] for group in groups]
    spread = ["-n", str(options.gpus), "--dist", "loadfile"] if options.gpus > 1 else []
    runs = [[*spread, *(f"--ignore={path}" for group in paths for path in group), options.tests], *paths]
    parts = [options.report, *(options.report.with_suffix(f".{place}.xml") for place in range(len(paths)))]
    status = [
        subprocess.run([*command, *run, f"--junitxml={part}"], check=False).returncode
        for run, part in zip(runs, parts, strict=True)
    ]
    for part in parts[1:]:
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
