"""The extension is found, enabled and configured as Jupyter does it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from monarch_nb import server
from monarch_nb.config import POOL_VARIABLE
from monarch_nb.server.extension import MonarchNB
from unit.server.conftest import Client

ROOT = Path(__file__).parents[3]


def test_the_configuration_that_is_installed_enables_it() -> None:
    config = json.loads((ROOT / "jupyter-config/server-config/monarch_nb.json").read_text())
    enabled = config["ServerApp"]["jpserver_extensions"]
    assert enabled == {point["module"]: True for point in server._jupyter_server_extension_points()}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("configuration", [{"pool": "lab", "refresh_s": 2.5, "notice_s": 30.0}], scope="module")
async def test_traits_reach_it(served: Client) -> None:
    extension = served.extension
    assert (extension.pool, extension.refresh_s, extension.notice_s) == ("lab", 2.5, 30.0)


def test_the_pool_of_the_environment_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POOL_VARIABLE, "lab")
    assert MonarchNB().pool == "lab"
    monkeypatch.delenv(POOL_VARIABLE)
    assert MonarchNB().pool == "local"


def test_every_trait_is_documented() -> None:
    documented = (ROOT / "docs/panel.md").read_text()
    for name, trait in MonarchNB.class_own_traits(config=True).items():
        assert trait.help
        assert f"c.MonarchNB.{name}" in documented
