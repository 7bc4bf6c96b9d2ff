"""The array module: NumPy's results, CuPy's manners, modelled time."""

from __future__ import annotations

import copy
import operator

import numpy as np
import pytest

from gpustreamlab.backends.sim import H200, SimArray, SimBackend, plan_matmul
from gpustreamlab.backends.sim._functions import METHODS, RULES, Call
from gpustreamlab.errors import NotSimulatedError
from gpustreamlab.typing import SpanKind

RNG = np.random.default_rng(7)
A = RNG.normal(size=(6, 8)).astype("f4")
B = RNG.normal(size=(6, 8)).astype("f4")
Z = (A + 1j * B).astype("c8")
INTS = RNG.integers(0, 9, size=(5, 4))


def to_host(result):
    if isinstance(result, (tuple, list)):
        return [to_host(item) for item in result]
    return result.get() if isinstance(result, SimArray) else result


def assert_same(result, expected):
    if isinstance(expected, (tuple, list)):
        assert len(result) == len(expected)
        for one, other in zip(result, expected, strict=True):
            assert_same(one, other)
        return
    assert isinstance(result, SimArray)
    values = result.get()
    np.testing.assert_array_equal(values, expected)
    assert values.dtype == np.asarray(expected).dtype
    assert values.shape == np.shape(expected)


