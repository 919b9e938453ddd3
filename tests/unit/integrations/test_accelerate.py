"""Accelerator() after its process group was lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from monarch_nb.integrations.accelerate import PATCHES


def accelerate(*, backend: str | None, group: bool, processes: int = 4) -> Any:
    class PartialState:
        _shared_state: ClassVar[dict[str, Any]] = {"backend": backend, "num_processes": processes}

    class AcceleratorState:
        made: ClassVar[list[dict[str, Any]]] = []
        resets = 0

        def __init__(self, cpu: bool = False, _from_accelerator: bool = False) -> None:
            self.made.append(dict(PartialState._shared_state))

        @classmethod
        def _reset_state(cls, reset_partial_state: bool) -> None:
            cls.resets += 1
            PartialState._shared_state.clear()

    distributed = SimpleNamespace(is_initialized=lambda: group)
    state = SimpleNamespace(
        PartialState=PartialState, AcceleratorState=AcceleratorState, torch=SimpleNamespace(distributed=distributed)
    )
    PATCHES["accelerate.state"](state)
    return state.AcceleratorState


def test_state_goes_with_its_group() -> None:
    for backend, group, resets in (("gloo", False, 1), ("gloo", True, 0), (None, False, 0), ("xla", False, 0)):
        state = accelerate(backend=backend, group=group)
        state(True, _from_accelerator=True)
        assert (state.resets, state.made[0] == {}) == (resets, bool(resets))


def test_who_was_alone_is_not_when_there_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    state = accelerate(backend=None, group=False, processes=1)
    state(True, _from_accelerator=True)
    assert state.resets == 0
    monkeypatch.setenv("WORLD_SIZE", "2")
    state(True, _from_accelerator=True)
    assert (state.resets, state.made[1]) == (1, {})


def test_who_only_reads_the_state_resets_nothing() -> None:
    state = accelerate(backend="gloo", group=False)
    state()
    assert state.resets == 0
