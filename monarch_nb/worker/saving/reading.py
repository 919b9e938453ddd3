"""A load, on each of its ranks: first all look whether everything fits, then all change what they hold."""

from __future__ import annotations

import functools
import inspect
import json
import os
import pickle
import stat
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from monarch_nb.errors import SaveError
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.worker.saving import collecting
from monarch_nb.worker.saving.asked import STOPPED, Change, LoadReport, LoadRequest, NamedPart
from monarch_nb.worker.saving.collecting import RANDOM_STATES, Collected, Holder, collect, is_of
from monarch_nb.worker.saving.dcp import LoadPlanner, Reader
from monarch_nb.worker.saving.exchange import Exchange
from monarch_nb.worker.saving.leaves import Leaf, plain_name, put_together, take_apart, unpickled
from monarch_nb.worker.saving.leaves import Path as Steps
from monarch_nb.worker.saving.manifest import Manifest, SavedLeaf, damage, find, is_save
from monarch_nb.worker.saving.writing import own_key

_OF_FUNCTIONS = (
    "functions or actors held them that trained, and there are no such names now: make them in a cell, "
    "then %mesh load … --only NAMES"
)
_NO_MEMORY = (
    "is on the device meta, at least in part, and has no memory there: the module's to_empty(device=device) gives it "
    "some; make its optimizer afterwards"
)
_ALIKE: tuple[Set[str], ...] = (
    {"int", "float", "bool", "float16", "float32", "float64", "int32", "int64"},
    {"dict", "OrderedDict", "defaultdict", "Counter"},
)
"""Classes of plain values of which a program may take one in place of another."""


@dataclass
class _Part:
    """What this rank loads under a name.

    Attributes:
        holder: what it is loaded into; None: the name is not there, and gets a value.
        put: binds the name to a value; None where that can not be.
        leaves: what the save has for this rank, by the key that it is stored under.
        values: what was read of it, or will be, by that key.
    """

    name: str
    holder: Holder | None
    put: Callable[[Any], None] | None
    leaves: dict[str, SavedLeaf]
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def is_read_in_place(self) -> bool:
        """Whether tensors that are there already are read into."""
        return self.holder is not None and self.holder.kind in ("state", "tensor")

    def state(self) -> Any:
        """Return what was saved, put together."""
        return put_together((leaf.path, self.values[key]) for key, leaf in self.leaves.items())


@dataclass
class _Checked:
    """What was found out before anything changes: what is loaded, what not and why, and what does not fit."""

    parts: dict[str, _Part] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def load(
    request: LoadRequest, namespace: MutableMapping[str, Any], hidden: Collection[str], exchange: Exchange
) -> LoadReport:
    """Load a save; all ranks of the exchange call it.

    Args:
        namespace: what is loaded into. hidden: its names that are not the user's.

    Raises:
        SaveError: something does not fit, on this rank or another, and nothing has changed; or it could not be read to
            its end, which is said.
    """
    began = time.monotonic()
    change = Change()
    try:
        with exchange.taking_part():
            path, manifest = _find(request, exchange)
            _agree(exchange, "files", {str(path / name): why for name, why in damage(path, manifest).items()})
            metadata = Reader(path).read_metadata()
            checked = _check(request, namespace, hidden, exchange, path, manifest, metadata)
            _agree(exchange, "problems", checked.problems)
            change.begin(checked.parts, [part.name for part in checked.parts.values() if part.is_read_in_place])
            size_bytes = _read_tensors(path, metadata, checked.parts.values())
            _all_have_read(exchange, path)
            for part in checked.parts.values():
                change.apply(part.name)
                _apply(part)
                change.applied(part.name)
            report = LoadReport(
                str(path),
                size_bytes,
                time.monotonic() - began,
                len(exchange.ranks),
                manifest.ranks,
                tuple(checked.parts),
                checked.left_out,
            )
            return _told(exchange, report)
    except KeyboardInterrupt:
        sys.stderr.write(f"{STOPPED}{change.describe()}\n")
        raise
    except SaveError as error:
        if not change.began:
            raise
        raise SaveError(f"{STOPPED}{error}: {change.describe()}", error.problems, error.of_others) from error
    except Exception as error:
        if not change.began:
            raise
        said = str(error).partition("\n")[0]
        raise SaveError(f"{STOPPED}{type(error).__name__}: {said}: {change.describe()}") from error
    finally:
        exchange.close()