CASES = {
    "add": lambda xp, a, b: xp.add(a, b),
    "operators": lambda xp, a, b: (a * 2 - b / 3) ** 2 // 1 + abs(-a) % 2,
    "compare": lambda xp, a, b: (a > b) & ~(a <= 0) | (a != b),
    "sin": lambda xp, a, b: xp.sin(a),
    "where": lambda xp, a, b: xp.where(a > 0, a, b),
    "clip": lambda xp, a, b: xp.clip(a, -0.5, 0.5),
    "modf": lambda xp, a, b: xp.modf(a),
    "divide by zero": lambda xp, a, b: a / (b * 0),
    "sum": lambda xp, a, b: xp.sum(a, axis=0, keepdims=True),
    "mean": lambda xp, a, b: a.mean(),
    "std": lambda xp, a, b: a.std(axis=1),
    "var": lambda xp, a, b: xp.var(a),
    "max": lambda xp, a, b: a.max(axis=-1),
    "argmax": lambda xp, a, b: a.argmax(axis=1),
    "any": lambda xp, a, b: xp.any(a > 2),
    "cumsum": lambda xp, a, b: xp.cumsum(a, axis=1),
    "diff": lambda xp, a, b: xp.diff(a),
    "median": lambda xp, a, b: xp.median(a, axis=0),
    "percentile": lambda xp, a, b: xp.percentile(a, [10, 90]),
    "sort": lambda xp, a, b: xp.sort(a, axis=0),
    "argsort": lambda xp, a, b: a.argsort(),
    "unique": lambda xp, a, b: xp.unique(xp.round(a), return_counts=True),
    "nonzero": lambda xp, a, b: xp.nonzero(a > 0),
    "histogram": lambda xp, a, b: xp.histogram(a, bins=5),
    "searchsorted": lambda xp, a, b: xp.searchsorted(xp.sort(a.ravel()), b.ravel()),
    "concatenate": lambda xp, a, b: xp.concatenate([a, b], axis=1),
    "stack": lambda xp, a, b: xp.stack((a, b)),
    "tile": lambda xp, a, b: xp.tile(a, (2, 1)),
    "roll": lambda xp, a, b: xp.roll(a, 3, axis=1),
    "pad": lambda xp, a, b: xp.pad(a, 2),
    "split": lambda xp, a, b: xp.split(a, 2),
    "take": lambda xp, a, b: xp.take(a, xp.arange(3), axis=1),
    "meshgrid": lambda xp, a, b: xp.meshgrid(xp.arange(3), xp.arange(4)),
    "reshape": lambda xp, a, b: a.reshape(4, -1).T,
    "transpose": lambda xp, a, b: xp.transpose(a[None], (2, 0, 1)),
    "broadcast": lambda xp, a, b: xp.broadcast_to(a, (3, 6, 8)) + b,
    "astype": lambda xp, a, b: a.astype("f8").astype(xp.int32),
    "matmul": lambda xp, a, b: a @ b.T,
    "batched matmul": lambda xp, a, b: a[None] @ xp.stack([b.T, b.T]),
    "dot": lambda xp, a, b: xp.dot(a[0], b[0]),
    "matrix-vector": lambda xp, a, b: a.dot(b[1]),
    "tensordot": lambda xp, a, b: xp.tensordot(a, b, axes=([0], [0])),
    "inner": lambda xp, a, b: xp.inner(a, b),
    "outer": lambda xp, a, b: xp.outer(a[0], b[0]),
    "einsum": lambda xp, a, b: xp.einsum("ik,jk->ij", a, b),
    "fft": lambda xp, a, b: xp.fft.fft(a),
    "rfft2": lambda xp, a, b: xp.fft.irfft2(xp.fft.rfft2(a) * 0.5, s=(6, 8)),
    "fftn": lambda xp, a, b: xp.fft.ifftn(xp.fft.fftn(a)),
    "fftshift": lambda xp, a, b: xp.fft.fftshift(xp.fft.fftfreq(8)),
    "norm": lambda xp, a, b: xp.linalg.norm(a),
    "allclose": lambda xp, a, b: xp.allclose(a, a),
    "isnan": lambda xp, a, b: xp.isnan(a).sum(),
    "creation": lambda xp, a, b: [
        xp.zeros(3),
        xp.ones((2, 2), "f4"),
        xp.full(3, 7),
        xp.linspace(0, 1, 5),
        xp.eye(3, dtype="i4"),
    ],
    "like": lambda xp, a, b: [xp.zeros_like(a), xp.ones_like(a, dtype="i8"), xp.full_like(a, 2)],
    "basic index": lambda xp, a, b: [a[1], a[1, 2], a[..., ::2], a[None, :, -1], a[2, ...], a[1, 2, ...]],
    "fancy index": lambda xp, a, b: [a[[0, 2]], a[:, xp.arange(3)], a[a > 0], a[np.array([1, 0])]],
    "flatten": lambda xp, a, b: a.flatten(),
    "repeat": lambda xp, a, b: a.repeat(2, axis=0),
    "out": lambda xp, a, b: xp.add(a, b, out=xp.empty_like(a)),
    "reduce": lambda xp, a, b: np.add.reduce(a, axis=0),
    "numpy's function": lambda xp, a, b: np.concatenate([np.sqrt(abs(a)), b]).sum(axis=1),
    "numpy's fft": lambda xp, a, b: np.fft.rfft(a),
    "numpy scalar": lambda xp, a, b: np.float32(2) * a + np.float64(1),
    "interp": lambda xp, a, b: xp.interp(a[0], xp.arange(4), xp.arange(4) * 2),
    "gradient": lambda xp, a, b: xp.gradient(a),
    "flip": lambda xp, a, b: xp.flip(a, 0),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_results_are_numpys(xp, case):
    with np.errstate(all="ignore"):
        expected = case(np, A, B)
    assert_same(case(xp, xp.asarray(A), xp.asarray(B)), expected)


@pytest.mark.parametrize("name", ["matmul", "dot", "inner", "tensordot", "einsum"])
@pytest.mark.parametrize(("m", "k", "n"), [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0), (0, 40, 40), (40, 0, 40)])
def test_products_with_an_empty_side_are_numpys(xp, name, m, k, n):
    def multiply(library):
        left, right = library.ones((m, k)), library.ones((n, k) if name == "inner" else (k, n))
        before = {"einsum": ("ij,jk->ik",)}.get(name, ())
        return getattr(library, name)(*before, left, right, **({"axes": 1} if name == "tensordot" else {}))

    assert_same(multiply(xp), multiply(np))


@pytest.mark.parametrize("scalar", [np.float64(0.5), np.float32(1), np.int64(1), np.bool_(1)], ids=repr)
@pytest.mark.parametrize("operation", ["lt", "le", "eq", "ne", "ge", "gt", "add"])
def test_a_scalar_of_numpy_may_stand_in_front(xp, scalar, operation):
    apply = getattr(operator, operation)
    assert_same(apply(scalar, xp.asarray(A)), apply(scalar, A))


