"""A fake device whose context is lost, as after an illegal address: from then on every call fails."""

from __future__ import annotations

from gpustreamlab.errors import StickyDeviceError
from tests.helpers.instant_backend import InstantBackend, InstantStream


class LostBackend(InstantBackend):
    """Events happen when a test says so; after `lose` every call fails."""

    def __init__(self):
        super().__init__()
        self.is_lost = self.is_held = False
        self.held = set()

    def lose(self):
        """Let every later call fail."""
        self.is_lost = True

    def fail_if_lost(self, doing):
        if self.is_lost:
            raise StickyDeviceError(f"{doing} failed: CUDA_ERROR_ILLEGAL_ADDRESS.", driver_code="ILLEGAL_ADDRESS")

    def create_stream(self, *, priority):
        self.fail_if_lost("Creating a stream")
        return LostStream(self, next(self._numbers))

    def acquire_event(self):
        self.fail_if_lost("Creating an event")
        return super().acquire_event()

    def is_event_done(self, event):
        self.fail_if_lost("Asking whether an event has happened")
        return id(event) not in self.held

    def synchronize(self):
        self.fail_if_lost("Waiting for CUDA device 0")

    def synchronize_event(self, event):
        self.fail_if_lost("Waiting for an event")

    def map_error(self, error, doing):
        return StickyDeviceError(f"{doing} failed: {error}", driver_code="ILLEGAL_ADDRESS")

    def close(self):
        super().close()
        self.fail_if_lost("Closing CUDA device 0")


class LostStream(InstantStream):
    """A stream of a `LostBackend`."""

    def __init__(self, backend, number):
        super().__init__(backend, number)
        self.record, self.record_raw = self._record, self._record_raw

    def _record_raw(self, event):
        if self.backend.is_lost:
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")  # the driver's own: nothing stands between on the hot path
        if self.backend.is_held:
            self.backend.held.add(id(event))
        self.backend.recorded.append(event)

    def _record(self, event):
        self.backend.fail_if_lost("Recording an event")
        self._record_raw(event)

    def query(self):
        self.backend.fail_if_lost("Asking a stream")
        return True

    def synchronize(self):
        super().synchronize()
        self.backend.fail_if_lost("Waiting for a stream")

    def close(self):
        super().close()
        self.backend.fail_if_lost("Closing a stream")
