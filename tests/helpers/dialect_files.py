"""Small files of other profilers, made by hand after the schemas that the readers name."""

from __future__ import annotations

import json
import sqlite3

ONNX = [
    {"cat": "Session", "pid": 5, "tid": 6, "dur": 1000, "ts": 5, "ph": "X", "name": "model_run", "args": {}},
    {"cat": "Node", "pid": 5, "tid": 6, "dur": 300, "ts": 20, "ph": "X", "name": "MatMul_kernel_time", "args": {}},
    {"cat": "Kernel", "pid": -1, "tid": -1, "dur": 30, "ts": 30, "ph": "X", "name": "MemcpyHostToDevice"}
    | {"args": {"stream": "7", "copy_kind": "1", "size": "4096"}},
    {"cat": "Kernel", "pid": -1, "tid": -1, "dur": 80, "ts": 60, "ph": "X", "name": "ampere_sgemm_32x32"}
    | {"args": {"stream": "7", "grid_x": "64", "grid_y": "2", "grid_z": "1", "block_x": "128", "block_y": "1", "block_z": "1"}},
    {"cat": "Kernel", "pid": -1, "tid": -1, "dur": 50, "ts": 150, "ph": "X", "name": "add_kernel", "args": {"stream": "13"}},
]


def named(pid, name, tid=None):
    """Return the event that names a process, or a thread of it."""
    what = {} if tid is None else {"tid": tid}
    return {"ph": "M", "name": "process_name" if tid is None else "thread_name", "pid": pid, "args": {"name": name}} | what


def slice_of(pid, tid, name, start_us, lasts_us, **more):
    """Return a slice of a thread."""
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": start_us, "dur": lasts_us} | more


def flow(pid, tid, phase, number, at_us):
    """Return an end of a flow."""
    return {"ph": phase, "cat": "flow", "name": "dep", "id": number, "pid": pid, "tid": tid, "ts": at_us, "bp": "e"}


ASCEND = [
    named(1, "AscendCL"),
    named(2, "Ascend Hardware"),
    named(2, "Stream 46", 46),
    named(2, "Step Trace(Model ID:1)", 70001),
    named(3, "Overlap Analysis"),
    slice_of(1, 9, "aclnnMatmul", "1730943468310229.220", 5.5),
    flow(1, 9, "s", 1, "1730943468310229.220"),
    slice_of(2, 46, "MatMulV2", "1730943468310300.120", 130, args={"Task Type": "AI_CORE"}),
    flow(2, 46, "f", 1, "1730943468310300.120"),
    slice_of(2, 43, "MEMCPY_ASYNC", "1730943468310310.000", 30),
    slice_of(2, 43, "EVENT_WAIT", "1730943468310340.000", 60),
    slice_of(2, 70001, "Iteration 1", "1730943468310300.000", 500),
    slice_of(3, 1, "Computing", "1730943468310300.000", 130),
]
UNITRACE = [
    named(10, "RANK 0 HOST<node>"),
    named(4294967293, "RANK 0 DEVICE<node>[Intel(R) Data Center GPU Max 1550] 0:29:0:0 #1"),
    named(4294967293, "Thread 10 Compute Engine<0,0>", 4294967292),
    slice_of(10, 10, "zeCommandListAppendLaunchKernel", 100.5, 5, cat="cpu_op"),
    flow(10, 10, "s", 3, 100.5),
    slice_of(4294967293, 4294967292, "gemm[SIMD32 {8; 1; 1} {256; 1; 1}]", 120.25, 50, cat="gpu_op", args={"id": "3"}),
    flow(4294967293, 4294967292, "t", 3, 120.25),
]
ROCPROF = [
    named(2, "CPU HIP API"),
    named(8, "GPU1"),
    slice_of(2, 77, "hipLaunchKernel", "100", "5"),
    slice_of(8, 0, "saxpy(float*)", "120", "50", args={"queue-id": "0"}),
    slice_of(8, 1, "sgemm", "130", "60", args={"queue-id": "1"}),
]
OPENCL = [
    named(7, "HOST<node>"),
    named(8, "DEVICE<node>[Intel(R) Arc(TM) A770 Graphics] 0:3:0:0"),
    named(8, "CL Queue<0x5581>", 5),
    slice_of(8, 5, "clEnqueueWriteBuffer", 100, 20, cat="gpu_op"),
    slice_of(8, 5, "saxpy", 120, 50, cat="gpu_op"),
]
RPD = [
    {},
    named("2", "GPU2"),
    named("77", "Hip 77", "77"),
    slice_of("77", "77", "hipMemcpyWithStream", "100", "30", args={"desc": ""}),
    slice_of("2", "0", "CopyHostToDevice", "120", "50", args={"desc": "CopyHostToDevice"}),
    slice_of("2", "0", "FillBuffer", "180", "5"),
    flow("77", "77", "s", "1", "100"),
    flow("2", "0", "f", "1", "120"),
]
TENSORFLOW_1 = [
    named(1, "/gpu:0/context#0/stream#1:Kernel Compute"),
    named(2, "/device:GPU:0/memcpy Compute"),
    slice_of(1, 0, "MatMul", 1010, 40, cat="Op"),
    slice_of(2, 0, "MEMCPYHtoD", 1000, 4, cat="Op"),
]
TENSORFLOW = [
    named(1, "/job:localhost/replica:0/task:0/device:GPU:0/stream:13 Compute"),
    named(2, "/job:localhost/replica:0/task:0/device:GPU:0/stream:all Compute"),
    named(3, "/job:localhost/replica:0/task:0/device:CPU:0 Compute"),
    slice_of(3, 0, "MatMul", 1000, 8, cat="Op", args={"name": "dense/MatMul", "op": "MatMul"}),
    slice_of(1, 0, "MatMul", 1010, 40, cat="Op", args={"name": "dense/MatMul", "op": "MatMul"}),
    slice_of(2, 0, "MatMul", 1010, 40, cat="Op", args={"name": "dense/MatMul", "op": "MatMul"}),
]


