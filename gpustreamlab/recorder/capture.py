"""Capture tiers: named ranges always; kernels, copies and calls of the host where they are asked for."""

from __future__ import annotations

import logging
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

from gpustreamlab._util.background import Updater, held_weakly
from gpustreamlab._util.defences import ProcessBound, delayed_interrupts, process_lock
from gpustreamlab.backends import ActivitySource, Backend
from gpustreamlab.errors import (
    CaptureUnavailableError,
    CaptureWarning,
    DeviceError,
    GPUStreamLabError,
    OptionError,
    SessionClosedError,
    SessionError,
    StickyDeviceError,
    nearest_hint,
)
from gpustreamlab.recorder import Recorder
from gpustreamlab.typing import CaptureTier

__all__ = ["Capture", "CaptureControl", "check_host", "read_tier"]

_log = logging.getLogger(__name__)


AUTO = "auto"  # Kernels where they can be captured, else ranges
QUIET_NS = 1_000_000_000
"""After a stop for which nobody waited, the rest is taken when the streams that are known have had no work for so long."""
DRAIN_HZ = 5.0  # How often a thread on the side takes what was captured
KEPT_CAPTURES = 1_000  # Captures of one session that can be taken back; the newest count


class Capture(ProcessBound):
    """A capture, from `Session.capture` on. As a context manager it goes back, at its end, to what was captured before.

    Examples
    --------
    >>> from gpustreamlab import Session
    >>> with Session("sim") as lab:
    ...     with lab.capture("kernels") as capture:
    ...         print(capture)
    ...     print(capture)
    <Capture: kernels and host calls (simulated device)>
    <Capture: stopped>
    """

    def __init__(self, control: CaptureControl, *, wants_kernels: bool, host: bool, stacks: bool) -> None:
        self._control = control
        self.wants_kernels = wants_kernels  # Whether kernels were asked for
        self.host = host  # Whether calls of the host were
        self.stacks = stacks  # Whether samples of Python stacks were

    def __enter__(self) -> Self:
        if not self.is_active:
            raise SessionError("This capture has ended, so it would capture nothing. Make another with lab.capture('kernels').")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Capture: {self._control.text if self.is_active else 'stopped'}>"

    @property
    def tier(self) -> CaptureTier:
        """Tier that is captured now."""
        return self._control.tier

    @property
    def note(self) -> str:
        """Why kernels are not captured although they were asked for; empty where they are, or were not asked for."""
        return self._control.note if self.wants_kernels else ""

    @property
    def is_active(self) -> bool:
        """True until `stop`, or until the session closes."""
        return self._control.is_asked(self)

    def stop(self) -> None:
        """Go back to what was captured before. Idempotent; never raises.

        What still runs then, or has yet to begin, comes into the trace when it has ended: `Session.synchronize` waits for it.
        """
        self._control.take_back(self)


