"""The site of the documentation, as `make docs` makes it: it builds without a warning, and its pages can be played with."""

from __future__ import annotations

import functools
import http.server
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MOST_BYTES = 400_000


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the folder of the site and its address: frames of files may not look at each other."""
    folder = tmp_path_factory.mktemp("site")
    shutil.rmtree(DOCS / "reference" / "api", ignore_errors=True)  # what left the package must not stay here
    told = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-j", "2", "-b", "html", str(DOCS), str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_the_site_builds_and_its_pages_can_be_played_with(site, chromium):
    # One test, as the workers of a run would each build the site for their own.
    folder, address = site
    the_front_page_has_a_run_on_a_gpu_that_can_be_played_with(chromium, address)
    the_gallery_draws_all_that_was_recorded_and_says_what_is_simulated(chromium, address)
    recorded = {path.stem for path in (DOCS / "gallery").glob("*.parquet")}
    pages = {path.stem: path.stat().st_size for path in (folder / "pages").glob("*.html")}
    assert pages.keys() == recorded
    assert max(pages.values()) < MOST_BYTES
    listed = re.findall(r"\]\(([^)]+)\)", (folder / "llms.txt").read_text(encoding="utf-8"))
    assert len(listed) > 30
    assert [one for one in listed if not (folder / one).exists()] == []


def the_front_page_has_a_run_on_a_gpu_that_can_be_played_with(chromium, address):
    page = chromium.new_page(viewport={"width": 390, "height": 800}, color_scheme="light")
    said = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(address)
    frame = page.frame_locator("iframe.gsl-live")
    frame.locator("html[data-drawn=yes]").wait_for()
    assert "MEASURED" in frame.locator("header.gsl-head").inner_text()
    drawer = frame.locator(".gsl-drawer")
    was_open = drawer.is_visible()
    frame.get_by_role("button", name="Findings").first.click()
    drawer.wait_for(state="hidden" if was_open else "visible")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    # What draws in the frame follows the theme that the site's reader chooses.
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    frame.locator("html[data-theme=dark]").wait_for()
    doors = page.locator(".sd-card a.sd-stretched-link").evaluate_all("links => links.map(link => link.href)")
    assert len(doors) == 4
    for door in doors:
        assert page.goto(door).ok
    assert not said, said
    page.close()


def the_gallery_draws_all_that_was_recorded_and_says_what_is_simulated(chromium, address):
    page = chromium.new_page()
    page.goto(f"{address}gallery.html")
    frames = page.locator("iframe.gsl-live")
    for place in range(frames.count()):
        frames.nth(place).scroll_into_view_if_needed()
        head = frames.nth(place).content_frame.locator("html[data-drawn=yes] header.gsl-head")
        head.wait_for()
        said = page.locator("section:has(> iframe.gsl-live) > p:has(a)").nth(place).inner_text()
        assert ("SIMULATED" in head.inner_text()) == said.startswith("SIMULATED")
    page.close()
