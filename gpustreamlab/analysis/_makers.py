"""Makers of cards: which one's a trace is of, how many hardware queues its streams share, and what it calls things."""

from __future__ import annotations

import re
from typing import NamedTuple

from gpustreamlab.model import Trace

_WORDS = re.compile(
    r"(?P<article>\ban? )?(?P<word>\bSM(?=s?\b)|\bCUDA(?= (?:calls?|graphs?)\b)|(?<=calls of )CUDA\b|\bNCCL\b|"
    r"(?<=ProfilerActivity\.)CUDA\b|(?<=\btorch\.)cuda\b|\bcuda(?=[A-Z]\w)|"
    r"lab\.memory\.pinned_empty\(shape, dtype\))"
)


OF_RANKS = re.compile(r"nccl|rccl|hccl|hcom_|oneccl", re.IGNORECASE)
"""Names of kernels of collectives."""
_TOGETHER = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|barrier", re.IGNORECASE)
AWAITED = "awaited_ns"
"""Column of a trace: how long a kernel of a collective waited for the last rank, in ns."""


class Maker(NamedTuple):
    """What a maker calls what all makers have, and how its traces are known."""

    cards: str  # Pattern of names of its cards, and of its tools
    calls: str  # Pattern of how its calls begin
    queue_count: int  # How many streams have a hardware queue of their own by default; 0 where that is not known
    api: str
    prefix: str  # Of functions that have CUDA's names otherwise; empty where there are none
    unit: str  # What runs blocks
    collectives: str
    activity: str  # What PyTorch's profiler calls its cards
    torch: str  # Its module of torch

    def words(self, text: str) -> str:
        """Return a text of ours, which says what NVIDIA calls it, in the maker's words."""
        return text if self is NVIDIA else _WORDS.sub(self._word, text)

    def _word(self, found: re.Match[str]) -> str:
        before = found.string[: found.start("word")]
        known = {"SM": self.unit, "CUDA": self.api, "NCCL": self.collectives, "cuda": self.prefix or "cuda"}
        own = known.get(found["word"], "tensor.pin_memory()")  # lab runs on CUDA alone
        own = self.activity if before.endswith("ProfilerActivity.") else self.torch if before.endswith("torch.") else own
        return ("an " if own[0] in "AEIOUaeiou" else "a ") * bool(found["article"]) + own


NVIDIA = Maker("NVIDIA|Nsight", "cu(da)?[A-Z]", 8, "CUDA", "cuda", "SM", "NCCL", "CUDA", "cuda")
AMD = Maker(r"\bAMD\b|Instinct|Radeon|^gfx\d", "hip[A-Z]", 4, "HIP", "hip", "compute unit", "RCCL", "CUDA", "cuda")
INTEL = Maker(r"\bIntel\b", "(ur|ze)[A-Z]", 0, "SYCL", "", "Xe core", "oneCCL", "XPU", "xpu")
ASCEND = Maker("Ascend", "acl(rt|nn)?[A-Z]", 0, "AscendCL", "", "AI core", "HCCL", "PrivateUse1", "npu")
GOOGLE = Maker(r"\bTPU\b", "(?!)", 0, "XLA", "", "core", "XLA's collectives", "CPU", "xla")
MAKERS = (AMD, INTEL, ASCEND, GOOGLE, NVIDIA)
"""Known makers. Sources of queues: CUDA_DEVICE_MAX_CONNECTIONS; ROCm's GPU_MAX_HW_QUEUES."""


def awaits_ranks(name: str) -> bool:
    """Tell whether a kernel of that name is of a collective that ends on no rank before the last one has begun it."""
    return bool(OF_RANKS.search(name) and _TOGETHER.search(name))


def maker_of(trace: Trace) -> Maker:
    """Return whose cards a trace is of: by the name of the first, by the tool, or by calls; NVIDIA's where nothing tells."""
    meta = trace.metadata
    for told in (meta.device.name, meta.capture_source):
        for maker in MAKERS:
            if re.search(maker.cards, told):
                return maker
    if not meta.imported and not meta.is_from_columns:
        return NVIDIA  # recorded here
    return next((maker for maker in MAKERS if any(map(re.compile(maker.calls).match, trace.names))), NVIDIA)
