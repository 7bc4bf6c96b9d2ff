"""What a notebook shows, within a page like JupyterLab's."""

from __future__ import annotations

import pytest

from gpustreamlab.draw import inline_html, picture_html
from tests.helpers.pages import wait_until_drawn
from tests.helpers.traces import partition_trace, pipeline_trace
from tests.helpers.windows import Heard

pytestmark = pytest.mark.browser


@pytest.fixture
def show(tmp_path, lend):
    shown = []

    def show_it(trace, *, about='data-jp-theme-light="true"', codes=(True, False), javascript=True, drawn=True):
        path = tmp_path / "notebook.html"
        forms = "".join(inline_html(trace, with_code=with_code) for with_code in codes)
        body = f"<body {about}>{forms}</body>"
        path.write_text(f"<!DOCTYPE html><meta charset='utf-8'>{body}", encoding="utf-8")
        shown.append(lend(Heard, width=900, height=900, java_script_enabled=javascript))
        page = shown[-1].page
        page.goto(path.as_uri())
        if javascript and drawn:
            for frame in page.frames[1:]:
                wait_until_drawn(frame)
        return page

    yield show_it
    assert [heard.dialogs for heard in shown] == [[] for _ in shown], "a name ran"


IS_AS_HIGH = """number => {
  const frame = document.querySelectorAll("iframe")[number], heightOf = element => element.getBoundingClientRect().height
  return Math.abs(heightOf(frame) - heightOf(frame.contentDocument.documentElement)) < 2
}"""


def test_picture_stays_where_scripts_do_not_run(show):
    page = show(partition_trace(), javascript=False)
    assert page.locator("img.gsl-picture").first.bounding_box()["height"] > 200
    assert "Partition prefill: 96 SMs (asked for 90)" in page.locator("img.gsl-picture").first.get_attribute("alt")
    assert page.locator("iframe").first.bounding_box()["height"] == 0


def test_frame_draws_that_stands_before_the_one_with_the_code(show):
    page = show(pipeline_trace(), codes=(False, True, False))
    assert not page.locator("img.gsl-picture").first.is_visible()
    assert page.locator("small").count() == 0


def test_picture_stays_and_says_why_where_no_frame_has_the_code(show):
    page = show(pipeline_trace(), codes=(False,), drawn=False)
    page.wait_for_selector("small")
    assert "reload the page and run this cell again" in page.locator("small").inner_text()
    assert page.locator("img.gsl-picture").bounding_box()["height"] > 200
    assert page.locator("iframe").bounding_box()["height"] == 0


GROUNDS = [
    ("background: color(srgb 1 1 1)", "light"),
    ("background: rgb(20 24 28 / 95%)", "dark"),
    ("background: lab(95 0 0)", "light"),
    ("background: color-mix(in oklab, black 90%, white)", "dark"),
    ("", "light"),
    ("color: oklch(0.9 0 0)", "dark"),
]
"""Styles of a page, by its ground or by its ink, in any notation; and what follows. Each differs from the one before."""
FOLLOWS = "theme => document.documentElement.dataset.theme === theme && gslViewer.theme.isDark === (theme === 'dark')"


def test_frames_take_the_place_of_pictures_and_follow_the_look_of_their_page(show):
    page = show(partition_trace(), about='style="background: oklch(0.2 0.02 250)"')
    for number in range(2):
        assert not page.locator("img.gsl-picture").nth(number).is_visible()
        page.wait_for_function(IS_AS_HIGH, arg=number)
        assert page.locator("iframe").nth(number).bounding_box()["height"] > 200
    content, frame = page.locator("iframe").first.content_frame, page.frames[1]
    assert "prefill · 96 SMs" in content.locator(".gsl-legend").last.inner_text()
    assert content.locator("html").evaluate("e => e.scrollWidth <= e.clientWidth")
    # The look when it is loaded, and then any other
    assert content.locator("html").get_attribute("data-theme") == "dark"
    for style, theme in GROUNDS:
        page.evaluate("style => document.body.setAttribute('style', style)", style)
        frame.wait_for_function(FOLLOWS, arg=theme)
    for is_light, theme in (("true", "light"), ("false", "dark")):
        page.evaluate("isLight => document.body.dataset.jpThemeLight = isLight", is_light)
        frame.wait_for_function(FOLLOWS, arg=theme)
    ink = frame.evaluate("""() => {
      document.querySelector(".gsl-viewer").style.setProperty("--gsl-ink", "color(srgb 1 0.2 0)")
      gslViewer.useTheme()
      return gslViewer.theme.ink
    }""")
    assert ink == "#ff3300"
    # The code stays in the page where its frame is gone
    page.evaluate("""() => {
      const [first, second] = document.querySelectorAll(".gpustreamlab-timeline")
      first.remove()
      document.body.append(second.cloneNode(true))
    }""")
    wait_until_drawn(page.frames[-1])
    assert page.locator("iframe").last.bounding_box()["height"] > 200


@pytest.fixture
def show_still(tmp_path, lend):
    """Show a picture of a plan in a page with these attributes."""
    path = tmp_path / "still.html"
    # A scheme that is emulated holds in frames as well.
    page = lend(Heard, width=900, height=900, color_scheme="null").page

    def show_it(about):
        path.write_text(f"<!DOCTYPE html><body {about}>{picture_html(pipeline_trace())}</body>", encoding="utf-8")
        page.goto(path.as_uri())
        return page

    return show_it


STILLS = [
    ('data-jp-theme-light="true"', "rgb(27, 31, 36)"),
    ('data-jp-theme-light="true" style="color-scheme: dark"', "rgb(27, 31, 36)"),
    ('data-jp-theme-light="false"', "rgb(230, 233, 236)"),
    ('style="color-scheme: dark"', "rgb(230, 233, 236)"),  # as marimo
    ('class="vscode-dark"', "rgb(230, 233, 236)"),
]


def test_still_follows_the_theme_without_a_script(show_still):
    for about, ink in STILLS:
        page = show_still(about)
        check_still(page, ink)


def check_still(page, ink):
    svg = page.locator("iframe").content_frame.locator("svg").first
    assert svg.evaluate("e => getComputedStyle(e).fill") == ink
    assert not page.locator("img").is_visible()
    width, height = page.locator("iframe").evaluate("e => [e.clientWidth, e.clientHeight]")
    assert svg.evaluate("e => e.ownerDocument.documentElement.scrollHeight") <= height
    assert width > 600


def test_of_a_still_in_a_notebook_that_is_not_trusted_a_picture_is_left_and_no_text(show_still):
    page = show_still('data-jp-theme-light="true"')
    page.evaluate("document.querySelectorAll('iframe, style').forEach(e => e.remove())")  # as JupyterLab's sanitizer does
    assert page.locator("body").inner_text().strip() == ""
    assert page.locator("img").bounding_box()["height"] > 200
