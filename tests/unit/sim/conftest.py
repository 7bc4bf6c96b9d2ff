"""What the tests of the simulated device share."""

import pytest

from gpustreamlab.backends.sim import SimBackend


@pytest.fixture
def backend():
    made = SimBackend("h200")
    yield made
    made.close()


@pytest.fixture
def xp(backend):
    return backend.xp


@pytest.fixture
def works(backend):
    seen = []
    backend.set_observer(seen.append)
    return seen
