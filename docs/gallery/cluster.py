"""Four processes, each with a device: one picture of all?

Workers of Dask, each with a session; they share the cards that there are. Their clocks are compared, and the lanes stand below
their device.
"""

import gpustreamlab as gsl


def work(session):
    session.stream("compute")
    x = session.xp.ones((2048, 2048), "float32")
    for _ in range(4):
        with session.on("compute", "step"):
            x @ x
    session.synchronize()


if __name__ == "__main__":  # workers import this file
    with gsl.Cluster(workers=4, title="Four processes") as cluster:
        cluster.run(work)  # warms up
        cluster.synchronize()
        cluster.clear()
        cluster.run(work)
        cluster.synchronize()
        trace = cluster.trace
