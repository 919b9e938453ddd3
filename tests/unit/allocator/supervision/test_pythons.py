"""One template per python and preload list: whichever name of the python was typed."""

from __future__ import annotations

from pathlib import Path

from monarch_nb.allocator.supervision.pythons import template_key


def test_names_of_one_python_share_a_template_and_environments_do_not(tmp_path: Path) -> None:
    base = tmp_path / "python3.11"
    base.touch()
    for environment in ("one", "two"):
        directory = tmp_path / environment
        directory.mkdir()
        (directory / "python3.11").symlink_to(base)
        (directory / "python").symlink_to("python3.11")
    keys = [template_key(str(tmp_path / name), ["torch"]) for name in ("one/python", "one/python3.11", "two/python")]
    assert keys[0] == keys[1]
    assert keys[0] != keys[2]
    assert template_key(str(tmp_path / "one/python"), []) != keys[0]


def test_a_python_that_is_not_there_has_a_key_too() -> None:
    assert template_key("/no/such/python", []) != template_key("/no/such/other", [])
