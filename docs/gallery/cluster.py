"""Four processes, each with a device: one picture of all?

Engines of Dask, each with a session; their clocks are compared, and the lanes stand below their device.
"""

import gpustreamlab as gsl


def work(session):
    session.stream("compute")
    for _ in range(4):
        with session.on("compute", "step"):
            session.xp.ones((1024, 1024), "float32") @ session.xp.ones((1024, 1024), "float32")
    session.synchronize()


if __name__ == "__main__":  # engines import this file
    with gsl.Cluster(workers=4, title="Four engines") as cluster:
        cluster.run(work)
        cluster.synchronize()
        trace = cluster.trace
