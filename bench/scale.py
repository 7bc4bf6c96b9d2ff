"""What many engines cost the one client that shows them: CPU, memory, delay, clocks and the picture.

Engines are simulated in a thread: each has a recorder, and its answers are encoded as engines encode them (`BatchEncoder`);
the client's side is the client's own code (`Mirror`, `Clocks`, `merge`, `Timeline`). What a network and its library cost is not
in it: messages are handed over in memory. Engines and client share this machine's cores, so the client's
CPU time is that of its thread alone.
"""

from __future__ import annotations

import os
import queue
import statistics
import tempfile
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np

from bench._common import report
from bench.spool import _recorder, _rows
from gpustreamlab import Trace
from gpustreamlab.cluster._clocks import Clocks
from gpustreamlab.cluster._mirror import Mirror
from gpustreamlab.cluster._worker import look
from gpustreamlab.model import merge
from gpustreamlab.recorder import START
from gpustreamlab.sinks._spool_format import BatchEncoder

ENGINES = 64
EVERY_S = 0.2
"""How often an engine answers."""
RUN_S = 6.0
PINGS = 20


class Engine:
    """A recorder, and what has been told of it."""

    def __init__(self) -> None:
        self.recorder, self.encoder, self.read_to = _recorder(), BatchEncoder(), START
        self.place = 0

    def answer(self, span_count: int) -> bytes:
        """Record so many spans, and return them encoded."""
        self.recorder.log.append(_rows(span_count, self.place))
        self.place += 1
        chunk = self.recorder.changes(self.read_to, most=32_768)
        self.read_to = chunk.place
        return self.encoder.encode(chunk)


def mirror(number: int) -> Mirror:
    facts = look()._replace(host=f"host {number // 8}")
    return Mirror(f"e{number}", facts, process=number, device=number, ring_size=1_000_000)


def main(argv: list[str] | None = None) -> None:
    rows = [_answer(count) for count in (1, 20, 200, 2_000)]
    rows += [_follow(rate) for rate in (100, 1_000)]
    rows += [_memory(), *map(_clocks, (ENGINES, 1_000))]
    rows += [_whole(count, spans) for count, spans in ((ENGINES, 2_000), (1_000, 100))]
    report(f"{ENGINES} simulated engines and one client, messages in memory", rows, argv)


def _answer(span_count: int) -> dict[str, Any]:
    """Measure one answer of an engine and what taking it costs; the first, which has the tables, does not count."""
    engine, own = Engine(), mirror(0)
    own.take(engine.answer(span_count), 1)
    made_s, took_s, sizes = [], [], []
    for number in range(2, 42):
        began = time.thread_time()
        data = engine.answer(span_count)
        made_s.append(time.thread_time() - began)
        began = time.thread_time()
        own.take(data, number)
        took_s.append(time.thread_time() - began)
        sizes.append(len(data))
    return {
        "what": f"an answer of {span_count:,} spans",
        "bytes a span": round(statistics.median(sizes) / span_count, 1),
        "engine us an answer": round(statistics.median(made_s) * 1e6, 1),
        "client us an answer": round(statistics.median(took_s) * 1e6, 1),
        "client us a span": round(statistics.median(took_s) / span_count * 1e6, 2),
    }


def _follow(rate: int) -> dict[str, Any]:
    """Let all engines answer in turn, and take the answers in another thread."""
    engines, mirrors = [Engine() for _ in range(ENGINES)], [mirror(number) for number in range(ENGINES)]
    waiting: queue.SimpleQueue[tuple[int, bytes, float] | None] = queue.SimpleQueue()
    per_answer = max(1, round(rate * EVERY_S))
    late_s: list[float] = []

    def work() -> None:
        """Answer when due; an engine that is late says so."""
        begin_s = time.monotonic()
        for turn in range(round(RUN_S / EVERY_S)):
            for number, engine in enumerate(engines):
                due_s = begin_s + (turn + number / ENGINES) * EVERY_S
                time.sleep(max(0.0, due_s - time.monotonic()))
                late_s.append(time.monotonic() - due_s)
                waiting.put((number, engine.answer(per_answer), time.monotonic()))
        waiting.put(None)

    delays_s, counts = [], [0] * ENGINES
    thread = threading.Thread(target=work)
    began_cpu_s = time.thread_time()
    thread.start()
    while (told := waiting.get()) is not None:
        number, data, sent_s = told
        counts[number] += 1
        mirrors[number].take(data, counts[number])
        delays_s.append(time.monotonic() - sent_s)
    cpu_s = time.thread_time() - began_cpu_s
    thread.join()
    arrived = sum(one.span_count for one in mirrors)
    made = sum(engine.place for engine in engines) * per_answer
    assert arrived == made, f"{arrived:,} of {made:,} spans have arrived"
    return {
        "what": f"{ENGINES} engines, {rate:,} spans/s each, for {RUN_S:.0f} s",
        "spans": arrived,
        "bytes a span": round(sum(one.received_bytes for one in mirrors) / arrived, 1),
        "client us a span": round(cpu_s / arrived * 1e6, 2),
        "client CPU %": round(100 * cpu_s / RUN_S, 1),
        "load of the machine": round(os.getloadavg()[0], 1),
        "delay ms, median": round(statistics.median(delays_s) * 1e3, 2),
        "delay ms, 99%": round(float(np.percentile(delays_s, 99)) * 1e3, 2),
        "engines late ms, 99%": round(float(np.percentile(late_s, 99)) * 1e3, 1),
    }


