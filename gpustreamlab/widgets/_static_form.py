"""The partitioner where no widget can run: as text, and as HTML without scripts."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from gpustreamlab.draw import NO_PARTITION_FILL

_MARK = "SIMULATED "


def text_form(view: Mapping[str, Any]) -> str:
    """Return the Python line and the table of partitions as text."""
    device = view["device"]
    head = f"SM partitions of {device['name']}: {_MARK if device['is_simulated'] else ''}{device['facts']}"
    lines = [head, *_state_lines(view)]
    rows = [["", "partition", "requested", "granted"], *(_cells(row) for row in view["rows"])]
    if len(rows) > 1:
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines += [
            f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}" for row in rows
        ]
    lines.append(_rest_text(view))
    return "\n".join(line for line in [*lines, view["python_line"]] if line)


def html_form(view: Mapping[str, Any]) -> str:
    """Return a strip of the card, the table and the Python line as HTML without scripts."""
    device = view["device"]
    left, right = "style='text-align:left'", "style='text-align:right'"
    mark = "<strong>SIMULATED</strong> " if device["is_simulated"] else ""
    head = "".join(
        f"<th {side}>{text}</th>"
        for side, text in ((left, ""), (left, "partition"), (right, "requested SMs"), (right, "granted SMs"))
    )
    rows = "".join(
        f"<tr><td style='background:{row['fill']};color:#101418'>{row['letter']}</td>"
        f"<td {left}>{escape(row['name'])}</td><td {right}>{escape(row['request'])}</td>"
        f"<td {right}>{_number(row['granted_sms'])}</td></tr>"
        for row in view["rows"]
    )
    table = f"<table><tr>{head}</tr>{rows}</table>" if rows else ""
    notes = "".join(f"<p>{escape(line)}</p>" for line in [*_state_lines(view), _rest_text(view)] if line)
    line = f"<p><code>{escape(view['python_line'])}</code></p>" if view["python_line"] else ""
    return (
        f"<div><p><strong>SM partitions of {escape(device['name'])}</strong> {mark}{escape(device['facts'])}</p>"
        f"{_strip(view)}{table}{notes}{line}</div>"
    )


def _state_lines(view: Mapping[str, Any]) -> list[str]:
    problem = view["problem"]
    draft = "A draft: not in use." if view["is_dirty"] and problem is None else ""
    return [view["obstacle"], "" if problem is None else problem["text"], draft]


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [row["letter"], row["name"], row["request"], _number(row["granted_sms"])]


def _number(sms: int | None) -> str:
    return "–" if sms is None else str(sms)


def _rest_text(view: Mapping[str, Any]) -> str:
    if view["obstacle"] or view["problem"]:
        return ""
    if not view["rows"]:
        return f"No partitions: every stream may use all {view['device']['sm_count']} SMs."
    return f"{_rest_sms(view)} SMs are in no partition."


def _rest_sms(view: Mapping[str, Any]) -> int:
    return max(0, int(view["device"]["sm_count"]) - sum(int(run["sms"]) for run in view["runs"]))


def _strip(view: Mapping[str, Any]) -> str:
    """Return the card as one bar, each partition as wide as its share."""
    total = view["device"]["sm_count"]
    rows = {row["key"]: row for row in view["rows"]}
    parts = [(rows[run["key"]]["fill"], rows[run["key"]]["letter"], run["sms"]) for run in view["runs"]]
    parts.append((NO_PARTITION_FILL, "", _rest_sms(view)))
    spans = "".join(
        f"<span style='display:inline-block;width:{100 * sms / total:.2f}%;background:{fill};color:#101418;"
        f"text-align:center;line-height:22px;height:22px'>{letter or '&#8203;'}</span>"
        for fill, letter, sms in parts
        if sms
    )
    return f"<div style='max-width:640px;font-size:0'><div style='font-size:12px'>{spans}</div></div>"
