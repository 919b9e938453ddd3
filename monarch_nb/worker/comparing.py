"""What a rank says of a value so that it can be compared with other ranks', without sending it: `%mesh diff`.

A value is taken apart into named parts (Leaves). The client asks first for one digest, and for more only where these
differ. The value of the expression is kept from the first question to `end`, because evaluating it again may give
another one. Answers are bytes: a cell's value, or text that a stopped rank's debugger prints.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import gc
import hashlib
import importlib
import importlib.metadata
import os
import pickle
import platform
import re
import subprocess
import sys
import types
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch_nb.config import patience
from monarch_nb.ground.cpus import usable_cpus
from monarch_nb.ground.read_at_start import read_at_import, set_late, started
from monarch_nb.worker import digests
from monarch_nb.worker.digests import digest, plain
from monarch_nb.worker.environment_report import describe
from monarch_nb.worker.saving.collecting import process_random_states

if TYPE_CHECKING:
    import numpy
    import torch

_GIT_TIMEOUT_S = patience(10.0)
_OF_A_RANK = frozenset(
    (
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "CUDA_VISIBLE_DEVICES"),
        *("HIP_VISIBLE_DEVICES", "HOSTNAME", "PWD", "OLDPWD", "SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"),
        *(
            "SLURMD_NODENAME",
            "SLURM_TASK_PID",
            "SLURM_TOPOLOGY_ADDR",
            "SLURM_GTIDS",
            "POD_NAME",
            "POD_IP",
            "PET_NODE_RANK",
        ),
    )
)
"""Variables in which ranks are meant to differ."""
_SECRET = ("TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL")


def _is_shared(name: str) -> bool:
    return name not in _OF_A_RANK and not name.startswith("MONARCH_NB_")


def _told(name: str, text: str, salt: str) -> str:
    return f"(secret, {_digest((salt, text))})" if any(word in name.upper() for word in _SECRET) else text


def _packages() -> dict[str, str]:
    found = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name and name not in found:  # the first on the path is the one that is imported
            found[name] = distribution.version
    return dict(sorted(found.items()))


def _torch_settings() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        "version": torch.__version__,
        "threads": torch.get_num_threads(),
        "dtype": str(torch.get_default_dtype()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
    }


def _gpus() -> dict[str, Any]:
    """Return the rank's own GPU, when torch has it open: asking must not open one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    seen = torch.cuda.get_device_properties(torch.cuda.current_device())
    facts: dict[str, Any] = {"name": seen.name, "memory": seen.total_memory}
    return facts | {"clock_mhz_greatest": _greatest_clock_mhz(f"GPU-{seen.uuid}")}


def _greatest_clock_mhz(uuid: str) -> int | None:
    """Return up to how many MHz the GPU's processors are allowed to run; None where NVML does not say it."""
    nvml: Any = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        return int(nvml.nvmlDeviceGetMaxClockInfo(nvml.nvmlDeviceGetHandleByUUID(uuid), nvml.NVML_CLOCK_SM))
    except nvml.NVMLError:
        return None


def _git_state() -> dict[str, str]:
    """Return the commit of the code in the working directory, and a digest of what has changed since."""
    try:
        commit, changes = (_git("rev-parse", "HEAD"), _git("diff", "HEAD"))
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"commit": commit.strip(), "changes": _digest(changes) if changes else "none"}


def _git(*words: str) -> str:
    command = ["git", *words]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_GIT_TIMEOUT_S, check=True)
    return done.stdout


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode(errors="surrogatepass")).hexdigest()[:12]


MAX_LEAVES = 200_000
"""A value of more parts is compared up to here, and that is said."""
MAX_TEXT_CHARACTERS = 160
"""Of the text of a value; a longer one ends with a digest of the whole."""
_MAX_DEPTH = 40
_NUMBERS = frozenset(
    ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128")
)
"""Types of arrays that can be looked at as tensors."""
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")


class Leaf(NamedTuple):
    """A part of a value.

    Attributes:
        path: its name: "layers.2.weight"; empty for the value itself.
        facts: what it is: "[512, 512] float32 cpu", or the type of a plain value.
        contents: the digest of a tensor; the text of a plain value.
        is_tensor: whether `contents` is a digest.
        part: which part of a tensor that is spread over ranks. Only equal parts are compared.
    """

    path: str
    facts: str
    contents: str
    is_tensor: bool = False
    part: str = ""


