"""What torch reads and writes while a program is recorded: every operator that its dispatcher runs, with what its schema says.

Source: `torch.utils._python_dispatch.TorchDispatchMode`, and ``alias_info.is_write`` of an operator's arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

from gpustreamlab.analysis import Region, region_of

BASED_ON_TORCH = frozenset({"torch", "torchvision", "torchaudio", "transformers", "diffusers", "timm", "einops"})
"""Libraries whose work on the device goes through torch's dispatcher."""
UNSEEN = frozenset({"backward", "grad", "from_dlpack"})
"""Functions of torch that work in threads of its own, or in another library's memory."""
STREAMS_OF_TORCH = "torch.cuda"
"""Where torch's streams, events and waits are: what calls them orders work itself."""
_READS_BACK = frozenset({"_local_scalar_dense", "nonzero", "unique", "_unique2", "masked_select", "equal", "is_nonzero"})

Note = Callable[[str, Any, bool], None]
"""Is given the operator, a tensor, and whether it is written."""


def torch_here() -> Any | None:
    """Return torch, if the program may use it: if it is loaded."""
    return sys.modules.get("torch")


def eager(function: Any) -> Any:
    """Return what a compiled function was compiled from: its kernels do not go through the dispatcher."""
    plain = getattr(function, "_orig_mod", None)
    return plain if plain is not None else getattr(function, "_torchdynamo_orig_callable", function)


def watching_torch(
    note: Note, host_wait: Callable[[], object], *, device_types: Iterable[str] = ("cuda",)
) -> AbstractContextManager[object]:
    """Tell what torch's operators read and write, in a ``with`` block of this thread.

    Parameters
    ----------
    note
        Is told of each tensor.
    host_wait
        Is called where the host reads a value.
    device_types
        Tensors of which devices are told of.
    """
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
            for tensor, is_write in given:
                note(name, tensor, is_write)
            made = list(_tensors(result, devices))
            for tensor in made:
                note(name, tensor, True)  # noqa: FBT003 - it is written
            if given and (name in _READS_BACK or (not made and result is not None)):
                host_wait()
            return result

    return Watching()


def _schema(operator: Any) -> Any:
    return operator._schema  # noqa: SLF001 - the only way to it


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
        if tensor.device.type in devices:
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
        reductions: Any = import_module("torch.multiprocessing.reductions")
        found = reductions.StorageWeakRef(tensor.untyped_storage())
        known = self._known.get(found.cdata)  # unique as long as the weak reference is kept
        if known is None:
            known = self._known[found.cdata] = -1 - len(self._known), found
        return known[0]


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
    return torch is not None and isinstance(value, torch.Tensor)


def copied_tensors(values: Iterable[Any]) -> list[Any]:
    """Return copies of tensors; those that share a storage have copies that do."""
    torch: Any = torch_here()
    storages: dict[int, Any] = {}
    made = []
    for value in values:
        storage = value.untyped_storage()
        if storage._cdata not in storages:  # noqa: SLF001 - its address
            storages[storage._cdata] = storage.clone()  # noqa: SLF001
        place = storages[storage._cdata]  # noqa: SLF001
        copy = torch.empty(0, dtype=value.dtype, device=value.device)
        copy.set_(place, value.storage_offset(), value.shape, value.stride())
        copy.requires_grad_(value.requires_grad)
        made.append(torch.nn.Parameter(copy, value.requires_grad) if isinstance(value, torch.nn.Parameter) else copy)
    return made
