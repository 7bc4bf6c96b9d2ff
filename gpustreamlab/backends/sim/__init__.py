"""The simulated device: a GPU with a virtual clock, for machines without one, lessons and tests."""

from gpustreamlab.backends.sim._array import SimArray
from gpustreamlab.backends.sim._backend import SimBackend
from gpustreamlab.backends.sim._cost import (
    ModelledKernel,
    plan_host_copy,
    plan_kernel,
    plan_matmul,
    plan_spin,
    plan_streaming,
)
from gpustreamlab.backends.sim._preset import (
    H200,
    H200_CUDA12_2,
    H200_CUDA13_1,
    LAPTOP,
    PRESETS,
    DevicePreset,
    HostCosts,
    SMGroups,
)
from gpustreamlab.backends.sim._source import KEPT_RECORDS, SimActivitySource
from gpustreamlab.backends.sim._stream import SimContext, SimStream
from gpustreamlab.schedule._commands import DeviceWork, KernelSpec, SimEvent

__all__ = [
    "H200",
    "H200_CUDA12_2",
    "H200_CUDA13_1",
    "KEPT_RECORDS",
    "LAPTOP",
    "PRESETS",
    "DevicePreset",
    "DeviceWork",
    "HostCosts",
    "KernelSpec",
    "ModelledKernel",
    "SMGroups",
    "SimActivitySource",
    "SimArray",
    "SimBackend",
    "SimContext",
    "SimEvent",
    "SimStream",
    "plan_host_copy",
    "plan_kernel",
    "plan_matmul",
    "plan_spin",
    "plan_streaming",
]