def _find(request: LoadRequest, exchange: Exchange) -> tuple[Path, Manifest]:
    """Return the save, which is the same for all, and what is in it."""
    found = str(find(Path(request.directory))).encode() if exchange.is_first else None
    path = Path(exchange.share("path", found).decode())
    if not is_save(path):
        raise SaveError(
            f"rank {exchange.rank} does not see {path}, which rank {exchange.ranks[0]} does: "
            "load from storage that all nodes see, or with --bring from the notebook's computer"
        )
    return path, Manifest.read(path)


# ---- the first phase: nothing changes


def _check(
    request: LoadRequest,
    namespace: MutableMapping[str, Any],
    hidden: Collection[str],
    exchange: Exchange,
    path: Path,
    manifest: Manifest,
    metadata: Any,
) -> _Checked:
    checked = _Checked()
    saved = {part.name: part for part in manifest.parts}
    wanted = _wanted(request.names, saved, manifest, checked)
    found = _found(namespace, hidden, saved, manifest)
    holders = found.holders
    leaves: dict[str, dict[str, SavedLeaf]] = defaultdict(dict)
    for key, leaf in manifest.leaves.items():
        leaves[leaf.name][key] = leaf
    for name in wanted:
        own, why = _of_rank(leaves[name], exchange, manifest.ranks)
        if name == RANDOM_STATES and manifest.ranks != len(exchange.ranks):
            own, why = {}, _other_number(manifest.ranks, exchange)
        if saved[name].of_function and not request.names and name not in {**namespace, **holders}:
            own, why = {}, _OF_FUNCTIONS
        if why:
            checked.left_out[name] = why
        elif own:
            holder = holders.get(name)
            checked.parts[name] = _Part(name, holder, _put(name, holder, namespace, found.containers), own)
    _read_objects(path, metadata, checked)
    for name, part in list(checked.parts.items()):
        if name not in checked.problems and (why := _misfit(part, saved[name], namespace, metadata)):
            checked.problems[name] = why
    if request.strict:
        beyond = [name for name in holders if name not in saved and not request.names]
        checked.problems.update(dict.fromkeys(beyond, "is not in the save"))
        checked.problems.update(checked.left_out)
    return checked


def _wanted(names: Sequence[str], saved: Mapping[str, NamedPart], manifest: Manifest, checked: _Checked) -> list[str]:
    """Return the names to load, as they were saved."""
    if not names:
        return list(saved)
    wanted = []
    for name in names:
        others = [real for alias, real in manifest.aliases.items() if is_of(name, [alias])]
        if parts := [each for each in saved if any(is_of(real, [each]) for real in (name, *others))]:
            wanted += parts
        else:
            checked.problems[name] = f"is not in the save, which has {', '.join(sorted(saved))}"
    return list(dict.fromkeys(wanted))


def _found(
    namespace: MutableMapping[str, Any], hidden: Collection[str], saved: Mapping[str, NamedPart], manifest: Manifest
) -> Collected:
    """Return what there is to load into, by the names of the save."""
    found = collect(namespace, hidden=hidden, put=namespace.__setitem__)
    holders = found.holders
    named = [name for name in saved if name in namespace and name not in holders and name not in found.aliases]
    if named:  # a name that is only looked at when it is asked for
        extra = {name: namespace[name] for name in named}
        holders |= collect(extra, put=namespace.__setitem__, random_states=False).holders
    for alias, real in [*found.aliases.items(), *manifest.aliases.items()]:
        if alias in saved and alias not in holders and real in holders:
            holders[alias] = holders[real]
        if real in saved and real not in holders and alias in holders:
            holders[real] = holders[alias]
    return found


