"""CuPy's current stream of each thread, and the hooks of a capture that has ended."""

from __future__ import annotations

import threading
import types

import pytest

from gpustreamlab.backends.cuda._stream import CupySelection


class FakeCupy:
    """Streams that are current per thread, and hooks per thread."""

    def __init__(self):
        self.local = threading.local()
        outer = self

        class MemoryHook:
            def __enter__(self):
                outer.hooks().append(self)

            def __exit__(self, *error):
                outer.hooks().remove(self)

        self.null = types.SimpleNamespace(use=lambda: outer.stack().clear())
        self.cuda = types.SimpleNamespace(
            MemoryHook=MemoryHook,
            Device=None,
            runtime=types.SimpleNamespace(getDevice=lambda: 0),
            get_current_stream=lambda: (outer.stack() or [outer.null])[-1],
        )

    def hooks(self):
        return self.local.__dict__.setdefault("hooks", [])

    def stack(self):
        return self.local.__dict__.setdefault("stack", [])

    def stream(self):
        stream = types.SimpleNamespace()
        entered = FakeStream(self)
        stream.cupy = entered
        return stream


class FakeStream:
    def __init__(self, cupy):
        self.cupy = cupy

    def __enter__(self):
        self.cupy.stack().append(self)

    def __exit__(self, *error):
        self.cupy.stack().pop()


@pytest.fixture
def cupy():
    return FakeCupy()


def test_the_hook_of_another_thread_goes_with_its_next_selection(cupy):
    selection, stream = CupySelection(cupy, 0), cupy.stream()
    first, second = threading.Event(), threading.Event()
    hooks = []

    def work():
        for turn in (first, second):
            assert turn.wait(60)
            selection.restore(selection.select(stream))
            hooks.append(len(cupy.hooks()))
            done.release()

    done = threading.Semaphore(0)
    thread = threading.Thread(target=work)
    thread.start()
    selection.watch.start(lambda handle: (1, handle))
    first.set()
    assert done.acquire(timeout=60)
    selection.watch.stop()
    second.set()
    thread.join(60)

    assert hooks == [1, 0]
    assert cupy.hooks() == []
