"""Scratch memory of lanes: given out and taken back in the order of a stream, without a wait.

Work of one stream is in order, so a block that was given back can be given out again at once: whatever still uses it comes
before whatever will. That holds within one stream, so every lane has an arena of its own, and an arena knows on which stream
its free blocks are in order. See docs/explanations/decisions/0017-scratch.md.
"""

from __future__ import annotations

from gpustreamlab.scratch._arena import ScratchArena, ScratchLane
from gpustreamlab.scratch._pool import ScratchPool
from gpustreamlab.scratch._scratch import Scratch, check_held
from gpustreamlab.scratch._sizes import ALIGNMENT_BYTES, CLASSES_PER_DOUBLING, size_class

__all__ = [
    "ALIGNMENT_BYTES",
    "CLASSES_PER_DOUBLING",
    "Scratch",
    "ScratchArena",
    "ScratchLane",
    "ScratchPool",
    "check_held",
    "size_class",
]
