"""What arrives of four engines that record 10,000 spans/s each: lost, told twice, how late, at what cost for the client.

The engines are processes of this machine, on the simulated device, and note how many spans they have recorded by when;
the client notes when so many have arrived. One clock (CLOCK_MONOTONIC) tells both. Compared with: the spans that the
engines count themselves. Dask's scheduler runs in the client's process, so its cost is in the client's; the controller
of ipyparallel has a process of its own.
"""

from __future__ import annotations

import bisect
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bench._common import report
from gpustreamlab import Cluster

ENGINES = 4
RATE_HZ = 10_000
BURST_S = 0.01
SECONDS = 60.0
LOOK_S = 0.005


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    seconds = SECONDS
    if "--seconds" in argv:
        place = argv.index("--seconds")
        seconds, argv = float(argv[place + 1]), argv[:place] + argv[place + 2 :]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # the engines find this module
    rows = []
    for name, start in (("dask", _dask), ("ipyparallel", _ipyparallel)):
        with start(int(1.1 * RATE_HZ * seconds)) as lab:  # all that each engine records has room here
            rows.append({"engines": f"{ENGINES} of {name}"} | _soak(lab, seconds))
    load = os.getloadavg()[1]
    title = f"{ENGINES} engines, {RATE_HZ:,} spans/s each, {seconds:.0f} s; {os.cpu_count()} cores, load average {load:.1f}"
    report(title, rows, argv)


def _soak(lab: Cluster, seconds: float) -> dict[str, Any]:
    arrived: dict[str, tuple[list[int], list[int]]] = {name: ([0], [0]) for name in lab.names}
    done = threading.Event()

    def look() -> None:
        """Note when how many spans were there."""
        while not done.wait(LOOK_S):
            now_ns = time.monotonic_ns()
            for status in lab.engines:
                counts, times = arrived[status.name]
                if status.span_count != counts[-1]:
                    counts.append(status.span_count)
                    times.append(now_ns)

    looking = threading.Thread(target=look)
    looking.start()
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    recorded = lab.run(record, seconds)
    cpu_s, wall_s = time.process_time() - began_cpu_s, time.monotonic() - began_s
    lab.synchronize()
    time.sleep(2 * LOOK_S)
    done.set()
    looking.join()
    delays = np.concatenate([_delays_ms(recorded[name], *arrived[name]) for name in lab.names])
    numbers = {mirror.name: mirror.changes().columns["number"] for mirror in lab._mirrors}
    expected = {name: recorded[name][-1][0] for name in lab.names}
    spans = sum(map(len, numbers.values()))
    unique = sum(len(np.unique(own)) for own in numbers.values())
    status = lab.engines
    return {
        "spans/s recorded": round(sum(expected.values()) / wall_s),
        "spans recorded": sum(expected.values()),
        "lost": sum(expected.values()) - unique,
        "told twice": spans - unique,
        "missed": sum(one.missed_count for one in status),
        "delay median ms": round(float(np.median(delays)), 1),
        "delay p95 ms": round(float(np.percentile(delays, 95)), 1),
        "delay max ms": round(float(delays.max()), 1),
        "client cores": round(cpu_s / wall_s, 3),
        "bytes a span": round(sum(one.received_bytes for one in lab._mirrors) / spans, 1),
    }


def record(lab: Any, seconds: float) -> list[tuple[int, int]]:
    """Record ranges at an even pace; return how many there were by when."""
    lab.stream("compute")
    noted, count = [], 0
    began_ns = time.monotonic_ns()
    while (passed_s := (time.monotonic_ns() - began_ns) / 1e9) < seconds:
        due = int(passed_s * RATE_HZ)
        for _ in range(due - count):
            with lab.on("compute", "step"):
                pass
        count = max(count, due)
        noted.append((count, time.monotonic_ns()))
        time.sleep(BURST_S)
    return noted


def _delays_ms(noted: list[tuple[int, int]], counts: list[int], times: list[int]) -> np.ndarray:
    """Return how long after each burst all of it was there."""
    places = [bisect.bisect_left(counts, count) for count, _ in noted]
    return np.array([(times[place] - at) / 1e6 for place, (_, at) in zip(places, noted, strict=True) if place < len(counts)])


@contextmanager
def _dask(ring_size: int) -> Iterator[Cluster]:
    with Cluster(workers=ENGINES, backend="sim", capture="ranges", ring_size=ring_size) as lab:
        yield lab


@contextmanager
def _ipyparallel(ring_size: int) -> Iterator[Cluster]:
    import ipyparallel

    with ipyparallel.Cluster(n=ENGINES, log_level=40) as client:
        client.wait_for_engines(ENGINES)
        with Cluster(client, backend="sim", capture="ranges", ring_size=ring_size) as lab:
            yield lab


if __name__ == "__main__":
    from bench.cluster import main as run  # as a module, so that engines can import what they are sent

    run()
