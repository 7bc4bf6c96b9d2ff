"""What a backend has to keep, as checks to run."""

from gpustreamlab.testing._contract import CONTRACT_CHECKS as CORE_CHECKS
from gpustreamlab.testing._contract import ContractCheck
from gpustreamlab.testing._partition_contract import PARTITION_CHECKS

CONTRACT_CHECKS: tuple[ContractCheck, ...] = (*CORE_CHECKS, *PARTITION_CHECKS)
"""Every check, to run one by one."""

__all__ = ["CONTRACT_CHECKS", "ContractCheck"]
