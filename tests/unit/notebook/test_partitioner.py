"""The widget between page and session, with a session that refuses what it does not expect."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import threading
import weakref
from xml.etree import ElementTree as ET

import pytest

from gpustreamlab import Session
from gpustreamlab.analysis import plan_partitions
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.errors import PartitionInUseError
from gpustreamlab.model import Device, SMResource
from gpustreamlab.notebook.partitioner import Partitioner
from gpustreamlab.typing import SessionState

H200 = Device(
    name="H200",
    sm_count=132,
    simulated=True,
    sm_resource=SMResource(min_sms=8, alignment_sms=8, group_sms=8, group_count=15, remainder_sms=12),
)


class FakeCapabilities:
    def __init__(self, available=True):
        self.available = available

    def __getitem__(self, feature):
        assert feature == "green-contexts"
        return self

    def __str__(self):
        return "green-contexts: not available, the driver supports CUDA 12.2"


class FakeTarget:
    """A session that knows one layout, and raises on each call that the test did not say to expect."""

    def __init__(self, *, device=H200, available=True, **shares):
        self.device, self.capabilities = device, FakeCapabilities(available)
        self.layout = plan_partitions(shares, device) if shares else None
        self.state = SessionState.OPEN
        self.partitions = self  # what a session has in a group, this has itself
        self.streams = {}
        self.expected: set[str] = {"plan_moves"}
        self.moves: tuple[str, ...] = ()
        self.error: Exception | None = None
        self.asked: list[tuple[object, ...]] = []
        self.listeners: list[object] = []

    def expect(self, name):
        if name not in self.expected:
            raise AssertionError(f"{name} was not expected")
        if self.error is not None:
            raise self.error

    def partition(self, plan, *, round, renamed):  # noqa: A002
        self.expect("partition")
        self.asked.append((plan, str(round), dict(renamed)))
        self.layout = plan
        self.tell()
        return plan

    def plan_moves(self, layout, *, renamed):
        self.expect("plan_moves")
        return self.moves

    def verify(self):
        self.expect("verify")
        raise AssertionError("no test verifies with this target")

    def watch(self, callback):
        self.listeners.append(callback)
        return lambda: self.listeners.remove(callback)

    def tell(self):
        for listener in tuple(self.listeners):
            listener(self.layout)


@pytest.fixture
def make():
    made = []

    def make_it(target):
        made.append(Partitioner(target))
        made[-1].sent = []
        made[-1].send = made[-1].sent.append
        return made[-1]

    yield make_it
    for widget in made:
        widget.close()


def send(widget, do, **arguments):
    """Send an action as the page does, and return what the page then draws."""
    widget._handle_custom_msg({"action": {"do": do, **arguments}, "seq": 7, "client": "page"}, [])
    return widget.view


def test_apply_asks_the_session_for_the_plan_on_the_screen(make):
    target = FakeTarget(prefill=96, decode=36)
    widget = make(target)
    send(widget, "apply")  # without a change, and without a plan, nothing is asked for
    send(widget, "set_request", key=0, text="133")
    send(widget, "apply")
    assert target.asked == []
    send(widget, "set_request", key=0, text="64")
    send(widget, "set_name", key=1, text="chat")
    target.expected |= {"partition"}
    view = send(widget, "apply")

    plan, rounding, renamed = target.asked[0]
    assert [(part.name, part.granted_sms) for part in plan] == [("prefill", 64), ("chat", 36)]
    assert (rounding, renamed) == ("up", {"decode": "chat"})
    assert (view["notice"], view["is_dirty"]) == ("Applied.", False)


def test_drafts_ask_the_session_for_nothing_but_what_would_move(make):
    target = FakeTarget(prefill=96, decode=36)
    target.moves = ("decode",)
    widget = make(target)
    for do in ("add", "clear", "revert"):
        send(widget, do)
    view = send(widget, "move_boundary", left=widget.view["rows"][0]["key"], sms=40)

    assert view["apply"]["label"] == "Apply: drains and moves stream decode"
    assert target.asked == []


def test_each_message_is_answered_also_a_wrong_one(make, caplog):
    target = FakeTarget(prefill=96, decode=36)
    widget = make(target)
    contents = ({"action": {"do": "look"}, "seq": 1, "client": "a"}, {"seq": 2, "client": "a"}, {}, "x", None, [1])
    for content in (*contents, {"action": {"do": "set_request", "key": 0, "text": 7}, "seq": 3}):
        widget._handle_custom_msg(content, [])

    assert [message["ack"] for message in widget.sent] == [1, 2, None, None, None, None, 3]
    assert "could not do" in caplog.text
    assert [row["request"] for row in widget.view["rows"]] == ["96", "36"]


def test_what_the_session_refuses_is_shown_and_the_draft_kept(make):
    target = FakeTarget(prefill=96, decode=36)
    widget = make(target)
    send(widget, "set_request", key=0, text="64")
    target.expected = {"partition", "plan_moves"}
    target.error = PartitionInUseError("Stream 'decode' is selected.")

    view = send(widget, "apply")
    assert (view["notice"], view["is_notice_bad"]) == ("Not applied: Stream 'decode' is selected.", True)
    assert (view["apply"]["detail"], view["apply"]["is_enabled"]) == ("Stream 'decode' is selected.", False)
    assert view["rows"][0]["request"] == "64"


def test_a_bug_of_the_session_is_shown_too(make, caplog):
    target = FakeTarget(prefill=96, decode=36)
    widget = make(target)
    target.expected = {"verify", "plan_moves"}

    assert "AssertionError: no test verifies" in send(widget, "verify")["notice"]
    assert "could not do" in caplog.text


@pytest.mark.parametrize("is_aside", [False, True], ids=["here", "from another thread"])
def test_a_layout_from_elsewhere_is_shown(make, is_aside):
    target = FakeTarget(prefill=96, decode=36)
    widget = make(target)
    target.layout = None
    thread = threading.Thread(target=target.tell)
    (thread.start if is_aside else target.tell)()
    if is_aside:
        thread.join()

    assert (widget.view["rows"], widget.python_line) == ([], "lab.partition(None)")


def test_close_stops_following_the_session_and_twice_is_silent(make):
    target = FakeTarget(prefill=96, decode=36)
    widget = make(target)
    assert len(target.listeners) == 1
    widget.close()
    widget.close()

    assert target.listeners == []


def test_a_session_that_is_closed_or_gone_is_said_at_the_next_look(make):
    target = FakeTarget(prefill=96, decode=36)
    widget, other = make(target), make(target)
    target.state = SessionState.CLOSED

    view = send(widget, "look")
    assert "closed" in view["obstacle"]
    assert send(widget, "apply") == view
    gone = weakref.ref(target)
    del target
    gc.collect()
    assert gone() is None
    view = send(other, "add")
    assert ("closed" in view["obstacle"], view["can_edit"]) == (True, False)
    assert [row["name"] for row in view["rows"]] == ["prefill", "decode"]


def test_a_device_that_cannot_partition_says_why_and_shows_its_card(make):
    widget = make(FakeTarget(device=Device(name="laptop", sm_count=24), available=False))

    view = send(widget, "add")
    assert "the driver supports CUDA 12.2" in view["obstacle"]
    assert (view["can_edit"], view["device"]["sm_count"], view["rows"]) == (False, 24, [])
    assert send(widget, "verify") == send(widget, "apply") == view


def test_apply_from_a_subshell_waits_for_the_cells_thread_and_drafts_do_not(make):
    target = FakeTarget(prefill=96, decode=36)
    target.expected |= {"partition"}

    async def cell():
        widget, handler = make(target), signal.getsignal(signal.SIGINT)

        def subshell():
            send(widget, "set_request", key=0, text="64")
            send(widget, "apply")
            send(widget, "set_request", key=0, text="40")

        thread = threading.Thread(target=subshell)
        thread.start()
        thread.join()  # the cell goes on running
        assert widget.view["rows"][0]["granted_sms"] == 40
        assert target.asked == []
        assert len(widget.sent) == 2
        await asyncio.sleep(0)  # the cell has ended
        assert len(widget.sent) == 3
        assert signal.getsignal(signal.SIGINT) is handler
        return widget

    widget = asyncio.run(cell())
    assert [plan["prefill"].granted_sms for plan, *_ in target.asked] == [64]  # as it was when Apply was pressed
    assert (widget.view["notice"], widget.view["rows"][0]["request"]) == ("Applied. The draft was changed since.", "40")


def test_an_interrupt_while_applying_shows_what_is_in_use(make, monkeypatch):
    target = FakeTarget(prefill=96, decode=36)
    widget = make(target)
    send(widget, "set_request", key=0, text="64")
    target.expected = {"plan_moves", "partition"}
    target.error = KeyboardInterrupt()
    monkeypatch.setattr(target, "plan_moves", lambda layout, *, renamed: ())

    view = send(widget, "apply")
    assert view["notice"] == "Interrupted. This is the layout in use."
    assert view["is_dirty"]


def test_other_forms_say_the_same_without_a_widget_and_hold_names_as_text(make):
    target = FakeTarget(prefill=96, decode=7)  # which the widget does not hold
    widget = make(target)
    data, _ = widget._repr_mimebundle_()

    assert "application/vnd.jupyter.widget-view+json" in data
    text = data["text/plain"]
    assert text.startswith("SM partitions of H200 (132 SMs, SIMULATED)")
    assert text.endswith(
        "lab.partition(prefill=96, decode=7, round='up')\nThis is its last state: lab.partitions.widget() shows it live."
    )
    for line in ("A  prefill: 96 SMs", "B  decode: 8 SMs (asked for 7)", ".  in no partition: 28 SMs"):
        assert line in text
    assert set(data) == {"application/vnd.jupyter.widget-view+json", "image/svg+xml", "text/plain"}
    said = [text.text for text in ET.fromstring(data["image/svg+xml"]).findall(".//{*}text")]
    assert text.splitlines()[-2:] == said[-2:]
    send(widget, "set_name", key=0, text="<script>alert(1)</script>")
    svg = widget._repr_mimebundle_()[0]["image/svg+xml"]
    assert "<script" not in svg
    assert "&lt;script&gt;" in svg


def test_state_that_goes_to_the_page_is_json_and_holds_no_path(make):
    widget = make(FakeTarget(prefill=96, decode=36))
    state = widget.get_state()

    assert json.loads(json.dumps(state["view"])) == state["view"]
    assert "/gpustreamlab/" not in str(state)
    assert "export default" in state["_esm"]
    assert ".gsl-part" in state["_css"]
    assert repr(widget) == "<Partitioner of H200 (simulated): lab.partition(prefill=96, decode=36, round='up')>"


def test_it_fits_a_real_session(make):
    with Session("sim") as lab:
        lab.partition(prefill=96, decode=36)
        lab.stream("s", partition="decode")
        widget = make(lab)
        assert widget.view["rows"][1]["streams"] == ["s"]
        send(widget, "set_name", key=1, text="chat")
        view = send(widget, "move_boundary", left=0, sms=64)
        assert view["apply"]["label"] == "Apply: drains and moves stream s"
        send(widget, "apply")
        assert (lab.layout.names, lab.streams["s"].partition) == (("prefill", "chat"), "chat")
        view = send(widget, "verify")
        assert view["rows"][1]["proof"] == "68 of 68 SMs seen, none outside"
        send(widget, "remove", key=1)
        assert "in use by stream 's'" in widget.view["apply"]["detail"]
        gone = weakref.ref(lab)
    del lab
    gc.collect()

    assert "closed" in send(widget, "look")["obstacle"]
    assert gone() is None


def test_session_on_a_laptop_says_why_it_cannot(make):
    with Session(SimBackend("laptop")) as lab:
        assert "not available" in make(lab).view["obstacle"]
        assert lab.layout is None
