"""Green contexts through cuda.core, against a stand-in for it: also what drivers do that were not at hand."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from gpustreamlab.backends import ContextSpec, SplitGroup
from gpustreamlab.backends.cuda._green import GreenContexts
from gpustreamlab.backends.cuda._idle import IdleContexts
from gpustreamlab.errors import DeviceError
from gpustreamlab.model import WorkqueueOptions


@dataclass
class SMs:
    """`cuda.core.SMResource` of a card of 20 SMs: 4 groups of 4, and 4 that fit in no group."""

    sm_count: int = 20
    min_partition_size: int = 4
    coscheduled_alignment: int = 4
    most_groups: int = 4
    structured: bool = False
    remainder_alignment: int = 4
    calls: list = field(default_factory=list)

    def rest(self, sm_count):
        return SMs(sm_count=sm_count, coscheduled_alignment=self.remainder_alignment)

    def split(self, options):
        self.calls.append(options)
        counts = options.count
        if not self.structured:
            if len(set(counts)) > 1:
                raise RuntimeError("CUDA 12 SM splitting only supports homogeneous count values")
            groups = min(len(counts), self.most_groups)
            return [SMs(sm_count=4) for _ in range(groups)], self.rest(20 - 4 * groups)
        if sum(count // 4 for count in counts) > self.most_groups:
            raise RuntimeError("CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION: does not fit")
        return [SMs(sm_count=count) for count in counts], self.rest(20 - sum(counts))


class Stream:
    def __init__(self, options):
        self.options = options


class Context:
    def __init__(self, options):
        self.options = options
        self.is_closed = False
        sms = [resource for resource in options.resources if isinstance(resource, SMs)]
        self.resources = SimpleNamespace(sm=SMs(sm_count=sum(part.sm_count for part in sms)))

    def create_stream(self, options):
        assert SCOPE.depth == 1, "cuda.core asks the current context"
        return Stream(options)

    def close(self):
        assert not self.is_closed
        self.is_closed = True


class Workqueue:
    def configure(self, options):
        self.options = options


class FakeDevice:
    def __init__(self, sms, workqueue=None):
        self.resources = SimpleNamespace(sm=sms)
        if workqueue is not None:
            self.resources.workqueue = workqueue

    def create_context(self, options):
        return Context(options)


def options(**given):
    return SimpleNamespace(**given)


CORE = SimpleNamespace(
    SMResourceOptions=options, ContextOptions=options, StreamOptions=options, WorkqueueResourceOptions=options
)


class Scope:
    """Makes the device current; the stand-ins look whether it is."""

    depth = 0

    def __call__(self):
        return self

    def __enter__(self):
        self.depth += 1

    def __exit__(self, *_):
        self.depth -= 1


SCOPE = Scope()


def make_stream(context, number, priority):
    return context.create_stream(options(nonblocking=True, priority=priority)), number


def open_green(sms, *, driver=(13, 0), bindings=(13, 3), workqueue=None, idle=None):
    return GreenContexts(
        core=CORE,
        device=FakeDevice(sms, workqueue),
        driver=driver,
        bindings=bindings,
        make_stream=make_stream,
        scope=SCOPE,
        idle=IdleContexts() if idle is None else idle,
    )


def test_the_device_is_split_once_into_its_smallest_groups():
    sms = SMs()
    green = open_green(sms)
    assert (green.resource.group_count, green.resource.group_sms, green.resource.remainder_sms) == (4, 4, 4)
    assert [call.count for call in sms.calls] == [(4,) * 5]  # as many as the division says; the driver gives fewer
    assert not green.resource.is_structured
    green.create(ContextSpec(groups=(0, 2)))
    assert len(sms.calls) == 1


def test_a_structured_split_is_asked_for_fewer_groups_until_it_fits():
    sms = SMs(structured=True)
    green = open_green(sms, driver=(13, 1))
    assert (green.resource.group_count, green.resource.remainder_sms) == (4, 4)
    assert green.resource.is_structured


def test_contexts_are_made_of_groups_and_of_the_remainder():
    green = open_green(SMs())
    first, second = green.create(ContextSpec(groups=(0, 1, 4))), green.create(ContextSpec(groups=(2, 3)))
    assert (first.sm_count, second.sm_count) == (12, 8)
    assert (first.number, second.number) == (1, 2)


def test_streams_of_a_context_are_non_blocking_and_know_its_number():
    stream, number = open_green(SMs()).create(ContextSpec(groups=(0,))).create_stream(priority=-2)
    assert (stream.options.nonblocking, stream.options.priority, number) == (True, -2, 1)


def test_a_structured_context_asks_for_the_whole_split_and_takes_its_place():
    sms = SMs(structured=True)
    green = open_green(sms, driver=(13, 1))
    split = (SplitGroup(sms=8, coscheduled_sms=4), SplitGroup(sms=4, backfill=True))
    context = green.create(ContextSpec(split=split, place=1))
    asked = sms.calls[-1]
    assert (asked.count, asked.coscheduled_sm_count, asked.backfill) == ((8, 4), (4, 0), (False, True))
    assert asked.preferred_coscheduled_sm_count is None
    assert context.sm_count == 4


def test_work_queues_are_configured_and_belong_to_the_context():
    workqueue = Workqueue()
    green = open_green(SMs(structured=True), driver=(13, 1), workqueue=workqueue)
    made = green.create(ContextSpec(groups=(0,), workqueue=WorkqueueOptions(concurrency_limit=4)))
    assert (workqueue.options.sharing_scope, workqueue.options.concurrency_limit) == ("green_ctx_balanced", 4)
    assert workqueue in made.context.options.resources


def test_what_the_driver_refuses_is_an_error_of_ours():
    green = open_green(SMs())
    with pytest.raises(DeviceError, match="16 SMs"):
        green.create(ContextSpec(split=(SplitGroup(sms=4), SplitGroup(sms=16)), place=1))
    with pytest.raises(DeviceError):
        green.create(ContextSpec(groups=(0,), workqueue=WorkqueueOptions()))


@pytest.mark.parametrize(
    ("driver", "bindings", "features"),
    [
        ((12, 2), (12, 9), set()),
        ((12, 5), (12, 4), set()),
        ((12, 4), (12, 9), set()),
        ((12, 5), (12, 5), {"green-contexts"}),
        ((13, 0), (13, 3), {"green-contexts"}),
        ((13, 1), (13, 0), {"green-contexts"}),
        ((13, 1), (13, 1), {"green-contexts", "unequal-split", "co-scheduling", "backfill", "workqueues"}),
        ((13, 1), None, set()),
    ],
)
def test_each_feature_needs_its_driver_and_its_bindings(driver, bindings, features):
    is_new = driver >= (13, 1) and bindings is not None and bindings >= (13, 1)
    sms = SMs(structured=is_new)
    green = open_green(sms, driver=driver, bindings=bindings)
    assert bool(sms.calls) == bool(features) == (green.resource is not None)
    assert {str(item.feature) for item in green.capabilities if item.available} - {"stream-ordered-memory"} == features
    assert green.capabilities.has("stream-ordered-memory") == (bindings is not None)


def test_a_device_that_cannot_be_split_says_so_in_the_drivers_words():
    class NoSMs:
        @property
        def sm(self):
            raise RuntimeError("CUDA_ERROR_NOT_SUPPORTED: no SM resource")

    device = SimpleNamespace(resources=NoSMs())
    facts = {"driver": (13, 0), "bindings": (13, 0), "scope": SCOPE, "idle": IdleContexts()}
    green = GreenContexts(core=CORE, device=device, make_stream=None, **facts)
    assert green.resource is None
    assert "no SM resource" in green.capabilities["green-contexts"].detail


def test_a_remainder_of_another_alignment_does_not_join_groups():
    sms = SMs(remainder_alignment=2)
    assert open_green(SMs()).resource.remainder_joins
    assert not open_green(sms).resource.remainder_joins


# Contexts that outlive their session


def test_what_one_session_gives_up_the_next_one_uses():
    idle = IdleContexts()
    spec, other = ContextSpec(groups=(0, 1)), ContextSpec(groups=(2,))
    first = open_green(SMs(), idle=idle).create(spec)
    context = first.context
    first.close()
    green = open_green(SMs(), idle=idle)
    assert green.create(other).context is not context
    again = green.create(spec)
    assert again.context is context
    assert not context.is_closed
    assert again.sm_count == 8
    assert green.create(spec).context is not context  # nobody shares one


def test_none_is_ever_destroyed_since_libraries_may_know_its_streams():
    idle = IdleContexts()
    green = open_green(SMs(), idle=idle)
    made = [green.create(ContextSpec(groups=(0,))) for _ in range(100)]
    for context in made * 2:  # closing twice is silent
        context.close()
    assert len(idle) == 100
    assert not any(context.context.is_closed for context in made)


def test_a_device_is_split_once_for_all_sessions():
    idle, first, second = IdleContexts(), SMs(structured=True), SMs(structured=True)
    spec = ContextSpec(split=(SplitGroup(sms=8), SplitGroup(sms=4)), place=1)
    one = open_green(first, driver=(13, 1), bindings=(13, 1), idle=idle)
    made = one.create(spec)
    other = open_green(second, driver=(13, 1), bindings=(13, 1), idle=idle)
    assert other.resource == one.resource
    assert other.create(spec).context.options.resources == made.context.options.resources
    assert not second.calls
