"""One network per test: a client, and ranks as the test asks for them."""

from collections.abc import Iterator

import pytest

from monarch_nb.actor.engine import process as engine
from unit.actor.network import Network


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    network = Network()
    monkeypatch.setattr(engine, "_installed", [network.client])
    yield network
    network.close()
