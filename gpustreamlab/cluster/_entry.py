"""How engines come into a cluster: what they are is looked at, each takes a device, and gets a session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

import gpustreamlab
from gpustreamlab.cluster import _worker
from gpustreamlab.cluster._engines import Engines
from gpustreamlab.cluster._follower import Life, first_of
from gpustreamlab.cluster._mirror import Mirror
from gpustreamlab.cluster._naming import name_order
from gpustreamlab.cluster._worker import Facts
from gpustreamlab.errors import ClusterError

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
        self._lock = threading.RLock()
        self._looks: dict[str, Facts] = {}
        self._ranks: dict[str, tuple[tuple[str, str], int]] = {}
        self._generations: dict[str, int] = {}
        self._devices: dict[tuple[object, ...], int] = {}

    def admit(self) -> list[Life]:
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
        _at_once(self._look, there.items())
        keys = sorted(self._looks, key=lambda key: name_order(there[key]))
        self._require_processes({key: there[key] for key in keys})
        for key in keys:
            self._rank(key, keys)
        opened: dict[str, Facts | None] = {}
        _at_once(lambda key: opened.update({key: self._open(key, there[key])}), [(key,) for key in keys])
        lives = [self._live(key, there[key], facts) for key in keys if (facts := opened.get(key)) is not None]
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

    def admit_late(self, key: str, name: str, there: Collection[str]) -> Life | None:
        """Open a session on an engine that has come later, beside those of these keys; None where that fails."""
        if not self._look(key, name):
            return None
        self._rank(key, there)
        facts = self._open(key, name)
        return None if facts is None else self._live(key, name, facts)

    def _look(self, key: str, name: str) -> bool:
        """Find out what an engine is; note why where it cannot be used. One that works at a cell tells of it aside."""
        try:
            answers = {"run": self._engines.run(key, _worker.look), "aside": self._engines.aside(key, _worker.look)}
            facts: Facts = first_of(answers, BEGIN_S)
        except Exception as error:  # noqa: BLE001 - whatever it is, the user is told of which engine
            self.failures[name] = reason(error)
            return False
        if facts.version != gpustreamlab.__version__:
            self.failures[name] = (
                f"it has gpustreamlab {facts.version}, and this client has {gpustreamlab.__version__}; install the same there"
            )
            return False
        self._looks[key] = facts
        return True

    def _require_processes(self, names: Mapping[str, str]) -> None:
        """Refuse engines that are threads of one process: they would have one session."""
        shared: dict[str, list[str]] = {}
        for key, name in names.items():
            shared.setdefault(self._looks[key].process, []).append(name)
        for together in shared.values():
            if len(together) > 1:
                raise ClusterError(
                    f"Engines {', '.join(together)} are threads of one process, and each needs a process of its own: "
                    "distributed.LocalCluster(processes=True), or gsl.Cluster(workers=4)."
                )

    def _rank(self, key: str, there: Collection[str]) -> None:
        """Choose which of the engines that see the same devices this is."""
        with self._lock:
            group = self._looks[key].host, self._looks[key].visible
            others = [self._ranks[other] for other in there if other != key and other in self._ranks]
            taken = {rank for own, rank in others if own == group}
            self._ranks[key] = group, min(set(range(len(taken) + 1)) - taken)

    def _open(self, key: str, name: str) -> Facts | None:
        """Let an engine have a session, or find the one that it has, and return what it is; None where that fails."""
        try:
            begin = self._engines.run(key, _worker.begin, self._client, self._backend, self._options, self._ranks[key][1])
            attach = self._engines.aside(key, _worker.attach, self._client, self._backend)
            facts: Facts | str = first_of({"run": begin, "aside": attach}, BEGIN_S)
        except Exception as error:  # noqa: BLE001 - likewise
            facts = reason(error)
        if isinstance(facts, str):
            self.failures[name] = facts
            return None
        return facts

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


def reason(error: BaseException) -> str:
    """Say in one line why an engine cannot be used, or what it was asked failed."""
    text = " ".join(str(error).split()) or type(error).__name__
    if "No module named 'gpustreamlab" in text:
        return "gpustreamlab is not installed there, or in an older version; type there: pip install --upgrade gpustreamlab"
    return text if isinstance(error, ClusterError) else f"{type(error).__name__}: {text[:500]}"


def _at_once(call: Callable[..., object], arguments: Iterable[tuple[Any, ...]]) -> None:
    """Call a function for each of some arguments, in a thread each, and wait for all."""
    threads = [threading.Thread(target=call, args=each, daemon=True) for each in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * BEGIN_S)


def _refused(failures: Mapping[str, str], count: int) -> ClusterError:
    names: dict[str, list[str]] = {}
    for name in sorted(failures, key=name_order):
        names.setdefault(failures[name], []).append(name)
    lines = "\n".join(f"  {', '.join(alike)}: {why}" for why, alike in names.items())
    return ClusterError(f"{len(failures)} of {count} engines cannot be used:\n{lines}", failures=failures)