def _put(
    name: str, holder: Holder | None, namespace: MutableMapping[str, Any], containers: Mapping[str, Any]
) -> Callable[[Any], None] | None:
    """Return what binds a name to a value; None where no container is there that could have it."""
    if holder is not None and holder.put is not None:
        return holder.put
    whole, _, key = name.rpartition(".")
    container = containers.get(whole) if whole else namespace
    if not isinstance(container, MutableMapping) or any(type(each) is int for each in container):
        return None
    return functools.partial(container.__setitem__, key)


def _of_rank(leaves: Mapping[str, SavedLeaf], exchange: Exchange, saved_ranks: int) -> tuple[dict[str, SavedLeaf], str]:
    """Return what the save has for this rank, by stored key; or why it has nothing that makes sense here."""
    if any(leaf.by_rank for leaf in leaves.values()) and saved_ranks != len(exchange.ranks):
        return {}, _other_number(saved_ranks, exchange)
    place = exchange.position
    return {
        own_key(key, place) if leaf.by_rank else key: leaf
        for key, leaf in leaves.items()
        if not leaf.by_rank or place in leaf.by_rank
    }, ""


def _other_number(saved_ranks: int, exchange: Exchange) -> str:
    return f"differs by rank: {saved_ranks} saved, and {len(exchange.ranks)} load"


def _read_objects(path: Path, metadata: Any, checked: _Checked) -> None:
    """Read what is no tensor: it changes nothing."""
    keys = {
        key: part
        for part in checked.parts.values()
        for key in part.leaves
        if not isinstance(metadata.state_dict_metadata.get(key), TensorStorageMetadata)
    }
    data: dict[str, bytes] = {}
    _read(path, metadata, LoadPlanner({}, dict.fromkeys(keys), data.__setitem__))
    trusted = _is_own(path)
    for key, part in keys.items():
        try:
            part.values[key] = _value_of(data[key], trusted=trusted)
        except pickle.UnpicklingError:
            checked.problems[part.name] = (
                f"can only be unpickled, which executes what the file says, and {path} is not of this user alone"
            )
        except Exception as error:  # noqa: BLE001 -- whatever its class raises
            checked.problems[part.name] = f"can not be unpickled: {type(error).__name__}: {error}"


def _value_of(data: bytes, *, trusted: bool) -> Any:
    try:
        return unpickled(data)
    except pickle.UnpicklingError:
        if not trusted:
            raise
    return unpickled(data, trusted=True)


def _is_own(path: Path) -> bool:
    """Return whether nobody but this user can have written a save."""
    facts = [each.stat() for each in (path, *path.iterdir())]
    return all(
        each.st_uid == os.geteuid() and not stat.S_IMODE(each.st_mode) & (stat.S_IWGRP | stat.S_IWOTH) for each in facts
    )


def _misfit(part: _Part, saved: NamedPart, namespace: Mapping[str, Any], metadata: Any) -> str:
    """Return why what was saved does not fit what is there; choose what is read into, if it does."""
    holder = part.holder
    if holder is None and part.name in namespace:
        return _is_other(saved, collecting.kind_of(namespace[part.name])[1])
    if holder is None:
        if saved.kind == "random states" and part.put is not None:
            _fill_with_new(part, metadata)
            if (made := collecting.new_random(saved.type, part.state())) is not None:
                part.holder = Holder(part.name, "random states", made, made)
                return ""
        needs_cells = saved.kind in ("state", "random states") or any(leaf.in_parts for leaf in part.leaves.values())
        if needs_cells or part.put is None:
            return f"is not there: run the cells that make it ({collecting.a(saved.type or saved.kind)})"
        _fill_with_new(part, metadata)
        return ""
    if holder.kind != saved.kind and not _is_empty(holder):
        return _other_type(saved, holder)
    if holder.kind == "tensor" or (holder.kind == "state" and isinstance(holder.value, torch.nn.Module)):
        return _misfit_of_tensors(part, holder, metadata)
    if holder.kind == "state" and saved.type and saved.type != holder.type_name:
        return _other_type(saved, holder)
    if isinstance(holder.value, torch.optim.Optimizer):
        return _misfit_of_optimizer(part, holder.value, metadata)
    _fill_with_new(part, metadata)
    if holder.kind == "value" and not _is_empty(holder) and not _are_alike(saved.type, holder.type_name):
        return _other_type(saved, holder)
    return ""


