"""Makers of cards: which one's a trace is of, how many hardware queues its streams share, and what it calls things."""

from __future__ import annotations

import re
from typing import NamedTuple

from gpustreamlab.model import Trace

_WORDS = re.compile(
    r"(?P<unit>(?P<article>\ban? )?\bSM(?=s?\b))|\bCUDA(?= (?:calls?|graphs?)\b)|(?<=calls of )CUDA\b|\bNCCL\b|"
    r"(?<=ProfilerActivity\.)CUDA\b|\bcuda(?=[A-Z]\w)"
)


class Maker(NamedTuple):
    """What a maker calls what all makers have, and how its traces are known."""

    cards: re.Pattern[str]  # Names of its cards, and of its tools
    calls: re.Pattern[str]  # How its calls begin
    queue_count: int  # How many streams have a hardware queue of their own by default; 0 where that is not known
    api: str
    prefix: str  # Of functions that have CUDA's names otherwise; empty where there are none
    unit: str  # What runs blocks
    collectives: str
    activity: str  # What PyTorch's profiler calls its cards

    def words(self, text: str) -> str:
        """Return a text of ours, which says what NVIDIA calls it, in the maker's words."""
        return text if self is NVIDIA else _WORDS.sub(self._word, text)

    def _word(self, found: re.Match[str]) -> str:
        if found["unit"]:
            article = "an " if self.unit[0] in "aeiouAEIOU" else "a "
            return (article if found["article"] else "") + self.unit
        if found[0] == "CUDA":
            return self.activity if found.string.endswith(".", 0, found.start()) else self.api
        return self.collectives if found[0] == "NCCL" else self.prefix or found[0]


NVIDIA = Maker(re.compile("NVIDIA|Nsight"), re.compile(r"cu(da)?[A-Z]"), 8, "CUDA", "cuda", "SM", "NCCL", "CUDA")
AMD = Maker(
    re.compile(r"\bAMD\b|Instinct|Radeon|^gfx\d"), re.compile("hip[A-Z]"), 4, "HIP", "hip", "compute unit", "RCCL", "CUDA"
)
INTEL = Maker(re.compile(r"\bIntel\b"), re.compile("(ur|ze)[A-Z]"), 0, "SYCL", "", "Xe core", "oneCCL", "XPU")
ASCEND = Maker(re.compile("Ascend"), re.compile("acl(rt|nn)?[A-Z]"), 0, "AscendCL", "", "AI core", "HCCL", "PrivateUse1")
GOOGLE = Maker(re.compile(r"\bTPU\b"), re.compile(r"(?!)"), 0, "XLA", "", "core", "XLA's collectives", "CPU")
MAKERS = (NVIDIA, AMD, INTEL, ASCEND, GOOGLE)
"""Known makers. Sources of queues: CUDA_DEVICE_MAX_CONNECTIONS; ROCm's GPU_MAX_HW_QUEUES."""


def maker_of(trace: Trace) -> Maker:
    """Return whose cards a trace is of: by the name of the first, by the tool, or by calls; NVIDIA's where nothing tells."""
    meta = trace.metadata
    for told in (meta.device.name, meta.capture_source):
        for maker in MAKERS:
            if maker.cards.search(told):
                return maker
    return next((maker for maker in MAKERS[1:] if any(map(maker.calls.match, trace.names))), NVIDIA)
