"""Use one session after another from many threads for a long time, check every result, and watch memory.

Threads take turns at random: work in random lanes with known results, nested selections, exceptions, hand-overs, scratch,
guards, tasks (soak_actions.py). Meanwhile lanes are closed and made again, SMs are shared out anew, captures start and stop,
and the session is closed, with work in flight, and opened anew. Fails on a wrong result, an error that is not expected, and
where a thread makes no progress for 30 seconds: then the stacks of all threads are written and the process ends.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench._common import machine
from gpustreamlab import Session
from gpustreamlab.errors import PartitionError, PartitionNotFoundError, SessionError, StreamExistsError
from scripts.soak_actions import ACTIONS, CUDA_ACTIONS, Guarded, Turn, WrongResultError
from scripts.soak_memory import Sample, count_arenas, keep_one_arena, memory_rows, sample

LANES = tuple(f"lane-{number}" for number in range(8))
EXPECTED = (PartitionError, PartitionNotFoundError)
"""What a thread that shares out the SMs must expect: a lane is selected, or its partition has gone."""
EXPECTED_IF_RUDE = (*EXPECTED, SessionError, StreamExistsError)
"""What a thread must expect whose lane, or whole session, may be closed at any moment."""
RING_SIZE = 20_000
CLOSE_LANE, SHARE_OUT, CAPTURE, REOPEN = 0.01, 0.01, 0.01, 0.0005
"""How likely a turn is one of these."""
KEPT_FAILURES = 20
LAYOUTS: tuple[dict[str, Any] | None, ...] = (None, {"left": 32, "right": "rest"}, {"left": 16, "middle": 32, "right": "rest"})


class Gate:
    """Lets many threads in, or one alone. One that wants to be alone keeps new ones out."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._waiting = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Be inside with others."""
        with self._changed:
            self._changed.wait_for(lambda: self._inside >= 0 and not self._waiting)
            self._inside += 1
        try:
            yield
        finally:
            self._leave(-1)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be inside with nobody else."""
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: self._inside == 0)
            self._waiting -= 1
            self._inside = -1
        try:
            yield
        finally:
            self._leave(1)

    def _leave(self, change: int) -> None:
        with self._changed:
            self._inside += change
            self._changed.notify_all()


class Soak:
    """One run: its session, its threads, what they did and what went wrong."""

    def __init__(self, backend: str, thread_count: int, seed: int, *, is_rude: bool = False) -> None:
        self.backend = backend
        self.is_rude = is_rude
        self._expected = EXPECTED_IF_RUDE if is_rude else EXPECTED
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.failure_count = self.wrong_count = 0
        self.progress = [0] * thread_count
        self.is_over = False
        self._gate = Gate()
        self._lane_gates = {name: Gate() for name in LANES}
        self._capturing = threading.Lock()
        self._counting = threading.Lock()
        self._reopening = threading.Lock()
        actions = ACTIONS | (CUDA_ACTIONS if backend == "cuda" and _import_torch() else {})
        self._actions, self._weights = list(actions), list(actions.values())
        self._open()

    def work(self, number: int) -> None:
        """Take turns until it is over: what a thread runs."""
        rng = random.Random(f"{self.seed}/{number}")
        while not self.is_over:
            doing = self._choose(rng)
            self._try(lambda: doing(rng))  # noqa: B023 - called at once
            self.progress[number] += 1

    def close(self) -> None:
        """Close the last session."""
        with self._gate.alone():
            self._try(self._close)

    def _try(self, doing: Callable[[], None]) -> None:
        try:
            doing()
        except self._expected as error:
            self._count(f"expected {type(error).__name__}")
        except BaseException as error:  # noqa: BLE001 - every kind of failure is what is looked for
            self.wrong_count += isinstance(error, WrongResultError)
            self.failure_count += 1
            if len(self.failures) < KEPT_FAILURES:
                self.failures.append(traceback.format_exc())

    def _choose(self, rng: random.Random) -> Callable[[random.Random], None]:
        place = rng.random()
        for share, doing in ((CLOSE_LANE, self._close_lane), (SHARE_OUT, self._share_out), (CAPTURE, self._capture)):
            if place < share:
                return doing
            place -= share
        return self._reopen if place < REOPEN else self._act

    def _act(self, rng: random.Random) -> None:
        action = rng.choices(self._actions, self._weights)[0]
        with self._gate.shared(), self._lanes(rng) as names:
            lanes = [self.lab.stream(name) for name in names]
            action(Turn(self.lab, lanes, rng, self._guarded))
        self._count(action.__name__)

    @contextmanager
    def _lanes(self, rng: random.Random) -> Iterator[list[str]]:
        """Choose two lanes and keep them open; gates are taken in one order, so that nobody waits for each other."""
        names = rng.sample(LANES, 2)
        with ExitStack() as stack:
            for name in sorted(names):
                stack.enter_context(self._lane_gates[name].shared())
            yield names

    def _close_lane(self, rng: random.Random) -> None:
        name = rng.choice(LANES)
        with self._gate.shared(), self._alone(self._lane_gates[name]):
            stream = self.lab.stream(name)
            with self.lab.on(stream, "in flight"):
                self.lab.xp.ones(1 << 16)
            stream.close()
            layout = self.lab.layout
            partitions = [None] if layout is None else [None, *(part.name for part in layout.partitions)]
            self.lab.stream(name, priority=rng.choice((0, -1)), partition=rng.choice(partitions))
        self._count("lanes closed and made again")

    def _share_out(self, rng: random.Random) -> None:
        plan = rng.choice(LAYOUTS)
        with self._gate.alone() if rng.random() < 0.5 else self._gate.shared():
            self.lab.partition(plan)
        self._count("SMs shared out")

    def _capture(self, rng: random.Random) -> None:
        if not self._capturing.acquire(blocking=False):
            return
        try:
            tier, host = rng.choice(("kernels", "ranges")), rng.random() < 0.5
            with self._gate.shared(), self._lanes(rng) as names, self.lab.capture(tier, host=host):
                lanes = [self.lab.stream(name) for name in names]
                for action in rng.choices(self._actions, self._weights, k=3):
                    action(Turn(self.lab, lanes, rng, self._guarded))
        finally:
            self._capturing.release()
        self._count("captures")

    def _alone(self, gate: Gate) -> AbstractContextManager[None]:
        """Let nobody else use what will be closed; or, if it is to be rude, do not care."""
        return gate.shared() if self.is_rude else gate.alone()

    def _reopen(self, rng: random.Random) -> None:
        with self._reopening, self._alone(self._gate):
            for name in rng.sample(LANES, 3):
                with self.lab.on(name, "in flight"):
                    self.lab.xp.ones(1 << 18)
            self._close()
            self._open()
            gc.collect()  # a session is left in cycles; among the many objects of torch they would wait for minutes

    def _open(self) -> None:
        self.lab = Session(self.backend, ring_size=RING_SIZE, title="soak")
        for name in LANES:
            self.lab.stream(name)
        self._guarded = Guarded(self.lab)
        self._count("sessions")

    def _close(self) -> None:
        guarded = self._guarded
        with guarded.guard.on(LANES[0]):
            found = guarded.array.get()
        self.lab.close()
        if "torch" in sys.modules:  # it keeps memory for each stream that it saw, and cannot know that a stream is gone
            sys.modules["torch"].cuda.empty_cache()
        if (found != guarded.use_count).any() and not self.is_rude:
            raise WrongResultError(f"guarded counter: {found.min()} to {found.max()}, not {guarded.use_count}")

    def _count(self, what: str) -> None:
        with self._counting:
            self.counts[what] += 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 1 where something went wrong."""
    options = make_parser().parse_args(argv)
    soak = Soak(options.backend, options.threads, options.seed, is_rude=options.rude)
    threads = [threading.Thread(target=soak.work, args=(number,), daemon=True) for number in range(options.threads)]
    for thread in threads:
        thread.start()
    samples = watch(soak, options.seconds, options.turns, options.patience)
    soak.is_over = True
    for thread in threads:
        thread.join(options.patience)
    if any(thread.is_alive() for thread in threads):
        give_up("Threads did not come to the end of their turn.")
    soak.close()
    faulthandler.cancel_dump_traceback_later()
    report = make_report(soak, samples)
    print_report(report, soak.failures)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if soak.failure_count else 0


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(description="Use sessions from many threads for a long time; check results and memory.")
    parser.add_argument("--seconds", type=float, default=600, help="how long (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=0, help="longer, until so many turns were made (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=16, help="how many threads (default: %(default)s)")
    parser.add_argument("--backend", choices=("cuda", "sim"), default="cuda", help="the device (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the random choices (default: %(default)s)")
    parser.add_argument("--patience", type=float, default=30, help="seconds without progress of a thread (default: 30)")
    parser.add_argument("--rude", action="store_true", help="close lanes and sessions also while threads work in them")
    parser.add_argument("--json", type=Path, help="store the figures here")
    return parser


def watch(soak: Soak, seconds: float, turns: int, patience_s: float) -> list[Sample]:
    """Sample memory once a second until time and turns are over; end the process where a thread makes no progress."""
    began_s = moved_s = time.monotonic()
    samples, before = [], list(soak.progress)
    while (now_s := time.monotonic()) - began_s < seconds or sum(soak.progress) < turns:
        # Should Python itself stand still: a C thread writes the stacks then.
        faulthandler.dump_traceback_later(2 * patience_s, exit=True, file=sys.__stderr__)
        time.sleep(min(1.0, seconds / 20, patience_s / 4))
        now = list(soak.progress)
        if all(count > last for count, last in zip(now, before, strict=True)):
            before, moved_s = now, now_s
        elif now_s - moved_s > patience_s:
            stuck = [number for number, (count, last) in enumerate(zip(now, before, strict=True)) if count == last]
            give_up(f"Threads {stuck} made no progress for {patience_s:g} s.")
        samples.append(sample(now_s - began_s, has_device=soak.backend == "cuda"))
    return samples


def give_up(why: str) -> None:
    """Write the stacks of all threads, and end the process at once: what is stuck cannot be joined."""
    print(why, file=sys.__stderr__, flush=True)
    faulthandler.dump_traceback(file=sys.__stderr__)
    os._exit(1)


def make_report(soak: Soak, samples: list[Sample]) -> dict[str, Any]:
    """Return what the run did, as rows of a table, as counts of what it did, and as samples."""
    rows = [
        {"what": "seconds", "value": round(samples[-1].seconds, 1)},
        {"what": "threads", "value": len(soak.progress)},
        {"what": "turns", "value": sum(soak.progress)},
        {"what": "wrong results", "value": soak.wrong_count},
        {"what": "other failures", "value": soak.failure_count - soak.wrong_count},
        {"what": "malloc arenas (0: as many as glibc likes)", "value": count_arenas()},
        *memory_rows(samples),
    ]
    closes = "closes of what is in use" if soak.is_rude else "closes"
    title = f"Soak on {soak.backend}, seed {soak.seed}: {len(soak.progress)} threads, random streams, repartitions, {closes}"
    counts = {name.replace("_", " "): count for name, count in sorted(soak.counts.items())}
    return {"title": title, "machine": machine(), "rows": rows, "counts": counts, "samples": samples}


def print_report(report: dict[str, Any], failures: list[str]) -> None:
    """Print the rows, the counts, and the failures that were kept."""
    print(report["title"])
    for what, value in [*((row["what"], row["value"]) for row in report["rows"]), *report["counts"].items()]:
        print(f"  {what:44} {value:>12,}")
    for text in failures:
        print(text, file=sys.stderr)


def _import_torch() -> bool:
    """Import torch before the threads start, where it is installed; tell whether it is."""
    try:
        import torch  # noqa: F401 - for sys.modules
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    keep_one_arena()
    sys.exit(main())
