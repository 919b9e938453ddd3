"""What the client, and whoever else decides that ranks save, has them call: on every rank that takes part.

A save in the background goes on in a thread. The next save or load of this process waits for it first.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from monarch_nb.actor.engine import process as engine
from monarch_nb.config import TORCH_PRESETS, cadence
from monarch_nb.errors import MonarchNbError, SaveError
from monarch_nb.worker import run_secret
from monarch_nb.worker.become_rank import presets
from monarch_nb.worker.groups import forming
from monarch_nb.worker.saving.asked import LoadReport, LoadRequest, SaveReport, SaveRequest
from monarch_nb.worker.saving.collecting import RANDOM_STATES, collect, not_there
from monarch_nb.worker.saving.exchange import Exchange
from monarch_nb.worker.saving.manifest import found

_WAIT_S = cadence(0.1)


class _Behind:
    """The save that goes on in the background, if one does.

    Attributes:
        last: what became of the last one. tells: whether this rank tells it: one of all does.
    """

    def __init__(self) -> None:
        self.tells = False
        self._thread: threading.Thread | None = None
        self.last: SaveReport | MonarchNbError | None = None
        self._is_news = False

    def start(self, work: Callable[[], SaveReport], *, tells: bool) -> None:
        """Do the rest of a save in a thread."""
        self.tells = tells
        self._thread = threading.Thread(target=self._do, args=(work,), name="monarch_nb-save", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until it has ended; can be interrupted."""
        while (thread := self._thread) is not None and thread.is_alive():
            thread.join(_WAIT_S)
        self._thread = None

    @property
    def goes_on(self) -> bool:
        """Whether it has not ended."""
        return self._thread is not None and self._thread.is_alive()

    def _do(self, work: Callable[[], SaveReport]) -> None:
        try:
            self.last = work()
        except MonarchNbError as error:
            self.last = error
        except Exception as error:  # noqa: BLE001 -- told where it is asked for
            self.last = SaveError(f"{type(error).__name__}: {error}")
        self._is_news = True

    def take_news(self) -> str:
        """Return what became of it, once."""
        if not self._is_news:
            return ""
        self._is_news = False
        if isinstance(self.last, SaveReport):
            return f"the save in the background is done: {str(self.last).partition(chr(10))[0]}"
        return f"the save in the background failed: {self.last}"


behind = _Behind()
"""The one of this process."""


def save(
    request: SaveRequest,
    secret: str,
    ranks: Sequence[int],
    *,
    rank: int | None = None,
    objects: Mapping[str, Any] | None = None,
    random_states: bool = True,
    left_out: Mapping[str, str] | None = None,
) -> SaveReport:
    """Save on all ranks that take part: each calls this with equal arguments, but for `rank` and `objects`.

    It may be called in the middle of a cell, as by a hook of an optimizer: no process group is used. A save in the
    background that still goes on is waited for first.

    Args:
        request: what is saved, and where.
        secret: new for each save, such as `secrets.token_hex()`; known to these ranks only.
        ranks: those that take part, in order; the first one decides.
        rank: this one; by default what RANK says.
        objects: what there is to save, by name; by default the namespace of the cells.
        random_states: whether those of the process belong to it.
        left_out: why something else is not saved, by name; of no account where names are asked for.

    Raises:
        SaveError: this rank or another can not save. The saves before are whole.
    """
    behind.wait()
    _need_torch()
    exchange = _exchange(secret, ranks, rank, request.timeout_s)
    namespace, hidden = cells() if objects is None else (objects, ())
    try:
        collected = collect(namespace, request.names, hidden=hidden, random_states=random_states)
    except SaveError as error:
        exchange.fail(str(error))
        raise
    if left_out and not request.names:
        collected.left_out |= left_out
    writing = importlib.import_module("monarch_nb.worker.saving.writing")
    start = functools.partial(behind.start, tells=exchange.is_first) if request.background else None
    return writing.save(request, collected, exchange, _mesh_name(ranks), start)  # type: ignore[no-any-return]


