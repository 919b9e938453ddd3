"""`Mesh.diff`: which of its ranks have other values than the rest, and which are compared with each other."""

from __future__ import annotations

import ast
import contextlib
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING

from monarch_nb.client.comparing.differing import Asking, check_not_computing, compare, pull_quietly
from monarch_nb.client.comparing.report import DiffReport
from monarch_nb.client.debug.debugger import Debugger, StopInfo
from monarch_nb.client.pools.choosing import Shape
from monarch_nb.client.pools.held import reserve_line
from monarch_nb.client.presenting import name_here
from monarch_nb.errors import MonarchNbError, RunFailed, TargetError, UsageError
from monarch_nb.ground.rank_sets import format_ranks, listed, name_ranks
from monarch_nb.provision.jobs import where_of
from monarch_nb.shape import Extent
from monarch_nb.worker.comparing import Dimensions

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.reservations.reservation import Reservation


def groups_over(extent: Extent, ranks: Sequence[int], over: str) -> list[tuple[int, ...]]:
    """Return the ranks that are compared with each other, by a dimension of the mesh.

    Args:
        extent: of the mesh. ranks: those of it that are meant.
        over: the dimension in which the ranks of a group differ.

    Example:
        >>> groups_over(Extent({"hosts": 2, "procs": 2}), (0, 1, 2, 3), "hosts")
        [(0, 2), (1, 3)]
    """
    groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for rank in ranks:
        others = tuple((label, place) for label, place in extent.point(rank).items() if label != over)
        groups.setdefault(others, []).append(rank)
    return [tuple(group) for group in groups.values()]


def groups_of_device_meshes(told: Mapping[int, Dimensions], over: str, extent: Extent) -> list[tuple[int, ...]]:
    """Return the ranks that are compared with each other, by a dimension of the ranks' device meshes.

    Args:
        told: what each rank that is meant has said of its device meshes.
        over: the dimension in which the ranks of a group differ.
        extent: of the mesh, which has no such dimension.

    Raises:
        TargetError: device meshes have no such dimension, or only those of some ranks; or they contradict each other.

    Example:
        >>> groups_of_device_meshes({0: {"dp": [(0, 1)]}, 1: {"dp": [(0, 1)]}}, "dp", Extent({"procs": 2}))
        [(0, 1)]
    """
    names = sorted({name for dimensions in told.values() for name in dimensions})
    if over not in names:
        theirs = f"the device meshes of its ranks have {listed(names)}" if names else "its ranks hold no device mesh"
        raise TargetError(f"no dimension {over!r}; this mesh has {listed(extent)}, and {theirs}")
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, dimensions in sorted(told.items()):
        found = dimensions.get(over, [])
        if len(found) > 1:
            several = listed([format_ranks(each) for each in found])
            raise TargetError(
                f"rank {rank} has device meshes with different ranks in {over!r}: {several}; give the one that is "
                "meant a variable of a cell, and del others"
            )
        groups.setdefault(found[0] if found else (), []).append(rank)
    if without := groups.get((), []):
        verb = "is" if len(without) == 1 else "are"
        raise TargetError(
            f"{name_ranks(without)} {verb} in no device mesh with a dimension {over!r}: leave out with -t"
        )
    return [tuple(group) for group in groups.values()]


_NAMES = "[name for name in list(globals()) if not name.startswith('_')]"
_DIMENSIONS = "dimensions({**globals(), **locals()})"
_LATE = "late_variables()"
_UNKNOWN_NAME = re.compile(r"name '(\w+)' is not defined")


def diff(
    mesh: Mesh,
    expression: str = "",
    *,
    over: str = "",
    rng: bool = False,
    env: bool = False,
    when_idle: bool = False,
) -> DiffReport:
    """Compare the value of an expression on all ranks, and say which ranks differ, where and how far.

    Each rank sends digests of its tensors; only those that differ are looked at more closely. Parts are compared by
    name: parameters and buffers of a module, `state_dict()` of an optimizer, keys of a dict, fields of a dataclass.
    Shards of a DTensor are compared with the same shard on other ranks. On ranks that have stopped at a breakpoint
    the expression means the variables that are seen there.

    Args:
        expression: a variable's name, or any expression. Each rank evaluates it once.
        over: a dimension of the mesh, such as "procs", or of a `DeviceMesh` that the ranks hold, such as "dp". Only
            ranks that differ in no other dimension are compared.
        rng: compare the random states of Python, numpy and torch instead.
        env: compare packages, variables, torch's settings, the code's commit and the GPUs instead.
        when_idle: wait until the ranks have finished what they compute. By default that is an error.

    Returns:
        The report. `report.equal` says whether nothing differs, and `report.differences` has each difference.

    Raises:
        UsageError: nothing, or more than one thing, is to be compared; or ranks compute now.
        TargetError: neither the mesh nor a device mesh of its ranks has such a dimension.
        UsageError: the expression fails on some ranks, which the message names.
        RankDead: a rank is dead.

    Example:
        >>> mesh.diff("model").equal  # doctest: +SKIP
        True
    """
    if sum(map(bool, (expression, rng, env))) != 1:
        raise UsageError("give one thing to compare: an expression such as model, --rng, or --env")
    _check_one_expression(expression)
    if expression and len(mesh.ranks) == 1 < mesh.extent.size:
        alone = f"{name_ranks(mesh.ranks)} alone has nothing to be compared with"
        raise UsageError(f"{alone}: %mesh diff {expression} compares all ranks, and -t takes two or more")
    mesh._check_alive()
    stops: dict[int, StopInfo] = {}
    for stop in Debugger(mesh).stops():
        stops.setdefault(stop.rank, stop)
    if not when_idle:
        computing = [info.rank for info in mesh.status() if info.run_id and info.rank not in stops]
        holding = (run for run in mesh.unfinished() if run.holds_ranks)
        runs = (name_here(run.number, run.cell_number, run.notebook, run.owner) for run in holding)
        check_not_computing(computing, next(runs, ""))
    what = expression or ("the random states" if rng else "the environment")
    begin = f"begin(({_with_names(expression)}\n))"
    if rng or env:
        begin = "begin_random_states()" if rng else f"begin_environment({secrets.token_hex()!r})"

    asking = Asking(mesh, stops, partial(pull_quietly, mesh, f"diff {what}"))
    groups = [mesh.ranks]
    if over in mesh.extent:
        groups = groups_over(mesh.extent, mesh.ranks, over)
    elif over:
        groups = groups_of_device_meshes(asking.ask(mesh.ranks, _DIMENSIONS), over, mesh.extent)
    try:
        report = compare(asking, groups, what, begin, "random state" if rng else "")
        if not env:
            return report
        return replace(report, late=asking.ask(mesh.ranks, _LATE), reserving=reserving(mesh.reservation))
    except RunFailed as error:
        raise _without_ours(error, expression, lambda rank: mesh.select(rank).pull(_NAMES)[0]) from None


