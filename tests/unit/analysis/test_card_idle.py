"""How long a card was idle, where its host was meanwhile, and in which steps."""

from __future__ import annotations

import numpy as np
import pytest

from gpustreamlab import Session, Trace
from gpustreamlab.analysis import NO_CALL, card_idle
from gpustreamlab.analysis._card_idle import IN_NO_CALL, LAUNCHED, MOVED
from gpustreamlab.draw import plan_picture
from gpustreamlab.draw._went import went_entry
from gpustreamlab.workloads import spin


def with_steps(count: int = 20, kinds: tuple[str, ...] = ("gemm", "relu", "gemm", "loss"), ranges: bool = False) -> Trace:
    """Return steps of 1,000 ns: kernels of 100 ns behind each other, then nothing, in which the host is in two calls."""
    rows: list[tuple[int, int, str, str, str, int]] = []
    for step in range(count):
        for place, name in enumerate(kinds):
            start = step * 1_000 + place * 100
            rows.append((start, start + 100, "stream", name, "kernel", start - 1))
        idle = step * 1_000 + len(kinds) * 100
        rows.append((idle - 50, idle + 200, "main", "cudaStreamSynchronize", "host", 0))
        rows.append((idle + 400, idle + 600, "main", "cudaMemcpy", "host", 0))
        if ranges:
            rows.append((step * 1_000 + 100, step * 1_000 + 300, "stream", f"batch {step}", "range", 0))
    start, end, stream, name, kind, queued = zip(*rows, strict=True)
    queued = [at or begin for at, begin in zip(queued, start, strict=True)]
    return Trace.from_columns(start_ns=start, end_ns=end, stream=stream, name=name, kind=kind, queued_ns=queued)


def test_gaps_are_told_by_what_the_host_did_in_them():
    found = card_idle(with_steps())
    assert len(found) == 19
    assert found.wall_ns == 19 * 1_000 + 400
    assert found.idle_ns == 19 * 600
    assert dict(found.calls) == {
        "cudaStreamSynchronize": 19 * 200,
        "cudaMemcpy": 19 * 199,  # until the launch, 1 ns before the start
        NO_CALL: 19 * 200,
        LAUNCHED: 19 * 1,
    }
    assert set(found.trace.name[found.before].tolist()) == {found.names.index("loss")}
    assert found.line.startswith("idle 59% of 19.4 µs, in 19 gaps, 100% of it between loss and gemm. Of 1.00 µs a step")


def test_time_in_which_pages_moved_before_work_began_is_told_as_that():
    trace = Trace.from_columns(
        start_ns=[0, 110, 160, 400],
        end_ns=[100, 150, 360, 500],
        queued_ns=[0, 110, 160, 150],
        stream=["a", "main", "managed memory", "a"],
        kind=["kernel", "host", "annotation", "kernel"],
        name=["gemm", "cudaLaunchKernel", "memcpy HtoD (managed, prefetch)", "gemm"],
    )
    assert dict(card_idle(trace).calls) == {"cudaLaunchKernel": 40, NO_CALL: 10, MOVED: 200, LAUNCHED: 50}


def test_the_sum_of_the_causes_is_the_idle_time():
    rng = np.random.default_rng(7)
    for _ in range(30):
        count = int(rng.integers(2, 60))
        start = np.sort(rng.integers(0, 5_000, count))
        trace = Trace.from_columns(
            start_ns=[*start, *np.arange(0, 5_000, 100)],
            end_ns=[*(start + rng.integers(1, 200, count)), *(np.arange(0, 5_000, 100) + 60)],
            stream=[*rng.choice(["a", "b"], count), *["main"] * 50],
            kind=["kernel"] * count + ["host"] * 50,
            queued_ns=[*(start - rng.integers(0, 150, count)), *np.arange(0, 5_000, 100)],
            name=["k"] * count + ["call"] * 50,
        )
        found = card_idle(trace)
        busy = np.zeros(6_000, bool)
        for begin, end in zip(start, trace.end_ns[:count], strict=True):
            busy[begin:end] = True
        assert found.idle_ns == found.wall_ns - busy.sum()
        assert sum(held for _, held in found.calls) == found.idle_ns
        assert (trace.start_ns[found.row] == found.start_ns + found.duration_ns).all()
        assert (trace.end_ns[found.before] == found.start_ns).all()


@pytest.mark.parametrize("ranges", [False, True])
def test_steps_are_found_by_ranges_or_by_what_repeats(ranges):
    found = card_idle(with_steps(ranges=ranges))
    assert found.step_name == ("batch *" if ranges else "relu")
    assert np.diff(found.step_ns).tolist() == [1_000] * 19
    told = (
        "of 1.00 µs a step the card is idle 60%: 20% with the host in cudaStreamSynchronize, 20% with the host in no CUDA call"
    )
    assert found.brief.startswith(told)
    assert told[:30].replace("of", "Of", 1) in found.line
    assert told[30:] in found.line
    assert f". 19 steps (95% take at most 1.00 µs) from one {found.step_name} to the next" in found.line
    assert sum(held for _, held in found.step_calls) == 19 * 600


