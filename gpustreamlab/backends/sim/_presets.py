"""Which device is simulated: its sizes, speeds and the host's cost of each call."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from gpustreamlab.backends.sim._sm_groups import SMGroups
from gpustreamlab.errors import BackendNotFoundError, OptionError, nearest_hint


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
    pageable_bytes_per_s: int = 12_000_000_000
    """Copies from or to ordinary host memory, either way. An assumption."""
    copy_latency_ns: int = 1_500
    """Start of a copy before bytes flow. An assumption."""
    kernel_floor_ns: int = 1_500
    """The shortest time that a block of a modelled kernel takes. An assumption; spins are exact."""
    matmul_operations_per_s: dict[str, float] = field(default_factory=lambda: {"f2": 6.92e12, "f4": 0.4e12, "f8": 0.4e12})
    """Matrix product: operations per second of one SM, by dtype kind and size; others use ``sm_operations_per_s``."""
    matmul_efficiency: tuple[tuple[int, float], ...] = ()
    """Calibration, not prediction: (SM count, factor on the matrix product's speed), in between interpolated."""
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
    has_memory_pools: bool = True
    """Whether memory can be allocated in the order of a stream."""
    driver_version: str = "13.0"
    """The CUDA version that the driver supports; the bindings are taken to have the same."""
    context_bytes: int = 4 << 20
    """Device memory that each green context costs for good. Source: FACTS.md, an H200 with driver 13.0."""
    host: HostCosts = field(default_factory=HostCosts)
    """What each call costs the host."""

    def __post_init__(self) -> None:
        sizes = {
            "sm_count": self.sm_count,
            "slots_per_sm": self.slots_per_sm,
            "memory_bytes_per_s": self.memory_bytes_per_s,
            "sm_bytes_per_s": self.sm_bytes_per_s,
            "h2d_bytes_per_s": self.h2d_bytes_per_s,
            "d2h_bytes_per_s": self.d2h_bytes_per_s,
            "pageable_bytes_per_s": self.pageable_bytes_per_s,
            "queue_limit": self.queue_limit,
        }
        for what, value in sizes.items():
            if value < 1:
                raise OptionError(f"DevicePreset {self.name!r} has {what}={value}; give at least 1.")
        if self.slots_per_sm & (self.slots_per_sm - 1):
            raise OptionError(
                f"DevicePreset {self.name!r} has slots_per_sm={self.slots_per_sm}; give a power of two, such as 32."
            )
        if not re.fullmatch(r"\d+\.\d+", self.driver_version):
            raise OptionError(
                f"DevicePreset {self.name!r} has driver_version={self.driver_version!r}; give two numbers, such as '13.0'."
            )
        if self.sm_groups is not None:
            self.sm_groups.cut(self.sm_count)

    @property
    def cuda_version(self) -> tuple[int, int]:
        """Major and minor number of `driver_version`."""
        major, minor = self.driver_version.split(".")
        return int(major), int(minor)


def _list_h200_groups() -> tuple[tuple[int, ...], ...]:
    """Return the SM ids of each group as ``%smid`` showed them on an H200: SMs are numbered across the GPCs, two by two."""
    full = [(2 * g, 16) for g in range(8)]
    short = [(64 + 2 * g, 14) for g in range(7)]  # one GPC has no more than 8 SMs
    return tuple(
        tuple(sm for row in range(4) for sm in (first + row * stride, first + row * stride + 1))
        for first, stride in full + short
    )


H200 = DevicePreset(
    name="H200",
    sm_count=132,
    memory_bytes=141_000_000_000,
    compute_capability=(9, 0),
    matmul_efficiency=((48, 1.0), (64, 0.885), (80, 1.0), (96, 0.975), (112, 0.80), (128, 0.74), (132, 0.92)),
    sm_groups=SMGroups(min_sms=8, alignment_sms=8, table=_list_h200_groups()),
)
"""Calibrated to one NVIDIA H200, driver 13.0; see docs/explanations/simulated-device.md."""

H200_CUDA13_1 = replace(H200, driver_version="13.1")
"""The same card with a driver that has structured splits and work queues. An assumption: none was at hand."""

H200_CUDA12_2 = replace(H200, driver_version="12.2")
"""The same card with a driver that is too old for green contexts."""

LAPTOP = DevicePreset(
    name="laptop GPU",
    sm_count=24,
    memory_bytes=8_000_000_000,
    compute_capability=(8, 9),
    memory_bytes_per_s=240_000_000_000,
    sm_bytes_per_s=16_000_000_000,
    h2d_bytes_per_s=12_000_000_000,
    d2h_bytes_per_s=12_000_000_000,
    pageable_bytes_per_s=6_000_000_000,
    matmul_operations_per_s={"f2": 1.2e12, "f4": 0.3e12, "f8": 0.005e12},
    sm_operations_per_s=0.3e12,
    float64_operations_per_s=0.005e12,
)
"""A small card such as laptops have, without green contexts. Round figures, not measured on any device."""

PRESETS = {"h200": H200, "h200-cuda13.1": H200_CUDA13_1, "h200-cuda12.2": H200_CUDA12_2, "laptop": LAPTOP}


def find_preset(preset: str | DevicePreset) -> DevicePreset:
    """Return the preset of a name, or the given one.

    Raises
    ------
    BackendNotFoundError
        If no preset has this name.

    Examples
    --------
    >>> find_preset("laptop").sm_count
    24
    """
    if isinstance(preset, DevicePreset):
        return preset
    key = str(preset).lower()
    if key in PRESETS:
        return PRESETS[key]
    raise BackendNotFoundError(
        f"No simulated device is called {preset!r}. {nearest_hint(key, PRESETS)} "
        "SimBackend takes one of these names or a DevicePreset."
    )