def _other_type(saved: NamedPart, holder: Holder) -> str:
    said = _is_other(saved, collecting.a(holder.type_name))
    is_made = saved.kind in ("tensor", "value") and "." not in saved.name
    return f"{said}: after `del {saved.name}` it is loaded" if is_made else said


def _is_other(saved: NamedPart, now: str) -> str:
    return f"was saved as {collecting.a(saved.type or saved.kind)}, and is {now}"


def _are_alike(before: str, now: str) -> bool:
    return before in (now, "NoneType") or any({before, now} <= alike for alike in _ALIKE)


def _is_empty(holder: Holder) -> bool:
    return holder.kind == "value" and holder.value is None


def _fill_with_new(part: _Part, metadata: Any) -> None:
    """Read into new tensors."""
    for key in part.leaves.keys() - part.values.keys():
        part.values[key] = _new(metadata.state_dict_metadata[key], device=part.leaves[key].device)


def _new(saved: TensorStorageMetadata, like: Any = None, device: str = "") -> Any:
    """Return a tensor to read into: of the kind of the one that it belongs to, or on a kind of device."""
    if like is not None and tuple(like.shape) == tuple(saved.size):
        with torch.no_grad():
            return torch.zeros_like(like, dtype=saved.properties.dtype, requires_grad=False)
    if collecting.is_dtensor(like):
        return torch.distributed.tensor.zeros(saved.size, dtype=saved.properties.dtype, device_mesh=like.device_mesh)
    return torch.empty(saved.size, dtype=saved.properties.dtype, device=collecting.device_here(device))


def _misfit_of_tensors(part: _Part, holder: Holder, metadata: Any) -> str:
    """A module, or a tensor: read into the tensors that are there. What a module has besides, and what gets its shape
    from what is loaded (torch.nn.LazyLinear), is read into new ones."""
    own = take_apart(part.name, holder.state())
    if any(collecting.is_tensor(leaf.value) and leaf.value.is_meta for leaf in own):
        return _NO_MEMORY
    there = {_key_of(part.name, leaf): leaf.value for leaf in own}
    saved = {_key_of(part.name, leaf): key for key, leaf in part.leaves.items()}
    said = [f"{key} is only here" for key in there if key not in saved]
    said += [f"{key} is only in the save" for key in saved if key not in there]
    for key in saved.keys() & there.keys():
        now, before = there[key], metadata.state_dict_metadata.get(saved[key])
        if _is_extra(part.leaves[saved[key]]) or torch.nn.parameter.is_lazy(now):
            continue
        if not isinstance(before, TensorStorageMetadata) or not collecting.is_tensor(now):
            if isinstance(before, TensorStorageMetadata) != collecting.is_tensor(now):
                said.append(f"{key} is a tensor only {'here' if collecting.is_tensor(now) else 'in the save'}")
            continue
        if part.leaves[saved[key]].by_rank:
            now = _local(now)
        if tuple(before.size) != tuple(now.shape):
            said.append(f"{key} has the shape {tuple(now.shape)} here, and {tuple(before.size)} in the save")
        elif before.properties.dtype != now.dtype:
            said.append(f"{key} is {_plain(now.dtype)} here, and {_plain(before.properties.dtype)} in the save")
        part.values[saved[key]] = now.detach()
    _fill_with_new(part, metadata)
    return _few(sorted(said))


def _key_of(name: str, leaf: Leaf | SavedLeaf) -> str:
    return Leaf(name, leaf.path[:1] if _is_extra(leaf) else leaf.path, None).key


