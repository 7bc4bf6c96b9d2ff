"""Statements on streams as a picture: what runs where, what may overlap, what waits for what, and what sets the length."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from rich.cells import cell_len

from gpustreamlab.analysis import count_text, format_ns, format_share
from gpustreamlab.draw._graph_layout import (
    LETTER_PX,
    AxisPart,
    Box,
    GraphEdge,
    GraphLayout,
    GraphNode,
    box_label,
    clean_line,
    node_name,
    plan_graph,
)
from gpustreamlab.draw._scene import text_width_px

__all__ = ["GraphEdge", "GraphNode", "graph_html", "graph_svg"]

PAGE_WIDTHS_PX = {"wide": 1_060, "middle": 820, "narrow": 640}
"""How wide the pictures of a page are, of which it shows the widest that fits."""
MAX_ARROWS = 400
"""Most arrows of a picture; waits come first."""
MAX_BOWS = 40
"""Most dependencies within one stream that are drawn; where there are more, none is."""
MAX_ROWS = 300
"""Most rows of the table below a picture."""
DETAIL_LINES = 30
"""Most lines of a statement in its tooltip."""
LISTED_CRITICAL = 12
"""Most numbers of the critical path that are listed."""
NAME_PX = 118
"""Width of the streams' names."""
MANY_ROWS = 8
"""From more rows on they are low."""

_SANS = "system-ui,Segoe UI,Helvetica,Arial,sans-serif"
_MONO = "ui-monospace,Menlo,Consolas,DejaVu Sans Mono,monospace"


class Theme(NamedTuple):
    """Colours of a picture."""

    ink: str
    soft: str
    grid: str
    paper: str
    shade: str
    work: str
    critical: str
    host: str
    on: str
    """Of text on a box."""


_LIGHT = Theme("#1b1f24", "#57606a", "#d0d7de", "#ffffff", "#f3f5f7", "#a6d5f2", "#f5b83d", "#dfe3e8", "#101418")
_DARK = Theme("#e6e9ec", "#a9b3bd", "#3a424b", "#14171a", "#1e2328", "#7cb9de", "#f0ae2e", "#aab4be", "#101418")
_FORCED = Theme("CanvasText", "CanvasText", "GrayText", "Canvas", "Canvas", "Canvas", "Canvas", "Canvas", "CanvasText")
_JUPYTER = {"ink": "--jp-ui-font-color1", "paper": "--jp-layout-color0"}
_PAGE = Theme(*(f"var(--gsl-{name})" for name in Theme._fields))


def _variables(theme: Theme, *, is_jupyter: bool = True) -> str:
    named = zip(Theme._fields, theme, strict=True)
    return ";".join(
        f"--gsl-{name}:{f'var({_JUPYTER[name]}, {colour})' if is_jupyter and name in _JUPYTER else colour}"
        for name, colour in named
    )


_STYLE = (
    f".gsl-graph{{{_variables(_LIGHT)};container-type:inline-size;color:var(--gsl-ink);background:var(--gsl-paper);"
    f"padding:8px 10px;font:13px/1.45 var(--jp-ui-font-family, {_SANS})}}"
    f"@media (prefers-color-scheme:dark){{body:not([data-jp-theme-light]) .gsl-graph{{{_variables(_DARK)}}}}}"
    f'body[data-jp-theme-light="false"] .gsl-graph,[data-theme="dark"] .gsl-graph{{{_variables(_DARK)}}}'
    "@media (prefers-contrast:more){.gsl-graph.gsl-graph{--gsl-soft:var(--gsl-ink);--gsl-grid:var(--gsl-ink)}}"
    f"@media (forced-colors:active){{body .gsl-graph.gsl-graph{{{_variables(_FORCED, is_jupyter=False)}}}"
    ".gsl-graph svg{forced-color-adjust:none}}"
    ".gsl-graph p{margin:0 0 2px}.gsl-graph svg{display:block;flex:none;max-width:none;height:auto}"
    ".gsl-graph .gsl-scroll{display:flex;overflow-x:auto;margin:4px 0}"
    ".gsl-graph .gsl-names{position:sticky;left:0;z-index:1}.gsl-graph :is(.gsl-middle,.gsl-narrow){display:none}"
    f"@container (max-width:{PAGE_WIDTHS_PX['wide'] - 1}px)"
    "{.gsl-graph .gsl-wide{display:none}.gsl-graph .gsl-middle{display:flex}}"
    f"@container (max-width:{PAGE_WIDTHS_PX['middle'] - 1}px)"
    "{.gsl-graph .gsl-middle{display:none}.gsl-graph .gsl-narrow{display:flex}}"
    ".gsl-graph .gsl-legend{display:flex;flex-wrap:wrap;gap:2px 18px;font-size:12px}"
    ".gsl-graph .gsl-legend span{display:inline-flex;align-items:center;gap:6px}"
    ".gsl-graph .gsl-soft{color:var(--gsl-soft);font-size:12px}.gsl-graph summary{cursor:pointer;font-size:12px}"
    ".gsl-graph .gsl-rows{overflow-x:auto}.gsl-graph table{border-collapse:collapse;font-size:12px;color:inherit;margin:4px 0}"
    ".gsl-graph :is(td,th){padding:2px 9px;text-align:left;vertical-align:top;border:0;border-bottom:1px solid var(--gsl-grid)}"
    f".gsl-graph tr{{background:none}}.gsl-graph td:nth-child(2){{font-family:{_MONO};white-space:pre}}"
    ".gsl-graph :is(td:nth-child(4),td:nth-child(5)){white-space:nowrap}"
)


