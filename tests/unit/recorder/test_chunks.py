"""Any split of what happened, read by any reader, with any loss that is told of, folds to the same trace."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpustreamlab as gsl
from gpustreamlab.backends import EVERY_STREAM, THE_HOST
from gpustreamlab.cluster import _worker
from gpustreamlab.cluster._mirror import Mirror
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.recorder import ACCESS_COLUMNS, SPAN_COLUMNS, START, Chunk, ChunkLog, JoinedJournal, _chunks, fold, join
from gpustreamlab.sinks.live import LiveFeed
from gpustreamlab.workloads import spin
from tests.helpers import long_runs
from tests.helpers.fake_activity import FakeActivitySource, FakeSourceBackend, kernel_detail

STREAMS = ("a", "b")

ROWS = ("start_ns", "end_ns", "queued_ns", "lane", "name", "kind", "parent", "thread", "partition", "detail", "correlation")
TABLES = ("names", "threads", "partitions", "layouts", "markers", "details")
FIGURES = ("tier", "capture_windows", "capture_source", "dropped_spans", "dropped_markers", "device", "missing")


class Follower:
    """Reads what is new, now and then."""

    def __init__(self, journal):
        self.journal, self.place, self.told = journal, START, []

    def read(self):
        self.told.append(self.journal.changes(self.place))
        self.place = self.told[-1].place

    @property
    def missed(self):
        return sum(one.missed for one in self.told)

    def numbers(self):
        return join(self.told).columns["number"].tolist()

    def trace(self):
        return fold(self.told)


class EngineFollower:
    """Reads as a client of a cluster does; of some answers it does not hear."""

    def __init__(self, lab):
        self.mirror = Mirror("0", _worker.look(), ring_size=100_000)
        _worker._home.session = lab

    def read(self):
        while (changes := _worker.read(self.mirror.arrived)).data:
            self.mirror.take(changes.data, changes.place)

    def lose(self):
        _worker.read(self.mirror.arrived)

    def trace(self):
        return self.mirror.trace()


class PageFollower:
    """A live view, of which the page's spans are counted."""

    def __init__(self, lab):
        self.feed, self.count = LiveFeed(lab._recorder), 0

    def read(self):
        update = self.feed.refresh()
        if update is not None:
            sent = update.facts["manifest"].get("n", 0)
            self.count = sent if update.facts["is_cleared"] else self.count + sent

    def spans(self):
        return self.feed._reader.span_count


def step(lab, source, number, kind):  # noqa: C901 - a table
    """Do one of the things that a recorder is told of."""
    lane, other = lab.stream("ab"[number % 2]), lab.stream("ba"[number % 2])
    match kind:
        case 0 | 1:
            with lab.on(lane, f"r{number % 5}"), lab.range("inner"):
                pass
        case 2:
            with lab.on(lane, "waits"):
                lane.wait(other.record())
        case 3:
            lab.recording.mark(f"mark {number}")
        case 4:
            call, detail = number + 1, kernel_detail(f"k{number % 4}")
            source.push_work(number * 10 + 1, number * 10 + 6, stream=9, name="k", detail=detail, correlation=call)
            for buffer in range(number % 4):
                source.push_access(call, buffer, 8 * number, 8 * number + 64, is_write=buffer == 2, certainty=number % 3)
            source.push_dependency(source=(0, 1), record=number, target=(0, 2), wait=number + 1)
            source.push_call(number * 10 + 7, number * 10 + 9, name="cudaDeviceSynchronize", correlation=1_000 + number)
            awaited = (0, EVERY_STREAM if number % 2 else 9)
            source.push_dependency(source=awaited, record=1_000 + number, target=(0, THE_HOST), wait=1_000 + number)
        case 5:
            for part in range(3):
                source.push_memory(number * 400_000 + part * 300_000, float(number * part % 7), stream=9)
        case 6:
            lab.synchronize()
        case 7:
            lab.stream(f"more{number % 3}")
        case 8:
            lab.partition(left=8 * (1 + number % 4), right="rest")
        case 9:
            lab.clear()


@contextmanager
def recording(**options):
    source = FakeActivitySource()
    with gsl.Session(FakeSourceBackend(source), hazards="off", **options) as lab:
        lab.stream("a")
        lab.stream("b")
        lab.capture("kernels")
        yield lab, source


