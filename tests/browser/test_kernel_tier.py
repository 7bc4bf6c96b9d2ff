"""Reading a timeline with kernels: tips, launches, strays, memory, calls of the host, windows of capture; with a real mouse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpustreamlab.draw import WORK_DEFAULTS, columns_of
from gpustreamlab.model import Counters, Lane, WorkDetail
from tests.helpers.engine import make_columns, pack, random_columns, take
from tests.helpers.kernel_traces import MS, US, kernel_trace, make_kernel_trace
from tests.helpers.traces import make_trace

pytestmark = pytest.mark.browser


def tip_facts(reader):
    """What the tip says, by its labels."""
    return reader.js(
        "Object.fromEntries([...document.querySelectorAll('.gsl-tip dl > div')].map(({children: [label, text]}) => "
        "[label.textContent, text.textContent]))"
    )


# ---- tips and panels


def test_tips_of_work_ranges_calls_and_memory_tell_what_is_known(read):
    reader = read(kernel_trace())
    reader.hover("gemm_bf16")
    assert reader.tip().startswith("gemm_bf16")
    assert tip_facts(reader) == {
        "stream": "prefill", "partition": "prefill · 96 SMs", "kind": "kernel", "start": "296 µs (296,000 ns)",
        "duration": "790 µs (790,000 ns)", "range": "'step 0'",
        "SMs": "96 of 96 (192 blocks, 2 fit on one)", "grid": "96×2 blocks × 128 threads",
        "in full": "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_128x128>(cutlass::Params)",
        "registers": "230 a thread", "shared": "97.0 KiB a block (1.00 KiB static, 96.0 KiB dynamic)",
        "queueing": "280 µs (280,000 ns) from launch to start", "thread": "MainThread",
        "waited for": "copy HtoD on copies · ended 10.0 µs before this started",
    }  # fmt: skip
    reader.hover("copy HtoD")
    assert tip_facts(reader)["bytes"] == "16.0 MiB, 60.3 GB/s"
    reader.hover("step 0")
    assert tip_facts(reader)["work"] == "first starts +5.00 µs, last ends −10.0 µs, 3 kernels and copies"
    reader.hover("attention")
    assert tip_facts(reader)["work"].endswith("5 kernels and copies")
    reader.hover("cudaStreamSynchronize")
    facts = tip_facts(reader)
    assert facts["call"] == "synchronise: the host waits for the device"
    assert facts["thread"] == "host: MainThread"
    assert "partition" not in facts
    row = reader.js("w.tables.lanes.findIndex(lane => lane.name === 'torch stream 13')")
    code = reader.js("w.tables.rows.findIndex(row => row.lane === argument)", row)
    reader.page.mouse.move(*reader.place(code, 0))
    reader.settle()
    assert tip_facts(reader)["stray"] == "range 'attention' selected stream decode"
    strip = reader.js("(w.arrange({ memory: true }), w.scrollTo(0), w.tables.memory[0])")
    reader.settle()
    top = reader.js("v.figureElement.getBoundingClientRect().top + w.yAt(argument)", (strip["top"] + strip["bottom"]) / 2)
    reader.page.mouse.move(reader.at(0.6 * MS)[0], top)
    reader.settle()
    assert reader.tip().startswith("Memory of prefill")
    facts = tip_facts(reader)
    assert (facts["pool in use"], facts["pool reserved"]) == ("96.0 MiB, since 486 µs", "112 MiB, since 486 µs")


def blocking_copy_trace():
    """Calls that start in one ns; and a copy into pageable memory, which waits for the kernel in front of it."""
    into = WorkDetail(full_name="device memory to pageable host memory")
    return make_kernel_trace(
        [
            ("host: MainThread", "cudaMalloc", 100, 100, {"kind": "host"}),
            ("host: MainThread", "cudaLaunchKernel", 100, 4_100, {"kind": "host"}),
            ("a", "sum", 4_000, 490_000),
            ("host: MainThread", "cudaMemcpyAsync", 20_000, 501_000, {"kind": "host"}),
            ("a", "memcpy DtoH", 490_000, 500_500, {"kind": "copy", "detail": into, "size_bytes": 64}),
        ],
        edges=[(1, 2, "launch"), (3, 4, "launch")],
    )


def test_rows_kinds_and_rates_are_written_as_what_they_are(read):
    reader = read(kernel_trace())
    names = [lane["name"] for lane in reader.js("w.tables.lanes")]
    words = dict(zip(names, reader.js("w.tables.lanes.map((_, lane) => gpustreamlab.workWord(w, lane))"), strict=True))
    assert (words["prefill"], words["copies"], words["decode"]) == ("kernels", "copies", "work")
    found = reader.js(
        """[...document.querySelectorAll('.gsl-legend [data-entry^="hiddenKinds"]')].map(chip => [chip.textContent.trim(),
        chip.querySelectorAll('.gsl-swatch').length, chip.querySelectorAll('[data-shape=hollow]').length])"""
    )
    assert found == [["range", 1, 1], ["kernel", 1, 0], ["copy", 1, 0], ["fill", 1, 0], ["NVTX", 1, 1]]
    rates = reader.js("[4250, 60.31, 0.9996, 0.012, 2e-7].map(gpustreamlab.formatSpeed)")
    assert rates == ["4,250 GB/s", "60.3 GB/s", "1.00 GB/s", "12.0 MB/s", "0.20 kB/s"]


def test_a_blocking_copy_says_how_long_and_for_what_and_looks_as_a_synchronisation(read):
    reader = read(blocking_copy_trace())
    reader.hover("cudaMemcpyAsync")
    facts = tip_facts(reader)
    assert facts["call"] == "launch: the host waits for the device"
    assert facts["blocked"] == "481 µs, for sum"
    reader.hover("cudaLaunchKernel")
    assert "blocked" not in tip_facts(reader)
    looks = reader.js(
        """s.rows.flatMap(row => [...row.name.slice(0, row.length)].map((name, index) => {
          const {looks} = v.painter
          return [w.tables.names[name], looks.fills[looks.code(row, index)]]
        })).filter(([name]) => name.startsWith("cuda"))"""
    )
    fills = reader.js("w.tables.palette.slice(-w.tables.call_styles.length).map(tints => tints[0])")
    styles = {label: fill for (label, *_), fill in zip(reader.js("w.tables.call_styles"), fills, strict=False)}
    assert dict(looks) == {
        "cudaMalloc": styles["memory"], "cudaLaunchKernel": styles["launch"], "cudaMemcpyAsync": styles["synchronise"],
    }  # fmt: skip
    # No name stands for it in the legend: its colour is explained there, and nothing is to click.
    assert reader.page.locator(".gsl-legend span.gsl-chip").all_text_contents() == ["synchronise"]


def test_of_calls_that_start_together_the_one_that_launched_is_named(read):
    reader = read(blocking_copy_trace())
    reader.click("sum")
    details = reader.page.locator(".gsl-details")
    details.get_by_role("button", name="cudaLaunchKernel on host: MainThread · called 3.90 µs before this started").click()
    reader.settle()
    assert reader.pinned()[0] == "cudaLaunchKernel"
    assert "Launched" in details.inner_text()
    row, index = reader.find("cudaMalloc")
    reader.js("w.set('pinned', {row: argument[0], index: argument[1]})", [row, index])
    reader.settle()
    assert reader.pinned()[0] == "cudaMalloc"
    assert "Launched" not in details.inner_text()


def test_of_a_launch_the_arrow_the_call_and_the_way_back_are_shown(read):
    reader = read(kernel_trace())
    assert reader.arrows("paintOwnLaunches") == [0]
    reader.hover("softmax")
    assert reader.arrows("paintOwnLaunches") == [1]
    reader.click("gemm_bf16")
    details = reader.page.locator(".gsl-details")
    assert "Launched by" in details.inner_text()
    details.get_by_role("button", name="cudaLaunchKernel on host: MainThread · called 280 µs before this started").click()
    reader.settle()
    assert reader.pinned()[0] == "cudaLaunchKernel"
    details.get_by_role("button", name="gemm_bf16 on prefill · started 280 µs after this was called").click()
    reader.settle()
    assert reader.pinned()[0] == "gemm_bf16"


def test_long_names_are_whole_in_the_panel_and_cut_in_the_tip(read):
    detail = kernel_trace().details[0]
    long = type(detail)(full_name="void " + "ns::" * 180 + "kernel()", grid=(4, 1, 1), block=(32, 1, 1))
    reader = read(make_kernel_trace([("a", "kernel", 0, 900, {"detail": long})]))
    reader.hover("kernel")
    box = reader.page.locator(".gsl-tip [data-fact='in full'] dd").bounding_box()
    assert box["height"] < 90
    reader.click("kernel")
    assert long.full_name in reader.page.locator(".gsl-details").inner_text().replace("\n", "")


# ---- strays, calls, memory, windows


def test_the_corner_of_a_stray_is_painted(read):
    reader = read(kernel_trace(), device_scale_factor=2)
    code = reader.js("w.tables.rows.findIndex(row => w.tables.lanes[row.lane].name === 'torch stream 13')")
    _, top, right, _ = reader.span_box(code, 0)
    left, above, _, _ = reader.box("figure")
    found = reader.pixels([right - 3 - left, top + 2.5 - above, 0, 0])[0, 0, :3]
    assert np.abs(found - [196, 13, 46]).max() < 30


def test_strays_are_found_by_their_chip_and_calls_hidden_by_what_they_are_for(read):
    reader = read(kernel_trace())
    before = reader.drawn_count()
    reader.click_chip("synchronise")
    reader.settle()
    assert before - reader.drawn_count() == 4
    names = reader.page.locator(".gsl-all [data-entry^=hiddenNames] .gsl-text").all_text_contents()
    assert "gemm_bf16" in names
    assert not any(name.startswith("cuda") for name in names)
    reader.page.locator(".gsl-chip", has_text="strays").click()
    reader.settle()
    assert reader.page.locator(".gsl-search input").input_value() == "is:stray"
    assert reader.text("found") == "8 found"
    reader.press("Enter")
    assert reader.pinned()[0] == "elementwise"
    assert read(kernel_trace(has_strays=False)).page.locator(".gsl-chip", has_text="stray").count() == 0


def test_windows_of_capture_have_a_strip_where_something_is_left_out(read):
    assert read(kernel_trace()).js("w.parts.capture") is None
    partly = read(kernel_trace(windows=((0, 2 * MS), (6 * MS, 7 * MS))))
    assert partly.js("w.parts.capture.top > w.parts.lanesPx")


def test_a_wait_is_drawn_once_between_work_or_between_ranges_where_work_is_hidden(read):
    reader = read(kernel_trace())
    # One of each step: the upload of the batch holds up its matrix product.
    assert (reader.js("s.edges.length"), reader.arrows()[0]) == (8, 4)
    for label in ("kernel", "copy"):
        reader.click_chip(label)
        reader.settle()
        assert reader.arrows()[0] == 4
    reader.click_chip("range")
    reader.settle()
    assert reader.arrows()[0] == 0


def test_of_many_arrows_those_of_the_span_under_the_pointer_are_drawn_until_few_are_in_view(read):
    count = 400
    spans = [(lane, "x", 100 * k + at, 100 * k + at + 20) for k in range(count) for lane, at in (("a", 0), ("b", 40))]
    reader = read(make_kernel_trace(spans, edges=[(2 * k, 2 * k + 1) for k in range(count)]))
    assert (*reader.arrows(), reader.js("v.painter.hiddenEdges")) == (0, 0, count)
    reader.js("w.set('hovered', {row: 0, index: 7})")
    assert reader.arrows()[1] == 1
    reader.js("w.setRange(0, 1_500)")
    reader.settle()
    assert (reader.arrows()[0], reader.js("v.painter.hiddenEdges")) == (15, 0)


def test_memory_is_folded_until_it_is_asked_for(read):
    reader = read(kernel_trace(), height=500)
    strips = "w.tables.memory.map(({ top, bottom }) => bottom - top)"
    before = reader.js("w.tables.height_px")
    assert reader.js(strips) == [0, 0]
    assert reader.js("w.tables.lanes.flatMap(lane => lane.parts).filter(([label]) => label === 'memory')") == []
    # WHEN it is chosen in the menu
    reader.press("v")
    reader.page.get_by_role("checkbox", name="Memory").check()
    reader.settle()
    # THEN each lane that has memory has its strip, below its rows, and a link keeps it
    assert all(height > 8 for height in reader.js(strips))
    assert reader.js("w.tables.height_px") > before
    assert reader.js("w.kept.get('lanes').read().memory") is True
    places = reader.js("w.tables.memory.map(({ lane, bottom }) => bottom <= w.tables.lanes[lane].bottom)")
    assert places == [True, True]
    reader.page.get_by_role("checkbox", name="Memory").uncheck()
    reader.settle()
    assert reader.js("w.tables.height_px") == before


def test_a_stream_with_memory_alone_is_no_lane_until_memory_is_asked_for(read):
    spans = [("a", "gemm", 0, 9 * MS), ("b", "gemm", 0, 9 * MS)]
    lanes = (Lane(name="a", stream=1), Lane(name="b", stream=2), Lane(name="default stream", stream=0, outside=True))
    counters = Counters(time_ns=[0, MS], lane=[2, 2], name=[0, 0], value=[7.0, 9.0], names=("pool_used_bytes",))
    reader = read(replace(make_kernel_trace(spans, lanes=lanes), counters=counters))
    names = "w.laneOrder.map(code => w.planned.lanes[code].name)"
    assert reader.js(names) == ["a", "b"]
    assert reader.js(f"(w.arrange({{ memory: true }}), {names})") == ["a", "b", "default stream"]


@pytest.mark.parametrize("count", [3_000, 100_000])
@pytest.mark.parametrize("ratio", [1, 2])
def test_even_kernels_have_no_stripes(read, count, ratio):
    reader = read(
        make_kernel_trace([("a", "spin", 4_000 * k, 4_000 * k + 1_000) for k in range(count)]), device_scale_factor=ratio
    )
    left, right, top, bottom = reader.js(
        "[w.pxAt(s.firstNs), w.pxAt(s.lastNs), w.yAt(w.tables.rows[0].top), w.yAt(w.tables.rows[0].bottom)]"
    )
    # How high each column of px is filled, from below, as a share.
    fill = [int(reader.js("w.tables.palette[0][0]")[place : place + 2], 16) for place in (1, 3, 5)]
    heights = (reader.pixels([left + 8, top, right - left - 16, bottom - top])[..., :3] == fill).all(axis=2).mean(axis=0)
    # One of 4 parts of the time is busy, everywhere alike.
    assert np.ptp(heights) == 0
    assert heights[0] == pytest.approx(0.25, abs=0.05)


def test_what_is_not_known_is_left_out_and_a_moment_is_drawn(read):
    detail = WorkDetail(full_name="simulated::matmul", grid=(64, 1, 1), block=(0, 0, 0))
    reader = read(make_kernel_trace([("a", "matmul", 0, 900, {"detail": detail})]))
    reader.hover("matmul")
    facts = tip_facts(reader)
    assert facts["grid"] == "64 blocks"
    assert facts["SMs"] == "2 of 132 (64 blocks, 32 fit on one)"
    assert not {"registers", "shared"} & set(facts)
    reader = read(make_kernel_trace([("a", "step", 0, 0, {"kind": "range"}), ("a", "gemm", 0, 5 * US, {"parent": 0})]))
    reader.hover("gemm")
    assert tip_facts(reader)["range"] == "'step'"


def test_names_of_calls_that_differ_by_numbers_are_one_as_in_the_totals_of_the_trace(read):
    names = [f"aten::to, seq = {k}, op_id = {k + 7}" for k in range(3)]
    names += ["batch=1, head 2", "batch=3, head 4", "k<1>(x)", "k<2>(x)"]
    trace = make_trace([("a", name, 10 * k, 11 * k + 5) for k, name in enumerate(names)])
    reader = read(trace)
    reader.page.locator(".gsl-more").click()
    told = reader.page.locator(".gsl-all [data-entry^=hiddenNames] .gsl-text").all_text_contents()
    assert sorted(told) == sorted(trace.totals("name").labels)


# ---- the engine


def work_columns(count, seed):
    rng = np.random.default_rng(seed)
    least = {"detail": -1, "owner_name": -1, "owner_lane": -1, "work_lead_ns": -70_000, "work_tail_ns": -9}
    least["waited_name"] = -2
    most = {"detail": 300, "size_bytes": 1 << 40, "owner_name": 300, "owner_lane": 5, "work_lead_ns": 90, "work_tail_ns": 9}
    return {name: rng.integers(least.get(name, 0), most.get(name, 400), count) for name in WORK_DEFAULTS}


def with_work(columns, seed):
    given = {name: getattr(columns, name) for name in ("name", "kind", "thread", "partition", "queueing_ns", "place")}
    return make_columns(columns.row, columns.start_ns, columns.end_ns, **given, **work_columns(len(columns), seed))


def expected_work(columns):
    keys = ("detail", "size", "ownerName", "ownerLane", "workLead", "workTail", "workCount", "waitedName")
    rows = [columns.row == code for code in range(int(columns.row.max()) + 1)]
    return [{key: getattr(columns, name)[own].tolist() for key, name in zip(keys, WORK_DEFAULTS, strict=True)} for own in rows]


@pytest.mark.parametrize("level", [None, 6])
def test_columns_of_work_come_back_exactly(engine, level):
    columns = with_work(random_columns(3, 400), 3)
    found = engine.evaluate("async packed => (await make([packed])).rows.map(workOf)", pack(columns, level))
    assert found == expected_work(columns)


@pytest.mark.parametrize("lateness", [0, 80, 4_000])
def test_batches_with_and_without_work_become_one(engine, lateness):
    plain = random_columns(lateness, 300, lateness=lateness)
    work = with_work(plain, 5)
    arrival = np.argsort(plain.place)
    chunks = [arrival[at : at + 20] for at in range(0, 300, 20)]
    # Every second batch tells nothing of work, as those before a capture.
    packed = [pack(take(work if number % 2 else plain, chunk)) for number, chunk in enumerate(chunks)]
    known = np.isin(np.arange(300), np.concatenate(chunks[1::2]))
    kept = {name: np.where(known, getattr(work, name), value) for name, value in WORK_DEFAULTS.items()}
    expected = make_columns(plain.row, plain.start_ns, plain.end_ns, place=plain.place, **kept)
    found = engine.evaluate("async packed => (await make(packed)).rows.map(workOf)", packed)
    assert found == expected_work(expected)


def test_launches_are_kept_apart_from_waits(engine):
    trace = kernel_trace()
    columns = columns_of(trace, trace.lane, 0)
    found = engine.evaluate(
        "async packed => { const {edges, launches} = await make([packed]); return [edges.length, launches.length,"
        "  [...launches.x1.slice(0, launches.length)].every((time, i) => time > launches.x0[i])] }",
        pack(columns),
    )
    assert found == [int((columns.edge_kind == 0).sum()), int((columns.edge_kind == 1).sum()), True]
