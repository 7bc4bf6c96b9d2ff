"""What a recorded run would take with its SMs shared out in another way, from what its parts take alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import numpy as np

from gpustreamlab.analysis import Share, host_waits, plan_partitions
from gpustreamlab.analysis._report import Report, Reported, ReportTable
from gpustreamlab.analysis._scale import format_ns
from gpustreamlab.errors import MeasureError, OptionError, nearest_hint
from gpustreamlab.model import PREDICTED, SPAN_KINDS, Lane, Layout, Partition, Trace
from gpustreamlab.timeline import Comparison
from gpustreamlab.tuning._measure import WORK
from gpustreamlab.tuning._rerun import Need, Seat, Work, run_again, work_of
from gpustreamlab.tuning._sweep import Sweep
from gpustreamlab.typing import FloatArray, Int64Array, SpanKind

__all__ = ["Prediction", "what_if"]

FREE_SHARE = 0.02
"""Kernels without a sweep may have this share of the busy time; they are taken to run for as long as they did."""
LEAST_ERROR = 0.03
"""No smaller error is stated of a simulated run, whose rules are those of the prediction: -3 to +3% were found with two or more
solo times a kernel."""
LEAST_ERROR_GPU = 0.1
"""Nor of a GPU's. Source: `bench.tuning` on an H100, 12 predictions of 4 programs: off by 5 to 9% in the median of three
runs."""
FEWEST_POINTS = 2
"""From one size nothing can be said about another one."""
FLAT_SHARE = 0.1
"""Where the last two sizes of a short sweep differ by no more than this share, more SMs are taken to be of no use."""
_RANGE = SPAN_KINDS.index(SpanKind.RANGE)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Prediction(Reported):
    """What a recorded run would take with another layout. Made by `Trace.what_if`. Only `measured` was measured."""

    _columns: ClassVar = ()

    trace: Trace
    """The run as it is predicted; its device says that it is."""
    measured: Trace
    """The run as it was recorded."""
    layout: Layout | None
    """The layout that it is predicted for; None for the whole card."""
    makespan_ns: int
    """From the first start to the last end of the work, in ns, predicted."""
    measured_ns: int
    """The same as it was recorded, with the layout that it had."""
    own_ns: int
    """The same as it is predicted for the layout that it had."""
    held_out: tuple[float, float]
    """Error of the solo times used, as a share: the mean, weighted by busy time, of what the models are off by at the sizes
    around those used when they have not seen these, and the worst at any size. Sizes that were swept count with the interval of
    their median. NaN where a sweep has too few sizes to tell."""
    notes: tuple[str, ...] = ()
    """What the prediction leaves out, one sentence each."""

    @property
    def own_error(self) -> float:
        """By how much the prediction for the run's own layout is off, as a share of what was measured."""
        return self.own_ns / self.measured_ns - 1

    @property
    def error(self) -> float:
        """How far off the makespan may be, as a share of it: an expectation, no bound.

        It is `own_error` without its sign and the error of the solo times, at least 3% for the simulated device and 10% for a
        GPU; NaN where sweeps have too few sizes.
        """
        least = LEAST_ERROR if self.measured.metadata.simulated else LEAST_ERROR_GPU
        return float(np.maximum(least, abs(self.own_error) + self.held_out[0]))

    def compare(self) -> Comparison:
        """Return the recorded run and the predicted one beside each other; see `gpustreamlab.compare`."""
        return Comparison(self.measured, self.trace)

    def _line(self) -> str:
        error = f"±{self.error:.1%}" if np.isfinite(self.error) else "error not known"
        return (
            f"{format_ns(self.makespan_ns)} predicted ({error}) with {_layout_text(self.layout)}; "
            f"{format_ns(self.measured_ns)} recorded"
        )

    def _report(self) -> Report:
        rows = [["stream", "SMs then", "SMs", "busy then", "busy", "ended then", "ends"]]
        first_ns = [int(one.start_ns.min()) for one in (self.measured, self.trace)]
        for place, (then, now) in enumerate(zip(self.measured.lanes, self.trace.lanes, strict=True)):
            busy = [_work_of_lane(one, place) for one in (self.measured, self.trace)]
            if busy[0][0]:
                cells = [format_ns(side[0]) for side in busy]
                ends = [format_ns(side[1] - zero) for side, zero in zip(busy, first_ns, strict=True)]
                rows.append([then.name, f"{then.sm_count}", f"{now.sm_count}", *cells, *ends])
        held, worst = self.held_out
        solo = (
            f"The solo times are off by {held:.1%}, weighted by busy time, and by {worst:.0%} at worst: held out where a model "
            "tells them, else their interval."
            if np.isfinite(held)
            else "How far the solo times are off is not known: the sweeps have too few sizes to leave one out."
        )
        own = f"At its own layout it is off by {self.own_error:+.1%}: {format_ns(self.own_ns)} predicted."
        return Report(
            title="Prediction:",
            line=self._line(),
            tables=(ReportTable(caption="Streams, recorded and predicted", rows=rows, has_row_heads=True),),
            notes=(own, solo, "Predicted, not measured: run it to know.", *self.notes),
        )


