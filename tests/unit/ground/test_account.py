"""Whose process this is."""

import os
import pwd

import pytest

from monarch_nb.ground.account import own_name


@pytest.mark.parametrize("error", [KeyError, OSError])
def test_a_user_without_a_name_is_called_by_its_number(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_uid: int) -> None:
        raise error("uid not found")

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert own_name() == str(os.getuid())
