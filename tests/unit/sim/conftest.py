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
def stream(backend):
    return backend.create_stream(priority=0)


@pytest.fixture
def works(backend):
    """Everything that ended."""
    seen = []
    backend.driver.scheduler.observer = seen.append
    return seen


@pytest.fixture
def cost_ns(backend):
    """Return how long the host takes for a call."""

    def run(call):
        before_ns = backend.driver.clock.now_ns
        call()
        return backend.driver.clock.now_ns - before_ns

    return run
