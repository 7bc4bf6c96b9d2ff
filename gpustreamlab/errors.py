"""Every error that gpustreamlab raises, in one tree.

::

    GPUStreamLabError
    ├── BackendError
    │   ├── BackendNotFoundError      (ValueError)    no backend of that name
    │   ├── BackendUnavailableError   (RuntimeError)  the backend exists, this machine cannot run it
    │   ├── CaptureUnavailableError   (RuntimeError)  kernels cannot be captured here, or not now
    │   ├── MissingExtraError         (ImportError)   an optional package is not installed
    │   └── NotSimulatedError         (NotImplementedError)  the simulated device does not model this
    ├── AdapterError                  (RuntimeError)  a library that cannot follow the selected stream
    ├── DeviceError                   (RuntimeError)  the driver refused or failed
    │   ├── GraphCaptureError                         a call that no CUDA graph can hold, or an unjoined stream
    │   ├── DeviceNotFoundError       (ValueError)    no device of that ordinal
    │   ├── DeviceMemoryError         (MemoryError)   the device has no memory left
    │   ├── InvalidHandleError        (ValueError)    a stream or event that the driver does not know
    │   └── StickyDeviceError         (RuntimeError)  the context is lost until the process restarts
    ├── SessionError                  (RuntimeError)
    │   ├── SessionClosedError                        the session was closed before this call
    │   ├── StreamClosedError                         the stream was closed before this call
    │   ├── EventClosedError                          the event was closed before this call
    │   ├── EventNotRecordedError                     the event was never recorded
    │   ├── GuardClosedError                          the guard was closed before this call
    │   ├── SelectionError                            selections left in another order than entered
    │   └── CloseError                                parts of a session that could not be closed
    ├── InvalidNameError              (ValueError)    a stream or label name that cannot be used
    ├── StreamNotFoundError           (KeyError)      no stream of that name
    ├── StreamExistsError             (ValueError)    the name is taken by a different stream
    ├── StreamRefusedError            (ValueError)    a stream that cannot be used, with the reason
    ├── PartitionError                (ValueError)    SMs that cannot be shared out as asked
    │   ├── PartitionInUseError       (RuntimeError)  streams still work in a partition that would go or change
    │   └── PartitionUnavailableError (RuntimeError)  this device or driver cannot partition its SMs
    ├── PartitionNotFoundError        (KeyError)      no partition of that name
    ├── ClusterError                  (RuntimeError)  engines of a cluster that cannot be used, or where something failed
    ├── EngineError                   (RuntimeError)  an inference engine refused a tensor, a lane or its run
    ├── ExpectationError              (AssertionError)  a run did not do what was expected of it
    ├── MeasureError                  (RuntimeError)  nothing to measure, or nothing that can be told from it
    ├── OptionError                   (ValueError)    a number or choice outside its range
    ├── ProgramError                  (ValueError)    statements that cannot be planned, or a plan that does not fit any more
    ├── TraceError                    (ValueError)    columns that do not make a trace
    └── TraceFileError                (OSError)       a file that could not be read or written

Each message has three parts: what failed with the values, where, and what to type next. Facts are attributes as well as text.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

__all__ = [
    "AdapterError",
    "AdapterWarning",
    "BackendError",
    "BackendNotFoundError",
    "BackendUnavailableError",
    "CaptureUnavailableError",
    "CaptureWarning",
    "CloseError",
    "ClusterError",
    "DeviceError",
    "DeviceMemoryError",
    "DeviceNotFoundError",
    "EngineError",
    "EventClosedError",
    "EventNotRecordedError",
    "ExpectationError",
    "GPUStreamLabError",
    "GraphCaptureError",
    "GuardClosedError",
    "InvalidHandleError",
    "InvalidNameError",
    "MeasureError",
    "MissingExtraError",
    "NotSimulatedError",
    "OptionError",
    "PartitionError",
    "PartitionInUseError",
    "PartitionNotFoundError",
    "PartitionUnavailableError",
    "PartitionWarning",
    "ProgramError",
    "SelectionError",
    "SelectionWarning",
    "SessionClosedError",
    "SessionError",
    "SpoolWarning",
    "StickyDeviceError",
    "StreamClosedError",
    "StreamExistsError",
    "StreamNotFoundError",
    "StreamRefusedError",
    "TraceError",
    "TraceFileError",
    "nearest_hint",
]


class GPUStreamLabError(Exception):
    """Root of every error raised on purpose by gpustreamlab."""


class BackendError(GPUStreamLabError):
    """A backend could not be chosen or started."""


class BackendNotFoundError(BackendError, ValueError):
    """No backend has the requested name."""


class BackendUnavailableError(BackendError, RuntimeError):
    """The backend exists, but this machine cannot run it."""

    def __init__(self, message: str, *, reason: str = "unknown") -> None:
        super().__init__(message)
        self.reason = reason
        """Machine-readable reason, a value of `gpustreamlab.typing.Unavailable`."""


class CaptureUnavailableError(BackendError, RuntimeError):
    """Kernels cannot be captured here, or not now; the message says why, and what works instead."""


class MissingExtraError(BackendError, ImportError):
    """An optional package is not installed; the message holds the `pip install` line."""


class NotSimulatedError(BackendError, NotImplementedError):
    """The simulated device does not model what was asked for."""


class AdapterError(GPUStreamLabError, RuntimeError):
    """A library cannot follow the selected stream; raised by what makes an adapter, and shown in ``lab.recording.adapters``."""

    def __init__(self, reason: str, *, has_work: bool = True) -> None:
        super().__init__(reason)
        self.has_work = has_work
        """False where the library has no work on the device: nothing can leave the stream, so nobody is warned."""


class DeviceError(GPUStreamLabError, RuntimeError):
    """The driver refused a call or failed during it."""

    def __init__(self, message: str, *, driver_code: str | None = None) -> None:
        super().__init__(message)
        self.driver_code = driver_code
        """Name of the driver's own error code, for example ``CUDA_ERROR_OUT_OF_MEMORY``."""


