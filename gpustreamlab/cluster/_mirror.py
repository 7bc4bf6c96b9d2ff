"""What engines recorded: read again and again, and kept here as each engine's own recorder would have it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

import gpustreamlab
from gpustreamlab._util.host import monotonic_clock_id
from gpustreamlab.analysis import Hazard, format_ns
from gpustreamlab.cluster import _worker
from gpustreamlab.cluster._clocks import Clocks
from gpustreamlab.cluster._engines import Engines, ask
from gpustreamlab.cluster._worker import Changes, Facts
from gpustreamlab.errors import ClusterError, OptionError, nearest_hint
from gpustreamlab.memory.hazards import hazard_notes
from gpustreamlab.model import ClockOffset, Lane, Marker, Trace, TraceMetadata
from gpustreamlab.recorder import FIRST_WORK_NUMBER, SPAN_COLUMNS, Chunk, Tables
from gpustreamlab.sinks._spool_format import BatchEncoder, BatchReader, ChunkDecoder
from gpustreamlab.sinks.arrived import Arrived
from gpustreamlab.typing import Int64Array, MarkerKind

_log = logging.getLogger(__name__)

ANSWER_S = 30.0  # How long an engine may take to tell what is left
BEGIN_S = 120.0  # How long it may take to begin: to import packages takes long where the disk is far, or the machine busy
TICK_S = 0.02  # How long it takes at least until an engine that did not answer is asked again
READ_EVERY_S = 0.2  # How often an engine is asked for what is new
SILENT_S = 5.0  # An answer that takes longer is given up, and asked for again; the engine counts as silent meanwhile
LOOK_EVERY_S = 1.0  # How often it is asked which engines there are
TOLD_LATELY_S = 0.5  # An engine that answered so lately is there, whatever the scheduler says
PINGS, PINGS_HERE = 20, 3
PING_EVERY_S = 1.0
PING_LIMIT_S = 1.0  # How long a ping may take
RANGE_NUMBERS = 1 << 32
"""How many ranges of an engine are told apart from those of the others; behind `FIRST_WORK_NUMBER`, `WORK_NUMBERS`."""
WORK_NUMBERS = 1 << 44


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """How an engine stands."""

    name: str
    """What ``on=`` takes."""
    host: str
    """The machine."""
    pid: int
    """Its process there."""
    device: str
    """Name of its device, marked where it is simulated."""
    state: str
    """``"there"``, ``"silent"`` (it does not answer at present), or ``"lost"``, and why."""
    span_count: int
    """Spans that have arrived."""
    missed_count: int
    """Spans that made room before they were read, there or here, or never came into the buffer there."""
    lost_unix_ns: int = 0
    """When it was found to be gone, in ns since 1970 (UTC); 0 while it is there."""

    def __str__(self) -> str:
        missed = f", {self.missed_count:,} missed" if self.missed_count else ""
        return f"{self.name} on {self.host} ({self.device}): {self.state}, {self.span_count:,} spans{missed}"


class Mirror(Arrived):
    """One engine: what it is, and the records of its session, as far as they have arrived."""

    def __init__(self, name: str, facts: Facts, *, key: str = "", process: int = 0, device: int = 0, ring_size: int) -> None:
        super().__init__(ring_size)
        self.name = name
        self.facts = facts
        self.key = key  # What tells it from every other process
        self.process = process
        self.device = device
        self.lost_unix_ns = self.lost_ns = 0
        """When it was found to be gone, by the wall clock and by the client's clock; 0 while it is there."""
        self.why = ""  # Why it counts as gone
        self.heard_s = time.monotonic()  # When it answered last
        self.silent_s = 0.0  # For how long it had not answered, when it was asked last
        self.reading = threading.Lock()  # Held by who reads: what is new since a place is asked for by one at a time
        self.arrived = 0  # The engine's place behind the last chunk that has arrived
        self.log = 0  # Number of the engine's log; 0 before anything was heard
        self.received_bytes = 0  # Bytes that came, for spans and all else
        self.unended_count = 0  # Ranges that had not ended when the engine was lost
        self.hazards: tuple[tuple[Hazard, int], ...] = ()  # What was found there, and when, by the engine's clock, in ns
        self.newest_hazard_ns, self.hazards_ns = -1, -1
        """When the newest was found, by the clock of the engine's host, and when that came here, by our own; -1 for none."""
        self._head, self._decoder = BatchEncoder().head, ChunkDecoder()

    def __repr__(self) -> str:
        return f"<Mirror of engine {self.name!r}: {len(self._log):,} spans>"

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
        facts = self.facts
        return EngineStatus(
            name=self.name,
            host=facts.host,
            pid=facts.pid,
            device=f"{facts.device} (simulated)" if facts.simulated else facts.device,
            state=f"lost, {self.why}" if not self.is_there else "silent" if self.is_silent else "there",
            span_count=self.span_count,
            missed_count=self.dropped_count,
            lost_unix_ns=self.lost_unix_ns,
        )

    @property
    def metadata(self) -> TraceMetadata:
        """What it says of itself; its device has the number that it has in the cluster."""
        return self.tables.metadata

    def take(self, data: bytes, place: int) -> None:
        """Take in an answer."""
        reader = BatchReader(self._head + data, self._decoder)
        chunks = [batch.chunk for batch in reader]
        reader.close()
        with self._lock:
            self.add(chunks)
            self.arrived = place
            self.received_bytes += len(data)

    def hear(self, changes: Changes) -> None:
        """Take in what an answer tells of now: which ranges have not ended, and which hazards were found."""
        self.log, self._open, self._now_ns = changes.log, changes.open_ranges, changes.now_ns
        if changes.hazards is not None:
            self.hazards, self.hazards_ns = changes.hazards, time.monotonic_ns()
        self.newest_hazard_ns = changes.newest_hazard_ns

    def end(self, why: str) -> None:
        """Note that the engine is gone: nothing is open or waited for any more, and what is known of it ends at a mark."""
        text = f"engine {self.name} lost {clock_text(time.time_ns())}"
        with self._lock:
            self.why, self.lost_ns, self.lost_unix_ns = why, time.monotonic_ns(), time.time_ns()
            self.unended_count, self._last = self.pending_count, self._last._replace(pending=0)
            self._open = ()
            if any(self.extent_ns):
                self._log.add(Chunk(markers=(Marker(time_ns=self.extent_ns[1], text=text, kind=MarkerKind.MARK),)))
                self._log.seal()

    def forget(self) -> None:
        """Forget what has arrived, as the engine does where it is there still."""
        with self._lock:
            tables = self.tables
            self._log.clear()
            self._log.add(Chunk(tables=tables))
            self._log.seal()
            self.extent_ns, self._missed, self._last, self.unended_count = (0, 0), 0, Chunk(), 0
            if self.hazards:
                self.hazards, self.hazards_ns = (), time.monotonic_ns()

    def trace(self) -> Trace:
        """Return what has arrived as a trace, on the engine's own clock."""
        trace = super().trace()
        notes = [note for one in self.hazards for note in hazard_notes(trace, *one, prefix=f"{self.name}:")]
        return replace(trace, notes=(*trace.notes, *notes)) if notes else trace

    def _placed_chunk(self, chunk: Chunk) -> Chunk:
        """Return a chunk with numbers that no other engine has; -1 stays, and 0 of calls."""
        rows = chunk.rows.copy()
        for name in ("number", "parent", "correlation"):
            place = SPAN_COLUMNS.index(name)
            rows[place] = self._numbered(rows[place], above=0 if name == "correlation" else -1)
        source, record, target, wait = chunk.dependencies
        source = np.where(source < 0, -1 - self.device, source)  # all streams of the engine's card
        call, buffer, *rest = chunk.accesses
        accesses = np.stack((self._numbered(call, above=0), self._numbered(buffer, above=0), *rest))
        return chunk._replace(
            rows=rows,
            edges=self._numbered(chunk.edges),
            dependencies=np.stack((source, self._numbered(record), target, self._numbered(wait))),
            accesses=accesses,
            tables=None if chunk.tables is None else self.placed(chunk.tables),
        )

    def _numbered(self, numbers: Int64Array, *, above: int = -1) -> Int64Array:
        step = np.where(numbers >= FIRST_WORK_NUMBER, WORK_NUMBERS, RANGE_NUMBERS)
        return np.where(numbers > above, numbers + self.process * step, numbers)

    def placed(self, tables: Tables) -> Tables:
        """Return the tables with names and numbers that are unique in the cluster."""
        lanes: Sequence[Lane] = [
            replace(lane, name=f"{self.name}:{lane.name}", process=self.process, device=self.device) for lane in tables.lanes
        ]
        device = replace(tables.metadata.device, ordinal=self.device, host=self.facts.host)
        threads = tuple(f"{self.name}:{thread}" for thread in tables.threads)
        return tables._replace(
            lanes=tuple(lanes), threads=threads, metadata=replace(tables.metadata, device=device, devices=())
        )