def chrome(events):
    """Return the bytes of a file of such events."""
    return json.dumps({"traceEvents": events}).encode()


def onnx():
    """Return a profile of ONNX Runtime, with blanks as it has them."""
    return b"[\n" + b",\n".join(json.dumps(event, separators=(",", " :")).encode() for event in ONNX) + b"\n]\n"


AGENT = {"cu_count": 304, "lds_size_in_kb": 64, "simd_per_cu": 4, "max_waves_per_simd": 8, "wave_front_size": 64}


def _as_schema_4(tables):
    """Put times and tracks into tables of their own."""
    times, tracks = [], []
    for name in ("rocpd_region", "rocpd_kernel_dispatch", "rocpd_memory_copy"):
        columns, rows = tables[name]
        columns, found = columns.split(), []
        for row in rows:
            told = dict(zip(columns, row, strict=True))
            tracks.append((len(tracks) + 1, *(told.pop(one, None) for one in ("agent_id", "queue_id", "stream_id", "tid"))))
            for end in ("end", "start"):
                times.append((len(times) + 1, told.pop(end)))
                told[f"{end}_id"] = len(times)
            found.append(told | {"track_id": len(tracks)})
        tables[name] = " ".join(found[0]), [tuple(one.values()) for one in found]
    tables["rocpd_timestamp"], tables["rocpd_track"] = ("id value", times), ("id agent_id queue_id stream_id tid", tracks)


