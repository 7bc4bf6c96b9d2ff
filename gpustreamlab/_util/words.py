"""Sentences of printed reports, and what to type to install an extra."""

from __future__ import annotations

import difflib
import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

MIN_WIDTH, MAX_WIDTH = 60, 110
"""Fewest columns of a line in a narrow terminal, and most in a wide one: longer lines are hard to read."""


_BEFORE_UNIT = re.compile(r"(?<=[0-9]) (?=[nµm]?s\b)")  # The space in "2.09 ms", at which no line ends


def text_width() -> int:
    """Return how many columns a printed line may take: as many as the terminal has, or 80 where there is none."""
    return min(max(shutil.get_terminal_size().columns, MIN_WIDTH), MAX_WIDTH)


def wrap_sentence(text: str, *, first_indent: str = "", indent: str = "  ") -> list[str]:
    """Return a sentence as lines that break between words.

    Examples
    --------
    >>> wrap_sentence("Short."), max(map(len, wrap_sentence("word " * 40))) <= text_width()
    (['Short.'], True)
    """
    lines = textwrap.wrap(
        _BEFORE_UNIT.sub("\xa0", text),
        text_width(),
        initial_indent=first_indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\xa0", " ") for line in lines] or [first_indent.rstrip()]


def wrap_lines(lines: Iterable[str]) -> str:
    """Write lines below each other, each as `wrap_sentence` does."""
    return "\n".join(part for line in lines for part in wrap_sentence(line, indent="    "))


def suffix_fault(suffix: str) -> str:
    """Say what is wrong with the suffix of a file that cannot be written."""
    return f"the suffix {suffix!r} is not supported" if suffix else "its name has no suffix, which chooses the format"


def clone_folder() -> Path | None:
    """Return the clone that the package is imported from; None where it was installed as a wheel.

    An editable install, and a clone on ``PYTHONPATH``, have the package beside its ``pyproject.toml``; a wheel does not.
    """
    folder = Path(__file__).resolve().parents[2]
    return folder if (folder / "pyproject.toml").is_file() else None


def install_line(extra: str) -> str:
    """Return what to type to install an extra of the package."""
    clone = clone_folder()
    if clone is None:
        return f"pip install 'gpustreamlab[{extra}]'"
    return f"pip install -e '{_shown(clone)}[{extra}]'"


def update_line() -> str:
    """Return what to type to get a newer version of the package."""
    clone = clone_folder()
    return "pip install --upgrade gpustreamlab" if clone is None else f"git -C '{clone}' pull"


def _shown(clone: Path) -> str:
    """Return the clone's folder as pip takes it: a dot where this process runs in it."""
    try:
        return "." if Path.cwd() == clone else str(clone)
    except OSError:  # the current folder was removed
        return str(clone)


class StandsElsewhere:
    """Says in an `AttributeError` what to type for a name that something else has, that is another here, or is near one."""

    __slots__ = ()
    _homes: ClassVar[Mapping[str, type]] = {}
    """What to type before the name, and the class that has it; the first that has it is told."""
    _guesses: ClassVar[Mapping[str, str]] = {}
    """What to type, and for which names that nothing has."""

    if not TYPE_CHECKING:  # else type checkers would believe that it has every attribute

        def __getattr__(self, name: str) -> object:
            if name[0] == "_" or hasattr(type(self), name):
                return object.__getattribute__(self, name)  # raises as ever; of a property that failed, what it raised
            homes = (line + name for line, home in self._homes.items() if hasattr(home, name))
            line = guessed(self._guesses, name) or next(homes, None)
            hint = f"Use {line}" if line else _nearest([known for known in dir(self) if known[0] != "_"], name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}. {hint}")


def guessed(guesses: Mapping[str, str], name: str) -> str | None:
    """Return what to type for a name that nothing has, if it is a known guess."""
    return next((line for line, names in guesses.items() if name in names.split()), None)


def _nearest(names: Sequence[str], name: str) -> str:
    """Say which of the names are near to one that is not among them, or all of them."""
    near = difflib.get_close_matches(name, names, cutoff=0.7)
    return f"Did you mean {' or '.join(near)}?" if near else f"It has {', '.join(names)}"
