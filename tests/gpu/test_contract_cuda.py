"""CUDA keeps the contract that the simulated device keeps."""

import pytest

from gpustreamlab import Session
from gpustreamlab.testing import CAPTURE_CHECKS, CONTRACT_CHECKS, FALLBACK_CHECKS, GRAPH_CHECKS, PARTITION_CHECKS

with Session("cuda") as lab:
    PARTITIONS = PARTITION_CHECKS if lab.partitions.capabilities.has("green-contexts") else FALLBACK_CHECKS


@pytest.mark.parametrize(
    "check", [*CONTRACT_CHECKS, *CAPTURE_CHECKS, *GRAPH_CHECKS, *PARTITIONS], ids=lambda check: check.__name__
)
def test_contract(check):
    check(lambda **options: Session("cuda", capture="ranges", **options))
