"""Where adapters come from: those that ship, and those that other packages bring as entry points."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

from gpustreamlab.adapters._adapter import GROUP, AdapterFactory
from gpustreamlab.adapters._known import BUILT_IN


class Source(NamedTuple):
    """One adapter that can be made."""

    origin: str
    """Who brings it, in words."""
    load: Callable[[], AdapterFactory]
    """Imports the factory."""
    is_foreign: bool = True
    """False for one that ships."""


def find_sources() -> dict[str, list[Source]]:
    """Return by module who brings an adapter for it; other packages come before those that ship. Imports none of them."""
    found: dict[str, list[Source]] = {}
    entries = {(entry.name, entry.value): entry for entry in importlib.metadata.entry_points(group=GROUP)}
    for (module, value), entry in sorted(entries.items()):
        owner = entry.dist.name if entry.dist is not None else "a package"
        source = Source(f"the adapter {value!r} of {owner}", cast("Callable[[], AdapterFactory]", entry.load))
        found.setdefault(module, []).append(source)
    for module, make in BUILT_IN.items():
        found.setdefault(module, []).append(Source("the adapter of gpustreamlab", partial(_given, make), is_foreign=False))
    return found


def _given(make: AdapterFactory) -> AdapterFactory:
    return make
