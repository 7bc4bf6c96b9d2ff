"""How running kernels share the memory's bandwidth."""

from __future__ import annotations

from collections.abc import Sequence


def share_bandwidth(draws: Sequence[tuple[float, float]], cap: float) -> float:
    """Return the share of its own limit that each kernel may draw so that all of them together stay under the cap.

    Each kernel draws what it wants, or this share of its limit if that is less: kernels that are bound by arithmetic are
    slowed last.

    Parameters
    ----------
    draws
        (wanted, limit) of each running kernel in bytes per second, ``0 < wanted <= limit``.
    cap
        What the memory gives, in bytes per second.

    Returns
    -------
    float
        The share, 1.0 if the cap is not reached.

    Notes
    -----
    The share solves ``sum(min(wanted, share * limit)) == cap``, by going through the kernels from the least thirsty one.

    Examples
    --------
    >>> share_bandwidth([(60, 60), (60, 60)], 100)  # both bound by memory: 50 each
    0.8333333333333334
    >>> share_bandwidth([(20, 60), (100, 100)], 100)  # the first wants less than its share, and gets it
    0.8
    """
    if sum(wanted for wanted, _ in draws) <= cap:
        return 1.0
    left = cap
    limits = sum(limit for _, limit in draws)
    for wanted, limit in sorted(draws, key=lambda draw: draw[0] / draw[1]):
        if wanted * limits > left * limit:
            return left / limits
        left -= wanted
        limits -= limit
    return 1.0
