"""Arguments of a Numba launch that lie on the host: copied to the device before it and back behind it, on the lane.

Numba does this itself on its default stream. On any other, numba-cuda 0.30.4 fails with NumPy arrays ("NumPy only supports
stream=None"), so they are replaced before it sees them. Its warning that such copies cost time is not given then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np


class _Copy(NamedTuple):
    """One array to be copied back."""

    device: Any
    """Numba's array on the device."""
    landing: Any
    """Where on the host it is copied to, contiguous."""
    host: Any
    """The user's array."""


class HostArrays:
    """The host's arrays of one launch.

    Parameters
    ----------
    cuda
        The module ``numba.cuda``.
    stream
        Numba's stream object.
    """

    def __init__(self, cuda: Any, stream: Any) -> None:
        self._cuda = cuda
        self._stream = stream
        self._copies: list[_Copy] = []

    def to_device(self, args: Iterable[Any]) -> tuple[Any, ...]:
        """Return the arguments with arrays on the device in place of those on the host; the copies are enqueued."""
        return tuple(self._replace(value) for value in args)

    def copy_back(self) -> None:
        """Copy back what the kernel may have written, and wait for it. Other things that it may have written come too."""
        for copy in self._copies:
            copy.device.copy_to_host(copy.landing, stream=self._stream)
        self._stream.synchronize()
        for copy in self._copies:
            if copy.landing is not copy.host:
                copy.host[...] = copy.landing

    def _replace(self, value: Any) -> Any:
        if isinstance(value, tuple):
            parts = [self._replace(part) for part in value]
            if all(new is old for new, old in zip(parts, value, strict=True)):
                return value
            return value._make(parts) if hasattr(value, "_make") else tuple(parts)
        is_hint = self._is(value, "In") or self._is(value, "Out") or self._is(value, "InOut")
        host = value.value if is_hint else value
        if not isinstance(host, np.ndarray) or hasattr(host, "__cuda_memory__"):  # mapped and managed arrays are on both sides
            return value
        landing = host if host.flags.forc else host.copy()
        device = self._cuda.to_device(landing, stream=self._stream, copy=not self._is(value, "Out") or self._is(value, "InOut"))
        if host.flags.writeable and not self._is(value, "In"):
            self._copies.append(_Copy(device, landing, host))
        return device

    def _is(self, value: Any, hint: str) -> bool:
        """Tell whether a value is wrapped in a hint of Numba; ``InOut`` may be an ``Out`` too."""
        return isinstance(value, getattr(self._cuda, hint, ()))
