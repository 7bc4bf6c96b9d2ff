"""Random programs of array statements: each is right on one stream, whatever streams its statements are given."""

from __future__ import annotations

import random
from collections.abc import Iterator
from textwrap import indent
from typing import Any, NamedTuple

import numpy as np

ROWS, COLUMNS = 4, 6
SIZE = ROWS * COLUMNS
"""Elements of each array that has no other shape."""
RESULT = "result"
"""Where a plan puts the value of a last expression; text that is executed puts it nowhere."""
STREAMS = ("plan-1", "plan-2", "plan-3", "plan-4")
MOST_STATEMENTS = 14


class Box:
    """An object of the user's, with arrays as attributes."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def double(self) -> None:
        """Change the array in place."""
        self.values *= 2.0

    def replaced(self, values: Any) -> Any:
        """Give back the array that it had."""
        old, self.values = self.values, values
        return old


def damp(x: Any, factor: float = 0.5) -> None:
    """Change an array in place."""
    x *= factor


def blend(x: Any, y: Any) -> Any:
    """Make an array of two."""
    return x * 0.5 + y * 0.25


def exchange(x: Any, y: Any) -> tuple[Any, Any]:
    """Give back the arrays as they are, the other way round."""
    return y, x


def halves(x: Any) -> Iterator[Any]:
    """Yield views."""
    yield x[: SIZE // 2]
    yield x[SIZE // 2 :]


class RandomProgram(NamedTuple):
    """A program, and how many streams it is planned onto."""

    text: str
    streams: tuple[str, ...]

    def inputs(self, lab: Any) -> dict[str, Any]:
        """Return variables to run it on; two of the arrays share memory."""
        xp = lab.xp
        a = xp.asarray(np.linspace(-1.0, 1.0, SIZE))
        host = lab.memory.pinned_empty(SIZE)
        host[:] = np.linspace(0.0, 2.0, SIZE)
        values = {
            "a": a,
            "b": xp.asarray(np.cos(np.arange(SIZE))),
            "c": a[4:16],
            "m": xp.asarray(np.linspace(0.5, 1.5, SIZE).reshape(ROWS, COLUMNS)),
            "items": [xp.asarray(np.sin(np.arange(SIZE))), a],
            "table": {"k": xp.asarray(np.arange(SIZE) * 0.1)},
            "box": Box(xp.asarray(np.arange(SIZE) * -0.1)),
            "host": host,
            "chosen": xp.asarray(np.array([0, 3, 5, 11, 17])),
        }
        return values | {"xp": xp, "lab": lab, "damp": damp, "blend": blend, "exchange": exchange, "halves": halves}


class _Writer:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.arrays = ["a", "b"]
        self.parts = ["c"]
        self.made = 0
        self.bound: list[str] = []
        """Names that the statement being written binds: those behind it may look them up."""

    def write(self) -> RandomProgram:
        dice = self.dice
        count = dice.choice((1, 2, 2, 3, 4, 4))
        streams = STREAMS[:count]
        rate = dice.choice((0.0, 0.4, 1.0, 1.0))
        blocks: list[str] = []
        for _ in range(dice.randint(2, MOST_STATEMENTS)):
            text = self.statement()
            if dice.random() < rate / 4:
                block = "\n".join([text, *(self.statement() for _ in range(dice.randint(0, 2)))])
                blocks.append(f"with lab.on({dice.choice(streams)!r}):\n{indent(block, '    ')}")
            elif dice.random() < rate:
                first, *rest = text.split("\n")
                blocks.append("\n".join([f"{first}  #: {dice.choice(streams)}", *rest]))
            else:
                blocks.append(text)
        return RandomProgram("\n".join(blocks) + "\n", streams)

    def statement(self) -> str:
        text = str(self.dice.choice(_KINDS)(self))
        self.arrays += [name for name in self.bound if text.startswith((f"{name} =", f"{name}, "))]  # others were not chosen
        self.bound = []
        return text

    # Names

    def any(self) -> str:
        """Return what gives an array of `SIZE` elements."""
        others = ("box.values", "m.reshape(-1)", "m.ravel()", "items[0]", "items[-1]", "table['k']")
        return self.dice.choice((*self.arrays, *others))

    def part(self) -> str:
        """Return what gives a view of 12 elements."""
        source = self.dice.choice(self.arrays)
        views = (
            f"{source}[:12]",
            f"{source}[5:17]",
            f"{source}[::2]",
            f"{source}[1::2]",
            f"{source}[::-1][:12]",
            "m.T[1:4].ravel()",
        )
        return self.dice.choice((*self.parts, *views))

    def target(self) -> str:
        """Return the name of an array, a new one most of the time."""
        if self.dice.random() < 0.4:
            return self.dice.choice(self.arrays)
        self.made += 1
        self.bound.append(f"v{self.made}")
        return self.bound[-1]

    def number(self) -> float:
        return round(self.dice.uniform(-1.5, 1.5), 2)

    # Statements

    def create(self) -> str:
        made = self.dice.choice(
            (
                f"xp.zeros({SIZE})",
                f"xp.full({SIZE}, {self.number()})",
                f"xp.linspace(0.0, 1.0, {SIZE})",
                f"xp.ones({SIZE}) * {self.number()}",
            )
        )
        return f"{self.target()} = {made}"

    def elementwise(self) -> str:
        value = self.dice.choice(
            (
                f"{self.any()} + {self.any()} * 0.5",
                f"xp.tanh({self.any()})",
                f"xp.maximum({self.any()}, {self.any()})",
                f"-{self.any()}",
            )
        )
        return f"{self.target()} = {value}"

    def in_place(self) -> str:
        return self.dice.choice(
            (
                f"{self.dice.choice(self.arrays)} += {self.any()}",
                f"{self.dice.choice(self.arrays)} *= {self.number()}",
                f"xp.add({self.any()}, {self.any()}, out={self.dice.choice(self.arrays)})",
                f"{self.dice.choice(self.arrays)}.fill({self.number()})",
                f"m += {self.number()}",
                f"xp.multiply(m, {self.number()}, out=m)",
            )
        )

    def view(self) -> str:
        if self.dice.random() < 0.5:
            self.made += 1
            value, name = self.part(), f"p{self.made}"
            self.parts.append(name)
            return f"{name} = {value}"
        return self.dice.choice(
            (
                f"m = {self.any()}.reshape({ROWS}, {COLUMNS})",
                f"{self.target()} = m.T.ravel()",
                f"{self.target()} = m.reshape(-1)",
            )
        )

    def assign_part(self) -> str:
        name = self.dice.choice(self.arrays)
        return self.dice.choice(
            (
                f"{name}[3:15] = {self.part()}",
                f"{name}[::2] += {self.part()}",
                f"{name}[1:13] = {self.number()}",
                f"{self.dice.choice(self.parts)}[:] = {self.part()}",
                f"m[1] = {name}[:{COLUMNS}]",
                f"m[:, 2] *= {self.number()}",
                f"{name}[chosen] = {self.number()}",
                f"{name}[{name} > 0.5] = {self.number()}",
            )
        )

    def reduce(self) -> str:
        value = self.dice.choice(
            (f"{self.any()}.sum()", f"{self.part()}.max()", "m.mean(axis=0).sum()", f"{self.any()}[chosen].sum()")
        )
        return self.dice.choice(
            (
                f"{self.target()} = {self.any()} * 0.5 + ({value}) * 0.01",
                f"s = {value}",
                f"{self.target()} = xp.cumsum({self.any()}) * 0.1",
            )
        )

    def host_read(self) -> str:
        value = self.dice.choice((f"float({self.any()}.sum())", f"{self.part()}[0].item()", f"int(({self.any()} > 0).sum())"))
        return self.dice.choice((f"f = {value}", f"{self.target()} = {self.any()} * ({value} * 0.01)"))

    def branch(self) -> str:
        first, second = self.dice.choice(self.arrays), self.dice.choice(self.arrays)
        condition = self.dice.choice((f"float({self.any()}[2]) > 0.1", f"{self.any()}.sum() > 0"))
        return f"if {condition}:\n    {first} *= 0.5\nelse:\n    {second}[:12] = {self.part()}"

    def loop(self) -> str:
        name = self.dice.choice(self.arrays)
        return self.dice.choice(
            (
                f"for i in range(3):\n    {name}[i * 4 : i * 4 + 6] += {self.any()}[i : i + 6]",
                f"for one in [{self.any()}, {self.any()}]:\n    one *= {self.number()}",
                f"for one in halves({name}):\n    one += 0.25",
                f"for i in range({ROWS}):\n    m[i] = m[i - 1] * 0.5 + i",
                f"i = 0\nwhile i < 2:\n    {name} += i\n    i += 1",
            )
        )

    def call(self) -> str:
        return self.dice.choice(
            (
                f"damp({self.any()})",
                f"damp({self.part()}, {self.number()})",
                f"{self.target()} = blend({self.any()}, {self.any()})",
                "{0}, {1} = exchange({0}, {1})".format(*self.dice.sample(self.arrays, 2)),
                f"def local(x, y={self.any()}):\n    x += y\n    return y * 0.5",
                "box.double()",
                f"{self.target()} = box.replaced({self.any()})",
            )
        )

    def name(self) -> str:
        first, second = self.dice.sample(self.arrays, 2)
        if len(self.arrays) > 3 and self.dice.random() < 0.5:
            gone = self.dice.choice(self.arrays)
            self.arrays.remove(gone)
            return f"del {gone}"
        return self.dice.choice(
            (
                f"{first} = {second}",
                f"{first}, {second} = {second}, {first}",
                f"{self.target()} = (w := {self.any()} * 0.5) + w",
            )
        )

    def container(self) -> str:
        choices = [
            f"items = [{self.any()}, {self.any()} * 2]",
            f"table = {{'k': {self.any()}}}",
            f"box.values = {self.any()}",
            f"box.values *= {self.number()}",
        ]
        choices += [
            f"table['k'] = {self.any()} + 1",
            f"table['k'] += {self.any()}",
            f"items.append({self.any()})",
            "items = [one * 0.5 for one in items]",
            "s = sum(one.sum() for one in items)",
            f"items[0] += {self.any()}",
            f"items[-1] = {self.any()} * 0.5",
            f"{self.target()} = items.pop() if len(items) > 1 else items[0]",
        ]
        return self.dice.choice(choices)

    def copy(self) -> str:
        name = self.dice.choice(self.arrays)
        return self.dice.choice(
            (
                f"{self.target()} = xp.asarray(host)",
                f"{name}.set(host)",
                f"out = {name}.get()",
                f"{self.target()} = {name}.copy()",
            )
        )


_KINDS = (
    *(2 * (_Writer.create, _Writer.view, _Writer.reduce, _Writer.name, _Writer.container, _Writer.call)),
    *(3 * (_Writer.elementwise, _Writer.in_place, _Writer.assign_part)),
    _Writer.host_read,
    _Writer.branch,
    _Writer.loop,
    _Writer.copy,
)


def random_program(seed: int) -> RandomProgram:
    """Return a program; the same for the same seed."""
    return _Writer(seed).write()


def values_of(names: dict[str, Any]) -> dict[str, Any]:
    """Return what variables of a program hold, on the host."""
    ours = ("__", "done_", "kept_", "began", RESULT)
    return {name: held for name, value in names.items() if not name.startswith(ours) and (held := _held(value)) is not None}


def _held(value: Any) -> Any:
    if isinstance(value, Box):
        return "box", _held(value.values)
    if isinstance(value, (list, tuple)):
        return [_held(one) for one in value]
    if isinstance(value, dict):
        return {key: _held(one) for key, one in value.items()}
    if isinstance(value, (int, float)):
        return repr(value)
    if hasattr(value, "get") and hasattr(value, "shape"):
        value = value.get()
    return (value.shape, str(value.dtype), value.tobytes()) if isinstance(value, np.ndarray) else None
