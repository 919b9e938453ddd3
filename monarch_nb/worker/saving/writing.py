"""A save, on each of its ranks: what they have is compared, planned, written, and becomes a save all at once."""

from __future__ import annotations

import json
import pickle
import shutil
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.planner import SavePlan

from monarch_nb.config import cadence
from monarch_nb.errors import SaveError
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.worker.saving import collecting
from monarch_nb.worker.saving.asked import NamedPart, SaveReport, SaveRequest
from monarch_nb.worker.saving.collecting import RANDOM_STATES, Collected, Holder, is_of
from monarch_nb.worker.saving.dcp import SavePlanner, Writer
from monarch_nb.worker.saving.exchange import Exchange
from monarch_nb.worker.saving.leaves import Leaf, description, pickled, take_apart
from monarch_nb.worker.saving.manifest import Manifest, SavedLeaf, begin, begin_part, commit, prune

_TOKEN = "token"
_TELL_S = cadence(0.5)


@dataclass(frozen=True)
class _Told:
    """What a rank tells of a leaf.

    Attributes:
        same: equal on ranks that have the same. among: how many ranks have a part of it; 0: each has all of it.
        device: the kind of device that a tensor is on.
    """

    name: str
    path: tuple[tuple[str, Any], ...]
    same: str
    among: int = 0
    device: str = ""


