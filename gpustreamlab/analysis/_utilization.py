"""How much of the card's SMs the partitions kept busy."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeAlias

import msgspec
import numpy as np

from gpustreamlab.analysis._busy import counted_extent, interval_sum_ns, require_trace, sm_kinds, union_edges
from gpustreamlab.analysis._report import Report, Reported, ReportTable, more_row, simulated_notes
from gpustreamlab.analysis._scale import count_text, format_ms, format_ns, format_share, ratios
from gpustreamlab.analysis._sm_time import PartitionSize, SMSteps, layout_size, layout_spells, sm_time_steps, stack_sms
from gpustreamlab.errors import PartitionError, TraceError
from gpustreamlab.model import Partition, Trace, TraceMetadata, check_fields, check_name, display_name
from gpustreamlab.typing import FloatArray, Int64Array, SpanKind

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Utilization(Reported):
    """Busy time and SMs of each partition, as it was: a name that had two sizes has two rows.

    A partition is busy as a whole while at least one counted span runs in it: its kernels may leave some of its SMs idle.
    Where the counted spans are ranges they also contain the queueing inside them. So `sm_ns` is an upper bound of the SM-time
    that the work used. Where kernels were captured, copies and fills do not count: they use no SMs.
    """

    names: tuple[str | None, ...]
    """Name of each partition; None for the whole card, that is for streams in no partition, which is last of its device."""
    requested_sms: Int64Array
    """SMs that were asked for; shape (n_partitions,), int64."""
    granted_sms: Int64Array
    """SMs that the work could use; shape (n_partitions,), int64; all of the card for the whole card, and where the device
    could not enforce the layout."""
    busy_ns: Int64Array
    """Time in which at least one counted span ran in the partition; shape (n_partitions,), int64, in ns."""
    window_ns: Int64Array
    """How long the partition had this size within `wall_ns`; shape (n_partitions,), int64, in ns.
    Spans that ran in it outside of that, by the error of the clock, widen it."""
    sm_count: int
    """How many SMs the card has; of several devices all of theirs."""
    wall_ns: int
    """From the first start to the last end of all that counts as busy time, copies and fills too, in ns."""
    card_sm_ns: int
    """SM-time of all partitions together, in SM x ns. SMs that two of them share at one time, as the whole card does with
    every partition, count once: so it may be less than the sum of `sm_ns`."""
    counted: tuple[SpanKind, ...]
    """Kinds of spans that count as time in which SMs were in use."""
    metadata: TraceMetadata
    """Where the numbers come from."""
    device: Int64Array
    """Number of the device that each partition is of; shape (n_partitions,), int64."""

    _columns: ClassVar = ("device", "requested_sms", "granted_sms", "busy_ns", "window_ns")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def sm_ns(self) -> Int64Array:
        """`busy_ns` x `granted_sms`: SM-time that the spans occupied; shape (n_partitions,), int64, in SM x ns."""
        return self.busy_ns * self.granted_sms

    @property
    def share(self) -> FloatArray:
        """`busy_ns` / `window_ns`; shape (n_partitions,), float64, from 0 to 1; NaN where there was no time."""
        return ratios(self.busy_ns, self.window_ns)

    @property
    def card_share(self) -> float:
        """`card_sm_ns` as a share of all SMs over `wall_ns`; from 0 to 1, NaN where nothing ran."""
        return self.card_sm_ns / (self.sm_count * self.wall_ns) if self.wall_ns else float("nan")

    def _names_by_device(self) -> list[list[str | None]]:
        numbers = self.device.tolist()
        return [[name for name, of in zip(self.names, numbers, strict=True) if of == number] for number in sorted({*numbers})]

    def to_pandas(self) -> pd.DataFrame:
        """Return one row a partition, as a `pandas.DataFrame`.

        The columns are ``partition`` (None for the whole card), ``requested_sms``, ``granted_sms``, ``busy_ns``,
        ``window_ns``, ``sm_ns`` and ``share``; of several devices ``device`` as well.
        """
        import pandas as pd

        # As objects: pandas would make a missing text of None.
        names = pd.Series(self.names, dtype=object)
        columns = ("requested_sms", "granted_sms", "busy_ns", "window_ns", "sm_ns", "share")
        of_cards = {"device": self.device} if len(self._names_by_device()) > 1 else {}
        return pd.DataFrame({"partition": names} | {column: getattr(self, column) for column in columns} | of_cards)

    def _line(self) -> str:
        count = count_text(sum(name is not None for name in self.names), "partition")
        where = f"{count} on {display_name(self.metadata.device_label)}"
        if not self.wall_ns:
            return f"{where}, no time recorded"
        return (
            f"{where}, {format_share(self.card_share)} of the SM-time of {self.sm_count:,} SMs over {format_ns(self.wall_ns)}"
        )

    def _report(self) -> Report:
        notes = ["A partition counts as a whole while anything runs in it: kernels may leave some of its SMs idle."]
        if SpanKind.RANGE in self.counted:
            notes.append("Ranges contain the queueing inside them: SM-time is an upper bound of what the work used.")
        elif SpanKind.COPY not in self.counted:
            notes.append("Kernels count; copies and fills use no SMs.")
        if any(None in own and len(own) > 1 for own in self._names_by_device()):
            notes.append("The whole card shares its SMs with every partition; the total counts them once.")
        tables = (ReportTable(caption="SMs and time of each partition", rows=_rows(self)),) if self.wall_ns else ()
        notes += simulated_notes(self.metadata)
        return Report(title="Utilization of", line=self._line(), tables=tables, notes=tuple(notes))


def utilization(trace: Trace) -> Utilization:
    """Compute how long each partition was busy, and how much SM-time that was.

    Parameters
    ----------
    trace
        The spans. Their order does not matter.

    Returns
    -------
    Utilization
        Exact to the nanosecond of the trace's own times. Partitions that were gone before the first span are left out.

    Raises
    ------
    TraceError
        If the trace is so long that SM-time does not fit into 64 bits, which only wrong times make, or if it is not known how
        many SMs a card has.
    OptionError
        If it is no trace.

    Examples
    --------
    >>> from gpustreamlab.analysis import utilization
    >>> from gpustreamlab.model import Device, Lane, Partition, Trace, TraceMetadata
    >>> trace = Trace(
    ...     start_ns=[0, 50], end_ns=[100, 200], queued_ns=[0, 0], lane=[0, 1], name=[0, 0], kind=[0, 0],
    ...     parent=[-1, -1], thread=[0, 0], names=("gemm",), threads=("MainThread",), partition=[0, -1],
    ...     lanes=(Lane(name="decode", stream=1, partition="small"), Lane(name="rest", stream=2)),
    ...     partitions=(Partition(name="small", requested_sms=10, granted_sms=16),),
    ...     metadata=TraceMetadata(backend="sim", device=Device(name="demo", sm_count=64)),
    ... )
    >>> result = utilization(trace)
    >>> result.names, result.busy_ns.tolist(), result.sm_ns.tolist(), result.card_sm_ns
    (('small', None), [100, 150], [1600, 9600], 10400)
    """
    require_trace(trace, "utilization")
    first_ns, last_ns = counted_extent(trace)
    devices = trace.devices
    sm_count = sum(device.sm_count for device in devices)
    unknown = [device for device in devices if not device.sm_count]
    if unknown:
        advice = "Use Trace.from_columns(..., sm_count=132), for example."
        if trace.metadata.imported:
            advice = "The file tells no device properties of it; trace.overlap() needs none."
        card = "the card" if len(devices) == 1 else f"GPU {unknown[0].ordinal}"
        raise TraceError(f"How many SMs {card} has is not known. {advice}")
    if (last_ns - first_ns) * sm_count >= 1 << 63:
        raise TraceError(
            f"The trace lasts {(last_ns - first_ns) / 1e9:.3g} s on {sm_count:,} SMs: its SM-time does not fit into 64 bits. "
            "Leave out the spans whose times are wrong."
        )
    by_device = [sm_time_steps(trace, device) for device in devices]
    steps = [step for own in by_device for step in own]
    numbers = [device.ordinal for device, own in zip(devices, by_device, strict=True) for _ in own]
    windows = [_window_ns(trace, step, first_ns, last_ns) for step in steps]
    kept = [place for place, step in enumerate(steps) if windows[place] or _is_current(trace, step.size)]
    sizes = [steps[place].size for place in kept]
    return Utilization(
        names=tuple(size.name for size in sizes),
        requested_sms=np.array([size.requested_sms for size in sizes]),
        granted_sms=np.array([size.granted_sms for size in sizes]),
        busy_ns=np.array([steps[place].busy_ns for place in kept]),
        window_ns=np.array([windows[place] for place in kept]),
        sm_count=sm_count,
        wall_ns=last_ns - first_ns,
        card_sm_ns=sum(_stacked_ns(own, device.sm_count) for own, device in zip(by_device, devices, strict=True)),
        counted=sm_kinds(trace),
        device=np.array([numbers[place] for place in kept]),
        metadata=trace.metadata,
    )


def _stacked_ns(steps: Sequence[SMSteps], sm_count: int) -> int:
    """Return the SM-time of all partitions of a card, in SM x ns."""
    return sum(int((times_ns[1:] - times_ns[:-1]) @ sms[:-1]) for times_ns, sms in stack_sms(steps, sm_count))


def _window_ns(trace: Trace, step: SMSteps, first_ns: int, last_ns: int) -> int:
    if step.size.name is None or not trace.layouts:
        return last_ns - first_ns
    spells = [
        (begin_ns, end_ns)
        for begin_ns, end_ns, layout in layout_spells(trace, first_ns, last_ns)
        if layout and any(layout_size(trace, part, layout) == step.size for part in layout)
    ]
    begins_ns, ends_ns = np.concatenate((np.array(spells, np.int64).reshape(-1, 2), step.edges_ns.reshape(-1, 2))).T
    return interval_sum_ns(union_edges(begins_ns, ends_ns))


def _is_current(trace: Trace, size: PartitionSize) -> bool:
    if size.name is None:
        return True
    return trace.layout is not None and any(layout_size(trace, part, trace.layout) == size for part in trace.layout)


LISTED_PARTITIONS = 40
"""How many partitions are listed."""

WHOLE_CARD = "whole card"
"""How the place of streams in no partition is called."""

_NAME_WIDTH = 24


def _rows(result: Utilization) -> list[list[str]]:
    cards = result.device.tolist() if len({*result.device.tolist()}) > 1 else []
    rows = [["partition", "asked for", "granted SMs", "time, ms", "of, ms", "share", "SM x ms"]]
    shares, sm_ns = result.share, result.sm_ns
    for place, name in enumerate(result.names[:LISTED_PARTITIONS]):
        rows.append(
            [
                (f"GPU {cards[place]} " if cards else "") + (WHOLE_CARD if name is None else display_name(name, _NAME_WIDTH)),
                "-" if name is None else f"{result.requested_sms[place]:,}",
                f"{result.granted_sms[place]:,}",
                format_ms(result.busy_ns[place]),
                format_ms(result.window_ns[place]),
                format_share(shares[place]),
                format_ms(sm_ns[place]),
            ]
        )
    times = [format_ms(result.wall_ns), format_share(result.card_share), format_ms(result.card_sm_ns)]
    rows.append(["all SMs of the cards" if cards else "all SMs of the card", "", f"{result.sm_count:,}", "", *times])
    return rows + more_row(len(result.names) - LISTED_PARTITIONS, 7)


_ROUNDING_SLACK = 1e-6
"""Part of an SM that a share may lack because its product with the card is rounded."""
MAX_COSCHEDULED_SMS = 32
"""Most SMs that a structured split schedules together. Source: CUDA driver API, ``cuDevSmResourceSplit``."""
_Coscheduled: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_COSCHEDULED_SMS, multiple_of=2)]

REST = "rest"
"""What is asked for by a partition that takes all SMs that the others leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOptions:
    """A partition's SMs, with what only a structured split can do (CUDA 13.1 and later).

    Source: CUDA driver API, ``CU_DEV_SM_RESOURCE_GROUP_PARAMS``.

    Examples
    --------
    >>> PartitionOptions(sms=32, coscheduled_sms=4).is_structured
    True
    """

    sms: int | float | str
    """SMs as a whole number, a share (0.25 or ``"25%"``) of the card, or ``"rest"``."""
    coscheduled_sms: _Coscheduled = 0
    """SMs that must be scheduled together, for clusters; 0 for the device's default."""
    preferred_coscheduled_sms: _Coscheduled = 0
    """SMs that should be, where possible; 0 for no wish."""
    backfill: bool = False
    """Whether that may be relaxed to reach the count."""

    def __post_init__(self) -> None:
        check_fields(self, PartitionError)

    @property
    def is_structured(self) -> bool:
        """True if a structured split is needed."""
        return bool(self.coscheduled_sms or self.preferred_coscheduled_sms or self.backfill)


