"""torch.distributed for ranks that live long: groups that can be broken from outside, forgotten and made again.

`install` puts what notices how groups are made and destroyed in the place of torch's own functions: breaking.py knows
from it what there is to break.
"""

from __future__ import annotations

import functools
import inspect
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlparse

from monarch_nb.errors import MeshMismatch
from monarch_nb.ground.code_names import code_label
from monarch_nb.ground.rank_sets import format_ranks, name_ranks
from monarch_nb.worker.groups import breaking, c10d, connections, rendezvous
from monarch_nb.worker.groups.breaking import (
    drop_groups,
    forget_groups,
    is_broken,
    is_left,
    note_interrupt,
    raise_if_broken,
    state,
)
from monarch_nb.worker.groups.connections import Endpoint, resolve
from monarch_nb.worker.groups.rendezvous import Rendezvous
from monarch_nb.worker.groups.store import Address, MeshStore, connect
from monarch_nb.worker.torch_names import GROUPS, lacking_here
from monarch_nb.worker.user_code import is_library, is_standard

_LOOPBACK = "127.0.0.1"
_DESCRIPTORS = 1 << 16
_SHOWN_RANKS = 8
_OURS = (breaking, c10d, connections, rendezvous)
_BOOKKEEPING = {__file__, *(module.__file__ for module in _OURS)}


def prepare() -> None:
    """In the template, before ranks are forked: do once what every rank would have to."""
    c10d.find_holders(("init_process_group", "destroy_process_group"))
    if "torch" in sys.modules:
        lacking_here()


def install(note: Path | None = None, report: Callable[[Address], None] = lambda _: None) -> None:
    """Prepare torch.distributed, now or when it is imported. Call once, in the rank, with its environment set.

    Args:
        note, report: of the mesh's store, see MeshStore.
    """
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    # A destroyed group that a model still refers to keeps its descriptors.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, _DESCRIPTORS), most))
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    mesh_store = MeshStore((host, int(port)), note, report) if host and port else None
    state.rendezvous = Rendezvous(mesh_store, state.connections.endpoints, state.hush)
    c10d.when_imported(functools.partial(_patch, state.rendezvous))


def begin_run(number: int, part: Sequence[int] = ()) -> None:
    """What makes a group from now on belongs to this run, or to a newer one that has begun on another thread.

    Args:
        part: the ranks that it runs on, where these are not all of its world.
    """
    state.run = max(state.run, number)
    if state.rendezvous is not None:
        state.rendezvous.part = part


def newest_run() -> int:
    """Return the number of the newest run that has begun."""
    return state.run


def begin_world(ranks: Iterable[int]) -> None:
    """Groups are of these ranks from now on, numbered from 0: not of whoever else counts as many. None: of all."""
    if state.rendezvous is not None:
        state.rendezvous.world = format_ranks(ranks)


def connect_to_store(timeout: timedelta) -> Any:
    """Return a connection of its own to the mesh's store (see `Rendezvous.connection`).

    Raises:
        RuntimeError: there is none, or it does not answer.
    """
    if state.rendezvous is None:
        raise RuntimeError("this process is no rank of a mesh, so that it has no store")
    return state.rendezvous.connection(timeout)


def end_groups() -> int:
    """Destroy the groups that there are; return how many ranks the default group had, 0 without one."""
    group = c10d.default_group()
    if group is None:
        return 0
    size: int = group.size()
    if is_broken():
        forget_groups()
    else:
        sys.modules[c10d.MODULE].destroy_process_group()
    return size


def keeps_books(frames: Iterable[FrameType]) -> bool:
    """Return whether a thread is in our own code that notes what groups there are: an exception would spoil it.

    Args:
        frames: the thread's, innermost first.
    """
    for each in frames:
        path = each.f_code.co_filename
        if path in _BOOKKEEPING:
            return True
        if not is_standard(path):
            break
    return False


# ---- what users call


