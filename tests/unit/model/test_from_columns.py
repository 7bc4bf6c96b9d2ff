from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from gpustreamlab import Trace, compare
from gpustreamlab.analysis import summary_text
from gpustreamlab.errors import TraceError
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import CaptureTier, LaneKind
from tests.unit.model.equality import assert_same_trace

MINIMAL = {"start_ns": [0, 50, 60], "end_ns": [100, 250, 70], "stream": ["copy", "compute", "copy"]}


def make(**changes):
    return Trace.from_columns(**(MINIMAL | changes))


def test_three_columns_are_enough():
    trace = make()

    assert [trace.lanes[code].name for code in trace.lane] == MINIMAL["stream"]
    assert (trace.start_ns.tolist(), trace.end_ns.tolist()) == (MINIMAL["start_ns"], MINIMAL["end_ns"])
    assert trace.queued_ns.tolist() == MINIMAL["start_ns"]
    assert ([trace.names[code] for code in trace.name], trace.parent.tolist()) == (["span"] * 3, [-1] * 3)
    assert (trace.thread.tolist(), trace.partition.tolist(), trace.kind.tolist()) == ([-1] * 3, [-1] * 3, [0] * 3)
    assert (trace.metadata.backend, trace.metadata.simulated, trace.metadata.tier) == ("columns", False, CaptureTier.RANGES)


def test_columns_of_a_data_frame_are_taken():
    frame = pd.DataFrame(MINIMAL)
    given = make(start_ns=frame["start_ns"], end_ns=frame["end_ns"].astype(float), stream=frame["stream"].astype("category"))

    assert_same_trace(given, make())


def test_random_columns_come_back():
    for seed in range(100):
        rng = np.random.default_rng(seed)
        size = int(rng.integers(0, 30))
        start_ns = rng.integers(-(10**12), 10**12, size)
        texts = {what: [f"{what} {code}" for code in rng.integers(0, 5, size)] for what in ("stream", "name", "thread")}
        kinds = [SPAN_KINDS[code].value for code in rng.integers(0, len(SPAN_KINDS), size)]
        trace = Trace.from_columns(start_ns=start_ns, end_ns=start_ns + 7, kind=kinds, **texts)

        assert [trace.lanes[code].name for code in trace.lane] == texts["stream"]
        assert [trace.names[code] for code in trace.name] == texts["name"]
        assert [trace.threads[code] for code in trace.thread] == texts["thread"]
        assert [SPAN_KINDS[code].value for code in trace.kind] == kinds
        for place, lane in enumerate(trace.lanes):
            own = {kind for kind, code in zip(kinds, trace.lane, strict=True) if code == place}
            assert lane.kind is (LaneKind.HOST if own <= {"host", "annotation", "sample"} else LaneKind.STREAM)
        assert len({lane.key for lane in trace.lanes}) == len(trace.lanes)


BAD = {
    "unequal": ({"end_ns": [100]}, r"differ in length: .*'stream': 3.*'start_ns': 3, 'end_ns': 1"),
    "unequal names": ({"name": ["a"]}, r"'name': 1"),
    "unequal kinds": ({"kind": ["range"]}, r"'kind': 1"),
    "NaN": ({"start_ns": [0, float("nan"), 60]}, "Column 'start_ns' holds NaN or infinity"),
    "infinity": ({"end_ns": [np.inf] * 3}, "Column 'end_ns' holds NaN or infinity"),
    "halves": ({"end_ns": [100.5, 250, 70]}, "Column 'end_ns' holds values that int64 cannot store exactly"),
    "text for times": ({"start_ns": ["0", "1", "2"]}, "Column 'start_ns' holds <U1, not numbers"),
    "missing time": ({"start_ns": [0, None, 1]}, "Column 'start_ns' holds object, not numbers"),
    "negative duration": ({"end_ns": [100, 49, 70]}, "Span 1 ends at 49 ns, before its start at 50 ns"),
    "number for a stream": ({"stream": ["a", 7, "b"]}, r"Column 'stream' holds 7 in row 1, not text. Use \[str\(one\)"),
    "no stream": ({"stream": ["a", None, "b"]}, "Column 'stream' holds None in row 1"),
    "number for a name": ({"name": [1, 2, 3]}, "Column 'name' holds 1 in row 0"),
    "unknown kind": ({"kind": ["range", "kernle", "copy"]}, "Column 'kind' holds 'kernle' in row 1. Did you mean 'kernel'"),
    "unknown kind of all": ({"kind": "kernle"}, "Did you mean 'kernel'"),
    "parent outside": ({"parent": [-1, 3, -1]}, "Column 'parent' points outside the 3 spans"),
    "partition without SMs": ({"partition": ["p", None, None], "sm_count": 9}, r"partition 'p'.*partition_sms=\{'p': 32\}"),
    "partition of an unknown card": ({"partition": ["p", None, None], "partition_sms": {"p": 8}}, "sm_count=132"),
    "negative SMs": ({"sm_count": -1}, "sm_count is -1"),
    "no device": ({"device": None}, "Device.name is None"),
}


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=BAD.keys())
def test_columns_that_make_no_trace_are_told(changes, message):
    with pytest.raises(TraceError, match=message):
        make(**changes)


@pytest.mark.parametrize("kind", ["range", "kernel"])
def test_no_picture_and_no_text_claims_more_than_is_known(kind, tmp_path):
    trace = make(kind=kind, device="Device 9")
    words = [summary_text(trace), str(trace.timeline()), repr(trace.timeline()), str(trace.overlap()), str(trace.strays())]
    words += [str(trace.host_waits()), str(compare(trace, trace)), repr(trace.metadata.device)]
    for suffix in ("html", "svg"):
        trace.timeline().save(tmp_path / f"run.{suffix}")
        words.append((tmp_path / f"run.{suffix}").read_text(encoding="utf-8"))
    words.append(trace.timeline()._repr_mimebundle_()["text/html"])

    assert "Device 9 (from columns)" in words[0]
    assert "FROM COLUMNS" in words[-2]
    for text in words:
        shown = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)
        assert not re.search(r"measured on hardware|real hardware|\bSIMULATED\b|event pairs|clock error|±0|every kernel", shown)


def test_sms_that_are_not_known_are_not_told():
    with pytest.raises(TraceError, match="How many SMs the card has is not known"):
        make().utilization()
    assert make(sm_count=4).utilization().sm_count == 4
