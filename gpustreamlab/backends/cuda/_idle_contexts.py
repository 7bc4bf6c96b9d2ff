"""Green contexts that outlive their session, for the next one; see docs/explanations/decisions/0019-idle-contexts.md."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from gpustreamlab.backends._protocol import ContextSpec, SplitGroup
from gpustreamlab.model import SMResource

KEPT_SPLITS = 1_024
"""Structured splits that are kept; their descriptions take a few hundred bytes each."""


class IdleContexts:
    """The green contexts of one device that no session uses at the moment, by what they are made of. Any thread may ask.

    What they are made of belongs to the process too: the groups into which the device was split.

    On the drivers tried, a green context that is destroyed leaves 4 MiB on the device and 1.6 MiB on the host behind. So it
    is given back here instead, and never destroyed: that would give nothing back, and libraries may know its streams.
    """

    def __init__(self) -> None:
        self._groups: tuple[list[Any], SMResource] | None = None
        self._splits: OrderedDict[tuple[SplitGroup, ...], list[Any]] = OrderedDict()
        self._lock = threading.RLock()  # re-entrant: a finaliser may close a session in the middle of it
        self._kept: deque[tuple[ContextSpec, Any]] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def find_groups(self, split: Callable[[], tuple[list[Any], SMResource]]) -> tuple[list[Any], SMResource]:
        """Return the smallest groups and what they are, split once: two splits need not number the same SMs alike."""
        with self._lock:
            if self._groups is None:
                self._groups = split()
            return self._groups

    def find_split(self, wanted: tuple[SplitGroup, ...], split: Callable[[], list[Any]]) -> list[Any]:
        """Return the groups of a structured split, made once: those of two splits need not be disjoint."""
        with self._lock:
            groups = self._splits.get(wanted)
            if groups is None:
                groups = self._splits[wanted] = split()
                if len(self._splits) > KEPT_SPLITS:
                    self._splits.popitem(last=False)
            return groups

    def take(self, spec: ContextSpec) -> Any | None:
        """Return a `cuda.core.Context` made of this, which is the caller's from now on; None if there is none."""
        with self._lock:
            for place, (known, context) in enumerate(self._kept):
                if known == spec:
                    del self._kept[place]
                    return context
        return None

    def give(self, spec: ContextSpec, context: Any) -> None:
        """Take a `cuda.core.Context` back, whose streams nobody uses."""
        with self._lock:
            self._kept.append((spec, context))
