"""Numba-CUDA follows the selected lane: what names no stream goes there."""

from __future__ import annotations

from typing import Any

from gpustreamlab.adapters._adapter import Adapter, LaneStream
from gpustreamlab.adapters._numba_hooks import NumbaHooks, NumbaLane
from gpustreamlab.errors import AdapterError

KEPT_LANES = 1_024
"""Handles whose Numba streams are kept."""


def make_numba(cuda: Any, ordinal: int) -> Adapter:
    """Make Numba-CUDA follow. It has no current stream, so its launches and copies are hooked.

    Raises
    ------
    AdapterError
        If Numba-CUDA is its simulator, or lacks one of the functions to hook; none is hooked then.
    """
    if hasattr(cuda, "simulator_init"):
        raise AdapterError("NUMBA_ENABLE_CUDASIM is set, so it runs on the CPU", has_work=False)
    return NumbaSelection(NumbaHooks.of(cuda), ordinal)


class NumbaSelection:
    """Notes for each thread which lane stands for the default stream. Nothing of Numba is called until work is enqueued."""

    def __init__(self, hooks: NumbaHooks, ordinal: int) -> None:
        self._hooks = hooks
        self._local = hooks.local
        self._ordinal = ordinal
        self._lanes: dict[int, NumbaLane] = {}

    def select(self, stream: LaneStream) -> NumbaLane | None:
        """Let the stream stand for the default one in this thread; return what did."""
        lane = self._lanes.get(stream.handle) or self._make_lane(stream.handle)
        before: NumbaLane | None = getattr(self._local, "lane", None)
        self._local.lane = lane
        return before

    def restore(self, token: NumbaLane | None) -> None:
        """Let stand what did before."""
        self._local.lane = token

    def close(self) -> None:
        """Take the hooks out, unless an adapter of another device uses them."""
        self._hooks.release()

    def _make_lane(self, handle: int) -> NumbaLane:
        if len(self._lanes) >= KEPT_LANES:
            self._lanes = {}
        lane = self._lanes[handle] = NumbaLane(self._hooks, handle, self._ordinal)
        return lane
