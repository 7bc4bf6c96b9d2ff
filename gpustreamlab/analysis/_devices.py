"""What a trace tells of its devices and processes: engines and SMs are of one card, and threads of one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpustreamlab.errors import OptionError
from gpustreamlab.model import NO_COMMON_TIME, Device, Lane, Trace, TraceMetadata
from gpustreamlab.typing import BoolArray, Int64Array, LaneKind


def lane_devices(trace: Trace) -> Int64Array:
    """Return for each lane the place of its device in `Trace.devices`; 0 for threads of the host; shape (n_lanes,), int64."""
    places = {device.ordinal: place for place, device in enumerate(trace.devices)}
    return np.array([places.get(lane.device, 0) if lane.kind is LaneKind.STREAM else 0 for lane in trace.lanes], np.int64)


def devices_label(meta: TraceMetadata, lanes: Sequence[Lane]) -> str:
    """Name the devices of some lanes, marked where they are simulated."""
    own = {lane.device for lane in lanes}
    devices = tuple(device for device in meta.devices if device.ordinal in own)
    return replace(meta, device=devices[0], devices=devices).device_label if devices else meta.device_label


def lane_processes(trace: Trace) -> Int64Array:
    """Return for each lane the number of its process; shape (n_lanes,), int64."""
    return np.array([lane.process for lane in trace.lanes], np.int64)


def of_device(trace: Trace, device: Device) -> BoolArray:
    """Tell which rows are of a device of the trace; all where it has no other; shape (n_spans,), bool."""
    if len(trace.devices) < 2:
        return np.ones(len(trace), bool)
    is_own = [lane.kind is LaneKind.STREAM and lane.device == device.ordinal for lane in trace.lanes]
    found: BoolArray = np.array(is_own, bool)[trace.lane]
    return found


def per_row(trace: Trace, of_devices: Sequence[int]) -> Int64Array:
    """Return for each row the number of its device, given one for each device of the trace; shape (n_spans,), int64."""
    if len(of_devices) < 2:
        return np.broadcast_to(np.int64(of_devices[0]), len(trace))
    found: Int64Array = np.array(of_devices, np.int64)[lane_devices(trace)][trace.lane]
    return found


def require_common_time(meta: TraceMetadata, lanes: Sequence[Lane], function: str) -> None:
    """Raise `OptionError` where lanes are of several simulated engines, whose times have nothing to do with each other."""
    cards = sorted({lane.device for lane in lanes})
    if len(cards) > 1 and NO_COMMON_TIME in meta.missing:
        raise OptionError(
            f"{function}() compares times, and simulated engines have none in common: each begins at 0. Ask each alone: "
            f"lab.{function}() of the cluster, or trace.where(device={cards[0]}).{function}()."
        )


def require_one_rank(trace: Trace, rows: BoolArray, function: str) -> None:
    """Raise `OptionError` where some rows are of several processes on several devices: nobody knows how those hang together."""
    if len(trace.devices) < 2:
        return
    used = [trace.lanes[place] for place in np.unique(trace.lane[rows]).tolist()]
    processes, cards = {lane.process for lane in used}, {lane.device for lane in used}
    if len(processes) < 2 or len(cards) < 2:
        return
    own = sorted({lane.device for lane in used if lane.process == min(processes)})
    raise OptionError(
        f"{function}() answers for one rank: here {len(processes):,} processes work on {len(cards):,} GPUs, and the trace does "
        f"not tell how they waited for each other. Use trace.where(device={own[0] if len(own) == 1 else own}).{function}()."
    )