@dataclass(frozen=True, slots=True)
class _Solo:
    """What one sweep tells."""

    sweep: Sweep
    fill: float
    """How many SMs all blocks of its longest kernel fill at once; 0 where that is not known."""

    def time_ns(self, sms: int) -> float:
        """Return how long the kernels of a call take alone on so many SMs."""
        one = self.sweep
        nearest = min(one.points, key=lambda point: abs(point.sm_count - sms))
        busy = float(np.median(nearest.busy_ns)) / nearest.median_ns  # without the gaps between its kernels
        measured = {point.sm_count: point.median_ns for point in one.points}
        if sms in measured:
            return measured[sms] * busy
        if one.fit is not None:
            return float(one.fit.predict(sms)[0]) * busy
        return self._between(sms, one.sizes, one.median_ns) * busy

    def errors(self, sms: int) -> tuple[float, float]:
        """Return the error of that by the sizes around, and the worst of all; NaN where it is not known."""
        one = self.sweep
        for point in one.points:
            if point.sm_count == sms:
                low, high = point.interval_ns
                return ((high - low) / 2 / point.median_ns,) * 2
        if one.fit is not None:
            around = np.argsort(np.abs(one.sizes - sms))[:2]
            near = float(np.abs(one.fit.errors[around]).max()) + self._last_wave(sms)
            return near, max(near, one.fit.worst_error)
        sizes, times = one.sizes, one.median_ns
        if len(sizes) <= FEWEST_POINTS:
            return np.nan, np.nan
        off = [
            abs(self._between(int(sizes[i]), np.delete(sizes, i), np.delete(times, i)) / times[i] - 1)
            for i in range(1, len(sizes) - 1)
        ]
        return float(np.median(off)), max(off)

    def _last_wave(self, sms: int) -> float:
        """Return the share by which a last wave that is not full may prolong what a model without waves tells."""
        fit = self.sweep.fit
        exact = self.fill / sms
        if fit is None or exact <= 1 or fit.model.startswith("waves"):
            return 0.0
        on_floor = float(fit.predict(sms)[0]) <= float(fit.predict(self.sweep.sizes[-1])[0]) * (1 + FLAT_SHARE)
        return 0.0 if on_floor else float(np.ceil(exact) / exact - 1)

    def _between(self, sms: int, sizes: Int64Array, times: FloatArray) -> float:
        """Return a time between those of the two nearest sizes: a constant and a part in proportion to the waves of blocks."""
        place = int(np.clip(np.searchsorted(sizes, sms), 1, len(sizes) - 1))
        (t0, t1), (x0, x1) = times[place - 1 : place + 1], map(self._waves, sizes[place - 1 : place + 1])
        if x0 == x1:
            return float(t0 if sms <= sizes[place - 1] else t1)
        share = max(0.0, (t0 - t1) / (x0 - x1))
        fixed = t1 - share * x1
        return float(fixed + share * self._waves(sms) if fixed >= 0 else t1 * self._waves(sms) / x1)

    def _waves(self, sms: float) -> float:
        return float(np.ceil(self.fill / sms)) if self.fill else 1 / sms

    def roof(self) -> tuple[float, float] | None:
        """Return the SM-time of a call where memory keeps up, and the time below which memory does not let it go, in ns.

        None where the sweep shows no such floor.
        """
        one = self.sweep
        sizes, times = one.sizes.astype(float), one.median_ns
        if one.fit is not None:
            if one.fit.model != "roofline":
                return None
            slope, floor = (float(one.fit.predict(size)[0]) * factor for size, factor in ((1e-6, 1e-6), (1e12, 1)))
            if floor * sizes[-1] <= slope:
                return None
            return (slope or floor * sizes[0]), floor
        is_flat = abs(times[-1] / times[-2] - 1) <= FLAT_SHARE
        if not is_flat or self._waves(sizes[-1]) > (1 - 1.5 * FLAT_SHARE) * self._waves(sizes[-2]):
            return None  # or it could not have been shorter: as many waves of blocks on both
        rises = times[0] > times[-1] * (1 + FLAT_SHARE)
        return float(sizes[0] * (times[0] if rises else times[-1])), float(times[-1])


