"""Green contexts: made once for each set of SMs, bounded in number, and closed whatever fails."""

from __future__ import annotations

import pytest

from gpustreamlab.analysis import PartitionOptions, plan_partitions, unenforced_layout
from gpustreamlab.backends import ContextSpec, SplitGroup
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.green import ContextCache, context_specs
from gpustreamlab.model import WorkqueueOptions


class FakeContext:
    """Notes when it is closed."""

    sm_count = 8

    def __init__(self, spec, closed):
        self.spec, self.closed = spec, closed

    def close(self):
        self.closed.append(self.spec.groups)


class FakeBackend:
    """Makes contexts and does nothing else."""

    def __init__(self):
        self.closed, self.made = [], []

    def create_context(self, spec):
        self.made.append(spec.groups)
        return FakeContext(spec, self.closed)


def spec(*groups, **more):
    return ContextSpec(groups=groups, **more)


@pytest.fixture
def backend():
    return FakeBackend()


def fill(cache, *numbers):
    for number in numbers:
        cache.get(spec(number))


def test_one_that_fails_to_close_does_not_keep_the_others(backend, monkeypatch):
    cache = ContextCache(backend)
    fill(cache, 0, 1, 2)
    monkeypatch.setattr(cache.get(spec(1)), "close", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cache.close()
    assert sorted(backend.closed) == [(0,), (2,)]
    cache.close()


def test_an_interrupted_close_goes_on_with_the_next(backend, monkeypatch):
    cache = ContextCache(backend)
    fill(cache, 0, 1)
    with monkeypatch.context() as patch:

        def interrupt(context):
            raise KeyboardInterrupt

        patch.setattr(FakeContext, "close", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cache.close()
    cache.close()
    assert sorted(backend.closed) == [(0,), (1,)]


# What contexts are made of


def test_the_whole_card_and_what_is_not_enforced_have_none():
    assert context_specs(None) == {}
    assert context_specs(unenforced_layout({"a": 8}, SimBackend("laptop").device)) == {}


def test_a_structured_layout_is_one_split():
    device, workqueue = SimBackend("h200-cuda13.1").device, WorkqueueOptions(concurrency_limit=2)
    layout = plan_partitions(
        {"a": PartitionOptions(sms=20, coscheduled_sms=4), "b": PartitionOptions(sms=10, backfill=True)},
        device,
        workqueue=workqueue,
    )
    split = (SplitGroup(sms=20, coscheduled_sms=4), SplitGroup(sms=10, backfill=True))
    assert context_specs(layout) == {
        "a": ContextSpec(split=split, place=0, workqueue=workqueue),
        "b": ContextSpec(split=split, place=1, workqueue=workqueue),
    }
