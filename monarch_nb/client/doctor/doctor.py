"""`doctor`: asks this process and every node what they are, and compares."""

from __future__ import annotations

import asyncio
import importlib.metadata
import re
import sys
import time
import types
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack

from monarch_nb import config
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.doctor.diagnosis import Diagnosis, NodeReport, diagnose
from monarch_nb.client.files.evidence import Token, token_of_client
from monarch_nb.client.pools.answering import Way, ways_between, what_helps, why_silent
from monarch_nb.client.pools.held import current_owner
from monarch_nb.client.pools.pool import pool_named
from monarch_nb.config import patience
from monarch_nb.errors import AccessDenied, MonarchNbError, NodeUnreachable
from monarch_nb.ground.rank_sets import counted, listed
from monarch_nb.proto import files_pb2
from monarch_nb.trust.identity import expiry_warning
from monarch_nb.worker.environment_report import Environment, describe

ANSWER_TIMEOUT_S = patience(30.0)
MEASURED_BYTES = 32 << 20
"""Sent from each node to the next."""
_MACHINERY = ("ipykernel", "ipywidgets", "jupyter-server", "grpcio-tools", "nvidia-ml-py")
"""What runs a notebook and its connections: it and what it needs say nothing about the user's program."""
_ALWAYS_COMPARED = ("monarch-nb", "torch")


def examine(
    title: str, nodes: Sequence[Connection], *, python: str, shared: str, directory: str, copied: Container[str]
) -> Diagnosis:
    """Compare this process with nodes.

    Args:
        python: of the ranks; empty for the nodes' own.
        shared: the storage that all nodes see, or an empty text.
        directory: with the ranks' files; empty when they have none.
        copied: names of the nodes that have a copy of it; the others see it.
    """
    if identity := next((node.identity for node in nodes if node.identity), None):
        title = "\n".join(filter(None, [title, expiry_warning(identity)]))
    packages = imported_packages()
    here = describe(packages)
    with ExitStack() as stack:
        try:
            token = stack.enter_context(token_of_client(directory)) if directory else None
        except OSError:
            token = None  # not ours to write in, or of another computer
        request = files_pb2.DescribeEnvironmentRequest(
            python=python, packages=packages, directories=[shared] if shared else []
        )
        reports = call(_ask_all(nodes, request, token, directory))
        silent = {report.name for report in reports if report.error}
        ways = call(_ways([node for node in nodes if node.name not in silent]))
    return diagnose(title, here, config.VERSION, reports, ways, shared=shared, directory=directory, copied=copied)


def examine_pool(name: str) -> Diagnosis:
    """Compare this process with every node of a pool, whatever is reserved there.

    Raises:
        PoolError: it has no node. NodeUnreachable: none answers.
    """
    pool = pool_named(name)
    call(pool.ask())  # by which nodes are known by their names
    nodes = pool.listed
    title = "\n".join(filter(None, [f"pool {name}: {counted(len(nodes), 'node')}", pool.namesakes]))
    return examine(title, nodes, python="", shared="", directory="", copied=())


async def _ways(nodes: Sequence[Connection]) -> list[Way]:
    """Return the ways between nodes of a network, with how fast they are."""
    if len(nodes) < 2 or all(node.identity is None for node in nodes):
        return []
    try:
        ways = await ways_between(nodes)
        works = not any(way.trouble for way in ways)
        return [*ways, *(await ways_between(nodes, MEASURED_BYTES) if works else ())]
    except NodeUnreachable as error:  # it has just gone away
        return [Way(error.node, "others", unreachable=str(error))]


async def _ask_all(
    nodes: Sequence[Connection], request: files_pb2.DescribeEnvironmentRequest, token: Token | None, directory: str
) -> list[NodeReport]:
    return list(await asyncio.gather(*(_ask(node, request, token, directory) for node in nodes)))


