"""A cluster: many processes on an engine of others, one session in each, one trace of all."""

from __future__ import annotations

import logging
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

import gpustreamlab
from gpustreamlab._util.words import wrap_lines
from gpustreamlab.cluster import _worker
from gpustreamlab.cluster._engines import Answer, Engines, choose_engines
from gpustreamlab.cluster._follower import Follower, Life, first_of
from gpustreamlab.cluster._mirror import Mirror
from gpustreamlab.cluster._outcomes import EngineStatus, Outcomes
from gpustreamlab.cluster._worker import Facts, Outcome
from gpustreamlab.errors import ClusterError, OptionError, SessionClosedError, TraceError, TraceFileError, nearest_hint
from gpustreamlab.model import Layout, Note, Trace, merge
from gpustreamlab.record import DEFAULT_RING_SIZE, Tables
from gpustreamlab.session import Session
from gpustreamlab.sinks.reading import read_spool
from gpustreamlab.typing import NoteKind

if TYPE_CHECKING:
    from typing import Self

    from gpustreamlab.analysis import Overlap
    from gpustreamlab.timeline import Timeline

__all__ = ["Cluster", "EngineStatus", "Outcomes"]

_log = logging.getLogger(__name__)

ANSWER_S = 30.0
"""How long an engine may take to begin."""
GONE_S = 0.02
"""How often a call that runs is looked at."""