def what_if(trace: Trace, layout: Layout | Mapping[str, Share] | None, sweep: object) -> Prediction:
    """Predict what a recorded run would take with another layout; see `Trace.what_if`."""
    if len(trace.devices) > 1:
        raise OptionError(
            f"what_if() is of one device, and {trace.metadata.device_label} have streams here. Use "
            f"trace.where(device={trace.devices[0].ordinal}).what_if(...)."
        )
    sweeps = _sweeps(sweep)
    work = work_of(trace)
    if not trace.metadata.device.sm_count:
        raise MeasureError(
            "How many SMs the device of the trace has is not known, so no layout can be predicted. Say it where the trace is "
            "made: gsl.Trace.from_columns(..., sm_count=132)."
        )
    parts = _parts_of(trace, work, sweeps)
    own_lanes = _own_lanes(trace, work)
    planned = layout if isinstance(layout, Layout) or layout is None else plan_partitions(layout, trace.metadata.device)
    lanes = _new_lanes(trace, planned)
    own_start, own_end = run_again(trace, work, _own_seats(trace, own_lanes), parts.need)
    start_ns, end_ns = run_again(trace, work, _seats(trace, lanes, planned), parts.need)
    begin_ns, zero_ns = int(own_start.min()), int(trace.start_ns[work.rows].min())
    made = _trace_of(trace, work, start_ns + zero_ns - begin_ns, end_ns + zero_ns - begin_ns, lanes, planned)
    return Prediction(
        trace=made,
        measured=trace,
        layout=planned,
        makespan_ns=int(end_ns.max() - start_ns.min()),
        measured_ns=int(trace.end_ns[work.rows].max() - trace.start_ns[work.rows].min()),
        own_ns=int(own_end.max() - own_start.min()),
        held_out=parts.error_at([lanes[lane].sm_count for lane in work.lane.tolist()]),
        notes=_notes(trace, work, parts, lanes),
    )


def _sweeps(given: object) -> dict[str, Sweep]:
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
    for name, one in found.items():
        if not isinstance(one, Sweep):
            raise OptionError(
                f"what_if got {one!r:.60} as a sweep. Give what lab.bench.sweep(f) returned, by the name of the range or "
                "kernel: trace.what_if(layout, sweep={'gemm': lab.bench.sweep(f)})."
            )
        if len(one.points) < FEWEST_POINTS:
            raise MeasureError(
                f"The sweep of {name!r} has one size, {one.points[0].sm_count} SMs, and from that nothing follows for others. "
                f"Give it two or more, better four: sweep={{{name!r}: lab.bench.sweep(f, sms=[...])}}."
            )
    return found


@dataclass(frozen=True, slots=True)
class _Parts:
    """Which sweep each kernel's time comes from."""

    work: Work
    solos: Mapping[str, _Solo]
    roofs: Mapping[str, tuple[float, float] | None]
    """The floor of each, see `_Solo.roof`."""
    key: list[str | None]
    """The sweep of each piece of work; None for none."""
    scale: FloatArray
    """What of the time of a call each is."""
    known: dict[tuple[str, int], float] = field(default_factory=dict)
    """Times of calls by sweep and number of SMs, as they were worked out."""

    def need(self, place: int, sms: int) -> Need | None:
        key, scale = self.key[place], float(self.scale[place])
        if key is None:
            return None
        if (key, sms) not in self.known:
            self.known[key, sms] = self.solos[key].time_ns(sms)
        alone_ns = self.known[key, sms] * scale
        roof = self._roof(place)
        if roof is None:
            return Need(alone_ns, alone_ns, 0.0)
        slope, floor = roof
        # Above the knee memory sets the time: as it was measured there.
        full_ns = alone_ns if floor * sms >= slope else floor * scale
        return Need(alone_ns, min(alone_ns, slope / sms * scale), full_ns)

    def draws(self, place: int) -> bool:
        """Tell whether it is known what a kernel draws from memory."""
        return self._roof(place) is not None

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
                worst = most if most > worst or np.isnan(most) else worst
        return total / max(busy, 1.0), worst


def _parts_of(trace: Trace, work: Work, sweeps: Mapping[str, Sweep]) -> _Parts:
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
    return _Parts(work, solos, {name: one.roof() for name, one in solos.items()}, key, scale)


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


