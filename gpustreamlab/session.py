"""The session: owns every stream, event and clock, and the recorder that watches them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from types import EllipsisType, MappingProxyType, TracebackType
from typing import Any, ClassVar, Never, Self, TypeVar

from gpustreamlab._util.defences import ProcessBound
from gpustreamlab._util.shell import tell_fallback
from gpustreamlab.analysis import Explanation, Share, tagged_name
from gpustreamlab.backends import Backend, choose_backend
from gpustreamlab.bench import Bench
from gpustreamlab.errors import CloseError, OptionError, PartitionError, PartitionNotFoundError, SessionError
from gpustreamlab.green import ContextCache
from gpustreamlab.groups import Expect, Memory, PartitionTools, Recorded, Recording
from gpustreamlab.improve import Improvement, improve
from gpustreamlab.memory.hazards import check_hazard_mode, watch_accesses
from gpustreamlab.memory.lifetimes import Keeper, call_on
from gpustreamlab.model import Device, Layout, WorkqueueOptions, without_tools
from gpustreamlab.notebook.views import WATCHED_GUESSES, LiveViews, Watched
from gpustreamlab.programs import Program, make_program
from gpustreamlab.recorder import DEFAULT_RING_SIZE, Range, Recorder
from gpustreamlab.recorder.capture import Capture, CaptureControl, check_host, read_tier
from gpustreamlab.recorder.counters import CounterBlock, start_counters
from gpustreamlab.sinks._spool_format import DEFAULT_LIMIT_BYTES, open_spool_file
from gpustreamlab.sinks.spool import Spool
from gpustreamlab.streams.layout import Partitions, read_plan, read_renamed
from gpustreamlab.streams.life import (
    SessionLife,
    close_session,
    facts_table,
    note_open,
    session_facts,
)
from gpustreamlab.streams.selection import Selection, Selections
from gpustreamlab.streams.stream import Event, Stream, StreamParts, check_label
from gpustreamlab.streams.table import StreamTable
from gpustreamlab.trace import Trace, as_trace
from gpustreamlab.typing import CaptureTier, HazardMode, Rounding, SessionState, SupportsCudaStream

__all__ = ["Session"]

T = TypeVar("T")


class Session(ProcessBound, Watched):
    """Streams of one device, and the record of what ran in them.

    Parameters
    ----------
    backend
        ``"cuda"``, ``"sim"``, a backend object, or None: the GPU if there is one, else the simulated device. A session always
        says which it uses. A backend object stays its owner's: the session does not close it.
    device, title
        The CUDA device number; a name for traces and timelines.
    ring_size
        How many finished ranges are kept, 104 bytes each; the oldest make room and are counted.
    spool, spool_limit_bytes
        A new file to which what is recorded is appended 5 times a second, so that a run that dies can be read with
        `gpustreamlab.load_trace`; True chooses a name in the current folder. How large it may become; a span takes 15 bytes.
    hazards
        What to do about data that crosses streams without an order: ``"report"`` (see `Memory.hazards`), ``"wait"`` (put the
        missing wait in), ``"off"``, or None: report on the simulated device, off on a GPU, where `xp` is CuPy itself then. On
        a GPU the work of all libraries is looked at, from the driver's calls, while kernels are captured.
    capture, host
        What `capture` takes, from the start: ``"auto"``, every kernel, copy and fill where that works, with the calls of the
        host (what it costs: docs/how-to/see-every-kernel.md); ``"kernels"``, which says why it does not; or ``"ranges"``.
    counters
        Whether the trace's counters say how busy the card was: its SMs, tensor cores, memory, PCIe and NVLink, some 10 times a
        second by NVML's GPU performance monitoring, with power and clocks; see docs/how-to/see-how-busy-the-card-was.md.
        ``"auto"``: on a GPU, where that can be had. The simulated device counts by its model, where True asks for it.

    Raises
    ------
    BackendNotFoundError, DeviceNotFoundError, BackendUnavailableError, OptionError
        If there is no such backend or device, ``"cuda"`` cannot run here, a size is below 1, or an option is wrong.
    CaptureUnavailableError, MissingExtraError, TraceFileError
        If ``capture="kernels"`` cannot be had here, see `capture`; if the spool cannot be written, or holds something already.

    Examples
    --------
    >>> with Session("sim") as lab:
    ...     copy, compute = lab.stream("copy"), lab.stream("compute", priority=-1)
    ...     with lab.on("copy", "upload"):
    ...         a = lab.xp.asarray([[1.0, 2.0], [3.0, 4.0]])
    ...     compute.wait(copy)
    ...     with lab.on("compute", "gemm"):
    ...         b = a @ a
    ...     lab.synchronize()
    ...     trace = lab.trace.where(stream=["copy", "compute"])
    ...     [trace.names[code] for code in trace.name], b.get().tolist()
    (['upload', 'memcpy HtoD', 'gemm', 'matmul'], [[7.0, 10.0], [15.0, 22.0]])
    """

    _homes: ClassVar = {
        "lab.trace.": Trace,
        "lab.memory.": Memory,
        "lab.partitions.": PartitionTools,
        "lab.bench.": Bench,
        "lab.recording.": Recording,
    }
    _guesses: ClassVar = WATCHED_GUESSES | {
        "lab.memory.hazards()": "race races find_race find_races check_races",
        "lab.improve(f)": "optimize optimise speed_up",
        "lab.bench.measure(f)": "time benchmark",
        "lab.program(text).plan()": "plan",
        "lab.record(), and what runs in its block is recorded": "profile start stop",
        "lab.event()": "Event create_event",
        "lab.range('label')": "label annotate nvtx name",
        "lab.partition(prefill=96, decode='rest'), or lab.partition(None)": "split repartition unpartition green_context",
        "lab.device.sm_count": "sms sm_count",
        "lab.xp": "cp np cupy array empty zeros ones",
    }

    def __init__(
        self,
        backend: str | Backend | None = None,
        *,
        device: int = 0,
        ring_size: int = DEFAULT_RING_SIZE,
        title: str = "",
        spool: str | PathLike[str] | bool | None = None,
        spool_limit_bytes: int = DEFAULT_LIMIT_BYTES,
        hazards: HazardMode | str | None = None,
        capture: CaptureTier | str = "auto",
        host: bool = True,
        counters: bool | str = "auto",
    ) -> None:
        _check_options(device, hazards, capture, host, title)
        self._title = title.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate could not be saved
        with ExitStack() as undoing:
            spool_file = open_spool_file(spool, spool_limit_bytes)
            if spool_file is not None:
                undoing.callback(spool_file.discard)
            choice = choose_backend(backend, device)
            self._backend, self._owns_backend = choice.backend, choice.is_owned
            if self._owns_backend:
                undoing.callback(self._backend.close)
            tell_fallback(choice.fallback_reason)
            self._fallback_reason: str = choice.fallback_reason
            """Why the simulated device stands in for a GPU; empty if it does not."""
            self._recorder = Recorder(self._backend, ring_size=ring_size)
            self._recorder.title = self._title
            self._life = SessionLife(self._recorder.loss_report)
            self._locks = self._life.locks
            self._partitions = Partitions(self._backend, self._recorder, ContextCache(self._backend), self._locks)
            self._spool = None if spool_file is None else Spool(spool_file, self._recorder)
            if self._spool is not None:
                undoing.callback(self._spool.close)
            self._keeper = Keeper(self._backend, self._recorder.observing)
            self._recorder.aside = self._keeper.sweep
            parts = StreamParts(self._backend, self._recorder, self._locks, self._keeper)
            self._table = StreamTable(parts, self._partitions, self._life)
            self._accesses = watch_accesses(self._backend, self._recorder, hazards, self._table, self._keeper)
            self._captures = CaptureControl(self._backend, self._recorder)
            undoing.callback(self._captures.close)
            self._captures.capture(capture, host=host)
            self._counters = start_counters(self._recorder, self._backend, wanted=counters)
            undoing.pop_all()
        self._choose = self._table.choose  # one lookup less where a stream is selected
        self._selections = Selections(self._backend, self._recorder)
        self._entered = False
        self._views = LiveViews(self._recorder)
        self._life.begin()
        note_open(self)

    def __enter__(self) -> Self:
        self._life.require_open("enter it")
        if self._entered:
            raise SessionError("This session is entered already. Use one `with` block, or call lab.close() at the end.")
        self._entered = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except CloseError as failure:
            if error is None:
                raise
            error.add_note(str(failure))

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if _is_finalizing():  # as an argument: the names of this module may be gone by then
            return
        life = getattr(self, "_life", None)  # none where making it failed early
        if life is not None and life.state is SessionState.OPEN:
            warnings.warn(f"{self!r} was never closed. Call lab.close() or use `with`.", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        return f"<Session: {', '.join(session_facts(self).values())}>"

    def _repr_html_(self) -> str:
        return facts_table(session_facts(self))

    @property
    def state(self) -> SessionState:
        """Where the session is in its life."""
        return self._life.state

    @property
    def device(self) -> Device:
        """The device in use, real or simulated."""
        return self._backend.device

    @property
    def xp(self) -> Any:
        """The array module: CuPy on a GPU, a NumPy-compatible one on the simulated device."""
        return self._accesses.xp

    @property
    def streams(self) -> Mapping[str, Stream]:
        """The session's open streams by name, in the order of their making."""
        return MappingProxyType(self._table.open_streams)

    @property
    def current(self) -> Stream | None:
        """The stream selected in this thread, or None."""
        return self._selections.current

    @property
    def partitions(self) -> PartitionTools:
        """Plan, prepare, watch and prove how the SMs are shared out."""
        return PartitionTools(self)

    @property
    def memory(self) -> Memory:
        """Scratch and page-locked memory, guards, and races between streams."""
        return Memory(self)

    @property
    def recording(self) -> Recording:
        """What is recorded, of whom, and where it goes."""
        return Recording(self)

    @property
    def expect(self) -> Expect:
        """What a run should do: streams that overlap, no strays, no waits of the host. A failure explains itself."""
        return Expect(self)

    @property
    def bench(self) -> Bench:
        """Measure functions: alone, on each number of SMs, beside each other; and find the split that serves them best."""
        return Bench(self)

    @property
    def layout(self) -> Layout | None:
        """How the SMs are shared out now; None for the whole card."""
        return self._partitions.layout

    def stream(
        self,
        name: str,
        *unnamed: Never,
        priority: int | None = None,
        partition: str | EllipsisType | None = ...,
        external: object | None = None,
        **unknown: Never,
    ) -> Stream:
        """Return the stream of this name, making it on first use. It does not wait for the NULL stream.

        Parameters
        ----------
        name
            Letters, digits and ``_ - . + : / # @``, at most 100 of them.
        priority
            CUDA priority, lower runs first; None for the default on first use and for "as it is" later.
        partition
            The partition of the current layout in which it works; None for the whole card. A stream that is elsewhere is
            drained and moves there. If left out, it stays where it is, and a new one has the whole card.
        external
            An object with ``__cuda_stream__`` (a stream of CuPy, torch, cuda.core, ...) to use instead of a new stream. It
            stays its owner's, is kept alive until the session closes, and is never destroyed here.

        Raises
        ------
        InvalidNameError, StreamExistsError
            If the name cannot be used, or is that of a stream of another priority or owner.
        OptionError
            If the device does not take the priority, or the lent stream has another.
        PartitionNotFoundError, PartitionError
            If the layout has no such partition; if a lent stream should move, or one that a thread has selected.
        StreamRefusedError
            If `external` lends no stream, or a default stream.
        """
        if unnamed or unknown:
            wrong = f"has no option {next(iter(unknown))!r}" if unknown else "takes all but its name by keyword"
            given: tuple[object, ...] = (name, *unnamed)
            shown = next((one for one in given if isinstance(one, str)), "copy")
            raise OptionError(f"A stream {wrong}. Use lab.stream({shown!r}, priority=-1, partition=...).")
        return self._table.get(name, priority, partition, external)

    def partition(
        self,
        plan: Mapping[str, Share] | Layout | EllipsisType | None = ...,
        /,
        *unnamed: Never,
        round: Rounding | str = Rounding.UP,  # noqa: A002 - what the user types
        strict: bool = False,
        workqueue: WorkqueueOptions | None = None,
        renamed: Mapping[str, str] | None = None,
        **shares: Share,
    ) -> Layout | None:
        """Share out the SMs: green contexts, each with some of them; return what was asked for and granted, None without any.

        Only the streams that move are drained; they keep their names and their history, and other threads go on meanwhile. A
        stream goes to the partition that it was given to, by ``lab.stream(name, partition=...)``, whenever the layout has it.

        Parameters
        ----------
        plan
            Names with what each gets (see `gpustreamlab.plan_partitions`), or a layout that was planned; None goes back to the
            whole card.
        round, strict
            ``"up"``, ``"down"`` or ``"exact"``, where the device cannot grant what was asked for. Raise where the device or
            driver lacks something, instead of one warning and going on without.
        workqueue
            How the partitions share work queues (CUDA 13.1 and later).
        renamed
            New names by old ones, for partitions whose streams should follow.
        **shares
            The same as `plan`, for names that are Python identifiers.

        Raises
        ------
        PartitionError
            If the SMs cannot be shared out like this; the message has the nearest plan that works.
        PartitionInUseError
            If a stream works in a partition that would go, or is selected by a thread while it would have to move.
        PartitionUnavailableError
            With `strict`, if this device or driver lacks a feature.

        Examples
        --------
        >>> with Session("sim") as lab:
        ...     print(lab.partition(prefill=96, decode="rest"))
        ...     print(lab.stream("decode", partition="decode").sm_count)
        ...     lab.partitions.verify().holds
        Layout: prefill 96 SMs (asked for 96), decode 36 SMs (asked for 36)
        36
        True
        """
        self._life.require_open(doing := "share out its SMs")
        if unnamed:
            raise PartitionError("Each partition needs a name. Use lab.partition(prefill=96, decode=36).")
        layout = read_plan(self._backend, plan, shares, rounding=round, strict=strict, workqueue=workqueue)
        with self._life.moving(doing):
            return self._partitions.switch(layout, read_renamed(renamed))

    def capture(self, tier: CaptureTier | str = "auto", *, host: bool = True, stacks: bool = False) -> Capture:
        """Capture every kernel, copy and fill from now on, with the calls of the host that enqueued them; or ranges only.

        Ranges are always recorded. It has begun already, and says why kernels are missing where they are. A `with` block goes
        back at its end to what was captured before.

        Parameters
        ----------
        tier
            ``"kernels"``; ``"ranges"``; or ``"auto"``, which is kernels where that works, and never fails.
        host
            Whether the trace has the calls of the host: launches, synchronisations, allocations.
        stacks
            Whether to look up to 200 times a second where the Python of each thread stands that launches work. The trace has
            the function of each look as a span of kind ``"sample"`` of the thread, and `explain` names the function in
            which the host is late. What it costs: docs/how-to/see-every-kernel.md.

        Raises
        ------
        MissingExtraError, CaptureUnavailableError
            If ``"kernels"`` needs a package that is not installed, or this machine cannot capture them. Where only another tool
            is in the way (torch.profiler, nsys), there is a `CaptureWarning` instead, and ranges are captured.

        Examples
        --------
        >>> with Session("sim", capture="ranges") as lab:
        ...     compute = lab.stream("compute")
        ...     with lab.capture("kernels"), lab.on("compute", "zero"):
        ...         b = lab.xp.zeros(4)
        ...     lab.trace.metadata.tier.value
        'kernels'
        """
        self._life.require_open("capture")
        with self._recorder.loss_report:
            return self._captures.capture(tier, host=host, stacks=stacks)

    def record(self, *, stacks: bool = False) -> Recorded:
        """Record what runs in a ``with`` block, of any library as it is: no stream is selected; see `Recorded`."""
        self._life.require_open("record a block")
        return Recorded(lambda: self, stacks=stacks)

    def counters(self, *groups: str, every_us: float = 50) -> CounterBlock:
        """Count finely how busy the card is while a ``with`` block runs, by CUPTI's PM sampling.

        The samples are in the trace's counters; the simulated device counts by its model. It counts until the block is left:
        wait for the work in it. What it costs, and how exact it is: docs/how-to/see-how-busy-the-card-was.md.

        Parameters
        ----------
        *groups
            Any of ``"sm"``, ``"tensor"``, ``"dram"``, ``"pcie"`` and ``"nvlink"``; all but the last if none is named. What the
            card does not have is left out: see `CounterBlock.left_out`.
        every_us
            Time between two samples, in us, from 10 on.

        Raises
        ------
        OptionError
            If there is no such group, or the time is out of range.
        CaptureUnavailableError, MissingExtraError
            When it is entered: if only administrators may count, another tool samples the card, a block is open already, or the
            card or its CUPTI cannot; if CUPTI is not installed.

        Examples
        --------
        >>> with Session("sim") as lab:
        ...     with lab.counters("pcie", every_us=50) as block:
        ...         x = lab.xp.asarray([1.0] * 1_000_000)
        ...         lab.synchronize()
        ...     block.names
        ('pcie_rx_bytes_per_s', 'pcie_tx_bytes_per_s')
        """
        self._life.require_open("count")
        return CounterBlock(self._recorder, self._backend, groups, every_us)

    def on(
        self,
        stream: str | Stream | SupportsCudaStream = "",
        label: str | None = None,
        *unnamed: Never,
        request: object = None,
        step: int | None = None,
        **unknown: Never,
    ) -> Selection:
        """Select a stream for this thread, and record a range around what runs in the ``with`` block.

        CuPy, torch, Numba-CUDA and what ``lab.recording.adapters`` lists follow, if they are loaded (or the simulated device's
        arrays), and get back what they had on every exit. Selections nest.

        Parameters
        ----------
        stream, label
            A stream's name, a `Stream`, or any object with ``__cuda_stream__``, which becomes one on first use; and the name of
            the range, the stream's if None.
        request, step
            What the range is of, see `range`.

        Raises
        ------
        StreamNotFoundError, InvalidNameError
            If no stream has this name: the message names the nearest. If the label is no text.
        OptionError, PartitionNotFoundError
            If it is given anything else, as a partition, which a stream gets by `stream`.
        """
        if unnamed or unknown or stream == "":
            self._refuse_on(stream, **unknown)
        chosen = self._choose(stream)
        if label is not None and type(label) is not str:
            check_label(label)
        name = chosen.name if label is None else label
        if request is not None or step is not None:
            name = tagged_name(name, request=request, step=step)
        return Selection(self._selections, chosen, name)

    def _refuse_on(self, stream: object, **unknown: object) -> Never:
        """Say how a stream is given what `on` does not take."""
        name = stream if stream and isinstance(stream, str) else getattr(stream, "name", "copy")
        if "partition" not in unknown:
            wrong = next((f"has no option {one!r}" for one in unknown), "takes all but a stream and a label by keyword")
            raise OptionError(f"lab.on {wrong}. Use with lab.on({name!r}, 'label', request=7, step=3): ...")
        part, wrong, told = unknown["partition"], "", "None"
        if part is not None:
            try:
                told = repr(self._partitions.find(str(part)).name)
            except PartitionNotFoundError as error:
                wrong, told = f" {error}", "..."
        raise (PartitionNotFoundError if wrong else OptionError)(
            f"lab.on takes a stream in the partition that it has.{wrong} Use lab.stream({name!r}, partition={told}), and then "
            f"with lab.on({name!r}): ..."
        )

    def select(self, stream: str | Stream | SupportsCudaStream) -> Selection:
        """Select a stream for this thread in a ``with`` block, as `on` does, without a range.

        Examples
        --------
        >>> with Session("sim") as lab:
        ...     decode = lab.stream("decode")
        ...     with lab.select("decode"):
        ...         lab.current is decode
        True
        """
        return Selection(self._selections, self._choose(stream), None)

    def range(self, label: str, *, request: object = None, step: int | None = None) -> Range:
        """Return a named range on the stream selected in this thread, to enter with ``with``. Ranges nest.

        Parameters
        ----------
        label
            Its name.
        request, step
            The request that it works for, a text or a number, or several that share a batch; and the number of the step.
            ``trace.steps("request")`` and ``trace.steps()`` ask for them.

        Raises
        ------
        SelectionError, InvalidNameError
            If no stream is selected in this thread; if the label is no text, or the step no number.
        """
        if request is not None or step is not None:
            label = tagged_name(check_label(label), request=request, step=step)
        try:
            known: Range = self._recorder.local.state.writer.ranges[label]
        except (AttributeError, KeyError, TypeError):
            pass  # not raised within: the error that says what to do would stand below this one
        else:
            return known
        self._life.require_open("open a range")
        return self._selections.range(label)

    def run_on(
        self,
        stream: str | Stream | SupportsCudaStream,
        call: Callable[..., T],
        /,
        *args: object,
        label: str | None = None,
        hold: Iterable[object] = (),
        **kwargs: object,
    ) -> T:
        """Call ``call(stream, *args, **kwargs)`` with the stream selected, in a range; return what it returns. Nothing waits.

        What the call was given and returned, and `hold`, is held until its work is done, also where it raises. The call gets
        the `Stream`, whose ``handle`` is for libraries that take a raw ``cudaStream_t``.

        Examples
        --------
        >>> with Session("sim") as lab:
        ...     decode = lab.stream("decode")
        ...     lab.run_on("decode", lambda stream, x: x * 2, lab.xp.ones(3), label="engine").tolist()
        [2.0, 2.0, 2.0]
        """
        return call_on(self._keeper, self.on(stream, label), call, args, kwargs, hold=hold)

    def _begin_cell(self, text: str) -> None:
        """Note that a notebook cell begins: it is marked in the timeline as soon as a range is opened in it."""
        self._recorder.begin_cell(text)
        self._selections.begin_cell()

    def _end_cell(self, text: str) -> None:
        """Note that the cell has ended. If it made this session, it is marked where that was."""
        self._recorder.end_cell(text)

    def _put_back_left(self) -> None:
        """Leave all that this thread has entered since the notebook's cell began; in a script, all that it has entered."""
        self._keeper.end_left_uses()
        self._selections.put_back_left()

    def program(self, program: str | Callable[..., Any], /, namespace: dict[str, Any] | None = None) -> Program:
        """Return statements as a program, to plan onto streams: the first ``plan.run()`` is in order, the next as planned.

        Parameters
        ----------
        program
            Source, or a function; its parameters are looked up in the namespace by their names.
        namespace
            The variables that it runs on, which a plan of source changes in place. If None, those of the caller: the globals as
            they are when it runs, a function's own as they are now; they stay as they are.

        Raises
        ------
        ProgramError, SyntaxError
            If it cannot be planned: it awaits, yields, imports ``*``, or has no statements; if it is no Python.

        Examples
        --------
        >>> with Session("sim") as lab:
        ...     x = lab.xp.ones((256, 256))
        ...     plan = lab.program("y = x @ x; z = x + 1; s = y.sum() + z.sum()").plan(streams=2)
        ...     results = plan.run(), plan.run()
        ...     lab.synchronize()
        ...     print(len(plan.streams), float(results[1]["s"]))
        2 16908288.0
        """
        self._life.require_open("plan a program")
        if namespace is not None:
            return make_program(self, program, lambda: namespace)
        frame = sys._getframe(1)  # noqa: SLF001 - as IPython finds a caller's
        of_module, of_function = frame.f_globals, {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)
        return make_program(self, program, lambda: {**of_module, **of_function}, is_own=False)

    def improve(
        self,
        program: str | Callable[..., Any],
        /,
        *arguments: Any,
        seconds: float = 30,
        tolerance: float | None = None,
        memory: float = 2,
        namespace: Mapping[str, Any] | None = None,
    ) -> Improvement:
        """Change a program by machine, one thing on top of the other, and keep what gains: each is run beside it as it was.

        All runs are in sessions of their own, on copies of the inputs. Results, prints and exceptions have to be equal, bit for
        bit, no race may be new, and what gains less than 1% of the run, or no more than the noise, is not kept. Nothing of
        yours is changed: ``print(result)`` shows the new source as a diff, ``result.apply()`` returns it.

        Parameters
        ----------
        program, arguments
            Source, or a function and what it is called with. Of a function that prepares, and gives back a function without
            arguments, that one is measured; the session among the arguments stands for that of the run.
        seconds
            When to stop looking; what is under way then ends. Ctrl-C stops at once.
        tolerance
            How far numbers may be apart, as a share of the largest value; None for not at all.
        memory
            How many times as much memory of the device the program may take.
        namespace
            The variables of source. If None, those of the caller.

        Raises
        ------
        ProgramError
            If it cannot run again on copies: it uses files, the network, input, or random numbers that are not its own.
        OptionError
            If `seconds`, `tolerance` or `memory` is no such number.
        Exception
            What the program raises.

        Examples
        --------
        >>> from gpustreamlab.workloads import spin
        >>> def program():
        ...     for _ in range(5):
        ...         spin(lab, 200_000, blocks=32, stream="a")
        ...         lab.synchronize()
        ...         spin(lab, 200_000, blocks=32, stream="b")
        >>> with Session("sim") as lab:
        ...     streams = lab.stream("a"), lab.stream("b")
        ...     lab.improve(program)
        <Improvement: 1.25 ms is 1.01 ms now, 1.24 times as fast, with 1 change>
        """
        self._life.require_open("improve a program")
        frame = sys._getframe(1)  # noqa: SLF001 - as IPython finds a caller's
        values = {**frame.f_globals, **frame.f_locals} if namespace is None else namespace
        return improve(self, program, arguments, values, seconds=seconds, tolerance=tolerance, memory=memory)

    def event(self) -> Event:
        """Return an event that is not recorded yet."""
        self._life.require_open("make an event")
        return Event(self._backend)

    def synchronize(self) -> None:
        """Block the host until the device is idle; then every closed range is in the trace, and all work that was captured."""
        self._life.require_open("synchronize")
        with self._keeper.waiting(), self._recorder.loss_report:
            self._recorder.synchronize()

    def clear(self) -> None:
        """Forget what was recorded so far, for example a warm-up; ranges whose work still runs come into the trace later."""
        self._life.require_open("clear its trace")
        self._recorder.clear()
        self._accesses.clear()
        self._notes = ()

    @property
    def trace(self) -> Trace:
        """An immutable snapshot of the ranges whose work has ended. Never waits for the device.

        Ranges that still run are counted in ``trace.metadata.pending_spans``; call `synchronize` first to have them all. A
        closed session keeps its last trace.
        """
        if self._last_trace is None:
            try:
                trace = self._make_trace()
            except Exception:
                if self._last_trace is None:  # else the session was closed by another thread meanwhile
                    raise
            else:
                if self._last_trace is None:  # likewise: the recorder has let go of everything then
                    return trace
        return self._last_trace

    def explain(self, first: str | int | None = None, second: str | None = None) -> Explanation:
        """Say why work did not overlap so far, what changing that gains, and what to type; see `gpustreamlab.analysis.explain`.

        Never waits for the device: what has not ended is left out, and the explanation says so.
        """
        busy = [] if self._last_trace is not None else self._recorder.find_busy()
        found = self.trace.explain(first, second)
        if not busy or found.metadata.pending_spans:  # ranges that have not ended are told of by the trace
            return found
        names = ", ".join(map(repr, busy[:4])) + (f" and {len(busy) - 4:,} more" if len(busy) > 4 else "")
        note = f"Work on {names} has not ended yet: lab.synchronize() waits for it."
        return replace(found, metadata=replace(found.metadata, missing=(*found.metadata.missing, note)))

    def close(self) -> None:
        """Wait for the streams' work, keep the trace, and release everything the session made; twice is silent.

        Order: this thread's open ranges and selections, each stream, green contexts, events, the clock, the backend if the
        session made it. A part that fails does not stop the others; after Ctrl-C the next call goes on with what is left. New
        work is refused from the beginning, and a second thread that closes it waits.

        Raises
        ------
        CloseError
            If parts failed; the session is closed all the same.
        """
        close_session(self)

    def _newest_hazard_ns(self) -> int:
        return self._accesses.newest_ns

    def _make_trace(self) -> Trace:
        trace = as_trace(without_tools(self._recorder.trace()))
        notes = (*self._accesses.notes(trace), *self._notes)
        return replace(trace, notes=notes) if notes else trace


def _check_options(device: int, hazards: HazardMode | str | None, capture: CaptureTier | str, host: object, title: str) -> None:
    """Raise `OptionError` before anything is made."""
    if isinstance(device, bool) or not isinstance(device, int):
        raise OptionError(
            f"device is {device!r}; it must be the CUDA device's number. Use gpustreamlab.Session(device=0), "
            "or gpustreamlab.Node(devices=[0, 1]) for several."
        )
    if not isinstance(title, str):
        raise OptionError(f"title is {title!r}; it must be a str. Use gpustreamlab.Session(title='my run').")
    check_hazard_mode(hazards, simulated=False)
    check_host(host, usage="gpustreamlab.Session(host=False)")
    read_tier(capture, usage="gpustreamlab.Session(capture='ranges')")
