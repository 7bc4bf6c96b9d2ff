"""Clocks of engines, compared with the client's: against simulated clocks whose true time is known."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import gpustreamlab as gsl
from gpustreamlab import Trace
from gpustreamlab.cluster._clocks import POINT_LIMIT, Clocks
from gpustreamlab.errors import OptionError, TraceError
from gpustreamlab.model import ClockOffset
from tests.helpers import long_runs

SECOND_NS = 1_000_000_000


class Engine:
    """A clock with a drift that wanders, and the jumps that are asked for; it may be suspended, and then answers late."""

    def __init__(self, rng, seconds, *, ppm=20.0, wander_ppm=0.3, jumps=(), pauses=()):
        self.jumps, self.pauses, self.start_ns = jumps, pauses, int(rng.integers(0, 10**15))
        steps = int(seconds + 30) * 10
        drift = ppm * 1e-6 + np.cumsum(rng.normal(0, wander_ppm * 1e-6 * np.sqrt(0.1), steps))
        self.true_ns = np.arange(steps + 1) * SECOND_NS / 10
        self.ahead_ns = np.concatenate(([0], np.cumsum(drift * SECOND_NS / 10)))

    def read(self, true_ns):
        true_ns = np.asarray(true_ns, float)
        running = true_ns - sum((np.clip(true_ns - at, 0, length) for at, length in self.pauses), np.zeros(1))
        jumped = sum((np.where(true_ns >= at, by, 0) for at, by in self.jumps), np.zeros(1))
        return np.floor(running + np.interp(running, self.true_ns, self.ahead_ns) + jumped).astype(np.int64) + self.start_ns

    def awake_ns(self, true_ns):
        return next((at + length for at, length in self.pauses if at <= true_ns < at + length), true_ns)


def burst(rng, engine, start_ns, *, trip_us=(10, 10), jitter_us=5, tail=1.2, flips=False, count=4):
    """Pings one after the other: a least time there and back, and what comes on top has a heavy tail."""
    pings = []
    for _ in range(count):
        there, back = (us * 1e3 + min(rng.pareto(tail) * jitter_us * 1e3, 1e9) for us in trip_us)
        if flips and rng.random() < 0.5:
            there, back = back, there
        told_at = engine.awake_ns(start_ns + there)
        received_ns = int(np.ceil(engine.awake_ns(told_at + back)))
        pings.append((int(start_ns), int(engine.read(told_at)[0]), received_ns))
        start_ns = received_ns + 1_000
    return pings, start_ns


def follow(rng, engine, seconds, *, skip=0.0, **pings):
    clocks, told, now_ns, last_ns = Clocks("client"), [], rng.uniform(0, SECOND_NS), 0
    first_ns = now_ns
    while now_ns < seconds * SECOND_NS:
        last_ns = now_ns
        taken, end_ns = burst(rng, engine, now_ns, **pings)
        if rng.random() >= skip or not clocks:
            told.append(clocks.add("engine", taken))
        now_ns = max(now_ns + SECOND_NS, end_ns)
    return clocks["engine"], [jump for jump in told if jump], (first_ns, last_ns)


def errors(rng, engine, offset, seconds, from_ns=0):
    true_ns = rng.uniform(from_ns, (seconds + 3) * SECOND_NS, 500)
    for at, length in engine.pauses:  # nothing happens on an engine that is suspended
        true_ns = true_ns[(true_ns < at) | (true_ns > at + length)]
    shown_ns = engine.read(true_ns)
    return true_ns, abs(offset.shift(shown_ns) - true_ns), offset.error_at(shown_ns)


CASES = {
    "loopback": {},
    "the same clock": {"ppm": 0, "wander_ppm": 0},
    "100 ppm": {"ppm": 100},
    "-100 ppm": {"ppm": -100, "wander_ppm": 1},
    "wandering": {"wander_ppm": 5},
    "slow there": {"trip_us": (300, 10)},
    "slow back": {"trip_us": (10, 300), "wander_ppm": 3},
    "slow one way or the other": {"trip_us": (10, 200), "flips": True, "count": 1, "wander_ppm": 5},
    "heavy tails": {"jitter_us": 50, "tail": 0.8},
    "gaps": {"skip": 0.6, "wander_ppm": 1},
    "two bursts": {"seconds": 2, "ppm": 100},
    "one burst": {"seconds": 0.5, "ppm": 100},
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", CASES)
def test_the_true_error_never_exceeds_the_bound(name, seed):
    clock = dict(CASES[name])
    seconds = clock.pop("seconds", 20)
    drift = {key: clock.pop(key) for key in ("ppm", "wander_ppm") if key in clock}
    rng = np.random.default_rng([seed, list(CASES).index(name)])
    for _ in range(long_runs.count(20, 60)):
        engine = Engine(rng, seconds, **drift)
        offset, jumps, _ = follow(rng, engine, max(seconds, 1.01) if seconds != 0.5 else 1.01, **clock)
        assert not jumps
        _, error_ns, bound_ns = errors(rng, engine, offset, seconds)
        assert (error_ns <= bound_ns).all()


def test_on_loopback_with_20_ppm_of_drift_times_are_right_to_5_us_between_bursts_of_20():
    rng = np.random.default_rng(4)
    for _ in range(20):
        engine = Engine(rng, 12)
        offset, _, (first_ns, last_ns) = follow(rng, engine, 12, count=20)
        true_ns, error_ns, bound_ns = errors(rng, engine, offset, 12)
        between = (true_ns > first_ns) & (true_ns < last_ns)
        assert error_ns[between].max() < 5_000
        assert np.median(bound_ns[between]) < 20_000  # half of the round trip is 10 us and more


KINDS = {
    "ahead": lambda rng: rng.uniform(2e6, 5e9),
    "far ahead": lambda rng: rng.uniform(5e9, 8e12),
    "back": lambda rng: -rng.uniform(1.3e9, 1e12),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_side_of_a_jump_is_placed_by_its_own_bursts_and_the_jump_is_told(kind):
    rng = np.random.default_rng(list(KINDS).index(kind))
    for _ in range(60):
        moments = [rng.uniform(5, 10), rng.uniform(14, 20)][: rng.integers(1, 3)]
        engine = Engine(rng, 25, wander_ppm=1, jumps=[(at * SECOND_NS, KINDS[kind](rng)) for at in moments])
        offset, told, (first_ns, _) = follow(rng, engine, 25)
        assert [round(jump.by_ns / 1e6) for jump in told] == [pytest.approx(by / 1e6, abs=2) for _, by in engine.jumps]
        assert offset.jumps == tuple(told)
        true_ns, error_ns, bound_ns = errors(rng, engine, offset, 22, first_ns)
        assert (error_ns <= bound_ns + 1).all()  # 1 ns: the clock is read in whole ns, also where the bound is one of them
        if kind == "far ahead":  # then no time is in doubt
            away = np.all([abs(true_ns - at * SECOND_NS) > 1.1 * SECOND_NS for at in moments], axis=0) & (true_ns < 24e9)
            assert error_ns[away].max() < 50_000


def test_a_machine_that_was_suspended_is_in_doubt_between_two_bursts_only():
    rng = np.random.default_rng(3)
    for _ in range(60):
        at, length = rng.uniform(5e9, 10e9), rng.uniform(2e6, 6e9)
        engine = Engine(rng, 25, pauses=[(at, length)])
        offset, told, (first_ns, _) = follow(rng, engine, 25)
        assert [jump.by_ns for jump in told] == [pytest.approx(-length, abs=1e6)]
        true_ns, error_ns, bound_ns = errors(rng, engine, offset, 22, first_ns)
        assert (error_ns <= bound_ns + 1).all()
        away = (true_ns < at - 1.1e9) | ((true_ns > at + length + 1.1e9) & (true_ns < 23e9))
        assert error_ns[away].max() < 50_000


def test_a_long_run_needs_a_bounded_memory_and_the_bound_stays_true():
    rng = np.random.default_rng(5)
    seconds = 6_000
    engine, clocks = Engine(rng, seconds, wander_ppm=0.3), Clocks()
    moments_ns = np.arange(seconds) * SECOND_NS + rng.uniform(0, 1e6, seconds)
    there, back = (15_000 + rng.exponential(5_000, seconds) for _ in range(2))
    told = engine.read(moments_ns + there)
    received = np.ceil(moments_ns + there + back)
    for sent_ns, told_ns, received_ns in zip(moments_ns, told, received, strict=True):
        clocks.add(0, [(int(sent_ns), int(told_ns), int(received_ns))])
    assert POINT_LIMIT / 2 < len(clocks[0].at_ns) <= POINT_LIMIT + 2
    _, error_ns, bound_ns = errors(rng, engine, clocks[0], seconds - 10, SECOND_NS)
    assert (error_ns <= bound_ns).all()
    assert np.median(bound_ns) < 100_000


def test_the_best_ping_of_a_burst_counts_and_a_bad_burst_says_nothing():
    clocks = Clocks("client")
    for second, extra in enumerate((0, 0, 5_000_000, 0)):
        sent_ns = second * SECOND_NS
        clocks.add("a", [(sent_ns, sent_ns + 10_000 + extra, sent_ns + 20_000 + extra), (sent_ns, 0, sent_ns + 10**8)])
    assert clocks["a"].shift(np.array([2 * SECOND_NS])).tolist() == [2 * SECOND_NS]
    assert clocks["a"].reference == "client"
    assert (list(clocks), len(clocks), clocks["a"].jumps) == (["a"], 1, ())


def test_what_is_no_burst_is_refused():
    clocks = Clocks()
    for pings in ([], [(5, 1, 4)]):
        with pytest.raises(OptionError, match="received_ns is the latest"):
            clocks.add(0, pings)
    with pytest.raises(KeyError):
        clocks[0]


@pytest.mark.parametrize("columns", [((), (), ()), ((1, 1), (0, 0), (0, 0)), ((1, 2), (0,), (0, 0))])
def test_an_offset_that_does_not_hold_together_is_refused(columns):
    with pytest.raises(TraceError, match="ClockOffset"):
        ClockOffset(reference="client", at_ns=columns[0], ahead_ns=columns[1], error_ns=columns[2])


def recorded(start_ns, *, process=0, **metadata):
    """A trace of one stream of a process."""
    start_ns = np.asarray(start_ns)
    trace = Trace.from_columns(start_ns=start_ns, end_ns=start_ns + 1_000, stream=["work"] * len(start_ns), sm_count=4)
    lanes = tuple(replace(lane, name=f"engine {process}:{lane.name}", process=process) for lane in trace.lanes)
    return replace(trace, lanes=lanes, metadata=replace(trace.metadata, **metadata))


def of_two_engines(seconds=20, *, jumps=()):
    rng = np.random.default_rng(11)
    engines = Engine(rng, seconds, ppm=100), Engine(rng, seconds, ppm=-100, jumps=jumps)
    clocks = Clocks("client")
    for second in range(seconds):
        for place, engine in enumerate(engines):
            clocks.add(place, burst(rng, engine, second * SECOND_NS + place * 10_000_000)[0])
    true_ns = np.linspace(1, seconds - 2, 200) * SECOND_NS
    return clocks, true_ns, [recorded(engine.read(true_ns), process=place) for place, engine in enumerate(engines)]


def starts_of(trace, process):
    lanes = [code for code, lane in enumerate(trace.lanes) if lane.process == process]
    return trace.start_ns[np.isin(trace.lane, lanes)]


def test_traces_of_engines_are_merged_within_their_stated_error():
    clocks, true_ns, traces = of_two_engines()
    both = gsl.merge(traces, clocks=clocks)
    apart_ns = abs(starts_of(both, 0) - starts_of(both, 1))
    assert apart_ns.max() <= both.metadata.clock_error_ns < 100_000
    assert "compared by messages" in both.metadata.clock
    assert both.metadata.missing == ()
    lengths_ns = np.diff(starts_of(both, 0))
    assert abs(lengths_ns - np.diff(true_ns)).max() <= both.metadata.clock_error_ns


def test_files_of_engines_keep_how_their_clocks_were_compared(tmp_path):
    clocks, _, traces = of_two_engines()
    for place, trace in enumerate(traces):
        kept = replace(trace, metadata=replace(trace.metadata, clock_offset=clocks[place]))
        kept.save(tmp_path / f"{place}.parquet")
    read = [gsl.load_trace(tmp_path / f"{place}.parquet") for place in range(2)]
    both = gsl.merge(read)
    assert pa.table(both).equals(pa.table(gsl.merge(traces, clocks=[clocks[0], clocks[1]])))
    again = gsl.merge([both, read[1]])  # what was merged is on the same reference
    assert abs(np.sort(starts_of(again, 1))[::2] - np.sort(starts_of(again, 1))[1::2]).max() <= 2


def test_a_jump_of_a_clock_is_told_in_what_is_merged():
    clocks, true_ns, traces = of_two_engines(jumps=[(7.5 * SECOND_NS, 0.2 * SECOND_NS)])
    both = gsl.merge(traces, clocks=clocks)
    assert [text for text in both.metadata.missing if "The clock of trace 1 jumped by +0.200 s" in text]
    assert both.metadata.clock_error_ns < 200_000
    away = abs(true_ns - 7.5 * SECOND_NS) > 1.2 * SECOND_NS
    assert abs(np.sort(starts_of(both, 0)) - np.sort(starts_of(both, 1)))[away].max() <= both.metadata.clock_error_ns


def test_an_end_that_a_jump_would_take_before_its_start_is_its_start():
    offset = ClockOffset(reference="client", at_ns=(0, 499, 500, 9_999), ahead_ns=(0, 0, -10_000, -10_000), error_ns=(1,) * 4)
    both = gsl.merge([recorded([100]), recorded([450], process=1)], clocks=[offset, offset])
    assert (both.end_ns >= both.start_ns).all()


KNOWN = {"host": "abc", "epoch_unix_ns": 10**18}


def test_the_wall_clock_of_one_machine_places_traces_and_that_is_told():
    late = {**KNOWN, "epoch_unix_ns": 10**18 + 500}
    both = gsl.merge([recorded([0], host_error_ns=3, **KNOWN), recorded([0], process=1, host_error_ns=4, **late)])
    assert both.start_ns.tolist() == [0, 500]
    assert (both.metadata.host, both.metadata.clock_error_ns) == ("abc", 7)
    assert "wall clock of their machine" in both.metadata.clock


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({**KNOWN, "host": "other"}, "different machines"),
        ({**KNOWN, "host": ""}, "trace 1 does not tell where"),
        ({"host": "abc"}, "trace 1 does not tell where or when"),
    ],
)
def test_traces_whose_clocks_were_not_compared_are_refused_with_what_to_do(second, reason):
    traces = [recorded([0], **KNOWN), recorded([0], process=1, **second)]
    with pytest.raises(TraceError, match=rf"{reason}.*gsl\.Cluster.*ahead_ns=\[0, 1_500\]") as caught:
        gsl.merge(traces)
    assert ("epoch_unix_ns" in str(caught.value)) == ("epoch_unix_ns" in second)  # a wall clock of 0 is none to trust
    assert len(gsl.merge(traces, ahead_ns=[0, 7])) == 2


def test_offsets_from_different_references_are_refused():
    offsets = [ClockOffset(reference=name, at_ns=(0,), ahead_ns=(0,), error_ns=(0,)) for name in ("one", "other")]
    with pytest.raises(OptionError, match="different references"):
        gsl.merge([recorded([0]), recorded([0], process=1)], clocks=offsets)
    with pytest.raises(OptionError, match="one number for each"):
        gsl.merge([recorded([0])], clocks=offsets)
