"""What a notebook shows, within a page like JupyterLab's."""

from __future__ import annotations

import pytest

from gpustreamlab.draw import inline_html, picture_html
from tests.helpers.traces import partition_trace, pipeline_trace

pytestmark = pytest.mark.browser


@pytest.fixture
def show(tmp_path, chromium):
    contexts = []

    def show_it(trace, *, about='data-jp-theme-light="true"', codes=(True, False), javascript=True, drawn=True):
        path = tmp_path / "notebook.html"
        forms = "".join(inline_html(trace, with_code=with_code) for with_code in codes)
        body = f"<body {about}>{forms}</body>"
        path.write_text(f"<!DOCTYPE html><meta charset='utf-8'>{body}", encoding="utf-8")
        context = chromium.new_context(viewport={"width": 900, "height": 900}, java_script_enabled=javascript)
        contexts.append(context)
        page = context.new_page()
        page.on("dialog", lambda dialog: pytest.fail(f"a name ran: {dialog.message}"))
        page.goto(path.as_uri())
        if javascript and drawn:
            for frame in page.frames[1:]:
                frame.wait_for_selector("html[data-drawn=yes]", state="attached")
        return page

    yield show_it
    for context in contexts:
        context.close()


IS_AS_HIGH = """number => {
  const frame = document.querySelectorAll("iframe")[number], heightOf = element => element.getBoundingClientRect().height
  return Math.abs(heightOf(frame) - heightOf(frame.contentDocument.documentElement)) < 2
}"""


def test_frame_takes_the_place_of_the_picture_at_the_height_of_its_content(show):
    page = show(pipeline_trace())
    for number in range(2):
        assert not page.locator("img.gsl-picture").nth(number).is_visible()
        page.wait_for_function(IS_AS_HIGH, arg=number)
        assert page.locator("iframe").nth(number).bounding_box()["height"] > 200


def test_picture_stays_where_scripts_do_not_run(show):
    page = show(pipeline_trace(), javascript=False)
    assert page.locator("img.gsl-picture").first.bounding_box()["height"] > 200
    assert page.locator("iframe").first.bounding_box()["height"] == 0


def test_frame_follows_the_theme_of_the_notebook(show):
    page = show(pipeline_trace(), about='data-jp-theme-light="false"')
    html = page.locator("iframe").first.content_frame.locator("html")
    assert html.get_attribute("data-theme") == "dark"
    page.evaluate("document.body.dataset.jpThemeLight = 'true'")
    page.frames[1].wait_for_function("document.documentElement.dataset.theme === 'light'")


def test_partitions_are_in_the_frame_and_in_the_picture(show):
    page = show(partition_trace())
    content = page.locator("iframe").first.content_frame
    assert "prefill · 96 SMs" in content.locator(".gsl-legend").last.inner_text()
    assert content.locator("html").evaluate("e => e.scrollWidth <= e.clientWidth")
    still = show(partition_trace(), javascript=False)
    assert "Partition prefill: 96 SMs (asked for 90)" in still.locator("img.gsl-picture").first.get_attribute("alt")


def test_frame_draws_that_stands_before_the_one_with_the_code(show):
    page = show(pipeline_trace(), codes=(False, True, False))
    assert not page.locator("img.gsl-picture").first.is_visible()
    assert page.locator("small").count() == 0


def test_code_stays_in_the_page_where_its_frame_is_gone(show):
    page = show(pipeline_trace())
    page.evaluate("""() => {
      const [first, second] = document.querySelectorAll(".gpustreamlab-timeline")
      first.remove()
      document.body.append(second.cloneNode(true))
    }""")
    page.frames[-1].wait_for_selector("html[data-drawn=yes]", state="attached")
    assert page.locator("iframe").last.bounding_box()["height"] > 200


def test_picture_stays_and_says_why_where_no_frame_has_the_code(show):
    page = show(pipeline_trace(), codes=(False,), drawn=False)
    page.wait_for_selector("small")
    assert "reload the page and run this cell again" in page.locator("small").inner_text()
    assert page.locator("img.gsl-picture").bounding_box()["height"] > 200
    assert page.locator("iframe").bounding_box()["height"] == 0


GROUNDS = [
    ("color(srgb 1 1 1)", "light"), ("oklch(0.2 0.02 250)", "dark"), ("rgb(20 24 28 / 95%)", "dark"), ("lab(95 0 0)", "light"),
    ("color-mix(in oklab, black 90%, white)", "dark"),
]  # fmt: skip


@pytest.mark.parametrize(("ground", "theme"), GROUNDS)
def test_frame_follows_a_ground_in_any_notation(ground, theme, show):
    page = show(pipeline_trace(), about=f'style="background: {ground}"', codes=(True,))
    assert page.frames[1].locator("html").get_attribute("data-theme") == theme
    assert page.frames[1].evaluate("gslViewer.theme.isDark") == (theme == "dark")


def test_frame_follows_the_ink_of_a_page_without_a_ground(show):
    page = show(pipeline_trace(), about='style="color: oklch(0.9 0 0)"', codes=(True,))
    assert page.frames[1].locator("html").get_attribute("data-theme") == "dark"


def test_picture_has_inks_in_any_notation(show):
    page = show(pipeline_trace(), codes=(True,))
    ink = page.frames[1].evaluate("""() => {
      document.querySelector(".gsl-viewer").style.setProperty("--gsl-ink", "color(srgb 1 0.2 0)")
      gslViewer.useTheme()
      return gslViewer.theme.ink
    }""")
    assert ink == "#ff3300"


@pytest.fixture
def show_still(tmp_path, chromium):
    """Show a picture of a plan in a page with these attributes."""
    path = tmp_path / "still.html"

    def show_it(about):
        path.write_text(f"<!DOCTYPE html><body {about}>{picture_html(pipeline_trace())}</body>", encoding="utf-8")
        page = chromium.new_page(
            viewport={"width": 900, "height": 900}, color_scheme="null"
        )  # a scheme that is emulated holds in frames as well
        page.goto(path.as_uri())
        return page

    return show_it


@pytest.mark.parametrize(
    ("about", "ink"),
    [
        ('data-jp-theme-light="true"', "rgb(27, 31, 36)"),
        ('data-jp-theme-light="true" style="color-scheme: dark"', "rgb(27, 31, 36)"),
        ('data-jp-theme-light="false"', "rgb(230, 233, 236)"),
        ('style="color-scheme: dark"', "rgb(230, 233, 236)"),  # as marimo
        ('class="vscode-dark"', "rgb(230, 233, 236)"),
    ],
)
def test_still_follows_the_theme_without_a_script(about, ink, show_still):
    page = show_still(about)
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
