"""Where the statements of a graph stand: a row for each stream, and one axis of time for all, stretched where it must."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.cells import cell_len

from gpustreamlab.analysis import format_ns, time_ticks
from gpustreamlab.model import display_name

MAX_BOXES = 400
"""Most boxes of a picture; of more, those in the middle are left out, and counted."""
FOLD_FROM = 60
"""From so many statements on, repeated ones are folded."""
LONGEST_LOOP = 64
"""Most statements of one repeat that is folded."""
KEPT_REPEATS = 3
"""How many repeats are drawn of those that are folded: the first two and the last."""

LEAST_BOX_PX = (170, 130, 100, 84, 72, 66)
"""How wide a box is at least where its text is longer: the first of these that the picture has room for."""
SCROLLED_BOX_PX = 84
"""The same where there is no room for any: the picture is wider than asked for."""
LETTER_PX = 6.75
"""Width of a letter of a box, in a monospaced font of 11 px."""
GAP_PX = 12
"""Room in front of a statement that waits for another stream."""
CUT_PX = 64
"""Width of a part of the axis that is cut out."""
LONG_IDLE = 0.2
"""A part of the time in which nothing runs is cut out if it is longer than this share of all."""
STRETCHED = 1.5
"""A part of the axis is called stretched if it has so many times the px of the others."""
TICK_PX = 78
"""Room of a tick's label."""
TICK_LEVELS = 5
"""How often ticks are put between ticks that are far apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """A statement, or a cell."""

    label: str
    """What its box says: its first line."""
    detail: str
    """Its full text."""
    stream: str | None
    """The stream of its work; None where it has none for the device."""
    start_ns: int
    """When its work begins, planned or measured."""
    end_ns: int
    """When its work ends."""
    is_critical: bool
    """Whether it is of the chain that sets the length."""
    is_barrier: bool
    """Whether it is ordered before and after everything, as what it touches is not known."""
    note: str
    """What else is to be known: why it is a barrier, or that it is out of date."""
    name: str = ""
    """What texts call it, and what its box begins with: its line, or ``In [3]``; its place, from 1, if empty."""
    is_muted: bool = False
    """Whether it is drawn pale, as what it gave is out of date."""
    is_running: bool = False
    """Whether its work has not ended: nothing is said of its times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphEdge:
    """One node that comes behind another."""

    first: int
    """Place of the earlier node."""
    second: int
    """Place of the later one."""
    is_wait: bool
    """Whether a stream waits for an event of another one; otherwise the stream's own order, or data."""
    is_critical: bool
    """Whether it is of the chain that sets the length."""
    text: str
    """Names of the arrays that cross."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A node in the picture."""

    x0: float
    x1: float
    row: int
    shelf: int
    """Line within its row, from 0; more than one only where nodes of one stream overlap in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRow:
    """A stream, or the host."""

    stream: str | None
    shelf_count: int
    busy_ns: int
    """For how long it has work, also of nodes that are not drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisPart:
    """A part of the axis, in px from its beginning."""

    x0: float
    x1: float
    kind: str
    """``even``, ``stretched`` or ``cut``."""
    text: str = ""
    """What was cut out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLayout:
    """A planned picture: all but the height of its lines. Places are in px from the axis's beginning."""

    width_px: float
    rows: tuple[GraphRow, ...]
    boxes: Mapping[int, Box]
    parts: tuple[AxisPart, ...]
    ticks: tuple[tuple[float, str], ...]
    left_out: tuple[str, ...]
    """What is not drawn, a phrase each."""
    start_ns: int
    end_ns: int


def plan_graph(nodes: Sequence[GraphNode], edges: Sequence[GraphEdge], *, plot_px: float) -> GraphLayout:
    """Place the nodes.

    Parameters
    ----------
    nodes
        In the program's order.
    edges
        What comes behind what.
    plot_px
        How wide the picture shall be; it is wider where its boxes need more.
    """
    folded, left_out = _fold(nodes)
    drawn = [place for place in range(len(nodes)) if place not in folded]
    shelves = _shelves(nodes, drawn)
    streams = sorted(dict.fromkeys(node.stream for node in nodes), key=lambda name: name is not None)  # the host comes first
    rows = tuple(
        GraphRow(
            stream=name,
            shelf_count=1 + max((shelves[place] for place in drawn if nodes[place].stream == name), default=0),
            busy_ns=_covered_ns((node.start_ns, node.end_ns) for node in nodes if node.stream == name),
        )
        for name in streams
    )
    axis = _Axis(nodes, edges, drawn, folded)
    axis.fit(plot_px)
    row_of = {name: number for number, name in enumerate(streams)}
    boxes = {}
    for place in drawn:
        x0, x1 = axis.extent(place)
        boxes[place] = Box(x0=x0, x1=x1, row=row_of[nodes[place].stream], shelf=shelves[place])
    return GraphLayout(
        width_px=max(plot_px, axis.width_px),
        rows=rows,
        boxes=boxes,
        parts=tuple(axis.parts()),
        ticks=tuple(axis.ticks()),
        left_out=tuple(left_out),
        start_ns=min((node.start_ns for node in nodes), default=0),
        end_ns=max((node.end_ns for node in nodes), default=0),
    )


