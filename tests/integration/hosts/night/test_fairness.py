"""Several people of a pool: what each may hold of all its nodes, and what is logged of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from integration.hosts.lab import Lab
from integration.hosts.people import Person
from integration.live import eventually
from monarch_nb import reserve
from monarch_nb.cli.main import main
from monarch_nb.trust.pools import paths_of
from monarch_nb.trust.private_files import write_private

LIMITS = """contact = "carol"

[people."*"]
nodes = 1

[people.alice]
nodes = 3

[groups.vision]
members = ["alice", "bob"]
nodes = 2
"""


def shown_to(person: Person, *words: str) -> str:
    """Return what `monarch-nb pool ...` prints for somebody."""
    return "\n".join(person.run(f"from monarch_nb.cli.main import main\nmain(['pool', *{list(words)!r}])"))


def audit_of(lab: Lab) -> list[dict[str, Any]]:
    lines = [line for one in lab.allocators for line in one.log.read_text().splitlines()]
    return [json.loads(line.partition("monarch_nb.audit: ")[2]) for line in lines if "monarch_nb.audit: " in line]


def test_everybody_is_shown_their_limits_and_who_made_the_pool_all(
    two_nodes: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = paths_of("lab").limits
    write_private(limits, LIMITS.encode())
    bob = Person(two_nodes, "bob", tmp_path)
    bob.run("import monarch_nb; monarch_nb.reserve('one', procs=1, preload=[])")
    assert main(["pool", "limits", "lab"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"^bob +nodes +1 +1 +at the limit", told, re.MULTILINE)
    assert re.search(r"^group vision +nodes +1 +2", told, re.MULTILINE)
    (line,) = re.findall("^(?:alice|bob).*", shown_to(bob, "limits", "lab"), re.MULTILINE)
    assert line.startswith("bob"), "alice's are not his affair"
    limits.write_text(LIMITS + "gpu = 3\n")
    assert main(["pool", "limits", "lab"]) == 1
    assert "limits.toml, line 12: there is no 'gpu'" in capsys.readouterr().out


def test_the_audit_log_says_who_did_what_and_not_what_it_was(two_nodes: Lab, tmp_path: Path) -> None:
    bob = Person(two_nodes, "bob", tmp_path)
    dev = reserve("dev", nodes=2, procs=1, preload=[])
    dev.mesh.run("secret_sauce = 42")
    dev.share("bob", "run")
    bob.run("import monarch_nb; monarch_nb.attach('alice/dev').mesh.run('his_own = 1')")
    dev.release()
    eventually(lambda: [line["event"] for line in audit_of(two_nodes)].count("released") == 2)
    told = audit_of(two_nodes)
    assert {line["owner"] for line in told if line["event"] == "reserved"} == {"alice"}
    assert all(line["from"].startswith("ipv4:127.0.0.1:") for line in told if line["event"] == "reserved")
    assert {line["by"] for line in told if line["event"] == "run"} == {"alice", "bob"}
    assert [(line["to"], line["right"]) for line in told if line["event"] == "shared"] == [("bob", "run")] * 2
    assert "secret_sauce" not in json.dumps(told)
