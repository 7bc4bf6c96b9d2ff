"""Ranges that other tools can see: NVTX, through a domain's fast path; and NVTX's way to CUPTI."""

from __future__ import annotations

import os
import threading
from typing import Any

from gpustreamlab.backends.cuda._libcuda import import_nvtx
from gpustreamlab.backends.cuda.cupti._library import load_cupti
from gpustreamlab.errors import BackendError

DOMAIN_NAME = "gpustreamlab"

DEFAULT_DOMAIN = "NVTX"  # What nvtx calls the domain of ranges without one

INJECTION_VARIABLE = "NVTX_INJECTION64_PATH"
"""Where NVTX looks, at its first use in each library, for the tool that wants its ranges. Source: NVTX, ``nvtxInit.h``."""
CRASHING_VERSIONS = (130000,)  # Versions of CUPTI that crash when NVTX loads them (NVTX#125)


class NvtxInjection:
    """Lets NVTX tell CUPTI of the ranges of every library that uses NVTX first from now on.

    Nothing happens where CUPTI is missing, where its version crashes on that, or where somebody else has set the variable. Of
    several, the last one that is restored puts everything back.
    """

    def __init__(self) -> None:
        self.path = ""  # The CUPTI that listens; empty where none does
        with _lock:
            if _holders:
                if not _is_set_to(_holders[0].path):
                    return  # the user has changed it
                self.path = _holders[0].path
            else:
                self.path = _find_listener()
                if not self.path:
                    return
                os.environ[INJECTION_VARIABLE] = self.path
                self._name_default_domain()
            _holders.append(self)

    def restore(self) -> None:
        """Put everything back as it was. Idempotent."""
        with _lock:
            if self not in _holders:
                return
            _holders.remove(self)
            if _holders:
                return
            while _renamed:
                module, original, ours = _renamed.pop()
                if module.get_domain is ours:
                    module.get_domain = original
            if _is_set_to(self.path):
                del os.environ[INJECTION_VARIABLE]

    def _name_default_domain(self) -> None:
        """Let ``nvtx.annotate("text")`` use a domain with the default one's name: CUPTI 13.0 drops ranges of none."""
        module = getattr(import_nvtx(), "nvtx", None)
        original = getattr(module, "get_domain", None)
        if original is None:
            return

        def get_domain(name: str | None = None) -> Any:
            return original(DEFAULT_DOMAIN if name is None else name)

        module.get_domain = get_domain  # type: ignore[union-attr]
        _renamed.append((module, original, get_domain))


_holders: list[NvtxInjection] = []  # Those that are in force; CUPTI is one a process, and so is their path
_renamed: list[tuple[Any, Any, Any]] = []  # Where a function of nvtx was replaced: the module, its own function, and ours
_lock = threading.Lock()


def is_injection_ours() -> bool:
    """Tell whether the variable is as this package has set it."""
    with _lock:
        return bool(_holders) and _is_set_to(_holders[0].path)


def _is_set_to(path: str) -> bool:
    return os.environ.get(INJECTION_VARIABLE) == path


def _find_listener() -> str:
    """Return the path of a CUPTI that NVTX can load without harm; empty where there is none, or the variable is taken."""
    if INJECTION_VARIABLE in os.environ:
        return ""
    try:
        cupti = load_cupti()
    except BackendError:
        return ""
    return "" if cupti.version in CRASHING_VERSIONS else cupti.path


def open_domain(name: str = DOMAIN_NAME) -> Any:
    """Return an NVTX domain, that of this package or another: one that does nothing where no tool listens.

    ``push_range(attributes)`` and ``pop_range()`` with prepared attributes cost 0.05 us a pair where no tool listens, 0.16 us
    where CUPTI does (FACTS.md; H200).
    """
    return import_nvtx().get_domain(name)
