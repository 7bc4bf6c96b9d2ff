"""The live timeline as a widget: what it sends, and what stays when the session is gone."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
import weakref

import pytest

from gpustreamlab import Session, Timeline
from gpustreamlab.errors import DeviceError, OptionError, SessionClosedError, StickyDeviceError
from gpustreamlab.notebook.live_timeline import LiveTimeline
from gpustreamlab.workloads import spin
from tests.helpers.planted import wait_for_stream

WIDGET_MIME = "application/vnd.jupyter.widget-view+json"


class FakeShell:
    """A notebook's shell; notes what is published."""

    kernel = object()

    def __init__(self, *, has_page=True):
        self.metadata = {"cellId": "abc"} if has_page else {}
        self.published, self.callbacks = [], []
        self.display_pub = self.events = self

    def get_parent(self):
        return {"metadata": self.metadata}

    def publish(self, data, metadata, *, transient, update):
        self.published.append((data, transient.get("display_id"), update))

    def register(self, event, callback):
        assert event == "post_run_cell"
        self.callbacks.append(callback)

    def unregister(self, event, callback):
        self.callbacks.remove(callback)

    def end_cell(self):
        for callback in tuple(self.callbacks):
            callback(object())

    @property
    def data(self):
        """Return what the last output shows."""
        return self.published[-1][0]


class SentComm:
    """Notes what goes to the page."""

    comm_id, kernel = "1", object()

    def __init__(self):
        self.sent = []
        self.error = None

    def send(self, data=None, metadata=None, buffers=None):
        if self.error is not None:
            raise self.error
        json.dumps(data)
        self.sent.append((data, buffers))

    def close(self, *_, **__):
        pass

    def on_msg(self, _):
        pass

    @property
    def updates(self):
        """Return what was sent as updates of spans, in order."""
        states = [(data["state"], buffers) for data, buffers in self.sent if data["method"] == "update"]
        return [(state[name], buffers) for state, buffers in states for name in state if name.startswith("update_")]

    @property
    def statuses(self):
        return [data["state"]["status"]["state"] for data, _ in self.sent if "status" in data.get("state", {})]


@pytest.fixture
def shell(monkeypatch):
    made = FakeShell()
    for module in ("notebook.views", "timeline", "notebook.live_timeline"):
        monkeypatch.setattr(f"gpustreamlab.{module}.running_kernel_shell", lambda: made)
    return made


@pytest.fixture
def lab(shell):
    with Session("sim", title="test", capture="ranges") as session:
        session.stream("copy")
        session.stream("compute")
        yield session


@pytest.fixture
def quiet(monkeypatch):
    """Let no thread update anything: the test does."""
    monkeypatch.setattr("gpustreamlab._util.background.Updater.start", lambda self: None)


def record(lab, count=1):
    for _ in range(count):
        with lab.on("copy", "work"):
            pass
    lab.synchronize()


def with_comm(timeline):
    comm = SentComm()
    timeline.page.comm = comm
    return comm


def shown(lab, count=0, **options):
    """Return a live timeline, and what it sends to its page, after some spans."""
    timeline = lab.timeline(**options)
    comm = with_comm(timeline)
    record(lab, count)
    timeline.refresh()
    return timeline, comm


def snapshot_of(timeline):
    return timeline.page.get_state("snapshot")["snapshot"]["facts"]


def wait_for(found):
    """Return what a function finds once a thread has made it."""
    end_s = time.monotonic() + 60
    while not found() and time.monotonic() < end_s:
        time.sleep(0.02)
    return found()


def run_long_and_short(lab, between):
    """Let work on one stream end before that on another, which started earlier; do something in between and behind."""
    with lab.on("compute", "long"):
        spin(lab, 10_000_000)
    with lab.on("copy", "short"):
        spin(lab, 100_000)
    lab.streams["copy"].synchronize()
    between()
    lab.synchronize()
    between()


def fail_with(error):
    def fail(*_):
        raise error

    return fail


# ---- what goes to the page


def test_new_spans_go_out_as_one_message_a_refresh_of_which_the_kernel_keeps_no_copy(lab, quiet):
    timeline, comm = shown(lab, 3)
    timeline.refresh()
    ((update, (blob,)),) = comm.updates

    assert update["facts"]["manifest"]["n"] == 3
    assert isinstance(blob, bytes)
    assert len(comm.sent) == 1
    assert not [key for key in timeline.page.keys if key.startswith("update")]


