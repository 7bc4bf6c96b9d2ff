"""How a name looks: a colour, and a hatch that tells names of one colour apart."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpustreamlab.analysis import name_group
from gpustreamlab.typing import SpanKind

PALETTE = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#0072B2", "#F0E442", "#D55E00")
"""Colours that people with any kind of colour blindness tell apart. Source: Okabe and Ito, Color Universal Design, 2008."""

NAME_HATCHES = (" ", "/", "-", "|")
"""The second sign of a name beside its colour, as Bokeh writes hatches; the first is none."""

KIND_HATCHES = {SpanKind.COPY: "\\", SpanKind.FILL: ".", SpanKind.WAIT: "x"}
"""Hatches of spans that are no range, no kernel and no call; they win over the name's."""

KIND_FILLS = {SpanKind.WAIT: "#b4bac0"}
"""Colours of spans in which the device does nothing; they win over the name's."""

DARK_TEXT, LIGHT_TEXT = "#101418", "#ffffff"


PARTITION_PALETTE = ("#BBCC33", "#FFAABB", "#99DDFF", "#AAAA00", "#77AADD", "#EE8866", "#44BB99", "#EEDD88")
"""Colours of partitions: paler than those of names, and told apart as well. Source: Paul Tol, Colour Schemes, 2021, "light"."""

PARTITION_HATCHES = (" ", "/", "-", "\\", "|", "x", ".", "+")
"""The second sign of a partition beside its colour, as Bokeh writes hatches; the third is a letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStyle:
    """How a partition looks, in the timeline and on the map of the card."""

    fill: str
    """Its colour, ``#rrggbb``."""
    hatch: str
    """Hatch over it, as Bokeh writes it; a space is none."""
    letter: str
    """Its letters; empty for the whole card."""


WHOLE_CARD_STYLE = PartitionStyle(fill="#c3c9d0", hatch=" ", letter="")
"""How the whole card looks, and SMs in no partition."""


