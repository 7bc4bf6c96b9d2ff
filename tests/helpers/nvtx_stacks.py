"""A simulated device that checks what each thread does: NVTX ranges nest, and selections are put back in reverse order."""

from __future__ import annotations

import threading

from gpustreamlab.backends.sim import SimBackend


class CheckedSim(SimBackend):
    """Notes what is wrong instead of raising, since a backend that raises would change what is tested."""

    def __init__(self):
        super().__init__()
        self.wrong = []
        self.pushed_count = 0
        self._mine = threading.local()
        self._all = []

    @property
    def open_ranges(self):
        """Return the NVTX ranges that are open, of every thread that had any."""
        return [name for stack, _ in self._all for name in stack]

    def check(self):
        """Fail unless every push has had its pop in its thread, and every selection was put back in order."""
        assert self.wrong == []
        assert self.open_ranges == []
        assert [streams for _, streams in self._all if streams] == []

    def forgive(self):
        """Forget what was wrong."""
        self.wrong.clear()
        for _, streams in self._all:
            streams.clear()

    def push_range(self, annotation):
        self._stacks()[0].append(annotation)
        super().push_range(annotation)

    def pop_range(self):
        stack = self._stacks()[0]
        if stack:
            stack.pop()
        else:
            self.wrong.append(f"{threading.current_thread().name} popped a range that it had not pushed")
        super().pop_range()

    def select(self, stream):
        before = super().select(stream)
        self._stacks()[1].append(before)
        return before

    def restore(self, token):
        entered = self._stacks()[1]
        if not entered or entered.pop() is not token:
            self.wrong.append(f"{threading.current_thread().name} put back a selection that was not its last")
        super().restore(token)

    def _stacks(self):
        try:
            return self._mine.stacks
        except AttributeError:
            self._mine.stacks = stacks = ([], [])
            self._all.append(stacks)
            return stacks
