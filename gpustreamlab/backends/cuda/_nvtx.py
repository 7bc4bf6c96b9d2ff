"""Ranges that other tools can see: NVTX, through a domain's fast path."""

from __future__ import annotations

from typing import Any

from gpustreamlab.backends.cuda._import import import_nvtx

DOMAIN_NAME = "gpustreamlab"


def open_domain() -> Any:
    """Return the NVTX domain of this package: one that does nothing where no tool listens.

    ``push_range(attributes)`` and ``pop_range()`` with prepared attributes cost 0.05 us a pair (FACTS.md).
    """
    return import_nvtx().get_domain(DOMAIN_NAME)
