"""What ranks do when the notebook's files changed between two cells."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.live import eventually
from integration.worker.harness import RankProcess, TemplateProcess, run_all
from monarch_nb.proto.run_pb2 import OUTCOME_INTERRUPTED, CopiedTree, Pull, Tree

ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Project:
    """The directory of some ranks, edited as a user does, and the version of it that cells are told."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._numbers = itertools.count(1)
        self.version = "0"

    def write(self, name: str, text: str) -> Path:
        """Save a file: another version of the tree."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.version = str(next(self._numbers))
        return path

    def tree(self, *, reload: bool = True, **options: Any) -> Tree:
        return Tree(version=self.version, reload=reload, **options)


@pytest.fixture
def project(template: TemplateProcess) -> Project:
    shutil.rmtree(template.work_directory)
    template.work_directory.mkdir()
    return Project(template.work_directory)


@pytest.fixture
def run(rank: RankProcess, project: Project) -> Callable[[str], Any]:
    """Runs a cell that must not fail on the project as it is; returns its value."""
    return lambda code: rank.ok(code, tree=project.tree())


def stderr(rank: RankProcess) -> str:
    return ANSI.sub("", rank.text("err"))


def test_a_function_its_module_and_names_in_the_namespace(project: Project, run: Callable[[str], Any]) -> None:
    project.write("model.py", "def f():\n    return 1\n")
    assert run("import model\nfrom model import f as g\nmodel.f(), g()") == (1, 1)
    project.write("model.py", "def f():\n    return 2\n")
    assert run("model.f(), g(), g is model.f") == (2, 2, True)
    project.write("model.py", "import functools\n@functools.lru_cache\ndef f():\n    return 3\n")
    assert run("model.f(), g(), g is model.f") == (3, 3, True)


def test_names_that_are_new_come_where_all_was_imported(project: Project, run: Callable[[str], Any]) -> None:
    project.write("model.py", "def f():\n    return 1\n")
    project.write("other.py", "")
    assert run("import other\nfrom model import *\ntaken = 'a cell'\nf()") == 1
    project.write("model.py", "def f():\n    return 2\ndef g():\n    return 3\n_h = taken = 4\n")
    project.write("other.py", "here = 5\n")
    assert run("f(), g(), taken") == (2, 3, "a cell")
    assert run("'_h' in globals(), 'here' in globals()") == (False, False)


def test_a_values_name_in_a_cell_stays_the_cells(project: Project, run: Callable[[str], Any]) -> None:
    """`epochs` may be the cell's own though it equals the module's."""
    project.write("config.py", "epochs = 3\nnet = object()\n")
    assert run("import config\nfrom config import net\nepochs = 3\nepochs") == 3
    project.write("config.py", "epochs = 5\nnet = object()\n")
    assert run("epochs, config.epochs, net is config.net") == (3, 5, False)


def test_edits_that_sizes_and_times_do_not_tell(project: Project, run: Callable[[str], Any]) -> None:
    """Several in a second; and as the allocator writes: a new file, renamed, though the client's clock stood still."""
    path = project.write("model.py", "N = 1\n")
    os.utime(path, (1_000_000_000, 1_000_000_000))
    assert run("import model\nmodel.N") == 1
    for number in (2, 3):
        project.write("model.py", f"N = {number}\n")
        os.utime(path, ns=(10**18 + number, 10**18 + number))
        assert run("model.N") == number
    staged = project.write("staged", "N = 4\n")
    os.utime(staged, ns=(10**18 + 3, 10**18 + 3))
    staged.rename(path)
    assert run("model.N") == 4


def test_modules_that_import_from_one_another(project: Project, run: Callable[[str], Any]) -> None:
    project.write("config.py", "LR = 1\nclass Net:\n    size = 1\ndef f():\n    return 1\n")
    project.write("train.py", "from config import LR as rate, Net, f\ndef step():\n    return rate, Net.size, f()\n")
    assert run("import train\ntrain.step()") == (1, 1, 1)
    project.write("config.py", "LR = 2\nclass Net:\n    size = 2\ndef f():\n    return 2\n")
    assert run("train.step()") == (2, 2, 2)
    # Now train needs what config gets in the same edit.
    project.write("config.py", "LR = 2\nclass Net:\n    size = 2\ndef f():\n    return 2\nNEW = 9\n")
    project.write("train.py", "from config import NEW\ndef step():\n    return NEW\n")
    assert run("train.step()") == 9


