"""What Tab and Shift+Tab show: subcommands, flags and names on the line of a magic, and what a rank knows of its
variables in code for the ranks.
"""

from __future__ import annotations

import itertools
import os
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.tokenutil import token_at_cursor

from monarch_nb.client.connections.bridge import call
from monarch_nb.config import cadence
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.lines.templates import FOLDS_BY
from monarch_nb.notebook.mode import MeshMode, is_ours
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.syntax.command_line import Command, CommandSet, Source, complete, split_words, unquote
from monarch_nb.notebook.syntax.declarations import CELL, MESH
from monarch_nb.notebook.syntax.flags import WATCHES
from monarch_nb.notebook.syntax.meant import as_here
from monarch_nb.shape import Extent

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh

_LINE_MAGIC = re.compile(r"(?:[\w\s,.\[\]]+=)?\s*%mesh(?!\w)(?P<rest>.*)", re.DOTALL)
_CELL_MAGIC = re.compile(r"%%mesh(?!\w)(?P<rest>.*)", re.DOTALL)
_NAMING = {"-t": "targets", "--targets": "targets", "--mesh": "mesh"}
_MAX_LISTED_RANKS = 16
_MAX_LISTED_RUNS = 20
_IPYTHONS_NAMES = ("In", "Out", "exit", "quit", "get_ipython", "open")
"""What IPython puts among the kernel's variables."""
_PRIORITY = 1000.0  # before IPython's own matchers, so that these do not run in vain


