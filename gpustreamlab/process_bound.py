"""What stands for something on the device: there is one of it, in one process."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

__all__ = ["LEFT_TO_PARENT", "ProcessBound"]

LEFT_TO_PARENT = "belongs to the process that this one was forked from"
"""Why a forked child's copy of it takes no work."""


class ProcessBound:
    """Refuses `pickle`, and `copy` where a class has no copy of its own: a twin would be a second owner of the same thing.

    Examples
    --------
    >>> import copy
    >>> from gpustreamlab import Session
    >>> with Session("sim") as lab:
    ...     copy.copy(lab.stream("a"))
    Traceback (most recent call last):
    ...
    TypeError: This Stream belongs to the process that made it, and cannot be pickled or copied. ...
    """

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"This {type(self).__name__} belongs to the process that made it, and cannot be pickled or copied. "
            "Send names, numbers and host copies of arrays, array.get(), and make a session there."
        )
