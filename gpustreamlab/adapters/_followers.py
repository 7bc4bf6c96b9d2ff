"""What follows the selections of one session: the backend's own library, and those that have an adapter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from gpustreamlab.adapters import _registry
from gpustreamlab.adapters._known import is_loaded
from gpustreamlab.adapters._registry import Failure, Follower

_NOTHING: Final = object()

Followed: TypeAlias = "tuple[Any, Follower, Callable[[Any], None], object]"
"""A library that was selected for: those before it (another such tuple, or None), its adapter, the call that puts it back, and
what that call needs."""


class Selected:
    """What one selection has selected so far. Each step is noted by the statement that takes it, so none is lost."""

    backend_token: object = _NOTHING
    last: Followed | None = None


class Followers:
    """Selects for the backend first and for the libraries after it, and puts them back in reverse order.

    Parameters
    ----------
    select, restore
        The backend's own.
    ordinal
        The device's number.
    """

    def __init__(self, select: Callable[[Any], object], restore: Callable[[Any], None], ordinal: int) -> None:
        self.module_count = -1
        """How many modules were loaded as the libraries were looked for; -1 if one was being imported then."""
        self.active: tuple[Follower, ...] = ()
        """Adapters in use, in the order of their making."""
        self.ordinal = ordinal
        self.registry = _registry.registry
        self._select_backend, self._restore_backend = select, restore
        self._seen: set[str] = set()
        self._acquired: list[Follower] = []

    def look(self) -> list[str]:
        """Take the adapters of the libraries that have been imported since the last time; return what to warn the user of."""
        with self.registry.lock:
            count = len(sys.modules)
            is_ready = True
            for module in self.registry.sources:
                if module in self._seen or (loaded := sys.modules.get(module)) is None:
                    continue
                if is_loaded(loaded) and not self.registry.is_being_made(module, self.ordinal):
                    self._take(module)
                else:
                    is_ready = False
            self.module_count = count if is_ready else -1
            return self.registry.take_untold()

    def select(self, stream: Any) -> object:
        """Select a stream for the backend and each library of this thread; return what `restore` needs."""
        selected, follower = Selected(), None
        try:
            selected.backend_token = self._select_backend(stream)
            for follower in self.active:
                # No `try` inside this one: CPython 3.11 can be interrupted, uncaught, where an inner one begins.
                select, restore = follower.calls
                selected.last = (selected.last, follower, restore, select(stream))
            return selected
        except BaseException as error:
            if selected.backend_token is not _NOTHING:
                self.restore(selected)
            if follower is None or not isinstance(error, Exception):
                raise
            failure = Failure(follower, "select", error)
        self._drop([failure])
        return self.select(stream)  # without the one that failed

    def restore(self, token: Any) -> None:
        """Put everything back that `select` selected, the last first; doing it again changes nothing that is done."""
        if type(token) is not Selected:
            self._restore_backend(token)  # made before the first library followed
            return
        failures: list[Failure] | None = None
        try:
            while (last := token.last) is not None:
                try:
                    last[2](last[3])
                except Exception as error:  # noqa: BLE001 - the others are put back all the same
                    failures = [*(failures or ()), Failure(last[1], "restore", error)]
                token.last = last[0]
        finally:
            self._restore_backend(token.backend_token)
        if failures:
            self._drop(failures)

    def close(self) -> None:
        """Let the adapters go."""
        self.active = ()
        acquired, self._acquired = self._acquired, []
        self.registry.release(acquired)

    def _take(self, module: str) -> None:
        follower = self.registry.acquire(module, self.ordinal)
        if follower is not None:
            self._acquired.append(follower)
            self.active = (*self.active, follower)
        self._seen.add(module)

    def _drop(self, failures: list[Failure]) -> None:
        failed = [failure.follower for failure in failures]
        with self.registry.lock:  # another thread may be taking one
            self.active = tuple(follower for follower in self.active if follower not in failed)
        self.registry.tell(failures)
