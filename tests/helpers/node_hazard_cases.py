"""Programs on two cards with a planted hazard, and ordered ones. Each is run with both ways to use another card's array."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

RAW, WAR, WAW, UAF = "read-after-write", "write-after-read", "write-after-write", "use-after-free"
LAST_WAITS = "node.stream('last').wait(node.stream('first'))"
FIRST_WAITS = "node.stream('first').wait(node.stream('last'))"
SIZE = 1_024


class NodeCase(NamedTuple):
    """A program, what is found in it, and the line that is missing."""

    run: Callable
    found: tuple[str, ...]
    missing: str


CASES: dict[str, NodeCase] = {}
"""By name, planted ones first. Each takes a node, and the function that uses an array of the first card on the second one."""


def case(*found, missing=""):
    """Add a program to the table."""

    def add(run):
        CASES[run.__name__] = NodeCase(run, found, missing)
        return run

    return add


def by_copy(node, x):
    """Copy an array to the card of the selected stream."""
    return node[1].xp.array(x)


def by_kernel(node, x):
    """Read an array of another card in a kernel."""
    return node[1].xp.add(x, x)


def produce(node, stream="first"):
    """Make an array on the first card."""
    with node.on(stream, "produce"):
        return node[0].xp.ones(SIZE)


def take(node, x, use, stream="last"):
    """Use it on the second one."""
    with node.on(stream, "take"):
        return use(node, x)


def overwrite(node, x):
    """Write it on the first card."""
    with node.on("first", "next"):
        x.fill(2)


@case(RAW, missing=LAST_WAITS)
def taken_without_a_wait(node, use):
    return take(node, produce(node), use)


@case(WAR, missing=FIRST_WAITS)
def overwritten_while_it_is_taken(node, use):
    x = produce(node)
    node.streams["last"].wait(node.streams["first"])
    y = take(node, x, use)
    overwrite(node, x)
    return y


@case(RAW, missing=LAST_WAITS)
def the_event_was_recorded_too_early(node, use):
    with node.streams["first"].record() as event:
        x = produce(node)
        node.streams["last"].wait(event)
    return take(node, x, use)


@case(RAW, missing=LAST_WAITS)
def the_host_waits_for_the_other_card(node, use):
    x = produce(node)
    node[1].synchronize()
    return take(node, x, use)


@case(RAW, missing=LAST_WAITS)
def a_third_stream_waits_and_nobody_for_it(node, use):
    x = produce(node)
    node.stream("third", device=1).wait(node.streams["first"])
    return take(node, x, use)


@case(UAF, missing=FIRST_WAITS)
def freed_while_it_is_taken(node, use):
    x = produce(node)
    node.streams["last"].wait(node.streams["first"])
    y = take(node, x, use)
    del x
    with node.on("first", "next"):
        return y, node[0].xp.zeros(SIZE)


@case(RAW, missing="node.synchronize()")
def made_with_no_stream_selected(node, use):
    return take(node, node[0].xp.ones(SIZE), use)


# Ordered ones


@case()
def the_stream_waits(node, use):
    x = produce(node)
    node.streams["last"].wait(node.streams["first"])
    return take(node, x, use)


@case()
def the_stream_waits_for_an_event_and_the_owner_for_another(node, use):
    x = produce(node)
    for _ in range(3):
        with node.streams["first"].record() as ready:
            node.streams["last"].wait(ready)
        y = take(node, x, use)
        with node.streams["last"].record() as done:
            node.streams["first"].wait(done)
        overwrite(node, x)
    return y


@case()
def ordered_through_third_streams_of_both_cards(node, use):
    x = produce(node)
    here, there = node.stream("here", device=0), node.stream("there", device=1)
    here.wait(node.streams["first"])
    there.wait(here)
    node.streams["last"].wait(there)
    return take(node, x, use)


@case()
def the_host_waits_for_the_stream(node, use):
    x = produce(node)
    node.streams["first"].synchronize()
    return take(node, x, use)


@case()
def the_host_waits_for_an_event(node, use):
    x = produce(node)
    with node.streams["first"].record() as event:
        event.synchronize()
    return take(node, x, use)


@case()
def the_host_waits_for_the_card(node, use):
    x = produce(node)
    node[0].synchronize()
    return take(node, x, use)


@case()
def the_host_waits_for_the_node(node, use):
    x = node[0].xp.ones(SIZE)  # no stream selected
    node.synchronize()
    y = take(node, x, use)
    node.synchronize()
    overwrite(node, x)
    return y


@case()
def the_host_waits_for_the_card_that_has_waited_for_the_other(node, use):
    x = produce(node)
    node.streams["last"].wait(node.streams["first"])
    node[1].synchronize()
    return take(node, x, use, node.stream("third", device=1))


@case()
def held_until_it_was_taken(node, use):
    x = produce(node)
    node.streams["last"].wait(node.streams["first"])
    y = take(node, x, use)
    node.streams["last"].hold(x)
    del x
    with node.on("first", "next"):
        return y, node[0].xp.zeros(SIZE)


@case()
def used_by_the_other_card(node, use):
    x = produce(node)
    y = take(node, node.streams["last"].use(x), use)
    del x
    with node.on("first", "next"):
        return y, node[0].xp.zeros(SIZE)


@case()
def freed_and_waited_for(node, use):
    x = produce(node)
    node.streams["last"].wait(node.streams["first"])
    y = take(node, x, use)
    del x
    node.streams["first"].wait(node.streams["last"])
    with node.on("first", "next"):
        return y, node[0].xp.zeros(SIZE)


@case()
def both_cards_read(node, use):
    x = produce(node)
    node.streams["last"].wait(node.streams["first"])
    y = take(node, x, use)
    with node.on("first", "read"):
        return y, x.sum()
