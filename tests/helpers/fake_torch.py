"""Tensors like torch's on the simulated device: what moves them between the host and the device, and a few operations."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np


class Device(NamedTuple):
    type: str

    def __str__(self) -> str:
        return self.type


class Storage(NamedTuple):
    array: Any

    def data_ptr(self) -> int:
        return self.array.__array_interface__["data"][0]

    def nbytes(self) -> int:
        return self.array.nbytes


class Tensor:
    """An array of the host or of the device, that says which as torch's do."""

    def __init__(self, lab: Any, array: Any, *, is_pinned: bool = False) -> None:
        self.lab, self.array, self._is_pinned = lab, array, is_pinned

    @property
    def device(self) -> Device:
        return Device("cpu" if isinstance(self.array, np.ndarray) else "cuda")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def ndim(self) -> int:
        return self.array.ndim

    def untyped_storage(self) -> Storage:
        owner = self.array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        return Storage(owner)

    def is_pinned(self) -> bool:
        return self._is_pinned

    def pin_memory(self) -> Tensor:
        made = self.lab.memory.pinned_empty(self.array.shape, self.array.dtype)
        made[...] = self.array
        return Tensor(self.lab, made, is_pinned=True)

    def to(self, device: str, *, non_blocking: bool = False) -> Tensor:
        if str(device) == self.device.type:
            return self
        if str(device) == "cuda":
            made = self.lab.xp.empty(self.array.shape, self.array.dtype)
            made.set(self.array)
            if self._is_pinned and not non_blocking:
                self.lab.synchronize()
            return Tensor(self.lab, made)
        if not non_blocking:
            return Tensor(self.lab, self.array.get())
        out = self.lab.memory.pinned_empty(self.array.shape, self.array.dtype)
        self.array.get(out=out, blocking=False)
        return Tensor(self.lab, out, is_pinned=True)

    def cuda(self, *, non_blocking: bool = False) -> Tensor:
        return self.to("cuda", non_blocking=non_blocking)

    def cpu(self) -> Tensor:
        return self.to("cpu")

    def detach(self) -> Tensor:
        return self

    def numpy(self) -> Any:
        return self.array

    def item(self) -> float:
        return self.array.item()

    def sum(self) -> Tensor:
        return Tensor(self.lab, self.array.sum())

    def fill_(self, value: float) -> Tensor:
        self.array[...] = value
        return self

    def __matmul__(self, other: Tensor) -> Tensor:
        return Tensor(self.lab, self.array @ other.array)

    def __getitem__(self, item: Any) -> Tensor:
        return Tensor(self.lab, self.array[item], is_pinned=self._is_pinned)

    def __len__(self) -> int:
        return len(self.array)


class DataLoader:
    """Gives batches of a tensor of the host."""

    def __init__(self, data: Tensor, batch_size: int, *, pin_memory: bool = False) -> None:
        self.data, self.batch_size, self.pin_memory = data, batch_size, pin_memory

    def __iter__(self) -> Iterator[Tensor]:
        for first in range(0, len(self.data), self.batch_size):
            made = Tensor(
                self.data.lab, self.data.array[first : first + self.batch_size].reshape(-1, self.data.shape[-1]).copy()
            )
            yield made.pin_memory() if self.pin_memory else made


def make_torch(lab: Any) -> types.ModuleType:
    """Return a module in torch's place."""
    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(synchronize=lab.synchronize)
    torch.no_grad = nullcontext
    torch.device = Device
    torch.from_numpy = lambda array: Tensor(lab, array)
    return torch


def photographs(count: int, side: int = 256, *, of: Sequence[int] = ()) -> Any:
    """Return arrays of whole numbers, so that sums are the same in any order."""
    return np.random.default_rng(4).integers(0, 3, (count, *of, side, side)).astype("f4")
