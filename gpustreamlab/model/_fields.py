"""Checks of fields, and how names are shown."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import cache, partial
from typing import Annotated, Any, TypeAlias, get_args, get_type_hints

import msgspec
import numpy as np

from gpustreamlab.errors import GPUStreamLabError, InvalidNameError, TraceError, nearest_hint

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]  # A whole number that is not negative
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]  # A whole number of at least 1
Whole: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]  # A whole number of 64 bits


def check_fields(value: Any, error: type[GPUStreamLabError] = TraceError) -> None:
    """Raise an error where a field of a dataclass is not of its annotated type; store lists as tuples and texts as enums."""
    for name, wanted in _annotations(type(value)).items():  # type: ignore[arg-type] # mypy takes no class as hashable
        object.__setattr__(value, name, check_field(value, name, wanted, error))


class Checked:
    """A dataclass whose fields are of their annotated types, see `check_fields`."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_fields(self)


class Told(Checked):
    """A dataclass of what a file or a driver says, which is printed as it is: signs that steer a terminal are made visible."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_fields(self)
        for name in _annotations(type(self)):  # type: ignore[arg-type] # as above
            given = getattr(self, name)
            shown = tuple(map(_visible, given)) if isinstance(given, tuple) else _visible(given)
            object.__setattr__(self, name, shown)


def _visible(given: object) -> object:
    return display_name(given, len(given)) if isinstance(given, str) and given else given


_annotations = cache(partial(get_type_hints, include_extras=True))


def check_field(value: Any, name: str, wanted: Any, error: type[GPUStreamLabError] = TraceError) -> object:
    """Return one field as the type that it should have, or raise an error that says what is wrong with it."""
    given = getattr(value, name)
    try:
        try:
            checked = msgspec.convert(given, wanted)
        except msgspec.ValidationError:
            checked = msgspec.convert(_without_numpy(given), wanted)
    except (msgspec.ValidationError, RecursionError) as wrong:
        known = list(wanted) if isinstance(wanted, type) and issubclass(wanted, Enum) else get_args(wanted)
        choices = [one for one in known if isinstance(one, str)]
        hint = nearest_hint(str(given), choices) if choices else f"{wrong}."
        raise error(f"{type(value).__name__}.{name} is {given!r:.80}. {hint}") from wrong
    if type(checked) is str and not checked.isascii():
        return checked.encode("utf-8", "replace").decode()  # a lone surrogate, which no file can hold, becomes "?"
    return checked


def _without_numpy(given: object) -> object:
    if isinstance(given, np.generic):
        return given.item()
    return [_without_numpy(one) for one in given] if isinstance(given, (list, tuple, range, np.ndarray)) else given


def show_text(value: object, printer: Any, cycle: bool) -> None:  # noqa: FBT001 - IPython's own signature
    """Print the text of ``str(value)``; a class takes this as its ``_repr_pretty_``, beside the repr of its fields."""
    printer.text("…" if cycle else str(value))


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]], sides: str, head_sides: str = "") -> str:
    """Write a table; `sides` has an l or an r for each column, as its text stands at the left or the right."""
    styles = {"l": "style='text-align:left'", "r": "style='text-align:right'"}

    def row(tag: str, cells: Sequence[object], sides: str) -> str:
        written = (f"<{tag} {styles[side]}>{html.escape(str(cell))}</{tag}>" for cell, side in zip(cells, sides, strict=True))
        return f"<tr>{''.join(written)}</tr>"

    body = "".join(row("td", cells, sides) for cells in rows)
    return f"<table>{row('th', head, head_sides or sides)}{body}</table>"


MAX_NAME_LENGTH = 100  # Longest name of a stream or partition, in characters
NAME_LIMIT = 80  # How many characters of a name a screen shows
_NAME_SIGNS = frozenset("_-.+:/#@")


def check_name(name: object, what: str, example: str) -> str:
    """Return a name that magics can take and screens can show.

    Letters and digits of any script, and ``_ - . + : / # @``: no spaces, commas, quotes, brackets or control characters.

    Examples
    --------
    >>> check_name("copy-in/0", "stream", "lab.stream('copy')")
    'copy-in/0'
    """
    if not isinstance(name, str):
        raise InvalidNameError(f"A {what}'s name is a str, not {type(name).__name__}. Use for example {example}.")
    if not name:
        raise InvalidNameError(f"A {what}'s name cannot be empty. Use for example {example}.")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidNameError(
            f"A {what}'s name has at most {MAX_NAME_LENGTH} characters; {name[:20]!r}… has {len(name):,}. "
            "Shorten it, and put the rest into a range's label."
        )
    wrong = sorted({sign for sign in name if not _is_name_sign(sign)})
    if wrong:
        proposal = "".join(sign if _is_name_sign(sign) else "_" for sign in name).strip("_") or what
        raise InvalidNameError(
            f"{what.capitalize()} name {name!r} has {wrong[0]!r}, which the magics cannot take. Names have letters, digits and "
            f"{' '.join(sorted(_NAME_SIGNS))}: use {proposal!r}, and put free text into a range's label."
        )
    return name


def display_name(name: str, limit: int = NAME_LIMIT) -> str:
    r"""Return a name as a screen can show it: no control or direction signs, and cut in the middle where it is long.

    Examples
    --------
    >>> display_name("gemm\n\u202e1"), display_name("a" * 50, limit=9)
    ('gemm␣␣1', 'aaaa…aaaa')
    """
    if name and len(name) <= limit and name.isprintable():
        # Most names are short and plain; looking at each of their letters takes far longer.
        return name
    head = name if len(name) <= 2 * limit else f"{name[:limit]}{name[-limit:]}"
    # The joiner makes one picture of several emoji; the last two stand for no sign, and XML forbids them.
    hidden = {sign for sign in head if (unicodedata.category(sign) in _HIDDEN and sign != "\u200d") or sign in "\ufffe\uffff"}
    shown = "".join("␣" if sign in hidden else sign for sign in head)
    if len(name) <= limit:
        return shown or "(no name)"
    left = limit // 2
    return f"{shown[:left]}…{shown[len(shown) - (limit - left - 1) :]}"


def _is_name_sign(sign: str) -> bool:
    return sign in _NAME_SIGNS or unicodedata.category(sign)[0] in "LNM"


_HIDDEN = frozenset({"Cc", "Cf", "Zl", "Zp"})