async def _ask(
    node: Connection, request: files_pb2.DescribeEnvironmentRequest, token: Token | None, directory: str
) -> NodeReport:
    try:
        blind = await _why_blind(node, token, directory)
        asked_s = time.time()
        reply, denied = await _described(node, request)
        answered_s = time.time()
    except NodeUnreachable as error:
        why = await asyncio.to_thread(why_silent, node.address)
        return NodeReport(node.name, error=why or str(error), advice=what_helps(why, node.address))
    except MonarchNbError as error:
        return NodeReport(node.name, error=str(error))
    return NodeReport(
        node.name,
        Environment.from_json(reply.json),
        version=reply.version,
        clock_ahead_s=_ahead_s(reply.asked_s - asked_s, reply.now_s - answered_s),
        directory=reply.directory,
        blind=blind,
        own_python=bool(denied and request.python),
        unseen=_unseen(request, denied, current_owner(node.identity)) if denied else "",
    )


async def _described(
    node: Connection, request: files_pb2.DescribeEnvironmentRequest
) -> tuple[files_pb2.DescribeEnvironmentReply, AccessDenied | None]:
    """Return what a node says, and why it does not say all that it was asked: everybody may know of its own python and
    disk, of others who may run cells there."""
    try:
        return await node.unary("DescribeEnvironment", request, ANSWER_TIMEOUT_S), None
    except AccessDenied as error:
        if not (request.python or request.directories):
            raise
        less = files_pb2.DescribeEnvironmentRequest(packages=request.packages)
        return await node.unary("DescribeEnvironment", less, ANSWER_TIMEOUT_S), error


def _unseen(request: files_pb2.DescribeEnvironmentRequest, denied: AccessDenied, me: str) -> str:
    """Return what was not looked at, and who can let us."""
    python = f"{request.python} with its torch and packages" if request.python else ""
    what = listed([*filter(None, [python]), *(f"the shared storage {each}" for each in request.directories)])
    helps = f"{denied.owner} can let you (%mesh share {denied.name} --to {me} --run)" if denied.owner else str(denied)
    return f"{what}; {helps}"


async def _why_blind(node: Connection, token: Token | None, directory: str) -> str | None:
    """Return why a node does not see a directory of ours; "" when it does, None when that can not be known."""
    try:
        return (await token.why_unseen([node], [directory]))[0] if token else None
    except AccessDenied:  # who may only read there may not look for files
        return None


def _ahead_s(at_question_s: float, at_answer_s: float) -> float:
    """Return how far another clock is ahead at least, by what both ends note as the times of a question and its answer;
    what was late on its way adds to the first difference and takes from the second."""
    return max(at_answer_s, min(at_question_s, 0.0))


def imported_packages() -> list[str]:
    """Return the distributions of the modules that this process has imported, sorted: without the standard library,
    and without what only runs the notebook."""
    providers = importlib.metadata.packages_distributions()
    loaded = {name.partition(".")[0] for name in list(sys.modules)} - sys.stdlib_module_names
    imported = set(_distributions(loaded, providers))
    chosen = set(_distributions(_modules_of(vars(sys.modules["__main__"])), providers))
    return sorted((imported - requirements(_MACHINERY) | chosen) - {*_ALWAYS_COMPARED, "ipython"})


def _distributions(modules: Iterable[str], providers: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for module in modules:
        found = set(providers.get(module, ()))
        for name in found:
            if len(found) == 1 or _is_loaded(name):  # several share a namespace, as `google`
                yield canonical(name)


def _is_loaded(distribution: str) -> bool:
    files = importlib.metadata.files(distribution) or ()
    modules = {
        str(path.with_suffix("")).replace("/", ".").removesuffix(".__init__") for path in files if path.suffix == ".py"
    }
    return not modules.isdisjoint(sys.modules)


def _modules_of(namespace: Mapping[str, object]) -> set[str]:
    """Return the top-level modules of what a notebook's variables are."""
    found = set()
    for value in list(namespace.values()):
        if isinstance(value, types.ModuleType):
            name: object = value.__name__
        elif isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            name = value.__module__
        else:
            name = type(value).__module__
        if isinstance(name, str):
            found.add(name.partition(".")[0])
    return found


def requirements(distributions: Iterable[str]) -> set[str]:
    """Return distributions with all that they require, as far as it is installed, extras left out."""
    found: set[str] = set()
    pending = list(distributions)
    while pending:
        name = canonical(pending.pop())
        if name in found:
            continue
        try:
            required = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(name)
        pending += [re.split(r"[^A-Za-z0-9._-]", each, maxsplit=1)[0] for each in required if "extra ==" not in each]
    return found


def canonical(name: str) -> str:
    """Return a distribution's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