def test_time_in_no_call_is_of_the_operation_around_it():
    # GIVEN one stream that waits for the host, which converts in an operation before it copies
    rows = [
        (0, 100, "stream", "conv", "kernel"),
        (400, 500, "stream", "memcpy HtoD", "copy"),
        (50, 700, "host: main", "step", "annotation"),
        (120, 395, "host: main", "aten::copy_", "annotation"),
        (360, 390, "host: main", "cudaMemcpyAsync", "host"),
    ]
    start, end, stream, name, kind = zip(*rows, strict=True)
    queued = [0, 370, *start[2:]]
    trace = Trace.from_columns(start_ns=start, end_ns=end, stream=stream, name=name, kind=kind, queued_ns=queued)
    # WHEN it is asked where the host was
    calls = dict(card_idle(trace).calls)
    # THEN the operation is named, the range around it for what is left, and all of it is the gap
    assert calls == {f"aten::copy_{IN_NO_CALL}": 240, f"step{IN_NO_CALL}": 20, "cudaMemcpyAsync": 10, LAUNCHED: 30}
    assert sum(calls.values()) == card_idle(trace).idle_ns


def test_with_one_stream_it_is_explained_why_the_card_was_idle():
    assert with_steps().explain().headline == f"one stream, {card_idle(with_steps()).line}"
    full = Trace.from_columns(start_ns=[0, 10], end_ns=[10, 20], stream=["a", "a"], kind="kernel")
    assert full.explain().headline == "one stream, hardly ever idle"


def test_the_header_of_one_stream_says_how_long_the_card_was_idle_in_a_step_and_where_the_host_was():
    trace = with_steps()
    header = plan_picture(trace).header
    told = card_idle(trace).brief
    assert "a step the card is idle" in told
    assert "with the host in" in told
    assert header.finding == f"Busy 41% of the time, on one stream; {told}"
    assert went_entry(trace, 0, trace.explain())["said"] == "Took 19.4 µs on one stream; nothing ran for 59% of it."


def test_what_does_not_repeat_has_no_steps():
    rng = np.random.default_rng(1)
    names = rng.choice(["a", "b", "c"], 200)
    start = np.arange(200) * 10
    random = Trace.from_columns(start_ns=start, end_ns=start + 5, stream=["s"] * 200, name=names, kind="kernel")
    one = Trace.from_columns(start_ns=start, end_ns=start + 5, stream=["s"] * 200, name=["k"] * 200, kind="kernel")
    assert [card_idle(trace).step_name for trace in (random, one)] == ["", ""]


@pytest.mark.parametrize("begin_ns", [0, 9_000], ids=["before all work", "behind all work"])
def test_ranges_that_launched_nothing_are_no_steps(begin_ns: int):
    # Files to be read, texts to be written: a crash of explain() and of every picture, as all these "steps" began at once.
    started = [*range(begin_ns, begin_ns + 1_000, 100), 5_000, 6_000, 7_000]
    trace = Trace.from_columns(
        start_ns=started,
        end_ns=[*(at + 90 for at in started[:10]), 5_400, 6_400, 7_400],
        stream=["main"] * 10 + ["a"] * 3,
        kind=["annotation"] * 10 + ["kernel"] * 3,
        name=["tokenize"] * 10 + ["gemm"] * 3,
        queued_ns=[*started[:10], 4_900, 5_900, 6_900],
    )
    found = card_idle(trace)
    assert (found.step_name, found.idle_ns) == ("", 1_200)
    assert found.line.startswith("idle 50% of 2.40 µs")


def test_an_empty_trace_and_one_without_gaps_are_told():
    nothing = Trace.from_columns(start_ns=[], end_ns=[], stream=[])
    full = Trace.from_columns(start_ns=[0, 10], end_ns=[10, 20], stream=["a", "a"], kind="kernel")
    assert [str(card_idle(trace)).splitlines()[0] for trace in (nothing, full)] == [
        "Idle card: nothing ran",
        "Idle card: never idle in 20 ns",
    ]


def test_a_recorded_run_of_one_stream_says_what_held_it_up():
    with Session("sim") as lab, lab.capture("kernels", host=True):
        lab.stream("only")
        for step in range(8):
            with lab.on("only", f"step {step}"):
                spin(lab, 100_000)
            lab.streams["only"].synchronize()
            lab.memory.pinned_empty((1 << 20,), "float64")
        lab.synchronize()
        found = card_idle(lab.trace)
    assert found.step_name == "step *"
    assert len(found.step_ns) == 8
    assert found.calls[0][0].startswith("cuda")
    assert sum(held for _, held in found.calls) == found.idle_ns
    assert found.trace.idle().card.idle_ns == found.idle_ns
