"""What bounds the mean concurrency beside the busiest stream: copy engines and SMs."""

from __future__ import annotations

import pytest

import gpustreamlab as gsl
from gpustreamlab.analysis import compare_traces, comparison_line, overlap, summary_text
from gpustreamlab.draw import plan_picture, text_timeline
from gpustreamlab.model import SMLimits, WorkDetail
from gpustreamlab.workloads import spin_card
from tests.helpers.kernel_traces import DECODE, PREFILL
from tests.helpers.traces import make_kernel_trace, make_trace


def full(blocks=132, **options):
    """Return a kernel of which one block fits on an SM."""
    return {"detail": WorkDetail(full_name="k", grid=(blocks, 1, 1), dynamic_shared_bytes=SMLimits().shared_bytes), **options}


def small(blocks, **launch):
    return {"detail": WorkDetail(full_name="s", grid=(blocks, 1, 1), **launch)}


def copy(name):
    return (name, {"kind": "copy"})


def both(first, second):
    """Return two spans that run for 100 ns each, the second 10 ns after the first, in two lanes."""
    return make_kernel_trace(
        [("a", first[0], 0, 100, first[1]), ("b", second[0], 10, 110, second[1])], partitions=(PREFILL, DECODE)
    )


@pytest.mark.parametrize(
    ("first", "second", "most", "reason"),
    [
        (copy("memcpy HtoD (pinned)"), copy("memcpy HtoD"), 1.0, "copies to the device share an engine"),
        (copy("memcpy DtoH (pinned)"), copy("memcpy DtoH"), 1.0, "copies to the host share an engine"),
        (copy("memcpy HtoD (pinned)"), copy("memcpy DtoH"), 2.0, ""),
        (copy("memcpy DtoD"), copy("memcpy DtoD"), 2.0, ""),
        (("k", full()), ("k", full()), 1.0, "kernels share the SMs"),
        (("k", full(131)), ("k", full(132)), 2.0, ""),
        # As many as fit on 132 SMs at once: 2,048 threads, 65,536 registers, 228 KiB or 32 blocks on each.
        (("s", small(132 * 8 - 1, block=(256, 1, 1))), ("s", small(132 * 8, block=(256, 1, 1))), 2.0, ""),
        (("s", small(132 * 8, block=(256, 1, 1))), ("s", small(132 * 8, block=(256, 1, 1))), 1.0, "kernels share the SMs"),
        (("s", small(132 * 2, block=(256, 1, 1), registers=128)), ("k", full()), 1.0, "kernels share the SMs"),
        (("s", small(132 * 7, static_shared_bytes=32 << 10)), ("k", full()), 1.0, "kernels share the SMs"),
        (("s", small(132 * 32 - 1)), ("k", full()), 2.0, ""),
        (("k", full()), copy("memcpy HtoD"), 2.0, ""),
        # 96 and 36 SMs beside each other are the whole card, which both can use at full speed.
        (("k", full(96, partition=0)), ("k", full(36, partition=1)), 2.0, ""),
        (("k", full(36, partition=1)), ("k", full(36, partition=1)), 1.0, "kernels share the SMs"),
        # One needs the whole card, the other 36 of its 132 SMs.
        (("k", full()), ("k", full(36, partition=1)), 200 / 127, "kernels share the SMs"),
    ],
)
def test_bound_knows_copy_engines_and_sms(first, second, most, reason):
    result = overlap(both(first, second))
    assert result.max_concurrency == pytest.approx(most)
    # THEN the bound is one of work at full speed: more says that the work slowed each other
    slowed = f"mean concurrency 1.82; at full speed at most {most:.2f}: {reason}, so they slowed each other>"
    assert repr(result).endswith(slowed if reason else f"mean concurrency 1.82 of at most {most:.2f}>")


