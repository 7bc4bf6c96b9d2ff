"""Whether CUPTI's records have begun to go to another client.

Who registers callbacks for buffers gets all records from then on, and nobody tells the one before. Its sign is silence: anchors
that have run do not come back, and no buffer does. But a flush gives only buffers whose records are all complete (header of
``cuptiActivityFlushAll``), so a kernel that runs for long holds back what lies in the same buffer: before CUDA 13.0 that of the
whole process, since then that of the thread that launched it (``CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER``). Silence
alone therefore says little. With another client in sight a short one is enough; without any, a long one, and then everything
is asked for once more by a forced flush, which costs the records that are not complete, but never ends a capture for nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from gpustreamlab.backends.cuda._cupti import Cupti
from gpustreamlab.backends.cuda._cupti_clients import active_client, is_torch_profiling

LOST_TO_TORCH_NS = 500_000_000
"""How long it may be silent while torch.profiler runs, or after; one that watches the host alone takes nothing."""
LOST_AFTER_NS = 3_000_000_000
"""The same where another client has appeared since the capture began."""
LOST_UNSEEN_NS = 60_000_000_000
"""How long no anchor may come back where no other client is in sight; buffers may come meanwhile."""


class LossWatch:
    """Looks for signs of another client.

    Parameters
    ----------
    cupti
        The library.
    host_time_ns
        The host's clock of the backend.
    """

    def __init__(self, cupti: Cupti, host_time_ns: Callable[[], int]) -> None:
        self._cupti = cupti
        self._host_time_ns = host_time_ns
        self._torch_host_ns = -1
        self._buffer_host_ns = 0
        self._anchor_host_ns = 0
        self._next_look_ns = 0
        self._was_held = False
        self._is_client_near = False

    def begin(self) -> None:
        """Start anew: nothing was seen."""
        self._buffer_host_ns = self._anchor_host_ns = self._host_time_ns()
        self._torch_host_ns, self._next_look_ns = -1, 0
        self._was_held, self._is_client_near = self._cupti.is_held_by_another(), False

    @property
    def complete_until_host_ns(self) -> int:
        """When the newest anchor that has come back was launched, by the host's clock: what was before it has come too."""
        return self._anchor_host_ns

    def look_for_torch(self) -> bool:
        """Tell whether torch.profiler runs, or has run since the last sign of life; called often, as it may run shortly."""
        if is_torch_profiling():
            self._torch_host_ns = self._host_time_ns()
        return self._torch_host_ns >= max(self._buffer_host_ns, self._anchor_host_ns)

    def note_buffers(self, count: int) -> None:
        """Take how many buffers have come: another client would have got them."""
        if count:
            self._buffer_host_ns = self._host_time_ns()

    def note_anchors(self, newest_host_ns: int) -> None:
        """Take when the newest anchor that has come back was launched."""
        self._anchor_host_ns = max(self._anchor_host_ns, newest_host_ns)

    def find(self, oldest_waiting_host_ns: int | None) -> str:
        """Say who has taken CUPTI over; empty where nobody is known to have. Of anchors that have run, the oldest counts."""
        if oldest_waiting_host_ns is None:
            return ""
        silent_ns = self._host_time_ns() - max(oldest_waiting_host_ns, self._anchor_host_ns, self._buffer_host_ns)
        if silent_ns >= LOST_TO_TORCH_NS and self.look_for_torch():
            return "torch.profiler"
        if silent_ns >= LOST_AFTER_NS and self._is_another_near():
            return "torch.profiler" if "torch" in sys.modules else "another profiler"
        return ""

    def is_overdue(self, oldest_waiting_host_ns: int | None) -> bool:
        """Tell whether no anchor has come back for so long that everything should be asked for, by a forced flush."""
        if oldest_waiting_host_ns is None:
            return False
        return self._host_time_ns() - max(oldest_waiting_host_ns, self._anchor_host_ns) >= LOST_UNSEEN_NS

    def _is_another_near(self) -> bool:
        """Tell whether another client has appeared since the begin; asked for now and then, as it means to try its place."""
        now_ns = self._host_time_ns()
        if now_ns >= self._next_look_ns:
            self._next_look_ns = now_ns + LOST_AFTER_NS
            is_held_anew = not self._was_held and self._cupti.is_held_by_another()
            self._is_client_near = is_held_anew or bool(active_client(self._cupti))
        return self._is_client_near
