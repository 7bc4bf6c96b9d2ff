"""Who owns an array's memory, and whether anybody still refers to it, for arrays of each library."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from gpustreamlab._util import arrays
from gpustreamlab._util.arrays import find_owner
from gpustreamlab.backends.sim import SimBackend


def test_views_of_numpy_have_one_owner():
    array = np.zeros((4, 4))
    assert find_owner(array).key == find_owner(array[1:]).key == find_owner(array.T).key
    assert find_owner(array).key != find_owner(array.copy()).key


class CupyMemory:
    """Stands for cupy.cuda.Memory."""


class CupyArray:
    """Stands for cupy.ndarray: its data is a pointer into memory that views share."""

    def __init__(self, memory):
        self.data = types.SimpleNamespace(mem=memory)
        self.base = None


class Anything:
    pass


def pinned():
    array = SimBackend().pinned_empty(8, "f4")
    return array, array[2:]


def buffer():
    memory = bytearray(64)
    return memory, np.frombuffer(memory, np.uint8)[8:]


def simulated():
    array = SimBackend().xp.zeros((4, 4))
    return array, array[1:].T


def cupys():
    array = CupyArray(CupyMemory())
    return array, CupyArray(array.data.mem)


def anything():
    return (thing := Anything()), thing


@pytest.mark.parametrize("make", [pinned, buffer, simulated, cupys, anything])
def test_all_views_have_one_owner_who_is_alone_when_the_last_has_gone(make):
    array, view = make()
    owner = find_owner(array)
    assert owner.key == find_owner(view).key
    del array
    assert not owner.is_alone()
    del view
    assert owner.is_alone()


# Torch, by a stand-in with what is used of it


class Storage:
    """Stands for torch.UntypedStorage: a wrapper that counts as one."""

    def __init__(self, counts, address):
        self._counts, self._cdata = counts, address
        counts[address] += 1

    def __del__(self):
        self._counts[self._cdata] -= 1


class Tensor:
    __module__ = "torch"

    def __init__(self, counts, address):
        self._counts, self._address = counts, address
        counts[address] = counts.get(address, 0) + 1

    def untyped_storage(self):
        return Storage(self._counts, self._address)

    def __del__(self):
        self._counts[self._address] -= 1


@pytest.fixture
def torch(monkeypatch):
    counts = {}
    module = types.ModuleType("torch")
    module.counts = counts
    module.tensor = lambda address: Tensor(counts, address)
    module.empty = lambda size, *, device: Tensor(counts, 1)
    module._C = types.SimpleNamespace(_storage_Use_Count=counts.__getitem__)
    monkeypatch.setitem(sys.modules, "torch", module)
    arrays._lone_use_count.cache_clear()
    yield module
    arrays._lone_use_count.cache_clear()


def test_views_of_a_tensor_have_one_owner_and_what_autograd_keeps_counts(torch):
    tensor, view = torch.tensor(64), torch.tensor(64)
    owner = find_owner(tensor)
    assert owner.key == find_owner(view).key
    torch.counts[64] += 1
    del tensor
    assert not owner.is_alone()
    del view
    assert not owner.is_alone()
    torch.counts[64] -= 1
    assert owner.is_alone()


@pytest.mark.parametrize("missing", ["_C", "untyped_storage"])
def test_a_torch_that_does_not_tell_leaves_the_tensor_itself(torch, monkeypatch, missing):
    if missing == "_C":
        del torch._C
    else:
        monkeypatch.setattr(Tensor, "untyped_storage", lambda tensor: (_ for _ in ()).throw(RuntimeError("no storage")))
    tensor = torch.tensor(64)
    owner = find_owner(tensor)
    assert owner.memory is tensor
    del tensor
    assert owner.is_alone()
