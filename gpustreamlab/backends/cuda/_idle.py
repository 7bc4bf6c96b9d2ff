"""What outlives the sessions of a device; see decisions 0019 and 0020 in docs/explanations/decisions."""

from __future__ import annotations

import atexit
import os
from contextlib import suppress
from typing import Any

from gpustreamlab.backends.cuda._idle_contexts import IdleContexts
from gpustreamlab.backends.cuda._idle_events import IdleEvents
from gpustreamlab.backends.cuda._idle_streams import IdleStreams
from gpustreamlab.backends.cuda._import import import_cupy


class Idle:
    """What no session of one device uses at the moment, and the next one may."""

    def __init__(self) -> None:
        self.contexts = IdleContexts()
        self.streams = IdleStreams(_has_no_work)
        self.events = IdleEvents()
        self.order_events = IdleEvents()

    def close(self) -> None:
        """Destroy the events, and from now on what is given back at once: the process ends. Libraries may outlive this."""
        for kept in (self.events, self.order_events):
            with suppress(Exception):  # after an error of the device that stays, everything fails
                kept.close()


def _has_no_work(stream: Any) -> bool:
    return bool(import_cupy().cuda.Stream.from_external(stream).done)


_idle: dict[tuple[int, int], Idle] = {}
_left: list[object] = []
"""What must not be destroyed here: a forked child's parent owns it, or its primary context is gone."""


def idle_on(ordinal: int, primary_id: int) -> Idle:
    """Return what is idle on one device.

    Parameters
    ----------
    ordinal
        The CUDA device number.
    primary_id
        What the driver calls its primary context: after ``cudaDeviceReset`` it is another, and all that was in it is gone.
    """
    gone = [known for known in [*_idle] if known[0] == ordinal and known[1] != primary_id]
    _left.extend(_idle.pop(known, None) for known in gone)
    return _idle.setdefault((ordinal, primary_id), Idle())


@atexit.register
def _close_all() -> None:
    for idle in _idle.values():
        idle.close()


def _leave_to_the_parent() -> None:
    _left.extend(_idle.values())
    _idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)
