"""What engines returned, and how they stand."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, Generic, TypeVar

from gpustreamlab.analysis._report import Reported
from gpustreamlab.cluster._calls import Outcome
from gpustreamlab.model import Layout, show_text

_Value = TypeVar("_Value")

CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
"""Colours of a terminal."""
_CELL = "text-align:left;vertical-align:top"
_TEXT = "margin:0;padding:0;white-space:pre-wrap;overflow-wrap:anywhere;background:none"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """How an engine stands."""

    name: str
    """What ``on=`` takes."""
    host: str
    """The machine."""
    pid: int
    """Its process there."""
    device: str
    """Name of its device, marked where it is simulated."""
    state: str
    """``"there"``, ``"silent"`` (it does not answer at present), or ``"lost"``, and why."""
    span_count: int
    """Spans that have arrived."""
    missed_count: int
    """Spans that made room before they were read, there or here, or never came into the buffer there."""
    bytes_per_span: float
    """What came over the wire for a span; NaN where none did."""
    retry_count: int
    """Answers that were given up and asked for again."""
    lost_unix_ns: int = 0
    """When it was found to be gone, in ns since 1970 (UTC); 0 while it is there."""

    def __str__(self) -> str:
        missed = f", {self.missed_count:,} missed" if self.missed_count else ""
        return f"{self.name} on {self.host} ({self.device}): {self.state}, {self.span_count:,} spans{missed}"


class ByEngine(Mapping[str, _Value], Generic[_Value]):
    """A value of each engine, by its name; shows one line for each, and printed and on pages all of it.

    Reports of several engines that say the same are shown once.

    Parameters
    ----------
    values
        Of each engine.
    """

    def __init__(self, values: Mapping[str, _Value]) -> None:
        self._values = dict(values)

    def __getitem__(self, engine: str | int) -> _Value:
        return self._values[str(engine)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return "\n".join(f"[{name}] {line}" for name in self for line in self._text_of(name).splitlines())

    def __str__(self) -> str:
        if not any(isinstance(value, Reported) for value in self.values()):
            return repr(self)
        told = self._alike([(name, self._text_of(name, _whole)) for name in self])
        return "\n\n".join(f"[{names}] {text}" for names, text in told if text)

    _repr_pretty_ = show_text

    def _repr_html_(self) -> str:
        rows = self._alike([(name, self._page_of(name)) for name in self])
        body = "".join(
            f"<tr><th style='{_CELL}'>{escape(names)}</th><td style='{_CELL}'>{page}</td></tr>" for names, page in rows if page
        )
        head = f"<tr><th style='{_CELL}'>engine</th><th></th></tr>"
        return f"<table class='gpustreamlab-engines'>{head}{body}</table>" if body else ""

    def _alike(self, told: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
        """Return engines with what is told of each; those of reports that are alike together."""
        found: dict[str, tuple[list[str], str]] = {}
        for name, text in told:
            found.setdefault(text if isinstance(self[name], Reported) else name, ([], text))[0].append(name)
        return [(", ".join(names), text) for names, text in found.values()]

    def _text_of(self, name: str, text_of: Callable[[object], str] | None = None) -> str:
        """Return what is shown of an engine, as text: a line of its value, or what a function returns."""
        value = self[name]
        return "" if value is None else (text_of or _short)(value)

    def _page_of(self, name: str) -> str:
        """Return what is shown of an engine, as HTML."""
        value = self[name]
        if value is None:
            return ""
        whole = getattr(value, "_repr_html_", None)
        page = whole() if callable(whole) else None
        if page is None:
            return _text_html(_short(value))
        return f"<details><summary>{escape(_short(value))}</summary>{page}</details>"


class Outcomes(ByEngine[Any]):
    """What engines returned, by their names. What they print is shown while they work, and not here.

    Parameters
    ----------
    outcomes
        Of each engine.
    """

    def __init__(self, outcomes: Mapping[str, Outcome]) -> None:
        self._outcomes = dict(outcomes)
        self._shown = {name: outcome.value for name, outcome in outcomes.items() if outcome.is_cell and outcome.value}
        texts = {name: str(data.get("text/plain", "")) for name, data in self._shown.items()}
        super().__init__({name: outcome.value for name, outcome in outcomes.items()} | texts)

    def _ipython_display_(self) -> None:
        """Show nothing, instead of an empty ``Out``, where nothing was returned."""
        if repr(self):
            raise NotImplementedError  # IPython then shows it as it shows others

    @property
    def texts(self) -> dict[str, str]:
        """What each has printed."""
        return {name: outcome.text for name, outcome in self._outcomes.items()}

    def _text_of(self, name: str, text_of: Callable[[object], str] | None = None) -> str:
        return shown_text(self._shown[name]) if name in self._shown else super()._text_of(name, text_of)

    def _page_of(self, name: str) -> str:
        return _shown_html(self._shown[name]) if name in self._shown else super()._page_of(name)


def shown_text(data: Mapping[str, Any]) -> str:
    """Return what was shown, by MIME type, as text."""
    return CONTROL.sub("", str(data.get("text/plain") or f"<{', '.join(data)}>"))


def _short(value: object) -> str:
    """Return what a value is in a line, where it can tell."""
    text = str(value) if isinstance(value, (str, Layout)) else repr(value)
    return text[1:-1] if text.startswith(f"<{type(value).__name__}: ") and text.endswith(">") else text


def _whole(value: object) -> str:
    return str(value) if isinstance(value, Reported) else _short(value)


def _shown_html(data: Mapping[str, Any]) -> str:
    for kind in ("text/html", "image/svg+xml"):
        if kind in data:
            return f"<div>{data[kind]}</div>"
    for kind in ("image/png", "image/jpeg"):
        if kind in data:
            image = data[kind]
            letters = base64.b64encode(image).decode() if isinstance(image, bytes) else str(image)
            return f"<img alt='' src='data:{kind};base64,{escape(letters)}'>"
    return _text_html(shown_text(data))


def _text_html(text: str) -> str:
    return f"<pre style='{_TEXT}'>{escape(text)}</pre>" if text else ""
