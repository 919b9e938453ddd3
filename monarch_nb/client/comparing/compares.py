"""What a mesh has to say of values that its ranks have in common, or not."""

from __future__ import annotations

import ast
import contextlib
import re
import secrets
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, Protocol

from monarch_nb.client.comparing.asking import Asking, check_not_computing
from monarch_nb.client.comparing.differing import compare
from monarch_nb.client.comparing.groups import groups_of_device_meshes, groups_over
from monarch_nb.client.comparing.report import DiffReport
from monarch_nb.client.debug.debugger import Debugger
from monarch_nb.client.debug.stops import StopInfo
from monarch_nb.client.pools.facts.infos import RankInfo, RunInfo
from monarch_nb.client.presenting import name_here
from monarch_nb.client.runs.needs import HeldMesh
from monarch_nb.errors import MonarchNbError, RunFailed, UsageError
from monarch_nb.ground.rank_sets import format_ranks, name_ranks
from monarch_nb.proto import run_pb2

_NAMES = "[name for name in list(globals()) if not name.startswith('_')]"
_DIMENSIONS = "dimensions({**globals(), **locals()})"
_UNKNOWN_NAME = re.compile(r"name '(\w+)' is not defined")


class _Mesh(HeldMesh, Protocol):
    """What is needed of a `Mesh`, which says what each of these is."""

    def select(self, ranks: Any) -> Any: ...

    def status(self) -> list[RankInfo]: ...

    def unfinished(self) -> list[RunInfo]: ...

    def _check_alive(self) -> None: ...


class Compares:
    """A part of `Mesh`: which of its ranks differ."""

    def diff(
        self: _Mesh,
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
        self._check_alive()
        stops: dict[int, StopInfo] = {}
        for stop in Debugger(self).stops():
            stops.setdefault(stop.rank, stop)
        if not when_idle:
            computing = [info.rank for info in self.status() if info.run_id and info.rank not in stops]
            runs = (name_here(run.number, run.cell_number, run.notebook, run.owner) for run in self.unfinished())
            check_not_computing(computing, next(runs, ""))
        what = expression or ("the random states" if rng else "the environment")
        begin = f"begin(({_with_names(expression)}\n))"
        if rng or env:
            begin = "begin_random_states()" if rng else f"begin_environment({secrets.token_hex()!r})"

        def pull(ranks: tuple[int, ...], code: str) -> dict[int, bytes]:
            spec = run_pb2.RunSpec(pull=run_pb2.Pull(expression=code))
            return dict(zip(ranks, self.select(ranks)._finish_quietly(spec, f"diff {what}"), strict=True))

        asking = Asking(self, stops, pull)
        groups = [self.ranks]
        if over in self.extent:
            groups = groups_over(self.extent, self.ranks, over)
        elif over:
            groups = groups_of_device_meshes(asking.ask(self.ranks, _DIMENSIONS), over, self.extent)
        try:
            return compare(asking, groups, what, begin, "random state" if rng else "")
        except RunFailed as error:
            raise _without_ours(error, expression, lambda rank: self.select(rank).pull(_NAMES)[0]) from None


def _check_one_expression(expression: str) -> None:
    """Raise UsageError if an expression is none, or several with blanks between them."""
    words = expression.split()
    if len(words) > 1 and not _is_expression(expression) and all(map(_is_expression, words)):
        raise UsageError(f"give one expression to compare, not {len(words)}: ({', '.join(words)})")
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
