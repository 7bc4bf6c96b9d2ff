"""The environment variable by which NVTX finds CUPTI, and the default domain's name, are put back as they were."""

from __future__ import annotations

import os
import sys
import types
from unittest.mock import Mock

import pytest

from gpustreamlab.backends.cuda import _nvtx
from gpustreamlab.backends.cuda._nvtx import CRASHING_VERSIONS, INJECTION_VARIABLE, NvtxInjection, is_injection_ours
from gpustreamlab.errors import CaptureUnavailableError, MissingExtraError


@pytest.fixture(autouse=True)
def nvtx(monkeypatch):
    """An nvtx that can be looked at, a CUPTI that can be loaded, and nobody who listens."""
    monkeypatch.delenv(INJECTION_VARIABLE, raising=False)
    monkeypatch.setattr(_nvtx, "_holders", [])
    monkeypatch.setattr(_nvtx, "_renamed", [])
    pretend_cupti(monkeypatch, 130001)
    package, inner = types.ModuleType("nvtx"), types.SimpleNamespace(get_domain=lambda name=None: name)
    package.nvtx = inner
    monkeypatch.setitem(sys.modules, "nvtx", package)
    return inner


def pretend_cupti(monkeypatch, version):
    monkeypatch.setattr(_nvtx, "load_cupti", lambda: types.SimpleNamespace(version=version, path="/lib/libcupti.so.13"))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_last_of_two_sessions_puts_it_back(nvtx, order):
    own = nvtx.get_domain
    sessions = NvtxInjection(), NvtxInjection()

    for _ in range(2):
        sessions[order[0]].restore()
        assert os.environ[INJECTION_VARIABLE] == sessions[1].path == "/lib/libcupti.so.13"
        assert is_injection_ours()
        assert (nvtx.get_domain(), nvtx.get_domain("cudf")) == ("NVTX", "cudf")
    for _ in range(2):
        sessions[order[1]].restore()

    assert INJECTION_VARIABLE not in os.environ
    assert not is_injection_ours()
    assert nvtx.get_domain is own


def test_what_the_user_changes_meanwhile_stays(monkeypatch, nvtx):
    first = NvtxInjection()
    monkeypatch.setenv(INJECTION_VARIABLE, "/other.so")
    second = NvtxInjection()

    assert not is_injection_ours()
    second.restore()
    first.restore()

    assert os.environ[INJECTION_VARIABLE] == "/other.so"


def test_a_function_that_somebody_else_replaced_meanwhile_stays(nvtx):
    injection = NvtxInjection()
    nvtx.get_domain = theirs = lambda name=None: "theirs"

    injection.restore()

    assert nvtx.get_domain is theirs


@pytest.mark.parametrize("why", ["taken", "crashes", "missing", "unknown"])
def test_nothing_happens_without_a_usable_cupti_or_where_somebody_listens(monkeypatch, nvtx, why):
    own = nvtx.get_domain
    if why == "taken":
        monkeypatch.setenv(INJECTION_VARIABLE, "/opt/nsys/tool.so")
    elif why == "crashes":
        pretend_cupti(monkeypatch, CRASHING_VERSIONS[0])
    else:
        error = MissingExtraError("none", name="cupti") if why == "missing" else CaptureUnavailableError("unknown version")
        monkeypatch.setattr(_nvtx, "load_cupti", Mock(side_effect=error))
    before = os.environ.get(INJECTION_VARIABLE)

    injection = NvtxInjection()

    assert injection.path == ""
    assert not is_injection_ours()
    assert nvtx.get_domain is own
    injection.restore()
    assert os.environ.get(INJECTION_VARIABLE) == before


def test_an_nvtx_of_another_make_is_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", types.ModuleType("nvtx"))

    injection = NvtxInjection()

    assert os.environ[INJECTION_VARIABLE] == injection.path
    injection.restore()
    assert INJECTION_VARIABLE not in os.environ
