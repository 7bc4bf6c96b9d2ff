"""Make a release in dist, and try it: the source, the wheels, and the notes, which are the version's part of CHANGELOG.md.

    python scripts/make_release.py

Each file is installed into an empty environment, from the index that pip uses, and does a small run there. What is for another
processor is unpacked only; the extras for a GPU are resolved, not installed. .github/workflows/release.yml uploads it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
WHEELS = ("x86_64", "aarch64", "")
SMOKE = """
import gpustreamlab as gsl
from gpustreamlab.workloads import spin

with gsl.Session("sim", title="smoke") as lab:
    for name in ("a", "b"):
        spin(lab, 1_000_000, stream=lab.stream(name))
    lab.synchronize()
    assert lab.trace.overlap()["a", "b"].common_share > 0.9
    page = lab.timeline().save("smoke.html")
trace = lab.trace
trace.save("smoke.parquet")
assert len(gsl.load_trace("smoke.parquet")) == len(trace)
print(gsl.__version__, gsl.__file__, page.stat().st_size)
"""


def main() -> int:
    """Build, try and describe; any failure ends it."""
    version = re.search(r'^__version__ = "(.+)"', (ROOT / "gpustreamlab" / "__init__.py").read_text(), re.MULTILINE)[1]
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob("gpustreamlab-*"):
        old.unlink()
    run(sys.executable, "-m", "build", "--sdist", "--outdir", DIST, ROOT)
    for processor in WHEELS:
        run(sys.executable, "-m", "build", "--wheel", "--outdir", DIST, ROOT, GPUSTREAMLAB_WHEEL=processor)
    files = sorted(DIST.glob(f"gpustreamlab-{version}*"))
    assert len(files) == 1 + len(WHEELS), files
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    for path in files:
        try_file(path)
    notes = DIST / f"notes-{version}.md"
    notes.write_text(notes_of(version), encoding="utf-8")
    print(f"Made and tried: {', '.join(path.name for path in [*files, notes])}, in {DIST}")
    return 0


def notes_of(version: str) -> str:
    """Return the version's part of the changelog, with links that lead into the repository's docs left as they are."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## [^\n]*\b{re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit(f"CHANGELOG.md has no part for {version}. Write one: ## {version}")
    return f"# gpustreamlab {version}\n\n{found[1].strip()}\n"


def try_file(path: Path) -> None:
    """Install a file into an empty environment and run something; of another processor's wheel look only whether it unpacks."""
    with tempfile.TemporaryDirectory() as folder:
        if path.suffix == ".whl" and not path.stem.endswith(("-any", f"_{os.uname().machine}")):
            platform = path.stem.rpartition("-")[2]
            only = ("--no-deps", "--only-binary", ":all:", "--platform", platform, "--target", folder)
            run(sys.executable, "-m", "pip", "install", "--quiet", *only, path)
            return
        python = Path(folder, "empty", "bin", "python")
        run(sys.executable, "-m", "venv", python.parents[1])
        has_extras = path.stem.endswith(f"_{os.uname().machine}")
        run(python, "-m", "pip", "install", "--quiet", f"{path}[notebook]" if has_extras else path)
        run(python, "-c", SMOKE, cwd=folder)
        run(python.with_name("gpustreamlab"), "--version", cwd=folder)
        if has_extras:
            run(python, "-m", "pip", "install", "--quiet", "--dry-run", f"{path}[cuda13,cupti]")


def run(*command: str | Path, cwd: str | Path = ROOT, **more: str) -> None:
    """Run a command that has to succeed. Nothing of this clone is on its path."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"} | more
    print("+", *(str(one) if "\n" not in str(one) else "..." for one in command), flush=True)
    subprocess.run([str(one) for one in command], cwd=cwd, env=environment, check=True)


if __name__ == "__main__":
    sys.exit(main())
