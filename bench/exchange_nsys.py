"""What reading a report of Nsight Systems costs: a million kernels and their calls, as nsys exports them to SQLite.

The file has the columns of nsys 2026.2. Beside it the floor of whoever asks SQLite: a plain ``fetchall`` of the same columns,
and of them as a data frame. Every reading is in a process of its own, which also tells its peak of memory.
"""

from __future__ import annotations

import json
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench._common import report

NEEDS_GPU = False
ROUNDS = 5
KERNELS = 1_000_000
NAMES, STREAMS, SHAPES = 40, 8, 200

_PID = (1 << 48) + (100 << 24)
_TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start, end, deviceId, contextId, greenContextId, streamId, correlationId, globalPid, demangledName, shortName, "
        "mangledName, launchType, cacheConfig, registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ, "
        "staticSharedMemory, dynamicSharedMemory, localMemoryPerThread, localMemoryTotal, gridId, sharedMemoryExecuted, "
        "graphNodeId, sharedMemoryLimitConfig, qmdBulkReleaseDone, qmdPreexitDone, qmdLastCtaDone, graphId, clusterX, "
        "clusterY, clusterZ, clusterSchedulingPolicy, maxPotentialClusterSize, maxActiveClusters, "
        "sharedMemoryRequestedPercentage, tensorSizeMinusOneElements"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, eventClass, globalTid, correlationId, nameId, returnValue, callchainId",
    "StringIds": "id, value",
}
_READ = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start, end, globalPid, deviceId, contextId, greenContextId, streamId, correlationId, demangledName, shortName, gridX, "
        "gridY, gridZ, blockX, blockY, blockZ, registersPerThread, staticSharedMemory, dynamicSharedMemory, graphNodeId, "
        "graphId"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, globalTid, correlationId, nameId",
}
_WAYS = {
    "read_nsys: a trace": "from gpustreamlab.exchange._nsys import read_nsys as read",
    "read_nsys of the Parquet folder": """
from gpustreamlab.exchange._nsys import read_nsys
def read(path):
    return read_nsys(path.removesuffix(".sqlite"))
""",
    "sqlite3 fetchall: tuples": """
def read(path):
    base = sqlite3.connect(path)
    return [base.execute(f"select {columns} from {table}").fetchall() for table, columns in READ.items()]
""",
    "pandas.read_sql: frames": """
import pandas
def read(path):
    base = sqlite3.connect(path)
    return [pandas.read_sql(f"select {columns} from {table}", base) for table, columns in READ.items()]
""",
}
_PROCESS = """
import json, resource, sqlite3, sys, time
import gpustreamlab.exchange
READ = json.loads(sys.argv[2])
{way}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began, began_cpu = time.perf_counter(), time.process_time()
got = read(sys.argv[1])
took = time.perf_counter() - began, time.process_time() - began_cpu
print(json.dumps([*took, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024]))
"""


def main(argv: list[str] | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = make_report(Path(folder) / "run.sqlite", KERNELS)
        make_folder(path)
        figures: dict[str, list[list[float]]] = {way: [] for way in _WAYS}
        for _ in range(ROUNDS):
            for way in _WAYS:
                figures[way].append(_measure(way, path))
        size = path.stat().st_size / 1e6
    rows = [_row(way, some, size) for way, some in figures.items()]
    report(f"A report of Nsight Systems: {KERNELS:,} kernels and as many calls (median of {ROUNDS} processes)", rows, argv)


def make_report(path: Path, count: int) -> Path:
    """Write a report of so many kernels on a few streams, each with its call."""
    chance = random.Random(0)
    shapes = [(chance.randrange(NAMES), chance.randint(1, 4_096), chance.choice([128, 256])) for _ in range(SHAPES)]
    base = sqlite3.connect(path)
    base.execute("pragma synchronous=off")
    for table, columns in _TABLES.items():
        base.execute(f"create table {table} ({columns.replace(',', ' INTEGER,')} INTEGER)")
    names = [(name, f"void library::kernel_{name}<float, 4>(float*, int)") for name in range(NAMES)]
    base.executemany("insert into StringIds values (?, ?)", [*names, (NAMES, "cudaLaunchKernel_v7000")])

    def kernel(number: int) -> tuple[Any, ...]:
        name, grid, block = shapes[chance.randrange(SHAPES)]
        start = 155_357_525_002 + number * 3_000
        place = (start, start + chance.randint(1_000, 9_000), 0, 1, 0, 7 + number % STREAMS, number + 1, _PID)
        sizes = (1, 1, 32, grid, 1, 1, block, 1, 1, 0, 1_024, 0, 250_871_808, number, 32_768)
        return (*place, name, name, name, *sizes, None, 0, None, None, None, None, 0, 0, 0, 1, 0, 0, None, "[]")

    def call(number: int) -> tuple[Any, ...]:
        start = 155_357_500_000 + number * 3_000
        return start, start + 2_000, 0, _PID + 100, number + 1, NAMES, 0, None

    for table, make in (("CUPTI_ACTIVITY_KIND_KERNEL", kernel), ("CUPTI_ACTIVITY_KIND_RUNTIME", call)):
        marks = ", ".join("?" * len(_TABLES[table].split(",")))
        base.executemany(f"insert into {table} values ({marks})", map(make, range(count)))
    base.commit()
    base.close()
    return path


def make_folder(path: Path) -> None:
    """Write the tables of a report as Parquet files beside it."""
    folder = path.with_suffix("")
    folder.mkdir()
    base = sqlite3.connect(path)
    for table, columns in _TABLES.items():
        cursor = base.execute(f"select * from {table}")
        texts = {"value", "tensorSizeMinusOneElements"}
        schema = pa.schema([(name, pa.string() if name in texts else pa.int64()) for name in columns.split(", ")])
        with pq.ParquetWriter(folder / f"{table}.parquet", schema) as writer:
            while rows := cursor.fetchmany(10_000):  # else the peak of this process counts as that of those that it starts
                writer.write_table(pa.table(list(zip(*rows, strict=True)), schema=schema))
    base.close()


def _measure(way: str, path: Path) -> list[float]:
    """Return seconds, seconds of CPU and MB of memory of one reading."""
    code = _PROCESS.format(way=_WAYS[way])
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), json.dumps(_READ)], capture_output=True, text=True, check=True
    )
    figures: list[float] = json.loads(done.stdout)
    return figures


def _row(way: str, figures: list[list[float]], size: float) -> dict[str, Any]:
    seconds, cpu_seconds, megabytes = zip(*figures, strict=True)
    return {
        "way": way,
        "MB of file": round(size),
        "s": round(statistics.median(seconds), 2),
        "best s": round(min(seconds), 2),
        "CPU s": round(statistics.median(cpu_seconds), 2),
        "peak MB": round(statistics.median(megabytes)),
    }


if __name__ == "__main__":
    main()
