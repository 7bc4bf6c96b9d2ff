"""Spans as columns on their way to the page: sorted, packed into bytes, with a manifest that says how to read them.

The page's side is `viewer/columns.js`. A column is a constant, or unsigned integers above a bias, of 1, 2, 4 or 8 bytes; the
largest value of the type stands for the next of the column's exceptions, which are signed and of 8 bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpustreamlab._util.background import thread_pool
from gpustreamlab.analysis import is_work
from gpustreamlab.draw._scene import NO_WAIT, work_columns
from gpustreamlab.model import EDGE_KINDS, SPAN_KINDS, Trace
from gpustreamlab.typing import BoolArray, EdgeKind, Int64Array, SpanKind

_NUL, _CR, _LESS, _SLASH, _MARK = b"\0\r</!"  # HTML replaces the first two; "</" and "<!" may end a script
_WIDE_PIECE_BYTES = 7 << 13
_WIDE_SHIFTS = np.arange(49, -1, -7, dtype=np.uint64)


def to_wide(data: bytes) -> str:
    r"""Write bytes as letters of 7 bits each, for script elements of a page in UTF-8, where most of them take a byte.

    A letter above 127 stands for a NUL and the letter 128 below it; where that is a NUL, a CR or a ``<``, for this alone.

    Examples
    --------
    >>> to_wide(b""), len(to_wide(b"1234567")), to_wide(bytes(1))
    ('', 8, '\x80\x80')
    """
    missing = -len(data) % 7
    padded = data + bytes(missing)
    return "".join(
        _wide_letters(padded[first : first + _WIDE_PIECE_BYTES], missing if first + _WIDE_PIECE_BYTES >= len(padded) else 0)
        for first in range(0, len(padded), _WIDE_PIECE_BYTES)
    )


def _wide_letters(padded: bytes, missing: int) -> str:
    groups = np.zeros((len(padded) // 7, 8), np.uint8)
    groups[:, 1:] = np.frombuffer(padded, np.uint8).reshape(-1, 7)
    words = groups.view(">u8").astype(np.uint64)
    letters = ((words >> _WIDE_SHIFTS).astype(np.uint8) & 127).ravel()[: 8 * len(words) - missing]
    following = np.append(letters[1:], np.uint8(_MARK))  # the next piece may begin with one
    is_zero, is_less = letters == _NUL, letters == _LESS
    pairs = np.flatnonzero((is_zero & (following != _NUL) & (following != _CR) & (following != _LESS))[:-1])
    letters[is_zero | (letters == _CR) | is_less & ((following == _SLASH) | (following == _MARK))] |= 128
    letters[pairs] |= following[pairs]
    return np.delete(letters, pairs + 1).tobytes().decode("latin-1")


PIECE_BYTES = 1 << 18  # How many bytes one thread takes at a time
SAMPLE_BYTES = 1 << 14  # How many bytes of a piece are tried
MATCHED_GAIN = 0.97  # Looking for repetitions pays if it makes a piece smaller than this share of what it is without


def deflate(chunks: Sequence[bytes], level: int) -> bytes:
    """Deflate bytes into one raw stream (RFC 1951).

    Pieces are independent and end on a byte, so that joining them gives one stream.

    Examples
    --------
    >>> zlib.decompress(deflate([b"abc" * 1000, b"x"], 6), wbits=-15) == b"abc" * 1000 + b"x"
    True
    """
    pieces = [chunk[at : at + PIECE_BYTES] for chunk in chunks for at in range(0, len(chunk), PIECE_BYTES)]
    with thread_pool(2) as pool:
        packed = list(pool.map(lambda piece: _deflate_piece(piece, level), pieces))
    return b"".join((*packed, zlib.compressobj(level, zlib.DEFLATED, -15).flush()))


def _deflate_piece(piece: bytes, level: int) -> bytes:
    # The low bytes of times are noise, in which a search for repetitions takes long and finds none. Without any search pages of
    # real profiles are half as large again; with it everywhere a million spans take 0.25 s more.
    middle = max(0, len(piece) - SAMPLE_BYTES) // 2
    sample = piece[middle : middle + SAMPLE_BYTES]
    repeats = len(_run(sample, level, zlib.Z_DEFAULT_STRATEGY)) < MATCHED_GAIN * len(_run(sample, level, zlib.Z_RLE))
    return _run(piece, level, zlib.Z_DEFAULT_STRATEGY if repeats else zlib.Z_RLE)


def _run(data: bytes, level: int, strategy: int) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, -15, 9, strategy)
    return packer.compress(data) + packer.flush(zlib.Z_FULL_FLUSH)


_CLIMB_LIMIT = 32


def told_by_work(trace: Trace) -> BoolArray:
    """Tell which edges are waits between two ranges beside one between work in them; shape (n_edges,), bool."""
    is_told = np.zeros(len(trace.edges), bool)
    edges = np.flatnonzero(trace.edges.kind == EDGE_KINDS.index(EdgeKind.WAIT))
    source, target = trace.edges.source[edges].astype(np.int64), trace.edges.target[edges].astype(np.int64)
    is_range, works = trace.kind == SPAN_KINDS.index(SpanKind.RANGE), is_work(trace)
    of_ranges = np.flatnonzero(is_range[source] & is_range[target])
    of_work = np.flatnonzero(works[source] & works[target])
    if not (of_ranges.size and of_work.size):
        return is_told
    keys = source[of_ranges] * len(trace) + target[of_ranges]
    order = np.argsort(keys, kind="stable")
    own, keys = of_ranges[order], keys[order]
    for outer_source, is_left in _ancestors(trace, source[of_work]):
        for outer_target, is_there in _ancestors(trace, target[of_work]):
            known = np.flatnonzero(is_left & is_there)
            wanted = outer_source[known] * len(trace) + outer_target[known]
            place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            found = keys[place] == wanted
            is_told[edges[own[place[found]]]] = True
    return is_told


def _ancestors(trace: Trace, rows: Int64Array) -> Iterator[tuple[Int64Array, BoolArray]]:
    """Yield the parents of rows, then the parents of those and so on, and which there are."""
    for _ in range(_CLIMB_LIMIT):
        rows = np.where(rows >= 0, trace.parent[rows], -1).astype(np.int64)
        if not (rows >= 0).any():
            return
        yield rows, rows >= 0


_WIDTHS = (1, 2, 4)

_LAUNCH, _SYNC = map(EDGE_KINDS.index, (EdgeKind.LAUNCH, EdgeKind.SYNC))

MAX_RANKED_ROWS = 64  # Up to how many rows the page finds the order of all starts itself: rows are merged two by two

_WORK_COLUMNS = {
    "detail": ("detail", -1),
    "size_bytes": ("size", 0),
    "owner_name": ("ownerName", -1),
    "owner_lane": ("ownerLane", -1),
    "work_lead_ns": ("workLead", 0),
    "work_tail_ns": ("workTail", 0),
    "work_count": ("workCount", 0),
    "waited_name": ("waitedName", NO_WAIT),
}  # Names of the columns of device work on the page, and the value of a span that has none

WORK_DEFAULTS = {name: value for name, (_, value) in _WORK_COLUMNS.items()}
"""Where all spans have these values, they take no bytes."""

_FROM_INDEX, _FROM_PREVIOUS, _FROM_RANK = range(3)
"""Ways to pack places: as steps from the index of the span, from the place before it in its row, or from its rank by start."""


def _nothing(*shape: int) -> Int64Array:
    return np.empty(shape or 0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpanColumns:
    """Spans sorted by row, then by start, as columns of equal length; times are in ns since the page's zero."""

    row: Int64Array  # Row code of each span; shape (n,), int64
    start_ns: Int64Array  # Start; shape (n,), int64
    end_ns: Int64Array  # End; shape (n,), int64
    name: Int64Array  # Code of the name; shape (n,), int64
    kind: Int64Array  # Code of the kind; shape (n,), int64
    thread: Int64Array  # Code of the host thread, -1 where unknown; shape (n,), int64
    partition: Int64Array  # 0 for the whole card, else one more than the code of the partition; shape (n,), int64
    queueing_ns: Int64Array  # From the enqueue to the start; shape (n,), int64
    place: Int64Array  # Row of the trace, or the number that the recorder gave it; shape (n,), int64
    count: Int64Array = field(default_factory=_nothing)  # How many spans each stands for; shape (n,), int64; 1 if left out
    busy_ns: Int64Array = field(default_factory=_nothing)
    """Busy time of those; shape (n,), int64; the span's duration if left out."""
    detail: Int64Array = field(default_factory=_nothing)
    """Code of the detail of a kernel, copy or fill, -1 for none; shape (n,), int64; -1 if left out, as all that follow have
    the values of `WORK_DEFAULTS`."""
    size_bytes: Int64Array = field(default_factory=_nothing)  # Bytes copied, filled, allocated or freed; shape (n,), int64
    owner_name: Int64Array = field(default_factory=_nothing)
    """Of a kernel, copy or fill: code of the name of the range in which it was launched, -1 for none; shape (n,), int64."""
    owner_lane: Int64Array = field(default_factory=_nothing)
    """The lane which that range had selected, -1 for none. Work on another lane is a stray; shape (n,), int64."""
    work_lead_ns: Int64Array = field(default_factory=_nothing)
    """Of a range: from its start to the start of the first work in it; shape (n,), int64."""
    work_tail_ns: Int64Array = field(default_factory=_nothing)
    """From the end of the last work in it to its end; shape (n,), int64."""
    work_count: Int64Array = field(default_factory=_nothing)
    """Number of kernels, copies and fills launched in it; shape (n,), int64."""
    waited_name: Int64Array = field(default_factory=_nothing)
    """Of a call that blocked the host: code of the name of what it waited for, -1 where nothing is known of that; -2 for all
    other spans; shape (n,), int64."""
    edges: Int64Array = field(default_factory=lambda: _nothing(0, 4))
    """Arrows: a time of the source in ns, its row, start of the target in ns, its row; shape (n_edges, 4), int64. The time
    is the end of what was waited for, and the start of a call that launched."""
    edge_kind: Int64Array = field(default_factory=_nothing)
    """Code of the `EdgeKind`; shape (n_edges,), int64; waits if left out."""
    edge_place: Int64Array = field(default_factory=lambda: _nothing(0, 2))
    """The places of the spans at both ends: several may begin or end at one time; shape (n_edges, 2), int64; -1, not known, if
    left out."""
    edge_told: Int64Array = field(default_factory=_nothing)
    """1 for a wait between two ranges beside one between the work in them, else 0, and if left out; shape (n_edges,), int64."""

    def __post_init__(self) -> None:
        n, edge_count = len(self.row), len(self.edges)
        defaults = {name: (n, value) for name, value in ({"count": 1} | WORK_DEFAULTS).items()}
        defaults |= {"edge_kind": (edge_count, 0), "edge_told": (edge_count, 0)}
        for name, (length, value) in defaults.items():
            if len(getattr(self, name)) != length:
                object.__setattr__(self, name, np.broadcast_to(np.int64(value), length))  # takes no memory
        if len(self.edge_place) != edge_count:
            object.__setattr__(self, "edge_place", np.full((edge_count, 2), -1))
        if len(self.busy_ns) != n:
            object.__setattr__(self, "busy_ns", self.end_ns - self.start_ns)

    def __len__(self) -> int:
        return len(self.row)


