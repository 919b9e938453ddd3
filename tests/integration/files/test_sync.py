"""The notebook's files on nodes that share nothing with it: copied before each run, all that belongs there, no more."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from integration.files.copies import assert_same, copies, module, names_in
from integration.live import Recorder, client, eventually
from monarch_nb.client.files.local_tree import Report
from monarch_nb.client.files.transfer import SyncReport
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.config import NodePaths
from monarch_nb.errors import ReservationConflict, RunFailed, UsageError
from monarch_nb.provision import Node

pytestmark = pytest.mark.usefixtures("without_torch")

RANKS = 8


def write(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


def local(report: SyncReport, mount: str = "") -> Report:
    return report.local[mount]


MISSING = "[Errno 2] No such file or directory"


def last_line(synced: Reservation, code: str) -> str:
    with pytest.raises(RunFailed) as raised:
        synced.mesh.run(code)
    return str(raised.value).splitlines()[-1]


class TestPlace:
    def test_ranks_start_in_their_copy(self, synced: Reservation) -> None:
        expected = [str(copy) for copy in copies(synced) for _ in range(2)]
        assert synced.mesh.run("import os; os.getcwd()").values == expected
        assert synced.mesh.run("import sys; sys.path[0]").values == expected
        assert len(set(expected)) == 4

    def test_nothing_of_the_notebooks_directory_is_seen(
        self, synced: Reservation, project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.syspath_prepend(project)
        write("model.py", module(1))
        code = f"import os, sys; [path for path in [os.getcwd(), *sys.path] if {str(project)!r} in path]"
        assert synced.mesh.run(code).values == [[]] * RANKS
        assert synced.mesh.run("import model; model.__file__").values == [
            str(copy / "model.py") for copy in copies(synced) for _ in range(2)
        ]

    def test_scripts_are_those_of_the_copies(self, synced: Reservation, project: Path) -> None:
        write("library.py", module("of the project"))
        write("train.py", "import library; print(library.value(), __file__)")
        for path in ("train.py", str(project / "train.py")):
            told = Recorder()
            assert synced.mesh.run_script(path, listener=told).values == [0] * RANKS
            for rank, copy in enumerate(copy for copy in copies(synced) for _ in range(2)):
                assert told.text(rank) == f"of the project {copy / 'train.py'}\n"
        write("part/library_of_part.py", module("of a part"))
        write("sub/train.py", "import library_of_part; print(library_of_part.value())")
        told = Recorder()
        environment = {"PYTHONPATH": str(project / "part")}  # as the terminal has it
        synced.mesh.run_script("sub/train.py", environment=environment, listener=told)
        assert {told.text(rank) for rank in range(RANKS)} == {"of a part\n"}
        write("train.py", "1 / 0")
        with pytest.raises(RunFailed) as raised:
            synced.mesh.run_script("train.py")
        assert [ranks for ranks, _ in raised.value.groups()] == [list(range(RANKS))], "wherever the copies lie"

    def test_import_paths_of_the_kernel(
        self, synced: Reservation, project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write("src/package/__init__.py", module("in src"))
        write("relative/other.py", module("in relative"))
        monkeypatch.syspath_prepend(project / "src")
        monkeypatch.syspath_prepend("relative")
        code = "import package, other; package.value(), other.value()"
        assert synced.mesh.run(code).values == [("in src", "in relative")] * RANKS

    def test_a_notebook_in_a_subdirectory_of_the_project(
        self, isolated_pool: list[Node], project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write("pyproject.toml", "")
        write("library.py", module("of the project"))
        write("notebooks/beside.py", module("beside"))
        monkeypatch.chdir("notebooks")
        monkeypatch.syspath_prepend(project)
        dev = reserve("dev", nodes=2, procs=1)
        roots = copies(dev)[:2]
        assert dev.mesh.run("import os; os.getcwd()").values == [str(root / "notebooks") for root in roots]
        assert dev.mesh.run("import beside; beside.value()").values == ["beside"] * 2
        assert dev.mesh.run("import library; library.value()").values == ["of the project"] * 2
        dev.release()

    def test_without_files(self, isolated_pool: list[Node], project: Path) -> None:
        write("model.py", module(1))
        dev = reserve("dev", nodes=2, procs=1, files=False)
        assert not dev.sync().anything
        assert dev.mesh.run("import importlib.util; importlib.util.find_spec('model')").values == [None] * 2
        dev.release()


class TestEdits:
    def test_the_new_code_runs_on_all_ranks(self, synced: Reservation) -> None:
        write("model.py", module("one"))
        assert synced.mesh.run("import model; model.value()").values == ["one"] * RANKS
        write("model.py", module("two"))
        assert synced.mesh.run("model.value()").values == ["two"] * RANKS

    def test_without_sync(self, synced: Reservation) -> None:
        write("model.py", module("one"))
        synced.mesh.run("import model")
        write("model.py", module("two"))
        assert synced.mesh.run("model.value()", sync=False).values == ["one"] * RANKS
        assert synced.mesh.run("model.value()").values == ["two"] * RANKS


class TestNames:
    def test_new_deleted_and_renamed(self, synced: Reservation, project: Path) -> None:
        write("package/__init__.py", "")
        write("package/old.py", module(1))
        write("gone.py", module(2))
        write("gone/with/all.txt", "below")
        synced.sync()
        assert_same(synced, project)
        write("new.py", module(3))
        Path("package/old.py").rename("package/new.py")
        Path("gone.py").unlink()
        subprocess.run(["rm", "-r", "gone"], check=True)
        report = synced.sync()
        assert_same(synced, project)
        assert (report.files, report.kept) == (2, {})
        code = "import package.new, new; package.new.value(), new.value()"
        assert synced.mesh.run(code).values == [(1, 3)] * RANKS
        with pytest.raises(RunFailed, match="No module named 'gone'"):
            synced.mesh.run("import gone")

    def test_modes_links_and_empty_directories(self, synced: Reservation, project: Path) -> None:
        write("run.sh", "#!/bin/sh\necho it runs\n")
        Path("run.sh").chmod(0o755)
        write("data/real.txt", "content")
        Path("link.txt").symlink_to("data/real.txt")
        Path("data/up").symlink_to("../run.sh")
        Path("dangling").symlink_to("nowhere")
        Path("empty/inner").mkdir(parents=True)
        synced.sync()
        assert_same(synced, project)
        code = "import subprocess; subprocess.run(['./run.sh'], capture_output=True, text=True).stdout"
        assert synced.mesh.run(code).values == ["it runs\n"] * RANKS
        Path("run.sh").chmod(0o644)
        Path("link.txt").unlink()
        Path("link.txt").symlink_to("run.sh")
        Path("empty/inner").rmdir()
        Path("data").chmod(0o700)
        synced.sync()
        assert_same(synced, project)


class TestLeftOut:
    def test_what_is_ignored(self, synced: Reservation) -> None:
        subprocess.run(["git", "init", "--quiet"], check=True)
        write(".gitignore", "*.log\nbuild/\ndata/\n")
        write(".meshignore", "!data/\nsecret.txt\n")
        for name in ("a.log", "build/x.txt", "data/tiny.bin", "secret.txt", "model.py", "book.ipynb"):
            write(name, "x")
        for name in (".venv/pyvenv.cfg", "__pycache__/model.pyc", "node_modules/x.js"):
            write(name, "x")
        report = synced.sync()
        expected = {b".gitignore", b".meshignore", b"model.py", b"data", b"data/tiny.bin"}
        for copy in copies(synced):
            assert names_in(copy).keys() == expected
        ignored = local(report).ignored()
        assert ignored[".gitignore"] == (2, 2)
        assert ignored[".meshignore"] == (1, 1)

    def test_a_file_that_is_missing_for_that_is_named_below_the_traceback(self, synced: Reservation) -> None:
        write(".gitignore", "data/\n")
        subprocess.run(["git", "init", "--quiet"], check=True)
        write("data/train/a.csv", "x")
        write("inner.ipynb", "x")
        line = "{} is not on the nodes: {}; the line !/{} in .meshignore sends it"
        why = line.format("data/train/a.csv", "sync leaves data/ out, which .gitignore names", "data/")
        assert last_line(synced, "open('data/train/a.csv')") == why
        assert last_line(synced, "import os\nopen(os.path.abspath('data/train/a.csv'))") == why
        notebook = line.format("inner.ipynb", "sync leaves inner.ipynb out, as notebooks and caches", "inner.ipynb")
        assert last_line(synced, "open('inner.ipynb')") == notebook
        assert last_line(synced, "open('nowhere.csv')") == f"FileNotFoundError: {MISSING}: 'nowhere.csv'"
        assert last_line(synced, "open('data/nowhere.csv')") == f"FileNotFoundError: {MISSING}: 'data/nowhere.csv'"
        write("train.py", "open('data/train/a.csv')")
        with pytest.raises(RunFailed) as raised:
            synced.mesh.run_script("train.py")
        assert str(raised.value).splitlines()[-1] == why


class TestMore:
    def test_another_directory(self, synced: Reservation, tmp_path: Path) -> None:
        library = tmp_path / "library"
        write(str(library / "helpers.py"), module("one"))
        write("model.py", module(0))
        assert synced.files.add(library) == "library"
        assert synced.mesh.run("from library import helpers; helpers.value()").values == ["one"] * RANKS
        write(str(library / "helpers.py"), module("two"))
        assert synced.mesh.run("helpers.value()").values == ["two"] * RANKS
        assert synced.files.add(library) == "library"
        with pytest.raises(UsageError, match="does not exist"):
            synced.files.add(tmp_path / "nowhere")
        (tmp_path / "other" / "library").mkdir(parents=True)
        with pytest.raises(UsageError, match="--as NAME chooses another name"):
            synced.files.add(tmp_path / "other" / "library")
        assert synced.files.add(tmp_path / "other" / "library", "second") == "second"
        write(str(tmp_path / "sources/src/package/__init__.py"), module("of sources"))
        synced.files.add(tmp_path / "sources")
        assert synced.mesh.run("import package; package.value()").values == ["of sources"] * RANKS
        synced.files.remove(tmp_path / "sources")
        assert not any((copy / "sources").exists() for copy in copies(synced))


class TestShared:
    """Nodes that see the directory itself."""

    def test_nothing_is_copied(self, spare_pool: list[Node], project: Path) -> None:
        write("model.py", module("one"))
        dev = reserve("dev", nodes=2, procs=2)
        assert dev.mesh.run("import os; os.getcwd()").values == [str(project)] * 4
        assert dev.mesh.run("import model; model.value()").values == ["one"] * 4
        write("model.py", module("two"))
        assert dev.mesh.run("model.value()").values == ["two"] * 4
        assert not dev.sync().anything
        assert dev.files.status() == {}
        for node in spare_pool:
            assert not list(NodePaths(node.directory).workspaces.iterdir())
        write("model.py", "def value(:")
        assert dev.mesh.run("model.value()").values == ["two"] * 4
        write("model.py", module("three"))
        assert dev.mesh.run("model.value()").values == ["three"] * 4
        dev.release()

    def test_what_one_kernel_says_holds_for_all(self, spare_pool: list[Node], project: Path, tmp_path: Path) -> None:
        write(str(tmp_path / "beside/__init__.py"), module("beside"))
        write("model.py", module("one"))
        dev = reserve("dev", nodes=2, procs=2)
        dev.files.add(tmp_path / "beside")
        dev.mesh.run("import model")
        program = """
