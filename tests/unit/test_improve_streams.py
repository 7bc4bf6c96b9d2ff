"""Work on one stream is put on several where its data allow it, and partitions get other numbers of SMs."""

from __future__ import annotations

import numpy as np
import pytest

from gpustreamlab.workloads import spin

SIDE = 384
LONG = 300


@pytest.fixture
def names(lab):
    pinned = lab.memory.pinned_empty((6, SIDE, SIDE), "f4")
    pinned[...] = np.random.default_rng(1).integers(0, 3, pinned.shape)
    a, b = (lab.xp.asarray(pinned[n]) for n in range(2))
    work = lab.stream("work")
    lab.synchronize()
    return {"lab": lab, "a": a, "b": b, "pinned": pinned, "work": work, "np": np, "spin": spin, "chosen": chosen}


def chosen(arrays, number):
    """Return one of some arrays."""
    return arrays[number]


CHAINS = "c = a @ a\nc = c @ a\nd = b @ b\nd = d @ b\ne = c + d\n"


def test_chains_on_the_default_stream_get_a_stream_each_and_meet_where_data_do(lab, names):
    found = lab.improve(CHAINS, seconds=LONG, namespace=names)

    assert found.speedup > 1.4
    assert found.source == (
        'side_1 = lab.stream("side-1")\nside_2 = lab.stream("side-2")\nlab.synchronize()\n'
        "with lab.on(side_1):\n    c = a @ a\n    c = c @ a\n"
        "with lab.on(side_2):\n    d = b @ b\n    d = d @ b\n"
        "side_2.wait(side_1)\n"
        "with lab.on(side_2):\n    e = c + d\n"
        "lab.synchronize()\n"
    )


def test_a_stream_with_a_name_keeps_the_first_chain_and_waits_for_the_others(lab, names):
    text = "with lab.on(work):\n" + "".join(f"    {line}\n" for line in CHAINS.splitlines())
    found = lab.improve(text, seconds=LONG, namespace=names)

    assert found.speedup > 1.4
    assert "side_1.wait(work)" in found.source
    assert "work.wait(side_1)" in found.source
    assert "synchronize" not in found.source


def test_a_function_that_prepares_makes_streams_before(lab):
    def program(lab):
        a, b = lab.xp.ones((SIDE, SIDE), "f4"), lab.xp.ones((SIDE, SIDE), "f4")

        def process():
            c = a @ a @ a
            d = b @ b @ b
            return c + d

        return process

    found = lab.improve(program, lab, seconds=LONG)

    assert found.speedup > 1.3
    assert found.source.index("lab.stream(") < found.source.index("def process")
    assert found.source.index("lab.synchronize()\n        return c + d") > found.source.index("d = b @ b @ b")


def test_turns_of_a_loop_are_on_several_streams(lab, names):
    text = (
        "out = []\nfor image in pinned:\n    x = lab.xp.empty((384, 384), 'f4')\n    x.set(image)\n    out.append(x @ a @ a)\n"
    )
    found = lab.improve(text, seconds=LONG, namespace=names)

    assert found.speedup > 1.5
    assert "for turn, image in enumerate(pinned):\n    with lab.on(turns[turn % " in found.source


def test_what_is_used_on_another_stream_is_held_where_its_name_gets_another_array(lab, names):
    text = (
        "out = []\nwith lab.on(work):\n    last = a\n    for n in range(4):\n"
        "        y = last @ a\n        z = b @ b\n        last = y + z\n        out.append(last)\n"
    )
    found = lab.improve(text, seconds=LONG, namespace=names)

    assert found.speedup > 1.2
    assert ".hold(" in found.source
    assert found.after.metadata.simulated


