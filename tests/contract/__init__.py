"""The contract that the simulated device and CUDA both keep: `unit` runs it on the one, `gpu` on the other."""

from tests.contract.capture import CAPTURE_CHECKS
from tests.contract.graphs import GRAPH_CHECKS
from tests.contract.sessions import CONTRACT_CHECKS, FALLBACK_CHECKS, PARTITION_CHECKS

__all__ = ["CAPTURE_CHECKS", "CONTRACT_CHECKS", "FALLBACK_CHECKS", "GRAPH_CHECKS", "PARTITION_CHECKS"]
