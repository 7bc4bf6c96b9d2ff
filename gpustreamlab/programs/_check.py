"""A plan as one CUDA graph; and whether it gives what one stream gives, and how fast, on copies of the same inputs."""

from __future__ import annotations

import io
import random
import statistics
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gpustreamlab._util.arrays import find_arrays, is_array
from gpustreamlab.analysis import Hazards, overlap
from gpustreamlab.analysis._report import Report, Reported, ReportTable
from gpustreamlab.analysis._scale import count_text, format_ns, format_share
from gpustreamlab.backends import Backend, BackendGraph, BackendStream
from gpustreamlab.errors import GraphCaptureError, OptionError, ProgramError
from gpustreamlab.memory.hazards import AccessWatch
from gpustreamlab.model import SPAN_KINDS, Trace
from gpustreamlab.programs._calls import TorchAccesses, watching_torch
from gpustreamlab.programs._code import Code, Statements, probed, watching
from gpustreamlab.programs._record import tracked
from gpustreamlab.programs._source import short_text
from gpustreamlab.programs._values import copied_inputs, rebound
from gpustreamlab.typing import SpanKind

if TYPE_CHECKING:
    from gpustreamlab.programs._plan import Plan

MOST_REPEATS = 10_000
SPACINGS = 1_000  # How many spacings of a type results may be apart that differ from run to run on one stream, too
MOST_DEPTH = 8  # How deep in containers and objects values are compared
_CODE = (types.ModuleType, types.FunctionType, types.MethodType)


_PROBE = "__gpustreamlab_node__"


class Replay:
    """A program that was captured into one CUDA graph. Made by `Plan.capture`.

    Its results are the same arrays after each launch, computed anew; inputs are read where they were as it was captured: change
    their values in place. Statements of the host alone ran once, as it was captured.

    Parameters
    ----------
    program
        The program.
    code
        What is captured; without ranges.
    home
        The stream in which it begins and ends.
    values
        The variables that it is captured on; it binds its results in a copy.
    """

    def __init__(self, program: Statements, code: Code, home: str, values: Mapping[str, Any]) -> None:
        self._program = program
        self._code = code
        self._home = home
        self._values = rebound(values)
        self._graph = self._capture()

    def __repr__(self) -> str:
        count = count_text(len(self._program.source.statements), "statement")
        return f"<Replay: {count}, {count_text(self.node_count, 'kernel, copy or fill', 'kernels, copies and fills')}>"

    @property
    def code(self) -> str:
        """The Python that was captured."""
        return self._code.text

    @property
    def node_count(self) -> int:
        """Kernels, copies and fills that one launch runs."""
        return self._graph.node_count

    @property
    def results(self) -> dict[str, Any]:
        """The variables that the program binds; their arrays hold what the last launch computes."""
        names = dict.fromkeys(name for one in self._program.source.statements for name in sorted(one.writes))
        return {name: self._values[name] for name in names if name in self._values}

    def launch(self) -> dict[str, Any]:
        """Launch it in its stream, with one call; return its `results`. Nothing waits for the device."""
        with self._program.lab.on(self._home, "replay"):
            self._graph.launch(self._place)
        return self.results

    def close(self) -> None:
        """Let go of the graph and of the memory of its results. Idempotent."""
        self._graph.close()
        self._values.clear()

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def _place(self) -> BackendStream:
        return self._program.lab._table.choose(self._home)._backend_stream

    def _capture(self) -> BackendGraph:
        """Run the program while its streams are captured, and make the graph."""
        __tracebackhide__ = True
        program = self._program
        labels: list[tuple[int, str]] = []
        line = [program.source.statements[0].line]
        capture = program.backend.begin_graph(self._place)

        def note(number: int) -> None:
            count = capture.node_count
            one = program.source.statements[number]
            if count > (labels[-1][0] if labels else 0):
                labels.append((count, one.label))
            following = program.source.statements[number + 1 : number + 2]
            line[0] = following[0].line if following else one.line

        try:
            program.execute(probed(self._code, program.source, _PROBE), self._values, {_PROBE: note})
        except Exception as error:
            capture.abandon()
            known_error = program.backend.map_error(error, "Capturing it")
            if isinstance(known_error, GraphCaptureError):
                why = f"The program cannot be replayed as a CUDA graph, for line {line[0]}: {known_error}"
                raise ProgramError(why) from error
            raise
        except BaseException:
            capture.abandon()
            raise
        graph = capture.instantiate()
        firsts = [0, *(count for count, _ in labels)][: len(labels)]  # none where nothing was launched
        named = [(first, label) for first, (_, label) in zip(firsts, labels, strict=True)]
        program.lab._recorder.kernels.name_graph(graph.id, named)
        return graph


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Check(Reported):
    """Whether a plan gives what one stream gives. False where it does not, or where data crosses streams without an order."""

    equal: tuple[str, ...]
    """Variables that are equal, their arrays bit for bit."""
    close: tuple[str, ...]
    """Variables that differ from run to run on one stream, too, and are within the tolerance."""
    different: tuple[str, ...]
    """Variables that differ, and do not on one stream."""
    random: tuple[str, ...]
    """Variables that differ from run to run on one stream by more than the tolerance: nothing can be said of them."""
    first_differing: str
    """The statement that binds the first variable that is not equal; empty for none."""
    hazards: Hazards
    """Data that crossed streams without an order in the planned run."""

    _columns: ClassVar = ()

    def __len__(self) -> int:
        return int(not self.different and not self.hazards.hazard_count)

    def _line(self) -> str:
        is_one = len(self.equal) == 1
        equal = "is equal to that" if is_one else "are equal to those"
        parts = [f"{count_text(len(self.equal), 'variable')} {equal} of one stream, bit for bit"]
        if self.different:
            parts.insert(0, f"DIFFERENT from one stream: {', '.join(self.different)}; first by {self.first_differing}")
        if self.close:
            parts.append(
                f"{', '.join(self.close)} within the tolerance, and not the same on one stream either: {self.first_differing}"
            )
        if self.random:
            parts.append(f"{', '.join(self.random)} differ from run to run on one stream, so nothing can be said")
        return f"{'; '.join(parts)}; {_hazard_line(self.hazards)}"

    def _report(self) -> Report:
        return Report(title="Check:", line=self._line())


