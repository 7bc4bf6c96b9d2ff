"""The two locks of a session; see docs/explanations/decisions/0018-locks.md."""

from __future__ import annotations

import threading

__all__ = ["SessionLocks"]


class SessionLocks:
    """Who moves streams, and who changes what the session knows. Who needs both takes `moves` first.

    Both are re-entrant: a finaliser or a signal handler may come in the middle of what they guard.
    """

    __slots__ = ("moves", "state")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Make both anew: in a forked child, a thread that is not in this process may hold the others."""
        self.moves = threading.RLock()
        """Held by one repartition, move, proof, eviction or closing of the session at a time, also while it waits."""
        self.state = threading.RLock()
        """Held where streams are made, marked as closed and settled, and never while anybody waits for the device."""