def test_modules_whose_order_turns_round(rank: RankProcess, project: Project, run: Callable[[str], Any]) -> None:
    project.write("first.py", "A = 1\n")
    project.write("second.py", "from first import A\n")
    run("import second, first")
    project.write("second.py", "B = 2\n")
    project.write("first.py", "from second import B\nA = B\n")
    assert run("first.A") == 2
    assert stderr(rank) == ""


def test_packages(project: Project, run: Callable[[str], Any]) -> None:
    project.write("pack/__init__.py", "from .part import LIMIT\nfrom .part import *\nV = 1\n")
    project.write("pack/part.py", "LIMIT = 1\nOTHER = 1\nclass A:\n    def f(self): return LIMIT\n")
    project.write("user.py", "from pack import LIMIT\nfrom pack.part import A\n")
    run("import pack.part, user\na = user.A()")
    project.write("pack/part.py", "LIMIT = 2\nOTHER = 2\nclass A:\n    def f(self): return LIMIT * 10\n")
    assert run("pack.LIMIT, pack.OTHER, user.LIMIT, a.f()") == (2, 2, 2, 20)
    project.write("pack/__init__.py", "from .part import LIMIT\nV = 2\n")
    assert run("pack.V, pack.part.LIMIT") == (2, 2)
    project.write("pack/new.py", "N = 5\n")
    assert run("import pack.new\npack.new.N") == 5
    project.write("fresh/__init__.py", "N = 6\n")
    assert run("import fresh\nfresh.N") == 6


def test_a_module_that_could_not_be_imported_before(rank: RankProcess, project: Project) -> None:
    project.write("other.py", "")
    assert rank.run("import late", tree=project.tree()).failure.name == "ModuleNotFoundError"
    project.write("late.py", "N = 1 +\n")
    assert rank.run("import late", tree=project.tree()).failure.name == "SyntaxError"
    project.write("late.py", "N = 1\n")
    assert rank.ok("import late\nlate.N", tree=project.tree()) == 1
    assert stderr(rank) == ""


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("def f(:\n    return 2\n", "SyntaxError"),
        ("class A:\n    def f(self): return 2\nundefined\n", "NameError: name 'undefined' is not defined"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
        ("def helper():\n    1 / 0\n\nhelper()\n", "model.py:2"),
    ],
)
def test_a_mistake_is_shown_once_and_the_old_module_stays(
    rank: RankProcess, project: Project, mistake: str, told: str
) -> None:
    good = "N = {0}\nclass A:\n    def f(self): return N\n"
    project.write("model.py", good.format(1))
    rank.ok("import model\na = model.A()", tree=project.tree())
    project.write("model.py", mistake)
    assert rank.ok("a.f()", tree=project.tree()) == 1
    text = stderr(rank)
    assert text.startswith("model.py could not be reloaded; the ranks still run the version before\n")
    assert told in text
    assert "importlib" not in text
    assert "live_update" not in text
    assert text.count("could not be reloaded") == 1
    still = "model.py still can not be reloaded: the ranks run the version before\n"
    assert rank.ok("a.f()", tree=project.tree()) == 1
    assert stderr(rank) == still
    project.write("README", "another version\n")
    assert rank.ok("a.f(), type(a) is model.A", tree=project.tree()) == (1, True)
    assert stderr(rank) == still, "the mistake itself was shown before"
    rank.ok("a.f()", tree=project.tree(reload=False))
    assert stderr(rank) == "", "it is what the user wants"
    project.write("model.py", good.format(3))
    assert rank.ok("a.f(), model.N", tree=project.tree()) == (3, 3)
    assert stderr(rank) == ""


def test_a_module_that_failed_for_lack_of_another_file(rank: RankProcess, project: Project) -> None:
    project.write("model.py", "N = 1\n")
    rank.ok("import model", tree=project.tree())
    project.write("model.py", "from helper import N\n")
    assert rank.ok("model.N", tree=project.tree()) == 1
    assert "No module named 'helper'" in stderr(rank)
    project.write("helper.py", "N = 2\n")
    assert rank.ok("model.N", tree=project.tree()) == 2


def test_a_file_that_is_gone_leaves_its_module(project: Project, run: Callable[[str], Any]) -> None:
    path = project.write("model.py", "def f(): return 1\n")
    run("import model")
    path.unlink()
    project.write("README", "another version\n")
    assert run("model.f()") == 1
    project.write("model.py", "def f(): return 2\n")
    assert run("model.f()") == 2


