"""The picture of statements on streams."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpustreamlab.draw._graph import GraphEdge, GraphNode, graph_html, graph_svg
from gpustreamlab.draw._graph_layout import KEPT_REPEATS, MAX_BOXES, plan_graph
from tests.helpers.traces import EVIL_NAME

SVG = "{http://www.w3.org/2000/svg}"
EVIL = [EVIL_NAME, "]]>&<b>\"'", "a\x00b\x1b\u202e\ud800\ufffe", "\n\n", "名前 = 関数()"]


def node(label="y = f(x)", stream: str | None = "a", start_ns=0, end_ns=1_000, **other):
    plain = {"detail": label, "is_critical": False, "is_barrier": False, "note": ""}
    return GraphNode(label=label, stream=stream, start_ns=start_ns, end_ns=end_ns, **{**plain, **other})


def edge(first, second, **other):
    return GraphEdge(first=first, second=second, **{"is_wait": True, "is_critical": False, "text": "y", **other})


@st.composite
def graphs(draw):
    """Programs of 0 to 25 statements on up to 6 streams, with durations from nothing to an hour; some overlap in their row."""
    count = draw(st.integers(0, 25))
    nodes, edges, free = [], [], {}
    for place in range(count):
        stream = draw(st.sampled_from([None, "a", "b", "c", "d", EVIL_NAME]))
        overlaps = draw(st.integers(0, 9)) == 0
        start_ns = (0 if overlaps else free.get(stream, 0)) + draw(st.sampled_from([0, 0, 3, 3_000, 10**12]))
        end_ns = start_ns + draw(st.sampled_from([0, 1, 900, 10**6, 3_600 * 10**9]))
        free[stream] = max(end_ns, free.get(stream, 0))
        looks = {"is_critical": draw(st.booleans()), "is_barrier": draw(st.integers(0, 9)) == 0}
        label = draw(st.sampled_from(["x", "y = model(x)", *EVIL]))
        nodes.append(node(label, stream, start_ns, end_ns, note=draw(st.sampled_from(["", *EVIL])), **looks))
        behind = draw(st.lists(st.integers(0, place - 1), max_size=2, unique=True)) if place else []
        looks = {"is_wait": draw(st.booleans()), "text": draw(st.sampled_from(["", "y", *EVIL]))}
        edges += [edge(first, place, **looks) for first in behind]
    return nodes, edges


def svg_of(nodes, edges=(), width_px=900):
    return ET.fromstring(graph_svg(nodes, edges, width_px=width_px, title="Plan"))


def texts_of(svg):
    return ["".join(element.itertext()) for element in svg.iter(f"{SVG}text")]


def boxes_of(svg):
    return [group for group in svg.iter(f"{SVG}g") if group.get("class") == "gsl-node"]


@settings(deadline=None, max_examples=40)
@given(graphs(), st.sampled_from([300, 700, 1_200]))
def test_time_goes_from_left_to_right_and_boxes_of_one_line_never_overlap(graph, plot_px):
    nodes, edges = graph
    layout = plan_graph(nodes, edges, plot_px=plot_px)
    lines = {}
    for place, box in layout.boxes.items():
        assert box.x1 - box.x0 >= 20
        assert box.x0 >= -0.01
        assert box.x1 <= layout.width_px + 0.01
        lines.setdefault((box.row, box.shelf), []).append((box.x0, box.x1))
        assert layout.rows[box.row].stream == nodes[place].stream
    for line in lines.values():
        for (_, end), (begin, _) in pairwise(sorted(line)):
            assert end <= begin + 0.01
    for place, box in layout.boxes.items():
        for other, later in layout.boxes.items():
            if nodes[place].end_ns <= nodes[other].start_ns and nodes[place].start_ns < nodes[other].start_ns:
                assert box.x1 <= later.x0 + 0.01  # true of all rows: what stands above each other may overlap


@settings(deadline=None, max_examples=40)
@given(graphs())
def test_the_picture_is_valid_and_every_statement_is_in_it(graph):
    nodes, edges = graph
    svg = svg_of(nodes, edges)
    assert len(boxes_of(svg)) == len(nodes)
    assert {element.tag.removeprefix(SVG) for element in svg.iter()} <= {"svg", "g", "title", "rect", "path", "text", "tspan"}
    html = graph_html(nodes, edges, "Plan")
    assert not re.search(r"<(script|img|b>\")", html)
    for part in re.findall(r"<svg.*?</svg>", html):
        ET.fromstring(part)


@pytest.mark.parametrize("text", EVIL)
def test_what_a_user_wrote_never_becomes_markup(text):
    nodes = [node(text, text, note=text, is_barrier=True), node(text, None, 1_000, 2_000)]
    page = graph_html(nodes, [edge(0, 1, text=text)], text, noun="cell")
    assert "<script" not in page
    assert "<img" not in page
    page.encode()
    shown = graph_svg(nodes, [edge(0, 1, text=text)], width_px=700, title=text)
    assert len(boxes_of(ET.fromstring(shown))) == 2


def test_a_loop_is_folded_and_what_is_not_drawn_is_counted():
    body = ["x = load(part)", "y = x @ w", "z = relu(y)"]
    nodes = [node(body[place % 3], "a", 1_000 * place, 1_000 * place + 900) for place in range(300)]
    layout = plan_graph(nodes, [], plot_px=900)
    assert sorted(layout.boxes) == [0, 1, 2, 3, 4, 5, 297, 298, 299]
    assert layout.left_out == (f"7 to 297, {100 - KEPT_REPEATS} more repeats of 1 to 3",)
    assert [part.text for part in layout.parts if part.kind == "cut"] == ["not drawn · 291 µs"]
    assert "Not drawn: statements 7 to 297, 97 more repeats of 1 to 3." in texts_of(svg_of(nodes))
    assert layout.rows[0].busy_ns == 300 * 900


def test_beyond_the_bound_the_middle_is_left_out_and_counted():
    nodes = [node(f"v{place} = f()", "a", place, place + 1) for place in range(MAX_BOXES + 50)]
    layout = plan_graph(nodes, [], plot_px=900)
    assert len(layout.boxes) == MAX_BOXES
    assert layout.left_out == (f"50 between 201 and 250, beyond the bound of {MAX_BOXES} boxes",)
    assert len(boxes_of(svg_of(nodes[:300]))) == 300


def test_durations_a_million_to_one_stay_readable_and_the_axis_says_so():
    nodes = [node("tiny()", "a", 0, 10), node("big()", "a", 10, 10**7), node("other()", "b", 0, 10**7)]
    layout = plan_graph(nodes, [], plot_px=900)
    assert layout.boxes[0].x1 - layout.boxes[0].x0 > 50
    assert layout.boxes[1].x1 - layout.boxes[1].x0 > 700
    assert [part.kind for part in layout.parts] == ["stretched", "even"]
    note = "Where the axis is dotted, time is drawn wider than elsewhere, so that short boxes can be read."
    assert note in texts_of(svg_of(nodes))
    even = [node("one()", "a", 0, 1_000), node("two()", "a", 1_000, 3_000)]
    assert note not in texts_of(svg_of(even))
    first, second = (plan_graph(even, [], plot_px=900).boxes[place] for place in (0, 1))
    assert 2 * (first.x1 - first.x0) == pytest.approx(second.x1 - second.x0)


def test_ticks_stand_at_their_times_and_apart():
    nodes = [node(f"v{place}", "a", 1_000 * place, 1_000 * (place + 1)) for place in range(8)]
    ticks = plan_graph([*nodes, node("big", "a", 8_000, 10**7)], [], plot_px=1_000).ticks
    xs = [x for x, _ in ticks]
    assert all(later - one >= 78 for one, later in pairwise(xs))
    assert max(later - one for one, later in pairwise(xs)) < 400  # also where a µs is as wide as a ms elsewhere
    scales = {"ns": 1, "µs": 10**3, "ms": 10**6}
    times = [float(text.split()[0]) * scales[text.split()[1]] for _, text in ticks]
    assert times == sorted(times)


def test_the_summary_says_what_overlaps_and_what_sets_the_length():
    nodes = [
        node("x = load()", "copy", 0, 400_000, is_critical=True),
        node("w = init()", "compute", 0, 250_000),
        node("y = x @ w", "compute", 400_000, 1_000_000, is_critical=True),
        node("print(1)", None, 0, 1_000_000),
    ]
    shown = texts_of(svg_of(nodes, [edge(0, 2, is_critical=True, text="x"), edge(1, 2, is_wait=False)], 1_200))
    assert "4 statements on 2 streams · 1.00 ms · 1 wait between streams · streams overlap for 25% of it" in shown
    assert "The length is set by 1 → 3, 1.00 ms of work" in shown
    assert [name for name in shown if name in ("host", "copy", "compute")] == ["host", "copy", "compute"]
    assert "x" in shown  # beside its arrow


def test_arrows_are_drawn_but_for_the_order_that_a_row_or_a_barrier_shows():
    nodes = [node("s", "a", 0, 10), node("s", "a", 10, 20), node("s", "b", 30, 40), node("s", "b", 40, 50, is_barrier=True)]
    edges = [edge(0, 1, is_wait=False), edge(0, 2, text="h"), edge(1, 3), edge(2, 3, is_wait=False)]
    svg = svg_of(nodes, edges)
    arrows = [group for group in svg.iter(f"{SVG}g") if group.get("class") == "gsl-edge"]
    assert [arrow[0].text for arrow in arrows] == ["3 waits for 1: h"]
    assert "barrier" in texts_of(svg)


def test_a_tooltip_has_the_full_text_and_what_it_waits_for():
    nodes = [node("x = f()", "a"), node("for i in y:", "b", 1_000, 3_000, detail="for i in y:\n\tz(i)", note="out of date")]
    title = boxes_of(svg_of(nodes, [edge(0, 1, text="x")]))[1].find(f"{SVG}title").text
    expected = ["for i in y:", "    z(i)", "", "2: on b, begins at 1.00 µs, takes 2.00 µs", "behind 1 (x)", "out of date"]
    assert title.splitlines() == expected


def test_nothing_to_draw_says_so():
    assert "There is no cell to draw." in graph_html([], [], "Cells", noun="cell")
    assert texts_of(svg_of([])) == ["Plan", "There is no statement to draw."]


def test_32_streams_and_long_idle_time():
    nodes = [node(f"s{place}", f"lane-{place}", 60 * 10**9 * place, 60 * 10**9 * place + 1_000) for place in (0, *range(2, 33))]
    svg = svg_of(nodes)
    assert sum(text.startswith("lane-") for text in texts_of(svg)) == 32
    apart = plan_graph([node("a", "a", 0, 10), node("b", "a", 10**9, 10**9 + 10)], [], plot_px=900)
    assert [part.text for part in apart.parts if part.kind == "cut"] == ["idle · 1.00 s"]
    assert len(apart.boxes) == 2


def test_a_note_stands_in_front_of_the_duration_where_no_band_tells_of_it():
    nodes = [node("In [1]", note="out of date", end_ns=10**6), node("In [2]", "b", note="why", is_barrier=True, end_ns=10**6)]
    assert {"out of date · 1.00 ms", "1.00 ms · why"} <= set(texts_of(svg_of(nodes)))


def test_a_page_has_a_picture_for_each_width_unless_it_scrolls_at_all_of_them():
    few = [node(f"v{place}", "a", 1_000 * place, 1_000 * (place + 1)) for place in range(5)]
    many = [node(f"v{place} = g(v{place})", "a", 1_000 * place, 1_000 * (place + 1)) for place in range(40)]
    kinds = [re.findall(r'class="gsl-scroll gsl-(\w+)"', graph_html(nodes, [], "Plan")) for nodes in (few, many)]
    assert kinds == [["wide", "middle", "narrow"], ["any"]]


def test_nodes_are_called_by_their_names_everywhere():
    lines = [4, 6, 9]
    looks = {line: {"name": str(line), "is_critical": True} for line in lines}
    nodes = [node(f"v{line} = f()", "ab"[line % 2], 10 * line, 10 * line + 9, **looks[line]) for line in lines]
    edges = [edge(0, 1), edge(1, 2)]
    svg = graph_svg(nodes, edges, width_px=900, title="Plan", named="line")
    assert "The length is set by lines 4 → 6 → 9" in svg
    assert "line 9 waits for line 6: y" in svg
    assert "behind line 4 (y)" in svg
    assert "<td>9</td><td>v9 = f()</td>" in graph_html(nodes, edges, "Plan", named="line")
    assert "The host does" in graph_svg(nodes, edges, width_px=900, title="Plan", headline="The host does")
    assert "is set by" not in graph_svg(nodes, edges, width_px=900, title="Plan", headline="The host does")
    loop = [node("x", "a", 10 * place, 10 * place + 9, name=f"In [{place + 5}]") for place in range(100)]
    assert "Not drawn: cells In [7] to In [103], 97 more repeats of In [5]." in graph_html(loop, [], "Cells", noun="cell")


def test_what_runs_has_no_times_and_what_is_out_of_date_is_pale_with_a_sign():
    nodes = [node("a", "a", 0, 10, is_muted=True, note="out of date"), node("b", "b", 10, 10, is_running=True)]
    page = graph_html(nodes, [], "Cells", noun="cell")
    assert ">running</text>" in page
    assert "on b, running" in page
    assert "<title>b: 1 running</title>" in page
    assert "1 running" in page
    assert "<span>" in page
    assert "</svg>out of date</span>" in page
    assert "out of date</span>" not in graph_html(nodes[1:], [], "Cells", noun="cell")
