"""Green contexts of a session: made once for each set of SMs, used again, bounded in number."""

from __future__ import annotations

import html
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection

from gpustreamlab.backends import Backend, BackendContext, ContextSpec, SplitGroup
from gpustreamlab.draw import sm_map_svg, sm_map_text
from gpustreamlab.errors import OptionError
from gpustreamlab.model import Device, Layout, Partition

__all__ = ["DEFAULT_CONTEXT_LIMIT", "ContextCache", "SMMap", "context_specs"]

_log = logging.getLogger(__name__)

DEFAULT_CONTEXT_LIMIT = 64
"""Green contexts that a session keeps alive by default: about 4 MiB of device memory each on an H200."""


def context_specs(layout: Layout | None) -> dict[str, ContextSpec]:
    """Return what each partition's context is made of; none for a layout that is not enforced."""
    if layout is None or not layout.is_enforced:
        return {}
    if not any(part.is_structured for part in layout):
        return {part.name: ContextSpec(groups=part.groups, workqueue=layout.workqueue) for part in layout}
    split = tuple(_split_group(part) for part in layout)
    return {part.name: ContextSpec(split=split, place=place, workqueue=layout.workqueue) for place, part in enumerate(layout)}


class ContextCache:
    """The green contexts of one backend, by what they are made of.

    Creating a context costs about a millisecond and, on the drivers tried, some MiB of device memory that do not come back.
    So contexts are kept, and used again for the same set of SMs. Beyond the limit the one that was used least recently goes,
    if nothing works in it.

    Parameters
    ----------
    backend
        Makes the contexts.
    limit
        How many are kept alive.
    """

    def __init__(self, backend: Backend, limit: int = DEFAULT_CONTEXT_LIMIT) -> None:
        if type(limit) is not int or limit < 1:
            raise OptionError(
                f"context_limit is {limit!r}; it is how many green contexts are kept, at least 1. "
                f"Use gpustreamlab.Session(context_limit={DEFAULT_CONTEXT_LIMIT})."
            )
        self.limit = limit
        self.created_count = 0
        """Contexts made so far, those that were destroyed too."""
        self._backend = backend
        self._contexts: OrderedDict[ContextSpec, BackendContext] = OrderedDict()

    def __len__(self) -> int:
        return len(self._contexts)

    def __contains__(self, spec: object) -> bool:
        return spec in self._contexts

    def get(self, spec: ContextSpec) -> BackendContext:
        """Return the context of a spec, making it on first use."""
        context = self._contexts.get(spec)
        if context is None:
            context = self._contexts[spec] = self._backend.create_context(spec)
            self.created_count += 1
        self._contexts.move_to_end(spec)
        return context

    def trim(self, in_use: Collection[ContextSpec], before: Callable[[ContextSpec], object]) -> None:
        """Destroy the contexts above the limit that nothing uses, least recently used first.

        Parameters
        ----------
        in_use
            Specs whose contexts stay.
        before
            Called with each spec before its context goes, to close its streams.
        """
        spare = [spec for spec in self._contexts if spec not in in_use]
        for spec in spare[: max(0, len(self._contexts) - self.limit)]:
            before(spec)
            self._contexts.pop(spec).close()
            _log.warning(
                "More than %d green contexts: the one used least recently was destroyed. The driver keeps some MiB of each for "
                "good; raise Session(context_limit=...) if you come back to as many layouts.",
                self.limit,
            )

    def close(self) -> None:
        """Destroy every context. Idempotent."""
        while self._contexts:
            _, context = self._contexts.popitem()
            context.close()


class SMMap:
    """A drawing of a card: one cell for each SM, coloured by partition. Made by `Session.sm_map`."""

    def __init__(self, device: Device, layout: Layout | None) -> None:
        self.device = device
        """The card."""
        self.layout = layout
        """The partitions, with the SM ids where they were measured."""

    def __repr__(self) -> str:
        return f"<SMMap of {self.device.label}, {len(self.layout) if self.layout else 0} partitions>"

    def __str__(self) -> str:
        return sm_map_text(device=self.device, layout=self.layout)

    def _repr_html_(self) -> str:
        return f"<div role='img' aria-label='{html.escape(str(self), quote=True)}'>{self._repr_svg_()}</div>"

    def _repr_svg_(self) -> str:
        return sm_map_svg(device=self.device, layout=self.layout)


def _split_group(part: Partition) -> SplitGroup:
    return SplitGroup(
        sms=part.granted_sms,
        coscheduled_sms=part.coscheduled_sms,
        preferred_coscheduled_sms=part.preferred_coscheduled_sms,
        backfill=part.backfill,
    )
