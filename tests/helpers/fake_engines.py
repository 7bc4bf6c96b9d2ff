"""Engines of a cluster in this process, which answer at once: to try what becomes of those that cannot, or do not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpustreamlab.cluster import _worker


class FakeAnswer:
    """An answer that is there, or never comes."""

    def __init__(self, call: Callable[[], Any] | None) -> None:
        self._value: Any = None
        self._error: Exception | None = None
        self._is_done = call is not None
        if call is not None:
            try:
                self._value = call()
            except Exception as error:
                self._error = error

    def result(self, timeout: float | None = None) -> Any:
        if not self._is_done:
            time.sleep(min(timeout or 0, 0.01))
            raise TimeoutError("no answer")
        if self._error is not None:
            raise self._error
        return self._value

    def done(self) -> bool:
        return self._is_done


class FakeEngines:
    """An adapter of engines 0, 1, ...

    Parameters
    ----------
    count
        How many there are.
    """

    def __init__(self, count: int) -> None:
        self.there = {f"key{number}": str(number) for number in range(count)}
        """What `engines` returns."""
        self.deaf: set[str] = set()
        """Names of engines that never answer."""
        self.facts: dict[str, dict[str, Any]] = {}
        """By name what an engine says of itself that is not so."""
        self.raises: dict[str, Exception] = {}
        """By name what every call raises."""
        self.clock_ns: Callable[[str], int] = lambda name: time.monotonic_ns()
        """Returns the time that an engine tells, by its name."""
        self.interrupted: list[str] = []
        """Names of those that were interrupted."""
        self.lost_answers = 0
        """So many answers to `read` are made, and never come."""
        self._homes: dict[str, _worker._Home] = {}
        self._lock = threading.RLock()

    def engines(self) -> Mapping[str, str]:
        return dict(self.there)

    def run(self, key: str, function: Callable[..., Any], *args: Any) -> FakeAnswer:
        name = key.removeprefix("key")
        if name in self.deaf or key not in self.there:
            return FakeAnswer(None)
        answer = FakeAnswer(lambda: self._call(key, name, function, args))
        if function is _worker.read and self.lost_answers > 0:
            self.lost_answers -= 1
            return FakeAnswer(None)
        return answer

    def aside(self, key: str, function: Callable[..., Any], *args: Any) -> FakeAnswer:
        name = key.removeprefix("key")
        if function is _worker.interrupt:
            self.interrupted.append(name)
            return FakeAnswer(lambda: None)
        if function is _worker.told_ns and name not in self.deaf:
            return FakeAnswer(lambda: self.clock_ns(name))
        return self.run(key, function, *args)

    def close(self) -> None:
        """Close the sessions that are left."""
        for home in self._homes.values():
            if home.session is not None:
                home.session.close()

    def home(self, name: str) -> Any:
        """Return what an engine has."""
        return self._homes[f"key{name}"]

    def session(self, name: str) -> Any:
        """Return the session of an engine."""
        return self.home(name).session

    def _call(self, key: str, name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if name in self.raises:
            raise self.raises[name]
        with self._lock:
            before, _worker._home = _worker._home, self._homes.setdefault(key, _worker._Home())
            try:
                told = function(*args)
            finally:
                _worker._home = before
        if isinstance(told, _worker.Facts):
            own = {"pid": int(key[3:].partition("#")[0]), "clock": name, "process": key}
            return told._replace(**own | self.facts.get(name, {}))
        return told
