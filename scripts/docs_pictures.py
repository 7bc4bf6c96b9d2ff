"""Draw the pictures of the documentation anew: run the code of each page, and keep the SVG files that the page shows.

    python scripts/docs_pictures.py

The simulated device is deterministic, so what a picture says changes only if the code of its page, the model or the drawing
does. A test compares that. Those of the README are pages of recordings of the gallery, as Chromium shows them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import gpustreamlab

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
README = {"timeline.png": ("three_streams", 440), "partitions.png": ("repartition", 510)}
"""Pictures of the README: the recording of the gallery, and how many px of its page."""


def main() -> int:
    """Run every page that shows a picture which its own code saves."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for name, svg in draw_pictures(page).items():
            (IMAGES / name).write_text(svg, encoding="utf-8")
            print(f"{name}: {len(svg) / 1e3:.1f} kB, of {page.relative_to(ROOT)}")
    for name, (recording, height) in README.items():
        draw_page(recording, IMAGES / name, height)
        print(f"{name}: of {recording}")
    return 0


def draw_page(recording: str, target: Path, height: int) -> None:
    """Show a recording of the gallery in Chromium and keep what it shows."""
    with tempfile.TemporaryDirectory() as folder:
        page = (
            gpustreamlab.load_trace(ROOT / "docs" / "gallery" / f"{recording}.parquet")
            .timeline()
            .save(Path(folder, "run.html"))
        )
        browser = [os.environ.get("CHROMIUM", "/usr/bin/chromium"), "--headless", "--no-sandbox", "--disable-gpu"]
        window = [f"--window-size=1300,{height}", "--force-device-scale-factor=1.5", "--virtual-time-budget=8000"]
        subprocess.run(
            [*browser, *window, f"--screenshot={target}", Path(page).as_uri()], check=True, stderr=subprocess.DEVNULL
        )


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