def _hazard_line(hazards: Hazards) -> str:
    accesses = count_text(hazards.access_count, "access", "accesses")
    return f"{hazards.hazard_count or 'no'} hazard{'' if hazards.hazard_count == 1 else 's'} in {accesses}"


def check_plan(plan: Plan, tolerance: float | None) -> Check:
    """Run a plan and one stream on the same inputs; see `Plan.check`."""
    __tracebackhide__ = True
    if tolerance is not None and not tolerance >= 0:
        raise OptionError(f"tolerance is {tolerance!r}; give a share of the largest value, such as 1e-6, or None.")
    one = plan._one_code
    expected = _run_on_copy(plan, one, None)
    found = _run_on_copy(plan, plan._code, None)
    with watching(plan._program.lab) as watch:
        hazards, watched = _watched_run(plan, watch)
    # What is watched runs a little slower, so that both runs are compared.
    differing = [
        name for name in expected if not (_same(expected[name], found.get(name)) and _same(expected[name], watched.get(name)))
    ]
    again = _run_on_copy(plan, one, None) if differing else {}
    kinds = {name: _kind(expected[name], found.get(name), again.get(name), tolerance) for name in differing}
    by_kind = {kind: tuple(name for name in differing if kinds[name] == kind) for kind in ("different", "close", "random")}
    return Check(
        equal=tuple(name for name in expected if name not in kinds),
        **by_kind,
        first_differing=_binder_of(plan, by_kind["different"] or by_kind["close"]),
        hazards=hazards,
    )


