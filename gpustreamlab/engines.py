"""Inference engines on a stream: thin adapters for libraries that take a raw stream handle.

Work is left queued: nothing here waits for the device. The libraries are not imported here; what they hand out is used.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from gpustreamlab.errors import EngineError, OptionError
from gpustreamlab.memory.guards import Guard
from gpustreamlab.session import Session
from gpustreamlab.streams.stream import Stream
from gpustreamlab.typing import SupportsCudaStream

__all__ = ["OnnxEngine", "TensorRTEngine", "onnxruntime_provider", "quadrants_stream"]

CUDA_PROVIDER = "CUDAExecutionProvider"  # What ONNX Runtime calls its CUDA provider
_NO_WAIT = ("disable_synchronize_execution_providers", "1")
"""Makes a run of ONNX Runtime return while its work is queued. Source: onnxruntime_run_options_config_keys.h."""


class ExecutionContext(Protocol):
    """What is used of ``tensorrt.IExecutionContext``, 8.5 and later. Each call returns False where it refuses."""

    engine: Any

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        """Set the shape of an input."""

    def set_tensor_address(self, name: str, memory: int) -> bool:
        """Set where an input or output lies in device memory."""

    def execute_async_v3(self, stream_handle: int) -> bool:
        """Enqueue the network on a stream."""


class OnnxSession(Protocol):
    """What is used of ``onnxruntime.InferenceSession``."""

    def get_providers(self) -> list[str]:
        """Return the execution providers in use."""

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options of each provider."""

    def io_binding(self) -> Any:
        """Return an empty IO binding."""

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
        """Run the model on what is bound."""


