"""Reading a timeline with kernels: tips, launches, strays, memory, calls of the host, windows of capture; with a real mouse."""

from __future__ import annotations

import numpy as np
import pytest

from gpustreamlab.draw._columns import WORK_DEFAULTS, columns_of
from tests.helpers.engine import engine_page, make_columns, pack, random_columns, take
from tests.helpers.kernel_traces import MS, US, kernel_trace, make_kernel_trace
from tests.helpers.reader import open_readers
from tests.helpers.traces import pipeline_trace

pytestmark = pytest.mark.browser


@pytest.fixture
def read(chromium, tmp_path):
    with open_readers(chromium, tmp_path) as function:
        yield function


@pytest.fixture(scope="module")
def engine(chromium):
    with engine_page(chromium) as page:
        yield page


def tip_facts(reader):
    """What the tip says, by its labels."""
    return reader.js(
        "Object.fromEntries([...document.querySelectorAll('.gsl-tip dl > div')].map(({children: [label, text]}) => "
        "[label.textContent, text.textContent]))"
    )


# ---- tips and panels


def test_tip_of_a_kernel_shows_how_it_was_launched_and_where(read):
    reader = read(kernel_trace())
    reader.hover("gemm_bf16")
    assert reader.tip().startswith("gemm_bf16")
    assert tip_facts(reader) == {
        "stream": "prefill", "partition": "prefill · 96 SMs", "kind": "kernel", "start": "296 µs (296,000 ns)",
        "duration": "790 µs (790,000 ns)", "range": "'step 0'", "grid": "96×2 blocks × 128 threads",
        "in full": "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_128x128>(cutlass::Params)",
        "registers": "230 a thread", "shared": "97.0 KiB a block (1.00 KiB static, 96.0 KiB dynamic)",
        "queueing": "280 µs (280,000 ns) from launch to start", "thread": "MainThread",
    }  # fmt: skip


def test_tip_of_a_copy_shows_bytes_and_bandwidth(read):
    reader = read(kernel_trace())
    reader.hover("copy HtoD")
    assert tip_facts(reader)["bytes"] == "16.0 MiB, 60.3 GB/s"


def test_tip_of_a_range_says_when_its_work_ran(read):
    reader = read(kernel_trace())
    reader.hover("step 0")
    assert tip_facts(reader)["work"] == "first starts +5.00 µs, last ends −10.0 µs, 3 kernels and copies"
    reader.hover("attention")
    assert tip_facts(reader)["work"].endswith("5 kernels and copies")


def test_tip_of_a_synchronisation_says_that_the_host_waits(read):
    reader = read(kernel_trace())
    reader.hover("cudaStreamSynchronize")
    facts = tip_facts(reader)
    assert facts["call"] == "synchronise: the host waits for the device"
    assert facts["thread"] == "host: MainThread"
    assert "partition" not in facts


def test_tip_of_a_stray_says_which_stream_was_selected(read):
    reader = read(kernel_trace())
    row = reader.js("w.tables.lanes.findIndex(lane => lane.name === 'torch stream 13')")
    code = reader.js("w.tables.rows.findIndex(row => row.lane === argument)", row)
    reader.page.mouse.move(*reader.place(code, 0))
    reader.settle()
    assert tip_facts(reader)["stray"] == "range 'attention' selected stream decode"


def test_a_pinned_kernel_leads_to_the_call_that_launched_it_and_back(read):
    reader = read(kernel_trace())
    reader.click("gemm_bf16")
    details = reader.page.locator(".gsl-details")
    assert "Launched by" in details.inner_text()
    details.get_by_role("button", name="cudaLaunchKernel on host: MainThread · called 280 µs before this started").click()
    reader.settle()
    assert reader.pinned()[0] == "cudaLaunchKernel"
    details.get_by_role("button", name="gemm_bf16 on prefill · started 280 µs after this was called").click()
    reader.settle()
    assert reader.pinned()[0] == "gemm_bf16"


def test_arrows_of_launches_are_those_of_what_is_under_the_pointer(read):
    reader = read(kernel_trace())
    count = """(() => { let heads = 0; const plain = Path2D.prototype.closePath
      Path2D.prototype.closePath = function () { heads++; plain.call(this) }
      gpustreamlab.paintOwnLaunches(document.createElement("canvas").getContext("2d"), v.painter)
      Path2D.prototype.closePath = plain; return heads })()"""
    assert reader.js(count) == 0
    reader.hover("softmax")
    assert reader.js(count) == 1


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


def test_strays_are_found_by_their_chip(read):
    reader = read(kernel_trace())
    reader.page.locator(".gsl-chip", has_text="strays").click()
    reader.settle()
    assert reader.page.locator(".gsl-search input").input_value() == "is:stray"
    assert reader.text("found") == "8 found"
    reader.press("Enter")
    assert reader.pinned()[0] == "elementwise"
    assert read(kernel_trace(has_strays=False)).page.locator(".gsl-chip", has_text="stray").count() == 0


