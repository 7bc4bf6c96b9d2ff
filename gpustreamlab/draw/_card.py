"""The card above the lanes: how many SMs its work can have had, and its copies; one plan for the viewer and for pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpustreamlab.analysis import blocks_that_fit, counted_rows, counter_label, per_row, size_of, sm_kinds
from gpustreamlab.draw._colours import GREY
from gpustreamlab.model import CARD_COUNTERS, SPAN_KINDS, Device, SMLimits, Trace, WorkDetail, display_name
from gpustreamlab.typing import BoolArray, CaptureTier, FloatArray, Int64Array, SpanKind

if TYPE_CHECKING:
    from gpustreamlab.draw._scene import Scene

MOST_CARDS = 16  # Cards of which each has rows of its own; of more, all are one
HEIGHTS_PX = ((1, 64, 14), (2, 36, 10), (4, 24, 8), (MOST_CARDS, 18, 4))
"""For up to so many cards: height of the row of SMs, and of each row of copies."""
ROW_GAP_PX, CARD_GAP_PX = 2, 6  # Below each row, and below each card
MOST_COUNTERS, COUNTER_PX = 6, 14  # Rows of counters that are not of memory, at most, and the height of each
WORDS = {"in": "copy in", "out": "copy out", "peer": "peer copies"}
_SIGNS = {"in": "htod", "out": "dtoh", "peer": "ptop"}  # By which names of copies tell their way


MAX_SAMPLES = 4_000  # Samples of one line beyond which each stretch of time keeps its highest and its last


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CounterLine:
    """One quantity of one lane: each value holds until the next time."""

    lane: int  # Which lane
    time_ns: FloatArray  # When it changed, in ns since zero; shape (n,), float64, in order
    value: FloatArray  # To what; shape (n,), float64


def counts_bytes(trace: Trace) -> BoolArray:
    """Tell which samples are of memory, as the unit in their counter's name says; shape (n_samples,), bool."""
    is_bytes = np.array([name.endswith("bytes") for name in trace.counters.names], bool)
    found: BoolArray = is_bytes[trace.counters.name]
    return found


def only_counted(trace: Trace) -> BoolArray:
    """Tell which lanes have nothing but counters that the card's rows show; shape (n_lanes,), bool."""
    found = np.zeros(len(trace.lanes), bool)
    is_bytes = counts_bytes(trace)
    found[trace.counters.lane[~is_bytes]] = True
    found[trace.counters.lane[is_bytes]] = False
    found[trace.lane] = False
    return found