def rocpd(path, suffix="_0000abcd", schema=3):
    """Write a database of rocprofv3: two kernels of two streams, a copy, their calls and a range.

    The tables are those of ``rocpd_tables.sql`` of rocprofiler-sdk: up to schema 3 with times in each row, from 4 on with
    numbers of times and of tracks.
    """
    tables = {
        "rocpd_string": ("id string", [(1, "HIP_RUNTIME_API"), (2, "MARKER_CORE_API"), (3, "hipLaunchKernel")]),
        "rocpd_info_agent": ("id type type_index product_name uuid extdata", [(1, "CPU", 0, "EPYC", 0, "{}")]),
        "rocpd_info_thread": ("id tid", [(1, 4711)]),
        "rocpd_info_kernel_symbol": (
            "id kernel_name display_name",
            [(1, "_Z5saxpy.kd", "saxpy(float*)"), (2, "gemm.kd", None)],
        ),
        "rocpd_event": ("id category_id stack_id correlation_id", [(1, 1, 11, 0), (2, 1, 12, 0), (3, 1, 13, 0), (4, 2, 14, 0)]),
        "rocpd_region": (
            "start end tid name_id event_id",
            [(1000, 1500, 1, 3, 1), (2000, 2500, 1, 3, 2), (2600, 2900, 1, 4, 3)],
        ),
    }
    tables["rocpd_string"][1].extend([(4, "hipMemcpyAsync"), (5, "MEMORY_COPY_HOST_TO_DEVICE"), (6, "step")])
    tables["rocpd_info_agent"][1].append((2, "GPU", 0, "AMD Instinct MI300X", 77, json.dumps(AGENT)))
    tables["rocpd_event"][1].extend([(5, 1, 11, 0), (6, 1, 12, 0), (7, 1, 13, 0)])
    tables["rocpd_region"][1].append((900, 9000, 1, 6, 4))
    columns = "start end agent_id queue_id stream_id kernel_id event_id group_segment_size"
    columns += "".join(f" {what}_size_{axis}" for what in ("workgroup", "grid") for axis in "xyz")
    tables["rocpd_kernel_dispatch"] = (
        columns,
        [
            (3000, 5000, 2, 1, 1, 1, 5, 1024, 256, 1, 1, 1000, 1, 1),
            (4000, 7000, 2, 2, 2, 2, 6, 0, 64, 2, 1, 640, 4, 1),
        ],
    )
    columns = "start end dst_agent_id src_agent_id queue_id stream_id name_id event_id size"
    tables["rocpd_memory_copy"] = columns, [(7000, 8000, 2, 1, None, 1, 5, 7, 4096)]
    if schema > 3:
        _as_schema_4(tables)
    with sqlite3.connect(path) as base:
        for name, (columns, rows) in tables.items():
            quoted = ", ".join(f'"{column}"' for column in columns.split())
            base.execute(f'create table "{name}{suffix}" ({quoted})')
            base.executemany(f'insert into "{name}{suffix}" values ({", ".join("?" * len(rows[0]))})', rows)
        base.execute(f'create view rocpd_kernel_dispatch as select * from "rocpd_kernel_dispatch{suffix}"')
    base.close()
    return path


def rpd(path):
    """Write a database of rocmProfileData."""
    with sqlite3.connect(path) as base:
        base.execute("create table rocpd_string(id integer primary key, string text)")
        base.execute("create table rocpd_op(id integer primary key, gpuId, queueId, start, end, description_id, opType_id)")
        base.execute("create table rocpd_api(id integer primary key, pid, tid, start, end, apiName_id)")
        base.execute("create table rocpd_api_ops(id integer primary key, api_id, op_id)")
        names = [(1, "KernelExecution"), (2, "saxpy"), (3, "hipLaunchKernel"), (4, "CopyHostToDevice"), (5, "")]
        base.executemany("insert into rocpd_string values (?, ?)", names)
        base.executemany(
            "insert into rocpd_op values (?, ?, ?, ?, ?, ?, ?)", [(1, 0, 0, 300, 900, 2, 1), (2, 1, 0, 950, 990, 5, 4)]
        )
        base.execute("insert into rocpd_api values (8, 1, 77, 100, 200, 3)")
        base.execute("insert into rocpd_api_ops values (1, 8, 1)")
    base.close()
    return path


def _handle(number):
    return {"handle": number}


def _record(kind, operation, start, end, internal, **more):
    found = {"kind": kind, "operation": operation, "start_timestamp": start, "end_timestamp": end, "thread_id": 77}
    return found | {"correlation_id": {"internal": internal, "external": 0}} | more


def _tool(**records):
    """Return JSON of rocprofv3 with such records, of a machine with a card of AMD, its agent 9."""
    kinds = [{"kind": "NONE", "operations": []}, {"kind": "HIP_API", "operations": ["hipLaunchKernel", "hipStreamWaitEvent"]}]
    kinds += [{"kind": "MEMORY_COPY", "operations": ["MEMORY_COPY_NONE", "MEMORY_COPY_DEVICE_TO_HOST"]}]
    tool = {
        "agents": [
            {"id": _handle(8), "type": 1, "name": "EPYC"},
            {"id": _handle(9), "type": 2, "product_name": "MI300X"} | AGENT,
        ],
        "kernel_symbols": [{"kernel_id": 5, "formatted_kernel_name": "saxpy(float*)"}],
        "strings": {"buffer_records": kinds, "marker_api": [{"key": 3, "value": "step"}]},
        "buffer_records": records,
    }
    return json.dumps({"rocprofiler-sdk-tool": [tool]}).encode()


def _dispatch(threads, queue):
    size = [{"x": x, "y": 1, "z": 1} for x in (256, threads)]
    info = {"agent_id": _handle(9), "queue_id": _handle(queue), "kernel_id": 5, "group_segment_size": 512}
    return info | {"workgroup_size": size[0], "grid_size": size[1]}


