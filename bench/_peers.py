"""What a user would pick instead of our timeline, fed with the same spans: how each is written, and what opens it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpustreamlab import Trace

PALETTE = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#ee8866", "#77aadd", "#44bb99")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One way to draw a timeline."""

    name: str
    """How the table calls it."""
    write: Callable[[Trace, Path], None]
    """Write the file that a user would keep."""
    suffix: str
    """The file's suffix, with its dot."""
    opener: str
    """How Chromium opens and moves it: a name in `bench._chromium.OPENERS`."""
    packages: tuple[str, ...] = ()
    """Modules that it needs."""
    most_spans: int = 10_000_000
    """Beyond this it takes minutes, or the browser gives up."""
    note: str = ""
    """What the figures leave out."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Modules that are not installed."""
        return tuple(name for name in self.packages if importlib.util.find_spec(name) is None)


def write_viztracer(trace: Trace, path: Path) -> None:
    """Write VizTracer's standalone HTML, by its own report builder."""
    from viztracer.report_builder import ReportBuilder

    data = {"traceEvents": _chrome_events(trace), "viztracer_metadata": {"version": "1", "overflow": False}}
    ReportBuilder(data, verbose=0).save(str(path), file_info=False)


def write_chrome_json(trace: Trace, path: Path) -> None:
    """Write Chrome's trace format, as torch.profiler and many others do."""
    path.write_text(json.dumps({"traceEvents": _chrome_events(trace)}), encoding="utf-8")


