"""Other tools that use CUPTI in this process: how they are noticed, and how CUPTI is handed over."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from gpustreamlab._util.defences import process_lock
from gpustreamlab.backends._activity import Step, StepKind
from gpustreamlab.backends.cuda._libcuda import load_libcuda
from gpustreamlab.backends.cuda.cupti._accesses import AccessReader
from gpustreamlab.backends.cuda.cupti._blocks import BlockChange, ask_driver
from gpustreamlab.backends.cuda.cupti._buffers import CALL_FIELDS, ActivityBuffers
from gpustreamlab.backends.cuda.cupti._layouts import ACCESSED, CALLED, RecordKind
from gpustreamlab.backends.cuda.cupti._library import Cupti
from gpustreamlab.backends.cuda.cupti._pools import TorchBlocks
from gpustreamlab.backends.cuda.cupti._records import Records, concat_records, parse_buffer
from gpustreamlab.typing import BoolArray, Int64Array

_log = logging.getLogger(__name__)


_NSYS = (
    "NSYS_PROFILING_SESSION_ID",
    "NSYS_TARGET_STD_REDIRECT_ACTIVE",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR",
    "CUDA_INJECTION64_PATH",
)
"""What Nsight Systems, Nsight Compute and other injected tools leave in a process's environment."""


def active_client(cupti: Cupti) -> str:
    """Name the tool that collects in this process now, and what to do about it; empty where none does.

    torch.profiler keeps CUPTI's one place for a subscriber after its first use for as long as the process lives, and does not
    mind others while it is not running.
    """
    if is_torch_profiling():
        return "torch.profiler is running; leave its `with` block first"
    injected = next((name for name in _NSYS if os.environ.get(name)), "")
    if injected:
        return f"an injected profiler is active ({injected} is set); run without it"
    if sys.modules.get("cupti") is not None:
        return "cupti-python is imported in this process and may be collecting; restart without it"
    if "torch" not in sys.modules and cupti.is_held_by_another():
        return "another profiler has subscribed to CUPTI in this process"
    return ""


def is_torch_profiling() -> bool:
    """Tell whether torch.profiler is running in this process. torch is not imported for it."""
    torch = sys.modules.get("torch")
    try:
        return torch is not None and bool(torch.autograd._profiler_enabled())  # noqa: SLF001 - torch has no public question for it
    except AttributeError:
        return False


def call_before_torch_profiles(hand_over: Callable[[], object]) -> None:
    """Have this called whenever torch.profiler is about to register its buffers, which it tells nobody of. Idempotent.

    A buffer that CUPTI still holds from us would get torch's first records, and torch refuses it ("bufferCompleted called with
    unknown buffer"): 3,120 of 20,000 kernels were missing from its events (H200, torch 2.11). torch comes by
    `_prepare_profiler` first, before warm-up steps too. That function stays wrapped; it does nothing more once nobody
    captures.
    """
    profiler = sys.modules.get("torch.autograd.profiler")
    prepare = getattr(profiler, "_prepare_profiler", None)
    if prepare is None or hasattr(prepare, _OURS):
        return

    @wraps(prepare)
    def prepare_after_hand_over(config: Any, activities: Any, *args: Any, **options: Any) -> Any:
        if any(getattr(activity, "name", "") == "CUDA" for activity in activities):
            try:
                hand_over()
            except Exception:  # noqa: BLE001 - torch.profiler has to start, whatever is wrong here
                _log.debug("CUPTI could not be handed over", exc_info=True)
        return prepare(config, activities, *args, **options)

    setattr(prepare_after_hand_over, _OURS, True)
    setattr(profiler, prepare.__name__, prepare_after_hand_over)


_OURS = "_gpustreamlab_hands_over"
"""Marks the function that was put in place of torch's."""


LOST_TO_TORCH_NS = 500_000_000
"""How long it may be silent while torch.profiler runs, or after; one that watches the host alone takes nothing."""
LOST_AFTER_NS = 3_000_000_000
"""The same where another client has appeared since the capture began."""
LOST_UNSEEN_NS = 60_000_000_000
"""How long no anchor may come back where no other client is in sight; buffers may come meanwhile."""


