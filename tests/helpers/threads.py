"""Run things in another thread."""

from __future__ import annotations

import threading


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
