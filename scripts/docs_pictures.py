"""Draw the pictures of the documentation anew: run the code of each page, and keep the SVG files that the page shows.

    python scripts/docs_pictures.py

The simulated device is deterministic, so what a picture says changes only if the code of its page, the model or the drawing
does. A test compares that. Those of the README are pages of a recording and of a notebook, as Chromium shows them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import gpustreamlab

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
README = {"timeline.png": ("three_streams", 440), "improve.png": ("12-improve", 765)}
"""Pictures of the README: the recording of the gallery, or the notebook that writes a page, and how many px of the page."""


def main() -> int:
    """Run every page that shows a picture which its own code saves."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for name, svg in draw_pictures(page).items():
            (IMAGES / name).write_text(svg, encoding="utf-8")
            print(f"{name}: {len(svg) / 1e3:.1f} kB, of {page.relative_to(ROOT)}")
    for name, (origin, height) in README.items():
        draw_page(origin, IMAGES / name, height)
        print(f"{name}: of {origin}")
    return 0


def draw_page(origin: str, target: Path, height: int) -> None:
    """Show the page of a recording of the gallery, or of a notebook, in Chromium and keep what it shows."""
    with tempfile.TemporaryDirectory() as folder:
        recording = ROOT / "docs" / "gallery" / f"{origin}.parquet"
        if recording.exists():
            page = gpustreamlab.load_trace(recording).timeline().save(Path(folder, "run.html"))
        else:
            page = page_of_notebook(origin, Path(folder))
        browser = [
            os.environ.get("CHROMIUM", "/usr/bin/chromium"),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
        ]
        window = [f"--window-size=1300,{height}", "--force-device-scale-factor=1.5", "--virtual-time-budget=8000"]
        subprocess.run(
            [*browser, *window, f"--screenshot={target}", Path(page).as_uri()], check=True, stderr=subprocess.DEVNULL
        )


def page_of_notebook(name: str, folder: Path) -> Path:
    """Run a notebook's cells in a folder up to the one that writes a page; return the page."""
    from IPython.core.interactiveshell import InteractiveShell

    cells = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    shell = InteractiveShell.instance()
    with contextlib.chdir(folder):
        for cell in (one for one in cells if one["cell_type"] == "code"):
            shell.run_cell("".join(cell["source"])).raise_error()
            for page in folder.glob("*.html"):
                return page
    raise FileNotFoundError(f"notebooks/{name}.ipynb writes no page")


def pictures_of(page: Path) -> set[str]:
    """Return the names of the SVG files that a page both saves and shows."""
    text = page.read_text(encoding="utf-8")
    shown = set(re.findall(r"!\[[^\]]*\]\([./]*images/([\w-]+\.svg)\)", text))
    return shown & set(re.findall(r'\.save\("([\w-]+\.svg)"\)', text))


def draw_pictures(page: Path) -> dict[str, str]:
    """Run the python blocks of a page in an empty folder; return the pictures by name. A page without any is not run."""
    names = pictures_of(page)
    if not names:
        return {}
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            exec(compile("\n".join(blocks), str(page), "exec"), {"__name__": page.stem})
            return {name: Path(name).read_text(encoding="utf-8") for name in sorted(names)}
        finally:
            os.chdir(home)


if __name__ == "__main__":
    sys.exit(main())