class LossWatch:
    """Looks for signs of another client."""

    def __init__(self, cupti: Cupti, host_time_ns: Callable[[], int]) -> None:
        self._cupti = cupti
        self._host_time_ns = host_time_ns
        self._torch_host_ns = -1
        self._buffer_host_ns = 0
        self._anchor_host_ns = 0
        self._next_look_ns = 0
        self._is_client_near = False

    def begin(self) -> None:
        """Start anew: nothing was seen."""
        self._buffer_host_ns = self._anchor_host_ns = self._host_time_ns()
        self._torch_host_ns, self._next_look_ns = -1, 0
        self._is_client_near = False

    @property
    def complete_until_host_ns(self) -> int:
        """When the newest anchor that has come back was launched, by the host's clock: what was before it has come too."""
        return self._anchor_host_ns

    def look_for_torch(self) -> bool:
        """Tell whether torch.profiler runs, or has run since the last sign of life; called often, as it may run shortly."""
        if is_torch_profiling():
            self._torch_host_ns = self._host_time_ns()
        return self._torch_host_ns >= max(self._buffer_host_ns, self._anchor_host_ns)

    def note_buffers(self, count: int) -> None:
        """Take how many buffers have come: another client would have got them."""
        if count:
            self._buffer_host_ns = self._host_time_ns()

    def note_anchors(self, newest_host_ns: int) -> None:
        """Take when the newest anchor that has come back was launched."""
        self._anchor_host_ns = max(self._anchor_host_ns, newest_host_ns)

    def find(self, oldest_waiting_host_ns: int | None) -> str:
        """Say who has taken CUPTI over; empty where nobody is known to have. Of anchors that have run, the oldest counts."""
        if oldest_waiting_host_ns is None:
            return ""
        silent_ns = self._host_time_ns() - max(oldest_waiting_host_ns, self._anchor_host_ns, self._buffer_host_ns)
        if silent_ns >= LOST_TO_TORCH_NS and self.look_for_torch():
            return "torch.profiler"
        if silent_ns >= LOST_AFTER_NS and self._is_another_near():
            return "torch.profiler" if "torch" in sys.modules else "another profiler"
        return ""

    def is_overdue(self, oldest_waiting_host_ns: int | None) -> bool:
        """Tell whether no anchor has come back for so long that everything should be asked for, by a forced flush."""
        if oldest_waiting_host_ns is None:
            return False
        return self._host_time_ns() - max(oldest_waiting_host_ns, self._anchor_host_ns) >= LOST_UNSEEN_NS

    def _is_another_near(self) -> bool:
        """Tell whether another client has appeared since the begin; asked for now and then."""
        now_ns = self._host_time_ns()
        if now_ns >= self._next_look_ns:
            self._next_look_ns = now_ns + LOST_AFTER_NS
            self._is_client_near = bool(active_client(self._cupti))
        return self._is_client_near


class Sharer(Protocol):
    """A source that is given records."""

    is_collecting: bool
    """Whether it was started and not stopped."""

    tells_steps: bool
    """Whether somebody looks for hazards."""

    def take_blocks(self) -> list[BlockChange]:
        """Return what a pool of its device gave out and took back since the last time."""

    def take_in(self, records: Records, dropped_count: int, steps: Sequence[Step] = ()) -> None:
        """Take what was handed out, for the next drain, and how many records are missing."""