def admit(engines: Engines, client: str, backend: str | None, options: Mapping[str, Any], ring_size: int) -> tuple[Mirror, ...]:
    """Open a session on each engine that is there, by the order of their names.

    Raises
    ------
    ClusterError
        If there is none, some are threads of one process, or one cannot be used.
    """
    try:
        there = engines.engines()
    except Exception as error:
        raise ClusterError(
            f"The client does not say which engines there are ({reason(error)}). It may be closed: make another."
        ) from error
    if not there:
        raise ClusterError("The cluster has no engine. Start some, or wait for them: client.wait_for_workers(4).")
    there = {key: there[key] for key in sorted(there, key=lambda key: name_order(there[key]))}
    failures: dict[str, str] = {}
    looks: dict[str, Facts] = _ask_all(engines, there, dict.fromkeys(there, (_worker.look,)), failures)
    for key in [key for key, facts in looks.items() if facts.version != gpustreamlab.__version__]:
        failures[there[key]] = (
            f"it has gpustreamlab {looks.pop(key).version}, and this client has {gpustreamlab.__version__}; "
            "install the same there"
        )
    _require_processes({there[key]: facts for key, facts in looks.items()})
    calls, alike = {}, dict[tuple[str, str], int]()
    for key, facts in looks.items():
        rank = alike[facts.host, facts.visible] = alike.get((facts.host, facts.visible), -1) + 1
        calls[key] = (_worker.begin, client, backend, dict(options), rank)
    mirrors, cards = list[Mirror](), dict[tuple[object, ...], int]()
    for key, facts in _ask_all(engines, there, calls, failures).items():
        if isinstance(facts, str):
            failures[there[key]] = facts
            continue
        card = (facts.host, *((key,) if facts.simulated else (facts.visible, facts.ordinal)))  # each simulated card is its own
        device = cards.setdefault(card, len(cards))
        mirrors.append(Mirror(there[key], facts, key=key, process=len(mirrors), device=device, ring_size=ring_size))
    if len({mirror.facts.simulated for mirror in mirrors}) > 1:
        without = [mirror.name for mirror in mirrors if mirror.facts.simulated]
        failures |= dict.fromkeys(without, "it has no usable GPU, and others have one; simulate all with backend='sim'")
    if failures:
        for mirror in mirrors:  # what was opened for this is closed
            with suppress(Exception):
                engines.run(mirror.key, _worker.end, client).result(ANSWER_S)
        raise _refused(failures, len(there))
    return tuple(mirrors)


