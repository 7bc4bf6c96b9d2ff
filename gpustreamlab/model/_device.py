"""The device that a trace was made on."""

from __future__ import annotations

from dataclasses import dataclass

from gpustreamlab.model._fields import Count, check_fields
from gpustreamlab.model._partition import SMResource


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU, real or simulated."""

    name: str
    """The name that the driver gives, or the preset's for a simulated device."""
    ordinal: Count = 0
    """The CUDA device number."""
    sm_count: Count
    """How many streaming multiprocessors (SMs) the card has; 0 where unknown."""
    compute_capability: tuple[Count, Count] = (0, 0)
    """Major and minor number; (0, 0) where there is none."""
    memory_bytes: Count = 0
    """Device memory in bytes; 0 where unknown."""
    driver_version: str = ""
    """The CUDA version that the driver supports, for example ``"13.0"``; the one modelled for a simulated device."""
    simulated: bool = False
    """True if no hardware stands behind it."""
    sm_resource: SMResource | None = None
    """How its SMs can be shared out; None where they cannot."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def label(self) -> str:
        """The name, marked where the device is simulated."""
        return f"{self.name} (simulated)" if self.simulated else self.name
