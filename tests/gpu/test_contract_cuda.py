"""CUDA keeps the contract that the simulated device keeps."""

import pytest

from gpustreamlab import Session
from gpustreamlab.testing import CONTRACT_CHECKS


@pytest.mark.parametrize("check", CONTRACT_CHECKS, ids=lambda check: check.__name__)
def test_contract(check):
    check(lambda **options: Session("cuda", **options))
