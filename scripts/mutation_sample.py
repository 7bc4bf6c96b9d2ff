"""Change a sample of places in three modules of `analysis`, and count which changes the unit tests notice.

The tool is cosmic-ray, installed in a folder of its own so that its pytest is not the one of the tests:

    pip install --target DIR cosmic-ray
    python scripts/mutation_sample.py --tool DIR --revision main --label before
    python scripts/mutation_sample.py --tool DIR --revision HEAD --label after

Each run works on a copy of the revision, so the working tree stays as it is. The same source gives the same sample.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "bench" / "results" / "house" / "mutation.json"
ANALYSIS = "tests/unit/analysis"
SAMPLE = {
    "overlap": ["overlap", "overlap_text", "shared"],
    "utilization": ["utilization", "parts", "partition_text"],
    "strays": ["strays"],
}
"""Modules of `analysis`, with their test files."""
LEFT_OUT = re.compile(r"core/ReplaceBinaryOperator_BitOr_|core/NumberReplacer")
"""Unions of types are no code that runs; a number of a width or a limit is taste more often than behaviour."""
SECONDS_A_MUTANT = 180


def main() -> int:
    """Run the sample and write its figures under the label."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", type=Path, required=True, help="folder into which cosmic-ray was installed")
    parser.add_argument("--revision", default="HEAD")
    parser.add_argument("--label", required=True, help="under which the figures are written, such as before")
    parser.add_argument("--count", type=int, default=40, help="mutants of each module")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        archive = subprocess.run(["git", "archive", options.revision], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)
        for module, names in SAMPLE.items():
            tests = [f"{ANALYSIS}/test_{name}.py" for name in names]
            tests = [path for path in tests if (tree / path).exists()]
            figures = sample(tree, module, tests, options)
            write(options, module, figures)
            print(module, {name: value for name, value in figures.items() if name != "survivors"}, flush=True)
    return 0


def sample(tree: Path, module: str, tests: list[str], options: argparse.Namespace) -> dict[str, object]:
    """Try the mutants of one module."""
    source = f"gpustreamlab/analysis/_{module}.py"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)  # they pass, and are compiled
    for compiled in (tree / "gpustreamlab/analysis/__pycache__").glob(f"_{module}.*"):
        compiled.unlink()  # a mutant that is as long as the source, and as new, would not be looked at
    inner = ["env", f"PYTHONPATH={tree}", "PYTHONDONTWRITEBYTECODE=1", *command]
    config = tree / "mutation.toml"
    config.write_text(
        f'[cosmic-ray]\nmodule-path = "{source}"\ntimeout = {SECONDS_A_MUTANT}.0\nexcluded-modules = []\n'
        f"test-command = {json.dumps(shlex.join(inner))}\n[cosmic-ray.distributor]\nname = 'local'\n"
    )
    store = tree / f"{module}.sqlite"
    ray(options.tool, tree, "init", config.name, store.name)
    total = keep_sample(store, options.count)
    ray(options.tool, tree, "exec", config.name, store.name)
    return {
        "mutants": total,
        **count(store),
        "tests": tests,
        "tests_lines": sum(len((tree / t).read_text().splitlines()) for t in tests),
    }


def ray(tool: Path, tree: Path, *words: str) -> None:
    """Run a command of cosmic-ray."""
    environment = {**os.environ, "PYTHONPATH": str(tool.resolve())}
    subprocess.run([sys.executable, "-m", "cosmic_ray.cli", *words], cwd=tree, env=environment, check=True)


def keep_sample(store: Path, wanted: int) -> int:
    """Leave the chosen mutants to run, and return how many there were to choose from."""
    with sqlite3.connect(store) as database:
        rows = database.execute(
            "select job_id, operator_name, start_pos_row, start_pos_col, occurrence from mutation_specs"
        ).fetchall()
        able = sorted((row for row in rows if not LEFT_OUT.match(row[1])), key=lambda row: row[1:])
        kept = {row[0] for row in random.Random(18).sample(able, min(wanted, len(able)))}
        gone = [(row[0],) for row in rows if row[0] not in kept]
        database.executemany("delete from mutation_specs where job_id = ?", gone)
        database.executemany("delete from work_items where job_id = ?", gone)
    return len(able)


def count(store: Path) -> dict[str, object]:
    """Return how many were tried and noticed, and where the others are."""
    with sqlite3.connect(store) as database:
        rows = database.execute(
            "select test_outcome, operator_name, start_pos_row from work_results join mutation_specs using (job_id)"
        ).fetchall()
    left = sorted(
        f"line {row}: {name.removeprefix('core/')}" for outcome, name, row in rows if str(outcome).lower().endswith("survived")
    )
    return {"tried": len(rows), "noticed": len(rows) - len(left), "survivors": left}


def write(options: argparse.Namespace, module: str, figures: dict[str, object]) -> None:
    """Add the figures of one module to the file."""
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    known["command"] = "python scripts/mutation_sample.py --tool DIR --revision REVISION --label LABEL"
    known["tool"] = "cosmic-ray 8.7.0"
    known.setdefault(options.label, {})[module] = figures
    RESULT.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
