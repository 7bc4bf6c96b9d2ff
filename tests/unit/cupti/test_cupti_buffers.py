"""The buffers that CUPTI fills: pooled, bounded, and never another's."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest

from gpustreamlab.backends.cuda.cupti._buffers import ActivityBuffers
from gpustreamlab.backends.cuda.cupti._library import Cupti
from gpustreamlab.errors import CaptureUnavailableError
from tests.helpers.fake_cupti import NOT_COMPATIBLE, FakeCuptiLibrary


def request(buffers):
    """Ask for a buffer as CUPTI does; return its address and size."""
    address, size, most = ctypes.c_void_p(7), ctypes.c_size_t(8), ctypes.c_size_t(9)
    buffers._pool.request(ctypes.byref(address), ctypes.byref(size), ctypes.byref(most))
    assert most.value == 0  # as many records as fit
    return address.value, size.value


def complete(buffers, address, valid_bytes, text=b""):
    ctypes.memmove(address, text, len(text))
    buffers._pool.complete(None, 0, address, buffers.buffer_bytes, valid_bytes)


def test_what_was_written_comes_back_and_the_buffer_is_used_again():
    buffers = ActivityBuffers(buffer_bytes=4096)
    first, size = request(buffers)
    complete(buffers, first, 5, b"hello")

    ((ticket, data, _),) = buffers.take()

    assert (size, data.tobytes()) == (4096, b"hello")
    assert first % 64 == 0
    assert buffers.take() == []
    second, _ = request(buffers)
    assert second != first  # it is still being read
    buffers.give_back(ticket)
    buffers.give_back(ticket)
    assert request(buffers)[0] == first
    assert request(buffers)[0] not in {first, second}


def test_buffers_come_in_the_order_in_which_they_were_completed():
    buffers = ActivityBuffers(buffer_bytes=64)
    lent = [request(buffers)[0] for _ in range(3)]
    for address in lent[1], lent[2], lent[0]:
        complete(buffers, address, 8)

    assert buffers.full_bytes == 3 * 64
    assert [ticket for ticket, _, _ in buffers.take()] == [lent[1], lent[2], lent[0]]
    assert buffers.full_bytes == 0


def test_a_size_that_is_no_multiple_of_the_alignment_is_kept():
    buffers = ActivityBuffers(buffer_bytes=100, buffer_limit=2)
    (first, size), (second, _) = request(buffers), request(buffers)

    assert size == 100
    assert (first % 64, second % 64) == (0, 0)
    assert abs(second - first) >= 100


def test_there_is_a_limit_and_what_is_refused_is_counted():
    buffers = ActivityBuffers(buffer_bytes=64, buffer_limit=2)
    held = [request(buffers) for _ in range(4)]

    assert [address is not None for address, _ in held] == [True, True, False, False]
    assert [size for _, size in held] == [64, 64, 0, 0]
    assert buffers.refused_count == 2


def test_a_buffer_of_another_client_is_not_touched():
    buffers = ActivityBuffers(buffer_bytes=64)
    foreign = np.zeros(64, np.uint8)
    ours, _ = request(buffers)

    for address in (foreign.ctypes.data, None, ours + 1, ours - 1, ours + (1 << 40), (1 << 64) - 64):
        buffers._pool.complete(None, 0, address, 64, 64)

    assert buffers.take() == []
    assert buffers.full_bytes == 0


def test_a_buffer_counts_once_for_each_time_it_was_lent():
    buffers = ActivityBuffers(buffer_bytes=64)
    first, _ = request(buffers)
    complete(buffers, first, 8)
    complete(buffers, first, 16)

    ((ticket, data, _),) = buffers.take()
    complete(buffers, first, 24)

    assert (ticket, len(data)) == (first, 8)
    assert buffers.take() == []


def test_what_was_never_taken_cannot_be_given_back():
    buffers = ActivityBuffers(buffer_bytes=64, buffer_limit=1)
    lent, _ = request(buffers)
    for ticket in (lent, 4096, 0):
        buffers.give_back(ticket)
    assert request(buffers) == (None, 0)

    complete(buffers, lent, 8)
    buffers.give_back(lent)
    assert request(buffers) == (None, 0)  # full, and not taken yet
    assert [ticket for ticket, _, _ in buffers.take()] == [lent]


def test_more_valid_bytes_than_there_are_are_not_believed():
    buffers = ActivityBuffers(buffer_bytes=64)
    address, _ = request(buffers)
    complete(buffers, address, 1 << 40)

    assert [len(data) for _, data, _ in buffers.take()] == [64]


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
    while any(thread.is_alive() for thread in threads) or buffers.full_bytes:
        for ticket, data, _ in buffers.take():
            taken.append(int.from_bytes(data.tobytes(), "little"))
            buffers.give_back(ticket)
    for thread in threads:
        thread.join()

    assert sorted(taken) == sorted([*range(rounds)] * 3)
    assert buffers.refused_count == 0


def test_cupti_is_served_through_what_was_registered():
    library = FakeCuptiLibrary()
    buffers = ActivityBuffers(buffer_bytes=64, buffer_limit=2)
    buffers.register(Cupti(library, ""))
    library.emit_raw(np.arange(8, dtype=np.uint8))
    library.activity_flush_all(0)
    library.complete_foreign()

    assert [data.tobytes() for _, data, _ in buffers.take()] == [bytes(range(8))]


def test_a_refused_registration_says_so():
    cupti = Cupti(FakeCuptiLibrary(refused={"cuptiActivityRegisterCallbacks": NOT_COMPATIBLE}), "")

    with pytest.raises(CaptureUnavailableError, match="refused cuptiActivityRegisterCallbacks: CUPTI_ERROR_NOT_COMPATIBLE"):
        ActivityBuffers().register(cupti)