def test_without_a_tree_or_with_the_same_version_of_a_copy_nothing_is_looked_at(
    template: TemplateProcess, project: Project
) -> None:
    spec = template.rank_spec(0, 1)
    spec.workspace = spec.directory = str(project.directory)
    rank = RankProcess(template, spec, template.fork_specs([spec])[0])
    template.ranks.append(rank)
    project.write("model.py", "N = 1\n")
    rank.ok("import model", tree=project.tree())
    version = project.version
    project.write("model.py", "N = 2\n")
    assert rank.ok("model.N") == 1
    assert rank.ok("model.N", tree=Tree(version=version, reload=True)) == 1
    assert rank.ok("model.N", tree=Tree(version="another", reload=True)) == 2
    project.write("model.py", "N = \n")
    for told in ("SyntaxError", "model.py still can not be reloaded: the ranks run the version before\n"):
        assert rank.ok("model.N", tree=Tree(version="broken", reload=True)) == 2
        assert told in stderr(rank)


def test_a_rank_that_missed_versions_and_one_that_starts_late(template: TemplateProcess, project: Project) -> None:
    ranks = template.fork(2)
    project.write("model.py", "N = 1\n")
    run_all(ranks, "import model", tree=project.tree())
    for number in (2, 3, 4):
        project.write("model.py", f"N = {number}\n")
        assert ranks[0].ok("model.N", tree=project.tree()) == number
    assert ranks[1].ok("model.N", tree=project.tree()) == 4
    late = template.fork(1)[0]
    assert late.ok("import model\nmodel.N", tree=project.tree()) == 4


def test_pushes_and_pulls_see_the_files_too(rank: RankProcess, project: Project) -> None:
    project.write("model.py", "N = 1\n")
    rank.ok("import model", tree=project.tree())
    project.write("model.py", "N = 2\n")
    spec = rank.spec_of(pull=Pull(expression="model.N"), tree=project.tree())
    rank.send_run(spec)
    assert rank.value(rank.result()) == 2


def test_side_effects_and_main_guards(project: Project, run: Callable[[str], Any]) -> None:
    text = "import os\nos.environ['RUNS'] = os.environ.get('RUNS', '') + '{0}'\nif __name__ == '__main__':\n    1 / 0\n"
    project.write("model.py", text.format("a"))
    run("import model, os")
    project.write("model.py", text.format("b"))
    assert run("os.environ['RUNS']") == "ab"
    project.write("README", "another version\n")
    assert run("os.environ['RUNS']") == "ab"


def test_an_interrupt_while_a_module_reloads(rank: RankProcess, project: Project) -> None:
    project.write("model.py", "class A:\n    def f(self): return 1\n")
    rank.ok("import model\na = model.A()", tree=project.tree())
    project.write("model.py", "class A:\n    def f(self): return 2\nimport time\ntime.sleep(100)\n")
    spec = rank.submit("a.f()", tree=project.tree())
    eventually(lambda: "model.py" in rank.where().line)
    assert rank.interrupt(spec.run_id)
    assert rank.result().outcome == OUTCOME_INTERRUPTED
    assert rank.ok("a.f()") == 1
    project.write("model.py", "class A:\n    def f(self): return 3\n")
    assert rank.ok("a.f()", tree=project.tree()) == 3


def test_what_the_template_has_preloaded(own_template: Callable[..., TemplateProcess], tmp_path: Path) -> None:
    """Its objects lie where the garbage collector does not look in a rank."""
    project = Project(tmp_path / "src")
    text = "class A:\n    def f(self): return {0}\nkept = A()\n"
    project.write("preloaded.py", text.format(1))
    template = own_template("preloaded", environment={"PYTHONPATH": str(project.directory)})
    template.wait_ready()
    rank = template.fork(1)[0]
    assert rank.ok("import preloaded\nkept = preloaded.kept\nkept.f()", tree=project.tree()) == 1
    project.write("preloaded.py", text.format(2))
    other = template.fork(1)[0]
    assert rank.ok("kept.f(), type(kept) is preloaded.A", tree=project.tree()) == (2, True)
    assert other.ok("import preloaded\npreloaded.kept.f()", tree=project.tree()) == 2


