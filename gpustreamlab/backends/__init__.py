"""What a device has to be able to do, and the two that ship: the simulated one and CUDA."""

from gpustreamlab.backends._lent import lent_handle
from gpustreamlab.backends._protocol import Backend, BackendStream, ClockInfo, RangeTimes
from gpustreamlab.backends._select import BACKEND_NAMES, Choice, choose_backend

__all__ = ["BACKEND_NAMES", "Backend", "BackendStream", "Choice", "ClockInfo", "RangeTimes", "choose_backend", "lent_handle"]