def test_work_of_a_graph_that_overlaps_in_its_own_lane_counts_once():
    spans = [("a", "k", 0, 100, full()), ("a", "k", 0, 100, full()), ("b", "k", 100, 150, full())]
    result = overlap(make_kernel_trace(spans))
    assert (result.sum_ns, result.ideal_ns, result.max_concurrency) == (150, 150, 1.0)


def test_kernels_without_a_known_grid_leave_the_bound_to_the_streams_and_it_says_so():
    result = overlap(both(("k", full()), ("other", {})))
    assert result.max_concurrency == 2.0
    assert "left out where their grids are not known" in " ".join(str(result).split())
    assert "left out" not in str(overlap(both(("k", full()), ("k", full()))))


def test_a_mean_within_the_bound_says_what_bounds_it():
    one_after_the_other = [("a", "k", 0, 100, full()), ("b", "k", 110, 210, full())]
    text = repr(overlap(make_kernel_trace(one_after_the_other)))
    assert text.endswith("mean concurrency 1.00 of at most 1.00 at full speed: kernels share the SMs>")


def test_a_hair_above_the_bound_is_the_bound():
    a_hair = [("a", "k", 0, 100_000, full()), ("b", "k", 99_900, 200_000, full())]
    text = repr(overlap(make_kernel_trace(a_hair)))
    assert "mean concurrency 1.00 of at most 1.00 at full speed" in text


def test_the_mean_of_ranges_is_itself_a_bound_everywhere():
    # GIVEN two kernels that took turns, in two ranges that contain the waiting of one of them
    trace = make_trace([("a", "step", 0, 1_000), ("b", "step", 0, 2_000)])

    # THEN nobody says that it is as good as can be
    texts = (
        summary_text(trace),
        str(overlap(trace)),
        repr(overlap(trace)),
        text_timeline(trace),
        plan_picture(trace).header.finding,
    )
    for text in texts:
        words = " ".join(text.split())
        assert "mean concurrency up to 1.50" in words
        assert "of at most" not in words
    assert "What the ranges contain is not known" in " ".join(texts[1].split())


def test_thirty_kernels_that_fill_the_card_are_no_gain_and_compare_measures_the_loss():
    # GIVEN 30 kernels of 200 us that fill the card, one after the other, and in three streams where they slow each other
    one = make_kernel_trace([("a", "k", 200 * k, 200 * (k + 1), full()) for k in range(30)])
    lanes = "abc"
    three = make_kernel_trace([(lanes[k % 3], "k", 802 * (k // 3), 802 * (k // 3 + 1), full()) for k in range(30)])

    # THEN nothing is called a gain, and only measured walls say what is faster
    texts = (summary_text(three), str(overlap(three)), repr(overlap(three)))
    assert all(
        "mean concurrency 3.00; at full speed at most 1.00: kernels share the SMs, so they slowed each other"
        in " ".join(t.split())
        for t in texts
    )
    assert not any(word in text for text in texts for word in ("gain", "at best"))
    assert comparison_line(compare_traces(one, three)) == "wall time 6.00 µs → 8.02 µs (1.34× as long)"
    text = str(gsl.compare(one, three))
    assert "speed-up" not in text
    assert "mean concurrency" in text


@pytest.mark.parametrize(
    ("before", "after", "text"), [(100, 80, "1.25× faster"), (80, 100, "1.25× as long"), (100, 100, "equally long")]
)
def test_compare_says_faster_by_measured_walls(before, after, text):
    runs = [make_kernel_trace([("a", "k", 0, end)]) for end in (before, after)]
    assert comparison_line(compare_traces(*runs)).endswith(f"({text})")


def test_simulated_kernels_that_fill_the_card_share_it():
    with gsl.Session("sim") as lab, lab.capture("kernels"):
        for name in ("a", "b"):
            lab.stream(name)
            spin_card(lab, 100_000, stream=name)
        lab.synchronize()
        result = lab.trace.overlap()
    assert result.max_concurrency == pytest.approx(1.0)
    assert result.shared.are_grids_known
