"""Loops that launch the same on the same memory are replayed as CUDA graphs; what a graph cannot hold stays."""

from __future__ import annotations

import types

import numpy as np
import pytest

from gpustreamlab.errors import OptionError
from gpustreamlab.workloads import spin

LONG = 300


def steps(lab):
    """Take many small steps in place: the host cannot launch them as fast as they run."""
    stream = lab.stream("steps")
    x, w = lab.xp.ones((16, 16), "f4"), lab.xp.full((16, 16), 2, "f4")

    def run():
        for _ in range(120):
            with lab.on(stream, "step"):
                y = x * w
                y = y - x
                lab.xp.add(y, 1, out=x)
                x[...] = x / 2
                spin(lab, 1_000, blocks=8, stream="steps")
        return x

    return run


def test_a_loop_bound_by_launches_is_replayed(lab):
    found = lab.improve(steps, lab, seconds=LONG)

    assert "with stream.graph() as turns:" in found.source
    assert "turns.launch()" in found.source
    assert found.speedup > 1.5, str(found)
    graph = next(one for one in found.kept if "CUDA graph" in one.title)
    assert graph.predicted_ns == pytest.approx(graph.measured_ns, rel=0.1)
    assert "turns" in set(found.after.to_pandas()["name"])


class Counter:
    """Has another rate each time that it is asked."""

    asked = 0

    @property
    def rate(self):
        self.asked += 1
        return self.asked


def stay(lab):
    names = {"lab": lab, "xp": lab.xp, "x": lab.xp.ones((16, 16), "f4"), "host": np.ones(4), "kept": [], "n": 0, "spin": spin}
    lab.stream("a")
    lab.synchronize()
    return names


@pytest.mark.parametrize(
    "lines",
    [
        ["x = x * 2", "x = x - 1", "y = x + 1"],  # another array in each turn
        ["y = x * 2", "kept.append(y)"],
        ["x *= 2", "n += 1"],
        ["x *= k", "x += 1"],  # another value in each turn
        ["x *= 2", "s = float(x.sum())"],
        ["x *= 2", "host += 1"],
        ["x *= 2", "x += 1", "print('turn')"],
        ["if n < 1:", "    x *= 2"],
        ["x += xp.asarray(host[0])"],
        ["lab.xp.minimum(x, (n := n + 1), out=x)", "x += 1"],
        ["for low in rising:", "    lab.xp.minimum(x, low, out=x)", "    break", "x += 1"],
        ["for low, _ in zip(rising, range(1)):", "    lab.xp.minimum(x, low, out=x)", "x += 1"],
        ["x *= counter.rate", "x += 1"],
    ],
)
def test_what_is_another_in_each_turn_is_not_replayed(lab, lines):
    body = "\n".join(f"        {line}" for line in lines)
    made = {"rising": "iter([0.5 * n for n in range(99)])", "counter": "Counter()"}
    before = "".join(f"{name} = {value}\n" for name, value in made.items() if name in body)
    text = f"{before}for k in range(40):\n    with lab.on('a'):\n{body}"
    found = lab.improve(text, seconds=LONG, namespace=stay(lab) | {"Counter": Counter})

    assert "graph()" not in found.source
    assert not any("CUDA graph" in one.title for one in found.left)


def test_of_text_the_number_of_the_last_turn_stays(lab):
    text = "for k in range(60):\n    with lab.on('a'):\n" + "        x += 1\n        x *= 0.5\n" * 3
    found = lab.improve(text, seconds=LONG, namespace=stay(lab))

    assert 'for k in range(60):\n    with lab.on(lab.stream("a"), "turns"):\n        turns.launch()' in found.source
    assert found.speedup > 1.5


def test_a_graph_of_a_stream_leaves_variables_as_they_were_until_it_is_launched(lab):
    x = lab.xp.ones(4)
    stream = lab.stream("a")
    graph = stream.graph()
    with pytest.raises(OptionError, match="holds no work"):
        graph.launch()
    with graph, lab.on("a"):
        x += 1
        x *= 2
    assert graph.node_count == 2
    assert x.tolist() == [1.0] * 4
    for _ in range(2):
        graph.launch()
    assert x.tolist() == [10.0] * 4
    graph.close()
    graph.close()
    with pytest.raises(OptionError, match="holds no work"):
        graph.launch()


def test_an_exception_in_the_block_ends_the_capture(lab):
    x = lab.xp.ones(4)
    with pytest.raises(ZeroDivisionError), lab.stream("a").graph(), lab.on("a"):
        x += 1
        raise ZeroDivisionError
    with lab.on("a"):
        x += 1
    assert x.tolist() == [2.0] * 4


def test_a_graph_is_captured_again_after_a_launch(lab):
    stream = lab.stream("a")
    graph = stream.graph()
    x = lab.xp.ones(4)
    for factor, expected in ((2, 2), (3, 6)):
        with graph, lab.on("a"):
            x *= factor
        graph.launch()
        assert x.tolist() == [expected] * 4


class Holder:
    """An attribute leads to an array."""


