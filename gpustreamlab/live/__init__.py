"""What a live view is sent: the spans that came since the last time, small and in bounded memory."""

from gpustreamlab.background import DEFAULT_REFRESH_HZ, Updater, check_refresh_hz
from gpustreamlab.live._feed import DEFAULT_CAPACITY, DEFAULT_MAX_RATE, LiveFeed, Update, check_span_limit

__all__ = [
    "DEFAULT_CAPACITY",
    "DEFAULT_MAX_RATE",
    "DEFAULT_REFRESH_HZ",
    "LiveFeed",
    "Update",
    "Updater",
    "check_refresh_hz",
    "check_span_limit",
]
