"""Names that magics can take and screens can show."""

from __future__ import annotations

import unicodedata

from gpustreamlab.errors import InvalidNameError

MAX_NAME_LENGTH = 100
"""Longest name of a stream or partition, in characters."""
NAME_LIMIT = 80
"""How many characters of a name a screen shows."""
_NAME_SIGNS = frozenset("_-.+:/#@")


def check_name(name: object, what: str, example: str) -> str:
    """Return a name that magics can take and screens can show.

    Letters and digits of any script, and ``_ - . + : / # @``: no spaces, commas, quotes, brackets or control characters.

    Parameters
    ----------
    name
        What the user gave.
    what
        What is named, for example ``"stream"``.
    example
        A call that works, for the message.

    Raises
    ------
    InvalidNameError
        If the name is no text, empty, too long, or has other signs; the message proposes one that works.

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
    shown = "".join("␣" if _is_hidden(sign) else sign for sign in head)
    if len(name) <= limit:
        return shown or "(no name)"
    left = limit // 2
    return f"{shown[:left]}…{shown[len(shown) - (limit - left - 1) :]}"


def _is_name_sign(sign: str) -> bool:
    return sign in _NAME_SIGNS or unicodedata.category(sign)[0] in "LNM"


def _is_hidden(sign: str) -> bool:
    # The joiner makes one picture of several emoji; the last two stand for no sign, and XML forbids them.
    return (unicodedata.category(sign) in _HIDDEN and sign != "\u200d") or sign in "\ufffe\uffff"


_HIDDEN = frozenset({"Cc", "Cf", "Zl", "Zp"})
