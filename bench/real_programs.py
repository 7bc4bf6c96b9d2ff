"""Four small programs of real libraries, recorded with kernels, calls of the host and Python stacks, and explained.

A decoder of GPT-2's size that decodes in a thread beside a prefill in another one, each on its partition (torch); a pipeline of
copies and transforms (CuPy); a stencil whose steps are checked on the host (Numba-CUDA); a loop of small kernels (Triton) or of
a jitted function (JAX). For each the explanation is printed, and the trace kept as Parquet where a folder is given:

    python -m bench.real_programs --out traces                  # all four
    python -m bench.real_programs gpt2 cupy --seconds 5 --out traces
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench._common import report
from gpustreamlab import Session

NEEDS_GPU = True
LAYERS, WIDTH, HEADS, VOCABULARY = 12, 768, 12, 50_257
PROMPT, BATCH = 512, 4
LEAST_SECONDS, MOST_SECONDS = 0.5, 8.0

Program = Callable[[Session, float], object]
"""Takes a session and for how many seconds to work; leaves nothing enqueued."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser()
    options = parser.parse_args(argv)
    unknown = sorted({*options.programs} - {*PROGRAMS})
    if unknown:
        parser.error(f"there is no program {unknown[0]!r}; there are {', '.join(PROGRAMS)}")
    seconds = min(max(options.seconds, LEAST_SECONDS), MOST_SECONDS)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.programs or PROGRAMS:
        print(f"\n== {name} ==", flush=True)
        try:
            rows.append(record(name, seconds, options.out, stacks=not options.no_stacks))
        except ImportError as error:
            print(f"left out: {error}")
    report("Real programs: what is found first", rows, [] if options.json is None else ["--json", str(options.json)])


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(description="Record and explain small programs of real libraries.")
    parser.add_argument("programs", nargs="*", help=f"which of {', '.join(PROGRAMS)}; all if left out")
    parser.add_argument("--seconds", type=float, default=3.0, help=f"how long each works, at most {MOST_SECONDS:.0f}")
    parser.add_argument("--out", type=Path, help="keep the traces in this folder")
    parser.add_argument("--json", type=Path, help="store what is found first here")
    parser.add_argument("--no-stacks", action="store_true", help="sample no Python stacks")
    return parser


def record(name: str, seconds: float, out: Path | None, *, stacks: bool) -> dict[str, Any]:
    """Run a program, warm, while it is recorded; print what is found, and return the first of it."""
    prepare = PROGRAMS[name]
    with Session("cuda", ring_size=4_000_000, capture="ranges", title=name) as lab:
        program = prepare(lab)
        lab.synchronize()  # what was prepared with no stream selected
        program(lab, LEAST_SECONDS)
        lab.synchronize()
        lab.clear()
        with lab.capture("kernels", host=True, stacks=stacks):
            began = time.perf_counter()
            program(lab, seconds)
            lab.synchronize()
            took = time.perf_counter() - began
        trace = lab.trace
    if out is not None:
        trace.save(out / f"{name}.parquet")
    print(f"{took:.2f} s, {trace!r}")
    found = trace.explain()
    for answer in (found, trace.idle(), trace.critical_path()):
        print(answer, flush=True)
    first = found.findings[0] if found else None
    return {
        "program": name,
        "s": round(took, 2),
        "spans": len(trace),
        "gain, predicted": f"{found.gain_ns / max(found.active_ns, 1):.0%}",
        "first finding": first.code.value if first else "none",
        "stream": first.stream if first else "",
        "thread": (first.thread if first else None) or "",
        "function": f"{first.function} {first.function_share:.0%} of {first.sample_count}" if first and first.function else "",
    }


def gpt2(lab: Session) -> Program:
    """Decode in one thread and prefill in another one, each on half of the card: decode should be bound by the host."""
    import torch

    lab.partition(decode=64, prefill="rest")
    lab.stream("decode", partition="decode")
    lab.stream("prefill", partition="prefill")
    model = _make_gpt2(torch)
    prompt = torch.randint(VOCABULARY, (BATCH, PROMPT), device="cuda")

    @torch.inference_mode()
    def decode(until_s: float) -> None:
        with lab.on("decode", "decode"):
            while time.perf_counter() < until_s:
                cache: list[Any] = []
                token = model(prompt[:1, :64], cache)
                for _ in range(128):
                    token = model(token, cache)
                    if time.perf_counter() >= until_s:
                        break

    @torch.inference_mode()
    def prefill(until_s: float) -> None:
        while time.perf_counter() < until_s:
            with lab.on("prefill", "prefill"):
                model(prompt, [])
            lab.stream("prefill").synchronize()

    return lambda _, seconds: _in_threads(seconds, decode, prefill)


