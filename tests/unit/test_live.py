"""What a live view is sent: every span once, in bounded memory, from any thread."""

from __future__ import annotations

import threading
import tracemalloc

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab._util.background import Updater, check_refresh_hz
from gpustreamlab.analysis import format_ns, span_rows
from gpustreamlab.draw import why_tables
from gpustreamlab.errors import DeviceError, OptionError, StickyDeviceError
from gpustreamlab.sinks.live import LiveFeed, SpanReader
from gpustreamlab.workloads import spin
from tests.helpers.fake_activity import FakeActivitySource, FakeSourceBackend
from tests.helpers.instant_backend import InstantBackend
from tests.helpers.planted import work_behind_waits
from tests.helpers.selections import tools_stream

OPTIONS = {"capture": "ranges", "title": "test"}
STREAMS = ("copy", "compute")


@pytest.fixture
def feed(lab, monkeypatch):
    monkeypatch.setattr("gpustreamlab.sinks.live.COUNT_EVERY_S", 3_600.0)  # however slow the machine is
    made = LiveFeed(lab._recorder)
    made.refresh()
    return made


def record(lab, count=1, stream="copy", name="work"):
    for _ in range(count):
        with lab.on(stream, name):
            pass
    lab.synchronize()


def sent_count(update):
    return update.facts["manifest"]["n"]


class TestUpdates:
    def test_nothing_new_is_nothing_to_send(self, lab, feed):
        assert feed.refresh() is None
        record(lab)
        assert sent_count(feed.refresh()) == 1
        assert feed.refresh() is None

    def test_tables_are_sent_only_when_they_changed(self, lab, feed):
        record(lab)
        assert "tables" in feed.refresh().facts  # a row has its first span
        record(lab)
        assert "tables" not in feed.refresh().facts
        lab.stream("third")
        tables = feed.refresh().facts["tables"]
        assert [lane["name"] for lane in tables["lanes"]] == ["copy", "compute", "third"]
        assert "tables" not in (feed.refresh() or feed.snapshot()).facts or feed.refresh() is None

    def test_a_mark_and_a_layout_come_without_spans(self, lab, feed):
        record(lab)
        lab.recording.mark("half-way")
        marks = feed.refresh().facts["tables"]["marks"]
        assert [mark["text"] for mark in marks] == ["half-way"]
        lab.partition(prefill=96, decode="rest")
        assert len(feed.refresh().facts["tables"]["bands"]) == 3

    def test_names_of_others_are_text_that_can_be_shown(self, lab, feed):
        record(lab, name="a\u202eb\n" + "x" * 5_000)
        (name,) = feed.refresh().facts["names"]["names"]

        assert len(name) <= 200
        assert name.isprintable()

    def test_time_begins_at_the_first_start_however_late_its_parent_comes(self, lab, feed):
        with lab.on("copy", "outer"):
            with lab.range("inner"):
                pass
            lab._backend.synchronize()
            update = feed.refresh()
        lab.synchronize()
        feed.refresh()
        first_ns = int(lab.trace.start_ns.min())

        assert sent_count(update) == 1
        assert 0 <= first_ns - feed._reader.zero_ns < 10_000

    def test_spans_that_were_overwritten_are_counted(self):
        with Session("sim", ring_size=10, host=False) as lab:
            lab.stream("copy")
            feed = LiveFeed(lab._recorder)
            feed.refresh()
            record(lab, 25)
            update = feed.refresh()
            snapshot = feed.snapshot()

        assert (sent_count(update), update.facts["missed"]) == (10, 15)
        assert sent_count(snapshot) == 10

    def test_what_still_runs_is_told(self, lab, feed):
        with lab.on("copy", "long"):
            spin(lab, 1_000_000)
        update = feed.refresh()
        assert update.facts["pending"] == 1
        assert update.facts["header"]["empty"] == "1 span has not ended yet: lab.synchronize() waits for it"
        lab.synchronize()
        assert feed.refresh().facts["pending"] == 0

    def test_what_has_not_ended_is_told_of_each_lane_by_its_first_range(self, lab, feed):
        record(lab, 1)
        feed.refresh()
        with lab.on("copy", "outer"):
            with lab.range("inner"):
                spin(lab, 1_000_000)
        with lab.on("compute", "other"):
            spin(lab, 10_000)
            facts = feed.refresh().facts  # one is open still
            names = feed.snapshot().facts["tables"]["names"]
        assert [(lane, names[name], count) for lane, name, _, count in facts["open"]] == [(0, "outer", 2), (1, "other", 1)]
        assert all(0 <= since_ns <= facts["now_ns"] for _, _, since_ns, _ in facts["open"])
        assert feed.snapshot().facts["open"] == facts["open"]
        lab.synchronize()
        assert feed.refresh().facts["open"] == []
        assert feed.refresh() is None

    def test_looking_on_costs_the_simulated_device_no_time(self, lab, feed):
        record(lab)
        before_ns = lab._backend.driver.clock.now_ns
        feed.refresh()
        feed.snapshot()

        assert lab._backend.driver.clock.now_ns == before_ns

    def test_nothing_waits_for_the_device(self):
        backend = InstantBackend()
        backend.is_event_done = lambda event: False
        with Session(backend) as lab:
            lab.stream("copy")
            feed = LiveFeed(lab._recorder)
            with lab.on("copy", "endless"):
                pass
            update = feed.refresh()
            assert not [call for call in backend.calls if call.startswith("synchronize")]
            backend.is_event_done = lambda event: True

        assert sent_count(update) == 0

    def test_a_device_error_is_raised_and_the_next_refresh_goes_on(self, lab, feed, monkeypatch):
        record(lab)
        monkeypatch.setattr(lab._backend, "is_event_done", fail_with(StickyDeviceError("lost")))
        with lab.on("copy", "work"):
            pass
        with pytest.raises(DeviceError):
            feed.refresh()
        monkeypatch.undo()
        lab.synchronize()

        assert sent_count(feed.refresh()) == 2

    @pytest.mark.parametrize("options", [{"capacity": 0}, {"capacity": 10**9}, {"max_rate": "many"}, {"capacity": True}])
    def test_limits_out_of_range_are_refused(self, lab, options):
        with pytest.raises(OptionError, match=r"lab.timeline\("):
            LiveFeed(lab._recorder, **options)


