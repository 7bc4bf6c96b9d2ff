"""What `improve` mends by machine: programs as users write them, beside what a good engineer makes of them, and real ones.

A file of pairs has functions by their names in ``PAIRS``: each takes a session and ``"bad"`` or ``"good"``, prepares, and gives
back what is measured; with codes of findings, or none where there is nothing to gain. Without such a file only the programs of
CuPy and torch are run. Each row is printed as soon as it is known:

    python -m bench.improve --pairs pairs.py                  # on a card, in 240 s
    python -m bench.improve --pairs pairs.py --backend sim    # without the real ones
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench._common import report
from gpustreamlab import Session
from gpustreamlab.improve._draft import read_draft
from gpustreamlab.improve._improve import Improvement, _target
from gpustreamlab.improve._run import Runner

NEEDS_GPU = True
SECONDS = {"cuda": 240.0, "sim": 3_600.0}
SCALE = {"cuda": 2, "sim": 1}
"""How many times as long the sides of the arrays of pairs are as on the simulated device."""
ROUNDS = {"cuda": 5, "sim": 1}
NEAR = 1.05
SEARCHED = 0.5
"""Which share of its time a program is changed in; what is under way then ends, and the good program runs."""


class Row(NamedTuple):
    """A program to improve."""

    name: str
    program: Callable[..., Any]
    is_pair: bool  # Whether it takes a session, and which program it is to be
    is_clean: bool = False
    """Whether there is nothing to gain."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser()
    options = parser.parse_args(argv)
    rows = [*_pairs(options), *(_real() if options.backend == "cuda" else [])]
    chosen = [row for row in rows if not options.names or row.name in options.names]
    until_s = time.monotonic() + (options.seconds or SECONDS[options.backend])
    found = []
    for place, row in enumerate(chosen):
        seconds = (until_s - time.monotonic()) / (len(chosen) - place)
        found.append(improved(options.backend, row, seconds))
        print("; ".join(f"{name}: {value}" for name, value in found[-1].items()), flush=True)
    near = [one for one in found if one["within 5%"] == "yes"]
    print(f"{len(near)} of {len(found)} within 5% of the good program, or left alone where nothing can be gained", flush=True)
    report(
        f"Programs changed by machine, {options.backend}", found, [] if options.json is None else ["--json", str(options.json)]
    )


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(description="Improve programs by machine, beside what a good engineer makes of them.")
    parser.add_argument("names", nargs="*", help="which programs; all if left out")
    parser.add_argument("--pairs", type=Path, help="a file with pairs of programs")
    parser.add_argument("--backend", choices=("sim", "cuda"), default="cuda")
    parser.add_argument("--seconds", type=float, help="for all programs together: 240 on a card, 3,600 on the simulated device")
    parser.add_argument("--scale", type=int, help="sides of the arrays of pairs, times this: 2 on a card, else 1")
    parser.add_argument("--json", type=Path, help="store the figures here")
    return parser


def _pairs(options: argparse.Namespace) -> list[Row]:
    if options.pairs is None:
        return []
    spec = importlib.util.spec_from_file_location("pairs", options.pairs)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{options.pairs} is no file of Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules["pairs"] = module
    spec.loader.exec_module(module)
    module.SCALE = options.scale or SCALE[options.backend]  # type: ignore[attr-defined]
    return [Row(name, program, is_pair=True, is_clean=not codes) for name, (program, codes) in module.PAIRS.items()]


def _real() -> list[Row]:
    from tests.helpers.real_programs import REAL

    return [Row(name, program, is_pair=False) for name, program in REAL.items()]


def improved(backend: str, row: Row, seconds: float) -> dict[str, Any]:
    """Improve a program; return what was found, predicted and measured. One that cannot run says so."""
    facts: dict[str, Any] = {"program": row.name}
    if seconds <= 0:
        return facts | {"within 5%": "", "found": "not run: the time is over"}
    with warnings.catch_warnings(), Session(backend) as lab:
        warnings.simplefilter("ignore")
        given = (lab, "bad") if row.is_pair else ()
        began_s = time.monotonic()
        try:
            found = lab.improve(row.program, *given, seconds=SEARCHED * seconds, namespace={})
            good_ns = wall_ns(lab, row, ROUNDS[backend]) if row.is_pair and not row.is_clean else None
        except Exception as error:  # noqa: BLE001 - the others are run
            return facts | {"within 5%": "no", "found": f"failed: {type(error).__name__}: {error!s:.160}"}
    return facts | _told(row, found, good_ns) | {"s": round(time.monotonic() - began_s, 1)}


def wall_ns(lab: Session, row: Row, rounds: int) -> float:
    """Return what the good program takes, measured as the others are: the median."""
    program, arguments, values = _target(row.program, (lab, "good"), {})
    runner, draft = Runner(lab, values, arguments), read_draft(program)
    with runner.aside():
        runs = [runner.run(draft, is_watched=False).wall_ns for _ in range(rounds + 1)]
    return float(np.median(runs[min(1, rounds - 1) :]))  # the first one loads kernels


def _told(row: Row, found: Improvement, good_ns: float | None) -> dict[str, Any]:
    before_ns, after_ns = (float(np.median(one)) for one in (found.before_ns, found.after_ns))
    is_near = not found if row.is_clean else good_ns is None or after_ns <= NEAR * good_ns
    predicted = [one.predicted_ns for one in found.kept if one.predicted_ns is not None]
    kept = [one.title for one in found.kept]
    return {
        "within 5%": ("yes" if is_near else "no") if row.is_clean or good_ns is not None else "",
        "before, ms": round(before_ns / 1e6, 3),
        "now, ms": round(after_ns / 1e6, 3),
        "good, ms": "" if good_ns is None else round(good_ns / 1e6, 3),
        "gain predicted, ms": round(sum(predicted) / 1e6, 3) if predicted else "",
        "gain measured, ms": round((before_ns - after_ns) / 1e6, 3),
        "at least, ms": round(sum(one.interval_ns[0] for one in found.kept) / 1e6, 3),
        "found": " | ".join(kept) or f"left as it is, {len(found.left)} tried",
    }


if __name__ == "__main__":
    main()