def _make_gpt2(torch: Any) -> Callable[[Any, list[Any]], Any]:
    """Return a decoder of GPT-2's shape with random weights: takes tokens and a cache, which grows; returns the next tokens."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.norm_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(approximate="tanh"), nn.Linear(4 * WIDTH, WIDTH))

        def attend(self, x: Any, past: Any) -> tuple[Any, Any]:
            batch, count, _ = x.shape
            heads = self.qkv(x).view(batch, count, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            query, key, value = heads.unbind(0)
            if past is not None:
                key, value = torch.cat((past[0], key), 2), torch.cat((past[1], value), 2)
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=past is None)
            return self.out(mixed.transpose(1, 2).reshape(batch, count, WIDTH)), (key, value)

        def forward(self, x: Any, past: Any) -> tuple[Any, Any]:
            mixed, kept = self.attend(self.norm(x), past)
            x = x + mixed
            return x + self.mlp(self.norm_mlp(x)), kept

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(1024, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, tokens: Any, cache: list[Any]) -> Any:
            first = cache[0][0].shape[2] if cache else 0
            x = self.tokens(tokens) + self.places(torch.arange(first, first + tokens.shape[1], device=tokens.device))
            past = list(cache) or [None] * LAYERS
            cache.clear()
            for block, one in zip(self.blocks, past, strict=True):
                x, kept = block(x, one)
                cache.append(kept)
            logits = self.norm(x[:, -1:]) @ self.tokens.weight.T
            return logits.argmax(-1)

    return Decoder().to("cuda", torch.float16).eval()  # type: ignore[no-any-return]


def _in_threads(seconds: float, *works: Callable[[float], object]) -> None:
    """Run each in a thread of its name until so many seconds from now."""
    until_s = time.perf_counter() + seconds
    threads = [threading.Thread(target=work, args=(until_s,), name=work.__name__) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def cupy_fft(lab: Session) -> Program:
    """Copy blocks in, transform them, copy them out, on three streams with two buffers."""
    import cupy
    import numpy as np

    streams = {name: lab.stream(name) for name in ("in", "fft", "out")}
    hosts = [lab.memory.pinned_empty((64, 1 << 16), np.complex64) for _ in range(4)]
    for host in hosts:
        host[:] = 1
    buffers = [cupy.empty((64, 1 << 16), np.complex64) for _ in range(2)]
    done = [streams["out"].record() for _ in range(2)]

    def step(turn: int) -> None:
        done[turn % 2].synchronize()  # the host's buffers of two steps ago are free
        with lab.on("in", "copy in"):
            buffers[turn % 2].set(hosts[turn % 2])
        streams["fft"].wait("in")
        with lab.on("fft", "transform"):
            found = cupy.fft.ifft(cupy.fft.fft(buffers[turn % 2]) * 0.5)
        streams["out"].wait("fft")
        with lab.on("out", "copy out"):
            found.get(out=hosts[2 + turn % 2], blocking=False)
        streams["out"].hold(found)
        done[turn % 2] = streams["out"].record()

    return lambda _, seconds: _repeat(step, seconds)


def numba_stencil(lab: Session) -> Program:
    """Relax two fields, and add up the change on the host after each few steps."""
    from bench._numba_cuda import import_numba_cuda

    cuda = import_numba_cuda()
    import numpy as np

    @cuda.jit  # type: ignore[untyped-decorator]
    def relax(old: Any, new: Any) -> None:
        i, j = cuda.grid(2)
        if 0 < i < old.shape[0] - 1 and 0 < j < old.shape[1] - 1:
            new[i, j] = 0.25 * (old[i - 1, j] + old[i + 1, j] + old[i, j - 1] + old[i, j + 1])

    fields = {name: [cuda.to_device(np.ones((2_048, 2_048), np.float32)) for _ in range(2)] for name in ("left", "right")}
    for name in fields:
        lab.stream(name)

    def reduce_on_host(field: Any, stream: Any) -> float:
        values = field.copy_to_host(stream=stream.numba)
        stream.synchronize()
        return float(np.abs(np.diff(values[::8])).sum())

    def step(turn: int) -> None:
        for name, pair in fields.items():
            with lab.on(name, "relax") as selected:
                for number in range(10):
                    relax[(128, 128), (16, 16), selected.numba](pair[number % 2], pair[1 - number % 2])
            if turn % 2:
                reduce_on_host(pair[0], selected)

    return lambda _, seconds: _repeat(step, seconds)


def small_kernels(lab: Session) -> Program:
    """Enqueue small kernels of Triton on two streams; of JAX, on its own, where Triton is missing."""
    for name in ("one", "two"):
        lab.stream(name)
    try:
        import torch

        from bench import _triton_kernels
    except ImportError:
        return _jax_loop(lab)
    arrays = {name: [torch.ones(1 << 20, device="cuda") for _ in range(3)] for name in ("one", "two")}

    def step(_: int) -> None:
        for name, given in arrays.items():
            with lab.on(name, "scale and add"):
                for _ in range(20):
                    _triton_kernels.launch(*given)

    return lambda _, seconds: _repeat(step, seconds, every=50, wait=lab.synchronize)


def _jax_loop(lab: Session) -> Program:
    import jax

    x = jax.numpy.ones((512, 512))
    product = jax.jit(lambda value: value @ value / 512)

    def step(_: int) -> None:
        with lab.on("one", "products"):
            product(product(x)).block_until_ready()

    return lambda _, seconds: _repeat(step, seconds)


def _repeat(step: Callable[[int], object], seconds: float, *, every: int = 0, wait: Callable[[], object] = bool) -> None:
    """Take steps until the time is over; wait each so many, so that the launch queue does not fill."""
    until_s, turn = time.perf_counter() + seconds, 0
    while time.perf_counter() < until_s:
        step(turn)
        turn += 1
        if every and turn % every == 0:
            wait()


PROGRAMS: dict[str, Callable[[Session], Program]] = {
    "gpt2": gpt2,
    "cupy": cupy_fft,
    "numba": numba_stencil,
    "small": small_kernels,
}

if __name__ == "__main__":
    main()
