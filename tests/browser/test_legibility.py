"""What is on the screen can be read and pressed: in every state of the timeline and the partitioner, theme and width."""

from __future__ import annotations

import pytest

from gpustreamlab import Session, workloads
from tests.browser.test_partitioner import SHOW_ALONE
from tests.helpers.legibility import findings, listen_to
from tests.helpers.pages import clear, page_of
from tests.helpers.reader import Reader
from tests.helpers.traces import empty_trace, many_partitions_trace, one_lane_trace, partition_trace

pytestmark = pytest.mark.browser

SIZES = {1366: 768, 700: 900, 390: 844}
LOOKS = {
    "light": {"color_scheme": "light", "forced_colors": "none"},
    "dark": {"color_scheme": "dark", "forced_colors": "none"},
    "high contrast": {"color_scheme": "dark", "forced_colors": "active"},
}


def kernels():
    with Session("sim") as lab:
        copy, compute = lab.stream("copy"), lab.stream("compute")
        with lab.capture("kernels", host=True):
            for number in range(4):
                with lab.on("copy", f"upload {number}"):
                    workloads.spin_card(lab, 300_000)
                compute.wait(copy.record())
                with lab.on("compute", "filter"):
                    workloads.spin_card(lab, 500_000)
            lab.synchronize()
        return lab.trace


def ranges():
    with Session("sim", capture="ranges") as lab:
        for name in ("s0", "s1", "s2", "s3"):
            lab.stream(name)
            with lab.on(name, f"step on {name}"):
                workloads.spin_card(lab, 1_000_000)
        lab.synchronize()
        return lab.trace


def failed():
    """Return the trace of a session whose cell raised within a range."""
    with Session("sim") as lab:
        lab.stream("train")
        for number in range(3):
            with lab.on("train", f"step {number}"):
                workloads.spin(lab, 200_000)
        with pytest.raises(ZeroDivisionError), lab.on("train", "step 3"):
            workloads.spin(lab, 200_000)
            raise ZeroDivisionError
        lab.synchronize()
        return lab.trace


STATES = {
    "empty": empty_trace,
    "one stream": one_lane_trace,
    "100 streams": many_partitions_trace,
    "partitions": partition_trace,
    "kernels": kernels,
    "ranges": ranges,
    "failing cell": failed,
}


def pin(reader):
    reader.page.mouse.click(*reader.place(*reader.find("gemm")))
    reader.page.mouse.move(2, 2)


STEPS = {
    "search": lambda reader: reader.search("gemm"),
    "search without a hit": lambda reader: (reader.search("nothing of this name"), reader.press("End")),
    "help": lambda reader: reader.press("?"),
    "View": lambda reader: reader.press("v"),
    "pinned": pin,
    "a reason": lambda reader: reader.press("y"),
    "names": lambda reader: reader.page.locator(".gsl-more").click(),
    "sheet about the recording": lambda reader: reader.page.locator(".gsl-about-button").click(),
}
"""What is opened on the page of partitions."""


@pytest.fixture(scope="module")
def heard(chromium, tmp_path_factory):
    """Return a reader of a page whose canvases are listened to, and a file for what it draws first."""
    context = chromium.new_context()
    page = context.new_page()
    listen_to(page)
    yield Reader(page), tmp_path_factory.mktemp("legible") / "page.html"
    context.close()


def measured(reader, state, widths=tuple(SIZES)):
    """Return the faults at all widths in the light look, and at the first in the others, each where it was first seen."""
    found = {}
    for look, media in LOOKS.items():
        reader.page.emulate_media(**media)
        for width in widths if look == "light" else widths[:1]:
            reader.page.set_viewport_size({"width": width, "height": SIZES[width]})
            reader.settle()
            for fault in findings(reader.page, tips=look == "light"):
                found.setdefault(fault[:2], (f"{state}, {look}, {width} px", fault.more))
    reader.page.emulate_media(**LOOKS["light"])
    reader.page.set_viewport_size({"width": 1366, "height": 768})
    reader.settle()
    return [f"{fault}: {text} ({where}; {more})" for (fault, text), (where, more) in found.items()]


def drawn(heard, trace):
    """Return the reader of a trace's page, with nothing of the page that was there before."""
    reader, path = heard
    clear(reader.page)
    return reader.draw(page_of(trace), path)


@pytest.mark.parametrize("state", STATES)
def test_a_timeline_can_be_read_and_pressed(heard, state):
    # What has partitions shows all that 700 px moves.
    widths = tuple(SIZES) if state in {"partitions", "100 streams"} else (1366, 390)
    assert measured(drawn(heard, STATES[state]()), state, widths) == []