def counter_line(trace: Trace, lane: int, code: int, zero_ns: int) -> CounterLine:
    """Return what was measured of a counter in a lane, in order of time."""
    counters = trace.counters
    rows = np.flatnonzero((counters.lane == lane) & (counters.name == code))
    if counters.names[code].endswith("bytes"):
        rows = rows[np.isfinite(counters.value[rows])]
    rows = rows[np.argsort(counters.time_ns[rows], kind="stable")]
    time_ns, value = counters.time_ns[rows], np.nan_to_num(counters.value[rows])
    if counters.names[code] in CARD_COUNTERS and len(trace):
        value[~_is_of_run(time_ns, int(trace.start_ns.min()), int(trace.end_ns.max()))] = 0
    if len(rows) > MAX_SAMPLES:  # the highest and the last of equally many
        stretches = np.array_split(np.arange(len(rows)), MAX_SAMPLES // 2)
        kept = np.unique([place for part in stretches for place in (part[value[part].argmax()], part[-1])])
        time_ns, value = time_ns[kept], value[kept]
    return CounterLine(lane=lane, time_ns=(time_ns - zero_ns).astype(np.float64), value=value)


def _is_of_run(from_ns: Int64Array, begin_ns: int, end_ns: int) -> BoolArray:
    """Tell which means over time are of a run: half of their time at least, of the last one its begin; shape (n,), bool."""
    until_ns = np.append(from_ns[1:], end_ns)
    inside_ns = np.minimum(until_ns, end_ns) - np.maximum(from_ns, begin_ns)
    found: BoolArray = 2 * inside_ns >= until_ns - from_ns
    found[-1:] &= from_ns[-1:] >= begin_ns
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CardRow:
    """A row of a card, in px from the top of the picture."""

    device: int  # Number of the card; -1 where all are one
    kind: str  # ``"sms"``, the way of copies, ``"in"``, ``"out"`` or ``"peer"``, or ``"counter"``
    label: str  # What stands beside it
    most: float  # The top of its scale: SMs; 1 for copies
    top: float  # Upper border
    bottom: float  # Lower border
    lines: tuple[CounterLine, ...] = ()  # Of a counter, one for each lane that has samples of it


def plan_card(trace: Trace, top_px: float, zero_ns: int) -> tuple[tuple[CardRow, ...], float]:
    """Return the rows of all cards and of counters, from the top, and where what follows begins."""
    rows, y = _card_rows(trace, top_px)
    counters = _counter_lines(trace, zero_ns)
    for card, name, lines in counters:
        highest = sum(max(0.0, float(line.value.max())) for line in lines)
        most = max(highest, 100.0 * len(lines)) if name.endswith("_percent") else highest
        label = card + display_name(counter_label(name, most), 28)
        rows.append(CardRow(device=-1, kind="counter", label=label, most=most, top=y, bottom=y + COUNTER_PX, lines=lines))
        y += COUNTER_PX + ROW_GAP_PX
    return tuple(rows), y + (CARD_GAP_PX if counters else 0)


def _counter_lines(trace: Trace, zero_ns: int) -> list[tuple[str, str, tuple[CounterLine, ...]]]:
    """Return the counters that are no memory: their card, where there are several, their name, and lines.

    Those of the card come first, then those with most samples; of several cards fewer.
    """
    counters, found = trace.counters, []
    is_shown = ~counts_bytes(trace) & np.isfinite(counters.value)
    codes, counts = np.unique(counters.name[is_shown & (counters.value > 0)], return_counts=True)
    places = {name: place for place, name in enumerate(CARD_COUNTERS)}
    rank = [(places.get(counters.names[code], len(places)), -count) for code, count in zip(codes, counts, strict=True)]
    devices = {lane: trace.lanes[lane].device for lane in np.unique(counters.lane[is_shown]).tolist()}
    cards = sorted({*devices.values()})
    most = max(1, MOST_COUNTERS // max(1, len(cards)))
    for code in codes[sorted(range(len(codes)), key=rank.__getitem__)].tolist():
        lanes = np.unique(counters.lane[is_shown & (counters.name == code)]).tolist()
        for card in cards:
            lines = tuple(counter_line(trace, lane, code, zero_ns) for lane in lanes if devices[lane] == card)
            if any(line.value.any() for line in lines):
                found.append((f"GPU {card} " if len(cards) > 1 else "", counters.names[code], lines))
        if len({name for _, name, _ in found}) == most:
            break
    return found


def _card_rows(trace: Trace, top_px: float) -> tuple[list[CardRow], float]:
    cards = [card for card in trace.devices if card.sm_count]
    if not cards:
        return [], top_px
    is_one = len(cards) == 1 or len(cards) > MOST_CARDS
    sms_px, copy_px = next((sms, copy) for count, sms, copy in HEIGHTS_PX if len(cards) <= count or count == MOST_CARDS)
    if is_one:
        _, sms_px, copy_px = HEIGHTS_PX[0]
    ways = [] if trace.metadata.tier is CaptureTier.RANGES else ["in", "out", *(["peer"] if len(trace.devices) > 1 else [])]
    if len(trace) and not is_one:  # many rows: those in which nothing is tell little
        ways = [way for way in ways if copies_of(trace, way).any()]
    rows, y = [], top_px
    for card in [None] if is_one else cards:
        for kind in ("sms", *ways):
            height_px = sms_px if kind == "sms" else copy_px
            label = _label(card, cards, kind)
            sm_count = sum(one.sm_count for one in cards) if card is None else card.sm_count
            most, device = sm_count if kind == "sms" else 1, -1 if card is None else card.ordinal
            rows.append(CardRow(device=device, kind=kind, label=label, most=most, top=y, bottom=y + height_px))
            y += height_px + ROW_GAP_PX
        y += CARD_GAP_PX - ROW_GAP_PX
    return rows, y


def _label(card: Device | None, cards: Sequence[Device], kind: str) -> str:
    if kind != "sms":
        return WORDS[kind]
    if card is None:
        of = f"{len(cards):,} cards · " if len(cards) > 1 else ""
        return f"{of}{sum(one.sm_count for one in cards):,} SMs"
    host = f"{display_name(card.host, 16)} / " if card.host else ""
    return f"{host}GPU {card.ordinal} · {card.sm_count:,} SMs"


def detail_fit(detail: WorkDetail, limits: SMLimits) -> int:
    """Return how many blocks of a kernel fit on one SM at once, at least 1.

    Examples
    --------
    >>> detail_fit(WorkDetail(full_name="k", grid=(264, 1, 1), block=(512, 1, 1), registers=32), SMLimits())
    4
    """
    threads = max(1, detail.block_threads)
    shared = detail.static_shared_bytes + detail.dynamic_shared_bytes
    of_registers = limits.registers // max(1, threads * detail.registers)
    fit = min(limits.blocks, limits.threads // threads, of_registers, limits.shared_bytes // max(1, shared))
    return max(1, fit)


def span_sms(trace: Trace) -> Int64Array:
    """Return how many SMs each span can have had: those that its grid fills, at most those of its place; shape (n_spans,).

    0 for all that runs on no SMs. Of what has no grid, as a range, it is the place's: at most.
    """
    sms = np.array([*(size_of(trace, part).granted_sms for part in trace.partitions), 0], np.int64)[trace.partition]
    sms = np.where(trace.partition < 0, per_row(trace, [card.sm_count for card in trace.devices]), sms)
    if "grid_blocks" in trace.extra:
        blocks = trace.extra["grid_blocks"]
        is_kernel = (trace.kind == SPAN_KINDS.index(SpanKind.KERNEL)) & (blocks > 0)
        sms = np.where(is_kernel, np.minimum(sms, -(-blocks // blocks_that_fit(trace))), sms)
    is_range = trace.kind == SPAN_KINDS.index(SpanKind.RANGE)
    is_nested = is_range & (trace.parent >= 0) & is_range[trace.parent]  # the outermost has them already
    found: Int64Array = np.where(counted_rows(trace, sm_kinds(trace)) & ~is_nested, sms, 0)
    return found


def copies_of(trace: Trace, way: str) -> BoolArray:
    """Tell which spans are copies of a way; shape (n_spans,), bool."""
    names = np.array([_SIGNS[way] in name.lower() for name in trace.names], bool)
    found: BoolArray = names[trace.name] & (trace.kind == SPAN_KINDS.index(SpanKind.COPY))
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CardLayer:
    """What is stacked in a row of a card: all work of one colour in one partition."""

    band: int  # Place of the partition among the scene's bands, -1 for none
    hue: int  # Place of the colour
    mean: FloatArray  # Mean of each column of time; shape (n_columns,), float64


def card_layers(
    trace: Trace, scene: Scene, row: CardRow, weights: Mapping[str, Int64Array], edges_ns: FloatArray
) -> list[CardLayer]:
    """Return the layers of a row, from the bottom, as means between neighbouring edges, in ns since the scene's zero."""
    if row.lines:
        return [_counter_layer(scene, line, edges_ns) for line in row.lines]
    weight = weights[row.kind]
    is_here = np.array([row.device in (-1, lane.device) for lane in trace.lanes], bool)
    rows = np.flatnonzero(weight) if is_here.all() else np.flatnonzero((weight > 0) & is_here[trace.lane])
    bands = np.array([part.band for part in scene.partitions], np.int64)
    of_bands = np.array([*(band.style.hue for band in scene.bands), GREY], np.int64)[bands]
    is_split = (bands >= 0) & ~scene.has_own_hue[:, None]
    hues = np.where(is_split, of_bands, np.array(scene.lane_hues, np.int64)[:, None])
    keys = bands * (GREY + 1) + hues  # by lane and partition: both are few
    key = keys[trace.lane[rows], trace.partition[rows] + 1]
    layers = []
    for one in np.unique(keys).tolist():
        own = rows[key == one]
        if not len(own):
            continue
        start_ns, end_ns = ((column[own] - scene.zero_ns).astype(np.float64) for column in (trace.start_ns, trace.end_ns))
        band, hue = divmod(one, GREY + 1)
        layers.append(CardLayer(band=band, hue=hue, mean=_means(start_ns, end_ns, weight[own], edges_ns)))
    return layers


def _counter_layer(scene: Scene, line: CounterLine, edges_ns: FloatArray) -> CardLayer:
    """Treat each value as work that lasts until the next one."""
    end_ns = np.append(line.time_ns[1:], max(scene.width_ns, edges_ns[-1], line.time_ns[-1]))
    mean = _means(line.time_ns, end_ns, np.maximum(line.value, 0), edges_ns)
    return CardLayer(band=-1, hue=scene.lane_hues[line.lane], mean=mean)


def row_weights(trace: Trace, rows: Sequence[CardRow]) -> dict[str, Int64Array]:
    """Return for each kind of row what each span takes: SMs, or 1 of a copy's way; shape (n_spans,) each."""
    kinds = dict.fromkeys(row.kind for row in rows if not row.lines)
    return {kind: span_sms(trace) if kind == "sms" else copies_of(trace, kind).astype(np.int64) for kind in kinds}


def _means(
    start_ns: Int64Array | FloatArray, end_ns: Int64Array | FloatArray, weight: Int64Array | FloatArray, edges_ns: FloatArray
) -> FloatArray:
    """Return the mean of the sum of all weights between neighbouring edges."""

    def until(times_ns: Int64Array | FloatArray) -> FloatArray:
        """Add up, at each edge, for how long each time has passed, times its weight."""
        place = np.searchsorted(edges_ns, times_ns, side="right").astype(np.intp, copy=False)
        bins = (np.bincount(place, some, len(edges_ns) + 1)[:-1] for some in (weight, weight * times_ns.astype(np.float64)))
        sums, moments = map(np.cumsum, bins)
        found: FloatArray = sums * edges_ns - moments
        return found

    means: FloatArray = np.maximum(0, np.diff(until(start_ns) - until(end_ns)) / np.diff(edges_ns))
    return means


Area = tuple[CardLayer, FloatArray, FloatArray]  # A layer, and the lower and the upper border of what it takes


def stack_layers(layers: Sequence[CardLayer], own: FloatArray, most: float) -> list[Area]:
    """Stack layers, never higher than the scale: each partition at the place of its own SMs, all else in what is free.

    Parameters
    ----------
    own
        How many SMs each partition keeps for itself; shape (n_columns, n_partitions).
    """
    areas, base, free = list[Area](), np.zeros(len(own)), list[tuple[FloatArray, FloatArray]]()
    for band in range(own.shape[1]):
        of_band = [layer for layer in layers if layer.band == band]
        share, high = _share(of_band, np.where(own[:, band] > 0, own[:, band], most)), base
        for layer in of_band:
            areas.append((layer, high, high + layer.mean * share))
            high = areas[-1][2]
        free.append((high, np.maximum(high, base + own[:, band])))
        base = free[-1][1]
    free.append((base, np.maximum(base, most)))
    others = [layer for layer in layers if not 0 <= layer.band < own.shape[1]]
    share = _share(others, sum((top - low for low, top in free), np.zeros(len(own))))
    for layer in others:
        left = layer.mean * share
        for place, (low, top) in enumerate(free):  # it may lie in several places
            taken = np.minimum(left, top - low)
            if (taken > 0).any():
                areas.append((layer, low, low + taken))
            free[place], left = (low + taken, top), left - taken
    return areas


def _share(layers: Sequence[CardLayer], room: FloatArray) -> FloatArray:
    """Return by how much layers are lower than they would be, where there is less room: more work than SMs shares them."""
    total = sum((layer.mean for layer in layers), np.zeros(len(room)))
    share: FloatArray = np.minimum(1.0, room / np.maximum(total, 1e-9))
    return share
