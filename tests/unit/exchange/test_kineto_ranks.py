"""Files of several ranks become one trace."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab.analysis import counted_rows
from gpustreamlab.errors import OptionError, TraceFileError
from tests.helpers.kineto import BASE_NS, DEVICE, call, kineto, launched, stream_wait, two_streams, work, write

read_kineto = partial(gsl.load_trace, format="kineto")


def rank(folder, number, **top):
    told = {"distributedInfo": {"rank": number, "world_size": 4, "backend": "nccl"}, **top}
    return write(folder / f"rank{number}.json.gz", two_streams() | told)


def test_ranks_have_lanes_threads_and_devices_of_their_own(tmp_path):
    trace = read_kineto([rank(tmp_path, 0), rank(tmp_path, 2, deviceProperties=[{**DEVICE, "name": "other"}])])
    assert [lane.name for lane in trace.lanes if lane.kind == "stream"] == [
        "rank 0 GPU 0 stream 7",
        "rank 0 GPU 0 stream 20",
        "rank 2 GPU 0 stream 7",
        "rank 2 GPU 0 stream 20",
    ]
    assert [lane.key for lane in trace.lanes[:4]] == [(0, 1, 7), (0, 1, 20), (1, 1, 7), (1, 1, 20)]
    assert trace.threads == ("rank 0 thread 100", "rank 2 thread 100", "rank 0 loader (101)", "rank 2 loader (101)")
    assert trace.metadata.title == "2 ranks of 4, nccl"
    assert trace.metadata.imported == (
        "18 kernels, copies and fills, 24 calls, 4 ranges, 2 waits of streams, 10 that say the same again or name threads of "
        "58 events"
    )
    assert trace.metadata.missing == (
        "Each file's times are taken as they are: clocks of different hosts differ by an unknown time.",
    )


def test_what_belongs_together_stays_within_its_rank(tmp_path):
    one, two = rank(tmp_path, 0), rank(tmp_path, 1)
    both, alone = read_kineto([one, two]), read_kineto(one)
    for kind in ("launch", "wait"):
        edges = both.edges.select(kind)
        assert len(edges) == 2 * len(alone.edges.select(kind))
        owner = np.array(["rank 1" in lane.name for lane in both.lanes])[both.lane]
        assert (owner[edges.source] == owner[edges.target]).all()
    assert both.where(device=1).explain().streams == ("rank 1 GPU 0 stream 7", "rank 1 GPU 0 stream 20")
    for number in (0, 1):
        mine = both.where(stream=[lane.name for lane in both.lanes if f"rank {number} " in lane.name])
        assert counted_rows(mine).sum() == 9
        assert (np.sort(mine.start_ns) == np.sort(alone.start_ns)).all()


def test_each_file_s_times_are_absolute(tmp_path):
    trace = read_kineto([rank(tmp_path, 0), rank(tmp_path, 1, baseTimeNanoseconds=BASE_NS + 7)])
    assert trace.metadata.epoch_unix_ns == BASE_NS + 500
    firsts = [trace.start_ns[trace.lane == place].min() for place in (0, 2)]
    assert firsts[1] - firsts[0] == 7


def test_files_that_tell_no_rank_are_numbered(tmp_path):
    paths = [rank(tmp_path, number, distributedInfo=None) for number in (0, 1)]
    assert [lane.name for lane in read_kineto(paths).lanes[::2][:2]] == ["file 0 GPU 0 stream 7", "file 1 GPU 0 stream 7"]


def job(folder, name, **told):
    return write(folder / name, two_streams() | {"distributedInfo": told})


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([("a", 0, 4), ("b", 1, 8)], r"a' is of a job of 4 ranks, .*b' of one of 8"),
        ([("a", 0, 4), ("b", 1, 4), ("c", 0, 4)], r"a' and .*c' both are of rank 0"),
        ([("a", 0, 4), ("a", 0, 4)], r"a' and .*a' both are '.*a'"),
    ],
)
def test_files_that_are_not_of_one_job_are_refused(tmp_path, files, says):
    paths = [job(tmp_path, name, rank=number, world_size=size) for name, number, size in files]
    with pytest.raises(OptionError, match=says):
        read_kineto(paths)


def test_one_file_under_two_names_is_refused(tmp_path):
    path = job(tmp_path, "a")
    (tmp_path / "b").symlink_to(path)
    with pytest.raises(OptionError, match="b' both are"):
        read_kineto([path, tmp_path / "b"])


def test_waits_between_two_ranks_streams_of_one_number_do_not_mix(tmp_path):
    run = [*launched(20, 9, 1, stream=7, correlation=1), *launched(40, 9, 35, stream=20, correlation=3)]
    wait = stream_wait(30, stream=20, awaited=7, record=2, correlation=2)
    first = write(tmp_path / "a.json", kineto([*run, wait], distributedInfo={"rank": 0}))
    second = write(tmp_path / "b.json", kineto(run, distributedInfo={"rank": 1}))
    trace = read_kineto([second, first])
    edges = trace.edges.select("wait")
    assert [trace.lanes[trace.lane[rows[0]]].name for rows in (edges.source, edges.target)] == [
        "rank 0 GPU 0 stream 7",
        "rank 0 GPU 0 stream 20",
    ]


def test_files_without_a_common_clock_are_refused(tmp_path):
    paths = [rank(tmp_path, 0), rank(tmp_path, 1, baseTimeNanoseconds=0)]
    with pytest.raises(TraceFileError, match=r"rank1.*no times of the wall clock"):
        read_kineto(paths)


def test_graphs_of_ranks_number_their_nodes_by_themselves(tmp_path):
    paths = []
    for number, nodes in enumerate(([100, 101, 102], [200, 201])):
        replay = [
            work(10 * place, 5, stream=7, correlation=5, **{"graph id": 1, "graph node id": node})
            for place, node in enumerate(nodes, 1)
        ]
        content = kineto([call(1, 2, "cudaGraphLaunch", correlation=5), *replay], distributedInfo={"rank": number})
        paths.append(write(tmp_path / f"{number}.json", content))
    both = read_kineto(paths)
    for place, count in enumerate((3, 2)):
        mine = (both.lane == place) & counted_rows(both)
        assert [both.details[code].node for code in both.extra["detail"][mine].tolist()] == [*range(count)]


def test_ranks_of_one_stream_each_lack_no_waits(tmp_path):
    paths = [write(tmp_path / f"{number}.json", kineto(launched(20, 9, 1, stream=7, correlation=1))) for number in (0, 1)]
    assert read_kineto(paths[0]).metadata.waits_told
    both = read_kineto(paths)
    assert both.metadata.waits_told
    assert not any("waited" in fact for fact in both.metadata.missing)
