"""The array module: NumPy's results, CuPy's manners and names, modelled time."""

from __future__ import annotations

import contextlib
import copy
import io
import operator
import warnings

import numpy as np
import pytest

from gpustreamlab.backends.sim import SimArray, SimBackend
from gpustreamlab.errors import NotSimulatedError
from gpustreamlab.typing import SpanKind

RNG = np.random.default_rng(7)
A = RNG.normal(size=(6, 8)).astype("f4")
B = RNG.normal(size=(6, 8)).astype("f4")
Z = (A + 1j * B).astype("c8")
V = RNG.integers(0, 9, 6)
INTS = RNG.integers(0, 9, size=(5, 4))
S = RNG.normal(size=(4, 4)) + 4 * np.eye(4)  # a matrix that can be inverted
P = S @ S.T  # a positive one


def names(text):
    return frozenset(text.split())


def to_host(result):
    if isinstance(result, (tuple, list)):
        return [to_host(item) for item in result]
    return result.get() if isinstance(result, SimArray) else result


def to_device(xp, value):
    if isinstance(value, list):
        return [to_device(xp, item) for item in value]
    return xp.asarray(value) if isinstance(value, np.ndarray) else value


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


@pytest.fixture
def one_work(backend, xp, works):
    """Return the last work that a call launches, and how many there were."""

    def run(call):
        backend.synchronize()
        works.clear()
        call()
        backend.synchronize()
        return works[-1] if works else None, len(works)

    return run


@pytest.fixture
def waited_ns(backend):
    """Return how long the host takes for a call while the device is busy for 5 ms."""

    def run(call):
        backend.launch_spin(backend.selected_stream, 5_000_000, blocks=1, fill_sms=True)
        before = backend.host_time_ns()
        call()
        return backend.host_time_ns() - before

    return run


# Each function is tried with all of these, and has to give what NumPy gives wherever that gives something.
ARGUMENTS = (
    *((S,), (S, P), (V,), (V, V), (V, 2), (V, V > 3), (S[0], S[1], S[2]), ([S, P],), (S, (1, 0)), (S.reshape(2, 2, 4),)),
    *((S, 1, 0), (V % 3, (3, 4)), (V > 3,), (S > 3, S)),
)
CREATION = names(
    "arange ones zeros eye identity tri hanning hamming blackman bartlett diag_indices tril_indices triu_indices indices full "
    "fft.fftfreq fft.rfftfreq"
)
# What gives objects, or goes to files, or has no definite values; einsum is for labels only.
UNCOMPARED = names(
    "empty empty_like broadcast printoptions set_printoptions save savez savez_compressed savetxt load loadtxt genfromtxt "
    "fromfile asarray_chkfinite einsum may_share_memory shares_memory"
)


def all_functions():
    xp = SimBackend().xp
    for prefix, owner in {"": xp, "fft.": xp.fft, "linalg.": xp.linalg}.items():
        for name in dir(owner):
            plain = getattr(operator.attrgetter(prefix[:-1])(np) if prefix else np, name, None)
            if callable(plain) and not isinstance(plain, type) and not name.startswith("_") and name not in UNCOMPARED:
                yield prefix + name


def computed(name):
    """Return what NumPy gives for each of the arguments that it takes."""
    for arguments in [*ARGUMENTS, (3,), ((3, 4),), ((3, 4), 7)] if name in CREATION else ARGUMENTS:
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield arguments, operator.attrgetter(name)(np)(*copy.deepcopy(arguments))


def test_every_function_gives_what_numpy_gives(xp):
    tried = set()
    for name in all_functions():
        for arguments, expected in computed(name):
            result = operator.attrgetter(name)(xp)(*(to_device(xp, argument) for argument in copy.deepcopy(arguments)))
            np.testing.assert_equal(to_host(result), to_host(expected), err_msg=name)
            tried.add(name)
    assert len(tried) > 340


