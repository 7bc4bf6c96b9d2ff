"""The sanitizer's runner, with a stand-in for the sanitizer."""

from __future__ import annotations

import pytest

from gpustreamlab.testing import CAPTURE_CHECKS, CONTRACT_CHECKS, PARTITION_CHECKS
from scripts import sanitize


@pytest.fixture
def sanitizer(tmp_path):
    """Return a function that makes a stand-in which says one thing of the probe, and another of the battery."""

    def make(probe, battery="", statuses=(0, 0)):
        path = tmp_path / "compute-sanitizer"
        path.write_text(
            f"#!/bin/sh\necho '========= COMPUTE-SANITIZER'\n"
            f"case \"$*\" in *pytest*) echo '{battery}'; exit {statuses[1]};; *) echo '{probe}'; exit {statuses[0]};; esac\n"
        )
        path.chmod(0o755)
        return str(path)

    return make


def told(capsys):
    return capsys.readouterr().out


CLEAN = "========= ERROR SUMMARY: 0 errors"


REFUSED = 'Program hit CUDA_ERROR_INVALID_HANDLE (error 400) due to "invalid" on CUDA API call to cuStreamGetId.'


def test_a_clean_battery_is_status_0(sanitizer, capsys):
    assert sanitize.main(["--sanitizer", sanitizer(CLEAN, f"47 passed in 3 s\n{CLEAN}")]) == 0
    assert "memcheck: 0 errors; 0 calls that the driver refused; 47 checks of the contract passed, 0 failed." in told(capsys)


def test_refused_calls_are_listed_and_fail_nothing(sanitizer, capsys):
    battery = f"46 passed\n========= {REFUSED}\n=========     Host Frame: x"
    battery += f"\n========= {REFUSED}\n========= Target application returned an error\n========= ERROR SUMMARY: 2 errors"
    assert sanitize.main(["--sanitizer", sanitizer(CLEAN, battery, (0, 86))]) == 0
    text = told(capsys)
    assert f"     2  {REFUSED}\n" in text
    assert "0 errors; 2 calls that the driver refused; 46 checks of the contract passed, 0 failed." in text


BAD = {
    "a failed check": (
        f"FAILED tests/gpu/a.py::test_b - assert\n1 failed, 46 passed\n{CLEAN}", 1,
        "Failed under memcheck: tests/gpu/a.py::test_b\nmemcheck: 0 errors; 0 calls that the driver refused; 46 checks",
    ),
    "errors": (
        "47 passed\n========= Invalid __global__ write of size 4 bytes\n========= ERROR SUMMARY: 1 error", 86,
        "     1  Invalid __global__ write of size 4 bytes\nmemcheck: 1 errors",
    ),
    "nothing ran": (f"47 deselected\n{CLEAN}", 5, "did not come to an end of the battery; the run ended with status 5"),
    "it died": ("Segmentation fault", 139, "did not come to an end of the battery; the run ended with status 139"),
}  # fmt: skip


@pytest.mark.parametrize(("battery", "status", "message"), BAD.values(), ids=BAD.keys())
def test_whatever_is_not_clean_is_status_1(sanitizer, capsys, battery, status, message):
    assert sanitize.main(["--sanitizer", sanitizer(CLEAN, battery, (0, status))]) == 1
    assert message in told(capsys)


def test_a_refused_device_is_told_in_the_sanitizers_words(sanitizer, capsys):
    refusal = "========= Error: Device not supported. Please refer to the documentation."
    assert sanitize.main(["--sanitizer", sanitizer(refusal, statuses=(1, 0))]) == 2
    text = told(capsys)
    assert "does not work on this device" in text
    assert text.endswith("Error: Device not supported. Please refer to the documentation.\n")


def test_a_missing_sanitizer_is_told(capsys):
    assert sanitize.main(["--sanitizer", "no-such-sanitizer"]) == 2
    assert "no no-such-sanitizer on the PATH" in capsys.readouterr().out


def test_a_run_that_takes_too_long_is_stopped(tmp_path):
    outcome = sanitize.run(["sleep", "60"], timeout_s=0.1)
    assert (outcome.error_count, outcome.text) == (None, "\nStopped after 0.1 s.")


def test_checks_that_need_cupti_or_true_times_are_left_out():
    left_out = {part.removeprefix("not ") for part in sanitize.selection().split(" and ")}
    assert left_out == {check.__name__ for check in CAPTURE_CHECKS} | set(sanitize.TIMED_CHECKS)
    assert [name for name in sanitize.TIMED_CHECKS if name not in {check.__name__ for check in PARTITION_CHECKS}] == []
    assert not any(name in check.__name__ for name in left_out for check in CONTRACT_CHECKS)
