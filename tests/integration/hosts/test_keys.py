"""The keys of a pool of hosts are in the files that are made for them, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.hosts.lab import Lab
from monarch_nb import reserve
from monarch_nb.cli.main import main
from monarch_nb.errors import RunFailed


def test_no_key_is_in_a_log_or_a_traceback(three: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = [
        line
        for path in three.config.rglob("*.pem")
        for block in path.read_text().split("-----BEGIN ")
        if block.startswith(("PRIVATE", "EC PRIVATE"))
        for line in block.splitlines()[1:-1]
        if len(line) > 40
    ]
    assert len(keys) >= 3, "of the authority, a person and a node"
    dev = reserve("dev", nodes=2, procs=1, preload=[])
    with pytest.raises(RunFailed) as failed:
        dev.mesh.run("import os; print(dict(os.environ)); 1 / 0")
    for command in ("doctor", "pool list", "status", "logs dev"):
        main(command.split())
    main(["pool", "join", str(three.config / "missing.pem")])
    (tmp_path / "broken.pem").write_bytes(b"x" + next(three.config.rglob("identity.pem")).read_bytes()[:-9])
    main(["pool", "join", str(tmp_path / "broken.pem")])
    kept = {path: path.read_text(errors="replace") for path in three.home.rglob("*") if path.is_file()}
    dev.release()  # which removes them, in its own time
    shown = "".join([*capsys.readouterr(), str(failed.value), *(one.log.read_text() for one in three.allocators)])
    assert "ZeroDivisionError" in shown
    for key in keys:
        assert key not in shown
        assert [path for path, content in kept.items() if key in content] == []
