"""The hand-fed source that other tests use."""

from __future__ import annotations

import pytest

from gpustreamlab import Session
from gpustreamlab.backends import CallClass
from gpustreamlab.errors import CaptureUnavailableError
from tests.helpers.fake_activity import FakeActivitySource, FakeSourceBackend, kernel_detail


def test_what_is_fed_comes_out_once_with_its_names():
    source = FakeActivitySource(error_ns=500)
    source.start()
    detail = kernel_detail("void k<int>(int*)", blocks=7)
    source.push_launch(0, 10_000, 20_000, correlation=1, stream=13, context=2, name="k", detail=detail)
    source.push_call(5_000, 30_000, name="cudaStreamSynchronize", call_class=CallClass.SYNCHRONIZE, thread=1 << 33)
    source.push_annotation(0, 40_000, name="cudf: join", start_host_ns=7)
    source.push_dependency(source=(0, 3), record=4, target=(0, 5), wait=6)
    source.push_memory(100, 2.5, stream=13)
    told = source.drain()
    assert [told.names[code] for code in (*told.calls.name, *told.work.name, *told.annotations.name)] == [
        "cudaLaunchKernel",
        "cudaStreamSynchronize",
        "k",
        "cudf: join",
    ]
    assert told.details[told.work.detail[0]].grid_blocks == 7
    assert (told.work.context[0], told.work.stream[0], told.calls.thread[1]) == (2, 13, 0)
    assert (told.dependencies.wait.tolist(), told.memory.value.tolist()) == ([6], [2.5])
    assert (told.annotations.start_host_ns.tolist(), told.annotations.end_ns.tolist()) == ([7], [40_000])
    assert len(source.drain(is_last=True).work) == 0
    assert source.history == ["start", "drain", "last drain"]


def test_it_refuses_drops_and_is_lost_as_told():
    source = FakeActivitySource(refusal="nsys is attached")
    with pytest.raises(CaptureUnavailableError, match="nsys"):
        source.start()
    source.refusal = ""
    source.start()
    source.drop_next(2)
    for start_ns in range(3):
        source.push_work(start_ns, start_ns + 1, stream=3)
    assert source.complete_until_host_ns > 50
    source.lose_client("torch.profiler took over", complete_until_host_ns=50)
    source.push_work(9, 10, stream=3)
    assert source.drain().work.start_ns.tolist() == [2]
    assert (source.dropped_count, source.lost_reason) == (2, "torch.profiler took over")
    assert source.complete_until_host_ns == 50


def test_a_backend_hands_it_out_or_raises():
    source = FakeActivitySource()
    with Session(FakeSourceBackend(source)) as lab:
        assert lab._backend.activity_source() is source
        assert source.key_of(lab.stream("a")._backend_stream) == (0, lab.stream("a").handle)
    with pytest.raises(CaptureUnavailableError):
        FakeSourceBackend(CaptureUnavailableError("none here")).activity_source()
