"""Names as they are kept: not too long, and of signs that UTF-8 can write."""

from __future__ import annotations

MAX_LABEL_LENGTH = 1_000
"""Longest name of a range, in characters; a longer one is cut and ends in "…"."""


def cut_text(text: str) -> str:
    """Return a text that is not too long to keep and that UTF-8 can write.

    Examples
    --------
    >>> len(cut_text("x" * 5_000))
    1001
    """
    return plain_text(text if len(text) <= MAX_LABEL_LENGTH else f"{text[:MAX_LABEL_LENGTH]}…")


def plain_text(text: str) -> str:
    """Replace what UTF-8 cannot write, so that every name can be stored."""
    return text.encode("utf-8", "replace").decode("utf-8")