class _Engine:
    """What an engine is guarded by, and its end."""

    def __init__(self, lab: Session, engine: object, name: str) -> None:
        self.name = name
        """Name of its ranges."""
        self._guard = lab.memory.guard(engine, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for the last run, and let go of what runs. Closing twice is silent."""
        self._guard.close()


class TensorRTEngine(_Engine):
    """An execution context of TensorRT, on any stream.

    A context has scratch memory and tensor addresses of its own, so it is used by one stream at a time: a run on another stream
    than the last one waits for that on the device. For runs side by side make a context for each stream.

    Parameters
    ----------
    lab
        The session.
    context
        What ``engine.create_execution_context()`` gave. It is kept until its last work is done, and never destroyed here.
    name
        Name of its ranges on the timeline.

    Examples
    --------
    ::

        engine = TensorRTEngine(lab, trt_engine.create_execution_context(), "resnet")
        with lab.on("decode"):
            y = lab.xp.empty((8, 1000), "float32")
        engine.run("decode", {"input": x, "output": y})

    Notes
    -----
    Source: TensorRT Python API, ``IExecutionContext``: its device memory is in use until the work is done, and so are tensors.
    """

    def __init__(self, lab: Session, context: ExecutionContext, name: str = "tensorrt") -> None:
        for method in ("set_tensor_address", "execute_async_v3"):
            if not callable(getattr(context, method, None)):
                raise OptionError(
                    f"A {type(context).__name__} is not an execution context of TensorRT 8.5 or later: it has no {method}. "
                    "Pass what engine.create_execution_context() returns."
                )
        self._context = context
        super().__init__(lab, context, name)

    @property
    def guard(self) -> Guard:
        """The guard of the context."""
        return self._guard

    def run(
        self, stream: str | Stream | SupportsCudaStream, tensors: Mapping[str, Any], *, hold: Iterable[object] = ()
    ) -> None:
        """Enqueue the network on a stream.

        Parameters
        ----------
        stream
            As for `Session.on`.
        tensors
            Contiguous device arrays, inputs and outputs, by the names of the network. They are held until the work is done; let
            the stream wait for inputs of other streams first, with ``stream.use(x)``.
        hold
            What else is to be held.

        Raises
        ------
        EngineError
            If TensorRT refuses a tensor, its shape, or the run.
        OptionError
            If an array is not contiguous, not in device memory, or has no name.
        """
        buffers = _find_buffers(tensors)
        with self._guard.on(stream) as selected:
            try:
                for name, buffer in buffers.items():
                    self._bind(name, buffer)
                done = self._context.execute_async_v3(selected.handle)
                self._require(done, f"to run on stream {selected.name!r}", "Are all inputs and outputs of the network given?")
            finally:
                selected.hold(*tensors.values(), *hold)

    def _bind(self, name: str, buffer: Buffer) -> None:
        mode = self._context.engine.get_tensor_mode(name)
        if getattr(mode, "name", None) == "INPUT":
            fits = self._context.set_input_shape(name, buffer.shape)
            self._require(fits, f"the shape {buffer.shape} of {name!r}", "Is it within the optimisation profile?")
        bound = self._context.set_tensor_address(name, buffer.address)
        self._require(bound, f"the tensor {name!r}", "Does the network have an input or output of this name?")

    def _require(self, is_done: bool, what: str, hint: str) -> None:  # noqa: FBT001 - what TensorRT answered
        if not is_done:
            raise EngineError(f"TensorRT refused {what} in engine {self.name!r}. {hint} Its logger has the reason.")


def onnxruntime_provider(stream: Stream, **options: str) -> tuple[str, dict[str, str]]:
    """Return what ``onnxruntime.InferenceSession(path, providers=[...])`` needs to work on a stream.

    ONNX Runtime takes the stream once, when the session is made. A stream that moves to another partition later has another
    handle: make the session after `Session.partition`, and again after each move.

    Parameters
    ----------
    stream
        The stream.
    **options
        More options of the CUDA provider, for example ``gpu_mem_limit="2147483648"``.

    Returns
    -------
    tuple
        The provider's name, and its options.

    Raises
    ------
    OptionError
        If it is no stream.
    StreamClosedError
        If it is closed.

    Examples
    --------
    >>> with Session("sim") as lab:
    ...     onnxruntime_provider(lab.stream("decode"))
    ('CUDAExecutionProvider', {'device_id': '0', 'user_compute_stream': '3'})

    Notes
    -----
    Source: ONNX Runtime, CUDA execution provider, option ``user_compute_stream``: the handle as a decimal text. A handle of 0
    means none there; streams never have it.
    """
    handle = _handle_of(stream)
    return CUDA_PROVIDER, {"device_id": str(stream.lane.device), "user_compute_stream": str(handle), **options}


class OnnxEngine(_Engine):
    """A session of ONNX Runtime on the stream that it was made for.

    Parameters
    ----------
    lab
        The session.
    onnx_session
        An ``onnxruntime.InferenceSession`` made with `onnxruntime_provider` of the same stream.
    stream
        That stream, or its name.
    name
        Name of its ranges on the timeline.

    Raises
    ------
    EngineError
        If the session does not work on the stream.

    Examples
    --------
    ::

        stream = lab.stream("decode", partition="decode")
        session = onnxruntime.InferenceSession("model.onnx", providers=[onnxruntime_provider(stream)])
        engine = OnnxEngine(lab, session, stream)
        engine.run({"input": x}, {"output": y})
    """

    def __init__(self, lab: Session, onnx_session: OnnxSession, stream: str | Stream, name: str = "onnxruntime") -> None:
        self.stream: Stream = lab.select(stream).stream
        """The stream that it works on."""
        self._handle = _handle_of(self.stream)
        self._session = onnx_session
        self._require_stream_of_session()
        super().__init__(lab, onnx_session, name)

    def run(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        *,
        stream: str | Stream | None = None,
        hold: Iterable[object] = (),
    ) -> None:
        """Enqueue the model on its stream.

        Parameters
        ----------
        inputs, outputs
            Contiguous device arrays by the names of the model. They are bound where they are, and held until the work is done.
        stream
            The stream on which the caller wants it; only the one that it was made for.
        hold
            What else is to be held.

        Raises
        ------
        EngineError
            If another stream is asked for, or the stream has moved.
        OptionError
            If an array is not contiguous, not in device memory, or has no name.
        """
        self._require_own_stream(stream)
        binding = self._session.io_binding()
        for bind, arrays in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
            for name, buffer in _find_buffers(arrays).items():
                self._bind(bind, name, buffer)
        options = _loaded("onnxruntime").RunOptions()
        options.add_run_config_entry(*_NO_WAIT)
        with self._guard.on(self.stream) as selected:
            try:
                self._session.run_with_iobinding(binding, options)
            finally:
                selected.hold(binding, *inputs.values(), *outputs.values(), *hold)

    def _bind(self, bind: Any, name: str, buffer: Buffer) -> None:
        bind(
            name=name,
            device_type="cuda",
            device_id=self.stream.lane.device,
            element_type=buffer.dtype,
            shape=buffer.shape,
            buffer_ptr=buffer.address,
        )

    def _require_stream_of_session(self) -> None:
        if CUDA_PROVIDER not in self._session.get_providers():
            raise EngineError(
                f"This session of ONNX Runtime has {', '.join(self._session.get_providers())} and not {CUDA_PROVIDER}: "
                "it falls back without a word where that cannot start. Look at its log, and pass "
                f"providers=[onnxruntime_provider(lab.stream({self.stream.name!r}))]."
            )
        told = self._session.get_provider_options().get(CUDA_PROVIDER, {}).get("user_compute_stream")
        if told is not None and _read_handle(told) != self._handle:
            raise EngineError(
                f"This session of ONNX Runtime works on stream {told}, not on {self.stream.name!r} ({self._handle:#x}). Make "
                f"it with providers=[onnxruntime_provider(lab.stream({self.stream.name!r}))]."
            )

    def _require_own_stream(self, stream: str | Stream | None) -> None:
        name = stream.name if isinstance(stream, Stream) else stream
        if name is not None and name != self.stream.name:
            raise EngineError(
                f"Engine {self.name!r} works on stream {self.stream.name!r} and cannot run on {name!r}: ONNX Runtime takes the "
                f"stream once, when its session is made. Make another with onnxruntime_provider(lab.stream({name!r}))."
            )
        if _handle_of(self.stream) != self._handle:
            raise EngineError(
                f"Stream {self.stream.name!r} has moved to other SMs since the session of engine {self.name!r} was made, which "
                f"still works on {self._handle:#x}. Make it again with onnxruntime_provider(lab.stream({self.stream.name!r}))."
            )


def quadrants_stream(stream: Stream) -> Any:
    """Return a stream as a stream of Quadrants: ``kernel(x, qd_stream=quadrants_stream(stream))``.

    It wraps the handle that the stream has now, and does not own it: it destroys nothing. Quadrants keeps nothing alive for the
    kernel, so hold what it works on: ``stream.hold(x)``.

    Notes
    -----
    Run with Quadrants 1.4.0 on an H200. Source: Quadrants user guide, Streams, "PyTorch interop":
    ``quadrants.lang.stream.Stream(handle)``.

    Raises
    ------
    OptionError
        If Quadrants is not imported, or it is no stream.
    """
    return _loaded("quadrants.lang.stream").Stream(_handle_of(stream))


class Buffer(NamedTuple):
    """A contiguous array in device memory."""

    address: int
    """Where it begins."""
    shape: tuple[int, ...]
    """Its shape."""
    dtype: np.dtype[Any]
    """Type of its elements."""


def find_buffer(name: str, array: Any) -> Buffer:
    """Return where an array of any library lies in device memory.

    Parameters
    ----------
    name
        Name of the tensor, for messages.
    array
        What has ``__cuda_array_interface__``: arrays of CuPy, torch and Numba.

    Raises
    ------
    OptionError
        If it is not in device memory, or not contiguous.
    """
    facts = getattr(array, "__cuda_array_interface__", None)
    if facts is None:
        raise OptionError(
            f"Tensor {name!r} is a {type(array).__name__}, which is not in device memory: it has no __cuda_array_interface__. "
            "Use an array of lab.xp on a GPU, a CUDA tensor of torch (detached), or a device array of Numba."
        )
    shape, dtype = tuple(facts["shape"]), np.dtype(facts["typestr"])
    strides = facts.get("strides")
    if strides is not None and tuple(strides) != _packed_strides(shape, dtype.itemsize) and 0 not in shape:
        raise OptionError(
            f"Tensor {name!r} is not contiguous: shape {shape}, strides {tuple(strides)} bytes. Copy it on the stream first, "
            "for example with xp.ascontiguousarray(array) or tensor.contiguous()."
        )
    return Buffer(int(facts["data"][0]), shape, dtype)


def _find_buffers(arrays: Mapping[str, Any]) -> dict[str, Buffer]:
    """Return where each array lies, by its name."""
    if not isinstance(arrays, Mapping):
        raise OptionError(
            f"A {type(arrays).__name__} does not name its arrays, as an engine needs it. Pass a dict: "
            "engine.run(..., {'input': x, 'output': y}) for TensorRT, engine.run({'input': x}, {'output': y}) for ONNX Runtime."
        )
    return {name: find_buffer(name, array) for name, array in arrays.items()}


def _packed_strides(shape: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    strides: list[int] = []
    for size in reversed(shape):
        strides.append(item_bytes)
        item_bytes *= size
    return tuple(reversed(strides))


def _handle_of(stream: Any) -> int:
    """Return a stream's handle; raise if it is closed, or no stream."""
    if not isinstance(stream, Stream):
        name = stream if isinstance(stream, str) else "name"
        raise OptionError(f"{stream!r:.40} is no stream and has no handle. Pass the stream itself: lab.stream({name!r:.60}).")
    return stream.__cuda_stream__()[1]


def _read_handle(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        return int(text, 16)


def _loaded(name: str) -> ModuleType:
    """Return a module that the user has imported."""
    module = sys.modules.get(name)
    if module is None:
        raise OptionError(f"{name} is not imported. Import it first: import {name}")
    return module