def _watched_run(plan: Plan, watch: AccessWatch) -> tuple[Hazards, dict[str, Any]]:
    """Run a plan while accesses are watched; return the hazards that it brought, and its results."""
    before = watch.check({})
    # What torch orders by streams and events of its own is not seen, so that its tensors are not followed then.
    has_barriers = any(work.barrier for work in plan._recording.works)
    with nullcontext() if has_barriers else watching_torch(TorchAccesses(watch).note, bool):
        found = _run_on_copy(plan, plan._code, watch)
    after = watch.check(found)
    known = {(one.kind, one.first, one.second): one.hazard_count for one in before.hazards}
    new = []
    for one in after.hazards:
        count = one.hazard_count - known.get((one.kind, one.first, one.second), 0)
        if count:
            new.append(replace(one, hazard_count=count))
    fields = ("unlisted_count", "let_go_count", "access_count", "array_count", "wait_count")
    since = {name: getattr(after, name) - getattr(before, name) for name in fields}
    return replace(after, hazards=tuple(new), **since), found


def _kind(expected: Any, found: Any, again: Any, tolerance: float | None) -> str:
    if _same(expected, again):
        return "different"
    if not _near(expected, again, tolerance):
        return "random"
    return "close" if _near(expected, found, tolerance) else "different"


def _binder_of(plan: Plan, names: Sequence[str]) -> str:
    for one in plan._program.source.statements:
        if one.writes & set(names):
            return f"line {one.line}, {short_text(one.text)}"
    return "one that changes it in place" if names else ""


def _run_on_copy(plan: Plan, code: Code, watch: AccessWatch | None) -> dict[str, Any]:
    """Run code on a copy of the inputs; return what its variables hold, on the host."""
    __tracebackhide__ = True
    lab = plan._program.lab
    values = _copies(plan)
    with (
        nullcontext() if watch is None else tracked(plan._program, values, watch),
        kept_random_state(plan._program.backend),
    ):
        plan._program.execute(code, values)
        lab.synchronize()
    names = dict.fromkeys(name for one in plan._program.source.statements for name in sorted(one.reads | one.writes))
    return {name: _on_host(values[name]) for name in names if name in values}


def _copies(plan: Plan) -> dict[str, Any]:
    """Return variables with copies of the inputs, made in the stream in which the plan begins."""
    with plan._program.lab.select(plan.streams[0]):
        values, shared = copied_inputs(plan._program)
    plan._program.lab.synchronize()
    if shared:
        kind = type(values[shared[0]])
        raise ProgramError(
            f"{shared[0]!r}, a {kind.__module__}.{kind.__qualname__}, cannot be copied, so the program cannot run again on a "
            "copy of it, as a check or a comparison does. Leave it out of the program, or measure what plan.run() does."
        )
    return values


def _on_host(value: Any, depth: int = 0) -> Any:
    """Return a value with its arrays as NumPy's; attributes of objects as a dictionary, what lies too deep as None."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if is_array(value):
        return value.get() if hasattr(value, "get") else _tensor_on_host(value)
    held = getattr(value, "__dict__", None)
    is_object = isinstance(held, dict) and not isinstance(value, (type, *_CODE)) and next(find_arrays(value), None) is not None
    parts = value if isinstance(value, (list, tuple, Mapping)) else held if is_object else None
    if parts is None or depth >= MOST_DEPTH:
        return value if parts is None else None
    if isinstance(parts, Mapping):
        return {key: _on_host(one, depth + 1) for key, one in parts.items()}
    return [_on_host(one, depth + 1) for one in parts]


def _tensor_on_host(tensor: Any) -> Any:
    """Return a tensor as NumPy's array; of a type that NumPy has not, such as bfloat16, its bytes."""
    host = tensor.detach().cpu()
    try:
        return host.numpy()
    except TypeError:
        return host.reshape(-1).view(sys.modules["torch"].uint8).numpy()


def _same(first: Any, second: Any) -> bool:
    """Tell whether two values are equal, bit for bit where they are arrays; what cannot be compared counts as equal."""
    if isinstance(first, np.ndarray):
        is_alike = isinstance(second, np.ndarray) and (first.shape, first.dtype) == (second.shape, second.dtype)
        return is_alike and first.tobytes() == second.tobytes()
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_same, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_same(first[key], second[key]) for key in first)
    if isinstance(first, (int, float, complex, str, bytes, np.generic)):
        return type(first) is type(second) and repr(first) == repr(second)
    return True


