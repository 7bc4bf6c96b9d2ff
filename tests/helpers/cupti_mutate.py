"""Broken activity buffers, and what must hold of whatever is read from them."""

from __future__ import annotations

import numpy as np

from gpustreamlab.backends.cuda.cupti._layouts import VERSIONS, find_layouts
from gpustreamlab.backends.cuda.cupti._records import parse_buffer
from tests.helpers.cupti_buffers import random_buffer

PATTERNS = ([10], [5, 10], [4, 5], [1, 2, 10], [9], [51, 12, 12], [49, 50], [38, 36, 17])
MOST_RECORDS = 3_000
COLUMN_SHARE = 4
"""Columns may take this many times the buffer's bytes: a struct lacks fields that later ones have."""


def mutated_buffer(rng):
    """Return a buffer that was valid and is broken somehow, and the layouts it was written with."""
    version = int(rng.choice(VERSIONS))
    layouts = find_layouts(version)
    count = int(rng.integers(0, MOST_RECORDS)) if rng.random() < 0.1 else int(rng.integers(0, 60))
    if rng.random() < 0.5:
        pattern = PATTERNS[rng.integers(len(PATTERNS))]
        kinds = np.resize([kind for kind in pattern if kind in layouts.sizes], count)
    else:
        kinds = rng.choice(list(layouts.sizes), count)
    data = random_buffer(kinds, version, seed=int(rng.integers(1 << 32)))
    if rng.random() < 0.5:
        data[rng.random(data.size) < 0.3] = 0
    for _ in range(int(rng.integers(1, 5))):
        data = MUTATIONS[rng.integers(len(MUTATIONS))](data, rng)
    return data, layouts


def check_parse(data, layouts):
    """Parse, and check what holds of any bytes."""
    records = parse_buffer(data, layouts=layouts)
    used = sum(layouts.sizes[kind] * count for kind, count in records.counts.items())
    assert used + records.skipped_bytes == data.size
    assert records.skipped_bytes >= 0
    assert sum(records.unknown_kinds.values()) <= 1
    column_bytes = 0
    for kind, table in records.columns.items():
        assert set(table) == {*layouts.fields[kind], *layouts.missing[kind]}
        for column in table.values():
            assert len(column) == records.counts[kind]
            assert column.base is None or column.base.base is not data
            column_bytes += column.nbytes
    assert column_bytes <= COLUMN_SHARE * data.size
    return records


def _flip_bits(data, rng):
    data = data.copy()
    for place in rng.integers(0, max(data.size, 1), int(rng.integers(1, 20))) if data.size else ():
        data[place] ^= np.uint8(1 << rng.integers(8))
    return data


def _cut(data, rng):
    return data[: rng.integers(0, data.size + 1)]


def _drop_some(data, rng):
    begin = int(rng.integers(0, data.size + 1))
    return np.delete(data, slice(begin, begin + int(rng.integers(0, 300))))


def _zero_some(data, rng):
    data, begin = data.copy(), int(rng.integers(0, data.size + 1))
    data[begin : begin + int(rng.integers(0, 300))] = 0
    return data


def _set_word(data, rng):
    data = data.copy()
    if data.size >= 8:
        words = data[: data.size // 4 * 4].view("<u4")
        words[rng.integers(words.size)] = rng.choice([0, 1, 5, 10, 60, 255, 256, 0x10A, 0x8000000A, 0xFFFFFFFF])
    return data


def _noise(data, rng):
    return rng.integers(0, 256, int(rng.integers(0, max(data.size, 1) + 1)), dtype=np.uint8)


def _small_noise(data, rng):
    """Noise that is full of kinds: every word is a small number."""
    return rng.integers(0, 64, data.size // 4, dtype=np.uint32).view(np.uint8)


def _repeat(data, rng):
    begin = int(rng.integers(0, data.size + 1))
    return np.concatenate([data, data[begin : begin + 400]])


def _shift(data, rng):
    """The same bytes at an address that is not a multiple of eight."""
    shifted = np.empty(data.size + 8, np.uint8)[int(rng.integers(1, 8)) :][: data.size]
    shifted[:] = data
    return shifted


MUTATIONS = (_flip_bits, _cut, _drop_some, _zero_some, _set_word, _noise, _small_noise, _repeat, _shift)
