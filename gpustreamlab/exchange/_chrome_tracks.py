"""Processes and threads of Chrome's trace event format, and the lanes that they become."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from gpustreamlab.exchange._chrome_json import Event
from gpustreamlab.exchange._event_file import WRONG, whole_number
from gpustreamlab.model import Lane
from gpustreamlab.record import cut_text
from gpustreamlab.typing import Int64Array, LaneKind

MOST_TRACKS = 4_096
"""Most threads of a file that have lanes of their own; further ones share one."""

_GPU = re.compile(r"/device:GPU:(\d{1,7})\b")
_STREAM = re.compile(r"Stream #(\d{1,18})\b")


class _NameArgs(msgspec.Struct, gc=False):
    name: object = None
    sort_index: object = None


_NAME = msgspec.json.Decoder(_NameArgs)


class Lanes(NamedTuple):
    """The lanes of a trace, and where each track is."""

    lanes: tuple[Lane, ...]
    threads: tuple[str, ...]
    """Names of the threads of the host."""
    lane: Int64Array
    """Lane of each track, or -1; shape (n_tracks,)."""
    thread: Int64Array
    """Thread of each track, or -1; shape (n_tracks,)."""
    of_process: dict[int, int]
    """Lane of each process that has counters."""


class Tracks:
    """Numbers for processes and for what runs in them."""

    def __init__(self) -> None:
        self._processes: dict[str, int] = {}
        self._tracks: dict[tuple[int, str, bool], int] = {}
        self._names: dict[tuple[str, int, str], str] = {}
        self._order: dict[tuple[str, int, str], int] = {}
        self._contexts: dict[int, int] = {}

    def process(self, event: Event) -> int:
        """Return the number of an event's process."""
        if len(self._processes) >= MOST_TRACKS:
            return self._processes.get(str(event.pid), MOST_TRACKS - 1)
        return self._processes.setdefault(str(event.pid), len(self._processes))

    def thread(self, event: Event) -> int:
        """Return the number of an event's thread."""
        return self._number(self.process(event), str(event.tid), is_async=False)

    def asynchronous(self, event: Event) -> int:
        """Return the number of the track that holds what a process does in no thread, of one category."""
        return self._number(self.process(event), str(event.cat)[:80], is_async=True)

    def take_context(self, track: int, context: int) -> None:
        """Take which context the work of a track is of; the first one counts."""
        self._contexts.setdefault(track, context)

    def take_name(self, event: Event) -> None:
        """Take what an event of metadata says of a process or a thread."""
        what, _, fact = str(event.name).partition("_")
        if what not in {"process", "thread"} or fact not in {"name", "sort_index"} or len(self._names) > 4 * MOST_TRACKS:
            return
        try:
            args = _NAME.decode(event.args)
        except WRONG:
            return
        key = what, self.process(event), str(event.tid) if what == "thread" else ""
        if fact == "name" and args.name is not None:
            self._names[key] = cut_text(str(args.name)).strip()
        elif fact == "sort_index":
            self._order[key] = whole_number(args.sort_index)

    @property
    def is_stream(self) -> list[bool]:
        """Tell of each track whether it is a stream of a GPU."""
        return [self._stream(*track) is not None for track in self._tracks]

    @property
    def is_summary(self) -> list[bool]:
        """Tell of each track whether it sums up what a device did, as XLA's lines "XLA Ops" and "Steps" do."""
        return [self._is_of_device(*track) for track in self._tracks]

    @property
    def streams(self) -> list[tuple[int, int]]:
        """Device and number of each stream."""
        return [stream for track in self._tracks if (stream := self._stream(*track)) is not None]

    @property
    def first_device(self) -> int:
        """The first device that has streams; 0 where there is none."""
        return min((device for device, _ in self.streams), default=0)

    def lanes(self, used: Int64Array, counting: Sequence[int]) -> Lanes:
        """Return the lanes of the tracks that are used, streams first, and of processes that have counters."""
        tracks = [*self._tracks]
        places = sorted(used.tolist(), key=lambda place: self._rank(place, tracks[place]))
        named = self._texts([tracks[place] for place in places])
        lane, thread = np.full(len(tracks) + 1, -1, np.int64), np.full(len(tracks) + 1, -1, np.int64)
        lanes: list[Lane] = []
        threads: list[str] = []
        for place, name in zip(places, named, strict=True):
            lane[place] = len(lanes)
            stream = self._stream(*tracks[place])
            if stream is None:
                is_told_of_device = self._is_of_device(*tracks[place])
                lanes.append(Lane(name=name if is_told_of_device else f"host: {name}", kind=LaneKind.HOST))
                if not (tracks[place][2] or is_told_of_device):
                    thread[place] = len(threads)
                    threads.append(name)
            else:
                device, number = stream
                lanes.append(Lane(name=name, device=device, stream=number, context=self._contexts.get(place, 0)))
        of_process = {}
        taken = {one.name for one in lanes}
        for process in dict.fromkeys(counting):
            of_process[process] = len(lanes)
            name = self._free(f"host: counters of {self._process_name(process)}", taken)
            lanes.append(Lane(name=name, kind=LaneKind.HOST))
        return Lanes(tuple(lanes), tuple(threads), lane, thread, of_process)

    def _number(self, process: int, thread: str, *, is_async: bool) -> int:
        key = process, thread, is_async
        known = self._tracks.get(key)
        if known is None and len(self._tracks) >= MOST_TRACKS - 1:
            key = -1, "", True
        return self._tracks.setdefault(key, len(self._tracks))

    def _stream(self, process: int, thread: str, is_async: bool) -> tuple[int, int] | None:  # noqa: FBT001 - a key's part
        """Return device and stream, where the names are those that XLA gives."""
        if is_async:
            return None
        device = _GPU.search(self._names.get(("process", process, ""), ""))
        stream = _STREAM.match(self._names.get(("thread", process, thread), ""))
        if device is None or stream is None:
            return None
        return int(device[1]), int(stream[1])

    def _is_of_device(self, process: int, thread: str, is_async: bool) -> bool:  # noqa: FBT001
        is_device = _GPU.search(self._names.get(("process", process, ""), "")) is not None
        return is_device and self._stream(process, thread, is_async) is None

    def _rank(self, place: int, track: tuple[int, str, bool]) -> tuple[object, ...]:
        """Return what puts tracks in order: streams, then as the file says, then as they came."""
        process, thread, is_async = track
        if (stream := self._stream(*track)) is not None:
            return 0, *stream, place
        order = self._order.get(("process", process, ""), 0), process, is_async, self._order.get(("thread", process, thread), 0)
        return 1 + (process < 0), *order, place

    def _process_name(self, process: int) -> str:
        pid = next((pid for pid, number in self._processes.items() if number == process), "others")
        return self._names.get(("process", process, "")) or f"process {pid}"

    def _texts(self, tracks: Sequence[tuple[int, str, bool]]) -> list[str]:
        """Return a name of its own for each track."""
        has_more = len({device for device, _ in self.streams}) > 1
        hosts = {track[0] for track in tracks if self._stream(*track) is None and not self._is_of_device(*track)} - {-1}
        names = []
        for process, thread, is_async in tracks:
            stream = self._stream(process, thread, is_async)
            if stream is not None:
                names.append((f"GPU {stream[0]} " if has_more else "") + f"stream {stream[1]}")
                continue
            known = self._names.get(("thread", process, thread)) or f"thread {thread}"
            name = "other threads" if process < 0 else f"async {thread}" if is_async else known
            is_one = process < 0 or (len(hosts) == 1 and not self._is_of_device(process, thread, is_async))
            names.append(name if is_one else f"{self._process_name(process)}: {name}")
        counts = Counter(names)
        taken: set[str] = set()
        return [
            self._free(name if counts[name] == 1 else f"{name} ({thread})", taken)
            for name, (_, thread, _) in zip(names, tracks, strict=True)
        ]

    @staticmethod
    def _free(name: str, taken: set[str]) -> str:
        """Return a name that nobody has yet."""
        free, number = name, 1
        while free in taken:
            number += 1
            free = f"{name} ({number})"
        taken.add(free)
        return free
