"""Run things in other threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor


def run_in_thread(work):
    """Run in another thread; return what it raised."""
    raised = []

    def run():
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised[0] if raised else None


def run_all(work, count):
    """Run ``work(number)`` in so many threads at once; raise what the first of them raised."""
    barrier = threading.Barrier(count)

    def run(number):
        barrier.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(run, number) for number in range(count)]:
            done.result(120)
