"""How a backend tells of accesses to memory, and of what orders them: neutral notes, in the order in which the host enqueues.

Lanes are handles of streams; 0 stands for the NULL stream, which works while no lane is selected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from gpustreamlab.analysis import Moment, Piece, Touch


class ArrayLender(Protocol):
    """What arrays in a lane's scratch keep alive: `Backend.scratch_array` gets it as their owner."""

    nbytes: int
    """How much was asked for."""

    @property
    def ending(self) -> str:
        """How it ended, in a word or two; empty while the memory is there."""
        ...

    @property
    def lane(self) -> Any:
        """The stream of the session whose scratch it is; it has a ``name`` and a ``handle``."""
        ...


class AccessSink(Protocol):
    """What takes the notes. A backend calls it at the moment of each enqueue, and holds `lock` around each call."""

    lock: AbstractContextManager[object]
    """A re-entrant lock. A backend that has one of its own puts that here before its first note."""
    pending: list[Any]
    """What is left to do behind a note of work: where there is something, the backend calls `finish` without the lock."""

    def finish(self) -> None:
        """Do what is left."""
        ...

    def allocate(self, home: int, start: int, end: int, shape: tuple[int, ...], dtype: object) -> Piece:
        """Note that a stream's pool handed out memory, from its first address to the one behind its last."""
        ...

    def free(self, piece: Piece) -> None:
        """Note that memory went back to its pool."""
        ...

    def work(self, handle: int, work: str, reads: Sequence[Touch], writes: Sequence[Touch]) -> None:
        """Note work that is about to be enqueued: what it reads and what it writes."""
        ...

    def ended(self, handle: int, work: str, piece: Piece, lender: ArrayLender) -> None:
        """Note that the work noted last uses scratch that has ended; call it right behind `work`."""
        ...

    def record(self, handle: int) -> Moment:
        """Note that an event was recorded; return what to hand to `wait` and `host_wait` for it."""
        ...

    def wait(self, handle: int, moment: Moment | None) -> None:
        """Note that a stream's later work waits for an event; None for one that nobody noted."""
        ...

    def host_wait(self, moment: Moment | None) -> None:
        """Note that the host has seen an event reached."""
        ...

    def host_wait_stream(self, handle: int) -> None:
        """Note that the host has seen a stream idle."""
        ...

    def host_wait_all(self) -> None:
        """Note that the host has seen the device idle."""
        ...

    def close_stream(self, handle: int) -> None:
        """Note that a stream was destroyed: its handle may come again for another one."""
        ...


class WatchedArrays(NamedTuple):
    """Arrays whose accesses are told of."""

    xp: Any
    """The array module that tells."""
    find: Callable[[object], Touch | None]
    """Returns which memory an array is; None for one of another library."""
    null_stream: Any
    """The stream that works while no lane is selected; it takes ``record(event)`` and ``wait(event)``."""
