"""What is written as Chrome's JSON comes back as it was."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from gpustreamlab.errors import OptionError, TraceFileError
from gpustreamlab.exchange._chrome import read_chrome
from gpustreamlab.exchange._chrome_write import FIRST_THREAD, write_chrome
from gpustreamlab.model import Counters, Edges, Marker
from gpustreamlab.typing import MarkerKind
from tests.helpers.kernel_traces import kernel_trace  # noqa: F401
from tests.helpers.traces import evil_trace, make_trace, many_partitions_trace, nested_trace, partition_trace, random_trace, repartition_trace
from tests.unit.model.equality import assert_same_trace
from tests.unit.model.strategies import traces