class Cluster:
    """Many processes, each with a `Session`, on engines of ipyparallel or workers of Dask.

    Parameters
    ----------
    client
        An `ipyparallel.Client` or a `distributed.Client`; it stays its owner's. None to start workers on this machine.
    workers
        How many workers of Dask are started here, where there is no client.
    backend
        As for `Session`. If None, each engine takes the GPU that is its own: by ``CUDA_VISIBLE_DEVICES`` where that differs
        between engines of a host, else one after the other.
    spool
        A folder on each engine's machine: each session is spooled to a file in it, so that what had not arrived of an engine
        that died can be read where the folder is reachable from here.
    ring_size
        How many spans are kept here of each engine, 104 bytes each; the oldest make room and are counted.
    title
        A name for traces and timelines.
    options
        Given to each session, see `Session`.

    Raises
    ------
    OptionError
        If it is no client, or neither a client nor a number of workers is given.
    MissingExtraError
        If workers are to be started and Dask is not installed.
    ClusterError
        If there is no engine, or some cannot be used: the message names each, and says why.

    Examples
    --------
    ::

        with gsl.Cluster(workers=4, backend="sim") as lab:
            lab.run(step)                    # step(session) on each
            lab.synchronize()
            lab.timeline()
    """

    def __init__(
        self,
        client: Any = None,
        *,
        workers: int | None = None,
        backend: str | None = None,
        spool: str | None = None,
        ring_size: int = DEFAULT_RING_SIZE,
        title: str = "",
        **options: Any,
    ) -> None:
        self._engines = _open_engines(client, workers)
        self._client = uuid.uuid4().hex
        self._backend, self._ring_size, self._title = backend, ring_size, title
        self._options = options | {"title": title} | ({} if spool is None else {"spool": str(spool)})
        self._lock = threading.RLock()
        self._generations: dict[str, int] = {}
        self._devices: dict[tuple[object, ...], int] = {}
        self._looks: dict[str, Facts] = {}
        self._ranks: dict[str, tuple[tuple[str, str], int]] = {}
        self._partitioned: tuple[Any, dict[str, Any]] | None = None
        self._failures: dict[str, str] = {}
        self._is_closed = False
        self._last_trace: Trace | None = None
        self._clocks: dict[str, list[tuple[int, int, int]]] = {}
        join: Any = _weakly(self._join)
        self._follower = Follower(self._engines, self._client, join)
        self._follower.tell_pings = _weakly(self._note_pings)
        try:
            self._begin()
        except BaseException:
            self._engines.close()
            raise
        self._follower.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        closed = "" if self._last_trace is None else ", closed"
        return wrap_lines([f"<Cluster: {len(self.names)} engines{closed}>", *map(str, self.engines)])

    @property
    def names(self) -> tuple[str, ...]:
        """The engines that are there, as ``on=`` takes them."""
        return tuple(life.called for life in self._there())

    @property
    def engines(self) -> tuple[EngineStatus, ...]:
        """How each engine stands, those that are lost too."""
        return tuple(map(_status_of, self._lives()))

    @property
    def lost(self) -> tuple[EngineStatus, ...]:
        """The engines that are gone, why, and from when on."""
        return tuple(status for status in self.engines if status.lost_unix_ns)

    @property
    def failures(self) -> Mapping[str, str]:
        """Engines that came later and could not be used, and why."""
        return MappingProxyType(dict(self._failures))

    def run(self, function: Callable[..., Any], *args: Any, on: str | int | Sequence[str | int] = "all") -> Outcomes:
        """Call ``function(session, *args)`` on engines, and wait for all of them.

        Parameters
        ----------
        function
            Sent as the client sends functions: Dask and ipyparallel both take those of a notebook.
        on
            ``"all"``, a name, several as ``"0,2"``, or a sequence of names.

        Returns
        -------
        Outcomes
            What each returned, by its name.

        Raises
        ------
        ClusterError
            If it failed on some: which, with the traceback of each; ``error.results`` has what the others returned.
        OptionError
            If there is no such engine.
        """
        return self._run_all(on, _worker.call, function, *args)

    def run_cell(
        self,
        source: str,
        stream: str,
        *,
        on: str | int | Sequence[str | int] = "all",
        label: str | None = None,
        **options: Any,
    ) -> Outcomes:
        """Run a cell on engines with a stream selected, as ``%%gpustream NAME --on all`` does; its variables stay there.

        Parameters
        ----------
        source
            The cell. ``lab`` is the engine's session in it.
        stream
            Name of the stream; made on first use.
        on, label
            As for `run`; name of the range, the stream's if None.
        options
            Of the stream, as for `Session.stream`; ``sync=True`` to wait for its work.

        Raises
        ------
        ClusterError, OptionError
            As `run`.
        """
        return self._run_all(on, _worker.run_cell, source, stream, stream if label is None else label, options)

    def partition(self, plan: Any = ..., /, **shares: Any) -> Outcomes:
        """Share out the SMs of every engine alike, as `Session.partition` does; engines that come later get it too.

        Raises
        ------
        ClusterError
            If some device does not grant it: cards may be unequal. Those that do have it then.
        """
        found = self._run_all("all", _worker.call, _partition, plan, shares)
        self._partitioned = (plan, shares)
        return found

    def synchronize(self) -> None:
        """Wait until the devices of all engines are idle, and all that was recorded has arrived."""
        self._run_all("all", _worker.call, _synchronize)
        self._follower.drain(ANSWER_S)

    @property
    def traces(self) -> dict[str, Trace]:
        """What has arrived of each engine, on its own clock; of one that is lost also what is only in its spool."""
        return {life.name: _trace_of(life) for life in self._lives() if life.mirror.is_told}

    @property
    def trace(self) -> Trace:
        """What has arrived of all engines, on one clock; a group for each host and device.

        Raises
        ------
        TraceError
            If an engine has not told its time yet: how far its clock is from the others' is not known.
        """
        if self._last_trace is not None:
            return self._last_trace
        lives = [life for life in self._lives() if life.mirror.is_told]
        if not lives:
            raise TraceError("No engine has told anything yet. Run something first: lab.run(function).")
        return self._merged(lives, [_trace_of(life) for life in lives])

    def overlap(self) -> dict[str, Overlap]:
        """Return for each engine how much its streams' work overlapped so far."""
        return {name: trace.overlap() for name, trace in self.traces.items()}

    def timeline(self) -> Timeline:
        """Return a picture of what has arrived so far."""
        return self.trace.timeline()

    def close(self) -> None:
        """Wait for the work, keep the trace, and close the sessions that no other client uses. Idempotent."""
        if self._is_closed:
            return
        with suppress(ClusterError):
            self.synchronize()
        self._follower.stop()
        with suppress(TraceError):
            self._last_trace = self.trace
        self._is_closed = True
        for life, answer in [(life, self._engines.run(life.key, _worker.end, self._client)) for life in self._there()]:
            try:
                answer.result(ANSWER_S)
            except Exception as error:  # noqa: BLE001 - the others are closed all the same
                _log.warning("The session of engine %s could not be closed: %s", life.name, error)
        self._engines.close()

    def _lives(self) -> list[Life]:
        return sorted(self._follower.lives.values(), key=lambda life: (*name_order(life.called), life.mirror.process))

    def _there(self) -> list[Life]:
        return [life for life in self._lives() if life.is_there]

    def _begin(self) -> None:
        """Open a session on each engine that is there."""
        there = self._engines.engines()
        if not there:
            raise ClusterError("The cluster has no engine. Start some, or wait for them: client.wait_for_workers(4).")
        _at_once(self._look, there.items())
        keys = sorted(self._looks, key=lambda key: name_order(there[key]))
        for key in keys:
            self._rank(key)
        opened: dict[str, Facts | None] = {}
        _at_once(lambda key: opened.update({key: self._open(key, there[key])}), [(key,) for key in keys])
        lives = [self._live(key, there[key], facts) for key in keys if (facts := opened.get(key)) is not None]
        failures, self._failures = self._failures, {}
        if len({life.facts.simulated for life in lives}) > 1:
            without = [life.name for life in lives if life.facts.simulated]
            failures |= dict.fromkeys(without, "it has no usable GPU, and others have one; simulate all with backend='sim'")
        if failures:
            raise _refused(failures)
        self._follower.lives.update({life.key: life for life in lives})
        self._follower.drain(ANSWER_S)
        self._follower.ping()

    def _join(self, key: str, name: str) -> Life | None:
        """Take an engine in that has come later; None where that fails."""
        facts = self._open(key, name) if self._look(key, name) else None
        if facts is None:
            return None
        if self._partitioned is not None:
            self._engines.run(key, _worker.call, _partition, *self._partitioned)
        return self._live(key, name, facts)

    def _live(self, key: str, name: str, facts: Facts) -> Life:
        with self._lock:
            generation = self._generations[name] = self._generations.get(name, 0) + 1
            card: tuple[object, ...] = (key,) if facts.simulated else (facts.host, facts.visible, facts.ordinal)
            own = name if generation == 1 else f"{name}#{generation}"
            mirror = Mirror(
                own,
                process=sum(self._generations.values()) - 1,
                device=self._devices.setdefault(card, len(self._devices)),
                host=facts.host,
                ring_size=self._ring_size,
            )
        return Life(key=key, called=name, name=own, facts=facts, mirror=mirror)

    def _look(self, key: str, name: str) -> bool:
        """Find out what an engine is; note why where it cannot be used. One that works at a cell tells of it aside."""
        try:
            answers = {"run": self._engines.run(key, _worker.look), "aside": self._engines.aside(key, _worker.look)}
            facts: Facts = first_of(answers, ANSWER_S)
        except Exception as error:  # noqa: BLE001 - likewise
            self._failures[name] = _reason(error)
            return False
        if facts.version != gpustreamlab.__version__:
            self._failures[name] = (
                f"it has gpustreamlab {facts.version}, and this client has {gpustreamlab.__version__}; install the same there"
            )
            return False
        self._looks[key] = facts
        return True

    def _rank(self, key: str) -> int:
        """Return which of the engines that see the same devices this is."""
        with self._lock:
            group = self._looks[key].host, self._looks[key].visible
            gone = {life.key for life in self._lives() if not life.is_there}
            taken = {rank for other, (own, rank) in self._ranks.items() if own == group and other not in {key, *gone}}
            _, rank = self._ranks.setdefault(key, (group, min(set(range(len(taken) + 1)) - taken)))
            return rank

    def _open(self, key: str, name: str) -> Facts | None:
        """Let an engine have a session, or find the one that it has, and return what it is; None where that fails."""
        try:
            begin = self._engines.run(key, _worker.begin, self._client, self._backend, self._options, self._rank(key))
            facts: Facts = first_of({"run": begin, "aside": self._engines.aside(key, _worker.attach, self._client)}, ANSWER_S)
        except Exception as error:  # noqa: BLE001 - whatever it is, the user is told of which engine
            self._failures[name] = _reason(error)
            return None
        return facts

    def _run_all(self, on: str | int | Sequence[str | int], function: Callable[..., Any], *args: Any) -> Outcomes:
        """Call a function that returns an `Outcome` on engines, and wait for each until it has answered or is gone."""
        if self._is_closed:
            raise SessionClosedError("This cluster is closed. Its trace can be read; start another with gsl.Cluster(client).")
        lives = self._chosen(on)
        answers = {life: self._engines.run(life.key, function, *args) for life in lives}
        try:
            outcomes = {life.called: self._awaited(life, answer) for life, answer in answers.items()}
        except KeyboardInterrupt:
            for life in lives:
                self._engines.interrupt(life.key)
            raise
        failed = {name: outcome for name, outcome in outcomes.items() if outcome.error}
        good = Outcomes({name: outcome for name, outcome in outcomes.items() if not outcome.error})
        if failed:
            raise _failed(failed, good)
        return good

    def _awaited(self, life: Life, answer: Answer) -> Outcome:
        """Wait for an answer as long as the engine is there: how long work takes is the user's matter."""
        while life.is_there:
            if answer.done():
                try:
                    outcome: Outcome = answer.result(ANSWER_S)
                except Exception as error:  # noqa: BLE001 - of the connection: each adapter has its own
                    self._follower.look()
                    if life.is_there:
                        return Outcome(error=_reason(error))
                else:
                    return outcome
            time.sleep(GONE_S)
        return Outcome(error=f"It is gone: {life.why}.")

    def _chosen(self, on: str | int | Sequence[str | int]) -> list[Life]:
        there = {life.called: life for life in self._there()}
        if on == "all":
            return self._there()
        words = [on] if isinstance(on, int) else on.split(",") if isinstance(on, str) else [*on]
        chosen = []
        for word in (str(word).strip() for word in words):
            if word not in there:
                gone = next((life for life in self._lives() if life.name == word), None)
                why = "" if gone is None else f" It is lost: {gone.why}."
                raise OptionError(f"There is no engine {word!r} in this cluster.{why} {nearest_hint(word, there)}")
            chosen.append(there[word])
        if not chosen:
            raise OptionError("No engine is named. Use on='all', on='0,2' or on=[0, 2].")
        return list(dict.fromkeys(chosen))

    def _note_pings(self, key: str, pings: list[tuple[int, int, int]]) -> None:
        """Keep the best of a burst: when by the engine's clock, how far the client's is ahead of it, and the error."""
        sent_ns, told_ns, received_ns = min(pings, key=lambda ping: ping[2] - ping[0])
        half_ns = (received_ns - sent_ns + 1) // 2
        known = self._clocks.setdefault(key, [])
        if not known or told_ns > known[-1][0]:
            known.append((told_ns, sent_ns + half_ns - told_ns, half_ns))

    def _merged(self, lives: Sequence[Life], traces: Sequence[Trace]) -> Trace:
        """Return the traces of engines as one, on the clock of the first."""
        if all(life.facts.simulated for life in lives):
            whole = merge(traces, ahead_ns=[0] * len(traces), error_ns=0)
            told: tuple[str, ...] = (
                "Engines are simulated: the time of each begins at 0, so times of two engines cannot be compared.",
            )
        else:
            missing = [life.name for life in lives if life.key not in self._clocks]
            if missing:
                raise TraceError(f"Engine {', '.join(missing)} has not told its time yet. Wait a second: lab.synchronize().")
            measured = [np.array(self._clocks[life.key], np.int64) for life in lives]
            begin_ns = int(measured[0][0, 1])
            whole = merge(
                traces,
                ahead_ns=[(one[:, 0], one[:, 1] - begin_ns) for one in measured],
                error_ns=2 * max(int(one[:, 2].max()) for one in measured),
            )
            told = ()
        told += tuple(_loss_text(life) for life in lives if not life.is_there)
        notes = (*whole.notes, *filter(None, (_loss_note(life, whole) for life in lives)))
        metadata = replace(whole.metadata, title=self._title, missing=(*whole.metadata.missing, *told))
        return replace(whole, notes=notes, metadata=metadata)


