"""Real programs: on one stream, on streams by hand, as planned, and replayed as one CUDA graph, in turns."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench._common import report
from gpustreamlab import Session
from gpustreamlab.errors import ProgramError

ROUNDS = 9
TILES = 8
HEADS = 4
SIZE = {"sim": 1024, "cuda": 2048}
"""Rows of the images: kernels of 100 us and more, so that the host is not the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Real:
    """One program."""

    name: str
    text: str
    """Its statements, on one stream."""
    by_hand: str
    """The same with streams, waits and holds, as one writes them who knows how."""
    names: dict[str, Any]
    streams: int


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("sim", "cuda"), default="sim")
    options, rest = parser.parse_known_args(argv)
    rows = []
    with Session(options.backend) as lab:
        for make in (images, attention, k_means, filters, *([branches] if options.backend == "cuda" else [])):
            rows.append(measured(lab, make(lab, SIZE[options.backend])))
            lab.clear()
        where = lab.device.name
    report(f"Programs (median of {ROUNDS} turns, wall in ms, {where})", rows, rest)


def measured(lab: Session, real: Real) -> dict[str, Any]:
    """Return the times of a program in each way."""
    lab.synchronize()
    plan = lab.program(real.text, dict(real.names)).plan(real.streams)
    for _ in range(4):  # the second and the third measure the host's time
        plan.run(dict(real.names))
    lab.synchronize()
    check = plan.check()
    names = dict(real.names)
    ways: dict[str, Callable[[], object]] = {
        "one stream": runner(lab, on_one_stream(real.text), names),
        "by hand": runner(lab, real.by_hand, names),
        "planned": lambda: plan.run(names),
    }
    why = ""
    try:
        replay = plan.capture()
        ways["replayed"] = replay.launch
    except ProgramError as error:
        why = str(error)[:60]
    walls: dict[str, list[float]] = {how: [] for how in ways}
    hosts: dict[str, list[float]] = {how: [] for how in ways}
    clock_ns = lab.recording.backend.host_time_ns
    for turn in range(ROUNDS + 2):
        for how, run in ways.items():
            names.clear()
            names.update(real.names)
            lab.synchronize()
            began_ns = clock_ns()
            run()
            called_ns = clock_ns()
            lab.synchronize()
            if turn > 1:
                walls[how].append((clock_ns() - began_ns) / 1e6)
                hosts[how].append((called_ns - began_ns) / 1e6)
    row: dict[str, Any] = {"program": real.name, "streams": len(plan.streams)}
    row |= {how: round(statistics.median(taken), 3) for how, taken in walls.items()}
    row["by hand / planned"] = round(row["by hand"] / row["planned"], 2)
    row["host, one stream / replayed"] = ""
    if "replayed" in hosts:
        row["host, one stream / replayed"] = round(
            statistics.median(hosts["one stream"]) / statistics.median(hosts["replayed"]), 1
        )
    row.setdefault("replayed", "")
    return row | {"equal": bool(check), "hazards": check.hazards.hazard_count, "why not replayed": why}


def runner(lab: Session, text: str, names: dict[str, Any]) -> Callable[[], object]:
    code = compile(text, "<by hand>", "exec")
    return lambda: exec(code, names | {"lab": lab})


def on_one_stream(text: str) -> str:
    return "with lab.on('plan-1'):\n" + "\n".join(f"    {line}" for line in text.splitlines())


def block(stream: str, *lines: str) -> Iterator[str]:
    yield f"with lab.on({stream!r}):"
    yield from (f"    {line}" for line in lines)


def images(lab: Session, size: int) -> Real:
    """Tiles of a picture: copied in, filtered, copied out."""
    xp = lab.xp
    host, back = ([lab.memory.pinned_empty((size, size), "float32") for _ in range(TILES)] for _ in range(2))
    for tile in host:
        tile[...] = 1
    lines, hand = [], []
    for stream in ("in", "work", "out"):
        lab.stream(stream)
    for tile in range(TILES):
        steps = [f"t{tile} = xp.asarray(host[{tile}])", *[f"t{tile} = xp.sqrt(t{tile} * 2 + 1)"] * 3]
        copy_out = f"t{tile}.get(out=back[{tile}], blocking=False)"
        lines += [*steps, copy_out]
        hand += [*block("in", steps[0]), "lab.stream('work').wait('in')", *block("work", *steps[1:])]
        hand += ["lab.stream('out').wait('work')", *block("out", copy_out, f"lab.stream('out').hold(t{tile})")]
    return Real(
        name="image tiles",
        text="\n".join(lines),
        by_hand="\n".join(hand),
        names={"xp": xp, "host": host, "back": back, "lab": lab},
        streams=3,
    )


