"""Who was late: traces made by hand, whose answers are computed by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab import Trace
from gpustreamlab.errors import OptionError
from gpustreamlab.typing import Cause

RING = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def steps(ends_ns, *, error_ns=0, device=False, **columns):
    """A trace in which group g ends its n-th step at ends_ns[g][n], and begins it at the same time as all."""
    rows = [(number * 1_000, end, group) for group, ends in enumerate(ends_ns) for number, end in enumerate(ends)]
    start_ns, end_ns, group = (list(column) for column in zip(*rows, strict=True))
    names = columns.pop("name", ["step"] * len(rows))
    trace = Trace.from_columns(
        start_ns=start_ns, end_ns=end_ns, stream=[f"w{place}:main" for place in group], name=names, kind=["range"] * len(rows)
    )
    field = "device" if device else "process"
    lanes = tuple(replace(lane, **{field: int(lane.name[1])}) for lane in trace.lanes)
    return replace(trace, lanes=lanes, metadata=replace(trace.metadata, clock_error_ns=error_ns))


def test_the_one_that_ends_last_is_late_by_what_the_others_wait_in_the_median():
    found = steps([[100, 1_100, 2_300], [110, 1_150, 2_200], [400, 1_130, 2_100]]).stragglers()
    (step,) = found.names
    assert found.groups == ("w0", "w1", "w2")
    assert step.last.tolist() == [2, 1, 0]
    assert step.late_ns.tolist() == [295, 35, 150]
    assert step.behind_ns.tolist() == [[300, 290, 0], [50, 0, 20], [0, 100, 200]]
    assert step.waited_ns.tolist() == [350, 390, 220]
    assert step.at_ns.tolist() == [0, 1_000, 2_000]
    assert "w0, 1" in str(found)
    assert found.to_pandas()["last"].tolist() == [1, 1, 1]


def test_what_is_closer_than_the_clocks_are_known_is_counted_for_nobody():
    found = steps([[100, 1_500], [130, 1_100]], error_ns=30).stragglers()
    assert found.names[0].last.tolist() == [-1, 0]
    assert "1 round closer than the clocks are known" in str(found)


def test_devices_of_one_process_are_compared_too():
    found = steps([[100], [130]], device=True).stragglers()
    assert found.names[0].last.tolist() == [1]
    assert found.groups == ("w0", "w1")


def test_names_that_do_not_occur_equally_often_are_told_and_not_compared():
    uneven = steps([[100, 1_100], [130, 1_100, 2_100]]).stragglers()
    assert not uneven.names
    assert not uneven
    assert "more often on some than on others: step" in str(uneven)
    only = steps([[100], [130]], name=["a", "b"]).stragglers()
    assert "nothing occurs equally often" in str(only)


def test_one_process_has_no_stragglers():
    found = steps([[100]]).stragglers()
    assert (len(found), found.remarks) == (0, ())
    with pytest.raises(OptionError):
        gsl.analysis.stragglers("no trace")


def kernel(rank, start_us, length_us, number, *, name=RING, group="0", seq=None, **more):
    told = {"device": rank, "stream": 20, "correlation": number, "Collective name": "allreduce"}
    if group is not None:
        told |= {"Process Group Name": group, "Process Group Ranks": "[0, 1]"}
    if seq is not None:
        told["Seq"] = seq
    return {"ph": "X", "cat": "kernel", "name": name, "ts": start_us, "dur": length_us, "pid": rank, "args": told | more}


def ranks_of(folder, events_of, **more):
    paths = []
    for rank, events in enumerate(events_of):
        path = folder / f"rank{rank}.json"
        facts = {"distributedInfo": {"rank": rank, "world_size": len(events_of)}, "traceEvents": events} | more
        path.write_text(json.dumps(facts))
        paths.append(path)
    return gsl.load_trace(paths)


@pytest.mark.parametrize("kind", [int, str])
def test_collectives_are_matched_by_their_sequence_numbers_whatever_the_clocks_say(tmp_path, kind):
    # Rank 1's clock is 5 ms ahead, and its window began one collective later.
    first = [kernel(0, 100, 50, 1, seq=kind(7)), kernel(0, 200, 90, 2, seq=kind(8)), kernel(0, 300, 10, 3, seq=kind(9))]
    second = [kernel(1, 5_250, 40, 1, seq=kind(8)), kernel(1, 5_300, 30, 2, seq=kind(9))]
    trace = ranks_of(tmp_path, [first, second])
    assert np.unique(trace.extra["sequence"]).tolist() == [8, 9, 10]
    (found,) = trace.stragglers().names
    assert found.is_collective
    assert found.behind_ns.tolist() == [[50_000, 0], [0, 20_000]]  # the shorter one arrived later
    assert found.last.tolist() == [1, 0]
    assert "1 kernel of collectives not compared" in str(trace.stragglers())


def test_collectives_without_sequence_numbers_are_matched_where_all_ranks_ran_the_same_ones(tmp_path):
    both = [[kernel(rank, 100, 50 - 20 * rank, 1), kernel(rank, 200, 30, 2)] for rank in range(2)]
    found = ranks_of(tmp_path, both).stragglers()
    assert found.names[0].behind_ns.tolist() == [[20_000, 0], [0, 0]]
    assert "matched by their order" in str(found)
    uneven = ranks_of(tmp_path, [both[0], both[1][:1]]).stragglers()
    assert not uneven.names
    assert "3 kernels of collectives not compared" in str(uneven)


def test_collectives_of_two_communicators_and_those_that_do_not_wait_are_kept_apart(tmp_path):
    events = [
        [
            kernel(rank, 100, 50, 1, group="0", seq=1),
            kernel(rank, 200, 80 - 10 * rank, 2, group="1", seq=1),
            kernel(rank, 300, 5 + rank, 3, name="ncclDevKernel_Broadcast_RING_LL(x)", group="0", seq=2),
            kernel(rank, 400, 9 + rank, 4, group=None),
        ]
        for rank in range(2)
    ]
    found = ranks_of(tmp_path, events).stragglers()
    assert sorted(found.names[0].behind_ns.tolist()) == [[0, 0], [10_000, 0]]
    assert "4 kernels of collectives not compared" in str(found)


def test_of_two_ranks_that_took_turns_in_coming_10_ms_late_each_is_named_in_its_turn():
    """Recorded with torch 2.11 and NCCL 2.28 on two H200: rank `step % 2` slept before the all-reduce of each step."""
    folder = Path(__file__).parents[2] / "golden" / "nccl"
    trace = gsl.load_trace([folder / f"rank{rank}.json.gz" for rank in range(2)])
    found = trace.where(stream=["rank 0 GPU 0 stream 7", "rank 1 GPU 1 stream 7"]).stragglers()
    (reduced,) = (one for one in found.names if "AllReduce" in one.name)
    assert found.groups == ("rank 0", "rank 1")
    assert reduced.last.tolist() == [0, 1, 0, 1, 0, 1]
    assert (abs(reduced.late_ns[1:] - 10_000_000) < 150_000).all()  # the first sleep also waited for the code to be loaded


def late_rank(rank, *, seq, group, bwd_ms=(1_000, 2_500), turns=8):
    """Events of a rank whose all-reduce begins behind its own backward pass, and ends on all ranks 200 us behind the last."""
    events = []
    for turn in range(turns):
        at, own, last = turn * 3_000, bwd_ms[rank], max(bwd_ms)
        numbers = 2 * turn + 1, 2 * turn + 2
        for number, early in zip(numbers, (1, 2), strict=True):
            told = {"correlation": number}
            events.append(
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + early, "dur": 1, "pid": 9, "tid": 9}
                | {"args": told}
            )
        grid = {"grid": [5_000, 1, 1], "block": [256, 1, 1]}
        events.append(kernel(rank, at + 10, own, numbers[0], name="bwd", group=None, stream=7, **grid))
        number = turn if seq else None
        events.append(kernel(rank, at + 15 + own, last - own + 200, numbers[1], group=group, seq=number, grid=[24, 1, 1]))
    return events


@pytest.mark.parametrize(("seq", "group", "sure"), [(True, "0", "proved"), (False, "0", "proved"), (False, None, "likely")])
def test_an_all_reduce_that_waited_for_the_last_rank_says_so_in_a_part_of_one_rank(seq, group, sure, tmp_path):
    trace = ranks_of(tmp_path, [late_rank(rank, seq=seq, group=group) for rank in range(2)])
    found = trace.stragglers()
    (name,) = (one for one in found.names if one.is_collective)
    assert set(name.last.tolist()) == {1}
    assert set(name.late_ns.tolist()) == {1_500_000}
    (waited,) = (one for one in trace.where(device=0).explain().findings if one.code is Cause.OTHER_RANK)
    assert (waited.certainty, waited.waited_ns, waited.piece_count) == (sure, 8 * 1_500_000, 8)
    assert "1.50 ms longer than on the last rank" in waited.text
    assert Cause.OTHER_RANK not in {one.code for one in trace.where(device=1).explain().findings}


def test_a_collective_behind_other_work_waits_for_what_that_made_and_not_for_sms(tmp_path):
    card = {"id": 0, "name": "NVIDIA A100", "numSms": 108, "maxThreadsPerMultiprocessor": 2_048}
    trace = ranks_of(tmp_path, [late_rank(0, seq=False, group=None, bwd_ms=(1_000,))], deviceProperties=[card])
    assert (Cause.EVENT_WAIT, "likely") in {(one.code, one.certainty) for one in trace.explain().findings}
    assert Cause.GRID_FILLS_DEVICE not in {one.code for one in trace.explain().findings}


def test_behind_a_collective_of_one_rank_it_is_said_that_it_may_have_waited_for_others(tmp_path):
    rank = late_rank(0, seq=False, group=None)
    said = "That may have waited for another rank itself"
    assert said in str(ranks_of(tmp_path, [rank]).explain()).replace("\n   ", " ")
    both = ranks_of(tmp_path, [rank, late_rank(1, seq=False, group=None)])
    assert said not in str(both.where(device=0).explain()).replace("\n   ", " ")


def test_traces_of_ranks_that_are_merged_tell_who_waited():
    def rank(number, lasts_ns):
        trace = Trace.from_columns(start_ns=[900], end_ns=[900 + lasts_ns], stream=["s"], name=[RING], kind="kernel")
        card = replace(trace.metadata.device, name=f"card {number}")
        return replace(trace, metadata=replace(trace.metadata, device=card))

    trace = gsl.merge([rank(0, 70), rank(1, 30)], ahead_ns=[0, 40], processes=[0, 1])
    assert trace.extra["awaited_ns"].tolist() == [40, 0]
    assert [lane.device for lane in trace.lanes] == [0, 1]


def ours(path, rank, began_us, spans_us, *, is_told):
    """Save what a rank has recorded: steps and the collectives behind them, on a clock that began when the process did."""
    trace = Trace.from_columns(
        start_ns=[1_000 * start for start, _ in spans_us],
        end_ns=[1_000 * end for _, end in spans_us],
        stream=["stream 7"] * len(spans_us),
        name=["backward", RING] * (len(spans_us) // 2),
        kind="kernel",
    )
    card = replace(trace.metadata.device, ordinal=rank, uuid=f"card {rank}")
    told = {
        "backend": "cuda",
        "device": card,
        "rank": rank if is_told else -1,
        "host": "h",
        "epoch_unix_ns": 10**18 + 1_000 * began_us,
    }
    lanes = tuple(replace(lane, device=rank) for lane in trace.lanes)
    replace(trace, lanes=lanes, metadata=replace(trace.metadata, **told)).save(path)
    return path


@pytest.mark.parametrize("is_told", [True, False])
def test_ranks_that_recorded_themselves_are_one_trace_and_the_late_one_is_named(tmp_path, is_told):
    # GIVEN two ranks, of which rank 1 began to record 500 us later, and computes for longer in the second step
    zero = ours(tmp_path / "a.parquet", 0, 0, [(1_000, 2_000), (2_000, 2_600), (3_000, 4_000), (4_000, 5_600)], is_told=is_told)
    one = ours(tmp_path / "b.parquet", 1, 500, [(500, 1_600), (1_600, 2_100), (2_500, 4_900), (4_900, 5_100)], is_told=is_told)
    # WHEN they are loaded together, in whatever order where the files tell their ranks
    trace = gsl.load_trace([one, zero] if is_told else [zero, one])
    # THEN each is a process on one clock
    assert {(lane.process, lane.device) for lane in trace.lanes} == {(0, 0), (1, 1)}
    of_one = trace.where(device=1)
    assert (of_one.start_ns - trace.where(device=0).start_ns.min()).tolist() == [0, 1_100_000, 2_000_000, 4_400_000]
    # AND collectives are matched, and name who was last
    late = trace.stragglers().names[0]
    assert (late.name, late.last.tolist(), late.behind_ns.tolist()) == (RING, [1, 1], [[100_000, 0], [1_400_000, 0]])
    assert trace.stragglers().groups == ("p0", "p1")
    assert [found.code for found in trace.where(device=0).explain().findings] == [Cause.OTHER_RANK]
    assert trace.metadata.rank == -1