def _near(first: Any, second: Any, tolerance: float | None) -> bool:
    """Tell whether numbers are as near as the tolerance says."""
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(_near(one, other, tolerance) for one, other in zip(first, second, strict=True))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_near(first[key], second[key], tolerance) for key in first)
    try:
        one, other = np.asarray(first), np.asarray(second)
        if one.shape != other.shape or one.dtype.kind not in "fc":
            return bool(np.array_equal(one, other))
        share = SPACINGS * float(np.finfo(one.dtype).eps) if tolerance is None else tolerance
        largest = float(np.max(np.abs(one), initial=0.0))
        return bool(np.all(np.abs(one - other) <= share * largest))
    except (TypeError, ValueError):
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one way of running a program took; medians of several runs."""

    how: str
    """``"one stream"``, ``"planned"`` or ``"replayed"``."""
    wall_ns: int
    """From the first call to the end of the last work, in ns."""
    host_ns: int
    """For how long the host was busy with calls, in ns."""
    launch_count: int | None
    """Kernels, copies and fills that were launched one by one, or graphs; None where kernels are not captured."""
    together_share: float | None
    """For which share of the time that anything ran two or more streams worked at once; None as above."""
    wall_ns_all: tuple[int, ...]
    """The wall time of each run."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class PlanComparison(Reported):
    """One program run in several ways, in turns, on copies of the same inputs."""

    runs: tuple[Run, ...]
    """One stream comes first, then the plan, then the graph, if it can be captured."""
    why_not_replayed: str
    """Why it cannot be captured into a CUDA graph; empty if it can."""
    repeats: int
    """How often each was run."""
    simulated: bool
    """Whether no hardware stands behind it."""

    _columns: ClassVar = ()

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def speedup(self) -> float:
        """How many times as fast as one stream the plan was: the ratio of the medians of the wall times."""
        return self.runs[0].wall_ns / max(self.runs[1].wall_ns, 1)

    def _line(self) -> str:
        one, planned = self.runs[0], self.runs[1]
        return (
            f"planned {format_ns(planned.wall_ns)}, on one stream {format_ns(one.wall_ns)}: {self.speedup:.2f} times as fast "
            f"(medians of {self.repeats} runs in turns)"
        )

    def _report(self) -> Report:
        rows = [["", "wall", "from", "to", "host", "launches", "2 or more at once"]]
        for run in self.runs:
            walls = sorted(run.wall_ns_all)
            launches = "not captured" if run.launch_count is None else f"{run.launch_count:,}"
            share = "not captured" if run.together_share is None else format_share(run.together_share)
            rows.append(
                [
                    run.how,
                    format_ns(run.wall_ns),
                    format_ns(walls[0]),
                    format_ns(walls[-1]),
                    format_ns(run.host_ns),
                    launches,
                    share,
                ]
            )
        notes = ["Wall: from the first call of the host to the end of the last work on the device. Host: the time in calls."]
        if self.why_not_replayed:
            notes.append(self.why_not_replayed)
        else:
            notes.append("Replayed: launched as one CUDA graph, whose making is not counted.")
        if self.simulated:
            notes.append("Simulated: times are modelled, and no hardware stands behind them.")
        table = ReportTable(caption="One program, run in turns", rows=rows, has_row_heads=True)
        return Report(title="Comparison:", line=self._line(), tables=(table,), notes=tuple(notes))


_Measured = tuple[int, int, int | None, float | None]


def compare_plan(plan: Plan, repeats: int) -> PlanComparison:
    """Measure a plan beside one stream; see `Plan.compare`."""
    __tracebackhide__ = True
    if not 1 <= repeats <= MOST_REPEATS:
        raise OptionError(f"repeats is {repeats!r}; give how often to run each, for example plan.compare(repeats=5).")
    codes = {"one stream": plan._one_code, "planned": plan._code}
    taken: dict[str, list[_Measured]] = {how: [] for how in codes}
    for turn in range(repeats + 1):
        for how, code in codes.items():
            measured = _measure(plan, code)
            if turn:  # the first turn warms up
                taken[how].append(measured)
    why_not = _replays(plan, repeats, taken)
    runs = tuple(_median_run(how, one) for how, one in taken.items())
    simulated = plan._program.lab.device.simulated
    return PlanComparison(runs=runs, why_not_replayed=why_not, repeats=repeats, simulated=simulated)