def _shortest(trace: Trace, work: Work, kernels: list[int]) -> FloatArray:
    """Return the shortest time that a kernel of each one's name, grid and stream took: the least disturbed by others."""
    least: dict[tuple[int, int, int], int] = {}
    found = work.duration_ns.astype(float)
    keys = {place: (int(trace.name[work.rows[place]]), int(work.blocks[place]), int(work.lane[place])) for place in kernels}
    for place, key in keys.items():
        least[key] = min(least.get(key, 1 << 62), int(work.duration_ns[place]))
    for place, key in keys.items():
        found[place] = max(1, least[key])
    return found


def _own_lanes(trace: Trace, work: Work) -> tuple[Lane, ...]:
    """Return the lanes with the SMs that they had."""
    lanes = []
    for place, lane in enumerate(trace.lanes):
        codes = np.unique(trace.partition[work.rows[work.lane == place]]).tolist()
        sizes = {trace.partitions[code].granted_sms if code >= 0 else trace.metadata.device.sm_count for code in codes}
        if len(sizes) > 1:
            raise OptionError(
                f"Stream {lane.name!r} ran with several sizes, {', '.join(map(str, sorted(sizes)))} SMs. Predict from the part "
                "with one layout: trace.between(t0_ns, t1_ns).what_if(layout, sweep=...)."
            )
        part = trace.partitions[codes[0]].name if codes and codes[0] >= 0 else None
        lanes.append(replace(lane, partition=part, sm_count=sizes.pop() if sizes else lane.sm_count))
    return tuple(lanes)


def _own_seats(trace: Trace, lanes: tuple[Lane, ...]) -> list[Seat]:
    """Place partitions one behind the other, as their ids are not always known."""
    card = trace.metadata.device.sm_count
    first: dict[str, int] = {}
    used = 0
    for lane in lanes:
        if lane.partition is not None and lane.partition not in first:
            first[lane.partition] = used
            used += lane.sm_count
    return [_seat(lane, first, card) for lane in lanes]


def _seats(trace: Trace, lanes: tuple[Lane, ...], layout: Layout | None) -> list[Seat]:
    card = trace.metadata.device.sm_count
    first: dict[str, int] = {}
    used = 0
    for part in layout or ():
        first[part.name] = used
        used += part.granted_sms
    return [_seat(lane, first, card) for lane in lanes]


def _seat(lane: Lane, first: Mapping[str, int], card: int) -> Seat:
    if lane.partition is None:
        return Seat(card, None)
    begin = first[lane.partition]
    return Seat(lane.sm_count, frozenset(sm % card for sm in range(begin, begin + lane.sm_count)))


def _new_lanes(trace: Trace, layout: Layout | None) -> tuple[Lane, ...]:
    """Return the lanes with the partitions of a layout: of the name of their own one, else of their own name, else none."""
    card = trace.metadata.device.sm_count
    if layout is None or not layout.is_enforced:
        return tuple(replace(lane, partition=None, sm_count=card) for lane in trace.lanes)
    if sum(part.granted_sms for part in layout) > card:
        raise OptionError(f"The layout has more SMs than the {card} of {trace.metadata.device.label}: {layout}.")
    names = [name if name in layout else None for lane in trace.lanes for name in [lane.partition or lane.name]]
    names = [lane.name if name is None and lane.name in layout else name for name, lane in zip(names, trace.lanes, strict=True)]
    unused = [name for name in layout.names if name not in names]
    if unused:
        known = [*dict.fromkeys(name for lane in trace.lanes for name in (lane.partition, lane.name) if name)]
        raise OptionError(
            f"No stream would run in partition {unused[0]!r}: streams go to the partition of their own one's name, or of their "
            f"own name. {nearest_hint(unused[0], known)}"
        )
    return tuple(
        replace(lane, partition=name, sm_count=card if name is None else layout[name].granted_sms)
        for name, lane in zip(names, trace.lanes, strict=True)
    )


