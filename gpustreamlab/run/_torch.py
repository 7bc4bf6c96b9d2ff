"""Follow torch where the program has imported it: when it first uses the GPU, its modules, and the steps of its optimizers."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gpustreamlab.backends.cuda._nvtx import open_domain

DOMAIN = "torch"
"""Domain of the NVTX ranges."""


class TorchHooks:
    """Hooks of torch's own, for all modules and optimizers.

    Parameters
    ----------
    has_ranges
        Whether the forward of each module, and each step of an optimizer, becomes a range.
    on_step
        What is called behind each step of an optimizer; None for nothing.
    open_domain
        Returns the NVTX domain of the ranges.
    """

    def __init__(
        self,
        *,
        has_ranges: bool,
        on_step: Callable[[], object] | None,
        open_domain: Callable[[], Any] = lambda: open_domain(DOMAIN),
    ) -> None:
        self._open_domain, self._attributes = open_domain, dict[str, Any]()
        self._has_ranges, self._on_step = has_ranges, on_step
        self._handles: list[Any] = []
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._threads = threading.local()
        self._domain: Any = None

    def install(self, on_first_use: Callable[[], object]) -> None:
        """Put the hooks into torch, which is imported, and have a function called when it first uses the GPU."""
        torch = sys.modules["torch"]
        if getattr(getattr(torch, "version", None), "cuda", None):
            # What torch itself puts off until then is put off by this; where it has happened, it is called at once.
            torch.cuda._lazy_call(lambda: self._use(on_first_use))
        if self._has_ranges:
            self._name_modules(torch)
        if self._has_ranges or self._on_step is not None:
            optimizer = sys.modules["torch.optim.optimizer"]  # torch.optim deletes its name
            self._handles.append(optimizer.register_optimizer_step_pre_hook(self._before_step))
            self._handles.append(optimizer.register_optimizer_step_post_hook(self._behind_step))

    def remove(self) -> None:
        """Take the hooks out again."""
        for handle in self._handles:
            with suppress(Exception):  # torch may be half gone at exit
                handle.remove()
        self._handles.clear()

    def _use(self, on_first_use: Callable[[], object]) -> None:
        on_first_use()
        if self._has_ranges:
            # Not before: NVTX looks for who listens when it is used first, and the session has said so by now.
            self._domain = self._open_domain()

    def _name_modules(self, torch: Any) -> None:
        modules = torch.nn.modules.module
        self._handles.append(modules.register_module_forward_pre_hook(self._before_forward))
        try:
            behind = modules.register_module_forward_hook(self._behind_forward, always_call=True)
        except TypeError:  # torch < 2.1: a forward that raises leaves its range open
            behind = modules.register_module_forward_hook(self._behind_forward)
        self._handles.append(behind)

    def _before_forward(self, module: Any, _inputs: object) -> None:
        if self._domain is None:
            self._open.append(False)
            return
        if not self._open:
            for name, part in module.named_modules():
                self._names.setdefault(part, f"{name} ({type(part).__name__})" if name else type(part).__name__)
        self._push(self._names.get(module, type(module).__name__))

    def _behind_forward(self, _module: Any, _inputs: object, _output: object) -> None:
        self._pop()

    def _before_step(self, optimizer: Any, _arguments: object, _options: object) -> None:
        if self._has_ranges and self._domain is not None:
            self._push(f"{type(optimizer).__name__}.step")
        else:
            self._open.append(False)

    def _behind_step(self, _optimizer: Any, _arguments: object, _options: object) -> None:
        self._pop()
        if self._on_step is not None:
            self._on_step()

    @property
    def _open(self) -> list[bool]:
        """What this thread is in, innermost last: whether it has a range."""
        try:
            found: list[bool] = self._threads.open
        except AttributeError:
            found = self._threads.open = []
        return found

    def _push(self, name: str) -> None:
        attributes = self._attributes.get(name)
        if attributes is None:
            attributes = self._attributes[name] = self._domain.get_event_attributes(message=name)
        self._domain.push_range(attributes)
        self._open.append(True)

    def _pop(self) -> None:
        if self._open and self._open.pop():
            self._domain.pop_range()
