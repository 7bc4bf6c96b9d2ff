"""Public checks for backends: the contract that the simulated device and CUDA both keep."""

from gpustreamlab.testing._contract import CONTRACT_CHECKS, ContractCheck

__all__ = ["CONTRACT_CHECKS", "ContractCheck"]
