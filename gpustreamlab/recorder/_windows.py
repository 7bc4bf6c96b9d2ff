"""When kernels were captured."""

from __future__ import annotations

from collections.abc import Callable

KEPT_WINDOWS = 10_000
"""Windows that are told apart; of more, the two oldest count as one."""


class CaptureWindows:
    """From when to when kernels were captured, on the backend's clock."""

    def __init__(self) -> None:
        self._closed: list[tuple[int, int]] = []
        self._open_ns: int | None = None

    @property
    def were_any(self) -> bool:
        """True if kernels are captured, or were."""
        return bool(self._closed) or self._open_ns is not None

    @property
    def is_open(self) -> bool:
        """True while kernels are captured."""
        return self._open_ns is not None

    def open(self, now_ns: int) -> None:
        """Note that kernels are captured from now on."""
        self._open_ns = now_ns

    def close(self, now_ns: int) -> None:
        """Note that they are not any more; nothing to do where they were not."""
        if self._open_ns is None:
            return
        self._closed.append((self._open_ns, max(self._open_ns, now_ns)))
        self._open_ns = None
        if len(self._closed) > KEPT_WINDOWS:
            self._closed[:2] = [(self._closed[0][0], self._closed[1][1])]

    def until(self, now_ns: Callable[[], int]) -> tuple[tuple[int, int], ...]:
        """Return all windows; one that is open ends now."""
        if self._open_ns is None:
            return tuple(self._closed)
        return (*self._closed, (self._open_ns, max(self._open_ns, now_ns())))

    def clear(self) -> None:
        """Forget those that are closed."""
        self._closed.clear()