class GraphCaptureError(DeviceError):
    """A call that no CUDA graph can hold was made while one was captured, or streams were not joined at its end."""

    def __init__(self, message: str, *, unjoined: Iterable[int] = (), driver_code: str | None = None) -> None:
        super().__init__(message, driver_code=driver_code)
        self.unjoined = tuple(unjoined)
        """Handles of the streams that were not joined back into the first one, where they are known."""


class DeviceNotFoundError(DeviceError, ValueError):
    """No device has the requested ordinal."""


class DeviceMemoryError(DeviceError, MemoryError):
    """The device has not enough free memory."""


class InvalidHandleError(DeviceError, ValueError):
    """The driver does not know this stream or event."""


class StickyDeviceError(DeviceError):
    """The device context is lost (illegal address, launch failure); only a new process helps."""

    where: str = ""
    """The ranges and streams that had not ended when it was noticed; part of the message."""

    def __str__(self) -> str:
        return f"{super().__str__()} {self.where}".rstrip()


class SessionError(GPUStreamLabError, RuntimeError):
    """A session, stream or event was used in a state that does not allow it."""


class SessionClosedError(SessionError):
    """The session was closed before this call."""


class StreamClosedError(SessionError):
    """The stream was closed before this call."""


class EventClosedError(SessionError):
    """The event was closed before this call."""


class EventNotRecordedError(SessionError):
    """The event has not been recorded on any stream."""


class GuardClosedError(SessionError):
    """The guard was closed before this call."""


class SelectionError(SessionError):
    """Stream selections were left in another order, or thread, than they were entered."""


class CloseError(SessionError):
    """The session is closed, but some of its parts failed while closing."""

    def __init__(self, failures: Iterable[tuple[str, BaseException]]) -> None:
        self.failures = tuple(failures)
        """Pairs of what was being closed and the exception it raised."""
        lines = "\n".join(f"  {what}: {type(error).__name__}: {error}" for what, error in self.failures)
        super().__init__(
            f"The session is closed, but {len(self.failures)} of its parts failed while closing:\n{lines}\n"
            "Nothing else holds them; restart the process (the Jupyter kernel) if the device reports errors afterwards."
        )


