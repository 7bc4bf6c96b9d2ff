"""The static picture."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpustreamlab.analysis import merge_narrow
from gpustreamlab.draw import plan_picture, timeline_svg, why_tables
from gpustreamlab.draw._svg import MAX_SVG_BARS, MAX_SVG_WAITS, merged_items
from gpustreamlab.model import Lane, Layout, Marker, Note
from gpustreamlab.typing import NoteKind
from tests.helpers import planted
from tests.helpers.kernel_traces import kernel_trace, make_kernel_trace, serial_trace
from tests.helpers.svg_texts import check_texts_within
from tests.helpers.traces import (
    DECODE,
    EVIL_NAME,
    PREFILL,
    empty_trace,
    evil_trace,
    make_trace,
    many_partitions_trace,
    nested_trace,
    one_lane_trace,
    partition_trace,
    pipeline_trace,
    random_trace,
    repartition_trace,
)

SVG = "{http://www.w3.org/2000/svg}"
TRACES = {
    "empty": empty_trace(), "one": one_lane_trace(), "pipeline": pipeline_trace(), "nested": nested_trace(),
    "evil": evil_trace(),
    "partitions": partition_trace(), "repartition": repartition_trace(), "8-partitions": many_partitions_trace(),
    "100-lanes": random_trace(500, 100), "20k": random_trace(20_000),
}  # fmt: skip


def texts(svg):
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_picture_is_well_formed_small_and_runs_nothing(trace):
    svg = timeline_svg(trace)
    tags = {element.tag.removeprefix(SVG) for element in ET.fromstring(svg).iter()}
    assert tags <= {"svg", "title", "style", "defs", "pattern", "rect", "path", "text", "tspan", "g"}
    assert len(svg) < 230_000


def test_picture_has_header_lanes_axis_and_bar_labels():
    shown = texts(timeline_svg(pipeline_trace(dropped_spans=3)))
    assert {
        "Image pipeline", "SIMULATED", "upload", "compute · priority -1", "prefill · 96 SMsasked for 90", "132 SMs",
        "whole card · 132 SMs", "filter", "Where the time went", "ranges only: bars contain waiting", "0 ms", "7 ms",
    } <= set(shown)  # fmt: skip
    assert any("3 spans dropped" in text for text in shown)
    assert not any("busy" in text for text in shown if "partition" not in text)


@pytest.mark.parametrize("trace", [*TRACES.values(), kernel_trace(windows=((2_000_000, 4_000_000),))], ids=[*TRACES, "windows"])
def test_no_text_lies_outside_of_the_picture(trace):
    check_texts_within(timeline_svg(trace))


@pytest.mark.parametrize("width_mm", [40, 60.5, 180])
def test_picture_of_a_width_in_mm_is_that_of_the_page_at_that_size(width_mm):
    svg, page = timeline_svg(kernel_trace(), width_mm=width_mm), timeline_svg(kernel_trace())
    root, page_root = ET.fromstring(svg), ET.fromstring(page)
    width, height = (float(root.get(name).removesuffix("mm")) for name in ("width", "height"))
    assert (width, width / height) == (width_mm, pytest.approx(1_000 / int(page_root.get("height")), rel=1e-3))
    assert svg.partition(" viewBox")[2] == page.partition(" viewBox")[2]


def test_bars_that_are_low_have_their_names_in_smaller_letters():
    trace = make_trace([(f"s{place}", f"name{place}", 0, 1_000) for place in range(180)])
    groups = ET.fromstring(timeline_svg(trace)).iter(f"{SVG}g")
    (labels,) = [group for group in groups if group.get("stroke-linejoin") == "round"]
    assert labels.get("font-size") == "9"
    assert [text.text for text in labels.iter(f"{SVG}text")] == [f"name{place}" for place in range(180)]


def test_hostile_names_are_text():
    svg = timeline_svg(evil_trace())
    assert EVIL_NAME not in svg
    assert EVIL_NAME in texts(svg)


def test_long_notes_are_wrapped_and_never_cut():
    shown = " ".join(texts(timeline_svg(pipeline_trace(clock=" ".join(f"word{number}" for number in range(26))))))
    assert "word0" in shown
    assert "word25" in shown
    assert "…" not in shown.split("upload")[0]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "No spans yet: select a stream with lab.on(...), or record all work with lab.capture('kernels')"),
        (1, "1 span has not ended yet: lab.synchronize() waits for it"),
        (1_200, "1,200 spans have not ended yet: lab.synchronize() waits for them"),
    ],
)
def test_empty_picture_says_what_to_do_or_what_has_not_ended(count, text):
    written = texts(timeline_svg(empty_trace(pending_spans=count)))
    assert text in written
    assert sum("No spans yet" in line or "not ended" in line for line in written) == 1 + (count > 0)


@given(st.integers(0, 10_000), st.integers(1, 400))
@settings(deadline=None, max_examples=25)
def test_bars_are_those_of_the_page_at_some_zoom(seed, limit):
    columns = plan_picture(random_trace(500, 3, seed=seed, mean_ns=800)).columns
    items = merged_items(columns, 900 / columns.end_ns.max(), limit=limit)
    assert items.count.sum() == 500
    assert items.busy_ns.sum() == (columns.end_ns - columns.start_ns).sum()
    zooms = (merge_narrow(columns.row, columns.start_ns, columns.end_ns, k << n) for n in range(40) for k in (1, 3))
    assert any(zoomed.first.tolist() == items.first.tolist() for zoomed in zooms)
    # The first that is small enough, in steps of 2.
    assert len(items) <= max(limit, 3)


def test_every_span_is_in_a_bar_and_the_picture_says_that_some_share_one():
    trace = random_trace(20_000)
    items = merged_items(plan_picture(trace).columns, 900 / trace.end_ns.max())
    assert len(items) <= MAX_SVG_BARS
    assert items.count.sum() == 20_000
    svg = timeline_svg(trace)
    assert len(re.findall(r"h(?:[\d.]+)v(?:[\d.]+)h-(?:[\d.]+)z", svg)) >= len(items)
    assert any(re.search(r"20,000 spans in [12],\d\d\d bars", text) for text in texts(svg))


BOX = r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h-[\d.]+z"


def kernels(*spans):
    return make_kernel_trace([(lane, name, begin, end, {"kind": "kernel"}) for lane, name, begin, end in spans])


def test_spans_that_share_a_bar_are_as_high_as_they_are_busy_in_the_colour_of_their_stream():
    # WHEN two names take turns in spans that are too narrow to be seen, busy for 3 and then for 1 of 4 parts of the time
    spans = [("a", "xy"[k % 2], 1_000 * k, 1_000 * k + (750 if k < 1_000 else 250)) for k in range(2_000)]
    svg = timeline_svg(kernels(*spans))
    ((paths, _),) = re.findall(r'<path d="((?:M[\d. ]+h[\d.]+v[\d.]+h-[\d.]+z)+)" fill="#56b4e9" (fill-opacity="1")', svg)
    boxes = np.array(re.findall(BOX, paths), float)
    heights = boxes[:, 3] / boxes[:, 3].max()
    middle = len(boxes) // 2
    assert 300 < len(boxes) < 1_400
    assert np.allclose(heights[: middle - 2], 1, atol=0.02)
    assert np.allclose(heights[middle + 2 : -1], 1 / 3, atol=0.02)
    # THEN all of them stand on the floor of their row
    assert np.ptp(boxes[:, 1] + boxes[:, 3]) < 0.11


def test_narrow_bar_is_as_high_as_its_px_are_busy():
    svg = timeline_svg(kernels(("a", "x", 0, 600), ("b", "y", 0, 3_000), ("c", "z", 0, 30), ("d", "end", 0, 900_000)))
    looks = re.findall(rf'<path d="{BOX}" fill="#[^"]*" fill-opacity="1"', svg)
    # One px is about 1 µs: of those that are narrower, the height says how busy it was; a little of 20 px is still seen.
    sizes = sorted((float(width), float(height)) for _, _, width, height in looks)
    assert sizes == [(1.0, 1.5), (1.0, pytest.approx(10, abs=1)), (pytest.approx(3, abs=0.15), pytest.approx(17, abs=0.1))]


def test_instant_is_drawn_and_nothing_covers_it():
    svg = timeline_svg(kernels(("a", "now", 0, 0), ("a", "long", 1, 3_600 * 10**9)))
    bars = re.findall(rf'<path d="{BOX}" fill="#[^"]*"( fill-opacity)?', svg)
    assert [(float(width) > 100, bool(is_load)) for _, _, width, _, is_load in bars] == [(True, False), (False, True)]


def solid_boxes(svg):
    """Left, right, top and bottom of each bar that says that work ran."""
    paths = re.findall(rf'<path d="((?:{BOX})+)" fill="#[^"]*"(?: fill-opacity="1")?/>', svg)
    boxes = np.array([box for path, *_ in paths for box in re.findall(BOX, path)], float).reshape(-1, 4)
    return [(x, x + width, y, y + height) for x, y, width, height in boxes.tolist()]


@pytest.mark.parametrize("tier", ["kernels", "ranges"])
def test_of_kernels_that_ran_one_after_the_other_no_two_are_drawn_at_once(tier):
    svg = timeline_svg(serial_trace(tier))
    boxes = sorted(box for box in solid_boxes(svg) if box[1] - box[0] > 4 and box[2] > 60 and box[3] - box[2] > 10)
    # THEN with kernels, each is drawn after the one before; with ranges alone, nothing says that it ran
    assert len(boxes) == (4 if tier == "kernels" else 0)
    assert all(one[1] <= other[0] + 0.11 for one, other in itertools.pairwise(boxes))
    # The ranges are still there: as outlines, or pale and open at their ends.
    assert svg.count('fill="none" stroke="#') >= 4
    assert ('fill-opacity="0.067"' in svg) == (tier == "ranges")


@pytest.mark.parametrize("name", ["\x00\x1b[31m", "\ufffe\uffff", "漢" * 300, "\u202eevil", "]]>&amp;<!--", "W" * 9_000])
def test_names_of_any_signs_make_a_well_formed_picture_and_labels_stay_within_their_bars(name):
    svg = timeline_svg(make_trace([(name, name, 0, 100)], title=name, clock=name))
    labels = [text for text in texts(svg) if text]
    assert len(svg) < 30_000
    assert all(10 * 1.05 * len(text) < 1_300 for text in labels if text.startswith("漢") and text.endswith("…"))
    assert any("…" in text for text in labels) == (len(name) > 100)


def test_thousands_of_lanes_make_a_picture():
    svg = timeline_svg(random_trace(4_000, 2_000))
    assert len(svg) < 1_500_000
    assert ET.fromstring(svg).get("height") is not None


def test_arrows_are_bounded():
    svg = timeline_svg(make_trace([("a", "x", 0, 100), ("b", "x", 100, 200)], edges=[(0, 1)] * 1_000))
    assert len(re.findall(r"v5h5z|v-5h-5z", svg)) == MAX_SVG_WAITS
    assert "300 of 1,000 waits are drawn." in texts(svg)


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "head_ns"),
    [
        pytest.param(500, 1_000, 500, id="it starts when it may"),
        pytest.param(100, 1_000, 400, id="told inside, it waits there"),
        pytest.param(100, 300, 300, id="it ends before the other does"),
    ],
)
def test_an_arrow_ends_where_the_range_had_to_wait(start_ns, end_ns, head_ns):
    svg = timeline_svg(make_trace([("a", "x", 0, 400), ("b", "y", start_ns, end_ns), ("c", "z", 0, 1_000)], edges=[(0, 1)]))
    ticks_px = {tick: float(px) for px, tick in re.findall(r'<text x="([\d.]+)"[^>]*>([\d.]+ µs)</text>', svg)}
    (head_px,) = map(float, re.findall(r"M([\d.]+) [\d.]+v-?5h-?5z", svg))
    px_per_ns = (ticks_px["1.0 µs"] - ticks_px["0.0 µs"]) / 1_000
    assert (head_px - ticks_px["0.0 µs"]) / px_per_ns == pytest.approx(head_ns, abs=1)


# ---- marks and partitions


def marked(*markers):
    trace = repartition_trace()
    start_ns = int(trace.start_ns.min())
    return replace(trace, markers=tuple(Marker(time_ns=start_ns + at, text=text, kind=kind) for at, text, kind in markers))


def test_changes_are_marked_and_their_labels_win_over_those_of_marks_and_these_over_cells():
    first_ns = repartition_trace().layouts[0].time_ns - int(repartition_trace().start_ns.min())
    trace = marked((first_ns - 9, "In [4]", "cell"), (first_ns - 5, "warm up", "mark"), (first_ns - 1, "In [5]", "cell"))
    shown = set(texts(timeline_svg(trace)))
    assert {"prefill 96 SMs, decode 36 SMs", "prefill 96→64, decode 36→68", "decode · 36→68 SMs", "warm up"} <= shown
    assert not {"In [4]", "In [5]"} & shown


def test_lines_of_changes_are_dashed_and_those_of_marks_and_cells_dotted():
    svg = timeline_svg(marked((100_000, "In [4]", "cell"), (400_000, "warm up", "mark")))
    looks = re.findall(r'stroke="(#\w+)" stroke-width="1.5" stroke-dasharray="([\d. ]+)"', svg)
    assert looks == [("#8a4b00", "5 3"), ("#8a4b00", "5 3"), ("#0550ae", "1.5 3"), ("#57606a", "1.5 3")]


def test_strip_of_sms_says_which_partition_has_how_many():
    shown = texts(timeline_svg(repartition_trace()))
    assert [text for text in shown if re.fullmatch(r"([AB] )?\d+", text) and text != "0"] == ["A 96", "A 64", "132"]
    assert any("Layout not enforced" in text for text in texts(timeline_svg(partition_trace(is_enforced=False))))
    plain = timeline_svg(nested_trace())
    assert "132 SMs" in texts(plain)
    assert "stroke-dasharray" not in plain


def test_a_partition_keeps_its_place_in_the_strip_while_others_are_idle():
    spans = [("a", "x", 0, 10, {"partition": 0}), ("b", "y", 5, 20, {"partition": 1}), ("c", "z", 14, 20)]
    layout = Layout(partitions=(PREFILL, DECODE))
    lanes = (Lane(name="a", partition="prefill"), Lane(name="b", partition="decode"), Lane(name="c"))
    svg = timeline_svg(make_kernel_trace(spans, lanes=lanes, partitions=(PREFILL, DECODE), layout=layout))
    strip = re.findall(r'<path d="M[\d.]+ [\d.]+V([\d.]+)H[^"]*V([\d.]+)H[^"]*z" fill="(#\w+)" fill-opacity="1"', svg)
    top_px = min(float(high) for high, _, _ in strip)
    places = {fill: [round((float(px) - top_px) / 64 * 132) for px in borders] for *borders, fill in strip}
    # Decode is above prefill's 96 SMs also after that has ended, and the whole card has these.
    assert places == {"#56b4e9": [36, 132], "#e69f00": [0, 36], "#c3c9d0": [36, 132]}


def test_a_row_of_many_steps_is_drawn_in_columns_of_the_same_area():
    """A lane that is busy half of the time, too often to draw each step: half of the row is filled."""
    svg = timeline_svg(make_kernel_trace([("a", "x", 20 * k, 20 * k + 10) for k in range(1_000)]))
    (path,) = re.findall(r'<path d="(M[^"h]*)" fill="#56b4e9"', svg)
    heights = [float(y) for y in re.findall(r"V([\d.]+)", path)]
    low = max(heights)
    top = [low - y for y in heights if y < low - 1]
    assert len(top) <= 400
    assert sum(top) / len(top) == pytest.approx(64 / 2, rel=0.02)


def test_hazards_have_a_sign_and_no_label():
    note = Note(time_ns=100, text="read-after-write: x", kind=NoteKind.HAZARD, stream="a", fix="wait")
    svg = timeline_svg(replace(make_trace([("a", "x", 0, 1_000)]), notes=(note,)))
    assert "!" in texts(svg)
    assert not any("See Why?" in text for text in texts(svg))


def hazard_notes(*places):
    """Return notes of hazards at places, of which the first letter tells what mends them."""
    fixes = {"a": "lab.stream('b').wait(lab.stream('a'))", "c": "lab.stream('c').wait(lab.stream('a'))"}
    facts = {"end_ns": None, "stream": "a", "kind": NoteKind.HAZARD}
    return tuple(
        Note(time_ns=at, text=f"{one}: odd", fix=f"Put {fixes[one[0]]} before {one}.", **facts) for at, one in enumerate(places)
    )


def test_findings_are_listed_below_as_plain_text_the_wrong_before_the_slow():
    loop = planted.record(planted.wait_for_device_in_a_loop)
    told = texts(timeline_svg(replace(loop, notes=hazard_notes("a1", "a2"))))
    title, first, second, *_ = told[told.index("Findings") :]
    assert title == "Findings"
    assert first == (
        "1. A missing wait: b does not wait for a (results may be wrong, 2 times): lab.stream('b').wait(lab.stream('a'))"
    )
    (entry,) = why_tables(loop, int(loop.start_ns.min()))["findings"]
    assert second.startswith(f"2. The host waited for the whole card ({entry['gain']}, 7 times): ")


def test_of_many_findings_the_first_three_are_listed_and_what_gains_nothing_is_not():
    def entry(number, **facts):
        pieces = [{"fix": f"mend {number} {'and wait ' * 40}"}]
        return {
            "kind": "x",
            "head": f"head {number}",
            "gain": "",
            "count": 1,
            "lines": [],
            "folds": False,
            "pieces": pieces,
        } | facts

    why = {"marks": [], "findings": [entry(0, folds=True), *map(entry, range(1, 6))]}
    svg = timeline_svg(pipeline_trace(), why=why)
    told = texts(svg)[texts(svg).index("Findings") + 1 :]
    assert [text.partition(":")[0] for text in told if text.startswith(tuple("123456789…"))] == [
        "1. head 1", "2. head 2", "3. head 3", "… and 2 more",
    ]  # fmt: skip
    check_texts_within(svg)
    assert "Findings" not in texts(timeline_svg(pipeline_trace(), why=why | {"findings": [entry(0, folds=True)]}))


def test_heading_and_list_count_the_same_hazards():
    trace = replace(pipeline_trace(), notes=hazard_notes("a1", "a2", "c1"))
    said = texts(timeline_svg(trace))
    assert "⚠ 2 hazards: accesses of an array that nothing orders" in said
    assert [text[:2] for text in said[said.index("Findings") + 1 :] if "missing wait" in text] == ["1.", "2."]
