"""Public checks for backends: the contract that the simulated device and CUDA both keep.

They are imported when they are first used: pytest imports this package at each start, for the plugin in it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpustreamlab.testing._capture_contract import CAPTURE_CHECKS
    from gpustreamlab.testing._contract import CONTRACT_CHECKS, FALLBACK_CHECKS, PARTITION_CHECKS, ContractCheck
    from gpustreamlab.testing._graph_contract import GRAPH_CHECKS

__all__ = ["CAPTURE_CHECKS", "CONTRACT_CHECKS", "FALLBACK_CHECKS", "GRAPH_CHECKS", "PARTITION_CHECKS", "ContractCheck"]

_MODULES = {
    "CAPTURE_CHECKS": "_capture_contract",
    "CONTRACT_CHECKS": "_contract",
    "ContractCheck": "_contract",
    "FALLBACK_CHECKS": "_contract",
    "GRAPH_CHECKS": "_graph_contract",
    "PARTITION_CHECKS": "_contract",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
