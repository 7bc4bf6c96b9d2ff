"""Text pictures where the output can write no more than ASCII."""

from __future__ import annotations

SIGNS = str.maketrans(
    {
        # How busy a column of a lane is, and how many lanes are. The full block ends both.
        **dict(zip("░▒▓█", ".:+#", strict=True)),
        **dict(zip("▁▂▃▄▅▆▇", ".:-=+*%", strict=True)),
        **dict(zip("│╵▼⚠·×…µ–", "|'v!-x.u-", strict=True)),
        "≤": "<=",
        "±": "+-",
        "\u200e": "",
    }
)
"""What stands for the signs of a picture."""


def can_write(text: str, encoding: str) -> bool:
    """Tell whether a text can be written in an encoding.

    Examples
    --------
    >>> can_write("░▒▓█", "utf-8"), can_write("░▒▓█", "latin-1")
    (True, False)
    """
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def write_ascii(text: str) -> str:
    """Write a text in ASCII alone; what has no sign there is a question mark for each of its terminal columns.

    Examples
    --------
    >>> print(write_ascii("copies │█▒  │ ≤ 2  für 10 µs"))
    copies |#:  | <=2  f?r 10 us
    """
    signs = text.replace("≤ ", "≤").translate(SIGNS)
    return signs if signs.isascii() else "".join(sign if sign.isascii() else _unknown(sign) for sign in signs)


def _unknown(sign: str) -> str:
    from rich.cells import cell_len

    return "?" * cell_len(sign)
