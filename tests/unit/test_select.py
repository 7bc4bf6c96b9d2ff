"""Which backend a session gets."""

from __future__ import annotations

import pytest

from gpustreamlab import Session
from gpustreamlab.backends import BACKEND_NAMES, Choice, choose_backend
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.errors import BackendUnavailableError, DeviceNotFoundError
from gpustreamlab.typing import Unavailable

PROBE = "gpustreamlab.backends.cuda._probe.why_unavailable"
CUDA = "gpustreamlab.backends.cuda.CudaBackend"


class FakeCuda:
    def __init__(self, device):
        self.ordinal = device


def test_nothing_asked_for_gives_the_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(PROBE, lambda: None)
    monkeypatch.setattr(CUDA, FakeCuda)
    choice = choose_backend(None, 3)
    assert (type(choice.backend), choice.backend.ordinal) == (FakeCuda, 3)
    assert (choice.is_owned, choice.fallback_reason) == (True, "")


def test_nothing_asked_for_falls_back_with_the_reason(monkeypatch):
    monkeypatch.setattr(PROBE, lambda: (Unavailable.NO_DRIVER, "No driver. Install one."))
    choice = choose_backend(None, 0)
    assert isinstance(choice.backend, SimBackend)
    assert (choice.is_owned, choice.fallback_reason) == (True, "No driver. Install one.")


def test_a_gpu_that_fails_to_start_is_not_hidden_by_falling_back(monkeypatch):
    def broken(device):
        raise BackendUnavailableError("The driver gave an error.")

    monkeypatch.setattr(PROBE, lambda: None)
    monkeypatch.setattr(CUDA, broken)
    with pytest.raises(BackendUnavailableError, match="The driver gave an error"):
        choose_backend(None, 0)


def test_asking_for_cuda_never_falls_back(monkeypatch):
    def broken(device):
        raise BackendUnavailableError("No driver.", reason=Unavailable.NO_DRIVER)

    monkeypatch.setattr(PROBE, lambda: (Unavailable.NO_DRIVER, "No driver."))
    monkeypatch.setattr(CUDA, broken)
    with pytest.raises(BackendUnavailableError):
        choose_backend("cuda", 0)


def test_asking_by_name(monkeypatch):
    monkeypatch.setattr(CUDA, FakeCuda)
    for name, kind in zip(BACKEND_NAMES, (FakeCuda, SimBackend), strict=True):
        choice = choose_backend(name, 0)
        assert (type(choice.backend), choice.is_owned, choice.fallback_reason) == (kind, True, "")


def test_an_object_is_used_as_it_is_and_stays_its_owners():
    backend = SimBackend("laptop")
    assert choose_backend(backend, 0) == Choice(backend, is_owned=False, fallback_reason="")
    with Session(backend) as lab:
        assert lab._backend is backend
    assert not backend.driver.is_closed


def test_a_missing_second_device_is_told_when_falling_back_too(monkeypatch):
    monkeypatch.setattr(PROBE, lambda: (Unavailable.NO_DRIVER, "No driver."))
    with pytest.raises(DeviceNotFoundError, match="device 7"):
        choose_backend(None, 7)
