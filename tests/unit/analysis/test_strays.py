"""Work that left the stream that was selected for it."""

from __future__ import annotations

import pytest

from gpustreamlab.analysis import strays, summary_text
from gpustreamlab.model import Lane
from tests.helpers.kernel_traces import DECODE, PREFILL, kernel_trace
from tests.helpers.traces import empty_trace, make_kernel_trace, pipeline_trace

HOST = "host: MainThread"


def strayed(lane, *, partition=-1, name="elementwise", around="annotation"):
    """A kernel that was launched in a range on "decode", inside a range of others, and ran on some lane."""
    lanes = (
        Lane(name="decode", stream=1, partition="decode"),
        Lane(name="prefill", stream=2, partition="prefill"),
        Lane(name=HOST, stream=7, kind="host"),
    )
    if lane not in {"decode", "prefill"}:
        lanes = (*lanes, Lane(name=lane, stream=9, outside=True))
    spans = [
        ("decode", "attention", 0, 1_000, {"kind": "range", "partition": 0}),
        (HOST, "torch: add", 10, 20, {"kind": around, "parent": 0}),
        (lane, name, 100, 300, {"parent": 1, "partition": partition}),
        ("decode", "flash", 300, 500, {"parent": 0, "partition": 0}),
    ]
    return make_kernel_trace(spans, lanes=lanes, partitions=(DECODE, PREFILL))


def test_a_kernel_on_another_lane_than_its_range_is_found_through_ranges_of_others():
    found = strays(strayed("torch stream 13"))
    assert (len(found), bool(found), found.work_count) == (1, True, 2)
    (group,) = found.groups
    assert (group.name, group.ran_on, group.selected) == ("elementwise", "torch stream 13", "decode")
    assert (group.selected_in, group.ran_in, group.left_partition) == ("decode", None, True)
    assert (group.span_count, group.total_ns) == (1, 200)
    assert found.to_pandas().iloc[0].to_dict() == {
        "row": 2, "name": "elementwise", "kind": "kernel", "ran_on": "torch stream 13", "selected": "decode",
        "range": "attention", "ran_in": None, "selected_in": "decode", "left_partition": True, "duration_ns": 200,
    }  # fmt: skip


def test_a_kernel_that_left_the_stream_but_not_the_partition_says_so():
    found = strays(strayed("stream 21", partition=0))
    assert found.left_partition.tolist() == [False]
    assert "outside the partition" not in repr(found)


@pytest.mark.parametrize(
    ("lane", "part", "words"),
    [
        ("torch stream 13", -1, "torch.cuda.stream(torch.cuda.ExternalStream(lab.stream('decode').handle))"),
        ("default stream", -1, "names no stream: pass lab.stream('decode')"),
        ("stream 21", 0, "belongs to others: pass lab.stream('decode')"),
        ("prefill", 1, "open the range on it, with lab.on('prefill', ...)"),
    ],
)
def test_it_says_what_to_do(lane, part, words):
    found = strays(strayed(lane, partition=part))
    assert words in found.advice[0]
    assert found.advice[0].startswith(f"{lane} ")
    assert found.advice[0] in " ".join(str(found).split())


def test_the_story_has_two_sorts():
    found = strays(kernel_trace(4))
    assert repr(found) == (
        "<Strays: 8 kernels ran on other streams than the selected one, 4 of them outside the partition: "
        "most often elementwise (4 of 8, 400 µs), on torch stream 13 instead of decode>"
    )
    assert [group.span_count for group in found.groups] == [4, 4]
    assert sum(group.total_ns for group in found.groups) == int(found.duration_ns.sum())
    assert "Strays: 8 kernels" in summary_text(kernel_trace(4))


@pytest.mark.parametrize(
    "trace", [kernel_trace(has_strays=False), pipeline_trace(), empty_trace()], ids=["none", "ranges", "empty"]
)
def test_where_nothing_strayed_it_is_false_and_says_so(trace):
    found = strays(trace)
    assert not found
    assert found.groups == ()
    told = "selected stream" if found.work_count else "only ranges: capture them with lab.capture('kernels')"
    assert told in " ".join(str(found).split())
    assert "Strays" not in summary_text(trace)


def test_work_outside_all_ranges_is_no_stray():
    spans = [(HOST, "cudf: join", 0, 10, {"kind": "annotation"}), ("a", "k", 0, 10, {"parent": 0}), ("a", "k", 10, 20)]
    assert not strays(make_kernel_trace(spans))
    # nor is work whose parents point in a circle
    spans = [(HOST, "x", 0, 10, {"kind": "annotation", "parent": k}) for k in (1, 0)] + [("a", "k", 0, 10, {"parent": 0})]
    assert not strays(make_kernel_trace(spans))
