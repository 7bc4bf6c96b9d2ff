"""Adapters of engines, against stand-ins that check every call. No engine runs here."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from gpustreamlab.engines import OnnxEngine, TensorRTEngine, onnxruntime_provider, quadrants_stream
from gpustreamlab.errors import EngineError, GuardClosedError, OptionError, StreamClosedError
from gpustreamlab.workloads import spin

OPTIONS = {"capture": "ranges"}
STREAMS = ("a", "b")

LONG_NS = 1_000_000_000


class DeviceArray:
    """Stands for an array in device memory."""

    def __init__(self, address, shape=(2, 3), typestr="<f4", strides=None):
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": shape,
            "typestr": typestr,
            "strides": strides,
            "version": 3,
        }


class FakeContext:
    """Stands for tensorrt.IExecutionContext of a network with the input x and the output y; runs a spin kernel of the lab."""

    modes = types.MappingProxyType({"x": "INPUT", "y": "OUTPUT"})

    def __init__(self, lab, refuse=()):
        self.lab, self.refuse, self.calls = lab, refuse, []
        self.engine = SimpleNamespace(get_tensor_mode=lambda name: SimpleNamespace(name=self.modes.get(name, "NONE")))

    def set_input_shape(self, name, shape):
        assert self.modes[name] == "INPUT"
        assert type(shape) is tuple
        self.calls.append(("shape", name, shape))
        return "shape" not in self.refuse

    def set_tensor_address(self, name, memory):
        assert type(memory) is int
        self.calls.append(("address", name, memory))
        return name in self.modes

    def execute_async_v3(self, stream_handle):
        assert type(stream_handle) is int
        assert stream_handle == self.lab.current.handle
        self.calls.append(("execute", stream_handle))
        spin(self.lab, LONG_NS)
        return "execute" not in self.refuse


# TensorRT


def test_tensorrt_gets_shapes_addresses_and_the_lanes_handle(lab):
    context = FakeContext(lab)
    TensorRTEngine(lab, context, "net").run("a", {"x": DeviceArray(4096), "y": DeviceArray(8192, (5,))})
    assert context.calls == [
        ("shape", "x", (2, 3)),
        ("address", "x", 4096),
        ("address", "y", 8192),
        ("execute", lab.stream("a").handle),
    ]
    lab.synchronize()
    assert lab.trace.names == ("net",)


def test_a_run_on_another_lane_waits_for_the_one_before_on_the_device_and_tensors_are_held(lab):
    engine = TensorRTEngine(lab, FakeContext(lab), "net")
    arrays = {"x": DeviceArray(1), "y": DeviceArray(2)}
    known = weakref.ref(arrays["x"])
    for lane in ("a", "b"):
        engine.run(lane, arrays, hold=[arrays])
    del arrays
    assert not lab.stream("a").query()
    assert known() is not None
    lab.synchronize()
    assert known() is None
    trace = lab.trace
    assert trace.start_ns[1] >= trace.end_ns[0] - 1


def test_closing_waits_for_the_run_and_refuses_more(lab):
    with TensorRTEngine(lab, FakeContext(lab)) as engine:
        engine.run("a", {"x": DeviceArray(1)})
    assert lab.stream("a").query()
    assert engine.guard.is_closed
    with pytest.raises(GuardClosedError):
        engine.run("a", {})


REFUSALS = {
    "a run": (("execute",), {"x": DeviceArray(1)}, "refused to run on stream 'a' in engine 'net'"),
    "a shape": (("shape",), {"x": DeviceArray(1)}, r"the shape \(2, 3\) of 'x'.*profile"),
    "a name": ((), {"z": DeviceArray(1)}, "the tensor 'z'"),
}


@pytest.mark.parametrize(("refuse", "tensors", "message"), REFUSALS.values(), ids=REFUSALS.keys())
def test_what_tensorrt_refuses_is_an_error(lab, refuse, tensors, message):
    engine = TensorRTEngine(lab, FakeContext(lab, refuse), "net")
    with pytest.raises(EngineError, match=message):
        engine.run("a", tensors)
    assert lab.current is None
    assert lab.memory.held_count


NO_NAMES = r"A list does not name its arrays.*engine.run\(.*\{'input': x"
BAD_ARRAYS = {
    "on the host": ({"x": np.zeros(3)}, "'x'.*ndarray, which is not in device memory"),
    "with gaps": ({"x": DeviceArray(1, (2, 3), strides=(24, 8))}, "'x'.*not contiguous"),
    "transposed": ({"x": DeviceArray(1, (2, 3), strides=(4, 8))}, "'x'.*not contiguous"),
    "without names": ([DeviceArray(512)], NO_NAMES),
}


@pytest.mark.parametrize(("arrays", "message"), BAD_ARRAYS.values(), ids=BAD_ARRAYS.keys())
def test_arrays_that_no_engine_can_take_are_refused_before_anything_is_enqueued(lab, onnxruntime, arrays, message):
    context = FakeContext(lab)
    with pytest.raises(OptionError, match=message):
        TensorRTEngine(lab, context).run("a", arrays)
    assert context.calls == []
    with pytest.raises(OptionError, match=message):
        make_onnx(lab).run(arrays, {"y": DeviceArray(8192)})


@pytest.mark.parametrize("make", [onnxruntime_provider, quadrants_stream])
def test_the_name_of_a_lane_is_no_lane(lab, make, monkeypatch):
    monkeypatch.setitem(sys.modules, "quadrants.lang.stream", SimpleNamespace(Stream=None))
    with pytest.raises(OptionError, match=r"'decode' is no stream.*lab\.stream\('decode'\)"):
        make("decode")


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)], ids=str)
def test_packed_strides_are_contiguous(lab, shape):
    strides = np.zeros(shape, "f4").strides
    TensorRTEngine(lab, FakeContext(lab)).run("a", {"x": DeviceArray(1, shape, strides=strides)})


def test_what_is_no_execution_context_is_refused(lab):
    with pytest.raises(OptionError, match="set_tensor_address.*create_execution_context"):
        TensorRTEngine(lab, object())


# ONNX Runtime


class FakeBinding:
    def __init__(self):
        self.bound = []

    def bind_input(self, **facts):
        self.bound.append(("input", facts))

    def bind_output(self, **facts):
        self.bound.append(("output", facts))


class FakeOnnxSession:
    """Stands for onnxruntime.InferenceSession; runs a spin kernel of the lab."""

    def __init__(self, lab, providers):
        self.lab, self.providers = lab, [one if isinstance(one, tuple) else (one, {}) for one in providers]
        self.runs = []

    def get_providers(self):
        return [name for name, _ in self.providers]

    def get_provider_options(self):
        return dict(self.providers)

    def io_binding(self):
        return FakeBinding()

    def run_with_iobinding(self, iobinding, run_options=None):
        assert self.lab.current is not None
        self.runs.append((iobinding.bound, dict(run_options.entries)))
        spin(self.lab, LONG_NS)


class FakeRunOptions:
    def __init__(self):
        self.entries = []

    def add_run_config_entry(self, key, value):
        self.entries.append((key, value))


@pytest.fixture
def onnxruntime(monkeypatch):
    module = types.ModuleType("onnxruntime")
    module.RunOptions = FakeRunOptions
    monkeypatch.setitem(sys.modules, "onnxruntime", module)


def test_the_provider_has_the_lanes_device_and_handle_as_text(lab):
    lane = lab.stream("a")
    name, options = onnxruntime_provider(lane, gpu_mem_limit="1000")
    assert name == "CUDAExecutionProvider"
    assert options == {"device_id": "0", "user_compute_stream": str(lane.handle), "gpu_mem_limit": "1000"}


def test_a_closed_lane_gives_no_provider(lab):
    lane = lab.stream("a")
    lane.close()
    with pytest.raises(StreamClosedError):
        onnxruntime_provider(lane)


def make_onnx(lab, name="a"):
    """Return an engine on a lane."""
    lane = lab.stream(name)
    return OnnxEngine(lab, FakeOnnxSession(lab, [onnxruntime_provider(lane)]), lane, "model")


def test_onnx_binds_arrays_where_they_are_and_waits_for_nothing(lab, onnxruntime):
    engine = make_onnx(lab)
    engine.run({"x": DeviceArray(4096)}, {"y": DeviceArray(8192, (5,), "<i8")})

    common = {"device_type": "cuda", "device_id": 0}
    (run,) = engine._session.runs
    assert run == (
        [
            ("input", common | {"name": "x", "element_type": "float32", "shape": (2, 3), "buffer_ptr": 4096}),
            ("output", common | {"name": "y", "element_type": "int64", "shape": (5,), "buffer_ptr": 8192}),
        ],
        {"disable_synchronize_execution_providers": "1"},
    )
    assert not engine.stream.query()


def test_onnx_holds_what_the_run_needs(lab, onnxruntime):
    x = DeviceArray(1)
    known = weakref.ref(x)
    with make_onnx(lab) as engine:
        engine.run({"x": x}, {})
        engine._session.runs.clear()
        del x
        gc.collect()
        assert known() is not None
        assert not engine.stream.query()
    lab.synchronize()
    assert known() is None


def test_onnx_on_another_lane_or_one_that_has_moved_is_an_error_that_explains(lab, onnxruntime):
    lab.partition(left=96, right="rest")
    lab.stream("c", partition="left")
    engine = make_onnx(lab, "c")
    engine.run({}, {}, stream="c")
    for other in ("b", lab.stream("b")):
        with pytest.raises(EngineError, match=r"'model' works on stream 'c' and cannot run on 'b'.*once.*lab.stream\('b'\)"):
            engine.run({}, {}, stream=other)
    lab.stream("c", partition="right")
    with pytest.raises(EngineError, match="'c' has moved.*Make it again"):
        engine.run({}, {})


def test_a_session_that_fell_back_to_the_host_is_refused(lab):
    with pytest.raises(EngineError, match="CPUExecutionProvider and not CUDAExecutionProvider.*onnxruntime_provider"):
        OnnxEngine(lab, FakeOnnxSession(lab, ["CPUExecutionProvider"]), "a")


@pytest.mark.parametrize("told", ["0", "12345", "0xabc", "abc"])
def test_a_session_of_another_stream_is_refused(lab, told):
    session = FakeOnnxSession(lab, [("CUDAExecutionProvider", {"user_compute_stream": told})])
    with pytest.raises(EngineError, match=f"works on stream {told}, not on 'a'"):
        OnnxEngine(lab, session, "a")


def test_a_session_that_does_not_tell_its_stream_is_trusted(lab):
    engine = OnnxEngine(lab, FakeOnnxSession(lab, ["CUDAExecutionProvider"]), "a")
    assert engine.stream is lab.stream("a")
    engine.close()


def test_onnxruntime_has_to_be_imported(lab, monkeypatch):
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    engine = OnnxEngine(lab, FakeOnnxSession(lab, ["CUDAExecutionProvider"]), "a")
    with pytest.raises(OptionError, match="import onnxruntime"):
        engine.run({}, {})


# Quadrants


def test_quadrants_gets_a_wrapper_of_the_handle_once_it_is_imported(lab, monkeypatch):
    with pytest.raises(OptionError, match="import quadrants"):
        quadrants_stream(lab.stream("a"))
    made = []
    module = SimpleNamespace(Stream=lambda handle: made.append(handle) or "wrapper")
    monkeypatch.setitem(sys.modules, "quadrants.lang.stream", module)
    assert quadrants_stream(lab.stream("a")) == "wrapper"
    assert made == [lab.stream("a").handle]
