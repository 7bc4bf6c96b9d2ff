"""Whether real programs run as fast, compute the same and end in peace while they are watched, and afterwards.

Each program runs in processes of its own: once with nothing on, once observed (before gpustreamlab is imported, in ranges, with
kernels captured, after that, after the session has closed), and once with torch.profiler around it. Ratios are to the first
state of the same process. What a program computes is deterministic, and compared by SHA-256 over all states and processes.

Then a small program, which uses a lane with pinned memory of torch and CuPy, a DataLoader that pins and a CUDA graph, ends in
each order of freeing and closing; it has to return 0.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import cupyx
import numpy as np
import torch

from bench._common import machine, report
from bench._observer_patterns import PlainStream
from bench.observer import told

NEEDS_GPU = True
ROOT = Path(__file__).resolve().parent.parent
CHILD_LIMIT_S = 100
ENDINGS_AT_ONCE = 8
TOKENS = 64
VOCABULARY = 50_257
BATCH = 64
STEPS = 10
FFT_SHAPES = {"a": (64, 1 << 16), "b": (64, 3 << 14), "c": (64, 5 << 13)}  # CuPy's cached plans are not safe across streams
FFT_ROUNDS = 4
CALLS = 100
REPLAYS = 200
LANES = ("a", "b", "c")

NONE, RANGES, AFTER_STOP, AFTER_CLOSE = "none", "ranges", "after stop", "after close"
KERNELS, KERNELS_AND_CALLS = "kernels", "kernels and calls"
PROFILER, AFTER_PROFILER = "torch.profiler CUDA", "after torch.profiler"
ALONE, OBSERVED, PROFILED, ENDING = "none", "observed", "profiler", "ending"

Row = dict[str, Any]
On = Callable[[str, str], AbstractContextManager[Any]]
"""Selects the stream of a name for CuPy and torch, with a label for what runs there."""


class Program(NamedTuple):
    """A program, ready to run."""

    run: Callable[[On], Sequence[Any]]
    """Enqueues it; returns its results, to be read once the device is idle."""
    prepare: Callable[[], object] = bool
    """Puts back, before each run, what the run changes."""


def make_decode() -> Program:
    """Make a GPT-2 that decodes, with a prefill on another stream at every 16th token."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=12, n_head=12, n_embd=768, vocab_size=VOCABULARY)).cuda().half().eval()
    prompt, long = (torch.randint(0, VOCABULARY, shape).cuda() for shape in ((1, 64), (4, 512)))

    @torch.no_grad()
    def run(on: On) -> Sequence[Any]:
        past, token, results = None, prompt, []
        for step in range(TOKENS):
            with on("a", "token"):
                output = model(token, past_key_values=past, use_cache=True)
                past, token = output.past_key_values, output.logits[:, -1:].argmax(-1)
                results.append(token)
            if step % 16 == 0:
                with on("b", "prefill"):
                    results.append(model(long, use_cache=False).logits[:, -1].float())
        return results

    return Program(run)


