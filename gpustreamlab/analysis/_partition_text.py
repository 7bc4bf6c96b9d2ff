"""Partitions in words: sizes, proofs, changes."""

from __future__ import annotations

from gpustreamlab.model import Layout, Partition, display_name

NAME_LIMIT = 24
"""How many characters of a partition's name are shown."""

LISTED_CHANGES = 4
"""How many partitions a change of the layout names."""


def sms_text(granted_sms: int, requested_sms: int) -> str:
    """Write how many SMs a partition has, and how many were asked for where that differs.

    Examples
    --------
    >>> sms_text(96, 90), sms_text(32, 32)
    ('96 SMs (asked for 90)', '32 SMs')
    """
    asked = f" (asked for {requested_sms:,})" if requested_sms != granted_sms else ""
    return f"{granted_sms:,} SM{'' if granted_sms == 1 else 's'}{asked}"


def proof_text(partition: Partition, layout: Layout) -> str:
    """Say what measuring a partition's SMs showed; empty where it was not measured.

    Examples
    --------
    >>> small = Partition(name="small", requested_sms=2, granted_sms=2, sm_ids=(0, 1))
    >>> proof_text(small, Layout(partitions=(small,)))
    'verified'
    """
    if partition.sm_ids is None:
        return ""
    seen = set(partition.sm_ids)
    shared = [
        f"shares {count:,} SM{'' if count == 1 else 's'} with {display_name(other.name, NAME_LIMIT)}"
        for other in layout
        if other is not partition and other.sm_ids is not None and (count := len(seen & set(other.sm_ids)))
    ]
    complete = len(seen) == partition.granted_sms
    facts = [] if complete else [f"{len(seen):,} of {partition.granted_sms:,} SMs seen"]
    return ", ".join([*facts, *shared]) or "verified"


def change_text(before: Layout | None, after: Layout | None) -> str:
    """Say how one layout became another; empty where no partition changed its size.

    Examples
    --------
    >>> first = Layout(partitions=(Partition(name="prefill", requested_sms=96, granted_sms=96),))
    >>> second = Layout(partitions=(Partition(name="prefill", requested_sms=64, granted_sms=64),))
    >>> change_text(first, second), change_text(None, first), change_text(second, None)
    ('prefill 96→64', 'prefill 96 SMs', 'no partitions')
    """
    old, new = _sizes(before), _sizes(after)
    if old == new and _enforced(before) == _enforced(after):
        return ""
    if not new:
        return "no partitions"
    facts = [_fact(name, old.get(name), count) for name, count in new.items() if old.get(name) != count]
    facts += [f"{display_name(name, NAME_LIMIT)} gone" for name in old if name not in new]
    more = len(facts) - LISTED_CHANGES
    shown = ", ".join(facts[:LISTED_CHANGES]) + (f" and {more:,} more" if more > 0 else "")
    return shown if _enforced(after) else " ".join(filter(None, (shown, "(not enforced)")))


def layout_warnings(layout: Layout | None) -> list[str]:
    """Say what about a layout is not as its numbers read."""
    if layout is None or not layout.partitions:
        return []
    if not layout.is_enforced:
        return ["Layout not enforced: SMs cannot be partitioned here, so every stream may use the whole card"]
    return [
        f"Partition {display_name(part.name, NAME_LIMIT)}: {proof}"
        for part in layout
        if (proof := proof_text(part, layout)) not in {"", "verified"}
    ]


def _sizes(layout: Layout | None) -> dict[str, int]:
    return {part.name: part.granted_sms for part in layout} if layout else {}


def _enforced(layout: Layout | None) -> bool:
    return layout is None or layout.is_enforced


def _fact(name: str, old: int | None, new: int) -> str:
    shown = display_name(name, NAME_LIMIT)
    return f"{shown} {new:,} SMs" if old is None else f"{shown} {old:,}→{new:,}"
