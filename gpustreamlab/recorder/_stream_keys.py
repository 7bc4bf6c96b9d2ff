"""Which lane and partition a stream of the records belongs to, by time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from gpustreamlab.analysis import distinct
from gpustreamlab.typing import Int64Array

StreamKey: TypeAlias = tuple[int, int]
"""A context and a stream, as an `ActivitySource` numbers them."""

KEPT_KEYS = 65_536
"""Streams that are told apart, closed ones too; the newest count."""
KEPT_PLACES = 256
"""Places of one stream that are told apart by time; the newest count."""

_ALWAYS = np.iinfo(np.int64).min


class Place(NamedTuple):
    """Where a stream's work belongs from some time on."""

    from_ns: int
    """When it was enqueued, on the backend's clock."""
    lane: int
    """Index of the lane."""
    partition: int
    """Code of the partition, or -1."""


class StreamKeys:
    """The places of every stream by its key. Closed streams stay: their work may be told of late."""

    def __init__(self) -> None:
        self._places: dict[StreamKey, tuple[Place, ...]] = {}
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._places)

    def note(self, key: StreamKey, *, lane: int, partition: int, from_ns: int) -> None:
        """Note where a stream's work belongs from now on; what it did before was there too if nothing else is known."""
        with self._lock:
            places = self._places.get(key, ())
            if places and places[-1][1:] == (lane, partition):
                return
            place = Place(from_ns if places else _ALWAYS, lane, partition)
            self._places[key] = (*places, place)[-KEPT_PLACES:]
            while len(self._places) > KEPT_KEYS:
                del self._places[next(iter(self._places))]

    def find(
        self, context: Int64Array, stream: Int64Array, at_ns: Int64Array, make: Callable[[StreamKey], int]
    ) -> tuple[Int64Array, Int64Array]:
        """Return the lane and the partition of each piece of work.

        Parameters
        ----------
        context, stream
            Of each piece; shape (n,), int64.
        at_ns
            When it was enqueued; shape (n,), int64.
        make
            Returns a lane for a stream that is not known.
        """
        contexts, context_code = distinct(context)
        streams, stream_code = distinct(stream)
        pairs, code = distinct(context_code * max(1, len(streams)) + stream_code)
        keys = [(int(contexts[pair // len(streams)]), int(streams[pair % len(streams)])) for pair in pairs.tolist()]
        places = [self._places_of(key, make) for key in keys]
        # Most streams have been in one place only.
        lane = np.array([known[-1].lane for known in places], np.int64)[code]
        partition = np.array([known[-1].partition for known in places], np.int64)[code]
        for number, known in enumerate(places):
            if len(known) > 1:
                mine = np.flatnonzero(code == number)
                from_ns = np.array([place.from_ns for place in known], np.int64)
                place = np.maximum(0, np.searchsorted(from_ns, at_ns[mine], side="right") - 1)
                lane[mine] = np.array([entry.lane for entry in known], np.int64)[place]
                partition[mine] = np.array([entry.partition for entry in known], np.int64)[place]
        return lane, partition

    def _places_of(self, key: StreamKey, make: Callable[[StreamKey], int]) -> tuple[Place, ...]:
        with self._lock:
            known = self._places.get(key)
            if known is None:
                self.note(key, lane=make(key), partition=-1, from_ns=_ALWAYS)
                known = self._places[key]
            return known
