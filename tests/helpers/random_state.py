"""Random programs with state: each is run plainly and as planned, from equal starting states, and must give the same."""

from __future__ import annotations

import contextlib
import copy
import io
import linecache
import os
import pathlib
import pickle
import queue
import random
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from textwrap import indent
from typing import Any, NamedTuple

import numpy as np
from IPython.utils.capture import capture_output

from gpustreamlab import Session
from tests.helpers.shells import one_shell
from tests.helpers.world_state import first_difference, state_of

STREAMS = ("s1", "s2", "s3")
RUNS = 4
MOST_STATEMENTS = 12
MODULE = "world_of_states"
WORLD = pathlib.Path(__file__).with_name("state_world.py")
"""The variables that programs begin with."""
_OURS = frozenset({"lab", "xp", "result", "program", "In", "Out", "exit", "quit", "open", "get_ipython"})
_PROGRAM = re.compile(r"<(program|plain) \d+>|0x[0-9a-f]{6,}")


class StateProgram(NamedTuple):
    """A program, what code outside does behind each run, and how many streams it is planned onto."""

    text: str
    after: str
    streams: tuple[str, ...]
    is_function: bool


class Outcome(NamedTuple):
    """All that can be seen of one run."""

    error: list[tuple[str, str]]
    printed: str
    warned: list[tuple[str, str, str, int]]
    random: bytes
    state: dict[str, Any]


# What programs are made of: `$a` is any array, `$n` a number, `$k` one that state has, `$new` a name to bind, `$s` a statement.
# Half the programs have only state that no look at the variables shows, so that their plans hold from run to run.

