"""How engines come into a cluster: what they are is looked at, each takes a device, and gets a session."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import gpustreamlab
from gpustreamlab.cluster import _worker
from gpustreamlab.cluster._engines import Engines, ask
from gpustreamlab.cluster._follower import Life
from gpustreamlab.cluster._mirror import Mirror
from gpustreamlab.cluster._worker import Facts
from gpustreamlab.errors import ClusterError, OptionError, nearest_hint

ANSWER_S = 30.0
"""How long an engine may take to tell what is left."""
BEGIN_S = 120.0
"""How long it may take to begin: to import packages takes long where the disk is far, or the machine busy."""


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
