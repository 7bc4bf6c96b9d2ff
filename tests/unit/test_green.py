"""Green contexts: made once for each set of SMs, bounded in number, and closed whatever fails."""

from __future__ import annotations

import pytest

from gpustreamlab.analysis import PartitionOptions, plan_partitions, unenforced_layout
from gpustreamlab.backends import ContextSpec, SplitGroup
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.errors import DeviceError, OptionError
from gpustreamlab.green import ContextCache, SMMap, context_specs
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


def test_equal_specs_share_one_context(backend):
    cache = ContextCache(backend)
    assert cache.get(spec(0, 1)) is cache.get(spec(0, 1))
    assert cache.get(spec(0, 1)) is not cache.get(spec(0))
    assert cache.get(spec(0, 1)) is not cache.get(spec(0, 1, workqueue=WorkqueueOptions()))
    assert (len(cache), cache.created_count, len(backend.made)) == (3, 3, 3)
    assert spec(0) in cache
    assert spec(2) not in cache


def test_the_one_used_least_recently_goes_first(backend, caplog):
    cache, before = ContextCache(backend, 2), []
    fill(cache, 0, 1, 2, 0, 3)
    cache.trim((), before.append)
    assert backend.closed == [(1,), (2,)]
    assert before == [spec(1), spec(2)]
    assert caplog.text.count("More than 2 green contexts") == 1  # once is enough
    assert "context_limit" in caplog.text


def test_what_is_in_use_stays(backend):
    cache = ContextCache(backend, 1)
    fill(cache, 0, 1, 2)
    cache.trim({spec(0), spec(2)}, lambda gone: None)
    assert backend.closed == [(1,)]
    assert len(cache) == 2  # more than the limit, until they are left
    cache.trim((), lambda gone: None)
    assert backend.closed == [(1,), (0,)]


def test_nothing_goes_below_the_limit(backend, caplog):
    cache = ContextCache(backend, 3)
    fill(cache, 0, 1, 2)
    cache.trim((), lambda gone: None)
    assert backend.closed == []
    assert caplog.text == ""


def test_a_context_is_made_anew_after_it_went(backend):
    cache = ContextCache(backend, 1)
    fill(cache, 0, 1)
    cache.trim((), lambda gone: None)
    fill(cache, 0)
    assert (cache.created_count, backend.made) == (3, [(0,), (1,), (0,)])


def test_a_context_that_is_refused_is_not_kept(backend, monkeypatch):
    cache = ContextCache(backend)

    def refuse(wanted):
        raise DeviceError("no memory left")

    monkeypatch.setattr(backend, "create_context", refuse)
    with pytest.raises(DeviceError, match="no memory left"):
        cache.get(spec(0))
    assert (len(cache), cache.created_count) == (0, 0)


def test_closing_closes_all_once(backend):
    cache = ContextCache(backend)
    fill(cache, 0, 1)
    cache.close()
    cache.close()
    assert sorted(backend.closed) == [(0,), (1,)]
    assert len(cache) == 0


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


@pytest.mark.parametrize("limit", [0, -3, True, None, 2.0, "64"])
def test_the_limit_is_a_count(backend, limit):
    with pytest.raises(OptionError, match=r"context_limit is .*Session\(context_limit=64\)"):
        ContextCache(backend, limit)


# What contexts are made of


def test_partitions_of_groups_are_contexts_of_groups():
    layout = plan_partitions({"a": 96, "b": "rest"}, SimBackend().device)
    assert context_specs(layout) == {"a": spec(*range(12)), "b": spec(12, 13, 14, 15)}


def test_the_same_groups_under_other_names_are_the_same_context():
    device = SimBackend().device
    first = context_specs(plan_partitions({"a": 96, "b": 32}, device))
    second = context_specs(plan_partitions({"c": 100, "d": 31}, device))
    assert list(first.values()) == list(second.values())


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


# The map


def test_a_map_is_a_picture_with_words_for_those_who_cannot_see_it():
    device = SimBackend().device
    drawn = SMMap(device, plan_partitions({"a": 96, "b": "rest"}, device))
    assert repr(drawn) == "<SMMap of H200 (simulated), 2 partitions>"
    assert "a" in str(drawn)
    assert drawn._repr_svg_().startswith("<svg")
    assert "role='img'" in drawn._repr_html_()
    assert repr(SMMap(device, None)).endswith("0 partitions>")
