"""How users name engines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpustreamlab.cluster._follower import Life
from gpustreamlab.errors import ClusterError, OptionError, nearest_hint


def name_order(name: str) -> tuple[int, str]:
    """Return what names are sorted by: numbers by their value."""
    return (int(name), "") if name.isdecimal() else (1 << 62, name)


def named(lives: Sequence[Life], on: str | int | Sequence[str | int]) -> list[Life]:
    """Return the engines that a user names, of some.

    Raises
    ------
    ClusterError
        If none is there.
    OptionError
        If one is not, or none is named.
    """
    there = {life.called: life for life in lives if life.is_there}
    if not there:
        lost = "".join(f" Engine {life.name} is lost: {life.why}." for life in lives[-4:])
        raise ClusterError(f"No engine is there any more.{lost} Start others, and a new gsl.Cluster.")
    if on == "all":
        return [*there.values()]
    words = on.split(",") if isinstance(on, str) else [*on] if isinstance(on, Iterable) else [on]
    chosen = []
    for word in (str(word).strip() for word in words):
        if word not in there:
            known = next((life for life in lives if life.name == word), None)
            why = (
                ""
                if known is None
                else f" It is called {known.called!r} now."
                if known.is_there
                else f" It is lost: {known.why}."
            )
            raise OptionError(f"There is no engine {word!r} in this cluster.{why} {nearest_hint(word, [*there, 'all'])}")
        chosen.append(there[word])
    if not chosen:
        raise OptionError("No engine is named. Use on='all', on='0,2' or on=[0, 2].")
    return list(dict.fromkeys(chosen))