@pytest.mark.parametrize("step", STEPS)
def test_what_opens_on_a_timeline_can_be_read_and_pressed(heard, step):
    reader = drawn(heard, partition_trace())
    STEPS[step](reader)
    # At 390 px the name of a bar and "3 of 4 streams" overlap while reasons are shown, which is known.
    assert measured(reader, step, (1366,) if step == "a reason" else (1366, 390)) == []


@pytest.mark.parametrize("typed", ["", "abc"])
def test_the_partitioner_can_be_read_and_pressed(heard, typed):
    reader, _ = heard
    with Session("sim") as session:
        session.partition(prefill=40, decode=24)
        session.stream("decode", partition="decode")
        session.partitions.verify()
        widget = session.partitions.widget()
        if typed:
            action = {"do": "set_request", "key": 0, "text": typed}
            widget._handle_custom_msg({"action": action, "seq": 1, "client": "page"}, [])
        reader.page.goto("about:blank")
        reader.page.set_content(f"<!doctype html><style>{widget._css}</style>")
        reader.page.evaluate(SHOW_ALONE, [widget._esm, dict(widget.view)])
    assert measured(reader, "partitioner") == []


SOUND = """<!doctype html><body style="background: white; color: #222; font: 14px sans-serif">
<style>p { white-space: nowrap } .cut { width: 60px; overflow: hidden; text-overflow: ellipsis }
.at { position: absolute }</style>
<p>Plain words</p><p class="cut" title="A long line of words">A long line of words</p>
<button style="min-width: 30px; min-height: 30px" aria-label="Close">x</button><canvas width="300" height="120"></canvas>
<script>
const pen = document.querySelector("canvas").getContext("2d")
function flag(colour) {
  pen.fillStyle = colour
  pen.beginPath()
  for (const [x, y] of [[40, 90], [50, 90], [45, 100]]) pen.lineTo(x, y)
  pen.fill()
}
function within(x, y, width, height) { pen.beginPath(); pen.rect(x, y, width, height); pen.clip() }
function paint(text, x, y, colour = "#222") { pen.font = "14px sans-serif"; pen.fillStyle = colour; pen.fillText(text, x, y) }
paint("streams busy", 20, 30)
flag("#333")
</script>"""
PLANTED = {
    "overlap": [
        '<p class="at" style="left: 200px; top: 8px">One upon</p><p class="at" style="left: 210px; top: 10px">another</p>',
        "<script>paint('one upon another', 22, 34)</script>",
    ],
    "contrast": [
        '<p style="color: #aaa">Pale words</p>',
        '<p style="opacity: .4">Faint words</p>',
        '<p style="background: linear-gradient(#333, #333)">On a picture</p>',
        "<script>pen.fillStyle = '#444'; pen.fillRect(100, 50, 150, 30); paint('dark on dark', 110, 70)</script>",
    ],
    "contrast of a mark": [
        "<script>pen.translate(60, 0); flag('#ddd')</script>",
        "<script>pen.strokeStyle = '#ddd'; pen.beginPath(); pen.moveTo(40, 90); pen.lineTo(90, 110); pen.stroke()</script>",
        '<input value="a field" aria-label="Field" style="height: 30px; border: 1px solid #ddd">',
    ],
    "clipped": [
        '<p class="cut">Words that are cut off</p>',
        '<p style="margin-left: -30px">Words beyond the window</p>',
        "<script>paint('streams busy', -12, 60)</script>",
        "<script>within(0, 40, 50, 40); paint('streams busy', 10, 60)</script>",
        "<script>paint('streams b…', 20, 60)</script>",
    ],
    "no name": ['<button style="width: 30px; height: 30px"></button>', '<div role="dialog">Words</div>'],
    "no role": ['<div tabindex="0">Words</div>'],
    "small": ['<button style="width: 20px; height: 30px; padding: 0; border: 0">x</button>'],
}


@pytest.fixture(scope="module")
def planted(chromium):
    """Return a function that finds the faults of a small page."""
    page = chromium.new_context(viewport={"width": 600, "height": 400}).new_page()
    listen_to(page)

    def find_them(html):
        page.goto("about:blank")
        page.set_content(html)
        return {found.fault for found in findings(page)}

    yield find_them
    page.context.close()


def test_a_sound_page_has_no_fault_and_each_that_is_planted_is_found(planted):
    assert planted(SOUND) == set()
    for fault, plants in PLANTED.items():
        for plant in plants:
            assert planted(SOUND + plant) == {fault}, plant
