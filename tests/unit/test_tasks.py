"""Selections of asyncio tasks and generators: each has its own, and between its steps the thread has what it had."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import subprocess
import sys
import textwrap
import threading
import warnings

import pytest

from gpustreamlab import Session
from gpustreamlab._util import tasks
from gpustreamlab.errors import (
    SelectionWarning,
    SessionClosedError,
    StreamClosedError,
)
from gpustreamlab.workloads import spin
from tests.helpers.nvtx_stacks import CheckedSim
from tests.helpers.selections import rows_of, selected
from tests.helpers.threads import run_in_thread

LANES = ("a", "b", "c", "d")


@pytest.fixture
def backend():
    return CheckedSim()


@pytest.fixture
def lab(backend):
    with Session(backend, capture="ranges") as session:
        for name in LANES:
            session.stream(name)
        yield session
    backend.check()


def spans(lab):
    """Lane, name and parent's name of every range, in the order of their start."""
    lab.synchronize()
    return rows_of(lab.trace)


# Plain functions


def test_a_decorated_function_works_on_the_stream_each_time(lab):
    @lab.on("a", "work")
    def work(x, *, y=1):
        """Add."""
        return selected(lab), x + y

    assert work(1, y=2) == ("a", 3)
    assert work(2) == ("a", 3)
    assert selected(lab) is None
    assert (work.__name__, work.__doc__) == ("work", "Add.")
    assert spans(lab) == [("a", "work", None)] * 2


def test_a_decorated_function_may_call_itself(lab):
    @lab.on("a", "down")
    def down(depth):
        return [selected(lab), *down(depth - 1)] if depth else []

    assert down(3) == ["a"] * 3
    assert spans(lab) == [("a", "down", None)] + [("a", "down", "down")] * 3


def test_a_decorated_function_of_a_closed_session_says_so():
    with Session("sim") as lab:
        lab.stream("a")
        work = lab.on("a")(lambda: 1)
        assert work() == 1
    with pytest.raises(SessionClosedError, match="of stream 'a' is closed.*Decorate"):
        work()


# Coroutines


def test_a_hundred_tasks_on_four_streams_keep_their_own(lab):
    seen = []

    def make(lane):
        @lab.on(lane, f"task {lane}")
        async def work(number):
            for step in range(number % 5):
                await asyncio.sleep(0)
                seen.append(selected(lab) == lane)
                with lab.range("inner"):
                    await asyncio.sleep(0)
                    seen.append(selected(lab) == lane)
                    with lab.on(LANES[(number + step) % 4], "other"):
                        await asyncio.sleep(0)
                        seen.append(selected(lab) == LANES[(number + step) % 4])
            return selected(lab)

        return work

    works = {lane: make(lane) for lane in LANES}

    async def main():
        tasks = [asyncio.create_task(works[LANES[number % 4]](number)) for number in range(100)]
        while not all(task.done() for task in tasks):
            assert selected(lab) is None
            await asyncio.sleep(0)
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == list(LANES) * 25
    assert len(seen) == 600
    assert all(seen)
    assert {told for told in spans(lab) if told[1] == "inner"} == {(lane, "inner", f"task {lane}") for lane in LANES}
    assert {parent for _, name, parent in spans(lab) if name == "other"} == {"inner"}


def test_each_step_is_a_range(lab):
    @lab.on("a", "serve")
    async def serve():
        spin(lab, 1_000)
        await asyncio.sleep(0)
        with lab.range("second"):
            await asyncio.sleep(0)
        return 5

    assert asyncio.run(serve()) == 5
    serves, second = ("a", "serve", None), ("a", "second", "serve")
    assert spans(lab) == [serves, serves, second, serves, second]


def test_a_decorated_coroutine_function_is_one_to_everybody(lab):
    @lab.on("a")
    async def serve(x: int = 1) -> int:
        """Serve."""
        return x

    assert inspect.iscoroutinefunction(serve)
    assert asyncio.iscoroutinefunction(serve)
    assert str(inspect.signature(serve)) == "(x: 'int' = 1) -> 'int'"

    async def main():
        task = asyncio.create_task(serve(3), name="mine")
        assert "serve" in repr(task)
        return task.get_name(), await task

    assert asyncio.run(main()) == ("mine", 3)


def test_a_cancelled_task_cleans_up_on_its_lane(lab):
    cleaned = []

    @lab.on("a", "serve")
    async def serve():
        try:
            with lab.on("b", "inner"):
                try:
                    await asyncio.sleep(60)
                finally:
                    cleaned.append(selected(lab))
                    await asyncio.sleep(0)
                    cleaned.append(selected(lab))
        finally:
            cleaned.append(selected(lab))

    async def main():
        task = asyncio.create_task(serve())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert cleaned == ["b", "b", "a"]


def test_a_coroutine_closed_by_hand_ends_on_its_lane(lab):
    ended = []

    @lab.on("a")
    async def serve():
        try:
            await asyncio.sleep(0)
        finally:
            ended.append(selected(lab))

    coroutine = serve()
    coroutine.send(None)
    assert selected(lab) is None
    coroutine.close()
    coroutine.close()
    assert ended == ["a"]
    assert selected(lab) is None
    with pytest.raises(RuntimeError, match="cannot reuse"):
        coroutine.send(None)


# Streams that close or move meanwhile


