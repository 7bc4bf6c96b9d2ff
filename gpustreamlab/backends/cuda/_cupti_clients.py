"""Other tools that use CUPTI in this process. Before CUPTI 13.3 there is room for one: it must not be taken from them."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from gpustreamlab.backends.cuda._cupti import Cupti

_log = logging.getLogger(__name__)

_NSYS = (
    "NSYS_PROFILING_SESSION_ID",
    "NSYS_TARGET_STD_REDIRECT_ACTIVE",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR",
    "CUDA_INJECTION64_PATH",
)
"""What Nsight Systems, Nsight Compute and other injected tools leave in a process's environment."""


def active_client(cupti: Cupti) -> str:
    """Name the tool that collects in this process now, and what to do about it; empty where none does.

    Notes
    -----
    torch.profiler keeps CUPTI's one place for a subscriber after its first use for as long as the process lives, and does not
    mind others while it is not running.
    """
    if is_torch_profiling():
        return "torch.profiler is running; leave its `with` block first"
    injected = next((name for name in _NSYS if os.environ.get(name)), "")
    if injected:
        return f"an injected profiler is active ({injected} is set); run without it"
    if sys.modules.get("cupti") is not None:
        return "cupti-python is imported in this process and may be collecting; restart without it"
    if "torch" not in sys.modules and cupti.is_held_by_another():
        return "another profiler has subscribed to CUPTI in this process"
    return ""


def is_torch_profiling() -> bool:
    """Tell whether torch.profiler is running in this process. torch is not imported for it."""
    torch = sys.modules.get("torch")
    try:
        return torch is not None and bool(torch.autograd._profiler_enabled())  # noqa: SLF001 - torch has no public question for it
    except AttributeError:
        return False


def call_before_torch_profiles(hand_over: Callable[[], object]) -> None:
    """Have this called whenever torch.profiler is about to register its buffers, which it tells nobody of. Idempotent.

    A buffer that CUPTI still holds from us would get torch's first records, and torch refuses it ("bufferCompleted called with
    unknown buffer"): 3,120 of 20,000 kernels were missing from its events (H200, torch 2.11). torch comes by
    `_prepare_profiler` first, before warm-up steps too. That function stays wrapped; it does nothing more once nobody
    captures.
    """
    profiler = sys.modules.get("torch.autograd.profiler")
    prepare = getattr(profiler, "_prepare_profiler", None)
    if prepare is None or hasattr(prepare, _OURS):
        return

    @wraps(prepare)
    def prepare_after_hand_over(config: Any, activities: Any, *args: Any, **options: Any) -> Any:
        if any(getattr(activity, "name", "") == "CUDA" for activity in activities):
            try:
                hand_over()
            except Exception:  # noqa: BLE001 - torch.profiler has to start, whatever is wrong here
                _log.debug("CUPTI could not be handed over", exc_info=True)
        return prepare(config, activities, *args, **options)

    setattr(prepare_after_hand_over, _OURS, True)
    setattr(profiler, prepare.__name__, prepare_after_hand_over)


_OURS = "_gpustreamlab_hands_over"
"""Marks the function that was put in place of torch's."""
