"""What the bars of a timeline claim, by the pixels that are painted: running and waiting, colours, load, arrows."""

from __future__ import annotations

import numpy as np
import pytest

from gpustreamlab.draw import GREY
from gpustreamlab.model import Lane
from gpustreamlab.typing import LaneKind
from tests.helpers.kernel_traces import make_kernel_trace, serial_trace
from tests.helpers.traces import make_trace, many_partitions_trace, repartition_trace

pytestmark = pytest.mark.browser

COLOURS = (
    "[...[...document.querySelectorAll('.gsl-menu fieldset')].find(set => set.firstChild.textContent === 'Colour')"
    ".querySelectorAll('label')].map(label => [label.textContent, label.firstChild.checked])"
)

SWATCH = """(facts => { const {backgroundColor, backgroundImage} = getComputedStyle(facts.querySelector('.gsl-swatch'))
  return [backgroundColor, backgroundImage]
})([...document.querySelectorAll('.gsl-chip')].find(chip => chip.textContent.includes(argument)))"""


def row_pixels(reader, code):
    """The painted colours of a row of bars, from the left to the right of the frame."""
    left, right, top, bottom = reader.js(
        "[w.frame.left, w.frame.right, w.yAt(w.tables.rows[argument].top), w.yAt(w.tables.rows[argument].bottom)]", code
    )
    return reader.pixels([left, top, right - left, bottom - top])


def rgb(colour):
    return [int(colour[k : k + 2], 16) for k in (1, 3, 5)]


def is_ink(reader, code):
    """Of each column of px: whether the row is filled there with a colour of the palette, which says that work ran."""
    own = row_pixels(reader, code)[..., :3]
    fills = [rgb(fill) for tints in reader.js("w.tables.palette.slice(0, -w.tables.call_styles.length)") for fill in tints]
    return np.any([np.all(own == fill, axis=-1) for fill in fills], axis=0).mean(axis=0) > 0.5


# ---- running and waiting