def _is_extra(leaf: Leaf | SavedLeaf) -> bool:
    """Return whether a value is of what a module's get_extra_state() returns, of which it alone knows the form."""
    return bool(leaf.path) and str(leaf.path[0][1]).rpartition(".")[2] == "_extra_state"


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _few(said: Sequence[str], most: int = 4) -> str:
    more = f"; and {len(said) - most} more" if len(said) > most else ""
    return "; ".join(said[:most]) + more


def _misfit_of_optimizer(part: _Part, optimizer: Any, metadata: Any) -> str:
    """An optimizer: its own load_state_dict() takes the state. So a shape is compared only with what it has now, and
    only where that has its parameter's shape: nothing else tells how large a state must be."""
    every = enumerate(each for group in optimizer.param_groups for each in group["params"])
    parameters = {place: each for place, each in every if collecting.is_tensor(each)}
    if any(each.is_meta for each in parameters.values()):
        return _NO_MEMORY
    own = take_apart(part.name, optimizer.state_dict())
    there = {leaf.key: leaf.value for leaf in own if collecting.is_tensor(leaf.value)}
    owners = Counter(map(_memory, (*there.values(), *parameters.values())))
    has_parts = any(leaf.in_parts for leaf in part.leaves.values())
    said = []
    for key, leaf in part.leaves.items():
        if key in part.values:
            continue
        saved, parameter = metadata.state_dict_metadata[key], None
        now: Any = there.get(_key_of(part.name, leaf))
        if [kind for kind, _ in leaf.path[:2]] == ["key", "key"] and leaf.path[0][1] == "state":
            parameter = parameters.get(leaf.path[1][1])
        is_alone = now is not None and owners[_memory(now)] == 1
        if leaf.by_rank:
            now, parameter = map(_local, (now, parameter))
        is_whole = not leaf.in_parts if has_parts else saved.size.numel() == 1
        if now is not None and parameter is not None and now.shape == parameter.shape != saved.size:
            shapes = f"{tuple(now.shape)} here, and {tuple(saved.size)} in the save"
            said.append(f"{_key_of(part.name, leaf)} has the shape {shapes}")
        if is_alone and now.shape == saved.size and now.dtype == saved.properties.dtype:
            part.values[key] = now.detach()
        else:
            like = None if is_whole and collecting.is_dtensor(parameter) else parameter
            part.values[key] = _new(saved, like, leaf.device)
    groups = _group_sizes((leaf.path, leaf.value) for leaf in own)
    before = _group_sizes((leaf.path, part.values[key]) for key, leaf in part.leaves.items())
    if groups and before and groups != before:
        said.append(f"has groups of {_counts(groups)} parameters here, and of {_counts(before)} in the save")
    return _few(said)


def _memory(tensor: Any) -> int:
    """Return which memory a tensor has: what shares it with another is not read into."""
    return int(_local(tensor).untyped_storage().data_ptr())


def _local(value: Any) -> Any:
    """Return what this rank has of a tensor that is in parts; any other value as it is."""
    return value.to_local() if collecting.is_dtensor(value) else value


def _group_sizes(leaves: Iterable[tuple[Steps, Any]]) -> list[int]:
    """Return how many parameters each group of an optimizer has; nothing where its state has another form."""
    return [
        len(value)
        for path, value in leaves
        if len(path) == 3 and path[0] == ("key", "param_groups") and path[2] == ("key", "params")
    ]


def _counts(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers)) or "no"


def _agree(exchange: Exchange, step: str, problems: Mapping[str, str]) -> None:
    """Raise on all ranks if something does not fit on any."""
    told = exchange.gather(step, json.dumps(problems).encode())
    whole = None
    if told is not None:
        whole = json.dumps(merged([json.loads(each) for each in told], exchange.ranks)).encode()
    found: dict[str, str] = json.loads(exchange.share(f"all {step}", whole))
    if found:
        said = [said_of(name, why) for name, why in found.items()]
        listed = said[0] if len(said) == 1 else "\n  " + "\n  ".join(said)
        raise SaveError(f"nothing was loaded: {listed}", found)