def graph_svg(
    nodes: Sequence[GraphNode],
    edges: Sequence[GraphEdge],
    *,
    width_px: int,
    title: str,
    noun: str = "statement",
    named: str = "",
    headline: str = "",
) -> str:
    """Draw statements on streams as SVG text, for a file or a paper: light, with its summary and its legend.

    Parameters
    ----------
    nodes
        Statements in the program's order.
    edges
        What comes behind what.
    width_px
        How wide it shall be; it is wider where its boxes need more.
    title
        What stands above it.
    noun
        What a node is called.
    named
        What stands in front of nodes' names in texts, in the singular: ``"line"``.
    headline
        What sets the length; if empty, the critical nodes are listed.

    Examples
    --------
    >>> node = GraphNode(
    ...     label="y = f(x)", detail="y = f(x)", stream="lane-1", start_ns=0, end_ns=2_000_000, is_critical=True,
    ...     is_barrier=False, note="",
    ... )
    >>> svg = graph_svg([node], [], width_px=600, title="Plan")
    >>> svg.startswith("<svg"), "1 statement on 1 stream · 2.00 ms" in svg
    (True, True)
    """
    drawing = _Drawing(nodes, edges, plan_graph(nodes, edges, plot_px=width_px - NAME_PX - 24), _LIGHT, named)
    width = round(drawing.layout.width_px + NAME_PX + 24)
    parts, top = [f'<text x="12" y="24" font-size="16" font-weight="600">{escape(clean_line(title))}</text>'], 44
    first, *critical = _facts(nodes, edges, noun, named, headline)
    texts = [(first, _LIGHT.ink, 400), *((text, _LIGHT.ink, 600) for text in critical)]
    for text, colour, weight in [*texts, *((text, _LIGHT.soft, 400) for text in _notes(drawing, noun))]:
        for line in textwrap.wrap(text, max(40, int((width_px - 24) / 6.4))):
            parts.append(f'<text x="12" y="{top}" font-size="12" font-weight="{weight}" fill="{colour}">{escape(line)}</text>')
            top += 17
    top -= 6
    if nodes:
        parts.append(f'<g transform="translate(12 {top})">{drawing.names()}</g>')
        parts.append(f'<g transform="translate({NAME_PX + 12} {top})">{drawing.plot()}</g>')
        top += round(drawing.height_px) + 8
    x = 12.0
    for swatch, text in drawing.legend():
        step_px = 48 + text_width_px(text, 12)
        if x > 12 and x + step_px > width_px:
            x, top = 12.0, top + 20
        label = f'<text x="34" y="11" font-size="12">{escape(text)}</text>'
        parts.append(f'<g transform="translate({x:.0f} {top})">{swatch}{label}</g>')
        x += step_px
    height = top + 26
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="{_SANS}" fill="{_LIGHT.ink}"><title>{escape(clean_line(title))}</title>'
        f'<rect width="100%" height="100%" fill="{_LIGHT.paper}"/>{"".join(parts)}</svg>'
    )


