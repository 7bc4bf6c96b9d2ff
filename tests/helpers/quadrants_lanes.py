"""Kernels of Quadrants on two streams; prints what was seen, as JSON. A file, since Quadrants reads the source of kernels."""

import json

import numpy as np
import quadrants as qd
import quadrants.lang.stream

import gpustreamlab as gsl
from gpustreamlab.engines import quadrants_stream

qd.init(arch=qd.cuda, log_level=qd.ERROR)
COUNT = 1 << 22
x, y = qd.field(qd.f32, COUNT), qd.field(qd.f32, COUNT)


@qd.kernel
def work(values: qd.template(), rounds: qd.i32):
    for i in values:
        value = values[i]
        for _ in range(rounds):
            value = value * 1.0001 + 0.5
        values[i] = value


def prepare():
    x.fill(1.0), y.fill(1.0)
    qd.sync()
    lab.synchronize()
    lab.clear()


def on(name, values):
    with lab.on(name, name):
        work(values, 200, qd_stream=quadrants_stream(lab.streams[name]))


def kernels():
    lab.synchronize()
    frame = lab.trace.to_pandas()
    return frame[frame["kind"].astype(str) == "kernel"].sort_values("start_ns")


def side_by_side():
    prepare()
    on("a", x), on("b", y)
    found = kernels()
    is_equal = np.array_equal(x.to_numpy(), want) and np.array_equal(y.to_numpy(), want)
    return {
        "is_equal": bool(is_equal),
        "counts": found.groupby(found["lane"].astype(str)).size().to_dict(),
        "stray_count": len(lab.trace.strays()),
        "ns": int(found["duration_ns"].max()),
    }


with gsl.Session("cuda") as lab:
    prepare()
    work(x, 200), work(y, 200)
    qd.sync()
    want = x.to_numpy()
    lab.stream("a"), lab.stream("b")
    told = {"whole": side_by_side()}
    lab.partition(left=32, right="rest")
    lab.stream("a", partition="left"), lab.stream("b", partition="right")
    told["parts"] = side_by_side()

    prepare()
    on("a", x)
    lab.streams["b"].wait(lab.streams["a"].record())
    on("b", x)
    found = kernels()
    told["ordered"] = bool((found["start_ns"].values[1:] >= found["end_ns"].values[:-1]).all()) and len(found) == 2

    prepare()
    with lab.on("a", "no stream named"):
        work(x, 20)
    qd.sync()
    kernels()
    told["strays"] = len(lab.trace.strays())
work(x, 1)
qd.sync()
told["goes_on"] = bool(np.isfinite(x.to_numpy()).all())
print("TOLD" + json.dumps(told))
