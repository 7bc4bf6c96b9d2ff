"""What the parts of a run take alone, by the sweeps of the ranges and kernels that they are of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import numpy as np

from gpustreamlab.analysis import MEMORY_GIVES, blocks_that_fit
from gpustreamlab.errors import MeasureError, OptionError, nearest_hint
from gpustreamlab.model import SPAN_KINDS, Trace
from gpustreamlab.tuning._sweep import Sweep
from gpustreamlab.typing import BoolArray, FloatArray, Int64Array, SpanKind

__all__ = ["Need", "Parts", "Pieces", "parts_of", "pieces_of", "sweeps_of"]

FREE_SHARE = 0.02  # Kernels without a sweep may have this share of the busy time; they are taken to run for as long as they did
FLAT_SHARE = 0.1  # Times that differ by no more than this share are taken to be the same
_RANGE = SPAN_KINDS.index(SpanKind.RANGE)


class Need(NamedTuple):
    """What a kernel takes alone on the SMs of its stream."""

    alone_ns: float  # How long it runs, in ns
    free_ns: float  # How long it would run if the memory gave all that it asks for, in ns; at most `alone_ns`
    full_ns: float  # For how long it would take all that the memory gives, in ns; 0 where it is not known what it draws


class Pieces(NamedTuple):
    """The work of a program, in the order of its launches. Columns have shape (n_work,)."""

    rows: Int64Array  # Rows of the trace
    lane: Int64Array  # Their streams
    blocks: Int64Array  # Blocks of their grids; 0 where not known
    fit: Int64Array  # How many of them fit on an SM
    duration_ns: Int64Array  # How long each took
    is_kernel: BoolArray  # Which are kernels


def pieces_of(trace: Trace, rows: Int64Array) -> Pieces:
    """Return some work of a trace as columns."""
    return Pieces(
        rows,
        trace.lane[rows].astype(np.int64),
        trace.extra.get("grid_blocks", np.zeros(len(trace), np.int64))[rows].astype(np.int64),
        blocks_that_fit(trace)[rows],
        trace.duration_ns[rows],
        trace.kind[rows] == SPAN_KINDS.index(SpanKind.KERNEL),
    )


@dataclass(frozen=True, slots=True)
class _Solo:
    """What one sweep tells."""

    sweep: Sweep
    fill: float  # How many SMs all blocks of its longest kernel fill at once; 0 where that is not known

    def time_ns(self, sms: int) -> float:
        """Return how long the kernels of a call take alone on so many SMs."""
        nearest = min(self.sweep.points, key=lambda point: abs(point.sm_count - sms))
        busy = float(np.median(nearest.busy_ns)) / nearest.median_ns  # without the gaps between its kernels
        return self.sweep.predict(sms) * busy

    def errors(self, sms: int) -> tuple[float, float]:
        """Return the error of that: where it was not measured by the sizes around, and the worst of all."""
        one = self.sweep
        for point in one.points:
            if point.sm_count == sms:
                low, high = point.interval_ns
                return ((high - low) / 2 / point.median_ns,) * 2
        assert one.fit is not None  # noqa: S101 - for the type checker: `time_ns` has raised
        around = np.argsort(np.abs(one.sizes - sms))[:2]
        near = float(np.abs(one.fit.errors[around]).max()) + self._last_wave(sms)
        return near, max(near, one.fit.worst_error)

    def _last_wave(self, sms: int) -> float:
        """Return the share by which a last wave that is not full may prolong what a model without waves tells."""
        fit = self.sweep.fit
        exact = self.fill / sms
        if fit is None or exact <= 1 or fit.model.startswith("waves"):
            return 0.0
        on_floor = float(fit.predict(sms)[0]) <= float(fit.predict(self.sweep.sizes[-1])[0]) * (1 + FLAT_SHARE)
        return 0.0 if on_floor else float(np.ceil(exact) / exact - 1)

    def roof(self) -> tuple[float, float] | None:
        """Return the SM-time of a call where memory keeps up, and the time below which memory does not let it go, in ns.

        None where the sweep shows no such floor.
        """
        fit, sizes = self.sweep.fit, self.sweep.sizes.astype(float)
        if fit is None or fit.model != "roofline":
            return None
        slope, floor = (float(fit.predict(size)[0]) * factor for size, factor in ((1e-6, 1e-6), (1e12, 1)))
        if floor * sizes[-1] <= slope:
            return None
        return (slope or floor * sizes[0]), floor


def sweeps_of(given: object) -> dict[str, Sweep]:
    """Return sweeps by the names of the ranges or kernels that they are of."""
    if isinstance(given, Sweep):
        given = [given]
    if isinstance(given, Mapping):
        found = dict(given)
    elif isinstance(given, Iterable) and not isinstance(given, str):
        listed = list(given)
        found = {one.name if isinstance(one, Sweep) else "": one for one in listed}
    else:
        found = {"": given}
    for one in found.values():
        if not isinstance(one, Sweep):
            raise OptionError(
                f"what_if got {one!r:.60} as a sweep. Give what lab.bench.sweep(f) returned, by the name of the range or "
                "kernel: trace.what_if(layout, sweep={'gemm': lab.bench.sweep(f)})."
            )
    return found


@dataclass(frozen=True, slots=True)
class Parts:
    """Which sweep each kernel's time comes from."""

    work: Pieces
    solos: Mapping[str, _Solo]
    roofs: Mapping[str, tuple[float, float] | None]  # The floor of each, see `_Solo.roof`
    key: list[str | None]  # The sweep of each piece of work; None for none
    scale: FloatArray  # What of the time of a call each is
    full_ns: Mapping[str, float]  # For how long memory gives all that it can to a call of each sweep, where that was counted
    known: dict[tuple[str, int], float] = field(default_factory=dict)
    """Times of calls by sweep and number of SMs, as they were worked out."""

    def need(self, place: int, sms: int) -> Need | None:
        key, scale = self.key[place], float(self.scale[place])
        if key is None:
            return None
        if (key, sms) not in self.known:
            self.known[key, sms] = self.solos[key].time_ns(sms)
        alone_ns = self.known[key, sms] * scale
        roof, counted_ns = self._roof(place), self.full_ns.get(key, math.nan) * scale
        if roof is None:
            return Need(alone_ns, alone_ns, min(alone_ns, counted_ns) if counted_ns >= 0 else 0.0)
        slope, floor = roof
        # Above the knee memory sets the time: as it was measured there.
        full_ns = alone_ns if floor * sms >= slope else min(alone_ns, counted_ns) if counted_ns >= 0 else floor * scale
        return Need(alone_ns, min(alone_ns, slope / sms * scale), full_ns)

    def draws(self, place: int) -> bool:
        """Tell whether it is known what a kernel draws from memory."""
        return self._roof(place) is not None or cast("str", self.key[place]) in self.full_ns

    def _roof(self, place: int) -> tuple[float, float] | None:
        roof = self.roofs[cast("str", self.key[place])]
        blocks, fit = int(self.work.blocks[place]), int(self.work.fit[place])
        if roof is None or (blocks and -(-blocks // fit) <= 1.1 * roof[0] / roof[1]):
            return None  # no more SMs are of use as it has no more blocks
        return roof

    def error_at(self, sms: list[int]) -> tuple[float, float]:
        """Return the error of the solo times on the SMs of each piece of work: the mean by busy time, and the worst."""
        total, worst, busy = 0.0, 0.0, 0.0
        errors: dict[tuple[str, int], tuple[float, float]] = {}
        for key, size, lasted_ns in zip(self.key, sms, self.work.duration_ns.tolist(), strict=True):
            busy += lasted_ns
            if key is not None:
                if (key, size) not in errors:
                    errors[key, size] = self.solos[key].errors(size)
                near, most = errors[key, size]
                total += near * lasted_ns
                worst = max(worst, most)
        return total / max(busy, 1.0), worst


def parts_of(trace: Trace, work: Pieces, sweeps: Mapping[str, Sweep]) -> Parts:
    """Find the sweep of each kernel: of the innermost range around it that has one, else of its own name."""
    known = {*(trace.names[code] for code in trace.name)}
    wrong = [name for name in sweeps if name not in known]
    if wrong:
        raise OptionError(
            f"The trace has no range and no kernel {wrong[0]!r}. {nearest_hint(wrong[0], sorted(known))} Give sweeps by their "
            "names: trace.what_if(layout, sweep={'gemm': lab.bench.sweep(f)})."
        )
    kernels = np.flatnonzero(work.is_kernel).tolist()
    key: list[str | None] = [None] * len(work.rows)
    scale = np.ones(len(work.rows))
    calls: dict[int, list[int]] = {}
    missing: dict[str, int] = {}
    for place in range(len(work.rows)):
        row = int(work.rows[place])
        around, outer = _range_around(trace, row, sweeps)
        if around >= 0:
            calls.setdefault(around, []).append(place)
            key[place] = trace.names[trace.name[around]] if work.is_kernel[place] else None
        elif work.is_kernel[place] and (own := trace.names[trace.name[row]]) in sweeps:
            key[place] = own
            scale[place] = 1 / max(1, sweeps[own].points[0].launch_count)
        elif work.is_kernel[place]:
            name = trace.names[trace.name[outer if outer >= 0 else row]]
            missing[name] = missing.get(name, 0) + int(work.duration_ns[place])
    _require_sweeps(missing, int(work.duration_ns.sum()))
    shortest = _shortest(trace, work, kernels)
    for around, places in calls.items():
        one = sweeps[trace.names[trace.name[around]]]
        launched = max(1, one.points[0].launch_count)
        times = len(places) // launched if len(places) % launched == 0 else 1
        inside = [place for place in places if work.is_kernel[place]]
        total = shortest[inside].sum()
        rest = work.duration_ns[[place for place in places if not work.is_kernel[place]]].sum()
        # Copies in a call take what they took; its kernels share what is left of its time.
        whole = max(1.0, total + rest)
        scale[inside] = shortest[inside] / (whole if rest else max(total, 1)) * times
    longest = {str(key[place]): place for place in sorted(kernels, key=lambda place: shortest[place])}
    fill = {name: work.blocks[place] / work.fit[place] for name, place in longest.items()}
    solos = {name: _Solo(one, float(fill.get(name, 0))) for name, one in sweeps.items()}
    gives = (trace.metadata.device.memory_bytes_per_s or math.nan) * (1.0 if trace.metadata.simulated else MEMORY_GIVES)
    full_ns = {name: one.memory_bytes * 1e9 / gives for name, one in sweeps.items()}
    full_ns = {name: one for name, one in full_ns.items() if one >= 0}
    return Parts(work, solos, {name: one.roof() for name, one in solos.items()}, key, scale, full_ns)


def _range_around(trace: Trace, row: int, sweeps: Mapping[str, Sweep]) -> tuple[int, int]:
    """Return the innermost range around a span that has a sweep, or -1, and the innermost range at all, or -1."""
    outer, innermost = int(trace.parent[row]), -1
    while outer >= 0:
        if trace.kind[outer] == _RANGE:
            innermost = outer if innermost < 0 else innermost
            if trace.names[trace.name[outer]] in sweeps:
                return outer, innermost
        outer = int(trace.parent[outer])
    return -1, innermost


def _require_sweeps(missing: Mapping[str, int], busy_ns: int) -> None:
    if sum(missing.values()) <= FREE_SHARE * busy_ns:
        return
    names = sorted(missing, key=lambda name: -missing[name])
    shares = ", ".join(f"{name!r} ({missing[name] / busy_ns:.0%} of the busy time)" for name in names[:8])
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    typed = ", ".join(f"{name!r}: lab.bench.sweep(f{place})" for place, name in enumerate(names[:8]))
    raise MeasureError(
        f"Nothing is predicted: what {shares}{more} would take on other SMs is not known. Sweep each with a function that does "
        f"what it does: trace.what_if(layout, sweep={{{typed}}})."
    )


def _shortest(trace: Trace, work: Pieces, kernels: list[int]) -> FloatArray:
    """Return the shortest time that a kernel of each one's name, grid and stream took: the least disturbed by others."""
    least: dict[tuple[int, int, int], int] = {}
    found = work.duration_ns.astype(float)
    keys = {place: (int(trace.name[work.rows[place]]), int(work.blocks[place]), int(work.lane[place])) for place in kernels}
    for place, key in keys.items():
        least[key] = min(least.get(key, 1 << 62), int(work.duration_ns[place]))
    for place, key in keys.items():
        found[place] = max(1, least[key])
    return found
