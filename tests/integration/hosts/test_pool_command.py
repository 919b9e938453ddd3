"""`monarch-nb pool list` beside real nodes: who answers, and who does not."""

import re

import pytest

from lab import Lab
from monarch_nb.cli import pool as pool_command
from monarch_nb.cli.main import main
from monarch_nb.trust.pools import change_hosts, make_paths


def test_list_asks_every_node(lab: Lab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_command, "ANSWER_S", 60.0)
    node = lab.start()
    assert main(["pool", "list", "lab"]) == 0
    assert re.search(rf"host1 +{re.escape(node.address)} +answers", capsys.readouterr().out)
    monkeypatch.setattr(pool_command, "ANSWER_S", 1.0)
    change_hosts(make_paths("lab"), lambda hosts: hosts.added("127.0.0.1:1"))
    assert main(["pool", "list", "lab"]) == 1
    assert re.search(
        r"127\.0\.0\.1:1 +127\.0\.0\.1:1 does not answer|127\.0\.0\.1:1 +.* in time", capsys.readouterr().out
    )