def options_of(part: Partition) -> PartitionOptions | None:
    """Return what a planned partition asked of a structured split; None for one that was planned in groups."""
    if part.groups or not part.is_structured:
        return None
    return PartitionOptions(
        sms=part.requested_sms,
        coscheduled_sms=part.coscheduled_sms,
        preferred_coscheduled_sms=part.preferred_coscheduled_sms,
        backfill=part.backfill,
    )


Share: TypeAlias = int | float | str | PartitionOptions
"""What `plan_partitions` takes for a partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One partition as it was asked for, in SMs."""

    name: str
    sms: int | None
    """None for the rest."""
    options: PartitionOptions


def read_requests(shares: Mapping[str, Share], sm_count: int) -> list[Request]:
    """Return what was asked for, in SMs.

    Raises
    ------
    InvalidNameError
        If a partition's name cannot be used.
    PartitionError
        If nothing, no number, or more than one rest was asked for.
    """
    require_mapping(shares)
    requests = [
        _read_request(check_name(name, "partition", "lab.partition(decode=32)"), shares[name], sm_count) for name in shares
    ]
    rests = [request.name for request in requests if request.sms is None]
    if len(rests) > 1:
        raise PartitionError(
            f"Only one partition can have the rest; {', '.join(rests)} ask for it. Give the others SMs or shares."
        )
    return requests


