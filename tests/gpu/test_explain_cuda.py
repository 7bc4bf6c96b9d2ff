"""Why work did not overlap, on a real GPU: planted causes are named, clean programs are left alone."""

import subprocess
import sys

import pytest

from gpustreamlab import Session
from gpustreamlab.typing import Cause
from gpustreamlab.workloads import spin, spin_card
from tests.helpers.planted import CLEAN, PLANTED
from tests.helpers.planted_cuda import PLANTED_CUDA

PROGRAMS = [
    pytest.param(cause, program, id=program.__name__)
    for planted in (PLANTED, PLANTED_CUDA)
    for cause, programs in planted.items()
    for program in programs
]


@pytest.fixture(scope="module", autouse=True)
def _warm():
    """Load the kernels: the first launch of each takes long, which would be a cause of its own."""
    with Session("cuda", capture="ranges") as lab:
        lab.stream("warm")
        spin(lab, 1_000, stream="warm")
        spin_card(lab, 1_000, stream="warm")
        lab.synchronize()


TRIES = 3
"""A host that something else holds up between two launches is late indeed, and is told of: seen in 2 of 260 runs."""


def explained(program):
    with Session("cuda", capture="ranges") as lab:
        lab.capture("kernels", host=True)
        program(lab)
        lab.synchronize()
        names = {lane.name for lane in lab.trace.lanes}
        return lab.explain("a", "b") if {"a", "b"} <= names else lab.explain()


@pytest.mark.parametrize(("cause", "program"), PROGRAMS)
def test_a_planted_cause_is_named_first(cause, program):
    tries = []
    for _ in range(TRIES):
        tries.append(explained(program))
        if tries[-1].findings and tries[-1].findings[0].code == cause:
            return
    pytest.fail("\n\n".join(map(str, tries)))


@pytest.mark.parametrize("program", CLEAN, ids=lambda program: program.__name__)
def test_nothing_is_found_in_a_clean_program(program):
    assert any(not explained(program).findings for _ in range(TRIES)), str(explained(program))


@pytest.mark.parametrize(
    ("variable", "program", "cause"),
    [
        ("CUDA_LAUNCH_BLOCKING", "beside", Cause.SERIALISED_BY_TOOL),
        ("CUDA_LAUNCH_BLOCKING", "event_wait", Cause.SERIALISED_BY_TOOL),
        ("CUDA_LAUNCH_BLOCKING", "tiny_kernels", Cause.SERIALISED_BY_TOOL),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "sixteen_streams", Cause.QUEUE_ALIAS),
    ],
)
def test_what_the_environment_does_is_named(variable, program, cause, monkeypatch):
    monkeypatch.setenv(variable, "1")
    code = f"""
from gpustreamlab import Session
from tests.helpers import planted, planted_cuda
program = getattr(planted, {program!r}, None) or planted_cuda.{program}
with Session("cuda", capture="ranges") as lab:
    lab.capture("kernels", host=True)
    program(lab)
    lab.synchronize()
    print(lab.explain().findings[0].code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split()[-1] == cause
