"""CuPy's tracking with NumPy in CuPy's place, on the streams of the simulated device."""

from __future__ import annotations

import numpy as np

from gpustreamlab.backends import WatchedArrays
from gpustreamlab.backends.cuda._tracked import ArrayLibrary, Memory, TrackedModule, Tracker
from gpustreamlab.backends.sim import SimBackend


def address_of(array):
    """Return the address of an array's first element."""
    return array.__array_interface__["data"][0]


def memory_of(array):
    """Return what an array lies in: the array that all its views end at."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return Memory(owner, address_of(owner), address_of(owner) + owner.nbytes)


class TrackedNumpyBackend(SimBackend):
    """A simulated device whose arrays are NumPy's own, tracked as CuPy's are."""

    def watch_accesses(self, sink):
        """Tell of accesses to tracked arrays; the order comes from the simulated driver."""
        if super().watch_accesses(sink) is None:
            return None
        self.tracker = Tracker(numpy_library(lambda: self.selected_stream.handle), sink)
        return WatchedArrays(TrackedModule(np, self.tracker), self.tracker.find, self.null_stream)

    def leave_accesses(self, sink):
        """Stop."""
        super().leave_accesses(sink)
        self.tracker.stop()


def numpy_library(current_handle):
    """Return what tracking has to know of NumPy."""
    return ArrayLibrary(
        module=np, array_type=np.ndarray, memory_of=memory_of, address_of=address_of, current_handle=current_handle
    )