def test_an_array_of_the_host_is_still_refused_in_front(xp):
    with pytest.raises(TypeError, match="Copy it to the device"):
        operator.lt(A, xp.asarray(A))


@pytest.mark.parametrize("exponent", [0.5, -1, 2, 3, 1.0, np.float64(0.5)], ids=repr)
@pytest.mark.parametrize("dtype", ["c8", "c16", "f4", "f8"])
def test_powers_are_numpys_to_the_last_digit(xp, dtype, exponent):
    values = np.array([1 + 1j, 2 - 3j, 0.3 + 7j]).astype(dtype) if dtype[0] == "c" else np.array([1, 2.5, 7], dtype)
    assert_same(xp.asarray(values) ** exponent, values**exponent)
    if values.dtype == (values**exponent).dtype:
        array, expected = xp.asarray(values), values.copy()
        before = array
        array **= exponent
        expected **= exponent
        assert array is before
        assert_same(array, expected)


def test_complex_parts(xp):
    z = xp.asarray(Z)
    assert_same(z.real, Z.real)
    assert_same(z.imag, Z.imag)
    assert_same(xp.conj(z) * z, Z.conj() * Z)
    assert complex(z[0, 0]) == complex(Z[0, 0])


def test_every_rule_names_a_function_or_a_step():
    steps = {"fill", "flatten", "getitem", "setitem", "mask", "view", "astype"}
    for name in RULES:
        owner = np
        for part in name.split("."):
            owner = getattr(owner, part, None)
        assert owner is not None or name in steps, name
    assert all(hasattr(np.ndarray, name) for name in METHODS)


class TestWriting:
    def test_in_place_operators_keep_the_array(self, xp):
        a = xp.asarray(A)
        before = a
        a += 1
        a *= xp.asarray(B)
        assert a is before
        expected = (A + 1) * B
        assert_same(a, expected)

    def test_assignment(self, xp):
        a, expected = xp.asarray(A), A.copy()
        for target, seven in ((a, xp.asarray(B)[0]), (expected, B[0])):
            target[0] = 5
            target[1:3] = seven
            target[[3, 4]] = 2
            target[target > 4] = -1
        a[5] = A[0]
        expected[5] = A[0]
        assert_same(a, expected)

    def test_views_share_memory(self, xp):
        a = xp.asarray(A)
        a[2:].T[0] = 9
        expected = A.copy()
        expected[2:].T[0] = 9
        assert_same(a, expected)

    def test_writing_methods(self, xp):
        a = xp.asarray(INTS)
        a.sort(axis=0)
        assert_same(a, np.sort(INTS, axis=0))
        a.fill(3)
        assert_same(a, np.full_like(INTS, 3))
        xp.copyto(a, xp.asarray(INTS))
        assert_same(a, INTS)

    def test_the_host_array_is_not_shared(self, xp):
        host = A.copy()
        a = xp.asarray(host)
        host[:] = 0
        assert_same(a, A)

    def test_shape_can_be_set(self, xp):
        a = xp.asarray(A)
        a.shape = (8, 6)
        assert_same(a, A.reshape(8, 6))

    def test_copies(self, xp):
        a = xp.asarray(A)
        for other in (a.copy(), copy.copy(a), copy.deepcopy(a), xp.array(a)):
            other[:] = 0
        assert xp.asarray(a) is a
        assert_same(a, A)