def fail_with(error):
    def fail(*_):
        raise error

    return fail


class TestSpans:
    def test_spans_lie_where_they_lie_in_a_picture_drawn_afterwards(self, lab):
        reader = SpanReader(lab._recorder, 1_000)
        parts = []
        for _ in range(3):
            with lab.on("copy", "outer"):
                for _ in range(4):
                    with lab.range("inner"):
                        pass
                lab._backend.synchronize()
                parts.append(reader.read_new().columns)
        lab.synchronize()
        parts.append(reader.read_new().columns)
        live = reader.rows.table(lane_count=2)
        rows = np.concatenate([part.row for part in parts])
        starts = np.concatenate([part.start_ns for part in parts]) + reader.zero_ns
        table, codes = span_rows(lab.trace)
        order, wanted = np.lexsort((live.sub_row[rows], starts)), np.lexsort((table.sub_row[codes], lab.trace.start_ns))

        assert live.sub_row[rows][order].tolist() == table.sub_row[codes][wanted].tolist()
        assert starts[order].tolist() == lab.trace.start_ns[wanted].tolist()

    def test_what_is_read_again_is_what_was_read(self, lab):
        reader = SpanReader(lab._recorder, 1_000)
        record(lab, 3)
        with lab.on("copy", "outer"), lab.range("inner"):
            pass
        lab.stream("compute").wait(lab.stream("copy").record())
        record(lab, 2, "compute")
        first = reader.read_new().columns
        again = reader.read_again().columns

        for name in (
            "row",
            "start_ns",
            "end_ns",
            "name",
            "kind",
            "thread",
            "partition",
            "queueing_ns",
            "place",
            "edges",
            "edge_place",
        ):
            assert getattr(first, name).tolist() == getattr(again, name).tolist(), name
        assert len(first.edges) == 1

    def test_arrows_say_which_spans_they_join_as_the_needs_of_waits_do(self):
        with Session("sim") as lab:
            reader, x = SpanReader(lab._recorder, 1_000), lab.xp.zeros(1_000, "f4")
            work_behind_waits(lab, x)
            reader.read_new()
            shown = {tuple(pair) for pair in reader.read_again().columns.edge_place.tolist()}
            numbers = lab.trace.extra["number"]
            needs = why_tables(lab.trace, 0, numbers)["needs"]
        told = {tuple(map(int, key.split())): text for key, text in needs.items()}
        assert {told[pair].partition(" (")[0] for pair in shown} == {"data need this wait", "no data need this wait"}
        assert max(map(max, shown)) < 2**53  # as the page counts

    def test_only_so_many_can_be_read_again(self, lab):
        reader = SpanReader(lab._recorder, 4)
        record(lab, 10)
        assert len(reader.read_new().columns) == 10
        again = reader.read_again().columns

        assert sorted(again.place.tolist()) == sorted(lab.trace.extra["number"].tolist())[-4:]