def late_variables(mesh: Mesh) -> dict[int, list[str]]:
    """Return, of each rank that is idle, the variables that it has set too late to count."""
    computing = {rank for run in mesh.unfinished() if run.holds_ranks for rank in run.ranks}
    alive = {info.rank for info in mesh.status() if info.is_alive}
    idle = sorted(alive.intersection(mesh.ranks) - computing)
    if not idle:
        return {}
    return Asking(mesh, {}, partial(pull_quietly, mesh, "late variables")).ask(idle, _LATE)


def reserving(held: Reservation) -> str:
    """Return the line that reserves the same ranks, but for its flags."""
    return reserve_line(held.name, Shape(held.nodes, held.procs, held.gpus), where_of(held.pool))


def _check_one_expression(expression: str) -> None:
    """Raise UsageError if an expression is none, or several with blanks between them, or has nothing of a rank."""
    words = expression.split()
    if words and (_is_literal(expression) or all(map(_is_literal, words))):
        runs = ",".join(re.findall(r"\d+", expression))
        of_runs = f";\nruns are compared by their curves: %mesh plot loss --run {runs}" if runs else ""
        raise UsageError(
            f"{expression} is the same on every rank, and diff compares what ranks hold: "
            f"%mesh diff model, or %mesh diff model -t 0,1 for two ranks{of_runs}"
        )
    if len(words) > 1 and not _is_expression(expression) and all(map(_is_expression, words)):
        raise UsageError(
            "diff compares a value of a rank with the same of other ranks, not two values with each other;\n"
            f"several values are one expression, with commas: %mesh diff ({', '.join(words)})"
        )
    if expression and (why := _why_no_expression(expression)):
        raise UsageError(f"{expression} is no expression of Python: {why}")


def _with_names(expression: str) -> str:
    """Return an expression that has the names of several values: of `(model, config)` a dictionary by "model" and
    "config"; any other as it is.

    Example:
        >>> print(_with_names("(model, config.lr)"))
        {'model': (model), 'config.lr': (config.lr)}
    """
    tree = ast.parse(f"({expression}\n)", mode="eval").body if expression else None
    if not isinstance(tree, ast.Tuple):
        return expression
    parts = [ast.unparse(each) for each in tree.elts]
    if len(set(parts)) < len(parts) or any(isinstance(each, ast.Starred) for each in tree.elts) or not parts:
        return expression
    return f"{{{', '.join(f'{each!r}: ({each})' for each in parts)}}}"


def _is_expression(text: str) -> bool:
    return not _why_no_expression(text)


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text.strip(","))
    except (ValueError, SyntaxError):
        return False
    return True


def _why_no_expression(text: str) -> str:
    try:
        ast.parse(f"({text}\n)", mode="eval")
    except SyntaxError as error:
        return error.msg
    except ValueError as error:  # it has a null character
        return str(error)
    return ""


def _without_ours(error: RunFailed, expression: str, names_on: Callable[[int], list[str]]) -> UsageError:
    """Return what an expression fails with, by rank, without the line of ours that asked for it.

    Args:
        names_on: returns the names of the variables of a rank.
    """
    said = []
    dead = [rank for rank, failure in error.failures.items() if failure.kind == "died"]
    for ranks, failure in error.groups():
        meant = ""
        if failure.name == "NameError" and (unknown := _UNKNOWN_NAME.search(failure.message)):
            with contextlib.suppress(MonarchNbError):
                near = get_close_matches(unknown[1], names_on(ranks[0]), n=1, cutoff=0.75)
                meant = "".join(f"; did you mean `{each}`?" for each in near)
        said.append(f"{name_ranks(ranks)}: {failure.name}: {failure.message}{meant}")
    if dead:
        them = "it" if len(dead) == 1 else "them"
        said.append(f"%mesh restart -t {format_ranks(dead)} starts {them} again; variables are lost there")
    elif expression:
        said.append(f"%mesh pull {expression} shows where")
    return UsageError("\n".join(said))
