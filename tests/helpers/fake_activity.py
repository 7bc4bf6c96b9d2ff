"""A source of activities that a test feeds by hand: it can refuse to start, lose its client, and drop records."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

import numpy as np

from gpustreamlab.backends import (
    CERTAINTY_SHIFT,
    IS_HOST,
    IS_WRITE,
    NODE_SHIFT,
    AccessBatch,
    Activities,
    AnnotationBatch,
    CallBatch,
    CallClass,
    DependencyBatch,
    MemoryBatch,
    StreamFacts,
    WorkBatch,
)
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.errors import CaptureUnavailableError
from gpustreamlab.model import SPAN_KINDS, WorkDetail
from gpustreamlab.typing import SpanKind

BATCHES = {
    "work": WorkBatch,
    "calls": CallBatch,
    "annotations": AnnotationBatch,
    "dependencies": DependencyBatch,
    "memory": MemoryBatch,
    "accesses": AccessBatch,
}


class FakeActivitySource:
    """Gives away what it was fed. Nothing is checked, so that a test can feed nonsense.

    What is pushed is kept whether it collects or not, except after `lose_client`, and as far as `drop_next` goes.

    Parameters
    ----------
    refusal
        Why `start` refuses, with `CaptureUnavailableError`; empty for not at all. May be changed at any time.
    error_ns
        Error that it states.
    """

    def __init__(self, *, refusal="", error_ns=0):
        self.description = "fake source"
        self.refusal = refusal
        self.error_ns = error_ns
        self.lost_reason = ""
        self.dropped_count = 0
        self.is_collecting = False
        self.is_closed = False
        self.history = []
        """Names of the calls of start, stop, drain ("last drain") and close, in order."""
        self.streams = {}
        """Facts by (context, stream); others are described as "stream N" of 132 SMs."""
        self.drain_error = None
        """Raised by the next drains, if set."""
        self.host_time_ns = time.perf_counter_ns
        """The host's clock; that of the backend, once it has one."""
        self._complete_until_host_ns = 0
        self._lock = threading.Lock()
        self._drop_count = 0
        self._empty()

    # What a test does

    def push_work(
        self,
        start_ns,
        end_ns,
        *,
        stream,
        name="kernel",
        kind=SpanKind.KERNEL,
        context=0,
        detail=None,
        correlation=0,
        size_bytes=0,
    ):
        """Feed a kernel, copy or fill. `stream` is a number, or a stream of the backend, whose context is taken too."""
        if not isinstance(stream, int):
            context, stream = self.key_of(stream)
        kind_code = SPAN_KINDS.index(kind)
        detail_code = -1 if detail is None else self._code(self._details, detail)
        self._push("work", kind_code, start_ns, end_ns, context, stream, name, detail_code, correlation, size_bytes)

    def push_call(
        self,
        start_ns,
        end_ns,
        *,
        name="cudaLaunchKernel",
        call_class=CallClass.LAUNCH,
        thread=None,
        correlation=0,
        size_bytes=0,
        start_host_ns=None,
    ):
        """Feed a call of the host, of this thread if none is given."""
        host_ns = start_ns if start_host_ns is None else start_host_ns
        ident = (threading.get_ident() if thread is None else thread) & 0xFFFF_FFFF
        self._push("calls", start_ns, end_ns, host_ns, ident, name, int(call_class), correlation, size_bytes)

    def push_launch(self, call_ns, start_ns, end_ns, *, correlation, call_end_ns=None, **work):
        """Feed a launch at `call_ns`, by this thread, and the kernel that it enqueues."""
        self.push_call(call_ns, call_ns + 4_000 if call_end_ns is None else call_end_ns, correlation=correlation)
        self.push_work(start_ns, end_ns, correlation=correlation, **work)

    def push_annotation(self, start_ns, end_ns, *, name, thread=None, start_host_ns=None):
        """Feed a range of others, of this thread if none is given."""
        host_ns = start_ns if start_host_ns is None else start_host_ns
        ident = (threading.get_ident() if thread is None else thread) & 0xFFFF_FFFF
        self._push("annotations", start_ns, end_ns, host_ns, ident, name)

    def push_dependency(self, *, source, record, target, wait):
        """Feed that a stream waits; streams are (context, stream)."""
        self._push("dependencies", *source, record, *target, wait)

    def push_memory(self, time_ns, value, *, stream, name="pool_used_bytes", context=0):
        """Feed how much memory a stream holds."""
        if not isinstance(stream, int):
            context, stream = self.key_of(stream)
        self._push("memory", time_ns, context, stream, name, value)

    def push_access(self, correlation, buffer, begin, end, *, is_write=False, is_host=False, certainty=0, node=-1):
        """Feed that work which a call enqueued reads or writes memory."""
        flags = IS_WRITE * is_write | IS_HOST * is_host | certainty << CERTAINTY_SHIFT | node + 1 << NODE_SHIFT
        self._push("accesses", correlation, buffer, begin, end, flags)

    def lose_client(self, reason="another tool took over", *, complete_until_host_ns=None):
        """Tell nothing any more, as when torch.profiler is started; by default all until now was told."""
        self._complete_until_host_ns = self.host_time_ns() if complete_until_host_ns is None else complete_until_host_ns
        self.lost_reason = reason
        self.is_collecting = False

    def drop_next(self, count):
        """Drop the next records that are pushed, and count them."""
        self._drop_count += count

    # What a source does

    @property
    def complete_until_host_ns(self):
        """Tell until when nothing is missing."""
        return self._complete_until_host_ns if self.lost_reason else self.host_time_ns()

    def start(self):
        """Collect, or refuse."""
        self.history.append("start")
        if self.refusal:
            raise CaptureUnavailableError(self.refusal)
        self.lost_reason = ""
        self.is_collecting = True

    def stop(self):
        """Stop collecting."""
        self.history.append("stop")
        self.is_collecting = False

    def keep_up(self):
        """Ask to be drained."""
        return True

    def drain(self, *, is_last=False):
        """Give away what was fed since the last time."""
        self.history.append("last drain" if is_last else "drain")
        if self.drain_error is not None:
            raise self.drain_error
        with self._lock:
            rows, names, details = self._rows, tuple(self._names), tuple(self._details)
            self._empty()
        return Activities(**{kind: make_batch(kind, rows[kind]) for kind in BATCHES}, names=names, details=details)

    def key_of(self, stream):
        """Return context and stream of a backend's stream."""
        return stream.key[1:]

    def are_foreign(self, context, stream):
        """Tell that no other session is there."""
        return np.zeros(len(stream), bool)

    def describe_stream(self, context, stream):
        """Tell of a stream."""
        name = "stream" if stream else "default stream"
        return self.streams.get((context, stream), StreamFacts(f"{name} {stream}" if stream else name, 132, 0))

    def close(self):
        """Stop for good."""
        self.history.append("close")
        self.is_collecting, self.is_closed = False, True

    # Inside

    def _empty(self):
        self._rows = defaultdict(list)
        self._names = {}
        self._details = {}

    def _code(self, table, value):
        with self._lock:
            return table.setdefault(value, len(table))

    def _push(self, kind, *row):
        if self.lost_reason:
            return
        if self._drop_count:
            self._drop_count -= 1
            self.dropped_count += 1
            return
        with self._lock:
            coded = [self._names.setdefault(item, len(self._names)) if isinstance(item, str) else item for item in row]
            self._rows[kind].append(coded)


class FakeSourceBackend(SimBackend):
    """The simulated device with a source that a test made; or an error that asking for one raises."""

    def __init__(self, source, preset="h200"):
        super().__init__(preset)
        self.source_given = source

    def activity_source(self):
        """Return the test's source, or raise its error."""
        if isinstance(self.source_given, BaseException):
            raise self.source_given
        self.source_given.host_time_ns = self.host_time_ns
        return self.source_given


def make_batch(kind, rows):
    """Turn rows into the columns of a batch."""
    batch = BATCHES[kind]
    fields = list(batch.__dataclass_fields__)
    columns = np.array(rows, np.float64 if kind == "memory" else np.int64).reshape(-1, len(fields)).T
    return batch(
        **{
            field: np.ascontiguousarray(column, np.float64 if field == "value" else np.int64)
            for field, column in zip(fields, columns, strict=True)
        }
    )


def kernel_detail(full_name, *, blocks=1, threads=128):
    """Make the detail of a kernel with a line of blocks."""
    return WorkDetail(full_name=full_name, grid=(blocks, 1, 1), block=(threads, 1, 1))
