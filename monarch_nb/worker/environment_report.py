"""What a Python environment and the machine around it are, for `%mesh doctor`: quick to import.

The kernel calls `describe`; a node has the ranks' python run this module, which reads a question from stdin and
writes the answer to stdout, both JSON.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import resource
import shutil
import site
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from urllib.parse import unquote, urlparse

from monarch_nb.ground.cpus import usable_cpus
from monarch_nb.worker.torch_names import lacking


@dataclass(frozen=True)
class Environment:
    """An environment. None: there is no such thing, or it can not be known.

    Attributes:
        python: its version. executable: the interpreter.
        installs_into: the directory below which pip installs.
        torch: its version. torch_cuda: the CUDA that it was built for. torch_lacks: what is off with it, as sentences.
        driver, cuda: of the GPU driver, as NVML says: its version, and the newest CUDA that it runs.
        packages: versions by distribution.
        sources: where distributions come from that were installed from a directory.
        free_bytes: on the disks of some directories.
        shared_memory_bytes: the size of /dev/shm.
        open_files: how many a process may have open.
        cpus: how many it may use.
    """

    python: str = ""
    executable: str = ""
    installs_into: str = ""
    torch: str | None = None
    torch_cuda: str | None = None
    torch_lacks: list[str] = field(default_factory=list)
    driver: str | None = None
    cuda: str | None = None
    packages: dict[str, str | None] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    free_bytes: dict[str, int | None] = field(default_factory=dict)
    shared_memory_bytes: int | None = None
    open_files: int | None = None
    cpus: int | None = None

    @classmethod
    def from_json(cls, text: str) -> Environment:
        """Return what another process described; what a newer version says besides is left out."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in json.loads(text).items() if name in known})


def describe(packages: Iterable[str] = (), directories: Iterable[str] = ()) -> Environment:
    """Return this process's environment.

    Args:
        packages: distributions whose versions are told.
        directories: whose free space is told.
    """
    names = list(packages)
    torch, torch_cuda, torch_lacks = _torch()
    driver, cuda = _driver()
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Environment(
        python=platform.python_version(),
        executable=sys.executable,
        installs_into=_installs_into(),
        torch=torch,
        torch_cuda=torch_cuda,
        torch_lacks=torch_lacks,
        driver=driver,
        cuda=cuda,
        packages={name: _version(name) for name in names},
        sources={name: source for name in names if (source := _source(name))},
        free_bytes={directory: _disk_bytes(directory)[1] for directory in directories},
        shared_memory_bytes=_disk_bytes("/dev/shm")[0],
        open_files=None if soft_limit == resource.RLIM_INFINITY else soft_limit,
        cpus=usable_cpus(),
    )


def _installs_into() -> str:
    packages = sysconfig.get_path("purelib")
    return sys.prefix if os.access(packages, os.W_OK) or not site.ENABLE_USER_SITE else site.getuserbase()


def _torch() -> tuple[str | None, str | None, list[str]]:
    """Read torch's versions, and what it lacks, from its files: importing it takes seconds."""
    try:
        spec = importlib.util.find_spec("torch")
        directory = Path(spec.origin).parent if spec and spec.origin else None
        text = (directory / "version.py").read_text() if directory else ""
    except (ImportError, OSError, ValueError):
        return _version("torch"), None, []
    found = re.search(r"^__version__\s*(?::[^=]*)?=\s*['\"](.+?)['\"]", text, re.MULTILINE)
    cuda = re.search(r"^cuda\s*(?::[^=]*)?=\s*['\"](.+?)['\"]", text, re.MULTILINE)
    version = found[1] if found else _version("torch")
    lacks = list(lacking(directory, version or "").values()) if directory else []
    return version, cuda[1] if cuda else None, lacks


def _driver() -> tuple[str | None, str | None]:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None, None
    if nvml.nvmlInit_v2() != 0:
        return None, None
    try:
        text, number = ctypes.create_string_buffer(96), ctypes.c_int()
        driver = None if nvml.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text))) else text.value.decode()
        if nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(number)):
            return driver, None
        return driver, f"{number.value // 1000}.{number.value % 1000 // 10}"
    finally:
        nvml.nvmlShutdown()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except (importlib.metadata.PackageNotFoundError, OSError):
        return None


def _source(package: str) -> str | None:
    try:
        text = importlib.metadata.distribution(package).read_text("direct_url.json")
        url = urlparse(json.loads(text)["url"]) if text else None
    except (importlib.metadata.PackageNotFoundError, OSError, ValueError, KeyError):
        return None
    return unquote(url.path) if url and url.scheme == "file" and os.path.isdir(unquote(url.path)) else None


def _disk_bytes(directory: str) -> tuple[int | None, int | None]:
    """Return the size of a directory's disk, and what is free."""
    try:
        usage = shutil.disk_usage(directory)
    except OSError:
        return None, None
    return usage.total, usage.free


if __name__ == "__main__":
    json.dump(asdict(describe(**json.load(sys.stdin))), sys.stdout)
