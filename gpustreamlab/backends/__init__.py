"""What a device has to be able to do, and the two that ship: the simulated one and CUDA."""

from gpustreamlab.backends._features import green_capabilities
from gpustreamlab.backends._lent import lent_handle
from gpustreamlab.backends._protocol import (
    Backend,
    BackendContext,
    BackendStream,
    ClockInfo,
    ContextSpec,
    RangeTimes,
    SplitGroup,
)
from gpustreamlab.backends._select import BACKEND_NAMES, Choice, choose_backend

__all__ = [
    "BACKEND_NAMES",
    "Backend",
    "BackendContext",
    "BackendStream",
    "Choice",
    "ClockInfo",
    "ContextSpec",
    "RangeTimes",
    "SplitGroup",
    "choose_backend",
    "green_capabilities",
    "lent_handle",
]