class TestHost:
    def test_numbers_and_text(self, xp):
        a = xp.asarray(INTS)
        assert float(a.mean()) == INTS.mean()
        assert int(a[0, 0]) == INTS[0, 0]
        assert bool(a.any())
        assert a[1, 1].item() == INTS[1, 1]
        assert a.tolist() == INTS.tolist()
        assert repr(a) == repr(INTS)
        assert str(a) == str(INTS)
        assert f"{a.mean():.3f}" == f"{INTS.mean():.3f}"
        assert [1, 2, 3][xp.asarray(1)] == 2
        assert len(a) == 5
        assert [row.tolist() for row in a] == INTS.tolist()

    def test_looks_are_free(self, backend, xp):
        a = xp.asarray(A)
        before = backend.driver.clock.now_ns
        looks = (a.shape, a.dtype, a.ndim, a.size, a.itemsize, a.nbytes, a.strides, a.flags.c_contiguous)
        assert looks == (A.shape, A.dtype, A.ndim, A.size, A.itemsize, A.nbytes, A.strides, True)
        assert backend.driver.clock.now_ns == before

    def test_reading_waits_for_the_selected_stream(self, backend, xp):
        stream = backend.create_stream(priority=0)
        token = backend.select(stream)
        a = xp.ones(4)
        backend.launch_spin(stream, 5_000_000, blocks=1, fill_sms=True)
        before = backend.host_time_ns()
        assert float(a.sum()) == 4.0
        assert backend.host_time_ns() - before > 5_000_000
        backend.restore(token)

    def test_reading_without_blocking_does_not_wait(self, backend, xp):
        stream = backend.create_stream(priority=0)
        token = backend.select(stream)
        a = xp.ones(4)
        backend.launch_spin(stream, 5_000_000, blocks=1, fill_sms=True)
        out = backend.pinned_empty(4, "f8")
        before = backend.host_time_ns()
        assert a.get(out=out, blocking=False) is out
        assert backend.host_time_ns() - before < 50_000
        assert out.tolist() == [1.0] * 4  # values are there at once; time says otherwise
        assert not stream.query()
        backend.restore(token)

    def test_sizes_that_depend_on_values_wait(self, backend, xp):
        a = xp.asarray(A)
        backend.launch_spin(backend.null_stream, 5_000_000, blocks=1, fill_sms=True)
        before = backend.host_time_ns()
        _ = a[a > 0]
        assert backend.host_time_ns() - before > 5_000_000

    def test_asnumpy(self, backend, xp):
        assert xp.asnumpy(xp.asarray(A)).tolist() == A.tolist()
        assert xp.asnumpy([1, 2]).tolist() == [1, 2]
        out = np.empty((6, 8), "f4")
        assert xp.asnumpy(xp.asarray(A), out=out) is out
        assert xp.asnumpy(A, out=out) is out

    def test_a_printed_array_outlives_the_device(self):
        backend = SimBackend()
        a = backend.xp.arange(3)
        backend.close()
        assert repr(a) == "array([0, 1, 2])"

    @pytest.mark.parametrize("out", [np.empty((6, 9), "f4"), np.empty((6, 8), "f8"), np.empty((8, 6), "f4").T])
    def test_a_wrong_target_is_refused(self, xp, out):
        with pytest.raises(ValueError, match="C-contiguous array of the same shape"):
            xp.asarray(A).get(out=out)

    def test_a_wrong_source_is_refused(self, xp):
        with pytest.raises(ValueError, match="Give the same"):
            xp.asarray(A).set(A.astype("f8"))
        with pytest.raises(TypeError, match="takes a NumPy array"):
            xp.asarray(A).set([1, 2])
        with pytest.raises(TypeError, match="takes a NumPy array"):
            xp.asarray(A).get(out=[1])