dev = monarch_nb.attach("dev")
print(dev.mesh.run("import beside; beside.value()").values[0])
print(monarch_nb.reserve("dev", nodes=2, procs=2, reload=False).id == dev.id)
sys.stdin.readline()
dev.files.remove("beside")
print(dev.files.record.take_news())
"""
        with client(program) as other:
            assert other.line() == "beside", "a later one has what was added"
            assert other.line() == "True"
            eventually(lambda: dev.status(memory=False) and not dev.files.record.reload)
            write("model.py", module("two"))
            assert dev.mesh.run("model.value()").values == ["one"] * 4
            assert dev.files.record.take_news() == ["another kernel said --reload off"]
            other.tell()
            assert other.line() == "[]"
        eventually(lambda: dev.status(memory=False) and not dev.files.added)
        dev.mesh.restart()
        assert dev.mesh.run("import importlib.util; importlib.util.find_spec('beside')").values == [None] * 4
        dev.release()

    def test_the_evidence_is_gone(self, spare_pool: list[Node], project: Path) -> None:
        reserve("dev", nodes=2, procs=1).release()
        assert not list(project.iterdir())


class TestReload:
    def test_objects_live_on(self, synced: Reservation) -> None:
        write("model.py", "class Model:\n    def value(self): return 'one', self.weight\n")
        synced.mesh.run("from model import Model; model = Model(); model.weight = rank")
        write("model.py", "class Model:\n    def value(self): return 'two', self.weight\n")
        assert synced.mesh.run("model.value()").values == [("two", rank) for rank in range(RANKS)]

    def test_a_mistake_is_told_and_the_version_before_stays(self, synced: Reservation) -> None:
        write("model.py", module("one"))
        synced.mesh.run("import model")
        write("model.py", "def value(:\n")
        recorder = Recorder()
        assert synced.mesh.run("model.value()", listener=recorder).values == ["one"] * RANKS
        assert "model.py could not be reloaded" in recorder.text(0, "stderr")
        assert "SyntaxError" in recorder.text(7, "stderr")
        write("model.py", module("two"))
        assert synced.mesh.run("model.value()").values == ["two"] * RANKS

    def test_off(self, isolated_pool: list[Node], project: Path) -> None:
        write("model.py", module("one"))
        dev = reserve("dev", nodes=4, procs=1, reload=False)
        dev.mesh.run("import model")
        write("model.py", module("two"))
        assert dev.mesh.run("model.value()").values == ["one"] * 4
        assert (copies(dev)[3] / "model.py").read_text() == module("two")
        dev.mesh.restart()
        assert dev.mesh.run("import model; model.value()").values == ["two"] * 4
        assert reserve("dev", nodes=4, procs=1, reload=True).id == dev.id
        write("model.py", module("three"))
        assert dev.mesh.run("model.value()").values == ["three"] * 4, "it is changed where it is held"
        reserve("dev", nodes=4, procs=1)
        write("model.py", module("four"))
        assert dev.mesh.run("model.value()").values == ["four"] * 4, "and stays when nothing is said of it"
        dev.release()

    def test_other_files_need_another_reservation(self, spare_pool: list[Node], project: Path, tmp_path: Path) -> None:
        dev = reserve("dev", procs=1)
        for files in (True, project):
            assert reserve("dev", procs=1, files=files).id == dev.id
        for other in (False, tmp_path):
            with pytest.raises(
                ReservationConflict, match=f"already held with the files of {project}: %mesh attach dev uses it"
            ):
                reserve("dev", procs=1, files=other)
        dev.release()
