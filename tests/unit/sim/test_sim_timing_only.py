"""A simulated device that keeps time and computes nothing: the same shapes, dtypes and times, and no value to mislead."""

from __future__ import annotations

import time

import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.errors import NotSimulatedError
from gpustreamlab.workloads import copy_to_device, copy_to_host, matrix_product, streaming_add

EXPRESSIONS = """
a + b | a - 1 | 2.5 * a | a * 1j | i + 1 | i / 2 | i // 2 | -a | abs(z) | a > b | ~(a > 0) | a ** 2 | i ** 2 | a ** 0.5
a @ b.T | v @ b.T | a @ v | v @ v | t @ t.mT | t @ b.T | xp.dot(a, b.T) | xp.dot(v, v) | xp.dot(a, 2) | h @ h
xp.einsum('ij,kj->ik', a, b) | xp.einsum('ij,ij', a, b) | xp.einsum('ij->ji', a) | a.sum() | a.sum(axis=0)
a.mean(axis=(0, 1)) | t.max(axis=-1, keepdims=True) | xp.std(a, axis=1, ddof=1) | i.mean() | i.sum() | h.var()
a.argmax() | a.argmin(axis=1) | (a > 0).any(axis=0) | (a > 0).all() | xp.median(a, axis=0) | xp.ptp(a, axis=0)
xp.count_nonzero(a) | xp.add.reduce(a) | xp.nanmean(a, axis=1) | a.prod(axis=-2) | a.sum(axis=0, dtype='float64')
a.sum(keepdims=True)
a.sum(axis=1, where=b > 0) | xp.exp(a) | xp.sqrt(i) | xp.sin(h) | xp.hypot(a, v) | xp.divmod(a, b)[1] | xp.frexp(a)[1]
xp.isnan(a) | xp.maximum(a, 0) | xp.where(a > 0, a, 0) | xp.where(a > 0, a, z) | xp.clip(a, 0, 1) | a.clip(0, 1)
xp.round(a, 2) | xp.nan_to_num(a) | xp.isclose(a, b) | xp.sort(a) | xp.sort(a, axis=None) | a.argsort(axis=0)
a.cumsum() | a.cumsum(axis=0) | xp.cumprod(i) | xp.roll(a, 3) | xp.tril(a) | a.copy() | a.astype('float16')
a.astype('float32') | a.astype(int) | a.flatten() | xp.copy(a.T) | xp.asarray(a, 'float64') | xp.fft.fft(a)
xp.fft.ifft2(z) | xp.fft.fftn(t) | xp.fft.fft(h) | xp.fft.fftshift(a) | xp.ones((3, 4)) | xp.ones(5, 'int8')
xp.zeros((2, 2), 'f2') | xp.full((2, 3), 7) | xp.full(4, 1.5, dtype='f4') | xp.empty((0, 3)) | xp.ones_like(a)
xp.zeros_like(i) | xp.full_like(a, 2) | xp.empty_like(t) | xp.ones_like(a, dtype='int8') | xp.arange(7)
xp.linspace(0, 1, 5) | xp.random.rand(3, 4) | xp.random.random((2, 3)) | xp.random.normal(0, 1, (4, 2))
xp.random.standard_normal(6) | xp.random.uniform(size=3) | xp.random.randint(0, 9, size=(2, 2))
xp.random.default_rng(1).random((5, 2)) | xp.random.default_rng(1).integers(0, 5, (3,)) | xp.random.random()
xp.random.default_rng(1).standard_normal((2, 2), dtype='float32') | xp.random.rand(3, dtype='float32') | a.T
a.reshape(-1) | a[1] | a[:2, ::2] | a[None, ..., 0] | t.transpose(2, 0, 1) | xp.broadcast_to(v, (3, 5))
xp.squeeze(a[:1]) | z.real | z.imag | xp.concatenate([a, b]) | xp.concatenate([a, i], axis=1)
xp.stack([a, b], axis=-1) | xp.vstack([v, v]) | xp.hstack([v, v]) | xp.array([v, v]) | xp.add(a, b, out=o)
xp.matmul(a, b.T, out=m) | a.sum(axis=0, out=v) | xp.add(a, b, o)
"""
EACH = [part.strip() for line in EXPRESSIONS.strip().splitlines() for part in line.split(" | ")]


def names(xp):
    """Return arrays of a few shapes and dtypes."""
    shapes = {"a": ((4, 5), "f4"), "b": ((4, 5), "f4"), "v": ((5,), "f4"), "i": ((4, 5), "i4"), "h": ((6, 6), "f2")}
    shapes |= {"z": ((4, 5), "c8"), "t": ((2, 4, 5), "f4"), "o": ((4, 5), "f4"), "m": ((4, 4), "f4")}
    return {"xp": xp, **{name: xp.ones(shape, dtype) for name, (shape, dtype) in shapes.items()}}


def evaluate(text, *, timing_only):
    """Run a statement or an expression; return its value, and what ran for how long."""
    backend = SimBackend(timing_only=timing_only)
    known = names(backend.xp)
    told = []
    backend.synchronize()
    backend.set_observer(lambda work: told.append((work.name, work.end_ns - work.start_ns, work.blocks)))
    if text in STATEMENTS:
        exec(text, known)
    value = known["a"] if text in STATEMENTS else eval(text, known)
    backend.synchronize()
    return value, told, backend.glance_ns(), known


@pytest.mark.parametrize("text", EACH)
def test_shapes_dtypes_and_times_are_those_of_a_device_that_computes(text):
    value, told, end_ns, _ = evaluate(text, timing_only=False)
    like, like_told, like_end_ns, known = evaluate(text, timing_only=True)
    assert (like.shape, like.dtype) == (value.shape, value.dtype)
    assert (like_told, like_end_ns) == (told, end_ns)
    for name in ("o", "m"):
        if f"out={name}" in text:
            assert like is known[name]