_ARRAYS = ("xs[0]", "xs[1]", "xs[2]", "xs[3]", "left", "right", "middle")
_PICKS = (
    *(
        "table[$k % 4]",
        "shelf[$k % 4]",
        "(left, right, middle)[$k % 3]",
        "next(circle)",
        "next(pairs)[0]",
        "next(going)",
        "next(mapped)",
    ),
    *("slotted.x", "box.x", "give()", "Turn.array", "Turn.held[0]", "Turn.held[-1]", "table['k']", "nested['deep'][0]['x']"),
    *("alias[1][1][0]", "simple.x", "frozen.x", "current", "random.choice(xs)", "python_random.choice(xs)", "halve($a)"),
    *("xs[numpy_random.integers(4)]", "xs[np.random.randint(4)]", "xs[int(device_random.integers(4))]", "few.get_nowait()"),
    *("xs[int(xp.random.randint(4))]", "xp.random.rand(SIZE)", "damp($a)", "(lambda x: x * 2.0)($a)", "sum(xs[:2])"),
    *("functools.reduce(lambda x, y: x + y, xs)", "max(xs, key=lambda x: float(x[0]))", "[*xs, $a][$k % 5]"),
    *(
        "(shelf if $k % 2 else xs)[0]",
        "getattr(simple, 'x')",
        "next(iter(default['xs']), $a)",
        "rarely($k % 3)",
        "next(iter(ordered.values()))",
    ),
    *("objects[$k % 3]", "chosen($k)()"),
)
_SEEN_PICKS = (
    *("current", "rotate()", "next(slotted)", "box.values", "box[1]", "box($a)", "cached(turn % 5)", "keep($a)", "Only().x"),
    *("shelf[0]", "waiting.get_nowait()", "xs[count_up() % 4]"),
)
_NUMBERS = {
    "raw[0]": "tick()",
    "tick()": "tick()",
    "raw[1]": "raw[1] = (raw[1] + 1) % 4",
    "packed[0]": "packed[0] += 1",
    "int(host[0])": "host[0] += 1",
    "var.get()": "var.set(var.get() + 1)",
    "int(os.environ['WORLD'])": "os.environ['WORLD'] = str(int(os.environ['WORLD']) + 1)",
    "here.number": "here.number += 1",
    "next(iter(ordered))": "ordered.move_to_end(next(iter(ordered)))",
    "written.tell()": "written.write('-')",
    "getattr(queue, 'world', 0)": "queue.world = getattr(queue, 'world', 0) + 1",
    "next(order)": "next(order)",
    "int(text.readline())": "text.readline()",
    "numpy_random.integers(4)": "numpy_random.integers(4)",
    "int(xs[0][0])": "xs[0][0] += 1",
}
"""Numbers that change from run to run, and what changes them."""
_SEEN_NUMBERS = ("turn", "bump()", "len(log)", "Turn.count", "simple.number", "Turn.advance()", "count_up()")
_BINDING = ("$new = $a", "$new = $a * $n + $a")
_QUIET = (
    *(2 * (*_BINDING, "$a[:12] += $n", "damp($a, $n)")),
    *("xp.add($a, $a, out=$a)", "$a[$k % 5 :: 2] *= $n", "$a.fill($n)", "$a[:] = $a", "$new = [$a * $n, {'x': $a}]"),
    *(
        "table['k'] *= $n",
        "nested['deep'][0]['x'] += $n",
        "box.x *= $n",
        "simple.x *= $n",
        "shelf[0] *= $n",
        "$a[:] += host[1]",
    ),
)
"""Statements that read nothing on the host: what is not known in one of them orders no other."""
_SIMPLE = (
    *(2 * _QUIET),
    *("$a[$a > 0.5] = $n",),
    *("$new = float($a.sum())", "print($k, float($a[0]))", "print($a[:2])", "host[0] += 1", "var.set($k)"),
    *("$a[:] += float(host[0])", "host[:2] = $a.get()[:2]", "written.write(str($k))"),
    *("Turn.array[:] = $a", "next(going)", "few.put(few.get_nowait())", "text.readline()", "$new = (inner := $a) + inner"),
    *("$new = [one * $n for one in xs if $k % 2]", "$new = {number: one for number, one in enumerate(xs)}"),
    *("[damp(one) for one in (left, right)]", "list(map(damp, xs[:2]))", "$new = frozen.__class__($a, $k)"),
    *("warnings.warn(str($k))", "$new = functools.partial(damp, $a)()", "$new = $a is $a", "$new = $a.get()"),
    *("$new = next((one for one in xs if float(one[0]) > $n), None)", "$new = copy.copy(simple)", "change($a)"),
    *("$new = xp.asarray(host.repeat(6))", "$a.set(np.full(SIZE, $k + 0.5))", "$new = make_chooser([$a])[0]()"),
    *("$new = ($a * $n, $a)[$k % 2]", "$new = $a if $k % 2 else $n"),
)
_SEEN_SIMPLE = (
    *("log.append($a)", "log.append(bump())", "log.clear()", "names.add(str(turn))", "Turn.count += 1", "Turn.advance()"),
    *("Turn.array = $a", "Turn.held.append($a)", "Turn.held.rotate(1)", "xs[bump() % 4] = $a * 1.0", "rotate()"),
    *("xs[0], xs[1] = xs[1], xs[0]", "xs.append(xs.pop(0))", "random.shuffle(xs)", "table['k'] = $a", "count_up()"),
    *("table[$k % 4] = $a * $n", "table['k'] += $a", "default['xs'].append($a)", "alias[0]['x'] = $a"),
    *("alias.reverse(); alias.reverse()", "simple.x = $a", "simple.number += 1", "box.values = $a", "box.x = $a * $n"),
    *("box.values[:] += $n", "change()", "waiting.put($a)", "shelf.rotate(1)", "shelf.appendleft(shelf.pop())"),
    *("slotted.x = $a", "slotted.number += 1", "Only().x[:] += $n", "Only().x = $a", "cached.cache_clear()"),
    *("$new = sorted(log, key=str)[:1]", "$new = box == box", "$new = bool(box)", "$new = make_counter(turn)()"),
    *("$new = log[-1:]", "$new = {*names}"),
)
_SEEN_TEXT = (
    *("turn += 1", "current = $a", "left, right = right, left", "current *= $n", "count = globals().get('count', 0) + 1"),
    *("xs = [*xs[1:], xs[0]]", "box += $a", "alias, log = alias, [*log]", "turn, current = turn + 1, xs[turn % 4]"),
    *("order, circle = itertools.count(), itertools.cycle(xs)", "marked: int = turn", "import math; turn += math.floor($n)"),
)
_COMPOUND = (
    "if $k % 2:\n$s\nelse:\n$s",
    "if float($a[0]) > $n:\n$s",
    "for number in range($k % 3):\n$s",
    "for one, other in zip(xs, reversed(xs)):\n    one += other * $n\n$s",
    "for number, one in enumerate(shelf):\n    if number == $k % 3:\n        continue\n    one *= $n\nelse:\n$s",
    "number = 0\nwhile number < 2:\n    number += 1\n$s",
    "try:\n$s\n    raise OddError($k)\nexcept OddError as error:\n    print(error.args)\nfinally:\n$s",
    "try:\n$s\n    $a.no_such\nexcept AttributeError as error:\n    print(type(error).__name__)\n$s",
    "try:\n    xs[$k % 3 + 2]\nexcept (KeyError, IndexError) as error:\n    print(error)\nelse:\n$s",
    "with ticking() as inside:\n$s\n    inside *= $n",
    "with lock, ticking():\n$s\n    raise ValueError($k)",
    "with contextlib.suppress(OddError):\n$s\n    raise OddError('suppressed')",
    "with contextlib.redirect_stdout(io.StringIO()):\n    print('nobody sees', $k)\n$s",
    "match $k % 3:\n    case 0:\n$ss\n    case number if number > 1:\n$ss\n    case _:\n        tick()",
)
_SEEN_COMPOUND = (
    "with noted('block') as inside:\n$s\n    inside *= $n",
    "with noted('failing'):\n$s\n    raise ValueError(turn)",
    "with lock, box as inside:\n    inside += $n\n$s",
)
_RAISING = (
    "if $k % 5 == 3:\n    tick()\n    raise OddError($k)",
    "assert $k % 7 != 2, $k",
    "try:\n$s\n    if $k % 3 == 2:\n        raise KeyError($k)\nfinally:\n$s",
    "try:\n    int('x' if $k % 4 == 3 else '1')\nexcept ValueError as error:\n    tick()\n    raise OddError($k) from error",
)
_DEFINITIONS = (
    (
        "def $f(x, seen=[]):\n    seen.append($k)\n    x += len(seen)\n    print(len(seen))\n    return x * 2.0",
        "$new = $f($a)",
        "told.append(([*$f.__code__.co_names], $f.__qualname__)); $f(xs[0])",
    ),
    (
        "def $f(x):\n    hidden = [x]\n    def inner(y):\n        hidden.append(y * 1.0)\n"
        "        return hidden[0] + hidden[-1]\n    return inner",
        "$new = $f($a)($a)",
        "told.extend($f(xs[0]).__code__.co_names); $f(xs[1])(xs[2])",
    ),
    (
        "@logged\ndef $f(x: $t, *more: $t, factor: float = $n) -> None:\n    tick()\n    x *= factor",
        "$f($a, 1, 2)",
        "$f(xs[3], factor=2.0); told.extend($f.__wrapped__.__code__.co_names)",
    ),
    (
        "def $f():\n    for one in xs:\n        one += $n\n        yield one\n    tick()",
        "$new = [one for one in $f()]",
        "next($f())",
    ),
    ("def $f():\n    return $a", "$f()[:] *= $n", "$f()"),
    ("$f = lambda: $a", "$new = $f() + $f()", "$f()"),
    ("def $f(x):\n    global current\n    current = x * $n\n    return $a", "$f($a)[:12] += current[:12]", "$f(xs[2])"),
    (
        "$f = lambda x, y=$k: (written.write(str(y)), x * y)[1]",
        "$new = $f($a)",
        "told.append($f.__defaults__); $f(xs[0])",
    ),
    (
        "class $F:\n    made = 0\n    held = []\n    def __init__(self, x):\n        type(self).made += 1\n"
        "        self.__x = x\n        self.held.append(x)\n    @property\n    def x(self):\n        tick()\n"
        "        return self.__x\n"
        "    def __matmul__(self, other):\n        return self.held[$k % len(self.held)] * other",
        "$new = $F($a) @ $n",
        "told.append(($F.made, $F(xs[0]).x is xs[0], [*$F.__matmul__.__code__.co_names]))",
    ),
    (
        "@dataclasses.dataclass\nclass $F:\n    number: int\n    more: list[int] = dataclasses.field(default_factory=list)\n"
        "    def __post_init__(self):\n        self.more.append($k)",
        "$new = $F($k).more[0]",
        "told.append(repr($F(3)))",
    ),
    (
        "class $F(Turn):\n    count = 5\n    @classmethod\n    def advance(cls):\n        return super().advance() + cls.count",
        "$new = $F.advance()",
        "$F.advance()",
    ),
)
_PICKLED = "told.append(pickle.loads(pickle.dumps($F(4))).more)"


