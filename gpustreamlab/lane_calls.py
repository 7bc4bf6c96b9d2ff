"""Call a function with a lane selected, and keep what it needs until its work is done."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from gpustreamlab.errors import GPUStreamLabError, OptionError, SelectionWarning
from gpustreamlab.lifetimes import Keeper, KeptStream, LaneSelection
from gpustreamlab.tasks import close_later_work, works_later

__all__ = ["call_on"]

T = TypeVar("T")
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type)
"""Arguments of a call that own no device memory."""


def call_on(
    keeper: Keeper,
    selection: LaneSelection,
    call: Callable[..., T],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    *,
    hold: Iterable[object],
) -> T:
    """Call a function with a lane, selected; keep what it was given and returned until its work is done."""
    name = selection.stream.name
    _check_call(call, name)
    held = [*args, *kwargs.values(), *_check_held(hold)]
    with selection as lane:
        try:
            result = call(lane, *args, **kwargs)
            _check_result(call, result, name)
            held.append(result)
        except BaseException as error:
            _hold_after_error(keeper, lane, held, error)
            raise
        keeper.hold(lane, _worth_keeping(held))
    return result


def _check_held(hold: object) -> Iterable[object]:
    """Return objects to hold; raise `OptionError` for what is one object, or would be taken apart."""
    is_taken_apart = isinstance(hold, (str, bytes, Mapping)) or hasattr(hold, "shape")
    if is_taken_apart or not isinstance(hold, Iterable):
        raise OptionError(f"hold= takes several objects, not one {type(hold).__name__}. Put it into a list: hold=[x].")
    return hold


def _check_call(call: object, lane_name: str) -> None:
    if not callable(call):
        raise OptionError(
            f"lab.run_on calls a function, and {call!r:.80} is none. Use: lab.run_on({lane_name!r}, function, *arguments)."
        )
    if works_later(call):
        raise OptionError(f"{_made_later(call, lane_name)} It was not called.")


def _check_result(call: object, result: object, lane_name: str) -> None:
    """Refuse what a call has made instead of working; warn of what will work later, without the lane."""
    if close_later_work(result):
        raise OptionError(f"{_made_later(call, lane_name)} What it made is closed.")
    if hasattr(type(result), "__await__"):
        warnings.warn(
            f"{_name_of(call)} in lab.run_on({lane_name!r}, ...) gave a {type(result).__name__}: what is awaited there runs "
            f"later, without the lane. Decorate the coroutine that enqueues: @lab.on({lane_name!r}).",
            SelectionWarning,
            stacklevel=4,
        )


def _made_later(call: object, lane_name: str) -> str:
    return (
        f"lab.run_on({lane_name!r}, {_name_of(call)}) makes a coroutine or generator, whose body would run later, with nothing "
        f"selected. Decorate the function, and call it yourself: @lab.on({lane_name!r}) selects the lane in each of its steps."
    )


def _name_of(call: object) -> str:
    return getattr(call, "__qualname__", None) or repr(call)[:80]


def _hold_after_error(keeper: Keeper, lane: KeptStream, held: list[object], error: BaseException) -> None:
    """Keep the arguments of a call that has failed: it may have enqueued work before."""
    try:
        if not lane.is_closed:
            keeper.hold(lane, _worth_keeping(held))
    except GPUStreamLabError as failure:
        error.add_note(f"What the call was given is not held until its work is done: {failure}")


def _worth_keeping(objects: Iterable[object]) -> tuple[object, ...]:
    return tuple(one for one in objects if not isinstance(one, _PLAIN))