def positional_outs(x, xp):
    xp.add(x, 1, x)


def a_product_into_itself(x, xp):
    square = x.reshape(4, 4)
    xp.matmul(square, square, out=square)


def parts_one_by_one(x, xp):
    x[::2] += 1
    x[0] = x[5]
    x[xp.asarray(xp.arange(3))] = 9
    xp.multiply(x[1:], 0.5, out=x[1:], where=x[1:] > 2)


def methods_that_write(x, xp):
    x.sort()
    x.fill(2)
    x += xp.arange(16)
    x **= 2


def functions_that_write(x, xp):
    xp.copyto(x, x[::-1].copy())
    xp.put(x, xp.arange(2), 7)
    xp.sqrt(x, out=x)
    xp.cumsum(x, None, None, x)


def twice_and_halved(x, xp):
    x *= 2
    x *= 2
    x /= 4
    x -= 1


WRITES = [positional_outs, a_product_into_itself, parts_one_by_one, methods_that_write, functions_that_write, twice_and_halved]


@pytest.mark.parametrize("write", WRITES, ids=lambda one: one.__name__)
def test_what_captured_work_writes_stays_until_a_launch_wherever_it_is_held(lab, write):
    # GIVEN arrays that no variable of the caller leads to by itself, and what NumPy makes of them
    xp, start = lab.xp, np.linspace(3, 1, 16)
    holder, expected = Holder(), start.copy()
    holder.arrays = {"x": [xp.asarray(start)]}
    module = types.ModuleType("elsewhere")
    module.y = xp.asarray(np.stack([start, start]))[1]  # a view
    hidden = xp.asarray(start)

    def body():
        for one in (holder.arrays["x"][0], module.y, hidden):
            write(one, xp)

    # WHEN they are written in a capture
    lab.stream("a")
    with lab.stream("a").graph() as graph, lab.on("a"):
        body()
    # THEN nothing has changed, and each launch computes
    held = [holder.arrays["x"][0], module.y, hidden]
    assert [one.get().tolist() for one in held] == [start.tolist()] * 3
    for _ in range(2):
        write(expected, np)
        graph.launch()
        for one in held:
            np.testing.assert_allclose(one.get(), expected)


def test_random_numbers_and_what_other_streams_compute_from_are_not_touched_by_a_capture(lab):
    xp = lab.xp
    numbers, lonely = xp.random.random(64), xp.zeros(64)
    before = numbers.get()
    lab.stream("b")
    with lab.stream("a").graph() as graph:
        with lab.on("a"):
            xp.random.shuffle(numbers)
            numbers += 1
        with lab.on("b"):
            lonely += numbers
            numbers[0] = 5
        with lab.on("a"):
            numbers *= 2
    seen = before.copy()
    seen[0] = 5
    assert (numbers.tolist(), lonely.tolist()) == (seen.tolist(), before.tolist())
    graph.launch()
    np.testing.assert_allclose(np.sort(numbers.get()), np.sort((seen + 1) * 2))


def test_captured_work_computes_on_from_what_captured_work_wrote(lab):
    # An inverse of zeros would be an error: what fills the matrix runs at each launch only.
    xp = lab.xp
    matrix, pick, values = xp.zeros((3, 3)), xp.full(2, 99), xp.arange(3.0)
    with lab.stream("a").graph() as graph, lab.on("a"):
        matrix += xp.eye(3) * 2
        inverse = xp.linalg.inv(matrix)
        pick[:] = 1
        picked = values[pick]
    assert (matrix.sum().item(), pick.tolist()) == (0, [99, 99])
    graph.launch()
    assert (inverse.get().diagonal().tolist(), picked.tolist()) == ([0.5] * 3, [1, 1])


def test_work_of_other_streams_in_the_block_runs_and_what_is_fetched_by_a_graph_is_not_there_before(lab):
    x, y, z = (lab.xp.ones(4) for _ in range(3))
    back, given = (lab.memory.pinned_empty((4,), x.dtype) for _ in range(2))
    back[...], given[...] = 0, 5
    lab.stream("b")
    with lab.stream("a").graph() as graph:
        with lab.on("a"):
            x *= 2
            x.get(out=back, blocking=False)
            z.set(given)
            z += 1
        with lab.on("b"):
            y *= 3
            y[0] = 7
    assert (x.tolist(), y.tolist(), z.tolist(), back.tolist()) == ([1] * 4, [7, 3, 3, 3], [1] * 4, [0] * 4)
    graph.launch()
    lab.synchronize()
    assert (x.tolist(), y.tolist(), z.tolist(), back.tolist()) == ([2] * 4, [7, 3, 3, 3], [6] * 4, [2] * 4)


def test_a_block_that_enqueues_nothing_on_its_stream_says_so(lab):
    x = lab.xp.ones(4)
    with pytest.raises(OptionError, match=r"Nothing was enqueued on stream 'a' .* lab.on\('a'\)"), lab.stream("a").graph():
        x *= 2  # on the default stream
    assert x.tolist() == [2] * 4