class Sharing:
    """The sources of a process, their streams, and the buffers that CUPTI writes into."""

    def __init__(self) -> None:
        self.lock = process_lock()
        """Held by whoever changes `sharers`, or hands records out; taken behind a source's own lock."""
        self.sharers: list[Any] = []
        """Sources that collect, or were not told of everything yet."""
        self._claims: dict[int, WeakSet[Any]] = {}  # which sources have a stream, by `stream_key`; none where those are gone
        self.contexts: dict[int, int] = {}
        """The contexts of streams that sessions have or had, by the numbers of those."""
        self._buffers: list[ActivityBuffers] = []
        self._accesses: list[AccessReader] = []
        self.torch_blocks = TorchBlocks()
        """What torch's allocator gives out."""

    @property
    def buffers(self) -> ActivityBuffers:
        """The buffers of the process, made on first use."""
        if not self._buffers:
            self._buffers.append(ActivityBuffers())
        return self._buffers[0]

    def begin_calls(self, cupti: Cupti) -> None:
        """Follow calls from now on: what was done before was not seen. The lock is held."""
        buffers = self.buffers
        for number, name in cupti.followed_calls.items():
            buffers.set_shape(number, name)
        driver = load_libcuda()
        buffers.begin_calls(driver)
        self._accesses = [
            AccessReader(
                name_of=buffers.function_name,
                ask=ask_driver(driver),
                tell_memory=buffers.tell_memory,
            )
        ]

    def look_at_pools(self) -> None:
        """Let the reader of accesses know what pools of libraries did by now."""
        for reader in self._accesses:
            self._take_blocks(reader)

    def _read_accesses(
        self, reader: AccessReader, calls: NDArray[np.void], words: NDArray[np.uint64], cupti: Cupti, *, is_whole: bool
    ) -> dict[str, Int64Array]:
        """Return what calls touch; where some are missing, which may have freed memory or ordered work, all begins anew."""
        reader.follow(is_on=any(source.tells_steps for source in self.sharers))
        if not is_whole:
            reader.begin()
        self._take_blocks(reader)
        columns = reader.read(calls, words, cupti.shapes)
        if not is_whole:
            reader.begin()
            self.torch_blocks.end()
            reader.steps = [Step(StepKind.LOST, int(calls["end"][-1]))]
        return columns

    def _take_blocks(self, reader: AccessReader) -> None:
        if any(source.tells_steps for source in self.sharers) and (there := self.torch_blocks.begin()) is not None:
            reader.seed(there)
        reader.has_unseen_pool = self.torch_blocks.is_unseen
        changes = self.torch_blocks.take()
        for source in self.sharers:
            changes += source.take_blocks()
        reader.add_changes(sorted(changes, key=lambda change: change.wall_ns))

    def claim(self, context: int, stream: int, source: Sharer) -> None:
        """Note that a stream is of a source's session."""
        self.contexts[stream] = context
        self._claims.setdefault(int(stream_key(np.array(context), np.array(stream))), WeakSet()).add(source)

    def of_others(self, source: Sharer) -> list[int]:
        """Return the keys of the streams that other sources have, or had, and this one has not."""
        return [key for key, claimed in self._claims.copy().items() if source not in claimed]

    def are_claimed(self, context: Int64Array, stream: Int64Array) -> BoolArray:
        """Tell which streams are of a session; all shapes are (n,)."""
        return np.isin(stream_key(context, stream), [*self._claims])

    def collecting(self, *, but: Sharer) -> bool:
        """Tell whether another source collects now."""
        return any(one.is_collecting and one is not but for one in self.sharers)

    def hand_out(self, cupti: Cupti) -> None:
        """Take what CUPTI has completed, and give it to each source. The lock is held."""
        buffers = self.buffers
        taken = buffers.take()
        try:
            parts = [parse_buffer(*(data for _, data in taken), layouts=cupti.layouts)] if taken else []
        finally:
            for ticket, _ in taken:
                buffers.give_back(ticket)
        calls, words, lost_count = buffers.take_calls()
        steps: list[Step] = []
        if len(calls):
            columns = {CALLED: {name: calls[name].astype(np.int64) for name in CALL_FIELDS}}
            for reader in self._accesses:
                columns[ACCESSED] = self._read_accesses(reader, calls, words, cupti, is_whole=not lost_count)
                steps, reader.steps = reader.steps, []
            parts.append(Records(columns=columns, counts={CALLED: len(calls)}, unknown_kinds={}, skipped_bytes=0))
        dropped = ctypes.c_size_t()
        if cupti.call("cuptiActivityGetNumDroppedRecords", None, 0, ctypes.byref(dropped)):
            dropped.value = 0
        dropped.value += -(-buffers.take_spilt_bytes() // cupti.layouts.sizes[RecordKind.CONCURRENT_KERNEL])  # most are kernels
        records = concat_records(parts)
        if records.skipped_bytes:
            dropped.value += 1
            _log.warning(
                "%s wrote %d bytes that cannot be read: %s", cupti.title, records.skipped_bytes, dict(records.unknown_kinds)
            )
        for source in self.sharers:
            source.take_in(records, dropped.value + lost_count, steps)


def stream_key(context: NDArray[Any], stream: NDArray[Any]) -> Int64Array:
    """Return streams of contexts as one number each."""
    key: Int64Array = context.astype(np.int64) << 32 | stream.astype(np.int64)
    return key


SHARING = Sharing()
"""Of this process."""
