"""Random programs of streams, copies, waits and host reads, and who says by plain reachability whether one is right.

`Paper` is a session on paper: NumPy gives the values, at once; a graph says what is ordered before what, the host too. So a
program of which no two accesses meet in no order gives these values on any device, however early or late that works.
"""

from __future__ import annotations

import io
import itertools
import linecache
import random
import re
from contextlib import contextmanager, redirect_stdout
from textwrap import indent
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from tests.helpers.happens_before import Oracle

STREAMS = ("a", "b", "c")
HOST = "host"
SELDOM = (7, 1)
"""A branch is taken in turns after this one: by no program that runs on a device, and by some on paper."""


class RandomProgram(NamedTuple):
    """What prepares, and what is measured."""

    prepare: str
    body: str

    @property
    def text(self):
        """The function that prepares, and gives back what is measured."""
        inner = ["", "def process():", indent(self.body, "    "), "    return out, values", "", "return process"]
        return "def program(lab):\n" + indent("\n".join([self.prepare, *inner]), "    ") + "\n"


# A session on paper


class Piece:
    """An array, of the device or of the host; `cells` says which elements it shares with others."""

    fresh = itertools.count()

    def __init__(self, paper, values, cells=None, *, is_pinned=None):
        self.paper, self.values, self.is_pinned = paper, np.asarray(values), is_pinned
        count = self.values.size
        self.cells = np.array(list(itertools.islice(self.fresh, count))).reshape(self.values.shape) if cells is None else cells
        self.shape, self.dtype, self.size = self.values.shape, self.values.dtype, count

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return Piece(self.paper, self.values[index], self.cells[index], is_pinned=self.is_pinned)

    def touch(self, *, is_write, lane=None):
        """Note an access of the current stream, or of another lane."""
        self.paper.access(self, is_write, lane or (HOST if self.is_host else self.paper.current))

    @property
    def is_host(self):
        return self.is_pinned is not None

    def __setitem__(self, index, value):
        if isinstance(value, Piece):
            value.touch(is_write=False)
            value = value.values
        self[index].touch(is_write=True)
        self.values[index] = value

    def fill(self, value):
        self[...] = value

    def made(self, values, *others):
        """Return what work of the current stream makes of this and others."""
        for one in (self, *others):
            if isinstance(one, Piece):
                one.touch(is_write=False)
        new = Piece(self.paper, values, is_pinned=self.is_pinned)
        new.touch(is_write=True)
        return new

    def __matmul__(self, other):
        return self.made(self.values @ other.values, other)

    def __add__(self, other):
        return self.made(self.values + getattr(other, "values", other), other)

    def __mul__(self, other):
        return self.made(self.values * getattr(other, "values", other), other)

    def __iadd__(self, other):
        if isinstance(other, Piece):
            other.touch(is_write=False)
        self.touch(is_write=True)
        self.values += getattr(other, "values", other)
        return self

    def sum(self):
        return self.made(self.values.sum())

    def max(self):
        return self.made(self.values.max())

    def copy(self):
        return self.made(self.values.copy())

    def set(self, source):
        source.touch(is_write=False, lane=self.paper.current if source.is_pinned else HOST)
        self.touch(is_write=True)
        self.values[...] = source.values

    def get(self, out=None, blocking=True):
        out = Piece(self.paper, np.empty_like(self.values), is_pinned=False) if out is None else out
        self.touch(is_write=False)
        out.touch(is_write=True, lane=self.paper.current)
        out.values[...] = self.values
        if blocking:
            self.paper.streams[self.paper.current].synchronize()
        return out

    def __float__(self):
        if not self.is_host:
            return float(self.get())
        self.touch(is_write=False)
        return float(self.values)


class PaperEvent:
    """What a stream had at a time."""

    def __init__(self, paper, node):
        self.paper, self.node = paper, node

    def synchronize(self):
        self.paper.order.host_wait(self.node)


class PaperStream(PaperEvent):
    """A lane of the graph."""

    def __init__(self, paper, name):
        self.paper, self.name = paper, name

    @property
    def node(self):
        return self.paper.order.last.get(self.name)

    def record(self):
        return PaperEvent(self.paper, self.node)

    def wait(self, other):
        self.paper.order.on_lane(self.name, self.paper.stream(other).node)

    def hold(self, *_):
        """Memory is never used again here."""


