"""What is ignored, compared with what git ignores."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from monarch_nb.client.files import ignore
from monarch_nb.client.files.ignore import Patterns, rules_of
from monarch_nb.client.files.local_tree import LocalTree
from monarch_nb.client.files.project import Settings
from unit.client.files.trees import write

GIT = shutil.which("git")
needs_git = pytest.mark.skipif(GIT is None, reason="compares with git")


def git(root: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    environment = os.environ | {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    environment |= {"XDG_CONFIG_HOME": str(root / "none"), "GIT_CEILING_DIRECTORIES": str(root.parent)}
    done = subprocess.run(["git", "-C", root, *arguments], input=stdin, capture_output=True, env=environment)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def files_of(root: Path) -> set[bytes]:
    tree = LocalTree(root, Settings(root))
    try:
        entries = tree.refresh().entries
    finally:
        tree.close()
    return {path for path, entry in entries.items() if entry.kind != entry.KIND_DIRECTORY}


NAMES = ("a", "b", "ab", "a.log", "b.log", "x.py", "build", "out", "a b", "[a]", "!x", "#y", "A", "a-b")
PATTERNS = (
    *("a", "/a", "a/", "*.log", "!*.log", "!a.log", "build/", "/build/*", "!/build/a", "out/**", "**/out", "a/**/b"),
    *("[ab]", "[!a]", "[^a-b]", "?", "??", "*", "!*/", "!x.py", "/*", "!/a", "a*b", "\\[a\\]", "\\!x", "\\#y", "#a"),
    *("a b", "a\\ b", "a ", "x.py  ", "**", "**/", "a/b", "/a/b/", "!a/b", "**/a/*", "*/b", "[", "[a", "[]a]", "a\\"),
    *("[[:alpha:]]", "[[:upper:]]*", "[[:nope:]]", "a**b", "/**/b", "b/**", "!b/**/x.py", "[a-", "[b-a]", "a//b"),
    *("a**/b", "a/***/b", "a/**", "a/b**", "a/c**/b", "?**/b", "**a", "a[!x]b", "a[.-0]b", "[\\]]", "a\t", "//a"),
    *("", "/", "!", "!/", "\\a", "[\\a]", "[a/b]", "***", "**/**/a", "a/**/", "?[!b]", "*.p[xy]", "[a-]b", "!a.log\r"),
)


@needs_git
def test_random_trees_as_git_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignore, "DEFAULTS", (".git",))
    for seed in range(6):
        compare_random_tree(tmp_path / f"root{seed}", random.Random(seed))


def compare_random_tree(root: Path, dice: random.Random) -> None:
    root.mkdir()
    git(root, "init", "-q")
    directories = [root]
    for _ in range(25):
        parent = dice.choice(directories)
        path = parent / dice.choice(NAMES)
        if path.exists():
            continue
        if dice.random() < 0.45 and len(path.relative_to(root).parts) < 5:
            path.mkdir()
            directories.append(path)
        else:
            path.write_text("x")
    for directory in directories:
        (directory / "kept").write_text("x")
        if directory == root or dice.random() < 0.4:
            lines = dice.choices(PATTERNS, k=dice.randint(1, 6))
            (directory / ".gitignore").write_text("\n".join([*lines, "!.gitignore"]), newline="")
    (root / ".git" / "info" / "exclude").write_text("\n".join(dice.choices(PATTERNS, k=2)), newline="")
    for _ in range(10):
        expected = set(git(root, "ls-files", "-o", "-z", "--exclude-standard").split(b"\0")) - {b""}
        rules = {
            str(file.relative_to(root)): file.read_bytes()
            for file in (*root.rglob(".gitignore"), root / ".git/info/exclude")
        }
        assert files_of(root) == expected, rules
        (root / ".gitignore").write_text("\n".join(dice.choices(PATTERNS, k=dice.randint(1, 8))), newline="")


@needs_git
def test_each_pattern_as_git_has_it(tmp_path: Path) -> None:
    """Each in a directory of its own, of one repository."""
    git(tmp_path, "init", "-q")
    names = [*NAMES, *(f"{a}/{b}" for a in NAMES for b in NAMES), "a/c/b", "a/c/d/b", "build/a/x.py", "c/out/x.py"]
    texts = ["\n".join(["*.py", each] if each.startswith("!") else [each]) for each in PATTERNS]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / ".gitignore").write_text(text, newline="")
    asked = b"".join(f"{number}/{name}\0".encode() for number in range(len(texts)) for name in names)
    answers = git(tmp_path, "check-ignore", "--no-index", "-v", "-n", "-z", "--stdin", stdin=asked).split(b"\0")
    said = {answers[at + 3].decode(): answers[at + 2] for at in range(0, len(answers) - 3, 4)}
    for number, text in enumerate(texts):
        patterns = Patterns(text.encode().split(b"\n"))
        for name in names:
            parents = [str(parent).encode() for parent in Path(name).parents][:-1]
            if any(patterns.ignored(parent, is_directory=True) is not None for parent in parents):
                continue  # git answers for the directory
            verdict, git_said = patterns.ignored(name.encode(), is_directory=False), said[f"{number}/{name}"]
            assert (verdict is not None) == bool(git_said), (text, name, git_said)
            assert verdict is None or verdict == (not git_said.startswith(b"!")), (text, name, git_said)


def test_defaults(tmp_path: Path) -> None:
    kept = {"model.py": "", "data/x.bin": "", "wandb/settings": "", "venv.py": "", ".env": ""}
    dropped = (
        *(".git/config", "sub/.git", "__pycache__/a.pyc", "a/b/__pycache__/x", "m.pyc", "node_modules/x/index.js"),
        *(".ipynb_checkpoints/a", ".mypy_cache/x", ".ruff_cache/x", ".pytest_cache/x", ".DS_Store", "nb.ipynb"),
        *("traces/run1.pt.trace.json.gz", "traces/run1-rank0-memory.pickle"),
        *("wandb/run-1/log", ".monarch-nb.json", "a.py~", ".a.py.swp", ".~nb.ipynb", ".hg/x", ".svn/x"),
        *("env/pyvenv.cfg", "env/bin/x", "conda/conda-meta/history", "conda/bin/y"),
    )
    write(tmp_path, kept | dict.fromkeys(dropped, "x"))
    assert files_of(tmp_path) == {name.encode() for name in kept}


def test_a_root_in_a_virtual_environment_is_a_project_all_the_same(tmp_path: Path) -> None:
    write(tmp_path, {"pyvenv.cfg": "", "model.py": ""})
    assert files_of(tmp_path) == {b"pyvenv.cfg", b"model.py"}


def test_meshignore_stands_over_all_others(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "*.bin\n!.venv\n", ".meshignore": "!small.bin\n!*.ipynb\n!env\nsecret\n"})
    write(tmp_path, {"small.bin": "", "big.bin": "", "nb.ipynb": "", "env/pyvenv.cfg": "", "secret": "", "a/x": ""})
    write(tmp_path, {"a/.meshignore": "!secret\n!__pycache__", "a/secret": "", "a/__pycache__/x": ""})
    kept = {b"small.bin", b"nb.ipynb", b"env/pyvenv.cfg", b"a/secret", b"a/x", b"a/__pycache__/x"}
    assert files_of(tmp_path) == kept | {b".gitignore", b".meshignore", b"a/.meshignore"}


def test_what_gitignore_takes_back_does_not_take_our_defaults_back(tmp_path: Path) -> None:
    write(
        tmp_path, {".gitignore": "*\n!*/\n!*.py\n", ".git/x.py": "", "a/__pycache__/x.py": "", "a/m.py": "", "a/n": ""}
    )
    assert files_of(tmp_path) == {b"a/m.py"}


def test_patterns_of_pyproject_toml(tmp_path: Path) -> None:
    write(tmp_path, {"a.csv": "", "a.py": ""})
    tree = LocalTree(tmp_path, Settings(tmp_path, ignore=("*.csv",)))
    assert set(tree.refresh().entries) == {b"a.py"}
    assert tree.report.ignored() == {"pyproject.toml": (1, 0)}
    tree.close()


def test_rules_of_the_repository_above_the_root(tmp_path: Path) -> None:
    write(
        tmp_path,
        {".gitignore": "*.bin\n/sub/out/\n", "sub/x.bin": "", "sub/out/y": "", "sub/kept": "", "sub/a/out/z": ""},
    )
    write(tmp_path, {".git/info/exclude": "hidden\n", "sub/hidden": ""})
    assert files_of(tmp_path / "sub") == {b"kept", b"a/out/z"}


def test_a_repository_that_ignores_the_root_has_no_say_in_it(tmp_path: Path) -> None:
    write(tmp_path, {".git/HEAD": "", ".gitignore": "/scratch/**\n", "scratch/mine/x.py": "", "scratch/mine/a/y": ""})
    assert files_of(tmp_path / "scratch" / "mine") == {b"x.py", b"a/y"}


def test_exclude_file_of_a_work_tree(tmp_path: Path) -> None:
    write(tmp_path, {"main/.git/info/exclude": "hidden\n", "main/.git/worktrees/w/commondir": "../..\n"})
    write(tmp_path, {"w/.git": f"gitdir: {tmp_path}/main/.git/worktrees/w\n", "w/hidden": "", "w/seen": ""})
    assert files_of(tmp_path / "w") == {b"seen"}


def test_names_that_are_no_text() -> None:
    patterns = Patterns([b"caf\xe9", b"*\n.py"])
    assert patterns.ignored(b"a/caf\xe9", is_directory=False)
    assert patterns.ignored(b"new\n.py", is_directory=False)


def test_insists_on_directory(tmp_path: Path) -> None:
    rules = rules_of(tmp_path)
    (tmp_path / ".meshignore").write_text("!env/\nother/\n")
    rules = rules.inside(os.fsencode(tmp_path), b"", [b".meshignore"])
    assert [rules.insists_on(name) for name in (b"env", b"other", b"third")] == [True, False, False]


def test_a_pipe_has_no_patterns_and_makes_nobody_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".gitignore")
    write(tmp_path, {"a": ""})
    assert files_of(tmp_path) == {b"a"}


class TestPatternsForAllRepositories:
    @pytest.fixture(autouse=True)
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Nobody's home directory, and a repository beside it."""
        home = tmp_path / "home"
        for name, value in (("HOME", home), ("GIT_CONFIG_SYSTEM", "/dev/null")):
            monkeypatch.setenv(name, str(value))
        for name in ("XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL"):
            monkeypatch.delenv(name, raising=False)
        write(tmp_path / "work", {".git/HEAD": "ref: refs/heads/main\n", ".git/objects/x": "", ".git/refs/x": ""})
        write(tmp_path / "work", {"secrets/key": "", "model.py": "", "big.bin": ""})
        return home

    def test_are_beside_gits_configuration(self, home: Path, tmp_path: Path) -> None:
        write(home, {".config/git/ignore": "secrets/\n"})
        assert files_of(tmp_path / "work") == {b"model.py", b"big.bin"}
        tree = LocalTree(tmp_path / "work", Settings(tmp_path / "work"))
        tree.refresh()
        assert tree.report.ignored()[str(home / ".config/git/ignore")] == (1, 0)
        write(home, {".config/git/ignore": "*.bin\n"})
        assert {b"secrets/key"} < tree.refresh().entries.keys(), "it was changed meanwhile"
        tree.close()

    @needs_git
    @pytest.mark.parametrize("level", ["global", "system", "local", "included"])
    def test_are_where_the_configuration_says(
        self, level: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(home, {".config/git/ignore": "model.py\n", "mine": "secrets/\n*.bin\n!big.bin\n"})
        files = {"global": home / ".gitconfig", "system": tmp_path / "system", "local": tmp_path / "work/.git/config"}
        monkeypatch.setenv("GIT_CONFIG_SYSTEM", str(files["system"]))
        says = "[core]\n\texcludesFile = ~/mine\n\trepositoryformatversion = 0\n"
        if level == "included":
            (home / "more").write_text(says)
            level, says = "global", "[include]\n\tpath = ~/more\n"
        assert b"model.py" not in files_of(tmp_path / "work")
        files[level].write_text(says)
        assert files_of(tmp_path / "work") == {b"model.py", b"big.bin"}

    @needs_git
    def test_are_asked_for_again_when_an_included_file_has_changed_or_git_was_too_slow(
        self, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(home, {"mine": "secrets/\n", ".gitconfig": "[include]\n\tpath = ~/more\n"})
        monkeypatch.setattr(ignore, "ASK_AGAIN_S", 1e-9)
        assert b"secrets/key" in files_of(tmp_path / "work")
        (home / "more").write_text("[core]\n\texcludesFile = ~/mine\n")
        assert b"secrets/key" not in files_of(tmp_path / "work")
        monkeypatch.setattr(ignore, "ASK_AGAIN_S", 1e9)
        with monkeypatch.context() as slow:
            slow.setattr(ignore, "_GIT_S", 0)
            assert b"secrets/key" in files_of(tmp_path / "work")
        assert b"secrets/key" not in files_of(tmp_path / "work")

    @needs_git
    def test_are_where_the_repository_of_a_linked_work_tree_says(self, home: Path, tmp_path: Path) -> None:
        write(home, {"mine": "secrets/\n"})
        linked = tmp_path / "linked"
        write(tmp_path / "main", {"model.py": ""})
        git(tmp_path / "main", "init", "-q")
        who = ("-c", "user.name=ann", "-c", "user.email=ann@example.org")
        git(tmp_path / "main", *who, "commit", "-q", "--allow-empty", "-m", "first")
        git(tmp_path / "main", "worktree", "add", "-q", str(linked))
        write(linked, {"secrets/key": ""})
        assert b"secrets/key" in files_of(linked)
        git(tmp_path / "main", "config", "core.excludesFile", "~/mine")
        assert b"secrets/key" not in files_of(linked)

    def test_are_weaker_than_those_of_a_repository(self, home: Path, tmp_path: Path) -> None:
        write(home, {".config/git/ignore": "*.bin\nsecrets/\n"})
        write(tmp_path / "work", {".git/info/exclude": "!big.bin\n", ".gitignore": "!secrets/\n"})
        assert files_of(tmp_path / "work") == {b"secrets/key", b"model.py", b"big.bin", b".gitignore"}

    def test_count_in_repositories_alone(self, home: Path, tmp_path: Path) -> None:
        write(home, {".config/git/ignore": "*.bin\n"})
        write(tmp_path / "plain", {"big.bin": ""})
        assert files_of(tmp_path / "plain") == {b"big.bin"}
