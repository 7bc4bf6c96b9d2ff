"""Distinct values agree with numpy's."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gpustreamlab.analysis import distinct

SPREADS = st.sampled_from([1, 1 << 20, 1 << 50])


@given(hnp.arrays(np.int64, st.integers(0, 60), elements=st.integers(-5, 5)), SPREADS, st.integers(1, 4))
def test_it_is_what_numpy_says(column, spread, repeat):
    column = np.repeat(column * spread, repeat)
    values, places = distinct(column)
    expected, expected_places = np.unique(column, return_inverse=True)

    assert values.tolist() == expected.tolist()
    assert places.tolist() == expected_places.tolist()