CASES = {
    "operators": lambda xp, a, b: (a * 2 - b / 3) ** 2 // 1 + abs(-a) % 2,
    "divide by zero": lambda xp, a, b: a / (b * 0),
    "concatenate": lambda xp, a, b: [xp.concatenate([a, b], axis=1), xp.stack((a, b)), xp.append(a, b), xp.concat([a, b])],
    "products": lambda xp, a, b: [a @ b.T, a[None] @ xp.stack([b.T, b.T]), xp.dot(a[0], b[0]), a.dot(b[1])],
    "creation": lambda xp, a, b: [xp.zeros(3), xp.ones((2, 2), "f4"), xp.linspace(0, 1, 5), xp.eye(3, dtype="i4")],
    "like": lambda xp, a, b: [xp.zeros_like(a, shape=(2, 3)), xp.ones_like(a, dtype="i8"), xp.full_like(a, 2, shape=(2,))],
    "basic index": lambda xp, a, b: [a[1], a[1, 2], a[..., ::2], a[None, :, -1], a[2, ...], a[1, 2, ...]],
    "fancy index": lambda xp, a, b: [a[[0, 2]], a[:, xp.arange(3)], a[a > 0], a[np.array([1, 0])], a[np.array(1), ..., [2]]],
    "out": lambda xp, a, b: [xp.add(a, b, out=xp.empty_like(a)), xp.heaviside(a, 1, out=xp.empty_like(a))],
    "numpy's functions": lambda xp, a, b: [np.concatenate([np.sqrt(abs(a)), b]).sum(axis=1), np.fft.rfft(a)],
    "numpy scalar": lambda xp, a, b: np.float32(2) * a + np.float64(1),
    "index functions": lambda xp, a, b: [a[xp.ix_(xp.arange(2), xp.arange(3))], xp.tril_indices_from(a), xp.diag_indices(3)],
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


@pytest.mark.parametrize("scalar", [np.float64(0.5), np.int64(1), np.bool_(1)], ids=repr)
@pytest.mark.parametrize("operation", ["lt", "ge", "eq", "add"])
def test_a_scalar_of_numpy_may_stand_in_front_and_an_array_may_not(xp, scalar, operation):
    apply = getattr(operator, operation)
    assert_same(apply(scalar, xp.asarray(A)), apply(scalar, A))
    with pytest.raises(TypeError, match="Copy it to the device"):
        apply(A, xp.asarray(A))


@pytest.mark.parametrize("exponent", [0.5, -1, 2, 1.0, np.float64(0.5)], ids=repr)
@pytest.mark.parametrize("dtype", ["c8", "c16", "f4", "f8"])
def test_powers_are_numpys_to_the_last_digit(xp, dtype, exponent):
    values = np.array([1 + 1j, 2 - 3j, 0.3 + 7j]).astype(dtype) if dtype[0] == "c" else np.array([1, 2.5, 7], dtype)
    assert_same(xp.asarray(values) ** exponent, values**exponent)
    if values.dtype == (values**exponent).dtype:
        before = array = xp.asarray(values)
        array **= exponent
        assert array is before
        assert_same(array, values**exponent)


def assign(xp, s):
    s[0], s[[2, 3]] = 5, 2
    s[1:2] = s[3]
    s[s > 4] = -1
    s[2:].T[0] = 9
    s[1] = S[1]  # from the host
    s += 1
    s *= s


WRITERS = {
    "assignment, in-place operators, views": assign,
    "fill_diagonal": lambda xp, s: xp.fill_diagonal(s, 5),
    "put": lambda xp, s: xp.put(s, [1, 3], 9),
    "place": lambda xp, s: xp.place(s, s > 4, [1, 2]),
    "putmask": lambda xp, s: xp.putmask(s, s > 4, 0),
    "put_along_axis": lambda xp, s: xp.put_along_axis(s, xp.argmax(s, axis=1)[:, None], 99, axis=1),
    "copyto": lambda xp, s: xp.copyto(s, s[::-1] * 2),
    "sort": lambda xp, s: s.sort(axis=0),
    "fill": lambda xp, s: s.fill(3),
    "a.put": lambda xp, s: s.put([1, 3], 9),
    "shape": lambda xp, s: setattr(s, "shape", (2, 8)),
}


@pytest.mark.filterwarnings("ignore:Setting the shape on a NumPy array:DeprecationWarning")  # NumPy 2.5 and later
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_writing_into_an_array(xp, write):
    expected, array = S.copy(), xp.asarray(S)
    write(np, expected)
    assert write(xp, array) is None
    assert_same(array, expected)


def test_copies_share_nothing(xp):
    host = A.copy()
    a = xp.asarray(host)
    host[:] = 0
    for other in (a.copy(), copy.copy(a), copy.deepcopy(a), xp.array(a)):
        other[:] = 0
    assert xp.asarray(a) is xp.asarray(a, order="C") is a
    assert_same(a, A)


class TestHost:
    def test_numbers_and_text(self, xp):
        a = xp.asarray(INTS)
        assert (float(a.mean()), int(a[0, 0]), a[1, 1].item(), bool(a.any())) == (INTS.mean(), INTS[0, 0], INTS[1, 1], True)
        assert (repr(a), str(a), f"{a.mean():.3f}") == (repr(INTS), str(INTS), f"{INTS.mean():.3f}")
        assert ([1, 2, 3][xp.asarray(1)], len(a), a.tobytes()) == (2, 5, INTS.tobytes())
        assert a.tolist() == [row.tolist() for row in a] == INTS.tolist()

    def test_looks_and_what_reads_no_values_are_free(self, backend, xp, one_work):
        a, s = xp.asarray(A), xp.asarray(S)
        before = backend.driver.clock.now_ns
        looks = (a.shape, a.dtype, a.ndim, a.size, a.itemsize, a.nbytes, a.strides, a.flags.c_contiguous, a.device.id)
        assert looks == (A.shape, A.dtype, A.ndim, A.size, A.itemsize, A.nbytes, A.strides, True, 0)
        looks = (xp.shape(s), xp.ndim(s), xp.result_type(s, xp.float32), xp.isfortran(s.T), xp.broadcast(s, s[0]).shape)
        assert looks == ((4, 4), 2, S.dtype, True, (4, 4))
        _ = [a.T, a[1:], a.reshape(8, 6), a.ravel(), xp.moveaxis(a, 0, 1), xp.broadcast_to(a, (2, 6, 8)), a[None], a.squeeze()]
        _ = [xp.empty(5), xp.ones(0) + 1, xp.zeros((0, 3)), a.mT, xp.matrix_transpose(a), xp.ix_(s[0], s[1])]
        assert backend.driver.clock.now_ns == before
        assert one_work(lambda: a.T.ravel())[0].name == "ravel"  # no view

    def test_reading_waits_for_the_selected_stream(self, backend, xp, waited_ns):
        stream = backend.create_stream(priority=0)
        backend.select(stream)
        a = xp.ones(4)
        assert waited_ns(lambda: float(a.sum())) > 5_000_000
        assert xp.asnumpy([1, 2]).tolist() == [1, 2]
        out = backend.pinned_empty(4, "f8")
        assert xp.asnumpy(a, out=out) is xp.asnumpy(np.ones(4), out=out) is out
        assert waited_ns(lambda: a.get(out=out, blocking=False)) < 50_000
        assert out.tolist() == [1.0] * 4  # values are there at once; time says otherwise
        assert not stream.query()
        assert waited_ns(lambda: a.get(out=out)) > 5_000_000

    @pytest.mark.parametrize(
        "call",
        [lambda xp, a: a[a > 0], lambda xp, a: xp.union1d(a, a), lambda xp, a: xp.trim_zeros(a[0]), lambda xp, a: a.nonzero()],
    )
    def test_sizes_that_depend_on_values_wait(self, xp, waited_ns, call):
        a = xp.asarray(A)
        assert waited_ns(lambda: call(xp, a)) > 5_000_000
        assert waited_ns(lambda: xp.random.normal(a)) < 100_000  # parameters on the device

    def test_arrays_go_to_files_and_come_back(self, xp, tmp_path):
        xp.save(tmp_path / "one.npy", xp.asarray(S))
        assert_same(xp.load(tmp_path / "one.npy"), S)
        xp.savez(tmp_path / "two.npz", v=xp.asarray(V), s=xp.asarray(S))
        with xp.load(tmp_path / "two.npz") as both:
            assert sorted(both.files) == ["s", "v"]
            assert_same(xp.asarray(both["v"]), V)  # NumPy's archive
        text = io.StringIO()
        xp.savetxt(text, xp.asarray(V))
        assert_same(xp.loadtxt(io.StringIO(text.getvalue())), V.astype(float))

    def test_a_printed_array_outlives_the_device(self):
        backend = SimBackend()
        a = backend.xp.arange(3)
        backend.close()
        assert repr(a) == "array([0, 1, 2])"


COSTS = {  # what is called with xp and 1,000 ones (f8); bytes and operations of its last kernel
    "default": (lambda xp, a: xp.heaviside(a, 0.5), 2 * 8_000, 1_000),
    "two inputs": (lambda xp, a: a + a[::-1], 3 * 8_000, 1_000),
    "an output given is not read": (lambda xp, a: xp.sin(a, out=xp.empty_like(a)), 2 * 8_000, 8_000),
    "what broadcasting repeats is read once": (
        lambda xp, a: a.reshape(100, 10) + xp.broadcast_to(a[:10], (100, 10)),
        16_080,
        1_000,
    ),
    "reduce": (lambda xp, a: a.sum(), 8_008, 1_000),
    "scan": (lambda xp, a: a.cumsum(), 2 * 2 * 8_000, 2_000),
    "outer": (lambda xp, a: a[:, None] + a, 2 * 8_000 + 8_000_000, 1_000_000),
    "alias": (lambda xp, a: xp.pow(a, 3), 2 * 8_000, 8_000),
    "move": (lambda xp, a: xp.append(a, a), 4 * 8_000, 0),
    "writer": (lambda xp, a: xp.putmask(a, a, 0.0), 2 * 8_000, 0),  # reads the mask, writes the array
    "random": (lambda xp, a: xp.random.shuffle(a), 8_000, 20_000),
    "einsum": (lambda xp, a: xp.einsum("ij,jk->ik", a.reshape(100, 10), a[:50].reshape(10, 5)), None, 2 * 100 * 10 * 5),
    "widest dtype": (lambda xp, a: a + xp.ones(1_000, "i4"), 20_000, 1_000),
}
GENERIC = {  # with a positive matrix of 300 x 300
    "linalg.solve": lambda xp, a: xp.linalg.solve(a, a[:, 0]),
    "linalg.svd": lambda xp, a: xp.linalg.svd(a),
    "polyfit": lambda xp, a: xp.polyfit(a[0], a[1], 2),
    "searchsorted": lambda xp, a: xp.searchsorted(a[0], a),
}


class TestModel:
    @pytest.mark.parametrize(("call", "size_bytes", "operations"), COSTS.values(), ids=COSTS)
    def test_costs_follow_the_rule(self, xp, one_work, call, size_bytes, operations):
        a = xp.ones(1_000)
        work, _ = one_work(lambda: call(xp, a))
        assert (work.kind, work.operations) == (SpanKind.KERNEL, operations)
        assert size_bytes is None or work.size_bytes == size_bytes

    @pytest.mark.parametrize("name", GENERIC)
    def test_what_is_rarely_used_has_a_generic_cost_and_says_so(self, backend, xp, works, one_work, name):
        a = xp.eye(300) + 0.001 * xp.arange(300.0)
        a = a @ a.T
        source = backend.activity_source()
        source.start()
        one_work(lambda: (GENERIC[name](xp, a), xp.linalg.matmul(a, a)))
        told = {detail.full_name for detail in source.drain().details if detail.grid}
        assert {text for text in told if text.endswith(", generic cost")} == {f"simulated::{name}, generic cost"}
        (work,) = (work for work in works if work.name == name)
        assert work.operations in {300, 300 * 300}
        assert works[-1].operations == 2 * 300**3

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
    def test_a_product_has_2mnk_operations(self, xp, one_work, left, right, operations):
        a, b = xp.ones(left, "f4"), xp.ones(right, "f4")
        assert one_work(lambda: a @ b)[0].operations == operations
        if len(left) + len(right) < 5:
            assert one_work(lambda: xp.dot(a, b))[0].operations == operations

    @pytest.mark.parametrize(("name", "factor", "passes"), [("fft", 5, 1), ("fft2", 5, 2), ("fftn", 5, 2), ("rfft2", 2.5, 2)])
    def test_a_transform_has_5_n_log2_n_operations(self, xp, one_work, name, factor, passes):
        a = xp.ones((64, 128), "c8" if factor == 5 else "f4")
        work, _ = one_work(lambda: getattr(xp.fft, name)(a))
        assert work.operations == factor * 64 * 128 * np.log2(128 if name == "fft" else 64 * 128)
        assert work.size_bytes == passes * (a.nbytes + (64 * 128 * 8 if factor == 5 else 64 * 65 * 8))


class TestRandom:
    def test_values_are_numpys_and_a_seed_repeats_them(self, xp):
        state, expected, a, host = xp.random.RandomState(3), np.random.RandomState(3), xp.asarray(V), V.copy()
        for name, arguments in (("normal", (2.0, 3.0, 4)), ("choice", (9, 3)), ("permutation", (5,)), ("zipf", (2.0, 3))):
            assert_same(getattr(state, name)(*arguments), getattr(expected, name)(*arguments))
        expected.shuffle(host)
        assert state.shuffle(a) is None
        assert_same(a, host)
        assert_same(state.choice(a, 4), expected.choice(host, 4))
        assert state.normal(size=2, dtype="f4").dtype == np.float32
        for _ in range(2):
            xp.random.seed(4)
            assert_same(xp.random.sample(3), np.random.RandomState(4).random_sample(3))
        assert_same(xp.random.default_rng(5).chisquare(2, 3), np.random.default_rng(5).chisquare(2, 3))

    def test_what_there_is_not_says_so(self, xp):
        rng = xp.random.default_rng(0)
        assert not hasattr(rng, "nothing")
        with pytest.raises(NotSimulatedError, match=r"default_rng\(seed\)"):
            rng.seed(1)


class Real:
    """An array of a real GPU."""

    __cuda_array_interface__ = {}  # noqa: RUF012


REFUSALS = [  # what is called with xp and an array, the error and its words
    (lambda xp, a: np.asarray(a), TypeError, r"\.get\(\)"),
    (lambda xp, a: np.array(a), TypeError, r"\.get\(\)"),
    (lambda xp, a: a + np.ones(3), TypeError, r"xp\.asarray"),
    (lambda xp, a: np.ones(3) + a, TypeError, r"xp\.asarray"),
    (lambda xp, a: xp.concatenate([a, np.ones(3)]), TypeError, r"xp\.asarray"),
    (lambda xp, a: a + SimBackend().xp.ones(3), NotSimulatedError, "another simulated device"),
    (lambda xp, a: xp.add(a, Real()), NotSimulatedError, "real GPU"),
    (lambda xp, a: xp.asarray(["text"]), NotSimulatedError, "dtype"),
    (lambda xp, a: xp.asarray([object()]), NotSimulatedError, "dtype"),
    (lambda xp, a: xp.asarray(np.zeros(2, "M8[s]")), NotSimulatedError, "dtype"),
    (lambda xp, a: xp.asarray(np.zeros(2, np.longdouble)), NotSimulatedError, "dtype"),
    (lambda xp, a: xp.char, NotSimulatedError, "does not model the time"),
    (lambda xp, a: np.maximum.reduce(a), NotSimulatedError, "does not model the time of numpy.maximum.reduce"),
    (lambda xp, a: xp.einsum("...i->...", a), NotSimulatedError, "Write every label out"),
    (lambda xp, a: xp.concatenat, AttributeError, "Did you mean"),
    (lambda xp, a: xp.linalg.fft, AttributeError, "no function"),
    (lambda xp, a: a.nothing, AttributeError, "no attribute 'nothing'"),
    (lambda xp, a: xp.sum([1, 2]), TypeError, "no array of the simulated device"),
    (lambda xp, a: a + xp.ones(4), ValueError, "broadcast"),
    (lambda xp, a: a.get(order="F"), NotSimulatedError, "selected stream"),
    (lambda xp, a: a.set(np.ones(3), stream=object()), NotSimulatedError, "selected stream"),
    (lambda xp, a: a.get(out=np.empty(4)), ValueError, "C-contiguous array of the same shape"),
    (lambda xp, a: a.get(out=np.empty(3, "f4")), ValueError, "C-contiguous array of the same shape"),
    (lambda xp, a: a.get(out=np.empty(6)[::2]), ValueError, "C-contiguous array of the same shape"),
    (lambda xp, a: a.get(out=[1]), TypeError, "takes a NumPy array"),
    (lambda xp, a: a.set(np.ones(3, "f4")), ValueError, "Give the same"),
    (lambda xp, a: a.set([1, 2, 3]), TypeError, "takes a NumPy array"),
    (lambda xp, a: np.linalg.svdvals(xp.eye(2)), NotSimulatedError, r"CuPy does not have it either\. "),
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSALS)
def test_what_a_gpu_would_refuse_is_refused_and_launches_nothing(xp, one_work, call, error, words):
    a = xp.ones(3)
    with pytest.raises(error, match=words):
        call(xp, a)
    assert one_work(lambda: None) == (None, 0)


class TestNames:
    def test_all_of_numpys_functions_are_there_or_say_what_to_do_instead(self, xp):
        functions = {
            name for name in np.__all__ if callable(getattr(np, name, None)) and not isinstance(getattr(np, name), type)
        }
        missing, told = functions - set(dir(xp)) | {"cuda", "RawKernel", "ElementwiseKernel", "get_default_memory_pool"}, {}
        for name in missing:
            assert not hasattr(xp, name)
            with pytest.raises(NotSimulatedError, match=rf"no xp\.{name}\. .*[a-z]") as raised:
                getattr(xp, name)
            told[name] = str(raised.value)
        not_in_cupy = {name for name, text in told.items() if "CuPy does not have it either" in text}
        assert missing & functions - not_in_cupy == {"apply_along_axis", "apply_over_axes", "piecewise"}
        assert len(functions - missing) > 300

    def test_names_for_completion_exist(self, xp):
        owners = {xp: {"sin", "float32", "pi", "asnumpy", "fft", "random", "save", "concat"}}
        owners |= {
            xp.fft: {"rfft2"},
            xp.linalg: {"solve"},
            xp.random: {"rand", "RandomState"},
            xp.random.default_rng(0): {"random"},
        }
        for owner, some in owners.items():
            assert some <= set(dir(owner))
            assert all(hasattr(owner, name) for name in dir(owner))
        assert "mean" in dir(xp.ones(3))
        assert (xp.exceptions, xp.index_exp, xp.ndindex, xp.float32) == (np.exceptions, np.index_exp, np.ndindex, np.float32)
        assert (xp.get_array_module(xp.ones(1)), xp.get_array_module(np.ones(1))) == (xp, np)
        assert "simulated" in repr(xp)


@pytest.mark.parametrize("shapes", [((64, 32), (32, 16)), ((5, 8, 4), (4, 3)), ((7,), (7,)), ((7, 3), (3,))])
@pytest.mark.parametrize("name", ["matmul", "dot"])
def test_a_product_of_float16_is_numpys_but_for_how_its_sum_is_rounded(xp, name, shapes):
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype("float16") for shape in shapes)
    expected = getattr(np, name)(a, b)
    made = getattr(xp, name)(xp.asarray(a), xp.asarray(b))
    assert made.dtype == np.float16
    assert made.shape == expected.shape
    np.testing.assert_allclose(made.get(), expected, rtol=2e-3, atol=2e-3)
    if expected.ndim:
        out = xp.empty(expected.shape, "float16")
        assert getattr(xp, name)(xp.asarray(a), xp.asarray(b), out=out) is out
        np.testing.assert_array_equal(out.get(), made.get())
