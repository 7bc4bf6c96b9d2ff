"""Programs are changed by machine where that gains and nothing else changes, and left alone where not."""

import pytest

from gpustreamlab.workloads import spin

STREAMS = ("up", "comp", "down")
SIDE = 256


def test_waits_of_the_host_go_where_nothing_needs_them(lab):
    def program():
        for _ in range(4):
            spin(lab, 200_000, blocks=32, stream="up")
            lab.synchronize()
            spin(lab, 200_000, blocks=32, stream="comp")
            lab.synchronize()

    found = lab.improve(program)

    assert found.speedup == pytest.approx(2, rel=0.05)
    assert found.source.count("lab.synchronize()") == 1, "the host still waits, once, at the end"
    assert found.kept[0].predicted_ns == pytest.approx(found.kept[0].measured_ns, rel=0.05)
