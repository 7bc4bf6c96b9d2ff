"""What a notebook shows, within a page like JupyterLab's."""

from __future__ import annotations

import pytest

from gpustreamlab import Timeline
from tests.helpers.traces import partition_trace, pipeline_trace

pytestmark = pytest.mark.browser


@pytest.fixture
def show(tmp_path, chromium):
    contexts = []

    def show_it(trace, *, light="true", javascript=True):
        path = tmp_path / "notebook.html"
        form = Timeline(trace)._repr_mimebundle_()["text/html"]
        body = f'<body data-jp-theme-light="{light}">{form}{form}</body>'
        path.write_text(f"<!DOCTYPE html><meta charset='utf-8'>{body}", encoding="utf-8")
        context = chromium.new_context(viewport={"width": 900, "height": 900}, java_script_enabled=javascript)
        contexts.append(context)
        page = context.new_page()
        page.on("dialog", lambda dialog: pytest.fail(f"a name ran: {dialog.message}"))
        page.goto(path.as_uri())
        if javascript:
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
    page = show(pipeline_trace(), light="false")
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
