"""The streams of a session, by name: its own, and those that others lend."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import count
from types import EllipsisType

from gpustreamlab._util.defences import delayed_interrupts
from gpustreamlab.backends import BackendStream, lent_handle
from gpustreamlab.errors import (
    InvalidNameError,
    OptionError,
    PartitionError,
    StreamClosedError,
    StreamExistsError,
    StreamNotFoundError,
    StreamRefusedError,
    nearest_hint,
)
from gpustreamlab.model import BENCH, check_name, is_tools_name
from gpustreamlab.recorder import RecordedLane
from gpustreamlab.streams.layout import Partitions
from gpustreamlab.streams.life import SessionLife
from gpustreamlab.streams.stream import Stream, StreamParts, check_priority, share_a_clock
from gpustreamlab.typing import SessionState

_OPEN = SessionState.OPEN
KEPT_CLOSED = 256
"""Closed streams that are known by their names, so that messages say that they are closed; the oldest make room."""


class _ByName(dict[str, Stream]):
    """Streams by name; one that is not there gets an error with what to type."""

    partitions: Collection[str] = ()
    """Names of partitions, which are no streams."""

    def __missing__(self, name: object) -> Stream:
        shown = str(name)[:40]
        hint = nearest_hint(shown, self)
        place = ""
        if name in self.partitions:
            hint, place = "It is a partition, in which streams work.", f", partition={shown!r}"
        raise StreamNotFoundError(
            f"The session has no stream {shown!r}.{hint and f' {hint}'} Make it first with lab.stream({shown!r}{place})."
        )


class StreamTable:
    """Makes and finds the streams of one session, with the locks and the waits that this takes."""

    def __init__(self, parts: StreamParts, partitions: Partitions, life: SessionLife) -> None:
        self._parts = parts
        self._backend = parts.backend
        self._partitions = partitions
        self._life = life
        parts.keeper.find = self.known
        self.by_name: dict[str, Stream] = {}
        """Every stream that there was, by its name; the last `KEPT_CLOSED` closed ones stay until the name is used again."""
        self._by_handle: dict[int, Stream] = {}  # some may have closed or moved since
        self.elsewhere: Callable[[str], int | None] = _nowhere
        """Tells which other GPU of a node has a stream of a name: names are of the whole node."""
        self._forgets_at = KEPT_CLOSED
        partitions.find_streams = lambda: (*self.by_name.values(),)

    @property
    def open_streams(self) -> dict[str, Stream]:
        """The streams that are not closed, in the order of their making."""
        found = _ByName((name, stream) for name, stream in self.by_name.copy().items() if not stream.is_closed)
        found.partitions = () if self._partitions.layout is None else self._partitions.layout.names
        return found

    def with_handle(self, handle: int) -> Stream | None:
        """Return the open stream that has a handle now, or None."""
        known = self._by_handle.get(handle)
        if known is None or known.is_closed or known.lane.stream != handle:
            self._by_handle = by_handle = {stream.lane.stream: stream for stream in self.open_streams.values()}
            known = by_handle.get(handle)
        return known

    def get(
        self,
        name: str,
        priority: int | None,
        partition: str | EllipsisType | None,
        external: object | None,
        *,
        is_tools: bool = False,
    ) -> Stream:
        """Return the stream of a name, made on first use, and moved where it is elsewhere; see `Session.stream`."""
        if self._life.state is not _OPEN:
            self._life.require_open(_getting(name))
        check_name(name, "stream", "lab.stream('copy')")
        if priority is not None:
            check_priority(priority, self._backend.priority_range)
        elif external is None and isinstance(partition, EllipsisType):
            known = self.by_name.get(name)  # the hot path, without any lock
            if known is not None and not known.is_closed:
                return known
        if is_tools_name(name) and not is_tools:
            raise InvalidNameError(
                f"Stream {name!r} cannot be made: names with {BENCH!r} are those of streams on which lab.bench measures, and "
                f"traces leave them out. Use another one, for example {name.replace(BENCH, 'bench-')!r}."
            )
        doing = _getting(name)
        while True:
            with self._life.working(doing):
                found, is_as_asked = self._get_as_it_is(name, priority, partition, external)
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
            chosen = self.by_name.get(stream) or self.find(stream)
        elif type(stream) is Stream and self.by_name.get(stream.name) is stream:
            chosen = stream
        else:
            chosen = self.find(stream)
        if chosen.is_closed:
            chosen._require_open()
        return chosen

    def find(self, stream: object) -> Stream:
        """Return the stream of a name, a stream, or a lender, whose stream is taken on first use; it may be closed."""
        found = self.known(stream)
        if found is None:
            with self._life.working("take a stream"):
                found = self._take(stream)
        return found

    def known(self, stream: object) -> Stream | None:
        """Return the stream that a name or a stream stands for; None for a lender that may be none yet."""
        if isinstance(stream, str):
            found = self.by_name.get(stream)
            if found is None and (device := self.elsewhere(stream)) is not None:
                shown = stream[:40]
                raise StreamNotFoundError(
                    f"Stream {shown!r} is on GPU {device} of this node, not on this one. Where a stream is taken, give the "
                    f"stream itself: node.stream({shown!r}). To work on it: node.on({shown!r})."
                )
            return found or self.open_streams[stream]
        if isinstance(stream, Stream) and self.by_name.get(stream.name) is stream:
            return stream
        if isinstance(stream, Stream) and stream.is_closed:
            raise StreamClosedError(f"Stream {stream.name!r} is closed. Make another with lab.stream({stream.name!r}).")
        return None

    def _get_as_it_is(
        self, name: str, priority: int | None, partition: str | EllipsisType | None, external: object | None
    ) -> tuple[Stream, bool]:
        """Return the stream of a name, made on first use, and whether it is as asked for. Under the lock of the state.

        If it is not, it has to move, or is being closed: its name is used again when it is gone. Both take a wait for the
        device, so they are not done here.
        """
        known = self.by_name.get(name)
        if known is None or known._is_gone:
            if (device := self.elsewhere(name)) is not None:
                raise StreamExistsError(
                    f"Stream {name!r} is on GPU {device} of this node, where a name is one for all GPUs. Use another one."
                )
            return self._make(name, priority, None if isinstance(partition, EllipsisType) else partition, external), True
        if known.is_closed:
            return known, False
        if priority is not None and priority != known.priority:
            raise StreamExistsError(
                f"Stream {known.name!r} exists with priority {known.priority}, not {priority}. "
                f"Close it first with lab.stream({known.name!r}).close(), or use another name."
            )
        if external is not None and lent_handle(external) != known.handle:
            raise StreamExistsError(f"Stream {known.name!r} exists and is not the one given. Use another name.")
        return known, isinstance(partition, EllipsisType) or self._partitions.stay(known, partition)

    def _take(self, lender: object) -> Stream:
        """Return the stream that stands for one that others own, made on first use."""
        made = self._adopt(lender)
        known = self._with_key(made)
        if known is not None:
            made.close()
            return known
        return self._add(name := next(self._free_names(lender)), self._partitions.adopt(name, made))

    def _make(self, name: str, priority: int | None, partition: str | None, external: object | None) -> Stream:
        if external is None:
            with delayed_interrupts():  # a stream that was made is in the table
                return self._add(name, self._partitions.make_place(name, priority or 0, partition))
        made = self._adopt(external)
        try:
            self._require_as_lent(name, made, priority, partition)
        except Exception:
            made.close()
            raise
        return self._add(name, self._partitions.adopt(name, made))

    def _require_as_lent(self, name: str, made: BackendStream, priority: int | None, partition: str | None) -> None:
        if priority is not None and made.priority != priority:
            raise OptionError(
                f"Stream {name!r} cannot have priority {priority}: the stream lent to it was made with {made.priority}. "
                "Leave out priority=, or make the stream with it where it comes from."
            )
        if partition is not None:
            raise PartitionError(
                f"Stream {name!r} cannot work in partition {partition!r}: it is lent by another library, which decides on its "
                "SMs. Leave out one of the two."
            )
        known = self._with_key(made)
        if known is not None:
            raise StreamExistsError(f"The session has this stream already, as {known.name!r}. Use lab.stream({known.name!r}).")

    def _adopt(self, lender: object) -> BackendStream:
        if isinstance(lender, Stream) and not share_a_clock(lender._backend, self._backend):
            raise StreamRefusedError(
                f"Stream {lender.name!r} is of another session, and each simulated device has streams of its own. Make one "
                f"here with lab.stream({lender.name!r}), or give both sessions one backend object."
            )
        return self._backend.adopt_stream(lender)

    def _with_key(self, made: BackendStream) -> Stream | None:
        return next((known for known in self.open_streams.values() if known.lane.key == made.key), None)

    def _free_names(self, lender: object) -> Iterator[str]:
        library = type(lender).__module__.partition(".")[0]
        source = type(lender).__name__ if library == "__main__" else library  # a notebook, or a script
        return (name for number in count(1) if (name := f"{source}-{number}") not in self.by_name)

    def _forget_closed(self) -> None:
        if len(self.by_name) < self._forgets_at:
            return  # so that a stream among thousands is made as fast as the first
        gone = [stream for stream in self.by_name.values() if stream._is_gone]
        for stream in gone[:-KEPT_CLOSED]:
            del self.by_name[stream.name]
        self._by_handle.clear()
        self._forgets_at = len(self.by_name) + (len(self.by_name) - KEPT_CLOSED) // 8

    def _add(self, name: str, place: RecordedLane) -> Stream:
        self._forget_closed()
        stream = self.by_name[name] = Stream(name, place, self._parts)
        self._by_handle[stream.lane.stream] = stream
        return stream


def _getting(name: object) -> str:
    """Return what a closed session cannot do."""
    return f"get stream {name!r}"[:60]


def _nowhere(_name: str) -> None:
    """Know of no other GPU."""