def _memory() -> dict[str, Any]:
    """Measure what a mirror keeps: empty but for its tables, and for each span."""
    engine = Engine()
    first, more = engine.answer(1), [engine.answer(2_000) for _ in range(50)]
    tracemalloc.start()
    own = mirror(0)
    own.take(first, 1)
    empty = tracemalloc.get_traced_memory()[0]
    for number, data in enumerate(more, 2):
        own.take(data, number)
    full = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return {
        "what": "memory of a mirror",
        "spans": own.span_count,
        "KB empty": round(empty / 1e3, 1),
        "memory bytes a span": round((full - empty) / (own.span_count - 1), 1),
    }


def _clocks(engine_count: int) -> dict[str, Any]:
    """Measure a burst of each engine, in a run that has gone on for 600 s, and reading what is known of each clock."""
    clocks, rng = Clocks(), np.random.default_rng(0)
    took_s, read_s = [], []
    for second in range(605):
        at_ns = second * 1_000_000_000
        there, back = (
            (15_000 + 5_000 * rng.pareto(1.5, PINGS)).astype(int),
            (15_000 + 5_000 * rng.pareto(1.5, PINGS)).astype(int),
        )
        pings = [(at_ns, at_ns + int(one), at_ns + int(one) + int(other)) for one, other in zip(there, back, strict=True)]
        began = time.thread_time()
        for engine in range(engine_count if second >= 600 else 1):
            clocks.add(engine, pings)
        took_s.append(time.thread_time() - began)
    for _ in range(5):
        clocks.add(0, [(605_000_000_000, 605_000_000_000, 605_000_030_000)])
        began = time.thread_time()
        bound_ns = clocks[0].error_between(0, 604_000_000_000)
        read_s.append(time.thread_time() - began)
    return {
        "what": f"clocks of {engine_count:,} engines, {PINGS} pings each second",
        "burst us an engine": round(statistics.median(took_s[600:]) / engine_count * 1e6, 1),
        "client CPU %": round(100 * statistics.median(took_s[600:]), 2),
        "read us an engine": round(statistics.median(read_s) * 1e6, 1),
        "bound us": round(bound_ns / 1e3, 1),
    }


def _whole(engine_count: int, span_count: int) -> dict[str, Any]:
    """Measure the trace of all engines, and its picture."""
    traces = []
    for number in range(engine_count):
        own = mirror(number)
        own.take(Engine().answer(span_count), 1)
        traces.append(own.trace())
    began = time.perf_counter()
    whole: Trace = merge(traces, ahead_ns=[0] * engine_count, error_ns=0)
    merged_s = time.perf_counter() - began
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "whole.html"
        whole.timeline().save(page)
        drawn_s, size = time.perf_counter() - began, page.stat().st_size
    began = time.perf_counter()
    found = whole.stragglers()
    return {
        "what": f"one trace of {engine_count:,} engines, {span_count:,} spans each",
        "spans": len(whole),
        "lanes": len(whole.lanes),
        "merge s": round(merged_s, 2),
        "page s": round(drawn_s, 2),
        "page MB": round(size / 1e6, 2),
        "stragglers s": round(time.perf_counter() - began, 2),
        "groups compared": len(found.groups),
    }


if __name__ == "__main__":
    main()
