"""Traces that other tools recorded."""

from gpustreamlab.exchange._kineto import read_kineto
from gpustreamlab.exchange._kineto_json import is_json

__all__ = ["is_json", "read_kineto"]