def make_training() -> Program:
    """Make a ResNet-50 that is trained for 10 steps, with a loader that pins, and uploads on a stream of their own."""
    from torch.utils.data import DataLoader, TensorDataset
    from torchvision.models import resnet50

    torch.manual_seed(0)
    dataset = TensorDataset(torch.rand(STEPS * BATCH, 3, 64, 64), torch.randint(0, 10, (STEPS * BATCH,)))
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=2, pin_memory=True)
    model = resnet50(num_classes=10).cuda().train()
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    now: dict[str, Any] = {}

    def prepare() -> None:
        model.load_state_dict(initial)
        model.zero_grad(set_to_none=True)
        now["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        batches = iter(loader)
        now["batches"] = itertools.chain([next(batches)], batches)  # the loader's processes have started by then

    def run(on: On) -> Sequence[Any]:
        losses = []
        for images, labels in now["batches"]:
            with on("a", "upload"):
                x, y = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
                uploaded = torch.cuda.current_stream().record_event()
            with on("b", "step"):
                stream = torch.cuda.current_stream()
                stream.wait_event(uploaded)
                x.record_stream(stream)
                y.record_stream(stream)
                now["optimizer"].zero_grad(set_to_none=True)
                loss = torch.nn.functional.cross_entropy(model(x), y)
                loss.backward()
                now["optimizer"].step()
                losses.append(loss.detach())
        return [*losses, *model.parameters()]

    return Program(run, prepare)


def make_fft() -> Program:
    """Make uploads, transforms, products, transforms back and downloads of CuPy on three streams."""
    rng = np.random.default_rng(0)
    inputs, outputs, arrays, factors = {}, {}, {}, {}
    for name, shape in FFT_SHAPES.items():
        inputs[name], outputs[name] = (cupyx.empty_pinned(shape, np.complex64) for _ in range(2))
        inputs[name][...] = rng.random(shape, np.float32)
        arrays[name] = cupy.empty(shape, np.complex64)
        factors[name] = cupy.asarray(rng.random(shape[1], np.float32))
        cupy.fft.ifft(cupy.fft.fft(arrays[name]))  # makes the plan

    def prepare() -> None:
        for output in outputs.values():
            output[...] = 0

    def run(on: On) -> Sequence[Any]:
        for _, name in itertools.product(range(FFT_ROUNDS), FFT_SHAPES):
            with on(name, "upload"):
                arrays[name].set(inputs[name])
            with on(name, "filter"):
                spectrum = cupy.fft.fft(arrays[name])
                cupy.multiply(spectrum, factors[name], out=spectrum)
                result = cupy.fft.ifft(spectrum)
            with on(name, "download"):
                result.get(out=outputs[name], blocking=False)
        return list(outputs.values())

    return Program(run, prepare)


def make_compiled() -> Program:
    """Make calls of a small network that torch compiles."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).cuda().eval()
    compiled = torch.compile(layers)
    start = torch.rand(256, 1024).cuda()

    @torch.no_grad()
    def run(on: On) -> Sequence[Any]:
        value = start
        with on("a", "network"):
            for _ in range(CALLS):
                value = compiled(value)
        return [value]

    return Program(run)


def make_graph_loop() -> Program:
    """Make a CUDA graph that is replayed again and again."""
    torch.manual_seed(0)
    start = torch.rand(512, 512).cuda()
    weights = [torch.rand(512, 512).cuda() - 0.5 for _ in range(8)]
    x, side, graph = start.clone(), torch.cuda.Stream(), torch.cuda.CUDAGraph()

    def step() -> None:
        for weight in weights:
            x.copy_(torch.tanh(x @ weight))

    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side):
        step()

    def run(on: On) -> Sequence[Any]:
        with on("a", "replays"):
            for _ in range(REPLAYS):
                graph.replay()
        return [x]

    return Program(run, lambda: x.copy_(start))


PROGRAMS: dict[str, tuple[Callable[[], Program], int]] = {
    "GPT-2 decode beside prefill": (make_decode, 3),
    "ResNet-50 training": (make_training, 3),
    "CuPy FFT pipeline": (make_fft, 7),
    "torch.compile": (make_compiled, 7),
    "CUDA graph loop": (make_graph_loop, 7),
}
"""Each program with how often it runs in each state."""


# Measuring, in a process for each program and kind


class Process:
    """One program in one process, measured in one state after the other."""

    def __init__(self, program: Program, repeats: int) -> None:
        self.rows: list[Row] = []
        self._program = program
        self._repeats = repeats
        self._streams = {name: PlainStream.of_torch(torch.cuda.Stream()) for name in LANES}

    def plain(self, name: str, _: str) -> AbstractContextManager[Any]:
        """Select a stream of torch, for CuPy too."""
        return self._streams[name]

    def measure(self, state: str, on: On) -> Row:
        """Add a row, after one run that counts not: new streams get their memory there."""
        walls_ms = []
        gc.collect()
        for repeat in range(self._repeats + 1):
            self._program.prepare()
            gc.disable()
            torch.cuda.synchronize()
            began_s = time.perf_counter()
            results = self._program.run(on)
            torch.cuda.synchronize()
            wall_ms = (time.perf_counter() - began_s) * 1e3
            gc.enable()
            if repeat:
                walls_ms.append(wall_ms)
        row: Row = {"state": state, "median_ms": round(statistics.median(walls_ms), 3), "best_ms": round(min(walls_ms), 3)}
        row["sha256"] = digest(results)
        self.rows.append(row)
        return row


def measure_alone(process: Process) -> None:
    """Measure with nothing on."""
    process.measure(NONE, process.plain)


def measure_observed(process: Process) -> None:
    """Measure before, in and after a session."""
    process.measure(NONE, process.plain)
    if "gpustreamlab" in sys.modules:
        raise RuntimeError("gpustreamlab was imported before the state without it was measured.")
    import gpustreamlab

    lab = gpustreamlab.Session("cuda", capture="ranges")
    try:
        for name in LANES:
            lab.stream(name)
        process.measure(RANGES, lab.on)
        lab.synchronize()
        lab.clear()
        for state in (KERNELS, KERNELS_AND_CALLS):
            with lab.capture("kernels", host=state == KERNELS_AND_CALLS) as capture:
                row = process.measure(state, lab.on)
                note = capture.note
            lab.synchronize()
            row["spans"], row["dropped"] = len(lab.trace), lab.trace.metadata.dropped_spans
            if note:
                row["error"] = f"kernels were not captured: {note}"
            lab.clear()
        process.measure(AFTER_STOP, process.plain)
    finally:
        lab.close()
    process.measure(AFTER_CLOSE, process.plain)


def measure_profiled(process: Process) -> None:
    """Measure before, under and after torch.profiler."""
    process.measure(NONE, process.plain)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
        process.measure(PROFILER, process.plain)
    process.measure(AFTER_PROFILER, process.plain)


KINDS = {ALONE: measure_alone, OBSERVED: measure_observed, PROFILED: measure_profiled}


def digest(results: Iterable[Any]) -> str:
    """Return the SHA-256 of the bytes of tensors and arrays."""
    summing = hashlib.sha256()
    for result in results:
        array = result.detach().cpu().numpy() if isinstance(result, torch.Tensor) else result
        summing.update(np.ascontiguousarray(array).tobytes())
    return summing.hexdigest()


def run_child(kind: str, name: str, path: Path) -> None:
    """Measure one program in this process, and store its rows; what goes wrong becomes a row."""
    make, repeats = PROGRAMS[name]
    rows: list[Row] = []
    try:
        be_deterministic()
        process = Process(make(), repeats)
        rows = process.rows
        KINDS[kind](process)
    except Exception as error:  # noqa: BLE001 - becomes a row; the other programs go on
        rows.append({"state": "broken off", "error": told(error)})
    path.write_text(json.dumps(rows), encoding="utf-8")


def be_deterministic() -> None:
    """Make what torch computes the same at each run, where it can."""
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # it would add a fill to each tensor
    warnings.filterwarnings("ignore", message=".*deterministic.*")


# The orders of ending, each in a process

_kept: list[list[Any]] = []
"""What lives until the interpreter ends."""


def use_everything(lab: Any) -> list[Any]:
    """Use a lane with all that may outlive it; return that."""
    from torch.utils.data import DataLoader, TensorDataset

    graph, x = torch.cuda.CUDAGraph(), torch.ones(1024, device="cuda")
    x.add_(1)  # loads its kernel
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        x.add_(1)
    pinned = torch.ones(1 << 20).pin_memory()
    device = torch.empty(1 << 20, device="cuda")
    host = cupyx.empty_pinned((1 << 20,), np.float32)
    host[...] = 1
    array = cupy.empty(1 << 20, np.float32)
    batches = []
    with lab.on("a", "everything"):
        device.copy_(pinned, non_blocking=True)
        pinned.copy_(device, non_blocking=True)
        array.set(host)
        graph.replay()
    for (batch,) in DataLoader(TensorDataset(torch.ones(64, 1024)), batch_size=16, num_workers=1, pin_memory=True):
        with lab.on("a", "batch"):
            batches.append((batch, batch.cuda(non_blocking=True)))
    lab.synchronize()
    return [graph, x, pinned, device, host, array, batches]


def free(held: list[Any]) -> None:
    """Let go of everything, and use pinned memory again: torch looks then whether the old one may be given out."""
    held.clear()
    gc.collect()
    torch.cuda.synchronize()
    again = torch.ones(1 << 20).pin_memory().cuda(non_blocking=True)
    torch.cuda.synchronize()
    if float(again.sum()) != 1 << 20:
        raise RuntimeError("Pinned memory holds something else.")


def end_freed_before_close(lab: Any, held: list[Any]) -> None:
    """Free, then close."""
    free(held)
    lab.close()


def end_freed_after_close(lab: Any, held: list[Any]) -> None:
    """Close, then free."""
    lab.close()
    free(held)


def end_kept_until_exit(lab: Any, held: list[Any]) -> None:
    """Close, and let the interpreter's end free."""
    lab.close()
    _kept.append(held)


def end_without_close(lab: Any, held: list[Any]) -> None:
    """Let the interpreter's end close and free."""
    _kept.append([lab, held])


def end_closed_twice(lab: Any, held: list[Any]) -> None:
    """Close twice, then free."""
    lab.close()
    lab.close()
    free(held)


def end_freed_in_thread(lab: Any, held: list[Any]) -> None:
    """Close, then free in another thread."""
    lab.close()
    failures: list[Exception] = []

    def work() -> None:
        try:
            free(held)
        except Exception as error:  # noqa: BLE001 - raised below
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def end_moved_and_freed(lab: Any, held: list[Any]) -> None:
    """Move the stream to a partition, use it there, free, then close."""
    held += _move(lab)
    free(held)
    lab.close()


def end_moved_and_closed(lab: Any, held: list[Any]) -> None:
    """Move the stream to a partition, use it there, close, then free."""
    held += _move(lab)
    lab.close()
    free(held)


def _move(lab: Any) -> list[Any]:
    lab.partition(p=64, q="rest")
    lab.stream("a", partition="p")
    return use_everything(lab)


ENDINGS: dict[str, Callable[[Any, list[Any]], None]] = {
    "freed before close": end_freed_before_close,
    "freed after close": end_freed_after_close,
    "closed, freed at the interpreter's end": end_kept_until_exit,
    "neither closed nor freed": end_without_close,
    "closed twice, then freed": end_closed_twice,
    "freed in another thread after close": end_freed_in_thread,
    "stream moved, freed before close": end_moved_and_freed,
    "stream moved, freed after close": end_moved_and_closed,
}


def run_ending(name: str) -> None:
    """Use a lane, and end in one order; what goes wrong ends this process with another return code."""
    import gpustreamlab

    lab = gpustreamlab.Session("cuda", capture="ranges")
    lab.stream("a")
    held = use_everything(lab)
    ENDINGS[name](lab, held)


# Commands


def start_child(kind: str, name: str, path: Path | None = None) -> tuple[int | str, str]:
    """Run a process of this file; return its return code, and the last line that it wrote to standard error."""
    command = [sys.executable, "-m", "bench.observer_programs", "--child", kind, "--name", name]
    command += [] if path is None else ["--json", str(path)]
    settings = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TORCHINDUCTOR_COMPILE_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, check=False, timeout=CHILD_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return "timeout", f"longer than {CHILD_LIMIT_S} s"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return done.returncode, lines[-1][:200] if lines else ""


def measure_program(name: str, folder: Path) -> list[Row]:
    """Return the rows of all processes of one program."""
    rows: list[Row] = []
    for kind in KINDS:
        began_s = time.perf_counter()
        path = folder / "rows.json"
        path.unlink(missing_ok=True)
        code, line = start_child(kind, name, path)
        own: list[Row] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        if code != 0:
            own.append({"state": "process", "error": f"return code {code}: {line}"})
        first = next((row["median_ms"] for row in own if row["state"] == NONE), None)
        for row in own:
            if first is not None and "median_ms" in row:
                row["ratio"] = round(row["median_ms"] / first, 3)
        rows += [{"program": name, "process": kind, "return_code": code, **row} for row in own]
        print(f"{name}, {kind}: {time.perf_counter() - began_s:.1f} s, return code {code}", flush=True)
    return rows


def program_line(name: str, rows: list[Row]) -> Row:
    """Return what one program came to, in a line."""
    found = {(row["process"], row["state"]): row for row in rows}
    line: Row = {"program": name, "none, ms": found.get((ALONE, NONE), {}).get("median_ms", "error")}
    line["none, observed process, ms"] = found.get((OBSERVED, NONE), {}).get("median_ms", "error")
    places = [(OBSERVED, state) for state in (RANGES, KERNELS, KERNELS_AND_CALLS, AFTER_STOP, AFTER_CLOSE)]
    places += [(PROFILED, state) for state in (PROFILER, AFTER_PROFILER)]
    line |= {place[1]: found.get(place, {}).get("ratio", "error") for place in places}
    hashes = [row["sha256"] for row in rows if "sha256" in row]
    line["results"] = f"{'equal' if len(set(hashes)) == 1 else 'NOT EQUAL'} ({len(hashes)} states)"
    line["return codes"] = ", ".join(dict.fromkeys(str(row["return_code"]) for row in rows))
    return line


def end_in_every_order(only: str) -> list[Row]:
    """Return how each order of ending ended."""
    names = [name for name in ENDINGS if only in name]
    with ThreadPoolExecutor(ENDINGS_AT_ONCE) as pool:
        results = list(pool.map(lambda name: start_child(ENDING, name), names))
    return [
        {"ending": name, "return code": code, "goal": 0, "last line of standard error": "" if code == 0 else line}
        for name, (code, line) in zip(names, results, strict=True)
    ]


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(description="Real programs with nothing on, watched, and afterwards.")
    parser.add_argument("--json", type=Path, help="store the figures here")
    parser.add_argument("--only", default="", help="only programs and endings with this text in their names")
    parser.add_argument("--child", choices=[*KINDS, ENDING], help="measure in this process; needs --name")
    parser.add_argument("--name", help="the program, or the ending, of --child")
    return parser


def main(argv: list[str] | None = None) -> None:
    """Measure, print, and store the figures."""
    began_s = time.perf_counter()
    options = make_parser().parse_args(sys.argv[1:] if argv is None else argv)
    if options.child == ENDING:
        run_ending(options.name)
        return
    if options.child:
        run_child(options.child, options.name, options.json)
        return
    names = [name for name in PROGRAMS if options.only in name]
    with tempfile.TemporaryDirectory() as folder:
        measured = {}
        for name in names:
            measured[name] = measure_program(name, Path(folder))
            print(program_line(name, measured[name]), flush=True)
    lines = [program_line(name, rows) for name, rows in measured.items()]
    endings = end_in_every_order(options.only)
    title = "Programs: ratios to the same process with nothing on"
    report(title, lines, [])
    report("Orders of ending", endings, [])
    every_row = [row for rows in measured.values() for row in rows]
    for row in every_row:
        if "error" in row:
            print(f"Error in {row['program']}, {row['process']}, {row['state']}: {row['error']}")
    are_equal = all(line["results"].startswith("equal") for line in lines)
    print(f"All results equal: {are_equal}. Endings that failed: {sum(row['return code'] != 0 for row in endings)}.")
    print(f"Took {time.perf_counter() - began_s:.0f} s.")
    if options.json is not None:
        stored = {"title": title, "machine": machine(), "rows": lines, "endings": endings, "all_equal": are_equal}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(stored | {"measurements": every_row}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