@dataclass
class _Own:
    """What this rank has to save.

    Attributes:
        leaves: by key. told: what it tells of them. of_first: keys that the first rank saves for all.
        pickles: of what is no tensor, by key. parts: kind and class, and whether a function holds it, by name.
    """

    leaves: dict[str, Leaf] = field(default_factory=dict)
    told: dict[str, _Told] = field(default_factory=dict)
    of_first: set[str] = field(default_factory=set)
    pickles: dict[str, bytes] = field(default_factory=dict)
    parts: dict[str, tuple[str, str, bool]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass
class _Whole:
    """What all ranks have to save, as the first rank puts it together."""

    leaves: dict[str, SavedLeaf]
    parts: dict[str, tuple[str, str, bool]]
    aliases: dict[str, str]
    left_out: dict[str, str]


def save(
    request: SaveRequest,
    collected: Collected,
    exchange: Exchange,
    mesh: str,
    behind: Callable[[Callable[[], SaveReport]], None] | None = None,
) -> SaveReport:
    """Save what was collected; all ranks of the exchange call it.

    Args:
        mesh: the id of the mesh: what it has left in the directory is removed.
        behind: does the rest, once all is copied in memory; without it everything is done when this returns.

    Raises:
        SaveError: this rank or another can not save. The saves before are whole.
    """
    began = time.monotonic()
    hidden: list[Path] = []
    try:
        with exchange.taking_part():
            notes = _compare_names(request, collected, exchange)
            own = _own(collected, request.of_functions, named=bool(request.names))
            directory = _begin(request, exchange, mesh, hidden)
            whole, by_rank = _compare(exchange, own)
            planner, plan, metadata = _plan(exchange, own, by_rank)
            if behind is not None:
                planner.stage(plan)
    except BaseException:
        _drop(hidden, exchange)
        raise

    def finish() -> SaveReport:
        try:
            with exchange.taking_part():
                told = _write(request, exchange, directory, plan, planner)
                report = _commit(request, exchange, directory, told, metadata, whole, notes, began)
        except BaseException:
            _drop(hidden, exchange)
            raise
        exchange.close()
        return report

    if behind is None:
        return finish()
    behind(finish)
    return SaveReport(
        str(directory.parent),
        duration_s=time.monotonic() - began,
        ranks=len(exchange.ranks),
        background=True,
        notes=notes,
    )


def _drop(hidden: Iterable[Path], exchange: Exchange) -> None:
    exchange.close()
    for each in hidden:
        shutil.rmtree(each, ignore_errors=True)


# ---- which names there are


def _compare_names(request: SaveRequest, collected: Collected, exchange: Exchange) -> tuple[str, ...]:
    """Tell the first rank which names this rank has; return there which names only some ranks have, a sentence each.

    Raises:
        SaveError: no rank has a name that was asked for; or not all have one, and the request is strict.
    """
    kept = {*collected.holders, *collected.aliases}
    own = {"kept": sorted(kept), "left_out": sorted(collected.left_out), "missing": collected.missing}
    gathered = exchange.gather("names", json.dumps(own).encode())
    if gathered is None:
        return ()
    told = [json.loads(each) for each in gathered]
    known = {name for each in told for name in (*each["kept"], *each["left_out"])}
    missing = {name: why for each in told for name, why in each["missing"].items() if not is_of(name, known)}
    if missing:
        said = "; ".join(f"`{name}` can not be saved: {why}" for name, why in missing.items())
        raise SaveError(said, missing)
    of_some: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name in sorted({name for each in told for name in each["kept"]}):
        ranks = [rank for rank, each in zip(exchange.ranks, told, strict=True) if name in each["kept"]]
        if any(name not in (*each["kept"], *each["left_out"]) for each in told):
            of_some[tuple(ranks)].append(name)
    sentences = tuple(
        f"only {name_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} {', '.join(names)}"
        for ranks, names in of_some.items()
    )
    if sentences and request.strict:
        raise SaveError(f"nothing was saved, because of --strict: {'; '.join(sentences)}")
    return sentences


# ---- what this rank has


def _own(collected: Collected, of_functions: Collection[str], *, named: bool) -> _Own:
    """Take apart what was collected. What can not be is left out, unless it was asked for by name."""
    own = _Own(aliases=dict(collected.aliases), left_out=dict(collected.left_out))
    equal = _kept_equal(collected.holders.values())
    for name, holder in collected.holders.items():
        try:
            leaves = take_apart(name, holder.state(), keeps_types=holder.kind == "value")
            made = {leaf.key: _tell(leaf, holder, own, is_kept_equal=name in equal) for leaf in leaves}
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            if named:
                raise SaveError(f"`{name}` can not be saved: {why}", {name: why}) from error
            own.left_out[name] = why
            continue
        own.leaves.update({leaf.key: leaf for leaf in leaves})
        own.told.update(made)
        class_name = holder.type_name if holder.value is not None else ""
        own.parts[name] = holder.kind, class_name, name.partition(".")[0] in of_functions
    return own


def _tell(leaf: Leaf, holder: Holder, own: _Own, *, is_kept_equal: bool) -> _Told:
    if collecting.is_tensor(leaf.value):
        device = leaf.value.device.type
        if why := collecting.kind_of(leaf.value)[1]:
            raise TypeError(f"{leaf.key} is {why}")
        if collecting.is_dtensor(leaf.value):
            return _Told(leaf.name, leaf.path, description(leaf), leaf.value.device_mesh.size(), device)
        if leaf.key in _buffers_of_first(holder):
            own.of_first.add(leaf.key)
            return _Told(leaf.name, leaf.path, "what the first rank has", device=device)
        return _Told(leaf.name, leaf.path, description(leaf, is_kept_equal=is_kept_equal), device=device)
    own.pickles[leaf.key] = pickled(leaf.value)
    return _Told(leaf.name, leaf.path, description(leaf))


def _kept_equal(holders: Iterable[Holder]) -> set[str]:
    """Return the names of modules of DistributedDataParallel, and of optimizers of their parameters."""
    modules = [holder for holder in holders if _replicas_of(holder) is not None]
    parameters = {id(parameter) for holder in modules for parameter in holder.value.parameters()}
    optimizers = [
        holder.name
        for holder in holders
        if isinstance(holder.value, torch.optim.Optimizer)
        and all(id(parameter) in parameters for group in holder.value.param_groups for parameter in group["params"])
    ]
    return {*optimizers, *(holder.name for holder in modules)}


def _replicas_of(holder: Holder) -> Any:
    """Return the DistributedDataParallel around what is saved, if there is one."""
    wrapper = holder.wrapper
    while "_orig_mod" in getattr(wrapper, "_modules", {}):
        wrapper = wrapper._orig_mod
    return wrapper if isinstance(wrapper, torch.nn.parallel.DistributedDataParallel) else None


def _buffers_of_first(holder: Holder) -> set[str]:
    """Return the keys of the buffers that DistributedDataParallel sends from its first rank to all others before it
    uses them: what the others have is of no account."""
    replicas = _replicas_of(holder)
    if replicas is None or not replicas.broadcast_buffers:
        return set()
    return {f"{holder.name}.{name}" for name, _ in holder.value.named_buffers()}


# ---- what all have


def _begin(request: SaveRequest, exchange: Exchange, mesh: str, hidden: list[Path]) -> Path:
    """Make the directory of the save; all ranks look whether they see it."""
    told = b""
    if request.scattered:
        hidden.append(begin_part(Path(request.directory)))
        return hidden[0]
    if exchange.is_first:
        directory = begin(Path(request.directory), exchange.name, mesh)
        hidden.append(directory)
        with _written(request):
            (directory / _TOKEN).write_bytes(b"")
        told = str(directory).encode()
    directory = Path(exchange.share("directory", told if exchange.is_first else None).decode())
    is_seen = (directory / _TOKEN).exists()
    seen = exchange.gather("seen", b"1" if is_seen else b"")
    if seen is not None:
        with _written(request):
            (directory / _TOKEN).unlink()
        blind = [rank for rank, answer in zip(exchange.ranks, seen, strict=True) if not answer]
        if blind:
            verb = "does" if len(blind) == 1 else "do"
            raise SaveError(
                f"{name_ranks(blind)} {verb} not see {request.directory} of rank {exchange.ranks[0]}: choose a "
                "directory on storage that all nodes see, or --bring the save to the notebook's computer"
            )
    return directory


@contextmanager
def _written(request: SaveRequest) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # the storage went away, or is full
        raise SaveError(f"can not write in {request.directory}: {error.strerror}") from error


def _compare(exchange: Exchange, own: _Own) -> tuple[_Whole, set[str]]:
    """Find out what is equal on all ranks; return, on the first rank, what all have, and on each which keys differ."""
    message = {
        "leaves": {key: [*vars(told).values()] for key, told in own.told.items()},
        "parts": own.parts,
        "aliases": own.aliases,
        "left_out": own.left_out,
    }
    gathered = exchange.gather("leaves", zlib.compress(json.dumps(message).encode(), 1))
    if gathered is None:
        return _Whole({}, {}, {}, {}), set(json.loads(exchange.share("by rank", None)))
    told = [json.loads(zlib.decompress(each)) for each in gathered]
    whole = put_together([{key: _Told(*leaf) for key, leaf in each["leaves"].items()} for each in told])
    by_rank = {key for key, leaf in whole.items() if leaf.by_rank}
    exchange.share("by rank", json.dumps(sorted(by_rank)).encode())
    parts, aliases = (
        {name: value for each in reversed(told) for name, value in each[what].items()} for what in ("parts", "aliases")
    )
    left_out = _by_ranks([each["left_out"] for each in told], exchange.ranks)
    return _Whole(whole, parts, aliases, left_out), by_rank


def put_together(told: Sequence[Mapping[str, _Told]]) -> dict[str, SavedLeaf]:
    """Return how each key is saved: once for all ranks, or by rank. Pure.

    Args:
        told: what each rank told, in their order.
    """
    havers: dict[str, list[int]] = defaultdict(list)
    for place, each in enumerate(told):
        for key in each:
            havers[key].append(place)
    leaves = {}
    for key, have in havers.items():
        first = told[have[0]][key]
        same = len({told[place][key].same for place in have}) == 1
        is_shared = same and len(have) >= (first.among or len(told)) and first.name != RANDOM_STATES
        leaves[key] = SavedLeaf(
            first.name,
            tuple((kind, step) for kind, step in first.path),
            () if is_shared else tuple(have),
            in_parts=is_shared and first.among > 0,
            device=first.device,
        )
    return leaves


def _by_ranks(told: Sequence[Mapping[str, str]], ranks: Sequence[int]) -> dict[str, str]:
    """Return why names were left out; which ranks say so, where not all do."""
    said: dict[str, str] = {}
    for name in sorted({name for each in told for name in each}):
        whys = {rank: each[name] for rank, each in zip(ranks, told, strict=True) if name in each}
        first = next(iter(whys.values()))
        said[name] = first if len(whys) == len(ranks) else f"{first} ({name_ranks(sorted(whys))})"
    return said


def own_key(key: str, place: int) -> str:
    """Return the key of what a rank has of its own, given its place among those that save. No name of Python's has a
    slash."""
    return f"rank{place}/{key}"


# ---- the plan


def _plan(exchange: Exchange, own: _Own, by_rank: set[str]) -> tuple[SavePlanner, SavePlan, Any]:
    """Have DCP plan: return the planner, this rank's plan, and on the first rank the metadata."""
    values: dict[str, Any] = {}
    paths = {}
    for key, leaf in own.leaves.items():
        is_own = key in by_rank
        if key in own.of_first and not exchange.is_first and not is_own:
            continue
        stored = own_key(key, exchange.position) if is_own else key
        value = own.pickles.get(key, leaf.value)
        values[stored] = value.to_local() if is_own and collecting.is_dtensor(value) else value
        name = own_key(leaf.name, exchange.position) if is_own else leaf.name
        paths[stored] = (*name.split("."), *map(_dcp_step, leaf.path))
    planner = SavePlanner(values, paths)
    plans = exchange.gather("plan", pickle.dumps(planner.create_local_plan()))
    metadata = None
    told = None
    if plans is not None:
        all_plans, metadata = planner.create_global_plan([pickle.loads(each) for each in plans])
        told = [pickle.dumps(each) for each in Writer(Path()).prepare_global_plan(all_plans)]
    plan: SavePlan = planner.finish_plan(pickle.loads(exchange.scatter("plans", told)))
    return planner, plan, metadata


def _dcp_step(step: tuple[str, Any]) -> Any:
    """Return a step of a path as DCP notes it: a number is a place in a list."""
    return step[1] if step[0] == "at" else str(step[1])


# ---- the files


def _write(
    request: SaveRequest, exchange: Exchange, directory: Path, plan: SavePlan, planner: SavePlanner
) -> list[bytes] | None:
    """Write this rank's part; return, on the first rank, what all have written."""
    is_waited_for = exchange.is_first and not request.background and not request.origin.reason
    total_bytes = sum(item.tensor_storage_size() or 0 for item in plan.items)
    writer = Writer(directory, _Teller(total_bytes) if is_waited_for else lambda _: None)
    try:
        results = writer.write_data(plan, planner).value()
    except OSError as error:
        raise SaveError(f"can not write in {directory.parent}: {error.strerror}") from error
    return exchange.gather("written", pickle.dumps((results, writer.files)))


class _Teller:
    """Prints how far the first rank is, now and then, for the client that waits.

    Args:
        total_bytes: that it writes.
    """

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes, self._next_s = total_bytes, time.monotonic() + _TELL_S

    def __call__(self, written_bytes: int) -> None:
        if (now := time.monotonic()) >= self._next_s:
            self._next_s = now + _TELL_S
            print(f"saving {written_bytes} of {max(self._total_bytes, written_bytes)} bytes", flush=True)  # noqa: T201


def _commit(
    request: SaveRequest,
    exchange: Exchange,
    directory: Path,
    told: list[bytes] | None,
    metadata: Any,
    whole: _Whole,
    notes: tuple[str, ...],
    began: float,
) -> SaveReport:
    """On the first rank: finish the save, and name it; on all: return what was done."""
    if told is None:
        return SaveReport.from_json(exchange.share("done", None).decode())
    written = [pickle.loads(each) for each in told]
    writer = Writer(directory)
    try:
        writer.finish(metadata, [results for results, _ in written])
        files = {name: size_bytes for _, each in written for name, size_bytes in each.items()} | writer.files
        parts = _parts(whole, [result for results, _ in written for result in results])
        manifest = Manifest(
            time.time(),
            len(exchange.ranks),
            torch.__version__,
            request.origin,
            parts,
            whole.aliases,
            whole.left_out,
            files,
            whole.leaves,
        )
        manifest.write(directory)
        place = directory if request.scattered else commit(directory)
        by_hand = not request.origin.reason
        removed = [] if request.scattered else prune(place.parent, request.keep, by_hand=by_hand)
    except OSError as error:
        raise SaveError(f"can not write in {directory.parent}: {error.strerror}") from error
    report = SaveReport(
        str(place),
        manifest.size_bytes,
        time.monotonic() - began,
        len(exchange.ranks),
        parts,
        whole.left_out,
        tuple(map(str, removed)),
        notes=notes,
    )
    exchange.share("done", report.to_json().encode())
    return report


def _parts(whole: _Whole, results: Iterable[Any]) -> tuple[NamedPart, ...]:
    """Return what was saved under each name, with its size."""
    sizes: dict[str, int] = defaultdict(int)
    for result in results:
        key = result.index.fqn
        leaf = whole.leaves.get(key) or whole.leaves[key.partition("/")[2]]
        sizes[leaf.name] += result.size_in_bytes
    by_rank = {leaf.name for leaf in whole.leaves.values() if leaf.by_rank}
    return tuple(
        NamedPart(name, kind, class_name, sizes[name], name in by_rank, of_function)
        for name, (kind, class_name, of_function) in whole.parts.items()
    )
