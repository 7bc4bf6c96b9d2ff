"""Run some of the unit and browser tests on every Python from 3.11 on that this machine offers, in an environment each."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "pythons"
LEAST = (3, 11)
UNIT = ("model", "sim", "recorder", "analysis", "test_session.py", "test_programs.py", "test_magics.py", "test_cluster.py")
BROWSER = ("test_saved_page.py",)


def interpreters() -> dict[tuple[int, int], str]:
    """Return one interpreter of each version: those of `uv`, those of pyenv, and those on the path."""
    found: dict[tuple[int, int], str] = {}
    for path in filter(shutil.which, _offered()):
        asked = [path, "-c", "import sys; print(*sys.version_info[:2])"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if not done.returncode:
            major, minor = map(int, done.stdout.split())
            if (major, minor) >= LEAST:
                found.setdefault((major, minor), path)
    return dict(sorted(found.items()))


def _offered() -> Iterator[str]:
    if uv := shutil.which("uv"):
        told = subprocess.run([uv, "python", "list", "--only-installed"], capture_output=True, text=True, check=False).stdout
        yield from re.findall(r"^\S+\s+(\S+)", told, re.MULTILINE)
    yield from map(str, sorted(Path.home().glob(".pyenv/versions/*/bin/python")))
    yield from filter(None, (shutil.which(f"python3.{minor}") for minor in range(LEAST[1], 20)))


def try_python(path: str, name: str, *, browser: bool) -> bool:
    """Install the package, and what its tests need, into an environment of this Python; tell whether all tests passed."""
    environment = FOLDER / name
    python = environment / "bin" / "python"
    subprocess.run([path, "-m", "venv", "--clear", environment], check=True)
    groups = ["--group", "unit", "--group", "exchange", "--group", "browser"]
    for line in (["--upgrade", "pip>=25.1"], ["--editable", ".[notebook]", *groups]):
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *line], cwd=ROOT, check=True)
    tests = [f"tests/unit/{one}" for one in UNIT], [f"tests/browser/{one}" for one in BROWSER if browser]
    return all(
        not subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *some], cwd=ROOT, check=False).returncode
        for some in tests
        if some
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 1 where a Python fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="3.N", help="only these (default: every one)")
    parser.add_argument("--no-browser", action="store_true", help="run the unit tests alone")
    given = parser.parse_args(arguments)
    pythons = {f"{major}.{minor}": path for (major, minor), path in interpreters().items()}
    missing = [one for one in given.versions if one not in pythons]
    if missing or not pythons:
        print(
            f"No Python {', '.join(missing) or '3.11 or newer'} here; there is {', '.join(pythons) or 'none'}.", file=sys.stderr
        )
        return 1
    failed = []
    for name in given.versions or pythons:
        began_s = time.monotonic()
        passed = try_python(pythons[name], name, browser=not given.no_browser)
        failed += [] if passed else [name]
        print(f"Python {name}: {'passed' if passed else 'FAILED'} in {time.monotonic() - began_s:.0f} s", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
