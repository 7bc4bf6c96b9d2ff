"""Words for the numbers of CUPTI's records."""

from __future__ import annotations

from itertools import product

import pytest

from gpustreamlab.backends.cuda.cupti import _constants as constants
from gpustreamlab.backends.cuda.cupti._constants import copy_name
from gpustreamlab.backends.cuda.cupti._layouts import VERSIONS, find_layouts


def test_each_sort_of_memory_has_a_word_of_its_own():
    words = constants.MEMORY_WORDS

    assert set(words) == set(constants.MemoryKind)
    assert len(set(words.values())) == len(words)


def test_every_kind_that_is_read_has_a_name():
    assert set(find_layouts(VERSIONS[-1]).fields) <= set(constants.RecordKind)


@pytest.mark.parametrize(
    ("numbers", "name"),
    [
        ((1, 2, 3), "memcpy HtoD (pinned)"),
        ((1, 1, 3), "memcpy HtoD (pageable)"),
        ((2, 3, 2), "memcpy DtoH (pinned)"),
        ((8, 3, 3), "memcpy DtoD"),
        ((8, 5, 5), "memcpy DtoD (managed)"),
        ((8, 0, 3), "memcpy DtoD (unknown to device)"),
        ((10, 3, 3), "memcpy PtoP"),
        ((9, 2, 2), "memcpy HtoH (pinned)"),
        ((1, 0, 3), "memcpy HtoD"),
        ((3, 2, 4), "memcpy HtoA (pinned)"),
        ((0, 0, 0), "memcpy"),
        ((255, 255, 255), "memcpy"),
    ],
)
def test_copies_are_named_as_profilers_do(numbers, name):
    assert copy_name(*numbers) == name


def test_every_copy_has_a_name():
    names = {copy_name(*numbers) for numbers in product(range(12), range(9), range(9))}
    assert all(name.startswith("memcpy") for name in names)