class TestModel:
    def one_work(self, backend, works, call):
        backend.synchronize()
        works.clear()
        call()
        backend.synchronize()
        (work,) = works
        return work

    def test_a_ufunc_reads_its_inputs_and_writes_its_output(self, backend, xp, works):
        a, b = xp.ones(1_000, "f4"), xp.ones(1_000, "f4")
        work = self.one_work(backend, works, lambda: a + b)
        assert (work.kind, work.name, work.size_bytes, work.operations) == (SpanKind.KERNEL, "add", 12_000, 1_000)

    def test_an_output_given_is_not_read(self, backend, xp, works):
        a, b = xp.ones(1_000, "f4"), xp.ones(1_000, "f4")
        assert self.one_work(backend, works, lambda: xp.sin(a, out=b)).size_bytes == 8_000

    def test_what_broadcasting_repeats_is_read_once(self, backend, xp, works):
        a, b = xp.ones((100, 10), "f4"), xp.ones(10, "f4")
        assert self.one_work(backend, works, lambda: a + xp.broadcast_to(b, (100, 10))).size_bytes == 8_040

    def test_zeros_are_a_fill(self, backend, xp, works):
        work = self.one_work(backend, works, lambda: xp.zeros(1_000, "f4"))
        assert (work.kind, work.size_bytes) == (SpanKind.FILL, 4_000)

    def test_views_and_empty_arrays_launch_nothing(self, backend, xp, works):
        a = xp.ones((4, 6))
        backend.synchronize()
        works.clear()
        _ = [a.T, a[1:], a.reshape(3, 8), a.ravel(), xp.moveaxis(a, 0, 1), xp.broadcast_to(a, (2, 4, 6)), a[None], a.squeeze()]
        _ = xp.empty(5), xp.ones(0) + 1, xp.zeros((0, 3))
        backend.synchronize()
        assert works == []
        _ = a.T.ravel()
        backend.synchronize()
        assert [work.name for work in works] == ["ravel"]

    @pytest.mark.parametrize(
        ("left", "right", "operations"),
        [
            ((64, 32), (32, 16), 2 * 64 * 32 * 16),
            ((32,), (32, 16), 2 * 32 * 16),
            ((64, 32), (32,), 2 * 64 * 32),
            ((5, 64, 32), (5, 32, 16), 5 * 2 * 64 * 32 * 16),
            ((64, 32), (5, 32, 16), 5 * 2 * 64 * 32 * 16),
        ],
    )
    def test_a_product_has_2mnk_operations(self, backend, xp, works, left, right, operations):
        a, b = xp.ones(left, "f4"), xp.ones(right, "f4")
        assert self.one_work(backend, works, lambda: a @ b).operations == operations
        if len(left) + len(right) < 5:
            assert self.one_work(backend, works, lambda: xp.dot(a, b)).operations == operations

    def test_a_complex_product_is_four_real_ones(self):
        sizes = {"m": 256, "n": 256, "k": 256, "batch": 1}
        real = plan_matmul(H200, "matmul", **sizes, dtype=np.dtype("f4"))
        assert plan_matmul(H200, "matmul", **sizes, dtype=np.dtype("c8")).operations == 4 * real.operations

    def test_einsum_counts_the_space_of_its_labels(self, backend, xp, works):
        a, b = xp.ones((4, 5), "f4"), xp.ones((5, 6), "f4")
        assert self.one_work(backend, works, lambda: xp.einsum("ij,jk->ik", a, b)).operations == 2 * 4 * 5 * 6

    @pytest.mark.parametrize(("name", "factor", "passes"), [("fft", 5, 1), ("fft2", 5, 2), ("fftn", 5, 2), ("rfft2", 2.5, 2)])
    def test_a_transform_has_5_n_log2_n_operations(self, backend, xp, works, name, factor, passes):
        a = xp.ones((64, 128), "c8" if factor == 5 else "f4")
        work = self.one_work(backend, works, lambda: getattr(xp.fft, name)(a))
        length = 128 if name == "fft" else 64 * 128
        assert work.operations == factor * 64 * 128 * np.log2(length)
        output_bytes = 64 * 128 * 8 if factor == 5 else 64 * 65 * 8
        assert work.size_bytes == passes * (a.nbytes + output_bytes)

    def test_a_large_add_runs_at_the_memorys_speed(self, backend, xp, works):
        a = xp.ones(1 << 24, "f4")
        work = self.one_work(backend, works, lambda: xp.add(a, 1, out=a))
        assert work.size_bytes / (work.end_ns - work.start_ns) == pytest.approx(4_250, rel=0.02)

    def test_work_goes_to_the_selected_stream(self, backend, xp, works):
        stream = backend.create_stream(priority=0)
        token = backend.select(stream)
        work = self.one_work(backend, works, lambda: xp.ones(4))
        backend.restore(token)
        assert work.stream == stream.handle

    def test_a_call_reports_its_widest_dtype(self):
        call = Call("add", [np.ones(3, "f4"), np.ones(3, "i8")], [np.ones(3, "f8")], ())
        assert call.dtype == np.float64
        assert call.element_count == 3