def partition_style(index: int) -> PartitionStyle:
    """Choose how a partition looks by its place in the layout.

    Parameters
    ----------
    index
        Its place, from 0.

    Returns
    -------
    PartitionStyle
        The first 8 differ in colour and in hatch, the first 64 in both together, and all in their letters.

    Examples
    --------
    >>> partition_style(0).letter, partition_style(25).letter, partition_style(26).letter
    ('A', 'Z', 'AA')
    """
    colours, hatches = len(PARTITION_PALETTE), len(PARTITION_HATCHES)
    return PartitionStyle(
        fill=PARTITION_PALETTE[index % colours],
        hatch=PARTITION_HATCHES[(index + index // colours) % hatches],
        letter=_letters(index),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NameStyle:
    """How the bars of one name look."""

    fill: str
    """Colour of the bar, ``#rrggbb``."""
    hatch: str
    """Hatch over it, as Bokeh writes it; a space is none."""
    text: str
    """Colour of text on the bar that is easy to read, ``#rrggbb``."""


CALL_STYLES: Mapping[str, NameStyle] = {
    "launch": NameStyle(fill="#8fa6bd", hatch=" ", text=DARK_TEXT),
    "synchronise": NameStyle(fill="#b3123c", hatch="x", text=LIGHT_TEXT),
    "memory": NameStyle(fill="#b08fd0", hatch=".", text=DARK_TEXT),
    "event": NameStyle(fill="#c3c9d0", hatch="|", text=DARK_TEXT),
}
"""How calls of the host look, by what they are for: a synchronisation stands out, since the host only waits meanwhile."""

_CALL = re.compile(r"(?:cu|cuda)[A-Z]\w*")
_CALL_CLASSES = (
    ("synchronise", re.compile(r"Synchronize")),
    ("memory", re.compile(r"Malloc|Free|Mem(?:Host)?Alloc|HostAlloc|MemPool|MemMap|MemCreate")),
    ("launch", re.compile(r"Launch|Memcpy|Memset|MemPrefetch")),
    ("event", re.compile(r"Event")),
)


def call_class(name: str) -> str:
    """Say what a call of the CUDA driver or runtime is for; an empty text for any other name.

    Examples
    --------
    >>> call_class("cuLaunchKernel"), call_class("cudaStreamSynchronize"), call_class("cuStreamWaitEvent"), call_class("gemm")
    ('launch', 'synchronise', 'event', '')
    """
    if not _CALL.fullmatch(name):
        return ""
    return next((label for label, sign in _CALL_CLASSES if sign.search(name)), "")


def name_styles(names: Sequence[str]) -> tuple[NameStyle, ...]:
    """Choose how each name looks.

    Calls of CUDA look as what they are for. Any other name gets the colour that the letters of its group choose, and the next
    free one where an earlier group has that; names that differ by a number are one group, see `name_group`. So a name keeps its
    look from run to run unless names before it claim it, and never changes when more names follow.

    Parameters
    ----------
    names
        Distinct names, in the order in which they first appeared.

    Returns
    -------
    tuple of NameStyle
        The first 7 groups differ in colour, the first 28 in colour and hatch together; beyond that looks repeat.
    """
    return NameLooks().add(names)


class NameLooks:
    """The looks of names that become more and more."""

    def __init__(self) -> None:
        self._by_group: dict[str, NameStyle] = {}
        self._taken: set[int] = set()

    def add(self, names: Sequence[str]) -> tuple[NameStyle, ...]:
        """Return the look of each name, of those that were added before too; see `name_styles`."""
        for group in dict.fromkeys(name_group(name) for name in names if not call_class(name)):
            if group not in self._by_group:
                self._by_group[group] = _style(self._slot(zlib.crc32(group.encode())))
        return tuple(CALL_STYLES[label] if (label := call_class(name)) else self._by_group[name_group(name)] for name in names)

    def _slot(self, number: int) -> int:
        looks, taken = len(PALETTE) * len(NAME_HATCHES), self._taken
        if len(taken) == looks:
            return number % looks
        first = len(taken) // len(PALETTE) * len(PALETTE)
        slot = next(slot for step in range(len(PALETTE)) if (slot := first + (number + step) % len(PALETTE)) not in taken)
        taken.add(slot)
        return slot


def text_colour(fill: str) -> str:
    """Return the text colour with the higher contrast on a fill. Source: relative luminance, WCAG 2.2.

    Examples
    --------
    >>> text_colour("#F0E442"), text_colour("#0072B2")
    ('#101418', '#ffffff')
    """
    luminance = _luminance(fill)
    on_light = (luminance + 0.05) / (_luminance(DARK_TEXT) + 0.05)
    on_dark = 1.05 / (luminance + 0.05)
    return DARK_TEXT if on_light >= on_dark else LIGHT_TEXT


def _letters(index: int) -> str:
    letters = ""
    while index >= 0:
        index, place = divmod(index, 26)
        letters = chr(ord("A") + place) + letters
        index -= 1
    return letters


def _style(slot: int) -> NameStyle:
    fill = PALETTE[slot % len(PALETTE)]
    # Hatches go round faster than colours, so that neighbours in the legend differ in both, and no look comes twice.
    hatch = NAME_HATCHES[(slot + 2 * (slot // len(PALETTE))) % len(NAME_HATCHES)]
    return NameStyle(fill=fill, hatch=hatch, text=text_colour(fill))


def _luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


HATCH_PATHS = {
    "/": "M-2 10L10 -2M-2 2L2 -2M6 10L10 6",
    "\\": "M-2 -2L10 10M6 -2L10 2M-2 6L2 10",
    "-": "M0 4H8",
    "|": "M4 0V8",
    "x": "M0 0L8 8M8 0L0 8",
    "+": "M4 0V8M0 4H8",
    ".": "M4 3V5",
}
"""The lines of each hatch, within a square of 8 by 8."""

_NUMBERS = {sign: str(number) for number, sign in enumerate(HATCH_PATHS)}


def hatch_fill(sign: str) -> str:
    """Return what fills a shape with a hatch, or an empty text where the sign is none."""
    return f"url(#h{_NUMBERS[sign]})" if sign in _NUMBERS else ""


def hatch_patterns() -> str:
    """Define all hatches, for the ``defs`` of a picture."""
    return "".join(
        f'<pattern id="h{_NUMBERS[sign]}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<path d="{path}" stroke="#101418" stroke-opacity=".4" fill="none"/></pattern>'
        for sign, path in HATCH_PATHS.items()
    )
