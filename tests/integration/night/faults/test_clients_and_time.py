"""Clients that die half-way, allocators of another version, and clocks that jump."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.live import client, kill
from integration.patched import patch_allocators
from monarch_nb import config
from monarch_nb.client.reservations.reserve import attach
from monarch_nb.errors import VersionMismatch
from monarch_nb.provision.local import LocalProvisioner

pytestmark = pytest.mark.usefixtures("without_torch")

local = LocalProvisioner()


@pytest.fixture
def upgraded(pool_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A reservation "dev" on an allocator that was replaced by one of a newer protocol in the middle of a cell."""
    local.up(nodes=1, procs=2)
    with client(
        "mesh = monarch_nb.reserve('dev', procs=2, preload=[]).mesh\nmesh.run('kept = rank')\nprint('kept')"
    ) as first:
        assert first.line() == "kept"
        first.finish()
    [node] = local.nodes()
    assert node.pid is not None
    kill(node.pid, signal.SIGTERM)
    newer = f"from monarch_nb import config\nconfig.PROTOCOL, config.VERSION = {config.PROTOCOL + 1}, '9.9.9'\n"
    with pytest.MonkeyPatch.context() as patch:
        patch_allocators(patch, tmp_path / "patched", newer)
        local.up()
    yield
    [node] = local.nodes()
    if node.pid is not None:
        kill(node.pid, signal.SIGTERM)
    local.up()


@pytest.mark.usefixtures("upgraded")
def test_a_newer_allocator_tells_older_clients_and_keeps_what_is_held() -> None:
    for ask in ("monarch_nb.attach('dev')", "monarch_nb.reserve('dev', procs=2, preload=[])"):
        with client(f"try: {ask}\nexcept monarch_nb.MonarchNbError as error: print(repr(str(error)))\n") as older:
            said = older.line()
            assert "9.9.9" in said
            assert "install the same version on both" in said
            assert "Traceback" not in said
    newer = f"from monarch_nb import config\nconfig.PROTOCOL = {config.PROTOCOL + 1}\n"
    attached = "mesh = monarch_nb.attach('dev').mesh\nprint(mesh.run('kept').values)"
    with client(newer + attached) as upgraded:
        assert upgraded.line() == "[0, 1]", "ranks and reservations are those of before"
        upgraded.finish()
    with pytest.raises(VersionMismatch):
        attach("dev")
