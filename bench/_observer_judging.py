"""What the figures of `bench.observer` mean: each state beside the same pattern with nothing on, and beside the goals."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bench._observer_patterns import PATTERNS, STEADY

NONE_FIRST, NONE, SESSION, SELECTED, RANGES = "none, first pass", "none", "session", "selected", "ranges"
KERNELS, KERNELS_AND_CALLS, AFTER_STOP, AFTER_CLOSE = "kernels", "kernels and calls", "after stop", "after close"
PROFILER, AFTER_PROFILER = "torch.profiler CUDA", "after torch.profiler"
QUIET_STATES = (SESSION, SELECTED, RANGES, AFTER_STOP, AFTER_CLOSE)
RECORDING_STATES = (KERNELS, KERNELS_AND_CALLS)
STATES = (SESSION, SELECTED, RANGES, *RECORDING_STATES, AFTER_STOP, AFTER_CLOSE)

QUIET_GOAL = 1.03
LAUNCH_BOUND_GOAL = 1.25
RECORDING_GOAL = 1.02
SERIALISED_RATIO = 1.25
SERIALISED_OVERLAP = 0.8
LATE_US = 200.0

Row = dict[str, Any]


def judge(rows: list[Row]) -> None:
    """Add to each row what it is compared with, and what came out."""
    found = {(row["state"], row["pattern"], row["precondition"]): row for row in rows if "error" not in row}
    partitioned = {pattern.name for pattern in PATTERNS if pattern.is_partitioned}
    for row in found.values():
        with_lanes = row["pattern"] in partitioned and row["state"] in {RANGES, *RECORDING_STATES}
        row["compared_with"] = SELECTED if with_lanes else NONE
        reference = found.get((row["compared_with"], row["pattern"], row["precondition"]))
        if reference is None:
            row["error"] = f"nothing to compare with: {row['compared_with']!r} failed"
            continue
        # The faster of the two passes with nothing on: what is beside it must not look better than it is.
        first = found.get((NONE_FIRST, row["pattern"], row["precondition"]), reference)
        wall_us = min(reference["wall_us"], first["wall_us"]) if row["compared_with"] == NONE else reference["wall_us"]
        row["ratio"] = round(row["wall_us"] / wall_us, 3)
        row["added_us"] = round(row["wall_us"] - wall_us, 1)
        row["equal"] = row["digest"] == reference["digest"]
        row["evidence"], fell = _evidence(row, reference)
        row["serialised"] = row["ratio"] > SERIALISED_RATIO and fell and not row["launch_bound"]
        row["goal"] = goal_of(row)
        row["over_goal"] = row["goal"] is not None and row["ratio"] > row["goal"]


def _evidence(row: Row, reference: Row) -> tuple[str, bool]:
    """Return what tells of work that ran one after the other, and whether it does."""
    if row["overlap"] is not None:
        return "overlap", row["overlap"] < SERIALISED_OVERLAP * reference["overlap"]
    if row["second_start_us"] is not None:
        late = row["second_start_us"] > reference["second_start_us"] + LATE_US
        return "second start", late
    return "wall", True


def goal_of(row: Row) -> float | None:
    """Return what a ratio may be; None where nothing is promised."""
    if row["precondition"] != STEADY:
        return None
    if row["state"] in QUIET_STATES:
        return QUIET_GOAL
    if row["state"] in RECORDING_STATES:
        return LAUNCH_BOUND_GOAL if row["launch_bound"] else RECORDING_GOAL
    return None


def pattern_lines(rows: list[Row], beside: list[Row], states: Sequence[str]) -> list[Row]:
    """Return a line for each pattern: the steady ratio of each state, and the worst of all."""
    lines = []
    for pattern in dict.fromkeys(row["pattern"] for row in rows if row["pattern"] != "all"):
        own = [row for row in rows if row["pattern"] == pattern]
        good = [row for row in own if "ratio" in row]
        steady = {row["state"]: row for row in good if row["precondition"] == STEADY}
        line: Row = {"pattern": pattern, "none, us": steady.get(NONE, {}).get("wall_us", "error")}
        line["noise"] = steady.get(NONE_FIRST, {}).get("ratio", "error")
        line |= {state: steady.get(state, {}).get("ratio", "error") for state in states}
        line |= {
            row["state"]: row.get("ratio", "error") for row in beside if row["pattern"] == pattern and row["state"] != NONE
        }
        watched = [row for row in good if row["state"] in states]
        worst = max(watched, key=lambda row: row["ratio"], default=None)
        line["worst"] = "" if worst is None else f"{worst['ratio']:.2f} {worst['state']}, {worst['precondition']}"
        line["serialised"] = sum(row["serialised"] for row in watched)
        line["equal"] = all(row["equal"] for row in good)
        line["errors"] = sum("error" in row for row in own)
        lines.append(line)
    return lines


def state_lines(rows: list[Row]) -> list[Row]:
    """Return a line for each state: how many rows were serialised, broke a goal, or failed, and the worst ratios."""
    lines = []
    for state in dict.fromkeys(row["state"] for row in rows):
        own = [row for row in rows if row["state"] == state]
        good = [row for row in own if "ratio" in row]
        steady = [row for row in good if row["precondition"] == STEADY]
        line: Row = {"state": state, "rows": len(own), "serialised": sum(row["serialised"] for row in good)}
        line["not equal"] = sum(not row["equal"] for row in good)
        line["steady over goal"] = sum(row["over_goal"] for row in good)
        line["errors"] = sum("error" in row for row in own)
        line["steady, median"] = median([row["ratio"] for row in steady], 3)
        for title, some in (("steady, worst", steady), ("worst", good)):
            worst = max(some, key=lambda row: row["ratio"], default=None)
            line[title] = "" if worst is None else f"{worst['ratio']:.2f} {worst['pattern']}, {worst['precondition']}"
        lines.append(line)
    return lines


def print_cases(rows: list[Row]) -> None:
    """Print every row that was serialised, is not equal, or broke a goal, with the noise of the same row; and what failed."""
    noises = {(row["pattern"], row["precondition"]): row.get("ratio") for row in rows if row["state"] == NONE_FIRST}
    for title, name, value in (
        ("Serialised", "serialised", True),
        ("Not equal", "equal", False),
        ("Over goal", "over_goal", True),
    ):
        cases = [row for row in rows if row.get(name) is value]
        print(f"\n{title}: {len(cases)}")
        for row in cases:
            shown = {key: row[key] for key in ("ratio", "goal", "added_us", "overlap", "second_start_us", "compared_with")}
            shown["noise"] = noises.get((row["pattern"], row["precondition"]))
            print(f"  {row['pattern']} | {row['state']} | {row['precondition']}: {shown}")
    errors = Counter((row["pattern"], row["error"]) for row in rows if "error" in row)
    print(f"\nErrors: {errors.total()}")
    for (pattern, error), count in errors.items():
        print(f"  {pattern}, {count} rows: {error}")


def median(values: Sequence[float | None], digits: int) -> float | None:
    """Return the median of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return round(statistics.median(known), digits) if known else None