class _Writer:
    def __init__(self, seed: int, is_function: bool | None) -> None:
        self.dice = dice = random.Random(seed)
        self.is_function = dice.random() < 0.25 if is_function is None else is_function
        self.is_seen = dice.random() < 0.3
        """Whether it has state that looks at variables show, which its plans do not survive."""
        self.is_quiet = not self.is_seen and dice.random() < 0.5
        self.numbers = dice.sample(list(_NUMBERS), 1 if self.is_quiet else 5) + list(_SEEN_NUMBERS) * self.is_seen
        self.picks = ["xs[$k % 4]", *dice.sample(_PICKS, 1 if self.is_quiet else 20)] + list(_SEEN_PICKS) * self.is_seen
        """What gives numbers and arrays: not all of it in each program, as one thing that is not known orders much."""
        self.names: list[str] = []
        self.uses: list[str] = []
        self.after: list[str] = []
        self.made = 0

    def write(self) -> StateProgram:
        dice = self.dice
        streams = STREAMS[: dice.choice((1, 2, 2, 2, 3, 3))]
        rate = dice.choice((0.0, 0.6, 1.0, 1.0, 1.0))
        self.is_future = not self.is_function and dice.random() < 0.3
        blocks = ["from __future__ import annotations"] * self.is_future
        for _ in range(dice.randint(3, MOST_STATEMENTS)):
            text = self.statement()
            if dice.random() < rate / 5 and len(streams) > 1:
                blocks.append(f"with lab.on({dice.choice(streams)!r}):\n{indent(text, '    ')}")
            elif dice.random() < rate:
                blocks.append(f"#: {dice.choice(streams)}\n{text}")
            else:
                blocks.append(text)
        body = "\n".join(blocks) + "\n"
        if self.is_function:
            bound = dice.choice(("raw[0]", "turn", "log", "float(xs[0][0])", "turn, current", *self.names[:1]))
            body = f"def program():\n{indent(body, '    ')}    return {bound}\n"
        return StateProgram(body, "\n".join(self.after) + "\n", streams, self.is_function)

    def statement(self) -> str:
        kinds: tuple[tuple[Callable[[], str], int], ...] = (
            (self.simple, 100 if self.is_quiet else 24), (self.compound, 4), (self.raising, 2), (self.definition, 3),
            (self.use, 6 if self.uses else 0),
        )  # fmt: skip
        chosen: Callable[[], str] = self.dice.choices([one for one, _ in kinds], [weight for _, weight in kinds])[0]
        return chosen()

    def simple(self) -> str:
        dice = self.dice
        if self.names and dice.random() < 0.03:
            return f"del {self.names.pop(dice.randrange(len(self.names)))}"
        known = [_QUIET if self.is_quiet else _SIMPLE, _SEEN_SIMPLE, _SEEN_TEXT][
            : 1 + self.is_seen + (self.is_seen and not self.is_function)
        ]
        text = dice.choice(dice.choice(known)) if dice.random() < 0.9 else _NUMBERS.get(dice.choice(self.numbers), "bump()")
        bound = self.name() if "$new" in text else ""
        made = self.filled(text.replace("$new", bound))
        if bound and text in _BINDING:
            self.names.append(bound)
        return made

    def compound(self) -> str:
        return self.filled(self.dice.choice(_COMPOUND + _SEEN_COMPOUND * self.is_seen))

    def raising(self) -> str:
        return self.filled(self.dice.choice(_RAISING))

    def definition(self) -> str:
        text, use, after = self.dice.choice([one for one in _DEFINITIONS if not (self.is_function and "global" in one[0])])
        self.made += 1
        named = {"$f": f"f{self.made}", "$F": f"F{self.made}"}
        for key, name in named.items():
            text, use, after = (one.replace(key, name) for one in (text, use, after))
        self.uses.append(use)
        if not self.is_function:
            more = [_PICKLED.replace("$F", named["$F"])] if "dataclass" in text else []
            lines = indent("\n".join([after, *more]), "    ")
            self.after += [f"if '{name}' in globals():\n{lines}" for name in named.values() if name in text]
        return self.filled(text)

    def use(self) -> str:
        return self.filled(self.dice.choice(self.uses).replace("$new", self.name()))

    def name(self) -> str:
        self.made += 1
        return f"v{self.made}"

    def filled(self, text: str) -> str:
        """Return a template with arrays, numbers and statements put in."""
        put = {
            "a": self.array,
            "k": lambda: self.dice.choice(self.numbers),
            "n": lambda: f"{self.dice.uniform(0.2, 1.2):.1f}",
            "s": lambda: indent(self.inner(), "    "),
            "ss": lambda: indent(self.inner(), "        "),
            "t": lambda: "Nowhere" if self.is_future else "'Nowhere'",
        }
        return re.sub(r"\$([a-z]+)", lambda found: put[found[1]](), text)

    def inner(self) -> str:
        """Return a statement to stand in another one, which may not run: what it binds is used by none."""
        known = [*self.names]
        text = self.simple()
        self.names = [name for name in known if text != f"del {name}"]
        return text

    def array(self) -> str:
        dice = self.dice
        if self.names and dice.random() < 0.4:
            return dice.choice(self.names)
        return self.filled(dice.choice(_ARRAYS if dice.random() < 0.5 else self.picks))


