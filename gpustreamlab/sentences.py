"""Sentences of printed reports, in lines that a notebook has room for: it breaks longer ones within words."""

from __future__ import annotations

import textwrap

__all__ = ["TEXT_WIDTH", "suffix_fault", "wrap_sentence"]

TEXT_WIDTH = 110
"""How many columns a line takes."""


def wrap_sentence(text: str, *, first_indent: str = "", indent: str = "  ") -> list[str]:
    """Return a sentence as lines that break between words.

    Parameters
    ----------
    text
        The sentence.
    first_indent
        What stands before it in the first line.
    indent
        What stands before it in the lines that follow.

    Examples
    --------
    >>> wrap_sentence("Short."), [len(line) for line in wrap_sentence("word " * 40)]
    (['Short.'], [109, 91])
    """
    lines = textwrap.wrap(
        text,
        TEXT_WIDTH,
        initial_indent=first_indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [first_indent.rstrip()]


def suffix_fault(suffix: str) -> str:
    """Say what is wrong with the suffix of a file that cannot be written.

    Examples
    --------
    >>> suffix_fault(".pdf"), suffix_fault("")
    ("the suffix '.pdf' is not supported", 'its name has no suffix, which chooses the format')
    """
    return f"the suffix {suffix!r} is not supported" if suffix else "its name has no suffix, which chooses the format"
