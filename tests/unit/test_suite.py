"""Which tests run, and what becomes of one that fails: scripts/groups.py, scripts/again.py and tests/scheduling.py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import pytest_ignore_collect
from scheduling import scope_of

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))
import again  # noqa: E402
import groups  # noqa: E402


def test_what_has_changed_adds_its_groups_and_nothing_else() -> None:
    page = "docs/magics.md"
    assert groups.chosen_groups([page, "monarch_nb/client/runs/run.py"]) == {"e2e/night/test_site.py": page}
    assert list(groups.chosen_groups(["monarch_nb/provision/slurm.py"])) == ["integration/night/slurm"]
    own = "tests/integration/night/slurm/controller.py"
    assert groups.chosen_groups([own]) == {"integration/night/slurm": own}


def test_what_may_concern_all_of_the_night_adds_all_of_it() -> None:
    assert groups.doubtful(["docs/magics.md", "monarch_nb/client/runs/run.py", "tests/unit/test_suite.py"]) is None
    for file in ("monarch_nb/config.py", "monarch_nb/a_new_room/a.py", "tests/conftest.py", "protos/a.proto"):
        assert groups.doubtful(["docs/magics.md", file]) == file


def test_without_a_record_everything_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(groups, "RECORD", tmp_path / "full_run.toml")
    assert groups.changed_files() is None
    groups.RECORD.write_text(f'commit = "{"0" * 40}"')
    assert groups.changed_files() is None, "no such commit"
    groups.RECORD.write_text("<<<<<<< HEAD")
    assert groups.changed_files() is None, "a conflict"


def test_every_test_of_the_night_belongs_to_a_group_and_every_group_to_files() -> None:
    tests = ROOT / "tests"
    night = [str(file.relative_to(tests)) for file in tests.rglob("night/**/test_*.py")]
    assert night
    assert [file for file in night if not any(file.startswith(group) for group in groups.GROUPS)] == []
    assert [group for group in groups.GROUPS if not (tests / group).exists()] == []
    patterns = {pattern for patterns in groups.GROUPS.values() for pattern in patterns}
    assert [pattern for pattern in patterns if not any(ROOT.glob(pattern))] == []


def test_the_night_is_collected_when_it_is_named() -> None:
    def collected(file: str, *args: str, night: tuple[str, ...] = ()) -> bool:
        config = SimpleNamespace(
            rootpath=ROOT, args=args, getoption={"night": night}.get, invocation_params=SimpleNamespace(dir=ROOT)
        )
        return all(not pytest_ignore_collect(ROOT / each, config) for each in (*Path(file).parents, file))  # type: ignore[arg-type]

    slurm = "tests/integration/night/slurm/test_slurm.py"
    assert collected("tests/integration/test_kernel.py", "tests/integration")
    assert not collected(slurm, "tests/integration")
    assert not collected(slurm, "tests/integration", night=("tests/integration/night/ray",))
    assert collected(slurm, "tests/integration", night=("tests/integration/night/slurm",))
    assert collected(slurm, "tests/integration", night=("tests",))
    assert collected(slurm, "tests/integration/night/slurm")
    assert collected(slurm, f"{slurm}::test_a")


class TestAgain:
    ONCE = "def test_once():\n    before = MARK.exists()\n    MARK.touch()\n    assert before, 'by chance'\n"
    ALWAYS = "def test_always(): assert False\n"

    @pytest.fixture
    def run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
        """Run a file of tests; return the exit status."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

        def run(text: str, *arguments: str) -> int:
            before = f"import pytest\nfrom pathlib import Path\nMARK = Path({str(tmp_path / 'failed_before')!r})\n"
            (tmp_path / "test_by_chance.py").write_text(before + text)
            return again.main([*arguments, "test_by_chance.py"])

        return run

    def test_a_failure_runs_once_more_alone(
        self, run: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert run(f"{self.ONCE}def test_good(): pass\n") == 0
        flaky = "test_by_chance.py::test_once"
        assert f"passed only alone: {flaky} (build/flaky.txt names it 1×)" in capfd.readouterr().out
        assert f" {flaky}: AssertionError: by chance" in (tmp_path / "build" / "flaky.txt").read_text()

    def test_what_a_failed_test_leaves_is_no_failure_of_its_own(self, run: Callable[..., int]) -> None:
        leaves = "@pytest.fixture\ndef free():\n    yield\n    assert MARK.read_text(), 'a job is left'\n"
        once = (
            "def test_once(free):\n    before = MARK.exists()\n    MARK.write_text('x' * before)\n    assert before\n"
        )
        assert run(leaves + once) == 0

    def test_one_that_fails_twice_is_red_and_the_other_is_written_down(
        self, run: Callable[..., int], tmp_path: Path
    ) -> None:
        assert run(self.ALWAYS + self.ONCE, "-x") == 1
        assert (tmp_path / "build" / "flaky.txt").read_text().count("\n") == 1

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("@pytest.mark.parametrize('n', range(5))\ndef test_many(n): assert False\n", "5 failures, more than 4"),
            (
                (
                    "@pytest.fixture(scope='session')\ndef pool():\n    yield\n    assert False, 'left behind'\n"
                    "def test_culprit(pool): pass\ndef test_last(): pass\n"
                ),
                "What is left behind fails only where the tests before it ran: test_by_chance.py::test_last",
            ),
        ],
    )
    def test_what_is_no_accident_is_not_run_again(
        self, run: Callable[..., int], text: str, why: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert run(text) == 1
        assert f"Not run again. {why}" in capfd.readouterr().out


def test_tests_of_a_folder_share_a_process() -> None:
    assert scope_of("tests/integration/hosts/night/test_replace.py::test_a") == "tests/integration/hosts"
    assert scope_of("tests/integration/night/slurm/test_slurm.py::test_a") == "tests/integration/night/slurm"
    assert scope_of("tests/integration/night/test_room.py::test_a") == "tests/integration/night/test_room.py"
    assert scope_of("tests/e2e/night/test_site.py::test_a") == "tests/e2e/night/test_site.py"
    assert scope_of("tests/integration/night/test_grpo_notebook.py::test_a") == "tests/integration/notebook"


@pytest.fixture
def pytest_of(tmp_path: Path) -> Callable[..., str]:
    """Run pytest as this suite sets it up on a text as its only file, with more options; return what it says."""

    def run(text: str, *options: str) -> str:
        (tmp_path / "pytest.ini").touch()
        (tmp_path / "night").mkdir()
        (tmp_path / "night" / "test_one.py").write_text(f"import pytest\n{text}")
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", *options],
            cwd=tmp_path,
            env={
                **os.environ,
                "MONARCH_NB_NO_SKIPS": "1",
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        return ran.stdout + ran.stderr

    return run


def test_a_skip_fails_where_nothing_may_be_skipped(pytest_of: Callable[..., str]) -> None:
    skips = "def test_a(): pytest.skip('no such tool')\ndef test_b(): pytest.skip('there is no torchmonarch')\n"
    said = pytest_of(f"{skips}@pytest.mark.xfail(run=False)\ndef test_c(): pass\n", "night")
    assert "1 failed, 1 skipped, 1 error" in said, said
    assert re.search(r"test_one.py:2: Skipped: no such tool$", said, re.MULTILINE), said


def test_tests_of_the_night_run_when_they_are_named(pytest_of: Callable[..., str], tmp_path: Path) -> None:
    assert "no tests ran" in pytest_of("def test_a(): pass\n")
    for options in (
        ["--night", "night/test_one.py"],
        ["--night", "."],
        ["night"],
        ["--rootdir", ".", "night/test_one.py"],
    ):
        shutil.rmtree(tmp_path / "night")
        assert "1 passed" in pytest_of("def test_a(): pass\n", *options), options
    shutil.rmtree(tmp_path / "night")
    said = pytest_of("def test_a(): pass\n", "--night", "nihgt")
    assert f"--night takes a folder or file that is there, not {tmp_path / 'nihgt'}" in said, said
