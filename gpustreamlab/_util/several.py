"""What has several of something: asked for what only one of them has, it says how to ask that."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar


class OneOfSeveral:
    """Says in an `AttributeError` what to type instead of an attribute that only its parts have."""

    _part: ClassVar[type]
    """The class of its parts."""
    _instead: ClassVar[str]
    """What is said, with ``{name}`` for the attribute."""

    if not TYPE_CHECKING:  # else type checkers would believe that it has every attribute

        def __getattr__(self, name: str) -> object:
            if name[0] != "_" and hasattr(self._part, name) and not hasattr(type(self), name):
                raise AttributeError(self._instead.format(name=name))
            return object.__getattribute__(self, name)  # raises as ever; of a property that failed, what it raised