class TestToolsRows:
    """Rows of streams in which gpustreamlab itself works, as `Session.trace` leaves them out."""

    @pytest.mark.parametrize("capacity", [1_000, 7])
    def test_random_work_beside_a_measurement_is_what_the_trace_has(self, lab, capacity):
        rng, reader, held = np.random.default_rng(7), SpanReader(lab._recorder, capacity), []
        for step in range(40):
            if step in (10, 25):  # as `tune` does, between streams of the user's
                tools_stream(lab, f"bench/main/{step}")
                lab.stream(f"later-{step}")
            record(lab, int(rng.integers(4)), str(rng.choice(list(lab.streams))), f"step {step}")
            if rng.random() < 0.5:
                new = reader.read_new()
                held = [new.columns] if new.is_moved else [*held, new.columns]
        held.append(reader.read_new().columns)
        trace, whole = lab.trace, lab._recorder.trace()
        assert 5 < len(trace) < len(whole) - 5
        assert [lane.name for lane in trace.lanes] == ["copy", "compute", "later-10", "later-25"]

        def told(columns):
            lane = reader.rows.table(lane_count=4).lane[columns.row]
            return sorted(zip((columns.start_ns + reader.zero_ns).tolist(), lane.tolist(), columns.name.tolist(), strict=True))

        wanted = sorted(zip(trace.start_ns.tolist(), trace.lane.tolist(), trace.name.tolist(), strict=True))
        if capacity > len(whole):
            assert sorted(span for part in held for span in told(part)) == wanted
        again = reader.read_again().columns
        first = max(0, len(whole) - capacity)  # of the tools' spans, too, so many are kept
        rows = lab._recorder.changes().columns
        assert told(again) == [span for span in wanted if span[0] in rows["start_ns"][first:]]
        start_of = dict(zip(rows["number"].tolist(), rows["start_ns"].tolist(), strict=True))
        assert [start_of[number] for number in again.place.tolist()] == (again.start_ns + reader.zero_ns).tolist()


def run_long_and_short(lab, *looks):
    """Let work on one stream end before that on another, which started earlier; look on in between and afterwards."""
    with lab.on("compute", "long"):
        spin(lab, 10_000_000)
    for _ in range(3):
        with lab.on("copy", "short"):
            spin(lab, 100_000)
    lab.streams["copy"].synchronize()
    first = [look() for look in looks]
    lab.synchronize()
    return first, [look() for look in looks]


class TestZero:
    def test_a_span_that_started_before_the_first_to_end_moves_the_zero_there(self, lab, feed):
        (first,), (second,) = run_long_and_short(lab, feed.refresh)
        start_ns, end_ns = int(lab.trace.start_ns.min()), int(lab.trace.end_ns.max())

        assert (sent_count(first), first.facts["is_moved"], first.facts["is_cleared"]) == (3, False, False)
        assert (sent_count(second), second.facts["is_moved"], second.facts["is_cleared"]) == (4, True, True)
        assert second.facts["number"] == first.facts["number"] + 1
        assert second.facts["merged"] == 0
        assert second.facts["tables"]["zero_ns"] == str(start_ns)
        assert second.facts["tables"]["extent_ns"] >= end_ns - start_ns
        assert format_ns(end_ns - start_ns) in second.facts["header"]["facts"]
        assert first.facts["clear_count"] == second.facts["clear_count"]

    def test_random_work_ends_with_the_zero_of_a_picture_drawn_afterwards(self, lab):
        rng, reader, held = np.random.default_rng(4), SpanReader(lab._recorder, 1_000), []
        for _ in range(20):
            stream = ("copy", "compute")[rng.integers(2)]
            with lab.on(stream, "work"), lab.range("part"):
                spin(lab, int(rng.integers(1_000, 1_000_000)))
            lab.streams[("copy", "compute")[rng.integers(2)]].synchronize()
            new = reader.read_new()
            held = [new.columns] if new.is_moved else [*held, new.columns]
        lab.synchronize()
        new = reader.read_new()
        held = [new.columns] if new.is_moved else [*held, new.columns]
        trace = lab.trace

        shown = np.concatenate([part.start_ns for part in held]) + reader.zero_ns
        assert sorted(shown.tolist()) == sorted(trace.start_ns.tolist())
        assert (reader.start_ns, reader.end_ns) == (int(trace.start_ns.min()), int(trace.end_ns.max()))
        assert 0 <= reader.start_ns - reader.zero_ns < 10_000


