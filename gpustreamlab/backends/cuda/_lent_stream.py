"""What the driver says of a stream that others lend, before anything is enqueued on it."""

from __future__ import annotations

from gpustreamlab.backends._lent import refuse_stream


def check_lent_stream(lender: object, handle: int, ordinal: int) -> None:
    """Refuse a stream of another device, and one that the driver does not know.

    Parameters
    ----------
    lender
        What lends it.
    handle
        Its handle.
    ordinal
        The session's device.

    Raises
    ------
    StreamRefusedError
        If the driver refuses the handle, or names another device.

    Notes
    -----
    A handle is an address, and drivers need not check it: one that was destroyed, or is no stream at all, may pass unnoticed,
    be that of a new stream meanwhile, or end the process. A lender that is alive and owns its stream is the safe source; it
    is kept alive. A stream that is being captured into a CUDA graph passes unasked: any of these questions would end the
    capture (seen with the driver for CUDA 13.0). Source: CUDA driver API, ``cuStreamIsCapturing``, ``cuStreamGetDevice`` (12.8
    and later), ``cuStreamGetCtx``.
    """
    answer, device = _ask(handle)
    if answer:
        raise refuse_stream(
            lender,
            handle,
            f"is not known to the driver ({answer}): it was destroyed, or never was one of this process",
            fix="Keep the stream's owner alive while it is a lane, or make one with lab.stream('name').",
        )
    if device is not None and device != ordinal:
        raise refuse_stream(
            lender,
            handle,
            f"is on CUDA device {device}, and this session on device {ordinal}",
            fix=f"Use gpustreamlab.Session(device={device}), or make a stream here with lab.stream('name').",
        )


def _ask(handle: int) -> tuple[str, int | None]:
    """Return the driver's complaint or an empty text, and the stream's device where this driver tells."""
    from cuda.bindings import driver

    stream, device = driver.CUstream(handle), None
    status, capture = driver.cuStreamIsCapturing(stream)
    done, idle = driver.CUresult.CUDA_SUCCESS, driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    if status == done and capture == idle:
        try:
            status, device = driver.cuStreamGetDevice(stream)
        except (AttributeError, RuntimeError):  # bindings, or a driver, before 12.8
            status, _ = driver.cuStreamGetCtx(stream)
    if status != done:
        return status.name, None
    return "", None if device is None else int(device)
