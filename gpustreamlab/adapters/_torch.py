"""Torch's current stream follows the selected lane."""

from __future__ import annotations

from typing import Any, TypeAlias

from gpustreamlab.adapters._adapter import Adapter, LaneStream
from gpustreamlab.errors import AdapterError

StreamKey: TypeAlias = tuple[int, int, int]
"""How torch knows a stream: its id, the device's index, the device's type."""

NO_CUDA = "this build of torch has no CUDA, so it has no work to follow with"
"""What is said of a build for the CPU."""

KEPT_STREAMS = 1_024
"""Handles whose keys are kept; a key follows from its handle, so an old one does no harm."""


def make_torch(torch: Any, ordinal: int) -> Adapter:
    """Make torch follow; its CUDA part is started if it has not been.

    Raises
    ------
    AdapterError
        If torch has no CUDA, or lacks what sets its current stream.
    """
    if torch.version.cuda is None:
        raise AdapterError(NO_CUDA, has_work=False)
    if not torch.cuda.is_initialized():
        try:
            torch.cuda.init()
        except Exception as error:
            raise AdapterError(f"its CUDA part does not start: {error}", has_work=False) from error
    if ordinal >= torch.cuda.device_count():
        raise AdapterError(f"it sees {torch.cuda.device_count()} devices, so no device {ordinal}", has_work=False)
    native = getattr(torch, "_C", None)
    if hasattr(native, "_cuda_setStream") and hasattr(native, "_cuda_getCurrentStream"):
        return TorchSelection(torch, ordinal)
    missing = [name for name in ("set_stream", "current_stream", "ExternalStream") if not hasattr(torch.cuda, name)]
    if missing:
        raise AdapterError(f"torch.cuda has no {missing[0]}, which is what sets its stream")
    return PublicTorchSelection(torch, ordinal)


class TorchSelection:
    """Sets torch's current stream by the calls that ``torch.cuda.stream`` makes, which cost a tenth of what it does."""

    def __init__(self, torch: Any, ordinal: int) -> None:
        self._wrap = torch.cuda.ExternalStream
        self._set = torch._C._cuda_setStream  # noqa: SLF001 - what torch.cuda.set_stream calls
        self._get = torch._C._cuda_getCurrentStream  # noqa: SLF001 - what torch.cuda.current_stream calls
        self._ordinal = ordinal
        self._keys: dict[int, StreamKey] = {}

    def select(self, stream: LaneStream) -> StreamKey:
        """Make the stream torch's current one in this thread; return what was."""
        key = self._keys.get(stream.handle) or self._make_key(stream.handle)
        before: StreamKey = self._get(self._ordinal)
        try:
            self._set(stream_id=key[0], device_index=key[1], device_type=key[2])
            return before
        except BaseException:  # an interrupt may come after the call has worked
            self.restore(before)
            raise

    def restore(self, token: StreamKey) -> None:
        """Make current what was."""
        self._set(stream_id=token[0], device_index=token[1], device_type=token[2])

    def _make_key(self, handle: int) -> StreamKey:
        made = self._wrap(handle, device=self._ordinal)
        if len(self._keys) >= KEPT_STREAMS:
            self._keys = {}
        key = self._keys[handle] = (made.stream_id, made.device_index, made.device_type)
        return key


class PublicTorchSelection:
    """Sets torch's current stream by its public functions, where the quicker ones are gone."""

    def __init__(self, torch: Any, ordinal: int) -> None:
        self._cuda = torch.cuda
        self._ordinal = ordinal

    def select(self, stream: LaneStream) -> Any:
        """Make the stream torch's current one in this thread; return what was."""
        chosen = self._cuda.ExternalStream(stream.handle, device=self._ordinal)
        before = self._cuda.current_stream(self._ordinal)
        try:
            self._cuda.set_stream(chosen)
            return before
        except BaseException:
            self._cuda.set_stream(before)
            raise

    def restore(self, token: Any) -> None:
        """Make current what was."""
        self._cuda.set_stream(token)