def rocprofv3_json():
    """Return JSON of rocprofv3: a kernel, a copy, a call and a marker."""
    return _tool(
        kernel_dispatch=[_record(9, 1, 3000, 5000, 1, dispatch_info=_dispatch(1000, 1))],
        memory_copy=[_record(2, 1, 6000, 7000, 2, src_agent_id=_handle(9), dst_agent_id=_handle(8), bytes=64)],
        hip_api=[_record(1, 0, 1000, 1500, 1)],
        marker_api=[_record(7, 1, 900, 8000, 3)],
        scratch_memory=[_record(7, 1, 900, 8000, 3)],
    )


def hip_in_turn(streams, queues, *, call=0, count=12, copies=()):
    """Return JSON of rocprofv3: small kernels, launched early, that ran one after the other on HIP streams and HSA queues.

    Before each of them is a call of HIP: 0 for its launch alone, 1 for a stream that waits for an event first; copies are of
    streams.
    """
    kernels, calls = [], []
    for turn in range(count):
        at, more = 2_000_000 + turn * 303_000, {"stream_id": _handle(streams[turn % len(streams)])}
        info = _dispatch(2048, queues[turn % len(queues)])
        kernels.append(_record(9, 1, at, at + 300_000, turn + 1, dispatch_info=info, **more))
        calls += [_record(1, 1, 998_000 + turn * 6_000, 999_000 + turn * 6_000, 1_000 + turn)] * call
        calls.append(_record(1, 0, 1_000_000 + turn * 6_000, 1_004_000 + turn * 6_000, turn + 1))
    copied = [
        _record(2, 1, at, at + 9, 90, src_agent_id=_handle(9), dst_agent_id=_handle(8), bytes=64, stream_id=_handle(stream))
        for at, stream in enumerate(copies, 9_000_000)
    ]
    return _tool(kernel_dispatch=kernels, memory_copy=copied, hip_api=calls)


# As nsys stats --report cuda_gpu_trace --format csv of 2024 writes it to the screen; kinds of memory are words.
NSYS_CSV = (
    "\nStart (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),"
    "SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name\n"
    '900,100,5,64,2,1,128,1,1,40,0.002,0.000,,,,NVIDIA H100 80GB (1),1,,7,"void gemm<float, 2>(Params)"\n'
    "100,300,4,,,,,,,,,,0.004,Pageable,Device,NVIDIA H100 80GB (1),1,,13,[CUDA memcpy Host-to-Device]\n"
)
ROCM_CSV = (
    '"Kind","Agent_Id","Queue_Id","Stream_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp","LDS_Block_Size",'
    '"Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
    '"KERNEL_DISPATCH","Agent 1",17,26,"sgemm",10,6000,7000,0,64,1,1,64,1,1\n'
    '"KERNEL_DISPATCH","Agent 1",2,0,"saxpy(float*)",9,3000,5000,1024,256,1,1,1000,1,1\n\n'
)
ROCM_COPIES = (
    '"Kind","Direction","Source_Agent_Id","Destination_Agent_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
    '"MEMORY_COPY","HOST_TO_DEVICE",0,1,0,100,200\n"MEMORY_COPY","MEMORY_COPY_DEVICE_TO_HOST",1,0,0,300,400\n'
)
MEMORY = [[10, 20], [[0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 9, 8, 7, 6, 5, 4, 3, 2]]]


def _varint(number):
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes(found) + bytes([number])


def _message(*fields):
    """Return a message of protobuf: numbers of fields, and whole numbers, texts or messages."""
    found = b""
    for number, value in fields:
        if isinstance(value, int):
            found += _varint(number << 3) + _varint(value)
        else:
            raw = value.encode() if isinstance(value, str) else value
            found += _varint(number << 3 | 2) + _varint(len(raw)) + raw
    return found