class TestKernels:
    """The kernel tier, live."""

    @pytest.fixture
    def work(self, lab):
        def run(stream="copy", name="work"):
            with lab.on(stream, name):
                x = lab.xp.ones((256, 256))
                _ = x @ x
            lab.synchronize()

        return run

    def test_kernels_and_calls_have_rows_below_ranges_and_lanes_below_streams(self, lab, feed, work):
        lab.capture("kernels")
        work()
        facts = feed.refresh().facts
        table = feed._reader.rows.table(lane_count=3)

        assert [lane["name"] for lane in facts["tables"]["lanes"]] == ["copy", "compute", "host: MainThread"]
        assert [lane["host"] for lane in facts["tables"]["lanes"]] == [False, False, True]
        assert sorted(zip(table.lane.tolist(), table.layer.tolist(), strict=True)) == [(0, 0), (0, 1), (1, 0), (2, 1)]
        assert sent_count(feed.snapshot()) == facts["manifest"]["n"] == len(lab.trace)

    def test_streams_of_others_stay_in_the_place_by_which_spans_name_them(self):
        source = FakeActivitySource()
        with Session(FakeSourceBackend(source)) as lab:
            lab.stream("own")
            feed = LiveFeed(lab._recorder)
            with lab.capture("kernels"):
                source.push_dependency(source=(5, 13), record=1, target=(5, 14), wait=2)
                lanes = feed.refresh().facts["tables"]["lanes"]  # two streams that somebody waited for, and that did no work
                source.push_work(10, 20, stream=15, context=5, name="theirs")
                lanes = feed.refresh().facts["tables"]["lanes"]
                (code,) = lab._recorder.changes().columns["lane"].tolist()
        assert [lane["name"] for lane in lanes] == ["own", "stream 13", "stream 14", "stream 15"]
        assert lanes[code]["name"] == "stream 15"

    def test_the_page_is_told_when_capturing_ends_and_that_ranges_came_afterwards(self, lab, feed, work, monkeypatch):
        monkeypatch.setattr("gpustreamlab.sinks.live.COUNT_EVERY_S", 0.0)
        lab.capture("kernels")
        work()
        feed.refresh()
        lab.capture("ranges")
        feed.refresh()
        work("copy")
        feed.refresh()
        capture = feed.snapshot().facts["tables"]["capture"]
        assert capture["shown"]
        (window,) = capture["windows"]
        assert window == [float(time_ns - feed._reader.zero_ns) for time_ns in lab.trace.metadata.capture_windows[0]]

    def test_details_are_sent_once_and_with_every_snapshot(self, lab, feed, work):
        lab.capture("kernels")
        work()
        first = feed.refresh().facts["details"]
        work()
        second = feed.refresh().facts
        whole = feed.snapshot().facts["tables"]["details"]

        assert first["from"] == 0
        assert first["entries"] == whole
        assert "details" not in second
        assert "details" not in second.get("tables", {})
        assert whole[0][0] == lab.trace.details[0].full_name

    def test_work_knows_the_range_and_the_stream_that_it_was_launched_in(self, lab, work):
        lab.capture("kernels")
        reader = SpanReader(lab._recorder, 1_000)
        work("compute", "matmul step")
        for columns in (reader.read_new().columns, reader.read_again().columns):
            kernels = columns.kind == 1
            assert kernels.any()
            assert set(columns.owner_lane[kernels].tolist()) == {1}
            assert {lab.trace.names[code] for code in columns.owner_name[kernels].tolist()} == {"matmul step"}
            assert set(columns.owner_lane[~kernels].tolist()) == {-1}


class TestThinning:
    def test_many_are_merged_with_exact_counts_and_busy_time(self, lab):
        feed = LiveFeed(lab._recorder, max_rate=20)
        feed.refresh()
        record(lab, 500)
        record(lab, 500, "compute")
        columns = SpanReader(lab._recorder, 10_000).read_new().columns
        items = SpanReader(lab._recorder, 10_000).read_new(20).columns
        update = feed.refresh()

        assert len(items) <= 40
        assert items.count.sum() == 1_000
        assert items.busy_ns.sum() == (columns.end_ns - columns.start_ns).sum()
        assert update.facts["merged"] == 1_000 - sent_count(update)
        assert sent_count(feed.snapshot()) == 1_000


