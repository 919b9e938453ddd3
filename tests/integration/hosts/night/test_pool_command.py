"""`monarch-nb pool list` beside real nodes: who answers, and who does not."""

import os
import re
from pathlib import Path

import pytest

from integration.hosts.lab import Lab
from monarch_nb import reserve
from monarch_nb.cli.main import main
from monarch_nb.cli.pools import pool as pool_command
from monarch_nb.config import CONFIG_VARIABLE
from monarch_nb.errors import CapacityError, NodeUnreachable
from monarch_nb.trust.identity import load_identity
from monarch_nb.trust.pools import change_hosts, make_paths


def test_list_asks_every_node(lab: Lab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    node = lab.start()
    assert main(["pool", "list", "lab"]) == 0
    assert re.search(rf"host1 +{re.escape(node.address)} +answers", capsys.readouterr().out)
    monkeypatch.setattr(pool_command, "ANSWER_S", 1.0)
    change_hosts(make_paths("lab"), lambda hosts: hosts.added("127.0.0.1:1"))
    assert main(["pool", "list", "lab"]) == 1
    assert re.search(r"127\.0\.0\.1:1 +no answer \(connection refused\) *\n", capsys.readouterr().out)
    assert main(["doctor", "--pool", "lab"]) == 1
    refused = r"no answer +127\.0\.0\.1:1: connection refused +start its allocator there, on port 1 "
    assert re.search(refused, capsys.readouterr().out)
    with pytest.raises(CapacityError, match=r"127\.0\.0\.1:1: does not answer \(connection refused\)"):
        reserve("dev", nodes=2, procs=1, preload=[])
    change_hosts(make_paths("lab"), lambda hosts: hosts.removed(node.address))
    with pytest.raises(NodeUnreachable, match=r"no node of .* answers \(127\.0\.0\.1:1: connection refused\)"):
        reserve("dev", nodes=2, procs=1, preload=[])


def test_who_joins_with_an_invitation_that_was_revoked_is_told(
    lab: Lab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lab.start()
    invitation = tmp_path / "bob.pem"
    assert main(["pool", "invite", "lab", "--user", "bob", "-o", str(invitation)]) == 0
    mine = os.environ[CONFIG_VARIABLE]
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "bob"))
    assert main(["pool", "join", str(invitation)]) == 0
    monkeypatch.setenv(CONFIG_VARIABLE, mine)
    assert main(["pool", "revoke", "lab", "bob"]) == 0
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "bob"))
    capsys.readouterr()
    assert main(["pool", "join", str(invitation)]) == 1
    assert re.search(
        r"but its nodes refuse you: bob's certificate .* was revoked: ask the person who", capsys.readouterr().out
    )
    monkeypatch.setenv(CONFIG_VARIABLE, mine)


def test_list_names_hosts_that_show_a_certificate_which_was_replaced_or_revoked(
    lab: Lab, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    paths, copied = make_paths("lab"), tmp_path / "node.pem"
    old = load_identity(paths.node)
    old.save(copied)
    node = lab.start(flags=["--certificate", str(copied)])
    assert main(["pool", "renew", "lab"]) == 0
    for flaw in ("an old", "a revoked"):
        capsys.readouterr()
        assert main(["pool", "list", "lab"]) == 1
        said = capsys.readouterr().out
        assert re.search(rf"host1 +{re.escape(node.address)} +answers with {flaw} certificate", said), said
        assert f"to host1: copy {paths.node} there, over the old one" in said
        assert main(["pool", "revoke", "lab", old.fingerprint]) == 0
    load_identity(paths.node).save(copied)
    assert main(["pool", "list", "lab"]) == 0


def test_two_hosts_of_one_name_are_told_apart_and_named(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = lab.start(), lab.start(flags=["--node-id", "host1"])
    warning = f"2 nodes are called host1 ({one.address}, {other.address}): start their allocators with --node-id"
    assert main(["pool", "list", "lab"]) == 1
    assert warning in capsys.readouterr().out
    assert main(["status"]) == 0
    assert warning in capsys.readouterr().out
    said: list[str] = []
    dev = reserve("dev", nodes=2, procs=1, preload=[], progress=said.append)
    try:
        assert any(warning in line for line in said)
        hosts = [info.host for info in dev.mesh.status()]
        assert hosts == [f"host1 at {one.address}", f"host1 at {other.address}"], "not as if they were one"
        assert dev.mesh.run("rank").values == [0, 1]
    finally:
        dev.release()


def test_one_node_under_two_addresses_is_one(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    node = lab.start(procs=1)
    other_address = node.address.replace("127.0.0.1", "localhost")
    change_hosts(make_paths("lab"), lambda hosts: hosts.added(other_address))
    assert main(["pool", "list", "lab"]) == 0
    said = capsys.readouterr().out
    assert f"answers: the same node as {node.address}" in said
    assert main(["status"]) == 0
    said += capsys.readouterr().out
    assert said.count("host1 ") == 3, "twice in the pool's list, once in its status"
    assert "called host1" not in said
    main(["doctor", "--pool", "lab"])
    assert "pool lab: 1 node\n" in capsys.readouterr().out
    with pytest.raises(CapacityError, match="only 1 of 1 node can take 1 proc"):
        reserve("dev", nodes=2, procs=1, preload=[])