def graph_html(
    nodes: Sequence[GraphNode],
    edges: Sequence[GraphEdge],
    title: str,
    *,
    noun: str = "statement",
    named: str = "",
    headline: str = "",
) -> str:
    """Draw statements on streams for a notebook's output; it follows the theme, and holds no script.

    The names of the streams stay where a long picture scrolls. Where pictures are not shown, its summary and table are.

    Parameters
    ----------
    nodes, edges, title, noun, named, headline
        As for `graph_svg`.
    """
    drawings = {
        name: _Drawing(nodes, edges, plan_graph(nodes, edges, plot_px=width_px - NAME_PX), _PAGE, named)
        for name, width_px in PAGE_WIDTHS_PX.items()
    }
    drawing = drawings["wide"]
    if drawing.layout.width_px > PAGE_WIDTHS_PX["wide"]:  # it scrolls at any width: one is enough
        drawings = {"any": drawing}
    pictures = []
    for name, one in drawings.items() if nodes else ():
        both = _frame(NAME_PX, one.height_px, one.names(), "gsl-names")
        both += _frame(one.layout.width_px, one.height_px, one.plot(), "gsl-plot")
        pictures.append(f'<div class="gsl-scroll gsl-{name}">{both}</div>')
    frame = '<svg xmlns="http://www.w3.org/2000/svg" width="28" height="15" aria-hidden="true">'
    legend = "".join(f"<span>{frame}{swatch}</svg>{escape(text)}</span>" for swatch, text in drawing.legend())
    first, *critical = _facts(nodes, edges, noun, named, headline)
    facts = f"<p>{escape(first)}</p>" + "".join(f"<p><b>{escape(text)}</b></p>" for text in critical)
    notes = "".join(f'<p class="gsl-soft">{escape(text)}</p>' for text in _notes(drawing, noun))
    return (
        f'<div class="gsl-graph"><style>{_STYLE}</style><p><b>{escape(clean_line(title))}</b></p>{facts}'
        f'{"".join(pictures)}<div class="gsl-legend">{legend}</div>{notes}{_table(nodes, edges, noun)}</div>'
    )


def _frame(width_px: float, height_px: float, inner: str, name: str) -> str:
    size = f'width="{width_px:.0f}" height="{height_px:.0f}"'
    paper = f'<rect width="100%" height="100%" fill="{_PAGE.paper}"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" class="{name}" {size} font-family="{_SANS}">{paper}{inner}</svg>'


def _facts(nodes: Sequence[GraphNode], edges: Sequence[GraphEdge], noun: str, named: str = "", headline: str = "") -> list[str]:
    """Say what there is, how much of it overlaps, and what sets the length."""
    if not nodes:
        return [f"There is no {noun} to draw."]
    length_ns = max(node.end_ns for node in nodes) - min(node.start_ns for node in nodes)
    streams = {node.stream for node in nodes if node.stream is not None}
    waits = sum(edge.is_wait for edge in edges)
    where = f"on {count_text(len(streams), 'stream')}" if streams else "on the host alone"
    first = f"{count_text(len(nodes), noun)} {where} · {format_ns(length_ns)}"
    if len(streams) > 1:
        shared_ns = _shared_ns(nodes)
        running = sum(node.is_running for node in nodes)
        overlap = f"streams overlap for {format_share(shared_ns / max(1, length_ns))} of it"
        first += f" · {count_text(waits, 'wait')} between streams · {f'{running} running' if running else overlap}"
    critical = sorted((place for place, node in enumerate(nodes) if node.is_critical), key=lambda place: nodes[place].start_ns)
    if not critical:
        return [first]
    if headline:
        return [first, headline]
    numbers = [node_name(place, nodes[place]) for place in critical]
    around = f"{named}{'s' if len(numbers) > 1 else ''} " if named else ""
    if len(numbers) > LISTED_CRITICAL:
        half = LISTED_CRITICAL // 2
        numbers = [*numbers[:half], f"… {len(numbers) - 2 * half:,} more …", *numbers[-half:]]
    work_ns = sum(nodes[place].end_ns - nodes[place].start_ns for place in critical)
    share = f", {format_ns(work_ns)} of work" if work_ns else ""
    return [first, f"The length is set by {around}{' → '.join(numbers)}{share}"]


