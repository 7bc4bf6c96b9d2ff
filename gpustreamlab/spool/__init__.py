"""A run on disk while it goes on: nothing is lost when the process is killed."""

from gpustreamlab.spool._file import DEFAULT_LIMIT_BYTES, SpoolFile, open_spool_file
from gpustreamlab.spool._read import load_trace, read_spool
from gpustreamlab.spool._spool import REFRESH_HZ, Spool

__all__ = ["DEFAULT_LIMIT_BYTES", "REFRESH_HZ", "Spool", "SpoolFile", "load_trace", "open_spool_file", "read_spool"]
