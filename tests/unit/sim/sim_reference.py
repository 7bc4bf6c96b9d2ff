"""The scheduler's rules once more, one block and one wave at a time: slow, plain, and independent of the real one."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass
class Job:
    """One command of a stream."""

    kind: str  # kernel, copy, record, wait
    stream: int
    submit_ns: int
    blocks: int = 0
    slots: int = 0
    block_ns: int = 0
    engine: int = 0
    event: int = 0
    start_ns: int = -1
    end_ns: int = -1
    left: int = 0
    ready_ns: int = -1
    target: Job | None = None


@dataclass
class Reference:
    """Simulates jobs on groups of slots."""

    group_slots: list[int]
    levels: list[int]
    masks: list[set[int]]
    now_ns: int = 0
    waiting: list[Job] = field(default_factory=list)
    running: list[tuple[int, Job, int, int]] = field(default_factory=list)  # end, job, group, blocks
    engines: tuple[deque[Job], deque[Job]] = field(default_factory=lambda: (deque(), deque()))
    peak_slots: dict[int, int] = field(default_factory=dict)

    def run(self, jobs: list[Job]) -> None:
        queues = [deque(job for job in jobs if job.stream == number) for number in range(len(self.levels))]
        current: list[Job | None] = [None] * len(queues)
        free = list(self.group_slots)
        while any(queues) or any(current):
            self._end_blocks(free)
            self._end_copies()
            self._start_heads(queues, current)
            self._give_out(free)
            self._start_engines()
            later = [end for end, *_ in self.running if end > self.now_ns]
            later += [engine[0].end_ns for engine in self.engines if engine and engine[0].end_ns > self.now_ns]
            later += [
                q[0].submit_ns for q, c in zip(queues, current, strict=True) if q and not c and q[0].submit_ns > self.now_ns
            ]
            if not later:
                break
            self.now_ns = min(later)

    def _end_blocks(self, free: list[int]) -> None:
        for end, job, group, blocks in self.running:
            if end == self.now_ns:
                free[group] += blocks * job.slots
                job.left -= blocks
                if not job.left:
                    job.end_ns = self.now_ns
        self.running = [entry for entry in self.running if entry[0] > self.now_ns]

    def _end_copies(self) -> None:
        for engine in self.engines:
            if engine and engine[0].end_ns == self.now_ns:
                engine.popleft()

    def _start_heads(self, queues: list[deque[Job]], current: list[Job | None]) -> None:
        changed = True
        arrived = []
        while changed:
            changed = False
            for number, queue in enumerate(queues):
                job = current[number]
                if job is not None and 0 <= job.end_ns <= self.now_ns:
                    current[number], changed = None, True
                if current[number] is None and queue and queue[0].submit_ns <= self.now_ns:
                    job = current[number] = queue.popleft()
                    job.ready_ns, job.left, changed = self.now_ns, job.blocks, True
                    if job.kind in {"kernel", "copy"}:
                        arrived.append(job)
                job = current[number]
                if job is not None and job.end_ns < 0 and self._is_point_reached(job):
                    job.end_ns, changed = self.now_ns, True
        for job in sorted(arrived, key=lambda job: job.submit_ns):
            if job.kind == "copy":
                self.engines[job.engine].append(job)
            else:
                self.waiting.append(job)

    @staticmethod
    def _is_point_reached(job: Job) -> bool:
        if job.kind == "record":
            return True
        return job.kind == "wait" and (job.target is None or job.target.end_ns >= 0)

    def _start_engines(self) -> None:
        for engine in self.engines:
            if engine and engine[0].start_ns < 0:
                engine[0].start_ns = self.now_ns
                engine[0].end_ns = self.now_ns + engine[0].block_ns

    def _give_out(self, free: list[int]) -> None:
        claimed: set[int] = set()
        self.waiting.sort(key=lambda job: (self.levels[job.stream], job.ready_ns, job.submit_ns))
        for job in self.waiting:
            mask = self.masks[job.stream]
            unstarted = job.left - sum(blocks for _, other, _, blocks in self.running if other is job)
            rooms = [(group, free[group] // job.slots) for group in sorted(mask - claimed) if free[group] >= job.slots]
            total = sum(room for _, room in rooms)
            count = left = min(total, unstarted)
            for group, room in rooms:
                share = min(left, -(-count * room // total)) if count else 0
                if share:
                    left -= share
                    free[group] -= share * job.slots
                    self.running.append((self.now_ns + job.block_ns, job, group, share))
                    job.start_ns = self.now_ns if job.start_ns < 0 else job.start_ns
            if unstarted - count:
                claimed |= mask
        done = {id(job) for job in self.waiting if job.left == sum(b for _, other, _, b in self.running if other is job)}
        self.waiting = [job for job in self.waiting if id(job) not in done]
