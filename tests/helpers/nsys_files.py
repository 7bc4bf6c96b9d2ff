"""Reports as Nsight Systems exports them to SQLite, made here: tables without rows are left out, as nsys does."""

from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

EPOCH_NS = 1_700_000_000_123_456_789
PID, OTHER_PID = 100, 101
NO_NUMBER = 0xFFFF_FFFF
"""How nsys stores "none" in columns of 32 bits."""
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
COPY, FILL = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
RUNTIME, SYNC = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
EVENT, GRAPH = "CUPTI_ACTIVITY_KIND_CUDA_EVENT", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
OVERHEAD = "CUPTI_ACTIVITY_KIND_OVERHEAD"
SINCE_2023 = ("META_DATA_EXPORT", "TARGET_INFO_CUDA_DEVICE", "TARGET_INFO_CUDA_CONTEXT_INFO", EVENT, OVERHEAD)
"""Tables that reports of 2022 do not have."""
NEW_COLUMNS = {"greenContextId", "graphId", "eventSyncId", "clusterX"}
"""Columns that they do not have."""
_TEXTS = {"value", "name", "text", "tpcMask"}


def process(pid=PID):
    """Return nsys's number of a process."""
    return (1 << 48) + (pid << 24)


class NsysFile:
    """A report that is being made. Each method adds a row, and takes further columns by their names."""

    def __init__(self):
        self.tables = {}
        self._strings = {}

    def add(self, table, **columns):
        self.tables.setdefault(table, []).append(columns)

    def string(self, text):
        """Return the number of a string."""
        if text not in self._strings:
            self._strings[text] = len(self._strings) + 10
            self.add("StringIds", id=self._strings[text], value=text)
        return self._strings[text]

    def kernel(self, start, end, name="gemm", *, grid=(64, 2, 1), **more):
        where, more = _split(more)
        sizes = dict(zip(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), (*grid, 128, 1, 1), strict=True))
        own = {"registersPerThread": 32, "staticSharedMemory": 1024, "dynamicSharedMemory": 512}
        own |= {"graphNodeId": None, "graphId": 0, "clusterX": 0}
        names = {"demangledName": self.string(f"void {name}<float>(float*)"), "shortName": self.string(name)}
        self.add(KERNEL, **_work(start, end, **where) | names | sizes | own | more)

    def copy(self, start, end, kind=1, ends=(1, 2), **more):
        where, more = _split(more)
        own = {"bytes": 4096, "copyKind": kind, "srcKind": ends[0], "dstKind": ends[1], "graphNodeId": None}
        self.add(COPY, **_work(start, end, **where) | own | more)

    def fill(self, start, end, **more):
        where, more = _split(more)
        own = {"value": 0, "bytes": 64, "graphNodeId": None, "memKind": 2}
        self.add(FILL, **_work(start, end, **where) | own | more)

    def graph(self, start, end, graph=5, **more):
        where, more = _split(more)
        self.add(GRAPH, **_work(start, end, **where) | {"graphId": graph, "graphExecId": graph} | more)

    def call(self, start, end, name="cudaLaunchKernel_v7000", *, correlation=1, pid=PID, thread=None, **more):
        own = {"eventClass": 0, "globalTid": process(pid) + (thread or pid), "correlationId": correlation}
        self.add(RUNTIME, start=start, end=end, **own | {"nameId": self.string(name), "returnValue": 0} | more)

    def launch(self, at, start, end, name="gemm", **where):
        """Add a kernel and its call."""
        self.call(at, at + 10, correlation=where.get("correlation", 1), pid=where.get("pid", PID))
        self.kernel(start, end, name, **where)

    def wait(self, at, *, correlation, pid=PID, **more):
        """Add a stream's wait for an event, and its call."""
        self.call(at, at + 5, "cudaStreamWaitEvent_v3020", correlation=correlation, pid=pid)
        self.sync(at + 1, at + 2, correlation=correlation, pid=pid, **more)

    def sync(self, start, end, *, stream=NO_NUMBER, event=NO_NUMBER, tie=0, kind=2, **more):
        where, more = _split(more | {"stream": stream, "green": None})
        self.add(SYNC, **_work(start, end, **where) | {"syncType": kind, "eventId": event, "eventSyncId": tie} | more)

    def record(self, at, *, event, tie=0, correlation, pid=PID, **more):
        """Add an event's record, and its call."""
        self.call(at, at + 5, "cudaEventRecord_v3020", correlation=correlation, pid=pid)
        where, more = _split(more | {"correlation": correlation, "pid": pid, "green": None})
        row = _work(0, 0, **where) | {"timestamp": 0, "eventId": event, "eventSyncId": tie} | more
        self.add(EVENT, **{name: value for name, value in row.items() if name not in {"start", "end"}})

    def nvtx(self, start, end, text=None, *, kind=59, pid=PID, thread=None, domain=0, registered=None, **more):
        own = {"text": text, "textId": None if registered is None else self.string(registered), "domainId": domain}
        row = {"start": start, "end": end, "eventType": kind, "globalTid": process(pid) + (thread or pid)}
        self.add("NVTX_EVENTS", **row | own | more)

    def gpu(self, number=0, name="demo", sms=132, **more):
        own = {"totalMemory": 1 << 34, "smCount": sms, "cuDevice": number, "computeMajor": 9, "computeMinor": 0}
        limits = {"maxRegistersPerSm": 65_536, "maxShmemPerSm": 200_000, "threadsPerWarp": 32, "maxWarpsPerSm": 64}
        self.add("TARGET_INFO_GPU", id=number, name=name, **own | limits | {"maxBlocksPerSm": 32} | more)

    def context(self, context=1, *, pid=PID, device=0, null=7, parent=0, green=0, sms=0, mask=None, **more):
        own = {"nullStreamId": null, "processId": pid, "deviceId": device, "contextId": context, "parentContextId": parent}
        more = {"isGreenContext": green, "numMultiprocessors": sms, "tpcMask": mask} | more
        self.add("TARGET_INFO_CUDA_CONTEXT_INFO", **own | more)

    def stream(self, stream, *, pid=PID, context=1, priority=0, flag=2):
        self.add("TARGET_INFO_CUDA_STREAM", streamId=stream, processId=pid, contextId=context, priority=priority, flag=flag)

    def session(self, version="2026.2.1.210"):
        """Add what every report tells."""
        self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=EPOCH_NS)
        self.add("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value=version)

    def write(self, path: Path, *, shuffled: int | None = None, is_old: bool = False, page_bytes: int = 4096) -> Path:
        """Write it.

        Parameters
        ----------
        shuffled
            Put the rows and the columns of each table in a random order.
        is_old
            Leave out what reports of 2022 do not have.
        """
        chance = random.Random(shuffled)
        base = sqlite3.connect(path)
        base.execute(f"pragma page_size={page_bytes}")
        for table, rows in self.tables.items():
            if is_old and table in SINCE_2023:
                continue
            columns = list(dict.fromkeys(name for row in rows for name in row if not (is_old and name in NEW_COLUMNS)))
            ordered = list(rows)
            if shuffled is not None:
                chance.shuffle(ordered)
                chance.shuffle(columns)
            declared = ", ".join(
                f'"{name}" {"TEXT" if name in _TEXTS and table != "GPU_METRICS" else "INTEGER"}' for name in columns
            )
            base.execute(f'create table "{table}" ({declared})')
            values = [[row.get(name) for name in columns] for row in ordered]
            base.executemany(f'insert into "{table}" values ({", ".join("?" * len(columns))})', values)
        base.commit()
        base.close()
        return path

    def write_folder(self, folder: Path) -> Path:
        """Write it as ``nsys export --type=parquetdir`` does."""
        folder.mkdir()
        for table, rows in self.tables.items():
            columns = list(dict.fromkeys(name for row in rows for name in row))
            made = pa.table({name: [row.get(name) for row in rows] for name in columns})
            pq.write_table(made, folder / f"{table}.parquet")
        return folder

    def write_lines(self, path: Path, *, strings_last: bool = False, by_line: bool = False) -> Path:
        """Write it as ``nsys export --type=jsonlines`` does; of the cards and streams that tells nothing.

        The layout is that of NVIDIA's "JSON and Text Format Description", and of lines of nsys 2022 to 2025 that people
        published: numbers of 64 bits are texts, what a CUDA event is of stands in it, texts are numbers of strings.
        """
        known = {row["id"]: row["value"] for row in self.tables["StringIds"]}
        strings = [{"data": [known.get(number, "") for number in range(max(known) + 1)]}]
        if by_line:
            strings = [{"type": "String", "id": str(number), "value": text} for number, text in known.items()]
        events = []
        for table, (event, kind, part) in _LINES.items():
            for row in self.tables.get(table, ()):
                told = {_LINE_NAMES[event].get(key, key): value for key, value in row.items() if value is not None}
                if part:
                    own = {key: told.pop(key) for key in [*told] if key not in _OF_EVENTS}
                    own["sizebytes"] = str(own.pop("bytes", 0))
                    told |= {"startNs": told.get("startNs", "0"), part: own}
                told |= {key: str(value) for key, value in told.items() if key in _LONG}
                events.append({"Type": told.get("Type", kind), event: told})
        events.append({"Type": 41, "SchedEvent": {"startTime": "5", "cpu": 3}})
        system = {"startNs": "1", "endNs": "2", "correlationId": 0, "eventClass": 27, "name": "0", "globalTid": "5"}
        events.append({"Type": 47, "TraceProcessEvent": system})
        lines = [*events, *strings] if strings_last else [*strings, *events]
        lines.append({"data": [{"nameIdx": "14", "priority": "10", "globalTid": "292568055813839"}]})
        path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
        return path


_LINES = {
    RUNTIME: ("TraceProcessEvent", 48, ""),
    KERNEL: ("CudaEvent", 79, "kernel"),
    COPY: ("CudaEvent", 80, "memcpy"),
    FILL: ("CudaEvent", 80, "memset"),
    SYNC: ("CudaEvent", 106, "sync"),
    EVENT: ("CudaEvent", 127, "cudaEventRecord"),
    "NVTX_EVENTS": ("NvtxEvent", 59, ""),
}
_LINE_NAMES = {"CudaEvent": {"start": "startNs", "end": "endNs"}}
_LINE_NAMES["TraceProcessEvent"] = _LINE_NAMES["CudaEvent"] | {"nameId": "name"}
_LINE_NAMES["NvtxEvent"] = {"start": "Timestamp", "end": "EndTimestamp", "eventType": "Type", "globalTid": "GlobalTid"}
_LINE_NAMES["NvtxEvent"] |= {"text": "Text", "textId": "TextId", "domainId": "DomainId"}
_OF_EVENTS = {"startNs", "endNs", "deviceId", "contextId", "greenContextId", "streamId", "correlationId", "globalPid"}
_LONG = {
    "startNs",
    "endNs",
    "contextId",
    "streamId",
    "globalPid",
    "globalTid",
    "name",
    "Timestamp",
    "EndTimestamp",
    "GlobalTid",
}


def _work(start, end, *, stream=7, correlation=1, pid=PID, device=0, context=1, green=0):
    place = {"deviceId": device, "contextId": context, "greenContextId": green, "streamId": stream}
    return {"start": start, "end": end, **place, "correlationId": correlation, "globalPid": process(pid)}


def _split(given):
    """Return what tells where work ran, and the rest."""
    where = {"stream", "correlation", "pid", "device", "context", "green"}
    return tuple({name: value for name, value in given.items() if (name in where) is told} for told in (True, False))


def two_streams() -> NsysFile:
    """Return a report of a copy, and of kernels on two streams, one of which waits for the other."""
    made = NsysFile()
    made.session()
    made.gpu()
    made.add("TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=0, pid=PID)
    made.context()
    made.stream(13)
    made.stream(14, priority=0xFFFF_FFFD, flag=1)
    made.nvtx(0, 5_000, "step")
    made.nvtx(90, 400, registered="launches", domain=3)
    made.nvtx(0, None, "NCCL", kind=75, domain=3)
    made.nvtx(4_000, None, "done", kind=34)
    made.call(100, 120, "cudaMemcpyAsync_v3020", correlation=1)
    made.copy(200, 1_200, stream=7, correlation=1)
    made.launch(130, 300, 1_300, "producer", stream=13, correlation=2)
    made.record(150, stream=13, event=40, tie=9, correlation=3)
    made.wait(160, stream=14, event=40, tie=9, correlation=4)
    made.launch(170, 1_400, 2_400, "consumer", stream=14, correlation=5)
    made.call(180, 185, "cudaMemsetAsync_v3020", correlation=6, thread=102)
    made.fill(2_500, 2_600, stream=14, correlation=6)
    made.call(190, 2_700, "cudaDeviceSynchronize_v3020", correlation=7)
    made.sync(195, 2_690, kind=1, correlation=7)
    made.add(OVERHEAD, start=1, end=2, overheadType=3)
    return made