def columns_of(trace: Trace, codes: NDArray[np.integer[Any]], zero_ns: int) -> SpanColumns:
    """Return all spans of a trace, sorted as the page needs them."""
    codes = np.asarray(codes)
    order = _span_order(codes, trace.start_ns, trace.end_ns)

    def taken(column: NDArray[Any]) -> Int64Array:
        if len(column) and column[0] == column[-1] and (column == column[0]).all():
            return np.broadcast_to(np.int64(column[0]), len(column))
        sorted_column = column if order is None else column[order]
        return sorted_column.astype(np.int64, copy=False)

    start_ns = taken(trace.start_ns)
    drawn = np.flatnonzero(trace.edges.kind != _SYNC)  # what a call of the host waited for is told with the call
    source, target, edge_kind = trace.edges.source[drawn], trace.edges.target[drawn], trace.edges.kind[drawn].astype(np.int64)
    # A call is still running when what it launched starts: so its start counts.
    from_ns = np.where(edge_kind == _LAUNCH, trace.start_ns[source], trace.end_ns[source])
    sides = (from_ns - zero_ns, codes[source], trace.start_ns[target] - zero_ns, codes[target])
    work = {name: taken(column) for name, column in work_columns(trace).items()}
    return SpanColumns(
        row=taken(codes),
        start_ns=start_ns - zero_ns,
        end_ns=taken(trace.end_ns) - zero_ns,
        name=taken(trace.name),
        kind=taken(trace.kind),
        thread=taken(trace.thread),
        partition=taken(trace.partition) + 1,
        queueing_ns=start_ns - taken(trace.queued_ns),
        place=np.arange(len(trace)) if order is None else order,
        edges=np.stack(sides, axis=1).astype(np.int64),
        edge_kind=edge_kind,
        edge_told=told_by_work(trace)[drawn].astype(np.int64),
        edge_place=np.stack((source, target), axis=1).astype(np.int64),
        **work,
    )