def require_mapping(shares: object) -> None:
    """Raise `PartitionError` for what names no partition."""
    if not isinstance(shares, Mapping):
        raise PartitionError(
            f"Partitions are given as a mapping of names to SMs; this is of type {type(shares).__name__}. "
            "Use lab.partition(prefill=96, decode=32)."
        )
    if not shares:
        raise PartitionError(
            "No partition was named. Use for example lab.partition(prefill=96, decode='rest'); lab.partition(None) goes back "
            "to the whole card."
        )


def _read_request(name: str, share: Share, sm_count: int) -> Request:
    sms = _to_sms(name, share.sms if isinstance(share, PartitionOptions) else share, sm_count)
    options = share if isinstance(share, PartitionOptions) else PartitionOptions(sms=REST if sms is None else sms)
    return Request(name=name, sms=sms, options=options)


def _to_sms(name: str, share: object, sm_count: int) -> int | None:
    if isinstance(share, str):
        return _text_to_sms(name, share, sm_count)
    if isinstance(share, float):
        return _part_of_card(name, share, repr(share), sm_count)
    try:
        if isinstance(share, bool):
            raise TypeError
        return operator.index(share)  # type: ignore[arg-type] # what has no index is refused below
    except TypeError:
        raise _unreadable(name, share) from None


