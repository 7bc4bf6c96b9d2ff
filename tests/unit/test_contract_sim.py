"""The simulated device keeps the contract that CUDA keeps."""

import pytest

from gpustreamlab import Session
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.testing import CONTRACT_CHECKS


@pytest.mark.parametrize("preset", ["h200", "laptop", "h200-cuda13.1", "h200-cuda12.2"])
@pytest.mark.parametrize("check", CONTRACT_CHECKS, ids=lambda check: check.__name__)
def test_contract(check, preset):
    check(lambda **options: Session(SimBackend(preset), **options))
