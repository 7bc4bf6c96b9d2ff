"""How things look: hues that tell partitions or streams, tints of them that tell names, hatches for who switches them on."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpustreamlab.analysis import name_group
from gpustreamlab.typing import SpanKind

HUES = (
    ("#56b4e9", "#3395c9", "#45a5d9", "#1f86b9"),
    ("#e69f00", "#bc8100", "#d19005", "#a97406"),
    ("#009e73", "#3dbd90", "#27ad81", "#50cc9e"),
    ("#cc79a7", "#f19bca", "#de8ab8", "#ba6896"),
    ("#d55e00", "#fc813a", "#e86f24", "#fe9d6b"),
    ("#f0e442", "#b6ab01", "#c6ba01", "#a59b09"),
    ("#9568e3", "#b28cfc", "#a478f4", "#bea2fa"),
    ("#8cba7b", "#6e9b5d", "#7daa6c", "#5f8b4f"),
    ("#808fee", "#a5b2f7", "#909ffb", "#707fdd"),
    ("#c255b5", "#e475d6", "#d365c5", "#f584e6"),
    ("#d6a5b3", "#b58694", "#c696a3", "#a67785"),
    ("#6e8843", "#8ba761", "#7d9752", "#9bb770"),
)
"""Hues, each in its tints. The first six are colours that people with any kind of colour blindness tell apart (source: Okabe
and Ito, Color Universal Design, 2008); the next six are as far from those, and from each other, as the same eyes allow. Other
tints are lighter or darker by steps of about 0.05 of OKLab. Dark text can be read on all, and all but the first yellow and
grey, which darker would be taken for other hues, stand out from white by 2:1."""

GREY = len(HUES)  # The place behind the hues: what belongs to no partition, or to several

GREY_TINTS = ("#c3c9d0", "#a0a6ad", "#b1b7be", "#90959c")
"""Its tints."""

NAME_HATCHES = (" ", "/", "-", "|")  # The second sign of a name beside its tint, as Bokeh writes hatches; the first is none

KIND_HATCHES = {SpanKind.COPY: "\\", SpanKind.FILL: ".", SpanKind.WAIT: "x"}
"""Hatches of spans that are no range, no kernel and no call; they win over the name's."""

STRAY_COLOUR = "#c40d2e"
"""The corner on work that left its stream, and the sign of a hazard."""

DARK_TEXT = "#101418"
"""Text on every fill."""

PARTITION_HATCHES = (" ", "/", "-", "\\", "|", "x", ".", "+")
"""The second sign of a partition beside its hue, as Bokeh writes hatches; the third is a letter."""


def fill_of(hue: int, tint: int = 0) -> str:
    """Return the colour of a tint of a hue, ``#rrggbb``; of `GREY` too."""
    return (*HUES, GREY_TINTS)[hue][tint]


def all_fills() -> list[str]:
    """Return every colour that a bar can have."""
    return [fill for tints in (*HUES, GREY_TINTS) for fill in tints] + [style.fill for style in CALL_STYLES.values()]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStyle:
    """How a partition looks, in the timeline and on the map of the card."""

    hue: int  # Place of its hue, see `HUES`
    hatch: str  # Hatch over it where hatches are on, as Bokeh writes it; a space is none
    letter: str  # Its letters; empty for the whole card

    @property
    def fill(self) -> str:
        """Its colour, ``#rrggbb``."""
        return fill_of(self.hue)


WHOLE_CARD_STYLE = PartitionStyle(hue=GREY, hatch=" ", letter="")  # How the whole card looks, and SMs in no partition


