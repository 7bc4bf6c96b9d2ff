"""Several cards of one host: their streams, their one time, and one trace of all of them."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab import Node, Session, Trace, workloads
from gpustreamlab.draw import plan_groups, plan_scene, timeline_svg
from gpustreamlab.errors import (
    BackendNotFoundError,
    DeviceNotFoundError,
    InvalidNameError,
    NotSimulatedError,
    OptionError,
    SessionClosedError,
    StreamExistsError,
    StreamNotFoundError,
    TraceError,
)
from gpustreamlab.model import Lane, Note
from gpustreamlab.recorder import JoinedJournal
from gpustreamlab.sinks.live import LiveFeed
from gpustreamlab.typing import SpanKind
from tests.helpers.selections import tools_stream


def work_of(trace, stream):
    part = trace.where(kind="kernel", stream=stream)
    return list(zip(part.start_ns.tolist(), part.end_ns.tolist(), strict=True))


def test_a_stream_waits_for_an_event_of_another_card_and_cards_run_beside_each_other():
    with Node(backend="sim") as node:
        first, last = node.stream("first"), node.stream("last", device=1)
        for _ in range(3):
            with node.on(first):
                workloads.spin(node[0], 50_000)
            last.wait(first.record())
            with node.on("last"):
                workloads.spin(node[1], 80_000)
        node.synchronize()
        trace = node.trace
        # The kernels touch nothing, so no wait is needed: three of 80 us one behind the other are left.
        assert "290 µs; 249 µs with the change below" in str(node.explain("first", "last"))
    produced, consumed = work_of(trace, "first"), work_of(trace, "last")
    assert [begin for begin, _ in consumed] == [
        max(end, consumed[place - 1][1] if place else 0) for place, (_, end) in enumerate(produced)
    ]
    assert trace.overlap()["first", "last"].common_ns == 100_000
    assert [(lane.name, lane.device) for lane in trace.lanes if lane.kind == "stream"] == [("first", 0), ("last", 1)]
    assert [device.sm_count for device in trace.devices] == [132, 132]


def test_cards_do_not_share_sms_and_the_host_waits_for_the_last():
    with Node([0, 1, 2], backend="sim") as node:
        for number in range(3):
            node.stream(f"s{number}", device=f"gpu{number}")
            with node.on(f"s{number}"):
                workloads.spin_card(node[number], 100_000 * (number + 1))
        node.synchronize()
        trace = node.trace.where(kind="kernel")
        wall_ns = trace.end_ns.max() - trace.start_ns.min()
        assert node.trace.utilization().card_share == pytest.approx(600_000 / (3 * wall_ns))
        assert wall_ns < 350_000
        assert [end - begin for number in range(3) for begin, end in work_of(node.trace, f"s{number}")] == [
            100_000,
            200_000,
            300_000,
        ]
        assert len(node) == 3


def test_names_are_of_the_whole_node():
    with Node(backend="sim") as node:
        stream = node.stream("decode", device=1)
        assert node.stream("decode") is stream
        assert list(node.streams) == ["decode"]
        with pytest.raises(StreamExistsError, match="is on GPU 1"):
            node.stream("decode", device=0)
        with pytest.raises(StreamNotFoundError, match="Did you mean 'decode'"):
            node.on("decod")
        with pytest.raises(DeviceNotFoundError, match="'gpu0', 'gpu1'"):
            node["gpu2"]


def test_a_name_is_one_on_the_whole_node_also_where_a_session_of_it_is_asked():
    with Node(backend="sim") as node:
        a, b = node[0].stream("a"), node[1].stream("b")
        with pytest.raises(StreamExistsError, match="'a' is on GPU 0 of this node"):
            node[1].stream("a")
        with pytest.raises(StreamNotFoundError, match=r"'b' is on GPU 1 of this node.*node\.stream\('b'\)"):
            a.wait("b")
        a.wait(b)
        b.close()
        assert node[0].stream("b") is node.stream("b", device=0)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"backend": "sym"}, BackendNotFoundError, "'sim'"),
        ({"backend": "sim", "devices": []}, OptionError, "one or more"),
        ({"backend": "sim", "devices": 2}, OptionError, r"devices=\[0, 1\]"),
        ({"backend": "sim", "devices": [0, 0]}, OptionError, "each once"),
        ({"backend": "sim", "devices": [1]}, OptionError, "0, 1, 2"),
        ({"backend": "sim", "spool": True}, OptionError, "no spool"),
    ],
)
def test_what_cannot_be_a_node_is_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        Node(**arguments)


def test_the_trace_stays_after_closing_and_closing_twice_is_silent():
    node = Node(backend="sim")
    node.stream("a")
    with node.on("a"):
        workloads.spin(node[0], 1_000)
    node.close()
    node.close()
    assert len(node.trace.where(kind="kernel")) == 1
    assert "closed" in repr(node)
    for use in (node.on, node.stream):
        with pytest.raises(SessionClosedError, match="This node is closed"):
            use("a")


def test_events_of_simulated_sessions_with_times_of_their_own_are_still_refused():
    with Session("sim") as one, Session("sim") as other:
        event = one.stream("a").record()
        with pytest.raises(OptionError, match="a clock of its own"):
            other.stream("b").wait(event)


def columns(device, start_ns, **more):
    trace = Trace.from_columns(
        start_ns=start_ns, end_ns=[ns + 9 for ns in start_ns], stream=["work"] * len(start_ns), sm_count=4, **more
    )
    return replace(trace, lanes=tuple(replace(lane, device=device) for lane in trace.lanes))


def test_a_difference_of_clocks_that_changes_is_followed_and_goes_on_beyond():
    ahead = np.array([0, 1_000, 2_000]), np.array([10, 20, 50])
    whole = gsl.merge([columns(0, [0]), columns(1, [0, 500, 1_500, 3_000])], ahead_ns=[0, ahead], error_ns=3)
    assert whole.where(stream="gpu1:work").start_ns.tolist() == [10, 515, 1_535, 3_080]
    assert whole.metadata.clock_error_ns == 3


def test_tables_and_rows_of_merged_traces_point_where_they_did():
    first = columns(0, [5, 6], name=["a", "b"], parent=[-1, 0], thread=["main", None])
    second = columns(1, [0, 7], name=["b", "c"], parent=[-1, 0], thread=["side", "main"])
    second = replace(second, notes=[Note(time_ns=3, end_ns=4, stream="work", text="late")])
    whole = gsl.merge([first, second], ahead_ns=[0, 0])
    assert [(note.text, note.time_ns, note.end_ns, note.stream) for note in whole.notes] == [("late", 3, 4, "gpu1:work")]
    assert [whole.names[code] for code in whole.name] == ["b", "a", "b", "c"]
    assert whole.parent.tolist() == [-1, -1, 1, 0]
    assert [whole.threads[code] if code >= 0 else None for code in whole.thread] == ["side", "main", None, "main"]
    assert [lane.name for lane in whole.lanes] == ["gpu0:work", "gpu1:work"]
    assert whole.metadata.part_of_spans == 0
    assert len(whole.where(device=1)) == 2


def test_traces_that_cannot_be_put_on_one_clock_are_refused():
    with pytest.raises(TraceError, match="ahead_ns"):
        gsl.merge([columns(0, [0]), columns(1, [0])])
    with pytest.raises(OptionError, match="one number for each"):
        gsl.merge([columns(0, [0])], ahead_ns=[0, 1])
    assert isinstance(gsl.merge([columns(0, [0])]).lanes[0], Lane)


def kernel_edges(trace):
    """Return the pairs of names of kernels, of which the second waited for the first."""
    kinds = trace.kind[np.stack((trace.edges.source, trace.edges.target))] == list(SpanKind).index(SpanKind.KERNEL)
    return [
        (trace.lanes[trace.lane[source]].name, trace.lanes[trace.lane[target]].name)
        for source, target in zip(trace.edges.source[kinds.all(0)], trace.edges.target[kinds.all(0)], strict=True)
    ]


def hand_over(node):
    """Two kernels on the first card, and one on the second that waits for them."""
    node.stream("first")
    node.stream("last", device=1)
    with node.on("first", "produce"):
        workloads.spin(node[0], 50_000)
        workloads.spin(node[0], 50_000)
    node.streams["last"].wait(node.streams["first"])
    with node.on("last", "consume"):
        workloads.spin(node[1], 80_000)
    node.synchronize()


def test_edges_go_from_a_kernel_of_one_card_to_that_which_waited_on_another():
    with Node(backend="sim") as node:
        hand_over(node)
        trace = node.trace
        path = trace.critical_path()
    assert kernel_edges(trace) == [("first", "last")]
    assert {trace.lanes[lane].name for lane in trace.lane[trace.kind == list(SpanKind).index(SpanKind.KERNEL)]} == {
        "first",
        "last",
    }
    assert [step for step in str(path).splitlines() if "last" in step]
    assert len(node[1].trace.where(kind="kernel")) == 1


def test_what_is_launched_on_another_card_than_the_selected_stream_is_part_of_the_range():
    with Node(backend="sim") as node:
        node.stream("decode", device=1)
        with node.on("decode", "step"):
            node[0].xp.ones((64, 64))
        node.synchronize()
        strays = node.trace.strays()
    assert len(strays) == 1
    assert "decode" in str(strays)
    assert strays.advice == (
        "default stream is on GPU 0, and decode on GPU 1: launch with node[1].xp, or select a stream of GPU 0.",
    )


def test_ranges_of_two_cards_have_an_edge_and_those_of_sessions_apart_have_none_of_others():
    with Node(backend="sim", capture="ranges") as node:
        hand_over(node)
        trace = node.trace
        named = trace.name[np.stack((trace.edges.source, trace.edges.target))].T
        assert [[trace.names[code] for code in pair] for pair in named] == [["produce", "consume"]]
        assert not len(node[1].trace.edges)


def test_a_live_view_of_a_node_has_what_its_trace_has():
    with Node(backend="sim") as node:
        journal = node._joined()
        feed = LiveFeed(journal)
        first = feed.refresh()
        hand_over(node)
        with node.on("first", "again"):
            workloads.spin(node[0], 10_000)
        node.synchronize()
        update = feed.refresh()
        trace, live = node.trace, journal.trace()
        assert update.facts["tables"]["lanes"][0]["name"] == "first"
        assert len(live) == len(trace)
        for name in ("start_ns", "end_ns", "lane", "name", "kind", "parent"):
            assert (getattr(live, name) == getattr(trace, name)).all()
        node.clear()
        with node.on("last", "later"):
            workloads.spin(node[1], 10_000)
        node.synchronize()
        assert feed.refresh().facts["is_cleared"]
        for later in (node.trace.where(kind="range"), journal.trace().where(kind="range")):
            assert [later.names[code] for code in later.name] == ["later"]
        assert first is None or first.facts["number"] == 1


def test_neither_trace_nor_live_view_has_what_was_measured():
    with Node(backend="sim") as node:
        feed = LiveFeed(node._joined())
        feed.refresh()
        for device in (0, 1):
            tools_stream(node[device], f"bench/main/{device}")
        hand_over(node)
        for device in (0, 1):
            with node[device].on(f"bench/main/{device}", "measured"):
                workloads.spin(node[device], 10_000)
        node.synchronize()
        feed.refresh()
        facts, trace = feed.snapshot().facts, node.trace
        assert [lane["name"] for lane in facts["tables"]["lanes"]] == [lane.name for lane in trace.lanes]
        assert facts["manifest"]["n"] == len(trace)
        assert not any("bench" in lane.name for lane in trace.lanes)


def test_options_of_a_stream_are_those_of_a_session():
    with Node(backend="sim") as node:
        made = node.stream("decode", device=1, priority=-1)
        assert (made.priority, made.lane.device) == (-1, 1)
        with pytest.raises(OptionError, match=r"no option 'devise'\. Use node\.stream\('decode', device=1, priority=-1"):
            node.stream("decode", devise=1)
        with node.on("decode", "token", step=3):
            assert node.current is made


@pytest.mark.parametrize(("arguments", "number"), [((0, "s"), 0), (("s", 0), 0), ((1, "s"), 1), (("s", "left"), 1)])
def test_arguments_in_a_wrong_order_are_told_with_the_line_to_type(arguments, number):
    with Node(backend="sim") as node:
        line = re.escape(
            f"takes all but its name by keyword. Use node.stream('s', device={number}, priority=-1, partition=...)"
        )
        with pytest.raises(OptionError, match=line):
            node.stream(*arguments)
        with pytest.raises(OptionError, match=r"not \['x'\]\. Use with node\.on\('decode', 'label'\)"):
            node.on(["x"])
        with pytest.raises(
            OptionError, match=r"node\.on takes a stream of the node first, not 0\. Use with node\.on\('s', 'label'\)"
        ):
            node.on(0, "s")
        with pytest.raises(InvalidNameError, match="is a str, not list"):
            node.stream(["x"])
        with pytest.raises(DeviceNotFoundError, match=r"no device \[1\]; it has 'gpu0', 'gpu1'"):
            node[[1]]


@pytest.mark.parametrize("name", ["xp", "partition", "capture", "memory", "device", "layout"])
def test_what_each_gpu_has_of_its_own_says_how_to_ask_one(name):
    with Node(backend="sim") as node:
        assert getattr(node[0], name, name) is not name
        with pytest.raises(AttributeError, match=rf"no attribute .{name}.\. Use one of its GPUs: for one in node: one\.{name}"):
            getattr(node, name)
        with pytest.raises(AttributeError, match="'Node' object has no attribute 'nothing'"):
            node.nothing  # noqa: B018


def test_a_cell_is_marked_once_and_a_call_that_two_journals_tell_is_one():
    with Node(backend="sim") as node:
        hand_over(node)
        node.mark("half-way")
        assert [[marker.text for marker in one.trace.markers] for one in (node, *node)] == [["half-way"]] * 3
        for session in node:
            session.capture("kernels", host=True)
        hand_over(node)
        assert [marker.text for marker in node.trace.markers] == ["half-way"]
        recorders = [session._recorder for session in node]
        twice = JoinedJournal(
            [recorders[0], recorders[0]], ahead=lambda: [0, 0], error_ns=lambda _: 0, devices=[node[0].device], tells_alike=True
        ).trace()
        calls = twice.where(kind="host")
        assert len(calls) == len(np.unique(calls.extra["correlation"])) > 0


def test_an_array_of_another_card_is_copied_by_the_link_between_them():
    with Node(backend="sim") as node:
        node.stream("first")
        node.stream("last", device=1)
        with node.on("first", "produce"):
            made = node[0].xp.arange(1 << 22, dtype="float32")
        node.streams["last"].wait(node.streams["first"])
        with node.on("last", "hand over"):
            taken = node[1].xp.asarray(made)
            doubled = taken * 2
        node.synchronize()
        assert (doubled.get() == made.get() * 2).all()
        copies = node.trace.where(kind="copy")
        peer = copies.where(name="memcpy PtoP")
    assert [copies.lanes[lane].name for lane in peer.lane] == ["last"]
    assert peer.extra["size_bytes"].tolist() == [16 << 20]
    assert peer.duration_ns[0] == pytest.approx((16 << 20) / 396 + 1_500, abs=10)  # 45 us; an H100 took 45
    assert node.peer_access() == {(0, 1): "on", (1, 0): "on"}
    assert peer.details[peer.extra["detail"][0]].full_name == "memcpy GPU 0 to GPU 1"
    assert len(node.trace.strays()) == 0


def test_an_array_of_another_host_is_not_copied():
    with Session("sim") as one, Session("sim") as other:
        with pytest.raises(NotSimulatedError, match="another simulated host"):
            other.xp.asarray(one.xp.ones(4))


def test_a_picture_groups_the_streams_of_a_node_by_card_and_partition():
    with Node(backend="sim") as node:
        node[1].partition({"small": 32})
        for name, device, partition in (("a", 0, None), ("b", 1, "small"), ("c", 1, None)):
            node.stream(name, device=device, partition=partition)
            with node.on(name):
                workloads.spin(node[device], 1_000)
        node.synchronize()
        trace = node.trace
    groups = plan_groups(trace)
    assert [(group.label, [trace.lanes[lane].name for lane in group.lanes], group.granted_sms) for group in groups] == [
        ("GPU 0 · 132 SMs", ["a"], 132),
        ("GPU 1 · small · 32 SMs", ["b"], 32),
        ("GPU 1 · 132 SMs", ["c"], 132),
    ]
    assert groups[0].detail == "H200 (simulated)"


def test_each_card_of_a_node_has_its_sms_above_the_lanes():
    with Node(backend="sim") as node:
        node[0].partition(prefill=96)
        node.stream("prefill", partition="prefill")
        node.stream("decode", device=1)
        for number, name in enumerate(("prefill", "decode")):
            with node.on(name):
                workloads.spin(node[number], 50_000)
        node.synchronize()
        trace = node.trace
    scene = plan_scene(trace)
    assert scene.sm_count == 264
    assert [(row.label, row.most) for row in scene.card_rows if row.kind == "sms"] == [
        ("GPU 0 · 132 SMs", 132),
        ("GPU 1 · 132 SMs", 132),
    ]
    assert ">GPU 1 · 132 SMs<" in timeline_svg(trace)


def test_streams_of_two_processes_are_not_taken_for_one():
    def saved(start_ns):
        return Trace.from_columns(
            start_ns=start_ns, end_ns=[ns + 9 for ns in start_ns], stream=["work"] * len(start_ns), kind="kernel"
        )

    first, second = saved([0, 20]), saved([5, 40])
    with pytest.raises(TraceError, match=r"processes=\[0, 1\]"):
        gsl.merge([first, second], ahead_ns=[0, 0])
    both = gsl.merge([first, second], ahead_ns=[0, 0], processes=[0, 1])
    assert [(lane.name, lane.process) for lane in both.lanes] == [("p0:work", 0), ("p1:work", 1)]
    assert len(gsl.merge([first, saved([100])], ahead_ns=[0, 0]).lanes) == 1  # the same session, later
    with pytest.raises(OptionError, match="one number for each trace"):
        gsl.merge([first], processes=[0, 1])


def test_what_made_room_on_a_device_counts_once():
    with Node(backend="sim", capture="ranges", ring_size=50) as node:
        node.stream("a")
        for _ in range(200):
            with node.on("a", "step"):
                node[0].xp.ones(4)
        node.synchronize()
        assert [len(node.trace), node.trace.metadata.dropped_spans] == [50, 150]