def random_state_program(seed: int, *, is_function: bool | None = None) -> StateProgram:
    """Return a program, the same for the same seed: a text, or a function; if None, one of them."""
    return _Writer(seed, is_function).write()


# To run them


@contextlib.contextmanager
def starting_state(lab: Session, values: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Make the variables that a program begins with: those of a module of the user's, made anew, or of a shell."""
    if values is None:
        module = types.ModuleType(MODULE)
        module.__file__ = str(WORLD)
        values, sys.modules[MODULE] = vars(module), module
    values |= {"os": os, "lab": lab, "warnings": warnings, "copy": copy, "pickle": pickle}
    os.environ["WORLD"], queue.world = "0", 0  # type: ignore[attr-defined]
    random.seed(1)
    np.random.seed(2)  # noqa: NPY002 - programs use this one, too
    lab.xp.random.seed(3)
    try:
        with lab.select(STREAMS[0]):
            exec(compile(WORLD.read_text(), str(WORLD), "exec", dont_inherit=True), values)
        lab.synchronize()
        lab.clear()
        yield values
    finally:
        sys.modules.pop(MODULE, None)
        del os.environ["WORLD"], queue.world  # type: ignore[attr-defined]


def outcome(lab: Session, values: dict[str, Any], run: Callable[[], object]) -> Outcome:
    """Run something, and look at all that can be seen of it."""
    printed, error, returned = io.StringIO(), None, None
    with contextlib.redirect_stdout(printed), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        try:
            returned = run()
        except Exception as raised:
            error = raised
    chain = []
    while error is not None:
        chain.append((type(error).__qualname__, _plain_text(str(error))))
        error = error.__cause__ or error.__context__
    told = [(one.category.__name__, _plain_text(str(one.message)), _plain_text(one.filename), one.lineno) for one in warned]
    states = random.getstate(), np.random.get_state(), lab.xp.random.source.get_state()  # noqa: NPY002 - likewise
    seen = {name: one for name, one in values.items() if name == "__annotations__" or not name.startswith("_")}
    state = state_of({**seen, "returned": returned}, _OURS)
    return Outcome(chain, _plain_text(printed.getvalue()), told, pickle.dumps(states), state)


def _plain_text(text: str) -> str:
    """Return a text without addresses, and without the numbers of programs."""
    return _PROGRAM.sub("<program>", text)


def outcomes(
    lab: Session, program: StateProgram, values: dict[str, Any], run: Callable[[], object], run_count: int = RUNS
) -> list[Outcome]:
    """Run a program some times, and code of others behind each run."""
    after = compile(program.after, "<after>", "exec", dont_inherit=True)
    found = []
    for _ in range(run_count):
        found.append(outcome(lab, values, run))
        with lab.select(STREAMS[0]):  # what it changes is seen behind the next run
            found.append(outcome(lab, {}, lambda: exec(after, values)))
    return found


def plain_run(lab: Session, program: StateProgram, values: dict[str, Any]) -> Callable[[], object]:
    """Return what runs a program plainly, on one stream."""
    code = compile(program.text, "<plain 1>", "exec", dont_inherit=True)
    if program.is_function:
        exec(code, values)

    def run() -> object:
        with lab.select(STREAMS[0]):
            return values["program"]() if program.is_function else exec(code, values)

    return run


def planned_run(lab: Session, program: StateProgram, values: dict[str, Any]) -> Callable[[], object]:
    """Return what runs a program as planned; the first time it is recorded."""
    if program.is_function:
        name = "<program 0>"
        linecache.cache[name] = len(program.text), None, program.text.splitlines(keepends=True), name
        exec(compile(program.text, name, "exec", dont_inherit=True), values)
    plan = lab.program(values["program"] if program.is_function else program.text, values).plan(list(program.streams))

    def run() -> object:
        found = plan.run()
        return found["result"] if program.is_function else None

    return run


def cell_run(shell: Any, program: StateProgram, first_line: str) -> Callable[[], object]:
    """Return what runs a program as a cell with a first line: a comment, or a magic."""

    def run() -> object:
        with capture_output(stdout=False, stderr=False):
            result = shell.run_cell(f"{first_line}\n{program.text}", store_history=False)
        result.raise_error()
        return result.result

    return run


def difference(lab: Session, program: StateProgram) -> str:
    """Run a program plainly and as planned; return where the two differ first, an empty text if they do not."""
    with starting_state(lab) as values:
        expected = outcomes(lab, program, values, plain_run(lab, program, values))
    with starting_state(lab) as values:
        found = outcomes(lab, program, values, planned_run(lab, program, values))
        return _first_difference(lab, expected, found)


def cell_difference(lab: Session, program: StateProgram) -> str:
    """Run a program as a plain cell and as one that is planned; return where the two differ first."""
    found = []
    for first_line in ("# plain", f"%%gpuprogram --on {','.join(program.streams)}"):
        with one_shell() as shell, starting_state(lab, shell.user_ns) as values:
            shell.run_line_magic("load_ext", "gpustreamlab")
            shell.showtraceback = lambda *args, **options: None
            found.append(outcomes(lab, program, values, cell_run(shell, program, first_line), run_count=3))
            shell.run_line_magic("unload_ext", "gpustreamlab")
    return _first_difference(lab, *found)


def _first_difference(lab: Session, expected: list[Outcome], found: list[Outcome]) -> str:
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        for name, first, second in zip(Outcome._fields, one, other, strict=True):
            if first != second:
                return first_difference(first, second, f"run {number // 2 + 1}{', behind it' * (number % 2)}, {name}")
    with lab.select(STREAMS[0]):
        hazards = lab.memory.hazards()
    return str(hazards) if hazards else ""
