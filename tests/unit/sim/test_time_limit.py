from __future__ import annotations

import pytest

from gpustreamlab import Session
from gpustreamlab.errors import NotSimulatedError


@pytest.mark.parametrize("kernels_ns", [[1 << 70], [1 << 63], [1 << 62], [1 << 61, 1 << 61]], ids=str)
def test_a_kernel_beyond_the_time_of_traces_is_refused_where_it_is_launched(kernels_ns):
    *fitting, too_long = kernels_ns
    with Session("sim", capture="ranges") as lab:
        stream = lab.stream("a")._backend_stream
        with lab.on("a", "work"):
            for duration_ns in fitting:
                lab._backend.launch_spin(stream, duration_ns, blocks=1, fill_sms=False)
            with pytest.raises(NotSimulatedError, match=r"'spin' would take .*beyond 2\*\*62 ns.*another session"):
                lab._backend.launch_spin(stream, too_long, blocks=1, fill_sms=False)
        lab.synchronize()
        assert lab.trace.duration_ns.tolist() == pytest.approx([sum(fitting)], abs=1_000_000)
    assert len(lab.trace) == 1


def test_kernels_side_by_side_count_as_if_they_ran_in_turn_until_the_device_is_idle():
    with Session("sim") as lab:
        for _ in range(3):
            lab.synchronize()
            lab._backend.launch_spin(lab.stream("a")._backend_stream, 1 << 59, blocks=1, fill_sms=False)
            lab._backend.launch_spin(lab.stream("b")._backend_stream, 1 << 59, blocks=1, fill_sms=False)


def test_a_kernel_of_many_waves_is_measured_by_them():
    with Session("sim") as lab:
        stream = lab.stream("a")._backend_stream
        lab._backend.launch_spin(stream, 1 << 40, blocks=1 << 31, fill_sms=False)
        with pytest.raises(NotSimulatedError, match=r"beyond 2\*\*62 ns"):
            lab._backend.launch_spin(stream, 1 << 40, blocks=1 << 31, fill_sms=True)