class TestMemory:
    def test_memory_is_flat(self):
        with Session("sim", ring_size=4_000, capture="ranges") as lab:
            lab.stream("copy")
            feed = LiveFeed(lab._recorder, capacity=2_000)

            def run(rounds):
                for _ in range(rounds):
                    record(lab, 200)
                    feed.refresh()

            tracemalloc.start()
            try:
                run(30)
                before = tracemalloc.get_traced_memory()[0]
                run(30)
                grown = tracemalloc.get_traced_memory()[0] - before
            finally:
                tracemalloc.stop()

        assert grown < 200_000  # 6,000 spans of 80 bytes would be more, were they kept a second time


class TestUpdater:
    def test_it_calls_until_it_is_told_to_stop(self):
        calls, seen = [], threading.Event()

        def step():
            calls.append(1)
            if len(calls) == 3:
                seen.set()
            return True

        updater = Updater(step, refresh_hz=20, name="test")
        updater.start()
        assert seen.wait(60)
        updater.stop()
        updater.stop()
        assert not updater.is_running

    def test_what_it_raises_is_logged_and_ends_it(self, caplog):
        updater = Updater(fail_with(RuntimeError("bang")), refresh_hz=20, name="test")
        updater.start()
        updater._thread.join(60)

        assert "bang" in caplog.text
        assert not updater.is_running

    @pytest.mark.parametrize(
        ("step", "aside", "pause_s"),
        {
            "a short step": ({"computed_s": 0.001}, {}, 0.099),
            "a long one rests nine times as long": ({"computed_s": 0.03}, {}, 0.27),
            "what is waited for, as the interpreter, is no work": ({"computed_s": 0.01, "waited_s": 3.0}, {}, 0.09),
            "what is done besides is not counted": ({"computed_s": 0.01}, {"computed_s": 5.0}, 0.09),
        }.values(),
    )
    def test_it_rests_for_what_its_steps_compute(self, monkeypatch, step, aside, pause_s):
        clocks, pauses = {"perf_counter": 0.0, "thread_time": 0.0}, []

        def spend(computed_s=0.0, waited_s=0.0):
            clocks["perf_counter"] += computed_s + waited_s
            clocks["thread_time"] += computed_s
            return True

        for clock in clocks:
            monkeypatch.setattr(f"gpustreamlab._util.background.time.{clock}", lambda clock=clock: clocks[clock])
        updater = Updater(lambda: spend(**step), aside=lambda: spend(**aside), refresh_hz=10, name="test")
        monkeypatch.setattr(updater._stopping, "wait", lambda pause_s: pauses.append(pause_s) or len(pauses) > 3)
        updater._run()

        assert pauses == pytest.approx([0.1, pause_s, pause_s, pause_s])

    @pytest.mark.parametrize("value", [0, 21, "10", None, True, float("nan")])
    def test_rates_out_of_range_are_refused(self, value):
        with pytest.raises(OptionError, match=r"lab.timeline\(refresh_hz=10\)"):
            check_refresh_hz(value)


def shown(lab):
    """Return an array that two streams may use, and the live view of a session with its page."""
    x = lab.xp.zeros(64, np.float32)
    lab.stream("copy"), lab.stream("compute")
    view = lab._views.get(lab, 1.0, 1_000)
    return x, view, view.page


def test_a_live_page_is_told_of_a_race_once_and_not_of_what_was_forgotten():
    with Session("sim") as lab:
        x, view, page = shown(lab)
        lab.synchronize()
        view.find(is_last=True)
        assert page.found == {}
        with lab.on("copy", "fill"):
            x.fill(1)
        with lab.on("compute", "read"):
            _ = x + 1
        lab.synchronize()
        view.find(is_last=True)
        (mark,) = page.found["marks"]
        assert mark["kind"] == "hazard"
        assert page.found["is_partial"]
        ((lane, start_ns, end_ns, number),) = [piece["late"] for piece in mark["pieces"]]
        assert page.found["lanes"][lane] == ["compute", False]
        read = int(np.flatnonzero(lab.trace.name == lab.trace.names.index("read"))[0])
        zero_ns = int(page.found["zero_ns"])
        assert number == lab.trace.extra["number"][read]
        assert [start_ns + zero_ns, end_ns + zero_ns] == [int(lab.trace.start_ns[read]), int(lab.trace.end_ns[read])]
        known = page.found
        view.find(is_last=True)
        assert page.found is known
        lab.clear()
        view.find(is_last=True)
        assert page.found == {}
