"""What stands above the first bar, at the sizes of a laptop and of a phone."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.helpers.kernel_traces import kernel_trace
from tests.helpers.traces import EVIL_NAME, make_trace, partition_trace, pipeline_trace

# Lines of marks have a place of their own above the lanes.
TRACES = {
    "ranges": lambda: replace(pipeline_trace(), markers=(), layouts=()),
    "kernels": lambda: replace(kernel_trace(), markers=(), layouts=()),
    "partitions": lambda: replace(partition_trace(), markers=(), layouts=()),
}


@pytest.mark.parametrize("name", TRACES)
def test_the_card_stands_above_150_px_and_one_line_says_what_ran(read, name):
    trace = TRACES[name]()
    reader = read(trace, width=1366, height=768)
    assert reader.js("v.figureElement.getBoundingClientRect().top + w.frame.top + w.tables.card_rows[0].top") < 150
    head = reader.page.locator("header.gsl-head")
    assert head.bounding_box()["height"] < 30
    sentence = head.locator(".gsl-finding").inner_text()
    assert trace.metadata.device_name in sentence
    assert re.search(r" · [\d.]+ [mµ]?s$", sentence)
    # Of ranges nobody knows whether they overlapped.
    went = reader.page.locator(".gsl-went").inner_text()
    assert ("Took " if name == "kernels" else "what ran at once in them is not known") in went
    if name == "partitions":
        assert "prefill (96 SMs)" in sentence


@pytest.mark.parametrize(("width", "most_px"), [(700, 66), (390, 86)])
def test_the_head_stays_short_where_it_is_narrow(read, width, most_px):
    reader = read(pipeline_trace(dropped_spans=7), width=width)
    assert reader.page.locator("header.gsl-head").bounding_box()["height"] <= most_px
    assert reader.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_clocks_and_notes_stand_behind_a_button_and_what_is_lost_is_marked(read):
    reader = read(pipeline_trace(dropped_spans=7, pending_spans=2))
    page, about = reader.page, "How this was recorded, and what is missing"
    sheet = page.locator(".gsl-about")
    assert not sheet.is_visible()
    assert "clock" not in page.locator("header.gsl-head").inner_text()
    assert page.locator(".gsl-lost").inner_text() == "⚠ 7 dropped, 2 not ended"
    page.get_by_role("button", name=about, exact=True).click()
    assert sheet.get_attribute("aria-label") == about
    text = sheet.inner_text()
    assert "clock error ±500 ns" in text
    assert "7 spans dropped" in text
    assert "2 spans have not ended yet" in text
    page.keyboard.press("Escape")
    assert not sheet.is_visible()
    page.locator(".gsl-lost").click()
    assert sheet.is_visible()
    page.keyboard.press("Escape")
    plain = read(make_trace([("a", "x", 0, 1_000), ("b", EVIL_NAME, 10, 500)]))
    assert plain.page.locator(".gsl-lost").count() == 0


def test_errors_that_nobody_knows_are_not_said(read):
    for trace in (make_trace([("a", "x", 0, 1_000)]), kernel_trace(kernel_error_ns=0, clock_error_ns=0, range_error_ns=0)):
        assert "±0" not in read(trace).page.content()


@pytest.mark.parametrize("width", [1366, 390])
def test_each_piece_of_the_time_has_its_words_in_the_bar_or_a_letter_that_is_explained_below(read, width):
    reader = read(kernel_trace(), width=width)
    pieces = reader.js("w.why.went.pieces")
    key = reader.page.locator(".gsl-went small").inner_text().replace("\xa0", " ")
    letters = []
    for piece, share in zip(pieces, reader.page.locator(".gsl-share").all(), strict=True):
        letter = share.get_attribute("data-letter")
        letters += [letter] if letter else []
        shown = key[key.index(f"{letter} ") :] if letter else share.inner_text()
        assert piece["label"] in shown
        assert not share.evaluate("e => [...e.querySelectorAll('span, b')].some(e => e.scrollWidth > e.clientWidth)")
    assert letters == [chr(ord("a") + place) for place in range(len(letters))]
    assert letters or width == 1366