class TestRandom:
    def test_a_seed_repeats_the_numbers(self, xp):
        drawn = []
        for _ in range(2):
            xp.random.seed(3)
            rng = xp.random.default_rng(5)
            parts = (xp.random.rand(3, dtype="f4"), xp.random.randint(0, 9, 4), rng.standard_normal((2, 2), dtype="f4"))
            drawn.append([part.tolist() for part in parts])
        assert drawn[0] == drawn[1]

    def test_values_are_numpys(self, xp):
        rng = xp.random.default_rng(5)
        assert_same(rng.random(4), np.random.default_rng(5).random(4))

    def test_unknown_distributions_are_refused(self, xp):
        with pytest.raises(NotSimulatedError, match="random numbers"):
            xp.random.nothing(2)
        assert "rand" in dir(xp.random)
        assert "random" in dir(xp.random.default_rng(0))


class TestRefusals:
    def test_numpy_does_not_convert_by_itself(self, xp):
        for convert in (np.asarray, np.array, np.ascontiguousarray):
            with pytest.raises(TypeError, match=r"\.get\(\)"):
                convert(xp.ones(3))

    @pytest.mark.parametrize(
        "mix", [lambda xp, a: a + np.ones(3), lambda xp, a: np.ones(3) + a, lambda xp, a: xp.concatenate([a, np.ones(3)])]
    )
    def test_host_arrays_are_refused(self, xp, mix):
        with pytest.raises(TypeError, match=r"xp\.asarray"):
            mix(xp, xp.ones(3))

    def test_arrays_of_another_device_are_refused(self, xp):
        with pytest.raises(NotSimulatedError, match="another simulated device"):
            xp.ones(3) + SimBackend().xp.ones(3)

    def test_arrays_of_a_real_gpu_are_refused(self, xp):
        class Real:
            __cuda_array_interface__ = {}  # noqa: RUF012

        with pytest.raises(NotSimulatedError, match="real GPU"):
            xp.add(xp.ones(3), Real())

    @pytest.mark.parametrize("values", [["text"], [object()], np.zeros(2, "M8[s]"), np.zeros(2, np.longdouble)])
    def test_dtypes_that_no_gpu_has_are_refused(self, xp, values):
        with pytest.raises(NotSimulatedError, match="dtype"):
            xp.asarray(values)

    def test_functions_without_a_model_are_refused(self, xp):
        with pytest.raises(NotSimulatedError, match="does not model the time"):
            _ = xp.char
        with pytest.raises(NotSimulatedError, match="CuPy has reduce of add, multiply only"):
            np.maximum.reduce(xp.ones(3))
        with pytest.raises(NotSimulatedError, match="Write every label out"):
            xp.einsum("...i->...", xp.ones(3))

    def test_unknown_names_are_attribute_errors_with_a_hint(self, xp):
        assert not hasattr(xp, "svd")
        assert not hasattr(xp.linalg, "fft")
        assert not hasattr(xp.ones(3), "nothing")
        with pytest.raises(AttributeError, match="Did you mean"):
            _ = xp.concatenat

    def test_functions_need_a_device_array(self, xp):
        with pytest.raises(TypeError, match="no array of the simulated device"):
            xp.sum([1, 2])

    def test_numpys_own_errors_pass_through_and_launch_nothing(self, backend, xp, works):
        a, b = xp.ones(3), xp.ones(4)
        backend.synchronize()
        works.clear()
        with pytest.raises(ValueError, match="broadcast"):
            a + b
        backend.synchronize()
        assert works == []

    def test_other_streams_and_orders_are_refused(self, xp):
        with pytest.raises(NotSimulatedError, match="selected stream"):
            xp.ones(3).get(order="F")
        with pytest.raises(NotSimulatedError, match="selected stream"):
            xp.ones(3).set(np.ones(3), stream=object())


def test_names_for_completion(xp):
    names = dir(xp)
    assert {"sin", "concatenate", "float32", "pi", "asnumpy", "fft", "random"} <= set(names)
    assert "rfft2" in dir(xp.fft)
    assert "mean" in dir(xp.ones(3))
    assert all(hasattr(xp, name) for name in names)
    assert xp.float32 is np.float32
    assert xp.get_array_module(xp.ones(1)) is xp
    assert xp.get_array_module(np.ones(1)) is np
    assert "simulated" in repr(xp)


def test_lists_of_device_arrays_are_stacked(xp):
    assert_same(xp.array([xp.asarray(A), xp.asarray(B)], dtype="f8", ndmin=4), np.stack([A, B]).astype("f8")[None])
