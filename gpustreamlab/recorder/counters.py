"""Counters of the card, on the session's clock: how busy its SMs, its memory and its bus were."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import numpy as np

from gpustreamlab._util.background import Updater, held_weakly
from gpustreamlab._util.defences import ProcessBound, process_lock
from gpustreamlab.backends import COUNTER_GROUPS, Backend, CounterReading, CounterSource, FineCounterSource
from gpustreamlab.errors import CaptureUnavailableError, CaptureWarning, OptionError, nearest_hint
from gpustreamlab.recorder._recorder import Recorder

__all__ = ["CounterBlock", "CounterSampler", "start_counters"]

_log = logging.getLogger(__name__)

AUTO = "auto"
USUAL_GROUPS = ("sm", "tensor", "dram", "pcie")  # What a block counts that names nothing
LEAST_US, MOST_US = 10.0, 1_000_000.0  # How often a block can count


class CounterSampler:
    """Reads counters into the recorder: on a GPU some times a second from a thread of its own, and wherever a trace is made.

    A sample stands at the beginning of its interval, and holds until the next one; behind the last one stands NaN.
    """

    def __init__(self, recorder: Recorder, source: CounterSource) -> None:
        self._recorder, self._source = recorder, source
        self.period_ns = round(source.period_s * 1e9)
        self._lane = recorder.add_counter_lane(source.description)
        self._lock = process_lock()
        self._is_closed = False
        self.problem = ""  # What ended it before its time
        self._updater: Updater | None = None
        recorder.counter_readers.append(self.take)
        if source.period_s:
            # What is not read in time is lost, so it does not rest.
            self._updater = Updater(
                held_weakly(self.take), refresh_hz=1 / source.period_s, rest=0, name="gpustreamlab counters"
            )
            self._updater.start()

    def take(self, *, is_last: bool = False) -> bool:
        """Read what was counted since the last time; tell whether it goes on. What fails ends it, and disturbs nobody."""
        with self._lock:
            if self._is_closed:
                return False
            try:
                self._put(self._source.read(is_last=is_last))
                if self._updater is not None:
                    self._updater.period_s = self._source.pause_s
            except Exception as error:  # noqa: BLE001 - a tool that fails must not disturb the work it watches
                _log.info("Counters are not read any more.", exc_info=True)
                self.problem = str(error)
                is_last = True
            if is_last:
                self._is_closed = True
                self._recorder.counter_readers.remove(self.take)
                self._source.close()
                ends = {name: end_ns for (lane, name), end_ns in self._recorder.sample_ends.items() if lane == self._lane}
                self._put([CounterReading(end_ns, end_ns, {name: math.nan}) for name, end_ns in ends.items()])
                for name in ends:
                    del self._recorder.sample_ends[self._lane, name]
            return not is_last

    def close(self) -> None:
        """Read the rest, and count no more. Idempotent."""
        if self._updater is not None:
            self._updater.stop()  # not with the lock, which its thread may be about to take
        self.take(is_last=True)

    def _put(self, readings: Sequence[CounterReading]) -> None:
        columns = [
            (name, np.array(one.begin_host_ns, np.int64, ndmin=1), np.array(value, np.float64, ndmin=1))
            for one in readings
            for name, value in one.values.items()
        ]
        if columns:
            self._recorder.add_samples(self._lane, columns)
        for one in readings:
            self._recorder.sample_ends |= {(self._lane, name): one.end_host_ns for name in one.values}


class CounterBlock(ProcessBound):
    """Counts each few microseconds from the beginning of a ``with`` block to its end, from `Session.counters` on.

    Examples
    --------
    >>> from gpustreamlab import Session
    >>> with Session("sim") as lab:
    ...     with lab.counters("sm", "dram", every_us=50) as block:
    ...         x = lab.xp.ones(1 << 20)
    ...         lab.synchronize()
    >>> block.names
    ('sm_active_percent', 'sm_occupancy_percent', 'dram_active_percent', 'dram_bytes_per_s')
    >>> block.left_out
    {'sm_clock_mhz': 'the simulated device does not model it'}
    """

    def __init__(self, recorder: Recorder, backend: Backend, groups: Sequence[str], every_us: object) -> None:
        for group in groups:
            if not isinstance(group, str):
                raise OptionError(f"Counters are named by text, not {group!r:.40}. Use lab.counters('sm', 'dram').")
            if group not in COUNTER_GROUPS:
                raise OptionError(f"There are no counters {group!r}. {nearest_hint(group, COUNTER_GROUPS)}")
        if (
            isinstance(every_us, bool)
            or not isinstance(every_us, (int, float, np.integer))
            or not LEAST_US <= every_us <= MOST_US
        ):
            raise OptionError(
                f"every_us is {every_us!r}; it must be a number from {LEAST_US:g} to {MOST_US:g}. "
                "Use lab.counters('sm', 'dram', every_us=50)."
            )
        self._recorder, self._backend, self._every_ns = recorder, backend, round(every_us * 1_000)
        self._groups = tuple(groups)
        self._sampler: CounterSampler | None = None
        self.names: tuple[str, ...] = ()
        """What is counted, by names of `gpustreamlab.model.CARD_COUNTERS`."""
        self.left_out: Mapping[str, str] = {}
        """What was asked for and is not counted, and why."""

    def __repr__(self) -> str:
        told = ", ".join(self.names) or "nothing yet. Type with lab.counters('dram'): and the work, which ends in it"
        asked = f"{', '.join(self._groups or USUAL_GROUPS)} each {self._every_ns / 1_000:g} us"
        return f"<CounterBlock: {asked}, counts {told}. Values: lab.trace.counters>"

    def __enter__(self) -> Self:
        if self._recorder.end_counter_block is not None:
            raise CaptureUnavailableError(
                "A block of lab.counters(...) is open in this session already, and a card has one sampler. Leave it first."
            )
        asked = [name for group in self._groups or USUAL_GROUPS for name in COUNTER_GROUPS[group]]
        open_source: Callable[[Sequence[str], int], FineCounterSource] | None
        open_source = getattr(self._backend, "fine_counter_source", None)  # others may be older
        if open_source is None:
            raise CaptureUnavailableError(
                f"{self._backend.device.label} has no fine counters. Use gpustreamlab.Session(counters=True)."
            )
        source = open_source(list(dict.fromkeys(asked)), self._every_ns)
        self.left_out = source.left_out
        self.names = tuple(name for name in asked if name not in self.left_out)
        self._sampler = CounterSampler(self._recorder, source)
        self._recorder.end_counter_block = self.stop
        for group in self._groups:
            if not {*COUNTER_GROUPS[group]} - self.left_out.keys():
                why = self.left_out[COUNTER_GROUPS[group][0]]
                warnings.warn(f"Counters {group!r} are left out: {why}.", CaptureWarning, stacklevel=2)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Count no more. Idempotent; what ended the counting early is a `CaptureWarning`."""
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.close()
            self._recorder.end_counter_block = None
            if sampler.problem:
                warnings.warn(f"Counters are missing from some moment on: {sampler.problem}", CaptureWarning, stacklevel=2)


def start_counters(recorder: Recorder, backend: Backend, *, wanted: bool | str) -> CounterSampler | None:
    """Begin to count, where that is wanted; ``"auto"`` is for GPUs, and where it cannot be had nothing.

    Raises
    ------
    OptionError
        If it is neither True, False nor ``"auto"``.
    CaptureUnavailableError
        If True was asked for, and nothing counts.
    """
    if wanted is not True and wanted is not False and wanted != AUTO:
        raise OptionError(f"counters is {wanted!r}; it must be True, False or 'auto'. Use gpustreamlab.Session(counters=True).")
    if not wanted or (wanted == AUTO and backend.device.simulated):
        return None
    open_source: Callable[[], CounterSource | None] = getattr(backend, "counter_source", _no_source)  # others may be older
    source = open_source()
    if source is not None:
        return CounterSampler(recorder, source)
    if wanted is True:
        raise CaptureUnavailableError(
            f"Nothing counts on {backend.device.label}: NVML cannot be asked. Install it with `pip install nvidia-ml-py`, or "
            "use gpustreamlab.Session(counters=False)."
        )
    return None


def _no_source() -> None:
    return None