def test_a_thread_does_it_while_the_cell_goes_on(lab):
    timeline = lab.timeline(refresh_hz=20)
    assert not timeline._updater.is_running  # nothing runs before something is shown
    comm = with_comm(timeline)
    record(lab, 3)
    wait_for(lambda: sum(update["facts"]["manifest"]["n"] for update, _ in comm.updates) == 3)
    lab.close()
    assert not timeline._updater.is_running


def test_a_page_that_comes_later_or_has_missed_something_gets_everything_by_then(lab, quiet):
    record(lab, 2)
    timeline, comm = shown(lab, 3)
    state = timeline.page.get_state()

    assert state["snapshot"]["facts"]["manifest"]["n"] == 5
    assert state["snapshot"]["facts"]["number"] == timeline._feed._number
    assert state["bokeh_gz"][:2] == b"\x1f\x8b"
    assert json.loads(state["item"])["doc"]
    comm.sent.clear()
    for content in ({"ask": "money"}, [], None, {"snapshot": 1}, "snapshot", {"ask": "snapshot"}):
        timeline.page._handle_custom_msg(content, [])
    assert [data["state"]["snapshot"]["facts"]["manifest"]["n"] for data, _ in comm.sent] == [5]


def test_a_page_that_asks_why_is_told_of_what_ran_until_then(lab, quiet):
    lab.capture("kernels", host=True)
    timeline, comm = shown(lab)
    wait_for_stream(lab)
    lab.synchronize()
    comm.sent.clear()
    timeline.page._handle_custom_msg({"ask": "why"}, [])
    (update, _), (message, _) = comm.sent  # it has the spans before it is told of them
    why, (finding,) = message["content"]["why"], lab.explain().findings

    assert update["method"] == "update"
    assert [entry["pieces"][0]["text"] for entry in why["findings"]] == [finding.text]
    assert int(why["zero_ns"]) + why["findings"][0]["pieces"][0]["late"][1] == lab.trace.start_ns[finding.row]


def test_a_page_that_is_gone_is_sent_nothing(lab, quiet):
    timeline = lab.timeline()
    timeline.page.close()
    record(lab)

    assert timeline.refresh()


def test_an_earlier_start_that_comes_late_sends_everything_again(lab, quiet):
    timeline, comm = shown(lab)
    run_long_and_short(lab, timeline.refresh)
    (first, _), (second, _) = comm.updates

    assert (first["facts"]["is_cleared"], first["facts"]["manifest"]["n"]) == (False, 1)
    assert (second["facts"]["is_cleared"], second["facts"]["manifest"]["n"]) == (True, 2)
    assert int(second["facts"]["tables"]["zero_ns"]) < int(first["facts"]["tables"]["zero_ns"])
    assert snapshot_of(timeline)["clear_count"] == first["facts"]["clear_count"]


