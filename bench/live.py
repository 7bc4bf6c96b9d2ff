"""How the live timeline keeps up in JupyterLab: delay from drain to pixels, CPU of the kernel, bytes on the wire, memory.

``python -m bench.live --minutes 10`` is the long run; the default takes half a minute; ``--cards 8`` shows a node of simulated
cards, with as many ranges a second on each. It needs the extra ``notebook`` and the dependency group ``browser``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError
from playwright.sync_api import sync_playwright

from bench._chromium import QUIET
from bench._common import report
from tests.helpers.jupyter import NotebookPage, running_jupyter

RATE = 10_000
"""Ranges a second."""

WARM_UP_S = 5.0
"""Of the load before anything is measured, in s."""

SETUP = """
import json, os, time
import psutil
import gpustreamlab as gsl
from gpustreamlab.notebook.live_timeline import LiveTimeline
from gpustreamlab.notebook.live_timeline import TimelinePage

CARDS = 1

def opened():
    return gsl.Session("sim", capture="ranges") if CARDS == 1 else gsl.Node(range(CARDS), backend="sim", capture="ranges")

def load(lab, seconds, rate):
    # Record so many ranges a second; return what that took.
    homes = [lab] if CARDS == 1 else list(lab)
    streams = [(home, home.stream(f"s{number}{place or ''}")) for number in range(4) for place, home in enumerate(homes)]
    names = [f"work {number}" for number in range(8)]
    begin, cpu_s, done = time.perf_counter(), time.process_time(), 0
    while (now_s := time.perf_counter() - begin) < seconds:
        due = min(int(now_s * rate), done + rate // 10)
        for place in range(done, due):
            home, stream = streams[place % len(streams)]
            with home.on(stream, names[place % 8]):
                pass
        done = due
        lab.synchronize()  # time of the simulated device passes only so; on hardware the work ends by itself
        time.sleep(0.005)
    taken_s = time.perf_counter() - begin
    lab.synchronize()
    return {"spans": done, "seconds": taken_s, "cpu": (time.process_time() - cpu_s) / taken_s}

sent = []  # update number, wall-clock ns at which its drain began, bytes of its spans
costs = {"refreshes": 0, "thread_cpu_s": 0.0, "begin_ns": 0}

def watched_refresh(self, refresh=LiveTimeline.refresh):
    costs["begin_ns"], cpu_s = time.time_ns(), time.thread_time()
    try:
        return refresh(self)
    finally:
        costs["refreshes"] += 1
        costs["thread_cpu_s"] += time.thread_time() - cpu_s

def watched_send(self, update, send=TimelinePage.send_update):
    sent.append((update.facts["number"], costs["begin_ns"], len(update.blob)))
    return send(self, update)

LiveTimeline.refresh, TimelinePage.send_update = watched_refresh, watched_send

def facts():
    return {"rss_mb": psutil.Process().memory_info().rss / 1e6, "costs": costs, "sent": sent}

plain, lab = opened(), opened()
with lab.on(lab.stream("s0"), "first"):
    pass
"""

WATCH = """() => {
  const live = document.querySelector(".gsl-live").gslView, painter = live.viewer.painter, plain = painter.paintMain
  window.__seen = []
  let last = live.feed.number
  painter.paintMain = function (...given) {
    plain.apply(painter, given)
    const number = live.feed.number
    if (number === last) return
    last = number
    // What is painted now is on the screen by the next frame.
    requestAnimationFrame(() => window.__seen.push([number, performance.timeOrigin + performance.now()]))
  }
}"""
HEAP = "() => { if (window.gc) window.gc(); return performance.memory.usedJSHeapSize / 1e6 }"
IS_LIVE = "() => Boolean(document.querySelector('.gsl-live')?.gslView?.viewer?.plotView)"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    parser.add_argument("--minutes", type=float, default=0.5, help="how long the load lasts")
    parser.add_argument("--rate", type=int, default=RATE, help="ranges a second, on each card")
    parser.add_argument("--cards", type=int, default=1, help="simulated cards")
    parser.add_argument("--picture", type=Path, help="where a screenshot goes")
    options, left = parser.parse_known_args(argv)
    with tempfile.TemporaryDirectory() as folder, running_jupyter(Path(folder)) as jupyter, sync_playwright() as playwright:
        flags = [*QUIET, "--js-flags=--expose-gc", "--enable-precise-memory-info"]
        browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=flags)
        notebook = NotebookPage(browser.new_page(viewport={"width": 1300, "height": 1000}))
        wire = count_wire(notebook.page)
        # A short cell: a view that is scrolled out of sight does not draw.
        (jupyter.folder / "live_setup.py").write_text(SETUP.replace("CARDS = 1", f"CARDS = {options.cards}"), encoding="utf-8")
        notebook.open(jupyter.write_notebook("live", ["from live_setup import *", "lab.timeline()"]))
        rows = measure(notebook, wire, seconds=60 * options.minutes, rate=options.rate * options.cards)
        if options.picture is not None:
            notebook.page.screenshot(path=options.picture)
        browser.close()
    cards = f" on each of {options.cards} simulated cards" if options.cards > 1 else ""
    report(f"Live timeline in JupyterLab at {options.rate:,} ranges a second{cards} for {options.minutes:g} min", rows, left)


def count_wire(page: Any) -> dict[str, int]:
    """Count the bytes that the page's WebSockets receive."""
    wire = {"bytes": 0, "messages": 0}

    def note(payload: str | bytes) -> None:
        wire["bytes"] += len(payload)
        wire["messages"] += 1

    page.on("websocket", lambda socket: socket.on("framereceived", note))
    return wire


def measure(notebook: NotebookPage, wire: dict[str, int], *, seconds: float, rate: int) -> list[dict[str, Any]]:
    """Put load on the session and read everything before and after."""
    page = notebook.page
    wait_until_live(notebook)
    page.evaluate(WATCH)
    plain = run_load(notebook, "plain", min(seconds, 20), rate)
    run_load(notebook, "lab", WARM_UP_S, rate)
    page.wait_for_timeout(500)
    before, heap_before, wire_before = kernel_facts(notebook), page.evaluate(HEAP), dict(wire)
    page.evaluate("() => { window.__seen.length = 0 }")
    loaded = run_load(notebook, "lab", seconds, rate)
    page.wait_for_timeout(1_000)
    wire_bytes = wire["bytes"] - wire_before["bytes"]
    after, heap_after = kernel_facts(notebook), page.evaluate(HEAP)
    new = after["sent"][len(before["sent"]) :]
    delays_ms = drain_to_pixels_ms(new, page.evaluate("() => window.__seen"))
    cpu_s = after["costs"]["thread_cpu_s"] - before["costs"]["thread_cpu_s"]
    shown = page.evaluate("() => { const f = document.querySelector('.gsl-live').gslView.feed; return f.store.spanCount }")
    figures = (
        ("ranges recorded a second", loaded["spans"] / loaded["seconds"], f"{rate:,}"),
        ("refreshes a second", (after["costs"]["refreshes"] - before["costs"]["refreshes"]) / loaded["seconds"], "10"),
        ("updates sent a second", len(new) / loaded["seconds"], "10"),
        ("drain to pixels, median ms", statistics.median(delays_ms), "<= 150"),
        ("drain to pixels, 95% ms", float(np.quantile(delays_ms, 0.95)), ""),
        ("drain to pixels, worst ms", max(delays_ms), ""),
        ("updates never painted", sum(1 for delay in delays_ms if delay == float("inf")), "0"),
        ("CPU of the view's thread, % of a core", 100 * cpu_s / loaded["seconds"], "<= 5"),
        ("CPU of the kernel, %: with the view", 100 * loaded["cpu"], ""),
        ("CPU of the kernel, %: the same load without", 100 * plain["cpu"], ""),
        ("bytes on the wire a range, all messages", wire_bytes / max(1, loaded["spans"]), "<= 20"),
        ("bytes of packed spans a range", sum(size for _, _, size in new) / max(1, loaded["spans"]), ""),
        ("kernel RSS before, MB", before["rss_mb"], ""),
        ("kernel RSS after, MB", after["rss_mb"], "flat once buffers are full"),
        ("tab heap before, MB", heap_before, ""),
        ("tab heap after, MB", heap_after, "flat once buffers are full"),
        ("spans in the tab", shown, ""),
        ("console errors", len(notebook.errors), "0"),
    )
    return [{"figure": figure, "value": round(value, 2), "goal": goal} for figure, value, goal in figures]


def wait_until_live(notebook: NotebookPage) -> None:
    """Wait for the picture; say what the notebook says where it does not come."""
    try:
        notebook.page.wait_for_function(IS_LIVE, timeout=60_000)
    except PlaywrightTimeoutError:
        said = " ".join(notebook.page.locator(".jp-OutputArea").all_inner_texts())
        raise SystemExit(f"The live timeline does not come. The notebook says: {said[-2000:]} {notebook.errors[:3]}") from None


def run_load(notebook: NotebookPage, session: str, seconds: float, rate: int) -> dict[str, float]:
    """Record in a cell, which stays busy meanwhile."""
    text = notebook.kernel(f"print(json.dumps(load({session}, {seconds}, {rate})))")
    return json.loads(text.splitlines()[-1])


def kernel_facts(notebook: NotebookPage) -> dict[str, Any]:
    return json.loads(notebook.kernel("print(json.dumps(facts()))").splitlines()[-1])


def drain_to_pixels_ms(sent: list[list[int]], seen: list[list[float]]) -> list[float]:
    """Return how long each update took from the start of its drain to the screen; one that was never painted is infinite."""
    delays_ms = []
    numbers = [number for number, _ in seen]
    for number, begin_ns, _ in sent:
        # A paint shows every update up to its number.
        place = int(np.searchsorted(numbers, number))
        delays_ms.append(seen[place][1] - begin_ns / 1e6 if place < len(seen) else float("inf"))
    return delays_ms


if __name__ == "__main__":
    main()