def _ask_all(
    engines: Engines, there: Mapping[str, str], calls: Mapping[str, tuple[Any, ...]], failures: dict[str, str]
) -> dict[str, Any]:
    """Call a function on each of some engines, and return what they answer; of the others it is noted why not."""
    answers = {key: ask(engines.run, key, *call) for key, call in calls.items()}
    end_s = time.monotonic() + BEGIN_S
    told = {}
    for key, answer in answers.items():
        try:
            told[key] = answer.result(max(0.0, end_s - time.monotonic()))
        except Exception as error:  # noqa: BLE001 - whatever it is, the user is told of which engine
            failures[there[key]] = reason(error)
    return told


class Follower:
    """A thread for each engine, which reads its records and asks for its time, and one that looks who is there.

    Of simulated engines, whose time stands still while nobody works, the clocks are not compared.
    """

    def __init__(self, engines: Engines, mirrors: Sequence[Mirror], clocks: Clocks) -> None:
        self._engines, self._mirrors, self._clocks = engines, mirrors, clocks
        self._stopping = threading.Event()
        works: list[tuple[Callable[..., object], tuple[Any, ...]]] = [(self._follow, (mirror,)) for mirror in mirrors]
        self._threads = [
            threading.Thread(target=work, args=args, name=f"gpustreamlab engine {place}", daemon=True)
            for place, (work, args) in enumerate([*works, (self._look, ())])
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads, and wait until they have ended."""
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(SILENT_S)

    def lose(self, mirror: Mirror, why: str) -> None:
        """Note that an engine is gone. What had arrived stays."""
        if mirror.is_there:
            mirror.end(why)
            _log.warning("Engine %s is lost: %s. What had arrived stays, the others go on.", mirror.name, why)

    def drain(self, limit_s: float, mirrors: Iterable[Mirror] | None = None) -> None:
        """Read all that engines, all if None, have recorded by now, as far as that is there before the time is over."""
        end_s = time.monotonic() + limit_s
        for mirror in self._mirrors if mirrors is None else mirrors:
            while mirror.is_there and ((changes := self.read(mirror, end_s - time.monotonic())) is None or changes.is_full):
                if time.monotonic() >= end_s:
                    break

    def read(self, mirror: Mirror, limit_s: float = SILENT_S) -> Changes | None:
        """Ask an engine for what is new, and take it in; None where it did not answer: it is asked for the same again."""
        with mirror.reading:
            try:
                asked = self._engines.aside(mirror.key, _worker.read, mirror.arrived, mirror.newest_hazard_ns)
                changes: Changes = asked.result(max(TICK_S, min(SILENT_S, limit_s)))
                mirror.heard_s, mirror.silent_s = time.monotonic(), 0.0
                if mirror.log not in (0, changes.log):  # the engine's session is another one
                    self.lose(mirror, "its session was closed there")
                    return changes
                if changes.data:
                    mirror.take(changes.data, changes.place)
                mirror.hear(changes)
            except Exception as error:  # noqa: BLE001 - the connection may fail for a while
                _log.debug("Engine %s did not answer: %s", mirror.name, error)
                mirror.silent_s = time.monotonic() - mirror.heard_s
                self._stopping.wait(TICK_S)
                return None
            return changes

    def ping(self, mirror: Mirror) -> None:
        """Ask an engine for its time, again and again; one of this machine says by our own clock when that was."""
        pings: list[tuple[int, int, int]] = []
        is_here = mirror.facts.clock and mirror.facts.clock == monotonic_clock_id()
        if mirror.facts.simulated:
            return
        try:
            while len(pings) < (PINGS_HERE if is_here else PINGS) and mirror.is_there and not self._stopping.is_set():
                if is_here:
                    pings.append(self._engines.aside(mirror.key, _worker.told_between).result(PING_LIMIT_S))
                    continue
                sent_ns = time.monotonic_ns()
                told_ns = self._engines.aside(mirror.key, _worker.told_ns).result(PING_LIMIT_S)
                pings.append((sent_ns, told_ns, time.monotonic_ns()))
        except Exception as error:  # noqa: BLE001 - what is gone is noticed elsewhere
            _log.debug("Engine %s did not tell its time: %s", mirror.name, error)
        jump = self._clocks.add(mirror.key, pings) if pings else None
        if jump is not None:
            _log.warning("The clock of engine %s has jumped by %+.3f ms; its times follow it.", mirror.name, jump.by_ns / 1e6)

    def _follow(self, mirror: Mirror) -> None:
        pinged_s = time.monotonic()
        while mirror.is_there and not self._stopping.wait(READ_EVERY_S):
            while (changes := self.read(mirror)) is not None and changes.is_full:
                pass
            if time.monotonic() - pinged_s >= PING_EVERY_S:
                pinged_s = time.monotonic()
                self.ping(mirror)

    def _look(self) -> None:
        """Find out again and again which engines are gone."""
        while not self._stopping.wait(LOOK_EVERY_S):
            try:
                there = self._engines.engines()
            except Exception:  # noqa: BLE001 - the client's connection may fail for a while
                _log.debug("The client does not say which engines there are", exc_info=True)
                continue
            for mirror in self._mirrors:
                if mirror.key not in there and time.monotonic() - mirror.heard_s > TOLD_LATELY_S:
                    self.lose(mirror, "its process is gone")


def clock_text(unix_ns: int) -> str:
    """Write a time of the day.

    Examples
    --------
    >>> clock_text(1_800_000_000_000_000_000)
    '08:00:00 UTC'
    """
    return f"{datetime.fromtimestamp(unix_ns / 1e9, UTC):%H:%M:%S} UTC"


def loss_texts(mirrors: Sequence[Mirror], offsets: Sequence[ClockOffset] | None) -> list[str]:
    """Say of each lost engine since when and why it is, and what of it is shown; no offsets where there is no common time."""
    placed = [np.array(mirror.extent_ns if any(mirror.extent_ns) else (), np.int64) for mirror in mirrors]
    if offsets is not None:
        placed = [offset.shift(own) for own, offset in zip(placed, offsets, strict=True)]
    zero_ns = min((int(own[0]) for own in placed if len(own)), default=0)
    texts = []
    for mirror, own in zip(mirrors, placed, strict=True):
        if mirror.is_there:
            continue
        after = "" if offsets is None else f", {format_ns(mirror.lost_ns - zero_ns)} into the trace"
        shown = f"Its spans up to {format_ns(int(own[1]) - zero_ns)} are shown" if len(own) else "There is no span of it"
        unended = f"; {mirror.unended_count:,} had not ended" if mirror.unended_count else ""
        lost = f"Engine {mirror.name} was lost at {clock_text(mirror.lost_unix_ns)}{after}: {mirror.why}."
        texts.append(f"{lost} {shown}{unended}.")
    return texts


def name_order(name: str) -> tuple[int, str]:
    """Return what names are sorted by: numbers by their value."""
    return (int(name), "") if name.isdecimal() else (1 << 62, name)


def named(mirrors: Sequence[Mirror], on: str | int | Sequence[str | int]) -> list[Mirror]:
    """Return the engines that a user names, of some.

    Raises
    ------
    ClusterError
        If none is there.
    OptionError
        If one is not, or none is named.
    """
    there = {mirror.name: mirror for mirror in mirrors if mirror.is_there}
    lost = {one.name: f" Engine {one.name} is lost: {one.why}." for one in mirrors if not one.is_there}
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
