"""Copies between devices: how much, how fast, and by which way."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gpustreamlab.analysis._busy import require_trace
from gpustreamlab.analysis._report import Report, Reported, ReportTable, simulated_notes
from gpustreamlab.analysis._scale import count_text, format_ns, ratios
from gpustreamlab.model import SPAN_KINDS, Trace, TraceMetadata
from gpustreamlab.typing import BoolArray, FloatArray, Int64Array, SpanKind

if TYPE_CHECKING:
    import pandas as pd

_COPY = SPAN_KINDS.index(SpanKind.COPY)
_WAY = re.compile(r"memcpy GPU (\d+) to GPU (\d+)(, through the host)?$")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PeerCopies(Reported):
    """Copies between devices, added up by where from, where to, and by which way."""

    source: Int64Array
    """CUDA device that is copied from; shape (n_rows,), int64."""
    target: Int64Array
    """CUDA device that is copied to; shape (n_rows,), int64."""
    through_host: BoolArray
    """Whether they went through the host, as neither device may read the other's memory; shape (n_rows,), bool."""
    calls: Int64Array
    """How many; shape (n_rows,), int64."""
    size_bytes: Int64Array
    """Of all; shape (n_rows,), int64."""
    total_ns: Int64Array
    """Time of all; shape (n_rows,), int64, in ns. Copies that ran at once count twice."""
    metadata: TraceMetadata
    """Where the numbers come from."""

    _columns: ClassVar = ("calls", "size_bytes", "total_ns")

    def __len__(self) -> int:
        return len(self.calls)

    @property
    def bytes_per_s(self) -> FloatArray:
        """Rate while copying; shape (n_rows,), float64; NaN where there was no time."""
        return ratios(self.size_bytes * 1_000_000_000, self.total_ns)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row each: the attributes of these names, and ``bytes_per_s``."""
        import pandas as pd

        names = ("source", "target", "through_host", "calls", "size_bytes", "total_ns", "bytes_per_s")
        return pd.DataFrame({name: getattr(self, name) for name in names})

    def _line(self) -> str:
        if not len(self):
            return "none"
        return f"{count_text(int(self.calls.sum()), 'copy', 'copies')}, {_size_text(int(self.size_bytes.sum()))}"

    def _report(self) -> Report:
        rows = [["from", "to", "way", "copies", "size", "time", "rate"]]
        for place, rate in enumerate(self.bytes_per_s.tolist()):
            ends = f"GPU {self.source[place]}", f"GPU {self.target[place]}"
            way = "through the host" if self.through_host[place] else "direct"
            figures = _size_text(int(self.size_bytes[place])), format_ns(int(self.total_ns[place]))
            rows.append([*ends, way, f"{self.calls[place]:,}", *figures, "-" if np.isnan(rate) else f"{rate / 1e9:.3g} GB/s"])
        table = ReportTable(caption="Copies between devices", rows=rows)
        notes = tuple(map(self._advice, np.flatnonzero(self.through_host).tolist()))
        return Report(
            title="Copies between devices:",
            line=self._line(),
            tables=(table,) if len(self) else (),
            notes=(*notes, *simulated_notes(self.metadata)),
        )

    def _advice(self, place: int) -> str:
        """Say what lets a copy go directly, and compare it with what was measured in this trace if anything was."""
        source, target = int(self.source[place]), int(self.target[place])
        direct = ~self.through_host & (self.size_bytes > 0)
        rates = self.bytes_per_s
        beside = f"; direct copies here ran at {rates[direct].max() / 1e9:.3g} GB/s" if direct.any() else ""
        return (
            f"From GPU {source} to GPU {target} copies went through the host, at {rates[place] / 1e9:.3g} GB/s{beside}. "
            f"Where the cards allow it, peer access lets them go directly: with cupy.cuda.Device({source}): "
            f"cupy.cuda.runtime.deviceEnablePeerAccess({target})"
        )


def peer_copies(trace: Trace) -> PeerCopies:
    """Add up copies between devices by where from, where to and by which way.

    Parameters
    ----------
    trace
        Of a session or a node that captured kernels.

    Raises
    ------
    OptionError
        If it is no trace.
    """
    require_trace(trace, "peer_copies")
    ways = {code: found for code, one in enumerate(trace.details) if (found := _WAY.match(one.full_name))}
    rows = np.flatnonzero((trace.kind == _COPY) & np.isin(trace.extra.get("detail", np.full(len(trace), -1)), [*ways]))
    keys = [(int(found[1]), int(found[2]), bool(found[3])) for found in map(ways.__getitem__, _details(trace, rows))]
    known = {key: place for place, key in enumerate(sorted(set(keys)))}
    group = np.array([known[key] for key in keys], np.int64)
    source, target, through_host = np.array([*known], np.int64).reshape(-1, 3).T
    sizes, times = np.zeros(len(known), np.int64), np.zeros(len(known), np.int64)
    if len(rows):
        np.add.at(sizes, group, trace.extra["size_bytes"][rows])
        np.add.at(times, group, trace.duration_ns[rows])
    return PeerCopies(
        source=source,
        target=target,
        through_host=through_host.astype(bool),
        calls=np.bincount(group, minlength=len(known)).astype(np.int64),
        size_bytes=sizes,
        total_ns=times,
        metadata=trace.metadata,
    )


def _size_text(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.4g} MiB"


def _details(trace: Trace, rows: Int64Array) -> list[int]:
    found: list[int] = trace.extra["detail"][rows].tolist() if len(rows) else []
    return found
