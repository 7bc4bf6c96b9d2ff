"""The buffers that CUPTI fills: pooled, bounded, and never another's."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest

from gpustreamlab.backends.cuda._cupti import Cupti
from gpustreamlab.backends.cuda._cupti_buffers import ActivityBuffers
from gpustreamlab.errors import CaptureUnavailableError
from tests.helpers.fake_cupti import NOT_COMPATIBLE, FakeCuptiLibrary


def request(buffers):
    """Ask for a buffer as CUPTI does; return its address and size."""
    address, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(9)
    buffers._request(ctypes.byref(address), ctypes.byref(size), ctypes.byref(most))
    assert most.value == 0  # as many records as fit
    return address.value, size.value


def complete(buffers, address, valid_bytes, text=b""):
    ctypes.memmove(address, text, len(text))
    buffers._complete(None, 0, address, buffers.buffer_bytes, valid_bytes)


def test_what_was_written_comes_back_and_the_buffer_is_used_again():
    buffers = ActivityBuffers(buffer_bytes=4096)
    first, size = request(buffers)
    complete(buffers, first, 5, b"hello")

    ((ticket, data),) = buffers.take()

    assert (size, data.tobytes()) == (4096, b"hello")
    assert first % 64 == 0
    assert buffers.take() == []
    second, _ = request(buffers)
    assert second != first  # it is still being read
    buffers.give_back(ticket)
    buffers.give_back(ticket)
    assert request(buffers)[0] == first


def test_there_is_a_limit_and_what_is_refused_is_counted():
    buffers = ActivityBuffers(buffer_bytes=64, buffer_limit=2)
    held = [request(buffers) for _ in range(4)]

    assert [address is not None for address, _ in held] == [True, True, False, False]
    assert [size for _, size in held] == [64, 64, 0, 0]
    assert buffers.refused_count == 2


def test_a_buffer_of_another_client_is_not_touched():
    buffers = ActivityBuffers(buffer_bytes=64)
    foreign = np.zeros(64, np.uint8)

    buffers._complete(None, 0, foreign.ctypes.data, 64, 64)
    buffers._complete(None, 0, None, 0, 0)

    assert buffers.take() == []


def test_more_valid_bytes_than_there_are_are_not_believed():
    buffers = ActivityBuffers(buffer_bytes=64)
    address, _ = request(buffers)
    complete(buffers, address, 1 << 40)

    assert [len(data) for _, data in buffers.take()] == [64]


def test_threads_may_fill_while_another_takes():
    buffers = ActivityBuffers(buffer_bytes=64, buffer_limit=1_000)
    rounds, taken = 300, []

    def fill():
        for number in range(rounds):
            address, _ = request(buffers)
            complete(buffers, address, 8, number.to_bytes(8, "little"))

    threads = [threading.Thread(target=fill) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or buffers._full:
        for ticket, data in buffers.take():
            taken.append(int.from_bytes(data.tobytes(), "little"))
            buffers.give_back(ticket)
    for thread in threads:
        thread.join()

    assert sorted(taken) == sorted([*range(rounds)] * 3)
    assert buffers.refused_count == 0


def test_a_refused_registration_says_so():
    cupti = Cupti(FakeCuptiLibrary(refused={"cuptiActivityRegisterCallbacks": NOT_COMPATIBLE}), "")

    with pytest.raises(CaptureUnavailableError, match="refused cuptiActivityRegisterCallbacks: CUPTI_ERROR_NOT_COMPATIBLE"):
        ActivityBuffers().register(cupti)
