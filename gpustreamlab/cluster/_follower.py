"""Keeps a client up to date: who is there, what they recorded, and what their clocks say."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gpustreamlab._util.host import monotonic_clock_id
from gpustreamlab.cluster import _worker
from gpustreamlab.cluster._calls import Output
from gpustreamlab.cluster._engines import Answer, Engines
from gpustreamlab.cluster._mirror import Mirror
from gpustreamlab.cluster._worker import Changes, Facts

_log = logging.getLogger(__name__)

TICK_S = 0.02
"""How often the answers are looked at."""
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
    printed: tuple[str, list[Output]] = field(default_factory=lambda: ("", []))
    """Which call worked there when it last answered, and all that it had printed and shown."""
    silent_s: float = 0.0
    """For how long it has told nothing, in s, while this process ran."""
    asked: Answer | None = None
    asked_s: float = 0.0
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def is_there(self) -> bool:
        """Whether it was there when last looked for."""
        return not self.lost_unix_ns

    @property
    def is_silent(self) -> bool:
        """Whether it is there and does not answer."""
        return self.is_there and self.silent_s > SILENT_S


class Follower:
    """Two threads: one reads records, one pings.

    Parameters
    ----------
    engines
        The adapter.
    client
        What engines know this reader by.
    join
        Makes the life of an engine that has come, or returns None where that fails; called in a thread.
    """

    def __init__(self, engines: Engines, client: str, join: Callable[[str, str], Life | None]) -> None:
        self._engines, self._client, self._join = engines, client, join
        self.lives: dict[str, Life] = {}
        """By key, those that are gone too."""
        self.tell_joined: Callable[[Life], object] = bool
        """Takes each engine that comes later, once it is followed."""
        self.tell_pings: Callable[[Life, list[tuple[int, int, int]]], object] = lambda *_: None
        """Takes an engine, and of each ping when it was sent, what it told, and when that came, in ns."""
        self._stopping = threading.Event()
        self._joining: dict[str, threading.Thread] = {}
        self._looked_s = 0.0
        self._stepped_s = time.monotonic()
        self._threads = [
            threading.Thread(target=self._repeat, args=(self.step, TICK_S), name="gpustreamlab cluster", daemon=True),
            threading.Thread(
                target=self._repeat, args=(self.ping, PING_EVERY_S), name="gpustreamlab cluster clocks", daemon=True
            ),
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads, and wait until they have ended."""
        self._stopping.set()
        for thread in (*self._threads, *self._joining.values()):
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(SILENT_S)

    def step(self) -> None:
        """Look who is there, take the answers that have come, and ask for more."""
        before_s, self._stepped_s = self._stepped_s, time.monotonic()
        for life in [*self.lives.values()]:
            life.silent_s += min(self._stepped_s - before_s, 2 * SILENT_S)  # longer only where this process was stopped
        if time.monotonic() - self._looked_s >= LOOK_EVERY_S:
            self.look()
        for life in [*self.lives.values()]:
            if life.is_there:
                with life.lock:
                    self._follow(life)

    def look(self) -> Mapping[str, str]:
        """Find out which engines there are; those that are new are asked in threads of their own."""
        there = self._engines.engines()
        self._looked_s = time.monotonic()
        for key, life in [*self.lives.items()]:
            if life.is_there and key not in there and time.monotonic() - life.mirror.news_s > TOLD_LATELY_S:
                self.lose(life, "its process is gone")
        for key, name in there.items():
            if key not in self.lives and key not in self._joining:
                thread = threading.Thread(
                    target=self._take_in, args=(key, name), name=f"gpustreamlab engine {name}", daemon=True
                )
                self._joining[key] = thread
                thread.start()
        return there

    def lose(self, life: Life, why: str) -> None:
        """Note that an engine is gone. What had arrived stays."""
        if life.is_there:
            now_unix_ns = time.time_ns()
            life.mirror.end(f"engine {life.name} lost {clock_text(now_unix_ns)}")
            life.why, life.lost_ns, life.lost_unix_ns = why, time.monotonic_ns(), now_unix_ns
            _log.warning("Engine %s is lost: %s. What had arrived stays, the others go on.", life.name, why)

    def drain(self, limit_s: float) -> bool:
        """Read all that the engines have recorded by now; tell whether that was done before the time was over."""
        end_s = time.monotonic() + limit_s
        is_whole = True
        for life in [*self.lives.values()]:
            while life.is_there and not self._is_drained(life, end_s):
                if time.monotonic() >= end_s:
                    is_whole = False
                    break
        return is_whole

    def _is_drained(self, life: Life, end_s: float) -> bool:
        """Take the next answer of an engine; tell whether it was asked for just now, and has all that there was."""
        with life.lock:
            is_fresh = life.asked is None  # an older answer says nothing of what came since
            if is_fresh:
                self._ask(life)
            asked, life.asked = life.asked, None
            try:
                changes = None if asked is None else asked.result(max(TICK_S, min(SILENT_S, end_s - time.monotonic())))
            except Exception as error:  # noqa: BLE001 - asked for again
                _log.debug("Engine %s did not answer: %s", life.name, error)
                life.retry_count += 1
                changes = None
            if changes is None:
                time.sleep(TICK_S)
                return False
            self._take(life, changes)
            has_come = not changes.data or life.mirror.arrived == changes.place
            return is_fresh and has_come and not changes.is_full

    def ping(self) -> None:
        """Ask every engine for its time, again and again; one of this machine says by our own clock when that was."""
        for life in [*self.lives.values()]:
            self._ping(life)

    def _ping(self, life: Life) -> None:
        pings: list[tuple[int, int, int]] = []
        is_here = life.facts.clock and life.facts.clock == monotonic_clock_id()
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
        if pings:
            self.tell_pings(life, pings)

    def _follow(self, life: Life) -> None:
        now_s = time.monotonic()
        asked = life.asked
        if asked is None:
            if now_s - life.asked_s >= READ_EVERY_S:
                self._ask(life)
            return
        if asked.done():
            life.asked = None
            try:
                is_more = self._take(life, asked.result(SILENT_S))
            except Exception as error:  # noqa: BLE001 - asked for again
                life.retry_count += 1
                _log.debug("What engine %s told could not be read: %s", life.name, error)
            else:
                if is_more:
                    self._ask(life)
        elif now_s - life.asked_s > SILENT_S:  # it is asked again from where its last answer ended
            life.asked = None
            life.retry_count += 1

    def _ask(self, life: Life) -> None:
        life.asked_s = time.monotonic()
        try:
            mirror, (call, outputs) = life.mirror, life.printed
            known = mirror.arrived, mirror.newest_hazard_ns, call, len(outputs)
            life.asked = self._engines.aside(life.key, _worker.read, self._client, *known)
        except Exception as error:  # noqa: BLE001 - it may have gone this moment
            _log.debug("Engine %s could not be asked: %s", life.name, error)

    def _take(self, life: Life, changes: Changes) -> bool:
        """Take an answer in; tell whether there is more."""
        mirror = life.mirror
        mirror.news_s, life.silent_s = time.monotonic(), 0.0
        if mirror.log not in (0, changes.log):  # the engine's session is another one
            self.lose(life, "its session was closed there")
            return False
        is_new = bool(changes.data) and changes.since == mirror.arrived
        if is_new:
            mirror.take(changes.data, changes.place)
        mirror.hear(changes)
        call, outputs = changes.printed
        if call != life.printed[0]:
            life.printed = call, []
        life.printed[1].extend(outputs)
        return is_new and changes.is_full

    def _take_in(self, key: str, name: str) -> None:
        life = self._join(key, name)
        if life is not None:
            self._ping(life)  # before it is shown: its spans have to be placed
            self.lives[key] = life
            end_s = time.monotonic() + SILENT_S
            while not life.mirror.is_told and time.monotonic() < end_s:
                self._is_drained(life, end_s)
            if life.mirror.is_told:
                self.tell_joined(life)

    def _repeat(self, step: Callable[[], object], pause_s: float) -> None:
        while not self._stopping.wait(pause_s):
            try:
                step()
            except Exception:  # noqa: BLE001 - the client's connection may fail for a while
                _log.debug("The cluster could not be followed", exc_info=True)


def clock_text(unix_ns: int) -> str:
    """Write a time of the day.

    Examples
    --------
    >>> clock_text(1_800_000_000_000_000_000)
    '08:00:00 UTC'
    """
    return f"{datetime.fromtimestamp(unix_ns / 1e9, UTC):%H:%M:%S} UTC"


def first_of(answers: Mapping[str, Answer], limit_s: float) -> Any:
    """Wait until one of some answers is there that counts, and return it.

    An answer that is None, or failed while another may come, does not count.

    Raises
    ------
    TimeoutError
        If none came in time.
    """
    end_s = time.monotonic() + limit_s
    left = dict(answers)
    failure: BaseException | None = None
    while left and time.monotonic() < end_s:
        for name, answer in [*left.items()]:
            if answer.done():
                del left[name]
                try:
                    found = answer.result(SILENT_S)
                except Exception as error:  # raised below where it is the only one
                    if "No module named" in str(error):  # nor will the other way find it
                        raise
                    failure = error
                else:
                    if found is not None:
                        return found
        time.sleep(0.005)
    if failure is not None:
        raise failure
    raise TimeoutError(f"no answer within {limit_s:g} s")