def _shared_ns(nodes: Sequence[GraphNode]) -> int:
    """Return for how long two or more streams work."""
    counts: dict[str, int] = defaultdict(int)
    steps = [(node.start_ns, 1, node.stream) for node in nodes if node.stream is not None]
    steps += [(node.end_ns, -1, node.stream) for node in nodes if node.stream is not None]
    total_ns, since_ns, busy = 0, 0, 0
    for time_ns, step, stream in sorted(steps, key=lambda one: (one[0], one[1])):
        total_ns += time_ns - since_ns if busy > 1 else 0
        busy -= counts[stream] > 0
        counts[stream] += step
        busy += counts[stream] > 0
        since_ns = time_ns
    return total_ns


def _notes(drawing: _Drawing, noun: str) -> list[str]:
    """Say where the axis is not even, and what is not drawn."""
    kinds = {part.kind for part in drawing.layout.parts}
    notes = []
    if "stretched" in kinds:
        notes.append("Where the axis is dotted, time is drawn wider than elsewhere, so that short boxes can be read.")
    if "cut" in kinds:
        notes.append("Where the axis is broken, time is left out.")
    notes += [f"Not drawn: {drawing.named or noun}s {text}." for text in drawing.layout.left_out]
    if drawing.lost_arrows:
        notes.append(f"Not drawn: {count_text(drawing.lost_arrows, 'arrow')}; tooltips tell what each box waits for.")
    return notes


