"""Which directory is the project, and its settings."""

from pathlib import Path

import pytest

from monarch_nb.client.files.project import MAX_FILE_BYTES, Settings, find_root, parse_size, read_settings
from monarch_nb.errors import UsageError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    (home / "work" / "package" / "sub").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    return home


def test_the_nearest_parent_with_a_mark(home: Path, tmp_path: Path) -> None:
    package = home / "work" / "package"
    assert find_root(package) == package, "without a mark"
    for above in (home, tmp_path):  # neither home nor what is above it is a project
        (above / ".git").mkdir()
        assert find_root(package) == package
        assert find_root(home) == home
    (home / "work" / ".git").mkdir()
    assert find_root(package / "sub") == home / "work"
    for mark in (".git", "pyproject.toml"):
        (package / mark).touch()
        assert find_root(package / "sub") == package
        (package / mark).unlink()
    (tmp_path / "else" / "sub").mkdir(parents=True)
    (tmp_path / "else" / "pyproject.toml").touch()
    assert find_root(tmp_path / "else" / "sub") == tmp_path / "else", "outside of home"


def test_settings(home: Path) -> None:
    assert read_settings(home) == Settings(home, MAX_FILE_BYTES, True, ())
    (home / "pyproject.toml").write_text(
        '[tool.monarch_nb]\nroot = "work"\nmax-file-size = "1.5 GB"\nreload = "off"\nignore = ["*.csv"]\n'
    )
    assert read_settings(home) == Settings(home / "work", 1_500_000_000, False, ("*.csv",))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not toml", "can not be read"),
        ("[tool.monarch_nb]\nrelaod = 'off'", "not relaod"),
        ("[tool.monarch_nb]\nreload = 'never'", '"auto" or "off"'),
        ("[tool.monarch_nb]\nreload = true", "is no text"),
        ("[tool.monarch_nb]\nignore = '*.csv'", "is no list"),
        ("[tool.monarch_nb]\nignore = [1]", "list of patterns"),
        ("[tool.monarch_nb]\nmax-file-size = 'much'", "max-file-size"),
        ("[tool.monarch_nb]\nroot = 'missing'", "is no directory"),
    ],
)
def test_bad_settings_are_named(home: Path, text: str, said: str) -> None:
    (home / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match=said):
        read_settings(home)


def test_no_sizes() -> None:
    for text in ("", "MB", "1 XB", "-1", "1,5 MB", True):
        with pytest.raises(UsageError):
            parse_size(text)