def test_what_is_deleted_behind_its_use_on_another_stream_is_held(lab, names):
    text = "c = a @ a\nc = c @ a\nd = b @ b\nd = d @ b\ne = c + d\ndel c\nf = a @ a\n"
    found = lab.improve(text, seconds=LONG, namespace=names)

    assert found.speedup > 1.3
    lines = found.source.splitlines()
    held = next(place for place, line in enumerate(lines) if ".hold(c)" in line)
    assert lines.index("    e = c + d") < held < lines.index("del c")


KEPT = {
    "each needs the one before": "c = a @ a\nc = c @ a\nc = c @ a\n",
    "turns need each other": "c = a\nfor n in range(4):\n    c = c @ a\n",
    "the host reads what was copied": (
        "c = a @ a\nwith lab.on(work):\n    d = b @ b\n    d.get(out=pinned[0], blocking=False)\n"
        "    e = b @ a\n    top = float(e.sum())\ntop += pinned[0].max()\n"
    ),
    "a wait of one stream": "with lab.on(work):\n    c = a @ a\n    done = work.record()\n    d = b @ b\ndone.synchronize()\n",
    "the stream is named by the call": "spin(lab, 90_000, blocks=8, stream='work')\n" * 2,
    "values choose": "ready = [a, b]\nfor one, other in ((0, 1), (1, 0)):\n    ready[one] @= a\n    c = ready[other] @ a\n",
    "a function chooses by values": "ready = [a @ a, b]\nd = b @ b\nc = chosen(ready, 1) @ a\ne = d @ b\n",
    "a branch may use it": "c = a @ a\nd = b @ b\nif len(pinned) > 99:\n    c += d\ne = c + d\n",
}


@pytest.mark.parametrize("name", KEPT)
def test_what_needs_each_other_or_is_not_known_stays_on_one_stream(lab, names, name):
    found = lab.improve(KEPT[name], seconds=LONG, namespace=names)
    assert "side" not in found.source
    assert "turns" not in found.source


@pytest.mark.parametrize("text", ["b.wait(a)\n", "lab.synchronize()\n"])
def test_a_wait_in_front_of_all_is_for_what_was_there_before(lab, text):
    names = {"lab": lab, "a": lab.stream("a"), "b": lab.stream("b"), "spin": spin, "x": lab.xp.ones((64, 64), "f4")}
    lab.synchronize()
    found = lab.improve(f"{text}for _ in range(2):\n    with lab.on(b):\n        x @ x\n", seconds=LONG, namespace=names)
    assert text in found.source


def split(lab):
    """Share out the SMs badly, and insist on partitions."""
    lab.partition(bulk=64, chain="rest")
    for name in ("bulk", "chain"):
        lab.stream(name, partition=name)

    def work():
        assert lab.stream("bulk").sm_count < lab.device.sm_count
        for _ in range(6):
            spin(lab, 300_000, blocks=132 * 16, stream="bulk")
        for _ in range(30):
            spin(lab, 50_000, blocks=8, stream="chain")

    return work


def split_in_a_dictionary(lab):
    """Give each a number."""
    lab.partition({"bulk": 64, "chain": 64})
    lab.stream("bulk", partition="bulk"), lab.stream("chain", partition="chain")

    def work():
        assert lab.layout
        assert lab.stream("bulk").sm_count < lab.device.sm_count
        spin(lab, 300_000, blocks=132 * 16, stream="bulk")
        spin(lab, 50_000, blocks=8, stream="chain")

    return work


@pytest.mark.parametrize(
    ("program", "line"),
    [(split, 'lab.partition(bulk=72, chain="rest")'), (split_in_a_dictionary, 'lab.partition({"bulk": 72, "chain": 60})')],
)
def test_partitions_get_the_numbers_that_are_measured_faster(lab, program, line):
    found = lab.improve(program, lab, seconds=LONG)

    assert line in found.source
    assert found.speedup > 1.9
    assert found.kept[0].predicted_ns == pytest.approx(found.kept[0].measured_ns, rel=0.05)
    assert any("another change was made that gains as much or more" in one.why for one in found.left)