def _trace_of(
    trace: Trace, work: Work, start_ns: Int64Array, end_ns: Int64Array, lanes: tuple[Lane, ...], layout: Layout | None
) -> Trace:
    """Return the work at its new times, with the ranges around it."""
    first_ns = np.full(len(trace), np.iinfo(np.int64).max)
    last_ns = np.full(len(trace), np.iinfo(np.int64).min)
    first_ns[work.rows], last_ns[work.rows] = start_ns, end_ns
    for row in work.rows.tolist():
        outer = int(trace.parent[row])
        while outer >= 0:
            first_ns[outer], last_ns[outer] = min(first_ns[outer], first_ns[row]), max(last_ns[outer], last_ns[row])
            outer = int(trace.parent[outer])
    is_kept = (last_ns >= first_ns) & ((trace.kind == _RANGE) | np.isin(np.arange(len(trace)), work.rows))
    rows = np.flatnonzero(is_kept)
    rows = rows[np.argsort(first_ns[rows], kind="stable")]
    cut = trace[rows]
    start, end = first_ns[rows], last_ns[rows]
    parts: tuple[Partition, ...] = tuple(layout) if layout is not None and layout.is_enforced else ()
    code = {part.name: place for place, part in enumerate(parts)}
    by_lane = np.array([code.get(lane.partition or "", -1) for lane in lanes], np.int32)
    extra: dict[str, Any] = {name: values for name, values in cut.extra.items() if not name.startswith("uncut_")}
    extra |= {name: values for name, values in (("work_start_ns", start), ("work_end_ns", end)) if name in extra}
    device = replace(trace.metadata.device, name=f"{trace.metadata.device.name}, predicted", simulated=True)
    metadata = replace(
        trace.metadata,
        device=device,
        clock=f"{PREDICTED} by scheduling a recorded run anew",
        title=f"{trace.metadata.title}, predicted".removeprefix(", "),
        capture_source="a prediction",
        capture_windows=((int(start.min()), int(end.max())),),
    )
    return replace(
        cut,
        start_ns=start,
        end_ns=end,
        queued_ns=np.minimum(cut.queued_ns, start),
        partition=by_lane[cut.lane],
        partitions=parts,
        lanes=lanes,
        metadata=metadata,
        extra=extra,
        layout=layout,
        layouts=(),
        markers=(),
    )


def _notes(trace: Trace, work: Work, parts: _Parts, lanes: tuple[Lane, ...]) -> tuple[str, ...]:
    """Say what the prediction leaves out."""
    notes = []
    if not trace.metadata.simulated:
        notes.append("By the rules of the simulated device. Twelve predictions on an H100 were off by 25% at most.")
    kernels = np.flatnonzero(work.is_kernel).tolist()
    silent = list(dict.fromkeys(key for place in kernels if (key := parts.key[place]) is not None and not parts.draws(place)))
    if silent:
        notes.append(
            f"Taken to draw nothing from memory, as sweeps show no floor of it: {_listed(silent)}. Beside others that may take "
            "longer."
        )
    plain = [place for place in kernels if parts.key[place] is None]
    if plain:
        share = work.duration_ns[plain].sum() / max(1, work.duration_ns.sum())
        notes.append(f"Kernels without a sweep, {share:.1%} of the busy time, are taken to run for as long as they did.")
    beyond = [
        name
        for name, solo in parts.solos.items()
        for sizes in [{lanes[work.lane[place]].sm_count for place in kernels if parts.key[place] == name}]
        if any(not solo.sweep.sizes[0] <= size <= solo.sweep.sizes[-1] for size in sizes)
    ]
    if beyond:
        notes.append(f"Outside the sizes of its sweep: {_listed(beyond)}.")
    if not work.has_launch_times:
        notes.append("The trace does not tell when work was launched: all of it is taken to be launched at once.")
    elif not host_waits(trace).call_count:
        notes.append(
            "The trace has no calls of the host: where the host waited for the device, launches stay when they were. "
            "lab.capture('kernels', host=True) records them."
        )
    if sum(bool(trace.lanes[lane].is_blocking) for lane in np.unique(work.lane).tolist()) > 1:
        notes.append("That the legacy default stream and streams that block wait for each other is not kept.")
    if _has_overlap(work, trace):
        notes.append("Work of one stream that ran at once, as in CUDA graphs, is taken to run one after the other.")
    return tuple(notes)


def _has_overlap(work: Work, trace: Trace) -> bool:
    for lane in np.unique(work.lane).tolist():
        rows = work.rows[work.lane == lane]
        if (trace.start_ns[rows][1:] < trace.end_ns[rows][:-1]).any():
            return True
    return False


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _work_of_lane(trace: Trace, lane: int) -> tuple[int, int]:
    """Return how long the work of a lane takes, and when it ends, in ns."""
    rows = np.flatnonzero((trace.lane == lane) & np.isin(trace.kind, WORK))
    return (int(trace.duration_ns[rows].sum()), int(trace.end_ns[rows].max())) if len(rows) else (0, 0)


def _layout_text(layout: Layout | None) -> str:
    if layout is None or not layout.is_enforced:
        return "the whole card"
    return ", ".join(f"{part.name} {part.granted_sms}" for part in layout) + " SMs"
