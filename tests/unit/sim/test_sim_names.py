"""Which of CuPy's names the array module has: results against NumPy's, costs by rule, and what to do about the rest."""

from __future__ import annotations

import io

import numpy as np
import pytest

from gpustreamlab.backends.sim import SimArray
from gpustreamlab.backends.sim._functions import ADVICE, split_names
from gpustreamlab.errors import NotSimulatedError
from gpustreamlab.typing import SpanKind

RNG = np.random.default_rng(7)
V = RNG.integers(0, 9, 6)  # a vector
S = RNG.normal(size=(4, 4)) + 4 * np.eye(4)  # a matrix that can be inverted
P = S @ S.T  # a positive one
LACKING = split_names(  # CuPy's names that we knowingly do not have
    "ElementwiseKernel RawKernel RawModule ReductionKernel apply_along_axis apply_over_axes clear_memo cuda flatiter fuse "
    "get_default_memory_pool get_default_pinned_memory_pool is_available lib mask_indices memoize piecewise poly1d polynomial "
    "show_config testing typing vectorize NINF NZERO PZERO asfarray byte_bounds disable_experimental_feature_warning in1d "
    "issctype issubclass_ issubsctype make_aligned_dtype msort obj2sctype sctype2char who"
)


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


# For each: what is called with NumPy and with xp, the vector, the matrix and the positive matrix.
CASES = {
    "append": lambda xp, v, s, p: xp.append(v, v),
    "delete": lambda xp, v, s, p: xp.delete(v, [1, 2]),
    "concat": lambda xp, v, s, p: xp.concat([v, v]),
    "pow": lambda xp, v, s, p: xp.pow(v, 2),
    "acos": lambda xp, v, s, p: xp.acos(v / 9),
    "permute_dims": lambda xp, v, s, p: xp.permute_dims(s, (1, 0)),
    "gcd": lambda xp, v, s, p: xp.gcd(v, 6),
    "heaviside": lambda xp, v, s, p: xp.heaviside(s, 0.5),
    "r_": lambda xp, v, s, p: xp.r_[v, 1:3, 7],
    "c_": lambda xp, v, s, p: xp.c_[v, v],
    "mgrid": lambda xp, v, s, p: xp.mgrid[0:3, 0:2:3j],
    "ogrid": lambda xp, v, s, p: xp.ogrid[0:3, 0:2],
    "ix_": lambda xp, v, s, p: s[xp.ix_(v[:2] % 4, v[2:4] % 4)],
    "triu_indices": lambda xp, v, s, p: s[xp.triu_indices(4, 1)],
    "tril_indices_from": lambda xp, v, s, p: xp.tril_indices_from(s),
    "diag_indices": lambda xp, v, s, p: xp.diag_indices(3),
    "unravel_index": lambda xp, v, s, p: xp.unravel_index(v, (3, 4)),
    "ravel_multi_index": lambda xp, v, s, p: xp.ravel_multi_index((v % 3, v % 2), (3, 4)),
    "polyfit": lambda xp, v, s, p: xp.polyfit(s[0], s[1], 2),
    "polymul": lambda xp, v, s, p: xp.polymul(v, v),
    "roots": lambda xp, v, s, p: xp.roots(s[0]),
    "union1d": lambda xp, v, s, p: xp.union1d(v, v + 4),
    "intersect1d": lambda xp, v, s, p: xp.intersect1d(v, v + 2),
    "unique_counts": lambda xp, v, s, p: xp.unique_counts(v).counts,
    "histogram2d": lambda xp, v, s, p: xp.histogram2d(v, v, bins=3),
    "trim_zeros": lambda xp, v, s, p: xp.trim_zeros(v * (v > 3)),
    "resize": lambda xp, v, s, p: xp.resize(v, (2, 5)),
    "packbits": lambda xp, v, s, p: xp.packbits(v > 3),
    "cumulative_sum": lambda xp, v, s, p: xp.cumulative_sum(v),
    "trapezoid": lambda xp, v, s, p: xp.trapezoid(s, axis=0),
    "array_equiv": lambda xp, v, s, p: xp.array_equiv(v, v),
    "fix": lambda xp, v, s, p: xp.fix(s),
    "reduce": lambda xp, v, s, p: xp.add.reduce(s, axis=1, keepdims=True),
    "product": lambda xp, v, s, p: xp.multiply.reduce(s, axis=None),
    "accumulate": lambda xp, v, s, p: xp.add.accumulate(s, axis=1),
    "outer": lambda xp, v, s, p: xp.maximum.outer(v, v),
    "reduceat": lambda xp, v, s, p: xp.add.reduceat(v, [0, 2, 4]),
    "numpy's outer": lambda xp, v, s, p: np.add.outer(v, v),
    "out": lambda xp, v, s, p: xp.heaviside(s, 1, out=xp.empty_like(s)),
    "orders": lambda xp, v, s, p: [xp.asarray(s, order="F"), xp.array(s, "f4", order="F"), xp.asarray(v, "f4", "C")],
    "shapes": lambda xp, v, s, p: [xp.zeros_like(s, shape=(2, 3)), xp.ones_like(s, shape=3), xp.full_like(v, 2, shape=(2,))],
    "fromfunction": lambda xp, v, s, p: xp.fromfunction(lambda i, j: i * 10 + j, (2, 3), dtype=int),
    "frombuffer": lambda xp, v, s, p: xp.frombuffer(b"abcd", dtype="u1"),
    "ptp": lambda xp, v, s, p: xp.ptp(s, axis=0),
    "mT": lambda xp, v, s, p: s.reshape(2, 2, 4).mT,
    "matrix_transpose": lambda xp, v, s, p: xp.linalg.matrix_transpose(s),
    "cholesky": lambda xp, v, s, p: xp.linalg.cholesky(p),
    "cond": lambda xp, v, s, p: xp.linalg.cond(s),
    "linalg.cross": lambda xp, v, s, p: xp.linalg.cross(s[0, :3], s[1, :3]),
    "det": lambda xp, v, s, p: xp.linalg.det(xp.stack([s, p])),
    "eig": lambda xp, v, s, p: xp.linalg.eig(s),
    "eigh": lambda xp, v, s, p: xp.linalg.eigh(p).eigenvectors,
    "eigvals": lambda xp, v, s, p: xp.linalg.eigvals(s),
    "eigvalsh": lambda xp, v, s, p: xp.linalg.eigvalsh(p),
    "inv": lambda xp, v, s, p: xp.linalg.inv(s),
    "lstsq": lambda xp, v, s, p: xp.linalg.lstsq(s[:, :2], s[:, 3])[0],
    "linalg.matmul": lambda xp, v, s, p: xp.linalg.matmul(s, p),
    "matrix_power": lambda xp, v, s, p: xp.linalg.matrix_power(s, 5),
    "matrix_rank": lambda xp, v, s, p: xp.linalg.matrix_rank(s),
    "pinv": lambda xp, v, s, p: xp.linalg.pinv(s[:, :3]),
    "qr": lambda xp, v, s, p: xp.linalg.qr(s[:, :2]),
    "slogdet": lambda xp, v, s, p: xp.linalg.slogdet(s),
    "solve": lambda xp, v, s, p: xp.linalg.solve(s, p[:, :2]),
    "svd": lambda xp, v, s, p: xp.linalg.svd(s, full_matrices=False),
    "tensorinv": lambda xp, v, s, p: xp.linalg.tensorinv(s.reshape(2, 2, 4)),
    "tensorsolve": lambda xp, v, s, p: xp.linalg.tensorsolve(s.reshape(2, 2, 4), p[:2, :2]),
    "numpy's inv": lambda xp, v, s, p: np.linalg.inv(s),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_results_are_numpys(xp, case):
    expected = case(np, V, S, P)
    assert_same(case(xp, xp.asarray(V), xp.asarray(S), xp.asarray(P)), expected)


WRITERS = {
    "fill_diagonal": lambda xp, s: xp.fill_diagonal(s, 5),
    "put": lambda xp, s: xp.put(s, [1, 3], 9),
    "place": lambda xp, s: xp.place(s, s > 4, [1, 2]),
    "putmask": lambda xp, s: xp.putmask(s, s > 4, 0),
    "put_along_axis": lambda xp, s: xp.put_along_axis(s, xp.argmax(s, axis=1)[:, None], 99, axis=1),
    "add.at": lambda xp, s: xp.add.at(s, (s > 4).nonzero(), 2),
    "flat": lambda xp, s: s.flat.__setitem__(slice(2, 4), 7),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_writing_into_an_array(xp, write):
    expected, array = S.copy(), xp.asarray(S)
    write(np, expected)
    assert write(xp, array) is None
    assert_same(array, expected)


def test_arrays_go_to_files_and_come_back(xp, tmp_path):
    xp.save(tmp_path / "one.npy", xp.asarray(S))
    assert_same(xp.load(tmp_path / "one.npy"), S)
    xp.savez(tmp_path / "two.npz", v=xp.asarray(V), s=xp.asarray(S))
    with xp.load(tmp_path / "two.npz") as both:
        assert sorted(both.files) == ["s", "v"]
        assert_same(both["v"], V)
    text = io.StringIO()
    xp.savetxt(text, xp.asarray(V))
    assert_same(xp.loadtxt(io.StringIO(text.getvalue())), V.astype(float))
    assert xp.array_repr(xp.asarray(V)) == repr(V)


def test_what_reads_no_values_is_free(backend, xp):
    a = xp.asarray(S)
    before = backend.driver.clock.now_ns
    looks = (xp.shape(a), xp.ndim(a), xp.result_type(a, xp.float32), xp.isfortran(a.T), xp.broadcast(a, a[0]).shape)
    assert looks == ((4, 4), 2, S.dtype, True, (4, 4))
    assert xp.s_[1:2] == slice(1, 2)
    assert (xp.add.nin, xp.add.identity, isinstance(xp.add, xp.ufunc), "add" in repr(xp.add)) == (2, 0, True, True)
    assert a.device.id == 0
    assert backend.driver.clock.now_ns == before


def test_bytes_ranges_and_views_of_an_array(xp):
    a = xp.asarray(S)
    assert a.tobytes() == S.tobytes()
    assert_same(a.ptp(axis=0), np.ptp(S, axis=0))
    xp.from_dlpack(a)[0] = 0
    assert not a[0].any()
    assert xp.asarray(a, order="C") is a
    assert xp.asarray(a, order="F").flags.f_contiguous
    with pytest.raises(NotSimulatedError, match="ascontiguousarray"):
        _ = a.T.flat


def test_other_libraries_do_not_take_arrays(xp):
    for take in (np.from_dlpack, lambda a: a.__dlpack__()):
        with pytest.raises(BufferError, match=r"array\.get\(\)"):
            take(xp.ones(3))
    with pytest.raises(TypeError, match=r"xp\.asarray"):
        xp.from_dlpack(np.ones(3))


class TestRandom:
    def test_values_are_numpys(self, xp):
        state, expected = xp.random.RandomState(3), np.random.RandomState(3)
        a = xp.asarray(V)
        for name, arguments in (("normal", (2.0, 3.0, 4)), ("choice", (9, 3)), ("permutation", (5,)), ("zipf", (2.0, 3))):
            assert_same(getattr(state, name)(*arguments), getattr(expected, name)(*arguments))
        host = V.copy()
        expected.shuffle(host)
        assert state.shuffle(a) is None
        assert_same(a, host)
        assert_same(state.choice(a, 4), expected.choice(host, 4))
        assert state.normal(size=2, dtype="f4").dtype == np.float32
        xp.random.seed(4)
        assert_same(xp.random.sample(3), np.random.RandomState(4).random_sample(3))
        assert_same(xp.random.default_rng(5).chisquare(2, 3), np.random.default_rng(5).chisquare(2, 3))

    def test_parameters_on_the_device_do_not_wait(self, backend, xp):
        mean = xp.ones(4)
        backend.launch_spin(backend.null_stream, 5_000_000, blocks=1, fill_sms=True)
        before = backend.host_time_ns()
        xp.random.normal(mean)
        assert backend.host_time_ns() - before < 100_000

    @pytest.mark.parametrize("name", ["normal", "choice", "permutation", "shuffle"])
    def test_what_cupys_generator_lacks_says_what_to_use(self, xp, name):
        rng = xp.random.default_rng(0)
        assert not hasattr(rng, name)
        with pytest.raises(NotSimulatedError, match=r"CuPy's Generator has none either\. Use"):
            getattr(rng, name)

    def test_a_generator_is_seeded_once(self, xp):
        with pytest.raises(NotSimulatedError, match=r"default_rng\(seed\)"):
            xp.random.default_rng(0).seed(1)
        assert xp.random.get_random_state() is xp.random


class TestCost:
    def works_of(self, backend, works, call):
        backend.synchronize()
        works.clear()
        call()
        backend.synchronize()
        return list(works)

    @pytest.mark.parametrize(
        ("call", "size_bytes", "operations"),
        [
            (lambda xp, a: xp.heaviside(a, 0.5), 2 * 8_000, 1_000),  # the rule: one operation each, one pass
            (lambda xp, a: xp.add.reduce(a), 8_008, 1_000),
            (lambda xp, a: xp.add.accumulate(a), 2 * 2 * 8_000, 2_000),
            (lambda xp, a: xp.add.outer(a, a), 2 * 8_000 + 8_000_000, 1_000_000),
            (lambda xp, a: xp.add.at(a, a.argmax(), 1.0), None, 1_000),
            (lambda xp, a: xp.pow(a, 3), 2 * 8_000, 8_000),  # as power
            (lambda xp, a: xp.append(a, a), 4 * 8_000, 0),
            (lambda xp, a: xp.putmask(a, a, 0.0), 2 * 8_000, 0),  # reads the mask, writes the array
            (lambda xp, a: xp.random.shuffle(a), 8_000, 20_000),
        ],
        ids=["default", "reduce", "accumulate", "outer", "at", "alias", "move", "writer", "random"],
    )
    def test_costs_follow_the_rule(self, backend, xp, works, call, size_bytes, operations):
        a = xp.ones(1_000)
        work = self.works_of(backend, works, lambda: call(xp, a))[-1]
        assert work.kind == SpanKind.KERNEL
        assert work.operations == operations
        assert size_bytes is None or work.size_bytes == size_bytes

    @pytest.mark.parametrize(
        ("call", "operations"),
        [
            (lambda xp, a: xp.linalg.cholesky(a), 300**3 / 3),
            (lambda xp, a: xp.linalg.solve(a, a[:, 0]), 2 / 3 * 300**3 + 2 * 300**2),
            (lambda xp, a: xp.linalg.inv(xp.stack([a, a])), 2 * 2 * 300**3),
            (lambda xp, a: xp.linalg.qr(a[:, :100]), 4 * 300 * 100**2 - 4 / 3 * 100**3),
            (lambda xp, a: xp.linalg.inv(a.astype("c16")), 4 * 2 * 300**3),
            (lambda xp, a: xp.linalg.matrix_power(a, 5), 3 * 2 * 300**3),
            (lambda xp, a: xp.linalg.matmul(a, a), 2 * 300**3),
            (lambda xp, a: xp.polyfit(a[0], a[1], 2), 6 * 300 * 3**2 + 20 * 3**3 + 2 * 3 * 300),
        ],
        ids=["cholesky", "solve", "batch", "qr", "complex", "power", "product", "polyfit"],
    )
    def test_linear_algebra_has_textbook_operations(self, backend, xp, works, call, operations):
        a = xp.eye(300) + 0.001 * xp.arange(300.0)
        a = a @ a.T
        self.works_of(backend, works, lambda: call(xp, a))
        assert [work for work in works if work.operations][-1].operations == round(operations)

    @pytest.mark.parametrize("name", ["union1d", "trim_zeros", "real_if_close"])
    def test_sizes_that_depend_on_values_wait(self, backend, xp, name):
        a = xp.ones(9)
        backend.launch_spin(backend.null_stream, 5_000_000, blocks=1, fill_sms=True)
        before = backend.host_time_ns()
        getattr(xp, name)(*([a, a] if name == "union1d" else [a]))
        assert backend.host_time_ns() - before > 5_000_000

    def test_views_launch_nothing(self, backend, xp, works):
        a = xp.ones((4, 4))
        looks = (lambda: a.mT, lambda: a.flat, lambda: xp.matrix_transpose(a), lambda: xp.ix_(a[0], a[1]))
        assert [self.works_of(backend, works, look) for look in looks] == [[]] * 4


class TestNames:
    def test_all_of_numpys_functions_that_cupy_has_are_there_but_those_listed(self, xp):
        functions = {
            name for name in np.__all__ if callable(getattr(np, name, None)) and not isinstance(getattr(np, name), type)
        }
        not_in_cupy = {name for name, advice in ADVICE.items() if advice.startswith("CuPy does not have it either")}
        missing = functions - set(dir(xp)) - not_in_cupy
        assert missing == {"apply_along_axis", "apply_over_axes", "mask_indices", "piecewise", "show_config"}
        assert missing <= LACKING
        assert LACKING | not_in_cupy == set(ADVICE)
        assert len(functions) - len(missing) - len(not_in_cupy) > 300

    @pytest.mark.parametrize("name", sorted(LACKING))
    def test_what_is_lacking_says_what_to_do_instead(self, xp, name):
        assert not hasattr(xp, name)
        with pytest.raises(NotSimulatedError, match=rf"no xp\.{name}\. .*[a-z]"):
            getattr(xp, name)

    def test_what_cupy_lacks_is_refused_here_too(self, xp):
        for look in (lambda: xp.insert, lambda: xp.errstate, lambda: xp.nanpercentile, lambda: np.linalg.svdvals(xp.eye(2))):
            with pytest.raises(NotSimulatedError, match=r"CuPy does not have it either\. "):
                look()

    def test_names_that_numpy_2_dropped_and_cupy_keeps(self, xp):
        assert_same(xp.trapz(xp.asarray(V)), np.trapezoid(V))
        assert (xp.float_, xp.Inf, xp.ComplexWarning) == (np.float64, np.inf, np.exceptions.ComplexWarning)
        assert xp.linalg.LinAlgError is np.linalg.LinAlgError

    def test_constants_and_types_are_numpys(self, xp):
        assert (xp.exceptions, xp.index_exp, xp.ndindex) == (np.exceptions, np.index_exp, np.ndindex)
        assert {"save", "mgrid", "r_", "concat", "ufunc"} <= set(dir(xp))
        assert "solve" in dir(xp.linalg)
        assert "RandomState" in dir(xp.random)