class _Nothing(list[SimpleCompletion]):
    """Nothing to offer, and IPython's own offers make no sense here: it leaves them out only for one that has some."""

    def __len__(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class InLine:
    """The cursor is on a magic's line; `text` is what stands between the magic's name and the cursor."""

    magic: Command | CommandSet
    text: str


@dataclass(frozen=True, slots=True)
class InBody:
    """The cursor is in code for the ranks of a mesh, or of the main one."""

    code: str
    cursor: int
    targets: str | None
    mesh: str | None


def locate(cell: str, line: int, column: int, mode: MeshMode) -> InLine | InBody | None:
    """Return what is being completed at a cursor; None when it is not ours."""
    lines = cell.split("\n")
    before = lines[line][:column]
    first = next((index for index, each in enumerate(lines) if each.strip()), 0)
    if magic := _CELL_MAGIC.match(lines[first]):
        if line == first:
            typed = _CELL_MAGIC.match(before)
            return InLine(CELL, typed["rest"]) if typed else None
        body = lines[first + 1 :]
        cursor = sum(len(each) + 1 for each in body[: line - first - 1]) + column
        return InBody("\n".join(body), cursor, *_typed(magic["rest"]))
    if magic := _LINE_MAGIC.match(before):
        return InLine(MESH, magic["rest"]) if magic["rest"][:1].isspace() else None
    if mode.on and not is_ours(lines):
        return InBody(cell, sum(len(each) + 1 for each in lines[:line]) + column, mode.targets, mode.mesh)
    return None


def target_words(extent: Extent, typed: str) -> list[str]:
    """Return words for `-t` that begin with `typed`: ranks, dimensions, and all."""
    head, comma, last = typed.rpartition(",")
    dimensions = [f"{name}=" for name in extent]
    ranks = [str(rank) for rank in range(extent.size)] if extent.size <= _MAX_LISTED_RANKS else []
    first = ["all", *dimensions, *ranks]
    more = dimensions if "=" in head else ranks
    return [f"{head}{comma}{word}" for word in (more if comma else first) if word.startswith(last)]


def script_files(typed: str) -> list[str]:
    """Return the directories and Python files whose paths begin with `typed`."""
    directory, name = os.path.split(typed)
    try:
        with os.scandir(os.path.expanduser(directory) or ".") as entries:
            found = [(entry.name, entry.is_dir()) for entry in entries if entry.name.startswith(name)]
    except OSError:
        return []
    begin = typed.removesuffix(name)
    shown = [each for each in found if name.startswith(".") or each[0][0] not in "._"]
    return sorted(
        f"{begin}{each}/" if is_dir else f"{begin}{each}" for each, is_dir in shown if is_dir or each[-3:] == ".py"
    )


def module_names(typed: str) -> list[str]:
    """Return the modules in the kernel's directory whose names begin with `typed`."""
    package, dot, _ = typed.rpartition(".")
    found = pkgutil.iter_modules([os.path.join(os.getcwd(), *package.split("."))])
    names = (f"{package}{dot}{each.name}" for each in found)
    return [name for name in names if name.startswith(typed)]


def make_matcher(
    session: Session, mode: MeshMode, namespace: Mapping[str, Any]
) -> Callable[[CompletionContext], SimpleMatcherResult]:
    """Return a matcher for IPython's completer.

    Args:
        namespace: the kernel's variables.
    """

    def kernel_names(typed: str) -> Iterable[str]:
        return sorted(
            name
            for name in namespace
            if name.startswith(typed) and not name.startswith("_") and name not in _IPYTHONS_NAMES
        )

    def run_numbers(mesh: Mesh, typed: str) -> Iterable[str]:
        newest = [str(info.number) for info in mesh.past_runs()][: -_MAX_LISTED_RUNS - 1 : -1]
        return [number for number in newest if number.startswith(typed)]

    def metric_names(mesh: Mesh, typed: str) -> Iterable[str]:
        found = call(mesh.numbers().names(cadence(0.2)))
        return [metric.name for metric in found.metrics if metric.name.startswith(typed)]

    def rank_names(mesh: Mesh, typed: str) -> Iterable[str]:
        matches, start = mesh.complete(typed, len(typed))
        return [typed[:start] + match for match in matches]

    def of_mesh(line: str, offer: Callable[[Mesh, str], Iterable[str]]) -> Callable[[str], Iterable[str]]:
        return lambda typed: offer(session.mesh(name=_typed(line)[1]), typed)

    sources: dict[Source, Callable[[str], Iterable[str]]] = {
        "subcommand": lambda typed: [each.name for each in MESH.commands if each.name.startswith(typed)],
        "reservation": lambda typed: [name for name in session.names() if name.startswith(typed)],
        "node": lambda typed: [name for name in session.current().node_names if name.startswith(typed)],
        "mesh": lambda typed: [name for name in session.current().meshes if name.startswith(typed)],
        "kernel_name": kernel_names,
        "watched": lambda typed: [each for each in WATCHES if each.startswith(typed)],
        "fold": lambda typed: [by for by in (*FOLDS_BY, "default") if by.startswith(typed)],
        "script": script_files,
        "module": module_names,
    }

    def candidates(place: InLine | InBody) -> tuple[str, list[str] | None]:
        if isinstance(place, InLine):
            of_line: dict[Source, Callable[[str], Iterable[str]]] = {
                "target": of_mesh(place.text, lambda mesh, typed: target_words(mesh.extent, typed)),
                "run": of_mesh(place.text, run_numbers),
                "metric": of_mesh(place.text, metric_names),
                "rank_name": of_mesh(place.text, rank_names),
            }
            return complete(place.magic, place.text, sources | of_line)
        mesh = session.mesh(place.targets, place.mesh)
        matches, start = mesh.complete(place.code, place.cursor, rank=mesh.ranks[0])
        return place.code[start : place.cursor], list(matches)

    @context_matcher(identifier="monarch_nb", priority=_PRIORITY)  # type: ignore[untyped-decorator, unused-ignore]
    def match(context: CompletionContext) -> SimpleMatcherResult:
        place = locate(context.full_text, context.cursor_line, context.cursor_position, mode)
        if place is None:
            return {"completions": [], "matched_fragment": "", "suppress": False}
        try:
            fragment, words = candidates(place)
        except MonarchNbError:  # nothing held, a rank that does not answer, targets half typed: nothing to offer
            fragment, words = "", [] if isinstance(place, InLine) else None
        kind = "mesh" if isinstance(place, InLine) else "rank"
        offered = [SimpleCompletion(text=word, type=kind) for word in words or ()]
        return {
            "completions": _Nothing() if words == [] and isinstance(place, InLine) else offered,
            "matched_fragment": fragment,
            "ordered": True,
            "suppress": words is not None and (bool(words) or isinstance(place, InLine)),
        }

    matcher: Callable[[CompletionContext], SimpleMatcherResult] = match
    return matcher


def _typed(line: str) -> tuple[str | None, str | None]:
    """Return the targets and the mesh that a line names."""
    try:
        words, _ = as_here(split_words(line), dict.fromkeys(_NAMING, True))
    except UsageError:
        return None, None
    found: dict[str, str] = {}
    for word, following in itertools.pairwise([*words, ""]):
        spelling, equals, value = word.partition("=")
        if name := _NAMING.get(spelling):
            found.setdefault(name, unquote(value if equals else following))
    return found.get("targets") or None, found.get("mesh") or None


def answer_inspection(shell: InteractiveShell, session: Session, mode: MeshMode) -> Callable[[], None]:
    """Let ranks answer the kernel's inspect requests for their cells; return how to undo it.

    IPython has no hook for it: its shell gets a name, and does not learn in which cell that stands.
    """
    kernel: Any = getattr(shell, "kernel", None)
    kernels_own: Callable[..., Any] | None = getattr(kernel, "do_inspect", None)
    if kernels_own is None:  # a terminal, or a kernel that is no ipykernel
        return lambda: None

    def do_inspect(code: str, cursor_pos: int, *arguments: Any, **options: Any) -> Any:
        if text := described(session, mode, code, cursor_pos):
            return {"status": "ok", "found": True, "data": {"text/plain": text}, "metadata": {}}
        return kernels_own(code, cursor_pos, *arguments, **options)

    def undo() -> None:
        kernel.do_inspect = kernels_own

    kernel.do_inspect = do_inspect
    return undo


def described(session: Session, mode: MeshMode, code: str, cursor: int) -> str:
    """Return what a rank knows of the name at a cursor; empty when that is not in code for ranks, or none knows it."""
    before = code[:cursor]
    place = locate(code, before.count("\n"), len(before) - before.rfind("\n") - 1, mode)
    if not isinstance(place, InBody):
        return ""
    try:
        name = token_at_cursor(place.code, place.cursor)
        text, rank = session.mesh(place.targets, place.mesh).inspect(name) if name else ("", 0)
    except (SyntaxError, MonarchNbError):  # unfit to be read; as for completion
        return ""
    return f"{text}\n\nOn rank {rank}." if text else ""
