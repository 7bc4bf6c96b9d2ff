"""What pools of libraries give out of their memory: torch's caching allocator, by its own history."""

from __future__ import annotations

import inspect
import logging
import sys
from typing import Any

from gpustreamlab.backends.cuda.cupti._blocks import BlockChange

_log = logging.getLogger(__name__)

HISTORY_LIMIT = 262_144
"""Changes that torch keeps between two drains; older ones make room."""
_ENDS = "free_completed"
_SKIPPED = ["free_requested", _ENDS, "segment_alloc", "segment_free", "oom", "snapshot"]
"""What torch need not keep, as each change takes 3 us to read: a block ends where another one is given out over it."""


class TorchBlocks:
    """Follows the blocks of torch's allocator, once torch has begun to use a GPU.

    Its history is on meanwhile, without stacks, and is forgotten as it is read; where the program has it on for itself, it is
    read and left alone.
    """

    def __init__(self) -> None:
        self._torch: Any = None
        self._is_theirs = False
        self._newest_us = 0

    @property
    def is_unseen(self) -> bool:
        """Whether torch uses a GPU and is not followed."""
        torch = sys.modules.get("torch")
        return self._torch is None and torch is not None and _is_using_gpu(torch)

    def begin(self) -> list[BlockChange] | None:
        """Follow from now on if torch is there; return the blocks that there are, or None where nothing began just now."""
        torch = sys.modules.get("torch")
        if self._torch is not None or torch is None:
            return None
        try:
            if not _is_using_gpu(torch):
                return None
            self._is_theirs = bool(torch._C._cuda_isHistoryEnabled())  # noqa: SLF001 - there is no public question
            self._torch = torch
            if not self._is_theirs:
                self._record(is_on=True)
            self._newest_us = 0
            return self._blocks(torch.cuda.memory_snapshot())
        except Exception:  # noqa: BLE001 - a torch that has none of that is used without
            _log.debug("torch's allocator is not followed", exc_info=True)
            self._torch = None
            return None

    def take(self) -> list[BlockChange]:
        """Return what changed since the last time, in order."""
        if self._torch is None:
            return []
        try:
            traces = self._torch._C._cuda_memorySnapshot(None)["device_traces"]  # noqa: SLF001 - see `begin`
            if not self._is_theirs:
                self._record(is_on=True)  # what happens in between is lost: its block is found as part of another
        except Exception:  # noqa: BLE001 - see `begin`
            _log.debug("torch's history cannot be read", exc_info=True)
            self._torch = None
            return []
        found = [
            BlockChange(
                entry["time_us"] * 1_000, entry["addr"], 0 if entry["action"] == _ENDS else entry["size"], entry["stream"]
            )
            for trace in traces
            for entry in trace
            if entry["action"] in {"alloc", _ENDS} and (not self._is_theirs or entry["time_us"] > self._newest_us)
        ]
        found.sort(key=lambda change: change.wall_ns)
        if found:
            self._newest_us = found[-1].wall_ns // 1_000
        return found

    def end(self) -> None:
        """Follow no more."""
        if self._torch is not None and not self._is_theirs:
            self._record(is_on=False)
        self._torch = None

    def _record(self, *, is_on: bool) -> None:
        memory = self._torch.cuda.memory
        if not is_on:
            memory._record_memory_history(enabled=None)  # noqa: SLF001 - torch documents it so
            return
        record = memory._record_memory_history  # noqa: SLF001
        skipped = {"skip_actions": _SKIPPED} if "skip_actions" in inspect.signature(record).parameters else {}
        record(enabled="all", context=None, stacks="python", max_entries=HISTORY_LIMIT, clear_history=True, **skipped)

    @staticmethod
    def _blocks(segments: list[dict[str, Any]]) -> list[BlockChange]:
        found = []
        for segment in segments:
            address = segment["address"]
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    found.append(BlockChange(0, block.get("address", address), block["size"], segment["stream"]))
                address += block["size"]
        return found


def _is_using_gpu(torch: Any) -> bool:
    try:
        return bool(torch.cuda.is_initialized())
    except AttributeError:  # it is being imported
        return False