def test_the_corner_of_a_stray_is_painted(read):
    reader = read(kernel_trace(), device_scale_factor=2)
    code = reader.js("w.tables.rows.findIndex(row => w.tables.lanes[row.lane].name === 'torch stream 13')")
    left, top, right, _ = reader.span_box(code, 0)
    found = reader.js(
        """(() => {
          const {primary: {canvas}, pixel_ratio: ratio} = v.plotView.canvas_view, box = v.figureElement.getBoundingClientRect()
          const copy = Object.assign(document.createElement("canvas"), {width: canvas.width, height: canvas.height})
          const ctx = copy.getContext("2d", {willReadFrequently: true})
          ctx.drawImage(canvas, 0, 0)
          const [x, y] = [argument[0] - box.left, argument[1] - box.top].map(place => Math.round(place * ratio))
          return [...ctx.getImageData(x, y, 1, 1).data].slice(0, 3)
        })()""",
        [right - 3, top + 2.5],
    )
    assert right > left
    assert np.abs(np.array(found) - [196, 13, 46]).max() < 30


def test_calls_are_hidden_by_what_they_are_for(read):
    reader = read(kernel_trace())
    before = reader.drawn_count()
    reader.page.locator(".gsl-legend .gsl-chip", has_text="synchronise").click()
    reader.settle()
    assert before - reader.drawn_count() == 4
    names = reader.page.locator(".gsl-all .gsl-chip .gsl-text").all_text_contents()
    assert "gemm_bf16" in names
    assert not any(name.startswith("cuda") for name in names)


def test_memory_under_the_pointer_is_told(read):
    reader = read(kernel_trace())
    strip = reader.js("w.tables.memory[0]")
    top = reader.js("v.figureElement.getBoundingClientRect().top + w.yAt(argument)", (strip["top"] + strip["bottom"]) / 2)
    reader.page.mouse.move(reader.at(0.6 * MS)[0], top)
    reader.settle()
    assert reader.tip().startswith("Memory of prefill")
    facts = tip_facts(reader)
    assert (facts["pool in use"], facts["pool reserved"]) == ("96.0 MiB, since 486 µs", "112 MiB, since 486 µs")


def test_windows_of_capture_have_a_strip_where_something_is_left_out(read):
    assert read(kernel_trace()).js("w.parts.strips.map(strip => strip.kind)") == ["sms", "busy"]
    partly = read(kernel_trace(windows=((0, 2 * MS), (6 * MS, 7 * MS))))
    assert partly.js("w.parts.strips.map(strip => strip.kind)") == ["sms", "busy", "capture"]


def test_threads_of_the_host_are_in_no_totals(read):
    reader = read(kernel_trace())
    lanes = reader.js(
        "gpustreamlab.totals(s, w.tables, {start: w.x0, end: w.x1}).lanes.map(({lane}) => w.tables.lanes[lane].name)"
    )
    assert lanes == ["prefill", "decode", "copies", "torch stream 13", "stream 21"]


@pytest.mark.parametrize("trace", [pipeline_trace(), kernel_trace(), kernel_trace(has_host=False)], ids=len)
@pytest.mark.parametrize("width", [1200, 700])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_drawn_without_a_word_in_the_console(read, trace, width, scheme):
    reader = read(trace, width=width, color_scheme=scheme)
    assert reader.drawn_count() == len(trace)


# ---- the engine


def work_columns(count, seed):
    rng = np.random.default_rng(seed)
    least = {"detail": -1, "owner_name": -1, "owner_lane": -1, "work_lead_ns": -70_000, "work_tail_ns": -9}
    most = {"detail": 300, "size_bytes": 1 << 40, "owner_name": 300, "owner_lane": 5, "work_lead_ns": 90, "work_tail_ns": 9}
    return {name: rng.integers(least.get(name, 0), most.get(name, 400), count) for name in WORK_DEFAULTS}


def with_work(columns, seed):
    given = {name: getattr(columns, name) for name in ("name", "kind", "thread", "partition", "queueing_ns", "place")}
    return make_columns(columns.row, columns.start_ns, columns.end_ns, **given, **work_columns(len(columns), seed))


def expected_work(columns):
    keys = ("detail", "size", "ownerName", "ownerLane", "workLead", "workTail", "workCount")
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


def test_rows_without_work_store_nothing_of_it(engine):
    has_work, detail = engine.evaluate(
        "async packed => { const row = (await make([packed])).row(0); return [row.hasWork, row.work('detail', 0)] }",
        pack(random_columns(1, 50)),
    )
    assert (has_work, detail) == (False, -1)


def test_launches_are_kept_apart_from_waits(engine):
    trace = kernel_trace()
    columns = columns_of(trace, trace.lane, 0)
    found = engine.evaluate(
        "async packed => { const {edges, launches} = await make([packed]); return [edges.length, launches.length,"
        "  [...launches.x1.slice(0, launches.length)].every((time, i) => time > launches.x0[i])] }",
        pack(columns),
    )
    assert found == [int((columns.edge_kind == 0).sum()), int((columns.edge_kind == 1).sum()), True]


def test_a_trace_of_a_moment_is_drawn(read):
    reader = read(make_kernel_trace([("a", "step", 0, 0, {"kind": "range"}), ("a", "gemm", 0, 5 * US, {"parent": 0})]))
    reader.hover("gemm")
    assert tip_facts(reader)["range"] == "'step'"
