"""Hazards among the work of all libraries of a process, from the calls of its driver."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from gpustreamlab.analysis import FoundHazard, Hazard, HazardSearch, HazardSide, LaneClock, Moment, Piece, Region, Side, Touch
from gpustreamlab.backends import Step, StepKind
from gpustreamlab.typing import AccessCertainty

KEPT_EVENTS = 65_536  # Events of which it is known what they stand for; the oldest make room
KEPT_HIDING = 20  # Functions that are named as using memory that is not seen
_LEGACY = 0
_WORK, _MADE, _GONE = StepKind.WORK, StepKind.MADE, StepKind.GONE  # A look into an enumeration costs more than the test


class OutsideWork:
    """Follows the driver's calls, in their order, and finds which work conflicts. It is not locked.

    What lies in memory of watched arrays is left to those who watch them: they know what is read and what is written.
    """

    def __init__(self, name_stream: Callable[[int], str], card: int, beside: Callable[[], Iterable[OutsideWork]]) -> None:
        self.search = HazardSearch(str, clock=lambda: self._now_ns, card=card)
        """What was found."""
        self._hiding: dict[str, int] = {}  # How often functions were launched that use more memory than is seen
        self._name_stream = name_stream
        self._now_ns = 0
        self._pieces: dict[int, Piece] = {}
        self._moments: dict[int, Moment] = {}
        self._parts: set[int] = set()
        """Numbers of memory of which launches of one function use different parts, told by numbers and not by addresses."""
        self._writers: dict[tuple[int, int, int], tuple[LaneClock, int]] = {}
        self._blocking: set[int] = set()  # Lanes that worked since the legacy default stream did last
        self._behind_legacy: set[int] = set()  # Lanes that have waited for its last work
        self._legacy_worked = False
        self._beside = beside  # Returns those of all cards of the node
        self._watched: dict[int, None] = {}  # First addresses of memory of watched arrays, the oldest first
        self._codes: dict[int, tuple[str, str]] = {}  # How streams are written, and of which library, by handle

    def take(self, steps: Sequence[Step], places: Sequence[str], host_ns: Sequence[int], *, is_counted: bool) -> None:
        """Take steps, the names of the ranges that they were made in, and when; work counts, or is as if it had not been."""
        for step, place, self._now_ns in zip(steps, places, host_ns, strict=True):
            kind = step.kind
            if kind is _WORK:
                if is_counted:
                    self._work(step, place)
            elif kind is _MADE:
                self._make(step, place)
            elif kind is _GONE:
                self._let_go(step)
            elif kind is StepKind.LOST:
                self._forget()
            else:
                self._order(step)

    def found(self) -> list[tuple[Hazard, int]]:
        """Return the hazards in their order, and when each was found, by the host's clock.

        Those whose ranges differ in numbers alone are one: a mistake in a loop is made once.
        """
        alike: dict[tuple[object, ...], list[FoundHazard]] = {}
        for row in filter(self._is_told, self.search.found.values()):
            places = (_NUMBERS.sub("#", side.place) for side in (row.first, row.second))
            alike.setdefault((row.kind, row.first.lane, row.second.lane, *places), []).append(row)
        return [(self._describe(rows[0], sum(row.count for row in rows)), rows[0].host_ns) for rows in alike.values()]

    def unseen(self) -> Iterator[str]:
        """Say of which work not all memory is seen."""
        if self._hiding:
            names = ", ".join(f"{name} ({count:,}x)" for name, count in self._hiding.items())
            yield f"Of these not all memory is seen, as where pointers lie in memory: {names}. A race there goes unfound."

    def clear(self) -> None:
        """Forget what was found so far; what is known of memory and of the order stays."""
        self.search.clear()
        self._hiding.clear()

    def note_watched(self, start: int) -> None:
        """Note where memory of a watched array begins."""
        self._watched[start] = None
        while len(self._watched) > KEPT_EVENTS:
            del self._watched[next(iter(self._watched))]

    def name(self, names: Mapping[str, object]) -> None:
        """Let streams and memory of other libraries be known by the caller's names for them."""
        for name, value in names.items():
            library = type(value).__module__.partition(".")[0]
            if name.startswith("_") or library not in _LIBRARIES:
                continue
            try:
                handle, address = _handle_of(value), _address_of(value)
            except Exception:  # noqa: BLE001, S112 - of an object that is closed, or not on a card
                continue
            if handle:
                self._codes[handle] = (name, library)
            piece = None if address is None else self._piece_at(address)
            if piece is not None:
                piece.name = piece.name or name

    def _is_told(self, row: FoundHazard) -> bool:
        piece = row.piece
        watched = (start for one in self._beside() for start in one._watched)
        return piece.number not in self._parts and not any(piece.start <= start < piece.end for start in watched)

    def _describe(self, row: FoundHazard, count: int) -> Hazard:
        piece = row.piece
        is_known = {row.first.work, row.second.work} <= {"copy", "fill"}
        return Hazard(
            kind=row.kind,
            is_certain=row.is_certain,
            array=piece.name or f"{piece.end - piece.start:,} bytes",
            maker=str(piece.place or ""),
            shape=piece.shape,
            dtype=str(piece.dtype),
            allocation=piece.number,
            first=self._describe_side(row.first),
            second=self._describe_side(row.second),
            hazard_count=count,
            certainty=AccessCertainty.KNOWN if is_known else AccessCertainty.LEARNED,
        )

    def _describe_side(self, side: Side) -> HazardSide:
        name, code, library = self._name_lane(side.lane.handle)
        return HazardSide(stream=name, range=side.place, work=side.work, order=side.order, code=code, library=library)

    def _name_lane(self, handle: int) -> tuple[str, str, str]:
        """Return what a stream is called, and where it is not the session's how it is written, and in which library."""
        name = self._name_stream(handle)
        if name:
            return name, "", ""
        if handle in self._codes:
            called, library = self._codes[handle]
            return called, called, library
        library = "torch" if "torch" in sys.modules else "cupy"
        if handle == _LEGACY:
            return "default stream", "torch.cuda.default_stream()" if library == "torch" else "cupy.cuda.Stream.null", library
        if handle < 0:
            return "default stream of a thread", "cupy.cuda.Stream.ptds", "cupy"
        return f"stream {handle:#x}", f"{library}.cuda.ExternalStream({handle:#x})", library

    def _piece_at(self, address: int) -> Piece | None:
        """Return the memory that an address is in: what a pool gave out, before what it was given out of."""
        found = (piece for piece in self._pieces.values() if piece.start <= address < piece.end)
        return min(found, key=lambda piece: piece.end - piece.start, default=None)

    def _work(self, step: Step, place: str) -> None:
        lane = self._lane(step)
        if step.hides and (step.name in self._hiding or len(self._hiding) < KEPT_HIDING):
            self._hiding[step.name] = self._hiding.get(step.name, 0) + 1
        reads: list[Touch] = []
        writes: list[Touch] = []
        for buffer, begin, end, is_write in step.touches:
            piece = self._pieces.get(buffer)
            if piece is None:
                continue
            region = _region(piece.start + begin, piece.start + end)
            (writes if is_write else reads).append((piece, None if region == piece.whole else region))
            if is_write and not step.is_known:
                self._note_parts(step, lane, piece, begin)
        self.search.work(lane, step.name, place, reads, writes)

    def _note_parts(self, step: Step, lane: LaneClock, piece: Piece, begin: int) -> None:
        key = step.function, piece.number, begin
        other, numbers = self._writers.get(key, (lane, step.numbers))
        if other is not lane and numbers != step.numbers:
            self._parts.add(piece.number)
        if len(self._writers) >= KEPT_EVENTS:
            self._writers.clear()
        self._writers[key] = lane, step.numbers

    def _make(self, step: Step, place: str) -> None:
        piece = self.search.allocate(step.stream, step.start, step.start + step.size_bytes, (step.size_bytes,), "bytes")
        piece.place = place
        self._pieces[step.buffer] = piece

    def _let_go(self, step: Step) -> None:
        piece = self._pieces.pop(step.buffer, None)
        if piece is not None:
            if step.is_ordered:
                self.search.kept_until(piece, self.search.clocks.record(self._lane(step)))
            self.search.free(piece)

    def _forget(self) -> None:
        """Know of no memory and no event: calls are missing."""
        self.search.clocks.host_wait_all()
        self._pieces.clear()
        self._moments.clear()
        self._writers.clear()

    def _order(self, step: Step) -> None:
        clocks = self.search.clocks
        if step.kind is StepKind.RECORD:
            while len(self._moments) >= KEPT_EVENTS:
                del self._moments[next(iter(self._moments))]
            self._moments[step.event] = clocks.record(self._lane(step))
        elif step.kind is StepKind.WAIT:
            clocks.wait(self._lane(step), self._moments.get(step.event, {}))
        elif step.kind is StepKind.SEEN_EVENT:
            clocks.host_wait(self._moments.get(step.event, {}))
        elif step.kind is StepKind.SEEN_STREAM:
            clocks.host_wait(clocks.record(self._lane(step)))
        elif step.kind is StepKind.SEEN_ALL:
            clocks.host_wait_all()
        else:
            clocks.close(step.stream)

    def _lane(self, step: Step) -> LaneClock:
        """Return a stream's clock, ordered against the legacy default stream if they wait for each other."""
        clocks = self.search.clocks
        lane = clocks.lane(step.stream)
        if step.stream == _LEGACY:
            for handle in self._blocking:
                clocks.wait(lane, clocks.record(clocks.lane(handle)))
            self._blocking.clear()
            self._behind_legacy.clear()
            self._legacy_worked = True
        elif step.is_blocking:
            if self._legacy_worked and step.stream not in self._behind_legacy:
                clocks.wait(lane, clocks.record(clocks.lane(_LEGACY)))
                self._behind_legacy.add(step.stream)
            self._blocking.add(step.stream)
        return lane


_LIBRARIES = {"torch", "cupy"}
_NUMBERS = re.compile(r"\d+")


def _handle_of(value: Any) -> int | None:
    """Return the handle of a stream of torch or CuPy; None for anything else."""
    if hasattr(value, "cuda_stream"):
        return int(value.cuda_stream)
    return int(value.ptr) if hasattr(value, "wait_event") else None


def _address_of(value: Any) -> int | None:
    """Return where the memory of a tensor or an array begins; None for anything else."""
    if hasattr(value, "untyped_storage"):
        return int(value.untyped_storage().data_ptr()) if value.is_cuda else None
    return int(value.data.mem.ptr) if hasattr(value, "data") and hasattr(value.data, "mem") else None


@lru_cache(maxsize=65_536)
def _region(start: int, end: int) -> Region:
    """Return the same object for the same bytes: the search compares them so where that is enough."""
    return Region(start, end)
