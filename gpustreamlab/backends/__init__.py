"""What a device has to be able to do, and the two that ship: the simulated one and CUDA."""

from gpustreamlab.backends._activity import (
    OWN_PREFIX,
    Activities,
    ActivitySource,
    AnnotationBatch,
    CallBatch,
    CallClass,
    DependencyBatch,
    MemoryBatch,
    StreamFacts,
    WorkBatch,
)
from gpustreamlab.backends._features import AccessSink, ArrayLender, WatchedArrays, green_capabilities, lent_handle
from gpustreamlab.backends._protocol import (
    Backend,
    BackendContext,
    BackendStream,
    ClockInfo,
    ContextSpec,
    RangeTimes,
    SplitGroup,
    acquire_order_event,
    order_behind,
    release_order_events,
)
from gpustreamlab.backends._select import BACKEND_NAMES, Choice, choose_backend

__all__ = [
    "BACKEND_NAMES",
    "OWN_PREFIX",
    "AccessSink",
    "Activities",
    "ActivitySource",
    "AnnotationBatch",
    "ArrayLender",
    "Backend",
    "BackendContext",
    "BackendStream",
    "CallBatch",
    "CallClass",
    "Choice",
    "ClockInfo",
    "ContextSpec",
    "DependencyBatch",
    "MemoryBatch",
    "RangeTimes",
    "SplitGroup",
    "StreamFacts",
    "WatchedArrays",
    "WorkBatch",
    "acquire_order_event",
    "choose_backend",
    "green_capabilities",
    "lent_handle",
    "order_behind",
    "release_order_events",
]
