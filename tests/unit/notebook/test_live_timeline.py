"""The live timeline as a widget: what it sends, and what stays when the session is gone."""

from __future__ import annotations

import gc
import json
import logging
import os
import threading
import time
import weakref

import pytest

from gpustreamlab import Session, Timeline
from gpustreamlab.errors import DeviceError, OptionError, SessionClosedError, StickyDeviceError
from gpustreamlab.notebook.widgets import LiveTimeline

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
    for module in ("session", "timeline", "notebook.live_timeline"):
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


class TestUpdates:
    def test_new_spans_go_out_as_one_message_a_refresh(self, lab, quiet):
        timeline = lab.timeline()
        comm = with_comm(timeline)
        record(lab, 3)
        timeline.refresh()
        timeline.refresh()
        ((update, (blob,)),) = comm.updates

        assert update["facts"]["manifest"]["n"] == 3
        assert isinstance(blob, bytes)
        assert len(comm.sent) == 1

    def test_the_kernel_keeps_no_copy_of_what_was_sent(self, lab, quiet):
        timeline = lab.timeline()
        with_comm(timeline)
        record(lab, 3)
        timeline.refresh()

        assert not [key for key in timeline.page.keys if key.startswith("update")]

    def test_a_thread_does_it_while_the_cell_goes_on(self, lab):
        timeline = lab.timeline(refresh_hz=20)
        comm = with_comm(timeline)
        record(lab)
        end_s = time.monotonic() + 60
        while not comm.updates and time.monotonic() < end_s:
            time.sleep(0.02)

        assert len(comm.updates) == 1

    def test_a_page_that_comes_later_gets_everything_by_then(self, lab, quiet):
        record(lab, 2)
        timeline = lab.timeline()
        with_comm(timeline)
        record(lab, 3)
        timeline.refresh()
        state = timeline.page.get_state()

        assert state["snapshot"]["facts"]["manifest"]["n"] == 5
        assert state["snapshot"]["facts"]["number"] == timeline._feed._number
        assert state["bokeh_gz"][:2] == b"\x1f\x8b"
        assert json.loads(state["item"])["doc"]

    def test_a_page_that_has_missed_something_is_answered(self, lab, quiet):
        timeline = lab.timeline()
        comm = with_comm(timeline)
        record(lab, 3)
        timeline.refresh()
        comm.sent.clear()
        timeline.page._handle_custom_msg({"ask": "snapshot"}, [])

        assert comm.sent[0][0]["state"]["snapshot"]["facts"]["manifest"]["n"] == 3

    def test_what_a_page_sends_besides_is_ignored(self, lab, quiet):
        timeline = lab.timeline()
        comm = with_comm(timeline)
        for content in ({"ask": "money"}, [], None, {"snapshot": 1}, "snapshot"):
            timeline.page._handle_custom_msg(content, [])

        assert comm.sent == []

    def test_a_page_that_is_gone_is_sent_nothing(self, lab, quiet):
        timeline = lab.timeline()
        timeline.page.close()
        record(lab)

        assert timeline.refresh()

    def test_an_earlier_start_that_comes_late_sends_everything_again(self, lab, quiet):
        timeline = lab.timeline()
        comm = with_comm(timeline)
        run_long_and_short(lab, timeline)
        (first, _), (second, _) = comm.updates

        assert (first["facts"]["is_cleared"], first["facts"]["manifest"]["n"]) == (False, 1)
        assert (second["facts"]["is_cleared"], second["facts"]["manifest"]["n"]) == (True, 2)
        assert int(second["facts"]["tables"]["zero_ns"]) < int(first["facts"]["tables"]["zero_ns"])
        assert timeline.page.get_state("snapshot")["snapshot"]["facts"]["clear_count"] == first["facts"]["clear_count"]

    def test_the_thread_finds_how_much_ran_at_once(self, lab):
        timeline = lab.timeline(refresh_hz=20)
        comm = with_comm(timeline)
        run_long_and_short(lab, timeline)
        end_s = time.monotonic() + 60
        found = []
        while not found and time.monotonic() < end_s:
            time.sleep(0.02)
            headers = [update["facts"].get("header", {}) for update, _ in comm.updates]
            found = [header["finding"] for header in headers if "finding" in header]

        assert "2 or more streams" in found[0]

    def test_all_cells_share_one_widget(self, lab, quiet):
        assert lab.timeline() is lab.timeline()
        assert lab.timeline(refresh_hz=5) is not lab.timeline()
        assert lab.timeline(capacity=10) is not lab.timeline()