def facts_of(trace):
    columns = {name: getattr(trace, name, trace.extra.get(name)).tolist() for name in ROWS}
    edges = sorted(zip(trace.edges.source.tolist(), trace.edges.target.tolist(), trace.edges.kind.tolist(), strict=True))
    told = trace.counters
    texts = [told.names[code] for code in told.name.tolist()]
    samples = list(zip(told.time_ns.tolist(), told.lane.tolist(), texts, told.value.tolist(), strict=True))
    touched = {name: values.tolist() for name, values in trace.accesses.columns.items()}
    figures = {name: getattr(trace.metadata, name) for name in FIGURES}
    figures["capture_windows"] = [begin for begin, _ in figures["capture_windows"]]  # an open one ends when it is asked
    figures["device"] = figures["device"].name
    lanes = [lane.name.removeprefix("0:") for lane in trace.lanes]
    tables = {name: tuple(getattr(trace, name)) for name in TABLES} | {"threads": len(trace.threads)}
    return columns, tables, lanes, edges, samples, figures, touched


STEPS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 31)), min_size=5, max_size=60)
TRIES = settings(
    max_examples=long_runs.count(12, 300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def home(monkeypatch):
    monkeypatch.setattr(_worker, "_home", _worker._Home())


@pytest.mark.parametrize("kept_accesses", [7, 1_000_000])
@TRIES
@given(steps=STEPS)
def test_every_reader_has_the_same_trace_however_it_read(kept_accesses, steps, home, monkeypatch, tmp_path_factory):
    monkeypatch.setattr(_chunks, "KEPT_ACCESSES", kept_accesses)
    path = tmp_path_factory.mktemp("run") / "run.gsl"
    with recording(spool=path) as (lab, source):
        # GIVEN readers of which each reads now and then
        recorder, spool = lab._recorder, lab.recording.spool
        readers = [Follower(recorder), EngineFollower(lab), Follower(joined(lab, recorder)), PageFollower(lab)]
        for number, (kind, who) in enumerate(steps):
            step(lab, source, number, kind)
            for place, reader in enumerate(readers):
                if who >> place & 1:
                    reader.read()
            if who & 16:
                spool.refresh()
                readers[1].lose()

        # WHEN all has ended and was read
        lab.capture("ranges")
        lab.synchronize()
        for reader in readers:
            reader.read()
        spool.refresh()
        wanted = facts_of(recorder.trace())

        # THEN each folds to what the recorder says
        for reader in readers[:3]:
            assert facts_of(reader.trace()) == wanted
        assert facts_of(gsl.load_trace(path)) == wanted
        assert readers[3].spans() == len(recorder.changes().columns["number"])


def joined(lab, *journals):
    count = len(journals)
    return JoinedJournal(
        journals, ahead=lambda: [0] * count, error_ns=lambda _: 0, devices=[lab.device] * count, tells_alike=False
    )


@TRIES
@given(steps=STEPS, ring_size=st.integers(2, 30))
def test_what_is_missing_is_counted_by_each_reader(steps, ring_size, home, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.gsl"
    with recording(spool=path, ring_size=ring_size) as (lab, source):
        # GIVEN one reader that is never late, and others that are
        recorder, spool = lab._recorder, lab.recording.spool
        prompt, late, engine = Follower(recorder), Follower(recorder), EngineFollower(lab)
        for number, (kind, who) in enumerate(steps):
            step(lab, source, number, kind)
            prompt.read()
            for place, read in enumerate((late.read, engine.read, spool.refresh)):
                if who >> place & 1:
                    read()

        # WHEN all was read
        lab.capture("ranges")
        lab.synchronize()
        prompt.read()
        numbers = prompt.numbers()
        for read in (late.read, engine.read, spool.refresh):
            read()

        # THEN what each has and what it missed is all that there was, and the newest are there
        assert recorder.span_count + recorder.dropped_count == len(numbers) + join(prompt.told).missed
        for trace in (engine.trace(), gsl.load_trace(path)):
            assert len(trace) + trace.metadata.dropped_spans == len(numbers) + join(prompt.told).missed
        found = join(late.told)
        kept = found.columns["number"].tolist()
        assert len(kept) + found.missed == len(numbers) + join(prompt.told).missed
        assert kept[-ring_size:] == numbers[-ring_size:][-len(kept) :]
        assert set(kept) <= set(numbers)


def test_a_place_of_another_recorder_is_not_taken_for_one_of_this():
    with recording() as (first, _), recording() as (second, _):
        for lab in (first, second):
            with lab.on("a", "x"):
                pass
            lab.synchronize()
        reader = Follower(first._recorder)
        reader.read()
        with first.on("a", "y"):
            pass
        first.synchronize()
        reader.read()
        assert len(reader.numbers()) == 2


def rows(first, count):
    return np.tile(np.arange(first, first + count), (len(SPAN_COLUMNS), 1))


@pytest.mark.parametrize("kept_chunks", [4, 4_096])
@given(
    ring_size=st.integers(1, 50), blocks=st.lists(st.integers(0, 30), max_size=20), reads=st.lists(st.booleans(), max_size=20)
)
def test_a_reader_sees_every_row_once_or_is_told_how_many_it_missed(kept_chunks, ring_size, blocks, reads):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_chunks, "KEPT_CHUNKS", kept_chunks)
        patch.setattr(_chunks, "CHUNK_PARTS", 3)
        patch.setattr(_chunks, "CHUNK_ROWS", 20)
        log, appended, told, place = ChunkLog(ring_size), 0, [], START
        for block, is_read in zip(blocks, [*reads, *[True] * len(blocks)], strict=False):
            log.append(rows(appended, block))
            appended += block
            if is_read:
                log.seal()
                told.append(log.read(place))
                place = told[-1].place
        log.seal()
        told.append(log.read(place))
        whole = log.read(START)
    begins = max((at for at, one in enumerate(told) if one.is_anew), default=0)
    assert begins == 0 or kept_chunks == 4  # who comes back late reads all anew
    told = told[begins:]
    found = join(told)
    seen = found.columns["start_ns"].tolist()
    assert len(seen) + found.missed == appended
    assert seen == sorted(set(seen))
    assert whole.columns["start_ns"].tolist() == list(range(appended))[-ring_size:] == seen[-ring_size:][-whole.row_count :]
    assert (whole.missed, log.dropped_count, len(log)) == (appended - whole.row_count,) * 2 + (whole.row_count,)


def test_a_clear_gives_memory_back_and_what_was_cleared_is_not_missed():
    with gsl.Session("sim", ring_size=10, capture="ranges") as lab:
        lab.stream("a")
        first = lab._recorder.changes()
        work(lab, 25)
        late = lab._recorder.changes(first.place)
        assert (late.row_count, late.missed, late.is_anew) == (10, 15, False)
        lab.clear()
        work(lab, 12)
        told = [lab._recorder.changes(place) for place in (first.place, late.place, START)]
        assert [(one.row_count, one.missed, one.is_anew, one.names) for one in told] == [(10, 2, True, ("step",))] * 3


@given(ring_size=st.integers(1, 50), blocks=st.lists(st.integers(0, 30), min_size=1, max_size=12), out=st.integers(1, 5))
def test_what_is_taken_out_is_neither_there_nor_missed(ring_size, blocks, out):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_chunks, "CHUNK_ROWS", 20)
        log = ChunkLog(ring_size)
        for first, block in zip(np.cumsum([0, *blocks]).tolist(), blocks, strict=False):
            log.append(rows(first, block))
        log.seal()
        before = log.read()
        numbers = before.columns["number"]
        log.add(Chunk(edges=np.stack((numbers[:-1], numbers[1:])), accesses=np.tile(numbers, (len(ACCESS_COLUMNS), 1))))
        log.seal()
        log.take_out(lambda columns: columns["number"] % out == 0)
        after = log.read()
        left = [number for number in numbers.tolist() if number % out]
        assert after.columns["number"].tolist() == after.accesses[0].tolist() == left
        assert after.edges.T.tolist() == [
            [one, other] for one, other in pairwise(numbers.tolist()) if one % out and other % out
        ]
        assert (len(log), log.dropped_count, after.missed) == (len(left), before.missed, before.missed)
        log.append(rows(10_000, 60))
        log.seal()
        told = log.read(after.place)
        assert (told.row_count + told.missed, told.is_anew) == (60, False)
        assert (len(log), log.dropped_count) == (ring_size, before.missed + len(left) + 60 - ring_size)


def work(lab, count):
    for _ in range(count):
        with lab.on("a", "step"):
            pass
    lab.synchronize()


# Ranges that have not ended, around rows that were read


def drain(lab):
    lab._backend.synchronize()
    drained, unended = lab._recorder.follow(START)
    return drained, {
        number: (parent, lane)
        for number, parent, lane in zip(unended.number.tolist(), unended.parent.tolist(), unended.lane.tolist(), strict=True)
    }


def is_range(chunk):
    return chunk.columns["kind"] == SPAN_KINDS.index("range")


def test_open_ranges_around_what_was_drained_are_told(lab):
    with lab.on("a", "outer"):
        with lab.on("b", "middle"):
            with lab.range("inner"):
                pass
            drained, unended = drain(lab)
    (inner,) = drained.columns["parent"][is_range(drained)].tolist()
    outer = unended[inner][0]

    assert unended[inner] == (outer, 1)
    assert unended[outer] == (-1, 0)


def test_ranges_that_wait_for_the_device_are_told(lab):
    with lab.on("a", "outer"):
        with lab.range("inner"):
            pass
        lab._backend.synchronize()
        spin(lab, 1_000_000)
    with lab._recorder.observing():
        drained, unended = lab._recorder.follow(START)

    (outer,) = drained.columns["parent"][is_range(drained)].tolist()
    assert outer in unended.number.tolist()


# What work touched


@pytest.fixture
def few_accesses(monkeypatch):
    monkeypatch.setattr(_chunks, "KEPT_ACCESSES", 5)


@pytest.mark.usefixtures("few_accesses")
def test_the_oldest_work_loses_all_of_its_accesses_at_once_and_the_trace_says_so():
    with recording() as (lab, source):
        for call in (1, 2, 3):
            source.push_launch(call * 10, call * 10 + 1, call * 10 + 2, correlation=call, stream=9)
            for buffer in (1, 2):
                source.push_access(call, buffer, 0, 64, is_write=buffer == 2)
            lab._recorder.kernels.take(is_complete=False)
            lab._recorder.changes()
        trace = lab.trace
        assert trace.extra["correlation"][trace.accesses.span].tolist() == [2, 2, 3, 3]
        (told,) = trace.metadata.missing
        assert "2 accesses made room for newer ones" in told
        lab.clear()
        assert (len(lab.trace.accesses), lab.trace.metadata.missing) == (0, ())


def test_nodes_of_a_graph_have_their_own_accesses_and_those_of_a_whole_launch_are_of_all():
    with recording() as (lab, source):
        source.push_call(5, 9, name="cudaGraphLaunch", correlation=7)
        for node in (1, 0, 3):
            detail = replace(kernel_detail("k"), graph=4, node=node)
            source.push_work(10 + node, 11 + node, stream=9, correlation=7, detail=detail)
        for node, buffer in ((0, 10), (1, 11), (2, 12), (-1, 99)):
            source.push_access(7, buffer, 0, 8, node=node)
        source.push_access(8, 50, 0, 8)  # of no work that is there
        trace = lab.trace
        told = trace.accesses
        nodes = [trace.details[code].node for code in trace.extra["detail"][told.span].tolist()]
        assert sorted(zip(nodes, told.buffer.tolist(), strict=True)) == [(0, 10), (0, 99), (1, 11), (1, 99), (3, 99)]


def test_of_work_that_is_told_of_with_nonsense_nothing_is_known():
    with recording() as (lab, source):
        for call, end in ((1, 64), (2, -1)):
            source.push_launch(call * 10, call * 10 + 1, call * 10 + 2, correlation=call, stream=9)
            source.push_access(call, 1, 0, 64)
            source.push_access(call, 2, 0, end)
        trace = lab.trace
        assert trace.extra["correlation"][trace.accesses.span].tolist() == [1, 1]
        assert trace.metadata.dropped_records == 0
