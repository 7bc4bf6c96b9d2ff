"""Only of the same work one run is faster than another."""

from __future__ import annotations

import pytest

import gpustreamlab as gsl
from gpustreamlab.analysis import compare_traces, comparison_line
from gpustreamlab.workloads import spin_card
from tests.helpers.traces import empty_trace, make_kernel_trace, make_trace


def kernels(*names, size_bytes=None, end_ns=100):
    """One span a name, one after the other; a name that begins with "memcpy" is a copy."""
    spans = []
    for place, name in enumerate(names):
        is_copy = name.startswith("memcpy")
        options = {"kind": "copy" if is_copy else "kernel"}
        if is_copy and size_bytes is not None:
            options["size_bytes"] = size_bytes
        spans.append(("a", name, place * end_ns, (place + 1) * end_ns, options))
    return make_kernel_trace(spans)


def ranges(*names):
    return make_trace([("a", name, place * 100, (place + 1) * 100) for place, name in enumerate(names)])


def around(name, kernel):
    """A range and a kernel in it, captured."""
    return make_kernel_trace([("a", name, 0, 100, {"kind": "range"}), ("a", kernel, 20, 70, {"parent": 0})])


@pytest.mark.parametrize(
    ("a", "b", "note"),
    [
        (kernels("gemm"), kernels("gemm", end_ns=50), ""),
        (kernels(*["gemm"] * 4), kernels("gemm", "gemm"), "Not the same work: 4 kernels against 2"),
        (kernels("gemm"), kernels("gemm", "gemm"), "Not the same work: 1 kernel against 2"),
        (
            kernels("gemm", "gemm", "memcpy HtoD"), kernels("gemm", "memcpy HtoD"),
            "Not the same work: 3 kernels and copies against 2",
        ),
        (
            kernels("gemm", "gemm", "relu"), kernels("gemm", "relu", "relu"),
            "Not the same work: 3 kernels in both, but not the same ones; gemm 2 times in a, 1 time in b",
        ),
        # Names that differ by a number are one, and so are copies from pinned memory and not.
        (kernels("step 0", "step 1"), kernels("step 2", "step 3"), ""),
        (kernels("memcpy HtoD (pinned)"), kernels("memcpy HtoD (pageable)"), ""),
        (kernels("memcpy HtoD", size_bytes=2_000), kernels("memcpy HtoD", size_bytes=1_000),
         "Not the same work: 2,000 B copied against 1,000 B"),
        (kernels("memcpy HtoD", size_bytes=2_000), kernels("memcpy HtoD"), ""),
        # Of ranges only those are known; beside kernels they are only how the work is called.
        (ranges("step 0", "step 1"), ranges("step 0"), "Not the same work: 2 ranges against 1"),
        (ranges("step 0", "step 1"), ranges("step 0", "step 7"), ""),
        (around("naive", "gemm"), around("fused", "gemm"), ""),
        (around("step", "gemm"), ranges("step"), ""),
        (around("step", "gemm"), ranges("step 0", "step 1"), "Not the same work: 1 range against 2"),
        # Where one has no ranges, nothing is known.
        (kernels("gemm", "gemm"), ranges("step"), ""),
        (empty_trace(), empty_trace(), ""),
        (empty_trace(), ranges("step"), "Not the same work: 0 ranges against 1"),
    ],
)  # fmt: skip
def test_work_is_compared_by_what_is_known_of_both(a, b, note):
    result = compare_traces(a, b)
    assert result.work_note == note
    assert (result.notes[:1] == (f"{note}.",)) is bool(note)
    assert ("faster" in comparison_line(result)) <= (not note)


def test_half_of_the_steps_are_not_twice_as_fast():
    # GIVEN a trial's two runs: 16 steps, and 8 of the same
    runs = []
    for step_count in (16, 8):
        with gsl.Session("sim") as lab:
            for step in range(step_count):
                with lab.on(lab.stream("a"), f"step {step}"):
                    spin_card(lab, 100_000)
            lab.synchronize()
            runs.append(lab.trace)
    text = repr(gsl.compare(*runs))
    assert text.startswith("<Comparison: not the same work: 16 kernels against 8; wall time 1.6")
    assert text.endswith("(0.50× as long)>")
