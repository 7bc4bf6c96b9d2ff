"""What a simulated device is: sizes, speeds, what calls cost, and how a driver shares out its SMs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpustreamlab.backends._features import green_capabilities
from gpustreamlab.backends._protocol import ContextSpec, SplitGroup
from gpustreamlab.errors import BackendNotFoundError, DeviceError, NotSimulatedError, OptionError, nearest_hint
from gpustreamlab.model import Capabilities, SMLimits, SMResource
from gpustreamlab.typing import Feature


@dataclass(frozen=True, slots=True, kw_only=True)
class SMGroups:
    """The smallest groups that a driver splits a device into.

    Examples
    --------
    >>> SMGroups(min_sms=4, alignment_sms=2).cut(10)
    ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9))
    """

    min_sms: int
    """Fewest SMs that a partition can have."""
    alignment_sms: int
    """SMs that are scheduled together."""
    table: tuple[tuple[int, ...], ...] = ()
    """SM ids of each group, those of one TPC side by side; empty for groups of SMs that follow each other."""

    @property
    def group_sms(self) -> int:
        """SMs of each group: the smallest partition, in whole steps of the alignment."""
        return -(-self.min_sms // self.alignment_sms) * self.alignment_sms

    def cut(self, sm_count: int) -> tuple[tuple[int, ...], ...]:
        """Return the SM ids of each group, and last those of the remainder, of which there may be none.

        Raises
        ------
        OptionError
            If the device is too small for one group, or the table does not list groups of its SMs, each SM once.
        """
        size = self.group_sms if min(self.min_sms, self.alignment_sms) > 0 else sm_count + 1
        groups = self.table or tuple(tuple(range(at, at + size)) for at in range(0, sm_count - size + 1, size))
        grouped = {sm for group in groups for sm in group}
        if not groups or not grouped <= set(range(sm_count)) or len(grouped) != size * len(groups):
            raise OptionError(
                f"{self} does not fit a device with SMs 0 to {sm_count - 1}. Give groups of SMs that it has, each SM once, or "
                "None for a device that cannot partition its SMs."
            )
        return (*groups, tuple(sm for sm in range(sm_count) if sm not in grouped))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """What each call costs the host, in ns of virtual time. Every enqueue costs at least 1 ns."""

    launch_ns: int = 4_000
    """Launching a kernel or a fill. Source: FACTS.md, a CuPy RawKernel."""
    copy_ns: int = 4_000
    """Enqueuing a copy. An assumption: as a launch."""
    record_ns: int = 1_100
    """Recording an event. Source: FACTS.md."""
    wait_ns: int = 1_000
    """Making a stream wait for an event. An assumption: about as a record."""
    query_ns: int = 1_300
    """Asking whether a stream or an event is done. Source: FACTS.md."""
    elapsed_ns: int = 180
    """Reading the time between two events. Source: FACTS.md."""
    select_ns: int = 400
    """Selecting a stream. Source: FACTS.md, ``with stream:``."""
    synchronize_ns: int = 2_000
    """Returning from a synchronisation, after the device is done. An assumption."""
    create_stream_ns: int = 8_000
    """Creating a stream, of a green context or not. Measured on an H200, driver 13.0."""
    create_context_ns: int = 1_300_000
    """Creating a green context. Measured on an H200, driver 13.0: 1.1 to 1.7 ms."""
    destroy_context_ns: int = 16_000
    """Destroying a green context. Measured on an H200, driver 13.0."""
    allocate_ns: int = 2_000
    """Allocating or freeing memory in the order of a stream. An assumption."""
    graph_launch_ns: int = 5_000
    """Launching a CUDA graph, but for its nodes. An assumption: a little more than a kernel, from Python."""
    graph_node_ns: int = 200
    """Launching each node of a graph. An assumption."""
    instantiate_ns: int = 20_000
    """Making a graph of what was captured, but for its nodes. An assumption."""
    instantiate_node_ns: int = 2_000
    """Making each node of a graph, or updating it. An assumption."""
    push_ns: int = 50
    """Opening or closing a range for other tools. Source: FACTS.md, an NVTX domain."""
    clock_read_ns: int = 40
    """Reading the host's clock."""

    def __post_init__(self) -> None:
        enqueues = (self.launch_ns, self.copy_ns, self.record_ns, self.wait_ns)
        if min(enqueues) < 1 or min(self.query_ns, self.clock_read_ns) < 1:
            raise OptionError(
                "Every enqueue, query and clock read of HostCosts costs at least 1 ns, so that loops on them end."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePreset:
    """Sizes and speeds of a simulated device.

    Examples
    --------
    >>> DevicePreset(name="tiny", sm_count=4).slots_per_sm
    32
    """

    name: str
    """What the device calls itself."""
    sm_count: int
    """How many streaming multiprocessors there are."""
    slots_per_sm: int = 32
    """How many of the smallest blocks fit on one SM; a power of two."""
    memory_bytes: int = 0
    """Device memory. Scratch memory is counted against it, arrays are not; 0 for no limit."""
    compute_capability: tuple[int, int] = (0, 0)
    """Major and minor number; only shown."""
    memory_bytes_per_s: int = 4_250_000_000_000
    """What all SMs together may draw from memory."""
    sm_bytes_per_s: int = 94_000_000_000
    """What one SM may draw from memory; a block may draw the share of its slots."""
    h2d_bytes_per_s: int = 55_000_000_000
    """Copies from page-locked host memory to the device."""
    d2h_bytes_per_s: int = 55_000_000_000
    """Copies from the device to page-locked host memory."""
    peer_bytes_per_s: int = 396_000_000_000
    """Copies from another card. 18 links of NVLink between two H100: 256 MiB in 677 us, 16 MiB in 45 us."""
    pageable_bytes_per_s: int = 12_000_000_000
    """Copies from or to ordinary host memory, either way. An assumption."""
    copy_latency_ns: int = 1_500
    """Start of a copy before bytes flow. An assumption."""
    kernel_floor_ns: int = 1_500
    """The shortest time that a block of a modelled kernel takes. An assumption; spins are exact."""
    matmul_operations_per_s: dict[str, float] = field(default_factory=lambda: {"f2": 6.92e12, "f4": 0.4e12, "f8": 0.4e12})
    """Matrix product: operations per second of one SM, by dtype kind and size; others use ``sm_operations_per_s``."""
    matmul_extra_waves: dict[str, float] = field(default_factory=dict)
    """How many waves more than its grid has a matrix product takes, by dtype kind and size, none for others: what it costs to
    fill and drain the SMs."""
    sm_operations_per_s: float = 0.4e12
    """All other arithmetic: operations per second of one SM."""
    float64_operations_per_s: float = 0.2e12
    """The same for 64-bit floats."""
    priority_range: tuple[int, int] = (0, -5)
    """Lowest and highest stream priority."""
    queue_limit: int = 1_024
    """Work a stream may hold before the next enqueue blocks the host."""
    sm_groups: SMGroups | None = None
    """The smallest groups that the driver splits the SMs into; None for a device without green contexts."""
    driver_version: str = "13.0"
    """The CUDA version that the driver supports; the bindings are taken to have the same."""
    host: HostCosts = field(default_factory=HostCosts)
    """What each call costs the host."""

    def __post_init__(self) -> None:
        rates = [f"{what}_bytes_per_s" for what in ("memory", "sm", "h2d", "d2h", "peer", "pageable")]
        wrong = [what for what in ("sm_count", "slots_per_sm", *rates, "queue_limit") if getattr(self, what) < 1]
        if self.slots_per_sm & (self.slots_per_sm - 1):
            wrong.append("slots_per_sm")
        if not all(0 <= waves < math.inf for waves in self.matmul_extra_waves.values()):
            wrong.append("matmul_extra_waves")
        if not re.fullmatch(r"\d+\.\d+", self.driver_version):
            wrong.append("driver_version")
        if wrong:
            raise OptionError(
                f"DevicePreset {self.name!r} has {', '.join(f'{what}={getattr(self, what)!r}' for what in wrong)}. Sizes and "
                "rates are 1 or more, slots_per_sm is a power of two, extra waves are 0 or more, a version is as '13.0'."
            )
        if self.sm_groups is not None:
            self.sm_groups.cut(self.sm_count)

    @property
    def sm_limits(self) -> SMLimits:
        """What an SM holds at once: as many blocks as it has slots, and else what `SMLimits` has anyway."""
        return SMLimits(blocks=self.slots_per_sm)

    @property
    def cuda_version(self) -> tuple[int, int]:
        """Major and minor number of `driver_version`."""
        major, minor = self.driver_version.split(".")
        return int(major), int(minor)


# The SM ids of each group as ``%smid`` showed them on an H200: SMs are numbered across the GPCs, two by two.
_H200_GROUPS = tuple(
    tuple(sm for row in range(4) for sm in (first + row * stride, first + row * stride + 1))
    # One GPC has no more than 8 SMs.
    for first, stride in [*((2 * g, 16) for g in range(8)), *((64 + 2 * g, 14) for g in range(7))]
)


H200 = DevicePreset(
    name="H200",
    sm_count=132,
    memory_bytes=141_000_000_000,
    compute_capability=(9, 0),
    matmul_operations_per_s={"f2": 7.17e12, "f4": 0.368e12, "f8": 0.368e12},
    matmul_extra_waves={"f2": 1.0},
    sm_groups=SMGroups(min_sms=8, alignment_sms=8, table=_H200_GROUPS),
)
"""Calibrated to one NVIDIA H200, driver 13.0; see docs/explanations/simulated-device.md."""

H200_CUDA13_1 = replace(H200, driver_version="13.1")
"""The same card with a driver that has structured splits and work queues. An assumption: none was at hand."""

H200_CUDA12_2 = replace(H200, driver_version="12.2")  # The same card with a driver that is too old for green contexts

LAPTOP = DevicePreset(
    name="laptop GPU",
    sm_count=24,
    memory_bytes=8_000_000_000,
    compute_capability=(8, 9),
    memory_bytes_per_s=240_000_000_000,
    sm_bytes_per_s=16_000_000_000,
    h2d_bytes_per_s=12_000_000_000,
    d2h_bytes_per_s=12_000_000_000,
    peer_bytes_per_s=6_000_000_000,
    pageable_bytes_per_s=6_000_000_000,
    matmul_operations_per_s={"f2": 1.2e12, "f4": 0.3e12, "f8": 0.005e12},
    sm_operations_per_s=0.3e12,
    float64_operations_per_s=0.005e12,
)
"""A small card such as laptops have, without green contexts. Round figures, not measured on any device."""

PRESETS = {"h200": H200, "h200-cuda13.1": H200_CUDA13_1, "h200-cuda12.2": H200_CUDA12_2, "laptop": LAPTOP}


def find_preset(preset: str | DevicePreset) -> DevicePreset:
    """Return the preset of a name, or the given one."""
    if isinstance(preset, DevicePreset):
        return preset
    key = str(preset).lower()
    if key in PRESETS:
        return PRESETS[key]
    raise BackendNotFoundError(
        f"No simulated device is called {preset!r}. {nearest_hint(key, PRESETS)} "
        "SimBackend takes one of these names or a DevicePreset."
    )


_TPC_SMS = 2  # SMs of a TPC, the least that is scheduled together; a remainder is made of single TPCs of many GPCs


class SMSplitter:
    """Says how a device's SMs can be shared out, and finds those of a context."""

    def __init__(self, preset: DevicePreset) -> None:
        groups, version = preset.sm_groups, preset.cuda_version
        self._preset = preset
        self._ids = () if groups is None else groups.cut(preset.sm_count)
        resource = None
        if groups is not None:
            resource = SMResource(
                min_sms=groups.min_sms,
                alignment_sms=groups.alignment_sms,
                group_sms=groups.group_sms,
                group_count=len(self._ids) - 1,
                remainder_sms=len(self._ids[-1]),
            )
        self.capabilities: Capabilities = green_capabilities(version, version, resource)
        """What the driver can do; its bindings are taken to have the same version."""
        self.resource: SMResource | None = None
        """How the SMs can be shared out; None where they cannot."""
        if resource is not None and self.capabilities.has(Feature.GREEN_CONTEXTS):
            self.resource = replace(resource, is_structured=self.capabilities.has(Feature.UNEQUAL_SPLIT))

    def find_sm_ids(self, spec: ContextSpec) -> frozenset[int]:
        """Return the SM ids of a context."""
        resource = self._require(Feature.GREEN_CONTEXTS)
        if spec.workqueue is not None:
            self._require(Feature.WORKQUEUES)
        if not spec.split:
            return self._collect_groups(spec.groups, resource)
        self._require(Feature.UNEQUAL_SPLIT)
        return self._split(spec.split, resource)[spec.place]

    def _require(self, feature: Feature) -> SMResource:
        """Return the device's SM resource if the driver has a feature."""
        item = self.capabilities[feature]
        if self.resource is None or not item.available:
            raise _refuse(
                "NOT_SUPPORTED",
                f"the simulated {self._preset.name} has no {feature} ({item.detail})",
                f"It needs {item.needs}. Without it: {item.fallback}.",
            )
        return self.resource

    def _collect_groups(self, groups: tuple[int, ...], resource: SMResource) -> frozenset[int]:
        last = resource.group_count if resource.remainder_sms else resource.group_count - 1
        if not groups or not 0 <= min(groups) <= max(groups) <= last or len(set(groups)) != len(groups):
            raise _refuse(
                "INVALID_RESOURCE_CONFIGURATION",
                f"{list(groups)} are no groups of this device",
                f"Give numbers from 0 to {last}, each once.",
            )
        return frozenset(sm for group in groups for sm in self._ids[group])

    def _split(self, split: Sequence[SplitGroup], resource: SMResource) -> list[frozenset[int]]:
        """Take the groups of a structured split from the card, those first that have to be scheduled together."""
        free = [list(ids) for ids in self._ids]
        taken: list[frozenset[int]] = [frozenset()] * len(split)
        steps = [group.coscheduled_sms or resource.alignment_sms for group in split]
        # Large steps first, so that small ones do not break up what they need.
        for place in sorted(range(len(split)), key=lambda place: (split[place].backfill, -steps[place])):
            group, step = split[place], steps[place]
            _check_sizes(group, step, resource)
            ids = _take(free, group.sms, step)
            if group.backfill:
                ids += _take(free, group.sms - len(ids), _TPC_SMS)
            if len(ids) < group.sms:
                raise _refuse(
                    "INVALID_RESOURCE_CONFIGURATION",
                    f"group {place} of the split asked for {group.sms} SMs, {step} at a time scheduled together, and only "
                    f"{len(ids)} such are left",
                    "Ask for fewer SMs or a smaller co-scheduled size, or allow backfill.",
                )
            taken[place] = frozenset(ids)
        return taken


def _check_sizes(group: SplitGroup, step: int, resource: SMResource) -> None:
    if step > resource.group_sms:
        raise NotSimulatedError(
            f"The simulated device does not model {step} SMs that are scheduled together; give at most {resource.group_sms} as "
            "coscheduled_sms."
        )
    unit = _TPC_SMS if group.backfill else step
    is_step = step > 0 and (step % _TPC_SMS == 0 or step == resource.alignment_sms)
    if not is_step or group.sms < 1 or group.sms % unit or group.preferred_coscheduled_sms % step:
        raise _refuse(
            "INVALID_RESOURCE_CONFIGURATION",
            f"{group} of the split is no whole number of co-scheduled sizes, or these of {_TPC_SMS} SMs",
            "Give multiples of 8 SMs.",
        )


def _take(free: list[list[int]], sms: int, step: int) -> list[int]:
    """Take up to so many SMs from the card in order, `step` at a time from one group; the last entry is the remainder."""
    taken: list[int] = []
    for pool in free if step <= _TPC_SMS else free[:-1]:
        while len(taken) + step <= sms and len(pool) >= step:
            taken += pool[:step]
            del pool[:step]
    return taken


def _refuse(code: str, what: str, fix: str) -> DeviceError:
    return DeviceError(f"Creating a green context failed: {what}. {fix}", driver_code=code)