STATEMENTS = ("a += b", "a *= 2", "a **= 2", "a -= v", "a[1:] = 0", "a[0] = v", "a.fill(3)", "a.sort()", "xp.copyto(a, b)")


@pytest.mark.parametrize("text", STATEMENTS)
def test_what_writes_takes_its_time(text):
    value, told, end_ns, _ = evaluate(text, timing_only=False)
    like, like_told, like_end_ns, _ = evaluate(text, timing_only=True)
    assert (like.shape, like.dtype, like_told, like_end_ns) == (value.shape, value.dtype, told, end_ns)
    assert len(told) >= 1


def test_a_large_product_takes_milliseconds():
    began = time.perf_counter()
    with gsl.Session(SimBackend("h200", timing_only=True)) as lab:
        lab.stream("a")
        with lab.on("a"):
            a, b, out = (lab.xp.ones((16_384, 16_384), "float16") for _ in range(3))
            matrix_product(lab, a, b, out)
            streaming_add(lab, a, b, out)
        lab.synchronize()
        names_of = [lab.trace.names[code] for code in lab.trace.name]
        product_ns = int(lab.trace.duration_ns[names_of.index("matmul")])
    wave_ns = 2 * 128 * 256 * 16_384 / 7.17e12 * 1e9
    assert product_ns == pytest.approx(64 * wave_ns, rel=1e-3)  # 8,192 tiles on 132 SMs: 63 waves, and one more
    assert time.perf_counter() - began < 5  # NumPy would take hours


@pytest.fixture
def lab():
    with gsl.Session(SimBackend(timing_only=True)) as session:
        session.stream("a")
        with session.select("a"):
            yield session


READS = {
    "get": lambda a: a.get(),
    "float": lambda a: float(a.sum()),
    "int": lambda a: int(a.sum()),
    "bool": lambda a: bool(a[0, 0] > 0),
    "item": lambda a: a[0, 0].item(),
    "tolist": lambda a: a.tolist(),
    "tobytes": lambda a: a.tobytes(),
    "format": lambda a: f"{a[0, 0]:.2f}",
    "asnumpy": lambda a: a.module.asnumpy(a),
    "mask": lambda a: a[a > 0],
    "gather": lambda a: a[[0, 1]],
    "scatter": lambda a: a.__setitem__([0], 1),
    "integers out": lambda a: (a > 0).get(out=np.empty(a.shape, bool)),
    "save": lambda a: a.module.save("x.npy", a),
}


@pytest.mark.parametrize("how", READS)
def test_reading_a_value_is_refused(lab, how):
    a = lab.xp.ones((4, 4), "float32")
    with pytest.raises(NotSimulatedError, match=r"keeps time only.*timing_only=False"):
        READS[how](a)


@pytest.mark.parametrize(
    "call",
    [
        "unique(a)",
        "nonzero(a)",
        "where(a)",
        "repeat(a, 2)",
        "linalg.inv(a)",
        "histogram(a)",
        "random.permutation(4)",
        "fft.fft(a, 8)",
    ],
)
def test_what_has_an_unknown_shape_is_refused(lab, call):
    with pytest.raises(NotSimulatedError, match=r"keeps time and no values"):
        eval(f"xp.{call}", {"xp": lab.xp, "a": lab.xp.ones((4, 4))})


@pytest.mark.parametrize(
    "wrong",
    ["a @ b", "a + b", "xp.add(a, a, out=b)", "xp.concatenate([a, b])", "a.__setitem__(0, b)", "xp.einsum('ij,ij', a, b)"],
)
def test_shapes_that_do_not_fit_are_refused(lab, wrong):
    with pytest.raises(ValueError, match=r"."):
        eval(wrong, {"xp": lab.xp, "a": lab.xp.ones((4, 5)), "b": lab.xp.ones((3, 7))})


def test_a_copy_to_the_host_takes_its_time_and_leaves_nan(lab):
    host = lab.memory.pinned_empty((256, 256), "float32")
    host[...] = 3
    a = lab.xp.empty((256, 256), "float32")
    copy_to_device(lab, host, a)
    copy_to_host(lab, a, host)
    lab.synchronize()
    assert np.isnan(host).all()


def test_an_array_shows_that_it_has_no_values(lab):
    a = lab.xp.ones((4, 5), "float16")
    assert repr(a) == str(a) == "<float16 array of shape (4, 5), timing only: no values>"


def test_a_graph_launches_and_computes_nothing(lab):
    backend = SimBackend(timing_only=True)
    stream = backend.create_stream(priority=0)
    token = backend.select(stream)
    a = backend.xp.ones((64, 64), "float32")
    capture = backend.begin_graph(stream, [a])
    a += 1
    graph = capture.instantiate()
    told = []
    backend.set_observer(told.append)
    graph.launch(stream)
    backend.synchronize()
    backend.restore(token)
    assert [work.name for work in told] == ["ones", "add"] or [work.name for work in told] == ["add"]


def test_a_trace_says_that_nothing_was_computed(lab):
    lab.xp.ones(4)
    lab.synchronize()
    assert lab.trace.metadata.clock.endswith("timing only, nothing is computed")


def test_a_plan_is_made_and_its_check_compares_nothing(lab):
    x = lab.xp.ones((512, 512), "float32")
    plan = lab.program("a = x @ x\nb = lab.xp.tanh(x)\nc = a + b", {"x": x, "lab": lab}).plan(streams=2)
    plan.run()
    assert "3 statements on 2 streams" in str(plan)
    with pytest.raises(NotSimulatedError, match="keeps time only"):
        plan.check()