def write_perfetto(trace: Trace, path: Path) -> None:
    """Write Perfetto's own format, by the builder of its Python package."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
    from perfetto.trace_builder.proto_builder import TraceProtoBuilder

    builder = TraceProtoBuilder()
    for code, lane in enumerate(trace.lanes):
        packet = builder.add_packet()
        packet.timestamp = 0
        packet.track_descriptor.uuid, packet.track_descriptor.name = 100 + code, lane.name
    columns = (trace.start_ns.tolist(), trace.end_ns.tolist(), trace.lane.tolist(), trace.name.tolist())
    for start_ns, end_ns, lane, name in zip(*columns, strict=True):
        for kind, time_ns in ((TrackEvent.TYPE_SLICE_BEGIN, start_ns), (TrackEvent.TYPE_SLICE_END, end_ns)):
            packet = builder.add_packet()
            packet.timestamp, packet.trusted_packet_sequence_id = time_ns, 1
            packet.track_event.type, packet.track_event.track_uuid = kind, 100 + lane
            if kind == TrackEvent.TYPE_SLICE_BEGIN:
                packet.track_event.name = trace.names[name]
    path.write_bytes(builder.serialize())


def write_plotly(trace: Trace, path: Path) -> None:
    """Write what `plotly.express.timeline` makes: horizontal bars, a trace for each name.

    That function itself rounds durations to whole milliseconds, so that spans of a GPU have no width; so the bars are made as
    it makes them, in µs.
    """
    import plotly.graph_objects as go

    streams = np.array([lane.name for lane in trace.lanes])
    drawn = go.Figure()
    for code, name in enumerate(trace.names):
        rows = np.flatnonzero(trace.name == code)
        drawn.add_bar(
            base=trace.start_ns[rows] * 1e-3,
            x=trace.duration_ns[rows] * 1e-3,
            y=streams[trace.lane[rows]],
            orientation="h",
            name=name,
            hovertext=[name] * len(rows),
        )
    drawn.update_layout(barmode="overlay", width=1200, height=520)
    drawn.write_html(str(path), include_plotlyjs=True)


def write_plain_bokeh(trace: Trace, path: Path) -> None:
    """Write one `hbar` a span, in typed arrays: plain Bokeh at its best."""
    from bokeh.embed import file_html
    from bokeh.models import ColumnDataSource, LinearColorMapper
    from bokeh.resources import INLINE

    drawn = _bokeh_figure(trace)
    mapper = LinearColorMapper(palette=PALETTE, low=-0.5, high=len(PALETTE) - 0.5)
    columns = {
        "left": trace.start_ns * 1e-3,
        "right": trace.end_ns * 1e-3,
        "y": trace.lane.astype(np.uint8),
        "name": (trace.name % len(PALETTE)).astype(np.uint8),
    }
    colour = {"field": "name", "transform": mapper}
    drawn.hbar(
        y="y", left="left", right="right", height=0.8, fill_color=colour, line_color=None, source=ColumnDataSource(columns)
    )
    path.write_text(file_html(drawn, INLINE, "plain Bokeh"), encoding="utf-8")


def write_empty_bokeh(trace: Trace, path: Path) -> None:
    """Write a Bokeh page of the same size and range without any span: the floor for everything on Bokeh."""
    from bokeh.embed import file_html
    from bokeh.resources import INLINE

    drawn = _bokeh_figure(trace)
    drawn.scatter([], [])
    path.write_text(file_html(drawn, INLINE, "empty"), encoding="utf-8")


def write_gpustreamlab(trace: Trace, path: Path) -> None:
    """Write our own page."""
    from gpustreamlab.timeline import Timeline

    Timeline(trace).save(path)


PEERS = (
    Peer(name="gpustreamlab", write=write_gpustreamlab, suffix=".html", opener="gpustreamlab"),
    Peer(name="empty Bokeh page (floor)", write=write_empty_bokeh, suffix=".html", opener="empty Bokeh"),
    Peer(name="plain Bokeh", write=write_plain_bokeh, suffix=".html", opener="Bokeh", most_spans=1_000_000),
    Peer(
        name="VizTracer HTML",
        write=write_viztracer,
        suffix=".html",
        opener="VizTracer",
        packages=("viztracer",),
        most_spans=1_000_000,
        note="needs a script from a CDN",
    ),
    Peer(
        name="Perfetto UI, JSON",
        write=write_chrome_json,
        suffix=".json",
        opener="Perfetto",
        packages=("viztracer",),
        most_spans=1_000_000,
        note="needs a server or the web site",
    ),
    Peer(
        name="Perfetto UI, protobuf",
        write=write_perfetto,
        suffix=".pftrace",
        opener="Perfetto",
        packages=("viztracer", "perfetto"),
        most_spans=1_000_000,
        note="needs a server or the web site",
    ),
    Peer(
        name="plotly bars",
        write=write_plotly,
        suffix=".html",
        opener="plotly",
        packages=("plotly",),
        most_spans=100_000,
        note="px.timeline itself shows spans below 1 ms without width",
    ),
)
"""Ours first, then the floor, then the others."""


def _chrome_events(trace: Trace) -> list[dict[str, Any]]:
    """Return the spans as Chrome's trace events; times are µs. Source: the Trace Event Format document."""
    # Thread numbers below the process's own would collide with it in Perfetto.
    names: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 100 + code, "args": {"name": lane.name}}
        for code, lane in enumerate(trace.lanes)
    ]
    columns = (
        (trace.start_ns * 1e-3).tolist(),
        (trace.duration_ns * 1e-3).tolist(),
        trace.lane.tolist(),
        [trace.names[code] for code in trace.name.tolist()],
    )
    return names + [
        {"name": name, "ph": "X", "cat": "kernel", "ts": start, "dur": duration, "pid": 1, "tid": 100 + lane}
        for start, duration, lane, name in zip(*columns, strict=True)
    ]


def _bokeh_figure(trace: Trace) -> Any:
    from bokeh.models import Range1d
    from bokeh.plotting import figure

    end_us = float(trace.end_ns.max()) * 1e-3
    return figure(
        width=1200,
        height=480,
        x_range=Range1d(0, end_us),
        y_range=Range1d(len(trace.lanes) - 0.5, -0.5),
        tools="xpan,xwheel_zoom,reset",
        active_scroll="xwheel_zoom",
        lod_threshold=None,
    )
