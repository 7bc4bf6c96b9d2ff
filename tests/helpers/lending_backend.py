"""The simulated device as if its streams were CUDA streams that libraries can work on, and stand-ins of the libraries."""

from __future__ import annotations

import sys
import threading
import types

from gpustreamlab.adapters import _followers
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.typing import AdapterState


class LendingBackend(SimBackend):
    lends_streams = True


def fresh_registry(monkeypatch):
    """Begin anew with what follows in this process; neither torch nor Numba is loaded."""
    monkeypatch.setattr(_followers, "registry", _followers.Registry())
    for name in ("torch", "numba.cuda"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def add_libraries(monkeypatch, make, *names):
    """Let there be adapters for more libraries, made by ``make(module, ordinal)``."""
    monkeypatch.setattr(_followers, "BUILT_IN", {**_followers.BUILT_IN, **dict.fromkeys(names, make)})
    more = (_followers.Library(name, name, (), AdapterState.FOLLOWS, "") for name in names)
    monkeypatch.setattr(_followers, "KNOWN", (*_followers.KNOWN, *more))


class StandIn(types.ModuleType):
    """A module with what `importlib` puts into one that is imported to its end."""

    def __init__(self, name, **contents):
        super().__init__(name)
        self.__spec__ = types.SimpleNamespace(name=name, _initializing=False)
        self.__dict__.update(contents)


class ExternalStream:
    """torch.cuda.ExternalStream: its id is its handle, its type that of CUDA."""

    def __init__(self, handle, device=None):
        self.stream_id, self.device_index, self.device_type = handle, device, 1

    @property
    def triple(self):
        return self.stream_id, self.device_index, self.device_type


class TorchState:
    """What the calls of a torch stand-in do: one current stream for each thread, and a list of the calls."""

    def __init__(self):
        self.local = threading.local()
        self.calls = []
        self.is_initialized = False

    @property
    def current(self):
        return getattr(self.local, "current", (0, 0, 1))

    def init(self):
        self.calls.append("init")
        self.is_initialized = True

    def set_stream(self, *, stream_id, device_index, device_type):
        assert self.is_initialized
        self.calls.append(("set", stream_id))
        self.local.current = stream_id, device_index, device_type

    def get_stream(self, ordinal):
        assert ordinal == 0
        return self.current

    def set_public(self, stream):
        self.calls.append(("set_public", stream.stream_id))
        self.local.current = stream.triple

    def get_public(self, device=None):
        return ExternalStream(self.current[0], device=self.current[1])


def make_torch(*, cuda_version="13.0", private=True):
    """Return a stand-in of torch and what its calls do."""
    state = TorchState()
    private_calls = {"_cuda_setStream": state.set_stream, "_cuda_getCurrentStream": state.get_stream}
    torch = StandIn(
        "torch",
        __version__="2.11.0",
        version=types.SimpleNamespace(cuda=cuda_version),
        _C=types.SimpleNamespace(**private_calls if private else {}),
        cuda=types.SimpleNamespace(
            init=state.init,
            is_initialized=lambda: state.is_initialized,
            device_count=lambda: 1,
            ExternalStream=ExternalStream,
            Stream=lambda *, stream_id, device_index, device_type: ExternalStream(stream_id, device=device_index),
            set_stream=state.set_public,
            current_stream=state.get_public,
        ),
    )
    return torch, state