def _open_engines(client: object, workers: object) -> Engines:
    if (client is None) == (workers is None):
        raise OptionError("gsl.Cluster takes a client, or a number of workers to start here: gsl.Cluster(workers=4).")
    if workers is None:
        return choose_engines(client)
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise OptionError(f"workers is {workers!r}; it must be a number of processes, 1 or more: gsl.Cluster(workers=4).")
    from gpustreamlab.cluster._distributed import start_workers

    return start_workers(workers)


def _at_once(call: Callable[..., object], arguments: Iterable[tuple[Any, ...]]) -> None:
    """Call a function for each of some arguments, in a thread each, and wait for all."""
    threads = [threading.Thread(target=call, args=each, daemon=True) for each in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * ANSWER_S)


def name_order(name: str) -> tuple[int, str]:
    """Return what names are sorted by: numbers by their value."""
    return (int(name), "") if name.isdecimal() else (1 << 62, name)


def _status_of(life: Life) -> EngineStatus:
    mirror, facts = life.mirror, life.facts
    state = f"lost, {life.why}" if not life.is_there else "silent" if life.is_silent else "there"
    return EngineStatus(
        name=life.name,
        host=facts.host,
        pid=facts.pid,
        device=f"{facts.device} (simulated)" if facts.simulated else facts.device,
        state=state,
        span_count=mirror.span_count,
        missed_count=mirror.missed_count,
        bytes_per_span=mirror.received_bytes / mirror.span_count if mirror.span_count else float("nan"),
        retry_count=life.retry_count,
        lost_unix_ns=life.lost_unix_ns,
    )