def test_a_lane_closed_meanwhile_raises_at_the_await(lab):
    told = []

    @lab.on("a")
    async def serve():
        with lab.on("b"), lab.range("inner"):
            try:
                await asyncio.sleep(0)
            except StreamClosedError as error:
                told.append((str(error)[:20], selected(lab)))
                raise

    async def main():
        task = asyncio.create_task(serve())
        await asyncio.sleep(0)
        lab.stream("b").close()
        await task

    with pytest.raises(StreamClosedError, match="'b' is closed"):
        asyncio.run(main())
    assert told == [("Stream 'b' is closed", "a")]
    assert selected(lab) is None


# Generators


def test_a_generator_keeps_its_selection_between_steps(lab):
    @lab.on("a", "tokens")
    def tokens(count):
        """Give."""
        for number in range(count):
            with lab.range("token"):
                got = yield number, selected(lab)
                assert got in (None, "sent")
        return "done"

    assert inspect.isgeneratorfunction(tokens)
    with lab.on("b"):
        assert [(*told, selected(lab)) for told in tokens(3)] == [(n, "a", "b") for n in range(3)]
    steps = tokens(2)
    assert next(steps) == (0, "a")
    assert steps.send("sent") == (1, "a")
    with pytest.raises(StopIteration) as ended:
        next(steps)
    assert ended.value.value == "done"
    steps = tokens(2)
    next(steps)
    with pytest.raises(KeyError):
        steps.throw(KeyError("mine"))
    steps = tokens(2)
    next(steps)
    steps.close()
    assert selected(lab) is None


def test_a_generator_may_go_on_in_other_threads(lab, backend):
    @lab.on("a", "tokens")
    def tokens():
        with lab.range("outer"):
            for _ in range(4):
                with lab.on("b", "inner"), lab.range("deep"):
                    yield threading.get_ident(), selected(lab)

    steps = tokens()
    found = []
    for _ in range(4):
        assert run_in_thread(lambda: found.append(next(steps))) is None
    found.append(next(steps, None))
    assert [told and told[1] for told in found] == ["b"] * 4 + [None]
    assert {(name, parent) for _, name, parent in spans(lab)} == {
        ("tokens", None), ("outer", "tokens"), ("inner", "outer"), ("deep", "inner"),
    }  # fmt: skip
    assert lab.trace.metadata.dropped_spans == 0
    backend.check()


def test_a_context_manager_made_of_a_generator_leaves_its_selection_in_force(lab):
    @contextlib.contextmanager
    def on_a():
        with lab.on("a"):
            yield

    with on_a():
        assert selected(lab) == "a"

    @contextlib.contextmanager
    @lab.on("a")
    def isolated():
        yield selected(lab)

    with isolated() as inside:
        assert (inside, selected(lab)) == ("a", None)


def test_an_asynchronous_generator_keeps_its_selection(lab):
    @lab.on("a", "tokens")
    async def tokens(count):
        try:
            for number in range(count):
                await asyncio.sleep(0)
                with lab.range("token"):
                    got = yield number, selected(lab)
                    assert got in (None, "sent")
        finally:
            await asyncio.sleep(0)
            ended.append(selected(lab))

    async def main():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [(*told, selected(lab)) async for told in tokens(3)] == [(n, "a", None) for n in range(3)]
        steps = tokens(2)
        assert await anext(steps) == (0, "a")
        assert await steps.asend("sent") == (1, "a")
        with pytest.raises(StopAsyncIteration):
            await anext(steps)
        steps = tokens(2)
        await anext(steps)
        with pytest.raises(KeyError):
            await steps.athrow(KeyError("mine"))
        steps = tokens(2)
        await anext(steps)
        await steps.aclose()
        async for _ in tokens(2):
            break
        gc.collect()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return selected(lab)

    ended = []
    assert inspect.isasyncgenfunction(tokens)
    assert asyncio.run(main()) is None
    assert ended == ["a"] * 5


def test_a_task_that_ends_inside_a_selection_leaves_nothing(lab, caplog):
    async def work():
        lab.on("a").__enter__()
        lab.range("open").__enter__()
        await asyncio.sleep(0)

    async def main():
        await asyncio.create_task(tasks.Steered(work()))  # as a cell that awaits
        return selected(lab)

    assert asyncio.run(main()) is None
    assert "A task ended inside its selection of stream 'a'" in caplog.text


# Tasks that are not steered


def test_an_await_inside_a_plain_selection_is_told_once(lab):
    async def work(lane):
        for _ in range(3):
            with lab.on(lane):
                await asyncio.sleep(0)

    with pytest.warns(SelectionWarning, match=r"'a' was selected here.*@lab\.on\('a'\)") as told:
        asyncio.run(work("a"))
    assert len(told) == 3  # under pytest each is shown; Python's default filter shows one for each place
    assert {warning.filename for warning in told} == {__file__}
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        asyncio.run(work("b"))
    assert len(shown) == 1


def test_selecting_does_not_load_asyncio():
    program = """
    import sys
    import gpustreamlab
    with gpustreamlab.Session("sim") as lab:
        lab.stream("a")
        @lab.on("a")
        def work():
            return lab.current.name
        assert work() == "a"
        assert "asyncio" not in sys.modules
        import asyncio, warnings
        async def wait():
            with lab.on("a"):
                await asyncio.sleep(0)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            asyncio.run(wait())
        print(len(told))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("1\n", "")
