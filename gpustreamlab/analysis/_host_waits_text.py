"""Waits of the host in words and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpustreamlab.analysis._report import Report, ReportTable
from gpustreamlab.analysis._units import format_ns, format_share
from gpustreamlab.model import display_name
from gpustreamlab.typing import CaptureTier

if TYPE_CHECKING:
    from gpustreamlab.analysis._host_waits import HostWaits, WaitGroup

LISTED_GROUPS = 20
"""How many groups the table lists."""
_NAME_WIDTH = 32


def wait_line(result: HostWaits) -> str:
    """Say which thread waited longest, and where, in one line."""
    if not result.call_count:
        return _nothing_captured(result)
    if not result.waited_ns.any():  # calls that took no time, or that lie outside of what was captured
        return "no call of the host waited for the device"
    lane = int(result.waited_ns.argmax())
    thread = result.lanes[lane].name
    mine = [group for group in result.groups if group.thread == thread]
    calls = "in" if len(mine) == 1 else "most of it in"
    comma = "" if len(mine) == 1 else ","
    times = f"{mine[0].call_count:,} call{'' if mine[0].call_count == 1 else 's'}"
    awaited = f" for {display_name(mine[0].waited_for, _NAME_WIDTH)}" if mine[0].waited_for else ""
    return (
        f"{thread_text(thread)} waited {format_share(float(result.share[lane]))} of the time{comma} {calls} "
        f"{display_name(mine[0].call, _NAME_WIDTH)}: {times}, the longest {format_ns(mine[0].longest_ns)}{awaited}"
    )


def wait_report(result: HostWaits) -> Report:
    """Say all of it: which call of which thread waited how long, and for what."""
    groups = result.groups
    rows = [["call", "thread", "calls", "total", "share", "longest", "waited for"]]
    rows += [_row(result, group) for group in groups[:LISTED_GROUPS]]
    more = len(groups) - LISTED_GROUPS
    rows += [[f"… {more:,} more: see .to_pandas()", *[""] * 6]] if more > 0 else []
    caption = "Calls that blocked the host, and what the longest of them waited for"
    tables = (ReportTable(caption=caption, rows=rows, names=(0, 1, 6)),) if groups else ()
    notes = ["What a call waited for is most probably the last work that ended while it ran, on any stream."] if groups else []
    if result.metadata.simulated:
        notes.append(f"Simulated: {result.metadata.device.label}. No hardware stands behind these times.")
    return Report(title="Host:", line=wait_line(result), tables=tables, notes=tuple(notes))


def thread_text(lane: str) -> str:
    """Name a thread by its lane.

    Examples
    --------
    >>> thread_text("host: MainThread")
    'MainThread'
    """
    return display_name(lane.removeprefix("host: "), _NAME_WIDTH)


def _nothing_captured(result: HostWaits) -> str:
    """Say that calls were not captured, and what to type."""
    if result.metadata.tier is CaptureTier.KERNELS:
        return "no calls of the host were captured: capture them with lab.capture('kernels'), without host=False"
    return "calls of the host were not captured, only ranges: capture them with lab.capture('kernels')"


def _row(result: HostWaits, group: WaitGroup) -> list[str]:
    share = group.total_ns / result.captured_ns if result.captured_ns else float("nan")
    return [
        display_name(group.call, _NAME_WIDTH),
        thread_text(group.thread),
        f"{group.call_count:,}",
        format_ns(group.total_ns),
        format_share(share),
        format_ns(group.longest_ns),
        display_name(group.waited_for, _NAME_WIDTH) if group.waited_for else "-",
    ]
