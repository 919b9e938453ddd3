"""A stand-in for Lightning's service, asked by Lightning's own package, for all tests of this folder."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from integration.night.lightning.service import Service, service
from integration.ways import end_all_of, nothing_stays
from leaks import processes_of
from monarch_nb.config import HOME_VARIABLE
from monarch_nb.provision import lightning


@dataclass(frozen=True)
class Lightning:
    """Lightning as a way to have nodes."""

    service: Service
    pools: Path
    on: str = "lightning"
    flags: tuple[str, ...] = ("--image=with-torch",)
    too_many_nodes: int = 9

    def left(self) -> str:
        return " ".join(filter(None, (self.service.running(), *self.service.secrets)))

    def lose(self, node: str) -> None:
        """A machine that is lost takes all of its processes along: those below its allocator have its directory."""
        self.service.lose(node)
        for process in processes_of(Path(os.environ[HOME_VARIABLE])):
            if f"/{node}-" in process.command:
                os.kill(process.pid, signal.SIGKILL)

    def clean_up(self, node: str) -> None:
        end_all_of("lightning-*")


@pytest.fixture(scope="session")
def _service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    if find_spec("lightning_sdk") is None:
        pytest.skip("there is no lightning_sdk (pip install lightning-sdk)")
    with service(tmp_path_factory.mktemp("lightning")) as known:
        _import_anew()
        yield known
    _import_anew()


def _import_anew() -> None:
    """Lightning's package remembers which service it asks."""
    lightning._package.cache_clear()
    lightning._teamspace.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "lightning_sdk"]:
        del sys.modules[name]


@pytest.fixture
def way(_service: Service, client_home: Path) -> Iterator[Lightning]:
    """A teamspace in which nothing runs, and without secrets."""
    engine = Lightning(_service, client_home / "pools")
    with nothing_stays(engine):
        yield engine
    _service.forget()