class Paper:
    """A session on paper."""

    def __init__(self):
        self.order, self.streams, self.current, self.met = Oracle(), {}, "default", []
        self.stream("default")
        self.memory = SimpleNamespace(pinned_empty=lambda shape, dtype: Piece(self, np.zeros(shape, dtype), is_pinned=True))
        self.xp = SimpleNamespace(
            asarray=self.asarray, zeros=self.zeros, empty=self.zeros, empty_like=lambda one: self.zeros(one.shape, one.dtype)
        )

    def zeros(self, shape, dtype="float32"):
        return Piece(self, np.zeros(shape, dtype))

    def asarray(self, source):
        new = self.zeros(source.shape, source.dtype)
        new.set(source)
        return new

    def stream(self, name, **_):
        return self.streams.setdefault(name, PaperStream(self, name)) if isinstance(name, str) else name

    @contextmanager
    def on(self, stream, label=""):
        before, self.current = self.current, self.stream(stream).name
        try:
            yield
        finally:
            self.current = before

    def synchronize(self):
        self.order.host_wait(*self.order.last.values())

    def access(self, piece, is_write, lane):
        """Note an access, and what it meets in no order; accesses of the host come one after the other."""
        if lane == HOST:
            self.order.last[HOST] = self.order.host
        met = self.order.access(lane, is_write, frozenset(piece.cells.ravel().tolist()), 0)
        self.met += [(str(other.lane), lane) for other in met]
        if lane == HOST:
            self.order.host = self.order.last.pop(HOST)


def pictures(count, side):
    """Return pictures in ordinary memory."""
    return np.random.default_rng(count).integers(0, 3, (count, side, side)).astype("float32")


def names_for(lab, side):
    """Return what the text of a program looks up."""
    if isinstance(lab, Paper):
        return {"lab": lab, "SIDE": side, "pictures": lambda *size: Piece(lab, pictures(*size), is_pinned=False)}
    return {"lab": lab, "SIDE": side, "SELDOM": SELDOM[0], "pictures": pictures}


def function_of(text, names):
    """Return the function that a text defines; its source can be found."""
    filename = f"<random program {next(Piece.fresh)}>"
    linecache.cache[filename] = len(text), None, text.splitlines(keepends=True), filename
    exec(compile(text, filename, "exec"), names)
    return names["program"]


class OnPaper(NamedTuple):
    """What a program gives on paper."""

    met: list  # Accesses in no order: of which lanes
    values: object
    printed: str
    pending: set  # What it gives that the host could not read yet


def on_paper(text, seldom):
    """Run a program on paper; the host reads all that it gives back at the end."""
    paper = Paper()
    work = function_of(text, names_for(paper, 2) | {"SELDOM": seldom})(paper)
    paper.synchronize()
    with redirect_stdout(io.StringIO()) as printed:
        given = work()
    met = [*paper.met]
    closed = dict(zip(work.__code__.co_freevars, (cell.cell_contents for cell in work.__closure__ or ()), strict=True))
    pending = set()
    for name, one in leaves({"given": given, **{name: closed[name] for name in ("back", "total") if name in closed}}):
        if isinstance(one, Piece):
            paper.met.clear()
            one.touch(is_write=False, lane=HOST)
            pending |= {name} if paper.met else set()
    return OnPaper(met, held(given), printed.getvalue(), pending)


