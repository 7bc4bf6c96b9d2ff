"""The version of the package, read by the build as well as at run time."""

__version__ = "0.1.0"
