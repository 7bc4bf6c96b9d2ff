"""Find the stream that a caller means: by its name, by itself, or by what lends it; without a lock wherever it is known."""

from __future__ import annotations

from types import EllipsisType

from gpustreamlab.backends import Backend
from gpustreamlab.repartition import Partitions
from gpustreamlab.session_life import SessionLife
from gpustreamlab.stream_table import StreamTable
from gpustreamlab.streams import Stream, check_priority, check_stream_name
from gpustreamlab.typing import SessionState

__all__ = ["LaneFinder"]

_OPEN = SessionState.OPEN


class LaneFinder:
    """Asks the table of streams, and takes the locks and the waits that its answers ask for.

    Parameters
    ----------
    backend, table, partitions, life
        The session's.
    """

    __slots__ = ("_backend", "_by_name", "_life", "_partitions", "_table")

    def __init__(self, backend: Backend, table: StreamTable, partitions: Partitions, life: SessionLife) -> None:
        self._backend = backend
        self._table = table
        self._partitions = partitions
        self._life = life
        self._by_name = table.by_name  # one lookup less where a stream is selected

    def get(self, name: str, priority: int | None, partition: str | EllipsisType | None, external: object | None) -> Stream:
        """Return the stream of a name, made on first use, and moved where it is elsewhere; see `Session.stream`."""
        if self._life.state is not _OPEN:
            self._life.require_open(_getting(name))
        check_stream_name(name)
        if priority is not None:
            check_priority(priority, self._backend.priority_range)
        elif external is None and isinstance(partition, EllipsisType):
            known = self._by_name.get(name)  # the hot path, without any lock
            if known is not None and not known.is_closed:
                return known
        doing = _getting(name)
        while True:
            with self._life.working(doing):
                found, is_as_asked = self._table.get(name, priority, partition, external)
            if is_as_asked:
                return found
            if found.is_closed:
                found.close()  # waits for the thread that closes it, or goes on where that was interrupted
            elif not isinstance(partition, EllipsisType):
                with self._life.moving(doing):
                    self._partitions.move(found, partition)

    def choose(self, stream: object) -> Stream:
        """Return the stream to select for a name, a stream, or a lender; the hot path of a selection."""
        if self._life.state is not _OPEN:
            self._life.require_open("select a stream")
        if type(stream) is str:
            chosen = self._by_name.get(stream) or self.find(stream)
        elif type(stream) is Stream and self._by_name.get(stream.name) is stream:
            chosen = stream
        else:
            chosen = self.find(stream)
        if chosen.is_closed:
            chosen.require_open()
        return chosen

    def find(self, stream: object) -> Stream:
        """Return the stream of a name, a stream, or a lender, which becomes a lane on first use; it may be closed."""
        found = self._table.find(stream)
        if found is None:
            with self._life.working("take a stream"):
                found = self._table.take(stream)
        return found


def _getting(name: object) -> str:
    """Return what a closed session cannot do."""
    return f"get stream {name!r}"[:60]
