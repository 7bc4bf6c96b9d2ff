"""Which engines are there, how they come into a cluster, and what they recorded since; and what their clocks say."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

import gpustreamlab
from gpustreamlab._util.host import monotonic_clock_id
from gpustreamlab.analysis import format_ns
from gpustreamlab.cluster import _worker
from gpustreamlab.cluster._clocks import Clocks
from gpustreamlab.cluster._engines import Engines, ask
from gpustreamlab.cluster._mirror import Mirror
from gpustreamlab.cluster._outcomes import EngineStatus
from gpustreamlab.cluster._worker import Changes, Facts
from gpustreamlab.errors import ClusterError, OptionError, nearest_hint
from gpustreamlab.model import ClockOffset, without_tools
from gpustreamlab.trace import Trace, as_trace

_log = logging.getLogger(__name__)

ANSWER_S = 30.0
"""How long an engine may take to tell what is left."""
BEGIN_S = 120.0
"""How long it may take to begin: to import packages takes long where the disk is far, or the machine busy."""
TICK_S = 0.02
"""How long it takes at least until an engine that did not answer is asked again."""
READ_EVERY_S = 0.2
"""How often an engine is asked for what is new."""
SILENT_S = 5.0
"""An answer that takes longer is given up, and asked for again; the engine counts as silent meanwhile."""
LOOK_EVERY_S = 1.0
"""How often it is asked which engines there are."""
TOLD_LATELY_S = 0.5
"""An engine that answered so lately is there, whatever the scheduler says."""
PINGS, PINGS_HERE = 20, 3
PING_EVERY_S = 1.0
PING_LIMIT_S = 1.0
"""How long a ping may take."""


@dataclass(eq=False)
class Life:
    """One process of an engine, from its first answer to its last."""

    key: str
    """What tells it from every other process."""
    called: str
    """How users call the engine."""
    name: str
    """How the trace calls it: a process that took another one's place has a number behind it."""
    facts: Facts
    """What it is."""
    mirror: Mirror
    """What it recorded."""
    lost_unix_ns: int = 0
    """When it was found to be gone; 0 while it is there."""
    lost_ns: int = 0
    """The same by the client's clock, to which those of engines are compared."""
    why: str = ""
    """Why it counts as gone."""
    retry_count: int = 0
    """Answers that were given up and asked for again."""
    silent_s: float = 0.0
    """For how long it had told nothing, in s, when it was asked last; time in which this process was stopped does not count."""
    read_s: float = field(default_factory=time.monotonic)
    """When that was, by `time.monotonic`."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def is_there(self) -> bool:
        """Whether it was there when last looked for."""
        return not self.lost_unix_ns

    @property
    def is_silent(self) -> bool:
        """Whether it is there and does not answer."""
        return self.is_there and self.silent_s > SILENT_S

    @property
    def status(self) -> EngineStatus:
        """How it stands."""
        mirror, facts = self.mirror, self.facts
        return EngineStatus(
            name=self.name,
            host=facts.host,
            pid=facts.pid,
            device=f"{facts.device} (simulated)" if facts.simulated else facts.device,
            state=f"lost, {self.why}" if not self.is_there else "silent" if self.is_silent else "there",
            span_count=mirror.span_count,
            missed_count=mirror.dropped_count,
            bytes_per_span=mirror.received_bytes / mirror.span_count if mirror.span_count else float("nan"),
            retry_count=self.retry_count,
            lost_unix_ns=self.lost_unix_ns,
        )

    def trace(self) -> Trace:
        """Return what has arrived, but for what tools did."""
        return as_trace(without_tools(self.mirror.trace()))


class Entry:
    """Lets engines in.

    Parameters
    ----------
    engines
        The adapter.
    client
        What engines know this reader by.
    backend, options
        Of the sessions.
    ring_size
        How many spans of each are kept here.
    """

    def __init__(self, engines: Engines, client: str, backend: str | None, options: dict[str, Any], ring_size: int) -> None:
        self._engines, self._client = engines, client
        self._backend, self._options, self._ring_size = backend, options, ring_size
        self.failures: dict[str, str] = {}
        """Engines that could not be used, by name, and why."""
        self._lock = threading.Lock()
        self._ranks: dict[str, tuple[tuple[str, str], int]] = {}
        self._generations: dict[str, int] = {}
        self._devices: dict[tuple[object, ...], int] = {}

    def admit_all(self) -> list[Life]:
        """Open a session on each engine that is there.

        Raises
        ------
        ClusterError
            If there is none, or one cannot be used.
        """
        try:
            there = self._engines.engines()
        except Exception as error:
            raise ClusterError(
                f"The client does not say which engines there are ({reason(error)}). It may be closed: make another."
            ) from error
        if not there:
            raise ClusterError("The cluster has no engine. Start some, or wait for them: client.wait_for_workers(4).")
        lives = self.admit(there)
        failures, self.failures = self.failures, {}
        if len({life.facts.simulated for life in lives}) > 1:
            without = [life.name for life in lives if life.facts.simulated]
            failures |= dict.fromkeys(without, "it has no usable GPU, and others have one; simulate all with backend='sim'")
        if failures:
            for life in lives:  # what was opened for this is closed
                with suppress(Exception):
                    self._engines.run(life.key, _worker.end, self._client).result(ANSWER_S)
            raise _refused(failures, len(there))
        return lives

    def admit(self, there: Mapping[str, str]) -> list[Life]:
        """Open a session on engines, by key and name, and return those that can be used; `failures` has the others.

        Raises
        ------
        ClusterError
            If some are threads of one process.
        """
        looks = self._ask(there, dict.fromkeys(sorted(there, key=lambda key: name_order(there[key])), (_worker.look,)))
        for key in [key for key, facts in looks.items() if facts.version != gpustreamlab.__version__]:
            self.failures[there[key]] = (
                f"it has gpustreamlab {looks.pop(key).version}, and this client has {gpustreamlab.__version__}; "
                "install the same there"
            )
        _require_processes({there[key]: facts for key, facts in looks.items()})
        options = self._backend, self._options
        begun = self._ask(
            there, {key: (_worker.begin, self._client, *options, self._rank(key, facts)) for key, facts in looks.items()}
        )
        self.failures |= {there[key]: why for key, why in begun.items() if isinstance(why, str)}
        return [self._live(key, there[key], facts) for key, facts in begun.items() if not isinstance(facts, str)]

    def _ask(self, there: Mapping[str, str], calls: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """Call a function on each of some engines, and return what they answer; of the others it is noted why not."""
        answers = {key: ask(self._engines.run, key, *call) for key, call in calls.items()}
        end_s = time.monotonic() + BEGIN_S
        told = {}
        for key, answer in answers.items():
            try:
                told[key] = answer.result(max(0.0, end_s - time.monotonic()))
            except Exception as error:  # noqa: BLE001 - whatever it is, the user is told of which engine
                self.failures[there[key]] = reason(error)
        return told

    def _rank(self, key: str, facts: Facts) -> int:
        """Choose which of the engines that see the same devices this is."""
        there, group = self._engines.engines(), (facts.host, facts.visible)
        with self._lock:
            self._ranks = {other: own for other, own in self._ranks.items() if other in there}
            taken = {rank for own, rank in self._ranks.values() if own == group}
            rank = min(set(range(len(taken) + 1)) - taken)
            self._ranks[key] = group, rank
        return rank

    def _live(self, key: str, name: str, facts: Facts) -> Life:
        with self._lock:
            generation = self._generations[name] = self._generations.get(name, 0) + 1
            # A process that takes another one's place has its card; simulated cards are as many as engines.
            card = (facts.host, *((name,) if facts.simulated else (facts.visible, facts.ordinal)))
            own = name if generation == 1 else f"{name}#{generation}"
            mirror = Mirror(
                own,
                process=sum(self._generations.values()) - 1,
                device=self._devices.setdefault(card, len(self._devices)),
                host=facts.host,
                ring_size=self._ring_size,
            )
        return Life(key=key, called=name, name=own, facts=facts, mirror=mirror)


class Follower:
    """A thread for each engine, which reads its records and asks for its time, and one that looks who is there.

    Parameters
    ----------
    engines
        The adapter.
    client
        What engines know this reader by.
    join
        Makes the life of an engine that has come, or returns None where that fails; called in a thread.
    joined
        Takes each engine that came later, once its first records are here.
    clocks
        Takes what engines tell of their time; of simulated ones nothing, whose time stands still while nobody works.
    """

    def __init__(
        self,
        engines: Engines,
        client: str,
        *,
        join: Callable[[str, str], Life | None],
        joined: Callable[[Life], object],
        clocks: Clocks,
    ) -> None:
        self._engines, self._client, self._clocks = engines, client, clocks
        self._join, self._joined = join, joined
        self.lives: dict[str, Life] = {}
        """By key, those that are gone too."""
        self._stopping = threading.Event()
        self._threads: dict[str, threading.Thread] = {}

    def start(self) -> None:
        """Start the threads."""
        for life in self.lives.values():
            self._start(life.key, self._follow, life)
        self._start("", self._look)

    def stop(self) -> None:
        """End the threads, and wait until they have ended."""
        self._stopping.set()
        for thread in [*self._threads.values()]:
            if thread is not threading.current_thread():
                thread.join(SILENT_S)

    def lose(self, life: Life, why: str) -> None:
        """Note that an engine is gone. What had arrived stays."""
        if life.is_there:
            now_unix_ns = time.time_ns()
            life.mirror.end(f"engine {life.name} lost {clock_text(now_unix_ns)}")
            life.why, life.lost_ns, life.lost_unix_ns = why, time.monotonic_ns(), now_unix_ns
            _log.warning("Engine %s is lost: %s. What had arrived stays, the others go on.", life.name, why)

    def drain(self, limit_s: float) -> None:
        """Read all that the engines have recorded by now, as far as that is there before the time is over."""
        end_s = time.monotonic() + limit_s
        for life in [*self.lives.values()]:
            while life.is_there and ((changes := self.read(life, end_s - time.monotonic())) is None or changes.is_full):
                if time.monotonic() >= end_s:
                    break

    def read(self, life: Life, limit_s: float = SILENT_S) -> Changes | None:
        """Ask an engine for what is new, and take it in; None where it did not answer: it is asked for the same again."""
        with life.lock:
            before_s = life.read_s
            changes: Changes | None = None
            try:
                known = life.mirror.arrived, life.mirror.newest_hazard_ns
                asked = self._engines.aside(life.key, _worker.read, self._client, *known)
                changes = asked.result(max(TICK_S, min(SILENT_S, limit_s)))
                life.read_s, life.silent_s = time.monotonic(), 0.0
                if life.mirror.log not in (0, changes.log):  # the engine's session is another one
                    self.lose(life, "its session was closed there")
                    return changes
                if changes.data:
                    life.mirror.take(changes.data, changes.place)
                life.mirror.hear(changes)
            except Exception as error:  # noqa: BLE001 - the connection may fail for a while
                _log.debug("Engine %s did not answer: %s", life.name, error)
                life.retry_count += 1
                life.read_s = time.monotonic()
                life.silent_s += min(life.read_s - before_s, 2 * SILENT_S)  # longer only where this process was stopped
                self._stopping.wait(TICK_S)
            return changes

    def ping(self, life: Life) -> None:
        """Ask an engine for its time, again and again; one of this machine says by our own clock when that was."""
        pings: list[tuple[int, int, int]] = []
        is_here = life.facts.clock and life.facts.clock == monotonic_clock_id()
        if life.facts.simulated:
            return
        try:
            while len(pings) < (PINGS_HERE if is_here else PINGS) and life.is_there and not self._stopping.is_set():
                if is_here:
                    pings.append(self._engines.aside(life.key, _worker.told_between).result(PING_LIMIT_S))
                    continue
                sent_ns = time.monotonic_ns()
                told_ns = self._engines.aside(life.key, _worker.told_ns).result(PING_LIMIT_S)
                pings.append((sent_ns, told_ns, time.monotonic_ns()))
        except Exception as error:  # noqa: BLE001 - what is gone is noticed elsewhere
            _log.debug("Engine %s did not tell its time: %s", life.name, error)
        jump = self._clocks.add(life.key, pings) if pings else None
        if jump is not None:
            _log.warning("The clock of engine %s has jumped by %+.3f ms; its times follow it.", life.name, jump.by_ns / 1e6)

    def _start(self, key: str, work: Callable[..., object], *args: Any) -> None:
        self._threads[key] = threading.Thread(target=work, args=args, name=f"gpustreamlab engine {key}", daemon=True)
        self._threads[key].start()

    def _follow(self, life: Life) -> None:
        pinged_s = time.monotonic()
        while life.is_there and not self._stopping.wait(READ_EVERY_S):
            while (changes := self.read(life)) is not None and changes.is_full:
                pass
            if time.monotonic() - pinged_s >= PING_EVERY_S:
                pinged_s = time.monotonic()
                self.ping(life)

    def _look(self) -> None:
        """Find out again and again which engines there are; those that are new are taken in by their threads."""
        while not self._stopping.wait(LOOK_EVERY_S):
            try:
                there = self._engines.engines()
            except Exception:  # noqa: BLE001 - the client's connection may fail for a while
                _log.debug("The client does not say which engines there are", exc_info=True)
                continue
            for key, life in [*self.lives.items()]:
                if key not in there and time.monotonic() - life.read_s + life.silent_s > TOLD_LATELY_S:
                    self.lose(life, "its process is gone")
            for key, name in there.items():
                if key not in self._threads:
                    self._start(key, self._take_in, key, name)

    def _take_in(self, key: str, name: str) -> None:
        try:
            life = self._join(key, name)
        except Exception:  # noqa: BLE001 - likewise
            _log.debug("Engine %s could not be taken in", name, exc_info=True)
            del self._threads[key]  # the next look tries again
            return
        if life is None:
            return
        self.ping(life)  # before it is shown: its spans have to be placed
        self.lives[key] = life
        while not life.mirror.is_told and life.silent_s < SILENT_S and not self._stopping.is_set():
            self.read(life)
        if life.mirror.is_told:
            self._joined(life)
        self._follow(life)


def clock_text(unix_ns: int) -> str:
    """Write a time of the day.

    Examples
    --------
    >>> clock_text(1_800_000_000_000_000_000)
    '08:00:00 UTC'
    """
    return f"{datetime.fromtimestamp(unix_ns / 1e9, UTC):%H:%M:%S} UTC"


def began_ns(lives: Sequence[Life]) -> list[int]:
    """Return when each simulated engine began, in ns: at 0, or where the process ended whose place it took."""
    ends_ns: dict[str, int] = {}
    found = []
    for life in lives:  # of those of one name the first process first
        found.append(ends_ns.get(life.called, 0))
        ends_ns[life.called] = found[-1] + life.mirror.extent_ns[1]
    return found


def loss_texts(lives: Sequence[Life], offsets: Sequence[ClockOffset] | None) -> list[str]:
    """Say of each lost engine since when and why it is, and what of it is shown; no offsets where there is no common time."""
    times = [np.array(life.mirror.extent_ns if life.mirror.span_count else (), np.int64) for life in lives]
    if offsets is None:
        placed = [own + began for own, began in zip(times, began_ns(lives), strict=True)]
    else:
        placed = [offset.shift(own) for own, offset in zip(times, offsets, strict=True)]
    zero_ns = min((int(own[0]) for own in placed if len(own)), default=0)
    texts = []
    for life, own in zip(lives, placed, strict=True):
        if life.is_there:
            continue
        after = "" if offsets is None else f", {format_ns(life.lost_ns - zero_ns)} into the trace"
        shown = f"Its spans up to {format_ns(int(own[1]) - zero_ns)} are shown" if len(own) else "No span of it had come"
        unended = f"; {life.mirror.unended_count:,} had not ended" if life.mirror.unended_count else ""
        texts.append(f"Engine {life.name} was lost at {clock_text(life.lost_unix_ns)}{after}: {life.why}. {shown}{unended}.")
    return texts


def name_order(name: str) -> tuple[int, str]:
    """Return what names are sorted by: numbers by their value."""
    return (int(name), "") if name.isdecimal() else (1 << 62, name)


def named(lives: Sequence[Life], on: str | int | Sequence[str | int]) -> list[Life]:
    """Return the engines that a user names, of some.

    Raises
    ------
    ClusterError
        If none is there.
    OptionError
        If one is not, or none is named.
    """
    there = {life.called: life for life in lives if life.is_there}
    lost = {life.name: f" Engine {life.name} is lost: {life.why}." for life in lives if not life.is_there}
    if not there:
        raise ClusterError(f"No engine is there any more.{''.join([*lost.values()][-4:])} Start others, and a new gsl.Cluster.")
    if on == "all":
        return [*there.values()]
    words = on.split(",") if isinstance(on, str) else on if isinstance(on, Sequence) else [on]
    chosen = dict.fromkeys(str(word).strip() for word in words)
    for word in chosen:
        if word not in there:
            hint = lost.get(word, "") + " " + nearest_hint(word, [*there, "all"])
            raise OptionError(f"There is no engine {word!r} in this cluster.{hint}")
    if not chosen:
        raise OptionError("No engine is named. Use on='all', on='0,2' or on=[0, 2].")
    return [there[word] for word in chosen]


def reason(error: BaseException) -> str:
    """Say in one line why an engine cannot be used, or what it was asked failed."""
    text = " ".join(str(error).split()) or "no answer"
    if "No module named 'gpustreamlab" in text:
        return "gpustreamlab is not installed there, or in an older version; type there: pip install --upgrade gpustreamlab"
    return text if isinstance(error, ClusterError) else f"{type(error).__name__}: {text[:500]}"


def _require_processes(looks: Mapping[str, Facts]) -> None:
    """Refuse engines that are threads of one process: they would have one session."""
    shared: dict[str, list[str]] = {}
    for name, facts in looks.items():
        shared.setdefault(facts.process, []).append(name)
    for together in shared.values():
        if len(together) > 1:
            raise ClusterError(
                f"Engines {', '.join(together)} are threads of one process, and each needs a process of its own: "
                "distributed.LocalCluster(processes=True), or gsl.Cluster(workers=4)."
            )


def _refused(failures: Mapping[str, str], count: int) -> ClusterError:
    names: dict[str, list[str]] = {}
    for name in sorted(failures, key=name_order):
        names.setdefault(failures[name], []).append(name)
    lines = "\n".join(f"  {', '.join(alike)}: {why}" for why, alike in names.items())
    return ClusterError(f"{len(failures)} of {count} engines cannot be used:\n{lines}", failures=failures)