def said_of(name: str, why: str) -> str:
    """Return what is said of a name, which some reasons say themselves. Pure.

    Example:
        >>> said_of("model", "model.0.bias is not in the save"), said_of("step", "is not in the save")
        ('model.0.bias is not in the save', '`step` is not in the save')
    """
    return why if why.startswith((f"{name}.", f"{name}[", f"{name}'")) else f"`{name}` {why}"


def merged(told: Sequence[Mapping[str, str]], ranks: Sequence[int]) -> dict[str, str]:
    """Return what ranks say of names, with the ranks where not all say the same. Pure."""
    said: dict[str, str] = {}
    for name in dict.fromkeys(name for each in told for name in each):
        whys: dict[str, list[int]] = defaultdict(list)
        for rank, each in zip(ranks, told, strict=True):
            if name in each:
                whys[each[name]].append(rank)
        if len(whys) == 1 and len(next(iter(whys.values()))) == len(ranks):
            said[name] = next(iter(whys))
        else:
            said[name] = "; ".join(f"{why} ({name_ranks(those)})" for why, those in whys.items())
    return said


# ---- the second phase


def _read_tensors(path: Path, metadata: Any, parts: Iterable[_Part]) -> int:
    """Read into the tensors that were chosen; return how many bytes they have here."""
    tensors = {
        key: value
        for part in parts
        for key, value in part.values.items()
        if isinstance(metadata.state_dict_metadata.get(key), TensorStorageMetadata)
    }
    with torch.no_grad():
        _read(path, metadata, LoadPlanner(tensors, {}, lambda key, data: None))
    return sum(each.numel() * each.element_size() for each in map(_local, tensors.values()))


def _read(path: Path, metadata: Any, planner: LoadPlanner) -> None:
    reader = Reader(path)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    planner.set_up_planner({}, metadata, is_coordinator=True)
    plan = planner.finish_plan(reader.prepare_local_plan(planner.create_local_plan()))
    reader.read_data(plan, planner).wait()


def _all_have_read(exchange: Exchange, path: Path) -> None:
    done = exchange.gather("read", b"")
    exchange.share("all read", b"" if done is not None else None)


def _apply(part: _Part) -> None:
    holder = part.holder
    state = part.state()
    if holder is None or holder.kind == "value":
        assert part.put is not None  # else it does not fit
        part.put(state)
    elif part.name == RANDOM_STATES and holder.value is None:
        collecting.set_process_random_states(state)
    elif holder.kind == "random states":
        collecting.set_random_state(holder.value, state)
        if part.put is not None:  # it may be new
            part.put(holder.wrapper)
    elif isinstance(holder.value, torch.nn.Module):
        own, load_state = holder.value.state_dict(), holder.value.load_state_dict
        for name in own:
            own[name] = state[plain_name(name)]
        # It may tell a part of its weights alone, as adapters do. That all of these are there was looked at.
        is_lenient = "strict" in inspect.signature(load_state).parameters
        load_state(own, **{"strict": False} if is_lenient else {})
    elif holder.kind == "state":
        holder.value.load_state_dict(state)


def _told(exchange: Exchange, report: LoadReport) -> LoadReport:
    """Return the first rank's report, with what all have read, and left out."""
    told = exchange.gather(
        "report", json.dumps([report.size_bytes, report.left_out, report.duration_s, report.names]).encode()
    )
    whole = None
    if told is not None:
        each = [json.loads(one) for one in told]
        left_out = merged([one[1] for one in each], exchange.ranks)
        changes = {
            "size_bytes": sum(one[0] for one in each),
            "left_out": left_out,
            "names": list(dict.fromkeys(name for one in each for name in one[3])),
            "duration_s": max(one[2] for one in each),
        }
        whole = json.dumps({**json.loads(report.to_json()), **changes}).encode()
    return LoadReport.from_json(exchange.share("done", whole).decode())
