"""Python on a host: this process's own where the host sees it, else a virtual environment with the same versions, which
is made once, beside a copy of this process's monarch_nb."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import re
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from monarch_nb.config import patience
from monarch_nb.errors import PoolError
from monarch_nb.provision.remote import fingerprint as fingerprints
from monarch_nb.provision.remote.command import run
from monarch_nb.times import duration

INSTALL_S = patience(3600.0)
"""Some gigabytes may have to be fetched."""
MOST_APART_S = 300.0
"""Certificates count from ten minutes before they were made."""
_DISTRIBUTION = "monarch-nb"
_TORCH_INDEX = "https://download.pytorch.org/whl"
_NOT_COPIED = {"__pycache__", "labextension", "static"}
"""What nodes do not need: the panel."""


@dataclass(frozen=True)
class Environment:
    """What a host has for our allocators.

    Attributes:
        python: its path. code: of a copy of monarch_nb; empty where Python has it installed.
        root: our directory on the host.
        came_from: from where ssh reached the host, as it sees it; empty when it does not say.
        is_new: whether anything had to be installed.
    """

    python: str
    code: str
    root: str
    came_from: str
    is_new: bool


async def environment_on(host: str, root: str, say: Callable[[str], None]) -> Environment:
    """Have what allocators need on a host.

    Args:
        root: our directory on the host; empty for the usual one. say: told what is done.

    Raises:
        PoolError: it can not be had; the message says why.
    """
    names = {"ROOT": root, "VENV": _venv_name(), "CODE": _own_fingerprint().rpartition(" ")[2]}
    probe = {**names, "CLIENT_PYTHON": sys.executable, "CHECK": _check_text(), "EXPECTED": _own_fingerprint()}
    asked_s = time.time()
    found = await run(host, "probe", probe, patience(60.0), say)
    _check_clock(float(found["now"]), asked_s, time.time())
    is_new = "python" not in found
    if is_new:
        minor = ".".join(map(str, sys.version_info[:2]))
        needed = {"MINOR": minor, "REQUIREMENTS": "\n".join(requirements()), "INDEX": _index()}
        found |= await run(host, "install", {**names, **needed, "ARCHIVE": _archive()}, INSTALL_S, say)
    return Environment(found["python"], found.get("code", ""), found["root"], found.get("from", ""), is_new)


def _check_clock(there_s: float, asked_s: float, answered_s: float) -> None:
    apart_s = max(asked_s - there_s, there_s - answered_s)
    if apart_s > MOST_APART_S:
        side = "behind" if there_s < asked_s else "ahead of"
        raise PoolError(
            f"its clock is {duration(apart_s)} {side} this computer's, so certificates are not valid there: set "
            "the clock that is wrong (timedatectl set-ntp true)"
        )


def _check_text() -> str:
    return Path(fingerprints.__file__).read_text()


@cache
def _own_fingerprint() -> str:
    return fingerprints.fingerprint()


@cache
def requirements() -> list[str]:
    """Return what monarch_nb requires, in the versions that this process has."""
    found = []
    for line in importlib.metadata.requires(_DISTRIBUTION) or []:
        requirement, _, marker = line.partition(";")
        name = re.split(r"[^A-Za-z0-9._-]", requirement.strip(), maxsplit=1)[0]
        if "extra" not in marker:
            found.append(f"{name}=={importlib.metadata.version(name)}")
    return sorted(found)


def _index() -> str:
    """Return the flags for where torch comes from: the version of a build that PyPI has not says which index has it."""
    _, _, build = importlib.metadata.version("torch").partition("+")
    return f"--extra-index-url {_TORCH_INDEX}/{build}" if build else ""


def _venv_name() -> str:
    """Return what the virtual environment is called: another for other versions."""
    minor = ".".join(map(str, sys.version_info[:2]))
    return f"{minor}-{hashlib.sha256(' '.join(requirements()).encode()).hexdigest()[:12]}"


@cache
def _archive() -> str:
    """Return this process's monarch_nb, with what it says of itself, as an archive in letters."""
    package = Path(fingerprints.__file__).parents[2]
    facts = importlib.metadata.distribution(_DISTRIBUTION)
    into = f"monarch_nb-{facts.version}.dist-info"
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        archive.add(package, "monarch_nb", filter=_without_panel)
        for name in ("METADATA", "entry_points.txt"):
            text = (facts.read_text(name) or "").encode()
            member = tarfile.TarInfo(f"{into}/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return base64.b64encode(content.getvalue()).decode()


def _without_panel(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if _NOT_COPIED.intersection(Path(member.name).parts):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