class InvalidNameError(GPUStreamLabError, ValueError):
    """A name that cannot be used for a stream."""


class _NotFoundError(GPUStreamLabError, KeyError):
    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which would hide the line breaks of a message.
        return str(self.args[0])


class StreamNotFoundError(_NotFoundError):
    """No stream of the session, or of the trace, has this name."""


class StreamExistsError(GPUStreamLabError, ValueError):
    """The name is taken by a stream with other properties."""


class StreamRefusedError(GPUStreamLabError, ValueError):
    """A stream that cannot be used, with the reason."""


class PartitionError(GPUStreamLabError, ValueError):
    """SMs that cannot be shared out as asked; the layout stays as it was."""

    def __init__(self, message: str, *, nearest: Mapping[str, int] | None = None) -> None:
        super().__init__(message)
        self.nearest = None if nearest is None else dict(nearest)
        """SMs by partition of the nearest plan that works, or None where there is none."""


class PartitionInUseError(PartitionError, RuntimeError):
    """Streams still work in a partition that would go, or are selected while they would have to move."""


class PartitionUnavailableError(PartitionError, RuntimeError):
    """The device or its driver cannot partition SMs, or lacks the feature that was asked for."""


class PartitionNotFoundError(_NotFoundError):
    """The layout has no partition of this name."""


class AdapterWarning(UserWarning):
    """A library does not follow the selected stream, or not any more; its work runs elsewhere."""


class CaptureWarning(UserWarning):
    """Something that was asked for is not captured, or not any more; work goes on without it."""


class SelectionWarning(UserWarning):
    """Work may have gone to another stream than the program says, in a way that cannot be made right from here."""


class SpoolWarning(UserWarning):
    """The file that a session is spooled to cannot be written any more; recording goes on in memory."""


class PartitionWarning(UserWarning):
    """A partition is not what was asked for, and the session goes on with what there is."""


class ClusterError(GPUStreamLabError, RuntimeError):
    """Engines of a cluster cannot be used, or what was run failed on some of them."""

    def __init__(
        self, message: str, *, failures: Mapping[str, str] | None = None, results: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.failures = dict(failures or {})
        """By engine why, or the traceback."""
        self.results = {} if results is None else results
        """What the other engines returned, by their names."""


class EngineError(GPUStreamLabError, RuntimeError):
    """An inference engine refused a tensor, a lane or its run."""


class ExpectationError(GPUStreamLabError, AssertionError):
    """A run did not do what was expected of it; the message says what it did, and why."""


class MeasureError(GPUStreamLabError, RuntimeError):
    """There is nothing to measure, or what was measured does not tell what was asked."""


class OptionError(GPUStreamLabError, ValueError):
    """A number or choice outside its range."""


class ProgramError(GPUStreamLabError, ValueError):
    """Statements that cannot be planned onto streams, or a plan that does not fit its inputs any more."""


class TraceError(GPUStreamLabError, ValueError):
    """Columns or metadata that do not make a valid trace."""


class TraceFileError(GPUStreamLabError, OSError):
    """A trace or timeline file that could not be read or written."""


def nearest_hint(wrong: str, valid: Iterable[str]) -> str:
    """Say which valid choice is nearest to a wrong one.

    Parameters
    ----------
    wrong
        What the user typed.
    valid
        The choices there are.

    Returns
    -------
    str
        ``"Did you mean 'copy'?"``, or the list of choices where none is near, or ``""`` where there are none.

    Examples
    --------
    >>> nearest_hint("cuad", ["cuda", "sim"])
    "Did you mean 'cuda'?"
    """
    choices = sorted(str(choice) for choice in valid)
    near = difflib.get_close_matches(wrong, choices, n=1, cutoff=0.5)
    if near:
        return f"Did you mean {near[0]!r}?"
    if not choices:
        return ""
    shown = ", ".join(repr(choice) for choice in choices[:12])
    return f"Choose from {shown}{', …' if len(choices) > 12 else ''}."
