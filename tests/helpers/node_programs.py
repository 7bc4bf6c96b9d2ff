"""Random programs on a node: launches, copies between cards, records, waits, waits of the host, and what an oracle says."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict

from tests.helpers.happens_before import Oracle, kind_of

STREAMS_PER_CARD, ARRAYS_PER_CARD, EVENTS, STEPS = 2, 2, 3, 24
SIZE = 64  # float64: one block of the simulated pool


class NodePrograms:
    """Runs random programs, one after the other, on a node and through an oracle.

    Parameters
    ----------
    node
        The node.
    has_peer_kernels
        Whether kernels of one card take arrays of another.
    memory
        Knows the bytes of arrays: `SimulatedPools` or `RealAddresses`.
    """

    def __init__(self, node, *, has_peer_kernels, memory):
        self.node, self.has_peer_kernels, self.memory = node, has_peer_kernels, memory
        self.streams = [
            (card, node.stream(f"gpu{card}-{number}", device=card))
            for card in range(len(node))
            for number in range(STREAMS_PER_CARD)
        ]
        self.arrays, self.counts = {}, defaultdict(int)

    def run(self, seed):
        """Run one program; return what the node and what the oracle has found, by the number of each step."""
        random_ = random.Random(seed)
        self.node.synchronize()
        self.node.clear()
        self.oracle, self.events, self.met, self.step_of = Oracle(), {}, defaultdict(list), {}
        self.step = 0
        for slot in [(card, place) for card in range(len(self.node)) for place in range(ARRAYS_PER_CARD)]:
            lane = random_.choice([lane for lane in self.streams if lane[0] == slot[0]])
            self.make(lane, slot)
        if random_.random() < 0.8:  # else they are not even written yet
            self.done_node()
        doings = [self.launch] * 5 + [self.copy] * 4 + [self.remake] * 2 + [self.record] * 3 + [self.wait] * 4
        doings += [self.wait_for_stream, self.done_stream, self.done_event, self.done_card]
        for _ in range(STEPS):
            random_.choice(doings)(random_)
        found = self.node.hazards()
        for event in self.events.values():
            event[0].close()
        return found, {step: pairs for step, pairs in self.met.items() if pairs}

    # Steps

    def launch(self, random_):
        """Add two arrays into a third."""
        card, stream = lane = random_.choice(self.streams)
        slots = [slot for slot in self.arrays if self.has_peer_kernels or slot[0] == card]
        first, second, out = (self.arrays[random_.choice(slots)] for _ in range(3))
        with self.next_range(stream):
            self.node[card].xp.add(first.values, second.values, out=out.values)
        self.note(lane, reads=(first, second), writes=(out,))

    def copy(self, random_):
        """Copy an array to another card, in a new one there."""
        card, stream = lane = random_.choice(self.streams)
        source = self.arrays[random_.choice([slot for slot in self.arrays if slot[0] != card])]
        slot = card, random_.randrange(ARRAYS_PER_CARD)
        with self.next_range(stream):
            values = self.node[card].xp.array(source.values)
        made = self.keep(lane, values)
        self.note(lane, reads=(source,), writes=(made,))
        self.put(slot, made)

    def remake(self, random_):
        """Make an array anew; the old one goes back to its pool."""
        lane = random_.choice(self.streams)
        self.make(lane, (lane[0], random_.randrange(ARRAYS_PER_CARD)))

    def make(self, lane, slot):
        card, stream = lane
        with self.next_range(stream):
            values = self.node[card].xp.ones(SIZE)
        made = self.keep(lane, values)
        self.note(lane, reads=(), writes=(made,))
        self.put(slot, made)

    def record(self, random_):
        """Record an event."""
        lane, place = random_.choice(self.streams), random_.randrange(EVENTS)
        if place in self.events:
            self.events.pop(place)[0].close()
        self.events[place] = lane[1].record(), self.oracle.on_lane(lane)

    def wait(self, random_):
        """Let a stream wait for an event."""
        lane, place = random_.choice(self.streams), random_.randrange(EVENTS)
        if place in self.events:
            lane[1].wait(self.events[place][0])
            self.oracle.on_lane(lane, self.events[place][1])

    def wait_for_stream(self, random_):
        """Let a stream wait for another one."""
        lane, other = random_.sample(self.streams, 2)
        lane[1].wait(other[1])
        self.oracle.on_lane(lane, self.oracle.on_lane(other))

    def done_stream(self, random_):
        """Let the host wait for a stream."""
        lane = random_.choice(self.streams)
        lane[1].synchronize()
        self.oracle.host_wait(self.oracle.last.get(lane))

    def done_event(self, random_):
        """Let the host wait for an event."""
        place = random_.randrange(EVENTS)
        if place in self.events:
            self.events[place][0].synchronize()
            self.oracle.host_wait(self.events[place][1])

    def done_card(self, random_):
        """Let the host wait for a card."""
        card = random_.randrange(len(self.node))
        self.node[card].synchronize()
        self.oracle.host_wait(*(node for lane, node in self.oracle.last.items() if lane[0] == card))

    def done_node(self):
        """Let the host wait for all cards."""
        self.node.synchronize()
        self.oracle.host_wait(*self.oracle.last.values())

    # Inside

    def next_range(self, stream):
        self.step += 1
        return self.node.on(stream, str(self.step))

    def keep(self, lane, values):
        return Kept(values, *self.memory.take(lane, values))

    def put(self, slot, made):
        old, self.arrays[slot] = self.arrays.get(slot), made
        if old is not None:
            old.values = None  # it is freed here
            self.memory.give(old.home, old.bytes_read)

    def note(self, lane, *, reads, writes):
        pairs = self.met[self.step]
        for touched, is_write in [*((one, False) for one in reads), *((one, True) for one in writes)]:
            for other in self.oracle.access(lane, is_write, touched.bytes_read, touched.number):
                pairs.append((self.step_of[other.node], kind_of(other, self.oracle.accesses[-1])))
            self.step_of[self.oracle.accesses[-1].node] = self.step


class Kept:
    """An array, and where it is."""

    take_number = itertools.count().__next__

    def __init__(self, values, home, bytes_read):
        self.values, self.home, self.bytes_read = values, home, bytes_read
        self.number = self.take_number()


class SimulatedPools:
    """What the simulated device says of its memory: a pool for each stream, which gives out what was freed last."""

    def __init__(self):
        self.free, self.count = defaultdict(list), 0

    def take(self, lane, values):
        """Return where a new array is."""
        del values
        if self.free[lane]:
            return lane, self.free[lane].pop()
        self.count += 1
        return lane, frozenset([self.count])

    def give(self, lane, taken):
        """Take back what a stream's pool gave out."""
        self.free[lane].append(taken)


class RealAddresses:
    """Memory of NumPy's arrays: `malloc` gives out what it likes."""

    @staticmethod
    def take(lane, values):
        """Return where a new array is."""
        start = values.__array_interface__["data"][0]
        return lane, frozenset((lane[0], byte) for byte in range(start, start + values.nbytes, 8))

    @staticmethod
    def give(lane, taken):
        """Leave it to `malloc`."""


def differences(found, met):
    """Return in words where the hazards of a node and those of the oracle differ; empty where they do not."""
    told = {}
    for row in found.hazards:
        told.setdefault(int(row.second.range), set()).add((int(row.first.range), row.kind))
    wrong = [f"step {step} was not accused: {pairs}" for step, pairs in met.items() if step not in told]
    for step, pairs in told.items():
        wrong += [
            f"step {step} is accused of {pair}, and only {met.get(step)} is so" for pair in pairs - set(met.get(step, ()))
        ]
    return wrong