def test_where_a_rank_in_a_workspace_imports_from(template: TemplateProcess, tmp_path: Path) -> None:
    hidden, workspace = tmp_path / "client", tmp_path / "workspace"
    for directory, origin in ((hidden, "client"), (workspace / "src", "workspace"), (workspace / "tools", "tools")):
        directory.mkdir(parents=True)
        (directory / f"{directory.name}_only.py").touch()
        (directory / "where.py").write_text(f"ORIGIN = {origin!r}\n")
    spec = template.rank_spec(0, 1, {"PYTHONPATH": str(hidden)})
    spec.workspace = spec.directory = str(workspace)
    pid = template.fork_specs([spec])[0]
    rank = RankProcess(template, spec, pid)
    template.ranks.append(rank)
    before = rank.ok("import sys\nlist(sys.path)")
    assert str(hidden) in before
    copies = [CopiedTree(directory=str(hidden)), CopiedTree(directory=sys.prefix, mount="python")]
    tree = Tree(version="1", reload=True, import_paths=[str(hidden / "src"), str(hidden)], copies=copies)
    after = rank.ok("import where\nwhere.ORIGIN, list(sys.path)", tree=tree)
    assert after[0] == "workspace"
    assert after[1][:2] == [str(workspace), str(workspace / "src")]
    assert after[1][2:] == [path for path in before[1:] if path != str(hidden)], "the interpreter's own stay"
    tree = Tree(version="2", reload=True, import_paths=[str(hidden / "tools")], copies=copies)
    assert rank.ok("list(sys.path)", tree=tree)[1:2] == [str(workspace / "tools")]
    assert rank.ok("import tools_only\nlist(sys.path)", tree=tree).count(str(workspace / "src")) == 0
    tree = Tree(version="3", reload=True, last_import_paths=[str(hidden)], copies=copies)
    assert str(hidden) not in rank.ok("list(sys.path)", tree=tree), "the client's own is not there"


def test_what_is_imported_last_hides_nothing(template: TemplateProcess, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise ValueError('hidden')")
    (tmp_path / "beside.py").touch()
    rank = RankProcess(template, spec := template.rank_spec(0, 1), template.fork_specs([spec])[0])
    template.ranks.append(rank)
    tree = Tree(reload=True, last_import_paths=[str(tmp_path)])
    rank.ok("import sys, json, beside", tree=tree)
    for _ in range(2):
        assert rank.ok("list(sys.path)", tree=tree)[-1] == str(tmp_path)
    assert rank.ok(f"sys.path.count({str(tmp_path)!r})", tree=tree) == 1
    assert rank.ok(f"sys.path.count({str(tmp_path)!r})", tree=Tree(reload=True)) == 0


def test_files_of_a_workspace_have_the_users_names(template: TemplateProcess, tmp_path: Path) -> None:
    """Each node has its copy elsewhere, and ranks of all nodes must fail identically to be shown as one."""

    def tree_of(version: str, *, reload: bool = False) -> Tree:
        copies = [CopiedTree(directory="/client/project")]
        return Tree(version=version, reload=reload, import_paths=["/client/project/src"], copies=copies)

    failures = []
    for node in ("node0", "node1"):
        root = Project(tmp_path / node)
        root.write("src/inner.py", "def g():\n    raise ValueError('wrong')\n")
        root.write("notebooks/outer.py", "import inner\ndef f():\n    inner.g()\n")
        spec = template.rank_spec(0, 1)
        spec.workspace, spec.directory = str(root.directory), str(root.directory / "notebooks")
        rank = RankProcess(template, spec, template.fork_specs([spec])[0])
        template.ranks.append(rank)
        failures.append(rank.run("import outer\nouter.f()", tree=tree_of("1")).failure)
        trace = ANSI.sub("", failures[-1].traceback)
        assert re.findall(r"File (\S+)", trace) == ["outer.py:3,", "src/inner.py:2,"]
        assert failures[-1].where == "src/inner.py:2"
        root.write("src/inner.py", "def g(:\n")
        rank.ok("1", tree=tree_of("2", reload=True))
        assert stderr(rank).startswith("src/inner.py could not be reloaded")
        assert "File src/inner.py:1" in stderr(rank)
    assert failures[0] == failures[1]


def test_tracebacks_show_the_new_lines(rank: RankProcess, project: Project) -> None:
    project.write("model.py", "def f():\n    raise ValueError('first')\n")
    first = rank.run("import model\nmodel.f()", tree=project.tree())
    project.write("model.py", "# a new line\ndef f():\n    raise KeyError('second')\n")
    second = rank.run("model.f()", tree=project.tree())
    assert "raise ValueError('first')" in ANSI.sub("", first.failure.traceback)
    assert "raise KeyError('second')" in ANSI.sub("", second.failure.traceback)
    assert second.failure.where == "model.py:3"


def test_an_import_that_fails_shows_no_frames_of_the_loader(rank: RankProcess, project: Project) -> None:
    project.write("model.py", "import missing_module\n")
    failure = rank.run("import model", tree=project.tree()).failure
    assert failure.where == "model.py:1"
    assert "importlib" not in failure.traceback
    assert "path_stats" not in failure.traceback
