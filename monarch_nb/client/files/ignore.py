"""What is not synced: patterns as .gitignore has them, from files at every level, and our own defaults.

Our own translation, not pathspec's (1.1 was tried): its expressions are not git's in brackets, as `[[:alpha:]]`,
`[b-a]`, `[\\]]`, or `a[!x]b` for `a/b`; it raises for lines that git leaves out, `!` and `a\\`; and it matches a file
also through its directories, which is not what git does as soon as one layer takes back what another excluded. Here a
walk goes from the top down and asks about one name at a time: names without wildcards are looked up, the rest is one
regular expression.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from monarch_nb.config import cadence, patience

_GIT_S = patience(5.0)
ASK_AGAIN_S = cadence(10.0)
"""Git's files include others, of which only git knows: so it is asked again after this time."""


def excludes_file(top: Path, git: Path) -> Path:
    """Return the file, which may not be there, that a repository's git reads besides those of the repository.

    Args:
        top: of the work tree.
        git: what all work trees of the repository share.
    """
    beside = Path(os.path.expanduser(os.environ.get("XDG_CONFIG_HOME") or "~/.config"), "git")
    own = Path(os.environ.get("GIT_CONFIG_GLOBAL") or os.path.expanduser("~/.gitconfig"))
    system = Path(os.environ.get("GIT_CONFIG_SYSTEM") or "/etc/gitconfig")
    configurations = (own, beside / "config", system, git / "config", top / ".git/config.worktree")
    state = (*(_written(path) for path in configurations), time.monotonic() // ASK_AGAIN_S)
    try:
        return _named(top, configurations, state) or beside / "ignore"
    except subprocess.TimeoutExpired:  # not what git says, but it is asked again the next time
        return beside / "ignore"


@functools.lru_cache(maxsize=64)
def _named(top: Path, _configurations: tuple[Path, ...], _state: tuple[float, ...]) -> Path | None:
    """Ask git, which knows how its files include one another.

    Raises:
        subprocess.TimeoutExpired: it does not answer.
    """
    command = ["git", "config", "--type=path", "--get", "core.excludesFile"]
    for directory in (top, Path("/")):  # it may refuse to read the configuration of somebody else's repository
        try:
            done = subprocess.run(command, cwd=directory, capture_output=True, timeout=_GIT_S, check=False)
        except OSError:  # there is no git
            return None
        if done.returncode in (0, 1):
            return top / os.fsdecode(done.stdout.removesuffix(b"\n")) if done.returncode == 0 else None
    return None


def _written(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


GITIGNORE = b".gitignore"
MESHIGNORE = b".meshignore"
RULE_FILES = frozenset((GITIGNORE, MESHIGNORE))
ENVIRONMENT_MARKS = frozenset((b"pyvenv.cfg", b"conda-meta"))
"""A directory that has one of these is a virtual environment."""
DEFAULTS = (
    # Version control.
    *(".git", ".hg", ".svn", ".jj", ".bzr", "_darcs", "CVS/"),
    # What is made from sources, or belongs to this computer.
    *("__pycache__/", "*.py[co]", "node_modules/", ".tox/", ".nox/", ".eggs/", ".direnv/"),
    *(".mypy_cache/", ".ruff_cache/", ".pytest_cache/", ".hypothesis/", ".ipynb_checkpoints/"),
    # Notebooks change at every save, and are no code.
    "*.ipynb",
    # What editors and desktops leave while one types.
    *(".DS_Store", "*~", ".*.sw[a-p]", ".~*", ".#*", "#*#", "4913"),
    # What is written about runs, and by us.
    *("wandb/run-*/", "wandb/offline-run-*/", ".monarch-nb*"),
    *("*.pt.trace.json.gz", "run*-rank*-memory.pickle"),
)


class _Match(NamedTuple):
    """The pattern that decides about a name: the last that fits."""

    number: int
    ignored: bool


_NONE = _Match(-1, False)


class Patterns:
    """The patterns of one file, asked about one name at a time.

    Example:
        >>> patterns = Patterns(b"*.log\\n!keep.log\\n/build/\\n".splitlines())
        >>> [patterns.ignored(path, is_directory=False) for path in (b"a/b.log", b"keep.log", b"model.py", b"build")]
        [True, False, None, None]
        >>> patterns.ignored(b"build", is_directory=True)
        True
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        parsed = [pattern for line in lines if (pattern := _parse(line))]
        self._for_files = _Matcher([(n, p) for n, p in enumerate(parsed) if not p.directories_only])
        self._for_directories = _Matcher(list(enumerate(parsed)))

    def ignored(self, path: bytes, *, is_directory: bool) -> bool | None:
        """Return whether a name is ignored, taken back (False), or not spoken of (None).

        Args:
            path: below the directory of the patterns.
            is_directory: a real one: a link to one is a file.
        """
        match = (self._for_directories if is_directory else self._for_files).match(path)
        return match.ignored if match is not _NONE else None


class _Pattern(NamedTuple):
    glob: bytes
    anchored: bool
    """Speaks of whole paths, not of names at any depth."""
    directories_only: bool
    ignored: bool


class _Matcher:
    def __init__(self, patterns: list[tuple[int, _Pattern]]) -> None:
        names = [(number, pattern) for number, pattern in patterns if not pattern.anchored]
        self._plain = {p.glob: _Match(n, p.ignored) for n, p in names if not _SPECIAL.search(p.glob)}
        self._names = _Alternatives([(n, p) for n, p in names if _SPECIAL.search(p.glob)])
        self._paths = _Alternatives([(n, p) for n, p in patterns if p.anchored])

    def match(self, path: bytes) -> _Match:
        name = path.rpartition(b"/")[2]
        return max(self._plain.get(name, _NONE), self._names.match(name), self._paths.match(path))


class _Alternatives:
    """Patterns as one regular expression, the last first: the first that fits decides."""

    def __init__(self, patterns: list[tuple[int, _Pattern]]) -> None:
        self._matches: list[_Match] = []
        expressions = []
        for number, pattern in reversed(patterns):
            if (expression := _expression(pattern.glob)) is not None:
                expressions.append(expression)
                self._matches.append(_Match(number, pattern.ignored))
        joined = b"|".join(b"(" + expression + b")" for expression in expressions)
        self._compiled = re.compile(joined, re.DOTALL) if expressions else None

    def match(self, text: bytes) -> _Match:
        if self._compiled is None or (found := self._compiled.fullmatch(text)) is None:
            return _NONE
        return self._matches[(found.lastindex or 1) - 1]


_SPECIAL = re.compile(rb"[*?\[\\]")


def _parse(line: bytes) -> _Pattern | None:
    line = line.removesuffix(b"\r")
    if line.startswith(b"#"):
        return None
    kept = line.rstrip(b" ")
    if kept != line and (len(kept) - len(kept.rstrip(b"\\"))) % 2:
        kept += b" "  # "\ " at the end is a space
    negated = kept.startswith(b"!")
    glob = kept[1:] if negated else kept
    directories_only = glob.endswith(b"/")
    glob = glob.removesuffix(b"/")
    anchored = b"/" in glob
    glob = glob.removeprefix(b"/")
    return _Pattern(glob, anchored, directories_only, not negated) if glob else None


_CLASSES = {
    b"alnum": rb"a-zA-Z0-9",
    b"alpha": rb"a-zA-Z",
    b"blank": rb" \t",
    b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": rb"0-9",
    b"graph": rb"\x21-\x7e",
    b"lower": rb"a-z",
    b"print": rb"\x20-\x7e",
    b"punct": rb"!-/:-@\[-`{-~",
    b"space": rb" \t\n\r\x0b\x0c",
    b"upper": rb"A-Z",
    b"xdigit": rb"0-9a-fA-F",
}


def _expression(glob: bytes) -> bytes | None:
    """Return a glob as a regular expression; None for one that fits nothing, as an open bracket."""
    out, at = b"", 0
    special = _SPECIAL.search(glob)
    literal_bytes = special.start() if special else len(glob)  # git compares these first, and begins behind them
    while at < len(glob):
        if glob[at : at + 1] == b"*":
            begins = at in (0, literal_bytes) or glob[at - 1 : at] == b"/"
            count = len(glob) - at - len(glob[at:].lstrip(b"*"))
            at += count
            if count > 1 and begins and glob[at : at + 1] == b"/":
                out, at = out + rb"(?:.*/)?", at + 1
            else:
                out += rb".*" if count > 1 and begins and at == len(glob) else rb"[^/]*"
        elif glob[at : at + 1] == b"?":
            out, at = out + rb"[^/]", at + 1
        elif glob[at : at + 1] == b"[":
            bracket = _bracket(glob, at)
            if bracket is None:
                return None
            out, at = out + bracket[0], bracket[1]
        else:
            if glob[at : at + 1] == b"\\":
                at += 1
                if at == len(glob):
                    return None
            out, at = out + re.escape(glob[at : at + 1]), at + 1
    return out


def _bracket(glob: bytes, at: int) -> tuple[bytes, int] | None:
    """Return the expression of the bracket at `at` and where it ends; None when it is open or names no class."""
    at += 1
    negated = glob[at : at + 1] in (b"!", b"^")
    at += negated
    members, first = b"", True
    while first or glob[at : at + 1] != b"]":
        first = False
        if glob.startswith(b"[:", at):
            end = glob.find(b"]", at + 2)
            if end == -1:
                return None
            if glob[end - 1 : end] == b":" and end - 1 >= at + 2:
                if (members_of := _CLASSES.get(glob[at + 2 : end - 1])) is None:
                    return None
                members, at = members + members_of, end + 1
                continue
        low = _member(glob, at)
        if low is None:
            return None
        character, at = low
        members += re.escape(character)  # the first of a range is a member though the range be empty, as in git
        if glob[at : at + 1] == b"-" and glob[at + 1 : at + 2] not in (b"]", b""):
            high = _member(glob, at + 1)
            if high is None:
                return None
            if character <= high[0]:
                members += re.escape(character) + b"-" + re.escape(high[0])
            at = high[1]
    return (rb"(?!/)[" + (b"^" if negated else b"") + members + b"]"), at + 1


def _member(glob: bytes, at: int) -> tuple[bytes, int] | None:
    if glob[at : at + 1] == b"\\":
        at += 1
    return (glob[at : at + 1], at + 1) if at < len(glob) else None


@dataclass(frozen=True)
class _Layer:
    patterns: Patterns
    origin: str
    base: bytes = b""
    """Their directory, below the root, with a slash at its end."""
    above: bytes = b""
    """For patterns of a directory above the root: the way from there to the root, with a slash at its end."""

    def ignored(self, path: bytes, is_directory: bool) -> bool | None:
        below = self.above + path if self.above else path[len(self.base) :]
        return self.patterns.ignored(below, is_directory=is_directory)


@dataclass(frozen=True)
class Rules:
    """What is ignored in one directory and below: the layers that speak there, each the strongest last."""

    git: tuple[_Layer, ...]
    ours: tuple[_Layer, ...]
    mesh: tuple[_Layer, ...]

    def ignored_by(self, path: bytes, *, is_directory: bool) -> str:
        """Return what ignores a name ("defaults", ".gitignore", …); "" when nothing does."""
        for layer in self._strongest_first:
            verdict = layer.ignored(path, is_directory)
            if verdict is not None:
                return layer.origin if verdict else ""
        return ""

    def insists_on(self, path: bytes) -> bool:
        """Return whether .meshignore takes a directory back that would be ignored for what it has inside."""
        verdicts = (layer.ignored(path, True) for layer in reversed(self.mesh))
        return next((verdict for verdict in verdicts if verdict is not None), None) is False

    @cached_property
    def _strongest_first(self) -> tuple[_Layer, ...]:
        return (*self.git, *self.ours, *self.mesh)[::-1]

    def inside(self, root: bytes, directory: bytes, names: Iterable[bytes]) -> Rules:
        """Return the rules inside of a directory that has `names`: these, and what its own files add."""
        found = RULE_FILES.intersection(names)
        rules = self
        base = directory + b"/" if directory else b""
        for name in found:
            text = _read(os.path.join(root, base + name))
            layer = _Layer(Patterns(_lines(text)), os.fsdecode(name), base)
            rules = (
                replace(rules, git=(*rules.git, layer))
                if name == GITIGNORE
                else replace(rules, mesh=(*rules.mesh, layer))
            )
        return rules


def rules_of(root: Path, patterns: Iterable[str] = ()) -> Rules:
    """Return the rules for a tree that come from outside of it.

    Args:
        root: of the tree.
        patterns: of pyproject.toml.
    """
    ours = [_Layer(Patterns(pattern.encode() for pattern in DEFAULTS), "defaults")]
    if own := tuple(patterns):
        ours.append(_Layer(Patterns(os.fsencode(pattern) for pattern in own), "pyproject.toml"))
    above: list[_Layer] = []
    for base, file, origin in _above(root):
        way = b"" if base == root else os.fsencode(root.relative_to(base)) + b"/"
        above.append(_Layer(Patterns(_lines(_read(os.fsencode(file)))), origin, above=way))
    if _ignores_root(above):
        above = []  # a repository that ignores the whole tree has no say in it
    return Rules(tuple(above), tuple(ours), ())


def rule_files_above(root: Path) -> list[Path]:
    """Return the files outside of a tree that may have rules for it, whether they exist or not."""
    return [file for _, file, _ in _above(root)]


def _above(root: Path) -> list[tuple[Path, Path, str]]:
    """Return what the repository around a root says about it: (directory, file of its patterns, what that is called),
    the strongest last."""
    top = next((parent for parent in (root, *root.parents) if os.path.lexists(parent / ".git")), None)
    if top is None:
        return []
    way = [parent for parent in reversed(root.parents) if parent.is_relative_to(top)]
    git = _git_directory(top)
    excludes = excludes_file(top, git)
    of_git = [(top, excludes, str(excludes)), (top, git / "info" / "exclude", ".git/info/exclude")]
    return [*of_git, *((parent, parent / ".gitignore", ".gitignore") for parent in way)]


def _ignores_root(above: list[_Layer]) -> bool:
    longest = max((layer.above for layer in above), key=len, default=b"").rstrip(b"/")
    for end in [at for at, byte in enumerate(longest + b"/") if byte == ord("/")]:
        parent = longest[:end]
        for layer in reversed(above):
            start = len(longest) - len(layer.above.rstrip(b"/"))
            if start >= end:
                continue  # of that directory itself, or of one inside
            verdict = layer.patterns.ignored(parent[start:], is_directory=True)
            if verdict:
                return True
            if verdict is not None:
                break
    return False


def _git_directory(top: Path) -> Path:
    """Return where a repository keeps what all its work trees share: `.git` of a work tree is a file that names it."""
    git = top / ".git"
    if git.is_dir():
        return git
    named = _read(os.fsencode(git)).strip()
    directory = top / os.fsdecode(named.removeprefix(b"gitdir:").strip())
    common = _read(os.fsencode(directory / "commondir")).strip()
    return directory / os.fsdecode(common)


def _lines(text: bytes) -> list[bytes]:
    return text.removeprefix(b"\xef\xbb\xbf").split(b"\n")


def _read(path: bytes) -> bytes:
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:  # a pipe, say
            return file.read(1 << 20)
    except OSError:
        return b""  # patterns that can not be read are none; the file itself is reported where the tree is walked
