"""Preloading refuses what would make the template unfit to fork."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from monarch_nb.worker import template


def test_an_open_uvm_device_is_a_trace_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    assert template.cuda_traces() == ""
    monkeypatch.setattr(os, "readlink", lambda path: "/dev/nvidia-uvm")
    monkeypatch.setattr(template, "other_threads", list)  # pytest's own
    assert "/dev/nvidia-uvm" in template.cuda_traces()
    with pytest.raises(template.Unfit, match=r"json can not be preloaded.*initialises CUDA"):
        template.import_modules(["json"])


def test_initialised_torch_is_a_trace_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True)))
    assert "is_initialized" in template.cuda_traces()
