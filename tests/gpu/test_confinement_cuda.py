"""The kernels of every library that is there stay on the SMs of the selected lane's partition; one that cannot is told."""

import importlib.util

import pytest

from bench._libraries import LIBRARIES
from bench.confinement import open_lab, prove

HERE = [one for one in LIBRARIES if one.module != "quadrants" or importlib.util.find_spec("quadrants")]  # as in conftest.py


@pytest.fixture(scope="module")
def lab():
    with open_lab() as session:
        yield session


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's and Numba's own imports
@pytest.mark.parametrize("library", HERE, ids=lambda library: f"{library.library} {library.call}")
def test_kernels_stay_in_the_partition_of_the_selected_lane(lab, library):
    # GIVEN a library, and a lane whose partition is taken to the last SM, with the rest of the card idle
    # WHEN the library is called on that lane
    proof = prove(lab, library.make(lab))

    # THEN its kernels waited, although they were enqueued in time and both controls started at once
    told = (library, proof)
    assert proof.is_conclusive, told
    assert proof.is_confined == library.follows, told
    assert (proof.blocked.stray_count == 0) == library.follows, told
    if library.follows:
        assert set(proof.blocked.lanes) == {"A2"}, told
        assert set(proof.elsewhere.lanes) == {"B"}, told