Spec: TypeAlias = int | dict[str, int] | None
"""Encoding of a column: its constant value; where it lies, and how it is packed; None where it follows from the others."""


def pack_columns(columns: SpanColumns, *, level: int | None) -> tuple[dict[str, Any], bytes]:
    """Pack spans into bytes."""
    parts, row = _Parts(is_shuffled=level is not None), columns.row
    opens = np.ones(len(row), bool)
    np.not_equal(row[1:], row[:-1], out=opens[1:])
    first = np.flatnonzero(opens)
    manifest = {
        "n": len(columns),
        "deflated": level is not None,
        "runs": np.stack((row[first], np.diff(first, append=len(row))), axis=1).tolist(),
        "columns": _pack_spans(columns, opens, parts),
        "edges": {"n": len(columns.edges), "columns": _pack_edges(columns, parts)},
    }
    blob = b"".join(parts.chunks) if level is None else deflate(parts.chunks, level)
    return manifest, blob


def _span_order(codes: NDArray[Any], start_ns: Int64Array, end_ns: Int64Array) -> Int64Array | None:
    """Return the order by row, start and end; None where the spans are in it."""
    if (codes[1:] >= codes[:-1]).all() and not _misplaced(codes, start_ns, end_ns).size:
        return None
    # numpy sorts 16-bit keys by radix, in linear time.
    small = codes.astype(np.uint16) if int(codes.max()) < 1 << 16 else codes
    order: Int64Array = np.argsort(small, kind="stable")
    sorted_codes, start_ns, end_ns = codes[order], start_ns[order], end_ns[order]
    wrong = _misplaced(sorted_codes, start_ns, end_ns)
    if wrong.size:
        rows = np.flatnonzero(np.isin(sorted_codes, np.unique(sorted_codes[wrong])))
        order[rows] = order[rows][np.lexsort((end_ns[rows], start_ns[rows], sorted_codes[rows]))]
    return order


