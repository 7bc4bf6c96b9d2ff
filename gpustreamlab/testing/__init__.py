"""Public checks for backends: the contract that the simulated device and CUDA both keep."""

from gpustreamlab.testing._capture_contract import CAPTURE_CHECKS
from gpustreamlab.testing._contract import CONTRACT_CHECKS, ContractCheck
from gpustreamlab.testing._partition_contract import FALLBACK_CHECKS, PARTITION_CHECKS

__all__ = ["CAPTURE_CHECKS", "CONTRACT_CHECKS", "FALLBACK_CHECKS", "PARTITION_CHECKS", "ContractCheck"]