def _text_to_sms(name: str, text: str, sm_count: int) -> int | None:
    word = text.strip().lower()
    if word == REST:
        return None
    try:
        if word.endswith("%"):
            return _part_of_card(name, float(word[:-1]) / 100, repr(text), sm_count)
        return _part_of_card(name, float(word), repr(text), sm_count) if "." in word else int(word)
    except ValueError as error:
        if isinstance(error, PartitionError):
            raise
        raise _unreadable(name, text) from None


def _part_of_card(name: str, share: float, text: str, sm_count: int) -> int:
    if not math.isfinite(share) or not 0 < share <= 1:
        whole = f" For SMs, give the whole number {round(share)}." if math.isfinite(share) and 1 < share <= sm_count else ""
        raise PartitionError(
            f"Partition {name!r} asks for the share {text}; shares of the card are above 0 and at most 1 (100%).{whole}"
        )
    return max(1, math.floor(share * sm_count + _ROUNDING_SLACK))  # so that shares of 100% are never more than the card


def _unreadable(name: str, share: object) -> PartitionError:
    if isinstance(share, Mapping):
        return PartitionError(
            f"Partition {name!r} asks for a mapping. Pass it without a name: lab.partition({{'prefill': 96}})."
        )
    return PartitionError(
        f"Partition {name!r} asks for {str(share)[:40]!r}; give SMs as a whole number, a share such as 0.25 or '25%', "
        "or 'rest'."
    )