class Leaves:
    """The parts of a value, and the tensors among them, for further questions.

    Example:
        >>> Leaves({"lr": 0.1}).all
        [Leaf(path='lr', facts='float', contents='0.1', is_tensor=False, part='')]
    """

    def __init__(self, value: Any) -> None:
        self.all: list[Leaf] = []
        self.tensors: dict[str, torch.Tensor] = {}
        self.left_out = 0
        self._arrays: dict[str, numpy.ndarray[Any, Any]] = {}
        self._inside: list[int] = []
        self._add("", value)

    def tensor(self, path: str) -> torch.Tensor | None:
        """Return the tensor under a name, or an array as a tensor; None where there is none, or none can be made."""
        found = self.tensors.get(path)
        array = self._arrays.get(path)
        if found is None and array is not None and "torch" in sys.modules:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*not writable")  # nobody writes to it
                return _as_tensor(array)
        return found

    def _add(self, path: str, value: Any) -> None:
        if len(self.all) >= MAX_LEAVES:
            self.left_out += 1
        elif (torch := sys.modules.get("torch")) is not None and isinstance(value, torch.Tensor):
            self._add_tensor(path, value, torch)
        elif (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.ndarray):
            self._add_array(path, value, numpy)
        elif id(value) in self._inside or len(self._inside) >= _MAX_DEPTH:
            self.all.append(Leaf(path, type(value).__name__, "(contains itself)"))
        elif (parts := _parts(value)) is not None:
            self._inside.append(id(value))
            empty = True
            for name, part in parts:
                self._add(_joined(path, name), part)
                empty = False
            if empty:
                self.all.append(Leaf(path, type(value).__name__, "(empty)"))
            self._inside.pop()
        else:
            self.all.append(Leaf(path, type(value).__name__, _text(value)))

    def _add_tensor(self, path: str, tensor: torch.Tensor, torch: Any) -> None:
        facts = [str(list(tensor.shape)), str(tensor.dtype).removeprefix("torch."), tensor.device.type]
        own, part = tensor, ""
        if hasattr(tensor, "to_local") and hasattr(tensor, "placements"):
            own = tensor.to_local()
            own = own.wait() if hasattr(own, "wait") else own
            part = _part(tensor)
            facts.append(", ".join(map(str, tensor.placements)))
        if tensor.requires_grad:
            facts.append("requires_grad")
        is_plain = own.layout == torch.strided and own.device.type != "meta" and not own.is_quantized
        if not is_plain:
            self.all.append(Leaf(path, " ".join(facts), _text(tensor)))
            return
        own = plain(own)
        self.all.append(Leaf(path, " ".join(facts), digest(own), True, part))
        self.tensors[path] = own

    def _add_array(self, path: str, array: numpy.ndarray[Any, Any], numpy: Any) -> None:
        facts = f"{list(array.shape)} {array.dtype} array"
        if array.dtype.hasobject:
            self.all.append(Leaf(path, facts, _text(array)))
            return
        contents = numpy.ascontiguousarray(array).view(numpy.uint8) if array.size else b""
        self.all.append(Leaf(path, facts, hashlib.sha256(contents).hexdigest()[:32], True))
        if array.dtype.name in _NUMBERS:
            self._arrays[path] = array


def _as_tensor(array: numpy.ndarray[Any, Any]) -> torch.Tensor:
    import torch

    return torch.from_numpy(array if array.flags.c_contiguous else array.copy("C"))


def whole_digest(leaves: Sequence[Leaf]) -> str:
    """Return one digest of all parts: ranks that have the same one do not differ."""
    whole = hashlib.sha256()
    for leaf in leaves:
        whole.update(repr(tuple(leaf)).encode(errors="surrogatepass"))
    return whole.hexdigest()


