"""What reading a large file of PyTorch's profiler costs, beside decoding the same bytes alone.

The file is made in a temporary folder, by repeating the events of a real one with shifted times and correlations, until it has
``--size`` MB (503 if left out), and goes away afterwards. Each way runs in a process of its own; of ``--rounds`` (3) the best
counts, as other programs share the machine. The real file: ``--file``, or one of ``../shared/exchange/traces/kineto``.
"""

from __future__ import annotations

import argparse
import gzip
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench._common import report

NEEDS_GPU = False
SOURCE = Path(__file__).resolve().parents[2] / "shared" / "exchange" / "traces" / "kineto" / "a100_nccl_2rank.json.gz"
_WAYS = {
    "read the bytes": "open(path, 'rb').read()",
    "gpustreamlab.load_trace": "import gpustreamlab; told = gpustreamlab.load_trace(path); told = f'{len(told):,} spans'",
    "msgspec, typed, whole": (
        "import msgspec; Event = msgspec.defstruct('Event', [(name, object, None) for name in "
        "('ph', 'cat', 'name', 'pid', 'tid', 'ts', 'dur')], gc=False); "
        "File = msgspec.defstruct('File', [('traceEvents', list[Event])]); "
        "told = f\"{len(msgspec.json.decode(open(path, 'rb').read(), type=File).traceEvents):,} events\""
    ),
    "json": "import json; told = f\"{len(json.load(open(path, 'rb'))['traceEvents']):,} events\"",
}
_RUN = """
import resource, sys, time
path, told = sys.argv[1], ""
began = time.perf_counter()
{}
print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, told, sep="|")
"""
_NUMBERS = re.compile(rb'("ts": |"correlation": |"id": )(\d+)')


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    parser.add_argument("--file", type=Path, default=SOURCE)
    parser.add_argument("--size", type=int, default=503)
    parser.add_argument("--rounds", type=int, default=3)
    options, rest = parser.parse_known_args(argv)
    if not options.file.is_file():
        print(f"{options.file} is not there: nothing is measured.")
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.json"
        make_file(options.file, path, options.size * 1_000_000)
        rows = [_row(name, code, path, options.rounds) for name, code in _WAYS.items()]
    report(
        f"A file of PyTorch's profiler, {options.size} MB, made of {options.file.name}: best of {options.rounds}", rows, rest
    )


def make_file(source: Path, path: Path, size_bytes: int) -> None:
    """Write a file of that size, or a little more, with the events of another one again and again."""
    text = gzip.decompress(source.read_bytes())
    begin, end = text.index(b'"traceEvents": [') + 16, text.rindex(b"  ],")
    head, events, tail = text[:begin], text[begin:end].strip(), text[end:]
    times_us = [int(number) for key, number in _NUMBERS.findall(events) if key == b'"ts": ' and int(number)]
    shifts = {b'"ts": ': max(times_us) - min(times_us) + 1_000, b'"correlation": ': 1_000_000, b'"id": ': 1_000_000}
    with path.open("wb") as file:
        file.write(head)
        for turn in range(-(-size_bytes // len(text))):
            file.write((b",\n  " if turn else b"\n  ") + _NUMBERS.sub(partial(_shifted, shifts, turn), events))
        file.write(b"\n" + tail)


def _shifted(shifts: Mapping[bytes, int], turn: int, found: re.Match[bytes]) -> bytes:
    return found[1] + b"%d" % (int(found[2]) + turn * shifts[found[1]])


def _row(name: str, code: str, path: Path, rounds: int) -> dict[str, Any]:
    """Return the best time and the peak of a process that runs the code."""
    found = []
    for _ in range(rounds):
        done = subprocess.run([sys.executable, "-c", _RUN.format(code), str(path)], capture_output=True, text=True, check=True)
        found.append(done.stdout.strip().split("|"))
    return {
        "way": name,
        "s": round(min(float(one[0]) for one in found), 2),
        "peak MB": round(min(float(one[1]) for one in found)),
        "told": found[0][2],
    }


if __name__ == "__main__":
    main()