def _table(nodes: Sequence[GraphNode], edges: Sequence[GraphEdge], noun: str) -> str:
    if not nodes:
        return ""
    behind = _behind(nodes, edges, "")
    begin_ns = min(node.start_ns for node in nodes)
    rows = []
    for place, node in enumerate(nodes[:MAX_ROWS]):
        marks = [text for text, has in (("sets the length", node.is_critical), ("barrier", node.is_barrier)) if has]
        cells = [node_name(place, node), clean_line(node.label), clean_line(node.stream) if node.stream is not None else "host"]
        times = [format_ns(node.start_ns - begin_ns), format_ns(node.end_ns - node.start_ns)]
        cells += ["", "running"] if node.is_running else times
        cells += [", ".join(behind[place]), "; ".join([*marks, *([clean_line(node.note)] if node.note else [])])]
        rows.append(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    if len(nodes) > MAX_ROWS:
        rows.append(f'<tr><td colspan="7">… {len(nodes) - MAX_ROWS:,} more</td></tr>')
    head = "".join(f"<th>{text}</th>" for text in ("", escape(noun), "stream", "begins", "takes", "behind", ""))
    summary = f"<summary>{count_text(len(nodes), escape(noun))} as a table</summary>"
    return f'<details>{summary}<div class="gsl-rows"><table><tr>{head}</tr>{"".join(rows)}</table></div></details>'


def _behind(nodes: Sequence[GraphNode], edges: Sequence[GraphEdge], prefix: str) -> Mapping[int, list[str]]:
    """Return for each node what it comes behind, with the names of the arrays."""
    found: dict[int, list[str]] = defaultdict(list)
    for edge in edges:
        name = f"{prefix}{node_name(edge.first, nodes[edge.first])}"
        found[edge.second].append(f"{name} ({clean_line(edge.text)})" if edge.text else name)
    return found


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Heights of lines, in px."""

    box: float
    channel: float
    """Between rows, for arrows and the names of what crosses."""
    letter: float


_HIGH, _LOW = _Sizes(box=36, channel=28, letter=11), _Sizes(box=21, channel=17, letter=10)
_AXIS_PX = 34
_PALE = 0.3
"""Opacity of boxes of what is out of date."""
_SHELF_GAP_PX = 4


class _Drawing:
    """One picture: a laid-out graph with the heights of its lines."""

    def __init__(
        self, nodes: Sequence[GraphNode], edges: Sequence[GraphEdge], layout: GraphLayout, theme: Theme, named: str
    ) -> None:
        self._nodes = nodes
        self._theme = theme
        self.named = named
        """What stands in front of nodes' names in texts."""
        self._behind = _behind(nodes, edges, f"{named} " if named else "")
        self._sizes = _HIGH if len(layout.rows) <= MANY_ROWS else _LOW
        self.layout = layout
        self._tops = []
        top = _AXIS_PX + self._sizes.channel
        for row in layout.rows:
            self._tops.append(top)
            top += row.shelf_count * (self._sizes.box + _SHELF_GAP_PX) - _SHELF_GAP_PX + self._sizes.channel
        self.height_px = top
        self._arrows, self.lost_arrows = self._choose(edges)

    def names(self) -> str:
        """Draw the names of the rows, and for how much of the time each works."""
        theme, layout, parts = self._theme, self.layout, []
        length_ns = max(1, layout.end_ns - layout.start_ns)
        for row, top in zip(layout.rows, self._tops, strict=True):
            middle = top + (row.shelf_count * (self._sizes.box + _SHELF_GAP_PX) - _SHELF_GAP_PX) / 2
            name = "host" if row.stream is None else clean_line(row.stream)
            shown = _cut(name, lambda text: text_width_px(text, 13), NAME_PX - 12)
            detail = f"works {format_share(row.busy_ns / length_ns)}" if row.stream is not None else "no GPU work"
            running = sum(node.is_running and node.stream == row.stream for node in self._nodes)
            detail = f"{running} running" if running else detail
            is_high = self._sizes is _HIGH
            parts.append(
                f"<g><title>{escape(f'{name}: {detail}')}</title>"
                f'<text x="0" y="{middle + (-1 if is_high else 4):.1f}" font-size="13" font-weight="600" '
                f'font-style="{"italic" if row.stream is None else "normal"}" fill="{theme.ink}">{escape(shown)}</text></g>'
            )
            if is_high:
                parts.append(f'<text x="0" y="{middle + 14:.1f}" font-size="11" fill="{theme.soft}">{escape(detail)}</text>')
        return "".join(parts)

    def plot(self) -> str:
        """Draw all but the names."""
        return "".join([*self._ground(), *self._bands(), *self._lines(), *map(self._box, self.layout.boxes), *self._labels()])

    def legend(self) -> Iterator[tuple[str, str]]:
        """Return the signs that occur, each within 28 by 15 px, with what they mean."""
        theme, drawn = self._theme, [self._nodes[place] for place in self.layout.boxes]

        def box(fill: str, look: str) -> str:
            return f'<rect x="2" y="2" width="24" height="11" rx="3" fill="{fill}" {look}/>'

        if any(node.stream is not None and not node.is_critical for node in drawn):
            yield box(theme.work, f'stroke="{theme.soft}"'), "work on a stream"
        if any(node.is_critical for node in drawn):
            yield box(theme.critical, f'stroke="{theme.ink}" stroke-width="3"'), "sets the length (critical path)"
        if any(node.is_muted for node in drawn):
            yield box(theme.work, f'fill-opacity="{_PALE}" stroke="{theme.soft}"'), "out of date"
        if any(node.stream is None for node in drawn):
            yield box(theme.host, f'stroke="{theme.soft}"'), "host only"
        if any(node.is_barrier for node in drawn):
            band = f'<path d="M6 0V15M22 0V15" stroke="{theme.ink}" stroke-dasharray="4 2"/>'
            yield (
                f'<rect x="6" width="16" height="15" fill="{theme.ink}" fill-opacity=".13"/>{band}',
                ("barrier: behind everything before it, before everything after it"),
            )
        for is_wait, text in ((True, "waits (event); the name is what crosses"), (False, "uses its result, without an event")):
            if any(edge.is_wait == is_wait and not self._is_joint(edge) for edge in self._arrows):
                dash = "" if is_wait else 'stroke-dasharray="4 3"'
                line = f'<path d="M1 7.5H20" stroke="{theme.ink if is_wait else theme.soft}" stroke-width="1.5" {dash}/>'
                yield line + f'<path d="M27 7.5l-8 -4v8z" fill="{theme.ink if is_wait else theme.soft}"/>', text

    def _choose(self, edges: Sequence[GraphEdge]) -> tuple[list[GraphEdge], int]:
        """Choose what is drawn: not the order that a row shows by itself, nor what a band says."""
        boxes, nodes = self.layout.boxes, self._nodes
        known = [edge for edge in edges if edge.first in boxes and edge.second in boxes]
        found, bows = [], []
        for edge in known:
            if not edge.is_critical and (nodes[edge.first].is_barrier or nodes[edge.second].is_barrier):
                continue
            if boxes[edge.first].row != boxes[edge.second].row or (edge.is_critical and self._is_joint(edge)):
                found.append(edge)
            elif not self._is_joint(edge) and (edge.text or edge.is_critical):
                bows.append(edge)
        kept = [edge for edge in bows if edge.is_critical or len(bows) <= MAX_BOWS]
        found = sorted([*found, *kept], key=lambda edge: (not edge.is_wait, not edge.is_critical))
        lost = len(edges) - len(known) + len(bows) - len(kept) + max(0, len(found) - MAX_ARROWS)
        return found[:MAX_ARROWS], lost

    def _is_joint(self, edge: GraphEdge) -> bool:
        """Tell whether the second is the next one in the row of the first."""
        boxes = self.layout.boxes
        one, other = boxes[edge.first], boxes[edge.second]
        return (one.row, one.shelf) == (other.row, other.shelf) and not any(
            (box.row, box.shelf) == (one.row, one.shelf) and one.x1 <= box.x0 and box.x1 <= other.x0
            for place, box in boxes.items()
            if place not in (edge.first, edge.second)
        )

    def _ground(self) -> Iterator[str]:
        """Draw the rows' ground, and the axis: even, dotted where stretched, broken where cut."""
        theme, layout, width = self._theme, self.layout, self.layout.width_px
        half = self._sizes.channel / 2
        for number, (row, top) in enumerate(zip(layout.rows, self._tops, strict=True)):
            height = row.shelf_count * (self._sizes.box + _SHELF_GAP_PX) - _SHELF_GAP_PX + 2 * half
            if number % 2 == 0:
                yield f'<rect x="0" y="{top - half:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{theme.shade}"/>'
        bottom = self.height_px - half
        for x, label in layout.ticks:
            yield f'<path d="M{x:.1f} {_AXIS_PX - 10}V{bottom:.1f}" stroke="{theme.grid}"/>'
            anchor = "start" if x < 24 else "end" if x > width - 24 else "middle"
            place = f'x="{x:.1f}" y="{_AXIS_PX - 15}" text-anchor="{anchor}"'
            yield f'<text {place} font-size="11" fill="{theme.soft}">{label}</text>'
        for part in layout.parts:
            yield from self._axis_part(part, bottom)

    def _axis_part(self, part: AxisPart, bottom: float) -> Iterator[str]:
        theme, y = self._theme, _AXIS_PX - 10
        if part.kind != "cut":
            dots = ' stroke-dasharray="1.5 3"' if part.kind == "stretched" else ""
            yield f'<path d="M{part.x0:.1f} {y}H{part.x1:.1f}" stroke="{theme.ink}" stroke-width="1.5"{dots}/>'
            return
        middle = (part.x0 + part.x1) / 2
        yield (
            f'<g><title>{escape(part.text)}</title><rect x="{part.x0 + 4:.1f}" y="{y}" width="{part.x1 - part.x0 - 8:.1f}" '
            f'height="{bottom - y:.1f}" fill="{theme.paper}" stroke="{theme.soft}" stroke-dasharray="2 3"/>'
            f'<text transform="translate({middle + 4:.1f} {(y + bottom) / 2:.1f}) rotate(-90)" text-anchor="middle" '
            f'font-size="11" fill="{theme.ink}">{escape(part.text)}</text></g>'
        )

    def _bands(self) -> Iterator[str]:
        theme, top = self._theme, _AXIS_PX - 6
        bottom = self.height_px - self._sizes.channel / 2
        for place, box in self.layout.boxes.items():
            node = self._nodes[place]
            if not node.is_barrier:
                continue
            word = _cut("barrier", lambda text: text_width_px(text, 11), box.x1 - box.x0)
            yield (
                f"<g><title>{escape(self._tooltip(place))}</title>"
                f'<rect x="{box.x0:.1f}" y="{top}" width="{box.x1 - box.x0:.1f}" height="{bottom - top:.1f}" '
                f'fill="{theme.ink}" fill-opacity=".13"/>'
                f'<path d="M{box.x0:.1f} {top}V{bottom:.1f}M{box.x1:.1f} {top}V{bottom:.1f}" stroke="{theme.ink}" '
                f'stroke-dasharray="6 3"/><text x="{(box.x0 + box.x1) / 2:.1f}" y="{top + 13}" font-size="11" '
                f'text-anchor="middle" fill="{theme.ink}">{word}</text></g>'
            )

    def _top(self, box: Box) -> float:
        return self._tops[box.row] + box.shelf * (self._sizes.box + _SHELF_GAP_PX)

    def _box(self, place: int) -> str:
        node, box, theme, sizes = self._nodes[place], self.layout.boxes[place], self._theme, self._sizes
        top, width = self._top(box), box.x1 - box.x0
        edge = 1.5 if node.is_critical else 0.5
        fill = theme.critical if node.is_critical else theme.host if node.stream is None else theme.work
        look = f'stroke="{theme.ink if node.is_critical else theme.soft}" stroke-width="{2 * edge:.0f}"'
        look += ' stroke-dasharray="6 3"' if node.is_barrier else ""
        look += f' fill-opacity="{_PALE}"' if node.is_muted else ""
        ink = theme.ink if node.is_muted else theme.on  # pale, the ground shows through
        letter_px = LETTER_PX * sizes.letter / 11
        label = _cut(box_label(place, node), lambda text: letter_px * cell_len(text), width - 12)
        name = node_name(place, node)
        number, rest = label[: len(name)], label[len(name) :]
        is_high = sizes is _HIGH
        takes = [format_ns(node.end_ns - node.start_ns)] if node.end_ns > node.start_ns else []
        takes = ["running"] if node.is_running else takes
        notes = [clean_line(node.note)] if node.note else []
        # A band tells of a barrier already; that a node is out of date is told here alone.
        under = " · ".join([*takes, *notes] if node.is_barrier else [*notes, *takes])
        baseline = 15 if is_high and under else sizes.box / 2 + 4
        weight = ' font-weight="700"' if node.is_critical else ""
        place_of = f'x="{box.x0 + edge:.1f}" y="{top + edge:.1f}" width="{max(1.0, width - 2 * edge):.1f}"'
        place_of += f' height="{sizes.box - 2 * edge:.1f}" rx="4"'
        parts = [
            f'<rect {place_of} fill="{theme.paper}"/>' if node.is_muted else "",
            f'<rect {place_of} fill="{fill}" {look}/>',
            f'<text x="{box.x0 + 6:.1f}" y="{top + baseline:.1f}" font-size="{sizes.letter}" font-family="{_MONO}" '
            f'fill="{ink}" xml:space="preserve"{weight}><tspan font-weight="700">{escape(number)}</tspan>'
            f"{escape(rest)}</text>",
        ]
        if is_high and under:
            shown = _cut(under, lambda text: text_width_px(text, 10), width - 12)
            text = f'<text x="{box.x0 + 6:.1f}" y="{top + 28:.1f}" font-size="10" fill="{ink}">{escape(shown)}</text>'
            parts.append(text)
        return f'<g class="gsl-node"><title>{escape(self._tooltip(place))}</title>{"".join(parts)}</g>'

    def _name(self, place: int) -> str:
        return f"{self.named} {node_name(place, self._nodes[place])}".lstrip()

    def _tooltip(self, place: int) -> str:
        node = self._nodes[place]
        begin_ns = node.start_ns - self.layout.start_ns
        where = "on the host, no GPU work" if node.stream is None else f"on {clean_line(node.stream)}"
        lines = [clean_line(line.expandtabs(4), 300) for line in (node.detail or node.label).splitlines()]
        if len(lines) > DETAIL_LINES:
            lines = [*lines[:DETAIL_LINES], f"… {len(lines) - DETAIL_LINES:,} more lines"]
        times = f"begins at {format_ns(begin_ns)}, takes {format_ns(node.end_ns - node.start_ns)}"
        lines += ["", f"{self._name(place)}: {where}, {'running' if node.is_running else times}"]
        lines += [f"behind {', '.join(self._behind[place])}"] if place in self._behind else []
        lines += ["sets the length (critical path)"] if node.is_critical else []
        lines += ["barrier: ordered before and after everything"] if node.is_barrier else []
        return "\n".join([*lines, *([clean_line(node.note)] if node.note else [])])

    def _lines(self) -> Iterator[str]:
        """Draw arrows, behind the boxes: out of the first one's end, along its row, and into the second one's beginning."""
        used: dict[tuple[int, bool], list[tuple[float, float, int, int]]] = defaultdict(list)
        for edge in reversed(self._arrows):
            theme, one, other = self._theme, self.layout.boxes[edge.first], self.layout.boxes[edge.second]
            colour = theme.ink if edge.is_wait or edge.is_critical else theme.soft
            look = f'stroke="{colour}" stroke-width="{3.5 if edge.is_critical else 1.5}" fill="none"'
            look += "" if edge.is_wait or edge.is_critical else ' stroke-dasharray="4 3"'
            from_y = self._top(one) + self._sizes.box / 2
            if self._is_joint(edge):
                yield f'<path d="M{one.x1 - 2:.1f} {from_y:.1f}H{other.x0 + 2:.1f}" {look}/>'
                continue
            is_down, is_bow = other.row > one.row, other.row == one.row
            x0, x1 = max(one.x0 + 3, one.x1 - 8), other.x0 + 8
            track = _track(used[one.row, is_down], min(x0, x1), max(x0, x1), edge.first)
            step = 4 + track * (self._sizes.channel / 2 - 5) / 2
            along = self._top(one) + self._sizes.box + step if is_down else self._top(one) - step
            is_above = is_down or is_bow
            size = (9 if edge.is_critical else 7) * (1 if is_above else -1)
            end_y = self._top(other) if is_above else self._top(other) + self._sizes.box
            title = f"{self._name(edge.second)} {'waits for' if edge.is_wait else 'uses'} {self._name(edge.first)}"
            title += f": {clean_line(edge.text)}" if edge.text else ""
            yield (
                f'<g class="gsl-edge"><title>{escape(title)}</title>'
                f'<path d="M{x0:.1f} {from_y:.1f}V{along:.1f}H{x1:.1f}V{end_y - size + 2:.1f}" {look} stroke-linejoin="round"/>'
                f'<path d="M{x1:.1f} {end_y:.1f}l{-size * 0.55:.1f} {-size}h{size * 1.1:.1f}z" fill="{colour}"/></g>'
            )

    def _labels(self) -> Iterator[str]:
        """Write what crosses beside the arrow's last turn; shortened, or left to tooltips, where another one stands."""
        texts: dict[tuple[int, bool], list[str]] = defaultdict(list)
        for edge in self._arrows:
            one, other = self.layout.boxes[edge.first], self.layout.boxes[edge.second]
            if edge.text and not self._is_joint(edge):
                texts[edge.second, one.row < other.row].append(clean_line(edge.text))
        places: dict[tuple[int, int, bool], list[tuple[float, float, str]]] = defaultdict(list)
        for (place, is_above), names in texts.items():
            box = self.layout.boxes[place]
            over = is_above or all(self._same_row(edge) for edge in self._arrows if edge.second == place)
            middle = self._top(box) + (-5 if over else self._sizes.box + self._sizes.letter)
            places[box.row, box.shelf, over].append((box.x0, middle, ", ".join(dict.fromkeys(names))))
        theme = self._theme
        for found in places.values():
            found.sort()
            limits = [*(x for x, _, _ in found[1:]), self.layout.width_px + 12]
            for (x, y, text), limit in zip(found, limits, strict=True):
                shown = _cut(text, lambda text: text_width_px(text, 11), min(150, limit - x - 22))
                yield (
                    f'<text x="{x + 14:.1f}" y="{y:.1f}" font-size="11" font-style="italic" font-weight="600" '
                    f'fill="{theme.ink}" stroke="{theme.paper}" stroke-width="3" paint-order="stroke">{escape(shown)}</text>'
                )

    def _same_row(self, edge: GraphEdge) -> bool:
        return self.layout.boxes[edge.first].row == self.layout.boxes[edge.second].row


def _track(used: list[tuple[float, float, int, int]], x0: float, x1: float, first: int) -> int:
    """Return the line of a channel that is free from x0 to x1; those of one node share theirs."""
    taken = {track for begin, end, owner, track in used if owner != first and begin < x1 + 4 and x0 < end + 4}
    track = next((number for number in range(3) if number not in taken), 2)
    used.append((x0, x1, first, track))
    return track


def _cut(text: str, measure: Callable[[str], float], room_px: float) -> str:
    """Return a text, shortened to fit."""
    if measure(text) <= room_px:
        return text
    while text and measure(f"{text}…") > room_px:
        text = text[:-1]
    return f"{text}…" if text else ""