def _trace_of(life: Life) -> Trace:
    """Return what has arrived, or of a lost engine what its spool has, where that is more and can be read from here."""
    trace = life.mirror.trace()
    if life.is_there or not life.facts.spool or not Path(life.facts.spool).is_file():
        return trace
    try:
        spooled = read_spool(life.facts.spool)
    except TraceFileError as error:
        _log.warning("The spool of engine %s cannot be read: %s", life.name, error)
        return trace
    if len(spooled) <= len(trace):
        return trace
    placed = life.mirror.placed(Tables(*(getattr(spooled, name) for name in Tables._fields)))
    return replace(spooled, lanes=tuple(placed.lanes), metadata=placed.metadata)


def _loss_text(life: Life) -> str:
    when = datetime.fromtimestamp(life.lost_unix_ns / 1e9, UTC)
    return f"Engine {life.name} was lost at {when:%Y-%m-%d %H:%M:%S} UTC: {life.why}. What it did later is not here."


def _loss_note(life: Life, whole: Trace) -> Note | None:
    """Return a note at the end of what is known of a lost engine."""
    if life.is_there:
        return None
    lanes = [place for place, lane in enumerate(whole.lanes) if lane.process == life.mirror.process]
    is_own = np.isin(whole.lane, lanes)
    if not is_own.any():
        return None
    last = int(np.argmax(np.where(is_own, whole.end_ns, np.iinfo(np.int64).min)))
    name = whole.lanes[int(whole.lane[last])].name
    text = f"engine {life.name} is lost from here on: {life.why}"
    return Note(time_ns=int(whole.end_ns[last]), text=text, stream=name, kind=NoteKind.NOTE)