def _replays(plan: Plan, repeats: int, taken: dict[str, list[_Measured]]) -> str:
    """Measure launches of the program as a graph; return why it cannot be captured."""
    values = _copies(plan)
    try:
        replay = Replay(plan._program, plan._graph_code, plan.streams[0], values)
    except ProgramError as error:
        return str(error)
    with replay:
        for turn in range(repeats + 1):
            measured = _measured(plan, replay.launch)
            if turn:
                taken.setdefault("replayed", []).append(measured)
    return ""


def _median_run(how: str, taken: Sequence[_Measured]) -> Run:
    walls, hosts, launches, shares = zip(*taken, strict=True)
    known = [share for share in shares if share is not None]
    return Run(
        how=how,
        wall_ns=int(statistics.median(walls)),
        host_ns=int(statistics.median(hosts)),
        launch_count=launches[-1],
        together_share=statistics.median(known) if known else None,
        wall_ns_all=tuple(walls),
    )


def _measure(plan: Plan, code: Code) -> _Measured:
    """Run code once on a copy of the inputs; return its wall and host time in ns, its launches, and its overlap."""
    __tracebackhide__ = True
    values = _copies(plan)
    with kept_random_state(plan._program.backend):
        return _measured(plan, lambda: plan._program.execute(code, values))


def _measured(plan: Plan, run: Callable[[], object]) -> _Measured:
    """Run something; return its wall and host time in ns, its launches, and its overlap."""
    __tracebackhide__ = True
    lab, backend = plan._program.lab, plan._program.backend
    began_ns = backend.host_time_ns()
    run()
    called_ns = backend.host_time_ns()
    lab.synchronize()
    ended_ns = backend.host_time_ns()
    since_ns = backend.host_to_clock_ns(began_ns)
    return ended_ns - began_ns, called_ns - began_ns, *_overlap_since(lab.trace, since_ns)


def _overlap_since(trace: Trace, since_ns: int) -> tuple[int | None, float | None]:
    codes = [SPAN_KINDS.index(kind) for kind in (SpanKind.KERNEL, SpanKind.COPY, SpanKind.FILL)]
    is_work = np.isin(trace.kind, codes) & (trace.start_ns >= since_ns)
    if not is_work.any():
        return None, None
    found = overlap(trace[is_work])
    return int(is_work.sum()), int(found.concurrency_ns[2:].sum()) / max(found.active_ns, 1)


@contextmanager
def kept_random_state(backend: Backend) -> Iterator[None]:
    """Put the global generators back at the end of a ``with`` block: Python's, NumPy's, the array module's and torch's.

    A generator that a variable holds is copied with the program's other inputs.
    """
    plain, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 - the user's may be this one
    torch: Any = sys.modules.get("torch")
    torch_state = None if torch is None else torch.get_rng_state()
    device_states = torch.cuda.get_rng_state_all() if torch is not None and torch.cuda.is_initialized() else None
    try:
        with backend.keeping_random_state():
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(numpy_state)  # noqa: NPY002 - likewise
        if torch is not None:
            torch.set_rng_state(torch_state)
        if device_states is not None:
            torch.cuda.set_rng_state_all(device_states)


@contextmanager
def kept_back() -> Iterator[None]:
    """Keep back what is printed, warned of and displayed in a ``with`` block."""
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())  # behind it, each warning counts as not shown yet
        if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
            from IPython.utils.capture import capture_output

            stack.enter_context(capture_output(stdout=False, stderr=False))
        stack.enter_context(redirect_stdout(io.StringIO()))
        stack.enter_context(redirect_stderr(io.StringIO()))
        yield