def _misplaced(codes: NDArray[Any], start_ns: Int64Array, end_ns: Int64Array) -> Int64Array:
    """Return the places of spans that should come before the one in front of them in their row."""
    later = start_ns[1:] > start_ns[:-1]
    if later.all():
        return _nothing()
    equal = (start_ns[1:] == start_ns[:-1]) & (end_ns[1:] >= end_ns[:-1])
    return np.flatnonzero(~(later | equal) & (codes[1:] == codes[:-1])) + 1


def _pack_spans(columns: SpanColumns, opens: BoolArray, parts: _Parts) -> Mapping[str, Spec]:
    duration_ns = columns.end_ns - columns.start_ns
    is_plain = (columns.count == 1).all() and np.array_equal(columns.busy_ns, duration_ns)
    has_work = any((getattr(columns, name) != value).any() for name, value in WORK_DEFAULTS.items())
    return {
        "gap": parts.add(_steps(columns.start_ns, columns.end_ns, opens)),
        "duration": parts.add(duration_ns),
        "name": parts.add(columns.name),
        "kind": parts.add(columns.kind),
        "thread": parts.add(columns.thread),
        "partition": parts.add(columns.partition),
        "queueing": parts.add(columns.queueing_ns),
        **_pack_places(columns, opens, parts),
        "count": 1 if is_plain else parts.store(columns.count),
        "busy": None if is_plain else parts.add(columns.busy_ns),
        **({key: parts.add(getattr(columns, name)) for name, (key, _) in _WORK_COLUMNS.items()} if has_work else {}),
    }


def _pack_places(columns: SpanColumns, opens: BoolArray, parts: _Parts) -> dict[str, Spec]:
    """Pack the places as steps from what is known without them; return the way, too."""
    place, n = columns.place, len(columns)
    if (place[1:] == place[:-1] + 1).all() and (place[:1] == 0).all():
        return {"place": 0, "placeFrom": _FROM_INDEX, "placeMost": max(0, n - 1)}
    most = int(place.max(initial=0))
    if np.count_nonzero(opens) <= MAX_RANKED_ROWS and place.min() == 0 and most == n - 1:
        ranks = _ranks_by_start(columns.start_ns, place)
        if ranks is not None:
            return {"place": parts.add(place - ranks), "placeFrom": _FROM_RANK, "placeMost": most}
    return {"place": parts.add(_steps(place, place, opens)), "placeFrom": _FROM_PREVIOUS, "placeMost": most}


