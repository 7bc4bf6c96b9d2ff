"""Real files of several GPUs, where they are: no engine, no SM and no wait is shared by two cards or two ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import gpustreamlab as gsl
from gpustreamlab.errors import OptionError

ROOT = Path(__file__).resolve().parents[3]
FOLDER = Path(os.environ.get("GPUSTREAMLAB_EXCHANGE", ROOT.parent / "shared" / "exchange")) / "traces"


if FOLDER.is_dir():  # nothing is skipped where it is not

    @pytest.fixture(scope="module")
    def merged():
        """Return four ranks of one job, each with a V100."""
        return gsl.load_trace([FOLDER / "kineto" / f"v100_dlrm_rank{rank}.json.gz" for rank in range(4)])

    def test_two_cards_of_a_report_share_nothing():
        trace = gsl.load_trace(FOLDER / "nsys" / "h100_2gpu_3.25.sqlite.gz")
        assert "on 2 GPUs" in repr(trace)
        found = trace.overlap()
        assert ("on 2 GPUs, wall" in repr(found), "share an engine" in repr(found)) == (True, False)
        assert found.ideal_ns == found.busy_ns.max()
        with pytest.raises(OptionError, match="2 processes work on 2 GPUs"):  # each rank has one
            trace.critical_path()
        assert trace.where(device=1).explain().streams == ("GPU 1 stream 15",)

    def test_ranks_have_the_sms_of_all_cards(merged):
        found, alone = merged.utilization(), [merged.where(device=rank).utilization() for rank in range(4)]
        assert (found.sm_count, found.device.tolist()) == (320, [0, 1, 2, 3])
        assert found.card_sm_ns == sum(one.card_sm_ns for one in alone)
        assert "on 4 GPUs (" in repr(merged)

    def test_ranks_wait_for_their_own_work(merged):
        waits = merged.host_waits()
        known = waits.waited_for >= 0
        process = [lane.process for lane in merged.lanes]
        pairs = zip(waits.lane[known].tolist(), merged.lane[waits.waited_for[known]].tolist(), strict=True)
        assert known.sum() > 0
        assert all(process[thread] == process[stream] for thread, stream in pairs)

    def test_a_rank_of_a_job_is_answered_as_its_file_alone(merged):
        with pytest.raises(OptionError, match="4 processes work on 4 GPUs"):
            merged.explain()
        for rank in (0, 3):
            part, alone = merged.where(device=rank), gsl.load_trace(FOLDER / "kineto" / f"v100_dlrm_rank{rank}.json.gz")
            assert len(part) == len(alone)
            assert part.critical_path().duration_ns == alone.critical_path().duration_ns
            told = [(one.code, one.saves_ns, one.waited_ns) for one in part.explain().findings]
            assert told == [(one.code, one.saves_ns, one.waited_ns) for one in alone.explain().findings]
            assert part.utilization().card_sm_ns == alone.utilization().card_sm_ns
            assert part.host_waits().waited_ns.sum() == alone.host_waits().waited_ns.sum()

    def test_files_of_two_jobs_are_no_trace():
        names = ("v100_dlrm_rank0", "v100_128rank_rank1")
        with pytest.raises(OptionError, match=r"dlrm_rank0.* is of a job of .* 128"):
            gsl.load_trace([FOLDER / "kineto" / f"{name}.json.gz" for name in names])
