"""Where the texts of a picture are, measured with the letters of Roboto: no estimate of our own."""

from __future__ import annotations

import re
from functools import cache
from xml.etree import ElementTree as ET

import font_roboto
from fontTools.ttLib import TTFont

SVG = "{http://www.w3.org/2000/svg}"
WIDER = 1.04
"""Helvetica and Arial are so much wider, and may stand in."""


@cache
def _letters(name):
    font = TTFont(font_roboto.font_files[name])
    return font.getBestCmap(), font["hmtx"].metrics, font["head"].unitsPerEm


def width_of(text, size, *, is_bold=False):
    """Return how wide a text is; letters that Roboto lacks are as wide as high."""
    signs, metrics, em = _letters("RobotoBold" if is_bold else "Roboto")
    return size * WIDER * sum(metrics[signs[ord(sign)]][0] / em if ord(sign) in signs else 1.0 for sign in text)


def text_boxes(svg):
    """Return the left, right and base line of each text in the units of the picture, its size, and the text itself."""
    root, found = ET.fromstring(svg), []

    def walk(element, x, y, look):
        outer_size = float(look.get("font-size", 16))
        look = {
            **look,
            **{name: element.get(name) for name in ("font-size", "font-weight", "text-anchor") if element.get(name)},
        }
        if str(look.get("font-size")).endswith("%"):
            look["font-size"] = outer_size * float(look["font-size"][:-1]) / 100
        moved = re.fullmatch(r"translate\(([-\d.]+) ([-\d.]+)\)", element.get("transform", ""))
        assert moved or "transform" not in element.attrib or element.tag == f"{SVG}path"
        if moved:
            x, y = x + float(moved[1]), y + float(moved[2])
        if element.tag != f"{SVG}text":
            for child in element:
                walk(child, x, y, look)
            return
        size, is_bold = float(look.get("font-size", 16)), look.get("font-weight", "400") >= "600"
        width = width_of(element.text or "", size, is_bold=is_bold)
        width += sum(float(part.get("dx", 0)) + width_of(part.text or "", size) for part in element)
        left = x + float(element.get("x")) - width * {"start": 0, "middle": 0.5, "end": 1}[look.get("text-anchor", "start")]
        found.append((left, left + width, y + float(element.get("y")), size, "".join(element.itertext())))

    walk(root, 0.0, 0.0, {})
    return found


def check_texts_within(svg):
    """Raise where a text reaches beyond the picture."""
    left, top, width, height = map(float, ET.fromstring(svg).get("viewBox").split())
    boxes = text_boxes(svg)
    assert boxes
    beyond = [
        box
        for box in boxes
        if box[0] < left - 1 or box[1] > left + width + 1 or box[2] - 0.75 * box[3] < top or box[2] > top + height
    ]
    assert not beyond
