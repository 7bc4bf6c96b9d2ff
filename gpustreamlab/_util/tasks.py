"""Coroutines and generators that keep their own selections: each step is taken inside them, and between steps they are left.

What a library has selected belongs to a thread, and all tasks of an event loop share one. So whoever drives a coroutine has to
select before each step and put back after it: contextvars cannot tell when a task is switched.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import types
import weakref
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeAlias, TypeVar, cast

from gpustreamlab.errors import OptionError, SessionError

_log = logging.getLogger(__name__)


_Function = TypeVar("_Function", bound=Callable[..., Any])


Parked: TypeAlias = Any
"""A selection or a range that is left after a step: ``resume()`` enters it again with the next, ``abandon()`` does not."""
Steerable: TypeAlias = Any
"""What is selected in each thread of one session: a `gpustreamlab.streams.selection.Selections`, which is above this module."""


known: weakref.WeakValueDictionary[int, Steerable] = weakref.WeakValueDictionary()
"""What sessions have selected, by its `id`: tasks keep that."""


class Steered(Coroutine[Any, Any, Any]):
    """A coroutine or generator whose steps are taken inside its own selections.

    What it has entered and not left when it suspends is left in order, and entered again with its next step, in whatever
    thread that is. So each step has ranges of its own. A stream closed meanwhile is told at the ``await`` or ``yield``.
    """

    __slots__ = ("_base", "_failure", "_goes_on", "_is_running", "_parked", "inner")

    def __init__(self, inner: Any, base: Parked | None = None, *, goes_on: tuple[type[BaseException], ...] = ()) -> None:
        self.inner = inner
        """What is driven; another one after it has ended in one of `goes_on`."""
        self._base = base
        self._goes_on = goes_on
        self._parked: list[Parked] = [] if base is None else [base]
        self._failure: BaseException | None = None  # of leaving something; told at the next step
        self._is_running = False

    def __getattr__(self, name: str) -> Any:
        # Name, code and frame, by which asyncio and debuggers show what it is: those of what is driven.
        return getattr(self.inner, name)

    def __await__(self) -> Generator[Any, Any, Any]:
        return cast("Generator[Any, Any, Any]", self)

    def __iter__(self) -> Steered:
        return self

    def __next__(self) -> Any:
        return self._step("send", (None,))

    def send(self, value: Any) -> Any:
        """Take the next step."""
        return self._step("send", (value,))

    def throw(self, *error: Any) -> Any:
        """Take the next step by raising where it stands."""
        return self._step("throw", error)

    def close(self) -> None:
        """End it where it stands."""
        self._step("close", ())

    def _step(self, method: str, args: tuple[Any, ...]) -> Any:
        inner = self.inner
        if self._is_running:
            return getattr(inner, method)(*args)  # which says that it is running already
        self._is_running = True
        try:
            for steerable in _all_known():
                steerable.begin_step()
            method, args = self._resume(method, args)
            try:
                value = getattr(inner, method)(*args)
            except self._goes_on:
                self._park()
                raise
            except BaseException as error:
                self._leave_base(None if isinstance(error, StopIteration) else error)
                raise
            if method == "close":
                self._leave_base(None)
            else:
                self._park()
            return value
        finally:
            self._is_running = False
            for steerable in _all_known():
                steerable.end_step()

    def _resume(self, method: str, args: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
        """Enter again what was parked; return how to go on, which is to raise what failed."""
        parked, self._parked = self._parked, []
        failure, self._failure = self._failure, None
        for place, item in enumerate(parked):
            if failure is None:
                try:
                    item.resume()
                except BaseException as error:  # noqa: BLE001 - raised in the task
                    failure = error
            if failure is not None:
                parked[place].abandon()
        if failure is None:
            return method, args
        if method == "send":
            return "throw", (failure,)
        # What is thrown into the task matters more; and it must be able to clean up after its session was closed.
        if not isinstance(failure, SessionError):
            _log.warning("A task ends without what it had selected: %s", failure)
        return method, args

    def _park(self) -> None:
        for steerable in _all_known():
            failure = steerable.park(self._parked)
            self._failure = self._failure or failure
        self._parked.reverse()
        if self._failure is not None and not isinstance(self._failure, Exception):
            failure, self._failure = self._failure, None
            raise failure  # an interrupt

    def _leave_base(self, error: BaseException | None) -> None:
        self._parked = []
        if self._base is not None:
            self._base.__exit__(None if error is None else type(error), error, None)


def steered_function(function: _Function, select: Callable[[], Parked]) -> _Function:
    """Return a function that works inside a selection; see `gpustreamlab.streams.selection.Selection.__call__`."""
    _check_function(function)
    shape = function if inspect.isroutine(inspect.unwrap(function)) else getattr(function, "__call__", function)  # noqa: B004
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(shape):
        return cast(_Function, _steered_coroutine_function(function, select))
    if inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(shape):
        return cast(_Function, _steered_async_generator_function(function, select))
    if inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(shape):
        return cast(_Function, _steered_generator_function(function, select))
    return cast(_Function, _selecting_function(function, select))


def close_later_work(made: object) -> bool:
    """Tell whether a call has made a coroutine or generator instead of working; such a one is closed."""
    if isinstance(made, (types.CoroutineType, types.GeneratorType, Steered)):
        made.close()
        return True
    return isinstance(made, types.AsyncGeneratorType)  # one that was never started needs no closing


def _check_function(function: object) -> None:
    if not callable(function) or isinstance(function, type):
        raise OptionError(
            f"lab.on(...) cannot decorate {function!r:.80}: it takes a function, a coroutine function or a generator function. "
            "Put it below @classmethod and @property; around a block, use it in a `with` statement."
        )


def _selecting_function(function: Callable[..., Any], select: Callable[[], Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        with select():
            made = function(*args, **options)
        # Other decorators hide that a function makes a coroutine.
        return Steered(made, select()) if inspect.iscoroutine(made) else made

    return call


# What follows are real coroutine and generator functions, so that every framework takes them as such.


def _steered_coroutine_function(function: Callable[..., Any], select: Callable[[], Parked]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **options: Any) -> Any:
        return await Steered(function(*args, **options), select())

    return call


def _steered_generator_function(function: Callable[..., Any], select: Callable[[], Parked]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        return (yield from Steered(function(*args, **options), select()))

    return call


def _steered_async_generator_function(function: Callable[..., Any], select: Callable[[], Parked]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **options: Any) -> Any:
        generator = function(*args, **options)
        steered = Steered(generator.asend(None), select(), goes_on=(StopIteration,))
        while True:
            try:
                value = await steered
            except StopAsyncIteration:
                return
            try:
                sent = yield value
            except GeneratorExit:
                steered.inner = generator.aclose()
                await steered
                raise
            except BaseException as error:  # noqa: BLE001 - raised in the generator
                steered.inner = generator.athrow(error)
            else:
                steered.inner = generator.asend(sent)

    return call


def _all_known() -> list[Steerable]:
    return [steerable for reference in known.valuerefs() if (steerable := reference()) is not None]


class LoopWatch:
    """Counts how often the event loop of a thread came round while it was watched; one callback waits at a time."""

    __slots__ = ("round_count", "waits_in")

    def __init__(self) -> None:
        self.round_count = 0
        """Differs between two moments of one thread only if its loop ran in between."""
        self.waits_in: object = None
        """The loop whose next round will be counted. One that is stopped before that never comes round."""

    def start(self, loop: Any) -> None:
        """Count the next round of a loop; for one that is not `waits_in`."""
        self.waits_in = loop
        loop.call_soon(self._count)

    def _count(self) -> None:
        self.round_count += 1
        self.waits_in = None


def loop_finder() -> Callable[[], object] | None:
    """Return asyncio's own function that finds the loop running in a thread, or None; None while asyncio is not loaded."""
    found: Callable[[], object] | None = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    return found