class CaptureControl:
    """The captures of one session: what was asked for, what is in force, and the thread that takes what comes.

    What goes wrong with the source of kernels ends their capture, and nothing else.

    Parameters
    ----------
    backend, recorder
        The session's.
    """

    def __init__(self, backend: Backend, recorder: Recorder) -> None:
        self._backend = backend
        self._recorder = recorder
        # Re-entrant: a finaliser or a signal handler may come here in the middle of it.
        self._lock = process_lock()
        self._asked: deque[Capture] = deque(maxlen=KEPT_CAPTURES)
        self._source: ActivitySource | None = None
        self._updater: Updater | None = None
        self.is_closed = False  # Whether it captures nothing any more

    @property
    def tier(self) -> CaptureTier:
        """Tier that is captured now."""
        return CaptureTier.KERNELS if self._recorder.kernels.is_on else CaptureTier.RANGES

    @property
    def note(self) -> str:
        """Why kernels are not captured although they were asked for; empty where they are."""
        return "" if self._recorder.kernels.is_on else self._recorder.kernels.note

    @property
    def text(self) -> str:
        """Tier that is captured now, in words."""
        told = ""
        if self._source is not None and self._recorder.kernels.is_on:
            told = f"{' and host calls' if self._recorder.kernels.keeps_calls else ''} ({self._source.description})"
            told = f"{', stacks' if self._recorder.kernels.stacks.is_on else ''}{told}"
        return f"{self.tier.value}{told}{f'; {self.note}' if self.note else ''}"

    def capture(
        self, tier: CaptureTier | str = AUTO, *, host: bool = True, stacks: bool = False, stacklevel: int = 3
    ) -> Capture:
        """Capture kernels or ranges from now on; see `Session.capture`. A warning points so many callers up."""
        wanted = read_tier(tier)
        check_host(host, usage="lab.capture('kernels', host=False)")
        wants_kernels = wanted is not CaptureTier.RANGES
        if stacks not in {False, wants_kernels}:
            raise OptionError(
                f"stacks is {stacks!r}; it must be True or False, and stacks are sampled beside kernels only. "
                "Use lab.capture('kernels', stacks=True)."
            )
        capture = Capture(self, wants_kernels=wants_kernels, host=host, stacks=stacks)
        try:
            refusal = self._ask(capture, is_choosy=wanted is not None)
        except BaseException:
            self.take_back(capture)  # interrupted: the caller gets no `Capture` to stop
            raise
        if refusal and wanted is not None:
            _log.warning("%s", refusal)
            warnings.warn(refusal, CaptureWarning, stacklevel=stacklevel)
        return capture

    def _ask(self, capture: Capture, *, is_choosy: bool) -> str:
        """Put a request in force, above the others; return why it is less than was asked for, or nothing."""
        with delayed_interrupts(), self._lock:
            if self.is_closed:
                raise SessionClosedError("This session was closed meanwhile; it cannot capture. Start another with Session().")
            refusal = self._apply(capture) if is_choosy else self._try(capture)
            self._asked.append(capture)
        return refusal

    def is_asked(self, capture: Capture) -> bool:
        """Tell whether a request is neither taken back nor over."""
        return not self.is_closed and capture in self._asked

    def take_back(self, capture: Capture) -> None:
        """Take a request back; where it was the newest, go back to the one before."""
        with delayed_interrupts(), self._lock:
            if not self.is_asked(capture):
                return
            is_newest = self._asked[-1] is capture
            self._asked.remove(capture)
            if is_newest:
                self._try(self._asked[-1] if self._asked else None)

    def finish(self, waits: Iterable[Callable[[], object]]) -> None:
        """Wait for the session's streams, where work was captured that may still run, then `close`."""
        if self._recorder.kernels.is_awaiting_work:
            for wait in waits:
                try:
                    wait()
                except DeviceError as error:  # closing the stream reports it; what had not ended is known now
                    if isinstance(error, StickyDeviceError):
                        self._recorder.loss_report.tell(error)
        self.close()

    def close(self) -> None:
        """Stop, take what is left, and close the source. Idempotent."""
        with delayed_interrupts(), self._lock:
            self.is_closed = True
            self._stop_updater()
            self._recorder.end_capture()
            source, self._source = self._source, None
            if source is not None:
                source.close()

    def _try(self, capture: Capture | None) -> str:
        """Do what `_apply` does, and only note where kernels cannot be captured at all."""
        try:
            return self._apply(capture)
        except GPUStreamLabError as error:
            self._recorder.kernels.note_refusal(str(error))
            return str(error)

    def _apply(self, capture: Capture | None) -> str:
        """Capture what was asked for; return why it is less, or nothing."""
        with self._recorder.observing():  # to look on costs the simulated program nothing
            if capture is None or not capture.wants_kernels:
                self._recorder.stop_capture()
                if not self._is_lingering:
                    self._stop_updater()
                return ""
            source = self._find_source()
            try:
                self._recorder.start_capture(
                    source, keeps_calls=capture.host, tell_loss=_tell_loss, samples_stacks=capture.stacks
                )
            except CaptureUnavailableError as error:
                refusal = f"Kernels are not captured, only ranges. {error}"
                self._recorder.kernels.note_refusal(refusal)
                return refusal
            if self._updater is None or not self._updater.is_running:
                self._updater = Updater(held_weakly(self.take, source.close), refresh_hz=DRAIN_HZ, name="gpustreamlab capture")
                self._updater.start()
            return ""

    @property
    def _is_lingering(self) -> bool:
        """Whether a capture that was stopped still costs every launch, until the records of its last work have come."""
        return self._recorder.kernels.is_awaiting_work and bool(getattr(self._source, "is_attached", False))

    def _find_source(self) -> ActivitySource:
        if self._source is None:
            make = getattr(self._backend, "activity_source", None)
            if make is None:
                raise CaptureUnavailableError(
                    f"Backend {self._backend.name!r} does not record kernels: it has no activity_source(). Use "
                    "lab.capture('ranges'), which works everywhere."
                )
            self._source = make()
        return self._source

    def _stop_updater(self) -> None:
        updater, self._updater = self._updater, None
        if updater is not None:
            updater.stop()

    def take(self) -> bool:
        """Take what was captured by now; tell whether more may come."""
        with self._recorder.observing():
            with suppress(DeviceError):  # the next use of the device raises it
                self._recorder.collect()
            source = self._source
            if source is None or source.keep_up():
                self._recorder.kernels.take(is_complete=False)
        if self._is_lingering and not self._recorder.kernels.is_on:
            self._recorder.kernels.finish_when_quiet(QUIET_NS)
        return self._recorder.kernels.is_on or self._is_lingering


def read_tier(tier: CaptureTier | str, *, usage: str = "lab.capture('kernels')") -> CaptureTier | None:
    """Return what is asked for; None for whatever can be had. An error shows this usage.

    Raises
    ------
    OptionError
        If there is no such tier.
    """
    if tier == AUTO:
        return None
    try:
        return CaptureTier(tier)
    except ValueError as error:
        raise OptionError(
            f"There is no capture tier {tier!r}. {nearest_hint(str(tier), [*CaptureTier, AUTO])} Use {usage}."
        ) from error


def check_host(host: object, *, usage: str) -> None:
    """Raise `OptionError` unless it says whether calls of the host are captured; the error shows this usage."""
    if not isinstance(host, bool):
        raise OptionError(f"host is {host!r}; it must be True or False. Use {usage}.")


def _tell_loss(reason: str) -> None:
    """Warn that kernels are not captured any more. The caller goes on."""
    message = f"Kernels are not captured any more, only ranges. {reason}"
    _log.warning("%s", message)
    try:
        warnings.warn(message, CaptureWarning, stacklevel=2)
    except CaptureWarning:  # as the user's filters want it; but this is not where the user called
        _log.debug("The warning was made an error.")
