"""What stands for something on the device has no twins."""

from __future__ import annotations

import copy
import pickle

import pytest

from gpustreamlab import Session

MAKERS = {
    "session": lambda lab: lab,
    "stream": lambda lab: lab.stream("a"),
    "event": lambda lab: lab.stream("a").record(),
    "scratch": lambda lab: lab.stream("a").scratch(512),
    "capture": lambda lab: lab.capture("kernels"),
    "selection": lambda lab: lab.on(lab.stream("a")),
    "guard": lambda lab: lab.memory.guard([]),
    "use of a guard": lambda lab: lab.memory.guard([]).on(lab.stream("a")),
    "open range": lambda lab: lab.recording.start_range(lab.stream("a"), "x"),
}


@pytest.mark.parametrize("twin", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", MAKERS)
def test_it_is_neither_pickled_nor_copied(kind, twin):
    with Session("sim") as lab:
        made = MAKERS[kind](lab)
        with pytest.raises(TypeError, match=rf"^This {type(made).__name__} belongs to the process.*array\.get\(\)"):
            twin(made)


def test_an_array_is_copied_and_not_pickled():
    with Session("sim") as lab:
        array = lab.xp.ones(3)
        assert copy.copy(array).tolist() == copy.deepcopy(array).tolist() == [1, 1, 1]
        with pytest.raises(TypeError, match="This SimArray belongs to the process"):
            pickle.dumps(array)
