"""One stream's part of the simulated memory pool."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.backends.sim._memory import BLOCK_BYTES, StreamArena


def rounded(size_bytes):
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def free_sizes(arena):
    return sorted(size for size, chunks in arena._free.items() for _ in chunks)


def test_freed_memory_stays_reserved_and_is_used_again():
    arena = StreamArena()
    first = arena.allocate(1_000)
    arena.free(first)
    assert (arena.used_bytes, arena.reserved_bytes) == (0, 1_024)
    assert arena.allocate(1_024) is first
    assert (arena.used_bytes, arena.reserved_bytes) == (1_024, 1_024)


def test_the_smallest_piece_that_fits_is_cut_to_size():
    arena = StreamArena()
    pieces = [arena.allocate(size) for size in (10 * BLOCK_BYTES, 4 * BLOCK_BYTES, 6 * BLOCK_BYTES)]
    for piece in pieces:
        arena.free(piece)
    arena.allocate(3 * BLOCK_BYTES)
    assert free_sizes(arena) == [BLOCK_BYTES, 6 * BLOCK_BYTES, 10 * BLOCK_BYTES]
    assert arena.reserved_bytes == 20 * BLOCK_BYTES


def test_neighbours_are_joined_again_in_any_order():
    arena = StreamArena()
    arena.free(arena.allocate(4 * BLOCK_BYTES))
    parts = [arena.allocate(BLOCK_BYTES) for _ in range(4)]
    for place in (1, 3, 2, 0):
        arena.free(parts[place])
    assert free_sizes(arena) == [4 * BLOCK_BYTES]


@given(st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 5)), max_size=80))
def test_bytes_add_up_whatever_is_done(steps):
    # GIVEN pieces of any size, freed in any order
    arena, live, reserved_before = StreamArena(), [], 0
    for size_bytes, choice in steps:
        if choice < 3 or not live:
            live.append(arena.allocate(size_bytes))
            assert live[-1].size_bytes == rounded(size_bytes)
        else:
            arena.free(live.pop(choice % len(live)))
        # THEN what is used and what is free is what is reserved, which never shrinks
        used_bytes = sum(chunk.size_bytes for chunk in live)
        assert arena.used_bytes == used_bytes
        assert arena.reserved_bytes == used_bytes + sum(free_sizes(arena)) >= reserved_before
        assert arena._sizes == sorted(arena._free)
        reserved_before = arena.reserved_bytes
    # AND all pieces come back whole: no two free neighbours
    for chunk in live:
        arena.free(chunk)
    free = [chunk for chunks in arena._free.values() for chunk in chunks]
    assert all(chunk.is_free and chunk.before is None and chunk.after is None for chunk in free)
