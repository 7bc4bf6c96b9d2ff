"""The arenas of one session, and how much they may hold together."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from gpustreamlab.analysis import ScratchTable
from gpustreamlab.backends import Backend, BackendStream
from gpustreamlab.errors import DeviceError, DeviceMemoryError, OptionError
from gpustreamlab.recorder import LaneSample, Recorder
from gpustreamlab.scratch._arena import ScratchArena, ScratchLane
from gpustreamlab.scratch._sizes import MAX_BYTES
from gpustreamlab.typing import Feature

_log = logging.getLogger(__name__)

LIMIT_SHARE = 0.5
"""How much of the device's memory all lanes of a session may reserve, if nothing else is said."""


class ScratchPool:
    """The arenas of one session.

    Parameters
    ----------
    backend, recorder
        The session's.
    limit_bytes
        How much all lanes may reserve; None for a share of the device's memory, `LIMIT_SHARE`.

    Raises
    ------
    OptionError
        If the limit is no number of bytes, at least 1.
    """

    def __init__(self, backend: Backend, recorder: Recorder, limit_bytes: int | None = None) -> None:
        self.backend = backend
        self.limit_bytes = _find_limit(limit_bytes, backend)
        """How much all lanes may reserve."""
        ordered = next((item for item in backend.capabilities if item.feature is Feature.STREAM_ORDERED_MEMORY), None)
        self.reason = "" if ordered is None or ordered.available else ordered.detail
        """Why growing and trimming waits for a lane's work; empty where it does not."""
        self.reserved_bytes = 0
        """What all lanes hold."""
        self._recorder = recorder
        self._lock = threading.RLock()
        self._arenas: dict[int, ScratchArena] = {}
        recorder.add_sampler(self)

    def open(self, lane: ScratchLane, stream: BackendStream, lane_index: int) -> ScratchArena:
        """Return the arena of a new lane; one that was closed under the name goes on in its row of the table."""
        made = ScratchArena(lane, stream, lane_index, self)
        with self._lock:
            before = self._arenas.get(lane_index)
            if before is not None:
                self.hand_over(before)
            self._arenas[lane_index] = made
        return made

    def forget(self, lane_index: int) -> None:
        """Forget the arena of a lane that is closed, and whose name nobody will use soon."""
        with self._lock:
            known = self._arenas.pop(lane_index, None)
        if known is not None:
            self.hand_over(known)

    @property
    def statistics(self) -> ScratchTable:
        """How all lanes are now, as a value."""
        return ScratchTable(items=tuple(arena.statistics for arena in self._all()), limit_bytes=self.limit_bytes)

    def reserve(self, size_bytes: int, arena: ScratchArena) -> None:
        """Count what an arena is about to allocate; at the limit, the lanes first give back what nobody uses.

        Raises
        ------
        DeviceMemoryError
            If it is more than the limit allows.
        """
        if self._try_reserve(size_bytes):
            return
        if size_bytes <= self.limit_bytes:
            self._trim_all()
        if not self._try_reserve(size_bytes):
            raise DeviceMemoryError(
                f"Lane {arena.lane.name!r} asked for {size_bytes:,} bytes of scratch; all lanes of the session may hold "
                f"{self.limit_bytes:,}, and hold {self.reserved_bytes:,}. {self._advice(size_bytes)}"
            )

    def release(self, size_bytes: int) -> None:
        """Count what is not reserved any more."""
        with self._lock:
            self.reserved_bytes -= size_bytes

    def relieve(self) -> None:
        """Give back what no lane uses, and what the array module keeps."""
        self._trim_all()
        self.backend.relieve_memory()

    def memory_text(self) -> str:
        """Say how the device's memory is taken."""
        free_bytes, total_bytes = self.backend.memory_info()
        return (
            f"{free_bytes:,} of {total_bytes:,} bytes of the device are free; the session's lanes hold {self.reserved_bytes:,} "
            "as scratch."
        )

    def take_samples(self) -> Sequence[LaneSample]:
        """Return the samples of all lanes since the last time."""
        return [sample for arena in self._all() for sample in arena.take_samples()]

    def tell_all(self) -> None:
        """Let the next samples begin with how all lanes are now."""
        for arena in self._all():
            arena.tell_all()

    def hand_over(self, arena: ScratchArena) -> None:
        """Hand a lane's samples to the recorder."""
        self._recorder.add_samples(arena.take_samples())

    def disown(self) -> None:
        """Give everything up without touching it: in a forked child, what the lanes hold is the parent's."""
        self._lock = threading.RLock()
        for arena in self._arenas.values():
            arena.disown()

    def _advice(self, size_bytes: int) -> str:
        """Say what helps where the limit is too low; a limit above the device's memory does not."""
        card_bytes = self.backend.device.memory_bytes
        needed_bytes = self.reserved_bytes + size_bytes
        if card_bytes and size_bytes > card_bytes:
            return f"The whole device has {card_bytes:,} bytes, so no limit allows it: take less, in several pieces."
        if card_bytes and needed_bytes > card_bytes:
            return f"The whole device has {card_bytes:,} bytes: take less, or give back what the lanes hold."
        return f"Give some back, or start with gpustreamlab.Session(scratch_limit_bytes={needed_bytes})."

    def _all(self) -> tuple[ScratchArena, ...]:
        return (*self._arenas.values(),)

    def _try_reserve(self, size_bytes: int) -> bool:
        with self._lock:
            if self.reserved_bytes + size_bytes > self.limit_bytes:
                return False
            self.reserved_bytes += size_bytes
            return True

    def _trim_all(self) -> None:
        for arena in self._all():
            try:
                arena.trim()
            except DeviceError as error:  # the others go on
                _log.debug("The scratch of lane %r was not trimmed: %s", arena.lane.name, error)


def _find_limit(limit_bytes: object, backend: Backend) -> int:
    if limit_bytes is None:
        return int(backend.device.memory_bytes * LIMIT_SHARE) or MAX_BYTES
    if isinstance(limit_bytes, bool) or not isinstance(limit_bytes, int) or limit_bytes < 1:
        raise OptionError(
            f"scratch_limit_bytes is {limit_bytes!r}; it must be a number of bytes, at least 1. "
            "Use gpustreamlab.Session(scratch_limit_bytes=8 << 30)."
        )
    return limit_bytes
