"""What torch reads and writes while a program is recorded: every operator that its dispatcher runs, with what its schema says.

Source: `torch.utils._python_dispatch.TorchDispatchMode`, and ``alias_info.is_write`` of an operator's arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

from gpustreamlab._util.arrays import attributes_of
from gpustreamlab.analysis import Piece, Region, Touch, region_of
from gpustreamlab.memory.hazards import AccessWatch

BASED_ON_TORCH = frozenset({"torch", "torchvision", "torchaudio", "transformers", "diffusers", "timm", "einops"})
"""Libraries whose work on the device goes through torch's dispatcher."""
UNSEEN = frozenset({"backward", "grad", "from_dlpack"})
"""Functions of torch that work in threads of its own, or in another library's memory."""
STREAMS_OF_TORCH = "torch.cuda"  # Where torch's streams, events and waits are: what calls them orders work itself
_READS_BACK = frozenset({"_local_scalar_dense", "nonzero", "unique", "_unique2", "masked_select", "equal", "is_nonzero"})

Note = Callable[[str, Sequence[Any], Sequence[Any]], None]
"""Is given the operator, the tensors that it reads, and those that it writes."""


def torch_here() -> Any | None:
    """Return torch, if the program may use it: if it is loaded."""
    return sys.modules.get("torch")


def eager(function: Any) -> Any:
    """Return what a compiled function was compiled from: its kernels do not go through the dispatcher."""
    held = attributes_of(function) or {}
    module = (held.get("_modules") or {}).get("_orig_mod") if type(function).__module__.startswith("torch.") else None
    return held.get("_torchdynamo_orig_callable", function) if module is None else module


def watching_torch(
    note: Note, host_wait: Callable[[], object], *, device_types: Iterable[str] = ("cuda",)
) -> AbstractContextManager[object]:
    """Tell what torch's operators read and write, in a ``with`` block of this thread."""
    if torch_here() is None:
        return nullcontext()
    mode: Any = import_module("torch.utils._python_dispatch").TorchDispatchMode
    devices = frozenset(device_types)

    class Watching(mode):  # type: ignore[misc]
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
            result = operator(*args, **(kwargs or {}))
            if operator.is_view:
                return result
            name = _schema(operator).name.partition("::")[2]
            given = list(_given(operator, args, kwargs or {}, devices))
            made = list(_tensors(result, devices))
            note(
                name,
                [tensor for tensor, is_write in given if not is_write],
                [*(one for one, is_write in given if is_write), *made],
            )
            if given and (name in _READS_BACK or (not made and result is not None)):
                host_wait()
            return result

    return Watching()


def _schema(operator: Any) -> Any:
    return operator._schema


def _given(operator: Any, args: Any, kwargs: Mapping[str, Any], devices: frozenset[str]) -> Iterable[tuple[Any, bool]]:
    """Yield the tensors that an operator was given, and whether it writes them."""
    for place, argument in enumerate(_schema(operator).arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        is_write = argument.alias_info is not None and argument.alias_info.is_write
        for tensor in _tensors(value, devices):
            yield tensor, is_write


def _tensors(value: object, devices: frozenset[str]) -> Iterable[Any]:
    if is_tensor(value):
        tensor: Any = value
        if tensor.device.type in devices and tensor.numel():  # an empty one has no byte
            yield tensor
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one, devices)


class TorchPieces:
    """Numbers of the storages of tensors, each for as long as the storage lives."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, Any]] = {}

    def number(self, tensor: Any) -> int:
        """Return the number of a tensor's storage, below 0."""
        found = _weak_storage(tensor)
        known = self._known.get(found.cdata)  # unique as long as the weak reference is kept
        if known is None:
            known = self._known[found.cdata] = -1 - len(self._known), found
        return known[0]


class TorchAccesses:
    """Tells those who look for hazards what torch's operators read and write, on torch's current stream."""

    def __init__(self, watch: AccessWatch) -> None:
        self._watch = watch
        self._known: dict[int, tuple[Piece, Any]] = {}

    def note(self, work: str, reads: Sequence[Any], writes: Sequence[Any]) -> None:
        """Note what an operator reads and writes."""
        torch: Any = torch_here()
        handle = int(torch.cuda.current_stream().cuda_stream)
        with self._watch.lock:
            touched = [[self._touch(handle, tensor) for tensor in tensors] for tensors in (reads, writes)]
            self._watch.work(handle, work, *touched)
        if self._watch.pending:
            self._watch.finish()

    def _touch(self, handle: int, tensor: Any) -> Touch:
        found = _weak_storage(tensor)
        known = self._known.get(found.cdata)
        if known is None:
            start, end = bytes_of(tensor)
            for key, (piece, storage) in [*self._known.items()]:
                if storage.expired() and piece.start < end and start < piece.end:  # its memory is handed out again
                    self._watch.free(piece)
                    del self._known[key]
            piece = self._watch.allocate(handle, start, end, tuple(tensor.shape), tensor.dtype)
            known = self._known[found.cdata] = piece, found
        return known[0], region(tensor)


def _weak_storage(tensor: Any) -> Any:
    reductions: Any = import_module("torch.multiprocessing.reductions")
    return reductions.StorageWeakRef(tensor.untyped_storage())


def bytes_of(tensor: Any) -> tuple[int, int]:
    """Return the addresses of the first byte of a tensor's storage, and of the one behind its last."""
    storage = tensor.untyped_storage()
    start = int(storage.data_ptr())
    return start, start + int(storage.nbytes())


def region(tensor: Any) -> Region | None:
    """Return the bytes that a tensor covers; None for all of its storage."""
    size = int(tensor.element_size())
    strides = tuple(size * one for one in tensor.stride())
    found = region_of(int(tensor.data_ptr()), tuple(tensor.shape), strides, size)
    return None if found.is_whole and (found.start, found.end) == bytes_of(tensor) else found


def is_tensor(value: object) -> bool:
    """Tell whether a value is a tensor of torch."""
    torch = torch_here()
    return torch is not None and issubclass(type(value), torch.Tensor)


def copied_tensors(values: Iterable[Any]) -> list[Any]:
    """Return copies of tensors; those that share a storage have copies that do."""
    torch: Any = torch_here()
    storages: dict[int, Any] = {}
    made = []
    for value in values:
        storage = value.untyped_storage()
        if storage._cdata not in storages:
            storages[storage._cdata] = storage.clone()
        place = storages[storage._cdata]
        copy = torch.empty(0, dtype=value.dtype, device=value.device)
        copy.set_(place, value.storage_offset(), value.shape, value.stride())
        copy.requires_grad_(value.requires_grad)
        made.append(torch.nn.Parameter(copy, value.requires_grad) if isinstance(value, torch.nn.Parameter) else copy)
    return made
