"""Streams that were told to wait for others, and the work that waited."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpustreamlab.typing import Int64Array

KEPT_DEPENDENCIES = 262_144
"""Waits of streams for streams that are kept for the trace; the newest count."""
DEPENDENCY_COLUMNS = ("source_lane", "record", "target_lane", "wait")
"""The lane that is waited for and the call that recorded the event; the lane that waits and the call that made it."""

_CALL_BITS = 44


def find_waits(
    dependencies: Mapping[str, Int64Array], lane: Int64Array, correlation: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the last work before each event, and the first work after each wait for it, where there are both.

    Parameters
    ----------
    dependencies
        Columns of `DEPENDENCY_COLUMNS`.
    lane, correlation
        Of work, in the order of its starts; shape (n,), int64.

    Returns
    -------
    tuple of two ndarrays of int64, shape (n_waits,)
        Places in `lane`: what had to end first, and what waited.
    """
    known = np.flatnonzero(correlation > 0)
    if not len(known) or not len(dependencies["wait"]):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    keys = _key(lane[known], correlation[known])
    order = np.argsort(keys, kind="stable")
    keys, places = keys[order], known[order]
    before = np.searchsorted(keys, _key(dependencies["source_lane"], dependencies["record"])) - 1
    after = np.searchsorted(keys, _key(dependencies["target_lane"], dependencies["wait"]), side="right")
    is_there = (before >= 0) & (after < len(keys))
    source, target = places[before[is_there]], places[after[is_there]]
    is_meant = (lane[source] == dependencies["source_lane"][is_there]) & (lane[target] == dependencies["target_lane"][is_there])
    pairs = np.unique(np.stack((source[is_meant], target[is_meant])), axis=1)
    pairs = pairs[:, pairs[0] != pairs[1]]
    return pairs[0], pairs[1]


def _key(lane: Int64Array, correlation: Int64Array) -> Int64Array:
    """Return what sorts by lane, and in it by the order of the calls."""
    return (lane << _CALL_BITS) + np.clip(correlation, 0, (1 << _CALL_BITS) - 1)
