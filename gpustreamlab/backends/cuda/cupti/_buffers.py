"""The buffers that CUPTI fills: pooled, bounded, and taken back as they are.

CUPTI asks for an empty buffer in the thread of the user's call and hands full ones over in a thread of its own. Both only move
a buffer from one list to another; reading happens later, elsewhere. That is done without Python (`NativePool`): CUPTI may hold
a lock of its own while it calls, and a thread that enters CUDA with the interpreter's lock held waits for that one, so a
callback that waits for the interpreter may wait for ever.
"""

from __future__ import annotations

import logging

from gpustreamlab.backends.cuda._idle import keep_for_good
from gpustreamlab.backends.cuda.cupti._library import Cupti
from gpustreamlab.backends.cuda.cupti._native_callbacks import FilledBuffer, NativePool
from gpustreamlab.errors import CaptureUnavailableError

_log = logging.getLogger(__name__)


BUFFER_BYTES = 1 << 20
"""Size of a buffer: 4,800 kernels."""
BUFFER_LIMIT = 256
"""Buffers that exist at most: 256 MiB, 1.2 million kernels that nobody has fetched. More records are dropped and counted."""

_ALIGNMENT = 64


class ActivityBuffers:
    """The buffers of this process.

    Parameters
    ----------
    buffer_bytes, buffer_limit
        Size of each, and how many exist at most.
    """

    def __init__(self, *, buffer_bytes: int = BUFFER_BYTES, buffer_limit: int = BUFFER_LIMIT) -> None:
        self.buffer_bytes = buffer_bytes
        self.buffer_limit = buffer_limit
        try:
            self._pool = NativePool(buffer_bytes=buffer_bytes, buffer_limit=buffer_limit)
        except OSError as error:
            # Callbacks in Python would do, but for ever wait where a thread enters CUDA with the interpreter's lock held.
            raise CaptureUnavailableError(
                f"CUPTI's callbacks cannot be made on this machine, so kernels are not seen. {error}"
            ) from error

    def register(self, cupti: Cupti) -> None:
        """Let CUPTI use these buffers."""
        # CUPTI calls these until the process ends, even while the interpreter is taken down: this reference is never dropped.
        keep_for_good(self._pool)
        cupti.require("cuptiActivityRegisterCallbacks", self._pool.request, self._pool.complete)

    @property
    def refused_count(self) -> int:
        """How often CUPTI got none because all were in use."""
        return self._pool.refused_count

    @property
    def full_bytes(self) -> int:
        """Bytes in buffers that wait to be taken."""
        return self._pool.full_count * self.buffer_bytes

    def take(self) -> list[FilledBuffer]:
        """Return what was filled since the last time."""
        return self._pool.take()

    def give_back(self, ticket: int) -> None:
        """Let a buffer be filled again."""
        self._pool.give_back(ticket)
