"""What people get to see of errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import IPython.core.error
import pytest

from monarch_nb.errors import NoProcessGroup, UsageError
from monarch_nb.worker.shell.failures import describe, is_refused_call, readable
from monarch_nb.worker.user_code import UserCode

LOST = """CUDA error: device-side assert triggered
Search for `cudaErrorAssert' in …"""


def test_a_lost_gpu_says_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    first, second = str(readable(RuntimeError(LOST))).splitlines()
    assert first == (
        "CUDA error: device-side assert triggered; this process can not use its GPU any more: %mesh restart -t 3"
    )
    assert second.startswith("Search for")


def test_what_is_no_fault_of_a_line_is_said_once() -> None:
    shell: Any = SimpleNamespace(render=lambda error: f"rendered {error}", initialized=lambda: True)
    for kind in (UsageError, IPython.core.error.UsageError):
        described = describe(shell, UserCode(lambda _: None), kind("No module named nosuch"))
        assert (described.name, described.message, described.traceback) == ("UsageError", "No module named nosuch", "")
    assert describe(shell, UserCode(lambda _: None), ValueError("bad")).traceback == "rendered bad"
    with pytest.raises(UsageError) as raised:
        raise UsageError("in a line of the user's")
    assert describe(shell, UserCode(lambda _: None), raised.value).traceback == "rendered in a line of the user's"


def test_others_are_as_they_were() -> None:
    for error in (RuntimeError("CUDA error: out of memory"), RuntimeError("CUDA error: invalid"), ValueError(LOST)):
        assert str(readable(error)) == str(error)
    assert str(readable(RuntimeError(LOST), makes_another=False)) == LOST, "a script has ended anyway"


def test_who_has_no_group_is_told_how_to_make_one() -> None:
    torchs = ValueError("Default process group has not been initialized, please make sure to call init_process_group.")
    try:
        raise torchs
    except ValueError as error:
        shown = readable(error)
    assert isinstance(shown, NoProcessGroup)
    assert isinstance(shown, ValueError), "who catches torch's catches it"
    assert str(shown) == "there is no process group: call dist.init_process_group() first"
    assert shown.__traceback__ is torchs.__traceback__
    assert shown.__context__ is None, "torch's own is not shown with it"


def raised_in(filename: str) -> BaseException:
    names: dict[str, Any] = {}
    exec(compile("def call(): raise RuntimeError('invalid tensor size')", filename, "exec"), names)
    try:
        names["call"]()
    except RuntimeError as error:
        return error
    raise AssertionError


def test_a_call_that_torch_distributed_refuses_is_told_from_what_fails_elsewhere() -> None:
    assert is_refused_call(raised_in("/lib/site-packages/torch/distributed/distributed_c10d.py"))
    assert not is_refused_call(raised_in("/lib/site-packages/torch/nn/modules/linear.py")), "its frames tell where"
    assert not is_refused_call(raised_in("train.py"))
    assert not is_refused_call(ValueError("raised nowhere"))
