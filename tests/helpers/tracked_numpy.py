"""CuPy's tracking with NumPy in CuPy's place, on the streams of the simulated device."""

from __future__ import annotations

import dataclasses

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
    """A simulated device whose arrays are NumPy's own, tracked as CuPy's are: any card's work takes those of all."""

    def __init__(self, *, beside=None):
        super().__init__(beside=beside)
        self.cards = [] if beside is None else beside.cards
        self.cards.append(self)
        self.current = [0] if beside is None else beside.current  # the current device, innermost last
        self.tracker = Tracker(numpy_library(self.current_stream)) if beside is None else beside.tracker

    def current_stream(self, device):
        """Return the current stream of a device, None for the current one."""
        number = self.current[-1] if device is None else device
        return number, self.cards[number].selected_stream.handle

    def select(self, stream):
        """Select a stream, and make its device the current one."""
        self.current.append(self.device.ordinal)
        return super().select(stream)

    def restore(self, token):
        """Put back what was selected, and the device."""
        self.current.pop()
        super().restore(token)

    def watch_accesses(self, sink):
        """Tell of accesses to tracked arrays; the order comes from the simulated driver."""
        if super().watch_accesses(sink) is None:
            return None
        self.tracker.watch(self.device.ordinal, sink)
        return WatchedArrays(TrackedModule(np, self.tracker), self.tracker.find, self.null_stream)

    def leave_accesses(self, sink):
        """Stop."""
        super().leave_accesses(sink)
        self.tracker.leave(self.device.ordinal)


def numpy_library(current_stream):
    """Return what tracking has to know of NumPy."""
    return ArrayLibrary(
        module=np, array_type=np.ndarray, memory_of=memory_of, address_of=address_of, current_stream=current_stream
    )


def tracked_by(sink, captured=lambda handle: None, **changes):
    """Return a tracker of NumPy's arrays that tells somebody of stream 7, the current one."""
    tracker = Tracker(dataclasses.replace(numpy_library(lambda device: (0, 7)), **changes))
    tracker.watch(0, sink, captured)
    return tracker