def box_label(place: int, node: GraphNode) -> str:
    """Return what a box says where it has room: the node's name, which the texts refer to, and its label."""
    return f"{node_name(place, node)} {clean_line(node.label)}"


def node_name(place: int, node: GraphNode) -> str:
    """Return what texts call a node."""
    return clean_line(node.name, 24) if node.name else str(place + 1)


def clean_line(text: str, limit: int = 200) -> str:
    """Return a text as one line that any picture can hold."""
    return display_name(text.encode("utf-8", "replace").decode(), limit)


def _fold(nodes: Sequence[GraphNode]) -> tuple[set[int], list[str]]:
    """Choose what is not drawn: repeats of the same statements, then the middle of what are still too many."""
    folded: set[int] = set()
    left_out: list[str] = []
    keys = [(node.label, node.stream) for node in nodes]
    names = [node_name(place, node) for place, node in enumerate(nodes)]
    place, last = 0, len(keys) if len(keys) > FOLD_FROM else 0
    while place < last:
        length, count = _repeats(keys, place)
        if count > KEPT_REPEATS + 1:
            first, end = place + 2 * length, place + (count - 1) * length
            folded.update(range(first, end))
            what = names[place] if length == 1 else f"{names[place]} to {names[place + length - 1]}"
            left_out.append(f"{names[first]} to {names[end - 1]}, {count - KEPT_REPEATS:,} more repeats of {what}")
        place += length * count
    drawn = [place for place in range(len(nodes)) if place not in folded]
    if len(drawn) > MAX_BOXES:
        middle = drawn[MAX_BOXES // 2 : len(drawn) - MAX_BOXES // 2]
        folded.update(middle)
        ends = f"{names[middle[0]]} and {names[middle[-1]]}"
        left_out.append(f"{len(middle):,} between {ends}, beyond the bound of {MAX_BOXES} boxes")
    return folded, left_out


def _repeats(keys: Sequence[object], place: int) -> tuple[int, int]:
    """Return of how many statements the loop is that begins here and repeats most of them, and how often it runs."""
    best = (1, 1)
    for length in range(1, min(LONGEST_LOOP, (len(keys) - place) // 2) + 1):
        same = 0
        while place + length + same < len(keys) and keys[place + same] == keys[place + length + same]:
            same += 1
        count = 1 + same // length
        if count > 1 and count * length > best[0] * best[1]:
            best = (length, count)
    return best


def _shelves(nodes: Sequence[GraphNode], drawn: Sequence[int]) -> dict[int, int]:
    """Return the line of each node within its row: the first in which the one before has ended."""
    ends: dict[str | None, list[int]] = defaultdict(list)
    shelves = {}
    for place in sorted(drawn, key=lambda place: (nodes[place].start_ns, nodes[place].end_ns, place)):
        node, free = nodes[place], ends[nodes[place].stream]
        shelf = next((number for number, end_ns in enumerate(free) if end_ns <= node.start_ns), len(free))
        free[shelf : shelf + 1] = [node.end_ns]
        shelves[place] = shelf
    return shelves


def _covered_ns(spans: Iterable[tuple[int, int]]) -> int:
    """Return for how long at least one of the spans lasts."""
    total_ns, until_ns = 0, None
    for start_ns, end_ns in sorted(spans):
        begin_ns = start_ns if until_ns is None else max(start_ns, until_ns)
        total_ns += max(0, end_ns - begin_ns)
        until_ns = max(end_ns, begin_ns)
    return total_ns


class _Axis:
    """Time to px: never backwards, even where there is room, and wider where a box would be too narrow.

    Each time at which something begins or ends has a left and a right place: between them, where time stands still, are the
    nodes that take no time, and the room for arrows.
    """

    def __init__(self, nodes: Sequence[GraphNode], edges: Sequence[GraphEdge], drawn: Sequence[int], folded: set[int]) -> None:
        self._nodes = nodes
        self._drawn = drawn
        extent = [time for node in nodes for time in (node.start_ns, node.end_ns)]
        inner = {time for place in drawn for time in (nodes[place].start_ns, nodes[place].end_ns)}
        self._times = sorted({*inner, min(extent), max(extent)}) if extent else []
        self._index = {time: number for number, time in enumerate(self._times)}
        self._slots = self._stand(edges)
        self._pauses: dict[int, int] = defaultdict(int)
        for place, slot in self._slots.items():
            number = self._index[nodes[place].start_ns]
            self._pauses[number] = max(self._pauses[number], slot + 1)
        self._waits: dict[int, set[int]] = defaultdict(set)
        for edge in edges:
            if {edge.first, edge.second} <= set(drawn) and nodes[edge.first].stream != nodes[edge.second].stream:
                ended, began = self._index[nodes[edge.first].end_ns], self._index[nodes[edge.second].start_ns]
                if ended <= began:
                    self._waits[began].add(ended)
        self._cuts = self._find_cuts(folded)
        self._left: list[float] = []
        self._right: list[float] = []
        self._least_px = float(SCROLLED_BOX_PX)
        self._scale = 0.0

    @property
    def width_px(self) -> float:
        return self._right[-1] if self._right else 0.0

    def fit(self, plot_px: float) -> None:
        """Choose the widest boxes for which there is room, and then the scale."""
        if not self._times:
            return
        for least_px in LEAST_BOX_PX:
            self._least_px = float(least_px)
            if self._place(0.0) <= plot_px * (0.85 if least_px > SCROLLED_BOX_PX else 1):
                break
        else:
            self._least_px = float(SCROLLED_BOX_PX)
            plot_px = 1.15 * self._place(0.0)
        cut_ns = sum(self._times[number + 1] - self._times[number] for number in self._cuts)
        low, high = 0.0, plot_px / max(1, self._times[-1] - self._times[0] - cut_ns)
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self._place(middle) <= plot_px else (low, middle)
        self._scale = low
        self._place(low)

    def extent(self, place: int) -> tuple[float, float]:
        """Return where a node begins and ends."""
        node = self._nodes[place]
        begin = self._index[node.start_ns]
        if place in self._slots:
            x0 = self._left[begin] + GAP_PX + self._slots[place] * (self._least_px + GAP_PX)
            return x0, x0 + self._width(place)
        return self._right[begin], self._left[self._index[node.end_ns]]

    def parts(self) -> Iterable[AxisPart]:
        """Return the axis piece by piece; neighbours of one kind are one."""
        found: list[AxisPart] = []
        for number, (begin, end) in enumerate(pairwise(self._times)):
            x0, x1 = self._right[number], self._left[number + 1]
            even_px = self._scale * (end - begin)
            kind = "cut" if number in self._cuts else "even" if x1 - x0 <= STRETCHED * even_px + 2 else "stretched"
            text = self._cuts.get(number, "")
            if self._right[number] - self._left[number] > 1:
                _add(found, AxisPart(x0=self._left[number], x1=self._right[number], kind="stretched"))
            _add(found, AxisPart(x0=x0, x1=x1, kind=kind, text=text))
        if self._times:
            _add(found, AxisPart(x0=self._left[-1], x1=self._right[-1], kind="stretched"))
        return found

    def ticks(self) -> Iterable[tuple[float, str]]:
        """Return round times where there is room, with finer ones where the axis is stretched."""
        if len(self._times) < 2:
            return []
        found: list[tuple[float, str, float]] = []
        wanted = [(0.0, float(self._times[-1] - self._times[0]), self.width_px)]
        for _ in range(TICK_LEVELS):
            for begin_ns, end_ns, room_px in wanted:
                for time_ns, label in time_ticks(begin_ns, end_ns, max(2, int(room_px / 1.3 / TICK_PX))):
                    x = self._x(self._times[0] + time_ns)
                    if x is not None and all(abs(x - other) >= TICK_PX for other, _, _ in found):
                        found.append((x, label, time_ns))
            found.sort()
            ends = [(one, other) for one, other in pairwise(found) if other[0] - one[0] > 3 * TICK_PX]
            inner = [(one[0] + TICK_PX, other[0] - TICK_PX) for one, other in ends]
            wanted = [(self._time(x0), self._time(x1), x1 - x0) for x0, x1 in inner]
        return [(x, label) for x, label, _ in found]

    def _x(self, time_ns: float) -> float | None:
        """Return the place of a time; None where the axis is cut."""
        for number, (begin, end) in enumerate(pairwise(self._times)):
            if begin <= time_ns < end:
                share = (time_ns - begin) / (end - begin)
                inside = self._right[number] + share * (self._left[number + 1] - self._right[number])
                return None if number in self._cuts and share > 0 else inside
        return self._left[-1] if time_ns == self._times[-1] else None

    def _time(self, x: float) -> float:
        """Return the time at a place, since the first."""
        for number, (begin, end) in enumerate(pairwise(self._times)):
            x0, x1 = self._right[number], self._left[number + 1]
            if x <= x1:
                share = max(0.0, x - x0) / (x1 - x0) if x1 > x0 else 0.0
                return begin - self._times[0] + share * (end - begin)
        return float(self._times[-1] - self._times[0])

    def _stand(self, edges: Sequence[GraphEdge]) -> dict[int, int]:
        """Return the slot of each node that takes no time, among those of its moment: behind those that it comes behind."""
        behind: dict[int, list[int]] = defaultdict(list)
        for edge in edges:
            if edge.first < edge.second:
                behind[edge.second].append(edge.first)
        slots: dict[int, int] = {}
        last: dict[tuple[int, str | None], int] = {}
        for place in self._drawn:
            node = self._nodes[place]
            if node.end_ns > node.start_ns:
                continue
            before = [slots[one] for one in behind[place] if one in slots and self._nodes[one].start_ns == node.start_ns]
            slot = 1 + max([last.get((node.start_ns, node.stream), -1), *before])
            slots[place] = last[node.start_ns, node.stream] = slot
        return slots

    def _find_cuts(self, folded: set[int]) -> dict[int, str]:
        """Return the parts of the axis in which only nodes run that are not drawn, and those in which none runs for long."""
        cuts: dict[int, str] = {}
        if not self._times:
            return cuts
        running = [0] * len(self._times)
        for place in self._drawn:
            for number in range(self._index[self._nodes[place].start_ns], self._index[self._nodes[place].end_ns]):
                running[number] += 1
        spans = [(self._nodes[place].start_ns, self._nodes[place].end_ns) for place in folded]
        for number, (begin, end) in enumerate(pairwise(self._times)):
            if running[number]:
                continue
            length = format_ns(end - begin)
            if any(begin < until and since < end for since, until in spans):
                cuts[number] = f"not drawn · {length}"
            elif end - begin > LONG_IDLE * (self._times[-1] - self._times[0]):
                cuts[number] = f"idle · {length}"
        return cuts

    def _width(self, place: int) -> float:
        node = self._nodes[place]
        text_px = LETTER_PX * max(cell_len(box_label(place, node)), len("running") * node.is_running) + 16
        return min(self._least_px, text_px)

    def _place(self, scale: float) -> float:
        """Place all times for a scale in px for each ns, as far left as can be; return the width."""
        ending: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for place in self._drawn:
            node = self._nodes[place]
            if place not in self._slots:
                ending[self._index[node.end_ns]].append((self._index[node.start_ns], self._width(place)))
        left, right = [0.0] * len(self._times), [0.0] * len(self._times)
        for number, time_ns in enumerate(self._times):
            if number:
                step_px = CUT_PX if number - 1 in self._cuts else scale * (time_ns - self._times[number - 1])
                left[number] = right[number - 1] + step_px
            for begin, least_px in ending[number]:
                left[number] = max(left[number], right[begin] + least_px)
            for ended in self._waits[number]:
                if ended < number:
                    left[number] = max(left[number], left[ended] + GAP_PX)
            pause_px = self._pauses[number] * (self._least_px + GAP_PX) + (GAP_PX if self._pauses[number] else 0)
            right[number] = left[number] + (max(pause_px, GAP_PX) if number in self._waits[number] else pause_px)
        self._left, self._right = left, right
        return right[-1]


def _add(parts: list[AxisPart], part: AxisPart) -> None:
    if part.x1 - part.x0 < 0.05:
        return
    if parts and parts[-1].kind == part.kind != "cut":
        parts[-1] = AxisPart(x0=parts[-1].x0, x1=part.x1, kind=part.kind)
    else:
        parts.append(part)