def test_all_cells_and_threads_share_one_widget(lab, quiet):
    assert lab.timeline() is lab.timeline()
    assert lab.timeline(refresh_hz=5) is not lab.timeline()
    assert lab.timeline(capacity=10) is not lab.timeline()
    found = []
    threads = [threading.Thread(target=lambda: found.append(lab.timeline().page)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(map(id, found))) == 1
    assert repr(found[0]) == "<TimelinePage: live>"


# ---- trouble


def test_a_device_error_is_told_and_the_view_goes_on(lab, quiet, monkeypatch):
    timeline, comm = shown(lab)
    with lab.on("copy", "work"):
        pass
    monkeypatch.setattr(lab._backend, "is_event_done", fail_with(StickyDeviceError("the card is lost")))
    assert timeline.refresh()
    assert timeline.refresh()
    assert comm.statuses == ["failing"]
    assert "the card is lost" in timeline.page.status["text"]
    monkeypatch.undo()
    lab.synchronize()
    timeline.refresh()

    assert comm.statuses == ["failing", "live"]
    assert len(comm.updates) == 1


def test_a_comm_that_fails_ends_the_view_and_not_the_work(lab, caplog):
    timeline = lab.timeline(refresh_hz=20)
    with_comm(timeline).error = RuntimeError("no socket")
    record(lab)
    timeline._updater._thread.join(60)

    assert "no socket" in caplog.text
    assert not timeline._updater.is_running
    record(lab)
    assert len(lab.trace) == 2


def test_a_view_that_fails_does_not_keep_the_session_from_closing(lab, quiet, caplog, monkeypatch):
    timeline, _ = shown(lab)
    monkeypatch.setattr(timeline._feed, "snapshot", fail_with(MemoryError("none left")))
    lab.close()

    assert lab.state != "open"
    assert "none left" in caplog.text


@pytest.mark.parametrize(
    "options", [{"refresh_hz": 0}, {"refresh_hz": 100}, {"capacity": 0}, {"capacity": "all"}, {"live": "yes"}, {"live": None}]
)
def test_wrong_options_are_refused_also_without_a_notebook(options):
    with Session("sim") as lab:
        with pytest.raises(OptionError, match=r"lab.timeline\("):
            lab.timeline(**options)
        assert type(lab.timeline()) is Timeline  # in a script it is a picture of now


@pytest.mark.parametrize("is_handler", [False, True], ids=["interrupt", "signal handler that closes"])
def test_a_page_keeps_its_last_picture_where_closing_comes_in_the_middle_of_something(lab, quiet, monkeypatch, is_handler):
    timeline, comm = shown(lab, 3)
    feed, refresh = timeline._feed, timeline._feed.refresh

    def close_first():
        monkeypatch.setattr(feed, "refresh", refresh)
        lab.close()
        return refresh()

    monkeypatch.setattr(feed, "refresh", close_first if is_handler else fail_with(KeyboardInterrupt()))
    if is_handler:
        assert timeline.refresh() is False
    else:
        with pytest.raises(KeyboardInterrupt):
            lab.close()
        monkeypatch.setattr(feed, "refresh", refresh)
        lab.close()
    assert [update["facts"]["is_cleared"] for update, _ in comm.updates] == [False]
    assert comm.statuses[-1] == "closed"
    assert snapshot_of(timeline)["manifest"]["n"] == 3


# ---- life


def test_closing_sends_the_rest_and_says_so(lab, quiet, caplog):
    timeline, comm = shown(lab)
    run_long_and_short(lab, lambda: None)
    lab.close()
    lab.close()

    assert sum(update["facts"]["manifest"]["n"] for update, _ in comm.updates) == 2
    assert comm.statuses == ["closed"]
    assert snapshot_of(timeline)["manifest"]["n"] == len(timeline.trace) == 2
    assert not timeline.is_live
    assert caplog.text == ""


def test_the_widget_keeps_neither_session_nor_recorder_alive_and_says_that_it_is_gone(shell):
    lab = Session("sim", host=False)
    lab.stream("copy")
    record(lab)
    kept, fresh = lab.timeline(), lab.timeline(capacity=10)
    assert kept.page
    gone, recorder = weakref.ref(lab), weakref.ref(lab._recorder)
    lab.close()
    with pytest.raises(SessionClosedError, match="closed"):
        _ = fresh.page
    del lab
    gc.collect()

    assert (gone(), recorder()) == (None, None)
    assert snapshot_of(kept)["manifest"]["n"] == 1
    with pytest.raises(SessionClosedError, match="Keep it in a variable"):
        _ = fresh.trace


def test_a_forked_child_updates_nothing(lab):
    timeline = lab.timeline(refresh_hz=20)
    comm = with_comm(timeline)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        time.sleep(0.2)
        os.write(writer, bytes([len(comm.sent), lab.state != "open", timeline._updater.is_running]))
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(reader, 3) == bytes([0, 1, 0])


def test_saving_takes_what_there_is_by_then(lab, quiet, tmp_path):
    timeline = lab.timeline()
    record(lab, 3)
    page = timeline.save(tmp_path / "run.html").read_text()

    assert "3 spans in 1 stream" in page
    record(lab, 1)
    assert len(timeline.trace) == 4
    assert "4 spans" in str(timeline)
    assert repr(timeline).startswith("<test: timeline of 4 spans")


def test_the_interpreter_ends_silently_with_a_live_timeline_open():
    code = """
import gpustreamlab.session as s, gpustreamlab.notebook.views as v, time, types
shell = types.SimpleNamespace(kernel=1)
v.running_kernel_shell = lambda: shell
lab = s.Session('sim'); lab.stream('copy'); lab.timeline(refresh_hz=20).page
time.sleep(.2)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")


# ---- outputs of cells


def test_outputs_are_the_widget_with_a_picture_beside_it_and_in_the_end_pictures(lab, shell, quiet):
    record(lab, 2)
    timeline = lab.timeline()
    timeline._ipython_display_()
    timeline._ipython_display_()
    record(lab, 5)
    lab.close()
    first, second, *updates = shell.published

    assert set(first[0]) == {WIDGET_MIME, "text/plain", "image/svg+xml"}
    assert "2 spans" in first[0]["text/plain"]
    assert (bool(first[1]), first[2]) == (True, False)
    assert [(display_id, is_update) for _, display_id, is_update in updates] == [(first[1], True), (second[1], True)]
    assert all(set(data) == {"text/plain", "text/html", "image/svg+xml"} for data, _, _ in updates)
    assert "7 spans" in shell.data["text/plain"]
    timeline._ipython_display_()  # a closed session shows a picture
    assert WIDGET_MIME not in shell.data
    assert type(lab.timeline()) is Timeline


def test_without_a_page_pictures_are_drawn_anew_after_cells_that_recorded(lab, shell, quiet):
    shell.metadata = {}
    lab.timeline()._ipython_display_()
    assert WIDGET_MIME not in shell.data
    shell.end_cell()
    assert len(shell.published) == 1
    record(lab, 4)
    shell.end_cell()
    shell.end_cell()
    (_, first, _), (data, again, is_update) = shell.published
    assert (again, is_update) == (first, True)
    assert "4 spans" in data["text/plain"]

    lab.close()
    assert shell.callbacks == []


def test_without_a_page_a_picture_stays_once_another_is_shown_or_its_spans_are_forgotten(lab, shell, quiet):
    shell.metadata = {}
    timeline = lab.timeline()
    timeline._ipython_display_()
    timeline._ipython_display_()
    record(lab, 4)
    shell.end_cell()
    (_, first, _), (_, second, _), (_, drawn, _) = shell.published
    assert drawn == second != first
    lab.clear()
    record(lab, 1)
    shell.end_cell()
    lab.close()

    assert len(shell.published) == 3


def test_without_a_page_an_earlier_start_that_comes_late_forgets_no_picture(lab, shell, quiet):
    shell.metadata = {}
    lab.timeline()._ipython_display_()
    run_long_and_short(lab, shell.end_cell)

    assert [is_update for _, _, is_update in shell.published] == [False, True, True]
    assert "2 spans" in shell.data["text/plain"]


def test_a_picture_that_cannot_be_drawn_anew_does_not_disturb_the_cell(lab, shell, quiet, monkeypatch, caplog):
    shell.metadata = {}
    timeline = lab.timeline()
    timeline._ipython_display_()
    monkeypatch.setattr(timeline._feed, "refresh", fail_with(DeviceError("lost")))
    shell.end_cell()

    assert "lost" in caplog.text


def test_a_timeline_is_drawn_of_a_trace_alone(lab, quiet, tmp_path):
    record(lab)
    assert type(lab.trace.timeline()) is Timeline
    assert type(lab.timeline(live=False)) is Timeline
    assert isinstance(lab.timeline(), LiveTimeline)
    for wrong, said in {
        lab: r"not of a \w+. Use lab.timeline\(\) or gpustreamlab.Timeline\(lab.trace\)",
        lab.timeline(): r"not of a \w+. Use lab.timeline\(\) or gpustreamlab.Timeline\(lab.trace\)",
        "run.parquet": r"Use gpustreamlab.Timeline\(gpustreamlab.load_trace\('run.parquet'\)\)",
        tmp_path / "run.parquet": r"Use gpustreamlab.Timeline\(gpustreamlab.load_trace\('run.parquet'\)\)",
        None: r"not of a NoneType. Use lab.timeline\(\) for what ran so far",
    }.items():
        with pytest.raises(OptionError, match=said):
            Timeline(wrong)
