"""The simulated device keeps the contract that CUDA keeps."""

import pytest

from gpustreamlab import Session
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.testing import CAPTURE_CHECKS, CONTRACT_CHECKS, FALLBACK_CHECKS, GRAPH_CHECKS, PARTITION_CHECKS

CHECKS = {
    "h200": (*CONTRACT_CHECKS, *CAPTURE_CHECKS, *GRAPH_CHECKS, *PARTITION_CHECKS),
    "h200-cuda13.1": (*CONTRACT_CHECKS, *CAPTURE_CHECKS, *GRAPH_CHECKS, *PARTITION_CHECKS),
    "laptop": (*CONTRACT_CHECKS, *CAPTURE_CHECKS, *GRAPH_CHECKS, *FALLBACK_CHECKS),
    "h200-cuda12.2": (*CONTRACT_CHECKS, *CAPTURE_CHECKS, *GRAPH_CHECKS, *FALLBACK_CHECKS),
}


@pytest.mark.parametrize(
    ("preset", "check"),
    [pytest.param(preset, check, id=f"{preset}-{check.__name__}") for preset, checks in CHECKS.items() for check in checks],
)
def test_contract(preset, check):
    check(lambda **options: Session(SimBackend(preset), capture="ranges", **options))


@pytest.mark.parametrize("check", CHECKS["h200"], ids=lambda check: check.__name__)
def test_the_second_card_of_a_node_keeps_it_too(check):
    first = SimBackend()
    check(lambda **options: Session(SimBackend(beside=first), capture="ranges", **options))
    first.close()
