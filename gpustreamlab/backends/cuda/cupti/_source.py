"""Every kernel, copy and call of one device, told by CUPTI."""

from __future__ import annotations

import ctypes
import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np

from gpustreamlab._util.defences import HomeProcess, process_lock
from gpustreamlab.backends._activity import Activities, AnnotationBatch, CallBatch, Step, StepKind, StreamFacts, WorkBatch
from gpustreamlab.backends._protocol import BackendStream
from gpustreamlab.backends.cuda._kernels import are_fences
from gpustreamlab.backends.cuda._nvtx import DOMAIN_NAME
from gpustreamlab.backends.cuda.cupti._accesses import access_batch
from gpustreamlab.backends.cuda.cupti._blocks import BlockChange
from gpustreamlab.backends.cuda.cupti._calls import CallReader, CallTimes, DependencyReader, MarkerReader, OwnCalls, told_until
from gpustreamlab.backends.cuda.cupti._clients import (
    LOST_TO_TORCH_NS,
    SHARING,
    LossWatch,
    active_client,
    call_before_torch_profiles,
    is_torch_profiling,
    stream_key,
)
from gpustreamlab.backends.cuda.cupti._clock import CuptiClock, SentAnchor, WallClock
from gpustreamlab.backends.cuda.cupti._layouts import CALLED, RecordKind
from gpustreamlab.backends.cuda.cupti._library import Cupti
from gpustreamlab.backends.cuda.cupti._memory import MemoryReader, PoolWatch
from gpustreamlab.backends.cuda.cupti._records import CallNumbers, Columns, Records, concat_records
from gpustreamlab.backends.cuda.cupti._work import (
    NodeNumbers,
    StreamBook,
    StringReader,
    Texts,
    join_staged,
    without_untimed,
    work_batch,
)
from gpustreamlab.errors import CaptureUnavailableError, GPUStreamLabError
from gpustreamlab.typing import BoolArray, Int64Array

_log = logging.getLogger(__name__)


NEEDED_KINDS = (RecordKind.CONCURRENT_KERNEL, RecordKind.MEMCPY, RecordKind.MEMSET)
"""Without these there is nothing to show."""
UNSHARED_KINDS = (RecordKind.MARKER, RecordKind.MEMORY2, RecordKind.CONTEXT, RecordKind.GREEN_CONTEXT, RecordKind.STREAM)
"""What torch.profiler does not ask for: what of it is on is ours, also while it runs."""
WISHED_KINDS = (*UNSHARED_KINDS, RecordKind.MEMCPY2, RecordKind.SYNCHRONIZATION, RecordKind.CUDA_EVENT, RecordKind.OVERHEAD)
"""What a version lacks of these is left out. Not CUPTI_ACTIVITY_KIND_KERNEL: that makes kernels run one after the other."""
ALL_KINDS = (*NEEDED_KINDS, *WISHED_KINDS)

ANCHOR_EVERY_NS = 1_000_000_000
"""Host time between two anchors of the clock."""
FIRST_ANCHORS = 8
"""Anchors that are sent at once or with each drain, until the drift is known."""
ANCHOR_WAIT_NS = 300_000
"""How long a drain waits at most for an anchor that it has sent."""
DRAIN_EVERY_NS = 2_000_000_000
"""How long records may lie unread where nobody asks for them."""
HELD_RECORDS = 1_000_000
"""Records that wait for the first anchor at most: 200 MB. Further ones are dropped and counted."""

HELD_STEPS = 262_144
"""Steps that wait for a drain at most, about 100 MB: then what hazards are found from is forgotten, and counted as dropped."""

NEVER_NS = 2**63 - 1
"""When a capture that goes on was stopped."""

_FLUSH_FORCED = 1

_Batch = TypeVar("_Batch", WorkBatch, CallBatch, AnnotationBatch)


