"""Close what a session holds, step by step: none stops the others, and an interrupt leaves the rest for the next time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

__all__ = ["CloseStep", "Closing", "failure_of"]

CloseStep: TypeAlias = tuple[str, Callable[[], object]]
"""What is closed, and what closes it."""


class Closing:
    """Steps that are left.

    Parameters
    ----------
    steps
        In their order.

    Examples
    --------
    >>> closing = Closing([("first", lambda: 1 / 0), ("second", list)])
    >>> closing.run()
    >>> [(what, str(failure)) for what, failure in closing.failures]
    [('first', 'division by zero')]
    """

    def __init__(self, steps: Iterable[CloseStep] = ()) -> None:
        self._steps = list(steps)
        self.failures: list[tuple[str, Exception]] = []
        """What failed, and how."""

    def run(self) -> None:
        """Take each step once; one that is interrupted is taken again by the next call."""
        while self._steps:
            what, step = self._steps[0]
            failure = failure_of(step)
            del self._steps[:1]
            if failure is not None:
                self.failures.append((what, failure))


def failure_of(step: Callable[[], object]) -> Exception | None:
    """Return what a step raises; an interrupt comes through."""
    try:
        step()
    except Exception as error:  # noqa: BLE001 - every failure of a close is reported, none stops the others
        return error
    return None
