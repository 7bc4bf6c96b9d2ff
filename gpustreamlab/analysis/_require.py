"""What functions of traces say to what is no trace."""

from __future__ import annotations

from gpustreamlab.errors import OptionError
from gpustreamlab.model import Trace


def require_trace(value: object, function: str) -> None:
    """Raise `OptionError`, with what to type instead, where a value is no trace.

    Examples
    --------
    >>> require_trace(7, "overlap")
    Traceback (most recent call last):
    gpustreamlab.errors.OptionError: overlap() got a int; it takes a Trace. Pass lab.trace, or gsl.load_trace('run.parquet').
    """
    if isinstance(value, Trace):
        return
    kind = type(value).__name__
    # Asked of its class: to look at the trace itself may take long.
    advice = f"Pass the trace of the {kind}: " if hasattr(type(value), "trace") else "Pass lab.trace, or "
    example = f"{function}(lab.trace)." if hasattr(type(value), "trace") else "gsl.load_trace('run.parquet')."
    raise OptionError(f"{function}() got a {kind}; it takes a Trace. {advice}{example}")
