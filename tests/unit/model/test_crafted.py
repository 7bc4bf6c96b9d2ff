"""Files whose metadata someone, or something, has changed: each is a trace, or refused with an error of ours."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest

from gpustreamlab.analysis import PartitionOptions
from gpustreamlab.errors import PartitionError, TraceError
from gpustreamlab.model import Device, Lane, Layout, LayoutChange, Marker, Partition, Trace, WorkDetail
from tests.helpers.files import COUNTERS_KEY, EDGES_KEY, METADATA_KEY
from tests.helpers.traces import make_trace

STRANGE = (
    None,
    True,
    -1,
    1.5,
    float("nan"),
    10**40,
    -(10**40),
    "",
    "\ud800",
    "x" * 9,
    [],
    [[]],
    {},
    {"name": 3},
    [None],
    [0, 1],
)


def full():
    layout = Layout(partitions=(Partition(name="p", requested_sms=2, granted_sms=2, groups=(0,)),))
    return make_trace(
        [("compute", "step", 0, 1_000, {"partition": 0}), ("compute", "gemm", 500, 900, {"parent": 0, "queued_ns": 0})],
        extra={"detail": [-1, 0]},
        details=(WorkDetail(full_name="gemm<float>", grid=(1, 2, 3)),),
        partitions=layout.partitions,
        layout=layout,
        layouts=(LayoutChange(time_ns=0, layout=None), LayoutChange(time_ns=5, layout=layout)),
        markers=(Marker(time_ns=5, text="here", kind="mark"),),
        device=Device(name="demo", sm_count=4),
        capture_windows=((0, 9),),
    )


TABLE = full().to_arrow()
FACTS = TABLE.schema.metadata[METADATA_KEY]


def with_metadata(**changes):
    kept = {key: value for key, value in TABLE.schema.metadata.items() if not key.endswith(b"checksum")}
    return TABLE.replace_schema_metadata(kept | {key.encode(): value for key, value in changes.items()})


def places(node):
    """Yield every place of a JSON value: what holds it, and under which key."""
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], (dict, list)):
            yield from places(node[key])


def mutate(seed):
    dice = random.Random(seed)
    facts = json.loads(FACTS)
    for _ in range(dice.choice((1, 1, 1, 3))):
        holder, key = dice.choice(list(places(facts)))
        if dice.random() < 0.2:
            del holder[key]
        else:
            holder[key] = dice.choice(STRANGE)
    return facts


def use(trace):
    """Do what crashed later on fields of a wrong type."""
    repr(trace), str(trace.layout), trace.duration_ns.tolist()
    assert isinstance(trace.metadata.device.label, str)
    assert isinstance(trace.metadata.clock_error_ns + trace.metadata.device.sm_count, int)
    assert all(isinstance(lane.name, str) and isinstance(lane.key[0], int) for lane in trace.lanes)
    assert all(detail.grid_blocks >= 0 for detail in trace.details)
    trace.to_arrow()


def test_crafted_metadata_is_a_trace_or_an_error_of_ours():
    refused = 0
    for seed in range(400):
        facts = mutate(seed)
        try:
            use(Trace.from_arrow(with_metadata(gpustreamlab=json.dumps(facts).encode())))
        except TraceError:
            refused += 1
    assert 200 < refused < 400


def test_crafted_bytes_are_a_trace_or_an_error_of_ours():
    dice = random.Random(3)
    for key in (METADATA_KEY, EDGES_KEY, COUNTERS_KEY):
        for _ in range(60):
            data = bytearray(TABLE.schema.metadata[key])
            for _ in range(dice.randrange(1, 4)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            try:
                use(Trace.from_arrow(with_metadata(**{key.decode(): bytes(data[: dice.randrange(1, len(data) + 1)])})))
            except TraceError:
                continue


CRAFTED = {
    "nested deeply": (lambda: with_metadata(gpustreamlab=b'{"x":' + b"[" * 100_000), "is damaged"),
    "a NaN": (lambda: with_metadata(gpustreamlab=FACTS.replace(b'"clock_error_ns": 0', b'"clock_error_ns": NaN')), "JSON"),
    "no name": (lambda: with_metadata(gpustreamlab=FACTS.replace(b'"name": "demo"', b'"name": null')), r"device\.name"),
    "no object": (lambda: with_metadata(gpustreamlab=b"[]"), "Expected `object`"),
    "no UTF-8": (lambda: with_metadata(gpustreamlab=b'{"schema_version": 3, "names": ["\xff"]}'), "is damaged"),
    "a column twice": (lambda: TABLE.append_column("start_ns", TABLE["start_ns"]), r"\['start_ns'\] more than once"),
    "numbers as names": (lambda: TABLE.set_column(4, "name", pa.array([0, 1])), "holds int64, not text"),
    "lists as times": (lambda: TABLE.set_column(0, "start_ns", pa.array([[0], [1]])), "'start_ns' holds list"),
    "a detail as float": (
        lambda: TABLE.set_column(TABLE.column_names.index("detail"), "detail", pa.array([-1.0, 0.0])),
        "'detail' holds float64",
    ),
    "a code outside its dictionary": (
        lambda: TABLE.set_column(
            4, "name", pa.DictionaryArray.from_arrays(pa.array([0, 9], pa.int32()), pa.array(["step", "gemm"]), safe=False)
        ),
        "columns are damaged",
    ),
    "no table": (lambda: {"start_ns": [0]}, r"takes a pyarrow\.Table.*got dict"),
}


@pytest.mark.parametrize(("craft", "message"), CRAFTED.values(), ids=CRAFTED.keys())
def test_a_crafted_table_is_refused_with_what_is_wrong(craft, message):
    with pytest.raises(TraceError, match=message):
        Trace.from_arrow(craft())


def test_options_of_a_wrong_type_are_refused_when_they_are_made():
    for wrong in ({"sms": None}, {"sms": 8, "backfill": "yes"}, {"sms": [8]}, {"sms": 8, "coscheduled_sms": 3}):
        with pytest.raises(PartitionError, match=r"PartitionOptions\."):
            PartitionOptions(**wrong)


def test_a_text_that_utf8_cannot_write_is_kept_as_one_that_it_can():
    assert (Lane(name="a\ud800").name, Marker(time_ns=0, text="\ud800é", kind="mark").text) == ("a?", "?é")
