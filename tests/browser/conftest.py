"""Two Chromiums and one JupyterLab for all tests of a worker. A missing browser fails the tests; it never skips them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from tests.helpers.engine import engine_page
from tests.helpers.jupyter import LabWindows, running_jupyter
from tests.helpers.reader import Reader, open_readers
from tests.helpers.windows import Windows

SHELL = "/usr/lib/chromium/chromium-headless-shell"
"""Where Debian has Chromium without tabs and toolbars: a window takes 0.13 s of a core there, and 1.8 s with them."""
QUIET = [
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NO_SCREEN = ["--disable-frame-rate-limit", "--disable-gpu-vsync"]
"""For tests that wait for frames of a drawn page. While a page loads, a tab's spinner would take a core for itself."""


def pytest_collection_modifyitems(items):
    """Put the tests of JupyterLab first, so that one worker has them, and the others need no server."""
    items.sort(key=lambda item: "server" not in item.fixturenames)


@pytest.fixture(scope="session")
def launch():
    """Return a function that starts a Chromium."""
    with sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM") or (SHELL if Path(SHELL).exists() else "/usr/bin/chromium")

        def launch_it(*more):
            return playwright.chromium.launch(
                executable_path=path, args=[*QUIET, *more], ignore_default_args=["--hide-scrollbars"]
            )

        yield launch_it


@pytest.fixture(scope="session")
def chromium(launch):
    browser = launch()
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def windows(launch):
    """Return the windows that the tests lend each other, for pages that are drawn warm."""
    browser = launch(*NO_SCREEN)
    yield Windows(browser)
    browser.close()


@pytest.fixture(scope="session")
def loading_windows(chromium):
    """Return the windows that the tests lend each other, for pages that are loaded."""
    return Windows(chromium)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.failed:
        for name in {"windows", "loading_windows", "lab_windows"} & set(item.funcargs):
            item.funcargs[name].doubt()
    return report


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """Return a running JupyterLab, below a prefix, as behind JupyterHub; each test writes a notebook of its own."""
    with running_jupyter(tmp_path_factory.mktemp("jupyter"), base_url="/user/ada/") as jupyter:
        yield jupyter


@pytest.fixture(scope="session")
def lab_windows(chromium, server):
    """Return the windows of the running JupyterLab that the tests lend each other."""
    return LabWindows(chromium)


@pytest.fixture(scope="session")
def engine(chromium):
    """Return a page with the viewer's engine alone."""
    with engine_page(chromium) as page:
        yield page


@pytest.fixture
def read(windows, tmp_path):
    """Return a function that opens a trace's page and returns its reader; console errors fail the test at its end."""
    with open_readers(windows, tmp_path) as open_one:
        yield open_one


@pytest.fixture
def lend(loading_windows):
    """Return a function that lends a window for pages that are loaded."""
    with loading_windows.lending() as lend:
        yield lend


@pytest.fixture
def open_page(windows, lend):
    """Return a function that opens a saved page in a browser window of its own; `warm` where it is no matter how it loads."""
    with windows.lending() as lend_warm:

        def open_it(path, *, width=1200, height=800, scheme="light", javascript=True, warm=False):
            if warm:
                return lend_warm(Reader, width=width, height=height, color_scheme=scheme).draw(
                    path.read_text(encoding="utf-8"), path
                )
            opened = lend(Reader, width=width, height=height, color_scheme=scheme, java_script_enabled=javascript)
            if not javascript:
                opened.page.goto(path.as_uri())
                return opened
            return opened.load(path)

        yield open_it