def _patch(rendezvous: Rendezvous, module: Any) -> None:
    if lacks := lacking_here().get(GROUPS):
        sys.stderr.write(f"{lacks}; a newer monarch_nb may know it\n")
        return
    c10d.hold_groups()
    c10d.replace(module.init_process_group, _wrap_init(rendezvous, module))
    c10d.replace(module.destroy_process_group, _wrap_destroy(module))
    module._new_process_group_helper = _wrap_helper(module._new_process_group_helper)
    handlers: Any = sys.modules["torch.distributed.rendezvous"]
    handlers._rendezvous_handlers["env"] = functools.partial(_meet, rendezvous)
    handlers._create_c10d_store = functools.partial(_make_store, handlers._create_c10d_store)


def _meet(rendezvous: Rendezvous, url: str, **options: Any) -> Iterator[Any]:
    with state.connections.making():
        triple = rendezvous(url, **options)
    yield triple
    raise RuntimeError("Unable to perform re-rendezvous using env:// method")


def _make_store(make: Any, host: str, port: int, rank: int, world_size: int, timeout: timedelta, *options: Any) -> Any:
    """What `tcp://` does: rank 0 hosts a store, the others connect to it."""
    if rank == 0:
        # To its own, wherever the address leads; and for a world of one, because it would wait for the others here,
        # where it can not be freed, and waits for them again when the group is made.
        return make(_LOOPBACK, port, rank, 1, timeout, *options)

    def attempt(within: timedelta) -> Any:
        return make(host, port, rank, world_size, within, *options)

    return connect(attempt, f"{host}:{port}", timeout, state.hush)


def _wrap_helper(helper: Callable[..., Any]) -> Callable[..., Any]:
    """The function of torch's that makes every group."""
    signature = inspect.signature(helper)

    @functools.wraps(helper)
    def wrapper(group_size: int, *args: Any, **kwargs: Any) -> Any:
        raise_if_broken()
        try:
            with state.connections.making(group_size):
                made = helper(group_size, *args, **kwargs)
                if c10d.default_group() is None:
                    c10d.wait_for_peers(signature.bind(group_size, *args, **kwargs).arguments)
        except KeyboardInterrupt:
            note_interrupt()
            raise
        raise_if_broken()
        return made

    return wrapper


def _wrap_init(rendezvous: Rendezvous, module: Any) -> Callable[..., None]:
    init: Callable[..., None] = module.init_process_group
    signature = inspect.signature(init)

    def form(*args: Any, **kwargs: Any) -> None:
        wanted = signature.bind(*args, **kwargs).arguments
        if c10d.default_group() is not None:
            if state.broken is None and not is_left():
                if not _is_same_group(module, wanted, rendezvous.part_here()):
                    raise ValueError(_another(module, wanted))
                _say_kept(module)
                return
            forget_groups()
        _check_part(rendezvous.part_here(), wanted)
        state.made_in = state.run  # first: a break of older groups that comes between these two must not last
        state.broken = None
        c10d.begin_records()
        state.hush.end()
        state.connections.endpoints |= _endpoints(wanted)
        rendezvous.forget()
        hook = sys.excepthook
        try:
            with state.connections.making_default():
                init(*args, **kwargs)
            raise_if_broken()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                note_interrupt()
            drop_groups()
            raise
        finally:
            sys.excepthook = hook  # torch adds a layer of "[rank0]:" at every init
        state.forgotten = None

    @functools.wraps(init)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        with state.connections.turn():
            form(*args, **kwargs)

    return init_process_group


def _check_part(part: Sequence[int], wanted: dict[str, Any]) -> None:
    """Refuse a group of the whole world where a cell runs on a part of it: it would wait for the others in vain.

    Raises:
        MeshMismatch: says what to do instead.
    """
    size = _size_of_world(wanted)
    if not part or size <= len(part):
        return
    shown = list(part) if len(part) <= _SHOWN_RANKS else "RANKS"
    raise MeshMismatch(
        f"init_process_group() makes a group of all {size} ranks, but this cell runs only on {name_ranks(part)} and "
        "would wait for the others: run the cell without -t; or make a group of these ranks alone: "
        f"dist.init_process_group(rank={shown}.index(rank), world_size={len(part)})"
    )


