"""Calls of the driver as the ring of callbacks.c brings them, made up one by one."""

from __future__ import annotations

import itertools

import numpy as np

from gpustreamlab.backends.cuda.cupti._accesses import KNOWN, LEARNED, UNKNOWN, AccessReader
from gpustreamlab.backends.cuda.cupti._arguments import SHAPES, CallFlag, Role, shape_of
from gpustreamlab.backends.cuda.cupti._buffers import CALL

NAMES = (*SHAPES, "cuGraphExecKernelNodeSetParams_v2", "cuMemcpyBatchAsync")
NUMBERS = {name: number for number, name in enumerate(NAMES, start=100)}
ROLES = {number: shape_of(name) for name, number in NUMBERS.items()}
CERTAINTIES = {KNOWN: "known", LEARNED: "learned", UNKNOWN: "unknown"}


class DriverCalls:
    """Makes calls, and reads them as a reader that knows this driver's memory does."""

    def __init__(self):
        self.calls = []
        self.words = []
        self.existing = []
        """What there was before, as first address, size and whether it is the host's."""
        self.asked = []
        self.told = []
        self.now_ns = 1_000
        self.numbers = itertools.count(1)
        self.reader = AccessReader(
            name_of=lambda function: f"kernel {function}", ask=self._ask, tell_memory=lambda *facts: self.told.append(facts)
        )

    def call(self, name, *, words=(), stream=0, target=0, size=0, flags=CallFlag.NON_BLOCKING, begin_ns=None):
        """Make a call; return its number."""
        number = next(self.numbers)
        self.now_ns += 1_000
        start_ns = self.now_ns if begin_ns is None else begin_ns
        facts = (start_ns, self.now_ns + 500, 7, number, NUMBERS[name], len(words), flags, stream, target, size)
        self.calls.append(facts)
        self.words += words
        return number

    def launch(self, function, *addresses, stream=16, **options):
        """Launch a kernel whose arguments are addresses, each in the place of its turn."""
        words = [address | place << 48 for place, address in enumerate(addresses) if address]
        return self.call("cuLaunchKernel", words=words, stream=stream, target=function, **options)

    def allocate(self, address, size):
        return self.call("cuMemAlloc_v2", target=address, size=size)

    def free(self, address, **options):
        return self.call("cuMemFree_v2", target=address, **options)

    def copy(self, target, source, size, stream=16):
        return self.call("cuMemcpyAsync", words=[source, size], stream=stream, target=target, size=size)

    def take(self):
        """Return the calls as columns, and their words, and forget them."""
        calls, words = np.array(self.calls, CALL), np.array(self.words, np.uint64)
        self.calls, self.words = [], []
        return calls, words

    def read(self):
        """Return the accesses of what was called since, as rows of: call, buffer, begin, end, "r" or "w", certainty."""
        columns = self.reader.read(*self.take(), ROLES)
        return [
            (number, buffer, begin, end, "w" if flags & 1 else "r", CERTAINTIES[flags & 12])
            for number, buffer, begin, end, flags in zip(*(column.tolist() for column in columns.values()), strict=True)
        ]

    def read_in_parts(self, count):
        """Return the same, read so many calls at a time."""
        calls, words, rows = self.calls, self.words, []
        for begin in range(0, len(calls), count):
            self.calls = calls[begin : begin + count]
            word_count = sum(call[5] for call in self.calls)
            self.words, words = words[:word_count], words[word_count:]
            rows += self.read()
        return rows

    def steps(self):
        """Return the steps since, and forget them."""
        steps, self.reader.steps = self.reader.steps, []
        return steps

    def _ask(self, address):
        self.asked.append(address)
        return next((one for one in self.existing if one[0] <= address < one[0] + one[1]), None)


__all__ = ["NUMBERS", "ROLES", "DriverCalls", "Role"]
