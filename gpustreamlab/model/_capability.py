"""What a device and its driver can do with SMs and work queues."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass

from gpustreamlab.errors import OptionError, nearest_hint
from gpustreamlab.model._shown import show_text
from gpustreamlab.sentences import wrap_lines
from gpustreamlab.typing import Feature


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """Whether one feature is there, what it needs, and what happens without it."""

    feature: Feature
    """Which feature."""
    available: bool
    """Whether it can be used."""
    detail: str
    """Sizes where it is there; what is missing where it is not."""
    needs: str
    """The versions it needs."""
    fallback: str
    """What happens without it."""
    lacks_package: bool = False
    """True where only the Python bindings are too old or missing."""

    def __str__(self) -> str:
        if self.available:
            return f"{self.feature}: {self.detail}"
        return f"{self.feature}: not available, {self.detail}; it needs {self.needs}. Without it: {self.fallback}"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Every `Feature` of a device, in their order."""

    items: tuple[Capability, ...]
    """One for each feature."""

    def __iter__(self) -> Iterator[Capability]:
        return iter(self.items)

    def __getitem__(self, feature: str) -> Capability:
        found = next((item for item in self.items if item.feature == feature), None)
        if found is None:
            raise OptionError(
                f"There is no feature {feature!r:.40}. {nearest_hint(str(feature)[:40], [item.feature for item in self.items])}"
            )
        return found

    def has(self, feature: str) -> bool:
        """Tell whether a feature can be used."""
        return self[feature].available

    _repr_pretty_ = show_text

    def __str__(self) -> str:
        return wrap_lines(map(str, self.items))

    def _repr_html_(self) -> str:
        left = "style='text-align:left'"
        rows = "".join(
            f"<tr><td {left}>{item.feature}</td><td {left}>{'yes' if item.available else 'no'}</td>"
            f"<td {left}>{html.escape(item.detail)}</td><td {left}>{html.escape(item.needs)}</td>"
            f"<td {left}>{html.escape(item.fallback)}</td></tr>"
            for item in self.items
        )
        head = "".join(f"<th {left}>{text}</th>" for text in ("feature", "here", "detail", "needs", "without it"))
        return f"<table><tr>{head}</tr>{rows}</table>"
