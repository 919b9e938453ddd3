"""One template per python and preload list: whichever name of the python was typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_nb.allocator.supervision.pythons import template_key, what_is_wrong


def test_names_of_one_python_share_a_template_and_environments_do_not(tmp_path: Path) -> None:
    base = tmp_path / "python3.11"
    base.touch()
    for environment in ("one", "two"):
        directory = tmp_path / environment
        directory.mkdir()
        (directory / "python3.11").symlink_to(base)
        (directory / "python").symlink_to("python3.11")
    key, *others = (template_key(str(tmp_path / name), ["torch"], {}) for name in ("one/python", "two/python", "none"))
    assert key == template_key(str(tmp_path / "one/python3.11"), ["torch"], {})
    assert key not in (*others, template_key(str(tmp_path / "one/python"), [], {}))
    assert template_key("/no/such/python", [], {}) != template_key("/no/such/other", [], {}), (
        "one that is not there has a key"
    )


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("/bin/cat: invalid option -- 'm'", ": is it a Python?"),
        ("", ": is it a Python?"),
        ("Traceback (most recent call last):\n  File …\nModuleNotFoundError: No module named 'rich'", "it has no rich"),
        (
            "/envs/a/bin/python: No module named monarch_nb",
            "it has no monarch_nb, which ranks need: /envs/a/bin/python -m",
        ),
        ("Traceback (most recent call last):\n  File …\nOSError: disk full", ""),
    ],
)
def test_what_is_wrong_with_a_python_that_does_not_start(said: str, wrong: str) -> None:
    told = what_is_wrong("/envs/a/bin/python", said)
    assert wrong in told
    assert bool(wrong) == bool(told)