def partition_style(index: int) -> PartitionStyle:
    """Choose how a partition looks by its place in the layout.

    Examples
    --------
    >>> partition_style(0).letter, partition_style(25).letter, partition_style(26).letter
    ('A', 'Z', 'AA')
    """
    hatches = len(PARTITION_HATCHES)
    return PartitionStyle(
        hue=index % GREY,
        # Hues come again sooner than hatches: after both have, hatches move on, so that no pair comes twice.
        hatch=PARTITION_HATCHES[(index + index // (3 * hatches)) % hatches],
        letter=_letters(index),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NameStyle:
    """How the bars of one name look."""

    hue: int  # Place of its hue where colour tells names, see `HUES`; behind `GREY` where it is a call, see `CALL_STYLES`
    tint: int  # Which tint of whatever hue its bars have
    hatch: str  # Hatch over it where hatches are on, as Bokeh writes it; a space is none


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStyle:
    """How calls of the host look."""

    fill: str  # Colour of the bar, ``#rrggbb``
    hatch: str  # Hatch over it where hatches are on
    is_hollow: bool = False  # Whether the host only waits meanwhile: then it is an outline


CALL_STYLES: Mapping[str, CallStyle] = {
    "launch": CallStyle(fill="#8fa6bd", hatch=" "),
    "synchronise": CallStyle(fill="#d6506f", hatch="x", is_hollow=True),
    "memory": CallStyle(fill="#b08fd0", hatch="."),
    "event": CallStyle(fill="#c3c9d0", hatch="|"),
    "create": CallStyle(fill="#c9b458", hatch="/"),
}  # How calls of the host look, by what they are for: a synchronisation is hollow, since the host only waits meanwhile

_CALL = re.compile(r"(?:cu|cuda)[A-Z]\w*")
_CALL_CLASSES = (
    ("synchronise", re.compile(r"Synchronize")),
    ("memory", re.compile(r"Malloc|Free|Mem(?:Host)?Alloc|HostAlloc|MemPool|MemMap|MemCreate")),
    ("launch", re.compile(r"Launch|Memcpy|Memset|MemPrefetch")),
    ("event", re.compile(r"Event")),
    ("create", re.compile(r"Create|Instantiate")),
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

    Calls of CUDA look as what they are for. Any other name gets the tint and the hue that the letters of its group choose, and
    the next free ones where earlier groups have those; names that differ by a number are one group, see `name_group`. So a name
    keeps its look from run to run unless names before it claim it, and never changes when more names follow.
    """
    return NameLooks().add(names)


class NameLooks:
    """The looks of names that become more and more."""

    def __init__(self) -> None:
        self._by_group: dict[str, NameStyle] = {}
        self._hues: set[int] = set()
        self._tints: set[int] = set()

    def add(self, names: Sequence[str]) -> tuple[NameStyle, ...]:
        """Return the look of each name, of those that were added before too; see `name_styles`."""
        for group in dict.fromkeys(name_group(name) for name in names if not call_class(name)):
            if group not in self._by_group:
                self._by_group[group] = self._next_style(zlib.crc32(group.encode()))
        return tuple(_CALL_LOOKS.get(call_class(name)) or self._by_group[name_group(name)] for name in names)

    def _next_style(self, number: int) -> NameStyle:
        tints = len(GREY_TINTS)
        hue, tint = _deal(self._hues, number, GREY), _deal(self._tints, number // GREY, tints)
        # Names of one tint differ in their hatches, as long as there are any.
        return NameStyle(hue=hue, tint=tint, hatch=NAME_HATCHES[(tint + len(self._by_group) // tints) % len(NAME_HATCHES)])


def _deal(taken: set[int], number: int, count: int) -> int:
    """Take the place that a number chooses of so many, or the next free one; where all are taken, all are free again."""
    if len(taken) == count:
        taken.clear()
    place = next(free for step in range(count) if (free := (number + step) % count) not in taken)
    taken.add(place)
    return place


def _letters(index: int) -> str:
    letters = ""
    while index >= 0:
        index, place = divmod(index, 26)
        letters = chr(ord("A") + place) + letters
        index -= 1
    return letters


_CALL_LOOKS = {
    label: NameStyle(hue=GREY + 1 + place, tint=0, hatch=style.hatch)
    for place, (label, style) in enumerate(CALL_STYLES.items())
}


def palette_entries() -> dict[str, list[list[str]]]:
    """Write the palette as the viewer reads it: tints of all hues and of grey, calls; and what calls there are."""
    calls = [[style.fill] * len(GREY_TINTS) for style in CALL_STYLES.values()]
    return {
        "palette": [list(tints) for tints in (*HUES, GREY_TINTS, *calls)],
        "call_styles": [[label, style.hatch, "hollow" if style.is_hollow else ""] for label, style in CALL_STYLES.items()],
    }


def style_entries(styles: Iterable[NameStyle]) -> list[list[Any]]:
    """Write the looks of names as the viewer reads them: hue, tint and hatch."""
    return [[style.hue, style.tint, style.hatch] for style in styles]


HATCH_PATHS = {
    "/": "M-2 10L10 -2M-2 2L2 -2M6 10L10 6",
    "\\": "M-2 -2L10 10M6 -2L10 2M-2 6L2 10",
    "-": "M0 4H8",
    "|": "M4 0V8",
    "x": "M0 0L8 8M8 0L0 8",
    "+": "M4 0V8M0 4H8",
    ".": "M4 3V5",
}  # The lines of each hatch, within a square of 8 by 8

_NUMBERS = {sign: str(number) for number, sign in enumerate(HATCH_PATHS)}


HATCH_CLASS = 'class="gsl-over" display="none"'
"""What a shape with a hatch has in a picture: it is seen in print and in high contrast."""

Shape = Literal["solid", "hollow", "open"]  # Work; waiting around it; a range in which nobody knows when work ran

OPEN_ALPHA = 0.2  # How opaque is what was queued or running, nobody knows which
OPEN_STRIP_ALPHA = 0.4  # How opaque a strip is that counts such
LINE_SHARE = 0.55  # How much of its colour an outline has; the rest is ink


def hatch_fill(sign: str) -> str:
    """Return what fills a shape with a hatch, or an empty text where the sign is none."""
    return f"url(#h{_NUMBERS[sign]})" if sign in _NUMBERS else ""


def hatch_patterns() -> str:
    """Define all hatches, for the ``defs`` of a picture; on a screen `HATCH_CLASS` shows in print and high contrast alone."""
    patterns = "".join(
        f'<pattern id="h{_NUMBERS[sign]}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<path d="{path}" stroke="{DARK_TEXT}" stroke-opacity=".4" fill="none"/></pattern>'
        for sign, path in HATCH_PATHS.items()
    )
    media = "print,(prefers-contrast:more),(forced-colors:active)"
    return f"<style>@media {media}{{.gsl-over{{display:inline}}}}</style>{patterns}"


def line_of(fill: str, ink: str) -> str:
    """Return the colour of outlines: mixed with ink, so that they stand out from the paper.

    Examples
    --------
    >>> line_of("#f0e442", "#1b1f24")
    '#908b34'
    """
    pairs = ((int(fill[place : place + 2], 16), int(ink[place : place + 2], 16)) for place in (1, 3, 5))
    return "#" + "".join(f"{round(LINE_SHARE * own + (1 - LINE_SHARE) * other):02x}" for own, other in pairs)
