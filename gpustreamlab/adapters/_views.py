"""One lane's stream as other libraries have it. The library is imported if it is not yet."""

from __future__ import annotations

import importlib
from typing import Any

from gpustreamlab.adapters._adapter import LaneStream
from gpustreamlab.errors import MissingExtraError
from gpustreamlab.installs import install_line


def cupy_view(stream: LaneStream) -> Any:
    """Return the stream as a ``cupy.cuda.Stream``, which does not own it."""
    return _import("cupy", "pip install cupy-cuda13x").cuda.Stream.from_external(stream)


def torch_view(stream: LaneStream, ordinal: int) -> Any:
    """Return the stream as a ``torch.cuda.ExternalStream``."""
    return _import("torch", "pip install torch").cuda.ExternalStream(stream.handle, device=ordinal)


def numba_view(stream: LaneStream) -> Any:
    """Return the stream as Numba-CUDA's, to name in a launch or copy."""
    return _import("numba.cuda", "pip install numba-cuda").external_stream(stream.handle)


def core_view(stream: LaneStream) -> Any:
    """Return the stream as a ``cuda.core.Stream``, which does not own it."""
    return _import("cuda.core", install_line("cuda13")).Stream.from_handle(stream.handle)


def _import(module: str, fix: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"The lane cannot be given to {module}, which cannot be imported ({error}). Install it with: {fix}",
            name=module,
        ) from error
