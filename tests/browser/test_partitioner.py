"""The partitioner in JupyterLab, with a simulated session in its kernel."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager

import pytest

from gpustreamlab import Session
from tests.helpers.jupyter import NotebookPage
from tests.helpers.windows import Heard

pytestmark = pytest.mark.browser

START = """
import gpustreamlab as gsl
lab = gsl.Session("sim")
lab.partition(prefill=96, decode=36)
lab.stream("decode", partition="decode")
widget = lab.partitions.widget()
widget
"""
AGAIN = "widget"
RESET = "lab.partition(prefill=96, decode=36); lab.stream('decode', partition='decode')"


class Lab(NotebookPage):
    """A notebook with two views of one widget."""

    def open(self, url):
        super().open(url)
        self.view(1).locator("i.gsl-used").first.wait_for()

    def view(self, number=0):
        return self.page.locator(".gsl-part").nth(number)

    def handle(self, number=0, view=0):
        return self.view(view).locator(".gsl-handle").nth(number)

    def sms(self, number=0, view=0):
        return int(self.handle(number, view).get_attribute("aria-valuenow"))

    @contextmanager
    def busy(self, folder):
        """Let the kernel run a cell meanwhile, however long that is; a file in the folder ends it."""
        end = folder / "end"
        self.start_in_kernel(f"import pathlib, time\nwhile not pathlib.Path({str(end)!r}).exists(): time.sleep(0.02)")
        try:
            yield
        finally:
            end.touch()

    def wait_for_text(self, selector, text, view=0):
        self.wait(
            "([view, selector, text]) => "
            "document.querySelectorAll('.gsl-part')[view].querySelector(selector).textContent.includes(text)",
            [view, selector, text],
        )

    def wait_for_sms(self, sms, number=0, view=0):
        self.wait(
            "([view, number, sms]) => document.querySelectorAll('.gsl-part')[view].querySelectorAll('.gsl-handle')[number]"
            "?.ariaValueNow === String(sms)",
            [view, number, sms],
        )


LOOKS = """all => Object.fromEntries(all.map(row => {
  const letter = row.querySelector(".gsl-letter")
  return [row.querySelector(".gsl-name").value, [letter.textContent, letter.style.getPropertyValue("--gsl-fill")]]
}))"""


@pytest.fixture(scope="module")
def opened(server, lab_windows):
    with lab_windows.lending() as lend:
        lab = Lab(lend(height=1100))
        lab.open(server.write_notebook("partitions", [START, AGAIN]))
        yield lab


@pytest.fixture
def lab(opened):
    """Return the notebook with the layout in use and the draft as they were at first."""
    opened.errors.clear()
    opened.kernel(f"lab.partition(None); {RESET}")
    if opened.view().locator(".gsl-revert").is_enabled():
        opened.view().locator(".gsl-revert").click()
    opened.wait_for_sms(96)
    opened.wait_for_text(".gsl-detail", "In use as shown.")
    yield opened
    assert opened.errors == []


def cells(lab, view=0):
    return lab.view(view).locator(".gsl-cells").evaluate("e => [...e.children].map(c => c.textContent).join('')")


def test_all_sms_are_drawn_with_letters_and_the_device_is_said_to_be_simulated(lab):
    assert cells(lab) == "A" * 96 + "B" * 36
    assert lab.view().locator(".gsl-sim").is_visible()
    assert lab.view().locator(".gsl-python code").inner_text() == "lab.partition(prefill=96, decode=36, round='up')"


def test_dragging_a_boundary_snaps_and_both_views_follow(lab):
    lab.handle().locator(".gsl-grip").hover()  # once it stands still
    grip = lab.handle().locator(".gsl-grip").bounding_box()
    card = lab.view().locator(".gsl-cells").bounding_box()
    x, y = grip["x"] + grip["width"] / 2, grip["y"] + grip["height"] / 2
    lab.page.mouse.down()
    lab.page.mouse.move(x - 4.1 * card["width"] / 17, y + 3, steps=6)
    lab.wait_for_sms(64)
    lab.page.mouse.up()
    lab.wait_for_sms(64, view=1)
    lab.wait_for_text(".gsl-python", "prefill=64, decode=68")
    assert cells(lab, 1) == "A" * 64 + "B" * 68
    assert lab.kernel("print(lab.layout)").startswith("Layout: prefill 96 SMs")


def test_arrow_keys_move_a_boundary_from_stop_to_stop_also_in_command_mode(lab):
    lab.page.locator(".jp-InputPrompt").first.click()
    assert lab.page.locator(".jp-Notebook.jp-mod-commandMode").count() == 1
    lab.handle().focus()
    for key, sms in (("ArrowLeft", 92), ("ArrowRight", 96), ("PageDown", 80), ("End", 124), ("Home", 8)):
        lab.page.keyboard.press(key)
        lab.wait_for_sms(sms, view=1)
    assert lab.handle().get_attribute("aria-valuetext") == "prefill 8 SMs, decode 124 SMs"
    assert lab.page.evaluate("document.activeElement.getAttribute('role')") == "slider"


def test_typed_numbers_show_what_is_granted_or_the_nearest_plan(lab):
    field = lab.view().locator("input.gsl-request").first
    field.fill("7")
    lab.wait_for_text(".gsl-granted", "8 1 more than asked")
    field.fill("133")
    lab.wait_for_text(".gsl-fault", "asks for 133 SMs")
    assert field.get_attribute("aria-invalid") == "true"
    assert lab.view().locator(".gsl-apply").is_disabled()
    assert field.input_value() == "133"
    lab.view(1).locator(".gsl-use").click()
    lab.wait_for_sms(104)
    assert field.input_value() == "104"


def test_add_rename_apply_and_remove_change_the_layout_in_the_kernel(lab):
    view = lab.view()
    view.locator(".gsl-add").click()
    lab.wait_for_sms(48)
    view.locator("input.gsl-name").nth(1).fill("chat")
    view.locator("input.gsl-name").nth(1).press("Enter")
    lab.wait_for_text(".gsl-python", "renamed={'decode': 'chat'}")
    lab.wait_for_text(".gsl-apply", "Apply")
    view.locator(".gsl-apply").click()
    lab.wait_for_text(".gsl-detail", "In use as shown.", view=1)
    assert lab.kernel("print(lab.layout.names, lab.streams['decode'].partition)") == "('prefill', 'chat', 'part1') chat"
    view.locator(".gsl-remove").nth(2).click()
    lab.wait_for_text(".gsl-bands", "in no partition")
    view.locator(".gsl-apply").click()
    lab.wait_for_text(".gsl-detail", "In use as shown.", view=1)
    assert lab.kernel("print(lab.layout.names)") == "('prefill', 'chat')"
    lab.kernel("lab.partition(renamed={'chat': 'decode'}, prefill=96, decode=36)")


def test_apply_says_which_stream_it_drains_and_off_goes_back_to_the_whole_card(lab):
    lab.view().locator(".gsl-off").click()
    lab.wait_for_text(".gsl-apply", "Apply: drains and moves stream decode")
    lab.view().locator(".gsl-apply").click()
    lab.wait_for_text(".gsl-status", "Applied.")  # the card shows the draft, and so no partitions, before that
    assert lab.kernel("print(lab.layout)") == "None"


def test_a_layout_from_a_cell_is_shown_and_so_is_what_was_seen(lab):
    lab.view().locator(".gsl-verify").click()
    lab.wait_for_text(".gsl-status", "verified", view=1)
    assert "36 of 36 SMs seen" in lab.view(1).locator("td.gsl-c-proof").nth(1).inner_text()
    lab.kernel("lab.partition(prefill=48, decode=36)")
    lab.wait_for_sms(48, view=1)
    assert cells(lab) == "A" * 48 + "B" * 36


def test_while_a_cell_runs_apply_waits_says_so_and_goes_on_by_itself(lab, tmp_path):
    lab.handle().focus()
    lab.page.keyboard.press("ArrowLeft")
    lab.wait_for_sms(92, view=1)
    with lab.busy(tmp_path):
        lab.view().locator(".gsl-apply").click()
        lab.wait_for_text(".gsl-status", "The kernel is busy: waits for the running cell")
        lab.wait_for_text(".gsl-status", "The kernel is busy: waits for the running cell", view=1)
        lab.handle().focus()
        lab.page.keyboard.press("ArrowLeft")
        assert lab.sms() == 88  # at once, whatever the kernel does
    lab.wait_for_text(".gsl-python", "prefill=88, decode=44", view=1)
    lab.wait("() => !document.querySelector('.gsl-status').textContent.includes('busy')")
    lab.view().locator(".gsl-apply").click()
    lab.wait_for_text(".gsl-detail", "In use as shown.")
    assert lab.kernel("print(lab.layout)").startswith("Layout: prefill 88 SMs")


def test_copy_takes_the_python_line_where_the_clipboard_is_refused_and_a_name_is_text(lab):
    lab.page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined, configurable: true})")
    lab.view().locator(".gsl-copy").click()
    lab.wait_for_text(".gsl-copy", "C")
    assert lab.page.evaluate("String(getSelection())").strip() == "lab.partition(prefill=96, decode=36, round='up')"
    lab.view().locator("input.gsl-name").first.fill("<img src=x onerror=alert(1)>")
    lab.wait_for_text(".gsl-fault", "which the magics cannot take")
    assert lab.page.locator("img[src='x']").count() == 0


def test_a_size_that_is_no_number_leaves_the_card_as_it_was_and_is_explained_below_its_field(lab):
    before = lab.view().locator(".gsl-bands").inner_text(), cells(lab)
    field = lab.view().locator("input.gsl-request").first
    field.fill("abc")
    lab.wait_for_text(".gsl-fault", "asks for 'abc'")
    assert (lab.view().locator(".gsl-bands").inner_text(), cells(lab)) == before
    assert Counter(before[1]) == {"A": 96, "B": 36}
    assert lab.view().locator(".gsl-hint").inner_text() == "The card as it was before: what is asked for now gives no plan."
    fault, box = lab.view().locator(".gsl-fault td").nth(1).bounding_box(), field.bounding_box()
    assert 0 <= fault["y"] - box["y"] - box["height"] < 12
    field.fill("48")
    lab.wait_for_sms(48)


def test_a_partition_keeps_its_letter_and_colour_while_others_come_and_go(lab):
    rows = lab.view().locator(".gsl-rows tbody")
    before = rows.evaluate_all(LOOKS)
    assert before == {"prefill": ["A", "#56b4e9"], "decode": ["B", "#e69f00"]}
    lab.view().locator(".gsl-add").click()
    lab.wait_for_sms(48)
    grown = rows.evaluate_all(LOOKS)
    assert {name: grown[name] for name in before} == before
    assert grown["part1"] == ["C", "#009e73"]
    lab.view().locator(".gsl-remove").first.click()
    lab.wait("() => document.querySelectorAll('.gsl-part')[0].querySelectorAll('.gsl-rows tbody').length === 2")
    assert rows.evaluate_all(LOOKS) == {name: look for name, look in grown.items() if name != "prefill"}


def test_verified_sms_stand_as_in_the_map_and_a_boundary_can_still_be_dragged(lab):
    lab.kernel("lab.partition(prefill=40, decode=24)")
    lab.wait_for_sms(40)
    lab.view().locator(".gsl-verify").click()
    lab.wait_for_text(".gsl-status", "verified")
    lab.kernel("a, b = (lab.layout[name].sm_ids for name in ('prefill', 'decode'))")
    of_map = lab.kernel("print(''.join('A' if sm in a else 'B' if sm in b else '.' for sm in range(132)))")
    seen = lab.view().locator(".gsl-cells").evaluate("e => [...e.children].map(c => c.textContent || '.').join('')")
    assert seen == of_map
    assert sorted(seen) != list(seen)  # not simply one partition after the other
    lab.handle().focus()
    lab.page.keyboard.press("ArrowLeft")
    lab.wait_for_sms(32)
    assert cells(lab).rstrip() == "A" * 32 + "B" * 32


def test_theme_and_width_are_followed(lab):
    light = lab.view().evaluate("e => getComputedStyle(e).backgroundColor")
    lab.change_theme("JupyterLab Dark")
    lab.wait("light => getComputedStyle(document.querySelector('.gsl-part')).backgroundColor !== light", light)
    lab.change_theme("JupyterLab Light")
    lab.wait("light => getComputedStyle(document.querySelector('.gsl-part')).backgroundColor === light", light)
    widths = []
    for width in (700, 480):
        lab.page.set_viewport_size({"width": width, "height": 1100})
        lab.wait("most => document.querySelector('.gsl-part').clientWidth < most", width - 80)
        widths.append(lab.view().evaluate("e => [e.scrollWidth, e.clientWidth]"))
    lab.page.set_viewport_size({"width": 1200, "height": 1100})
    assert all(inner <= outer for inner, outer in widths)


SHOW_ALONE = """async ([script, view]) => {
  const { default: make } = await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })))
  const model = { get: () => view, on() {}, off() {}, send() {} }
  const widget = make()
  widget.initialize({ model })
  widget.render({ model, el: document.body })
}"""


@pytest.fixture
def show_alone(lend):
    """Return a function that draws the partitioner of a session on a page of its own, without a kernel."""

    def show_it(session, width):
        page = lend(Heard, width=width, height=800).page
        widget = session.partitions.widget()
        page.set_content(f"<!doctype html><style>{widget._css}</style>")
        page.evaluate(SHOW_ALONE, [widget._esm, dict(widget.view)])
        return page

    return show_it


@pytest.mark.parametrize(("width", "name"), [(600, "tokenizer_preprocessing_stream"), (1200, "s" * 63)])
def test_a_long_name_of_a_stream_breaks_and_pushes_nothing_out_of_the_card(show_alone, width, name):
    with Session("sim") as session:
        session.partition(prefill=96, decode=36)
        session.stream(name, partition="decode")
        page = show_alone(session, width)

    card = page.locator(".gsl-part").bounding_box()
    for place in range(2):
        remove = page.locator(".gsl-remove").nth(place).bounding_box()
        assert remove["x"] + remove["width"] < card["x"] + card["width"]


def test_a_short_name_stands_above_few_columns_and_a_letter_for_a_long_one(show_alone):
    with Session("sim") as session:
        session.partition(p=16, decode=8, rest="rest")
        page = show_alone(session, 600)

    assert page.locator(".gsl-bands span").all_inner_texts() == ["p\n16", "B\n8", "rest\n108"]
    assert page.locator(".gsl-bands b").evaluate_all("all => all.every(e => e.scrollWidth <= e.clientWidth)")


def test_boundaries_are_seen_in_forced_colours_and_a_print_has_no_controls(show_alone):
    with Session("sim") as session:
        session.partition(prefill=96, decode=36)
        page = show_alone(session, 700)
    colour = "e => getComputedStyle(e)[e.matches('.gsl-lower') ? 'backgroundColor' : 'color']"
    lower = page.locator(".gsl-lower").first
    page.emulate_media(forced_colors="active")
    assert lower.evaluate(colour) == page.locator(".gsl-device").evaluate(colour)

    page.emulate_media(forced_colors="none", media="print")
    assert page.locator("button:visible, select:visible, .gsl-grip:visible").count() == 0
    assert page.locator("i.gsl-used").first.evaluate("e => getComputedStyle(e).printColorAdjust") == "exact"


def test_state_survives_a_reload_of_the_page(lab):
    lab.view().locator("input.gsl-request").first.fill("48")
    lab.wait_for_sms(48)
    lab.command("docmanager:save")
    lab.page.reload()
    lab.wait_for_kernel()
    lab.view(1).locator("i.gsl-used").first.wait_for()
    lab.wait_for_sms(48, view=1)
    lab.view().locator(".gsl-revert").click()
    lab.wait_for_sms(96, view=1)


def test_a_closed_session_and_a_lost_kernel_are_said(opened):
    opened.errors.clear()
    opened.kernel("lab.close()")
    opened.page.mouse.move(5, 5)
    opened.view().locator(".gsl-head").hover()
    opened.wait_for_text(".gsl-obstacle", "The session is closed", view=1)
    opened.kernel(
        "lab = gsl.Session('sim'); lab.partition(prefill=96, decode=36); widget.close(); widget = lab.partitions.widget()"
    )
    opened.command("notebook:run-all-cells")
    opened.view(1).locator(".gsl-handle").first.wait_for()
    opened.page.evaluate("async () => { await window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart() }")
    opened.wait_for_text(".gsl-status", "The kernel is gone", view=0)
    assert opened.view().locator(".gsl-apply").is_disabled()
    assert opened.view().locator(".gsl-add").is_disabled()
    assert opened.errors == []