@pytest.mark.parametrize(("scheme", "ratio"), [("light", 1), ("dark", 1.5)])
def test_of_kernels_that_ran_one_after_the_other_no_two_are_painted_at_once(read, scheme, ratio):
    reader = read(serial_trace("kernels"), color_scheme=scheme, device_scale_factor=ratio)
    assert "streams at once" not in reader.page.locator(".gsl-went").inner_text()
    ink = np.array([is_ink(reader, code) for code in range(8)])
    # THEN each kernel is there for its ms, and at no place are two rows of any lane filled
    assert ink.sum(axis=0).max() == 1
    shares = ink.mean(axis=1)
    assert [share > 0.2 for share in shares] == [not pale for pale in reader.js("w.tables.rows.map(row => Boolean(row.pale))")]
    # The ranges are pale bands within a line.
    for code in np.flatnonzero(shares < 0.2).tolist():
        seen = row_pixels(reader, code)[..., 3] == 255
        line, middle = seen[0], seen[len(seen) // 2]
        assert line.mean() > 0.2
        assert middle[line].mean() > 0.8


def test_where_only_ranges_are_known_no_place_is_painted_as_running(read):
    reader = read(serial_trace("ranges"), width=1536)
    assert not any(is_ink(reader, code).any() for code in range(4))
    first = row_pixels(reader, 0)
    start, end = (round(x) for x in reader.js("[w.pxAt(0), w.pxAt(1e6)].map(x => x - w.frame.left)"))
    middle = first[len(first) // 2]
    # THEN a range is pale, and fades out at both ends between its lines
    paper = np.array(rgb(reader.js("v.theme.paper")))
    depth = [
        int(np.abs(middle[x, :3] - paper).sum()) if middle[x, 3] else 0 for x in (end - 2, end - 12, (start + end) // 2 + 80)
    ]
    assert depth[0] < depth[1] < depth[2]
    assert (first[0, start + 2 : end - 2, 3] == 255).all()
    assert "queued or running" in reader.page.locator(".gsl-went").inner_text()
    assert "busy" not in "".join(reader.written())
    # WHEN a part is in view, the strip still says so, and a range that goes on beyond the window does not fade at its edge
    reader.js("w.setRange(5e5, 2.5e6)")
    reader.settle()
    assert "queued or running" in reader.page.locator(".gsl-went").inner_text()
    last = row_pixels(reader, 3)
    assert len(np.unique(last[len(last) // 4, [2, -3]], axis=0)) == 1


def test_a_lane_of_which_no_more_than_its_name_is_seen_counts_as_one_below(read):
    reader = read(many_partitions_trace(), width=640, height=400)
    assert reader.js("w.canScroll")
    assert any("of 100 streams" in text for text in reader.written())


def test_a_range_outside_the_capture_is_open_beside_one_whose_kernels_are_known(read):
    spans = [
        ("a", "known", 0, 1_000_000, {"kind": "range"}),
        ("a", "spin", 600_000, 1_000_000, {"parent": 0}),
        ("a", "not captured", 2_000_000, 3_000_000, {"kind": "range"}),
    ]
    reader = read(make_kernel_trace(spans, windows=((0, 1_500_000),)))
    ranges = reader.js("w.tables.rows.findIndex(row => row.pale)")
    shapes = reader.js("[0, 1].map(index => v.painter.looks.shape(s.row(argument), index))", ranges)
    assert shapes == [1, 2]
    assert not is_ink(reader, ranges).any()


# ---- colour


def choose(reader, colour):
    if not reader.page.locator(".gsl-menu").is_visible():
        reader.page.get_by_role("button", name="How the picture looks").click()
    reader.page.get_by_role("radio", name=colour).click()
    reader.settle()


def look_of(reader, name):
    """The hue and tint with which the first bar of a name is painted."""
    return reader.js(
        """(() => { for (const row of s.rows) for (let i = 0; i < row.length; i++) {
          const code = v.painter.looks.code(row, i)
          if (w.tables.names[row.name[i]] === argument) return [Math.floor(code / 4), code % 4]
        } })()""",
        name,
    )


def named_trace():
    """Three names of as many durations on two streams."""
    spans = [(lane, name, begin + at, begin + at + long) for begin in (0, 100_000) for lane, name, at, long in NAMED]
    return make_kernel_trace(spans)


NAMED = [("a", "gemm", 0, 50_000), ("a", "softmax", 50_000, 5_000), ("b", "gemm", 0, 50_000), ("b", "rope", 60_000, 500)]


def test_colour_tells_what_is_chosen_and_the_legend_follows(read):
    reader = read(named_trace())
    lead = reader.page.locator(".gsl-legend > .gsl-of").first
    assert lead.inner_text() == "colour: stream"
    # WHEN colour tells streams, a name on both is grey in the legend, and one of a single stream has its hue
    hues = [look_of(reader, name)[0] for name in ("softmax", "rope")]
    assert hues == [0, 1]
    reader.page.locator(".gsl-more").click()
    grey, own = (reader.js(SWATCH, name)[0] for name in ("gemm", "softmax"))
    tint = "w.tables.name_styles[w.tables.names.indexOf(argument)][1]"
    tints = [reader.js(tint, name) for name in ("gemm", "softmax", "rope")]
    assert len(set(tints)) == 3
    palette = reader.js("w.tables.palette")
    assert grey == f"rgb({', '.join(map(str, rgb(palette[GREY][tints[0]])))})"
    assert own == f"rgb({', '.join(map(str, rgb(palette[0][tints[1]])))})"
    # WHEN it tells names
    choose(reader, "name")
    assert lead.inner_text() == "colour: name"
    assert len({look_of(reader, name)[0] for name in ("gemm", "softmax", "rope")}) == 3
    assert look_of(reader, "gemm")[0] == reader.js("w.tables.name_styles[w.tables.names.indexOf('gemm')][0]")
    # THEN what was chosen is kept, and written back
    assert reader.js("w.kept.get('colour').read()") == "name"
    reader.js("w.kept.get('colour').write('stream')")
    reader.settle()
    assert lead.inner_text() == "colour: stream"
    reader.js("w.kept.get('colour').write('nonsense')")
    assert reader.js("w.kept.get('colour').read()") is None


def test_a_partition_has_the_same_hue_in_its_bars_its_band_and_the_strip_of_sms(read):
    reader = read(repartition_trace())
    assert reader.page.locator(".gsl-legend > .gsl-of").first.inner_text() == "colour: partition"
    reader.page.get_by_role("button", name="How the picture looks").click()
    assert [text for text, _ in reader.js(COLOURS)] == ["partition", "stream", "name"]
    assert dict(reader.js(COLOURS))["partition"]
    # Of each span: the hue that it has, and the one of the band that counts its SMs.
    pairs = reader.js(
        """s.rows.flatMap(row => Array.from({length: row.length}, (_, i) => [
          Math.floor(v.painter.looks.code(row, i) / 4), w.tables.bands[w.tables.partitions[row.partition[i]].band]?.hue]))"""
    )
    assert {own for own, _ in pairs} == {0, 1, GREY}  # those before the SMs were shared out ran on the whole card
    assert all(own == band for own, band in pairs)
    # THEN its names have it in the legend, also where lanes are folded
    reader.page.locator(".gsl-more").click()
    fill = """[...document.querySelectorAll('.gsl-chip')].find(chip => chip.textContent.includes(argument))
      .querySelector('.gsl-swatch').style.getPropertyValue('--gsl-fill')"""
    looks = {name: look_of(reader, name) for name in ("gemm", "attention")}
    own = {
        name: reader.js("w.tables.palette[argument[0]][argument[1]]", [hue, looks[name][1]]) for hue, name in enumerate(looks)
    }
    for is_folded in (False, True):
        reader.js("w.setIn('folded', 'decode', argument)", is_folded)
        reader.settle()
        assert {name: reader.js(fill, name) for name in own} == own
        assert reader.page.locator(".gsl-legend > .gsl-of").first.inner_text() == "colour: partition"
    reader.js("w.arrange({folded: new Set()})")
    reader.settle()
    assert reader.js("w.planned.groups.map(group => [group.hue, group.fill])") == [[0, "#56b4e9"], [1, "#e69f00"]]
    band = reader.pixels([4, reader.js("w.yAt(w.tables.groups[0].bottom) - 12"), 1, 1])
    assert band[0, 0, :3].tolist() == rgb("#56b4e9")


# ---- hatches


def has_hatch(reader):
    """Whether the first bar of the last row has lines over its colour."""
    code = reader.js("w.tables.rows.length - 1")
    left, width, top, bottom = reader.js(
        """(() => { const row = s.row(argument), {top, bottom} = w.tables.rows[argument], x = w.pxAt(row.start[0])
          return [x, w.pxAt(row.end[0]) - x, w.yAt(top), w.yAt(bottom)] })()""",
        code,
    )
    seen = reader.pixels([left + width * 0.6, top + 3, width * 0.3, bottom - top - 6])[..., :3]
    return len(np.unique(seen.reshape(-1, 3), axis=0)) > 1


def hatched_trace():
    return make_kernel_trace([("a", "memcpy", 0, 500_000, {"kind": "copy"}), ("b", "memset", 0, 500_000, {"kind": "fill"})])


def test_hatches_are_there_when_switched_on_in_high_contrast_and_in_print_only(read):
    reader = read(hatched_trace())
    page = reader.page
    assert not has_hatch(reader)
    page.get_by_role("button", name="How the picture looks").click()
    page.get_by_role("checkbox", name="Hatches").click()
    reader.settle()
    assert has_hatch(reader)
    page.locator(".gsl-more").click()
    assert reader.js(SWATCH, "memset")[1].startswith("url(")
    assert reader.js("w.kept.get('hatches').read()") is True
    reader.js("w.set('hasHatches', false)")
    reader.settle()
    assert not has_hatch(reader)
    assert reader.js(SWATCH, "memset")[1] == "none"
    for media in ({"contrast": "more"}, {"forced_colors": "active"}, {"media": "print"}):
        page.emulate_media(**media)
        page.wait_for_function("gslViewer.theme.needsHatches")
        reader.settle()
        assert has_hatch(reader)
        page.emulate_media(**dict.fromkeys(media, "null"))
        page.wait_for_function("!gslViewer.theme.needsHatches")
        reader.settle()
        assert not has_hatch(reader)


# ---- density


def test_dense_parts_show_load_as_height_in_one_colour_and_counts_stay_exact(read):
    # GIVEN names that take turns, 100,000 spans, busy for 3 and then for 1 of 4 parts of the time
    count = 100_000
    spans = [("a", f"name {'xyz'[k % 3]}", 1_000 * k, 1_000 * k + (750 if k < count // 2 else 250)) for k in range(count)]
    reader = read(make_kernel_trace(spans))
    seen = row_pixels(reader, 0)
    is_own = np.all(seen[..., :3] == rgb("#56b4e9"), axis=-1) & (seen[..., 3] > 0)
    first, last = (round(x) for x in reader.js("[w.pxAt(0), w.pxAt(1e8)].map(x => x - w.frame.left)"))
    heights = is_own.mean(axis=0)
    middle = (first + last) // 2
    assert np.ptp(heights[first + 3 : middle - 3]) <= 1 / len(seen)
    assert heights[first + 9] == pytest.approx(0.75, abs=0.06)
    assert heights[last - 9] == pytest.approx(0.25, abs=0.06)
    # THEN no other colour is painted there, the bars stand on the floor, and no column has a gap
    painted = seen[:, first + 3 : last - 3]
    assert is_own[-1, first + 3 : last - 3].all()
    is_other = (painted[..., 3] > 0) & ~is_own[:, first + 3 : last - 3]
    assert is_other.mean() < 0.05  # the lines of the grid
    # THEN counts and busy time are exact at every zoom
    for zoom in (1, 0.2, 0.01):
        reader.js(f"w.setRange(0, {zoom} * 1e8)")
        reader.settle()
        items = reader.js(
            """(({items}) => [items.first, items.last, items.count, items.busy].map(all => [...all.slice(0, items.length)]))
            (w.painted)"""
        )
        for begin, end, spans_in, busy in zip(*items, strict=True):
            assert spans_in == end - begin + 1
            assert busy == sum(750 if k < count // 2 else 250 for k in range(int(begin), int(end) + 1))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dense_calls_and_ranges_of_the_host_stand_out_from_their_stripe(read, scheme):
    host, stream = Lane(name="host: MainThread", stream=0x1001, kind=LaneKind.HOST), Lane(name="compute", stream=1)
    spans = [("host: MainThread", "aten::add", 1_000 * k, 1_000 * k + 900) for k in range(8_000)]
    reader = read(make_trace([("compute", "gemm", 0, 4_000_000), *spans], lanes=(stream, host)), color_scheme=scheme)
    code = reader.js("w.tables.rows.findIndex((row, code) => w.tables.lanes[row.lane].host && s.row(code).length)")
    row = row_pixels(reader, code)
    paper, stripe = np.array(rgb(reader.js("v.theme.paper"))), row[0, 2]
    below = hex_of(np.rint(paper + (stripe[:3] - paper) * stripe[3] / 255))
    assert min(contrast(hex_of(bar), below) for bar in np.unique(row[-2, 100:-100, :3], axis=0)) >= 1.5


def hex_of(colour):
    return "#" + "".join(f"{int(part):02x}" for part in colour)


def contrast(one, other):
    def luminance(colour):
        channels = np.array(rgb(colour)) / 255
        return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
