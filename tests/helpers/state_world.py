"""The state that random programs change: a module of the user's, run anew for each starting state; see `random_state`."""

from __future__ import annotations

import array
import collections
import contextlib
import contextvars
import dataclasses
import functools
import io
import itertools
import queue
import random
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

lab: Any = globals()["lab"]
"""The session: put here before this module runs."""
xp = lab.xp
SIZE = 24
xs = [xp.asarray(np.linspace(-1.0, 1.0, SIZE) + number) for number in range(4)]
"""Arrays that statements choose from by state."""
wide = xp.asarray(np.arange(2.0 * SIZE) * 0.1)
left, right, middle = wide[:SIZE], wide[SIZE:], wide[SIZE // 2 : SIZE // 2 + SIZE]
host = np.zeros(4)
log: list[Any] = []
"""What functions and methods of this module did, in its order."""
turn = 0
"""Bumped by functions, and read directly."""
current = xs[0]
"""Bound to another array by `rotate`."""


def bump(step: int = 1) -> int:
    """Count in a global variable."""
    global turn  # noqa: PLW0603 - the state that it is about
    turn += step
    return turn


def rotate() -> Any:
    """Bind a global variable to another array."""
    global current  # noqa: PLW0603 - likewise
    current = xs[bump() % 4]
    return current


def tick() -> int:
    """Count where nobody who looks at variables sees it."""
    raw[0] = (raw[0] + 1) % 200
    return raw[0]


@contextlib.contextmanager
def ticking() -> Iterator[Any]:
    """Count at the beginning and at the end of a block."""
    try:
        yield xs[tick() % 4]
    except ValueError:
        written.write("swallowed ")
    finally:
        tick()


def damp(x: Any, factor: float = 0.5) -> Any:
    """Change an array in place."""
    x *= factor
    return x


def keep(x: Any, kept: list[Any] = []) -> Any:  # noqa: B006 - that is what it is for
    """Keep arrays in a mutable default; give back the one before."""
    kept.append(x)
    return kept[-2 if len(kept) > 1 else 0]


def make_counter(start: int = 0) -> Callable[[], int]:
    """Return a closure that counts."""
    count = start

    def counted() -> int:
        nonlocal count
        count += 1
        log.append(str(count))
        return count

    return counted


def make_chooser(arrays: list[Any]) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Return closures over one hidden array: one gives it, the other puts another one there."""
    hidden = arrays[0]
    place = itertools.count(1)

    def give() -> Any:
        return hidden

    def change(x: Any = None) -> None:
        nonlocal hidden
        hidden = arrays[next(place) % len(arrays)] if x is None else x

    return give, change


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """Log each call of a function."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        log.append(function.__name__)
        return function(*args, **kwargs)

    return wrapper


@functools.lru_cache(maxsize=3)
def cached(number: int) -> Any:
    """Give an array, which depends on what was asked before."""
    log.append(("cached", number))
    return xs[len(log) % 4]


@functools.lru_cache(maxsize=2)
def rarely(number: int) -> Any:
    """Give an array that depends on what the cache has forgotten."""
    return xs[(tick() + number) % 4]


def chosen(number: int) -> Callable[[], Any]:
    """Return one of two functions that give other arrays."""
    return (lambda: xs[number % 2]) if number % 2 else (lambda: middle)


def turns() -> Iterator[Any]:
    """Yield arrays for ever, each doubled in place."""
    for number in itertools.count(1):
        x = xs[number % 4]
        x *= 0.5
        yield x


@contextlib.contextmanager
def noted(name: str) -> Iterator[Any]:
    """Log the beginning and the end of a block."""
    log.append(f"{name} begins")
    try:
        yield xs[bump() % 4]
    except ValueError as error:
        log.append(f"{name} swallows {error}")
    finally:
        log.append(f"{name} ends")


class Turn:
    """Counts in a class attribute, and holds arrays in others."""

    count = 0
    array = left
    held: ClassVar[collections.deque[Any]] = collections.deque(xs[:3], maxlen=4)

    @classmethod
    def advance(cls) -> int:
        """Count, and hold another array."""
        cls.count += 1
        cls.array = (left, right, middle)[cls.count % 3]
        return cls.count


class Box:
    """Has properties and methods with side effects."""

    def __init__(self, x: Any) -> None:
        self.x = x
        self.asked = 0

    @property
    def values(self) -> Any:
        """Give an array that depends on how often it was asked for."""
        self.asked += 1
        log.append(("values", self.asked))
        return self.x if self.asked % 3 else xs[self.asked % 4]

    @values.setter
    def values(self, x: Any) -> None:
        log.append("set")
        self.x = x

    def __getitem__(self, number: int) -> Any:
        log.append(("item", number))
        self.asked += number
        return xs[self.asked % 4]

    def __iadd__(self, other: Any) -> Box:
        self.asked += 1
        self.x += other
        return self

    def __call__(self, x: Any) -> Any:
        self.asked += 1
        self.x = x
        return x * 2.0

    def __enter__(self) -> Any:
        self.asked += 1
        return self.x

    def __exit__(self, *error: object) -> bool:
        log.append(error[0] is not None)
        return self.asked % 2 == 0

    def __eq__(self, other: object) -> bool:
        log.append("compared")
        return isinstance(other, Box) and self.x is other.x

    def __hash__(self) -> int:
        log.append("hashed")
        return 7

    def __getattr__(self, name: str) -> Any:
        log.append(("missing", name))
        raise AttributeError(name)


class Slotted:
    """Has slots, one of them unset, and counts what it is asked for."""

    __slots__ = ("number", "unset", "x")

    def __init__(self, x: Any) -> None:
        self.x = x
        self.number = 0

    def __next__(self) -> Any:
        self.number += 1
        return self.x if self.number % 2 else xs[self.number % 4]

    def __iter__(self) -> Slotted:
        return self

    def __getattr__(self, name: str) -> Any:
        log.append(("unset", name))
        raise AttributeError(name)


class Only:
    """There is only one of it."""

    one: Only | None = None
    x: Any
    number: int

    def __new__(cls) -> Only:
        """Return the one."""
        if cls.one is None:
            cls.one = super().__new__(cls)
            cls.one.x, cls.one.number = xs[1], 0
        cls.one.number += 1
        return cls.one


@dataclasses.dataclass(frozen=True)
class Frozen:
    """Cannot be changed, but its array can."""

    x: Any
    number: int = 0


class OddError(Exception):
    """Raised half way."""


box, slotted, frozen = Box(xs[2]), Slotted(xs[3]), Frozen(xs[0])
count_up = make_counter()
give, change = make_chooser(xs[:4])
table: dict[Any, Any] = {"k": xs[1], 0: xs[0], 1: xs[2], 2: left, 3: right}
names = {"a", "b"}
shelf = collections.deque(xs[:4])
default: collections.defaultdict[str, list[Any]] = collections.defaultdict(list)
nested = {"deep": [{"x": xs[3]}, (xs[0], [xs[1]])]}
alias = nested["deep"]
simple = types.SimpleNamespace(x=xs[2], number=0)
order, circle, pairs = itertools.count(), itertools.cycle(xs[:4]), zip(itertools.cycle(xs[:3]), itertools.count(), strict=False)
going, mapped = turns(), map(damp, itertools.cycle([left, right]))
text = io.StringIO("".join(f"{number % 4}\n" for number in range(400)))
waiting: queue.Queue[Any] = queue.Queue()
for _number in range(60):
    waiting.put(xs[_number * 3 % 4])
few: queue.SimpleQueue[Any] = queue.SimpleQueue()
for _x in 20 * xs:
    few.put(_x)
objects = np.empty(3, object)
for _number, _x in enumerate((xs[0], xs[2], left)):
    objects[_number] = _x
var: contextvars.ContextVar[int] = contextvars.ContextVar("var", default=1)
lock = threading.RLock()
packed = array.array("l", [0])
here, ordered = threading.local(), collections.OrderedDict(enumerate(xs))
here.number = 0
raw, written, told = bytearray(4), io.StringIO(), list[Any]()
numpy_random, python_random = np.random.default_rng(5), random.Random(5)
device_random = xp.random.default_rng(5)
halve = functools.partial(damp, factor=0.25)
