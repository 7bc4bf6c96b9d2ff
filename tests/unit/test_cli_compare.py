"""``gpustreamlab compare`` says by its exit status whether a run may pass, and why not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gpustreamlab import Trace, cli
from gpustreamlab.analysis import check_expression
from gpustreamlab.errors import OptionError, StreamNotFoundError


def pipeline(gap_ns: int = 0, count: int = 4, kind: str = "kernel") -> Trace:
    """Return copies with a kernel half beside each; a gap between them makes it longer."""
    starts = np.arange(count) * (1_000_000 + gap_ns)
    return Trace.from_columns(
        start_ns=[*starts, *(starts + 500_000)],
        end_ns=[*(starts + 800_000), *(starts + 900_000)],
        stream=["copy"] * count + ["compute"] * count,
        name=["h2d"] * count + ["gemm"] * count,
        kind=kind,
    )


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Save a baseline, and a run that takes 10% longer."""
    monkeypatch.chdir(tmp_path)
    pipeline().save("base.parquet")
    pipeline(130_000).save("slow.parquet")
    return tmp_path


@pytest.mark.parametrize(
    ("new", "options", "status"),
    [
        ("base", [], 0),
        ("base", ["--gate", "0"], 0),
        ("slow", [], 0),
        ("slow", ["--gate", "12"], 0),
        ("slow", ["--gate", "5%"], 1),
        ("slow", ["--expect", "overlap(copy, compute) >= 0.7"], 0),
        ("slow", ["--expect", "overlap(copy, compute) >= 76%"], 1),
        ("slow", ["--expect", "wall < 4 ms", "--expect", "count(gemm) == 4"], 1),
        ("slow", ["--expect", "wall < 5 ms", "--expect", "count(gemm) == 4"], 0),
        ("none", [], 2),
        ("base", ["--expect", "overlap(copy, computer) >= 0.6"], 2),
        ("base", ["--expect", "overlap >= 0.6"], 2),
        ("base", ["--expect", "wall < 4"], 2),
        ("base", ["--expect", "speed > 4"], 2),
        ("base", ["--expect", "host_waits == 0"], 2),
        ("base", ["--update"], 2),
        ("base", ["--gate", "-5"], 2),
        ("base", ["--gate", "nan"], 2),
        ("base", ["--expect", "p95(request) < 5 ms"], 2),
    ],
)
def test_the_exit_status_tells_whether_it_may_pass(runs, capsys, new, options, status):
    assert cli.main(["compare", "base.parquet", f"{new}.parquet", *options]) == status
    said = capsys.readouterr()
    assert (said.err if status == 2 else said.out).strip()
    assert ("FAIL" in said.out) is (status == 1)


def test_expectations_are_measured():
    trace = pipeline()
    found = {
        expression: check_expression(trace, expression).value
        for expression in (
            "overlap(copy, gemm) > 0",
            "wall > 0 ns",
            "idle > 0",
            "total(compute) > 0 ns",
            "p50(h2d) > 0 ns",
            "p95(gemm) > 0 us",
            "count(h2d) > 0",
            "strays == 0",
        )
    }
    assert list(found.values()) == [0.75, 3_900_000, 300_000 / 3_900_000, 1_600_000, 800_000, 400_000, 4, 0]


@pytest.mark.parametrize("expression", ["overlap(copy, compute) > 0", "idle < 1", "strays == 0"])
def test_ranges_alone_do_not_tell_what_kernels_would(expression):
    with pytest.raises(OptionError, match="cannot be told"):
        check_expression(pipeline(kind="range"), expression)


def test_a_name_that_did_not_run_is_told_with_the_nearest():
    with pytest.raises(StreamNotFoundError, match="gemm"):
        check_expression(pipeline(), "p95(gem) < 1 ms")
    with pytest.raises(OptionError, match="the same work"):
        check_expression(pipeline(), "overlap(compute, gemm) > 0")


def test_markdown_is_a_table_for_a_pull_request(runs, capsys):
    assert cli.main(["compare", "base.parquet", "slow.parquet", "--gate", "5", "--format", "markdown"]) == 1
    told = capsys.readouterr().out
    assert told.startswith("### Not as expected\n")
    assert "| ❌ | `wall time at most 5% longer` | 3.90 ms → 4.29 ms (×1.10) |" in told
    assert "| gemm | 1.60 ms | 1.60 ms | 0 ns | ×1.00 |" in told


def test_json_has_the_figures(runs, capsys):
    assert cli.main(["compare", "base.parquet", "slow.parquet", "--expect", "count(gemm) == 4", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["holds"] is True
    assert told["wall_ns"] == {"base": 3_900_000, "new": 4_290_000}
    assert told["expectations"] == [{"expression": "count(gemm) == 4", "value": 4.0, "holds": True}]


def test_a_named_baseline_is_written_where_all_holds(runs, capsys):
    assert cli.main(["compare", "@main", "base.parquet", "--gate", "5"]) == 2, "there is none yet"
    assert cli.main(["compare", "@main", "base.parquet", "--gate", "5", "--update"]) == 0
    kept = Path("gpustreamlab-baselines/main.parquet").read_bytes()
    assert cli.main(["compare", "@main", "slow.parquet", "--gate", "5", "--update"]) == 1
    assert Path("gpustreamlab-baselines/main.parquet").read_bytes() == kept
    assert cli.main(["compare", "@main", "slow.parquet", "--gate", "20", "--update", "--page", "both.html"]) == 0
    assert Path("gpustreamlab-baselines/main.parquet").read_bytes() != kept
    assert Path("both.html").stat().st_size
    assert cli.main(["compare", "@../main", "slow.parquet"]) == 2


def test_a_missing_baseline_says_what_to_type(runs, capsys):
    assert cli.main(["compare", "@main", "slow.parquet", "--gate", "5"]) == 2
    assert "gpustreamlab compare @main NEW --update" in capsys.readouterr().err


def test_what_nobody_thought_of_is_no_verdict(runs, capsys, monkeypatch):
    monkeypatch.setattr(cli, "judge", lambda *_, **__: 1 / 0)
    assert cli.main(["compare", "base.parquet", "slow.parquet"]) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_ranges_of_steps_are_named_without_these():
    names = [f"decode request={step} step={step}" for step in range(4)]
    trace = Trace.from_columns(start_ns=[0, 50, 80, 100], end_ns=[40, 70, 90, 130], stream=["a"] * 4, name=names)
    assert check_expression(trace, "count(decode) == 4").holds
    assert check_expression(trace, "p50(decode) > 0 ns").value == 25
    assert check_expression(trace, "p50(step) > 0 ns").value == 25
    assert check_expression(trace, "total(decode) > 0 ns").value == 100
    with pytest.raises(StreamNotFoundError, match="Did you mean 'decode'"):
        check_expression(trace, "p50(decod) > 0 ns")
