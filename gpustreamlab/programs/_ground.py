"""What a program stands on: the session that runs it, and what it was planned as."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gpustreamlab.backends import Backend, BackendStream
from gpustreamlab.errors import GPUStreamLabError
from gpustreamlab.memory.hazards import AccessWatch
from gpustreamlab.model import Device, Trace
from gpustreamlab.programs._code import Code
from gpustreamlab.programs._source import Source

_NOTHING: Mapping[str, object] = {}


class Lab(Protocol):
    """A session, as programs use it."""

    def on(self, stream: str, label: str | None = None) -> AbstractContextManager[Any]: ...

    def select(self, stream: str) -> AbstractContextManager[Any]: ...

    def stream(self, name: str, *, partition: str | None = ...) -> Any: ...

    def synchronize(self) -> None: ...

    @property
    def trace(self) -> Trace: ...

    @property
    def device(self) -> Device: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Where programs run."""

    lab: Lab
    """The session."""
    backend: Backend
    """Its device."""
    accesses: AccessWatch
    """What follows accesses in it."""
    make_watch: Callable[[], AccessWatch]
    """Makes another one that follows them, for a session that does not."""
    place_of: Callable[[str], BackendStream]
    """Returns the device's stream behind one of the session's, by its name."""
    name_graph: Callable[[int, Sequence[tuple[int, str]]], object]
    """Says which nodes of a graph, from which on, are of which statement."""
    same_selection: Callable[[], AbstractContextManager[None]]
    """Makes a ``with`` block behind which what is selected in this thread is what was selected before it."""
    require_stream: Callable[[str], object]
    """Raises where the session has no stream of a name."""

    @contextmanager
    def watching(self) -> Iterator[AccessWatch]:
        """Follow accesses in a ``with`` block: by the session's own watch, or one for the time being."""
        if self.accesses.is_watching:
            yield self.accesses
            return
        made = self.make_watch()
        try:
            yield made
        finally:
            made.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """A program: statements, and the variables that they look up."""

    ground: Ground
    """Where it runs."""
    source: Source
    """The statements."""
    look_up: Callable[[], dict[str, Any]]
    """Returns the variables as they are now: the user's own namespace, or a copy of what the caller sees."""
    is_own: bool
    """Whether that is the namespace that the user gave, which running changes in place."""
    session_name: str
    """The variable through which its code calls the session."""

    @property
    def values(self) -> dict[str, Any]:
        """The variables as they are now."""
        return self.look_up()

    def execute(self, code: Code, values: dict[str, Any], given: Mapping[str, object] = _NOTHING) -> dict[str, Any]:
        """Run code of it on variables, which it changes; those that only the plan needs, and that are given, are put back."""
        __tracebackhide__ = True
        compiled = code.compile(self.source.filename, self.source.flags)
        with self.running(values, {**dict.fromkeys(code.variables), **given}):
            try:
                exec(compiled, values)  # noqa: S102 - the user's program
            except BaseException:
                self._join(code.streams)
                raise
        return values

    @contextmanager
    def running(self, values: dict[str, Any], given: Mapping[str, object]) -> Iterator[None]:
        """Let variables be such as a program's code needs: the session, and what is given; at the end they are put back."""
        had = {name: values[name] for name in (*given, self.session_name, "__builtins__") if name in values}
        needed = {name: value for name, value in given.items() if value is not None}
        for name, value in (needed | {self.session_name: self.ground.lab}).items():
            values[name] = value  # noqa: PERF403 - a function's variables take note of it
        try:
            yield
        finally:
            for name in (*given, self.session_name, "__builtins__"):
                if name in had:
                    values[name] = had[name]
                elif name in values:
                    del values[name]

    def _join(self, streams: Sequence[str]) -> None:
        """Let the first stream wait for the others, as the program would have at its end: what they read may go now."""
        with suppress(GPUStreamLabError):
            for name in streams[1:]:
                self.ground.lab.stream(streams[0]).wait(name)


@contextmanager
def kept_random_state(backend: Backend) -> Iterator[None]:
    """Put the global generators back at the end of a ``with`` block: Python's, NumPy's, the array module's and torch's.

    A generator that a variable holds is copied with the program's other inputs.
    """
    plain, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 - the user's may be this one
    torch: Any = sys.modules.get("torch")
    torch_state = None if torch is None else torch.get_rng_state()
    device_states = torch.cuda.get_rng_state_all() if torch is not None and torch.cuda.is_initialized() else None
    try:
        with backend.keeping_random_state():
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(numpy_state)  # noqa: NPY002 - likewise
        if torch is not None:
            torch.set_rng_state(torch_state)
        if device_states is not None:
            torch.cuda.set_rng_state_all(device_states)