def xplane(*, of_tensorflow=False):
    """Return an XPlane file: a kernel and a copy on two streams of card 1, their calls, and a line that sums up.

    TensorFlow has more of those, also for each stream, on the host, and a plane of all streams.
    """
    names = {1: "gemm", 2: "MemcpyH2D", 3: "cuLaunchKernel", 4: "fusion"}
    stats = {1: "correlation_id", 2: "kernel_details", 3: "memcpy_details", 4: "core_count"}
    named = [(4, _message((1, key), (2, _message((1, key), (2, name))))) for key, name in names.items()]
    named += [(5, _message((1, key), (2, _message((1, key), (2, name))))) for key, name in stats.items()]

    def event(name, offset_ps, lasts_ps, *told):
        return 4, _message((1, name), (2, offset_ps), (3, lasts_ps), *((4, _message(*stat)) for stat in told))

    kernel = event(1, 2_000_000, 500_500, ((1, 1), (3, 7)), ((1, 2), (5, "regs:32 static_shared:64 grid:8,2,1 block:128,1,1")))
    copied = event(2, 1_000_000, 300_000, ((1, 1), (3, 8)), ((1, 3), (5, "size:4096")))
    lines = [(3, _message((1, 17), (2, "Stream #17(Kernel)"), (3, 1000), kernel))]
    lines += [(3, _message((1, 18), (2, "Stream #18(MemcpyH2D)"), (3, 1000), copied))]
    lines += [(3, _message((1, 2), (2, "XLA Ops"), (3, 1000), event(4, 0, 9_000_000)))]
    call = event(3, 500_000, 100_000, ((1, 1), (3, 7)))
    of_host, planes = [(3, _message((1, 5), (2, "python"), (3, 1000), call))], []
    if of_tensorflow:
        sums = ("TensorFlow Ops", "TensorFlow Name Scope", "Framework Ops", "Source code", "XLA Ops - from Stream #17(Kernel)")
        lines += [(3, _message((1, 20 + at), (2, name), (3, 1000), kernel)) for at, name in enumerate(sums)]
        of_host += [
            (3, _message((1, 30 + at), (2, name), (3, 1000), kernel)) for at, name in enumerate((*sums[:2], "Launch Stats"))
        ]
        planes = [
            _message(
                (2, "/device:GPU:1/stream:all"), (3, _message((1, 17), (2, "Stream #17(Kernel)"), (3, 1000), kernel)), *named
            )
        ]
    card = _message((2, "/device:GPU:1"), *lines, *named, (6, _message((1, 4), (3, 132))))
    return _message((1, card), (1, _message((2, "/host:CPU"), *of_host, *named)), *((1, plane) for plane in planes))


def perfetto_of_amd():
    """Return a Perfetto trace of rocprofv3: a call, a copy and two kernels of agent 4, the first launched by the call."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

    trace = messages.Trace()
    queues = ("COMPUTE AGENT [4] QUEUE [0] (GPU)", "COMPUTE AGENT [4] QUEUE [1] (GPU)", "COPY to AGENT [4] THREAD [0] (GPU)")
    for uuid, name in enumerate((*queues, "THREAD 0 (77)"), 1):
        described = trace.packet.add().track_descriptor
        described.uuid, described.name = uuid, name
    spans = [(4, "hip_api", "hipLaunchKernel", 100, 400), (3, "memory_copy", "MEMORY_COPY_HOST_TO_DEVICE", 500, 900)]
    spans += [(1, "kernel_dispatch", "saxpy", 1000, 5000), (2, "kernel_dispatch", "sgemm", 2000, 7000)]
    for uuid, category, name, start_ns, end_ns in spans:
        for time_ns, type_ in ((start_ns, 1), (end_ns, 2)):
            packet = trace.packet.add(timestamp=time_ns, trusted_packet_sequence_id=1)
            packet.track_event.track_uuid, packet.track_event.type = uuid, type_
            if type_ == 1:
                packet.track_event.name = name
                packet.track_event.categories.append(category)
                if name in {"hipLaunchKernel", "saxpy"}:
                    packet.track_event.flow_ids.append(9)
    return trace.SerializeToString()


def xpu():
    """Return a profile of PyTorch on an Intel card: two kernels of two queues and their calls.

    Arguments are those of Kineto's plugin for XPUs: handles are texts, and a row is a SYCL queue.
    """
    events = []
    for number, (start, queue) in enumerate(((1000, 1), (1500.5, 2)), 1):
        call = slice_of(10, 10, "urEnqueueKernelLaunch", 900 + number, 5, cat="xpu_runtime", args={"correlation": number})
        args = {"correlation": number, "appended": 1, "device": 0, "context": "0x5581a0", "sycl queue": queue}
        args |= {"l0 queue": "0x77b0", "kernel_id": number}
        events += [call, slice_of(0, queue, "gemm_kernel", start, 400, cat="kernel", args=args)]
    card = {"id": 0, "name": "Intel(R) Data Center GPU Max 1550"}
    return json.dumps({"schemaVersion": 1, "deviceProperties": [card], "traceEvents": events}).encode()
