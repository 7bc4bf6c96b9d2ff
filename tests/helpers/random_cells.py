"""Random cells of a notebook: views, changes in place, containers, functions, instances, magics."""

from __future__ import annotations

import random

STATEMENTS = """
{v} = {w} * 0.5
{v} = {w} + {u}
{v} = {w} @ {u} * 0.01
{v} += {w} * 0.5
{v}[{k}] = {w}[{j}]
{v}[{k}] += 1
{v} = {w}.T
{v} = {w}[::-1]
{v} = {w}
{v} = {w}.copy()
l[{k}] = {v}
{v} = l[{k}]
l[{k}] += 1
{v} = sum(l) * 0.1
def f(n): return {v} * n
{v} = f(0.5)
{v}.__isub__({w})
o.a = {v}
o.a *= 0.5
{v} = o.a + 1
{v} = o.step({w})
lab.xp.add({v}, {w}, out={u})
{v} = lab.xp.multiply({w}, {u}) * 0.1
g = (one * 0.5 for one in l)
{v} = next(g, {w})
exec("{v} += 1")
{v} = lab.xp.ones((16, 16)) * {k}
p, q = {v}, {w}
{v} = p - q * 0.5
{v} *= float({w}[0, 0])
""".strip().splitlines()
SETUP = """
class Net:
    def __init__(self): self.a = a * 2
    def step(self, x): self.a += x * 0.25; return self.a * 1
a, b, c, d = (lab.xp.arange(256, dtype="float64").reshape(16, 16) * (0.001 * k) for k in range(1, 5))
l, o, p, q, g = [a * 1, b, c * 3, d.T], Net(), a, b, iter(())
f = lambda n: a * n
lab.stream("own")
lab.stream("second")
"""


def random_cells(seed):
    """Return ten cells on the variables that `SETUP` makes."""
    drawn = random.Random(seed)

    def statement():
        names = drawn.choices("abcd", k=3)
        return drawn.choice(STATEMENTS).format(v=names[0], w=names[1], u=names[2], k=drawn.randrange(4), j=drawn.randrange(4))

    def cell():
        heads = [
            "",
            "",
            "",
            "",
            "",
            "%%gpustream own\n",
            "%%gpuprogram\n",
            "%%time\n",
            "with lab.on('own'):\n    ",
            "%%gpustream own\nwith lab.on('second'):\n    ",
        ]
        head = drawn.choice(heads)
        return head + ("\n    " if "with" in head else "\n").join(statement() for _ in range(drawn.randint(1, 3)))

    return [cell() for _ in range(10)]
