"""What `write_chrome` and its reader agree on."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from itertools import count
from typing import NamedTuple

from gpustreamlab.typing import BoolArray, Int64Array

FORMAT = 1
"""Version of what stands under the key ``gpustreamlab``; a reader takes this one and older ones."""
FACTS_KEY = b"gpustreamlab"
"""Where the metadata of an Arrow table of ours holds the trace's tables."""
FIRST_THREAD = 100
"""Lowest number of a thread: 0 is the idle thread of a system."""
SHOWN_CHARACTERS = 1_000
"""How much of a name stands in each of its events; the whole one stands in the table of names."""


class Plan(NamedTuple):
    """What stands where."""

    base_ns: int
    """The first moment of the trace, from which times are counted."""
    place: Int64Array
    """Which thread each span stands in; shape (n_spans,)."""
    threads: list[tuple[int, int, int]]
    """Process, lane and sub-lane of each thread, in our order."""
    processes: list[str]
    """Names, in our order."""
    drawn: BoolArray
    """Which edges are drawn as flows: viewers know none that goes back in time, or ends at an instant; shape (n_edges,)."""


def shown_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names as events show them, each of its own: what is too long is cut, and numbered.

    Examples
    --------
    >>> [len(name) for name in shown_names(["gemm", "x" * 5_000])]
    [4, 1003]
    """
    return tuple(
        name if len(name) <= SHOWN_CHARACTERS else f"{name[:SHOWN_CHARACTERS]}… {code}" for code, name in enumerate(names)
    )


def column_keys(names: Collection[str]) -> dict[str, str]:
    """Return the key of each extra column in a span's ``args``: its name, but where that holds signs that JSON escapes.

    Examples
    --------
    >>> column_keys(["size_bytes", 'a "b"'])
    {'size_bytes': 'size_bytes', 'a "b"': 'column 1'}
    """
    keys: dict[str, str] = {}
    taken = {*names}
    for place, name in enumerate(names):
        key = name
        if json.dumps(name, ensure_ascii=False) != f'"{name}"':
            key = next(free for free in (f"column {place}" + "'" * n for n in count()) if free not in taken)
            taken.add(key)
        keys[name] = key
    return keys