class CuptiSource:
    """An `ActivitySource` of one CUDA device."""

    tells_steps = False
    """Whether `Activities.steps` are told: somebody looks for hazards."""
    is_attached = False
    """Whether CUPTI is in the calls of this process because of this source."""

    def __init__(
        self,
        cupti: Cupti,
        *,
        ordinal: int,
        sm_count: int,
        clock: CuptiClock,
        clock_handle: int,
        host_time_ns: Callable[[], int],
        watch: PoolWatch,
        mark_range: Callable[[], object],
        keep_time: Callable[[], object],
    ) -> None:
        self._cupti = cupti
        self._ordinal = ordinal
        self._clock = clock
        self._host_time_ns = host_time_ns
        self._streams = StreamBook(cupti, ordinal=ordinal, sm_count=sm_count)
        self._nodes = NodeNumbers()
        self._clock_key = self._streams.key_of(clock_handle)
        self._watch = watch
        self._mark_range = mark_range
        self._keep_session_time = keep_time
        self._own_calls = OwnCalls(host_time_ns)
        self._memory = MemoryReader(watch, ordinal=ordinal)
        self._dependencies = DependencyReader(SHARING.contexts)
        self._markers = MarkerReader(DOMAIN_NAME)
        self._wall = WallClock(time.time_ns, host_time_ns)
        self._calls = CallReader(cupti, self._are_own, self._wall)
        self._call_times = CallTimes()
        self._numbers = CallNumbers()
        self._loss = LossWatch(cupti, host_time_ns)
        self._lock = process_lock()
        self.is_collecting = False
        """Whether it was started and not stopped."""
        self.lost_reason = ""
        """Why nothing comes any more although nobody stopped it; empty if not so."""
        self.dropped_count = 0
        """Records that are missing so far: CUPTI found no room for them, or they made no sense."""
        self._next_anchor_ns = self._drained_ns = 0
        # What was handed out and not looked at yet; what came before the first anchor did.
        self._inbox: list[Records] = []
        self._held: list[Records] = []
        self._steps: list[Step] = []
        # The numbers of the calls at the start and at the stop, where others collected before or after: what was enqueued
        # outside of them is theirs alone. Anchors tell them: which of the two each is, by its tag.
        self._calls_between = [0, NEVER_NS]
        self._limits: dict[int, int] = {}
        self._is_drained = True  # whether everything of the last capture was told
        # Whether kinds were left on for another client; whether one has CUPTI now, and nothing of ours is on or in its hands.
        self._is_left_on = self._is_handed_over = False
        self._stopped_host_ns = NEVER_NS
        self.times_ranges = False
        """Whether ranges can be timed by the work inside them."""
        self._home = HomeProcess()  # in a forked child CUDA does not work, and a lock may be held for ever

    @property
    def description(self) -> str:
        """Name and version of CUPTI, and that calls are recorded the slow way where they are."""
        is_slow = self.is_collecting and not self.follows_calls
        return f"{self._cupti.title}{'; calls by records, as another profiler has the callbacks' if is_slow else ''}"

    @property
    def follows_calls(self) -> bool:
        """Whether the driver's calls tell what work touches."""
        return self._cupti.follows_calls

    @property
    def complete_until_host_ns(self) -> int:
        """The host's time up to which nothing is missing: now, or before another client took over."""
        return self._loss.complete_until_host_ns if self.lost_reason else self._host_time_ns()

    @property
    def error_ns(self) -> int:
        """Bound on the error of a start or end of device work on the backend's clock."""
        return self._clock.error_ns

    @property
    def tail_ns(self) -> int | None:
        """How much later a kernel ends than its last instruction (median of the anchors); None where not measured yet."""
        return self._clock.tail_ns

    def start(self) -> None:
        """Begin to collect. Idempotent."""
        with self._lock, SHARING.lock:
            if self.is_collecting:
                return
            client = active_client(self._cupti)
            if client:
                raise CaptureUnavailableError(f"Kernels cannot be captured now: {client}. Ranges are still timed.")
            self._begin()

    def stop(self) -> None:
        """Stop collecting; what was collected can still be drained. Idempotent, never raises."""
        if self._home.is_another:
            return
        with self._lock:
            if not self.is_collecting:
                return
            self.is_collecting = False
            self._stopped_host_ns = self._host_time_ns()
            self._watch.stop()
            if not self.lost_reason:
                self._send_anchor(is_waited_for=True, limit=1)
            if not self._is_handed_over:
                self._switch_off()

    def hand_over(self, who: str) -> None:
        """Let another client have CUPTI, with nothing of ours in it any more; what had ended by then can still be drained."""
        if self._home.is_another:
            return
        with self._lock:
            if self.lost_reason or self._is_handed_over:
                return
            if self.is_collecting:
                self._send_anchor(is_waited_for=True)
                self.lost_reason = _taken_over_by(who)
            self._is_handed_over = True
            self._switch_all_off()
            records = self._fetch(is_forced=True)
            self._loss.note_anchors(self._clock.last_seen_host_ns)
            if not self._is_drained:
                self._held.append(records)

    def keep_up(self) -> bool:
        """Keep the clock true, and tell whether it is time to drain: reading records in the middle of launches slows those."""
        if self._home.is_another:
            return False
        with self._lock:
            self._switch_off_the_rest()
            if not self.is_collecting or self.lost_reason:
                return True
            call_before_torch_profiles(_hand_over)  # torch may have been imported meanwhile
            with suppress(GPUStreamLabError):  # a device that has failed tells so elsewhere
                self._keep_session_time()  # it records events, which are no calls that are shown
            self._wall.look()
            waited_ns = self._host_time_ns() - self._drained_ns
            is_due = waited_ns >= (LOST_TO_TORCH_NS if self._loss.look_for_torch() else DRAIN_EVERY_NS)
            is_due = is_due or SHARING.buffers.are_full
            if not is_due:
                self._keep_anchored()
            return is_due

    def drain(self, *, is_last: bool = False) -> Activities:
        """Return what is complete by now; with `is_last` also what CUPTI holds back as something near it still runs."""
        if self._home.is_another:
            return Activities()
        with self._lock:
            self._switch_off_the_rest()
            if self._is_handed_over:
                self._is_drained = is_last and not self.is_collecting
                if self._is_drained:
                    self._leave()
                return self._read(concat_records([]), is_last=is_last)
            if self._is_drained or self.lost_reason:
                return Activities()  # what comes now is another's
            if self.is_collecting and self._is_young:
                self._keep_anchored()  # and wait for it
            self._drained_ns = self._host_time_ns()
            self._await(self._clock.newest_sent)  # one that still runs would hold back the buffer that it is in
            self._wall.look()
            records = self._fetch(is_forced=is_last)
            if self.is_collecting:
                records = self._look_for_loss(records)
                # Not before the flush: an anchor that has not run yet would hold back the buffer that it is in.
                if not (self._is_young or self.lost_reason):
                    self._keep_anchored()
            self._is_drained = is_last and not self.is_collecting
            if self._is_drained:
                self._leave()
            return self._read(records, is_last=is_last)

    def own_calls(self) -> AbstractContextManager[None]:
        """Leave out what this thread calls inside, for clocks and calibrations."""
        return self._own_calls.making()

    def key_of(self, stream: BackendStream) -> tuple[int, int]:
        """Return the context and the stream as CUPTI numbers them."""
        context, number = self._streams.key_of(stream.handle)
        SHARING.claim(context, number, self)
        self._streams.note_own(context, stream.sm_count)
        return context, number

    def are_foreign(self, context: Int64Array, stream: Int64Array) -> BoolArray:
        """Tell which streams are of other sessions, also once those are closed, and not of this one; all shapes are (n,)."""
        return np.isin(stream_key(context, stream), [*self._streams.elsewhere, *SHARING.of_others(self)])

    def describe_stream(self, context: int, stream: int) -> StreamFacts:
        """Tell of a stream that no session made."""
        facts = self._streams.describe(context, stream)
        return facts._replace(context=0) if context == self._clock_key[0] else facts  # the clock's is the primary context

    def close(self) -> None:
        """Stop, and forget what has not been drained. Idempotent."""
        self.stop()
        if not self._home.is_another:
            with self._lock:
                self._switch_off_the_rest()
                self._leave()
        self._clock.forget_sent()
        self._is_drained = True

    def _leave(self) -> None:
        """Take no records any more, and take CUPTI out of the calls of the process where nobody else does."""
        with SHARING.lock:  # nobody joins meanwhile
            if self not in SHARING.sharers:
                return
            if any(other is not self for other in SHARING.sharers):
                self.is_attached = False
            elif not self._is_handed_over:
                self._detach()
            SHARING.sharers.remove(self)
            self._inbox = []
            if not any(other.tells_steps for other in SHARING.sharers):
                SHARING.torch_blocks.end()

    def _begin(self) -> None:
        self.lost_reason, self._is_handed_over = "", False
        call_before_torch_profiles(_hand_over)
        if not SHARING.collecting(but=self):
            SHARING.buffers.register(self._cupti)
        SHARING.hand_out(self._cupti)  # what is there came for others
        if not SHARING.collecting(but=self):
            SHARING.begin_calls(self._cupti)
        if self not in SHARING.sharers:
            self._watch.take()
            self._numbers.begin()
            self._calls_between = [0, NEVER_NS]
            SHARING.sharers.append(self)
        SHARING.look_at_pools()
        if not self._cupti.tells_wall_time():
            self._cupti.use_wall_clock()
        try:
            self._cupti.enable(NEEDED_KINDS)
            for kind in WISHED_KINDS:
                self._streams.enable(kind)
            # Launches are known by their calls. CUPTI's times of queueing would tell of them, too, but where they are on, the
            # launch of a CUDA graph writes beyond CUPTI's memory (13.0, 13.1): docs/explanations/decisions/0028.
            self._cupti.enable_calls(SHARING.buffers.note_call)
            self._wall.look()
            self.times_ranges = self._hears_ranges()
        except BaseException:
            SHARING.sharers.remove(self)
            if not SHARING.collecting(but=self):
                self._switch_all_off()
            raise
        self.is_attached, self._stopped_host_ns = True, NEVER_NS
        self._clock.forget_sent()
        self._loss.begin()
        self.is_collecting, self._is_drained, self._is_left_on = True, False, False
        self._watch.start(self._streams.key_of)
        self._limits, self._calls_between[1] = {}, NEVER_NS
        self._send_anchor(is_waited_for=True, limit=0 if SHARING.collecting(but=self) else None)

    def _switch_all_off(self) -> None:
        self._cupti.disable(ALL_KINDS)
        self._cupti.disable_calls()

    def _switch_off(self) -> None:
        """Let nothing be collected any more, but what another session or client collects now."""
        if SHARING.collecting(but=self):
            self._is_left_on = False
        elif self._is_another_collecting():
            self._cupti.leave_calls_to_others()
            self._cupti.disable(UNSHARED_KINDS)
            self._is_left_on = True
        else:
            is_over = bool(self.lost_reason) or self._is_left_on
            if not is_over:
                self._cupti.watch_for_graphs()  # until `_detach`, which must miss no launch of one
            self._cupti.disable(ALL_KINDS)
            if is_over:
                self._cupti.disable_calls()
            self._is_left_on = False

    def _hears_ranges(self) -> bool:
        """Tell whether CUPTI is told of our NVTX ranges; asked before anything runs that would hold its buffer back.

        It is not where NVTX was used in this process before the first session, or where somebody else listens to it.
        """
        self._mark_range()
        dropped_count = self.dropped_count
        records = self._fetch(is_forced=False)
        # What lies between two captures, maybe by another profiler's clock, is missed by nobody.
        self.dropped_count = dropped_count
        if records.record_count:
            self._held.append(without_untimed(records))
        markers = records.columns.get(RecordKind.MARKER)
        read = StringReader().read
        return markers is not None and any(read(at) == DOMAIN_NAME for at in set(markers["domain"].tolist()))

    def _detach(self) -> None:
        """Take CUPTI out of all calls of the process, which cost 1.5 us each else (H200), where that harms nobody.

        Who subscribed before (torch.profiler, for as long as the process lives) would lose its place. A CUDA graph that was
        launched while CUPTI was attached keeps what detaching frees: launched again, it fails (CUPTI 13.0, where it had been
        launched in a recording and once more between that and detaching; no launch at all is the rule that is sure).
        """
        if self._is_another_collecting():
            self._is_left_on = True
            return
        self._fetch(is_forced=False)  # the last look for graphs
        self._cupti.disable_calls()
        is_harmless = not (self._is_left_on or self.lost_reason or self._cupti.has_seen_graphs or active_client(self._cupti))
        is_harmless = is_harmless and not self._cupti.has_profiled
        self.is_attached = not (is_harmless and self._cupti.detach())

    def _is_another_collecting(self) -> bool:
        return bool(active_client(self._cupti)) if self.lost_reason else is_torch_profiling()

    def _switch_off_the_rest(self) -> None:
        """Turn off what was left on for another client, once that has gone: it knows only of what it turned on itself."""
        if self._is_left_on and not self.is_collecting and self in SHARING.sharers and not self._is_another_collecting():
            self._switch_off()

    # Anchors

    @property
    def _is_young(self) -> bool:
        """Whether the drift is not known yet."""
        return self._clock.anchor_count < FIRST_ANCHORS

    def _keep_anchored(self) -> None:
        if self._is_young or self._host_time_ns() >= self._next_anchor_ns:
            self._send_anchor(is_waited_for=self._is_young)

    def _send_anchor(self, *, is_waited_for: bool, limit: int | None = None) -> None:
        try:
            with self._own_calls.making():
                sent = self._clock.send()
        except Exception as error:  # noqa: BLE001 - a device that has failed tells so elsewhere
            _log.debug("No anchor could be sent: %s", error)
            return
        if limit is not None:
            self._limits[sent.tag] = limit
        self._next_anchor_ns = self._host_time_ns() + ANCHOR_EVERY_NS
        if is_waited_for:
            self._await(sent)

    def _await(self, sent: SentAnchor | None) -> None:
        """Wait for an anchor, but not where the card is full of other work."""
        end_ns = self._host_time_ns() + ANCHOR_WAIT_NS
        while sent is not None and not sent.timers[1] and self._host_time_ns() < end_ns:
            time.sleep(0)

    # Records

    def _fetch(self, *, is_forced: bool) -> Records:
        """Ask for what is complete, or for everything, and take it."""
        self._cupti.call("cuptiActivityFlushAll", _FLUSH_FORCED if is_forced else 0)
        with SHARING.lock:
            SHARING.hand_out(self._cupti)
            self._loss.note_buffers(sum(part.counts.keys() != {CALLED} for part in self._inbox))
            records, self._inbox = concat_records(self._inbox), []
        records = join_staged(self._numbers.continue_in(records), SHARING.are_claimed)
        self._note_anchors(records)
        if (fills := records.columns.get(RecordKind.MEMSET)) is not None:
            self._own_calls.note(fills["correlationId"][are_fences(fills)].astype(np.int64))
        self._cupti.look_for_graphs(records.columns)
        return records

    def _read(self, records: Records, *, is_last: bool) -> Activities:
        if not self._clock.anchor_count:
            self._hold(records, is_last=is_last)
            return Activities(**self._take_steps())
        records, self._held = concat_records([*self._held, records]), []
        self._streams.note(records)
        texts = Texts()
        read = StringReader().read
        work = work_batch(records, texts, read, self._is_wanted, self._nodes)
        annotations = self._markers.read(records, texts, read, self._wall)
        calls = self._calls.read(records, texts, first=self._calls_between[0], until_host_ns=self._stopped_host_ns)
        memory = self._memory.read(records, texts, place=self._clock.place, wall=self._wall)
        self._streams.note_names(work, tuple(texts.details))
        return Activities(
            work=self._placed(work),
            calls=self._placed(calls),
            annotations=self._placed(annotations),
            dependencies=self._dependencies.read(records),
            memory=memory,
            accesses=access_batch(records),
            **self._take_steps(),
            told_until=told_until(records, self._wall, self._call_times),
            names=tuple(texts.names),
            details=tuple(texts.details),
        )

    def take_in(self, records: Records, dropped_count: int, steps: Sequence[Step] = ()) -> None:
        """Take what was handed out, for the next drain, and how many records are missing."""
        self.dropped_count += dropped_count
        if self.tells_steps:
            if len(self._steps) + len(steps) > HELD_STEPS:  # nobody drains it
                self.dropped_count += len(self._steps)
                self._steps = [Step(StepKind.LOST, self._steps[-1].wall_ns if self._steps else 0)]
                steps = [Step(StepKind.LOST)] if len(steps) > HELD_STEPS else steps
            self._steps += steps
        if sum(part.record_count for part in self._inbox) > HELD_RECORDS:  # nobody drains it
            self.dropped_count += records.record_count
        elif records.record_count:
            self._inbox.append(records)

    def take_blocks(self) -> list[BlockChange]:
        """Return what CuPy's pool gave out and took back since the last time."""
        return [BlockChange(self._wall.to_wall_ns(at_ns), *facts) for at_ns, *facts in self._watch.take_given()]

    def _take_steps(self) -> dict[str, Any]:
        """Return what changes the order of work, but what the session only looks at."""
        steps, self._steps = self._steps, []
        if not steps:
            return {}
        host_ns = self._wall.to_host_ns(np.array([step.wall_ns for step in steps], np.int64))
        thread = np.array([step.thread for step in steps], np.int64)
        is_seen = np.array([step.kind in _SEEN for step in steps], bool)
        is_own = self._are_own(thread=thread, start_host_ns=host_ns, correlation=np.zeros_like(thread)) & is_seen
        kept = tuple(step for step, is_left_out in zip(steps, is_own.tolist(), strict=True) if not is_left_out)
        return {"steps": kept, "step_host_ns": host_ns[~is_own]}

    def _hold(self, records: Records, *, is_last: bool) -> None:
        """Keep records until an anchor tells when they were, as far as there is room."""
        held_count = sum(part.record_count for part in self._held)
        if is_last or self.lost_reason:
            self.dropped_count += held_count + records.record_count
            self._held = []
        elif held_count + records.record_count > HELD_RECORDS:
            self.dropped_count += records.record_count
        elif records.record_count:
            self._held.append(records)

    def _placed(self, batch: _Batch) -> _Batch:
        start_ns = self._clock.place(batch.start_ns)
        return replace(batch, start_ns=start_ns, end_ns=np.maximum(start_ns, self._clock.place(batch.end_ns)))

    def find_graph(self, handle: int, node_count: int) -> int:
        """Return the id of an executable graph in the records, and note how many nodes it has; 0 where CUPTI does not tell."""
        self._cupti.has_seen_graphs = True  # its launches may still be in a buffer when the last look is taken, see `_detach`
        number = ctypes.c_uint32()
        if self._cupti.call("cuptiGetGraphExecId", ctypes.c_void_p(handle), ctypes.byref(number)):
            return 0
        self._nodes.expect(number.value, node_count)
        return number.value

    def _is_wanted(self, columns: Columns) -> BoolArray:
        """Tell which rows are of this device, complete, and not the clock's own."""
        context, stream = self._clock_key
        is_clock = (columns["contextId"] == context) & (columns["streamId"] == stream)
        is_complete = (columns["start"] > 0) & (columns["end"] >= columns["start"])
        is_here = columns["deviceId"] == self._ordinal
        if "srcDeviceId" in columns:  # a copy between devices runs on one of them, and may be of a range of ours on the other
            is_between = ~is_here & ((columns["srcDeviceId"] == self._ordinal) | (columns["dstDeviceId"] == self._ordinal))
            rows = np.flatnonzero(is_between)
            self._streams.elsewhere |= {*stream_key(columns["contextId"][rows], columns["streamId"][rows]).tolist()}
            is_here |= is_between
        is_shown = ~is_clock & is_here
        number, (first, last) = columns["correlationId"].astype(np.int64), self._calls_between
        is_shown &= (number >= first) & (number <= last)
        if "value" in columns:
            is_shown &= ~are_fences(columns)
        self.dropped_count += int((~is_complete & is_shown).sum())
        wanted: BoolArray = is_complete & is_shown
        return wanted

    def _note_anchors(self, records: Records) -> None:
        columns = records.columns.get(RecordKind.CONCURRENT_KERNEL)
        if columns is None:
            return
        context, stream = self._clock_key
        rows = np.flatnonzero((columns["contextId"] == context) & (columns["streamId"] == stream))
        numbers = columns["correlationId"][rows].astype(np.int64)
        self._own_calls.note(numbers)
        for tag, number in zip(columns["dynamicSharedMemory"][rows].tolist(), numbers.tolist(), strict=True):
            if (limit := self._limits.pop(tag, None)) is not None:
                self._calls_between[limit] = number
        complete = rows[columns["start"][rows] > 0]
        self._clock.note(*(columns[name][complete].astype(np.int64) for name in ("start", "end", "dynamicSharedMemory")))

    def _are_own(self, **calls: Int64Array) -> BoolArray:
        """Tell which calls are for a clock or a calibration of any session; see `OwnCalls.are_own`."""
        found = [one._own_calls.are_own(**calls) for one in {self, *SHARING.sharers}]  # noqa: SLF001 - of this class
        return cast("BoolArray", np.logical_or.reduce(found))

    # What is missing

    def _look_for_loss(self, records: Records) -> Records:
        """See whether records go elsewhere; return those that were asked for once more behind the given ones."""
        self._loss.note_anchors(self._clock.last_seen_host_ns)
        who = self._loss.find(self._clock.oldest_waiting_host_ns)
        if not who and self._loss.is_overdue(self._clock.oldest_waiting_host_ns):
            records = concat_records([records, self._fetch(is_forced=True)])
            self._loss.note_anchors(self._clock.last_seen_host_ns)
            if self._loss.is_overdue(self._clock.oldest_waiting_host_ns):
                who = "torch.profiler" if "torch" in sys.modules else "another profiler"
        if who:
            self.lost_reason = _taken_over_by(who)
        return records


_SEEN = {StepKind.SEEN_EVENT, StepKind.SEEN_STREAM, StepKind.SEEN_ALL}


def _taken_over_by(who: str) -> str:
    return f"{who} took CUPTI over at {time.strftime('%H:%M:%S')}; kernels are not captured any more"


def _hand_over() -> None:
    """Give CUPTI to torch.profiler, which is about to start."""
    for source in tuple(SHARING.sharers):
        source.hand_over("torch.profiler")
