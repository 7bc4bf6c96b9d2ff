"""Activity buffers that CUPTI wrote on an H200, one file for each version."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from gpustreamlab.backends.cuda.cupti._layouts import find_layouts
from gpustreamlab.backends.cuda.cupti._records import concat_records, parse_buffer

FOLDER = Path(__file__).parents[1] / "unit/cupti/buffers"

MIXED = (22, 26, 130001, 130101, 130202, 130500)
GREEN = (130001, 130101, 130202, 130500)

CALL_NAMES = {
    1: {
        1: "cuInit",
        2: "cuDriverGetVersion",
        17: "cuCtxSynchronize",
        39: "cuMemHostAlloc",
        119: "cuEventRecord",
        126: "cuStreamSynchronize",
        243: "cuMemAlloc_v2",
        277: "cuMemcpyHtoDAsync_v2",
        307: "cuLaunchKernel",
        527: "cuLaunchHostFunc",
        600: "cuMemFreeAsync",
        652: "cuLaunchKernelEx",
        677: "cuGetProcAddress_v2",
    },
    2: {
        17: "cudaGetDevice_v3020",
        20: "cudaMalloc_v3020",
        22: "cudaFree_v3020",
        27: "cudaHostAlloc_v3020",
        41: "cudaMemcpyAsync_v3020",
        51: "cudaMemsetAsync_v3020",
        131: "cudaStreamSynchronize_v3020",
        135: "cudaEventRecord_v3020",
        137: "cudaEventSynchronize_v3020",
        147: "cudaStreamWaitEvent_v3020",
        165: "cudaDeviceSynchronize_v3020",
        211: "cudaLaunchKernel_v7000",
        311: "cudaGraphLaunch_v10000",
        315: "cudaStreamBeginCapture_v10000",
        373: "cudaMallocAsync_v11020",
        375: "cudaFreeAsync_v11020",
    },
}
"""Some of what cuptiGetCallbackName answers, by domain: the recorded calls that are of interest, and others."""


def read_buffers(name, version):
    """Return the bytes of a file's buffers, in order."""
    with np.load(FOLDER / f"{name}-{version}.npz") as file:
        return [file[key] for key in file.files]


def read_records(name, version):
    """Return the records of a file's buffers."""
    layouts = find_layouts(version)
    return concat_records([parse_buffer(data, layouts=layouts) for data in read_buffers(name, version)])


def read_names():
    """Return the texts of the buffers of version 130001 by their addresses."""
    texts = json.loads((FOLDER / "names-130001.json").read_text(encoding="utf-8"))
    return {int(address): text for address, text in texts.items()}