def attention(lab: Session, size: int) -> Real:
    """Heads of attention, each a chain of its own, small enough to leave room on the card."""
    xp, length, width = lab.xp, size // 2, 64
    with lab.on(lab.stream("h0")):
        names = {f"{one}{head}": xp.ones((length, width), dtype="float32") * 0.01 for one in "qkv" for head in range(HEADS)}
    lines, hand = [], []
    for head in range(HEADS):
        lab.stream(f"h{head}")
        steps = [
            f"s{head} = q{head} @ k{head}.T",
            f"s{head} = xp.exp(s{head} - s{head}.max(axis=1, keepdims=True))",
            f"s{head} = s{head} / s{head}.sum(axis=1, keepdims=True)",
            f"o{head} = s{head} @ v{head}",
        ]
        lines += steps
        hand += block(f"h{head}", *steps)
    total = "out = " + " + ".join(f"o{head}" for head in range(HEADS))
    hand += [f"lab.stream('h0').wait('h{head}')" for head in range(1, HEADS)] + [*block("h0", total)]
    return Real(
        name="attention",
        text="\n".join([*lines, total]),
        by_hand="\n".join(hand),
        names={"xp": xp, "lab": lab, **names},
        streams=HEADS,
    )


def k_means(lab: Session, size: int) -> Real:
    """Two halves of the points: distances to centres, the nearest, new sums."""
    xp = lab.xp
    with lab.on(lab.stream("a")):
        names = {f"x{half}": xp.ones((size * 8, 32), dtype="float32") * (half + 1) for half in range(2)}
        names["centres"] = xp.arange(16 * 32, dtype="float32").reshape(16, 32)
    lab.stream("b")
    lines, hand = [], []
    for half, stream in enumerate("ab"):
        steps = [
            f"d{half} = (x{half} ** 2).sum(axis=1, keepdims=True) - 2 * (x{half} @ centres.T) + (centres ** 2).sum(axis=1)",
            f"n{half} = d{half}.argmin(axis=1)",
            f"m{half} = (n{half}[:, None] == xp.arange(16)).astype('float32')",
            f"c{half} = m{half}.T @ x{half}",
        ]
        lines += steps
        hand += block(stream, *steps)
    hand += ["lab.stream('a').wait('b')", *block("a", "new = c0 + c1")]
    return Real(
        name="k-means",
        text="\n".join([*lines, "new = c0 + c1"]),
        by_hand="\n".join(hand),
        names={"xp": xp, "lab": lab, **names},
        streams=2,
    )


def filters(lab: Session, size: int) -> Real:
    """Two signals, each filtered by FFT, then put together."""
    xp = lab.xp
    with lab.on(lab.stream("a")):
        names = {f"x{number}": xp.ones((64, size * 4), dtype="float32") * (number + 1) for number in range(2)}
    lab.stream("b")
    lines, hand = [], []
    for number, stream in enumerate("ab"):
        steps = [f"f{number} = xp.fft.rfft(x{number})", f"f{number} = f{number} * 0.5", f"y{number} = xp.fft.irfft(f{number})"]
        lines += steps
        hand += block(stream, *steps)
    hand += ["lab.stream('a').wait('b')", *block("a", "z = y0 * y1")]
    return Real(
        name="FFT filters",
        text="\n".join([*lines, "z = y0 * y1"]),
        by_hand="\n".join(hand),
        names={"xp": xp, "lab": lab, **names},
        streams=2,
    )


def branches(lab: Session, size: int) -> Real:
    """Two branches of a torch model, added up."""
    import torch

    def branch() -> Any:
        layers = [layer for _ in range(4) for layer in (torch.nn.Linear(size, size), torch.nn.ReLU())]
        return torch.nn.Sequential(*layers).cuda().eval().requires_grad_(requires_grad=False)

    names = {"left": branch(), "right": branch(), "x": torch.randn(64, size, device="cuda"), "torch": torch, "lab": lab}
    torch.cuda.synchronize()
    lab.stream("a"), lab.stream("b")
    hand = [*block("a", "l = left(x)"), *block("b", "r = right(x)"), "lab.stream('a').wait('b')", *block("a", "y = l + r")]
    return Real(
        name="torch branches", text="l = left(x)\nr = right(x)\ny = l + r", by_hand="\n".join(hand), names=names, streams=2
    )


if __name__ == "__main__":
    main()
