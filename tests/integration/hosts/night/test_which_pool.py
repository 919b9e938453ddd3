"""A reservation of another pool than the one that is asked: one is told where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.hosts.lab import Lab
from integration.hosts.people import Person
from monarch_nb import attach, reserve
from monarch_nb.cli.main import main
from monarch_nb.errors import ReservationNotFound
from monarch_nb.trust.membership import make_pool
from monarch_nb.trust.pools import change_hosts, paths_of

HINT = "dev is held in the pool lab: --pool lab, or MONARCH_NB_POOL=lab"


def test_commands_say_in_which_pool_it_is(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab.start()
    with pytest.raises(ReservationNotFound, match="no reservation 'dev'; you hold none"):
        attach("dev")
    held = reserve("dev", procs=1, preload=[])
    for command in ("release", "logs", "extend", "share", "debug", "doctor"):
        assert main([command, "dev", "--pool", "local"]) == 1
        assert HINT in capsys.readouterr().err, command
    assert main(["release", "--pool", "local"]) == 0
    assert capsys.readouterr().out.startswith("you hold nothing in the pool local; you hold dev in the pool lab")
    bob = Person(lab, "bob", tmp_path)
    refused = "import monarch_nb\ntry: monarch_nb.attach('dev', pool='local')\nexcept monarch_nb.MonarchNbError as e: "
    (line,) = bob.run(refused + "print(e)")
    assert "is held in" not in line, "what is not shared is nobody else's to use"

    assert main(["list"]) == 0
    assert "pool" not in capsys.readouterr().out.splitlines()[0].split()
    make_pool("far", "alice")
    change_hosts(paths_of("far"), lambda hosts: hosts.added("127.0.0.1:1"))
    assert main(["list"]) == 1
    told = capsys.readouterr()
    header, row = told.out.splitlines()
    assert header.split()[:2] == ["reservation", "pool"]
    assert row.split()[:2] == ["dev", "lab"]
    silent = "no node of the pool 'far' answers (127.0.0.1: connection refused)"
    assert f"far: {silent}; monarch-nb status --pool far says more" in told.err
    held.release()
