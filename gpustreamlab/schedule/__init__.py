"""What runs when on a device: the scheduler of the simulated device, which also tells what a recorded run would be."""

from gpustreamlab.schedule._commands import (
    CopyRun,
    CopySpec,
    DeviceWork,
    KernelRun,
    KernelSpec,
    Mark,
    StreamQueue,
    Wait,
)
from gpustreamlab.schedule._scheduler import Card, Scheduler

__all__ = ["Card", "CopyRun", "CopySpec", "DeviceWork", "KernelRun", "KernelSpec", "Mark", "Scheduler", "StreamQueue", "Wait"]
