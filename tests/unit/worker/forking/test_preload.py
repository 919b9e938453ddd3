"""Preloading refuses what would make the template unfit to fork."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from monarch_nb.worker.forking import preload


def test_an_open_uvm_device_is_a_trace_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    assert preload.cuda_traces() == ""
    monkeypatch.setattr(os, "readlink", lambda path: "/dev/nvidia-uvm")
    monkeypatch.setattr(preload, "other_threads", list)  # pytest's own
    assert "/dev/nvidia-uvm" in preload.cuda_traces()
    with pytest.raises(preload.Unfit, match=r"json can not be preloaded.*initialises CUDA"):
        preload.import_modules(["json"])


def test_initialised_torch_is_a_trace_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True)))
    assert "is_initialized" in preload.cuda_traces()