def _size_of_world(wanted: dict[str, Any]) -> int:
    """Return how many ranks the world has that an init asks for by the environment; 0 where it says itself."""
    says_itself = wanted.get("store") is not None or (wanted.get("init_method") or "env://") != "env://"
    if says_itself or wanted.get("world_size", -1) != -1:
        return 0
    return int(os.environ.get("WORLD_SIZE") or 0)


def _is_same_group(module: Any, wanted: dict[str, Any], part: Sequence[int]) -> bool:
    """Return whether an init asks for what there is, as that of a cell that is run again, or of a script after one that
    had torch choose the backends."""
    of_world = 0 if part else _size_of_world(wanted)  # a cell on some ranks uses the group that these have
    if (of_world or wanted.get("world_size", -1)) not in (-1, module.get_world_size()):
        return False
    there = _by_device(module.get_backend_config())
    asked = _by_device((wanted.get("backend") or "").lower())
    return all(there.get(device) == name if device else name in there.values() for device, name in asked.items())


def _by_device(backends: str) -> dict[str, str]:
    """Return "cpu:gloo,cuda:nccl" as a mapping; "gloo" is {"": "gloo"}. Pure."""
    return {device: name for device, _, name in (each.rpartition(":") for each in backends.split(",") if each)}


def _another(module: Any, wanted: dict[str, Any]) -> str:
    there = f"a process group of {module.get_world_size()} ranks with {module.get_backend_config()} is there already"
    size = _size_of_world(wanted) or wanted.get("world_size", -1)
    is_other_size = size not in (-1, module.get_world_size())
    asked, where = (f"{size} ranks", " on its ranks (-t)") if is_other_size else (wanted.get("backend"), "")
    return f"{there}: call dist.destroy_process_group(){where} before you make one with {asked}"


def _say_kept(module: Any) -> None:
    text = f"keeping the process group of {module.get_world_size()} ranks"
    sys.stderr.write(f"{text} (for a new one, call dist.destroy_process_group() first)\n")


def _endpoints(wanted: dict[str, Any]) -> set[Endpoint]:
    """Return where the store listens that an init was told to use."""
    url = urlparse(wanted.get("init_method") or "")
    if url.scheme == "tcp" and url.hostname and url.port:
        return resolve(url.hostname, url.port) | resolve(_LOOPBACK, url.port)
    store: Any = wanted.get("store")
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return resolve(store.host, store.port) if hasattr(store, "host") and hasattr(store, "port") else set()


def _wrap_destroy(module: Any) -> Callable[..., None]:
    destroy: Callable[..., None] = module.destroy_process_group

    def end(group: Any, caller: str) -> None:
        if state.broken is not None:
            forget_groups()
        is_taken = group in (None, c10d.default_group()) and _is_earlier() and _is_of_script(caller)
        if group is None:
            is_gone = c10d.default_group() is None and state.forgotten is not None
        else:
            is_gone = group in state.dropped
        try:
            if not is_gone:
                if state.rendezvous is not None and group in (None, c10d.default_group()):
                    state.rendezvous.leave()  # connections end when it is freed, later: peers would keep it till then
                destroy(group)
        except KeyboardInterrupt:
            note_interrupt()
            raise
        if c10d.default_group() is None:
            state.connections.forget_default()
        if is_taken:
            _say_taken(caller)

    @functools.wraps(destroy)
    def destroy_process_group(group: Any = None) -> None:
        with state.connections.turn():
            end(group, sys._getframe(1).f_code.co_filename)

    return destroy_process_group


def _is_earlier() -> bool:
    """Return whether there is a default group, and an earlier run has made it."""
    return c10d.default_group() is not None and state.made_in < state.run


def _is_of_script(file: str) -> bool:
    """Return whether code from a file is a script's, which takes what it finds for its own: a cell means what it
    does, and so do the endpoints of an actor, which has its thread."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and code_label(file) is None and not is_library(file)


def _say_taken(file: str) -> None:
    again = "call dist.init_process_group() again and wrap DDP models again"
    sys.stderr.write(f"{os.path.basename(file)} has destroyed the process group of earlier cells: {again}\n")