def leaves(value, name=""):
    """Yield what containers hold, with names."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    if not isinstance(value, (dict, list, tuple)):
        yield name, value
    for key, one in items:
        yield from leaves(one, f"{name}/{key}")


def held(value):
    """Return what a value holds, to compare."""
    found = []
    for name, one in leaves(value):
        plain = one.values if isinstance(one, Piece) else one.get() if hasattr(one, "get") else one
        found.append((name, plain.tobytes() if isinstance(plain, np.ndarray) else plain))
    return found


# The writer


class _Writer:
    def __init__(self, seed, *, keeps, is_alone=False):
        self.dice = random.Random(seed)
        self.is_alone = is_alone  # all is on one stream, or on the default stream
        self.keeps = self.dice.random() < 0.5 or keeps  # what work makes, so that no memory is used again
        self.count = self.dice.randint(3, 5)
        self.used = STREAMS[: self.dice.choice((1, 2, 2, 3, 3))]
        self.has_one_frame = self.dice.random() < 0.4
        self.source = self.dice.choice(("photos", "photos", "pinned_photos", "staging"))
        if is_alone:
            self.used, self.has_one_frame = (self.dice.choice(("a", "")),), self.dice.random() < 0.2
        self.care = self.dice.choice((0.8, 1.0, 1.0))  # how often work is ordered where its stream changes

    def program(self):
        prepare = [
            f"photos = pictures({self.count}, SIDE)",
            "pinned_photos = lab.memory.pinned_empty(photos.shape, photos.dtype)",
            "pinned_photos[...] = photos",
            'staging = lab.memory.pinned_empty((SIDE, SIDE), "float32")',
            "back = lab.memory.pinned_empty(photos.shape, photos.dtype)",
            "back[...] = 0",
            f"frames = [lab.xp.zeros((SIDE, SIDE)) for _ in range({self.count})]",
            "frame, total = lab.xp.zeros((SIDE, SIDE)), lab.xp.zeros((SIDE, SIDE))",
            "kernel = lab.xp.asarray(photos[0])",
            f"{', '.join(STREAMS)} = {', '.join(map('lab.stream({!r})'.format, STREAMS))}",
        ]
        prepare = [line.replace("SIDE))", 'SIDE), "float32")') for line in prepare]
        body = ["out, values = [], []", *["alive = []"] * self.keeps, *self.loops()]
        if self.dice.random() < 0.6:
            body.append("lab.synchronize()")
        return RandomProgram("\n".join(prepare), "\n".join(body))

    def loops(self):
        """One loop that does all with each item, or one for each step; alone also no loop, with one item after the other."""
        steps = self.steps()
        if self.is_alone and self.dice.random() < 0.4:
            yield from (f"n = {n}\n" + "\n".join(steps) for n in range(2))
            return
        if self.dice.random() < 0.25 and not self.has_one_frame and self.source != "staging":
            steps = [re.sub(r"\by\b", "made[n]", step) for step in steps]
            yield f"made = [None] * {self.count}"
            waits = [f"{one}.wait({other})" for one in self.used for other in self.used if one != other]
            for step in steps:
                yield f"for n in range({self.count}):\n{indent(step, '    ')}"
                yield from self.dice.sample(waits, self.dice.randint(0, len(waits)))
            return
        body = "\n".join(steps)
        if self.dice.random() < 0.2:
            yield f"n = 0\nwhile n < {self.count}:\n{indent(body, '    ')}\n    n += 1"
        else:
            yield f"for n in range({self.count}):\n{indent(body, '    ')}"

    def steps(self):
        """What is done with an item, in its order, each on some stream."""
        dice, frame = self.dice, "frame" if self.has_one_frame else "frames[n]"
        if self.is_alone:
            return self.steps_alone(frame)
        lines, before = [], None
        kinds = ["upload", *dice.choices(("product", "scale", "total", "value", "noise", "seldom"), k=dice.randint(0, 3))]
        kinds.insert(1, "product" if dice.random() < 0.8 else "scale")
        kinds += dice.choices(("download", "fetch", "value", "unread", "printed", "keep"), k=dice.randint(1, 2))
        for kind in kinds:
            stream = dice.choice(self.used)
            if before not in (None, stream) and dice.random() < self.care:
                lines.append(self.order(before, stream))
            lines += getattr(self, kind)(stream, frame)
            before = stream
        first = self.dice.choice(self.used)
        if self.has_one_frame or self.source == "staging" or dice.random() < 0.2:
            lines.append(self.order(before, first))
        return lines

    def steps_alone(self, frame):
        """Chains that need nothing of each other for a while, from an item, from what there is, or from the turn before."""
        dice, (stream,) = self.dice, self.used
        lines, known = self.upload(stream, frame), ["kernel", frame]
        for name in ("y", *dice.choices("yzw", k=dice.randint(2, 5))):
            first = dice.choice([*known, known[-1]])
            lines += self.on(stream, f"{name} = {first} {dice.choice('@@@*+')} {dice.choice(['kernel', *known])}")
            known.append(name)
        kinds = dice.choices(("total", "value", "download", "fetch", "printed", "keep", "unread"), k=dice.randint(1, 2))
        lines += [line for kind in kinds for line in getattr(self, kind)(stream, frame)]
        if self.has_one_frame or self.source == "staging":
            lines.append("lab.synchronize()")
        return lines

    def order(self, before, after):
        return self.dice.choice(
            (
                f"{before}.synchronize()",
                "lab.synchronize()",
                f"{after}.wait({before})",
                f"{after}.wait({before})",
                f"done = {before}.record()\n{after}.wait(done)",
                f"{before}.record().synchronize()",
            )
        )

    def on(self, stream, *lines):
        if not stream:
            return [*lines]
        head = self.dice.choice((f'lab.on("{stream}")', f"lab.on({stream})", f'lab.on({stream}, "step")'))
        return ["\n".join([f"with {head}:", *(f"    {line}" for line in lines)])]

    # Steps

    def upload(self, stream, frame):
        if self.source != "staging":
            return self.on(stream, f"{frame}.set({self.source}[n])")
        fill = self.dice.choice(("staging[...] = n + 1", "staging[...] = photos[n]", "staging.fill(n)"))
        return [fill, *self.on(stream, f"{frame}.set(staging)")]

    def product(self, stream, frame):
        return [*self.on(stream, f"y = {frame} @ kernel"), *["alive.append(y)"] * self.keeps]

    def scale(self, stream, frame):
        return [*self.on(stream, f"y = {frame} * 2 + {self.dice.randint(0, 3)}"), *["alive.append(y)"] * self.keeps]

    def total(self, stream, frame):
        added = self.dice.choice(("y", frame, "1"))
        return self.on(stream, f"total[...] = total + {added}")

    def noise(self, stream, frame):
        other = self.dice.choice(STREAMS)
        unseen = f"if n > SELDOM:\n    {other}.synchronize()"
        return [self.dice.choice((f"{stream}.synchronize()", "lab.synchronize()", f"{stream}.wait({other})", unseen))]

    def seldom(self, stream, frame):
        """A branch that no run takes, until one does."""
        kinds = ("upload", "total", "total", "download", "fetch", "unread", "write", "tell")
        lines = getattr(self, self.dice.choice(kinds))(stream, frame)
        return [f"if n > SELDOM:\n{indent(line, '    ')}" for line in lines]

    def write(self, stream, frame):
        return [self.dice.choice(("staging[...] = 5", "photos[n] = 1", "pinned_photos[0] = 2", "back[0] = 3"))]

    def tell(self, stream, frame):
        return self.dice.choice((["values.append(n)"], ["print('seldom', n % 2)"], self.on(stream, "total[...] = total * 1")))

    def download(self, stream, frame):
        lines = self.on(stream, "y.get(out=back[n], blocking=False)")
        if self.dice.random() < 0.4:
            waits = ["lab.synchronize()", *[f"{stream}.synchronize()"] * bool(stream)]
            lines += [self.dice.choice(waits), "values.append(float(back[n].max()))"]
        return lines

    def fetch(self, stream, frame):
        return self.on(stream, "out.append(y.get())")

    def value(self, stream, frame):
        return self.on(stream, "values.append(float(y.sum()))")

    def unread(self, stream, frame):
        return self.on(stream, "float(y.sum())")

    def printed(self, stream, frame):
        return self.on(stream, "print(n, float(y.sum()))")

    def keep(self, stream, frame):
        return ["out.append(y)"]


def random_program(seed, *, keeps=False, is_alone=False):
    """Return a program that is right: the same for the same seed. One that keeps all arrays is so with any pool of memory.

    One that is alone has all on one stream.
    """
    written = (_Writer(1000 * seed + again, keeps=keeps, is_alone=is_alone).program() for again in itertools.count())
    return next(one for one in written if not any(on_paper(one.text, seldom).met for seldom in SELDOM))


class OnDevice(NamedTuple):
    """What a program gives on a device."""

    values: object
    printed: str
    hazard_count: int
    wall_ns: int


def on_device(text, side, backend="sim"):
    """Run a program in a new session."""
    from gpustreamlab import Session

    with Session(backend) as lab:
        work = function_of(text, names_for(lab, side))(lab)
        lab.synchronize()
        lab.clear()
        began_ns = lab._backend.host_time_ns()
        with redirect_stdout(io.StringIO()) as printed:
            given = work()
        lab.synchronize()
        wall_ns = lab._backend.host_time_ns() - began_ns
        return OnDevice(held(given), printed.getvalue(), lab.memory.hazards().hazard_count, wall_ns)


def faults_of(program, improved, side, backend="sim"):
    """Say what an improved program does not do as the program did; empty where it does all, in no more time."""
    found = []
    for seldom in SELDOM:
        old, new = on_paper(program.text, seldom), on_paper(improved, seldom)
        found += [f"on paper, taken from {seldom}: {first} and {second} meet in no order" for first, second in new.met]
        found += [f"on paper, taken from {seldom}: other results"] * ((old[1:3]) != new[1:3])
        found += [f"the host cannot read {name} yet" for name in sorted(new.pending - old.pending)]
    old, new = on_device(program.text, side, backend), on_device(improved, side, backend)
    found += ["other results on the device"] * (old[:2] != new[:2])
    found += [f"{new.hazard_count} hazards, {old.hazard_count} before"] * (new.hazard_count > old.hazard_count)
    if backend == "sim":  # where one run says what all take
        found += [f"takes {new.wall_ns} ns, {old.wall_ns} before"] * (new.wall_ns > old.wall_ns)
    return found
