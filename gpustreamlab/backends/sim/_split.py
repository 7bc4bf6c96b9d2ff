"""Which SMs a simulated driver gives a green context, and what it refuses. Pure.

Sources: groups and remainder as measured on an H200 with driver 13.0 (FACTS.md). The structured split is an assumption from
the text of the CUDA driver API 13.1, ``cuDevSmResourceSplit``; no such driver was at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpustreamlab.backends._features import green_capabilities
from gpustreamlab.backends._protocol import ContextSpec, SplitGroup
from gpustreamlab.backends.sim._presets import DevicePreset
from gpustreamlab.errors import DeviceError, NotSimulatedError
from gpustreamlab.model import Capabilities, SMResource
from gpustreamlab.typing import Feature

_TPC_SMS = 2  # SMs of a TPC, the least that is scheduled together; a remainder is made of single TPCs of many GPCs


class SMSplitter:
    """Says how a device's SMs can be shared out, and finds those of a context.

    Parameters
    ----------
    preset
        The device and its driver.
    """

    def __init__(self, preset: DevicePreset) -> None:
        groups, version = preset.sm_groups, preset.cuda_version
        self._preset = preset
        self._ids = () if groups is None else groups.cut(preset.sm_count)
        resource = None
        if groups is not None:
            resource = SMResource(
                min_sms=groups.min_sms,
                alignment_sms=groups.alignment_sms,
                group_sms=groups.group_sms,
                group_count=len(self._ids) - 1,
                remainder_sms=len(self._ids[-1]),
            )
        self.capabilities: Capabilities = green_capabilities(
            version, version, resource, has_memory_pools=preset.has_memory_pools
        )
        """What the driver can do; its bindings are taken to have the same version."""
        self.resource: SMResource | None = None
        """How the SMs can be shared out; None where they cannot."""
        if resource is not None and self.capabilities.has(Feature.GREEN_CONTEXTS):
            self.resource = replace(resource, is_structured=self.capabilities.has(Feature.UNEQUAL_SPLIT))

    def find_sm_ids(self, spec: ContextSpec) -> frozenset[int]:
        """Return the SM ids of a context.

        Raises
        ------
        DeviceError
            If the driver lacks a feature that the spec needs, or cannot grant it.
        NotSimulatedError
            For a structured split with co-scheduled sizes beyond the device's smallest groups.
        """
        resource = self._require(Feature.GREEN_CONTEXTS)
        if spec.workqueue is not None:
            self._require(Feature.WORKQUEUES)
        if bool(spec.groups) == bool(spec.split):
            given = "both" if spec.groups else "neither"
            raise _refuse("INVALID_VALUE", f"a context is made of groups or of a split, and {given} was given", "Give one.")
        if spec.groups:
            return self._collect_groups(spec.groups, resource)
        self._require(Feature.UNEQUAL_SPLIT)
        if not 0 <= spec.place < len(spec.split):
            raise _refuse(
                "INVALID_VALUE",
                f"place {spec.place} is none of the {len(spec.split)} groups of the split",
                f"Give 0 to {len(spec.split) - 1}.",
            )
        return self._split(spec.split, resource)[spec.place]

    def _require(self, feature: Feature) -> SMResource:
        """Return the device's SM resource if the driver has a feature."""
        item = self.capabilities[feature]
        if self.resource is None or not item.available:
            raise _refuse(
                "NOT_SUPPORTED",
                f"the simulated {self._preset.name} has no {feature} ({item.detail})",
                f"It needs {item.needs}. Without it: {item.fallback}.",
            )
        return self.resource

    def _collect_groups(self, groups: tuple[int, ...], resource: SMResource) -> frozenset[int]:
        last = resource.group_count if resource.remainder_sms else resource.group_count - 1
        wrong = [group for group in groups if not 0 <= group <= last]
        if wrong or len(set(groups)) != len(groups):
            what = f"there are no groups {wrong}" if wrong else f"groups {list(groups)} name one twice"
            rest = f"; {last} is the remainder of {resource.remainder_sms} SMs" if resource.remainder_sms else ""
            raise _refuse("INVALID_RESOURCE_CONFIGURATION", what, f"Give numbers from 0 to {last}, each once{rest}.")
        return frozenset(sm for group in groups for sm in self._ids[group])

    def _split(self, split: Sequence[SplitGroup], resource: SMResource) -> list[frozenset[int]]:
        """Take the groups of a structured split from the card, those first that have to be scheduled together."""
        free = [list(ids) for ids in self._ids]
        taken: list[frozenset[int]] = [frozenset()] * len(split)
        for place in sorted(range(len(split)), key=lambda place: _turn(split[place], resource)):
            group = split[place]
            step = group.coscheduled_sms or resource.alignment_sms
            _check_sizes(group, step, resource)
            ids = _take(free, group.sms, step)
            if group.backfill:
                ids += _take(free, group.sms - len(ids), _TPC_SMS)
            if len(ids) < group.sms:
                raise _refuse(
                    "INVALID_RESOURCE_CONFIGURATION",
                    f"group {place} of the split asked for {group.sms} SMs, {step} at a time scheduled together, and only "
                    f"{len(ids)} such are left",
                    "Ask for fewer SMs or a smaller co-scheduled size, or allow backfill.",
                )
            taken[place] = frozenset(ids)
        return taken


def _turn(group: SplitGroup, resource: SMResource) -> tuple[bool, int]:
    """Say when a group takes its SMs: large steps first, so that small ones do not break up what they need."""
    return group.backfill, -(group.coscheduled_sms or resource.alignment_sms)


def _check_sizes(group: SplitGroup, step: int, resource: SMResource) -> None:
    if step > resource.group_sms:
        raise NotSimulatedError(
            f"The simulated device does not model {step} SMs that are scheduled together; give at most {resource.group_sms} as "
            "coscheduled_sms."
        )
    unit = _TPC_SMS if group.backfill else step
    if step < 1 or (step % _TPC_SMS and step != resource.alignment_sms):
        raise _refuse(
            "INVALID_RESOURCE_CONFIGURATION",
            f"a co-scheduled size of {step} SMs is not a multiple of {_TPC_SMS}",
            "Give 2, 4 or 8.",
        )
    if group.sms < 1 or group.sms % unit:
        raise _refuse(
            "INVALID_RESOURCE_CONFIGURATION",
            f"{group.sms} SMs are no multiple of {unit}",
            f"Give {max(unit, group.sms - group.sms % unit)}.",
        )
    if group.preferred_coscheduled_sms % step:
        raise _refuse(
            "INVALID_RESOURCE_CONFIGURATION",
            f"a preferred co-scheduled size of {group.preferred_coscheduled_sms} SMs is not a multiple of {step}",
            f"Give {step} or {2 * step}.",
        )


def _take(free: list[list[int]], sms: int, step: int) -> list[int]:
    """Take up to so many SMs from the card in order, `step` at a time from one group; the last entry is the remainder."""
    taken: list[int] = []
    for pool in free if step <= _TPC_SMS else free[:-1]:
        while len(taken) + step <= sms and len(pool) >= step:
            taken += pool[:step]
            del pool[:step]
    return taken


def _refuse(code: str, what: str, fix: str) -> DeviceError:
    return DeviceError(f"Creating a green context failed: {what}. {fix}", driver_code=code)
