"""A fake device on which everything has ended at once, made of C calls where a real driver has them."""

from __future__ import annotations

import functools
import itertools
import time

import numpy as np

from gpustreamlab.backends import ClockInfo, RangeTimes, green_capabilities
from gpustreamlab.model import Device


class InstantStream:
    """Takes every call; tells the backend what was closed."""

    priority, sm_count, is_blocking = 0, 1, False

    def __init__(self, backend, number):
        self.backend, self.number = backend, number
        self.key, self.handle = (0, 0, number), number
        self.record = self.record_raw = backend.recorded.append

    def synchronize(self):
        self.backend.calls.append(f"synchronize {self.number}")

    def wait(self, event):
        pass

    def close(self):
        self.backend.calls.append(f"close {self.number}")


class InstantBackend:
    """Counts events and NVTX ranges, and notes the order of calls. What a test does not expect is not there."""

    name, xp, priority_range = "instant", np, (0, -5)
    device = Device(name="instant", sm_count=1)
    lends_streams = False
    host_time_ns = glance_ns = staticmethod(time.perf_counter_ns)
    capabilities = green_capabilities((13, 0), (13, 0), None)

    def __init__(self):
        self.recorded, self.calls, self.selected = [], [], None
        self.made_count = self.released_count = 0
        self._pushes, self._pops, self._numbers = itertools.count(), itertools.count(), itertools.count(7)
        self.push_range = functools.partial(next, self._pushes)  # what is pushed stands for the default of next()
        self.pop_range = self._pops.__next__

    def count_open_nvtx(self):
        """Tell how many NVTX ranges are open, by what the two counters will give next."""
        pushed, popped = (int(repr(counter)[len("count(") : -1]) for counter in (self._pushes, self._pops))
        return pushed - popped

    def create_stream(self, *, priority):
        return InstantStream(self, next(self._numbers))

    def create_context(self, spec):
        raise AssertionError("this device cannot partition its SMs, and was asked for a green context")

    def probe_sms(self, streams):
        return [np.zeros(1, np.int64) for _ in streams]

    def select(self, stream):
        before, self.selected = self.selected, stream
        return (before,)

    def restore(self, token):
        (self.selected,) = token

    def acquire_event(self):
        self.made_count += 1
        return object()

    def release_events(self, events):
        self.released_count += len(tuple(events))

    def is_event_done(self, event):
        return True

    def synchronize(self):
        pass

    def host_to_clock_ns(self, host_ns):
        return host_ns

    def tick(self, now_ns):
        return now_ns + 1_000_000_000

    def resolve(self, starts, ends, queued_host_ns):
        return RangeTimes(queued_host_ns, queued_host_ns + 1, queued_host_ns)

    def clock_info(self):
        return ClockInfo(
            description="none", epoch_unix_ns=0, clock_error_ns=0, range_error_ns=0, range_correction_ns=0, host_error_ns=0
        )

    def annotation(self, name):
        return name

    def close(self):
        self.calls.append("close backend")