def load(
    request: LoadRequest,
    secret: str,
    ranks: Sequence[int],
    *,
    rank: int | None = None,
    objects: MutableMapping[str, Any] | None = None,
) -> LoadReport:
    """Load on all ranks that take part, into the objects of the same names: each calls this with equal arguments.

    Args:
        request: what is loaded, and from where.
        secret, ranks, rank: as for `save`.
        objects: what is loaded into, by name; by default the namespace of the cells.

    Raises:
        SaveError: something does not fit, on this rank or another. Nothing has changed then.
    """
    behind.wait()
    _need_torch()
    exchange = _exchange(secret, ranks, rank, request.timeout_s)
    namespace, hidden = cells() if objects is None else (objects, ())
    reading = importlib.import_module("monarch_nb.worker.saving.reading")
    return reading.load(request, namespace, hidden, exchange)  # type: ignore[no-any-return]


def _need_torch() -> None:
    try:
        importlib.import_module("torch.distributed.checkpoint")
    except ImportError as error:
        raise SaveError(f"ranks save with torch.distributed.checkpoint: {error}") from error


def _exchange(secret: str, ranks: Sequence[int], rank: int | None, timeout_s: float) -> Exchange:
    own = int(os.environ.get("RANK", "0")) if rank is None else rank
    return Exchange(ranks, own, secret, forming.connect_to_store, timeout_s)


def cells() -> tuple[MutableMapping[str, Any], Collection[str]]:
    """Return the namespace of the cells, and its names that are not the user's."""
    shell: Any = importlib.import_module("IPython.core.interactiveshell").InteractiveShell.instance()
    return shell.user_ns, {*shell.user_ns_hidden, *presets(os.environ), "actors", *TORCH_PRESETS}


def _mesh_name(ranks: Sequence[int]) -> str:
    """Return what tells these ranks of this mesh from others that save in the same directory."""
    said = [socket.gethostname(), os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"), list(ranks)]
    return hashlib.blake2b(json.dumps(said).encode(), digest_size=6).hexdigest()


def run(text: str) -> str:
    """What the client has the ranks of a mesh run: do what is asked for, and return what came of it, both as JSON.

    Args:
        text: `what` ("save" or "load"), `request`, `ranks`, and the name of an `actor` or an empty text.
    """
    asked, secret = json.loads(text), run_secret.told()["of_exchange"]
    try:
        objects = _attributes(asked["actor"]) if asked.get("actor") else None
        if asked["what"] == "save":
            request = SaveRequest.from_facts(asked["request"])
            number = forming.newest_run()
            request = replace(request, origin=replace(request.origin, run=request.origin.run or number))
            behind.wait()
            news = behind.take_news()
            saved = save(request, secret, asked["ranks"], objects=objects, random_states=objects is None)
            report: SaveReport | LoadReport = replace(saved, notes=(*saved.notes, news)) if news else saved
        else:
            report = load(LoadRequest.from_facts(asked["request"]), secret, asked["ranks"], objects=objects)
    except MonarchNbError as error:
        return json.dumps(error.to_facts())
    return json.dumps({"report": json.loads(report.to_json())})


def wait() -> str:
    """Wait for the save in the background, if one goes on; return what became of it, as JSON, if nobody was told."""
    behind.wait()
    return json.dumps(behind.take_news())


def tell_news() -> None:
    """Print what became of the save in the background, once, for the cell that begins."""
    if behind.tells and (news := behind.take_news()):
        print(news, flush=True)  # noqa: T201 -- it is a line of the cell


def listed(directory: str) -> str:
    """Return the manifests of the saves in a directory and those below it, newest first, as JSON: path and manifest."""
    return json.dumps([[str(path), manifest.summary()] for path, manifest in found(Path(directory))])


def missing(names: Iterable[str]) -> str:
    """Return the names of these that the cells do not have, with what is said of each, as JSON."""
    namespace, hidden = cells()
    known = [name for name in namespace if name not in hidden]
    there = {*namespace, RANDOM_STATES}
    lacking = [name for name in names if name not in there and name.partition(".")[0] not in there]
    return json.dumps({name: not_there(name, known) for name in lacking})


def actors_named(names: Iterable[str]) -> list[Any]:
    """Return the actors of these names that this rank has."""
    process = engine.installed()
    instances = process.instances() if process else {}
    return [instances[name] for name in names if name in instances]


def _attributes(actor: str) -> MutableMapping[str, Any]:
    """Return what the attributes of an actor hold.

    Raises:
        SaveError: this rank has no such actor.
    """
    process = engine.installed()
    instances = process.instances() if process else {}
    if actor not in instances:
        raise SaveError(f"this rank has no actor {actor!r}")
    return vars(instances[actor])