def _reason(error: BaseException) -> str:
    """Say in one line why an engine cannot be used."""
    text = " ".join(str(error).split()) or type(error).__name__
    if "No module named 'gpustreamlab" in text:
        return "gpustreamlab is not installed there; type there: pip install gpustreamlab"
    return text if isinstance(error, ClusterError) else f"{type(error).__name__}: {text[:500]}"


def _refused(failures: Mapping[str, str]) -> ClusterError:
    lines = "\n".join(f"  {name}: {why}" for name, why in sorted(failures.items()))
    return ClusterError(f"{len(failures)} of the engines cannot be used:\n{lines}", failures=failures)


def _failed(failed: Mapping[str, Outcome], good: Outcomes) -> ClusterError:
    parts = [f"[{name}] {outcome.error}\n{outcome.traceback}".rstrip() for name, outcome in failed.items()]
    kept = f"What the other {len(good)} returned is in error.results." if len(good) else "No other engine was asked."
    return ClusterError(
        f"It failed on {len(failed)} of {len(failed) + len(good)} engines. {kept}\n" + "\n".join(parts),
        failures={name: outcome.traceback or outcome.error for name, outcome in failed.items()},
        results=good,
    )


def _partition(session: Session, plan: Any, shares: dict[str, Any]) -> Layout | None:
    return session.partition(plan, **shares) if plan is not ... else session.partition(**shares)


def _synchronize(session: Session) -> None:
    session.synchronize()


def _weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a method and does not keep its object alive."""
    known = weakref.WeakMethod(method)

    def call(*args: Any) -> Any:
        alive = known()
        return None if alive is None else alive(*args)

    return call
