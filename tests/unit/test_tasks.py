"""Selections of asyncio tasks and generators: each has its own, and between its steps the thread has what it had."""

from __future__ import annotations

import asyncio
import contextlib
import functools
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
    DeviceError,
    SelectionError,
    SelectionWarning,
    SessionClosedError,
    StreamClosedError,
)
from gpustreamlab.streams import selection
from gpustreamlab.workloads import spin
from tests.helpers.interrupt_storm import is_unreachable
from tests.helpers.line_interrupts import LineInterrupts
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


def test_a_decorated_function_works_on_the_lane_each_time(lab):
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


def test_a_hundred_tasks_on_four_lanes_keep_their_own(lab):
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


def test_a_coroutine_that_nobody_ends_is_silent(lab, caplog):
    @lab.on("a")
    async def serve():
        with lab.on("b"), lab.range("inner"):
            await asyncio.sleep(0)

    coroutine = serve()
    coroutine.send(None)
    del coroutine
    gc.collect()
    assert selected(lab) is None
    assert caplog.records == []


def test_functions_that_hide_a_coroutine_are_steered_too(lab):
    def hiding(function):
        return lambda *args: function(*args)

    class Callable:
        async def __call__(self):
            await asyncio.sleep(0)
            return selected(lab)

    @lab.on("a")
    @hiding
    async def serve():
        await asyncio.sleep(0)
        return selected(lab)

    async def main():
        partial = lab.on("c")(functools.partial(Callable.__call__, Callable()))
        task = asyncio.create_task(serve())
        assert "serve" in repr(task)
        return await asyncio.gather(task, lab.on("b")(Callable())(), partial())

    assert asyncio.run(main()) == ["a", "b", "c"]


def test_a_selection_left_open_by_a_coroutine_is_told(lab):
    @lab.on("a")
    async def serve():
        lab.on("b").__enter__()
        await asyncio.sleep(0)

    with pytest.raises(SelectionError, match="'a' was left before one that was entered after it"):
        asyncio.run(serve())
    assert selected(lab) is None


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


def test_a_cancel_after_the_session_closed_is_a_cancel(caplog):
    with Session("sim") as lab:
        lab.stream("a")

        @lab.on("a")
        async def serve():
            with lab.range("inner"):
                await asyncio.sleep(60)

        async def main():
            task = asyncio.create_task(serve())
            await asyncio.sleep(0)
            lab.close()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
    assert [record.message for record in caplog.records if "without what it had" in record.message] == []


def test_a_device_that_fails_at_a_suspension_is_told_at_the_next_step(lab, monkeypatch):
    @lab.on("a")
    async def serve():
        try:
            await asyncio.sleep(0)
        except DeviceError as error:
            return str(error), selected(lab)

    with lab.on("a", "warm-up"):
        writer = lab._selections.recorder.thread_state().writer
    record, recorded = writer.record, []

    def fail_once(event):
        recorded.append(event)
        if len(recorded) == 2:
            raise DeviceError("The device refused.")
        record(event)

    coroutine = serve()
    monkeypatch.setattr(writer, "record", fail_once)
    coroutine.send(None)
    assert selected(lab) is None
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    assert ended.value.value == ("The device refused.", None)


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


# Whatever drives it


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


def test_steps_from_outside_asyncio():
    # Any loop that drives a coroutine by send and throw does: trio, curio, a hand-written one.
    with Session("sim") as lab:
        lab.stream("a")

        class Trap:
            def __await__(self):
                return (yield "trap")

        @lab.on("a")
        async def serve():
            return await Trap(), lab.current.name

        coroutine = serve()
        assert coroutine.send(None) == "trap"
        with pytest.raises(StopIteration) as ended:
            coroutine.send("answer")
        assert ended.value.value == ("answer", "a")


# Interrupts


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a generator that ends unseen
def test_an_interrupt_in_a_step_leaves_nothing_selected(lab, backend):
    @lab.on("a")
    def steps():
        with lab.range("inner"), lab.on("b"):
            yield

    def program():
        with lab.on("d", "around"):
            for _ in steps():
                pass

    place = 1
    gc.disable()  # else a generator of an earlier place may be ended, and interrupted, where nobody sees it
    try:
        while True:
            with contextlib.suppress(KeyboardInterrupt), LineInterrupts([tasks, selection], place) as interrupts:
                program()
            if interrupts.place is None:
                break
            if is_unreachable(interrupts.place):
                lab._put_back_left()  # before anything that can catch it
            assert (place, selected(lab), backend.open_ranges) == (place, None, [])
            place += 1
        with lab.on("a", "around"), lab.range("inner"):
            gc.collect()
            assert backend.open_ranges == ["around", "inner"]
    finally:
        gc.enable()
    assert place > 100
    # A selection that takes others along puts back what was before all of them, in one call.
    assert {text.partition(" ")[2] for text in backend.wrong} == {"put back a selection that was not its last"}
    backend.forgive()


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


def test_a_users_error_passes_through_the_warning(lab):
    async def work():
        with lab.on("a"):
            await asyncio.sleep(0)
            raise KeyError("mine")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyError):
            asyncio.run(work())
    assert selected(lab) is None


def test_a_hundred_thousand_selections_in_a_loop_leave_one_callback(lab):
    waiting = []

    async def cell():
        loop = asyncio.get_running_loop()
        for _ in range(1_000):
            with lab.on("a"), lab.on("b"):
                waiting.append(len(loop._ready))
        await asyncio.sleep(0)
        with lab.on("a"):
            pass

    asyncio.run(cell())
    assert max(waiting) <= 1 + waiting[0]
    assert waiting[0] <= 1


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