def _ranks_by_start(start_ns: Int64Array, place: Int64Array) -> Int64Array | None:
    """Return the rank of each span by start, then by index; None where the places are not in order of start."""
    by_place = np.full(len(place), -1)
    by_place[place] = np.arange(len(place))
    if (by_place < 0).any():
        return None
    ordered_ns = start_ns[by_place]
    if (ordered_ns[1:] < ordered_ns[:-1]).any():
        return None
    ranks = place.copy()
    opens = np.append(True, ordered_ns[1:] != ordered_ns[:-1])
    # Only spans that start together may be placed in another order.
    together = np.flatnonzero(~opens | np.append(~opens[1:], False))
    groups = np.cumsum(opens)[together]
    ranks[by_place[together][np.lexsort((by_place[together], groups))]] = together
    return ranks


def _pack_edges(columns: SpanColumns, parts: _Parts) -> Mapping[str, Spec]:
    x0_ns, source, x1_ns, target = columns.edges.T
    source_place, target_place = columns.edge_place.T
    return {
        "kind": parts.add(columns.edge_kind),
        "told": parts.add(columns.edge_told),
        "sourcePlace": parts.add(np.diff(source_place, prepend=-1)),
        "targetPlace": parts.add(target_place - source_place),
        "step": parts.add(np.diff(x0_ns, prepend=0)),
        "width": parts.add(x1_ns - x0_ns),
        "source": parts.add(source),
        "target": parts.add(target),
    }


def _steps(values: Int64Array, before: Int64Array, opens: BoolArray) -> Int64Array:
    """Return how far each value lies behind the one before it in `before`; the first of a row, behind 0."""
    steps = values.copy()
    steps[1:] -= np.where(opens[1:], 0, before[:-1])
    return steps


class _Parts:
    """Pieces of a blob, and where each column lies in it."""

    def __init__(self, *, is_shuffled: bool) -> None:
        self.chunks: list[bytes] = []
        self._is_shuffled = is_shuffled
        self._size = 0

    def add(self, values: Int64Array) -> Spec:
        """Append a column, unless it is constant, and return how it is read."""
        if not len(values) or (values[0] == values[-1] and (values == values[0]).all()):
            return int(values[0]) if len(values) else 0
        return self.store(values)

    def store(self, values: Int64Array) -> dict[str, int]:
        """Append a column and return how it is read."""
        least, most = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        bias, width, odd = _choose_width(values, least, most)
        spec = {"at": self._size, "bytes": width, "bias": bias, "least": least, "most": most}
        unsigned = (values - bias).astype(f"<u{width}") if width < 8 else values.astype("<i8")
        if odd.size:
            unsigned[odd] = (1 << 8 * width) - 1
        self._append(unsigned)
        if odd.size:
            spec |= {"exceptions": len(odd), "exceptionsAt": self._size}
            self._append(values[odd].astype("<i8"))
        return spec

    def _append(self, values: NDArray[Any]) -> None:
        self._size += values.nbytes
        if not self._is_shuffled:
            self.chunks.append(values.tobytes())
            return
        planes = values.view(np.uint8).reshape(len(values), values.itemsize)
        self.chunks += [planes[:, place].tobytes() for place in range(values.itemsize)]


def _choose_width(values: Int64Array, least: int, most: int) -> tuple[int, int, Int64Array]:
    """Return the bias and the width that take the fewest bytes, and the places of the values that do not fit."""
    biases = (least, 0) if least < 0 else (least,) if most - least < 255 else (0,)
    best = (8 * len(values), 0, 8)
    for bias in biases:
        for width in _WIDTHS:
            limit = bias + (1 << 8 * width) - 1
            odd = 0 if most < limit else int(np.count_nonzero(values >= limit))
            odd += int(np.count_nonzero(values < bias)) if least < bias else 0
            best = min(best, (width * len(values) + 8 * odd, bias, width))
    _, bias, width = best
    if width == 8:
        return 0, 8, _nothing()
    return bias, width, np.flatnonzero((values < bias) | (values >= bias + (1 << 8 * width) - 1))
