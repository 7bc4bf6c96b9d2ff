"""Libraries that are known: what each does about a selected lane."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from gpustreamlab.adapters._adapter import AdapterFactory
from gpustreamlab.adapters._numba import make_numba
from gpustreamlab.adapters._torch import make_torch
from gpustreamlab.typing import AdapterState


class Library(NamedTuple):
    """One library, and what it does about a selected lane once it is loaded."""

    name: str
    """How the table calls it."""
    module: str
    """The module that has to be loaded."""
    distributions: tuple[str, ...]
    """Packages that bring it, the usual ones first."""
    state: AdapterState
    """What it does where nothing is in the way."""
    reason: str
    """How it comes to that, in words."""


KNOWN = (
    Library(
        "cupy",
        "cupy",
        ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
        AdapterState.FOLLOWS,
        "its current stream is set, with its memory pool's arena",
    ),
    Library("torch", "torch", ("torch",), AdapterState.FOLLOWS, "its current stream is set"),
    Library(
        "numba-cuda",
        "numba.cuda",
        ("numba-cuda", "numba"),
        AdapterState.FOLLOWS,
        "launches and copies that name no stream go to the lane; copies still wait for their end",
    ),
    Library("triton", "triton", ("triton",), AdapterState.THROUGH_TORCH, "it launches on torch's current stream"),
    Library(
        "cuda.core",
        "cuda.core",
        ("cuda-core",),
        AdapterState.TAKES_STREAM,
        "it has no current stream: pass lane.core to launch() and the like",
    ),
    Library(
        "jax",
        "jax",
        ("jax",),
        AdapterState.CANNOT_FOLLOW,
        "it has its own streams; its work is found by lab.strays()",
    ),
    Library(
        "onnxruntime",
        "onnxruntime",
        ("onnxruntime-gpu", "onnxruntime"),
        AdapterState.TAKES_STREAM,
        "a session keeps the stream that it was made with: the CUDA provider's option user_compute_stream=str(lane.handle)",
    ),
)
"""In the order of the table."""

BUILT_IN: Mapping[str, AdapterFactory] = MappingProxyType({"torch": make_torch, "numba.cuda": make_numba})
"""Adapters that ship, by the module that has to be loaded."""


def installed_version(module: str) -> str:
    """Return the version of a library, or ``""`` where it is not installed. Imports nothing."""
    loaded: Any = sys.modules.get(module)
    known = getattr(loaded, "__version__", None)
    if isinstance(known, str):
        return known
    distributions = next((library.distributions for library in KNOWN if library.module == module), (module.partition(".")[0],))
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except (importlib.metadata.PackageNotFoundError, ValueError):
            continue
    return ""


def is_loaded(module: Any) -> bool:
    """Tell whether a module of `sys.modules` is imported to its end."""
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)