def _part(tensor: Any) -> str:
    """Return which shard of a DTensor is here: its place in the dimensions in which it is not replicated."""
    place = tensor.device_mesh.get_coordinate()
    if place is None:
        return "none"
    spread = [
        str(index) for index, placement in zip(place, tensor.placements, strict=True) if not placement.is_replicate()
    ]
    return ",".join(spread)


# ---- what is in a value ----


def _parts(value: Any) -> Iterator[tuple[str, Any]] | None:
    """Return the named parts of a value that has any; None of a plain one."""
    for has_parts, parts in _KINDS:
        if has_parts(value):
            return parts(value)
    return None


def _is_module(value: Any) -> bool:
    nn = sys.modules.get("torch.nn")
    return nn is not None and isinstance(value, nn.Module)


def _of_module(module: Any) -> Iterator[tuple[str, Any]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
    for name, each in module.named_modules():
        yield f"{name}.training" if name else "training", each.training


def _has_state(value: Any) -> bool:
    return not isinstance(value, type) and callable(getattr(value, "state_dict", None))


def _of_mapping(mapping: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    return ((key if type(key) is str else f"[{_text(key)}]", each) for key, each in mapping.items())


def _of_sequence(values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    return ((f"[{place}]", each) for place, each in enumerate(values))


def _of_fields(value: Any) -> Iterator[tuple[str, Any]]:
    return ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))


def _of_set(values: Set[Any]) -> Iterator[tuple[str, Any]]:
    yield "", ", ".join(sorted(map(_text, values)))


_KINDS: Sequence[tuple[Callable[[Any], bool], Callable[[Any], Iterator[tuple[str, Any]]]]] = (
    (_is_module, _of_module),
    (_has_state, lambda value: _of_mapping(value.state_dict())),
    (lambda value: isinstance(value, Mapping), _of_mapping),
    (lambda value: isinstance(value, tuple) and hasattr(value, "_fields"), lambda value: _of_mapping(value._asdict())),
    (lambda value: dataclasses.is_dataclass(value) and not isinstance(value, type), _of_fields),
    (lambda value: type(value) in (list, tuple), _of_sequence),
    (lambda value: type(value) in (set, frozenset), _of_set),
    (
        lambda value: isinstance(value, (argparse.Namespace, types.SimpleNamespace)),
        lambda value: _of_mapping(vars(value)),
    ),
)
"""Kinds of values that have parts: whether a value is of the kind, and its parts. The first that fits counts."""


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name and not name.startswith("[") else f"{path}{name}"


def _text(value: Any) -> str:
    """Return the text of a value, which other ranks' is compared with. Addresses in memory tell nothing."""
    if isinstance(value, (types.FunctionType, type)):
        return f"{value.__module__}.{value.__qualname__}"
    text = _ADDRESS.sub("0x…", repr(value))
    if len(text) <= MAX_TEXT_CHARACTERS:
        return text
    rest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{text[:MAX_TEXT_CHARACTERS]}… ({len(text):,} characters, {rest})"


Dimensions = dict[str, list[tuple[int, ...]]]
"""By the name of a dimension, the ranks that differ from this one in that dimension only, and this one: once, unless
device meshes contradict each other."""


def named_dimensions(variables: Mapping[str, Any]) -> Dimensions:
    """Return the named dimensions of the device meshes of this rank.

    Args:
        variables: of the user. A name that one of them has is not looked for elsewhere: torch keeps old meshes.
    """
    kind = getattr(sys.modules.get("torch.distributed.device_mesh"), "DeviceMesh", None)
    if kind is None:
        return {}
    found = _dimensions(each for each in variables.values() if issubclass(type(each), kind))
    return _dimensions(each for each in gc.get_objects() if issubclass(type(each), kind)) | found


def _dimensions(meshes: Iterable[Any]) -> Dimensions:
    found: Dimensions = {}
    for mesh in meshes:
        place = mesh.get_coordinate()
        if place is None:  # this rank is not in it
            continue
        for dimension, name in enumerate(mesh.mesh_dim_names or ()):
            others = (*place[:dimension], slice(None), *place[dimension + 1 :])
            ranks = tuple(mesh.mesh[others].tolist())
            if ranks not in found.setdefault(name, []):
                found[name].append(ranks)
    return found


PAGE_CHARACTERS = 150_000
"""A debugger's answer is read in pages: the conversation keeps 200,000 characters."""


class Looked(NamedTuple):
    """A tensor, as far as it is seen.

    Attributes:
        blocks: their digests. block_elements: how many elements one has.
        nan, inf: how many elements are not finite.
    """

    blocks: list[bytes]
    block_elements: int
    shape: list[int]
    nan: int
    inf: int


_compared = Leaves(None)
_printed = ""


def begin(value: Any) -> bytes:
    """Take a value in, and answer with the digest of the whole, and of how many parts it is."""
    global _compared
    _compared = Leaves(value)
    return _packed((whole_digest(_compared.all), len(_compared.all), _compared.left_out))


def begin_random_states() -> bytes:
    """Like `begin`, for the random states of this process."""
    states = process_random_states()
    return begin(
        {name: _digest(state.tolist() if hasattr(state, "tolist") else state) for name, state in states.items()}
    )


def begin_environment(salt: str) -> bytes:
    """Like `begin`, for what this process computes with: packages, variables, code, devices. Secrets are compared, but
    not told.

    Args:
        salt: new for each comparison: nobody can try secrets against a digest that was shown.
    """
    report = describe()
    found = {
        "python": report.python,
        "executable": report.executable,
        "machine": f"{platform.machine()}, {platform.system()} {platform.release()}, {usable_cpus()} cores",
        "driver": report.driver,
        "cuda": report.cuda,
        "torch": _torch_settings(),
        "gpus": _gpus(),
        "code": _git_state(),
        "variables": {name: _told(name, text, salt) for name, text in sorted(os.environ.items()) if _is_shared(name)},
        "packages": _packages(),
    }
    return begin(found)


def late_variables() -> bytes:
    """Answer with the variables that were set too late to count here."""
    return _packed(set_late(started, os.environ, read_at_import))


def dimensions(variables: Mapping[str, Any]) -> bytes:
    """Answer with the named dimensions of this rank's device meshes."""
    return _packed(named_dimensions(variables))


def leaves() -> bytes:
    """Answer with all parts."""
    return _packed([tuple(leaf) for leaf in _compared.all])


def look_at(paths: Sequence[str]) -> bytes:
    """Answer with what there is to see of tensors, by path."""
    found = {}
    for path in paths:
        tensor = _compared.tensor(path)
        if tensor is not None:
            found[path] = Looked(
                digests.block_digests(tensor),
                digests.elements_of_block(tensor),
                list(tensor.shape),
                int(tensor.isnan().sum()),
                int(tensor.isinf().sum()),
            )
    return _packed(found)


def elements(wanted: Sequence[tuple[str, int]]) -> bytes:
    """Answer with the elements of blocks, as 64-bit numbers."""
    return _packed([_numbers(path, block) for path, block in wanted])


def end() -> bytes:
    """Forget the value."""
    begin(None)
    digests.forget()
    return _packed(None)


def printed(answer: bytes, page: int = 0) -> None:
    """Print a page of an answer, for who asks through a debugger; page 0 takes the answer in, later ones give none."""
    global _printed
    if page == 0:
        _printed = base64.b64encode(answer).decode()
    text = _printed[page * PAGE_CHARACTERS : (page + 1) * PAGE_CHARACTERS]
    is_last = (page + 1) * PAGE_CHARACTERS >= len(_printed)
    sys.stdout.write(f"<<{'last' if is_last else 'more'} {text}>>\n")
    if is_last:
        _printed = ""


def _numbers(path: str, block: int) -> tuple[str, bytes]:
    """Return the typecode of `array`, and the elements."""
    import torch

    tensor = _compared.tensor(path)
    assert tensor is not None, "who asks has seen its blocks"
    found = digests.block_of(tensor, block)
    if found.is_complex():
        found = torch.view_as_real(found).reshape(-1)
    is_whole = not found.is_floating_point()
    numbers = found.to("cpu", torch.int64 if is_whole else torch.float64).contiguous()
    return "q" if is_whole else "d", numbers.numpy().tobytes() if numbers.numel() else b""


def _packed(answer: Any) -> bytes:
    return zlib.compress(pickle.dumps(answer), 1)
