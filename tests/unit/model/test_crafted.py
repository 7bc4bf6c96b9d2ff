"""Files whose metadata someone, or something, has changed: each is a trace, or refused with an error of ours."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest

from gpustreamlab.errors import TraceError
from gpustreamlab.model import Device, Layout, LayoutChange, Marker, Partition, WorkDetail, table_to_trace
from gpustreamlab.trace import as_trace
from tests.helpers.files import METADATA_KEY
from tests.helpers.traces import make_trace

STRANGE = (
    *(None, True, -1, 1.5, float("nan"), 10**40, -(10**40), "", "\ud800"),
    *("x" * 9, [], [[]], {}, {"name": 3}, [None], [0, 1]),
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


TABLE = pa.table(full())
FACTS = TABLE.schema.metadata[METADATA_KEY]


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
    pa.table(trace)


def test_crafted_metadata_is_a_trace_or_an_error_of_ours():
    refused = 0
    kept = {key: value for key, value in TABLE.schema.metadata.items() if not key.endswith(b"checksum")}
    for seed in range(400):
        facts = mutate(seed)
        try:
            use(as_trace(table_to_trace(TABLE.replace_schema_metadata(kept | {METADATA_KEY: json.dumps(facts).encode()}))))
        except TraceError:
            refused += 1
    assert 200 < refused < 400


@pytest.mark.parametrize("data", [b"{not json", b"[]", b'{"schema_version": 3, "names": ["\xff"]}', b'{"x":' + b"[" * 100_000])
def test_metadata_that_is_no_json_of_ours_is_refused(data):
    with pytest.raises(TraceError, match=r"is not what Trace\.save writes.*is damaged"):
        table_to_trace(TABLE.replace_schema_metadata({METADATA_KEY: data}))


def test_what_is_no_table_is_refused():
    with pytest.raises(TraceError, match=r"made of a pyarrow\.Table.*got dict"):
        table_to_trace({"start_ns": [0]})


def test_a_code_outside_its_dictionary_is_refused():
    names = pa.DictionaryArray.from_arrays(pa.array([0, 9], pa.int32()), pa.array(["step", "gemm"]), safe=False)
    with pytest.raises(TraceError, match="columns are damaged"):
        table_to_trace(TABLE.set_column(TABLE.column_names.index("name"), "name", names))