def run_long_and_short(lab, timeline):
    """Let work on one stream end before that on another, which started earlier; update the page in between."""
    from gpustreamlab.workloads import spin

    with lab.on("compute", "long"):
        spin(lab, 10_000_000)
    with lab.on("copy", "short"):
        spin(lab, 100_000)
    lab.streams["copy"].synchronize()
    timeline.refresh()
    lab.synchronize()
    timeline.refresh()


class TestTrouble:
    def test_a_device_error_is_told_and_the_view_goes_on(self, lab, quiet, monkeypatch):
        timeline = lab.timeline()
        comm = with_comm(timeline)
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

    def test_a_comm_that_fails_ends_the_view_and_not_the_work(self, lab, caplog):
        timeline = lab.timeline(refresh_hz=20)
        with_comm(timeline).error = RuntimeError("no socket")
        record(lab)
        timeline._updater._thread.join(60)

        assert "no socket" in caplog.text
        assert not timeline._updater.is_running
        record(lab)
        assert len(lab.trace) == 2

    def test_a_view_that_fails_does_not_keep_the_session_from_closing(self, lab, quiet, caplog, monkeypatch):
        timeline = lab.timeline()
        with_comm(timeline)
        monkeypatch.setattr(timeline._feed, "snapshot", fail_with(MemoryError("none left")))
        lab.close()

        assert lab.state != "open"
        assert "none left" in caplog.text

    @pytest.mark.parametrize("options", [{"refresh_hz": 0}, {"refresh_hz": 100}, {"capacity": 0}, {"capacity": "all"}])
    def test_options_out_of_range_are_refused_also_without_a_notebook(self, options):
        with Session("sim") as lab, pytest.raises(OptionError, match=r"lab.timeline\("):
            lab.timeline(**options)

    def test_an_interrupt_between_the_steps_of_closing_is_made_up_for(self, lab, quiet, monkeypatch):
        timeline = lab.timeline()
        comm = with_comm(timeline)
        record(lab)
        real = timeline._feed.refresh
        monkeypatch.setattr(timeline._feed, "refresh", fail_with(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            lab.close()
        monkeypatch.setattr(timeline._feed, "refresh", real)
        lab.close()

        assert len(comm.updates) == 1
        assert comm.statuses[-1] == "closed"


def fail_with(error):
    def fail(*_):
        raise error

    return fail


class TestLife:
    def test_closing_sends_the_rest_and_says_so(self, lab, quiet):
        timeline = lab.timeline()
        comm = with_comm(timeline)
        record(lab, 2)
        lab.close()

        assert [update["facts"]["manifest"]["n"] for update, _ in comm.updates] == [2]
        assert comm.statuses == ["closed"]
        assert timeline.page.get_state("snapshot")["snapshot"]["facts"]["manifest"]["n"] == 2
        assert not timeline.is_live
        assert len(timeline.trace) == 2

    def test_what_stays_says_how_much_ran_at_once_in_the_end(self, lab, quiet):
        timeline = lab.timeline()
        comm = with_comm(timeline)
        run_long_and_short(lab, timeline)
        lab.close()
        (last, _) = comm.updates[-1]

        assert "2 or more streams" in last["facts"]["header"]["finding"]
        snapshot = timeline.page.get_state("snapshot")["snapshot"]
        assert snapshot["facts"]["tables"]["header"]["finding"] == last["facts"]["header"]["finding"]

    def test_no_thread_is_left_after_closing(self, lab):
        timeline = lab.timeline()
        assert timeline.page
        assert timeline._updater.is_running
        lab.close()

        assert not timeline._updater.is_running

    def test_nothing_runs_before_something_is_shown(self, lab):
        assert not lab.timeline()._updater.is_running

    def test_the_widget_keeps_neither_session_nor_recorder_alive(self, shell):
        lab = Session("sim")
        lab.stream("copy")
        record(lab)
        page = lab.timeline().page
        gone, recorder = weakref.ref(lab), weakref.ref(lab._recorder)
        lab.close()
        del lab
        gc.collect()

        assert (gone(), recorder()) == (None, None)
        assert page.get_state("snapshot")["snapshot"]["facts"]["manifest"]["n"] == 1

    def test_a_timeline_whose_session_is_gone_says_so(self, shell):
        lab = Session("sim")
        timeline = lab.timeline()
        lab.close()
        del lab
        gc.collect()

        with pytest.raises(SessionClosedError, match="Keep it in a variable"):
            _ = timeline.trace

    def test_a_page_of_a_closed_session_cannot_be_made(self, lab):
        timeline = lab.timeline()
        lab.close()
        with pytest.raises(SessionClosedError, match="closed"):
            _ = timeline.page

    def test_a_forked_child_updates_nothing(self, lab):
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

    def test_saving_takes_what_there_is_by_then(self, lab, quiet, tmp_path):
        timeline = lab.timeline()
        record(lab, 3)
        page = timeline.save(tmp_path / "run.html").read_text()

        assert "3 spans in 1 stream" in page
        record(lab, 1)
        assert len(timeline.trace) == 4
        assert "4 spans" in str(timeline)
        assert repr(timeline).startswith("<test: timeline of 4 spans")


class TestOutputs:
    def test_a_page_gets_the_widget_and_a_picture_beside_it(self, lab, shell, quiet):
        record(lab, 2)
        lab.timeline()._ipython_display_()
        ((data, display_id, is_update),) = shell.published

        assert set(data) == {WIDGET_MIME, "text/plain", "image/svg+xml"}
        assert display_id
        assert not is_update
        assert "2 spans" in data["text/plain"]

    def test_closing_turns_every_output_into_a_picture_that_stays(self, lab, shell, quiet):
        timeline = lab.timeline()
        timeline._ipython_display_()
        timeline._ipython_display_()
        record(lab, 5)
        lab.close()
        first, second, *updates = shell.published

        assert [(shown, is_update) for _, shown, is_update in updates] == [(first[1], True), (second[1], True)]
        assert all(set(data) == {"text/plain", "text/html", "image/svg+xml"} for data, _, _ in updates)
        assert "5 spans" in updates[0][0]["text/plain"]

    def test_a_closed_session_shows_a_picture(self, lab, shell, quiet):
        timeline = lab.timeline()
        record(lab)
        lab.close()
        timeline._ipython_display_()
        ((data, _, _),) = shell.published

        assert WIDGET_MIME not in data
        assert type(lab.timeline()) is Timeline

    def test_without_a_page_pictures_are_drawn_anew_after_cells_that_recorded(self, lab, shell, quiet):
        shell.metadata = {}
        timeline = lab.timeline()
        timeline._ipython_display_()
        assert WIDGET_MIME not in shell.published[0][0]
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

    def test_without_a_page_a_picture_stays_once_another_is_shown_or_its_spans_are_forgotten(self, lab, shell, quiet):
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

    def test_without_a_page_an_earlier_start_that_comes_late_forgets_no_picture(self, lab, shell, quiet):
        from gpustreamlab.workloads import spin

        shell.metadata = {}
        lab.timeline()._ipython_display_()
        with lab.on("compute", "long"):
            spin(lab, 10_000_000)
        with lab.on("copy", "short"):
            spin(lab, 100_000)
        lab.streams["copy"].synchronize()
        shell.end_cell()
        lab.synchronize()
        shell.end_cell()

        assert [is_update for _, _, is_update in shell.published] == [False, True, True]
        assert "2 spans" in shell.published[-1][0]["text/plain"]

    def test_a_picture_that_cannot_be_drawn_anew_does_not_disturb_the_cell(self, lab, shell, quiet, monkeypatch, caplog):
        shell.metadata = {}
        timeline = lab.timeline()
        timeline._ipython_display_()
        monkeypatch.setattr(timeline._feed, "refresh", fail_with(DeviceError("lost")))
        shell.end_cell()

        assert "lost" in caplog.text

    def test_a_saved_trace_and_live_off_are_pictures(self, lab, quiet):
        record(lab)
        trace = lab.trace

        assert type(lab.timeline(trace)) is Timeline
        assert type(lab.timeline(live=False)) is Timeline
        assert isinstance(lab.timeline(), LiveTimeline)

    @pytest.mark.parametrize("live", ["yes", 1, None])
    def test_live_is_yes_or_no(self, lab, live):
        with pytest.raises(OptionError, match=r"live is .*; it must be True or False. Use lab.timeline\(live=False\)"):
            lab.timeline(live=live)

    def test_a_timeline_is_drawn_of_a_trace_alone(self, lab, tmp_path):
        for wrong in (lab, lab.timeline()):
            with pytest.raises(OptionError, match=r"not of a \w+. Use lab.timeline\(\) or gpustreamlab.Timeline\(lab.trace\)"):
                Timeline(wrong)
        for wrong in ("run.parquet", tmp_path / "run.parquet"):
            with pytest.raises(OptionError, match=r"Use gpustreamlab.Timeline\(gpustreamlab.load_trace\('run.parquet'\)\)"):
                Timeline(wrong)
        with pytest.raises(OptionError, match=r"not of a NoneType. Use lab.timeline\(\) for what ran so far"):
            Timeline(None)

    @pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437"])
    def test_it_can_be_printed_where_the_output_knows_no_blocks(self, lab, quiet, monkeypatch, encoding):
        import io
        import sys

        with lab.on("copy", "Straße → 漢字"):
            pass
        record(lab)
        terminal = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", terminal)
            print(lab.timeline(), flush=True)
        printed = terminal.buffer.getvalue().decode("ascii")

        assert "Stra?e ? ????" in printed
        assert max(map(len, printed.splitlines())) <= 80
        assert "│" in str(lab.timeline())

    def test_in_a_script_it_is_a_picture_of_now(self):
        with Session("sim") as lab:
            assert type(lab.timeline()) is Timeline

    def test_the_repr_is_short_and_has_no_data(self, lab, quiet):
        record(lab, 3)
        assert repr(lab.timeline().page) == "<TimelinePage: live>"


def test_importing_the_session_loads_no_widgets():
    import subprocess
    import sys

    code = "import sys, gpustreamlab.session; sys.exit('ipywidgets' in sys.modules or 'bokeh' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_interpreter_ends_with_a_live_timeline_open():
    import subprocess
    import sys

    code = (
        "import gpustreamlab.session as s, types\n"
        "shell = types.SimpleNamespace(kernel=1)\n"
        "s.running_kernel_shell = lambda: shell\n"
        "lab = s.Session('sim'); lab.stream('copy'); lab.timeline(refresh_hz=20).page\n"
        "import time; time.sleep(.2)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_many_threads_may_ask_for_it(lab, quiet):
    found = []
    threads = [threading.Thread(target=lambda: found.append(lab.timeline().page)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(map(id, found))) == 1


def test_logging_of_a_finished_view_is_quiet(lab, quiet, caplog):
    with caplog.at_level(logging.WARNING):
        assert lab.timeline().page
        lab.close()
        lab.close()

    assert caplog.text == ""


def test_a_page_keeps_its_last_picture_where_a_signal_handler_closes_the_session_in_the_middle(lab, quiet, monkeypatch):
    # GIVEN a page, and a refresh of it in the middle of which a handler closes the session
    timeline = lab.timeline()
    comm = with_comm(timeline)
    record(lab, 3)
    feed, refresh = timeline._feed, timeline._feed.refresh

    def close_first():
        monkeypatch.setattr(feed, "refresh", refresh)
        lab.close()
        return refresh()

    monkeypatch.setattr(feed, "refresh", close_first)

    # WHEN the refresh goes on, THEN it sends nothing more: everything that was recorded stays on the page
    assert timeline.refresh() is False
    assert [update["facts"]["is_cleared"] for update, _ in comm.updates] == [False]
    assert comm.statuses[-1] == "closed"
    assert timeline.page.get_state("snapshot")["snapshot"]["facts"]["manifest"]["n"] == 3
